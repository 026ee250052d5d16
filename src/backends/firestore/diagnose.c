/*
 * Finds what would break the guarantees on this store: the clock, a missing index, missing
 * permissions, and documents that every other operation skips. Reads only; the test of the
 * permission to write is a commit that cannot apply.
 */
#include "operations.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "query.h"
#include "text.h"

#define CLOCK_PROBES 5
#define PAGE 1000
#define MAX_DOCUMENTS (10 * PAGE) /* of each collection */

typedef struct diagnosis {
    sg_firestore_context ctx;
    syncguard_findings to;
    char missing[SG_FIRESTORE_PATH_BYTES]; /* names of documents that do not exist */
    char missing_fence[SG_FIRESTORE_PATH_BYTES];
    char missing_too[SG_FIRESTORE_PATH_BYTES];
} diagnosis;

static void firestore_report_clock(const diagnosis *d, const syncguard_firestore_clock_info *info)
{
    int64_t certain_ms = sg_firestore_clock_certain_us(info) / 1000;
    syncguard_severity severity = SYNCGUARD_FINE;
    if (certain_ms >= SYNCGUARD_FIRESTORE_CLOCK_BLOCK_MS)
        severity = SYNCGUARD_BLOCK;
    else if (certain_ms >= SYNCGUARD_FIRESTORE_CLOCK_WARN_MS)
        severity = SYNCGUARD_WARN;
    char text[200];
    (void)snprintf(text, sizeof text,
                   "offset %+.1fms, error bound %.1fms (target %dms, warn %dms, block %dms)",
                   (double)info->offset_us / 1000.0, (double)info->error_us / 1000.0,
                   SYNCGUARD_FIRESTORE_CLOCK_TARGET_MS, SYNCGUARD_FIRESTORE_CLOCK_WARN_MS,
                   SYNCGUARD_FIRESTORE_CLOCK_BLOCK_MS);
    if (severity == SYNCGUARD_FINE)
        syncguard_report_fine(&d->to, "clock", text);
    else
        syncguard_report(&d->to, severity, "clock", text,
                         "the clocks of the clients decide about expiry: at a difference of a "
                         "second two holders become possible",
                         "run NTP on this machine");
}

static syncguard_status firestore_diagnose_clock(const diagnosis *d)
{
    syncguard_status status = SYNCGUARD_OK;
    sg_firestore_lock ignored;

    /* Several reads: the fastest gives the tightest bound, and the first one connects. */
    for (int i = 0; i < CLOCK_PROBES && status >= SYNCGUARD_OK; i++)
        status = sg_firestore_get_lock(&d->ctx, d->missing, &ignored);
    if (status < SYNCGUARD_OK)
        return status;
    sg_firestore_instant at = sg_firestore_now();
    syncguard_firestore_clock_info info = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;
    if (sg_firestore_clock_read(&d->ctx.backend->clock, &at, &info))
        firestore_report_clock(d, &info);
    else
        syncguard_report(&d->to, SYNCGUARD_WARN, "clock",
                         "the server's answers carry no time to compare with",
                         "an offset of this machine's clock is not noticed",
                         "run NTP on this machine, and monitor it");
    return SYNCGUARD_OK;
}

/* A server that does not explain queries, or cannot explain this one, leaves the plan unknown. */
static syncguard_status firestore_diagnose_plan(const diagnosis *d, const char *lock_id,
                                                sg_firestore_plan *plan)
{
    sg_firestore_context ctx = {d->ctx.backend, d->ctx.limits, NULL};
    syncguard_status status = sg_firestore_explain_by_id(&ctx, lock_id, plan);
    if (status == SYNCGUARD_E_ABORTED)
        return syncguard_limits_check(d->ctx.limits, d->ctx.err);
    if (status == SYNCGUARD_E_OUT_OF_MEMORY)
        return syncguard_fail_memory(d->ctx.err);
    return SYNCGUARD_OK;
}

static syncguard_status firestore_diagnose_query(const diagnosis *d, const char *lock_id,
                                                 sg_firestore_plan plan)
{
    sg_firestore_matches found;
    syncguard_error own;
    sg_firestore_context ctx = {d->ctx.backend, d->ctx.limits, &own};
    syncguard_status status = sg_firestore_find_by_id(&ctx, lock_id, &found);
    json_decref(found.dead);
    if (status == SYNCGUARD_OK) {
        syncguard_report_fine(&d->to, "index",
                              plan == SG_FIRESTORE_PLAN_INDEX
                                  ? "locks are found by lockId with an index"
                                  : "locks can be found by lockId");
    } else if (strcmp(own.native, "FAILED_PRECONDITION") == 0) {
        syncguard_report(&d->to, SYNCGUARD_BLOCK, "index", "there is no index on lockId",
                         "release, extend and lookup by id of other processes' locks fail",
                         "remove the exemption of the field from single-field indexes");
        status = SYNCGUARD_OK;
    } else if (status == SYNCGUARD_E_AUTH_FAILED) {
        syncguard_report(&d->to, SYNCGUARD_BLOCK, "permissions", "documents may not be queried",
                         "list, and release and extend of other processes' locks fail",
                         "grant roles/datastore.user, or the permission "
                         "datastore.entities.list");
        status = SYNCGUARD_OK;
    } else if (d->ctx.err != NULL) {
        *d->ctx.err = own;
    }
    return status;
}

/* The Enterprise edition creates no index by itself, and a query without an index reads all
 * documents of the collection. Such a query is not tried. */
static syncguard_status firestore_diagnose_index(const diagnosis *d)
{
    static const char probe[] = "syncguard-doctor-probe";
    sg_firestore_plan plan;
    syncguard_status status = firestore_diagnose_plan(d, probe, &plan);
    if (status != SYNCGUARD_OK)
        return status;
    if (plan != SG_FIRESTORE_PLAN_SCAN)
        return firestore_diagnose_query(d, probe, plan);
    syncguard_report(&d->to, SYNCGUARD_WARN, "index", "queries by lockId use no index",
                     "each release, extend and lookup by id of another process's lock reads "
                     "all documents of the collection, and is billed for them",
                     "create an index on the field lockId of this collection");
    return SYNCGUARD_OK;
}

/*
 * Tries a create, an update and a delete in one commit whose preconditions cannot hold (documents
 * that do not exist, unchanged since 1970). The server refuses it for lack of permission or,
 * without changing anything, because of the preconditions.
 */
static syncguard_status firestore_diagnose_permissions(const diagnosis *d)
{
    static const char epoch[] = "1970-01-01T00:00:01Z";
    syncguard_record record = {.key = "syncguard-doctor", .fence = "000000000000000"};
    json_t *writes =
        sg_firestore_add(json_array(), sg_firestore_write_lock(d->missing, "", &record));
    syncguard_error own;
    sg_firestore_context ctx = {d->ctx.backend, d->ctx.limits, &own};
    writes = sg_firestore_add(
        writes, sg_firestore_write_fence(d->missing_fence, epoch, record.fence, record.key));
    writes = sg_firestore_add(writes, sg_firestore_write_delete(d->missing_too, epoch));
    sg_firestore_answer answer;
    syncguard_status status = sg_firestore_commit(&ctx, writes, &answer);
    if (answer.conflict) {
        syncguard_report_fine(&d->to, "permissions", "documents may be read and written");
        status = SYNCGUARD_OK;
    } else if (status == SYNCGUARD_E_AUTH_FAILED) {
        syncguard_report(&d->to, SYNCGUARD_BLOCK, "permissions", "documents may not be written",
                         "no lock can be acquired or released",
                         "grant roles/datastore.user to this account");
        status = SYNCGUARD_OK;
    } else if (status == SYNCGUARD_OK) {
        status = syncguard_fail(d->ctx.err, SYNCGUARD_E_INTERNAL, NULL,
                                "a commit applied although its preconditions could not hold");
    } else if (d->ctx.err != NULL) {
        *d->ctx.err = own;
    }
    sg_firestore_answer_free(&answer);
    return status;
}

/* ---- unreadable documents ---- */

/* Other operations skip unreadable documents, and documents in sub-collections, where the
 * TypeScript library keeps locks of keys with slashes. */
typedef struct survey {
    char collection[SG_FIRESTORE_PATH_BYTES]; /* full name */
    bool counters;
    size_t seen;     /* documents of this collection */
    int64_t stop_ns; /* no further page after that */
    size_t unreadable_locks;
    size_t unreadable_counters;
    size_t below;    /* documents in sub-collections */
    bool unfinished; /* there are more documents than were read */
} survey;

static void firestore_survey_count(survey *s, const json_t *document)
{
    sg_firestore_counter counter;
    if (s->counters) {
        if (sg_firestore_counter_decode(document, &counter, NULL) != SYNCGUARD_OK)
            s->unreadable_counters++;
        return;
    }
    sg_firestore_lock lock;
    sg_firestore_lock_decode(document, &lock);
    if (!lock.has_expiry ||
        (syncguard_is_live(lock.record.expires_at_ms, syncguard_wall_ms()) && !lock.complete))
        s->unreadable_locks++;
}

static bool firestore_survey_document(void *context, const json_t *document, const char *name)
{
    survey *s = context;
    size_t length = strlen(s->collection);
    if (strncmp(name, s->collection, length) == 0 && name[length] == '/') {
        if (strchr(name + length + 1, '/') != NULL)
            s->below++;
        else
            firestore_survey_count(s, document);
    }
    /* The survey stops at the end of a page only. */
    if (++s->seen % PAGE == 0 && (s->seen >= MAX_DOCUMENTS || syncguard_clock_ns() >= s->stop_ns)) {
        s->unfinished = true;
        return false;
    }
    return true;
}

static syncguard_status firestore_survey_collection(const diagnosis *d, survey *s, const char *path,
                                                    bool counters)
{
    (void)snprintf(s->collection, sizeof s->collection, "%s/%s", d->ctx.backend->names.documents,
                   path);
    s->counters = counters;
    s->seen = 0;
    return sg_firestore_scan(&d->ctx, SG_FIRESTORE_QUERY_ALL,
                             sg_firestore_query_below(s->collection, PAGE), PAGE,
                             firestore_survey_document, s);
}

static void firestore_survey_report(const diagnosis *d, const survey *s)
{
    const char *unfinished = s->unfinished ? "; not all documents were read" : "";
    char text[300];
    if (s->unreadable_locks + s->unreadable_counters > 0) {
        (void)snprintf(text, sizeof text, "%zu locks and %zu counters cannot be read%s",
                       s->unreadable_locks, s->unreadable_counters, unfinished);
        syncguard_report(&d->to, SYNCGUARD_WARN, "records", text,
                         "their keys stay locked or cannot be granted",
                         "repair or delete the documents that lack a field of a lock");
    } else {
        (void)snprintf(text, sizeof text, "locks and counters can be read%s", unfinished);
        syncguard_report_fine(&d->to, "records", text);
    }
    if (s->below > 0) {
        (void)snprintf(text, sizeof text, "%zu documents are in sub-collections%s", s->below,
                       unfinished);
        syncguard_report(&d->to, SYNCGUARD_WARN, "slashes", text,
                         "the TypeScript library keeps locks of keys with two or more slashes "
                         "there, and those do not exclude ours",
                         "use another separator in keys if both libraries are in use");
    }
}

static syncguard_status firestore_diagnose_records(const diagnosis *d)
{
    const sg_firestore_names *names = &d->ctx.backend->names;
    survey s = {.stop_ns = syncguard_clock_ns() + syncguard_limits_left_ns(d->ctx.limits) / 2};
    syncguard_status status = firestore_survey_collection(d, &s, names->collection, false);
    if (status == SYNCGUARD_OK)
        status = firestore_survey_collection(d, &s, names->fences, true);
    if (status == SYNCGUARD_E_ABORTED || status == SYNCGUARD_E_OUT_OF_MEMORY)
        return status;
    char text[120];
    if (status == SYNCGUARD_OK) {
        firestore_survey_report(d, &s);
    } else {
        /* The other findings are worth having without this one. */
        (void)snprintf(text, sizeof text, "the collections could not be read: %s",
                       syncguard_status_name(status));
        syncguard_report(&d->to, SYNCGUARD_WARN, "records", text,
                         "a document that cannot be read may block its key",
                         "give more time with timeout_ms, or permit queries");
    }
    return SYNCGUARD_OK;
}

static void firestore_diagnose_tls(const diagnosis *d)
{
    const char *url = d->ctx.backend->names.url;
    bool encrypted = strncasecmp(url, "https://", 8) == 0; /* then libcurl verifies, too */
    syncguard_report_tls(&d->to, sg_firestore_url_loopback(url) ? NULL : url, encrypted, encrypted,
                         "an emulator has no TLS: run it on this machine, and use it for tests "
                         "only");
}

syncguard_status sg_firestore_diagnose(syncguard_backend *backend, const syncguard_limits *limits,
                                       syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    static const char probe[] = "syncguard-doctor";
    static const char other[] = "syncguard-doctor-2";
    diagnosis d = {{(sg_firestore_backend *)backend, limits, err}, {fn, context}, "", "", ""};
    const sg_firestore_names *names = &d.ctx.backend->names;
    syncguard_status status =
        sg_firestore_names_of(names, probe, sizeof probe - 1, d.missing, d.missing_fence, err);
    if (status == SYNCGUARD_OK)
        status = sg_firestore_names_of(names, other, sizeof other - 1, d.missing_too, NULL, err);
    if (status == SYNCGUARD_OK)
        status = firestore_diagnose_clock(&d);
    if (status == SYNCGUARD_E_AUTH_FAILED) {
        syncguard_report(&d.to, SYNCGUARD_BLOCK, "permissions", "documents may not be read",
                         "no operation succeeds", "grant roles/datastore.user to this account");
        return SYNCGUARD_OK;
    }
    if (status == SYNCGUARD_OK) {
        firestore_diagnose_tls(&d);
        status = firestore_diagnose_index(&d);
    }
    if (status == SYNCGUARD_OK)
        status = firestore_diagnose_permissions(&d);
    if (status == SYNCGUARD_OK)
        status = firestore_diagnose_records(&d);
    return status;
}
