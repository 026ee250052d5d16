/*
 * See slots.h. The derivation is fixed for good, and a test compares it: with another one, old and
 * new versions together could hold 2 N slots.
 */
#include "slots.h"

#include <stdio.h>
#include <string.h>

#include "lock_state.h"
#include "syncguard/sys/fail.h"
#include "syncguard/sys/names.h"

_Static_assert(SYNCGUARD_MAX_SLOT_NAME_BYTES + SG_SLOT_SUFFIX_SIZE == SYNCGUARD_KEY_SIZE,
               "the longest name and suffix fill a key");

syncguard_status sg_slot_name_check(size_t length, syncguard_error *err)
{
    if (length <= SYNCGUARD_MAX_SLOT_NAME_BYTES)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "the key is longer than %d bytes, the limit with slots",
                          SYNCGUARD_MAX_SLOT_NAME_BYTES);
}

size_t sg_slot_suffix(int slot, char out[SG_SLOT_SUFFIX_SIZE])
{
    return (size_t)snprintf(out, SG_SLOT_SUFFIX_SIZE, ":slot:%d", slot);
}

/* The result is in NFC because the name is: no character of the suffix combines with another. */
syncguard_status syncguard_slot_key(const char *name, int slot, char key[SYNCGUARD_KEY_SIZE],
                                    syncguard_error *err)
{
    size_t length = 0;
    syncguard_error_clear(err);
    if (key == NULL || slot < 1 || slot > SYNCGUARD_SLOTS_MAX)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "key is NULL, or slot is not 1 to %d", SYNCGUARD_SLOTS_MAX);
    syncguard_status status = syncguard_key_normalize(name, key, &length, err);
    if (status == SYNCGUARD_OK)
        status = sg_slot_name_check(length, err);
    char suffix[SG_SLOT_SUFFIX_SIZE];
    if (status == SYNCGUARD_OK)
        memcpy(key + length, suffix, sg_slot_suffix(slot, suffix) + 1);
    else
        key[0] = '\0';
    return status;
}

int syncguard_lock_slot(const syncguard_lock *lock)
{
    return lock->slot;
}
