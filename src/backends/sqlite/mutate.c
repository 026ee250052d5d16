/*
 * Acquire, release, undo, extend, cleanup.
 *
 * Every decision is made in one transaction that first reads the record, then reads the clock, then
 * writes. SQLite allows the write only if nothing was committed since the read.
 *
 * Only grants are synced. A release or an extend need not be: a crash of the machine ends the
 * holder as well, and after it the locks of the old boot are dead.
 */
#include "operations.h"

#include <string.h>

#include "record.h"
#include "request.h"
#include "syncguard/sqlite.h"

/* How long an acquire whose grant is not durable tries to take the grant back. */
#define TAKE_BACK_NS (100 * SYNCGUARD_NS_PER_MS)

/* ---- acquire ---- */

typedef struct acquire_context {
    syncguard_acquire_op *op;
    char counter[SYNCGUARD_NAME_SIZE];
    size_t counter_length;
    unsigned sync_failures; /* when the attempt began */
} acquire_context;

/* *current is 0 if there is no counter yet. */
static syncguard_status sqlite_counter_read(sg_sqlite *sqlite, const acquire_context *context,
                                            int64_t *current, syncguard_error *err)
{
    sg_sqlite_connection *connection = &sqlite->connection;
    sqlite3_stmt *statement = NULL;
    *current = 0;
    syncguard_status status =
        sg_sqlite_prepare(connection, SG_SQLITE_READ_COUNTER, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite3_bind_text(statement, 1, context->counter, (int)context->counter_length, SQLITE_STATIC);
    bool row = false;
    status = sg_sqlite_step(connection, statement, &row, err);
    if (row && sqlite3_column_type(statement, 0) == SQLITE_INTEGER)
        *current = sqlite3_column_int64(statement, 0);
    else if (row)
        status = syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                                "%s: a fence counter is not an integer", connection->path);
    sqlite3_reset(statement);
    return status;
}

static syncguard_status sqlite_counter_write(sg_sqlite *sqlite, const acquire_context *context,
                                             syncguard_error *err)
{
    sqlite3_stmt *statement = NULL;
    syncguard_status status =
        sg_sqlite_prepare(&sqlite->connection, SG_SQLITE_WRITE_COUNTER, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite3_bind_text(statement, 1, context->counter, (int)context->counter_length, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, context->op->fence);
    return sg_sqlite_finish(&sqlite->connection, statement, err);
}

static syncguard_status sqlite_lock_write(sg_sqlite *sqlite, const syncguard_acquire_op *op,
                                          const char *fence, int64_t wall_ms, syncguard_error *err)
{
    sqlite3_stmt *statement = NULL;
    int64_t now_ms = sg_sqlite_boot_ms(&sqlite->boot, op->first_sent_ns);
    syncguard_status status =
        sg_sqlite_prepare(&sqlite->connection, SG_SQLITE_WRITE_LOCK, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite3_bind_text(statement, 1, op->key, (int)op->key_length, SQLITE_STATIC);
    sqlite3_bind_text(statement, 2, op->lock_id, SYNCGUARD_LOCK_ID_CHARS, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 3, op->expires_at_ms);
    sqlite3_bind_int64(statement, 4, wall_ms);
    sqlite3_bind_text(statement, 5, fence, SYNCGUARD_FENCE_DIGITS, SQLITE_STATIC);
    sqlite3_bind_text(statement, 6, op->owner, -1, SQLITE_STATIC);
    sqlite3_bind_text(statement, 7, sqlite->boot.id, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 8, now_ms);
    sqlite3_bind_int64(statement, 9, now_ms + op->ttl_ms);
    return sg_sqlite_finish(&sqlite->connection, statement, err);
}

/* A commit that failed is rolled back. The outcome is unknown only if the file cannot be read
 * then. */
static syncguard_status sqlite_grant_commit(sg_sqlite *sqlite, syncguard_acquire_op *op,
                                            syncguard_error *err)
{
    sg_sqlite_record record;
    syncguard_status status = sg_sqlite_execute(&sqlite->connection, SG_SQLITE_COMMIT, err);
    if (status == SYNCGUARD_OK)
        return status;
    sg_sqlite_rollback(&sqlite->connection);
    if (sg_sqlite_record_find(sqlite, SG_SQLITE_READ_KEY, op->key, op->key_length, &record, NULL) !=
        SYNCGUARD_OK)
        op->may_have_been_granted = true;
    else if (record.found && strcmp(record.stored.lock_id, op->lock_id) == 0)
        return SYNCGUARD_OK;
    return status;
}

/* read_ns: when the key was found free. The stored expiry counts from then, so the lease may too.
 */
static syncguard_status sqlite_lock_grant(sg_sqlite *sqlite, acquire_context *context,
                                          int64_t read_ns, syncguard_error *err)
{
    syncguard_acquire_op *op = context->op;
    char fence[SYNCGUARD_FENCE_SIZE];
    int64_t current = 0;
    int64_t wall_ms = syncguard_wall_ms();
    op->first_sent_ns = read_ns;
    syncguard_status status = sqlite_counter_read(sqlite, context, &current, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_fence_next(current, &op->fence, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_fence_format(op->fence, fence, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_expiry(wall_ms, op->ttl_ms, &op->expires_at_ms, err);
    if (status == SYNCGUARD_OK)
        status = sqlite_counter_write(sqlite, context, err);
    if (status == SYNCGUARD_OK)
        status = sqlite_lock_write(sqlite, op, fence, wall_ms, err);
    if (status == SYNCGUARD_OK)
        status = sqlite_grant_commit(sqlite, op, err);
    return status;
}

/* The same request was granted before: the record has its grant. */
static syncguard_status sqlite_grant_from_record(const sg_sqlite *sqlite, syncguard_acquire_op *op,
                                                 const sg_sqlite_record *record,
                                                 syncguard_error *err)
{
    if (!syncguard_fence_parse(record->stored.fence, &op->fence) || !record->dated) {
        op->may_have_been_granted = true; /* it is ours, but there is nothing to return */
        return sg_sqlite_record_unreadable(sqlite, err);
    }
    op->expires_at_ms = record->stored.expires_at_ms;
    return SYNCGUARD_OK;
}

static syncguard_status sqlite_acquire_attempt(sg_sqlite *sqlite, void *argument, bool immediate,
                                               syncguard_error *err)
{
    acquire_context *context = argument;
    syncguard_acquire_op *op = context->op;
    sg_sqlite_connection *connection = &sqlite->connection;
    sg_sqlite_record record;
    syncguard_status status =
        sg_sqlite_wal_recover(&sqlite->wal, connection->db, &context->sync_failures, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_begin(connection, immediate, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_record_find(sqlite, SG_SQLITE_READ_KEY, op->key, op->key_length, &record,
                                       err);
    if (status != SYNCGUARD_OK)
        return status;
    if (!record.live)
        return sqlite_lock_grant(sqlite, context, record.read_ns, err);
    if (strcmp(record.stored.lock_id, op->lock_id) == 0)
        return sqlite_grant_from_record(sqlite, op, &record, err);
    op->remaining_ms = record.remaining_ms;
    return SYNCGUARD_LOCKED;
}

syncguard_status sg_sqlite_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                                   syncguard_error *err)
{
    sg_sqlite *sqlite = sg_sqlite_of(backend);
    acquire_context context;
    context.op = op;
    syncguard_status status = syncguard_fence_name(NULL, op->key, SYNCGUARD_SQLITE_LIMIT_BYTES,
                                                   SYNCGUARD_SQLITE_RESERVE_BYTES, context.counter,
                                                   &context.counter_length, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = sg_sqlite_request(sqlite, &op->limits, sqlite_acquire_attempt, &context, err);
    /* Watching needs a thread, so only an acquire that finds the key held watches it, and then
     * tries once more. */
    if (status == SYNCGUARD_LOCKED && op->watch) {
        bool added = false;
        bool watched = sg_sqlite_notify_watch(&sqlite->notify, op->key, op->key_length, &added);
        if (added)
            status = sg_sqlite_request(sqlite, &op->limits, sqlite_acquire_attempt, &context, err);
        op->armed_ms = watched ? SYNCGUARD_ARMED_MS : 0;
    }
    if (status == SYNCGUARD_OK && sqlite->durable) {
        status = sg_sqlite_wal_sync(&sqlite->wal, context.sync_failures, err);
        op->may_have_been_granted = status != SYNCGUARD_OK;
    }
    /* A grant that may not survive a crash is not reported. It is taken back at once, so that the
     * caller's next attempt does not find it; other threads may have found it already. */
    if (status < 0 && op->may_have_been_granted) {
        syncguard_limits limits = {syncguard_clock_ns() + TAKE_BACK_NS, NULL};
        op->may_have_been_granted = sg_sqlite_undo(backend, op->key, op->key_length, op->lock_id, 0,
                                                   &limits, NULL) != SYNCGUARD_OK;
        if (!op->may_have_been_granted)
            syncguard_backend_key_changed(backend, op->key, op->key_length);
    }
    return status;
}

/* ---- release, undo ---- */

static syncguard_status sqlite_lock_delete(sg_sqlite *sqlite, const char *lock_id,
                                           syncguard_error *err)
{
    sqlite3_stmt *statement = NULL;
    syncguard_status status =
        sg_sqlite_prepare(&sqlite->connection, SG_SQLITE_DELETE_LOCK, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite3_bind_text(statement, 1, lock_id, SYNCGUARD_LOCK_ID_CHARS, SQLITE_STATIC);
    status = sg_sqlite_finish(&sqlite->connection, statement, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_execute(&sqlite->connection, SG_SQLITE_COMMIT, err);
    return status;
}

static syncguard_status sqlite_release_attempt(sg_sqlite *sqlite, void *argument, bool immediate,
                                               syncguard_error *err)
{
    syncguard_release_op *op = argument;
    sg_sqlite_record record;
    syncguard_status status = sg_sqlite_begin(&sqlite->connection, immediate, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_record_find(sqlite, SG_SQLITE_READ_ID, op->lock_id,
                                       SYNCGUARD_LOCK_ID_CHARS, &record, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_record_owned(&record, op->lock_id, &op->reason);
    if (status == SYNCGUARD_OK)
        status = sqlite_lock_delete(sqlite, record.stored.lock_id, err);
    if (status == SYNCGUARD_OK) {
        memcpy(op->key, record.stored.key, record.key_length + 1);
        op->key_length = record.key_length;
        sg_sqlite_notify_publish(&sqlite->notify, op->key, op->key_length);
    }
    return status;
}

syncguard_status sg_sqlite_release(syncguard_backend *backend, syncguard_release_op *op,
                                   syncguard_error *err)
{
    return sg_sqlite_request(sg_sqlite_of(backend), &op->limits, sqlite_release_attempt, op, err);
}

/* A store that answers at once has no request in flight, so a grant that is not there now never
 * comes. */
syncguard_status sg_sqlite_undo(syncguard_backend *backend, const char *key, size_t key_length,
                                const char *lock_id, int64_t until_ns,
                                const syncguard_limits *limits, syncguard_error *err)
{
    (void)key;
    (void)key_length;
    (void)until_ns;
    syncguard_release_op op;
    memset(&op, 0, sizeof op);
    op.lock_id = lock_id;
    op.limits = *limits;
    syncguard_status status = sg_sqlite_release(backend, &op, err);
    return status == SYNCGUARD_ABSENT ? SYNCGUARD_OK : status;
}

/* ---- extend ---- */

syncguard_status sg_sqlite_extend_row(sg_sqlite *sqlite, syncguard_extend_op *op, int *cell,
                                      syncguard_error *err)
{
    *cell = SG_SQLITE_NO_CELL;
    sg_sqlite_record record;
    syncguard_status status = sg_sqlite_record_find(sqlite, SG_SQLITE_READ_ID, op->lock_id,
                                                    SYNCGUARD_LOCK_ID_CHARS, &record, err);
    if (status != SYNCGUARD_OK)
        return status;
    op->first_sent_ns = record.read_ns;
    status = sg_sqlite_record_owned(&record, op->lock_id, &op->reason);
    if (status == SYNCGUARD_OK)
        status = syncguard_expiry(syncguard_wall_ms(), op->ttl_ms, &op->expires_at_ms, err);
    sqlite3_stmt *statement = NULL;
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_prepare(&sqlite->connection, SG_SQLITE_EXTEND_LOCK, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (op->ttl_ms + SYNCGUARD_TIME_TOLERANCE_MS < record.remaining_ms)
        *cell = sg_sqlite_notify_cell(record.stored.key, record.key_length);
    int64_t now_ms = sg_sqlite_boot_ms(&sqlite->boot, record.read_ns);
    sqlite3_bind_text(statement, 1, op->lock_id, SYNCGUARD_LOCK_ID_CHARS, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, op->expires_at_ms);
    sqlite3_bind_text(statement, 3, sqlite->boot.id, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 4, now_ms);
    sqlite3_bind_int64(statement, 5, now_ms + op->ttl_ms);
    return sg_sqlite_finish(&sqlite->connection, statement, err);
}

static syncguard_status sqlite_extend_attempt(sg_sqlite *sqlite, void *argument, bool immediate,
                                              syncguard_error *err)
{
    int cell = SG_SQLITE_NO_CELL;
    syncguard_status status = sg_sqlite_begin(&sqlite->connection, immediate, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_extend_row(sqlite, argument, &cell, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_execute(&sqlite->connection, SG_SQLITE_COMMIT, err);
    if (status == SYNCGUARD_OK && cell != SG_SQLITE_NO_CELL)
        sg_sqlite_notify_publish_cell(&sqlite->notify, cell);
    return status;
}

syncguard_status sg_sqlite_extend(syncguard_backend *backend, syncguard_extend_op *op,
                                  syncguard_error *err)
{
    return sg_sqlite_request(sg_sqlite_of(backend), &op->limits, sqlite_extend_attempt, op, err);
}

/* ---- cleanup ---- */

static syncguard_status sqlite_cleanup_attempt(sg_sqlite *sqlite, void *argument, bool immediate,
                                               syncguard_error *err)
{
    const syncguard_cleanup_op *op = argument;
    sg_sqlite_record record;
    syncguard_status status = sg_sqlite_begin(&sqlite->connection, immediate, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_record_find(sqlite, SG_SQLITE_READ_KEY, op->key, op->key_length, &record,
                                       err);
    if (status != SYNCGUARD_OK)
        return status;
    if (!record.found || !record.dated || strcmp(record.stored.lock_id, op->lock_id) != 0 ||
        record.stored.expires_at_ms != op->expires_at_ms ||
        record.remaining_ms >= -SYNCGUARD_CLEANUP_GUARD_MS)
        return SYNCGUARD_ABSENT;
    return sqlite_lock_delete(sqlite, op->lock_id, err);
}

syncguard_status sg_sqlite_cleanup(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                   syncguard_error *err)
{
    return sg_sqlite_request(sg_sqlite_of(backend), &op->limits, sqlite_cleanup_attempt, (void *)op,
                             err);
}
