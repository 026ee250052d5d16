/*
 * The lock helper: what most programs use.
 *
 * It tries until it has the lock, renews the lock in the background if asked to, and releases it
 * exactly once. Between tries it sleeps: on stores that report releases, a release wakes it; on
 * every store it also polls with backoff. There are two forms:
 *
 *     SYNCGUARD_SCOPED syncguard_lock *lock = NULL;       // released at end of scope
 *     status = syncguard_lock_acquire(backend, "billing", NULL, &lock, &err);
 *
 *     status = syncguard_with_lock(backend, "billing", NULL, work, context, &result, &err);
 *
 * A holder counts its lease on a clock that nobody can set, from the moment before it sends its
 * request: a slow reply can only make it give up early. Pass the fence to the resource that the
 * lock protects; only the resource can refuse a holder that was paused for longer than its lease.
 *
 * A lock handle may be used by several threads, except that dispose must be the last call. It
 * belongs to the process that acquired it: in a forked child release, extend and dispose do not
 * change the store, and the lock counts as lost (SYNCGUARD_LOST_FORKED).
 *
 * No function of this library is a cancellation point: pthread_cancel takes effect after the call
 * has returned. A thread that may be cancelled while it has a lock should dispose of it in a
 * cleanup handler, or work inside syncguard_with_lock. Callbacks run with cancellation disabled
 * (except for the work of syncguard_with_lock). They must return normally, not by an exception or
 * longjmp.
 */
#ifndef SYNCGUARD_LOCK_H
#define SYNCGUARD_LOCK_H

#include "backend.h"
#include "lock_options.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Acquires key, and waits for it as the options say (NULL: the defaults). On OK *out is a handle
 * that the caller must dispose of. If the retries are used up or the timeout is reached, the result
 * is AcquisitionTimeout, and the message says which. Other failures end the call at once, unless
 * retry_unavailable covers them (it also describes the status at the end of the wait). On failure
 * *out is NULL.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_acquire(
    syncguard_backend *backend, const char *key, const syncguard_lock_options *options,
    syncguard_lock **out, syncguard_error *err);

/*
 * Makes one attempt, and returns LOCKED instead of waiting. Of the options, only ttl_ms,
 * auto_extend, max_hold_ms, min_hold_ms, abort_object, on_lost, abort_on_lost, on_release_error and
 * slots have an effect.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_try(
    syncguard_backend *backend, const char *key, const syncguard_lock_options *options,
    syncguard_lock **out, syncguard_error *err);

/* Values of the grant; the key is in NFC (with slots: the slot's key). The strings are valid as
 * long as the handle. */
SYNCGUARD_API const char *syncguard_lock_key(const syncguard_lock *lock);
SYNCGUARD_API const char *syncguard_lock_id(const syncguard_lock *lock);
SYNCGUARD_API const char *syncguard_lock_fence(const syncguard_lock *lock);

/* Expiry as the store last confirmed it, in the store's time. */
SYNCGUARD_API int64_t syncguard_lock_expires_at_ms(const syncguard_lock *lock);

/* Remaining time of the lease on this machine's own clock: 0 if it has ended, or if the lock was
 * released or lost. No I/O. */
SYNCGUARD_API int64_t syncguard_lock_remaining_ms(const syncguard_lock *lock);

/* True while this process holds the lock: not released, not lost, lease still running. No I/O. */
SYNCGUARD_API bool syncguard_lock_held(const syncguard_lock *lock);

/* Why the lock is lost, or SYNCGUARD_LOST_NO. A lock whose lease has ended is lost; a lock that was
 * released in time is not. No I/O. */
SYNCGUARD_API syncguard_lost_reason syncguard_lock_lost(const syncguard_lock *lock);

/*
 * Releases the lock now and stops renewing it. The result is OK, ABSENT or a failure. A handle
 * releases its lock only once: every later release is ABSENT, and dispose only frees the handle,
 * both without I/O. After a failure the library keeps trying to release the lock in the background
 * until the lease ends. The caller must still dispose of the handle.
 *
 * Before min_hold_ms is over, a release (or dispose) does not remove the lock, but sets its lease
 * to the rest of min_hold_ms. OK then means that the key becomes free after that time plus the
 * tolerance of one second, as after any lease. ABSENT means that the lock was already gone, so the
 * minimum is not kept. In both cases the handle is released: it is not held, and its lock is not
 * renewed. Waiters learn when the key becomes free. With the lock id the lock can still be removed
 * (syncguard_release).
 */
SYNCGUARD_API syncguard_status syncguard_lock_release(syncguard_lock *lock,
                                                      const syncguard_call *call,
                                                      syncguard_error *err);

/* Extends the lease now, at most to the end of max_hold_ms; later renewals also use ttl_ms. ABSENT
 * means that the lock is lost; if it was released or is known to be lost, the result is ABSENT
 * without I/O. After a failure, a ttl_ms that is shorter than the current one is assumed to be in
 * force, because the store may have applied it; the lease may then end earlier than without the
 * call. The store may also apply a failed extend or renewal late, after another one: extends that
 * are sent within two minutes of the failure are counted no longer than its TTL. expires_at_ms may
 * be NULL. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_lock_extend(syncguard_lock *lock, int64_t ttl_ms, const syncguard_call *call,
                      int64_t *expires_at_ms, syncguard_error *err);

/*
 * Releases the lock if that has not been done, and frees the handle. Cannot fail: an error goes to
 * on_release_error of the lock, else of the backend, else to the default handler, which prints one
 * line without key and lock id to stderr (nothing if SYNCGUARD_ENV=production, unless
 * SYNCGUARD_DEBUG=true). NULL is ignored.
 */
SYNCGUARD_API void syncguard_lock_dispose(syncguard_lock *lock);

/*
 * Frees the handle without releasing the lock, in order to pass the lock to another process. The
 * lock is no longer renewed; with its lock id it can be extended or released until it expires, even
 * before min_hold_ms is over. NULL is ignored.
 */
SYNCGUARD_API void syncguard_lock_detach(syncguard_lock *lock);

/* For SYNCGUARD_SCOPED: disposes of *lock. */
SYNCGUARD_API void syncguard_lock_dispose_scoped(syncguard_lock **lock);

#if defined(__GNUC__)
/* Placed before the definition of a lock variable: disposes of the lock at the end of the scope. */
#define SYNCGUARD_SCOPED __attribute__((cleanup(syncguard_lock_dispose_scoped)))
#endif

/* The work of the callback form; its return value is passed on unchanged. */
typedef int (*syncguard_work_fn)(void *context, syncguard_lock *lock);

/*
 * Acquires the lock, runs work while the lock is held, and then releases it, whatever work returns.
 * OK means that work ran: *result (result may be NULL) is its return value. If the release fails,
 * the status does not change; the error goes to on_release_error.
 *
 * Do not longjmp out of work: the lock would stay held and, with auto_extend, renewed. If the stack
 * is unwound, the lock is released: by a C++ exception (which is passed on to the caller), by
 * pthread_exit, or because the thread is cancelled. Work runs with the caller's own cancel state.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_with_lock(
    syncguard_backend *backend, const char *key, const syncguard_lock_options *options,
    syncguard_work_fn work, void *context, int *result, syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
