/*
 * A queue of locks by the time of their next renewal, from which any lock can be removed.
 *
 * Locking: the caller of everything here holds heartbeat.mutex.
 */
#ifndef SG_RENEWAL_QUEUE_H
#define SG_RENEWAL_QUEUE_H

#include "syncguard/lock.h"
#include "util/heap.h"

/* Its memory is reserved before a lock is requested. */
typedef sg_heap sg_renewal_queue;

/* The first lock; NULL if there is none. */
syncguard_lock *sg_renewal_queue_first(const sg_renewal_queue *queue);
void sg_renewal_queue_push(sg_renewal_queue *queue, syncguard_lock *lock);
/* Removes the lock from the queue that it is in. */
void sg_renewal_queue_remove(syncguard_lock *lock);
/* Moves all locks of a queue to another, in the same order. */
void sg_renewal_queue_move_all(sg_renewal_queue *from, sg_renewal_queue *to);
/* When the first lock is due; SYNCGUARD_NO_DEADLINE if there is none. */
int64_t sg_renewal_queue_next_ns(const sg_renewal_queue *queue);

/* Sets renewal.due_ns of a lock that is in no queue: the time of its next renewal, or the end of a
 * lease that is not renewed any more. */
void sg_renewal_schedule(syncguard_lock *lock);
/* The same after a renewal that was sent at sent_ns and failed: the next attempt comes after a
 * pause, or now if the failure took longer. */
void sg_renewal_schedule_retry(syncguard_lock *lock, int64_t sent_ns);
/* Whether the lease ends with the maximum hold, so that no renewal can make it longer. */
bool sg_renewal_is_last_lease(const syncguard_lock *lock);

#endif
