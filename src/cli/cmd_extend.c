/* syncguard extend: extends a lock by its id and prints the new expiry. */
#include <stdio.h>

#include "commands.h"
#include "exitcode.h"
#include "json.h"
#include "report.h"
#include "store.h"

static void extend_print_expiry(const cli_options *options, const char *lock_id,
                                int64_t expires_at_ms)
{
    cli_json json;
    if (!options->json) {
        printf("expiresAtMs: %lld\n", (long long)expires_at_ms);
        return;
    }
    cli_json_begin(&json);
    cli_json_text(&json, "lockId", lock_id);
    cli_json_int(&json, "expiresAtMs", expires_at_ms);
    cli_json_end(&json);
}

int cmd_extend(cli_options *options)
{
    syncguard_backend *backend = NULL;
    char buffer[SYNCGUARD_LOCK_ID_SIZE];
    const char *lock_id = cli_lock_id(options, buffer);
    if (lock_id == NULL)
        return CLI_USAGE;
    int code = cli_refuse_memory(options);
    if (code == CLI_OK)
        code = cli_open_existing(options, &backend);
    if (code != CLI_OK || backend == NULL)
        return code != CLI_OK ? code : CLI_CONFLICT;
    syncguard_error err;
    int64_t expires_at_ms = 0;
    syncguard_status status =
        syncguard_extend(backend, lock_id, options->ttl_ms, NULL, &expires_at_ms, &err);
    if (status < 0) {
        code = cli_failure(&err);
    } else {
        code = cli_exit_code(status);
        if (status == SYNCGUARD_OK)
            extend_print_expiry(options, lock_id, expires_at_ms);
        else
            cli_notice("no live lock has this id");
    }
    syncguard_close(backend);
    return code;
}
