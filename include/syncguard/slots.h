/*
 * Slots: a semaphore. At most N holders of a name at a time:
 *
 *     syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
 *     options.slots = 4;
 *     status = syncguard_lock_acquire(backend, "render", &options, &lock, &err);
 *     ... syncguard_lock_slot(lock) is 1, 2, 3 or 4
 *
 * Keys. A slot is an ordinary lock. Its key is the name, ":slot:" and the number in decimal without
 * leading zeros: "render:slot:3". This will not change. Slots of two names never have the same key,
 * since what follows the last colon is the number. A name has at most SYNCGUARD_MAX_SLOT_NAME_BYTES
 * bytes after normalizing. The name itself is not locked: a plain lock on "render" excludes nobody
 * here, and one on "render:slot:3" takes slot 3.
 *
 * Different N. A caller uses the slots 1 to its own N and no others, so there are never more
 * holders than the largest N in use. To lower N, wait until no caller has the old one; until then
 * there may be holders of the upper slots as well.
 *
 * Handles. Lock id, fence, renewal, loss, minimum and maximum hold are those of the slot's lock.
 * syncguard_lock_key is the slot's key. Each slot has its own sequence of fences: fences of
 * different slots cannot be compared, so a resource that checks fences keeps one for each slot.
 *
 * Waiting. The first attempt tries the slots one after the other, beginning at a random one, until
 * one is free; each of these tries has the time limit of one operation. If all are held, the caller
 * waits for all of them: the release or expiry of any slot makes it try that slot, and no other.
 * A retry, and a poll of a store that does not report releases, tries one slot: the one that this
 * process has not tried for the longest time. On such a store a release by another process may
 * therefore be noticed only after N pauses. Callers are not served in the order in which they came.
 *
 * Errors of an acquire name the key hash of the name, those of a handle that of the slot's key.
 * AcquisitionTimeout says that all slots are held, and so does LOCKED of syncguard_lock_try. A set
 * (lock_set.h) takes slots only if it has one key.
 *
 * A caller that holds a slot and waits for another one of the same name can deadlock, once all
 * holders do so.
 */
#ifndef SYNCGUARD_SLOTS_H
#define SYNCGUARD_SLOTS_H

#include "lock.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The most slots of a name, and the longest name that can have slots. */
#define SYNCGUARD_SLOTS_MAX 256
#define SYNCGUARD_MAX_SLOT_NAME_BYTES (SYNCGUARD_MAX_KEY_BYTES - 9)

/* The number of the slot that the lock is, from 1 on; 0 for a plain lock. */
SYNCGUARD_API int syncguard_lock_slot(const syncguard_lock *lock);

/* Writes the key of one slot of a name, for calls such as syncguard_is_locked. InvalidArgument for
 * a slot outside 1 to SYNCGUARD_SLOTS_MAX, and for a name that is not a valid key or is too long.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_slot_key(const char *name, int slot,
                                                                       char key[SYNCGUARD_KEY_SIZE],
                                                                       syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
