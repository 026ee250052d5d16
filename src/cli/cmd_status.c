/*
 * syncguard status: whether a key or a lock id is held. Shows hashes; key, lock id
 * and owner only where the user gave them or asks with --raw.
 */
#include <string.h>

#include "cli.h"

static syncguard_status ask(const cli_options *options, syncguard_backend *backend,
                            syncguard_lock_info_raw *raw, syncguard_error *err)
{
    const char *key = options->count > 0 ? options->operands[0] : NULL;
    if (options->raw)
        return key != NULL ? syncguard_get_by_key_raw(backend, key, NULL, raw, err)
                           : syncguard_get_by_id_raw(backend, options->id, NULL, raw, err);
    return key != NULL ? syncguard_get_by_key(backend, key, NULL, &raw->info, err)
                       : syncguard_get_by_id(backend, options->id, NULL, &raw->info, err);
}

static void line(const char *name, const char *value)
{
    char shown[4 * SYNCGUARD_KEY_SIZE];
    cli_plain(value, shown, sizeof shown);
    printf("%s: %s\n", name, shown);
}

static void print_text(const cli_options *options, bool held, const syncguard_lock_info_raw *raw)
{
    char when[32], span[24];
    int64_t now = cli_wall_ms();
    printf("state: %s\n", held ? "held" : "free");
    if (options->count > 0 && !(held && options->raw))
        line("key", options->operands[0]);
    if (!held)
        return;
    if (options->raw) {
        line("key", raw->key);
        line("lockId", raw->lock_id);
        line("owner", raw->owner[0] != '\0' ? raw->owner : "-");
    }
    line("fence", raw->info.fence);
    cli_time(raw->info.acquired_at_ms, when, sizeof when);
    cli_span(now - raw->info.acquired_at_ms, span, sizeof span);
    printf("acquired: %s (%s ago)\n", when, span);
    cli_time(raw->info.expires_at_ms, when, sizeof when);
    cli_span(raw->info.expires_at_ms - now, span, sizeof span);
    printf("expires: %s (in %s)\n", when, span);
    line("keyHash", raw->info.key_hash);
    line("lockIdHash", raw->info.lock_id_hash);
}

static void print_json(const cli_options *options, bool held, const syncguard_lock_info_raw *raw)
{
    cli_json json;
    cli_json_begin(&json);
    cli_json_bool(&json, "held", held);
    if (options->count > 0 && !(held && options->raw))
        cli_json_text(&json, "key", options->operands[0]);
    if (held)
        cli_json_lock(&json, &raw->info, options->raw ? raw : NULL);
    cli_json_end(&json);
}

int cmd_status(cli_options *options)
{
    syncguard_backend *backend = NULL;
    syncguard_lock_info_raw raw;
    syncguard_error err;

    if ((options->count > 0) == (options->id != NULL))
        return cli_usage_error("status", options->count > 0 ? "a key and --id exclude each other"
                                                            : "a key or --id is needed");
    int code = cli_open(options, NULL, NULL, &backend);
    if (code != CLI_OK)
        return code;
    memset(&raw, 0, sizeof raw);
    syncguard_status status = ask(options, backend, &raw, &err);
    if (status < 0) {
        code = cli_failure(options, &err);
    } else {
        code = cli_exit_code(status);
        (options->json ? print_json : print_text)(options, status == SYNCGUARD_OK, &raw);
    }
    syncguard_close(backend);
    return code;
}
