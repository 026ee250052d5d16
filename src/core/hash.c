/*
 * The 24-digit hash that stands for a key or lock id in sanitised output. It
 * runs over UTF-16 units, as the other implementations of the interface do.
 */
#include "core/hash.h"

#include <string.h>

#include "core/nfc.h"
#include "syncguard/sys/alloc.h"
#include "syncguard/sys/names.h"

typedef struct sums {
    uint32_t word[3];
} sums;

static void add_unit(sums *s, uint32_t unit)
{
    s->word[0] = 31u * s->word[0] + unit;
    s->word[1] = 127u * s->word[1] + 3u * unit;
    s->word[2] = 2047u * s->word[2] + 7u * unit;
}

static void put_hex(const sums *s, char out[SYNCGUARD_HASH_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    int i;

    for (i = 0; i < SYNCGUARD_HASH_CHARS; i++)
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
            add_unit(&s, 0xD800u + (((uint32_t)c - 0x10000u) >> 10));
            add_unit(&s, 0xDC00u + (((uint32_t)c - 0x10000u) & 0x3FFu));
        } else {
            add_unit(&s, (uint32_t)c);
        }
        at += step;
    }
    put_hex(&s, out);
}

bool syncguard_hash_n(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE])
{
    char *nfc = NULL;
    size_t nfc_length = 0;

    out[0] = '\0';
    if (!text || length > SYNCGUARD_MAX_RAW_KEY_BYTES)
        return false;
    if (sg_nfc_is_plain(text, length)) {
        sg_hash_nfc(text, length, out);
        return true;
    }
    if (sg_nfc_alloc(text, length, &nfc, &nfc_length) != SG_NFC_OK)
        return false;
    sg_hash_nfc(nfc, nfc_length, out);
    syncguard_free(nfc);
    return true;
}

bool syncguard_hash(const char *text, char out[SYNCGUARD_HASH_SIZE])
{
    if (!text) {
        out[0] = '\0';
        return false;
    }
    return syncguard_hash_n(text, strnlen(text, SYNCGUARD_MAX_RAW_KEY_BYTES + 1), out);
}
