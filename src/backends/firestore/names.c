/* See names.h. Checks the parts of names, and makes the names. */
#include "names.h"

#include <stdio.h>
#include <string.h>

#include "syncguard/sys/alloc.h"
#include "text.h"

#define MAX_COLLECTION_BYTES 3000
#define ALNUM "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

/* Firestore's rule for the id of a document or collection; length is not 0. */
static bool firestore_id_is_legal(const char *id, size_t length)
{
    if (memchr(id, '/', length) != NULL)
        return false;
    if (length == 1 && id[0] == '.')
        return false;
    if (length == 2 && id[0] == '.' && id[1] == '.')
        return false;
    return !(length >= 4 && memcmp(id, "__", 2) == 0 && memcmp(id + length - 2, "__", 2) == 0);
}

/* UTF-8 without control characters. */
static bool firestore_path_is_plain_utf8(const char *text, size_t length)
{
    bool ascii = true;
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return false;
        ascii = ascii && (unsigned char)text[i] < 0x80;
    }
    char normalized[MAX_COLLECTION_BYTES * 3 + 1];
    return ascii || syncguard_nfc(text, length, normalized, sizeof normalized) >= 0;
}

static syncguard_status firestore_collection_check(const char *option, const char *path,
                                                   syncguard_error *err)
{
    size_t length = strlen(path);
    size_t segments = 0;
    bool legal = false;
    const char *at = path;
    if (length == 0 || length > MAX_COLLECTION_BYTES || !firestore_path_is_plain_utf8(path, length))
        goto done;
    for (;;) {
        size_t n = strcspn(at, "/");
        if (n == 0 || n > SYNCGUARD_FIRESTORE_LIMIT_BYTES || !firestore_id_is_legal(at, n))
            goto done;
        segments++;
        if (at[n] == '\0')
            break;
        at += n + 1;
    }
    legal = segments % 2 == 1;
done:
    if (legal)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "option %s is no legal path of a Firestore collection", option);
}

static syncguard_status firestore_word_check(const char *what, const char *word,
                                             const char *allowed, syncguard_error *err)
{
    size_t length = strlen(word);
    if (length == 0 || length > 128 || strspn(word, allowed) != length)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the Firestore %s is missing or has illegal characters", what);
    return SYNCGUARD_OK;
}

static bool firestore_names_fill(sg_firestore_names *names, const char *project,
                                 const char *database, const char *base_url)
{
    char *slash = names->collection != NULL ? strrchr(names->collection, '/') : NULL;
    names->collection_id = slash != NULL ? slash + 1 : names->collection;
    names->documents = sg_firestore_format("projects/%s/databases/%s/documents", project, database);
    if (names->documents == NULL || names->collection == NULL || names->fences == NULL)
        return false;
    names->url = sg_firestore_format("%s/v1/%s", base_url, names->documents);
    if (slash != NULL)
        *slash = '\0';
    char *parent = sg_firestore_percent_encode(slash != NULL ? names->collection : "", "()/:");
    if (slash != NULL)
        *slash = '/';
    if (names->url != NULL && parent != NULL)
        names->parent_url =
            sg_firestore_format("%s%s%s", names->url, slash != NULL ? "/" : "", parent);
    syncguard_free(parent);
    return names->parent_url != NULL;
}

syncguard_status sg_firestore_names_init(sg_firestore_names *names,
                                         const syncguard_firestore_options *options,
                                         const char *base_url, syncguard_error *err)
{
    const char *project = options->project != NULL ? options->project : "";
    const char *database = options->database != NULL ? options->database : "(default)";
    const char *collection = options->collection != NULL ? options->collection : "locks";
    const char *fences =
        options->fence_collection != NULL ? options->fence_collection : "fence_counters";
    memset(names, 0, sizeof *names);
    syncguard_status status = firestore_word_check("project", project, ALNUM "-._:", err);
    if (status == SYNCGUARD_OK)
        status = firestore_word_check("database", database, ALNUM "-_()", err);
    if (status == SYNCGUARD_OK)
        status = firestore_collection_check("collection", collection, err);
    if (status == SYNCGUARD_OK)
        status = firestore_collection_check("fence_collection", fences, err);
    /* Cleanup deletes documents of the lock collection only, so this keeps it off counters. */
    if (status == SYNCGUARD_OK && strcmp(collection, fences) == 0)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "options collection and fence_collection must differ");
    if (status != SYNCGUARD_OK)
        return status;
    names->collection = syncguard_strdup(collection);
    names->fences = syncguard_strdup(fences);
    if (!firestore_names_fill(names, project, database, base_url)) {
        sg_firestore_names_destroy(names);
        return syncguard_fail_memory(err);
    }
    return SYNCGUARD_OK;
}

void sg_firestore_names_destroy(sg_firestore_names *names)
{
    syncguard_free(names->documents);
    syncguard_free(names->collection);
    syncguard_free(names->fences);
    syncguard_free(names->url);
    syncguard_free(names->parent_url);
    memset(names, 0, sizeof *names);
}

syncguard_status sg_firestore_names_of(const sg_firestore_names *names, const char *key,
                                       size_t length, char *lock, char *fence, syncguard_error *err)
{
    char id[SYNCGUARD_NAME_SIZE];
    size_t id_length = 0;
    syncguard_status status =
        syncguard_storage_name("", key, SYNCGUARD_FIRESTORE_LIMIT_BYTES,
                               SYNCGUARD_FIRESTORE_RESERVE_BYTES, id, &id_length, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (!firestore_id_is_legal(id, id_length))
        syncguard_name_hash(key, length, id);
    (void)snprintf(lock, SG_FIRESTORE_PATH_BYTES, "%s/%s/%s", names->documents, names->collection,
                   id);
    if (fence == NULL)
        return SYNCGUARD_OK;
    char fence_id[SYNCGUARD_NAME_SIZE];
    status = syncguard_fence_name("", id, SYNCGUARD_FIRESTORE_LIMIT_BYTES,
                                  SYNCGUARD_FIRESTORE_RESERVE_BYTES, fence_id, &id_length, err);
    if (status == SYNCGUARD_OK)
        (void)snprintf(fence, SG_FIRESTORE_PATH_BYTES, "%s/%s/%s", names->documents, names->fences,
                       fence_id);
    return status;
}
