/* syncguard release: by lock id. */
#include "cli.h"

int cmd_release(cli_options *options)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    int code = cli_open(options, NULL, NULL, &backend);
    if (code != CLI_OK)
        return code;
    syncguard_status status = syncguard_release(backend, options->operands[0], NULL, &err);
    if (status < 0) {
        code = cli_failure(options, &err);
    } else {
        code = cli_exit_code(status);
        if (status == SYNCGUARD_ABSENT)
            cli_note("no live lock has this id");
        else
            cli_tell("released");
    }
    syncguard_close(backend);
    return code;
}
