/* What the threads of a completion queue do with a request, and how one ends early. */
#ifndef SG_QUEUE_REQUESTS_H
#define SG_QUEUE_REQUESTS_H

#include "queue_state.h"

/* The caller of these holds the mutex, which is let go of meanwhile; the request may be gone
 * afterwards. */

/* Does a READY request with the I/O that it needs. */
void sg_request_run(sg_worker *worker, sg_request *request);
/* The timer of a request has fired. No I/O. */
void sg_request_expire(sg_request *request);
/* Ends a request that is open; false if its completion was taken. No I/O. */
bool sg_request_cancel(sg_request *request);

/* For a batch: the other half of a request whose store operation is over (sg_acquire_try_end,
 * sg_lock_release_end). The mutex is not held, but is afterwards; the request may be gone. */
void sg_request_tried(sg_request *request, syncguard_error *err);
void sg_request_released(sg_request *request, syncguard_status status, const syncguard_error *err);

/* The mutex is not held. */

/* wake of an acquire's waiter. */
void sg_request_wake(sg_waiting *waiting);
/* on_lost of the locks of a queue; context is the request that granted the lock. */
void sg_request_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason);
/* A lock that has a request is about to be freed. */
void sg_request_lock_ended(syncguard_lock *lock);

/* The mutex is held. */

/* A new acquire becomes READY; its first try counts its time from since_ns on. */
void sg_request_begin_acquire(sg_request *request, int64_t since_ns);
/* The extends of a lock no longer belong to it. */
void sg_request_cut_extends(sg_request *granted);
/* Lists LOST once the grant was handed out, and after an extend that may have found it. */
void sg_request_tell_loss(sg_request *granted);
/* A job on the lock of this request is over, or its release was started: the next one may begin. */
void sg_request_begin_next(sg_request *granted);

#endif
