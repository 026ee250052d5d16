/* The environment that `run` passes to its child, and what its own environment says about outer
 * runs. */
#ifndef SYNCGUARD_CLI_VARIABLES_H
#define SYNCGUARD_CLI_VARIABLES_H

#include "options.h"

typedef struct cli_variables {
    char **list; /* for execve; NULL if memory is short */
    char **made; /* the variables of list that were made here, up to its end */
} cli_variables;

/* Our own environment is not changed, because threads of the libraries may be reading it. */
void cli_variables_make(cli_variables *variables, const cli_options *options,
                        const syncguard_lock_set *set);
void cli_variables_free(cli_variables *variables);

/* True if a run that this process descends from holds the key now, or one of its slots if slots is
 * not 0: waiting for it might never end. The variable may be left over from a run that has ended,
 * so the store is asked whose lock it is, but only if the variable names the key. */
bool cli_held_by_outer_run(syncguard_backend *backend, const char *key, int slots);

#endif
