/*
 * The lock helper's acquire: try, wait, try again, and hand out a handle.
 *
 * One hunt is one call. Its first try is plain, so that an uncontended acquire
 * pays for nothing else. Only when it finds the key locked does it join the
 * waiting room; every later try asks the store to report the next release.
 *
 * Counting: the first try, then one retry per pause that ran to its end, made by
 * this waiter or, in its stead, by another waiter of the same key in this process.
 * Tries after a wake-up, after joining (where a release may have been missed), and
 * at the expiry of the lock in the way are not counted.
 *
 * The handle is allocated before the first try, and what renews it is started: after a
 * grant nothing can fail.
 */
#include <string.h>
#include <unistd.h>

#include "core.h"

#define LONGEST_PAUSE_MS 1000

typedef struct hunt {
    syncguard_backend *backend;
    const syncguard_lock_options *options;
    syncguard_lock *lock; /* being prepared */
    syncguard_acquire_op op;
    syncguard_limits limits; /* of the whole hunt */
    int64_t started_ns;
    int attempts;            /* all tries */
    int retries;             /* the counted ones after the first */
    unsigned long releases;  /* of this handle, before the first try */
    bool expected;           /* by the heartbeat */
    syncguard_status answer; /* of the last try that ran to its end; OK: none did */
    syncguard_error failure; /* that answer's, if it is one */
    sg_waiter waiter;
} hunt;

/* ---- options ------------------------------------------------------------------------------------
 */

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

static syncguard_status refuse(const char *what, syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "lock option %s is not valid",
                          what);
}

static syncguard_status read_options(const syncguard_lock_options *given,
                                     syncguard_lock_options *options, syncguard_error *err)
{
    const syncguard_lock_options defaults = SYNCGUARD_LOCK_OPTIONS_INIT;
    *options = defaults;
    if (given != NULL) {
        syncguard_status status = syncguard_struct_read(given, options, sizeof *options,
                                                        sizeof *options, "lock options", err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    if (options->max_retries < SYNCGUARD_RETRY_FOREVER)
        return refuse("max_retries", err);
    if (options->retry_delay_ms < 0)
        return refuse("retry_delay_ms", err);
    if (options->timeout_ms < SYNCGUARD_WAIT_FOREVER)
        return refuse("timeout_ms", err);
    if (options->max_hold_ms < 0)
        return refuse("max_hold_ms", err);
    if (options->backoff != SYNCGUARD_BACKOFF_EXPONENTIAL &&
        options->backoff != SYNCGUARD_BACKOFF_FIXED)
        return refuse("backoff", err);
    if (options->jitter != SYNCGUARD_JITTER_EQUAL && options->jitter != SYNCGUARD_JITTER_FULL &&
        options->jitter != SYNCGUARD_JITTER_NONE)
        return refuse("jitter", err);
    if (options->on_lost != NULL && !options->auto_extend)
        return refuse("on_lost without auto_extend", err);
    return sg_ttl_check(options->ttl_ms, err);
}

/* ---- trying -------------------------------------------------------------------------------------
 */

/* The waiting as a whole is over: in a pause, or in an attempt, which was cut short by it. */
static bool out_of_time(const hunt *h, syncguard_status status)
{
    return status == SYNCGUARD_E_NETWORK_TIMEOUT && syncguard_clock_ns() >= h->limits.deadline_ns;
}

/* What a grant needs afterwards is there before it is asked for. */
static syncguard_status expect(hunt *h, syncguard_error *err)
{
    if (!h->options->auto_extend || h->expected)
        return SYNCGUARD_OK;
    syncguard_status status = sg_backend_enter(h->backend, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_limits_check(&h->op.limits, err);
    if (status == SYNCGUARD_OK)
        status =
            sg_heartbeat_expect(&h->backend->core->heartbeat, h->options->on_lost != NULL, err);
    h->expected = status == SYNCGUARD_OK;
    return status;
}

static syncguard_status try_once(hunt *h, bool watch, bool released, syncguard_error *err)
{
    int64_t own_end =
        syncguard_clock_after(syncguard_clock_ns(), h->backend->core->options.timeout_ms);
    h->op.limits = syncguard_limits_until(&h->limits, own_end);
    h->op.watch = watch;
    h->op.released = released;
    h->attempts++;
    syncguard_status status = expect(h, err);
    if (status == SYNCGUARD_OK)
        status = sg_acquire_once(h->backend, &h->op, h->lock->lock_id, err);
    if (status != SYNCGUARD_OK && !out_of_time(h, status)) {
        h->answer = status;
        h->failure = *err;
    }
    return status;
}

/* Contention, and failures that the caller wants to wait out. */
static bool retryable(const hunt *h, syncguard_status status)
{
    switch (status) {
    case SYNCGUARD_LOCKED:
        return true;
    case SYNCGUARD_E_SERVICE_UNAVAILABLE:
    case SYNCGUARD_E_RATE_LIMITED:
        return h->options->retry_unavailable;
    case SYNCGUARD_E_NETWORK_TIMEOUT: /* of one attempt, not of the whole */
        return h->options->retry_unavailable && !out_of_time(h, status);
    default:
        return false;
    }
}

/* A try of a member of the waiting room, repeated while news overtakes its answer. */
static syncguard_status try_in_room(hunt *h, bool released, syncguard_error *err)
{
    sg_room *room = h->backend->core->room;
    syncguard_status status;
    uint64_t news;
    do {
        news = sg_room_try_begin(room, &h->waiter);
        status = try_once(h, true, released, err);
    } while (status == SYNCGUARD_LOCKED && sg_room_try_locked(room, &h->waiter, news, &h->op));
    if (status < SYNCGUARD_OK && retryable(h, status))
        sg_room_try_failed(room, &h->waiter);
    return status;
}

/* ---- waiting ------------------------------------------------------------------------------------
 */

/* base, doubled by each retry up to longest. */
static int64_t doubled(int64_t base, int retries, int64_t longest)
{
    int64_t pause = base;
    for (int i = 0; i < retries && pause > 0 && pause < longest; i++)
        pause *= 2;
    return pause < longest ? pause : longest;
}

/* The longest pause of who has to poll. */
static int64_t longest_poll_ms(const hunt *h)
{
    int64_t base = h->options->retry_delay_ms;
    return base > LONGEST_PAUSE_MS ? base : LONGEST_PAUSE_MS;
}

/* Who counts its retries polls at the pace that it was promised. Who does not may leave it to the
 * store to report a release, where the store does. */
static int64_t pause_ms(const hunt *h)
{
    int64_t base = h->options->retry_delay_ms;
    int64_t longest = longest_poll_ms(h);
    if (h->options->backoff != SYNCGUARD_BACKOFF_EXPONENTIAL)
        return base;
    int64_t pause = doubled(base, h->retries, longest);
    if (pause < longest || h->options->max_retries != SYNCGUARD_RETRY_FOREVER)
        return pause;
    int64_t armed_ms = sg_room_rely(h->backend->core->room, &h->waiter);
    return armed_ms > longest ? doubled(base, h->retries, armed_ms) : longest;
}

/* Nanoseconds until the next counted retry. */
static int64_t jittered_pause_ns(const hunt *h)
{
    int64_t pause = syncguard_clock_after(0, pause_ms(h));
    int64_t fixed = pause;
    if (h->options->jitter == SYNCGUARD_JITTER_EQUAL)
        fixed = pause / 2;
    else if (h->options->jitter == SYNCGUARD_JITTER_FULL)
        fixed = 0;
    uint32_t chance = 0;
    if (getentropy(&chance, sizeof chance) != 0)
        chance = (uint32_t)syncguard_clock_ns(); /* only spreads load */
    return fixed + (int64_t)((double)(pause - fixed) * ((double)chance / 4294967296.0));
}

static void tell_wait(hunt *h)
{
    sg_room *room = h->backend->core->room;
    if (h->options->on_wait == NULL)
        return;
    int64_t waited = (syncguard_clock_ns() - h->started_ns) / SYNCGUARD_NS_PER_MS;
    sg_room_away(room, &h->waiter, true);
    h->options->on_wait(h->options->on_wait_context, h->attempts, waited, h->op.remaining_ms);
    sg_room_away(room, &h->waiter, false);
}

/* on_wait goes on at its pace while a long pause lasts. */
static int64_t next_telling(const hunt *h, int64_t until_ns)
{
    int64_t next = syncguard_clock_after(syncguard_clock_ns(), longest_poll_ms(h));
    return h->options->on_wait != NULL && next < until_ns ? next : until_ns;
}

/* Waits for one pause; tries that are not counted happen inside it. */
static syncguard_status wait_one_pause(hunt *h, syncguard_error *err)
{
    sg_room *room = h->backend->core->room;
    int64_t begun = syncguard_clock_ns();
    int64_t pause = jittered_pause_ns(h);
    int64_t until = pause < SYNCGUARD_NO_DEADLINE - begun ? begun + pause : SYNCGUARD_NO_DEADLINE;
    for (;;) {
        sg_turn turn;
        int64_t told = next_telling(h, until);
        syncguard_status status =
            sg_room_wait(room, h->backend, &h->waiter, told, &h->limits, &turn, err);
        if (status != SYNCGUARD_OK)
            return status;
        if (turn == SG_TURN_PAUSE && told < until) {
            tell_wait(h);
            continue;
        }
        if (turn == SG_TURN_PAUSE) {
            h->retries++;
            bool locked = false;
            if (!sg_room_tried_since(room, &h->waiter, begun, &locked))
                return try_in_room(h, false, err);
            if (locked)
                h->answer = SYNCGUARD_LOCKED;
            return SYNCGUARD_LOCKED;
        }
        status = try_in_room(h, turn == SG_TURN_FREED, err);
        if (status != SYNCGUARD_LOCKED)
            return status;
    }
}

static bool out_of_retries(const hunt *h)
{
    return h->options->max_retries != SYNCGUARD_RETRY_FOREVER &&
           h->retries >= h->options->max_retries;
}

/* Between the first try and the joining. A store that reports nothing leaves only the releases of
 * this handle to miss. */
static bool may_have_missed_news(const hunt *h)
{
    return h->backend->core->watches ||
           atomic_load(&h->backend->core->room->releases) != h->releases;
}

static syncguard_status wait_for_lock(hunt *h, syncguard_status status, syncguard_error *err)
{
    sg_room *room = h->backend->core->room;
    bool armed = true;
    syncguard_status joined = sg_room_join(room, h->backend, h->op.key, h->op.key_length,
                                           h->op.remaining_ms, &h->limits, &h->waiter, &armed, err);
    if (joined != SYNCGUARD_OK)
        return joined;

    h->lock->contended = true;
    if (status == SYNCGUARD_LOCKED && !armed && may_have_missed_news(h))
        status = try_in_room(h, false, err);
    while (retryable(h, status) && !out_of_retries(h)) {
        tell_wait(h);
        status = wait_one_pause(h, err);
    }
    int64_t granted_until = 0;
    if (status == SYNCGUARD_OK)
        granted_until =
            syncguard_clock_after(h->op.first_sent_ns, h->op.ttl_ms + SYNCGUARD_TIME_TOLERANCE_MS);
    sg_room_leave(room, h->backend, &h->waiter, granted_until);
    return status;
}

/* ---- outcome ------------------------------------------------------------------------------------
 */

/* Says what ended the waiting: it is often not the one that the caller thought of. */
static syncguard_status gave_up(const hunt *h, bool over, syncguard_error *err)
{
    const syncguard_status status = SYNCGUARD_E_ACQUISITION_TIMEOUT;
    long long tenths = (syncguard_clock_ns() - h->started_ns) / (100 * SYNCGUARD_NS_PER_MS);
    if (over)
        syncguard_fail(err, status, NULL, "gave up after %lld.%lld s: another owner holds the lock",
                       tenths / 10, tenths % 10);
    else if (h->retries > 0)
        syncguard_fail(err, status, NULL,
                       "gave up after %d %s (%lld.%lld s): another owner holds the lock",
                       h->retries, h->retries == 1 ? "retry" : "retries", tenths / 10, tenths % 10);
    else
        syncguard_fail(err, status, NULL,
                       "another owner holds the lock, and the options ask for no retry");
    sg_error_key(h->backend, err, h->op.key, h->op.key_length);
    return status;
}

/*
 * The end of a waiting acquire. With retry_unavailable the last answer decides: a store
 * that nobody could reach is not a lock that somebody holds.
 */
static syncguard_status verdict(const hunt *h, syncguard_status status, syncguard_error *err)
{
    bool over = out_of_time(h, status);
    if (status != SYNCGUARD_LOCKED && !over)
        return status;
    if (h->options->retry_unavailable && h->answer < SYNCGUARD_OK) {
        *err = h->failure;
        return h->answer;
    }
    if (h->options->retry_unavailable && h->answer == SYNCGUARD_OK)
        return status; /* the only attempt was cut short */
    return gave_up(h, over, err);
}

static syncguard_lock *prepare_handle(syncguard_backend *backend, const char *key, size_t length,
                                      const syncguard_lock_options *options)
{
    syncguard_lock *lock = syncguard_calloc(1, sizeof *lock + length + 1);
    if (lock == NULL)
        return NULL;
    lock->backend = backend;
    lock->pid = getpid();
    lock->on_lost = options->on_lost;
    lock->on_lost_context = options->on_lost_context;
    lock->on_release_error = options->on_release_error;
    lock->on_release_error_context = options->on_release_error_context;
    atomic_init(&lock->ttl_ms, options->ttl_ms);
    lock->key_length = length;
    memcpy(lock->key, key, length);
    return lock;
}

/* Turns a grant into a handle; *out is set before anything can be told about it. */
static void hand_out(hunt *h, syncguard_lock **out)
{
    syncguard_lock *lock = h->lock;

    /* sg_acquire_once has seen that it fits. */
    (void)syncguard_fence_format(h->op.fence, lock->fence, NULL);
    atomic_store(&lock->expires_at_ms, h->op.expires_at_ms);
    atomic_store(&lock->lease, syncguard_clock_after(h->op.first_sent_ns, h->op.ttl_ms));
    lock->hold_end_ns = h->options->max_hold_ms > 0
                            ? syncguard_clock_after(h->op.first_sent_ns, h->options->max_hold_ms)
                            : SYNCGUARD_NO_DEADLINE;
    sg_backend_ref(h->backend);
    *out = lock;
    if (h->expected)
        sg_heartbeat_add(&h->backend->core->heartbeat, lock);
}

static void give_up(hunt *h)
{
    if (h->expected)
        sg_heartbeat_expect_no_more(&h->backend->core->heartbeat);
    syncguard_free(h->lock);
}

/* waits is false for a single attempt that answers LOCKED. */
static syncguard_status acquire(syncguard_backend *backend, const char *key,
                                const syncguard_lock_options *given, bool waits,
                                syncguard_lock **out, syncguard_error *err)
{
    char normal[SYNCGUARD_KEY_SIZE];
    syncguard_lock_options options;
    hunt h = {.backend = backend, .options = &options};
    syncguard_error own;

    err = err != NULL ? err : &own;
    syncguard_error_clear(err);
    if (out != NULL)
        *out = NULL;
    if (backend == NULL || out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend or out is NULL");
    syncguard_status status = sg_key_read(backend, key, normal, &h.op.key_length, err);
    if (status == SYNCGUARD_OK)
        status = read_options(given, &options, err);
    if (status != SYNCGUARD_OK)
        return status;

    h.op.key = normal;
    h.op.ttl_ms = options.ttl_ms;
    h.started_ns = syncguard_clock_ns();
    h.limits.abort_object = options.abort_object;
    h.limits.deadline_ns = waits && options.timeout_ms > 0
                               ? syncguard_clock_after(h.started_ns, options.timeout_ms)
                               : SYNCGUARD_NO_DEADLINE;
    h.lock = prepare_handle(backend, normal, h.op.key_length, &options);
    if (h.lock == NULL)
        return syncguard_fail_memory(err);

    h.releases = atomic_load(&backend->core->room->releases);
    status = try_once(&h, false, false, err);
    if (waits && options.timeout_ms != 0 && retryable(&h, status) && !out_of_retries(&h))
        status = wait_for_lock(&h, status, err);
    if (waits && backend->ops->observe_wait != NULL)
        backend->ops->observe_wait(backend, syncguard_clock_ns() - h.started_ns, h.attempts);
    if (status >= SYNCGUARD_OK) /* a failure that was waited out is not the outcome */
        syncguard_error_clear(err);
    if (status == SYNCGUARD_OK) {
        hand_out(&h, out);
        return status;
    }
    give_up(&h);
    return waits ? verdict(&h, status, err) : status;
}

syncguard_status syncguard_lock_acquire(syncguard_backend *backend, const char *key,
                                        const syncguard_lock_options *options, syncguard_lock **out,
                                        syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    return acquire(backend, key, options, true, out, err);
}

syncguard_status syncguard_lock_try(syncguard_backend *backend, const char *key,
                                    const syncguard_lock_options *options, syncguard_lock **out,
                                    syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    return acquire(backend, key, options, false, out, err);
}
