/*
 * Options of the lock helper (lock.h): how it waits, renews, and reports.
 */
#ifndef SYNCGUARD_LOCK_OPTIONS_H
#define SYNCGUARD_LOCK_OPTIONS_H

#include "abort.h"
#include "options.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A lock that is or was held: see syncguard/lock.h. */
typedef struct syncguard_lock syncguard_lock;

/* How the pauses between tries grow. */
typedef enum syncguard_backoff {
    SYNCGUARD_BACKOFF_EXPONENTIAL = 0, /* doubles up to 1 s (or retry_delay_ms if that is more) */
    SYNCGUARD_BACKOFF_FIXED = 1
} syncguard_backoff;

/* How much of a pause is random, so that waiters do not try at the same time. */
typedef enum syncguard_jitter {
    SYNCGUARD_JITTER_EQUAL = 0, /* half the pause fixed, half random */
    SYNCGUARD_JITTER_FULL = 1,  /* 0 to the pause */
    SYNCGUARD_JITTER_NONE = 2
} syncguard_jitter;

/* For max_retries and timeout_ms: no limit. */
#define SYNCGUARD_RETRY_FOREVER (-1)
#define SYNCGUARD_WAIT_FOREVER INT64_C(-1)

/* Why a lock is lost. */
typedef enum syncguard_lost_reason {
    SYNCGUARD_LOST_NO = 0,
    SYNCGUARD_LOST_ABSENT = 1,      /* the store says that the lock is gone */
    SYNCGUARD_LOST_UNCONFIRMED = 2, /* no renewal was confirmed before the lease ended */
    SYNCGUARD_LOST_MAX_HOLD = 3,    /* it was held for max_hold_ms */
    SYNCGUARD_LOST_FORKED = 4       /* this is a child of the process that holds it */
} syncguard_lost_reason;

/* "no", "absent", "unconfirmed", "max-hold", "forked". */
SYNCGUARD_API const char *syncguard_lost_reason_name(syncguard_lost_reason reason);

/*
 * Called exactly once when ownership of a lock with auto_extend can no longer be guaranteed. Runs
 * on a thread that the backend keeps for this. It may block, which delays the callbacks of other
 * locks. It may release or dispose of the lock, unless another thread does so (syncguard_with_lock
 * always does). It never runs before the acquire has set its out parameter or after dispose has
 * returned: dispose waits for a running callback. A lost lock stays lost, even if the store
 * confirms a renewal later; the library then releases it.
 */
typedef void (*syncguard_lost_fn)(void *context, syncguard_lock *lock,
                                  syncguard_lost_reason reason);

/* Called in the waiting thread before each pause of a waiting acquire, and every second during a
 * longer pause (or every retry_delay_ms, if that is more). remaining_ms is how long the current
 * holder's lock may still be live, or -1 if unknown. A child that is forked in the callback must
 * not return from it. */
typedef void (*syncguard_wait_fn)(void *context, int attempts, int64_t waited_ms,
                                  int64_t remaining_ms);

/*
 * Options of one lock.
 *
 * Two limits end the wait, whichever is reached first: max_retries and timeout_ms. If you only set
 * timeout_ms = 60000, the call gives up after about 5.6 s, when the default of ten retries is used
 * up. To wait up to a minute:
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
    /* Give up after this time, even in the middle of an attempt; default 5000, 0 is a single
     * attempt, or SYNCGUARD_WAIT_FOREVER. The backend's timeout_ms also limits each attempt.
     * max_retries may end the wait earlier, see above. */
    int64_t timeout_ms;
    /* Also retry after ServiceUnavailable, RateLimited and the NetworkTimeout of a single attempt.
     * When the wait ends, the last attempt determines the status: AcquisitionTimeout if the lock
     * was held, else the failure of that attempt. Default false. */
    bool retry_unavailable;
    /* Renew in the background, each time a third of ttl_ms has passed. Default false. */
    bool auto_extend;
    /* With auto_extend: no lease lasts longer than this after the grant; 0 (default): no maximum.
     */
    int64_t max_hold_ms;
    /* Triggering it ends the acquire; it has no effect later. NULL: none. */
    syncguard_abort *abort_object;
    syncguard_lost_fn on_lost; /* needs auto_extend, else InvalidArgument */
    void *on_lost_context;
    syncguard_wait_fn on_wait;
    void *on_wait_context;
    /* Overrides the backend's handler for this lock. */
    syncguard_release_error_fn on_release_error;
    void *on_release_error_context;
    /* Keep the key locked for at least this long after the grant; 0 (default): no minimum. An
     * earlier release does not remove the lock, but sets its lease to the rest of this time, so
     * that nobody gets the key before; see syncguard_lock_release. */
    int64_t min_hold_ms;
    /* Triggered when the lock is lost, so that the loss ends all calls that use this object. Needs
     * auto_extend, else InvalidArgument. The caller keeps ownership, and must not free it before
     * the lock is disposed of. NULL: none. */
    syncguard_abort *abort_on_lost;
    /* At most this many holders of the key at a time, 1 to SYNCGUARD_SLOTS_MAX; 0 (default): a
     * plain lock. See slots.h. */
    int slots;
} syncguard_lock_options;

#define SYNCGUARD_LOCK_OPTIONS_INIT                                                                \
    {                                                                                              \
        sizeof(syncguard_lock_options), SYNCGUARD_DEFAULT_TTL_MS, 10, 100,                         \
            SYNCGUARD_BACKOFF_EXPONENTIAL, SYNCGUARD_JITTER_EQUAL, 5000, false, false, 0, NULL,    \
            NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, 0                                         \
    }

/* Like SYNCGUARD_LOCK_OPTIONS_INIT, but waits up to wait_ms (or SYNCGUARD_WAIT_FOREVER) without a
 * limit on retries. */
#define SYNCGUARD_LOCK_OPTIONS_WAIT_MS(wait_ms)                                                    \
    {                                                                                              \
        sizeof(syncguard_lock_options), SYNCGUARD_DEFAULT_TTL_MS, SYNCGUARD_RETRY_FOREVER, 100,    \
            SYNCGUARD_BACKOFF_EXPONENTIAL, SYNCGUARD_JITTER_EQUAL, (wait_ms), false, false, 0,     \
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, 0                                   \
    }

/* Function twin of SYNCGUARD_LOCK_OPTIONS_INIT. */
SYNCGUARD_API void syncguard_lock_options_init(syncguard_lock_options *options, size_t size);

/* Sets the fields of initialized options that SYNCGUARD_LOCK_OPTIONS_WAIT_MS sets. */
SYNCGUARD_API void syncguard_lock_options_wait(syncguard_lock_options *options, int64_t wait_ms);

#ifdef __cplusplus
}
#endif

#endif
