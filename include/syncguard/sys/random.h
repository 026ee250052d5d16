/* Random numbers from the kernel. None are kept in memory, so a forked child cannot repeat them. */
#ifndef SYNCGUARD_SYS_RANDOM_H
#define SYNCGUARD_SYS_RANDOM_H

#include "../types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Never waits. Returns false and sets errno if the kernel has no random numbers yet. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK bool syncguard_random_bytes(void *out, size_t size);

/* A number from 0 to limit - 1, for spreading load, not for secrets: if the kernel has no random
 * numbers, it is derived from the clock. 0 if limit is not positive. */
SYNCGUARD_API int64_t syncguard_random_below(int64_t limit);

#ifdef __cplusplus
}
#endif

#endif
