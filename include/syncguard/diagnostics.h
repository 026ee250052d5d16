/*
 * Information about locks: for people, dashboards and tests.
 *
 * All functions but syncguard_prune only read. Do not base a change on their results: the lock may
 * change hands before your next step. release and extend check ownership themselves, in one atomic
 * step with the change; the resource checks the fence.
 *
 * get_by_key and get_by_id are the lookup operation of the interface.
 */
#ifndef SYNCGUARD_DIAGNOSTICS_H
#define SYNCGUARD_DIAGNOSTICS_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A live lock without key, lock id and owner: for logs and displays. See syncguard_hash for what
 * its hashes hide and what they do not hide.
 *
 * now_ms is when the store was read, on the clock of the other two times, whatever the local clock
 * shows: the lock has been held for now_ms - acquired_at_ms, and its lease ends in expires_at_ms -
 * now_ms. On SQLite and in memory the boot clock determines expiry; there now_ms is the time of day
 * that leaves exactly what the boot clock leaves of the lease (if the machine's clock was set
 * between the acquire and the latest extend, the age is off by that step).
 */
typedef struct syncguard_lock_info {
    char key_hash[SYNCGUARD_HASH_SIZE];
    char lock_id_hash[SYNCGUARD_HASH_SIZE];
    char fence[SYNCGUARD_FENCE_SIZE];
    int64_t expires_at_ms;
    int64_t acquired_at_ms;
    int64_t now_ms;
} syncguard_lock_info;

/*
 * A live lock with key, lock id and owner label. For debugging, never for logs: anyone who has the
 * lock id can release the lock.
 */
typedef struct syncguard_lock_info_raw {
    syncguard_lock_info info;
    char key[SYNCGUARD_KEY_SIZE]; /* as stored: in NFC */
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    char owner[SYNCGUARD_OWNER_SIZE]; /* "" when none was given */
} syncguard_lock_info_raw;

/* The live lock of a key: OK fills *info; ABSENT if there is none (the key is free or its lock has
 * expired). */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_get_by_key(syncguard_backend *backend,
                                                                         const char *key,
                                                                         const syncguard_call *call,
                                                                         syncguard_lock_info *info,
                                                                         syncguard_error *err);

/* The same for the live lock with this id. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_get_by_id(syncguard_backend *backend,
                                                                        const char *lock_id,
                                                                        const syncguard_call *call,
                                                                        syncguard_lock_info *info,
                                                                        syncguard_error *err);

/* Variants that also return the key, the lock id and the owner. */
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

/* Called for each lock. Return false to end the listing early, which is not an error. Must not call
 * functions on the handle. */
typedef bool (*syncguard_list_fn)(void *context, const syncguard_lock_info *info);
typedef bool (*syncguard_list_raw_fn)(void *context, const syncguard_lock_info_raw *info);

/*
 * Calls fn for every live lock of the store, in no particular order. Not a snapshot: locks that are
 * acquired or released during the listing may or may not be shown. Reads the whole store page by
 * page; the timeout of the call applies to each page, so that a listing of any length succeeds as
 * long as the store answers. Emits no telemetry.
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
 * stores keep none. dry_run changes nothing. fn, which may be NULL, is called with the stored
 * values after each removal (with dry_run: for each record that would be removed). Safe at any
 * time, in any thread, and during any other operation. Stops at the first failure; records removed
 * before it stay removed.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_prune(syncguard_backend *backend, const syncguard_call *call, bool dry_run,
                syncguard_list_raw_fn fn, void *context, syncguard_error *err);

/* How severe a finding of syncguard_examine is. */
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

/* Checks the store for settings that would break a guarantee, and calls fn for each finding.
 * Changes no lock and no setting. A store that has no checks (memory) gives no finding. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_examine(syncguard_backend *backend,
                                                                      const syncguard_call *call,
                                                                      syncguard_finding_fn fn,
                                                                      void *context,
                                                                      syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
