/* Randomness of the kernel. Nothing random is kept, so a fork cannot repeat it. */
#ifndef SYNCGUARD_SYS_RANDOM_H
#define SYNCGUARD_SYS_RANDOM_H

#include "../types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Never waits. False, with errno, if the kernel has no randomness yet. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK bool syncguard_random_bytes(void *out, size_t size);

/* A number from 0 to limit - 1, to spread load: without randomness the clock must do. 0 if limit is
 * not positive. */
SYNCGUARD_API int64_t syncguard_random_below(int64_t limit);

#ifdef __cplusplus
}
#endif

#endif
