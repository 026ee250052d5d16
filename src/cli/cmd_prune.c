/* syncguard prune: removes the records of locks that have expired. */
#include <stdio.h>

#include "commands.h"
#include "exitcode.h"
#include "json.h"
#include "report.h"
#include "store.h"
#include "text.h"
#include "times.h"

typedef struct pruning {
    const cli_options *options;
    size_t count;
} pruning;

static void prune_print_record(const syncguard_lock_info_raw *lock)
{
    char key[4 * SYNCGUARD_KEY_SIZE], owner[4 * SYNCGUARD_OWNER_SIZE], ago[24];
    cli_escape(lock->key, key, sizeof key);
    cli_escape(lock->owner[0] != '\0' ? lock->owner : "-", owner, sizeof owner);
    cli_format_duration(lock->info.now_ms - lock->info.expires_at_ms, ago, sizeof ago);
    printf("%s  (of %s, expired %s ago)\n", key, owner, ago);
}

static bool prune_on_record(void *context, const syncguard_lock_info_raw *lock)
{
    pruning *p = context;
    cli_json json;
    p->count++;
    if (p->options->json) {
        cli_json_begin(&json);
        cli_json_lock(&json, lock, false);
        cli_json_bool(&json, "removed", !p->options->dry_run);
        cli_json_end(&json);
    } else if (p->options->dry_run || p->options->verbose) {
        prune_print_record(lock);
    }
    return ferror(stdout) == 0;
}

int cmd_prune(cli_options *options)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    pruning p = {options, 0};
    int code = cli_refuse_memory(options);
    if (code == CLI_OK)
        code = cli_open_existing(options, &backend);
    if (code != CLI_OK || backend == NULL)
        return code;
    syncguard_status status =
        syncguard_prune(backend, NULL, options->dry_run, prune_on_record, &p, &err);
    if (status < 0)
        code = cli_failure(&err);
    if (!options->json)
        printf("%zu expired %s %s\n", p.count, p.count == 1 ? "record" : "records",
               options->dry_run ? "would be removed" : "removed");
    syncguard_close(backend);
    return code;
}
