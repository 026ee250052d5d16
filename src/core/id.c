/*
 * Lock ids. Each is drawn from the kernel when it is needed and nothing random
 * is kept, so neither a fork nor a copied machine can hand one out twice.
 */
#include <errno.h>
#ifdef __linux__
#include <sys/random.h>
#else
#include <unistd.h>
#endif

#include "core/base64url.h"
#include "syncguard/sys/fail.h"
#include "syncguard/sys/names.h"

bool syncguard_lock_id_valid(const char *lock_id)
{
    int i;

    if (!lock_id)
        return false;
    for (i = 0; i < SYNCGUARD_LOCK_ID_CHARS; i++) {
        char c = lock_id[i];

        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
              c == '-' || c == '_'))
            return false;
    }
    return lock_id[SYNCGUARD_LOCK_ID_CHARS] == '\0';
}

/* Never waits: early in the life of a machine there may be no randomness yet, and nothing in this
 * library may block outside its own waits. */
static bool draw(unsigned char bytes[SG_ID_BYTES])
{
#ifdef __linux__
    ssize_t got;

    do {
        got = getrandom(bytes, SG_ID_BYTES, GRND_NONBLOCK);
    } while (got < 0 && errno == EINTR);
    return got == SG_ID_BYTES;
#else
    return getentropy(bytes, SG_ID_BYTES) == 0;
#endif
}

syncguard_status syncguard_lock_id_draw(char out[SYNCGUARD_LOCK_ID_SIZE], syncguard_error *err)
{
    unsigned char bytes[SG_ID_BYTES];

    if (!draw(bytes)) {
        out[0] = '\0';
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                              "the system gives no randomness for a lock id (errno %d)", errno);
    }
    sg_base64url_16(bytes, out);
    return SYNCGUARD_OK;
}
