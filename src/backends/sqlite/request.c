/* See request.h. */
#include "request.h"

#include "errors.h"

#define FIRST_PAUSE_NS 50000
#define LONGEST_PAUSE_NS (2 * SYNCGUARD_NS_PER_MS)

/* *truncated: the WAL was emptied because the disk is full; that is worth one more attempt. */
static syncguard_status sqlite_request_attempt(sg_sqlite *sqlite, const syncguard_limits *limits,
                                               sg_sqlite_attempt attempt, void *op, bool immediate,
                                               bool *truncated, syncguard_error *err)
{
    sg_sqlite_connection *connection = &sqlite->connection;
    syncguard_status status = syncguard_gate_enter(&sqlite->gate, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    connection->disk_full = false;
    status = sg_sqlite_attach(sqlite, err);
    if (status == SYNCGUARD_OK) {
        status = attempt(sqlite, op, immediate, err);
        sg_sqlite_rollback(connection);
        if (status < 0 && connection->disk_full && !*truncated &&
            sg_sqlite_wal_truncate(&sqlite->wal, connection->db) == SQLITE_OK) {
            *truncated = true;
            status = SG_SQLITE_BUSY;
        }
        if (status == SYNCGUARD_OK) /* may be slow, so it comes after the waiters are notified */
            sg_sqlite_wal_checkpoint(&sqlite->wal, connection->db);
    }
    sg_sqlite_leave(sqlite);
    return status;
}

syncguard_status sg_sqlite_request(sg_sqlite *sqlite, const syncguard_limits *limits,
                                   sg_sqlite_attempt attempt, void *op, syncguard_error *err)
{
    int pauses = 0;
    bool immediate = false;
    bool truncated = false;
    for (;;) {
        syncguard_status status =
            sqlite_request_attempt(sqlite, limits, attempt, op, immediate, &truncated, err);
        if (status != SG_SQLITE_BUSY)
            return status;
        immediate = !immediate;
        if (immediate) /* most likely we read outdated data: no reason to wait */
            continue;
        status = syncguard_backoff_wait(FIRST_PAUSE_NS, pauses++, LONGEST_PAUSE_NS, limits, err);
        if (status == SYNCGUARD_E_NETWORK_TIMEOUT)
            return syncguard_fail(err, status, "SQLITE_BUSY",
                                  "%s: busy, another process held it until the deadline",
                                  sqlite->connection.path);
        if (status != SYNCGUARD_OK)
            return status;
    }
}
