/*
 * Reading only: is_locked, lookup, list. Each is one statement outside any
 * transaction, so it never holds a writer up and never waits for one.
 */
#include <string.h>

#include "internal.h"

/* Rows that one step of a listing reads before it hands them out. */
#define PAGE_ROWS 64

/* ---- is_locked ----------------------------------------------------------------------------- */

static syncguard_status attempt_is_locked(sg_sqlite *sqlite, void *argument, bool immediate,
                                          syncguard_error *err)
{
    syncguard_is_locked_op *op = argument;
    sg_row row;
    int64_t now_ns = 0;
    (void)immediate;
    syncguard_status status =
        sg_sqlite_find(sqlite, SG_FIND_KEY, op->key, op->key_length, &row, &now_ns, err);
    if (status != SYNCGUARD_OK)
        return status;
    op->locked = row.live;
    op->dead_lock_id[0] = '\0';
    if (row.found && row.dated && !row.live) {
        memcpy(op->dead_lock_id, row.lock_id, sizeof op->dead_lock_id);
        op->dead_expires_at_ms = row.expires_at_ms;
        op->dead_for_ms = -row.remaining_ms;
    }
    return SYNCGUARD_OK;
}

syncguard_status sg_sqlite_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                     syncguard_error *err)
{
    sg_sqlite *sqlite = sg_sqlite_of(backend);
    syncguard_status status = sg_sqlite_same_process(sqlite, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_run(sqlite, &op->limits, attempt_is_locked, op, err);
    return status;
}

/* ---- whole records ------------------------------------------------------------------------- */

typedef enum record_state { RECORD_DEAD, RECORD_LIVE, RECORD_UNREADABLE } record_state;

/* A live record must be whole to be handed out; owner and time of acquisition need not be. */
static record_state read_record(const sg_sqlite *sqlite, sqlite3_stmt *statement,
                                syncguard_record *record)
{
    int64_t remaining_ms = 0;
    if (!sg_sqlite_remaining_ms(sqlite, statement, 6, syncguard_clock_ns(), &remaining_ms))
        return RECORD_UNREADABLE;
    if (remaining_ms <= 0)
        return RECORD_DEAD;
    (void)sg_sqlite_text(statement, 2, record->owner, sizeof record->owner, NULL);
    record->expires_at_ms = sqlite3_column_int64(statement, 4);
    record->acquired_at_ms = sqlite3_column_type(statement, 5) == SQLITE_INTEGER
                                 ? sqlite3_column_int64(statement, 5)
                                 : 0;
    bool whole = sg_sqlite_text(statement, 0, record->key, sizeof record->key, NULL) &&
                 sg_sqlite_text(statement, 1, record->lock_id, sizeof record->lock_id, NULL) &&
                 sg_sqlite_text(statement, 3, record->fence, sizeof record->fence, NULL) &&
                 sqlite3_column_type(statement, 4) == SQLITE_INTEGER &&
                 syncguard_fence_valid(record->fence) && syncguard_lock_id_valid(record->lock_id);
    return whole ? RECORD_LIVE : RECORD_UNREADABLE;
}

static syncguard_status attempt_lookup(sg_sqlite *sqlite, void *argument, bool immediate,
                                       syncguard_error *err)
{
    syncguard_lookup_op *op = argument;
    sqlite3_stmt *statement = NULL;
    record_state state = RECORD_DEAD;
    (void)immediate;
    syncguard_status status = sg_sqlite_statement(
        sqlite, op->key != NULL ? SG_LOOKUP_KEY : SG_LOOKUP_ID, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (op->key != NULL)
        sqlite3_bind_text(statement, 1, op->key, (int)op->key_length, SQLITE_STATIC);
    else
        sqlite3_bind_text(statement, 1, op->lock_id, SYNCGUARD_LOCK_ID_CHARS, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    if (code == SQLITE_ROW)
        state = read_record(sqlite, statement, &op->record);
    else if (code != SQLITE_DONE)
        status = sg_sqlite_fail(sqlite->db, sqlite->path, code, err);
    sqlite3_reset(statement);
    if (status == SYNCGUARD_OK && state == RECORD_UNREADABLE)
        status = sg_sqlite_unreadable(sqlite, err);
    if (status == SYNCGUARD_OK && state == RECORD_DEAD)
        status = SYNCGUARD_ABSENT;
    return status;
}

syncguard_status sg_sqlite_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                  syncguard_error *err)
{
    sg_sqlite *sqlite = sg_sqlite_of(backend);
    syncguard_status status = sg_sqlite_same_process(sqlite, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_run(sqlite, &op->limits, attempt_lookup, op, err);
    return status;
}

/* ---- list ---------------------------------------------------------------------------------- */

/* One page of a listing: live rows after a key, copied so that nothing is held while the caller
 * looks at them. */
typedef struct page {
    char after[SYNCGUARD_KEY_SIZE];
    bool last;
    size_t unreadable; /* of all pages so far */
    size_t count;
    syncguard_record records[PAGE_ROWS];
} page;

static syncguard_status attempt_page(sg_sqlite *sqlite, void *argument, bool immediate,
                                     syncguard_error *err)
{
    page *work = argument;
    char after[SYNCGUARD_KEY_SIZE];
    sqlite3_stmt *statement = NULL;
    int rows = 0;
    size_t unreadable = 0;
    int code = SQLITE_DONE;
    (void)immediate;
    syncguard_status status = sg_sqlite_statement(sqlite, SG_PAGE, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    memcpy(after, work->after, sizeof after);
    work->count = 0;
    sqlite3_bind_text(statement, 1, work->after, -1, SQLITE_STATIC);
    sqlite3_bind_int(statement, 2, PAGE_ROWS);
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        char key[SYNCGUARD_KEY_SIZE];
        record_state state = read_record(sqlite, statement, &work->records[work->count]);
        rows++;
        work->count += state == RECORD_LIVE;
        unreadable += state == RECORD_UNREADABLE;
        if (sg_sqlite_text(statement, 0, key, sizeof key, NULL))
            memcpy(after, key, sizeof after);
    }
    if (code != SQLITE_DONE)
        status = sg_sqlite_fail(sqlite->db, sqlite->path, code, err);
    sqlite3_reset(statement);
    /* A page of rows that are all foreign would leave `after` where it was: the end. */
    work->last = rows < PAGE_ROWS || strcmp(after, work->after) == 0;
    if (status != SYNCGUARD_OK)
        return status;
    memcpy(work->after, after, sizeof after);
    work->unreadable += unreadable;
    return status;
}

syncguard_status sg_sqlite_list(syncguard_backend *backend, const syncguard_limits *limits,
                                syncguard_record_fn fn, void *context, syncguard_error *err)
{
    sg_sqlite *sqlite = sg_sqlite_of(backend);
    bool more = true;
    syncguard_status status = sg_sqlite_same_process(sqlite, err);
    if (status != SYNCGUARD_OK)
        return status;
    page *work = syncguard_calloc(1, sizeof *work);
    if (work == NULL)
        return syncguard_fail_memory(err);
    while (more && status == SYNCGUARD_OK) {
        status = sg_sqlite_run(sqlite, limits, attempt_page, work, err);
        if (status == SYNCGUARD_OK)
            status = syncguard_limits_check(limits, err);
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
