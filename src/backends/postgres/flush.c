/*
 * A request: statements that go to the server in one exchange, on a connection of
 * the pool.
 *
 * After an error the session is rolled back before anybody else gets it.
 *
 * What broke is sent again, once, on another connection: every request acts by
 * lock id, so that doing it twice is doing it once.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange.h"

/* How often the server may prefer another transaction before that is the answer. */
#define MAX_CONFLICTS 3
/* The server gives up a twentieth of the time, at most this, before we do: so that its answer
 * still reaches us. */
#define ANSWER_MS 50

void sg_pg_flush_init(sg_pg_flush *flush)
{
    memset(flush, 0, sizeof *flush);
}

void sg_pg_flush_add(sg_pg_flush *flush, sg_pg_statement statement, int count,
                     const char *const *values)
{
    sg_pg_call *call = &flush->calls[flush->count++];
    int i;

    call->statement = statement;
    call->count = count;
    for (i = 0; i < count; i++)
        call->values[i] = values[i];
}

int sg_pg_flush_add_read(const sg_pg *pg, sg_pg_flush *flush, const syncguard_limits *limits,
                         sg_pg_statement statement, int count, const char *const *values)
{
    int64_t left_ns = syncguard_limits_left_ns(limits);
    bool longer =
        left_ns != SYNCGUARD_NO_DEADLINE && left_ns / SYNCGUARD_NS_PER_MS > pg->pool->timeout_ms;
    int place;

    if (longer) {
        sg_pg_flush_add(flush, SG_PG_BEGIN, 0, NULL);
        sg_pg_flush_add(flush, SG_PG_BOUND, 1, (const char *const[]){flush->timeout});
    }
    place = flush->count;
    sg_pg_flush_add(flush, statement, count, values);
    if (longer)
        sg_pg_flush_add(flush, SG_PG_COMMIT, 0, NULL);
    return place;
}

static void clear_results(sg_pg_flush *flush)
{
    int i;

    for (i = 0; i < flush->count; i++) {
        PQclear(flush->results[i]);
        flush->results[i] = NULL;
    }
}

void sg_pg_flush_clear(sg_pg_flush *flush)
{
    clear_results(flush);
}

int64_t sg_pg_server_ms(int64_t left_ms)
{
    left_ms -= left_ms / 20 < ANSWER_MS ? left_ms / 20 : ANSWER_MS;
    if (left_ms < 1)
        return 1;
    return left_ms < INT32_MAX ? left_ms : INT32_MAX;
}

/* Tells the server how long it may wait, if that is not what its session has been told anyway. */
static void set_bound(const sg_pg_connection *connection, sg_pg_flush *flush,
                      const syncguard_limits *limits)
{
    int64_t usual_ms = connection->pool->timeout_ms;
    int64_t left_ns = syncguard_limits_left_ns(limits);
    int64_t left_ms = left_ns == SYNCGUARD_NO_DEADLINE ? usual_ms : left_ns / SYNCGUARD_NS_PER_MS;

    flush->session = connection->bounded && left_ms <= usual_ms &&
                     left_ms >= (usual_ms + sg_pg_server_ms(usual_ms)) / 2;
    snprintf(flush->timeout, sizeof flush->timeout, "%lld", (long long)sg_pg_server_ms(left_ms));
}

bool sg_pg_int64(const PGresult *result, int row, int column, int64_t *out)
{
    const char *text = PQgetvalue(result, row, column);
    char *end = NULL;

    if (PQgetisnull(result, row, column) || !*text)
        return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 && !*end;
}

bool sg_pg_text(const PGresult *result, int row, int column, char *out, size_t size)
{
    int length = PQgetlength(result, row, column);

    if (PQgetisnull(result, row, column) || length < 0 || (size_t)length >= size)
        return false;
    memcpy(out, PQgetvalue(result, row, column), (size_t)length);
    out[length] = '\0';
    return true;
}

static sg_pg_outcome send_flush(sg_pg *pg, sg_pg_exchange *ex, sg_pg_flush *flush)
{
    int i;

    for (i = 0; i < flush->count; i++) {
        if (!sg_pg_exchange_queue(pg, ex, &flush->calls[i], flush->session, i))
            return sg_pg_exchange_lost(ex);
    }
    if (!flush->sent)
        flush->first_sent_ns = syncguard_clock_ns();
    flush->sent = true;
    return sg_pg_exchange_run(ex, flush->results);
}

/* ---- the pool's side --------------------------------------------------------------------- */

/* Makes a session that had an error fit for the next request. */
static void recover(sg_pg *pg, sg_pg_connection *connection, const syncguard_limits *limits)
{
    syncguard_limits soon = syncguard_limits_until(
        limits, syncguard_clock_after(syncguard_clock_ns(), pg->pool->timeout_ms));
    syncguard_status status = SYNCGUARD_OK;

    if (PQtransactionStatus(connection->pg) != PQTRANS_IDLE)
        status = sg_pg_query(connection, "ROLLBACK", 0, NULL, &soon, NULL, NULL);
    if (status == SYNCGUARD_OK)
        sg_pg_give_back(connection);
    else
        sg_pg_discard(connection);
}

/* How often a request was sent again, by cause. */
typedef struct resends {
    int conflicts;
    int breaks;
    int unprepared;
} resends;

/* Says what the server's refusal means; true if the request should be sent again. */
static bool refused(sg_pg *pg, sg_pg_exchange *ex, resends *sent)
{
    const char *code = ex->sqlstate;
    bool again = false;

    if (strcmp(code, "40001") == 0 || strcmp(code, "40P01") == 0) {
        again = sent->conflicts++ < MAX_CONFLICTS;
    } else if (strcmp(code, "26000") == 0 || strcmp(code, "42P05") == 0) {
        /* Another server session than the one that prepared it: a pooler is in between. */
        if (atomic_exchange(&pg->prepared, false))
            syncguard_backend_log(&pg->base, SYNCGUARD_LOG_WARN,
                                  "prepared statements get lost, so they are not used any more; "
                                  "behind a transaction pooler open with pooler=1");
        again = sent->unprepared++ < 1;
        ex->spoilt = true;
    } else if (strcmp(code, "25006") == 0) {
        /* The primary has moved: all connections lead to the old one. */
        sg_pg_distrust(pg->pool);
        again = sent->breaks++ < 1;
    } else if (strcmp(code, "0A000") == 0 || strncmp(code, "25", 2) == 0) {
        /* A plan that no longer fits its table, or a transaction that is none of ours, is gone
         * with the session. */
        sg_pg_distrust(pg->pool);
        again = sent->breaks++ < 1;
    }
    ex->status = sg_pg_fail(ex->err, code);
    if (strcmp(code, "57014") == 0 && syncguard_abort_triggered(ex->limits->abort_object))
        ex->status = syncguard_fail(ex->err, SYNCGUARD_E_ABORTED, code, "aborted");
    return again;
}

/* One try on one connection. True if another should follow. */
static bool try_once(sg_pg *pg, sg_pg_exchange *ex, sg_pg_flush *flush, resends *sent)
{
    sg_pg_connection *connection = ex->connection;
    bool again = false;

    switch (send_flush(pg, ex, flush)) {
    case SG_PG_DONE:
        sg_pg_give_back(connection);
        /* What an earlier try left there. */
        syncguard_error_clear(ex->err);
        ex->status = SYNCGUARD_OK;
        break;
    case SG_PG_REFUSED:
        again = refused(pg, ex, sent);
        if (ex->spoilt)
            sg_pg_discard(connection);
        else
            recover(pg, connection, ex->limits);
        break;
    case SG_PG_BROKEN:
        sg_pg_distrust(pg->pool);
        sg_pg_discard(connection);
        flush->perhaps_done = flush->sent;
        /* Also if the server has said its last word: that may have been after the commit. */
        if (flush->sent) {
            flush->unknown = true;
            flush->pending = flush->pending || !ex->final;
            if (flush->lock_id)
                sg_pg_doubt_add(pg->pool, flush->lock_id, ex->final);
        }
        again = sent->breaks++ < 1;
        break;
    case SG_PG_LEFT:
        flush->unknown = flush->sent;
        flush->pending = flush->sent;
        sg_pg_abandon(connection, flush->sent ? flush->lock_id : NULL);
        break;
    }
    return again;
}

/*
 * Lets a request in: *in is the gate to leave, NULL for one that stays out of the line. One that
 * is pressing may find the line full of callers whose key is stuck in the server: it waits there
 * for a quarter of its time, then for the place aside.
 */
static syncguard_status enter(sg_pg_pool *pool, const sg_pg_flush *flush,
                              const syncguard_limits *limits, syncguard_gate **in,
                              syncguard_error *err)
{
    int64_t now;
    syncguard_limits patience;
    syncguard_status status;

    *in = flush->apart ? NULL : &pool->gate;
    if (flush->apart)
        return SYNCGUARD_OK;
    if (!flush->pressing)
        return syncguard_gate_enter(&pool->gate, limits, err);
    now = syncguard_clock_ns();
    patience = syncguard_limits_until(limits, syncguard_clock_after(now, pool->timeout_ms));
    patience.deadline_ns = now + (patience.deadline_ns - now) / 4;
    status = syncguard_gate_enter(&pool->gate, &patience, err);
    if (status != SYNCGUARD_E_NETWORK_TIMEOUT)
        return status;
    *in = &pool->aside;
    return syncguard_gate_enter(&pool->aside, limits, err);
}

/* Who is not in the line wants one connection more. Where the server has none, it is the line
 * after all: there is one for each who is past it. */
static syncguard_status lend(sg_pg_pool *pool, const syncguard_limits *limits, syncguard_gate **in,
                             sg_pg_connection **out, syncguard_error *err)
{
    syncguard_status status = sg_pg_lend(pool, limits, out, err);

    if (status != SYNCGUARD_E_RATE_LIMITED || *in == &pool->gate)
        return status;
    if (*in)
        syncguard_gate_leave(*in);
    *in = NULL;
    status = syncguard_gate_enter(&pool->gate, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    *in = &pool->gate;
    return sg_pg_lend(pool, limits, out, err);
}

syncguard_status sg_pg_flush_run(sg_pg *pg, sg_pg_flush *flush, const syncguard_limits *limits,
                                 syncguard_error *err)
{
    syncguard_status status = syncguard_limits_check(limits, err);
    resends sent = {0, 0, 0};
    syncguard_gate *in = NULL;
    bool again = true;

    if (status == SYNCGUARD_OK)
        status = enter(pg->pool, flush, limits, &in, err);
    if (status != SYNCGUARD_OK)
        return status;
    while (again) {
        sg_pg_exchange ex = {.limits = limits, .err = err, .spin_us = pg->spin_us};

        clear_results(flush);
        status = lend(pg->pool, limits, &in, &ex.connection, err);
        if (status != SYNCGUARD_OK)
            break;
        set_bound(ex.connection, flush, limits);
        again = try_once(pg, &ex, flush, &sent);
        status = ex.status;
    }
    if (in)
        syncguard_gate_leave(in);
    return status;
}
