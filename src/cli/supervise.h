/* Supervision of the child while the lock is held. */
#ifndef SYNCGUARD_CLI_SUPERVISE_H
#define SYNCGUARD_CLI_SUPERVISE_H

#include "child.h"
#include "options.h"

/* Starts argv as the child, and returns its exit code when it has ended. */
int cli_supervise(const cli_options *options, syncguard_lock_set *set, cli_child *child,
                  char **argv, char **variables);

#endif
