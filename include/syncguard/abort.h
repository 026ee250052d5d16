/*
 * Abort objects: cancel operations from another thread or a signal handler.
 *
 * One abort object may be given to any number of operations at once. Triggering
 * makes each of them return SYNCGUARD_E_ABORTED, also while a server hangs. It is
 * one-shot: a triggered object stays triggered. In a forked child the object is
 * a copy: triggering it there does not reach the parent, and the other way round.
 */
#ifndef SYNCGUARD_ABORT_H
#define SYNCGUARD_ABORT_H

#include "error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ends calls from another thread or from a signal handler. */
typedef struct syncguard_abort syncguard_abort;

/* Makes an abort object. The caller owns *out. Fails with OutOfMemory, or RateLimited when no
 * file descriptor is left. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_abort_create(syncguard_abort **out,
                                                                           syncguard_error *err);

/* Triggers it. Async-signal-safe, keeps errno, may be called again. NULL is ignored. */
SYNCGUARD_API void syncguard_abort_trigger(syncguard_abort *abort_object);

/* True once triggered. Async-signal-safe. NULL is false. */
SYNCGUARD_API bool syncguard_abort_triggered(const syncguard_abort *abort_object);

/* A descriptor that becomes and stays readable when it is triggered, for a loop that polls; -1 for
 * NULL, or in a forked child without a free descriptor. Belongs to the object and to this process:
 * never read or close it. */
SYNCGUARD_API int syncguard_abort_fd(syncguard_abort *abort_object);

/* Frees it; no operation may be using it any more. NULL is ignored. */
SYNCGUARD_API void syncguard_abort_free(syncguard_abort *abort_object);

#ifdef __cplusplus
}
#endif

#endif
