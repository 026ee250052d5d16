/*
 * One exchange on one connection: the statements leave in one write, and their
 * results come back in one read.
 *
 * Statements are prepared where they are first used on a connection, in the
 * same exchange. An error makes the server skip everything up to its end.
 */
#include <stdio.h>
#include <string.h>

#include "exchange.h"

sg_pg_outcome sg_pg_exchange_lost(sg_pg_exchange *ex)
{
    ex->status = sg_pg_fail(ex->err, ex->sqlstate);
    return SG_PG_BROKEN;
}

/* Looks whether an answer is there before it pays for a sleep. */
static bool spin(const sg_pg_exchange *ex, struct pollfd *fd)
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

static sg_pg_outcome wait_for(sg_pg_exchange *ex, short events)
{
    struct pollfd fd = {PQsocket(ex->connection->pg), events, 0};

    if (fd.fd < 0)
        return sg_pg_exchange_lost(ex);
    if (ex->spin_us == 0 || !spin(ex, &fd)) {
        ex->status = syncguard_wait_fds(&fd, 1, ex->limits, ex->err);
        if (ex->status != SYNCGUARD_OK)
            return SG_PG_LEFT;
    }
    if ((fd.revents & (POLLIN | POLLHUP | POLLERR)) && !PQconsumeInput(ex->connection->pg))
        return sg_pg_exchange_lost(ex);
    return SG_PG_DONE;
}

/* Lets everything that was queued leave, as the end of a request. */
static sg_pg_outcome push(sg_pg_exchange *ex)
{
    PGconn *pg = ex->connection->pg;
    int left;

    if (!PQpipelineSync(pg))
        return sg_pg_exchange_lost(ex);
    while ((left = PQflush(pg)) > 0) {
        sg_pg_outcome got = wait_for(ex, POLLIN | POLLOUT);

        if (got != SG_PG_DONE)
            return got;
    }
    return left < 0 ? sg_pg_exchange_lost(ex) : SG_PG_DONE;
}

bool sg_pg_says_end(const sg_pg_connection *connection, const PGresult *result)
{
    const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);

    return connection->direct && severity && strcmp(severity, "FATAL") == 0;
}

static void note_error(sg_pg_exchange *ex, const PGresult *result)
{
    const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    if (code && !*ex->sqlstate)
        snprintf(ex->sqlstate, sizeof ex->sqlstate, "%s", code);
    if (code && sg_pg_says_end(ex->connection, result))
        ex->final = true;
}

/* Keeps or drops one answer. True at the end of the request. */
static bool take(sg_pg_exchange *ex, PGresult *result, int *at, PGresult **results)
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
static bool complete(const sg_pg_exchange *ex, PGresult *const *results)
{
    int i;

    for (i = 0; i < ex->expected_count; i++) {
        if (ex->expected[i] >= 0 && !results[ex->expected[i]])
            return false;
    }
    return true;
}

static sg_pg_outcome collect(sg_pg_exchange *ex, PGresult **results)
{
    PGconn *pg = ex->connection->pg;
    int at = 0;

    for (;;) {
        sg_pg_outcome got;

        while (!PQisBusy(pg)) {
            if (take(ex, PQgetResult(pg), &at, results)) {
                if (*ex->sqlstate)
                    return SG_PG_REFUSED;
                return complete(ex, results) ? SG_PG_DONE : sg_pg_exchange_lost(ex);
            }
            if (PQstatus(pg) == CONNECTION_BAD)
                return sg_pg_exchange_lost(ex);
        }
        got = wait_for(ex, POLLIN);
        if (got != SG_PG_DONE)
            return got;
    }
}

sg_pg_outcome sg_pg_exchange_run(sg_pg_exchange *ex, PGresult **results)
{
    sg_pg_outcome got = push(ex);

    return got == SG_PG_DONE ? collect(ex, results) : got;
}

bool sg_pg_exchange_queue(const sg_pg *pg, sg_pg_exchange *ex, const sg_pg_call *call, bool session,
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

/* ---- requests outside the table ---------------------------------------------------------- */

syncguard_status sg_pg_query(sg_pg_connection *connection, const char *sql, int count,
                             const char *const *values, const syncguard_limits *limits,
                             PGresult **result, syncguard_error *err)
{
    sg_pg_exchange ex = {.connection = connection, .limits = limits, .err = err};
    PGresult *results[1] = {NULL};
    sg_pg_outcome got;

    ex.expected[ex.expected_count++] = 0;
    if (!PQsendQueryParams(connection->pg, sql, count, NULL, values, NULL, NULL, 0))
        got = sg_pg_exchange_lost(&ex);
    else
        got = sg_pg_exchange_run(&ex, results);
    if (got == SG_PG_REFUSED)
        ex.status = sg_pg_fail(err, ex.sqlstate);
    if (got == SG_PG_DONE && result) {
        *result = results[0];
        results[0] = NULL;
    }
    PQclear(results[0]);
    return got == SG_PG_DONE ? SYNCGUARD_OK : ex.status;
}
