/*
 * Looking at locks: for people, dashboards and tests.
 *
 * These only read. None of them is a guard: between the answer and your next
 * step the lock may change hands. release and extend check ownership themselves,
 * in one step with the change; the resource checks the fence.
 *
 * get_by_key and get_by_id are the interface's lookup operation.
 */
#ifndef SYNCGUARD_DIAGNOSTICS_H
#define SYNCGUARD_DIAGNOSTICS_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The live lock of a key: OK fills *info, ABSENT if there is none (free or expired alike). */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_get_by_key(syncguard_backend *backend,
                                                                         const char *key,
                                                                         const syncguard_call *call,
                                                                         syncguard_lock_info *info,
                                                                         syncguard_error *err);

/* The live lock with this id, likewise. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_get_by_id(syncguard_backend *backend,
                                                                        const char *lock_id,
                                                                        const syncguard_call *call,
                                                                        syncguard_lock_info *info,
                                                                        syncguard_error *err);

/* The twins that also tell key, lock id and owner. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_get_by_key_raw(syncguard_backend *backend, const char *key, const syncguard_call *call,
                         syncguard_lock_info_raw *info, syncguard_error *err);
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_get_by_id_raw(syncguard_backend *backend, const char *lock_id, const syncguard_call *call,
                        syncguard_lock_info_raw *info, syncguard_error *err);

/* Whether this id holds a live lock right now. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_owns(syncguard_backend *backend,
                                                                   const char *lock_id,
                                                                   const syncguard_call *call,
                                                                   bool *owned,
                                                                   syncguard_error *err);

/* Return false to stop the listing early; that is no error. Must not call back into the handle. */
typedef bool (*syncguard_list_fn)(void *context, const syncguard_lock_info *info);
typedef bool (*syncguard_list_raw_fn)(void *context, const syncguard_lock_info_raw *info);

/*
 * Calls fn for every live lock of the store, in no promised order. Not a
 * snapshot: locks that come and go meanwhile may or may not be shown. Costs a
 * walk over the store, in pages; the time limit of the call is that of one page, so that a
 * listing of any length succeeds as long as the store answers. Emits no telemetry.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_list(syncguard_backend *backend,
                                                                   const syncguard_call *call,
                                                                   syncguard_list_fn fn,
                                                                   void *context,
                                                                   syncguard_error *err);
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_list_raw(syncguard_backend *backend,
                                                                       const syncguard_call *call,
                                                                       syncguard_list_raw_fn fn,
                                                                       void *context,
                                                                       syncguard_error *err);

/*
 * Removes the records of locks that expired more than two seconds ago, which SQLite, PostgreSQL and
 * Firestore keep until the key is used again; never a live lock, never a fence counter. Other
 * stores keep none. dry_run changes nothing. fn, which may be NULL, is called after each removal
 * (with dry_run: for each record that would be removed) with what was stored. Safe at any time,
 * from any thread, and next to any operation. Stops at the first failure; what was removed stays
 * removed.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_prune(syncguard_backend *backend, const syncguard_call *call, bool dry_run,
                syncguard_list_raw_fn fn, void *context, syncguard_error *err);

/* How grave a finding of syncguard_examine is. */
typedef enum syncguard_severity {
    SYNCGUARD_FINE = 0,
    SYNCGUARD_WARN = 1,
    SYNCGUARD_BLOCK = 2
} syncguard_severity;

/* One result of syncguard_examine. All strings are one line, none is NULL, and all are valid during
 * the call only. */
typedef struct syncguard_finding {
    syncguard_severity severity;
    const char *topic;  /* one stable word ("persistence", "clock") */
    const char *text;   /* what was found */
    const char *why;    /* why it matters; "" if it is fine */
    const char *change; /* what to change; "" if it is fine */
} syncguard_finding;

/* Called for each finding. */
typedef void (*syncguard_finding_fn)(void *context, const syncguard_finding *finding);

/* Asks the store for what would break the promises there. Changes nothing. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_examine(syncguard_backend *backend,
                                                                      const syncguard_call *call,
                                                                      syncguard_finding_fn fn,
                                                                      void *context,
                                                                      syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
