/*
 * The wait queue of one backend: who waits for which key, and who tries next.
 *
 * Nothing here blocks or knows about threads. Who waits (sg_waiting) has one waiter for each key
 * that would do. It is woken through its wake function, asks sg_wait_queue_poll what to do, and
 * otherwise sleeps in whatever way it likes until the time that the poll gave.
 */
#ifndef SG_WAIT_QUEUE_H
#define SG_WAIT_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>

#include "syncguard/sys/backend.h"

typedef struct sg_key_waiters sg_key_waiters;

struct sg_waiting;

/* One waiter for one key; guarded by the queue's mutex. */
typedef struct sg_waiter {
    struct sg_waiting *waiting;
    sg_key_waiters *key_waiters;
    struct sg_waiter *next;
    struct sg_waiter *previous;
    bool woken;  /* chosen to try after an event */
    bool trying; /* chosen, or in the middle of a try */
    bool missed; /* a change may have happened before it joined: try once */
} sg_waiter;

/* Who waits: for one key, or for whichever of several comes free first (slots). Its memory is the
 * caller's from the first join to leave. */
typedef struct sg_waiting {
    /* Makes the owner poll again. Called with the queue's mutex held: must not block nor call
     * back; several calls may count as one. */
    void (*wake)(struct sg_waiting *waiting);
    sg_waiter *waiters;    /* with room for every key: `only`, or an array */
    unsigned long changes; /* of any key, before the first try */
    /* guarded by the queue's mutex from the first join on */
    uint16_t count;       /* that have joined */
    uint16_t next_index;  /* where the search for something to do begins */
    uint16_t trying;      /* of its waiters */
    bool away;            /* in the caller's on_wait: others are woken in its place */
    int64_t next_poll_ns; /* no try for those that rest before */
    sg_waiter only;
} sg_waiting;

#define SG_WAIT_QUEUE_BUCKETS 256

typedef struct sg_wait_queue {
    pthread_mutex_t mutex;
    bool notified;           /* the store reports releases, but for interruptions */
    atomic_size_t key_count; /* readable without the mutex: is anybody waiting at all? */
    atomic_ulong changes;    /* of any key: releases, and expiries that came closer */
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

/* Joins the waiters of one more key after a try that left remaining_ms to the lock in the way (-1:
 * unknown). missed: a release that was not by this handle may have happened since that try. */
syncguard_status sg_wait_queue_join(sg_wait_queue *queue, sg_waiting *waiting, const char *key,
                                    size_t length, int64_t remaining_ms, bool missed,
                                    syncguard_error *err);
/* Leaves the waiters of all keys. granted_until_ns: when the lock of the key of waiter `granted`,
 * which was got, expires by itself; 0 if none was got. */
void sg_wait_queue_leave(sg_wait_queue *queue, syncguard_backend *backend, sg_waiting *waiting,
                         size_t granted, int64_t granted_until_ns);

/* Before a try of the key of waiter `index`: returns the event count so far. */
uint64_t sg_wait_queue_try_begin(sg_wait_queue *queue, sg_waiting *waiting, size_t index);
/* After a try that was answered LOCKED (op). If the event count has moved meanwhile the waiter is
 * chosen again. */
void sg_wait_queue_try_locked(sg_wait_queue *queue, sg_waiting *waiting, size_t index,
                              uint64_t events, const syncguard_acquire_op *op);
/* After a try that failed and that the waiter wants to survive. */
void sg_wait_queue_try_failed(sg_wait_queue *queue, sg_waiting *waiting, size_t index);
/* *index: of the keys the one that this process has tried least recently. True if somebody has
 * begun a try of it after since_ns; *locked: the last one that ended was answered, not failed. */
bool sg_wait_queue_tried_since(sg_wait_queue *queue, const sg_waiting *waiting, int64_t since_ns,
                               size_t *index, bool *locked);
/* How long who waits may rest without a try because releases are reported; 0: it has to poll. From
 * here on the first waiter of each key tries for those that rest. */
int64_t sg_wait_queue_rest_ms(sg_wait_queue *queue, const sg_waiting *waiting);
/* When the first of the locks in the way expires, from now; -1: unknown. */
int64_t sg_wait_queue_remaining_ms(sg_wait_queue *queue, const sg_waiting *waiting);
/* Around a callback of the caller, during which it can neither try nor watch the time. */
void sg_wait_queue_set_away(sg_wait_queue *queue, sg_waiting *waiting, bool away);

/* True if the key of waiter *index has to be tried now, without counting it: after an event, or
 * because its release may have been missed. */
bool sg_wait_queue_chosen(sg_wait_queue *queue, sg_waiting *waiting, size_t *index);
/* True if there is something to do now, for *reason, and but for TIMER with the key of waiter
 * *index. Else *until_ns, the caller's own time, has been lowered to when to poll again, unless
 * woken before. */
bool sg_wait_queue_poll(sg_wait_queue *queue, sg_waiting *waiting, int64_t *until_ns,
                        sg_wake_reason *reason, size_t *index);

/* This handle has released key. */
void sg_wait_queue_released(sg_wait_queue *queue, const char *key, size_t length);
/* This handle has changed the expiry of the lock of key: it may be live for remaining_ms more. */
void sg_wait_queue_set_expiry(sg_wait_queue *queue, const char *key, size_t length,
                              int64_t remaining_ms);

#endif
