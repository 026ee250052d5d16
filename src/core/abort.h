/* Abort objects of the library's own threads, which reuse them. */
#ifndef SG_CORE_ABORT_H
#define SG_CORE_ABORT_H

#include "syncguard/abort.h"

/* Clears an object that was triggered, without a new descriptor. The caller must make sure that no
 * thread waits with it or triggers it meanwhile. */
void sg_abort_reset(syncguard_abort *abort_object);

#endif
