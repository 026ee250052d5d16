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
    if (row.found && !row.live) {
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

static bool copy_column(sqlite3_stmt *statement, int column, char *out, size_t size)
{
    if (sqlite3_column_type(statement, column) != SQLITE_TEXT)
        return false;
    const unsigned char *text = sqlite3_column_text(statement, column);
    size_t bytes = (size_t)sqlite3_column_bytes(statement, column);
    if (text == NULL || bytes >= size)
        return false;
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    return true;
}

/* False if the row is not one that we wrote. */
static bool read_record(const sg_sqlite *sqlite, sqlite3_stmt *statement, int64_t now_ns,
                        syncguard_record *record, bool *live)
{
    if (!copy_column(statement, 0, record->key, sizeof record->key) ||
        !copy_column(statement, 1, record->lock_id, sizeof record->lock_id) ||
        !copy_column(statement, 2, record->owner, sizeof record->owner) ||
        !copy_column(statement, 3, record->fence, sizeof record->fence))
        return false;
    for (int column = 4; column <= 7; column++) {
        if (column != 6 && sqlite3_column_type(statement, column) != SQLITE_INTEGER)
            return false;
    }
    record->expires_at_ms = sqlite3_column_int64(statement, 4);
    record->acquired_at_ms = sqlite3_column_int64(statement, 5);
    const char *boot_id = (const char *)sqlite3_column_text(statement, 6);
    size_t length = (size_t)sqlite3_column_bytes(statement, 6);
    *live =
        boot_id != NULL && sg_sqlite_remaining_ms(sqlite, boot_id, length,
                                                  sqlite3_column_int64(statement, 7), now_ns) > 0;
    return syncguard_fence_valid(record->fence) && syncguard_lock_id_valid(record->lock_id);
}

static syncguard_status attempt_lookup(sg_sqlite *sqlite, void *argument, bool immediate,
                                       syncguard_error *err)
{
    syncguard_lookup_op *op = argument;
    sqlite3_stmt *statement = NULL;
    bool live = false;
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
    int64_t now_ns = syncguard_clock_ns();
    if (code == SQLITE_ROW) {
        if (!read_record(sqlite, statement, now_ns, &op->record, &live))
            status = syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                                    "%s: holds a lock that cannot be read", sqlite->path);
    } else if (code != SQLITE_DONE) {
        status = sg_sqlite_fail(sqlite->db, sqlite->path, code, err);
    }
    sqlite3_reset(statement);
    if (status == SYNCGUARD_OK && !live)
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
        syncguard_record *record = &work->records[work->count];
        bool live = false;
        rows++;
        if (copy_column(statement, 0, after, sizeof after) &&
            read_record(sqlite, statement, syncguard_clock_ns(), record, &live) && live)
            work->count++;
    }
    if (code != SQLITE_DONE)
        status = sg_sqlite_fail(sqlite->db, sqlite->path, code, err);
    sqlite3_reset(statement);
    /* A page of rows that are all foreign would leave `after` where it was: the end. */
    work->last = rows < PAGE_ROWS || strcmp(after, work->after) == 0;
    if (status == SYNCGUARD_OK)
        memcpy(work->after, after, sizeof after);
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
    syncguard_free(work);
    return status;
}
