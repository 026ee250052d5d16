/* The check of a key of the application. The rest of the library uses only the normalized form. */
#include <string.h>

#include "core/nfc.h"
#include "syncguard/sys/alloc.h"
#include "syncguard/sys/fail.h"
#include "syncguard/sys/names.h"

static syncguard_status key_refuse(syncguard_error *err, const char *why)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "the key %s", why);
}

static syncguard_status key_to_nfc(const char *key, size_t raw, char out[SYNCGUARD_KEY_SIZE],
                                   size_t *length, syncguard_error *err)
{
    char *nfc = NULL;
    size_t nfc_length = 0;
    switch (sg_nfc_alloc(key, raw, &nfc, &nfc_length)) {
    case SG_NFC_OK:
        break;
    case SG_NFC_MEMORY:
        return syncguard_fail_memory(err);
    case SG_NFC_INVALID:
        return key_refuse(err, "is not valid UTF-8");
    }
    syncguard_status status = SYNCGUARD_OK;
    if (nfc_length > SYNCGUARD_MAX_KEY_BYTES) {
        status = key_refuse(err, "is longer than 512 bytes after normalizing");
    } else {
        memcpy(out, nfc, nfc_length + 1);
        *length = nfc_length;
    }
    syncguard_free(nfc);
    return status;
}

syncguard_status syncguard_key_normalize(const char *key, char out[SYNCGUARD_KEY_SIZE],
                                         size_t *length, syncguard_error *err)
{
    *length = 0;
    out[0] = '\0';
    if (key == NULL)
        return key_refuse(err, "is missing");
    size_t raw = strnlen(key, SYNCGUARD_MAX_RAW_KEY_BYTES + 1);
    if (raw == 0)
        return key_refuse(err, "is empty");
    if (raw > SYNCGUARD_MAX_RAW_KEY_BYTES)
        return key_refuse(err, "is longer than 4096 bytes");
    if (!sg_nfc_is_plain(key, raw))
        return key_to_nfc(key, raw, out, length, err);
    if (raw > SYNCGUARD_MAX_KEY_BYTES)
        return key_refuse(err, "is longer than 512 bytes");
    memcpy(out, key, raw + 1);
    *length = raw;
    return SYNCGUARD_OK;
}
