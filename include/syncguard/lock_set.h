/*
 * Several keys at once, all or none:
 *
 *     const char *keys[] = {"account/17", "account/42"};
 *     SYNCGUARD_SCOPED_SET syncguard_lock_set *set = NULL;   // released at end of scope
 *     status = syncguard_lock_acquire_all(backend, keys, 2, NULL, &set, &err);
 *
 * Order. The keys are normalized, duplicates are dropped (two spellings with the same NFC form are
 * duplicates), and the keys are locked one after the other in the byte order of their NFC forms.
 * Callers of this function therefore cannot deadlock, whatever the order in which they pass their
 * keys. A caller that already holds another lock can.
 *
 * Waiting. The options are those of a single lock. timeout_ms is one deadline for all keys;
 * max_retries applies to each key. Keys that are already locked stay locked while the call waits
 * for a later one. They are all released if that key cannot be acquired; after an abort or a
 * failure of the store this happens in the background.
 *
 * Holding. Each key has its own fence. With auto_extend all keys are renewed, even during the wait.
 * Without it, keys that were locked early are extended once at the end, so that all leases begin
 * together; if one has ended by then, the acquire starts again. min_hold_ms and max_hold_ms count
 * from the time when all keys are locked.
 *
 * Loss. If one key is lost, the set is lost: it is no longer held. on_lost is called once for the
 * set, with the lock of the key that was lost first (which belongs to the set). The other keys stay
 * locked, and are renewed, until the set is released.
 *
 * Ownership, threads and fork are as for a single lock: the caller disposes of the set, which must
 * be the last call; a set belongs to the process that acquired it, and has no effect in a forked
 * child.
 */
#ifndef SYNCGUARD_LOCK_SET_H
#define SYNCGUARD_LOCK_SET_H

#include "lock.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A set of locks that were acquired together. */
typedef struct syncguard_lock_set syncguard_lock_set;

/* Maximum number of keys of a set, before duplicates are dropped. */
#define SYNCGUARD_LOCK_SET_MAX 64

/*
 * Acquires all keys, or none. Statuses are those of syncguard_lock_acquire; the key hash in the
 * error is that of the key that could not be acquired. If there are no keys, or more than
 * SYNCGUARD_LOCK_SET_MAX, the result is InvalidArgument. On failure *out is NULL.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_acquire_all(
    syncguard_backend *backend, const char *const *keys, size_t count,
    const syncguard_lock_options *options, syncguard_lock_set **out, syncguard_error *err);

/* Makes one attempt for each key, like syncguard_lock_try: LOCKED if one of them is held. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_try_all(
    syncguard_backend *backend, const char *const *keys, size_t count,
    const syncguard_lock_options *options, syncguard_lock_set **out, syncguard_error *err);

/* Number of different keys. */
SYNCGUARD_API size_t syncguard_lock_set_count(const syncguard_lock_set *set);

/* The lock of one key, by its index in the order of the set, for functions such as
 * syncguard_lock_fence. NULL if there is none. It is valid as long as the set. */
SYNCGUARD_API const syncguard_lock *syncguard_lock_set_at(const syncguard_lock_set *set,
                                                          size_t index);

/* The same by the key, in any spelling. */
SYNCGUARD_API const syncguard_lock *syncguard_lock_set_find(const syncguard_lock_set *set,
                                                            const char *key);

/* True while all keys are held. No I/O. */
SYNCGUARD_API bool syncguard_lock_set_held(const syncguard_lock_set *set);

/* Remaining time of the shortest lease; 0 once a key is lost or released. No I/O. */
SYNCGUARD_API int64_t syncguard_lock_set_remaining_ms(const syncguard_lock_set *set);

/* Why the set is lost: the reason of one lost key, or SYNCGUARD_LOST_NO. No I/O. */
SYNCGUARD_API syncguard_lost_reason syncguard_lock_set_lost(const syncguard_lock_set *set);

/*
 * Releases all keys within the deadline of call, even if one of them fails. Returns the first
 * failure, else ABSENT if one lock was gone, else OK. The library keeps trying failed releases in
 * the background. Every later release is ABSENT. The caller must still dispose of the set.
 */
SYNCGUARD_API syncguard_status syncguard_lock_set_release(syncguard_lock_set *set,
                                                          const syncguard_call *call,
                                                          syncguard_error *err);

/* Extends all keys within the deadline of call. Stops at the first key that is ABSENT, which means
 * that the set is lost, or that fails; see syncguard_lock_extend. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_set_extend(
    syncguard_lock_set *set, int64_t ttl_ms, const syncguard_call *call, syncguard_error *err);

/* Releases the keys that have not been released, within one dispose timeout for all, and frees the
 * set. Each error goes to on_release_error. NULL is ignored. */
SYNCGUARD_API void syncguard_lock_set_dispose(syncguard_lock_set *set);

/* Frees the set without releasing the locks. They are no longer renewed; with its lock id, each can
 * be extended or released until it expires. NULL is ignored. */
SYNCGUARD_API void syncguard_lock_set_detach(syncguard_lock_set *set);

/* For SYNCGUARD_SCOPED_SET: disposes of *set. */
SYNCGUARD_API void syncguard_lock_set_dispose_scoped(syncguard_lock_set **set);

#if defined(__GNUC__)
/* Disposes of a set at the end of the scope of its variable. */
#define SYNCGUARD_SCOPED_SET __attribute__((cleanup(syncguard_lock_set_dispose_scoped)))
#endif

#ifdef __cplusplus
}
#endif

#endif
