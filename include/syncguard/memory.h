/*
 * The memory backend: locks among the threads that share one handle, with the
 * same meaning as every other store. Two handles know nothing of each other.
 * Locks and counters end with the handle; in a forked child it starts empty.
 */
#ifndef SYNCGUARD_MEMORY_H
#define SYNCGUARD_MEMORY_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Same as opening "memory:". options may be NULL. The caller owns *out. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_memory_open(
    const syncguard_options *options, syncguard_backend **out, syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
