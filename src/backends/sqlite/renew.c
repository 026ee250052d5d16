/* Many extends in one transaction. */
#include "operations.h"

#include "request.h"

typedef struct batch {
    syncguard_extend_op *items;
    size_t count;
} batch;

/* Whether the failure concerns its own item only: a record that cannot be read. That item is then
 * extended singly. */
static bool sqlite_renew_fails_alone(const sg_sqlite *sqlite, syncguard_status status)
{
    return (status == SYNCGUARD_E_INTERNAL || status == SYNCGUARD_E_INVALID_ARGUMENT) &&
           sqlite3_get_autocommit(sqlite->connection.db) == 0;
}

static syncguard_status sqlite_renew_attempt(sg_sqlite *sqlite, void *argument, bool immediate,
                                             syncguard_error *err)
{
    batch *work = argument;
    int cells[SYNCGUARD_BATCH_MAX];
    (void)immediate; /* it will write, so there is no reason to read first */
    syncguard_status status = sg_sqlite_begin(&sqlite->connection, true, err);
    for (size_t i = 0; i < work->count && status == SYNCGUARD_OK; i++) {
        syncguard_status one = sg_sqlite_extend_row(sqlite, &work->items[i], &cells[i], err);
        work->items[i].status = one;
        if (one != SYNCGUARD_OK && one != SYNCGUARD_ABSENT &&
            !sqlite_renew_fails_alone(sqlite, one))
            status = one;
    }
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_execute(&sqlite->connection, SG_SQLITE_COMMIT, err);
    for (size_t i = 0; i < work->count && status == SYNCGUARD_OK; i++) {
        if (work->items[i].status == SYNCGUARD_OK && cells[i] != SG_SQLITE_NO_CELL)
            sg_sqlite_notify_publish_cell(&sqlite->notify, cells[i]);
    }
    return status;
}

syncguard_status sg_sqlite_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                       size_t count, const syncguard_limits *limits,
                                       syncguard_error *err)
{
    batch work = {items, count};
    return sg_sqlite_request(sg_sqlite_of(backend), limits, sqlite_renew_attempt, &work, err);
}
