/* syncguard extend: by lock id; prints the new expiry. */
#include "cli.h"

static void print(const cli_options *options, int64_t expires_at_ms)
{
    cli_json json;
    if (!options->json) {
        printf("expiresAtMs: %lld\n", (long long)expires_at_ms);
        return;
    }
    cli_json_begin(&json);
    cli_json_text(&json, "lockId", options->operands[0]);
    cli_json_int(&json, "expiresAtMs", expires_at_ms);
    cli_json_end(&json);
}

int cmd_extend(cli_options *options)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    int64_t expires_at_ms = 0;
    int code = cli_open(options, NULL, NULL, &backend);
    if (code != CLI_OK)
        return code;
    syncguard_status status = syncguard_extend(backend, options->operands[0], options->ttl_ms, NULL,
                                               &expires_at_ms, &err);
    if (status < 0) {
        code = cli_failure(options, &err);
    } else {
        code = cli_exit_code(status);
        if (status == SYNCGUARD_OK)
            print(options, expires_at_ms);
        else
            cli_note("no live lock has this id");
    }
    syncguard_close(backend);
    return code;
}
