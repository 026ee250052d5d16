/*
 * The lock helper's acquire: try, wait, try again, and hand out a handle, as steps
 * (lock_acquire.h).
 *
 * The first try is plain, so that an uncontended acquire has no other cost. Only when it finds the
 * key locked does the caller join the wait queue; every later try asks the store to report the next
 * release.
 *
 * Slots: the first attempt tries all slots, each by its own key. Then the caller waits for all of
 * their keys, and every later try is for one slot: one that was released or has expired, or, at the
 * end of a pause, the one that was tried least recently.
 *
 * Counting: the first try, then one retry per pause that ran to its end, made by
 * this waiter or by another waiter of the same key in this process. Tries after a
 * wake-up, after joining (a release may have been missed), and at the expiry of
 * the current lock are not counted.
 *
 * The handle is allocated, and the threads that renew it are started, before the
 * first try: nothing can fail after a grant.
 */
#include "lock_acquire.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "lock_state.h"
#include "operations.h"
#include "slots.h"
#include "text.h"

#define LONGEST_PAUSE_MS 1000

/* ---- options ---- */

void syncguard_lock_options_init(syncguard_lock_options *options, size_t size)
{
    const syncguard_lock_options defaults = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_struct_init(options, size, &defaults, sizeof defaults);
}

void syncguard_lock_options_wait(syncguard_lock_options *options, int64_t wait_ms)
{
    options->max_retries = SYNCGUARD_RETRY_FOREVER;
    options->timeout_ms = wait_ms;
}

static syncguard_status lock_options_refuse(const char *what, syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "lock option %s is not valid",
                          what);
}

syncguard_status sg_lock_options_read(const syncguard_lock_options *given,
                                      syncguard_lock_options *options, syncguard_error *err)
{
    const syncguard_lock_options defaults = SYNCGUARD_LOCK_OPTIONS_INIT;
    *options = defaults;
    syncguard_status status = syncguard_struct_read(
        given, options, sizeof *options,
        SYNCGUARD_SIZE_UP_TO(syncguard_lock_options, on_release_error_context), "lock options",
        err);
    if (status != SYNCGUARD_OK)
        return status;
    if (options->max_retries < SYNCGUARD_RETRY_FOREVER)
        return lock_options_refuse("max_retries", err);
    if (options->retry_delay_ms < 0)
        return lock_options_refuse("retry_delay_ms", err);
    if (options->timeout_ms < SYNCGUARD_WAIT_FOREVER)
        return lock_options_refuse("timeout_ms", err);
    if (options->max_hold_ms < 0)
        return lock_options_refuse("max_hold_ms", err);
    if (options->min_hold_ms < 0 ||
        (options->min_hold_ms > 0 && sg_ttl_check(options->min_hold_ms, NULL) != SYNCGUARD_OK))
        return lock_options_refuse("min_hold_ms", err);
    if (options->slots < 0 || options->slots > SYNCGUARD_SLOTS_MAX)
        return lock_options_refuse("slots", err);
    if (options->backoff != SYNCGUARD_BACKOFF_EXPONENTIAL &&
        options->backoff != SYNCGUARD_BACKOFF_FIXED)
        return lock_options_refuse("backoff", err);
    if (options->jitter != SYNCGUARD_JITTER_EQUAL && options->jitter != SYNCGUARD_JITTER_FULL &&
        options->jitter != SYNCGUARD_JITTER_NONE)
        return lock_options_refuse("jitter", err);
    if (options->on_lost != NULL && !options->auto_extend)
        return lock_options_refuse("on_lost without auto_extend", err);
    if (options->abort_on_lost != NULL && !options->auto_extend)
        return lock_options_refuse("abort_on_lost without auto_extend", err);
    return sg_ttl_check(options->ttl_ms, err);
}

/* ---- trying ---- */

/* The time of the whole acquire is over: in a pause, or in an attempt that this ended early. */
static bool acquire_is_out_of_time(const sg_acquire *c, syncguard_status status)
{
    return status == SYNCGUARD_E_NETWORK_TIMEOUT && syncguard_clock_ns() >= c->limits.deadline_ns;
}

/* Prepares the renewal before the lock is requested. */
static syncguard_status acquire_expect_renewal(sg_acquire *c, syncguard_error *err)
{
    if (!c->auto_extend || c->expected)
        return SYNCGUARD_OK;
    syncguard_status status = sg_backend_enter(c->backend, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_limits_check(&c->op->limits, err);
    if (status == SYNCGUARD_OK)
        status = sg_heartbeat_expect(&c->backend->core->heartbeat, sg_lock_tells(c->lock), err);
    c->expected = status == SYNCGUARD_OK;
    return status;
}

/* The outcome may need the failure of an earlier try. */
static void acquire_keep_answer(sg_acquire *c, syncguard_status status, const syncguard_error *err)
{
    if (acquire_is_out_of_time(c, status))
        return;
    c->answer = status;
    if (status > SYNCGUARD_OK || !c->retry_unavailable)
        return;
    if (c->failure == NULL)
        c->failure = syncguard_calloc(1, sizeof *c->failure);
    if (c->failure != NULL)
        *c->failure = *err;
}

/* Errors name the key that the caller asked for, not that of the slot. */
static void acquire_set_error_key(const sg_acquire *c, syncguard_error *err)
{
    sg_error_key(c->backend, err, c->lock->key, c->lock->name_length);
}

/* Sets the key to that of a slot. */
static void acquire_set_key(sg_acquire *c, int slot)
{
    size_t suffix =
        c->slots > 0 ? sg_slot_suffix(slot + 1, c->lock->key + c->lock->name_length) : 0;
    c->lock->key_length = (uint16_t)(c->lock->name_length + suffix);
}

static syncguard_status acquire_note_status(sg_acquire *c, syncguard_status status,
                                            syncguard_error *err)
{
    if (status < SYNCGUARD_OK)
        acquire_set_error_key(c, err);
    if (status != SYNCGUARD_OK)
        acquire_keep_answer(c, status, err);
    return status;
}

static syncguard_status acquire_attempt_begin(sg_acquire *c, int64_t since_ns, bool watch,
                                              syncguard_error *err)
{
    acquire_set_key(c, c->slot);
    int64_t own_end = syncguard_clock_after(since_ns, c->backend->core->options.timeout_ms);
    c->op->key = c->lock->key;
    c->op->key_length = c->lock->key_length;
    c->op->ttl_ms = atomic_load(&c->lock->ttl_ms);
    c->op->limits = syncguard_limits_until(&c->limits, own_end);
    c->op->watch = watch;
    c->attempts++;
    syncguard_status status = acquire_expect_renewal(c, err);
    if (status == SYNCGUARD_OK)
        status = sg_acquire_once_begin(c->backend, c->op, c->lock->lock_id, err);
    return acquire_note_status(c, status, err);
}

static syncguard_status acquire_attempt_end(sg_acquire *c, syncguard_status status,
                                            syncguard_error *err)
{
    return acquire_note_status(c, sg_acquire_once_end(c->backend, c->op, status, err), err);
}

static syncguard_status acquire_attempt_run(sg_acquire *c, int64_t since_ns, bool watch,
                                            syncguard_error *err)
{
    syncguard_status status = acquire_attempt_begin(c, since_ns, watch, err);
    if (status != SYNCGUARD_OK)
        return status;
    return acquire_attempt_end(c, c->backend->ops->acquire(c->backend, c->op, err), err);
}

/* Contention, and failures that the caller wants to wait out. */
static bool acquire_is_retryable(const sg_acquire *c, syncguard_status status)
{
    switch (status) {
    case SYNCGUARD_LOCKED:
        return true;
    case SYNCGUARD_E_SERVICE_UNAVAILABLE:
    case SYNCGUARD_E_RATE_LIMITED:
        return c->retry_unavailable;
    case SYNCGUARD_E_NETWORK_TIMEOUT: /* of one attempt, not of the whole acquire */
        return c->retry_unavailable && !acquire_is_out_of_time(c, status);
    default:
        return false;
    }
}

/* After a failure a new pause begins, which may be shorter: armed waiters poll again. A waiter that
 * counts its retries never rests, and the polls between them must not delay the next retry for
 * ever. */
static void acquire_try_ended(sg_acquire *c, syncguard_status status)
{
    bool goes_on = acquire_is_retryable(c, status);
    if (status < SYNCGUARD_OK && c->joined && goes_on)
        sg_wait_queue_try_failed(c->backend->core->wait_queue, &c->waiting, c->slot);
    if (!goes_on || (status != SYNCGUARD_LOCKED && c->max_retries == SYNCGUARD_RETRY_FOREVER))
        c->pausing = false;
    c->status = status;
}

bool sg_acquire_try_begin(sg_acquire *c, int64_t since_ns, syncguard_error *err)
{
    c->waiting.changes = atomic_load(&c->backend->core->wait_queue->changes);
    c->status = acquire_attempt_begin(c, since_ns, false, err);
    return c->status == SYNCGUARD_OK;
}

void sg_acquire_try_end(sg_acquire *c, syncguard_status status, syncguard_error *err)
{
    c->status = acquire_attempt_end(c, status, err);
}

/* Allocates the waiters of all slots, and the remaining times that the first attempt finds. */
static syncguard_status acquire_prepare_waiting(sg_acquire *c, syncguard_error *err)
{
    sg_waiting *waiting = &c->waiting;
    if (c->slots == 0)
        waiting->waiters = &waiting->only;
    if (waiting->waiters != NULL)
        return SYNCGUARD_OK;
    waiting->waiters = syncguard_calloc(c->slots, sizeof *waiting->waiters + sizeof(int64_t));
    if (waiting->waiters == NULL)
        return syncguard_fail_memory(err);
    c->remaining_ms = (int64_t *)(void *)(waiting->waiters + c->slots);
    for (int i = 0; i < c->slots; i++)
        c->remaining_ms[i] = -1;
    return SYNCGUARD_OK;
}

/* The first attempt: tries the slots in turn, from a random one on, until one is free. */
static void acquire_try_first(sg_acquire *c, int64_t since_ns, syncguard_error *err)
{
    bool keeps = c->slots > 0 && c->waits && !c->single;
    int left = c->slots > 0 ? c->slots : 1;
    c->slot = left > 1 ? (uint16_t)syncguard_random_below(left) : 0;
    c->waiting.changes = atomic_load(&c->backend->core->wait_queue->changes);
    for (; left > 0; left--) {
        c->status = acquire_attempt_run(c, since_ns, false, err);
        if (c->status != SYNCGUARD_LOCKED)
            return;
        syncguard_status kept = keeps ? acquire_prepare_waiting(c, err) : SYNCGUARD_OK;
        if (kept != SYNCGUARD_OK) {
            c->status = kept;
            return;
        }
        if (keeps)
            c->remaining_ms[c->slot] = c->op->remaining_ms;
        if (c->slots > 0)
            c->slot = (uint16_t)((c->slot + 1) % c->slots);
        since_ns = syncguard_clock_ns();
    }
}

void sg_acquire_try(sg_acquire *c, int64_t since_ns, syncguard_error *err)
{
    sg_wait_queue *queue = c->backend->core->wait_queue;
    if (!c->joined) {
        acquire_try_first(c, since_ns, err);
        return;
    }
    uint64_t events = sg_wait_queue_try_begin(queue, &c->waiting, c->slot);
    syncguard_status status = acquire_attempt_run(c, since_ns, true, err);
    if (status == SYNCGUARD_LOCKED)
        sg_wait_queue_try_locked(queue, &c->waiting, c->slot, events, c->op);
    acquire_try_ended(c, status);
}

void sg_acquire_try_missed(sg_acquire *c, syncguard_error *err)
{
    c->attempts++;
    syncguard_status status = syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, NULL,
                                             "the deadline passed before an attempt could begin");
    acquire_set_error_key(c, err);
    acquire_keep_answer(c, status, err);
    acquire_try_ended(c, status);
}

/* ---- waiting ---- */

int64_t sg_acquire_longest_poll_ms(const sg_acquire *c)
{
    return c->retry_delay_ms > LONGEST_PAUSE_MS ? c->retry_delay_ms : LONGEST_PAUSE_MS;
}

/* A waiter that counts its retries polls at the pace that the options promise. A waiter that does
 * not may rest while the store reports releases. */
static int64_t acquire_pause_ms(const sg_acquire *c)
{
    int64_t base = c->retry_delay_ms;
    int64_t longest = sg_acquire_longest_poll_ms(c);
    if (c->backoff != SYNCGUARD_BACKOFF_EXPONENTIAL)
        return base;
    int64_t pause = syncguard_backoff_ns(base, c->retries, longest);
    if (pause < longest || c->max_retries != SYNCGUARD_RETRY_FOREVER)
        return pause;
    int64_t armed_ms = sg_wait_queue_rest_ms(c->backend->core->wait_queue, &c->waiting);
    return armed_ms > longest ? syncguard_backoff_ns(base, c->retries, armed_ms) : longest;
}

/* Nanoseconds until the next counted retry. */
static int64_t acquire_jittered_pause_ns(const sg_acquire *c)
{
    int64_t pause = syncguard_clock_after(0, acquire_pause_ms(c));
    int64_t fixed = pause;
    if (c->jitter == SYNCGUARD_JITTER_EQUAL)
        fixed = pause / 2;
    else if (c->jitter == SYNCGUARD_JITTER_FULL)
        fixed = 0;
    return fixed + syncguard_random_below(pause - fixed);
}

void sg_acquire_pause(sg_acquire *c)
{
    int64_t begun = syncguard_clock_ns();
    int64_t pause = acquire_jittered_pause_ns(c);
    c->pausing = true;
    c->pause_begun_ns = begun;
    c->pause_end_ns = pause < SYNCGUARD_NO_DEADLINE - begun ? begun + pause : SYNCGUARD_NO_DEADLINE;
}

static bool acquire_is_out_of_retries(const sg_acquire *c)
{
    return c->max_retries != SYNCGUARD_RETRY_FOREVER && c->retries >= c->max_retries;
}

/* Joins the waiters of every key; on failure only of the first few. The store may have reported
 * releases before that, when no waiter had joined. */
static syncguard_status acquire_join_queue(sg_acquire *c, syncguard_error *err)
{
    syncguard_status status = acquire_prepare_waiting(c, err);
    bool missed = c->status != SYNCGUARD_LOCKED || c->backend->core->wait_queue->notified;
    int keys = c->slots > 0 ? c->slots : 1;
    c->joined = status == SYNCGUARD_OK;
    for (int i = 0; i < keys && status == SYNCGUARD_OK; i++) {
        acquire_set_key(c, i);
        status = sg_wait_queue_join(
            c->backend->core->wait_queue, &c->waiting, c->lock->key, c->lock->key_length,
            c->slots > 0 ? c->remaining_ms[i] : c->op->remaining_ms, missed, err);
    }
    c->lock->contended = true;
    return status;
}

static sg_acquire_step acquire_pause_or_end(const sg_acquire *c)
{
    return acquire_is_retryable(c, c->status) && !acquire_is_out_of_retries(c) ? SG_ACQUIRE_PAUSE
                                                                               : SG_ACQUIRE_END;
}

bool sg_acquire_may_wait(const sg_acquire *c)
{
    return c->waits && !c->single && acquire_pause_or_end(c) == SG_ACQUIRE_PAUSE;
}

/* The pause is over: makes a retry, unless another waiter of the key has made it. */
static sg_acquire_step acquire_count_retry(sg_acquire *c)
{
    bool locked = false;
    size_t slot = 0;
    c->retries++;
    c->pausing = false;
    bool tried = sg_wait_queue_tried_since(c->backend->core->wait_queue, &c->waiting,
                                           c->pause_begun_ns, &slot, &locked);
    c->slot = (uint16_t)slot;
    if (!tried)
        return SG_ACQUIRE_TRY;
    if (locked)
        c->answer = SYNCGUARD_LOCKED;
    c->status = SYNCGUARD_LOCKED;
    return acquire_pause_or_end(c);
}

static sg_acquire_step acquire_poll_keys(sg_acquire *c, int64_t *until_ns)
{
    sg_wake_reason reason;
    size_t slot = c->slot;
    /* Without this, each chosen slot would have to fail once before a retry counts. */
    if (c->slots > 1 && c->status < SYNCGUARD_OK && syncguard_clock_ns() >= c->pause_end_ns)
        return acquire_count_retry(c);
    *until_ns = c->pause_end_ns;
    if (!sg_wait_queue_poll(c->backend->core->wait_queue, &c->waiting, until_ns, &reason, &slot))
        return SG_ACQUIRE_WAIT;
    c->slot = (uint16_t)slot;
    return reason == SG_WAKE_TIMER ? acquire_count_retry(c) : SG_ACQUIRE_TRY;
}

sg_acquire_step sg_acquire_next(sg_acquire *c, int64_t *until_ns, syncguard_error *err)
{
    size_t slot = 0;
    if (!c->joined && !sg_acquire_may_wait(c))
        return SG_ACQUIRE_END;
    if (!c->joined) {
        syncguard_status joined = acquire_join_queue(c, err);
        if (joined != SYNCGUARD_OK) {
            c->status = joined;
            return SG_ACQUIRE_END;
        }
    }
    if (c->status == SYNCGUARD_LOCKED &&
        sg_wait_queue_chosen(c->backend->core->wait_queue, &c->waiting, &slot)) {
        c->slot = (uint16_t)slot;
        return SG_ACQUIRE_TRY;
    }
    return c->pausing ? acquire_poll_keys(c, until_ns) : acquire_pause_or_end(c);
}

/* ---- outcome ---- */

/* The text says which limit ended the waiting: it is often not the one that the caller expects. */
static syncguard_status acquire_fail_timeout(const sg_acquire *c, bool over, syncguard_error *err)
{
    const syncguard_status status = SYNCGUARD_E_ACQUISITION_TIMEOUT;
    char span[24], why[64] = "another owner holds the lock";
    sg_format_duration((syncguard_clock_ns() - c->started_ns) / SYNCGUARD_NS_PER_MS, span,
                       sizeof span);
    if (c->answer == SYNCGUARD_OK) /* no attempt ran to its end */
        snprintf(why, sizeof why, "the store did not answer");
    else if (c->slots > 1)
        snprintf(why, sizeof why, "all %d slots are held", c->slots);
    if (over)
        syncguard_fail(err, status, NULL, "gave up after %s: %s", span, why);
    else if (c->retries > 0)
        syncguard_fail(err, status, NULL, "gave up after %d %s (%s): %s", c->retries,
                       c->retries == 1 ? "retry" : "retries", span, why);
    else
        syncguard_fail(err, status, NULL, "%s, and the options ask for no retry", why);
    acquire_set_error_key(c, err);
    return status;
}

/*
 * The outcome of a waiting acquire. With retry_unavailable the last answer decides: a
 * store that could not be reached is not a lock that another owner holds.
 */
static syncguard_status acquire_outcome(const sg_acquire *c, syncguard_error *err)
{
    bool over = acquire_is_out_of_time(c, c->status);
    if (c->status != SYNCGUARD_LOCKED && !over)
        return c->status;
    if (c->retry_unavailable && c->answer < SYNCGUARD_OK) {
        if (c->failure == NULL)
            return syncguard_fail(err, c->answer, NULL, "%s", syncguard_status_text(c->answer));
        *err = *c->failure;
        return c->answer;
    }
    if (c->retry_unavailable && c->answer == SYNCGUARD_OK)
        return c->status; /* the only attempt was cut short */
    return acquire_fail_timeout(c, over, err);
}

/* Turns a grant into a handle; *out is set before on_lost can be called. */
static void acquire_hand_out(sg_acquire *c, syncguard_lock **out)
{
    syncguard_lock *lock = c->lock;

    /* sg_acquire_once_end has checked the fence. */
    (void)syncguard_fence_format(c->op->fence, lock->fence, NULL);
    atomic_store(&lock->expires_at_ms, c->op->expires_at_ms);
    atomic_store(&lock->lease, syncguard_clock_after(c->op->first_sent_ns, c->op->ttl_ms));
    lock->confirmed_ns = c->op->first_sent_ns;
    bool limited = c->max_hold_ms > 0 && c->auto_extend;
    atomic_store(&lock->hold_end_ns,
                 limited ? syncguard_clock_after(c->op->first_sent_ns, c->max_hold_ms)
                         : SYNCGUARD_NO_DEADLINE);
    if (c->min_hold_ms > 0)
        atomic_store(&lock->keep_until_ns,
                     syncguard_clock_after(syncguard_clock_ns(), c->min_hold_ms));
    lock->slot = c->slots > 0 ? (uint16_t)(c->slot + 1) : 0;
    sg_backend_ref(c->backend);
    sg_lock_begin_hold(lock, c->op->first_sent_ns);
    *out = lock;
    if (c->expected)
        sg_heartbeat_add(&c->backend->core->heartbeat, lock);
}

static void acquire_leave_queue(sg_acquire *c)
{
    int64_t granted_until = 0;
    if (c->status == SYNCGUARD_OK)
        granted_until = syncguard_clock_after(c->op->first_sent_ns,
                                              c->op->ttl_ms + SYNCGUARD_TIME_TOLERANCE_MS);
    sg_wait_queue_leave(c->backend->core->wait_queue, c->backend, &c->waiting, c->slot,
                        granted_until);
}

static void acquire_free_waiting(const sg_acquire *c)
{
    if (c->slots > 0)
        syncguard_free(c->waiting.waiters);
    syncguard_free(c->failure);
}

syncguard_status sg_acquire_finish(sg_acquire *c, syncguard_lock **out, syncguard_error *err)
{
    const struct syncguard_core *core = c->backend->core;
    syncguard_status status = c->status;
    if (c->joined)
        acquire_leave_queue(c);
    if (c->waits)
        sg_counters_wait(core->counters, c->started_ns, c->attempts);
    if (status >= SYNCGUARD_OK) /* a failure that was waited out is not the outcome */
        syncguard_error_clear(err);
    if (status == SYNCGUARD_OK) {
        acquire_hand_out(c, out);
    } else {
        if (c->waits)
            status = acquire_outcome(c, err);
        if (c->expected)
            sg_heartbeat_expect_no_more(&c->backend->core->heartbeat);
        syncguard_free(c->lock);
    }
    acquire_free_waiting(c);
    return status;
}

void sg_acquire_forget(sg_acquire *c)
{
    syncguard_free(c->lock);
    acquire_free_waiting(c);
}

/* ---- begin ---- */

static syncguard_lock *acquire_prepare_handle(syncguard_backend *backend, const char *key,
                                              size_t length, const syncguard_lock_options *options)
{
    size_t suffix = options->slots > 0 ? SG_SLOT_SUFFIX_SIZE : 1;
    int64_t ttl_ms = options->ttl_ms;
    if (options->auto_extend && options->max_hold_ms > 0 && options->max_hold_ms < ttl_ms)
        ttl_ms = options->max_hold_ms;
    syncguard_lock *lock = syncguard_calloc(1, sizeof *lock + length + suffix);
    if (lock == NULL)
        return NULL;
    lock->backend = backend;
    lock->pid = getpid();
    lock->renewal.index = SG_HEAP_OUTSIDE;
    lock->on_lost = options->on_lost;
    lock->on_lost_context = options->on_lost_context;
    lock->abort_on_lost = options->abort_on_lost;
    lock->on_release_error = options->on_release_error;
    lock->on_release_error_context = options->on_release_error_context;
    atomic_init(&lock->ttl_ms, ttl_ms);
    atomic_init(&lock->longest_ttl_ms, ttl_ms);
    lock->wanted_ttl_ms = options->ttl_ms;
    lock->key_length = (uint16_t)length;
    lock->name_length = (uint16_t)length;
    memcpy(lock->key, key, length);
    return lock;
}

/* A store may accept only shorter keys. */
static syncguard_status acquire_check_slots(const syncguard_backend *backend, const char *name,
                                            size_t length, syncguard_error *err)
{
    char key[SYNCGUARD_KEY_SIZE];
    syncguard_status status = sg_slot_name_check(length, err);
    if (status != SYNCGUARD_OK || backend->ops->check_key == NULL)
        return status;
    memcpy(key, name, length);
    length += sg_slot_suffix(SYNCGUARD_SLOTS_MAX, key + length);
    return backend->ops->check_key(backend, key, length, err);
}

syncguard_status sg_acquire_begin(sg_acquire *c, syncguard_backend *backend, const char *key,
                                  const syncguard_lock_options *given, bool waits,
                                  syncguard_lock_options *options, syncguard_error *err)
{
    char normal[SYNCGUARD_KEY_SIZE];
    size_t length;
    syncguard_status status = sg_key_read(backend, key, normal, &length, err);
    if (status == SYNCGUARD_OK)
        status = sg_lock_options_read(given, options, err);
    if (status == SYNCGUARD_OK && options->slots > 0)
        status = acquire_check_slots(backend, normal, length, err);
    if (status != SYNCGUARD_OK)
        return status;
    *c = (sg_acquire){.backend = backend,
                      .limits = {SYNCGUARD_NO_DEADLINE, options->abort_object},
                      .started_ns = syncguard_clock_ns(),
                      .retry_delay_ms = options->retry_delay_ms,
                      .max_hold_ms = options->max_hold_ms,
                      .min_hold_ms = options->min_hold_ms,
                      .max_retries = options->max_retries,
                      .retry_unavailable = options->retry_unavailable,
                      .auto_extend = options->auto_extend,
                      .backoff = (uint8_t)options->backoff,
                      .jitter = (uint8_t)options->jitter,
                      .slots = (uint16_t)options->slots,
                      .waits = waits,
                      .single = options->timeout_ms == 0};
    if (waits && options->timeout_ms > 0)
        c->limits.deadline_ns = syncguard_clock_after(c->started_ns, options->timeout_ms);
    c->lock = acquire_prepare_handle(backend, normal, length, options);
    return c->lock != NULL ? SYNCGUARD_OK : syncguard_fail_memory(err);
}
