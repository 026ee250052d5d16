/* Supervision of the child while the lock is held. */
#ifndef SYNCGUARD_CLI_SUPERVISE_H
#define SYNCGUARD_CLI_SUPERVISE_H

#include "child.h"
#include "options.h"

/* Returns the exit code when the child has ended. command is for messages. */
int cli_supervise(const cli_options *options, syncguard_lock_set *set, cli_child *child,
                  const char *command);

#endif
