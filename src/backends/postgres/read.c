/*
 * Reading: is_locked, lookup, list. Single statements; the server's time comes with each row, and
 * syncguard_is_live evaluates it.
 */
#include <stdio.h>
#include <string.h>

#include "operations.h"
#include "request.h"

#define PAGE 500

/* Columns of a record. */
enum { R_KEY, R_ID, R_EXPIRES, R_ACQUIRED, R_FENCE, R_OWNER, R_NOW, R_NAME };

static syncguard_status pg_read_fail_unreadable(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "the stored record cannot be read");
}

/* Reads the owner label, if it belongs to the lock that the row holds now. */
static void pg_record_read_owner(const PGresult *result, int row, syncguard_record *record)
{
    record->owner[0] = '\0';
    char stored[SYNCGUARD_LOCK_ID_SIZE + SYNCGUARD_OWNER_SIZE];
    if (!sg_pg_text(result, row, R_OWNER, stored, sizeof stored) ||
        strncmp(stored, record->lock_id, SYNCGUARD_LOCK_ID_CHARS) != 0 ||
        stored[SYNCGUARD_LOCK_ID_CHARS] != ' ')
        return;
    snprintf(record->owner, sizeof record->owner, "%.*s", SYNCGUARD_MAX_OWNER_BYTES,
             stored + SYNCGUARD_LOCK_ID_SIZE);
}

/* OK, ABSENT for a dead record (or, if expired, for a live one), or Internal: the expiry is
 * evaluated before anything else is read. */
static syncguard_status pg_record_read(const PGresult *result, int row, bool expired,
                                       syncguard_record *record, syncguard_error *err)
{
    memset(record, 0, sizeof *record);
    if (!sg_pg_expiry(result, row, R_EXPIRES, &record->expires_at_ms) ||
        !sg_pg_int64(result, row, R_NOW, &record->now_ms))
        return pg_read_fail_unreadable(err);
    if (syncguard_is_live(record->expires_at_ms, record->now_ms) == expired)
        return SYNCGUARD_ABSENT;
    size_t length = 0;
    if (PQgetisnull(result, row, R_KEY) != 0 ||
        syncguard_key_normalize(PQgetvalue(result, row, R_KEY), record->key, &length, NULL) !=
            SYNCGUARD_OK ||
        !sg_pg_text(result, row, R_ID, record->lock_id, sizeof record->lock_id) ||
        !sg_pg_text(result, row, R_FENCE, record->fence, sizeof record->fence) ||
        !syncguard_lock_id_valid(record->lock_id) || !syncguard_fence_valid(record->fence))
        return pg_read_fail_unreadable(err);
    if (!sg_pg_int64(result, row, R_ACQUIRED, &record->acquired_at_ms))
        record->acquired_at_ms = 0;
    pg_record_read_owner(result, row, record);
    return SYNCGUARD_OK;
}

syncguard_status sg_pg_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                 syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    char name[SYNCGUARD_NAME_SIZE];
    int64_t expires = 0;
    int64_t now = 0;
    syncguard_status status = sg_pg_name(op->key, name, err);
    op->locked = false;
    op->dead_lock_id[0] = '\0';
    if (status != SYNCGUARD_OK)
        return status;
    sg_pg_request request = {0};
    sg_pg_request_add(&request, SG_PG_BY_KEY, 1, name);
    status = sg_pg_request_run(pg, &request, &op->limits, err);
    if (status != SYNCGUARD_OK || PQntuples(request.results[0]) == 0)
        goto done;
    if (!sg_pg_expiry(request.results[0], 0, R_EXPIRES, &expires) ||
        !sg_pg_int64(request.results[0], 0, R_NOW, &now)) {
        status = pg_read_fail_unreadable(err);
        goto done;
    }
    op->locked = syncguard_is_live(expires, now);
    if (!op->locked &&
        sg_pg_text(request.results[0], 0, R_ID, op->dead_lock_id, sizeof op->dead_lock_id)) {
        op->dead_expires_at_ms = expires;
        op->dead_for_ms = now - expires;
    }
done:
    sg_pg_request_clear(&request);
    return status;
}

syncguard_status sg_pg_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                              syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    char name[SYNCGUARD_NAME_SIZE];
    const char *value = op->lock_id;
    syncguard_status status = SYNCGUARD_OK;
    if (op->key != NULL) {
        status = sg_pg_name(op->key, name, err);
        value = name;
    }
    if (status != SYNCGUARD_OK)
        return status;
    sg_pg_request request = {0};
    sg_pg_request_add(&request, op->key != NULL ? SG_PG_BY_KEY : SG_PG_BY_ID, 1, value);
    status = sg_pg_request_run(pg, &request, &op->limits, err);
    if (status != SYNCGUARD_OK)
        goto done;
    status = PQntuples(request.results[0]) > 0
                 ? pg_record_read(request.results[0], 0, false, &op->record, err)
                 : SYNCGUARD_ABSENT;
    if (status == SYNCGUARD_OK && op->lock_id != NULL &&
        strcmp(op->record.lock_id, op->lock_id) != 0)
        status = SYNCGUARD_ABSENT;
done:
    sg_pg_request_clear(&request);
    return status;
}

/* A walk over all live locks. */
typedef struct walk {
    syncguard_record_fn fn; /* NULL: only count */
    void *context;
    bool expired; /* the locks that cleanup may remove, instead of live ones */
    size_t unreadable;
    char after[SYNCGUARD_NAME_SIZE];
} walk;

/* Passes one page to the callback. False if no page follows. */
static bool pg_list_show_page(const PGresult *result, walk *w)
{
    int count = PQntuples(result);
    for (int row = 0; row < count; row++) {
        syncguard_record record;
        syncguard_status status = pg_record_read(result, row, w->expired, &record, NULL);
        if (status == SYNCGUARD_E_INTERNAL)
            w->unreadable++;
        if (status == SYNCGUARD_OK && w->fn != NULL && !w->fn(w->context, &record))
            return false;
    }
    if (count < PAGE)
        return false;
    return sg_pg_text(result, count - 1, R_NAME, w->after, sizeof w->after);
}

static syncguard_status pg_list_walk(sg_pg *pg, const syncguard_limits *limits, walk *w,
                                     syncguard_error *err)
{
    char page[SG_PG_NUMBER_SIZE];
    int64_t span_ns = syncguard_limits_left_ns(limits);
    sg_pg_format(page, PAGE);
    char guard[SG_PG_NUMBER_SIZE];
    sg_pg_format(guard, SYNCGUARD_CLEANUP_GUARD_MS);
    syncguard_status status = SYNCGUARD_OK;
    bool more = true;
    while (more && status == SYNCGUARD_OK) {
        sg_pg_request request = {0};
        syncguard_limits own = syncguard_limits_from_now(limits, span_ns);
        sg_pg_request_add(&request, w->expired ? SG_PG_LIST_EXPIRED : SG_PG_LIST, 3, w->after,
                          w->expired ? guard : pg->tolerance, page);
        status = sg_pg_request_run(pg, &request, &own, err);
        if (status == SYNCGUARD_OK)
            more = pg_list_show_page(request.results[0], w);
        sg_pg_request_clear(&request);
    }
    return status;
}

static syncguard_status pg_list_locks(syncguard_backend *backend, bool expired,
                                      const syncguard_limits *limits, syncguard_record_fn fn,
                                      void *context, syncguard_error *err)
{
    walk w = {.fn = fn, .context = context, .expired = expired};
    syncguard_status status = pg_list_walk(sg_pg_of(backend), limits, &w, err);
    if (w.unreadable > 0)
        syncguard_backend_log(backend, SYNCGUARD_LOG_WARN,
                              "%zu stored records cannot be read and are not listed", w.unreadable);
    return status;
}

syncguard_status sg_pg_list(syncguard_backend *backend, const syncguard_limits *limits,
                            syncguard_record_fn fn, void *context, syncguard_error *err)
{
    return pg_list_locks(backend, false, limits, fn, context, err);
}

syncguard_status sg_pg_list_expired(syncguard_backend *backend, const syncguard_limits *limits,
                                    syncguard_record_fn fn, void *context, syncguard_error *err)
{
    return pg_list_locks(backend, true, limits, fn, context, err);
}

syncguard_status sg_pg_count_unreadable(sg_pg *pg, const syncguard_limits *limits, size_t *count,
                                        syncguard_error *err)
{
    walk w = {.fn = NULL};
    syncguard_status status = pg_list_walk(pg, limits, &w, err);
    *count = w.unreadable;
    return status;
}
