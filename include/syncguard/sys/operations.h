/* The arguments and results of a backend's operations: see sys/backend.h. */
#ifndef SYNCGUARD_SYS_OPERATIONS_H
#define SYNCGUARD_SYS_OPERATIONS_H

#include "../telemetry.h"
#include "wait.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A lock as stored. Filled by lookup and list; key in NFC. */
typedef struct syncguard_record {
    char key[SYNCGUARD_KEY_SIZE];
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    char owner[SYNCGUARD_OWNER_SIZE];
    char fence[SYNCGUARD_FENCE_SIZE];
    int64_t expires_at_ms;
    int64_t acquired_at_ms;
    int64_t now_ms; /* when it was read: see syncguard_lock_info */
} syncguard_record;

/* Called for each lock that list finds; ends the list by returning false. */
typedef bool (*syncguard_record_fn)(void *context, const syncguard_record *record);

/* The usual armed_ms of a store that reports every release by any client. */
#define SYNCGUARD_ARMED_MS 60000

typedef struct syncguard_acquire_op { /* the arguments of acquire */
    /* in */
    const char *key; /* NFC, NUL-terminated */
    size_t key_length;
    const char *lock_id;
    int64_t ttl_ms;
    const char *owner; /* "" for none */
    /* The caller will wait if the result is LOCKED: call syncguard_backend_key_changed when any
     * client releases the key, or extends its lock to an earlier end. Arm this before the lock is
     * evaluated, so that none is missed. Stores that cannot ignore it (their waiters poll). */
    bool watch;
    syncguard_limits limits;
    /* out, OK */
    int64_t fence;
    int64_t expires_at_ms;
    /* out, LOCKED: for how long the existing lock may still be live, including the tolerance;
     * -1 if unknown */
    int64_t remaining_ms;
    /* out, LOCKED and watch: for how long every release of the key will be reported, unless
     * syncguard_backend_notifications_lost is called before. Until then, a waiter without a limit
     * of retries tries again only when remaining_ms is over. 0 (preset by the core): nothing is
     * armed, the waiter polls. A store that does not report every release may still set it, to
     * limit the cost of polling: its waiters then learn of a release up to this much later. */
    int64_t armed_ms;
    /* out, always: the clock just before the first byte was sent for the first time; preset by the
     * core to the time of the call */
    int64_t first_sent_ns;
    /* out, failure: the request may still take effect, so the core must undo it */
    bool may_have_been_granted;
} syncguard_acquire_op;

typedef struct syncguard_release_op { /* the arguments of release */
    /* in */
    const char *lock_id;
    syncguard_limits limits;
    bool contended; /* its owner had to wait for the lock, so others probably wait now */
    /* out, OK: the key that is free now, if the store returned it, else length 0 */
    char key[SYNCGUARD_KEY_SIZE];
    size_t key_length;
    /* out, ABSENT: EXPIRED or NOT_FOUND if this is known without further I/O, else NONE */
    syncguard_event_reason reason;
} syncguard_release_op;

typedef struct syncguard_extend_op { /* the arguments of extend */
    /* in */
    const char *lock_id;
    int64_t ttl_ms;
    syncguard_limits limits; /* not used in a batch: see extend_many */
    int64_t expires_at_ms;   /* out, OK */
    /* out, always: as in acquire; the renewed lease counts from it */
    int64_t first_sent_ns;
    /* out, ABSENT: as in release */
    syncguard_event_reason reason;
    /* out, in a batch: OK, ABSENT, or a failure (the core then extends this lock alone) */
    syncguard_status status;
} syncguard_extend_op;

typedef struct syncguard_is_locked_op { /* the arguments of is_locked */
    /* in */
    const char *key;
    size_t key_length;
    syncguard_limits limits;
    /* out, OK */
    bool locked;
    /* out, OK and not locked: the dead record that was seen, if any (lock_id[0] is NUL if none) */
    char dead_lock_id[SYNCGUARD_LOCK_ID_SIZE];
    int64_t dead_expires_at_ms;
    int64_t dead_for_ms; /* out: since its expiry, by the clock that determines expiry */
} syncguard_is_locked_op;

typedef struct syncguard_lookup_op { /* the arguments of lookup */
    /* in: exactly one of key and lock_id is not NULL */
    const char *key;
    size_t key_length;
    const char *lock_id;
    syncguard_limits limits;
    /* out, OK */
    syncguard_record record;
} syncguard_lookup_op;

/* A dead record that cleanup may remove. */
typedef struct syncguard_cleanup_op {
    const char *key;
    size_t key_length;
    const char *lock_id;
    int64_t expires_at_ms;
    syncguard_limits limits;
} syncguard_cleanup_op;

/* An acquire with an unknown outcome, for undo_many. */
typedef struct syncguard_undo_op {
    /* in */
    const char *key;
    size_t key_length;
    const char *lock_id;
    int64_t until_ns;
    /* out: OK or ABSENT, with the meaning of undo, or a failure */
    syncguard_status status;
} syncguard_undo_op;

/* One item of do_many: an acquire without watch, or a release. */
typedef struct syncguard_many_op {
    syncguard_acquire_op *acquire; /* in: exactly one of the two is not NULL */
    syncguard_release_op *release;
    syncguard_status status; /* out: the result of acquire or release */
    syncguard_error error;
} syncguard_many_op;

/* The largest number of items of extend_many and undo_many, and of do_many. */
#define SYNCGUARD_BATCH_MAX 256
#define SYNCGUARD_MANY_MAX 32

/* Cleanup removes a record only if it has been expired for longer than this. */
#define SYNCGUARD_CLEANUP_GUARD_MS 2000

#ifdef __cplusplus
}
#endif

#endif
