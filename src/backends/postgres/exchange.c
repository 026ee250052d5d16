/*
 * One exchange on one connection: the statements leave in one write, and their
 * results come back in one read.
 *
 * Statements are prepared where they are first used on a connection, in the
 * same exchange. An error makes the server skip everything up to its end: requests
 * before it have been carried out, those behind it have not.
 */
#include <stdio.h>
#include <string.h>

#include "exchange.h"

sg_pg_outcome sg_pg_exchange_lost(sg_pg_exchange *ex)
{
    /* It ended the session before it read this request. */
    ex->final = ex->final || (ex->connection->direct && ex->connection->ended);
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

static void note_error(sg_pg_exchange *ex, const PGresult *result, int at)
{
    const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    if (code && !*ex->sqlstate) {
        snprintf(ex->sqlstate, sizeof ex->sqlstate, "%s", code);
        ex->refused_at = at;
    }
    if (code && sg_pg_says_end(ex->connection, result))
        ex->final = true;
}

/* The server warned while it carried out the statement whose answer is number at. */
static void note_warning(sg_pg_exchange *ex, int at)
{
    int i;

    ex->connection->warned = false;
    for (i = 0; i < ex->requests; i++) {
        if (ex->request[i].commits && at == ex->request[i].end - 1)
            ex->request[i].unconfirmed = true;
    }
}

/* Keeps or drops one answer. True at the end of the request. */
static bool take(sg_pg_exchange *ex, PGresult *result, int *at)
{
    int which = *at < ex->expected_count ? ex->expected[*at] : -1;
    PGresult *unwanted = result;
    bool end = false;

    if (!result) {
        (*at)++;
        return false;
    }
    if (ex->connection->warned)
        note_warning(ex, *at);
    switch (PQresultStatus(result)) {
    case PGRES_PIPELINE_SYNC:
        end = true;
        break;
    case PGRES_COMMAND_OK:
    case PGRES_TUPLES_OK:
        if (which < 0) {
            ex->connection->prepared |= UINT32_C(1) << (-1 - which);
        } else if (!ex->results[which]) {
            ex->results[which] = result;
            unwanted = NULL;
        }
        break;
    case PGRES_PIPELINE_ABORTED:
        break;
    default:
        note_error(ex, result, *at);
        break;
    }
    PQclear(unwanted);
    return end;
}

PGresult **sg_pg_exchange_results(sg_pg_exchange *ex, int request)
{
    return ex->results + (ptrdiff_t)request * SG_PG_MAX_CALLS;
}

/* Every statement of a request was answered. One may not be although no code says so: libpq's own
 * errors, such as no memory for a result, have none. */
static bool complete(const sg_pg_exchange *ex, int request)
{
    int missing = 0;
    int i;

    for (i = ex->request[request].first; i < ex->request[request].calls; i++)
        missing += !ex->results[request * SG_PG_MAX_CALLS + i];
    return missing == ex->request[request].left_out;
}

sg_pg_outcome sg_pg_exchange_part(const sg_pg_exchange *ex, int request, sg_pg_outcome all)
{
    if (request < ex->requests && complete(ex, request))
        return ex->request[request].unconfirmed ? SG_PG_UNCONFIRMED : SG_PG_DONE;
    if (all != SG_PG_REFUSED)
        return all;
    if (ex->refused_at >= ex->request[request].end)
        return SG_PG_BROKEN;
    /* COMMIT AND CHAIN may fail after the COMMIT; a conflict is found before, and so is a lock that
     * was not to be had, that of NOTIFY, or that its queue is full. */
    if (request == 0 && ex->requests > 1 && ex->refused_at == ex->request[0].end - 1 &&
        strncmp(ex->sqlstate, "40", 2) != 0 && strcmp(ex->sqlstate, "55P03") != 0 &&
        strcmp(ex->sqlstate, SG_PG_QUEUE_FULL) != 0)
        return SG_PG_BROKEN;
    if (request > 0 && ex->refused_at < ex->request[request - 1].end)
        return SG_PG_SKIPPED;
    return SG_PG_REFUSED;
}

static sg_pg_outcome collect(sg_pg_exchange *ex)
{
    PGconn *pg = ex->connection->pg;
    int at = 0;
    int i;

    for (;;) {
        sg_pg_outcome got;

        while (!PQisBusy(pg)) {
            if (take(ex, PQgetResult(pg), &at)) {
                if (*ex->sqlstate)
                    return SG_PG_REFUSED;
                for (i = 0; i < ex->requests; i++) {
                    if (!complete(ex, i))
                        return sg_pg_exchange_lost(ex);
                }
                return SG_PG_DONE;
            }
            if (PQstatus(pg) == CONNECTION_BAD)
                return sg_pg_exchange_lost(ex);
        }
        got = wait_for(ex, POLLIN);
        if (got != SG_PG_DONE)
            return got;
    }
}

sg_pg_outcome sg_pg_exchange_run(sg_pg_exchange *ex)
{
    sg_pg_outcome got = push(ex);

    return got == SG_PG_DONE ? collect(ex) : got;
}

static bool prepares(const sg_pg *pg, const sg_pg_exchange *ex)
{
    return ex->connection->direct && atomic_load_explicit(&pg->prepared, memory_order_relaxed);
}

/* Where prepared statements got lost, the settings of the session may have been lost too. */
static bool settled(const sg_pg *pg, const sg_pg_exchange *ex)
{
    return ex->connection->settled && prepares(pg, ex);
}

static bool queue_call(const sg_pg *pg, sg_pg_exchange *ex, sg_pg_statement statement, int count,
                       const char *const *values, int which)
{
    PGconn *to = ex->connection->pg;
    bool prepared = prepares(pg, ex);
    bool bare = statement == SG_PG_BEGIN && settled(pg, ex);
    sg_pg_statement sent = bare ? SG_PG_BEGIN_SETTLED : statement;
    int form = atomic_load(&pg->form);
    const char *name = pg->names[form][sent];
    const char *sql = pg->sql[form][sent];
    uint32_t bit = UINT32_C(1) << sent;

    if (statement == SG_PG_ACQUIRE && form == 0)
        count--; /* the label is the last value */

    if (!prepared) {
        ex->expected[ex->expected_count++] = which;
        return PQsendQueryParams(to, sql, count, NULL, values, NULL, NULL, 0);
    }
    if (!((ex->connection->prepared | ex->preparing) & bit)) {
        ex->preparing |= bit;
        ex->expected[ex->expected_count++] = -1 - (int)sent;
        if (!PQsendPrepare(to, name, sql, 0, NULL))
            return false;
    }
    ex->expected[ex->expected_count++] = which;
    return PQsendQueryPrepared(to, name, count, values, NULL, NULL, 0);
}

/* The time limits of a request, where the session's do not do. Its place is behind the calls. */
static bool queue_bound(const sg_pg *pg, sg_pg_exchange *ex, const sg_pg_flush *flush, int place)
{
    const char *values[] = {flush->lock_ms, flush->all_ms};

    return queue_call(pg, ex, SG_PG_BOUND, 2, values, place);
}

/* A single statement with time limits of its own, in a transaction; what nobody reads of the
 * answers has its place behind that of the statement. */
static bool queue_bounded_read(const sg_pg *pg, sg_pg_exchange *ex, const sg_pg_flush *flush)
{
    const sg_pg_call *call = &flush->calls[0];

    return queue_call(pg, ex, SG_PG_BEGIN, 0, NULL, 2) && queue_bound(pg, ex, flush, 1) &&
           queue_call(pg, ex, call->statement, call->count, call->values, 0) &&
           queue_call(pg, ex, SG_PG_COMMIT, 0, NULL, 3);
}

static bool queue_calls(const sg_pg *pg, sg_pg_exchange *ex, const sg_pg_flush *flush, int request)
{
    bool bounds = !flush->session && !flush->shared;
    bool brief = !bounds && sg_pg_hurries(ex->connection) && settled(pg, ex);
    int place = request * SG_PG_MAX_CALLS;
    int i;

    if (bounds && flush->calls[0].statement != SG_PG_BEGIN)
        return queue_bounded_read(pg, ex, flush);
    for (i = ex->request[request].first; i < flush->count; i++) {
        const sg_pg_call *call = &flush->calls[i];
        sg_pg_statement form = call->statement;

        if (form == SG_PG_COMMIT && flush->shared && request == 0)
            form = SG_PG_COMMIT_CHAIN;
        if (form == SG_PG_ACQUIRE_LOOK && brief && flush->hopes && !flush->sent) {
            ex->request[request].left_out++;
            continue;
        }
        if (form == SG_PG_ACQUIRE_LOOK && !brief)
            form = SG_PG_ACQUIRE_WAIT;
        if (!queue_call(pg, ex, form, call->count, call->values, place + i))
            return false;
        if (i == 0 && bounds && !queue_bound(pg, ex, flush, place + flush->count))
            return false;
    }
    return true;
}

bool sg_pg_exchange_queue(const sg_pg *pg, sg_pg_exchange *ex, const sg_pg_flush *flush)
{
    int request = ex->requests++;
    bool queued;

    /* The second's BEGIN comes with the COMMIT of the first. */
    ex->request[request].first = request > 0 ? 1 : 0;
    ex->request[request].calls = flush->count;
    queued = queue_calls(pg, ex, flush, request);
    ex->request[request].end = ex->expected_count;
    ex->request[request].commits = flush->calls[flush->count - 1].statement == SG_PG_COMMIT;
    return queued;
}

/* ---- requests outside the table ---------------------------------------------------------- */

syncguard_status sg_pg_query(sg_pg_connection *connection, const char *sql, int count,
                             const char *const *values, const syncguard_limits *limits,
                             PGresult **result, syncguard_error *err)
{
    sg_pg_exchange ex = {.connection = connection, .limits = limits, .err = err};
    sg_pg_outcome got;

    ex.request[ex.requests++].calls = 1;
    ex.expected[ex.expected_count++] = 0;
    if (!PQsendQueryParams(connection->pg, sql, count, NULL, values, NULL, NULL, 0))
        got = sg_pg_exchange_lost(&ex);
    else
        got = sg_pg_exchange_run(&ex);
    if (got == SG_PG_REFUSED)
        ex.status = sg_pg_fail(err, ex.sqlstate);
    if (got == SG_PG_DONE && result) {
        *result = ex.results[0];
        ex.results[0] = NULL;
    }
    PQclear(ex.results[0]);
    return got == SG_PG_DONE ? SYNCGUARD_OK : ex.status;
}

syncguard_status sg_pg_prepare(const sg_pg *pg, sg_pg_connection *connection,
                               const sg_pg_statement *statements, int count,
                               const syncguard_limits *limits, syncguard_error *err)
{
    sg_pg_exchange ex = {.connection = connection, .limits = limits, .err = err};
    sg_pg_outcome got = SG_PG_DONE;
    int form = atomic_load(&pg->form);
    int i;

    for (i = 0; i < count && got == SG_PG_DONE; i++) {
        sg_pg_statement each = statements[i];

        if (connection->prepared & (UINT32_C(1) << each))
            continue;
        ex.expected[ex.expected_count++] = -1 - (int)each;
        if (!PQsendPrepare(connection->pg, pg->names[form][each], pg->sql[form][each], 0, NULL))
            got = sg_pg_exchange_lost(&ex);
    }
    if (got == SG_PG_DONE && ex.expected_count > 0)
        got = sg_pg_exchange_run(&ex);
    if (got == SG_PG_REFUSED)
        ex.status = sg_pg_fail(err, ex.sqlstate);
    return got == SG_PG_DONE ? SYNCGUARD_OK : ex.status;
}
