/*
 * Names of documents and URLs of calls, and the checks of what they are made from. Immutable after
 * sg_fs_names_init.
 */
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define MAX_COLLECTION_BYTES 3000

/* Firestore's rule for the id of a document or collection; length is not 0. */
static bool legal_id(const char *id, size_t length)
{
    if (memchr(id, '/', length))
        return false;
    if (length == 1 && id[0] == '.')
        return false;
    if (length == 2 && id[0] == '.' && id[1] == '.')
        return false;
    return !(length >= 4 && memcmp(id, "__", 2) == 0 && memcmp(id + length - 2, "__", 2) == 0);
}

/* Bytes of the UTF-8 sequence at text, 0 if there is none. */
static size_t sequence(const unsigned char *text, size_t length)
{
    size_t bytes = text[0] < 0x80                      ? 1
                   : text[0] >= 0xc2 && text[0] < 0xe0 ? 2
                   : text[0] >= 0xe0 && text[0] < 0xf0 ? 3
                   : text[0] >= 0xf0 && text[0] < 0xf5 ? 4
                                                       : 0;

    if (bytes > length)
        return 0;
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    }
    /* Overlong forms, surrogates, and what lies beyond Unicode. */
    if ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] > 0x9f) ||
        (text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] > 0x8f))
        return 0;
    return bytes;
}

/* UTF-8 without control characters. */
static bool plain_utf8(const char *text, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)text;

    for (size_t at = 0; at < length;) {
        size_t step = sequence(bytes + at, length - at);
        if (step == 0 || bytes[at] < 0x20 || bytes[at] == 0x7f)
            return false;
        at += step;
    }
    return true;
}

static syncguard_status check_collection(const char *option, const char *path, syncguard_error *err)
{
    size_t length = strlen(path);
    size_t segments = 0;
    const char *at = path;

    if (length == 0 || length > MAX_COLLECTION_BYTES || !plain_utf8(path, length))
        goto bad;
    for (;;) {
        size_t n = strcspn(at, "/");
        if (n == 0 || n > SYNCGUARD_FIRESTORE_LIMIT_BYTES || !legal_id(at, n))
            goto bad;
        segments++;
        if (at[n] == '\0')
            break;
        at += n + 1;
    }
    if (segments % 2 == 1)
        return SYNCGUARD_OK;

bad:
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "option %s is no legal path of a Firestore collection", option);
}

static syncguard_status check_word(const char *what, const char *word, const char *allowed,
                                   syncguard_error *err)
{
    size_t length = strlen(word);

    if (length == 0 || length > 128 || strspn(word, allowed) != length)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the Firestore %s is missing or has illegal characters", what);
    return SYNCGUARD_OK;
}

#define ALNUM "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

/* Appends to a buffer of `size` bytes what a URL's path may not hold as it is, percent-encoded. */
static size_t encode(char *out, size_t size, size_t at, const char *text, size_t length)
{
    static const char plain[] = ALNUM "-._~()/:";
    static const char hex[] = "0123456789ABCDEF";

    for (size_t i = 0; i < length && at + 4 < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if (strchr(plain, c) && c) {
            out[at++] = (char)c;
        } else {
            out[at++] = '%';
            out[at++] = hex[c >> 4];
            out[at++] = hex[c & 15];
        }
    }
    out[at] = '\0';
    return at;
}

static char *join(const char *first, const char *second, const char *third, const char *fourth)
{
    size_t size = strlen(first) + strlen(second) + strlen(third) + strlen(fourth) + 1;
    char *text = syncguard_malloc(size);

    if (text)
        (void)snprintf(text, size, "%s%s%s%s", first, second, third, fourth);
    return text;
}

/* The parent of the lock collection, with a leading slash, or "" for the root. */
static char *query_parent(const fs_names *names)
{
    size_t length = (size_t)(names->collection_id - names->collection);
    char text[MAX_COLLECTION_BYTES * 3 + 8];

    if (length == 0)
        return syncguard_strdup("");
    text[0] = '/';
    (void)encode(text, sizeof text, 1, names->collection, length - 1);
    return syncguard_strdup(text);
}

static bool fill(fs_names *names, const char *project, const char *database, const char *base_url)
{
    char path[600];
    char *parent = NULL;
    char *slash;
    bool good;

    (void)snprintf(path, sizeof path, "projects/%s/databases/%s/documents", project, database);
    names->documents = syncguard_strdup(path);
    slash = names->collection ? strrchr(names->collection, '/') : NULL;
    names->collection_id = slash ? slash + 1 : names->collection;
    if (!names->documents || !names->collection || !names->fences)
        return false;
    parent = query_parent(names);
    if (!parent)
        return false;
    names->url_batch_get = join(base_url, "/v1/", names->documents, ":batchGet?prettyPrint=false");
    names->url_commit = join(base_url, "/v1/", names->documents, ":commit?prettyPrint=false");
    names->url_batch_write =
        join(base_url, "/v1/", names->documents, ":batchWrite?prettyPrint=false");
    slash = join(names->documents, parent, ":runQuery", "?prettyPrint=false");
    names->url_query = slash ? join(base_url, "/v1/", slash, "") : NULL;
    names->url_query_all = join(base_url, "/v1/", names->documents, ":runQuery?prettyPrint=false");
    good = names->url_batch_get && names->url_commit && names->url_batch_write &&
           names->url_query && names->url_query_all;
    syncguard_free(slash);
    syncguard_free(parent);
    return good;
}

syncguard_status sg_fs_names_init(fs_names *names, const syncguard_firestore_options *options,
                                  const char *base_url, syncguard_error *err)
{
    const char *project = options->project ? options->project : "";
    const char *database = options->database ? options->database : "(default)";
    const char *collection = options->collection ? options->collection : "locks";
    const char *fences = options->fence_collection ? options->fence_collection : "fence_counters";
    syncguard_status status;

    memset(names, 0, sizeof *names);
    status = check_word("project", project, ALNUM "-._:", err);
    if (status == SYNCGUARD_OK)
        status = check_word("database", database, ALNUM "-_()", err);
    if (status == SYNCGUARD_OK)
        status = check_collection("collection", collection, err);
    if (status == SYNCGUARD_OK)
        status = check_collection("fence_collection", fences, err);
    /* Cleanup deletes below one collection and nowhere else, so this alone keeps it off counters.
     */
    if (status == SYNCGUARD_OK && strcmp(collection, fences) == 0)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "options collection and fence_collection must differ");
    if (status != SYNCGUARD_OK)
        return status;
    names->collection = syncguard_strdup(collection);
    names->fences = syncguard_strdup(fences);
    if (!fill(names, project, database, base_url)) {
        sg_fs_names_destroy(names);
        return syncguard_fail_memory(err);
    }
    return SYNCGUARD_OK;
}

void sg_fs_names_destroy(fs_names *names)
{
    syncguard_free(names->documents);
    syncguard_free(names->collection);
    syncguard_free(names->fences);
    syncguard_free(names->url_batch_get);
    syncguard_free(names->url_commit);
    syncguard_free(names->url_batch_write);
    syncguard_free(names->url_query);
    syncguard_free(names->url_query_all);
    memset(names, 0, sizeof *names);
}

syncguard_status sg_fs_names_of(const fs_names *names, const char *key, size_t length, char *lock,
                                char *fence, syncguard_error *err)
{
    char id[SYNCGUARD_NAME_SIZE];
    char fence_id[SYNCGUARD_NAME_SIZE];
    size_t id_length = 0;
    syncguard_status status;

    status = syncguard_storage_name("", key, SYNCGUARD_FIRESTORE_LIMIT_BYTES,
                                    SYNCGUARD_FIRESTORE_RESERVE_BYTES, id, &id_length, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (!legal_id(id, id_length))
        syncguard_name_hash(key, length, id);
    (void)snprintf(lock, FS_PATH_BYTES, "%s/%s/%s", names->documents, names->collection, id);
    if (!fence)
        return SYNCGUARD_OK;
    status = syncguard_fence_name("", id, SYNCGUARD_FIRESTORE_LIMIT_BYTES,
                                  SYNCGUARD_FIRESTORE_RESERVE_BYTES, fence_id, &id_length, err);
    if (status == SYNCGUARD_OK)
        (void)snprintf(fence, FS_PATH_BYTES, "%s/%s/%s", names->documents, names->fences, fence_id);
    return status;
}
