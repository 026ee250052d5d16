/*
 * Stored names: those of every backend and of the fence counters are derived here.
 */
#include <sha2.h>
#include <string.h>

#include "core/text.h"
#include "syncguard/sys/fail.h"
#include "syncguard/sys/names.h"

/* A name in up to four pieces; nothing is copied until the sum of their lengths is known to fit. */
typedef struct pieces {
    const char *text[4];
    size_t length[4];
    size_t count;
    size_t total;
} pieces;

static void name_add_piece(pieces *p, const char *text, size_t length)
{
    p->text[p->count] = text;
    p->length[p->count] = length;
    p->count++;
    p->total += length;
}

static void name_digest(const pieces *p, char out[SYNCGUARD_LOCK_ID_SIZE])
{
    SHA2_CTX context;
    SHA256Init(&context);
    for (size_t i = 0; i < p->count; i++)
        SHA256Update(&context, (const uint8_t *)p->text[i], p->length[i]);
    uint8_t sum[SHA256_DIGEST_LENGTH];
    SHA256Final(sum, &context);
    sg_base64url_16(sum, out);
}

static void name_join(const pieces *p, char *out, size_t *length)
{
    for (size_t i = 0; i < p->count; i++) {
        memcpy(out, p->text[i], p->length[i]);
        out += p->length[i];
    }
    *out = '\0';
    *length = p->total;
}

void syncguard_name_hash(const void *data, size_t length, char out[SYNCGUARD_LOCK_ID_SIZE])
{
    pieces all = {{NULL}, {0}, 0, 0};
    name_add_piece(&all, data, length);
    name_digest(&all, out);
}

/* "prefix:" without the prefix's own trailing colons; nothing for an empty prefix. */
static void name_add_prefix(pieces *p, const char *prefix)
{
    size_t length = prefix != NULL ? strlen(prefix) : 0;
    while (length > 0 && prefix[length - 1] == ':')
        length--;
    if (length == 0)
        return;
    name_add_piece(p, prefix, length);
    name_add_piece(p, ":", 1);
}

static bool name_fits(size_t length, size_t limit, size_t reserve)
{
    return length < SYNCGUARD_NAME_SIZE && reserve <= limit && length <= limit - reserve;
}

/* The name of prefix, kind ("" or "fence:") and text. */
static syncguard_status name_make(const char *prefix, const char *kind, const char *text,
                                  size_t limit, size_t reserve, char *out, size_t *length,
                                  syncguard_error *err)
{
    pieces base = {{NULL}, {0}, 0, 0};
    name_add_prefix(&base, prefix);
    pieces whole = base;
    name_add_piece(&whole, kind, strlen(kind));
    name_add_piece(&whole, text, strlen(text));
    if (name_fits(whole.total, limit, reserve)) {
        name_join(&whole, out, length);
        return SYNCGUARD_OK;
    }
    char hashed[SYNCGUARD_LOCK_ID_SIZE];
    name_digest(&whole, hashed);
    name_add_piece(&base, hashed, SYNCGUARD_LOCK_ID_CHARS);
    if (!name_fits(base.total, limit, reserve))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the prefix is too long for the store's limit of %zu bytes", limit);
    name_join(&base, out, length);
    return SYNCGUARD_OK;
}

syncguard_status syncguard_storage_name(const char *prefix, const char *text, size_t limit,
                                        size_t reserve, char *out, size_t *length,
                                        syncguard_error *err)
{
    if (text[0] == 0)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "the key is empty");
    return name_make(prefix, "", text, limit, reserve, out, length, err);
}

syncguard_status syncguard_fence_name(const char *prefix, const char *storage_name, size_t limit,
                                      size_t reserve, char *out, size_t *length,
                                      syncguard_error *err)
{
    return name_make(prefix, "fence:", storage_name, limit, reserve, out, length, err);
}
