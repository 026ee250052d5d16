/* See base64url.h. */
#include "core/base64url.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

void sg_base64url_16(const unsigned char bytes[SG_ID_BYTES], char out[SYNCGUARD_LOCK_ID_SIZE])
{
    for (int i = 0; i < 5; i++) {
        uint32_t group =
            (uint32_t)bytes[3 * i] << 16 | (uint32_t)bytes[3 * i + 1] << 8 | bytes[3 * i + 2];
        *out++ = alphabet[group >> 18];
        *out++ = alphabet[group >> 12 & 63];
        *out++ = alphabet[group >> 6 & 63];
        *out++ = alphabet[group & 63];
    }
    *out++ = alphabet[bytes[15] >> 2];
    *out++ = alphabet[(bytes[15] & 3) << 4];
    *out = '\0';
}
