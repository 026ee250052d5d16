/*
 * The dispatcher of lost locks: one thread per backend that calls on_lost, started by the first
 * lock that has one.
 *
 * Invariants:
 *   - on_lost is called once per lock, with no mutex of the library held. `telling` is the lock
 *     whose callback runs. Disposing of that lock waits, unless the callback itself disposes of it.
 *   - A loss is reported in time even if the store hangs: the dispatcher watches the leases of all
 *     queued locks. It reads all of them, but only when the earliest lease that it saw would have
 *     ended; renewed leases end later. A renewal request never outlasts the earliest lease in it
 *     (heartbeat.c).
 *
 * Locking: heartbeat.mutex guards everything.
 */
#ifndef SG_LOST_LOCKS_H
#define SG_LOST_LOCKS_H

#include <pthread.h>

#include "renewal_queue.h"
#include "syncguard/sys/backend.h"

#define SG_RENEWAL_QUEUES 4

typedef struct sg_lost_locks {
    syncguard_backend *backend;
    void (*close)(syncguard_backend *backend); /* after a last unref inside on_lost */
    pthread_mutex_t *mutex;
    sg_renewal_queue *queues[SG_RENEWAL_QUEUES];
    pthread_cond_t changed; /* a lock was queued, a callback has returned, a lease ends sooner */
    bool started;
    bool stopping;
    pthread_t thread;
    syncguard_links queued; /* syncguard_lock */
    syncguard_lock *telling;
    int64_t next_check_ns; /* when a lease may have ended */
    bool close_requested;
} sg_lost_locks;

/* The caller has filled in backend, close, mutex and queues; the rest is zero. */
syncguard_status sg_lost_locks_init(sg_lost_locks *lost, syncguard_error *err);
void sg_lost_locks_destroy(sg_lost_locks *lost);
/* Ends the thread for good; it may call this itself. */
void sg_lost_locks_stop(sg_lost_locks *lost);

/* Callers of the next three hold the mutex. */
syncguard_status sg_lost_locks_start(sg_lost_locks *lost, syncguard_error *err);
/* Queues a lost lock, which must be in no renewal queue, for on_lost if it has one. */
void sg_lost_locks_push(sg_lost_locks *lost, syncguard_lock *lock);
/* Watches the lease of a lock that has been put into a renewal queue. */
void sg_lost_locks_watch(sg_lost_locks *lost, const syncguard_lock *lock);

/* Removes on_lost from a lock, and waits while it runs; the caller holds the mutex and is not
 * inside on_lost. */
void sg_lost_locks_detach(sg_lost_locks *lost, syncguard_lock *lock);
/* Makes sure that on_lost of a lock is not running and will not run. */
void sg_lost_locks_silence(sg_lost_locks *lost, syncguard_lock *lock);
/* True if the caller is the dispatcher's thread, which closes the backend after the callback. */
bool sg_lost_locks_close_later(sg_lost_locks *lost);

#endif
