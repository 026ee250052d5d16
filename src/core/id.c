/*
 * Lock ids. Each is drawn from the kernel when it is needed, and no random state
 * is kept, so neither a forked process nor a copied machine can return one twice.
 */
#include <errno.h>

#include "core/text.h"
#include "syncguard/sys/fail.h"
#include "syncguard/sys/names.h"
#include "syncguard/sys/random.h"

bool syncguard_lock_id_valid(const char *lock_id)
{
    if (lock_id == NULL)
        return false;
    for (int i = 0; i < SYNCGUARD_LOCK_ID_CHARS; i++) {
        char c = lock_id[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
              c == '-' || c == '_'))
            return false;
    }
    return lock_id[SYNCGUARD_LOCK_ID_CHARS] == '\0';
}

syncguard_status syncguard_lock_id_draw(char out[SYNCGUARD_LOCK_ID_SIZE], syncguard_error *err)
{
    unsigned char bytes[SG_ID_BYTES];
    if (!syncguard_random_bytes(bytes, sizeof bytes)) {
        out[0] = '\0';
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                              "the system gives no randomness for a lock id: %s",
                              syncguard_errno_text(errno));
    }
    sg_base64url_16(bytes, out);
    return SYNCGUARD_OK;
}
