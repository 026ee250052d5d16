/*
 * Waiting for a lock: how long, and what to show meanwhile. On a terminal one line
 * tells who holds it; elsewhere nothing is said without -v, except that a store
 * that does not answer is reported now and then (an acquire that waits failures
 * out would otherwise be silent for ever).
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum {
    FIRST_REPORT_MS = 2000,
    NEXT_REPORT_MS = 60000,
    VERBOSE_REPORT_MS = 5000,
    LONGEST_LOOK_MS = 1000, /* a server that hangs must not hold up the next try */
    PAUSE_MS = 500
};

void cli_waiting_begin(cli_waiting *waiting, const cli_options *options,
                       syncguard_abort *abort_object)
{
    memset(waiting, 0, sizeof *waiting);
    waiting->options = options;
    waiting->abort_object = abort_object;
    waiting->begun_ms = cli_now_ms();
    waiting->next_look_ms = options->verbose ? 0 : FIRST_REPORT_MS;
}

static int64_t waited_ms(const cli_waiting *waiting)
{
    return cli_now_ms() - waiting->begun_ms;
}

/* What is left of -w, at most limit. */
static int64_t rest_ms(const cli_waiting *waiting, int64_t limit)
{
    if (waiting->options->wait_ms == SYNCGUARD_WAIT_FOREVER)
        return limit;
    int64_t rest = waiting->options->wait_ms - waited_ms(waiting);
    rest = rest > 0 ? rest : 0;
    return limit >= 0 && limit < rest ? limit : rest;
}

static void describe(const cli_waiting *waiting, const syncguard_lock_info_raw *info, char *out,
                     size_t size)
{
    char key[128], owner[SYNCGUARD_OWNER_SIZE * 2], since[24], left[24], waited[24];
    cli_plain(waiting->options->operands[0], key, sizeof key);
    cli_plain(info->owner[0] != '\0' ? info->owner : "an unnamed owner", owner, sizeof owner);
    cli_span(cli_wall_ms() - info->info.acquired_at_ms, since, sizeof since);
    cli_span(waited_ms(waiting), waited, sizeof waited);
    cli_span(info->info.expires_at_ms - cli_wall_ms(), left, sizeof left);
    snprintf(out, size, "waiting %s for '%s' (held by %s for %s, lease ends in %s)", waited, key,
             owner, since, left);
}

static void describe_failure(const cli_waiting *waiting, const syncguard_error *err, char *out,
                             size_t size)
{
    char waited[24];
    cli_span(waited_ms(waiting), waited, sizeof waited);
    snprintf(out, size, "still trying after %s: %s (%s)", waited, err->message,
             syncguard_status_name(err->code));
}

/* One look at the store; true if there is something to tell about it. */
static bool look(cli_waiting *waiting, char *out, size_t size, bool *failed)
{
    syncguard_lock_info_raw info;
    syncguard_error err;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = waiting->abort_object;
    call.timeout_ms = rest_ms(waiting, LONGEST_LOOK_MS);
    if (call.timeout_ms == 0)
        return false;
    syncguard_status status = syncguard_get_by_key_raw(
        waiting->backend, waiting->options->operands[0], &call, &info, &err);
    *failed = status < 0 && status != SYNCGUARD_E_ABORTED;
    if (status == SYNCGUARD_OK)
        describe(waiting, &info, out, size);
    else if (*failed)
        describe_failure(waiting, &err, out, size);
    return status == SYNCGUARD_OK || *failed;
}

/* Whether it is time to tell something. */
static bool report_is_due(cli_waiting *waiting, bool terminal)
{
    if (!terminal)
        cli_status_line(NULL); /* we were put into the background */
    /* Without a terminal a look now and then is enough. */
    if (!terminal && waited_ms(waiting) < waiting->next_look_ms)
        return false;
    waiting->next_look_ms =
        waited_ms(waiting) + (waiting->options->verbose ? VERBOSE_REPORT_MS : NEXT_REPORT_MS);
    return true;
}

static void report(const char *text, bool terminal, bool failed)
{
    if (terminal)
        cli_status_line(text);
    else if (failed)
        cli_say("%s", text);
    else
        cli_tell("%s", text);
}

static void on_wait(void *context, int attempts, int64_t since_ms, int64_t remaining_ms)
{
    cli_waiting *waiting = context;
    char text[1024];
    bool failed = false, terminal = cli_may_show_line();
    (void)attempts;
    (void)since_ms;
    (void)remaining_ms; /* as the last try saw it; the look is newer */
    if (report_is_due(waiting, terminal) && look(waiting, text, sizeof text, &failed))
        report(text, terminal, failed);
}

bool cli_wait_for_store(cli_waiting *waiting, const syncguard_error *err)
{
    char text[1024];
    bool terminal = cli_may_show_line();
    int64_t pause = rest_ms(waiting, PAUSE_MS);
    struct pollfd woken = {cli_wake_fd(), POLLIN, 0};
    if (cli_exit_code(err->code) != CLI_UNAVAILABLE || waiting->options->nonblock || pause == 0)
        return false;
    describe_failure(waiting, err, text, sizeof text);
    if (report_is_due(waiting, terminal))
        report(text, terminal, true);
    if (cli_signals_ended() == 0 && poll(&woken, 1, (int)pause) > 0)
        cli_wake_drain();
    return cli_signals_ended() == 0;
}

syncguard_status cli_acquire(cli_waiting *waiting, syncguard_lock_options *how,
                             syncguard_lock **lock, syncguard_error *err)
{
    const cli_options *options = waiting->options;
    const char *key = options->operands[0];
    how->ttl_ms = options->ttl_ms;
    how->max_retries = SYNCGUARD_RETRY_FOREVER;
    how->timeout_ms = rest_ms(waiting, SYNCGUARD_WAIT_FOREVER);
    how->retry_unavailable = true;
    how->abort_object = waiting->abort_object;
    how->on_wait = on_wait;
    how->on_wait_context = waiting;
    syncguard_status status = options->nonblock
                                  ? syncguard_lock_try(waiting->backend, key, how, lock, err)
                                  : syncguard_lock_acquire(waiting->backend, key, how, lock, err);
    cli_status_line(NULL);
    return status;
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
