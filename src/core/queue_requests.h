/* How the threads of a completion queue run a request, and how it ends early. */
#ifndef SG_QUEUE_REQUESTS_H
#define SG_QUEUE_REQUESTS_H

#include "queue_state.h"

/* Callers of the next three hold the mutex, which is released meanwhile; the request may be freed
 * afterwards. */

/* Runs a READY request with the I/O that it needs. */
void sg_request_run(sg_worker *worker, sg_request *request);
/* The timer of a request has fired. No I/O. */
void sg_request_expire(sg_request *request);
/* Ends a request that is open; false if its completion was taken already. No I/O. */
bool sg_request_cancel(sg_request *request);

/* For a batch: the rest of a request after the operation of the store (sg_acquire_try_end,
 * sg_lock_release_end). The caller does not hold the mutex, but does afterwards; the request may be
 * freed then. */
void sg_request_tried(sg_request *request, syncguard_error *err);
void sg_request_released(sg_request *request, syncguard_status status, const syncguard_error *err);

/* Callers of the next three do not hold the mutex. */

/* The wake function of the waiters of an acquire. */
void sg_request_wake(sg_waiting *waiting);
/* The on_lost of the locks of a queue; context is the request that granted the lock. */
void sg_request_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason);
/* Called before a lock that has a request is freed. */
void sg_request_lock_ended(syncguard_lock *lock);

/* Callers of the rest hold the mutex. */

/* Makes an acquire READY; the time of its next try counts from since_ns on. */
void sg_request_begin_acquire(sg_request *request, int64_t since_ns);
/* Separates the extends of a lock from it. */
void sg_request_cut_extends(sg_request *granted);
/* Lists LOST if the lock is lost, was handed out, and no extend is running that may report it. */
void sg_request_tell_loss(sg_request *granted);
/* Begins the next job on the lock of this request, after a job on it has ended or its release was
 * started. */
void sg_request_begin_next(sg_request *granted);

#endif
