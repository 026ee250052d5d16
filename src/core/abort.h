/* Abort objects of the library's own threads, which are used again and again. */
#ifndef SG_CORE_ABORT_H
#define SG_CORE_ABORT_H

#include "syncguard/abort.h"

/* Makes an object that was triggered as good as new, without a new descriptor. The caller makes
 * sure that nobody waits with it or triggers it meanwhile. */
void sg_abort_reset(syncguard_abort *abort_object);

#endif
