/* syncguard status: whether a key or a lock id is held, and by whom. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "exitcode.h"
#include "json.h"
#include "report.h"
#include "store.h"
#include "text.h"
#include "times.h"

static syncguard_status status_read_lock(const cli_options *options, syncguard_backend *backend,
                                         syncguard_lock_info_raw *lock, syncguard_error *err)
{
    if (options->count > 0)
        return syncguard_get_by_key_raw(backend, options->operands[0], NULL, lock, err);
    return syncguard_get_by_id_raw(backend, options->id, NULL, lock, err);
}

static void status_print_field(const char *name, const char *value)
{
    char shown[4 * SYNCGUARD_KEY_SIZE];
    cli_escape(value, shown, sizeof shown);
    printf("%s: %s\n", name, shown);
}

static void status_print_text(const cli_options *options, bool held,
                              const syncguard_lock_info_raw *lock)
{
    printf("state: %s\n", held ? "held" : "free");
    if (held || options->count > 0)
        status_print_field("key", held ? lock->key : options->operands[0]);
    if (!held)
        return;
    status_print_field("owner", lock->owner[0] != '\0' ? lock->owner : "-");
    char when[40];
    cli_format_time(lock->info.acquired_at_ms, when, sizeof when);
    char span[24];
    cli_format_duration(lock->info.now_ms - lock->info.acquired_at_ms, span, sizeof span);
    printf("held for: %s (since %s)\n", span, when);
    cli_format_time(lock->info.expires_at_ms, when, sizeof when);
    cli_format_duration(lock->info.expires_at_ms - lock->info.now_ms, span, sizeof span);
    printf("expires in: %s (at %s, unless renewed)\n", span, when);
    status_print_field("fence", lock->info.fence);
    if (options->raw)
        status_print_field("lockId", lock->lock_id);
}

static void status_print_json(const cli_options *options, bool held,
                              const syncguard_lock_info_raw *lock)
{
    cli_json json;
    cli_json_begin(&json);
    cli_json_bool(&json, "held", held);
    if (held)
        cli_json_lock(&json, lock, options->raw);
    else if (options->count > 0)
        cli_json_text(&json, "key", options->operands[0]);
    cli_json_end(&json);
}

int cmd_status(cli_options *options)
{
    if ((options->count > 0) == (options->id != NULL))
        return cli_usage_error(options->count > 0 ? "a key and --id cannot be used together"
                                                  : "a key or --id is needed");
    int code = cli_refuse_memory(options);
    syncguard_backend *backend = NULL;
    if (code == CLI_OK)
        code = cli_open_existing(options, &backend);
    if (code != CLI_OK)
        return code;
    syncguard_lock_info_raw lock;
    memset(&lock, 0, sizeof lock);
    syncguard_status status = SYNCGUARD_ABSENT;
    syncguard_error err;
    if (backend != NULL)
        status = status_read_lock(options, backend, &lock, &err);
    if (status < 0) {
        code = cli_failure(&err);
    } else {
        code = cli_exit_code(status);
        (options->json ? status_print_json : status_print_text)(options, status == SYNCGUARD_OK,
                                                                &lock);
    }
    syncguard_close(backend);
    return code;
}
