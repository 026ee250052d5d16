/*
 * syncguard release: releases a lock by its id; or, with --key and --force, the lock that another
 * owner holds. The latter looks up the id and releases exactly that lock: a grant that comes in
 * between is not affected. It writes an audit line before the release and one with the result after
 * it; if the first cannot be written, nothing is released.
 */
#include <stdio.h>

#include "commands.h"
#include "exitcode.h"
#include "report.h"
#include "signals.h"
#include "store.h"
#include "text.h"
#include "times.h"

static int release_by_id(const char *lock_id, syncguard_backend *backend)
{
    syncguard_error err;
    syncguard_status status = syncguard_release(backend, lock_id, NULL, &err);
    if (status < 0)
        return cli_failure(&err);
    if (status == SYNCGUARD_ABSENT)
        cli_notice("no live lock has this id");
    else
        cli_verbose("released");
    return cli_exit_code(status);
}

/* A renewal is due when a third of the TTL has passed since the last one. No more than the TTL is
 * left, so the next one is due within a third of what is left. */
static void release_report_forced(const syncguard_lock_info_raw *lock)
{
    char key[4 * SYNCGUARD_KEY_SIZE], owner[4 * SYNCGUARD_OWNER_SIZE], held[24];
    int64_t left_ms = lock->info.expires_at_ms - lock->info.now_ms;
    cli_escape(lock->key, key, sizeof key);
    cli_escape(lock->owner[0] != '\0' ? lock->owner : "an unnamed owner", owner, sizeof owner);
    cli_format_duration(lock->info.now_ms - lock->info.acquired_at_ms, held, sizeof held);
    char left[24];
    cli_format_duration(left_ms, left, sizeof left);
    char third[24];
    cli_format_duration(left_ms / 3, third, sizeof third);
    cli_message("released '%s': %s had held it for %s", key, owner, held);
    cli_message("the holder may still work: if it renews the lock (as syncguard run does), until "
                "its next renewal, normally within %s",
                third);
    cli_message("if it does not (as the TypeScript library), it is not told, and its lease ends in "
                "%s",
                left);
}

/* Releases the lock between two audit lines. CLI_OK, and *status is the result; or an exit code. */
static int release_audited(const cli_options *options, const char *url, syncguard_backend *backend,
                           const syncguard_lock_info_raw *lock, syncguard_status *status,
                           syncguard_error *err)
{
    static const char action[] = "force-release";
    cli_signals_ignore_pipe();
    if (!cli_audit(action, url, lock, "requested", options->syslog)) {
        cli_message("the audit line could not be written, so nothing was released");
        return CLI_INTERNAL;
    }
    *status = syncguard_release(backend, lock->lock_id, NULL, err);
    const char *result = *status == SYNCGUARD_OK ? "released" : *status < 0 ? "unknown" : "absent";
    if (!cli_audit(action, url, lock, result, options->syslog)) {
        cli_message("the audit line with the result (%s) could not be written", result);
        return CLI_INTERNAL;
    }
    return CLI_OK;
}

static int release_by_key(const cli_options *options, syncguard_backend *backend)
{
    syncguard_lock_info_raw lock;
    syncguard_error err;
    char key[4 * SYNCGUARD_KEY_SIZE], url[CLI_URL_SIZE];
    int code = cli_store_url(options, url);
    if (code != CLI_OK)
        return code;
    cli_escape(options->key, key, sizeof key);
    syncguard_status status = syncguard_get_by_key_raw(backend, options->key, NULL, &lock, &err);
    if (status < 0)
        return cli_failure(&err);
    if (status == SYNCGUARD_ABSENT) {
        cli_message("'%s' is not held; nothing was released", key);
        return CLI_CONFLICT;
    }
    code = release_audited(options, url, backend, &lock, &status, &err);
    if (code != CLI_OK)
        return code;
    if (status < 0)
        return cli_failure(&err);
    if (status == SYNCGUARD_OK)
        release_report_forced(&lock);
    else
        cli_message("'%s' was released by its holder meanwhile", key);
    return cli_exit_code(status);
}

/* The options must name exactly one of an id and a key, and need --force, so that no lock is taken
 * away by accident. */
static int release_check_options(const cli_options *options)
{
    if (options->count > 0 && options->key != NULL)
        return cli_usage_error("a lock id and --key cannot be used together");
    if (options->count == 0 && options->key == NULL)
        return cli_usage_error("a lock id is needed, or --key KEY --force");
    if (options->key != NULL && !options->force)
        return cli_usage_error("--key takes the lock from its holder: add --force if you mean it");
    if (options->key == NULL && (options->force || options->syslog))
        return cli_usage_error("--force and --syslog go with --key");
    return CLI_OK;
}

int cmd_release(cli_options *options)
{
    char buffer[SYNCGUARD_LOCK_ID_SIZE];
    const char *lock_id = NULL;
    int code = release_check_options(options);
    if (code != CLI_OK)
        return code;
    if (options->key == NULL && (lock_id = cli_lock_id(options, buffer)) == NULL)
        return CLI_USAGE;
    code = cli_refuse_memory(options);
    syncguard_backend *backend = NULL;
    if (code == CLI_OK)
        code = cli_open_existing(options, &backend);
    if (code != CLI_OK || backend == NULL)
        return code != CLI_OK ? code : CLI_CONFLICT;
    code = lock_id != NULL ? release_by_id(lock_id, backend) : release_by_key(options, backend);
    syncguard_close(backend);
    return code;
}
