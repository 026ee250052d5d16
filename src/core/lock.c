/*
 * Lock handles: queries, extend, release, dispose. Waiting for a claim (lock_state.h) is rare and
 * short, so a waiting thread tries every millisecond instead of queueing.
 *
 * A handle releases once (`released`), whatever the result; a release that failed
 * is repeated in the background until the lease is over. In a forked child a
 * handle is only memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "lock_state.h"
#include "min_hold.h"
#include "operations.h"
#include "syncguard/sys/environment.h"

static bool lock_is_forked(const syncguard_lock *lock)
{
    return lock->pid != getpid();
}

/* ---- claims ---- */

static syncguard_status lock_claim(syncguard_lock *lock, const syncguard_limits *limits,
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

/* For dispose: interrupts a renewal that holds the claim instead of waiting until it ends. */
static void lock_claim_for_good(syncguard_lock *lock)
{
    const syncguard_limits unlimited = {SYNCGUARD_NO_DEADLINE, NULL};
    if (sg_lock_try_claim(lock))
        return;
    sg_heartbeat_interrupt(&lock->backend->core->heartbeat);
    (void)lock_claim(lock, &unlimited, NULL);
}

/* ---- queries ---- */

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

syncguard_lost_reason syncguard_lock_lost(const syncguard_lock *lock)
{
    /* A loss that is found here is logged later: a query calls no callback. */
    return lock_is_forked(lock) ? SYNCGUARD_LOST_FORKED
                                : sg_lock_check_lease((syncguard_lock *)lock);
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

/* ---- extend ---- */

/* Caller has the claim. */
static syncguard_status lock_extend_claimed(syncguard_lock *lock, syncguard_extend_op *op,
                                            syncguard_error *err)
{
    syncguard_backend *backend = lock->backend;
    int64_t wanted_ttl_ms = op->ttl_ms;
    if (!syncguard_lock_held(lock))
        return SYNCGUARD_ABSENT;
    op->ttl_ms = sg_lock_ttl_within_hold(lock, wanted_ttl_ms);
    if (op->ttl_ms > atomic_load(&lock->longest_ttl_ms))
        atomic_store(&lock->longest_ttl_ms, op->ttl_ms);
    op->first_sent_ns = syncguard_clock_ns();
    syncguard_status status = backend->ops->extend(backend, op, err);
    sg_background_release_again(&backend->core->background, lock, status);
    if (status == SYNCGUARD_OK)
        sg_heartbeat_note_time(&backend->core->heartbeat, op->first_sent_ns, op->expires_at_ms,
                               op->ttl_ms);
    if (status < SYNCGUARD_OK) {
        sg_error_key(backend, err, lock->key, lock->key_length);
        if (sg_lock_note_unresolved(lock, op))
            sg_heartbeat_reschedule(&backend->core->heartbeat, lock);
        return status;
    }
    /* The lease is checked before, too: a lock that the reply confirms too late is lost. */
    if (status == SYNCGUARD_OK && sg_lock_check_lease(lock) == SYNCGUARD_LOST_NO &&
        sg_lock_renewed(lock, op) && sg_lock_check_lease(lock) == SYNCGUARD_LOST_NO) {
        lock->wanted_ttl_ms = wanted_ttl_ms;
        sg_heartbeat_reschedule(&backend->core->heartbeat, lock);
        return SYNCGUARD_OK;
    }
    if (status == SYNCGUARD_OK)
        sg_background_release(&backend->core->background, lock);
    else
        sg_lock_lose(lock, SYNCGUARD_LOST_ABSENT);
    sg_heartbeat_lost(&backend->core->heartbeat, lock);
    return SYNCGUARD_ABSENT;
}

syncguard_status sg_lock_extend(syncguard_lock *lock, int64_t ttl_ms,
                                const syncguard_limits *limits, int64_t *expires_at_ms,
                                syncguard_error *err)
{
    syncguard_extend_op op = {.lock_id = lock->lock_id, .ttl_ms = ttl_ms, .limits = *limits};
    syncguard_status status = syncguard_limits_check(limits, err);
    if (status == SYNCGUARD_OK)
        status = lock_claim(lock, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    syncguard_backend *backend = lock->backend;
    status = lock_extend_claimed(lock, &op, err);
    sg_lock_unclaim(lock); /* from now on, on_lost may dispose of it */
    sg_incidents_log_losses(backend);
    if (status >= SYNCGUARD_OK)
        syncguard_error_clear(err);
    if (status == SYNCGUARD_OK && expires_at_ms != NULL)
        *expires_at_ms = op.expires_at_ms;
    return status;
}

syncguard_status syncguard_lock_extend(syncguard_lock *lock, int64_t ttl_ms,
                                       const syncguard_call *call, int64_t *expires_at_ms,
                                       syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (expires_at_ms != NULL)
        *expires_at_ms = 0;
    if (lock == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "lock is NULL");
    syncguard_status status = sg_ttl_check(ttl_ms, err);
    syncguard_limits limits;
    if (status == SYNCGUARD_OK)
        status = sg_limits_read(lock->backend, call, &limits, err);
    if (status == SYNCGUARD_OK && lock_is_forked(lock))
        return SYNCGUARD_ABSENT;
    if (status != SYNCGUARD_OK)
        return status;
    return sg_lock_extend(lock, ttl_ms, &limits, expires_at_ms, err);
}

/* ---- release ---- */

/* Removes the lock, or, before its minimum hold is over, sets its lease to the rest of that. Caller
 * has the claim. */
static syncguard_status lock_remove_or_keep(syncguard_lock *lock, const syncguard_limits *limits,
                                            syncguard_error *err)
{
    syncguard_backend *backend = lock->backend;
    syncguard_release_op release = {
        .lock_id = lock->lock_id, .limits = *limits, .contended = lock->contended};
    syncguard_extend_op keep = {.lock_id = lock->lock_id, .limits = *limits};
    int64_t keep_until_ns = atomic_load(&lock->keep_until_ns);
    keep.ttl_ms = keep_until_ns > 0 ? sg_min_hold_left_ms(keep_until_ns) : 0;
    if (keep.ttl_ms == 0)
        return sg_release_once(backend, &release, lock->key, lock->key_length, err);
    syncguard_status status = sg_backend_enter(backend, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_limits_check(limits, err);
    if (status == SYNCGUARD_OK)
        status = sg_min_hold_keep(backend, &keep, lock->key, lock->key_length, err);
    if (status == SYNCGUARD_OK)
        atomic_store(&lock->expires_at_ms, keep.expires_at_ms);
    return status;
}

/* Reports a loss that the release found, and repeats a failed release in the background. */
static void lock_note_release(syncguard_lock *lock, syncguard_status status, syncguard_error *err)
{
    syncguard_backend *backend = lock->backend;
    if (status == SYNCGUARD_ABSENT && sg_lock_lease_end(lock) > 0) /* its loss was not known yet */
        sg_incidents_lost(backend, lock->key, lock->key_length, SYNCGUARD_LOST_ABSENT);
    if (status < SYNCGUARD_OK) {
        sg_error_key(backend, err, lock->key, lock->key_length);
        sg_background_release(&backend->core->background, lock);
    }
}

/* The one release of a handle. The caller has set `released`; it has the claim if claimed is OK. */
static syncguard_status lock_release_claimed(syncguard_lock *lock, syncguard_status claimed,
                                             const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_status status = claimed;
    if (status == SYNCGUARD_OK && sg_lock_check_lease(lock) == SYNCGUARD_LOST_ABSENT)
        return SYNCGUARD_ABSENT;
    if (status == SYNCGUARD_OK)
        status = lock_remove_or_keep(lock, limits, err);
    lock_note_release(lock, status, err);
    return status;
}

syncguard_status sg_lock_release(syncguard_lock *lock, const syncguard_limits *limits,
                                 syncguard_error *err)
{
    (void)syncguard_lock_lost(lock); /* a lease that is over now is lost, not released */
    if (atomic_exchange(&lock->released, true))
        return SYNCGUARD_ABSENT;
    sg_lock_end_hold(lock);
    syncguard_status claimed = lock_claim(lock, limits, err);
    if (claimed == SYNCGUARD_OK)
        sg_heartbeat_remove(&lock->backend->core->heartbeat, lock);
    syncguard_status status = lock_release_claimed(lock, claimed, limits, err);
    syncguard_backend *backend = lock->backend;
    if (claimed == SYNCGUARD_OK)
        sg_lock_unclaim(lock);
    sg_incidents_log_losses(backend);
    return status;
}

bool sg_lock_release_begin(syncguard_lock *lock, const syncguard_limits *limits,
                           syncguard_release_op *op)
{
    if (atomic_load(&lock->keep_until_ns) > 0 || !sg_lock_try_claim(lock))
        return false;
    if (sg_lock_check_lease(lock) == SYNCGUARD_LOST_ABSENT ||
        sg_release_once_begin(lock->backend, limits, NULL) != SYNCGUARD_OK ||
        atomic_exchange(&lock->released, true)) {
        sg_lock_unclaim(lock);
        return false;
    }
    sg_lock_end_hold(lock);
    sg_heartbeat_remove(&lock->backend->core->heartbeat, lock);
    *op = (syncguard_release_op){
        .lock_id = lock->lock_id, .limits = *limits, .contended = lock->contended};
    return true;
}

syncguard_status sg_lock_release_end(syncguard_lock *lock, const syncguard_release_op *op,
                                     syncguard_status status, syncguard_error *err)
{
    status = sg_release_once_end(lock->backend, op, lock->key, lock->key_length, status, err);
    lock_note_release(lock, status, err);
    syncguard_backend *backend = lock->backend;
    sg_lock_unclaim(lock);
    sg_incidents_log_losses(backend);
    return status;
}

syncguard_status syncguard_lock_release(syncguard_lock *lock, const syncguard_call *call,
                                        syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (lock == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "lock is NULL");
    syncguard_limits limits;
    syncguard_status status = sg_limits_read(lock->backend, call, &limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    return lock_is_forked(lock) ? SYNCGUARD_ABSENT : sg_lock_release(lock, &limits, err);
}

void sg_lock_abandon(syncguard_lock *lock)
{
    (void)syncguard_lock_lost(lock);
    if (atomic_exchange(&lock->released, true))
        return;
    sg_lock_end_hold(lock);
    sg_background_release(&lock->backend->core->background, lock);
}

/* ---- dispose ---- */

static bool environment_is(const char *name, const char *value)
{
    const char *found = syncguard_environment(name);
    return found != NULL && strcmp(found, value) == 0;
}

/* The default handler: prints one line, without key or lock id. */
static void lock_print_release_error(const syncguard_error *error)
{
    if (environment_is("SYNCGUARD_ENV", "production") && !environment_is("SYNCGUARD_DEBUG", "true"))
        return;
    /* check-source: allow fprintf, the one line that the interface asks for */
    fprintf(stderr, "syncguard: a lock could not be released: %s: %s\n",
            syncguard_status_name(error->code), error->message);
}

static void release_error_report(const syncguard_lock *lock, const syncguard_error *error,
                                 const char *source)
{
    const syncguard_options *options = &lock->backend->core->options;
    if (lock->on_release_error != NULL)
        lock->on_release_error(lock->on_release_error_context, error, lock->key, lock->lock_id,
                               source);
    else if (options->on_release_error != NULL)
        options->on_release_error(options->on_release_error_context, error, lock->key,
                                  lock->lock_id, source);
    else
        lock_print_release_error(error);
}

int64_t sg_dispose_timeout_ms(const syncguard_backend *backend)
{
    const syncguard_options *options = &backend->core->options;
    if (options->dispose_timeout_ms > 0 && options->dispose_timeout_ms < options->timeout_ms)
        return options->dispose_timeout_ms;
    return options->timeout_ms;
}

/* Releases the lock unless that was done; afterwards the caller has the claim for good. */
static void lock_release_and_report(syncguard_lock *lock, const char *source, int64_t deadline_ns)
{
    if (atomic_exchange(&lock->released, true)) {
        lock_claim_for_good(lock);
        return;
    }
    syncguard_limits limits = {deadline_ns, NULL};
    syncguard_error error;
    syncguard_error_clear(&error);
    syncguard_status claimed = lock_claim(lock, &limits, &error);
    syncguard_status status = lock_release_claimed(lock, claimed, &limits, &error);
    if (claimed != SYNCGUARD_OK)
        lock_claim_for_good(lock);
    if (status < SYNCGUARD_OK)
        release_error_report(lock, &error, source);
}

void sg_lock_dispose_until(syncguard_lock *lock, const char *source, int64_t deadline_ns)
{
    syncguard_backend *backend = lock->backend;
    if (!lock_is_forked(lock)) {
        (void)syncguard_lock_lost(lock); /* a lease that is over now is lost, not released */
        sg_lock_end_hold(lock);
        lock_release_and_report(lock, source, deadline_ns);
        sg_incidents_log_losses(backend);
        sg_heartbeat_remove(&backend->core->heartbeat, lock);
        sg_lost_locks_silence(&backend->core->heartbeat.lost, lock);
        if (lock->on_end != NULL)
            lock->on_end(lock);
    }
    syncguard_free(lock);
    sg_backend_unref(backend);
}

void sg_lock_dispose_from(syncguard_lock *lock, const char *source)
{
    int64_t timeout_ms = sg_dispose_timeout_ms(lock->backend);
    sg_lock_dispose_until(lock, source, syncguard_clock_after(syncguard_clock_ns(), timeout_ms));
}

void sg_lock_give_back(syncguard_lock *lock)
{
    sg_lock_abandon(lock);
    sg_lock_dispose_from(lock, "scope");
}

void syncguard_lock_detach(syncguard_lock *lock)
{
    SYNCGUARD_NO_CANCEL;
    if (lock == NULL)
        return;
    if (!lock_is_forked(lock))
        lock_claim_for_good(lock);
    /* Only the release is skipped: dispose does the rest. */
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
