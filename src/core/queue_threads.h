/* The threads of a completion queue: the timekeeper, and workers. */
#ifndef SG_QUEUE_THREADS_H
#define SG_QUEUE_THREADS_H

#include "queue_state.h"

/* Starts the timekeeper. On failure the caller has nothing to undo. */
syncguard_status sg_queue_threads_start(syncguard_queue *queue, syncguard_error *err);
/* Ends all threads; no request may be RUNNING. */
void sg_queue_threads_stop(syncguard_queue *queue);
/* Frees the resources of the threads: in a forked child, and at the end of stop. */
void sg_queue_threads_free(syncguard_queue *queue);

#endif
