/* Exit codes of the command, and the one place that maps statuses of the library to them. */
#ifndef SYNCGUARD_CLI_EXITCODE_H
#define SYNCGUARD_CLI_EXITCODE_H

#include <syncguard.h>

/* A child's own exit code is passed on as it is, its signal as CLI_SIGNAL_BASE + number. */
enum {
    CLI_OK = 0,
    CLI_CONFLICT = 1, /* held by another owner, or absent */
    CLI_USAGE = 64,
    CLI_UNAVAILABLE = 69,
    CLI_INTERNAL = 70,
    CLI_NO_MEMORY = 71,
    CLI_TIMEOUT = 75,
    CLI_LOST = 76,
    CLI_NO_AUTH = 77,
    CLI_CANNOT_RUN = 126,
    CLI_NOT_FOUND = 127,
    CLI_SIGNAL_BASE = 128
};

int cli_exit_code(syncguard_status status);

#endif
