/*
 * Clients that use the lock helper, as applications do: they wait, renew, receive losses, and
 * release.
 *
 * Half of the locks are renewed in the background and have on_lost. While it holds, a thread asks
 * its handle again and again whether it still holds, and records the answer; a holder that learns
 * of a loss waits for its on_lost. Half of the threads wait through failures of the store. Some
 * calls have deadlines so short that they may pass just as the lock is granted: their outcome is
 * unknown, so they have keys of their own.
 *
 * One thread of each client is a keeper: it competes with other keepers for two keys and holds for
 * long, mostly renewed, so that it has a lock to lose when the store fails.
 *
 * Every fourth thread, and the keepers of every second client, use a completion queue instead of
 * the blocking calls.
 *
 * The pause between tries is long where the store wakes waiters, so that a lost wake-up shows as a
 * key that is free while a client waits.
 */
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "syncguard/sys/wait.h"
#include "test_support.h"

#define WAIT_MS 6000
#define ATTEMPT_MS 1100 /* an attempt ends within the backend's timeout */
#define KEEPER_MS 3000
#define LONG_TTL_MS 6000 /* a lock does not expire in time for a waiter that was not woken */
#define LOST_WAIT_MS 4000

/* The keys, in groups of as many as the clients of single operations have. */
enum { SHARED = 0, SHORT = 1, COMMAND = 2, KEPT = 3, OWN = 4, PARTS = 6 };

typedef struct hold {
    worker *w;
    uint32_t key;
    int64_t fence;
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    atomic_int told; /* how often on_lost was called */
} hold;

static bool is_keeper(const worker *w)
{
    return w->number % 256 == 0;
}

static void helper_on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    hold *h = context;
    history_record r = history_begin(HISTORY_LOST, h->key, h->w->number);
    memcpy(r.lock_id, syncguard_lock_id(lock), SYNCGUARD_LOCK_ID_SIZE);
    r.fence = strtoll(syncguard_lock_fence(lock), NULL, 10);
    history_finish(h->w->c->out, &r, (int)reason, HISTORY_OK);
    atomic_fetch_add(&h->told, 1);
}

/* ---- the same calls through a completion queue ---- */

static bool uses_queue(const worker *w)
{
    return is_keeper(w) ? w->c->seed % 2 == 1 : w->number % 4 == 2;
}

/* Takes completions until one of this kind comes, or for at most timeout_ms; records LOST. */
static bool take_completion(hold *h, syncguard_completion_kind kind, int timeout_ms,
                            syncguard_completion *done)
{
    struct pollfd fd = {syncguard_queue_fd(h->w->queue), POLLIN, 0};
    do {
        while (syncguard_queue_next(h->w->queue, done)) {
            if (done->kind == SYNCGUARD_COMPLETION_LOST)
                helper_on_lost(h, done->lock, done->lost);
            if (done->kind == kind)
                return true;
        }
    } while (poll(&fd, 1, timeout_ms) != 0); /* -1: interrupted */
    return false;
}

static void helper_loss_collect(hold *h)
{
    syncguard_completion done;
    if (h->w->queue != NULL)
        (void)take_completion(h, SYNCGUARD_COMPLETION_LOST, 0, &done);
}

static syncguard_status helper_acquire(hold *h, const char *name,
                                       const syncguard_lock_options *options, syncguard_lock **lock)
{
    worker *w = h->w;
    syncguard_lock_options queued = *options;
    syncguard_queue_options own = SYNCGUARD_QUEUE_OPTIONS_INIT;
    own.max_threads = 1; /* each of these threads has a queue */
    if (w->queue == NULL && uses_queue(w) &&
        syncguard_queue_open(w->c->backend, &own, &w->queue, NULL) != SYNCGUARD_OK)
        w->queue = NULL;
    if (w->queue == NULL)
        return syncguard_lock_acquire(w->c->backend, name, options, lock, NULL);
    queued.on_lost = NULL;
    queued.on_lost_context = NULL;
    syncguard_status status =
        syncguard_lock_acquire_async(w->queue, name, &queued, NULL, NULL, NULL);
    if (status != SYNCGUARD_OK)
        return status;
    syncguard_completion done;
    while (!take_completion(h, SYNCGUARD_COMPLETION_ACQUIRE, -1, &done))
        continue;
    *lock = done.lock;
    return done.status;
}

static syncguard_status helper_release(hold *h, syncguard_lock *lock)
{
    worker *w = h->w;
    syncguard_status status;
    if (w->queue == NULL) {
        status = syncguard_lock_release(lock, NULL, NULL);
        syncguard_lock_dispose(lock);
        return status;
    }
    status = syncguard_lock_release_async(w->queue, lock, NULL, NULL, NULL, NULL);
    if (status != SYNCGUARD_OK)
        return status;
    syncguard_completion done;
    while (!take_completion(h, SYNCGUARD_COMPLETION_RELEASE, -1, &done))
        continue;
    return done.status;
}

/* A failing release needs no record of its own: every dispose is recorded as of unknown outcome. */
static void helper_release_error_ignore(void *context, const syncguard_error *error,
                                        const char *key, const char *lock_id, const char *source)
{
    (void)context;
    (void)error;
    (void)key;
    (void)lock_id;
    (void)source;
}

static bool helper_held_record(hold *h, syncguard_lock *lock)
{
    history_record r = history_begin(HISTORY_HELD, h->key, h->w->number);
    memcpy(r.lock_id, h->lock_id, sizeof h->lock_id);
    r.fence = h->fence;
    r.sent_ns = syncguard_clock_ns() + syncguard_lock_remaining_ms(lock) * SYNCGUARD_NS_PER_MS;
    bool held = syncguard_lock_held(lock);
    history_finish(h->w->c->out, &r, (int)syncguard_lock_lost(lock),
                   held ? HISTORY_OK : HISTORY_NO);
    return held;
}

/* Holds for that long, or until the lock is lost. */
static bool helper_hold_for(hold *h, syncguard_lock *lock, int64_t us)
{
    int64_t end = syncguard_clock_ns() + us * 1000;
    history_write_resource(h->w->c->out, h->w->c->resource, h->w->number, h->key, h->fence);
    do {
        helper_loss_collect(h);
        if (!helper_held_record(h, lock))
            return false;
        test_sleep_us(us > 5000 ? 2000 : 200);
    } while (syncguard_clock_ns() < end);
    return true;
}

static void wait_for_on_lost(hold *h)
{
    int64_t end = syncguard_clock_after(syncguard_clock_ns(), LOST_WAIT_MS);
    while (atomic_load(&h->told) == 0 && syncguard_clock_ns() < end) {
        helper_loss_collect(h);
        test_sleep_us(500);
    }
    /* A second call would be a violation, and come soon. */
    test_sleep_us(2000);
    helper_loss_collect(h);
}

static void helper_give_back(hold *h, syncguard_lock *lock)
{
    worker *w = h->w;
    history_record r = history_begin(HISTORY_RELEASE, h->key, w->number);
    memcpy(r.lock_id, h->lock_id, sizeof h->lock_id);
    r.outcome = HISTORY_PENDING;
    history_put(w->c->out, &r);
    if (history_draw(&w->random, 8) == 0) {
        syncguard_lock_dispose(lock);
        history_finish(w->c->out, &r, 0, HISTORY_UNKNOWN);
        return;
    }
    syncguard_status status = helper_release(h, lock);
    history_finish(w->c->out, &r, (int)status,
                   status == SYNCGUARD_OK  ? HISTORY_OK
                   : status > SYNCGUARD_OK ? HISTORY_NO
                                           : HISTORY_UNKNOWN);
}

static int64_t draw_hold_us(worker *w, int64_t ttl_ms)
{
    if (is_keeper(w))
        return 1000 * (ttl_ms + (int64_t)history_draw(&w->random, KEEPER_MS));
    if (ttl_ms < LONG_TTL_MS && history_draw(&w->random, 10 * w->c->forget) == 0)
        return 1000 * (ttl_ms / 2 + (int64_t)history_draw(&w->random, 2000));
    return history_draw(&w->random, 600);
}

static void helper_lock_use(hold *h, syncguard_lock *lock, int64_t ttl_ms, bool renewed)
{
    worker *w = h->w;
    bool held = helper_hold_for(h, lock, draw_hold_us(w, ttl_ms));
    if (!held && renewed)
        wait_for_on_lost(h);
    if (!held)
        (void)helper_held_record(h, lock); /* a lost lock stays lost */
    if (held && ttl_ms < LONG_TTL_MS && history_draw(&w->random, 10 * w->c->forget) == 0)
        syncguard_lock_detach(lock); /* left to expire */
    else
        helper_give_back(h, lock);
}

static history_outcome helper_failure_outcome(syncguard_status status)
{
    if (status == SYNCGUARD_E_INVALID_ARGUMENT)
        return HISTORY_FAILED;
    return HISTORY_UNKNOWN; /* its last attempt may have been in flight */
}

static syncguard_lock_options draw_options(worker *w, hold *h, uint32_t part)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 400 + (int64_t)history_draw(&w->random, 1100);
    if (is_keeper(w))
        options.ttl_ms = 400;
    else if (history_draw(&w->random, 3) == 0)
        options.ttl_ms = LONG_TTL_MS;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.retry_delay_ms = w->c->poll_ms;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    options.timeout_ms = WAIT_MS;
    if (part == SHORT)
        options.timeout_ms = 1 + (int64_t)history_draw(&w->random, 30);
    options.retry_unavailable = w->number % 2 == 1 || w->number % 8 == 6;
    options.auto_extend = history_draw(&w->random, is_keeper(w) ? 4 : 2) != 0;
    if (options.auto_extend) {
        options.on_lost = helper_on_lost;
        options.on_lost_context = h;
    }
    options.on_release_error = helper_release_error_ignore;
    return options;
}

/* The time before which the granted request was not sent, computed from the lease; it is never
 * later than the true time. A lease that is over (this process was stopped) does not show it. */
static int64_t sent_ns(const syncguard_lock *lock, const history_record *r)
{
    int64_t at = syncguard_clock_ns();
    int64_t left_ms = syncguard_lock_remaining_ms(lock);
    int64_t sent = at + (left_ms - r->ttl_ms) * SYNCGUARD_NS_PER_MS;
    return left_ms > 0 && sent > r->call_ns && sent <= at ? sent : r->call_ns;
}

void helper_take(worker *w, uint32_t key)
{
    char name[64];
    uint32_t chance = history_draw(&w->random, 400);
    uint32_t part = chance == 0   ? SHARED
                    : chance == 1 ? COMMAND
                    : chance < 60 ? SHORT
                                  : OWN + chance % (PARTS - OWN);
    if (is_keeper(w)) {
        part = KEPT;
        key %= 2;
    }
    key += part * w->c->keys;
    hold h = {.w = w, .key = key};
    syncguard_lock_options options = draw_options(w, &h, part);
    history_record r = history_begin(HISTORY_ACQUIRE, key, w->number);
    client_key(w->c, key, name, sizeof name);
    r.flags = HISTORY_HELPER | (options.auto_extend ? HISTORY_RENEWED : 0) |
              (options.retry_unavailable ? HISTORY_RETRIES : 0);
    r.ttl_ms = options.ttl_ms;
    r.wait_ms = (uint32_t)options.timeout_ms;
    r.outcome = HISTORY_PENDING;
    history_put(w->c->out, &r);
    syncguard_lock *lock = NULL;
    syncguard_status status = helper_acquire(&h, name, &options, &lock);
    if (status != SYNCGUARD_OK) {
        if (!options.retry_unavailable) /* only its last attempt can have failed */
            r.sent_ns = syncguard_clock_ns() - ATTEMPT_MS * SYNCGUARD_NS_PER_MS;
        history_finish(w->c->out, &r, (int)status, helper_failure_outcome(status));
        test_sleep_us(status == SYNCGUARD_E_ACQUISITION_TIMEOUT ? history_draw(&w->random, 3000)
                                                                : 20000);
        return;
    }
    memcpy(h.lock_id, syncguard_lock_id(lock), sizeof h.lock_id);
    h.fence = strtoll(syncguard_lock_fence(lock), NULL, 10);
    memcpy(r.lock_id, h.lock_id, sizeof h.lock_id);
    r.fence = h.fence;
    r.sent_ns = sent_ns(lock, &r);
    history_finish(w->c->out, &r, (int)status, HISTORY_OK);
    helper_lock_use(&h, lock, options.ttl_ms, options.auto_extend);
}
