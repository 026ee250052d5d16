/* Requests of a completion queue that are done together, in one round trip. */
#ifndef SG_QUEUE_BATCH_H
#define SG_QUEUE_BATCH_H

#include "queue_state.h"

/* Does READY requests together if there are several that allow it; false if not, and nothing was
 * done. The mutex is held, and let go of meanwhile. */
bool sg_batch_run(sg_worker *worker);

#endif
