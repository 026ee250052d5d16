/*
 * The lock handle, and the parts of it that need no mutex: claim, lease, loss.
 *
 * Operations on one handle take turns through `claimed`: extends of one lock must reach the store
 * in the order in which their answers are noted, or the lease counted here could outlast the one
 * stored there.
 */
#ifndef SG_LOCK_STATE_H
#define SG_LOCK_STATE_H

#include <stdatomic.h>
#include <sys/types.h>

#include "renewal_queue.h"
#include "syncguard/sys/backend.h"

/* How long an extend that was given up may still reach the store. Linux drops data that a closed
 * connection has not delivered after about 100 s. */
#define SG_LATE_EXTEND_MS 120000

/* Until until_s the store may still apply an extend with this TTL (or a longer one). Thousands of
 * waiting requests have a handle each, so both numbers are short. */
typedef struct sg_unresolved_extend {
    uint32_t ttl_ms;
    uint32_t until_s; /* of the monotonic clock */
} sg_unresolved_extend;

/* One extend by the application, and the renewals after it. */
#define SG_UNRESOLVED_EXTENDS 2

struct syncguard_lock {
    syncguard_backend *backend;
    pid_t pid;
    bool contended;       /* the acquire had to wait */
    uint16_t slot;        /* 0: a plain lock */
    uint16_t name_length; /* of the key without the slot */
    atomic_bool claimed;  /* an operation on this lock is in flight: one at a time */
    atomic_bool released; /* its one release has begun */
    atomic_bool counted;  /* as held, by telemetry */
    bool lost_queued;     /* heartbeat.mutex */
    uint16_t key_length;
    int64_t granted_ns;
    /* The end of the lease by the monotonic clock; once lost, and for good, the negative reason.
     * One word: a renewal and a thread that finds the lease over cannot both take effect. */
    _Atomic int64_t lease;
    _Atomic int64_t ttl_ms;         /* of the lease as it is counted */
    _Atomic int64_t longest_ttl_ms; /* the longest ever requested: the store may have applied it */
    _Atomic int64_t expires_at_ms;
    /* Used only by the thread that has the claim: the TTL that the owner requested and got; the
     * extends of unknown outcome that count, the shorter and older one first. */
    int64_t wanted_ttl_ms;
    sg_unresolved_extend unresolved[SG_UNRESOLVED_EXTENDS];
    int64_t confirmed_ns; /* when the last confirmed extend, or the acquire, was sent */
    /* No lease ends later; SYNCGUARD_NO_DEADLINE: no max_hold, or not yet (sets). */
    _Atomic int64_t hold_end_ns;
    /* No release removes the lock before; 0: no min_hold. */
    _Atomic int64_t keep_until_ns;
    syncguard_lost_fn on_lost;
    void *on_lost_context;
    syncguard_abort *abort_on_lost;
    syncguard_release_error_fn on_release_error;
    void *on_release_error_context;
    struct sg_request *request; /* of the queue that acquired it or releases it; heartbeat.mutex */
    void (*on_end)(syncguard_lock *lock); /* before it is freed, if it has had a request */
    /* heartbeat.mutex guards these */
    sg_heap_entry renewal;
    sg_renewal_queue *queue; /* NULL: in none */
    syncguard_link lost;     /* lost_queued */
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    char fence[SYNCGUARD_FENCE_SIZE];
    char key[];
};

/* Whether the application must be told of its loss. */
bool sg_lock_tells(const syncguard_lock *lock);
bool sg_lock_try_claim(syncguard_lock *lock);
void sg_lock_unclaim(syncguard_lock *lock);
/* End of the lease; 0 once the lock is lost. */
int64_t sg_lock_lease_end(const syncguard_lock *lock);
/* Telemetry counts the lock as held: from the grant until it is lost or its release begins. */
void sg_lock_begin_hold(syncguard_lock *lock, int64_t granted_ns);
void sg_lock_end_hold(syncguard_lock *lock);
/* Sets the reason unless one is set already. */
void sg_lock_lose(syncguard_lock *lock, syncguard_lost_reason reason);
/* Returns why the lock is lost; a lease that is over now is lost from here on. */
syncguard_lost_reason sg_lock_check_lease(syncguard_lock *lock);
/* ttl_ms, or what is left of the maximum hold if that is less. */
int64_t sg_lock_ttl_within_hold(const syncguard_lock *lock, int64_t ttl_ms);
/* The TTL for the next renewal. */
int64_t sg_lock_renewal_ttl_ms(const syncguard_lock *lock);
/* Notes a confirmed extend; false if the lock was lost meanwhile, which is final. */
bool sg_lock_renewed(syncguard_lock *lock, const syncguard_extend_op *op);
/* Notes an extend of unknown outcome, which the caller has just given up: neither this lease nor
 * one that is confirmed later counts for longer than the TTL of op, unless the later one is sent
 * SG_LATE_EXTEND_MS from now or later. True if the lease became shorter. */
bool sg_lock_note_unresolved(syncguard_lock *lock, const syncguard_extend_op *op);

/* The operations on a handle after the limits were read (lock.c). */
syncguard_status sg_lock_extend(syncguard_lock *lock, int64_t ttl_ms,
                                const syncguard_limits *limits, int64_t *expires_at_ms,
                                syncguard_error *err);
syncguard_status sg_lock_release(syncguard_lock *lock, const syncguard_limits *limits,
                                 syncguard_error *err);
/* The same in two halves, for callers that perform *op themselves. begin never blocks; false: this
 * is not possible, nothing was done, and the caller must call sg_lock_release. */
bool sg_lock_release_begin(syncguard_lock *lock, const syncguard_limits *limits,
                           syncguard_release_op *op);
syncguard_status sg_lock_release_end(syncguard_lock *lock, const syncguard_release_op *op,
                                     syncguard_status status, syncguard_error *err);
/* Leaves the release to the background thread, unless it has begun. Never blocks. */
void sg_lock_abandon(syncguard_lock *lock);
/* The same, and frees the handle; may wait for a renewal that it interrupts. */
void sg_lock_give_back(syncguard_lock *lock);
/* Disposes of the lock (lock.c); source is passed to on_release_error. */
void sg_lock_dispose_from(syncguard_lock *lock, const char *source);
/* The same with a deadline for the release, which several locks may share. */
void sg_lock_dispose_until(syncguard_lock *lock, const char *source, int64_t deadline_ns);
int64_t sg_dispose_timeout_ms(const syncguard_backend *backend);

#endif
