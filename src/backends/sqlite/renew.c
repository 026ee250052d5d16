/*
 * Renewing: extend, and many extends in one transaction.
 *
 * An extend is not synced: a crash of the machine ends the holder as well, and
 * after it the locks of the old boot are dead anyway.
 */
#include <string.h>

#include "internal.h"

/* So many renewals share one transaction: long enough to be cheap, short enough that the write
 * lock is free again within a few milliseconds. */
#define BATCH 512

/* Inside a transaction. OK or ABSENT; nothing is committed yet. */
static syncguard_status renew_one(sg_sqlite *sqlite, syncguard_extend_op *op, syncguard_error *err)
{
    sg_row row;
    sqlite3_stmt *statement = NULL;
    int64_t now_ns = 0;
    syncguard_status status = sg_sqlite_find(sqlite, SG_FIND_ID, op->lock_id,
                                             SYNCGUARD_LOCK_ID_CHARS, &row, &now_ns, err);
    if (status != SYNCGUARD_OK)
        return status;
    op->first_sent_ns = now_ns;
    if (!row.live || strcmp(row.lock_id, op->lock_id) != 0) {
        op->reason = row.found ? SYNCGUARD_REASON_EXPIRED : SYNCGUARD_REASON_NOT_FOUND;
        return SYNCGUARD_ABSENT;
    }
    status = syncguard_expiry(syncguard_wall_ms(), op->ttl_ms, &op->expires_at_ms, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_statement(sqlite, SG_RENEW, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    int64_t now_ms = sg_boot_ms(&sqlite->boot, now_ns);
    sqlite3_bind_text(statement, 1, op->lock_id, SYNCGUARD_LOCK_ID_CHARS, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, op->expires_at_ms);
    sqlite3_bind_text(statement, 3, sqlite->boot.id, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 4, now_ms);
    sqlite3_bind_int64(statement, 5, now_ms + op->ttl_ms);
    return sg_sqlite_done(sqlite, statement, err);
}

static syncguard_status attempt_extend(sg_sqlite *sqlite, void *argument, bool immediate,
                                       syncguard_error *err)
{
    syncguard_status status = sg_sqlite_begin(sqlite, immediate, err);
    if (status == SYNCGUARD_OK)
        status = renew_one(sqlite, argument, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_do(sqlite, SG_COMMIT, err);
    if (status == SYNCGUARD_OK)
        sg_sqlite_checkpoint_late(sqlite);
    return status;
}

syncguard_status sg_sqlite_extend(syncguard_backend *backend, syncguard_extend_op *op,
                                  syncguard_error *err)
{
    sg_sqlite *sqlite = sg_sqlite_of(backend);
    syncguard_status status = sg_sqlite_same_process(sqlite, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_run(sqlite, &op->limits, attempt_extend, op, err);
    return status;
}

typedef struct batch {
    syncguard_extend_op *items;
    size_t count;
} batch;

static syncguard_status attempt_batch(sg_sqlite *sqlite, void *argument, bool immediate,
                                      syncguard_error *err)
{
    batch *work = argument;
    (void)immediate; /* it will write: no reason to read first */
    syncguard_status status = sg_sqlite_begin(sqlite, true, err);
    for (size_t i = 0; i < work->count && status == SYNCGUARD_OK; i++) {
        work->items[i].status = renew_one(sqlite, &work->items[i], err);
        if (work->items[i].status != SYNCGUARD_ABSENT)
            status = work->items[i].status;
    }
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_do(sqlite, SG_COMMIT, err);
    if (status == SYNCGUARD_OK)
        sg_sqlite_checkpoint_late(sqlite);
    return status;
}

syncguard_status sg_sqlite_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                       size_t count, const syncguard_limits *limits,
                                       syncguard_error *err)
{
    sg_sqlite *sqlite = sg_sqlite_of(backend);
    size_t decided = 0;
    syncguard_status status = sg_sqlite_same_process(sqlite, err);
    for (size_t done = 0; done < count; done += BATCH) {
        batch work = {items + done, count - done < BATCH ? count - done : BATCH};
        if (status == SYNCGUARD_OK)
            status = sg_sqlite_run(sqlite, limits, attempt_batch, &work, err);
        if (status == SYNCGUARD_OK) {
            decided += work.count;
            continue;
        }
        for (size_t i = 0; i < work.count; i++)
            work.items[i].status = status;
    }
    return decided > 0 ? SYNCGUARD_OK : status;
}
