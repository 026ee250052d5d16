/*
 * The heartbeat: renews the auto-extended locks of one backend.
 *
 * Four queues, two threads. The batch renewer renews many locks per request. A lock that an
 * answered batch leaves undecided goes to the single renewer, which can wait for it, so that one
 * stuck key costs nobody else; a renewal that succeeds there brings it back. If there are many, it
 * tries them together first; while that decides none of them, it tries ever more of them alone in
 * between. Locks of a request that failed as a whole go to the retry queue, which the batch renewer
 * serves first: they have the least time left, and after an outage everything is due.
 *
 * Another server may have taken over, with other locks or another clock. So all locks of the batch
 * queue are renewed at once after a connection was replaced or has ended, and when the time in
 * replies jumps: at most once a second, and less often if there are many. They wait in the early
 * queue. The batch renewer serves it last, because locks that are due have less time left; a lock
 * that becomes due there returns to the batch queue, or later ones would keep overtaking it. The
 * other two queues are retried soon anyway.
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
    syncguard_abort *abort_object; /* ends the request that is under way */
    int64_t turns;                 /* requests that share the time that is left; of the thread */
    /* Of the single renewer: how many locks it tries alone before it tries many together again, and
     * how many the next time. */
    int alone;
    int next_alone;
} sg_renewer;

typedef struct sg_heartbeat {
    syncguard_backend *backend;
    pthread_mutex_t mutex; /* guards queues, lost locks, and fields of every lock */
    sg_renewal_queue batch;
    sg_renewal_queue single;
    sg_renewal_queue retry;
    sg_renewal_queue early; /* of the batch renewer: to be renewed before they are due */
    sg_renewer batch_renewer;
    sg_renewer single_renewer;
    sg_lost_locks lost;
    size_t expected; /* acquires under way whose locks are to be renewed */
    bool stopping;
    sg_server_clock clock;
    int64_t all_due_ns;   /* when all are to be renewed; SYNCGUARD_NO_DEADLINE: not asked for */
    int64_t all_begun_ns; /* when that was last begun: what was sent before is renewed again */
    int64_t check_ns;     /* when idle connections are checked again */
    struct sg_heartbeat *outer; /* that of the decorator */
    struct sg_heartbeat *inner; /* that of the decorated backend; no mutex needed */
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
/* For decorators: the connections are those of inner, so what it is told is passed on to outer,
 * until outer is destroyed. Once more after each forget of inner. */
void sg_heartbeat_attach(sg_heartbeat *outer, sg_heartbeat *inner);
/* Another server may have taken over: all locks are renewed now, or a second after the last time
 * that this was done, and a millisecond more for each lock. */
void sg_heartbeat_renew_all(sg_heartbeat *heartbeat);
/* An acquire or extend that was sent at sent_ns was confirmed just now. The expiry shows the time
 * by the server's clock: if that has jumped, all locks are renewed. */
void sg_heartbeat_note_time(sg_heartbeat *heartbeat, int64_t sent_ns, int64_t expires_at_ms,
                            int64_t ttl_ms);
/* Ends the requests that are under way; their locks are renewed again at once. */
void sg_heartbeat_interrupt(sg_heartbeat *heartbeat);

#endif
