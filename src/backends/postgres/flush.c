/*
 * One round trip: the statements of a request leave in one write, and their
 * results come back in one read.
 *
 * Statements are prepared where they are first used on a connection, in the
 * same flush. An error makes the server skip everything up to the end of the
 * request; the session is then rolled back before anybody else gets it.
 *
 * What broke is sent again, once, on another connection: every request acts by
 * lock id, so that doing it twice is doing it once.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pg.h"

/* How often the server may prefer another transaction before that is the answer. */
#define MAX_CONFLICTS 3
/* The server gives up a twentieth of the time, at most this, before we do: so that its answer
 * still reaches us. */
#define ANSWER_MS 50

typedef enum outcome {
    OUTCOME_DONE,
    OUTCOME_REFUSED, /* the server answered with an error; the session lives */
    OUTCOME_BROKEN,  /* the connection is gone */
    OUTCOME_LEFT     /* our time is up, or the abort was triggered */
} outcome;

/* What one exchange is about. */
typedef struct exchange {
    sg_pg_connection *connection;
    const syncguard_limits *limits;
    syncguard_error *err;
    syncguard_status status;
    int spin_us;
    char sqlstate[6];
    bool final;  /* broken, but the server said that it ended the session */
    bool spoilt; /* refused, and the session is of no more use */
    /* which call an answer belongs to; -1 - statement: it prepares that one */
    int expected[2 * SG_PG_MAX_CALLS];
    int expected_count;
} exchange;

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

/* ---- sending and receiving --------------------------------------------------------------- */

static outcome lost(exchange *ex)
{
    ex->status = sg_pg_fail(ex->err, ex->sqlstate);
    return OUTCOME_BROKEN;
}

/* Looks whether an answer is there before it pays for a sleep. */
static bool spin(const exchange *ex, struct pollfd *fd)
{
    int64_t end = syncguard_clock_ns() + (int64_t)ex->spin_us * 1000;

    if (end > ex->limits->deadline_ns)
        end = ex->limits->deadline_ns;
    while (syncguard_clock_ns() < end && !syncguard_abort_triggered(ex->limits->abort_object)) {
        if (poll(fd, 1, 0) > 0)
            return true;
    }
    return false;
}

static outcome wait_for(exchange *ex, short events)
{
    struct pollfd fd = {PQsocket(ex->connection->pg), events, 0};

    if (fd.fd < 0)
        return lost(ex);
    if (ex->spin_us == 0 || !spin(ex, &fd)) {
        ex->status = syncguard_wait_fds(&fd, 1, ex->limits, ex->err);
        if (ex->status != SYNCGUARD_OK)
            return OUTCOME_LEFT;
    }
    if ((fd.revents & (POLLIN | POLLHUP | POLLERR)) && !PQconsumeInput(ex->connection->pg))
        return lost(ex);
    return OUTCOME_DONE;
}

/* Lets everything that was queued leave, as the end of a request. */
static outcome push(exchange *ex)
{
    PGconn *pg = ex->connection->pg;
    int left;

    if (!PQpipelineSync(pg))
        return lost(ex);
    while ((left = PQflush(pg)) > 0) {
        outcome got = wait_for(ex, POLLIN | POLLOUT);

        if (got != OUTCOME_DONE)
            return got;
    }
    return left < 0 ? lost(ex) : OUTCOME_DONE;
}

bool sg_pg_says_end(const sg_pg_connection *connection, const PGresult *result)
{
    const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);

    return connection->direct && severity && strcmp(severity, "FATAL") == 0;
}

static void note_error(exchange *ex, const PGresult *result)
{
    const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    if (code && !*ex->sqlstate)
        snprintf(ex->sqlstate, sizeof ex->sqlstate, "%s", code);
    if (code && sg_pg_says_end(ex->connection, result))
        ex->final = true;
}

/* Keeps or drops one answer. True at the end of the request. */
static bool take(exchange *ex, PGresult *result, int *at, PGresult **results)
{
    int which = *at < ex->expected_count ? ex->expected[*at] : -1;
    PGresult *unwanted = result;
    bool end = false;

    if (!result) {
        (*at)++;
        return false;
    }
    switch (PQresultStatus(result)) {
    case PGRES_PIPELINE_SYNC:
        end = true;
        break;
    case PGRES_COMMAND_OK:
    case PGRES_TUPLES_OK:
        if (which < 0) {
            ex->connection->prepared |= UINT32_C(1) << (-1 - which);
        } else if (!results[which]) {
            results[which] = result;
            unwanted = NULL;
        }
        break;
    case PGRES_PIPELINE_ABORTED:
        break;
    default:
        note_error(ex, result);
        break;
    }
    PQclear(unwanted);
    return end;
}

/* Every statement was answered. One may not be although no code says so: libpq's own errors, such
 * as no memory for a result, have none. */
static bool complete(const exchange *ex, PGresult *const *results)
{
    int i;

    for (i = 0; i < ex->expected_count; i++) {
        if (ex->expected[i] >= 0 && !results[ex->expected[i]])
            return false;
    }
    return true;
}

static outcome collect(exchange *ex, PGresult **results)
{
    PGconn *pg = ex->connection->pg;
    int at = 0;

    for (;;) {
        outcome got;

        while (!PQisBusy(pg)) {
            if (take(ex, PQgetResult(pg), &at, results)) {
                if (*ex->sqlstate)
                    return OUTCOME_REFUSED;
                return complete(ex, results) ? OUTCOME_DONE : lost(ex);
            }
            if (PQstatus(pg) == CONNECTION_BAD)
                return lost(ex);
        }
        got = wait_for(ex, POLLIN);
        if (got != OUTCOME_DONE)
            return got;
    }
}

static bool queue_call(const sg_pg *pg, exchange *ex, const sg_pg_call *call, bool session,
                       int which)
{
    PGconn *to = ex->connection->pg;
    sg_pg_statement statement = session ? sg_pg_session_twin(call->statement) : call->statement;
    int skip = statement != call->statement;
    const char *const *values = call->values + skip;
    const char *name = pg->names[statement];
    const char *sql = pg->sql[statement];
    int count = call->count - skip;

    if (!ex->connection->direct || !atomic_load_explicit(&pg->prepared, memory_order_relaxed)) {
        ex->expected[ex->expected_count++] = which;
        return PQsendQueryParams(to, sql, count, NULL, values, NULL, NULL, 0);
    }
    if (!(ex->connection->prepared & (UINT32_C(1) << statement))) {
        ex->expected[ex->expected_count++] = -1 - (int)statement;
        if (!PQsendPrepare(to, name, sql, 0, NULL))
            return false;
    }
    ex->expected[ex->expected_count++] = which;
    return PQsendQueryPrepared(to, name, count, values, NULL, NULL, 0);
}

static outcome send_flush(sg_pg *pg, exchange *ex, sg_pg_flush *flush)
{
    outcome got;
    int i;

    for (i = 0; i < flush->count; i++) {
        if (!queue_call(pg, ex, &flush->calls[i], flush->session, i))
            return lost(ex);
    }
    if (!flush->sent)
        flush->first_sent_ns = syncguard_clock_ns();
    flush->sent = true;
    got = push(ex);
    return got == OUTCOME_DONE ? collect(ex, flush->results) : got;
}

/* ---- requests outside the table ---------------------------------------------------------- */

syncguard_status sg_pg_query(sg_pg_connection *connection, const char *sql, int count,
                             const char *const *values, const syncguard_limits *limits,
                             PGresult **result, syncguard_error *err)
{
    exchange ex = {.connection = connection, .limits = limits, .err = err};
    PGresult *results[1] = {NULL};
    outcome got;

    ex.expected[ex.expected_count++] = 0;
    if (!PQsendQueryParams(connection->pg, sql, count, NULL, values, NULL, NULL, 0))
        got = lost(&ex);
    else
        got = push(&ex);
    if (got == OUTCOME_DONE)
        got = collect(&ex, results);
    if (got == OUTCOME_REFUSED)
        ex.status = sg_pg_fail(err, ex.sqlstate);
    if (got == OUTCOME_DONE && result) {
        *result = results[0];
        results[0] = NULL;
    }
    PQclear(results[0]);
    return got == OUTCOME_DONE ? SYNCGUARD_OK : ex.status;
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
static bool refused(sg_pg *pg, exchange *ex, resends *sent)
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
static bool try_once(sg_pg *pg, exchange *ex, sg_pg_flush *flush, resends *sent)
{
    sg_pg_connection *connection = ex->connection;
    bool again = false;

    switch (send_flush(pg, ex, flush)) {
    case OUTCOME_DONE:
        sg_pg_give_back(connection);
        /* What an earlier try left there. */
        syncguard_error_clear(ex->err);
        ex->status = SYNCGUARD_OK;
        break;
    case OUTCOME_REFUSED:
        again = refused(pg, ex, sent);
        if (ex->spoilt)
            sg_pg_discard(connection);
        else
            recover(pg, connection, ex->limits);
        break;
    case OUTCOME_BROKEN:
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
    case OUTCOME_LEFT:
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
        exchange ex = {.limits = limits, .err = err, .spin_us = pg->spin_us};

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
