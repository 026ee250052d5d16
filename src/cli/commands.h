/* One function per command, each in its file cmd_*.c; it returns the exit code. */
#ifndef SYNCGUARD_CLI_COMMANDS_H
#define SYNCGUARD_CLI_COMMANDS_H

#include "options.h"

int cmd_run(cli_options *options);
int cmd_bench(cli_options *options);
int cmd_acquire(cli_options *options);
int cmd_release(cli_options *options);
int cmd_extend(cli_options *options);
int cmd_status(cli_options *options);
int cmd_list(cli_options *options);
int cmd_prune(cli_options *options);
int cmd_setup(cli_options *options);
int cmd_config(cli_options *options);
int cmd_doctor(cli_options *options);
int cmd_version(cli_options *options);

#endif
