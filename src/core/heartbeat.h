/*
 * The heartbeat: renews the auto-extended locks of one backend.
 *
 * Three queues, two threads. The batch renewer renews many locks per request. A lock that an
 * answered batch leaves undecided goes to the single renewer, which can wait for it, so that one
 * stuck key costs nobody else; a renewal that succeeds there brings it back. Locks of a request
 * that failed as a whole go to the retry queue, which the batch renewer serves first: they have the
 * least time left, and after an outage everything is due.
 */
#ifndef SG_HEARTBEAT_H
#define SG_HEARTBEAT_H

#include "lost_locks.h"

/* A thread that renews the locks of a queue; the first lock that needs it starts it. */
typedef struct sg_renewer {
    struct sg_heartbeat *heartbeat;
    sg_renewal_queue *queue;
    bool started;
    pthread_t thread;
    syncguard_parker parker;
    syncguard_abort *abort_object; /* ends the request that is under way */
} sg_renewer;

typedef struct sg_heartbeat {
    syncguard_backend *backend;
    pthread_mutex_t mutex; /* guards queues, lost locks, and fields of every lock */
    sg_renewal_queue batch;
    sg_renewal_queue single;
    sg_renewal_queue retry;
    sg_renewer batch_renewer;
    sg_renewer single_renewer;
    sg_lost_locks lost;
    size_t expected; /* acquires under way whose locks are to be renewed */
    bool stopping;
} sg_heartbeat;

/* close: what the dispatcher of lost locks calls if the last reference goes away inside on_lost. */
syncguard_status sg_heartbeat_init(sg_heartbeat *heartbeat, syncguard_backend *backend,
                                   void (*close)(syncguard_backend *), syncguard_error *err);
/* Ends the threads for good; the dispatcher may call it for itself. */
void sg_heartbeat_stop(sg_heartbeat *heartbeat);
void sg_heartbeat_destroy(sg_heartbeat *heartbeat);
/* In a forked child: threads and locks are the parent's. */
void sg_heartbeat_forget(sg_heartbeat *heartbeat);

/* Before a lock is asked for that is to be renewed: starts and reserves all that this needs, so
 * that nothing can fail after the grant. tells: somebody is told of its loss. Followed by one call
 * of add or expect_no_more. RateLimited for lack of descriptors or threads. */
syncguard_status sg_heartbeat_expect(sg_heartbeat *heartbeat, bool tells, syncguard_error *err);
void sg_heartbeat_expect_no_more(sg_heartbeat *heartbeat);
/* Begins to renew a lock that was expected. */
void sg_heartbeat_add(sg_heartbeat *heartbeat, syncguard_lock *lock);
/* Reschedules a lock after an extend by hand; its caller has claimed it. */
void sg_heartbeat_reschedule(sg_heartbeat *heartbeat, syncguard_lock *lock);
/* Ends the renewing of a claimed lock. */
void sg_heartbeat_remove(sg_heartbeat *heartbeat, syncguard_lock *lock);
/* Ends the renewing of a claimed lock that its owner found lost, and tells on_lost. */
void sg_heartbeat_lost(sg_heartbeat *heartbeat, syncguard_lock *lock);
/* Ends the requests that are under way; their locks are renewed again at once. */
void sg_heartbeat_interrupt(sg_heartbeat *heartbeat);

#endif
