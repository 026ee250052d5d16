/* Pauses between tries. They double and have a random part, so that clients do not stay in step. */
#ifndef SYNCGUARD_SYS_BACKOFF_H
#define SYNCGUARD_SYS_BACKOFF_H

#include "wait.h"

#ifdef __cplusplus
extern "C" {
#endif

/* first_ns, doubled `round` times, but at most longest_ns. */
SYNCGUARD_API int64_t syncguard_backoff_ns(int64_t first_ns, int round, int64_t longest_ns);

/* Sleeps for half of such a pause, and for a random part of the other half. OK when it is over,
 * else as syncguard_wait_until. */
SYNCGUARD_API syncguard_status syncguard_backoff_wait(int64_t first_ns, int round,
                                                      int64_t longest_ns,
                                                      const syncguard_limits *limits,
                                                      syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
