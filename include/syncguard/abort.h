/*
 * Abort objects: cancel operations from another thread or a signal handler.
 *
 * One abort object may be given to any number of operations at once. Triggering it makes each of
 * them return SYNCGUARD_E_ABORTED, even while a server hangs. A triggered object stays triggered.
 * In a forked child the object is a copy: triggering the copy does not affect the parent, and
 * triggering the parent's object does not affect the child.
 */
#ifndef SYNCGUARD_ABORT_H
#define SYNCGUARD_ABORT_H

#include "error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ends calls, when triggered from another thread or from a signal handler. */
typedef struct syncguard_abort syncguard_abort;

/* Creates an abort object. The caller owns *out. Fails with OutOfMemory, or with RateLimited if no
 * file descriptor is left. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_abort_create(syncguard_abort **out,
                                                                           syncguard_error *err);

/* Triggers the object. Async-signal-safe, preserves errno, may be called again. NULL is ignored. */
SYNCGUARD_API void syncguard_abort_trigger(syncguard_abort *abort_object);

/* True once triggered. Async-signal-safe. NULL is false. */
SYNCGUARD_API bool syncguard_abort_triggered(const syncguard_abort *abort_object);

/* A descriptor that becomes readable when the object is triggered, and stays readable: for a loop
 * that uses poll(). -1 for NULL, or in a forked child without a free descriptor. The descriptor
 * belongs to the object and to this process: never read from it or close it. */
SYNCGUARD_API int syncguard_abort_fd(syncguard_abort *abort_object);

/* Frees the object; no operation may still be using it. NULL is ignored. */
SYNCGUARD_API void syncguard_abort_free(syncguard_abort *abort_object);

#ifdef __cplusplus
}
#endif

#endif
