/* The environment that `run` gives to its child, and what it finds in its own of outer runs. */
#ifndef SYNCGUARD_CLI_VARIABLES_H
#define SYNCGUARD_CLI_VARIABLES_H

#include "options.h"

typedef struct cli_variables {
    char **list; /* for execve; NULL if memory is short */
    char **made; /* the part of list that is ours, up to its end */
} cli_variables;

/* Our own environment is not changed, because threads of the libraries may be reading it. */
void cli_variables_make(cli_variables *variables, const cli_options *options,
                        const syncguard_lock_set *set);
void cli_variables_free(cli_variables *variables);

/* True if a run that this process descends from holds the key now, or one of so many slots of it
 * (0: a plain lock): to wait for it may never end.
 * The variable may be left over from a run that has ended, so the store is asked whose lock it is,
 * but only if the variable names the key. */
bool cli_held_by_outer_run(syncguard_backend *backend, const char *key, int slots);

#endif
