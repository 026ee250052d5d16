/* The mapping from statuses of the library to exit codes. */
#include "exitcode.h"
#include "signals.h"

int cli_exit_code(syncguard_status status)
{
    switch (status) {
    case SYNCGUARD_OK:
        return CLI_OK;
    case SYNCGUARD_LOCKED:
    case SYNCGUARD_ABSENT:
        return CLI_CONFLICT;
    case SYNCGUARD_E_INVALID_ARGUMENT:
        return CLI_USAGE;
    case SYNCGUARD_E_SERVICE_UNAVAILABLE:
    case SYNCGUARD_E_NETWORK_TIMEOUT:
    case SYNCGUARD_E_RATE_LIMITED:
        return CLI_UNAVAILABLE;
    case SYNCGUARD_E_OUT_OF_MEMORY:
        return CLI_NO_MEMORY;
    case SYNCGUARD_E_ACQUISITION_TIMEOUT:
        return CLI_TIMEOUT;
    case SYNCGUARD_E_AUTH_FAILED:
        return CLI_NO_AUTH;
    case SYNCGUARD_E_ABORTED: {
        /* Only the command's signal handlers trigger an abort object. */
        int number = cli_signals_ended();
        return number > 0 ? CLI_SIGNAL_BASE + number : CLI_INTERNAL;
    }
    case SYNCGUARD_E_INTERNAL:
        break;
    }
    return CLI_INTERNAL;
}
