/*
 * A queue of locks by the time of their next renewal: a heap in which each lock knows its place, so
 * that it can be taken out from anywhere.
 *
 * Locking: the caller of everything here holds heartbeat.mutex.
 */
#ifndef SG_RENEWAL_QUEUE_H
#define SG_RENEWAL_QUEUE_H

#include "syncguard/lock.h"

typedef struct sg_renewal_queue {
    syncguard_lock **heap;
    size_t count;
    size_t capacity;
} sg_renewal_queue;

/* False without memory. */
bool sg_renewal_queue_reserve(sg_renewal_queue *queue, size_t count);
/* Cannot fail: memory was reserved before the lock was asked for. */
void sg_renewal_queue_push(sg_renewal_queue *queue, syncguard_lock *lock);
/* Takes the lock out of the queue that it is in. */
void sg_renewal_queue_remove(syncguard_lock *lock);
/* Moves all locks of a queue to another, where they are in the same order. */
void sg_renewal_queue_move_all(sg_renewal_queue *from, sg_renewal_queue *to);
/* When the first lock is due; SYNCGUARD_NO_DEADLINE if there is none. */
int64_t sg_renewal_queue_next_ns(const sg_renewal_queue *queue);

/* Sets the time of the next thing to happen to a lock that is in no queue: a renewal, or the end of
 * a lease that is not renewed; or the next attempt of a renewal that was sent at sent_ns and
 * failed: after a pause, or now if the failure took longer. */
void sg_renewal_schedule(syncguard_lock *lock);
void sg_renewal_schedule_retry(syncguard_lock *lock, int64_t sent_ns);
/* Whether the lease ends with the maximum hold, so that no renewal can make it longer. */
bool sg_renewal_is_last_lease(const syncguard_lock *lock);

#endif
