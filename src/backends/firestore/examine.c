/*
 * Walking over the collection, and what would break the promises on this store. Reads only; the
 * test of the right to write is a commit that cannot apply.
 */
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define PAGE 300
#define CLOCK_PROBES 5

typedef struct listing {
    syncguard_record_fn fn;
    void *context;
    const char *last; /* the name to go on after, in the answer */
    size_t count;     /* documents of the page */
    size_t left_out;  /* records that cannot be shown, or not told live from dead */
    bool no_memory;
} listing;

/* Shows the live locks of a page. False: the caller of list has seen enough. */
static bool show_page(listing *l, const fs_answer *answer)
{
    int64_t now_ms = syncguard_wall_ms();

    l->count = 0;
    l->last = NULL;
    for (size_t i = 0; i < json_array_size(answer->json); i++) {
        const json_t *document = json_object_get(json_array_get(answer->json, i), "document");
        fs_lock lock;

        if (!document)
            continue;
        sg_fs_lock_decode(document, &lock);
        if (lock.name) {
            l->last = lock.name;
            l->count++;
        }
        if (lock.has_expiry && !syncguard_is_live(lock.record.expires_at_ms, now_ms))
            continue;
        if (lock.no_memory)
            goto no_memory;
        if (!lock.complete)
            l->left_out++;
        else if (!l->fn(l->context, &lock.record))
            return false;
    }
    return true;

no_memory:
    l->no_memory = true;
    return false;
}

syncguard_status sg_fs_list(syncguard_backend *backend, const syncguard_limits *limits,
                            syncguard_record_fn fn, void *context, syncguard_error *err)
{
    fs_backend *b = (fs_backend *)backend;
    listing l = {.fn = fn, .context = context};
    fs_answer answer;
    char *after = NULL;
    syncguard_status status;

    do {
        bool more;

        status = sg_fs_read(b, FS_QUERY, sg_fs_query_page(b->names.collection_id, after, PAGE),
                            limits, &answer, err);
        more = status == SYNCGUARD_OK && show_page(&l, &answer);
        if (l.no_memory)
            status = syncguard_fail_memory(err);
        syncguard_free(after);
        after = NULL;
        if (more && l.count >= PAGE && l.last) {
            after = syncguard_strdup(l.last);
            if (!after)
                status = syncguard_fail_memory(err);
        }
        sg_fs_answer_free(&answer);
    } while (after);
    if (l.left_out > 0)
        syncguard_backend_log(backend, SYNCGUARD_LOG_WARN,
                              "firestore: %zu stored records cannot be read and are not listed",
                              l.left_out);
    return status;
}

/* --- examine --- */

typedef struct examination {
    fs_backend *backend;
    const syncguard_limits *limits;
    syncguard_finding_fn fn;
    void *context;
    char missing[FS_PATH_BYTES]; /* names of documents that are not there */
    char missing_fence[FS_PATH_BYTES];
    char missing_too[FS_PATH_BYTES];
} examination;

static syncguard_status examine_clock(examination *e, syncguard_error *err)
{
    syncguard_firestore_clock_info info = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;
    syncguard_severity severity = SYNCGUARD_FINE;
    syncguard_status status = SYNCGUARD_OK;
    int64_t certain_ms;
    char text[200];
    fs_instant at;

    /* Several reads: the quickest gives the tightest bound, and the first one connects. */
    for (int i = 0; i < CLOCK_PROBES && status == SYNCGUARD_OK; i++) {
        fs_answer answer;
        status = sg_fs_read(e->backend, FS_BATCH_GET, sg_fs_documents(e->missing, NULL), e->limits,
                            &answer, err);
        sg_fs_answer_free(&answer);
    }
    if (status != SYNCGUARD_OK)
        return status;
    at = sg_fs_now();
    if (!sg_fs_clock_read(&e->backend->clock, &at, &info)) {
        e->fn(e->context, SYNCGUARD_WARN, "clock", "the server tells no time to compare with");
        return SYNCGUARD_OK;
    }
    certain_ms = sg_fs_clock_certain_us(&info) / 1000;
    if (certain_ms >= SYNCGUARD_FIRESTORE_CLOCK_BLOCK_MS)
        severity = SYNCGUARD_BLOCK;
    else if (certain_ms >= SYNCGUARD_FIRESTORE_CLOCK_WARN_MS)
        severity = SYNCGUARD_WARN;
    (void)snprintf(text, sizeof text,
                   "offset %+.1f ms, error bound %.1f ms (target %d, warn %d, block %d ms)",
                   (double)info.offset_us / 1000.0, (double)info.error_us / 1000.0,
                   SYNCGUARD_FIRESTORE_CLOCK_TARGET_MS, SYNCGUARD_FIRESTORE_CLOCK_WARN_MS,
                   SYNCGUARD_FIRESTORE_CLOCK_BLOCK_MS);
    e->fn(e->context, severity, "clock", text);
    return SYNCGUARD_OK;
}

static syncguard_status examine_index(examination *e, syncguard_error *err)
{
    fs_answer answer;
    syncguard_error own;
    syncguard_status status =
        sg_fs_read(e->backend, FS_QUERY,
                   sg_fs_query_id(e->backend->names.collection_id, "syncguard-doctor-probe"),
                   e->limits, &answer, &own);

    sg_fs_answer_free(&answer);
    if (status == SYNCGUARD_OK) {
        e->fn(e->context, SYNCGUARD_FINE, "index", "locks can be found by lockId");
    } else if (strcmp(own.native, "FAILED_PRECONDITION") == 0) {
        e->fn(e->context, SYNCGUARD_BLOCK, "index",
              "there is no index on lockId: release, extend and lookup by id of other processes' "
              "locks fail");
        status = SYNCGUARD_OK;
    } else if (err) {
        *err = own;
    }
    return status;
}

/*
 * May we create, update and delete? All three in one commit whose preconditions cannot hold
 * (documents that are not there, unchanged since 1970): refused for lack of rights or, having
 * changed nothing, for the preconditions.
 */
static syncguard_status examine_rights(examination *e, syncguard_error *err)
{
    static const char epoch[] = "1970-01-01T00:00:01Z";
    syncguard_record record = {.key = "syncguard-doctor", .fence = "000000000000000"};
    json_t *writes = sg_fs_and(json_array(), sg_fs_write_lock(e->missing, NULL, &record));
    fs_answer answer;
    syncguard_error own;
    syncguard_status status;

    writes =
        sg_fs_and(writes, sg_fs_write_fence(e->missing_fence, epoch, record.fence, record.key));
    writes = sg_fs_and(writes, sg_fs_write_delete(e->missing_too, epoch));
    status = sg_fs_call(e->backend, FS_COMMIT, sg_fs_writes(writes), e->limits, &answer, &own);
    if (answer.conflict) {
        e->fn(e->context, SYNCGUARD_FINE, "permissions", "documents may be read and written");
        status = SYNCGUARD_OK;
    } else if (status == SYNCGUARD_E_AUTH_FAILED) {
        e->fn(e->context, SYNCGUARD_BLOCK, "permissions",
              "documents may not be written (roles/datastore.user would do)");
        status = SYNCGUARD_OK;
    } else if (status == SYNCGUARD_OK) {
        status = syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                                "a commit applied although its preconditions could not hold");
    } else if (err) {
        *err = own;
    }
    sg_fs_answer_free(&answer);
    return status;
}

syncguard_status sg_fs_examine(syncguard_backend *backend, const syncguard_limits *limits,
                               syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    static const char probe[] = "syncguard-doctor";
    static const char other[] = "syncguard-doctor-2";
    examination e = {(fs_backend *)backend, limits, fn, context, "", "", ""};
    syncguard_status status =
        sg_fs_names_of(&e.backend->names, probe, sizeof probe - 1, e.missing, e.missing_fence, err);

    if (status == SYNCGUARD_OK)
        status =
            sg_fs_names_of(&e.backend->names, other, sizeof other - 1, e.missing_too, NULL, err);
    if (status == SYNCGUARD_OK)
        status = examine_clock(&e, err);
    if (status == SYNCGUARD_E_AUTH_FAILED) {
        fn(context, SYNCGUARD_BLOCK, "permissions",
           "documents may not be read (roles/datastore.user would do)");
        return SYNCGUARD_OK;
    }
    if (status == SYNCGUARD_OK)
        status = examine_index(&e, err);
    if (status == SYNCGUARD_OK)
        status = examine_rights(&e, err);
    if (status == SYNCGUARD_OK)
        status = sg_fs_survey(e.backend, limits, fn, context, err);
    return status;
}
