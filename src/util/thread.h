/* Starting a thread of our own. */
#ifndef SG_UTIL_THREAD_H
#define SG_UTIL_THREAD_H

#include "syncguard/sys/wait.h"

/* As syncguard_thread_start. OutOfMemory, or RateLimited: "no thread can be started to <purpose>".
 */
syncguard_status sg_thread_start(pthread_t *thread, void *(*run)(void *), void *argument,
                                 const char *purpose, syncguard_error *err);

#endif
