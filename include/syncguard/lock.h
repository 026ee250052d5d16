/*
 * The lock helper: what most programs use.
 *
 * It tries until it has the lock, renews the lock in the background if asked to, and
 * releases it exactly once. Between tries it sleeps: a release wakes it where the
 * store reports releases, and it polls with backoff everywhere. Two forms:
 *
 *     SYNCGUARD_SCOPED syncguard_lock *lock = NULL;       // released at end of scope
 *     status = syncguard_lock_acquire(backend, "billing", NULL, &lock, &err);
 *
 *     status = syncguard_with_lock(backend, "billing", NULL, work, context, &result, &err);
 *
 * A holder counts its lease on a clock that cannot step, from the moment before
 * its request left: a slow reply or a clock step can only make it give up early.
 * Pass the fence to whatever the lock protects; only the resource can refuse a
 * holder that was stopped for longer than its lease.
 *
 * A lock handle may be used by several threads, except that dispose must be the last call. It
 * belongs to the process that acquired it: in a forked child release, extend and
 * dispose do nothing to the store, and lost is true.
 *
 * No call of this library is a cancellation point: a pthread_cancel takes effect
 * after it. A thread that may be cancelled while it has a lock disposes of it in a
 * cleanup handler, or works inside syncguard_with_lock. Callbacks run inside calls,
 * with cancellation off (but for the work of syncguard_with_lock); they must return, and
 * not be left by an exception or longjmp.
 */
#ifndef SYNCGUARD_LOCK_H
#define SYNCGUARD_LOCK_H

#include "backend.h"
#include "lock_options.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Acquires key, waiting as the options say (NULL: the defaults). OK gives a
 * handle that the caller disposes of. Retries used up or timeout reached is
 * AcquisitionTimeout, and the message says which; failures other than contention end it at once
 * unless retry_unavailable covers them (see there for what the end of the waiting is then). On
 * failure *out is NULL.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_acquire(
    syncguard_backend *backend, const char *key, const syncguard_lock_options *options,
    syncguard_lock **out, syncguard_error *err);

/*
 * One attempt that answers LOCKED instead of waiting. Of the options only
 * ttl_ms, auto_extend, max_hold_ms, min_hold_ms, abort_object, on_lost, abort_on_lost,
 * on_release_error and slots count.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_try(
    syncguard_backend *backend, const char *key, const syncguard_lock_options *options,
    syncguard_lock **out, syncguard_error *err);

/* Facts of the grant; the key is in NFC (with slots: the slot's key). The pointers live as long as
 * the handle. */
SYNCGUARD_API const char *syncguard_lock_key(const syncguard_lock *lock);
SYNCGUARD_API const char *syncguard_lock_id(const syncguard_lock *lock);
SYNCGUARD_API const char *syncguard_lock_fence(const syncguard_lock *lock);

/* Expiry as the store last confirmed it, in the store's time. */
SYNCGUARD_API int64_t syncguard_lock_expires_at_ms(const syncguard_lock *lock);

/* Time left of the lease on this machine's own clock: 0 when it has run out, was released or lost.
 * No I/O. */
SYNCGUARD_API int64_t syncguard_lock_remaining_ms(const syncguard_lock *lock);

/* True while this process holds the lock: not released, not lost, lease still running. No I/O. */
SYNCGUARD_API bool syncguard_lock_held(const syncguard_lock *lock);

/* Why the lock is lost, or SYNCGUARD_LOST_NO. A lease that ran out is lost; a lock that was
 * released in time is not. No I/O. */
SYNCGUARD_API syncguard_lost_reason syncguard_lock_lost(const syncguard_lock *lock);

/*
 * Releases now, ends the renewing, and reports to the caller: OK, ABSENT, or a
 * failure. A handle releases once: every later release is ABSENT and disposing
 * does nothing more, both without I/O. After a failure the library goes on
 * releasing in the background until the lease ends. The handle still has to be
 * disposed of.
 *
 * Before min_hold_ms is over a release (or dispose) sets the lease to the rest of it instead of
 * removing the lock. OK then means that the key becomes free by itself: after the minimum plus the
 * tolerance of one second, as after any lease. ABSENT means that the lock was gone already, and the
 * minimum with it. The handle is released all the same: it is not held, nothing renews it, and
 * nobody is woken. Whoever has the lock id can still remove the lock (syncguard_release).
 */
SYNCGUARD_API syncguard_status syncguard_lock_release(syncguard_lock *lock,
                                                      const syncguard_call *call,
                                                      syncguard_error *err);

/* Extends by hand; ttl_ms also becomes the length of later renewals. ABSENT means lost: also,
 * without I/O, when released or known to be lost. After a failure a ttl_ms that is shorter than
 * the present one counts as in force, since the store may have heard it; the lease may then end
 * earlier than without the call. expires_at_ms may be NULL. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_lock_extend(syncguard_lock *lock, int64_t ttl_ms, const syncguard_call *call,
                      int64_t *expires_at_ms, syncguard_error *err);

/*
 * Releases if that has not been done, and frees the handle. Cannot fail: an
 * error goes to on_release_error (the lock's, else the backend's, else the
 * default, which prints one line without key or lock id to stderr, and nothing
 * when SYNCGUARD_ENV=production unless SYNCGUARD_DEBUG=true). NULL is ignored.
 */
SYNCGUARD_API void syncguard_lock_dispose(syncguard_lock *lock);

/*
 * Frees the handle and leaves the lock as it is: renewing ends, and whoever has
 * the lock id may extend or release it until it expires, also before min_hold_ms is over. For
 * handing a lock over to another process. NULL is ignored.
 */
SYNCGUARD_API void syncguard_lock_detach(syncguard_lock *lock);

/* For SYNCGUARD_SCOPED: disposes of *lock. */
SYNCGUARD_API void syncguard_lock_dispose_scoped(syncguard_lock **lock);

#if defined(__GNUC__)
/* Before the definition of a lock: it is disposed of at the end of the scope. */
#define SYNCGUARD_SCOPED __attribute__((cleanup(syncguard_lock_dispose_scoped)))
#endif

/* The work of the callback form; what it returns is passed on as it is. */
typedef int (*syncguard_work_fn)(void *context, syncguard_lock *lock);

/*
 * Acquires, runs work while the lock is held, and releases whatever work returns.
 * OK means that work ran: *result (may be NULL) is what it returned. A failing
 * release does not change the outcome; it goes to on_release_error.
 *
 * Do not longjmp out of work: the lock would stay held, and be renewed with
 * auto_extend. Unwinding is seen and releases: a C++ exception (which goes on to the caller),
 * pthread_exit, a cancelled thread. Work runs with the caller's own cancel state.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_with_lock(
    syncguard_backend *backend, const char *key, const syncguard_lock_options *options,
    syncguard_work_fn work, void *context, int *result, syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
