/* The liveness rule with the tolerance as an argument: the form that scripts and SQL use, and that
 * tests compare. */
#ifndef SG_CORE_LIVENESS_H
#define SG_CORE_LIVENESS_H

#include "syncguard/types.h"

/* expires_at_ms > now_ms - tolerance_ms; tolerance_ms is not negative. */
bool sg_is_live_within(int64_t expires_at_ms, int64_t now_ms, int64_t tolerance_ms);

#endif
