/*
 * What the collections hold that every other operation passes over: records that cannot be read,
 * and documents in sub-collections, where the TypeScript library keeps locks of keys with slashes.
 * For `doctor`; reads only, and not more than a part of its time and MAX_PAGES.
 */
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define PAGE 1000
#define MAX_PAGES 10

typedef struct survey {
    fs_backend *backend;
    const syncguard_limits *limits;
    int64_t stop_ns; /* no further page after that */
    size_t unreadable_locks;
    size_t unreadable_counters;
    size_t below;    /* documents in sub-collections */
    bool unfinished; /* there are more documents than were looked at */
} survey;

/* A document of a collection: rest is its name below the collection's. */
static void look_at(survey *s, const json_t *document, const char *rest, bool counters)
{
    int64_t value;
    fs_lock lock;

    if (strchr(rest, '/')) {
        s->below++;
        return;
    }
    if (counters) {
        if (sg_fs_fence_decode(document, &value, NULL) != SYNCGUARD_OK)
            s->unreadable_counters++;
        return;
    }
    sg_fs_lock_decode(document, &lock);
    if (!lock.has_expiry ||
        (syncguard_is_live(lock.record.expires_at_ms, syncguard_wall_ms()) && !lock.complete))
        s->unreadable_locks++;
}

/* Sets *after to the last name of the page if there may be more, else to NULL. */
static syncguard_status look_at_page(survey *s, const char *collection, bool counters, char **after,
                                     syncguard_error *err)
{
    size_t length = strlen(collection);
    const char *last = NULL;
    size_t count = 0;
    fs_answer answer;
    syncguard_status status =
        sg_fs_read(s->backend, FS_QUERY_ALL, sg_fs_query_below(collection, *after, PAGE), s->limits,
                   &answer, err);

    syncguard_free(*after);
    *after = NULL;
    for (size_t i = 0; status == SYNCGUARD_OK && i < json_array_size(answer.json); i++) {
        const json_t *document = json_object_get(json_array_get(answer.json, i), "document");
        const char *name = json_string_value(json_object_get(document, "name"));

        if (!name || strncmp(name, collection, length) != 0 || name[length] != '/')
            continue;
        last = name;
        count++;
        look_at(s, document, name + length + 1, counters);
    }
    if (count >= PAGE) {
        *after = syncguard_strdup(last);
        if (!*after)
            status = syncguard_fail_memory(err);
    }
    sg_fs_answer_free(&answer);
    return status;
}

static syncguard_status look_at_collection(survey *s, const char *path, bool counters,
                                           syncguard_error *err)
{
    char collection[FS_PATH_BYTES];
    syncguard_status status = SYNCGUARD_OK;
    char *after = NULL;
    int pages = 0;

    (void)snprintf(collection, sizeof collection, "%s/%s", s->backend->names.documents, path);
    do
        status = look_at_page(s, collection, counters, &after, err);
    while (after && ++pages < MAX_PAGES && syncguard_clock_ns() < s->stop_ns);
    s->unfinished = s->unfinished || after;
    syncguard_free(after);
    return status;
}

static void report(const survey *s, syncguard_finding_fn fn, void *context)
{
    const char *unfinished = s->unfinished ? "; not all documents were looked at" : "";
    char text[300];

    if (s->unreadable_locks + s->unreadable_counters > 0) {
        (void)snprintf(text, sizeof text,
                       "%zu locks and %zu counters cannot be read: their keys stay locked or "
                       "cannot be granted until somebody repairs the documents%s",
                       s->unreadable_locks, s->unreadable_counters, unfinished);
        fn(context, SYNCGUARD_WARN, "records", text);
    } else {
        (void)snprintf(text, sizeof text, "locks and counters can be read%s", unfinished);
        fn(context, SYNCGUARD_FINE, "records", text);
    }
    if (s->below > 0) {
        (void)snprintf(text, sizeof text,
                       "%zu documents are in sub-collections: the TypeScript library keeps locks "
                       "of keys with two or more slashes there, and those do not exclude ours%s",
                       s->below, unfinished);
        fn(context, SYNCGUARD_WARN, "slashes", text);
    }
}

syncguard_status sg_fs_survey(fs_backend *backend, const syncguard_limits *limits,
                              syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    survey s = {.backend = backend, .limits = limits};
    syncguard_status status;

    s.stop_ns = syncguard_clock_ns() + syncguard_limits_left_ns(limits) / 2;
    status = look_at_collection(&s, backend->names.collection, false, err);
    if (status == SYNCGUARD_OK)
        status = look_at_collection(&s, backend->names.fences, true, err);
    if (status == SYNCGUARD_OK) {
        report(&s, fn, context);
    } else if (status != SYNCGUARD_E_ABORTED && status != SYNCGUARD_E_OUT_OF_MEMORY) {
        /* What the other findings say is worth having without this one. */
        char text[120];
        (void)snprintf(text, sizeof text, "the collections could not be looked through: %s",
                       syncguard_status_name(status));
        fn(context, SYNCGUARD_WARN, "records", text);
        status = SYNCGUARD_OK;
    }
    return status;
}
