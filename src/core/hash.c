/*
 * Hashes: FNV-1a for tables, and the 24-digit hash that replaces a key or lock id in sanitized
 * output. The latter runs over UTF-16 units, as in the other implementations of the interface. With
 * a secret it is the beginning of HMAC-SHA-256 (RFC 2104) instead.
 */
#include "core/hash.h"

#include <sha2.h>
#include <string.h>

#include "core/nfc.h"
#include "syncguard/sys/alloc.h"
#include "syncguard/sys/names.h"

typedef struct sums {
    uint32_t word[3];
} sums;

static void hash_sums_add_unit(sums *s, uint32_t unit)
{
    s->word[0] = 31u * s->word[0] + unit;
    s->word[1] = 127u * s->word[1] + 3u * unit;
    s->word[2] = 2047u * s->word[2] + 7u * unit;
}

static const char digits[] = "0123456789abcdef";

static void hash_sums_put_hex(const sums *s, char out[SYNCGUARD_HASH_SIZE])
{
    for (int i = 0; i < SYNCGUARD_HASH_CHARS; i++)
        out[i] = digits[(s->word[i / 8] >> (28 - 4 * (i % 8))) & 15];
    out[SYNCGUARD_HASH_CHARS] = '\0';
}

void sg_hash_nfc(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE])
{
    sums s = {{0, 0, 0}};
    size_t at = 0;
    int32_t c;
    size_t step;
    while (at < length && (step = sg_utf8_next(text + at, length - at, &c)) > 0) {
        if (c >= 0x10000) {
            hash_sums_add_unit(&s, 0xD800u + (((uint32_t)c - 0x10000u) >> 10));
            hash_sums_add_unit(&s, 0xDC00u + (((uint32_t)c - 0x10000u) & 0x3FFu));
        } else {
            hash_sums_add_unit(&s, (uint32_t)c);
        }
        at += step;
    }
    hash_sums_put_hex(&s, out);
}

/* One of the two nested digests of HMAC. */
static void hmac_digest_with_pad(const uint8_t key[SHA256_BLOCK_LENGTH], uint8_t pad,
                                 const void *data, size_t length, uint8_t sum[SHA256_DIGEST_LENGTH])
{
    uint8_t block[SHA256_BLOCK_LENGTH];
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = key[i] ^ pad;
    SHA2_CTX context;
    SHA256Init(&context);
    SHA256Update(&context, block, sizeof block);
    SHA256Update(&context, data, length);
    SHA256Final(sum, &context);
}

void sg_hmac_sha256(const void *secret, size_t secret_length, const void *data, size_t length,
                    uint8_t *sum)
{
    uint8_t key[SHA256_BLOCK_LENGTH] = {0};
    SHA2_CTX context;
    if (secret_length > sizeof key) {
        SHA256Init(&context);
        SHA256Update(&context, secret, secret_length);
        SHA256Final(key, &context);
    } else {
        memcpy(key, secret, secret_length);
    }
    uint8_t inner[SHA256_DIGEST_LENGTH];
    hmac_digest_with_pad(key, 0x36, data, length, inner);
    hmac_digest_with_pad(key, 0x5C, inner, sizeof inner, sum);
}

static void hash_nfc_with_secret(const char *secret, const char *text, size_t length,
                                 char out[SYNCGUARD_HASH_SIZE])
{
    if (secret == NULL) {
        sg_hash_nfc(text, length, out);
        return;
    }
    uint8_t sum[SHA256_DIGEST_LENGTH];
    sg_hmac_sha256(secret, strlen(secret), text, length, sum);
    for (int i = 0; i < SYNCGUARD_HASH_CHARS; i++)
        out[i] = digits[(sum[i / 2] >> (i % 2 == 0 ? 4 : 0)) & 15];
    out[SYNCGUARD_HASH_CHARS] = '\0';
}

bool sg_hash_text(const char *secret, const char *text, size_t length,
                  char out[SYNCGUARD_HASH_SIZE])
{
    out[0] = '\0';
    if (text == NULL || length > SYNCGUARD_MAX_RAW_KEY_BYTES)
        return false;
    if (sg_nfc_is_plain(text, length)) {
        hash_nfc_with_secret(secret, text, length, out);
        return true;
    }
    char *nfc = NULL;
    size_t nfc_length = 0;
    if (sg_nfc_alloc(text, length, &nfc, &nfc_length) != SG_NFC_OK)
        return false;
    hash_nfc_with_secret(secret, nfc, nfc_length, out);
    syncguard_free(nfc);
    return true;
}

bool syncguard_hash_n(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE])
{
    return sg_hash_text(NULL, text, length, out);
}

bool syncguard_hash(const char *text, char out[SYNCGUARD_HASH_SIZE])
{
    return syncguard_hash_n(text, text != NULL ? strnlen(text, SYNCGUARD_MAX_RAW_KEY_BYTES + 1) : 0,
                            out);
}

bool syncguard_hash_keyed(const char *secret, const char *text, char out[SYNCGUARD_HASH_SIZE])
{
    out[0] = '\0';
    return secret != NULL && text != NULL &&
           sg_hash_text(secret, text, strnlen(text, SYNCGUARD_MAX_RAW_KEY_BYTES + 1), out);
}

uint64_t syncguard_fnv1a(const void *data, size_t length)
{
    const unsigned char *bytes = data;
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}
