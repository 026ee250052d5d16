/*
 * The memory backend: locks for the threads that share one handle, with the same behaviour as every
 * other store. Two handles do not share locks. Locks and counters end with the handle; in a forked
 * child the handle starts empty.
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
