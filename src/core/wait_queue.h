/*
 * The wait queue of one backend: which acquires wait for which keys, and which tries next.
 *
 * Nothing here blocks or knows about threads. An sg_waiting has one waiter for each key it would
 * accept. Its owner is woken through the wake function, asks sg_wait_queue_poll what to do, and
 * otherwise sleeps in its own way until the time that the poll gave.
 */
#ifndef SG_WAIT_QUEUE_H
#define SG_WAIT_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>

#include "syncguard/sys/backend.h"

typedef struct sg_key_waiters sg_key_waiters;

struct sg_waiting;

/*
 * What a waiter is about to do. It joins as MISSED or IDLE, and may leave in every state.
 *
 *   MISSED --> IDLE             another waiter of the key tries, or the key is armed by now
 *   MISSED, IDLE --> CHOSEN     by an event
 *   MISSED, IDLE --> TRYING     it is time for a try
 *   CHOSEN --> TRYING           the try begins (TRYING --> TRYING, if it was time for it)
 *   TRYING --> CHOSEN           an event arrived during the try, so it is repeated
 *   TRYING --> IDLE             the try was answered, or failed
 *   CHOSEN, TRYING --> IDLE     the owner goes away: another waiter is chosen
 */
typedef enum sg_waiter_state {
    SG_WAITER_IDLE,
    SG_WAITER_MISSED, /* a change may have happened before it joined: try once */
    SG_WAITER_CHOSEN, /* by an event, to try; counts as trying */
    SG_WAITER_TRYING  /* makes a try, or is about to */
} sg_waiter_state;

/* The entry of one sg_waiting in the list of one key; guarded by the queue's mutex. */
typedef struct sg_waiter {
    struct sg_waiting *waiting;
    sg_key_waiters *key_waiters;
    syncguard_link link;
    sg_waiter_state state;
} sg_waiter;

/* A waiting acquire: for one key, or for the first of several that becomes free (slots). The caller
 * keeps its memory from the first join to leave. */
typedef struct sg_waiting {
    /* Makes the owner poll again. Called with the queue's mutex held: must not block nor call
     * back; several calls may count as one. */
    void (*wake)(struct sg_waiting *waiting);
    sg_waiter *waiters;    /* one for every key: `only`, or an array */
    unsigned long changes; /* of any key, before the first try */
    /* Guarded by the queue's mutex from the first join on: */
    uint16_t count;       /* of waiters that have joined */
    uint16_t next_index;  /* of the waiter with which a search begins */
    uint16_t trying;      /* number of its waiters that are CHOSEN or TRYING */
    bool away;            /* in the caller's on_wait: others are woken in its place */
    int64_t next_poll_ns; /* no try for resting waiters before this */
    sg_waiter only;
} sg_waiting;

#define SG_WAIT_QUEUE_BUCKETS 256

typedef struct sg_wait_queue {
    pthread_mutex_t mutex;
    bool notified;           /* the store reports releases, except during interruptions */
    atomic_size_t key_count; /* readable without the mutex: 0 if nothing waits */
    atomic_ulong changes;    /* of any key: releases, and expiries that came closer */
    atomic_size_t waiters;   /* acquires that have joined, for telemetry */
    sg_key_waiters *buckets[SG_WAIT_QUEUE_BUCKETS];
} sg_wait_queue;

/* Why a waiter must act now. */
typedef enum sg_wake_reason {
    SG_WAKE_EVENT,  /* the key may be free: try, without counting it */
    SG_WAKE_EXPIRY, /* the current lock has expired, or a release may have gone unreported: try,
                       without counting it */
    SG_WAKE_TIMER   /* the caller's own time is over */
} sg_wake_reason;

syncguard_status sg_wait_queue_init(sg_wait_queue *queue, bool notified, syncguard_error *err);
void sg_wait_queue_destroy(sg_wait_queue *queue);
/* In a forked child: the waiters belonged to the parent. */
void sg_wait_queue_forget(sg_wait_queue *queue);

/* Joins the waiters of one more key after a try that found remaining_ms left of the current lock
 * (-1: unknown). missed: a release by another handle may have happened since that try. */
syncguard_status sg_wait_queue_join(sg_wait_queue *queue, sg_waiting *waiting, const char *key,
                                    size_t length, int64_t remaining_ms, bool missed,
                                    syncguard_error *err);
/* Leaves the waiters of all keys. granted_until_ns: when the lock that was granted for the key of
 * waiter `granted` expires by itself; 0 if none was granted. */
void sg_wait_queue_leave(sg_wait_queue *queue, syncguard_backend *backend, sg_waiting *waiting,
                         size_t granted, int64_t granted_until_ns);

/* Must be called before a try of the key of waiter `index`: returns the event count. */
uint64_t sg_wait_queue_try_begin(sg_wait_queue *queue, sg_waiting *waiting, size_t index);
/* Must be called after a try that was answered LOCKED (op). If the event count has changed
 * meanwhile, the waiter is chosen again. */
void sg_wait_queue_try_locked(sg_wait_queue *queue, sg_waiting *waiting, size_t index,
                              uint64_t events, const syncguard_acquire_op *op);
/* Must be called after a try that failed, if the waiter goes on waiting. */
void sg_wait_queue_try_failed(sg_wait_queue *queue, sg_waiting *waiting, size_t index);
/* *index: of the keys the one that this process has tried least recently. True if any waiter has
 * begun a try of it after since_ns; *locked: the last try that ended was answered LOCKED, not
 * failed. */
bool sg_wait_queue_tried_since(sg_wait_queue *queue, const sg_waiting *waiting, int64_t since_ns,
                               size_t *index, bool *locked);
/* Returns how long a waiting acquire may rest without a try because the store reports releases; 0:
 * it must poll. From here on the first waiter of each key tries for those that rest. */
int64_t sg_wait_queue_rest_ms(sg_wait_queue *queue, const sg_waiting *waiting);
/* Returns in how many milliseconds the first of the current locks expires; -1: unknown. */
int64_t sg_wait_queue_remaining_ms(sg_wait_queue *queue, const sg_waiting *waiting);
/* Must be called before and after a callback of the caller, during which the caller can neither try
 * nor watch the time. */
void sg_wait_queue_set_away(sg_wait_queue *queue, sg_waiting *waiting, bool away);

/* True if the key of waiter *index must be tried now, without counting it: after an event, or
 * because its release may have been missed. */
bool sg_wait_queue_chosen(sg_wait_queue *queue, sg_waiting *waiting, size_t *index);
/* True if the caller must act now, for *reason and, except for TIMER, with the key of waiter
 * *index. Otherwise *until_ns, the caller's own time, has been lowered to the time of the next
 * poll, unless wake is called before. */
bool sg_wait_queue_poll(sg_wait_queue *queue, sg_waiting *waiting, int64_t *until_ns,
                        sg_wake_reason *reason, size_t *index);

/* This handle has released key. */
void sg_wait_queue_released(sg_wait_queue *queue, const char *key, size_t length);
/* This handle has changed the expiry of the lock of key: it may live for remaining_ms more. */
void sg_wait_queue_set_expiry(sg_wait_queue *queue, const char *key, size_t length,
                              int64_t remaining_ms);

#endif
