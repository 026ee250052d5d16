/*
 * Several keys at once, all or none:
 *
 *     const char *keys[] = {"account/17", "account/42"};
 *     SYNCGUARD_SCOPED_SET syncguard_lock_set *set = NULL;   // released at end of scope
 *     status = syncguard_lock_acquire_all(backend, keys, 2, NULL, &set, &err);
 *
 * Order. The keys are normalised, duplicates are dropped (two spellings of one NFC form are
 * duplicates), and they are locked one after the other in the byte order of their normal forms.
 * Callers of this function therefore cannot deadlock, whatever order they name their keys in. A
 * caller that holds a lock already and asks for another one can.
 *
 * Waiting. The options are those of a single lock. timeout_ms is one deadline for all keys;
 * max_retries counts for each key. Keys that are locked already stay locked while a later one is
 * waited for, and are all given back if that one cannot be had, or after an abort or a failure.
 *
 * Holding. Each key has a fence of its own. With auto_extend all are renewed, also during the
 * waiting. Without it, keys that were locked early are extended once at the end, so that the leases
 * begin together; if one has run out by then, the acquire begins again. min_hold_ms counts from the
 * time when all are locked, max_hold_ms from the grant of each key.
 *
 * Loss. One lost key loses the set: it is no longer held. on_lost is called once for the set, with
 * the lock of the key that was lost first (which belongs to the set). The other keys stay locked
 * and renewed until the set is released.
 *
 * Ownership, threads and fork are as of a single lock: the caller disposes of the set, which must
 * be the last call; a set belongs to the process that acquired it, and does nothing in a child.
 */
#ifndef SYNCGUARD_LOCK_SET_H
#define SYNCGUARD_LOCK_SET_H

#include "lock.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A set of locks that were acquired together. */
typedef struct syncguard_lock_set syncguard_lock_set;

/* Most keys of a set, before duplicates are dropped. */
#define SYNCGUARD_LOCK_SET_MAX 64

/*
 * Acquires all keys, or none. Statuses are those of syncguard_lock_acquire; an error's key hash
 * names the key that could not be had. No keys, or more than SYNCGUARD_LOCK_SET_MAX, is
 * InvalidArgument. On failure *out is NULL.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_acquire_all(
    syncguard_backend *backend, const char *const *keys, size_t count,
    const syncguard_lock_options *options, syncguard_lock_set **out, syncguard_error *err);

/* One attempt for each key, as syncguard_lock_try: LOCKED if one of them is held. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_try_all(
    syncguard_backend *backend, const char *const *keys, size_t count,
    const syncguard_lock_options *options, syncguard_lock_set **out, syncguard_error *err);

/* Number of different keys. */
SYNCGUARD_API size_t syncguard_lock_set_count(const syncguard_lock_set *set);

/* The lock of one key, for questions such as syncguard_lock_fence, by its place in the order of the
 * set. NULL: there is none. It lives as long as the set. */
SYNCGUARD_API const syncguard_lock *syncguard_lock_set_at(const syncguard_lock_set *set,
                                                          size_t index);

/* The same by the key, as the caller spells it. */
SYNCGUARD_API const syncguard_lock *syncguard_lock_set_find(const syncguard_lock_set *set,
                                                            const char *key);

/* True while all keys are held. No I/O. */
SYNCGUARD_API bool syncguard_lock_set_held(const syncguard_lock_set *set);

/* Time left of the shortest lease; 0 once a key is lost or released. No I/O. */
SYNCGUARD_API int64_t syncguard_lock_set_remaining_ms(const syncguard_lock_set *set);

/* Why the set is lost: the reason of one lost key, or SYNCGUARD_LOST_NO. No I/O. */
SYNCGUARD_API syncguard_lost_reason syncguard_lock_set_lost(const syncguard_lock_set *set);

/*
 * Releases all keys within the one deadline of call, also if one of them fails, and answers the
 * first failure, else ABSENT if one was gone, else OK. What failed goes on in the background. Every
 * later release is ABSENT. The set still has to be disposed of.
 */
SYNCGUARD_API syncguard_status syncguard_lock_set_release(syncguard_lock_set *set,
                                                          const syncguard_call *call,
                                                          syncguard_error *err);

/* Extends all keys within the one deadline of call and stops at the first that is ABSENT, which
 * means that the set is lost, or fails; see syncguard_lock_extend. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_set_extend(
    syncguard_lock_set *set, int64_t ttl_ms, const syncguard_call *call, syncguard_error *err);

/* Releases what has not been released, within one dispose timeout for all, and frees the set. Each
 * error goes to on_release_error. NULL is ignored. */
SYNCGUARD_API void syncguard_lock_set_dispose(syncguard_lock_set *set);

/* Frees the set and leaves the locks as they are: renewing ends, and whoever has a lock id may
 * extend or release that lock until it expires. NULL is ignored. */
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
