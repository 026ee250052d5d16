/* syncguard acquire: take a lock that outlives this process, and print it. */
#include <unistd.h>

#include "cli.h"

static void print(const cli_options *options, const syncguard_lock *lock)
{
    cli_json json;
    if (!options->json) {
        printf("lockId: %s\nfence: %s\nexpiresAtMs: %lld\n", syncguard_lock_id(lock),
               syncguard_lock_fence(lock), (long long)syncguard_lock_expires_at_ms(lock));
        return;
    }
    cli_json_begin(&json);
    cli_json_text(&json, "key", syncguard_lock_key(lock));
    cli_json_text(&json, "lockId", syncguard_lock_id(lock));
    cli_json_text(&json, "fence", syncguard_lock_fence(lock));
    cli_json_int(&json, "expiresAtMs", syncguard_lock_expires_at_ms(lock));
    cli_json_end(&json);
}

static int acquire(const cli_options *options, cli_waiting *waiting)
{
    syncguard_error err;
    syncguard_lock_options how = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;
    syncguard_status status = cli_acquire(waiting, &how, &lock, &err);
    if (status != SYNCGUARD_OK)
        return cli_not_acquired(options, status, &err);

    /* A lock whose id nobody learns would only block its key. */
    int code = CLI_OK;
    if (cli_signals_ended() != 0) {
        code = CLI_SIGNAL_BASE + cli_signals_ended();
    } else {
        print(options, lock);
        if (fflush(stdout) != 0) {
            cli_say("cannot write the output; the lock is released again");
            code = CLI_INTERNAL;
        }
    }
    if (code != CLI_OK)
        syncguard_lock_dispose(lock);
    else
        syncguard_lock_detach(lock); /* the caller owns it now, by its id */
    return code;
}

int cmd_acquire(cli_options *options)
{
    char label[SYNCGUARD_OWNER_SIZE];
    syncguard_abort *abort_object = NULL;
    cli_waiting waiting;
    syncguard_error err;

    int code = cli_signals_start();
    if (code != CLI_OK)
        return code;
    if (syncguard_abort_create(&abort_object, &err) != SYNCGUARD_OK)
        return cli_failure(options, &err);
    cli_signals_abort(abort_object);
    /* This process is about to end: the label names the one that asked for the lock. */
    cli_waiting_begin(&waiting, options, abort_object);
    code = cli_open(options, cli_owner(options, getppid(), label), &waiting, &waiting.backend);
    if (code == CLI_OK)
        code = acquire(options, &waiting);
    syncguard_close(waiting.backend);
    cli_signals_abort(NULL);
    syncguard_abort_free(abort_object);
    return code;
}
