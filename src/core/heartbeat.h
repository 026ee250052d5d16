/*
 * The heartbeat: renews the auto-extended locks of one backend.
 *
 * Four queues, two threads. The batch renewer renews many locks per request. A lock that an
 * answered batch leaves undecided goes to the single renewer, which can wait for it, so that one
 * stuck key does not delay other locks; it returns after a renewal that succeeds there. If the
 * single renewer has many locks, it tries them together first; as long as that decides none of
 * them, it tries more and more of them alone in between. Locks of a request that failed as a whole
 * go to the retry queue, which the batch renewer serves first: they have the least time left, and
 * after an outage every lock is due.
 *
 * Another server may have taken over, with other locks or another clock. So all locks of the batch
 * queue are renewed at once after a connection was replaced or has ended, and when the time in
 * replies jumps: at most once a second, and less often if there are many locks. They wait in the
 * early queue. The batch renewer serves it last, because locks that are due have less time left. A
 * lock that becomes due there returns to the batch queue; otherwise later locks would keep
 * overtaking it. The other two queues are retried soon anyway.
 */
#ifndef SG_HEARTBEAT_H
#define SG_HEARTBEAT_H

#include "lost_locks.h"
#include "server_clock.h"

/* A thread that renews the locks of a queue; the first lock that needs it starts it. */
typedef struct sg_renewer {
    struct sg_heartbeat *heartbeat;
    sg_renewal_queue *queue;
    bool started;
    pthread_t thread;
    syncguard_parker parker;
    syncguard_abort *abort_object; /* ends the request that is in flight */
    int64_t sharing;               /* requests that share the time left; used by the thread only */
    /* Of the single renewer: how many locks it tries alone before it tries many together again, and
     * how many it does the next time. */
    int alone;
    int next_alone;
} sg_renewer;

typedef struct sg_heartbeat {
    syncguard_backend *backend;
    pthread_mutex_t mutex; /* guards queues, lost locks, and fields of every lock */
    sg_renewal_queue batch;
    sg_renewal_queue single;
    sg_renewal_queue retry;
    sg_renewal_queue early; /* of the batch renewer: locks to renew before they are due */
    sg_renewer batch_renewer;
    sg_renewer single_renewer;
    sg_lost_locks lost;
    size_t expected; /* acquires in flight whose locks must be renewed */
    bool stopping;
    sg_server_clock clock;
    int64_t all_due_ns;         /* when to renew all locks; SYNCGUARD_NO_DEADLINE: not asked for */
    int64_t all_begun_ns;       /* when this last began: locks whose last confirmed request was
                                   sent before it are renewed again */
    int64_t check_ns;           /* when to check idle connections again */
    struct sg_heartbeat *outer; /* heartbeat of the decorator */
    struct sg_heartbeat *inner; /* heartbeat of the decorated backend; no mutex needed */
} sg_heartbeat;

/* The dispatcher of lost locks calls close if the last reference goes away inside on_lost. */
syncguard_status sg_heartbeat_init(sg_heartbeat *heartbeat, syncguard_backend *backend,
                                   void (*close)(syncguard_backend *), syncguard_error *err);
/* Ends the threads for good; the dispatcher may call it for itself. */
void sg_heartbeat_stop(sg_heartbeat *heartbeat);
void sg_heartbeat_destroy(sg_heartbeat *heartbeat);
/* In a forked child: threads and locks belong to the parent. */
void sg_heartbeat_forget(sg_heartbeat *heartbeat);

/* Must be called before the acquire of a lock that will be renewed: starts the threads and reserves
 * the memory for this, so that nothing can fail after the grant. tells: the application is told of
 * the loss of this lock. After OK, one call of
 * sg_heartbeat_add or sg_heartbeat_expect_no_more must follow. RateLimited for lack of
 * descriptors or threads. */
syncguard_status sg_heartbeat_expect(sg_heartbeat *heartbeat, bool tells, syncguard_error *err);
void sg_heartbeat_expect_no_more(sg_heartbeat *heartbeat);
/* Begins to renew a lock that was expected. */
void sg_heartbeat_add(sg_heartbeat *heartbeat, syncguard_lock *lock);
/* Reschedules a lock after the application extended it; the caller has claimed it. */
void sg_heartbeat_reschedule(sg_heartbeat *heartbeat, syncguard_lock *lock);
/* Stops renewing a claimed lock. */
void sg_heartbeat_remove(sg_heartbeat *heartbeat, syncguard_lock *lock);
/* Stops renewing a claimed lock that its owner found lost, and calls on_lost. */
void sg_heartbeat_lost(sg_heartbeat *heartbeat, syncguard_lock *lock);
/* For decorators: the connections belong to inner, so inner passes on to outer when all locks must
 * be renewed, until outer is destroyed. Must be called again after each forget of inner. */
void sg_heartbeat_attach(sg_heartbeat *outer, sg_heartbeat *inner);
/* Another server may have taken over: renews all locks now, or a second (and a millisecond for each
 * lock) after the last time that this was done. */
void sg_heartbeat_renew_all(sg_heartbeat *heartbeat);
/* An acquire or extend that was sent at sent_ns was confirmed just now. The expiry shows the
 * server's time: if it has jumped, all locks are renewed. */
void sg_heartbeat_note_time(sg_heartbeat *heartbeat, int64_t sent_ns, int64_t expires_at_ms,
                            int64_t ttl_ms);
/* Ends the requests that are in flight; their locks are renewed again at once. */
void sg_heartbeat_interrupt(sg_heartbeat *heartbeat);

#endif
