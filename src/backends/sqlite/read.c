/*
 * The operations that only read: is_locked, lookup, list. Each is one statement outside any
 * transaction, so it never delays a writer and never waits for one.
 */
#include "operations.h"

#include <string.h>

#include "record.h"
#include "request.h"

/* Rows that one step of a listing reads before it passes them on. */
#define PAGE_ROWS 64

static syncguard_status sqlite_is_locked_attempt(sg_sqlite *sqlite, void *argument, bool immediate,
                                                 syncguard_error *err)
{
    syncguard_is_locked_op *op = argument;
    sg_sqlite_record record;
    (void)immediate;
    syncguard_status status =
        sg_sqlite_record_find(sqlite, SG_SQLITE_READ_KEY, op->key, op->key_length, &record, err);
    if (status != SYNCGUARD_OK)
        return status;
    op->locked = record.live;
    op->dead_lock_id[0] = '\0';
    if (record.found && record.dated && !record.live) {
        memcpy(op->dead_lock_id, record.stored.lock_id, sizeof op->dead_lock_id);
        op->dead_expires_at_ms = record.stored.expires_at_ms;
        op->dead_for_ms = -record.remaining_ms;
    }
    return SYNCGUARD_OK;
}

syncguard_status sg_sqlite_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                     syncguard_error *err)
{
    return sg_sqlite_request(sg_sqlite_of(backend), &op->limits, sqlite_is_locked_attempt, op, err);
}

static syncguard_status sqlite_lookup_attempt(sg_sqlite *sqlite, void *argument, bool immediate,
                                              syncguard_error *err)
{
    syncguard_lookup_op *op = argument;
    bool by_key = op->key != NULL;
    sg_sqlite_record record;
    (void)immediate;
    syncguard_status status = sg_sqlite_record_find(
        sqlite, by_key ? SG_SQLITE_READ_KEY : SG_SQLITE_READ_ID, by_key ? op->key : op->lock_id,
        by_key ? op->key_length : SYNCGUARD_LOCK_ID_CHARS, &record, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (!record.live)
        return SYNCGUARD_ABSENT;
    if (!record.whole)
        return sg_sqlite_record_unreadable(sqlite, err);
    op->record = record.stored;
    return SYNCGUARD_OK;
}

syncguard_status sg_sqlite_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                  syncguard_error *err)
{
    return sg_sqlite_request(sg_sqlite_of(backend), &op->limits, sqlite_lookup_attempt, op, err);
}

/* ---- list ---- */

/* One page of a listing: live records after a key, copied so that nothing is held while the caller
 * handles them. */
typedef struct page {
    char after[SYNCGUARD_KEY_SIZE];
    bool expired; /* records that cleanup may remove, instead of live ones */
    bool last;
    size_t unreadable; /* of all pages so far */
    size_t count;
    syncguard_record records[PAGE_ROWS];
} page;

static syncguard_status sqlite_page_attempt(sg_sqlite *sqlite, void *argument, bool immediate,
                                            syncguard_error *err)
{
    page *work = argument;
    char after[SYNCGUARD_KEY_SIZE];
    sqlite3_stmt *statement = NULL;
    (void)immediate;
    syncguard_status status =
        sg_sqlite_prepare(&sqlite->connection, SG_SQLITE_READ_PAGE, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    memcpy(after, work->after, sizeof after);
    work->count = 0;
    sqlite3_bind_text(statement, 1, work->after, -1, SQLITE_STATIC);
    sqlite3_bind_int(statement, 2, PAGE_ROWS);
    sg_sqlite_record record;
    int rows = 0;
    size_t unreadable = 0;
    bool row = false;
    while ((status = sg_sqlite_step(&sqlite->connection, statement, &row, err)) == SYNCGUARD_OK &&
           row) {
        record.read_ns = syncguard_clock_ns();
        bool dated = sg_sqlite_record_read(sqlite, statement, &record);
        rows++;
        if (!dated || (record.live && !record.whole))
            unreadable++;
        else if ((work->expired ? record.whole && record.remaining_ms < -SYNCGUARD_CLEANUP_GUARD_MS
                                : record.live) != 0)
            work->records[work->count++] = record.stored;
        if (record.key_length > 0)
            memcpy(after, record.stored.key, sizeof after);
    }
    sqlite3_reset(statement);
    if (status != SYNCGUARD_OK)
        return status;
    /* A page without a readable key leaves `after` unchanged, which ends the listing. */
    work->last = rows < PAGE_ROWS || strcmp(after, work->after) == 0;
    memcpy(work->after, after, sizeof after);
    work->unreadable += unreadable;
    return SYNCGUARD_OK;
}

static syncguard_status sqlite_list_locks(syncguard_backend *backend, bool expired,
                                          const syncguard_limits *limits, syncguard_record_fn fn,
                                          void *context, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    int64_t span_ns = syncguard_limits_left_ns(limits);
    bool more = true;
    page *work = syncguard_calloc(1, sizeof *work);
    if (work == NULL)
        return syncguard_fail_memory(err);
    work->expired = expired;
    while (more && status == SYNCGUARD_OK) {
        syncguard_limits own = syncguard_limits_from_now(limits, span_ns);
        status = sg_sqlite_request(sg_sqlite_of(backend), &own, sqlite_page_attempt, work, err);
        if (status == SYNCGUARD_OK)
            status = syncguard_limits_check(&own, err);
        for (size_t i = 0; status == SYNCGUARD_OK && more && i < work->count; i++)
            more = fn(context, &work->records[i]);
        more = more && !work->last;
    }
    if (work->unreadable > 0)
        syncguard_backend_log(backend, SYNCGUARD_LOG_WARN,
                              "%zu stored records cannot be read and are not listed",
                              work->unreadable);
    syncguard_free(work);
    return status;
}

syncguard_status sg_sqlite_list(syncguard_backend *backend, const syncguard_limits *limits,
                                syncguard_record_fn fn, void *context, syncguard_error *err)
{
    return sqlite_list_locks(backend, false, limits, fn, context, err);
}

syncguard_status sg_sqlite_list_expired(syncguard_backend *backend, const syncguard_limits *limits,
                                        syncguard_record_fn fn, void *context, syncguard_error *err)
{
    return sqlite_list_locks(backend, true, limits, fn, context, err);
}
