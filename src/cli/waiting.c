/*
 * Waiting for a lock: how long, and what to show meanwhile. On a terminal one line
 * tells who holds it; elsewhere nothing is said without -v, except that a store
 * that does not answer is reported now and then (an acquire that rides over
 * failures would otherwise be silent for ever).
 */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { FIRST_REPORT_MS = 2000, NEXT_REPORT_MS = 60000 };

static void describe(const cli_waiting *waiting, int64_t waited_ms, int64_t remaining_ms,
                     const syncguard_lock_info_raw *info, char *out, size_t size)
{
    char key[128], owner[SYNCGUARD_OWNER_SIZE * 2], since[24], left[48] = "", waited[24];
    cli_plain(waiting->key, key, sizeof key);
    cli_plain(info->owner[0] != '\0' ? info->owner : "an unnamed owner", owner, sizeof owner);
    cli_span(cli_wall_ms() - info->info.acquired_at_ms, since, sizeof since);
    cli_span(waited_ms, waited, sizeof waited);
    if (remaining_ms >= 0) {
        char span[24];
        cli_span(remaining_ms, span, sizeof span);
        snprintf(left, sizeof left, ", lease ends in %s", span);
    }
    snprintf(out, size, "waiting %s for '%s' (held by %s for %s%s)", waited, key, owner, since,
             left);
}

/* One look at the store; true if there is something to tell about it. */
static bool look(cli_waiting *waiting, int64_t waited_ms, int64_t remaining_ms, char *out,
                 size_t size, bool *failed)
{
    syncguard_lock_info_raw info;
    syncguard_error err;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = waiting->abort_object;
    syncguard_status status =
        syncguard_get_by_key_raw(waiting->backend, waiting->key, &call, &info, &err);
    *failed = status < 0 && status != SYNCGUARD_E_ABORTED;
    if (status == SYNCGUARD_OK)
        describe(waiting, waited_ms, remaining_ms, &info, out, size);
    else if (*failed)
        snprintf(out, size, "still trying: %s (%s)", err.message, syncguard_status_name(err.code));
    return status == SYNCGUARD_OK || *failed;
}

void cli_on_wait(void *context, int attempts, int64_t waited_ms, int64_t remaining_ms)
{
    cli_waiting *waiting = context;
    char text[1024];
    bool failed = false, terminal = cli_may_show_line();
    (void)attempts;
    if (!terminal)
        cli_status_line(NULL); /* we were put into the background */
    /* Without a terminal a look now and then is enough. */
    if (!terminal && waited_ms < waiting->next_look_ms)
        return;
    waiting->next_look_ms = waited_ms + NEXT_REPORT_MS;
    if (!look(waiting, waited_ms, remaining_ms, text, sizeof text, &failed))
        return;
    if (terminal)
        cli_status_line(text);
    else if (failed)
        cli_say("%s", text);
    else
        cli_tell("%s", text);
}

void cli_lock_options(const cli_options *options, cli_waiting *waiting, syncguard_lock_options *out)
{
    syncguard_lock_options_init(out, sizeof *out);
    out->ttl_ms = options->ttl_ms;
    out->max_retries = SYNCGUARD_RETRY_FOREVER;
    out->timeout_ms = options->wait_ms;
    out->retry_unavailable = true;
    out->abort_object = waiting->abort_object;
    out->on_wait = cli_on_wait;
    out->on_wait_context = waiting;
    waiting->next_look_ms = options->verbose ? 0 : FIRST_REPORT_MS;
}

int cli_not_acquired(const cli_options *options, syncguard_status status,
                     const syncguard_error *err)
{
    int code = cli_exit_code(status);
    cli_status_line(NULL);
    if (status == SYNCGUARD_LOCKED)
        cli_note("another owner holds the lock");
    else if (status == SYNCGUARD_E_ACQUISITION_TIMEOUT)
        cli_note("%s", err->message);
    else
        return cli_failure(options, err);
    return options->conflict_code >= 0 ? options->conflict_code : code;
}
