/*
 * Renewing many locks per round trip.
 *
 * A batch holds the advisory locks of all its keys until it is committed, and
 * the server's table for those is finite: so batches are of moderate size. It
 * waits for nobody; what somebody else is busy with stays undecided.
 */
#include <stdio.h>
#include <string.h>

#include "pg.h"

#define BATCH 256
/* Digits of a ttl and a comma. */
#define TTL_BYTES 20
#define IDS_SIZE (BATCH * SYNCGUARD_LOCK_ID_SIZE + 3)
#define TTLS_SIZE (BATCH * TTL_BYTES + 3)

/* Columns of the answer. */
enum { M_NUMBER, M_FOUND, M_HELD, M_EXPIRES };

/* Arrays in the server's text form; lock ids have no character that needs quoting. */
static void write_arrays(const syncguard_extend_op *items, size_t count, char *ids, char *ttls)
{
    size_t id_at = 0;
    size_t ttl_at = 0;
    size_t i;

    for (i = 0; i < count; i++) {
        id_at += (size_t)snprintf(ids + id_at, IDS_SIZE - id_at, "%c%s", i ? ',' : '{',
                                  items[i].lock_id);
        ttl_at += (size_t)snprintf(ttls + ttl_at, TTLS_SIZE - ttl_at, "%c%lld", i ? ',' : '{',
                                   (long long)items[i].ttl_ms);
    }
    snprintf(ids + id_at, IDS_SIZE - id_at, "}");
    snprintf(ttls + ttl_at, TTLS_SIZE - ttl_at, "}");
}

static void read_item(const PGresult *result, int row, syncguard_extend_op *items, size_t count)
{
    bool found = PQgetvalue(result, row, M_FOUND)[0] == 't';
    bool held = PQgetvalue(result, row, M_HELD)[0] == 't';
    int64_t number = 0;
    syncguard_extend_op *item;

    if (!sg_pg_int64(result, row, M_NUMBER, &number) || number < 1 || (size_t)number > count)
        return;
    item = &items[number - 1];
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

static syncguard_status extend_batch(sg_pg *pg, syncguard_extend_op *items, size_t count,
                                     const syncguard_limits *limits, syncguard_error *err)
{
    char *ids = syncguard_malloc(IDS_SIZE);
    char *ttls = syncguard_malloc(TTLS_SIZE);
    syncguard_status status = SYNCGUARD_OK;
    sg_pg_flush flush;
    size_t i;

    sg_pg_flush_init(&flush);
    /* Renewals, which the heartbeat sends one at a time, must not wait behind operations that are
     * stuck in the server. */
    flush.apart = true;
    if (!ids || !ttls) {
        status = syncguard_fail_memory(err);
        goto out;
    }
    write_arrays(items, count, ids, ttls);
    sg_pg_flush_add(&flush, SG_PG_BEGIN, 0, NULL);
    sg_pg_flush_add(&flush, SG_PG_EXTEND_MANY, 3, (const char *const[]){ids, ttls, pg->tolerance});
    sg_pg_flush_add(&flush, SG_PG_COMMIT, 0, NULL);
    status = sg_pg_flush_run(pg, &flush, limits, err);
    for (i = 0; i < count; i++) {
        items[i].reason = SYNCGUARD_REASON_NONE;
        /* Busy with somebody else unless the answer says otherwise. */
        items[i].status = status == SYNCGUARD_OK ? SYNCGUARD_E_NETWORK_TIMEOUT : status;
        if (flush.sent)
            items[i].first_sent_ns = flush.first_sent_ns;
    }
    if (status == SYNCGUARD_OK) {
        int row;

        for (row = 0; row < PQntuples(flush.results[1]); row++)
            read_item(flush.results[1], row, items, count);
    }
out:
    sg_pg_flush_clear(&flush);
    syncguard_free(ids);
    syncguard_free(ttls);
    return status;
}

syncguard_status sg_pg_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                   size_t count, const syncguard_limits *limits,
                                   syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    syncguard_status result = SYNCGUARD_OK;
    bool decided = count == 0;
    size_t at;

    for (at = 0; at < count; at += BATCH) {
        size_t size = count - at < BATCH ? count - at : BATCH;
        syncguard_status status = extend_batch(pg, items + at, size, limits, err);
        size_t i;

        decided = decided || status == SYNCGUARD_OK;
        if (status == SYNCGUARD_OK)
            continue;
        /* The rest would meet the same fate. */
        result = status;
        for (i = at; i < count; i++)
            items[i].status = status;
        break;
    }
    if (!decided)
        return result;
    syncguard_error_clear(err);
    return SYNCGUARD_OK;
}
