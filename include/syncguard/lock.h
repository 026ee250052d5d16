/*
 * The lock helper: the front door.
 *
 * It tries until it has the lock, woken by releases where the store can do that
 * and polling with backoff underneath, renews it in the background if asked, and
 * releases it exactly once. Two forms:
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

#ifdef __cplusplus
extern "C" {
#endif

typedef struct syncguard_lock syncguard_lock;

typedef enum syncguard_backoff {
    SYNCGUARD_BACKOFF_EXPONENTIAL = 0, /* doubles up to 1 s (or retry_delay_ms if that is more) */
    SYNCGUARD_BACKOFF_FIXED = 1
} syncguard_backoff;

typedef enum syncguard_jitter {
    SYNCGUARD_JITTER_EQUAL = 0, /* half the pause fixed, half random */
    SYNCGUARD_JITTER_FULL = 1,  /* 0 to the pause */
    SYNCGUARD_JITTER_NONE = 2
} syncguard_jitter;

#define SYNCGUARD_RETRY_FOREVER (-1)
#define SYNCGUARD_WAIT_FOREVER INT64_C(-1)

typedef enum syncguard_lost_reason {
    SYNCGUARD_LOST_NO = 0,
    SYNCGUARD_LOST_ABSENT = 1,      /* the store says that the lock is gone */
    SYNCGUARD_LOST_UNCONFIRMED = 2, /* no renewal was confirmed before the lease ended */
    SYNCGUARD_LOST_MAX_HOLD = 3,    /* max_hold_ms ended the renewing, and the lease ran out */
    SYNCGUARD_LOST_FORKED = 4       /* this is a child of the process that holds it */
} syncguard_lost_reason;

/* "no", "absent", "unconfirmed", "max-hold", "forked". */
SYNCGUARD_API const char *syncguard_lost_reason_name(syncguard_lost_reason reason);

/*
 * Told once when an auto-extended lock is lost. Runs on a thread that the
 * backend keeps for this: it may block (others are told later then), release or
 * dispose of the lock (then nobody else may, so not in the callback form). Never
 * runs before the acquire has filled in its out parameter nor after dispose has
 * returned; dispose waits for a running one. Lost is final, even if the store
 * confirms a renewal later (that one is released).
 */
typedef void (*syncguard_lost_fn)(void *context, syncguard_lock *lock,
                                  syncguard_lost_reason reason);

/* Told before each pause of a waiting acquire, and every second (or retry_delay_ms, if that is
 * more) of a longer one, in the waiting thread. remaining_ms: how long the
 * present holder's lock may still live, -1 if unknown. A child that is forked in it must not
 * return from it. */
typedef void (*syncguard_wait_fn)(void *context, int attempts, int64_t waited_ms,
                                  int64_t remaining_ms);

/*
 * Options of one lock.
 *
 * Two limits end the waiting, whichever comes first: max_retries and timeout_ms.
 * timeout_ms = 60000 alone gives up after about 5.6 s, when the ten retries of
 * the default are used up. To wait up to a minute:
 *
 *     syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
 */
typedef struct syncguard_lock_options {
    size_t size;
    int64_t ttl_ms; /* default 30000; 0 and below are InvalidArgument */
    /* Retries after the first attempt; default 10, 0 is a single attempt, or
     * SYNCGUARD_RETRY_FOREVER. Tries after a wake-up are not counted. */
    int max_retries;
    int64_t retry_delay_ms; /* first pause; default 100, 0 retries without a pause */
    syncguard_backoff backoff;
    syncguard_jitter jitter;
    /* Give up after this long, also in the middle of an attempt; default 5000, 0 is a single
     * attempt, or SYNCGUARD_WAIT_FOREVER. Each attempt is also bounded by the backend's
     * timeout_ms. max_retries may end the waiting earlier, see above. */
    int64_t timeout_ms;
    /* Retry ServiceUnavailable, RateLimited and the NetworkTimeout of a single attempt like
     * contention. When the waiting ends the last answer of the store decides: the lock was held is
     * AcquisitionTimeout, a failure is that failure. Default false. */
    bool retry_unavailable;
    /* Renew in the background at a third of ttl_ms. Default false. */
    bool auto_extend;
    /* Stop renewing this long after the grant; 0 (default): never. */
    int64_t max_hold_ms;
    /* Ends the waiting, not the release. NULL: none. Only used during the acquire. */
    syncguard_abort *abort_object;
    syncguard_lost_fn on_lost; /* needs auto_extend, else InvalidArgument */
    void *on_lost_context;
    syncguard_wait_fn on_wait;
    void *on_wait_context;
    /* Overrides the backend's handler for this lock. */
    syncguard_release_error_fn on_release_error;
    void *on_release_error_context;
} syncguard_lock_options;

#define SYNCGUARD_LOCK_OPTIONS_INIT                                                                \
    {                                                                                              \
        sizeof(syncguard_lock_options), SYNCGUARD_DEFAULT_TTL_MS, 10, 100,                         \
            SYNCGUARD_BACKOFF_EXPONENTIAL, SYNCGUARD_JITTER_EQUAL, 5000, false, false, 0, NULL,    \
            NULL, NULL, NULL, NULL, NULL, NULL                                                     \
    }

/* The same, but waiting for up to wait_ms (SYNCGUARD_WAIT_FOREVER: for as long as it takes),
 * without a limit of retries. */
#define SYNCGUARD_LOCK_OPTIONS_WAIT_MS(wait_ms)                                                    \
    {                                                                                              \
        sizeof(syncguard_lock_options), SYNCGUARD_DEFAULT_TTL_MS, SYNCGUARD_RETRY_FOREVER, 100,    \
            SYNCGUARD_BACKOFF_EXPONENTIAL, SYNCGUARD_JITTER_EQUAL, (wait_ms), false, false, 0,     \
            NULL, NULL, NULL, NULL, NULL, NULL, NULL                                               \
    }

/* Function twin of SYNCGUARD_LOCK_OPTIONS_INIT. */
SYNCGUARD_API void syncguard_lock_options_init(syncguard_lock_options *options, size_t size);

/* Lets options that are initialised wait as SYNCGUARD_LOCK_OPTIONS_WAIT_MS does. */
SYNCGUARD_API void syncguard_lock_options_wait(syncguard_lock_options *options, int64_t wait_ms);

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
 * ttl_ms, auto_extend, max_hold_ms, abort_object, on_lost and on_release_error count.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_try(
    syncguard_backend *backend, const char *key, const syncguard_lock_options *options,
    syncguard_lock **out, syncguard_error *err);

/* Facts of the grant. The pointers live as long as the handle. */
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
 * the lock id may extend or release it until it expires. For handing a lock over
 * to another process. NULL is ignored.
 */
SYNCGUARD_API void syncguard_lock_detach(syncguard_lock *lock);

/* For SYNCGUARD_SCOPED: disposes of *lock. */
SYNCGUARD_API void syncguard_lock_dispose_scoped(syncguard_lock **lock);

#if defined(__GNUC__)
#define SYNCGUARD_SCOPED __attribute__((cleanup(syncguard_lock_dispose_scoped)))
#endif

/* The work of the callback form; what it returns is passed on, not judged. */
typedef int (*syncguard_work_fn)(void *context, syncguard_lock *lock);

/*
 * Do not longjmp out of work: the lock would stay held, and be renewed with
 * auto_extend. Unwinding is seen and releases: a C++ exception (which goes on to the caller),
 * pthread_exit, a cancelled thread. Work runs with the caller's own cancel state.
 *
 * Acquires, runs work while the lock is held, and releases whatever work returns.
 * OK means that work ran: *result (may be NULL) is what it returned. A failing
 * release does not change the outcome; it goes to on_release_error.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_with_lock(
    syncguard_backend *backend, const char *key, const syncguard_lock_options *options,
    syncguard_work_fn work, void *context, int *result, syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
