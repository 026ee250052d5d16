/* Requests of a completion queue that run together, in one round trip. */
#ifndef SG_QUEUE_BATCH_H
#define SG_QUEUE_BATCH_H

#include "queue_state.h"

/* Runs READY requests together if several of them allow it; false if not, and nothing was done. The
 * caller holds the mutex, which is released meanwhile. */
bool sg_batch_run(sg_worker *worker);

#endif
