/*
 * Waiting for a lock. On a terminal one line shows who holds it. Elsewhere this is
 * reported after two seconds and then once a minute, and so is a store that does not
 * answer: a wait would otherwise be silent for ever. With -E a held lock is expected,
 * and cron would mail the report, so only failures are reported; -q asks for the same.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "exitcode.h"
#include "report.h"
#include "signals.h"
#include "store.h"
#include "text.h"
#include "times.h"
#include "variables.h"
#include "waiting.h"

enum {
    FIRST_REPORT_MS = 2000,
    NEXT_REPORT_MS = 60000,
    VERBOSE_REPORT_MS = 5000,
    LOOKUP_TIMEOUT_MS = 1000, /* a server that hangs must not delay the next try */
    PAUSE_MS = 500
};

static int64_t waiting_elapsed_ms(const cli_waiting *waiting)
{
    return cli_now_ms() - waiting->begun_ms;
}

/* The time that is left of -w, at most limit. */
static int64_t waiting_remaining_ms(const cli_waiting *waiting, int64_t limit)
{
    if (waiting->options->wait_ms == SYNCGUARD_WAIT_FOREVER)
        return limit;
    int64_t left = waiting->options->wait_ms - waiting_elapsed_ms(waiting);
    left = left > 0 ? left : 0;
    return limit >= 0 && limit < left ? limit : left;
}

static void waiting_describe_holder(const cli_waiting *waiting, const syncguard_lock_info_raw *info,
                                    char *out, size_t size)
{
    char key[128], owner[SYNCGUARD_OWNER_SIZE * 2], since[24];
    const char *so_far = waiting_elapsed_ms(waiting) >= 1000 ? " so far)" : "";
    cli_escape(waiting->key, key, sizeof key);
    cli_escape(info->owner[0] != '\0' ? info->owner : "an unnamed owner", owner, sizeof owner);
    cli_format_duration(info->info.now_ms - info->info.acquired_at_ms, since, sizeof since);
    char waited[24];
    cli_format_duration(waiting_elapsed_ms(waiting), waited, sizeof waited);
    char left[24];
    cli_format_duration(info->info.expires_at_ms - info->info.now_ms, left, sizeof left);
    snprintf(out, size, "waiting for '%s'%s%s%s: held by %s for %s, lease ends in %s", key,
             *so_far != '\0' ? " (" : "", *so_far != '\0' ? waited : "", so_far, owner, since,
             left);
}

static void waiting_describe_failure(const cli_waiting *waiting, const syncguard_error *err,
                                     char *out, size_t size)
{
    char waited[24], key[128];
    const char *store = cli_store_name();
    cli_escape(waiting->key, key, sizeof key);
    cli_format_duration(waiting_elapsed_ms(waiting), waited, sizeof waited);
    snprintf(out, size, "still trying after %s for '%s': %s%s%s (%s)", waited, key, store,
             *store != '\0' ? ": " : "", err->message, syncguard_status_name(err->code));
}

/* The text does not name the owners: that would need one lookup for each slot. */
static void waiting_describe_slots(const cli_waiting *waiting, int64_t left_ms, char *out,
                                   size_t size)
{
    char key[128], left[24], waited[24];
    cli_escape(waiting->key, key, sizeof key);
    cli_format_duration(left_ms, left, sizeof left);
    cli_format_duration(waiting_elapsed_ms(waiting), waited, sizeof waited);
    snprintf(out, size, "waiting for '%s' (%s so far): all %d slots are held%s%s", key, waited,
             waiting->options->slots, left_ms >= 0 ? ", the first lease ends in " : "",
             left_ms >= 0 ? left : "");
}

/* Whether the lock was acquired during this wait and has not been renewed since. In containers,
 * other commands may have our default label; a lease longer than that of a grant (with room for the
 * rounding of times) is theirs. */
static bool waiting_lock_may_be_ours(const cli_waiting *waiting, const syncguard_lock_info *info)
{
    int64_t longest_ms = waiting->options->ttl_ms + waiting->options->ttl_ms / 4;
    return waiting->owner_is_ours &&
           info->now_ms - info->acquired_at_ms <= waiting_elapsed_ms(waiting) &&
           info->expires_at_ms - info->acquired_at_ms <= longest_ms;
}

/*
 * Looks up the key that this command waits for: the only one, or the first with another owner
 * label. If all held keys have our label, which other commands may use too, it is the last one:
 * keys are locked in byte order, so the keys that we hold come before the one that we wait for. A
 * key with our label may be ours, and is skipped, if we had acquired all of several keys, or if it
 * has the default label and may be a grant that the store has not confirmed.
 */
static syncguard_status waiting_find_holder(cli_waiting *waiting, const syncguard_call *call,
                                            syncguard_lock_info_raw *info, syncguard_error *err)
{
    const cli_options *options = waiting->options;
    syncguard_lock_info_raw found;
    syncguard_status result = SYNCGUARD_ABSENT;
    if (options->slots > 0)
        return syncguard_get_by_key_raw(waiting->backend, waiting->slot_key, call, info, err);
    for (int i = 0; i < options->key_count; i++) {
        syncguard_status status =
            syncguard_get_by_key_raw(waiting->backend, options->keys[i], call, &found, err);
        if (status < 0)
            return status;
        if (status != SYNCGUARD_OK)
            continue;
        bool same = strcmp(found.owner, waiting->owner) == 0;
        bool ours = same && (waiting_lock_may_be_ours(waiting, &found.info) ||
                             (waiting->acquired && options->key_count > 1));
        bool earlier = result == SYNCGUARD_OK && strcmp(found.key, info->key) < 0;
        if (ours || (same && earlier))
            continue;
        *info = found;
        waiting->key = options->keys[i];
        result = SYNCGUARD_OK;
        if (!same)
            break;
    }
    return result;
}

/* Asks the store who holds the lock; true if there is something to report. */
static bool waiting_look_up_report(cli_waiting *waiting, int64_t left_ms, char *out, size_t size,
                                   bool *failed)
{
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = waiting->abort_object;
    call.timeout_ms = waiting_remaining_ms(waiting, LOOKUP_TIMEOUT_MS);
    if (call.timeout_ms == 0)
        return false;
    syncguard_lock_info_raw info;
    syncguard_error err;
    syncguard_status status = waiting_find_holder(waiting, &call, &info, &err);
    *failed = status < 0 && status != SYNCGUARD_E_ABORTED;
    if (*failed)
        waiting_describe_failure(waiting, &err, out, size);
    else if (status >= 0 && waiting->options->slots > 0)
        waiting_describe_slots(waiting, left_ms, out, size);
    else if (status == SYNCGUARD_OK)
        waiting_describe_holder(waiting, &info, out, size);
    else
        return false;
    return true;
}

/* On a terminal the line is updated at each call; elsewhere a report is due at intervals. */
static bool waiting_claim_report(cli_waiting *waiting, bool terminal)
{
    if (!terminal)
        cli_status_line(NULL); /* this process may have moved to the background */
    if (!terminal && waiting_elapsed_ms(waiting) < waiting->next_report_ms)
        return false;
    waiting->next_report_ms = waiting_elapsed_ms(waiting) +
                              (waiting->options->verbose ? VERBOSE_REPORT_MS : NEXT_REPORT_MS);
    return true;
}

static void waiting_show_report(const cli_waiting *waiting, const char *text, bool terminal,
                                bool failed)
{
    const cli_options *options = waiting->options;
    if (terminal)
        cli_status_line(text);
    else if (failed || options->verbose || (!options->quiet && options->conflict_code < 0))
        cli_message("%s", text);
}

static void waiting_on_wait(void *context, int attempts, int64_t since_ms, int64_t left_ms)
{
    cli_waiting *waiting = context;
    char text[1024];
    bool failed = false, terminal = cli_has_status_line();
    (void)attempts;
    (void)since_ms;
    /* For one key the lookup is more recent than left_ms. */
    if (waiting_claim_report(waiting, terminal) &&
        waiting_look_up_report(waiting, left_ms, text, sizeof text, &failed))
        waiting_show_report(waiting, text, terminal, failed);
}

/* After the store could not be opened: reports it and pauses. */
static bool waiting_retry_open(void *context, const syncguard_error *err)
{
    cli_waiting *waiting = context;
    char text[1024];
    bool terminal = cli_has_status_line();
    int64_t pause = waiting_remaining_ms(waiting, PAUSE_MS);
    struct pollfd woken = {cli_wake_fd(), POLLIN, 0};
    if (cli_exit_code(err->code) != CLI_UNAVAILABLE || waiting->options->nonblock || pause == 0)
        return false;
    waiting_describe_failure(waiting, err, text, sizeof text);
    if (waiting_claim_report(waiting, terminal))
        waiting_show_report(waiting, text, terminal, true);
    if (cli_signals_ended() == 0 && poll(&woken, 1, (int)pause) > 0)
        cli_wake_drain();
    return cli_signals_ended() == 0;
}

/* The first step that may take long: reading a URL from a pipe. -n and -w 0 do not apply to it. */
static int waiting_read_url(const cli_waiting *waiting)
{
    char url[CLI_URL_SIZE];
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = waiting->abort_object;
    if (waiting->options->wait_ms > 0 && waiting->options->wait_ms != SYNCGUARD_WAIT_FOREVER)
        call.timeout_ms = waiting->options->wait_ms;
    int code = cli_store_url_within(waiting->options, &call, url);
    explicit_bzero(url, sizeof url);
    return code;
}

int cli_waiting_open(cli_waiting *waiting, const cli_options *options, pid_t owner_pid)
{
    memset(waiting, 0, sizeof *waiting);
    waiting->options = options;
    waiting->key = options->keys[0];
    if (options->slots > 0) /* a bad name is reported by the acquire */
        (void)!syncguard_slot_key(options->keys[0], 1, waiting->slot_key, NULL);
    char label[SYNCGUARD_OWNER_SIZE];
    snprintf(waiting->owner, sizeof waiting->owner, "%s", cli_owner(options, owner_pid, label));
    waiting->owner_is_ours = options->owner == NULL && owner_pid == getpid();
    waiting->begun_ms = cli_now_ms();
    waiting->next_report_ms = options->verbose ? 0 : FIRST_REPORT_MS;
    if (!cli_signals_start()) {
        cli_message("no file descriptor is left (%s)", strerror(errno));
        return CLI_UNAVAILABLE;
    }
    syncguard_error err;
    if (syncguard_abort_create(&waiting->abort_object, &err) != SYNCGUARD_OK)
        return cli_failure(&err);
    cli_signals_abort(waiting->abort_object);
    int code = waiting_read_url(waiting);
    if (code != CLI_OK)
        return code;
    /* The label is passed as it was given: the library refuses one that is too long. */
    return cli_open(options, options->owner != NULL ? options->owner : waiting->owner,
                    waiting_retry_open, waiting, &waiting->backend);
}

void cli_waiting_close(cli_waiting *waiting)
{
    if (!waiting->acquired)
        cli_signals_die_of(cli_signals_ended());
    syncguard_close(waiting->backend);
    cli_signals_abort(NULL);
    syncguard_abort_free(waiting->abort_object);
}

void cli_holder(cli_waiting *waiting, char *out, size_t size)
{
    syncguard_lock_info_raw lock;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.timeout_ms = LOOKUP_TIMEOUT_MS;
    out[0] = '\0';
    if (waiting_find_holder(waiting, &call, &lock, NULL) != SYNCGUARD_OK)
        return;
    char owner[SYNCGUARD_OWNER_SIZE * 2];
    cli_escape(lock.owner[0] != '\0' ? lock.owner : "an unnamed owner", owner, sizeof owner);
    char left[24];
    cli_format_duration(lock.info.expires_at_ms - lock.info.now_ms, left, sizeof left);
    snprintf(out, size, "held by %s, expires in %s", owner, left);
}

/* Describes why the lock was not acquired. */
static void waiting_describe_conflict(cli_waiting *waiting, char *out, size_t size)
{
    out[0] = '\0';
    if (waiting->options->slots > 0)
        snprintf(out, size, "all %d slots are held", waiting->options->slots);
    else
        cli_holder(waiting, out, size);
    if (out[0] == '\0')
        snprintf(out, size, "held by another owner until just now");
}

/* With -E the caller expects that the lock may be held, but a user at a terminal may still want to
 * know. -q applies to -n; a wait that ended in vain is reported. */
static bool conflict_is_reported(const cli_options *options, syncguard_status status)
{
    if (options->verbose)
        return true;
    if (status == SYNCGUARD_LOCKED && options->quiet)
        return false;
    return options->conflict_code < 0 || cli_notices();
}

static int waiting_report_not_acquired(cli_waiting *waiting, syncguard_status status,
                                       const syncguard_error *err)
{
    const cli_options *options = waiting->options;
    char waited[24];
    if (status != SYNCGUARD_LOCKED && status != SYNCGUARD_E_ACQUISITION_TIMEOUT)
        return cli_failure(err);
    int code = options->conflict_code >= 0 ? options->conflict_code : cli_exit_code(status);
    if (!conflict_is_reported(options, status))
        return code;
    cli_format_duration(waiting_elapsed_ms(waiting), waited, sizeof waited);
    char holder[512];
    waiting_describe_conflict(waiting, holder, sizeof holder);
    char key[4 * SYNCGUARD_KEY_SIZE];
    cli_escape(waiting->key, key, sizeof key);
    if (status == SYNCGUARD_LOCKED)
        cli_message("'%s'%s %s", key, options->slots > 0 ? ":" : " is", holder);
    else
        cli_message("gave up on '%s' after %s: %s", key, waited, holder);
    return code;
}

/* A key that an outer run holds is never released while this run waits. */
static int waiting_refuse_nested(const cli_waiting *waiting)
{
    const cli_options *options = waiting->options;
    char key[4 * SYNCGUARD_KEY_SIZE];
    for (int i = 0; i < options->key_count; i++) {
        if (!cli_held_by_outer_run(waiting->backend, options->keys[i], options->slots))
            continue;
        cli_escape(options->keys[i], key, sizeof key);
        if (options->slots > 0)
            cli_message("the 'syncguard run' that started this command holds a slot of '%s': once "
                        "all slots are held so, none of them would ever end",
                        key);
        else
            cli_message("'%s' is held by the 'syncguard run' that started this command, which "
                        "would wait for ever: locks are not reentrant",
                        key);
        return CLI_USAGE;
    }
    return CLI_OK;
}

int cli_acquire(cli_waiting *waiting, syncguard_lock_options *how, syncguard_lock_set **set)
{
    const cli_options *options = waiting->options;
    size_t count = (size_t)options->key_count;
    int code = waiting_refuse_nested(waiting);
    if (code != CLI_OK)
        return code;
    how->ttl_ms = options->ttl_ms;
    how->slots = options->slots;
    how->max_retries = SYNCGUARD_RETRY_FOREVER;
    how->timeout_ms = waiting_remaining_ms(waiting, SYNCGUARD_WAIT_FOREVER);
    how->retry_unavailable = true;
    how->abort_object = waiting->abort_object;
    how->on_wait = waiting_on_wait;
    how->on_wait_context = waiting;
    syncguard_error err;
    syncguard_status status =
        options->nonblock
            ? syncguard_lock_try_all(waiting->backend, options->keys, count, how, set, &err)
            : syncguard_lock_acquire_all(waiting->backend, options->keys, count, how, set, &err);
    cli_status_line(NULL);
    waiting->acquired = status == SYNCGUARD_OK;
    if (waiting->acquired && options->slots > 0) {
        waiting->key = waiting->slot_key;
        snprintf(waiting->slot_key, sizeof waiting->slot_key, "%s",
                 syncguard_lock_key(syncguard_lock_set_at(*set, 0)));
    }
    return status == SYNCGUARD_OK ? CLI_OK : waiting_report_not_acquired(waiting, status, &err);
}

void cli_key_names(const cli_options *options, char out[CLI_KEY_NAMES_SIZE])
{
    static const char rest[] = ", ...";
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < options->key_count; i++) {
        char key[4 * SYNCGUARD_KEY_SIZE];
        const size_t left = CLI_KEY_NAMES_SIZE - used;
        cli_escape(options->keys[i], key, sizeof key);
        if (strlen(key) + strlen(", ''") + sizeof rest > left) {
            memcpy(out + used, rest, sizeof rest);
            return;
        }
        used += (size_t)snprintf(out + used, left, "%s'%s'", i > 0 ? ", " : "", key);
    }
}
