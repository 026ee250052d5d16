/*
 * One round trip, in libpq's pipeline mode. An error makes the server skip everything up to the end
 * of the pipeline.
 */
#include <stdio.h>
#include <string.h>

#include "errors.h"
#include "round_trip.h"

sg_pg_reply sg_pg_round_trip_broken(sg_pg_round_trip *trip)
{
    /* If the server announced the end of the session before, it has not read this request. */
    trip->session_over =
        trip->session_over || (trip->connection->direct && trip->connection->ended);
    trip->status = sg_pg_fail(trip->err, trip->sqlstate);
    return SG_PG_BROKEN;
}

static sg_pg_reply round_trip_wait(sg_pg_round_trip *trip, short events)
{
    struct pollfd fd = {PQsocket(trip->connection->pg), events, 0};
    if (fd.fd < 0)
        return sg_pg_round_trip_broken(trip);
    trip->status = syncguard_wait_fds(&fd, 1, trip->limits, trip->err);
    if (trip->status != SYNCGUARD_OK)
        return SG_PG_GAVE_UP;
    if ((fd.revents & (POLLIN | POLLHUP | POLLERR)) != 0 &&
        PQconsumeInput(trip->connection->pg) == 0)
        return sg_pg_round_trip_broken(trip);
    return SG_PG_DONE;
}

static sg_pg_reply round_trip_send(sg_pg_round_trip *trip)
{
    PGconn *pg = trip->connection->pg;
    if (PQpipelineSync(pg) == 0)
        return sg_pg_round_trip_broken(trip);
    int left;
    while ((left = PQflush(pg)) > 0) {
        sg_pg_reply got = round_trip_wait(trip, POLLIN | POLLOUT);
        if (got != SG_PG_DONE)
            return got;
    }
    return left < 0 ? sg_pg_round_trip_broken(trip) : SG_PG_DONE;
}

bool sg_pg_ends_session(const sg_pg_connection *connection, const PGresult *result)
{
    const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
    return connection->direct && severity != NULL && strcmp(severity, "FATAL") == 0;
}

static void round_trip_note_error(sg_pg_round_trip *trip, const PGresult *result)
{
    const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    if (code != NULL && *trip->sqlstate == 0)
        snprintf(trip->sqlstate, sizeof trip->sqlstate, "%s", code);
    if (code != NULL && sg_pg_ends_session(trip->connection, result))
        trip->session_over = true;
}

bool sg_pg_is_expected(const PGresult *result)
{
    switch (PQresultStatus(result)) {
    case PGRES_COMMAND_OK:
    case PGRES_TUPLES_OK:
    case PGRES_FATAL_ERROR:
    case PGRES_PIPELINE_ABORTED:
    case PGRES_PIPELINE_SYNC:
        return true;
    default:
        return false;
    }
}

/* Keeps or drops result number *at. True at the end of the pipeline. */
static bool round_trip_take_result(sg_pg_round_trip *trip, PGresult *result, int *at)
{
    int which = *at < trip->expected_count ? trip->expected[*at] : -1;
    PGresult *unwanted = result;
    if (result == NULL) {
        (*at)++;
        return false;
    }
    if (trip->connection->warned && trip->commits && *at == trip->expected_count - 1)
        trip->unconfirmed = true;
    trip->connection->warned = false;
    bool end = false;
    switch (PQresultStatus(result)) {
    case PGRES_PIPELINE_SYNC:
        end = true;
        break;
    case PGRES_COMMAND_OK:
    case PGRES_TUPLES_OK:
        if (which < 0) {
            trip->connection->prepared |= UINT32_C(1) << (-1 - which);
        } else if (trip->results[which] == NULL) {
            trip->results[which] = result;
            unwanted = NULL;
        }
        break;
    case PGRES_PIPELINE_ABORTED:
        break;
    default:
        round_trip_note_error(trip, result);
        break;
    }
    PQclear(unwanted);
    return end;
}

/* Classifies the reply. A result may be missing although there is no SQLSTATE: libpq's own errors,
 * such as no memory for a result, have no code. */
static sg_pg_reply round_trip_classify(sg_pg_round_trip *trip)
{
    if (*trip->sqlstate != 0)
        return SG_PG_REFUSED;
    for (int i = 0; i < trip->result_count; i++) {
        if (trip->results[i] == NULL)
            return sg_pg_round_trip_broken(trip);
    }
    return trip->unconfirmed ? SG_PG_UNCONFIRMED : SG_PG_DONE;
}

/* The results do not belong to our statements: the connection cannot be relied on any more. */
static sg_pg_reply round_trip_fail_mismatch(sg_pg_round_trip *trip)
{
    (void)sg_pg_round_trip_broken(trip);
    trip->status = syncguard_fail(trip->err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                                  "the server's answer is none to the request");
    return SG_PG_BROKEN;
}

/* The inner loop neither waits nor checks a limit, so each of its steps must consume a result:
 * libpq returns the states of a COPY again and again. */
static sg_pg_reply round_trip_collect(sg_pg_round_trip *trip)
{
    PGconn *pg = trip->connection->pg;
    int at = 0;
    for (;;) {
        while (PQisBusy(pg) == 0) {
            PGresult *result = PQgetResult(pg);
            if (result != NULL && !sg_pg_is_expected(result)) {
                PQclear(result);
                return round_trip_fail_mismatch(trip);
            }
            if (round_trip_take_result(trip, result, &at))
                return round_trip_classify(trip);
            if (PQstatus(pg) == CONNECTION_BAD)
                return sg_pg_round_trip_broken(trip);
            /* One more than expected, because the end of the pipeline may have an error of its
             * own. */
            if (at > trip->expected_count + 1)
                return round_trip_fail_mismatch(trip);
        }
        sg_pg_reply got = round_trip_wait(trip, POLLIN);
        if (got != SG_PG_DONE)
            return got;
    }
}

sg_pg_reply sg_pg_round_trip_run(sg_pg_round_trip *trip)
{
    sg_pg_reply got = round_trip_send(trip);
    return got == SG_PG_DONE ? round_trip_collect(trip) : got;
}

/* Records what the next result is. */
static void round_trip_expect(sg_pg_round_trip *trip, int what)
{
    trip->expected[trip->expected_count++] = what;
    if (what >= trip->result_count)
        trip->result_count = what + 1;
}

bool sg_pg_round_trip_add(sg_pg_round_trip *trip, const sg_pg_statements *statements,
                          sg_pg_statement statement, int count, const char *const *values,
                          int result)
{
    PGconn *pg = trip->connection->pg;
    int form = atomic_load(&statements->form);
    const char *name = statements->names[form][statement];
    const char *sql = statements->sql[form][statement];
    uint32_t bit = UINT32_C(1) << statement;
    if (statement == SG_PG_ACQUIRE && form == 0)
        count--; /* the owner label is the last value */
    trip->commits = statement == SG_PG_COMMIT;
    if (!trip->connection->direct ||
        !atomic_load_explicit(&statements->prepared, memory_order_relaxed)) {
        round_trip_expect(trip, result);
        return PQsendQueryParams(pg, sql, count, NULL, values, NULL, NULL, 0);
    }
    if ((trip->connection->prepared & bit) == 0) {
        round_trip_expect(trip, -1 - (int)statement);
        if (PQsendPrepare(pg, name, sql, 0, NULL) == 0)
            return false;
    }
    round_trip_expect(trip, result);
    return PQsendQueryPrepared(pg, name, count, values, NULL, NULL, 0);
}

syncguard_status sg_pg_query(sg_pg_connection *connection, const char *sql, int count,
                             const char *const *values, const syncguard_limits *limits,
                             PGresult **result, syncguard_error *err)
{
    sg_pg_round_trip trip = {.connection = connection, .limits = limits, .err = err};
    round_trip_expect(&trip, 0);
    sg_pg_reply got;
    if (PQsendQueryParams(connection->pg, sql, count, NULL, values, NULL, NULL, 0) == 0)
        got = sg_pg_round_trip_broken(&trip);
    else
        got = sg_pg_round_trip_run(&trip);
    if (got == SG_PG_REFUSED)
        trip.status = sg_pg_fail(err, trip.sqlstate);
    if (got == SG_PG_DONE && result != NULL && PQntuples(trip.results[0]) != 1)
        got = round_trip_fail_mismatch(&trip);
    if (got == SG_PG_DONE && result != NULL) {
        *result = trip.results[0];
        trip.results[0] = NULL;
    }
    PQclear(trip.results[0]);
    return got == SG_PG_DONE ? SYNCGUARD_OK : trip.status;
}
