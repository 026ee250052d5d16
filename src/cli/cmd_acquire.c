/* syncguard acquire: acquires a lock that outlives this process, and prints it. */
#include <stdio.h>
#include <unistd.h>

#include "commands.h"
#include "exitcode.h"
#include "json.h"
#include "report.h"
#include "signals.h"
#include "store.h"
#include "waiting.h"

static void cmd_acquire_print_lock(const cli_options *options, const syncguard_lock *lock)
{
    cli_json json;
    if (options->quiet) {
        puts(syncguard_lock_id(lock));
        return;
    }
    if (!options->json) {
        printf("lockId: %s\nfence: %s\nexpiresAtMs: %lld\n", syncguard_lock_id(lock),
               syncguard_lock_fence(lock), (long long)syncguard_lock_expires_at_ms(lock));
        if (options->slots > 0)
            printf("slot: %d\n", syncguard_lock_slot(lock));
        return;
    }
    cli_json_begin(&json);
    cli_json_text(&json, "key", syncguard_lock_key(lock));
    cli_json_text(&json, "lockId", syncguard_lock_id(lock));
    cli_json_text(&json, "fence", syncguard_lock_fence(lock));
    cli_json_int(&json, "expiresAtMs", syncguard_lock_expires_at_ms(lock));
    if (options->slots > 0)
        cli_json_int(&json, "slot", syncguard_lock_slot(lock));
    cli_json_end(&json);
}

/* A lock whose id cannot be printed is released, because it would only block its key. */
static int acquire_print_or_release(const cli_options *options, syncguard_lock_set *set)
{
    int code = CLI_OK;
    if (cli_signals_ended() != 0) {
        code = CLI_SIGNAL_BASE + cli_signals_ended();
    } else {
        cmd_acquire_print_lock(options, syncguard_lock_set_at(set, 0));
        if (fflush(stdout) != 0) {
            cli_message("cannot write the output; the lock is released again");
            code = CLI_INTERNAL;
        }
    }
    if (code != CLI_OK)
        syncguard_lock_set_dispose(set);
    else
        syncguard_lock_set_detach(set); /* the caller owns it now, by its id */
    return code;
}

int cmd_acquire(cli_options *options)
{
    if (options->quiet && options->json)
        return cli_usage_error("-q and --json cannot be used together");
    cli_waiting waiting;
    /* This process is about to end, so the label names the one that asked for the lock. */
    int code = cli_waiting_open(&waiting, options, getppid());
    if (code == CLI_OK)
        code = cli_refuse_memory(options);
    syncguard_lock_options how = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock_set *set = NULL;
    if (code == CLI_OK)
        code = cli_acquire(&waiting, &how, &set);
    if (set != NULL)
        code = acquire_print_or_release(options, set);
    cli_waiting_close(&waiting);
    return code;
}
