/*
 * The wait queue of one backend: who waits for which key, and who tries next.
 *
 * Nothing here blocks or knows about threads. A waiter is woken through its wake function, asks
 * sg_wait_queue_poll what to do, and otherwise sleeps in whatever way its owner likes until the
 * time that the poll gave. One owner may have waiters for several keys.
 */
#ifndef SG_WAIT_QUEUE_H
#define SG_WAIT_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>

#include "syncguard/sys/backend.h"

typedef struct sg_key_waiters sg_key_waiters;

/* One waiter for one key. Its memory is the caller's from join to leave. */
typedef struct sg_waiter {
    /* Makes the owner poll again. Called with the queue's mutex held: must not block nor call
     * back; several calls may count as one. */
    void (*wake)(struct sg_waiter *waiter);
    /* set by join, guarded by the queue's mutex */
    sg_key_waiters *key_waiters;
    struct sg_waiter *next;
    struct sg_waiter *previous;
    bool woken;  /* chosen to try after an event */
    bool trying; /* chosen, or in the middle of a try */
    bool away;   /* in the caller's on_wait: others are woken in its place */
} sg_waiter;

#define SG_WAIT_QUEUE_BUCKETS 256

typedef struct sg_wait_queue {
    pthread_mutex_t mutex;
    bool notified;           /* the store reports releases, but for interruptions */
    atomic_size_t key_count; /* readable without the mutex: is anybody waiting at all? */
    atomic_ulong releases;   /* by this handle, of any key */
    atomic_size_t waiters;   /* that have joined, for telemetry */
    sg_key_waiters *buckets[SG_WAIT_QUEUE_BUCKETS];
} sg_wait_queue;

/* Why a waiter is to act now. */
typedef enum sg_wake_reason {
    SG_WAKE_EVENT,  /* the key may be free: try, without counting it */
    SG_WAKE_EXPIRY, /* the lock in the way has expired, or a release may have gone unreported: try,
                       without counting it */
    SG_WAKE_TIMER   /* the caller's own time is over */
} sg_wake_reason;

syncguard_status sg_wait_queue_init(sg_wait_queue *queue, bool notified, syncguard_error *err);
void sg_wait_queue_destroy(sg_wait_queue *queue);
/* In a forked child: the waiters were the parent's. */
void sg_wait_queue_forget(sg_wait_queue *queue);

/* Joins the waiters of key after a try that left remaining_ms to the lock in the way (-1: unknown);
 * waiter->wake is set. *armed: no try is needed before waiting. */
syncguard_status sg_wait_queue_join(sg_wait_queue *queue, const char *key, size_t length,
                                    int64_t remaining_ms, sg_waiter *waiter, bool *armed,
                                    syncguard_error *err);
/* granted_until_ns: when the lock that this waiter got expires by itself; 0 if it got none. */
void sg_wait_queue_leave(sg_wait_queue *queue, syncguard_backend *backend, sg_waiter *waiter,
                         int64_t granted_until_ns);

/* Before a try: returns the event count so far. */
uint64_t sg_wait_queue_try_begin(sg_wait_queue *queue, sg_waiter *waiter);
/* After a try that was answered LOCKED (op): true if the event count has moved meanwhile and the
 * try must be repeated. */
bool sg_wait_queue_try_locked(sg_wait_queue *queue, sg_waiter *waiter, uint64_t events,
                              const syncguard_acquire_op *op);
/* After a try that failed and that the waiter wants to survive. */
void sg_wait_queue_try_failed(sg_wait_queue *queue, sg_waiter *waiter);
/* True if some waiter of this key has begun a try after since_ns; *locked: the last one that ended
 * was answered, not failed. */
bool sg_wait_queue_tried_since(sg_wait_queue *queue, const sg_waiter *waiter, int64_t since_ns,
                               bool *locked);
/* How long a waiter may rest without a try of its own because releases are reported; 0: it has to
 * poll. From here on the first waiter of the key tries for those that rest. */
int64_t sg_wait_queue_rest_ms(sg_wait_queue *queue, const sg_waiter *waiter);
/* Around a callback of the caller, during which the waiter can neither try nor watch the time. */
void sg_wait_queue_set_away(sg_wait_queue *queue, sg_waiter *waiter, bool away);

/* True if the waiter has to act now, for *reason. Else *until_ns, the caller's own time, has been
 * lowered to when it has to poll again, unless it is woken before. */
bool sg_wait_queue_poll(sg_wait_queue *queue, sg_waiter *waiter, int64_t *until_ns,
                        sg_wake_reason *reason);

/* This handle has released key. */
void sg_wait_queue_released(sg_wait_queue *queue, const char *key, size_t length);
/* This handle has changed the expiry of the lock of key: it may be live for remaining_ms more. */
void sg_wait_queue_set_expiry(sg_wait_queue *queue, const char *key, size_t length,
                              int64_t remaining_ms);

#endif
