/*
 * Lock handles: what a holder has in hand.
 *
 * State is atomic, so that questions about it need no lock and no I/O. Operations
 * on one handle take turns through `claimed`: extends of one lock must reach the
 * store in the order in which their answers are noted, or the lease counted here
 * could outlast the one stored there. Waiting for a claim is rare and short, so it
 * looks again every millisecond instead of queueing.
 *
 * A handle releases once (`released`), whatever comes of it; a release that
 * failed is repeated in the background until the lease is over. In a forked child
 * a handle is only memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "syncguard/sys/environment.h"

static bool forked(const syncguard_lock *lock)
{
    return lock->pid != getpid();
}

/* ---- claims --------------------------------------------------------------------------------- */

bool sg_lock_try_claim(syncguard_lock *lock)
{
    return !atomic_exchange(&lock->claimed, true);
}

void sg_lock_unclaim(syncguard_lock *lock)
{
    atomic_store(&lock->claimed, false);
}

static syncguard_status claim(syncguard_lock *lock, const syncguard_limits *limits,
                              syncguard_error *err)
{
    while (!sg_lock_try_claim(lock)) {
        int64_t soon = syncguard_clock_ns() + SYNCGUARD_NS_PER_MS;
        syncguard_status status = syncguard_wait_until(soon, limits, err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    return SYNCGUARD_OK;
}

/* For disposing: a renewal that still holds the claim is interrupted, not waited out. */
static void claim_for_good(syncguard_lock *lock)
{
    const syncguard_limits unlimited = {SYNCGUARD_NO_DEADLINE, NULL};
    if (sg_lock_try_claim(lock))
        return;
    sg_heartbeat_interrupt(&lock->backend->core->heartbeat);
    (void)claim(lock, &unlimited, NULL);
}

/* ---- questions ------------------------------------------------------------------------------- */

const char *syncguard_lock_key(const syncguard_lock *lock)
{
    return lock->key;
}

const char *syncguard_lock_id(const syncguard_lock *lock)
{
    return lock->lock_id;
}

const char *syncguard_lock_fence(const syncguard_lock *lock)
{
    return lock->fence;
}

int64_t syncguard_lock_expires_at_ms(const syncguard_lock *lock)
{
    return atomic_load(&lock->expires_at_ms);
}

int64_t sg_lock_lease_end(const syncguard_lock *lock)
{
    int64_t lease = atomic_load(&lock->lease);
    return lease > 0 ? lease : 0;
}

void sg_lock_lose(syncguard_lock *lock, syncguard_lost_reason reason)
{
    int64_t lease = atomic_load(&lock->lease);
    while (lease >= 0 &&
           !atomic_compare_exchange_weak(&lock->lease, &lease, -(int64_t)(int)reason)) {
    }
}

/* What has been told must stay true: a lease that is over is lost from here on, even if a renewal
 * that is under way should still succeed. Only the lease that was compared with the clock can be
 * lost so: one that a renewal put in its place meanwhile is judged anew. */
syncguard_lost_reason sg_lock_judge(syncguard_lock *lock)
{
    int64_t lease = atomic_load(&lock->lease);
    while (lease >= 0 && !atomic_load(&lock->released) && syncguard_clock_ns() >= lease) {
        int64_t lost =
            lease >= lock->hold_end_ns ? -SYNCGUARD_LOST_MAX_HOLD : -SYNCGUARD_LOST_UNCONFIRMED;
        if (atomic_compare_exchange_weak(&lock->lease, &lease, lost))
            lease = lost;
    }
    return lease < 0 ? (syncguard_lost_reason)-lease : SYNCGUARD_LOST_NO;
}

syncguard_lost_reason syncguard_lock_lost(const syncguard_lock *lock)
{
    return forked(lock) ? SYNCGUARD_LOST_FORKED : sg_lock_judge((syncguard_lock *)lock);
}

bool syncguard_lock_held(const syncguard_lock *lock)
{
    return syncguard_lock_lost(lock) == SYNCGUARD_LOST_NO && !atomic_load(&lock->released);
}

int64_t syncguard_lock_remaining_ms(const syncguard_lock *lock)
{
    if (!syncguard_lock_held(lock))
        return 0;
    int64_t left = sg_lock_lease_end(lock) - syncguard_clock_ns();
    return left > 0 ? left / SYNCGUARD_NS_PER_MS : 0;
}

const char *syncguard_lost_reason_name(syncguard_lost_reason reason)
{
    switch (reason) {
    case SYNCGUARD_LOST_NO:
        return "no";
    case SYNCGUARD_LOST_ABSENT:
        return "absent";
    case SYNCGUARD_LOST_UNCONFIRMED:
        return "unconfirmed";
    case SYNCGUARD_LOST_MAX_HOLD:
        return "max-hold";
    case SYNCGUARD_LOST_FORKED:
        return "forked";
    }
    return "unknown";
}

/* ---- extend ------------------------------------------------------------------------------------
 */

bool sg_lock_renewed(syncguard_lock *lock, const syncguard_extend_op *op)
{
    int64_t end = syncguard_clock_after(op->first_sent_ns, op->ttl_ms);
    int64_t lease = atomic_load(&lock->lease);
    do {
        if (lease < 0)
            return false;
    } while (!atomic_compare_exchange_weak(&lock->lease, &lease, end));
    atomic_store(&lock->ttl_ms, op->ttl_ms);
    atomic_store(&lock->expires_at_ms, op->expires_at_ms);
    return true;
}

/*
 * After an extend of unknown outcome: it may have been carried out, or still be. If it asked for
 * less than the lock had, the lease must not be counted longer than that, and later renewals must
 * not be either, for the late one may overtake them.
 */
static void assume_shortened(syncguard_lock *lock, const syncguard_extend_op *op)
{
    int64_t end = syncguard_clock_after(op->first_sent_ns, op->ttl_ms);
    int64_t lease = atomic_load(&lock->lease);
    if (op->ttl_ms >= atomic_load(&lock->ttl_ms))
        return;
    while (lease > end && !atomic_compare_exchange_weak(&lock->lease, &lease, end)) {
    }
    atomic_store(&lock->ttl_ms, op->ttl_ms);
    sg_heartbeat_reschedule(&lock->backend->core->heartbeat, lock);
}

/* Caller has the claim. */
static syncguard_status extend_claimed(syncguard_lock *lock, syncguard_extend_op *op,
                                       syncguard_error *err)
{
    syncguard_backend *backend = lock->backend;
    if (!syncguard_lock_held(lock))
        return SYNCGUARD_ABSENT;
    op->first_sent_ns = syncguard_clock_ns();
    syncguard_status status = backend->ops->extend(backend, op, err);
    if (status < SYNCGUARD_OK) {
        sg_error_key(backend, err, lock->key, lock->key_length);
        assume_shortened(lock, op);
        return status;
    }
    /* Judged before, too: what the reply confirms too late is as good as lost. */
    if (status == SYNCGUARD_OK && sg_lock_judge(lock) == SYNCGUARD_LOST_NO &&
        sg_lock_renewed(lock, op) && sg_lock_judge(lock) == SYNCGUARD_LOST_NO) {
        sg_heartbeat_reschedule(&backend->core->heartbeat, lock);
        return SYNCGUARD_OK;
    }
    if (status == SYNCGUARD_OK)
        sg_lock_release_later(lock);
    else
        sg_lock_lose(lock, SYNCGUARD_LOST_ABSENT);
    sg_heartbeat_lost(&backend->core->heartbeat, lock);
    return SYNCGUARD_ABSENT;
}

syncguard_status syncguard_lock_extend(syncguard_lock *lock, int64_t ttl_ms,
                                       const syncguard_call *call, int64_t *expires_at_ms,
                                       syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_extend_op op = {.ttl_ms = ttl_ms};

    syncguard_error_clear(err);
    if (expires_at_ms != NULL)
        *expires_at_ms = 0;
    if (lock == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "lock is NULL");
    op.lock_id = lock->lock_id;
    syncguard_status status = sg_ttl_check(ttl_ms, err);
    if (status == SYNCGUARD_OK)
        status = sg_limits_read(lock->backend, call, &op.limits, err);
    if (status == SYNCGUARD_OK && forked(lock))
        return SYNCGUARD_ABSENT;
    if (status == SYNCGUARD_OK)
        status = syncguard_limits_check(&op.limits, err);
    if (status == SYNCGUARD_OK)
        status = claim(lock, &op.limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = extend_claimed(lock, &op, err);
    sg_lock_unclaim(lock);
    if (status >= SYNCGUARD_OK)
        syncguard_error_clear(err);
    if (status == SYNCGUARD_OK && expires_at_ms != NULL)
        *expires_at_ms = op.expires_at_ms;
    return status;
}

/* ---- release -----------------------------------------------------------------------------------
 */

/* No renewal was sent later than now, so nothing of the lock is left after one more ttl. */
void sg_lock_release_later(syncguard_lock *lock)
{
    int64_t end = syncguard_clock_after(syncguard_clock_ns(), atomic_load(&lock->ttl_ms));
    sg_background_release(&lock->backend->core->background, lock->key, lock->key_length,
                          lock->lock_id, syncguard_clock_after(end, SYNCGUARD_TIME_TOLERANCE_MS));
}

/* The one release of a handle; its caller has set `released` and has the claim if claimed is OK. */
static syncguard_status release_claimed(syncguard_lock *lock, syncguard_status claimed,
                                        const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_backend *backend = lock->backend;
    syncguard_release_op op = {
        .lock_id = lock->lock_id, .limits = *limits, .contended = lock->contended};
    syncguard_status status = claimed;
    if (status == SYNCGUARD_OK && sg_lock_judge(lock) == SYNCGUARD_LOST_ABSENT)
        return SYNCGUARD_ABSENT;
    if (status == SYNCGUARD_OK)
        status = sg_release_once(backend, &op, lock->key, lock->key_length, err);
    if (status < SYNCGUARD_OK) {
        sg_error_key(backend, err, lock->key, lock->key_length);
        sg_lock_release_later(lock);
    }
    return status;
}

syncguard_status syncguard_lock_release(syncguard_lock *lock, const syncguard_call *call,
                                        syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_limits limits;

    syncguard_error_clear(err);
    if (lock == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "lock is NULL");
    syncguard_status status = sg_limits_read(lock->backend, call, &limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (forked(lock))
        return SYNCGUARD_ABSENT;
    (void)syncguard_lock_lost(lock); /* a lease that is over now is lost, not released */
    if (atomic_exchange(&lock->released, true))
        return SYNCGUARD_ABSENT;
    syncguard_status claimed = claim(lock, &limits, err);
    if (claimed == SYNCGUARD_OK)
        sg_heartbeat_remove(&lock->backend->core->heartbeat, lock);
    status = release_claimed(lock, claimed, &limits, err);
    if (claimed == SYNCGUARD_OK)
        sg_lock_unclaim(lock);
    return status;
}

/* ---- dispose -----------------------------------------------------------------------------------
 */

static bool environment_is(const char *name, const char *value)
{
    const char *found = syncguard_environment(name);
    return found != NULL && strcmp(found, value) == 0;
}

/* The handler of those who gave none: one line, without key or lock id. */
static void print_release_error(const syncguard_error *error)
{
    if (environment_is("SYNCGUARD_ENV", "production") && !environment_is("SYNCGUARD_DEBUG", "true"))
        return;
    /* check-source: allow fprintf, the one line that the interface asks for */
    fprintf(stderr, "syncguard: a lock could not be released: %s: %s\n",
            syncguard_status_name(error->code), error->message);
}

static void report(const syncguard_lock *lock, const syncguard_error *error, const char *source)
{
    const syncguard_options *options = &lock->backend->core->options;
    if (lock->on_release_error != NULL)
        lock->on_release_error(lock->on_release_error_context, error, lock->key, lock->lock_id,
                               source);
    else if (options->on_release_error != NULL)
        options->on_release_error(options->on_release_error_context, error, lock->key,
                                  lock->lock_id, source);
    else
        print_release_error(error);
}

/* Releases if nobody has; afterwards the claim is ours for good. */
static void release_and_report(syncguard_lock *lock, const char *source)
{
    const syncguard_options *options = &lock->backend->core->options;
    int64_t timeout_ms = options->timeout_ms;
    syncguard_error error;

    if (options->dispose_timeout_ms > 0 && options->dispose_timeout_ms < timeout_ms)
        timeout_ms = options->dispose_timeout_ms;
    if (atomic_exchange(&lock->released, true)) {
        claim_for_good(lock);
        return;
    }
    syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), timeout_ms), NULL};
    syncguard_error_clear(&error);
    syncguard_status claimed = claim(lock, &limits, &error);
    syncguard_status status = release_claimed(lock, claimed, &limits, &error);
    if (claimed != SYNCGUARD_OK)
        claim_for_good(lock);
    if (status < SYNCGUARD_OK)
        report(lock, &error, source);
}

void sg_lock_dispose_from(syncguard_lock *lock, const char *source)
{
    syncguard_backend *backend = lock->backend;
    if (!forked(lock)) {
        release_and_report(lock, source);
        sg_heartbeat_remove(&backend->core->heartbeat, lock);
        sg_heartbeat_silence(&backend->core->heartbeat, lock);
    }
    syncguard_free(lock);
    sg_backend_unref(backend);
}

void syncguard_lock_detach(syncguard_lock *lock)
{
    SYNCGUARD_NO_CANCEL;
    if (lock == NULL)
        return;
    if (!forked(lock))
        claim_for_good(lock);
    /* Nothing is left to release: what dispose does besides is wanted. */
    atomic_store(&lock->released, true);
    sg_lock_unclaim(lock);
    sg_lock_dispose_from(lock, "scope");
}

void syncguard_lock_dispose(syncguard_lock *lock)
{
    SYNCGUARD_NO_CANCEL;
    if (lock != NULL)
        sg_lock_dispose_from(lock, "scope");
}

void syncguard_lock_dispose_scoped(syncguard_lock **lock)
{
    if (lock != NULL) {
        syncguard_lock_dispose(*lock);
        *lock = NULL;
    }
}
