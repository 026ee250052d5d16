/* Starting a thread of the library. */
#ifndef SG_UTIL_THREAD_H
#define SG_UTIL_THREAD_H

#include "syncguard/sys/wait.h"

/* Like syncguard_thread_start, but fails with OutOfMemory, or with RateLimited: "no thread can be
 * started to <purpose>". */
syncguard_status sg_thread_start(pthread_t *thread, void *(*run)(void *), void *argument,
                                 const char *purpose, syncguard_error *err);

#endif
