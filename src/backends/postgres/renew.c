/*
 * Renews many locks per round trip.
 *
 * A batch holds the advisory locks of all its keys until it is committed, and the lock table of the
 * server is finite, so batches are of moderate size. A batch does not wait: a key or row that
 * another session has locked stays undecided.
 */
#include <stdio.h>
#include <string.h>

#include "operations.h"
#include "request.h"

/* Digits of a ttl and a comma. */
#define TTL_BYTES 20
#define IDS_SIZE (SYNCGUARD_BATCH_MAX * SYNCGUARD_LOCK_ID_SIZE + 3)
#define TTLS_SIZE (SYNCGUARD_BATCH_MAX * TTL_BYTES + 3)

/* Columns of the result. */
enum { M_NUMBER, M_FOUND, M_HELD, M_EXPIRES };

/* Arrays in the server's text form; lock ids have no character that needs quoting. */
static void pg_renew_write_arrays(const syncguard_extend_op *items, size_t count, char *ids,
                                  char *ttls)
{
    size_t id_at = 0;
    size_t ttl_at = 0;
    for (size_t i = 0; i < count; i++) {
        id_at += (size_t)snprintf(ids + id_at, IDS_SIZE - id_at, "%c%s", i != 0 ? ',' : '{',
                                  items[i].lock_id);
        ttl_at += (size_t)snprintf(ttls + ttl_at, TTLS_SIZE - ttl_at, "%c%lld", i != 0 ? ',' : '{',
                                   (long long)items[i].ttl_ms);
    }
    snprintf(ids + id_at, IDS_SIZE - id_at, "}");
    snprintf(ttls + ttl_at, TTLS_SIZE - ttl_at, "}");
}

static void pg_renew_read_item(const PGresult *result, int row, syncguard_extend_op *items,
                               size_t count)
{
    bool found = sg_pg_bool(result, row, M_FOUND);
    bool held = sg_pg_bool(result, row, M_HELD);
    int64_t number = 0;
    if (!sg_pg_int64(result, row, M_NUMBER, &number) || number < 1 || (size_t)number > count)
        return;
    syncguard_extend_op *item = &items[number - 1];
    if (sg_pg_int64(result, row, M_EXPIRES, &item->expires_at_ms)) {
        item->status = SYNCGUARD_OK;
    } else if (!found) {
        item->status = SYNCGUARD_ABSENT;
        item->reason = SYNCGUARD_REASON_NOT_FOUND;
    } else if (held) {
        item->status = SYNCGUARD_ABSENT;
        item->reason = SYNCGUARD_REASON_EXPIRED;
    }
}

syncguard_status sg_pg_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                   size_t count, const syncguard_limits *limits,
                                   syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    char *ids = syncguard_malloc(IDS_SIZE);
    char *ttls = syncguard_malloc(TTLS_SIZE);
    syncguard_status status = SYNCGUARD_OK;
    /* Renewals, of which the heartbeat sends two at a time at most, must not wait behind requests
     * that are stuck in the server. */
    sg_pg_request request = {.policy = SG_PG_RESERVED};
    if (ids == NULL || ttls == NULL) {
        status = syncguard_fail_memory(err);
        goto done;
    }
    pg_renew_write_arrays(items, count, ids, ttls);
    sg_pg_request_add(&request, SG_PG_BEGIN, 0);
    sg_pg_request_add(&request, SG_PG_EXTEND_MANY, 4, ids, ttls, "t", pg->tolerance);
    request.notifies = &request.calls[1].values[2];
    sg_pg_request_add(&request, SG_PG_COMMIT, 0);
    status = sg_pg_request_run(pg, &request, limits, err);
    for (size_t i = 0; i < count; i++) {
        items[i].reason = SYNCGUARD_REASON_NONE;
        /* Locked by another session unless the result says otherwise. */
        items[i].status = status == SYNCGUARD_OK ? SYNCGUARD_E_NETWORK_TIMEOUT : status;
        if (request.outcome != SG_PG_NOT_SENT)
            items[i].first_sent_ns = request.first_sent_ns;
    }
    if (status == SYNCGUARD_OK) {
        for (int row = 0; row < PQntuples(request.results[1]); row++)
            pg_renew_read_item(request.results[1], row, items, count);
    }
done:
    sg_pg_request_clear(&request);
    syncguard_free(ids);
    syncguard_free(ttls);
    return status;
}
