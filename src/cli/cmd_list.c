/*
 * syncguard list: every live lock, one line each, as it comes from the store. An
 * aligned table with a heading on a terminal, else fields between tabs.
 */
#include <unistd.h>

#include "cli.h"

typedef struct listing {
    bool json;
    bool table;
    bool raw;
    bool any;
} listing;

static void heading(const listing *l)
{
    if (l->raw)
        printf("%-15s  %-19s  %-7s  %-22s  %-28s  %s\n", "FENCE", "ACQUIRED", "LEFT", "LOCK ID",
               "OWNER", "KEY");
    else
        printf("%-15s  %-19s  %-7s  %-24s  %s\n", "FENCE", "ACQUIRED", "LEFT", "KEY HASH",
               "LOCK ID HASH");
}

static void row(listing *l, const syncguard_lock_info *info, const syncguard_lock_info_raw *raw)
{
    char when[32], left[24], owner[4 * SYNCGUARD_OWNER_SIZE], key[4 * SYNCGUARD_KEY_SIZE];
    if (l->table && !l->any)
        heading(l);
    cli_time(info->acquired_at_ms, when, sizeof when);
    cli_span(info->expires_at_ms - cli_wall_ms(), left, sizeof left);
    if (raw == NULL) {
        printf(l->table ? "%-15s  %-19s  %-7s  %-24s  %s\n" : "%s\t%s\t%s\t%s\t%s\n", info->fence,
               when, left, info->key_hash, info->lock_id_hash);
        return;
    }
    cli_plain(raw->owner[0] != '\0' ? raw->owner : "-", owner, sizeof owner);
    cli_plain(raw->key, key, sizeof key);
    printf(l->table ? "%-15s  %-19s  %-7s  %-22s  %-28s  %s\n" : "%s\t%s\t%s\t%s\t%s\t%s\n",
           info->fence, when, left, raw->lock_id, owner, key);
}

static bool show(listing *l, const syncguard_lock_info *info, const syncguard_lock_info_raw *raw)
{
    cli_json json;
    if (l->json) {
        cli_json_begin(&json);
        cli_json_lock(&json, info, raw);
        cli_json_end(&json);
    } else {
        row(l, info, raw);
    }
    l->any = true;
    return ferror(stdout) == 0;
}

static bool on_lock(void *context, const syncguard_lock_info *info)
{
    return show(context, info, NULL);
}

static bool on_lock_raw(void *context, const syncguard_lock_info_raw *raw)
{
    return show(context, &raw->info, raw);
}

int cmd_list(cli_options *options)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    listing l = {options->json, isatty(STDOUT_FILENO) != 0, options->raw, false};
    int code = cli_open(options, NULL, NULL, &backend);
    if (code != CLI_OK)
        return code;
    syncguard_status status = options->raw
                                  ? syncguard_list_raw(backend, NULL, on_lock_raw, &l, &err)
                                  : syncguard_list(backend, NULL, on_lock, &l, &err);
    if (status < 0)
        code = cli_failure(options, &err);
    else if (!l.any)
        cli_note("no lock is held");
    syncguard_close(backend);
    return code;
}
