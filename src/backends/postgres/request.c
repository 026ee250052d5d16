/*
 * A request: which connection it gets, and when it is sent again.
 *
 * After an error the session is rolled back before another request gets it. A request whose
 * connection broke is sent again, once, on another one: every request acts by lock id, so applying
 * it twice has the same effect as applying it once.
 */
#include <stdarg.h>
#include <string.h>

#include "errors.h"
#include "request.h"
#include "schema.h"

/* How often a conflict with another transaction is retried. */
#define MAX_CONFLICTS 3
/* With less time than this left, a commit that no standby confirmed is not sent again: it would
 * have to wait for the standby once more. */
#define SHORTEST_TRY_MS 50

void sg_pg_request_add(sg_pg_request *request, sg_pg_statement statement, int count, ...)
{
    sg_pg_call *call = &request->calls[request->count++];
    call->statement = statement;
    call->count = count;
    va_list values;
    va_start(values, count);
    for (int i = 0; i < count; i++)
        call->values[i] = va_arg(values, const char *);
    va_end(values);
}

void sg_pg_request_clear(sg_pg_request *request)
{
    for (int i = 0; i < SG_PG_MAX_RESULTS; i++) {
        PQclear(request->results[i]);
        request->results[i] = NULL;
    }
}

static bool pg_request_has_time(const syncguard_limits *limits)
{
    return syncguard_limits_left_ns(limits) > SHORTEST_TRY_MS * SYNCGUARD_NS_PER_MS;
}

/* ---- one sending ---- */

/*
 * Computes how long the server may wait. True if the request must set these limits: the session's
 * own limits suffice if they end before the caller's deadline and are not much shorter, and a read
 * that takes longer than its caller waits does no harm.
 */
static bool pg_request_needs_limits(const sg_pg_round_trip *trip, bool reads,
                                    sg_pg_time_limits *limits)
{
    const sg_pg_pool *pool = trip->connection->pool;
    int64_t left_ns = syncguard_limits_left_ns(trip->limits);
    int64_t left_ms =
        left_ns == SYNCGUARD_NO_DEADLINE ? pool->timeout_ms : left_ns / SYNCGUARD_NS_PER_MS;
    bool fits = trip->connection->limited && left_ms >= pool->target->session.statement_ms;
    *limits = sg_pg_time_limits_for(left_ms);
    return left_ms > pool->timeout_ms || !(fits || reads);
}

/* Queues all statements. If the request sets time limits, they come right after BEGIN; a single
 * read gets a transaction for them. False: the connection cannot be used any more. */
static bool pg_request_queue_statements(const sg_pg *pg, sg_pg_round_trip *trip,
                                        const sg_pg_request *request)
{
    bool reads = request->calls[0].statement != SG_PG_BEGIN;
    char lock_ms[SG_PG_NUMBER_SIZE];
    char statement_ms[SG_PG_NUMBER_SIZE];
    const char *values[] = {lock_ms, statement_ms};
    sg_pg_time_limits own;
    bool limited = pg_request_needs_limits(trip, reads, &own);
    int extra = request->count; /* index of the next result that is not used */
    sg_pg_format(lock_ms, own.lock_ms);
    sg_pg_format(statement_ms, own.statement_ms);
    if (limited && reads &&
        !sg_pg_round_trip_add(trip, &pg->statements, SG_PG_BEGIN, 0, NULL, extra++))
        return false;
    for (int i = 0; i < request->count; i++) {
        const sg_pg_call *call = &request->calls[i];
        if (limited && i == (reads ? 0 : 1) &&
            !sg_pg_round_trip_add(trip, &pg->statements, SG_PG_SET_LIMITS, 2, values, extra++))
            return false;
        if (!sg_pg_round_trip_add(trip, &pg->statements, call->statement, call->count, call->values,
                                  i))
            return false;
    }
    if (limited && reads &&
        !sg_pg_round_trip_add(trip, &pg->statements, SG_PG_COMMIT, 0, NULL, extra++))
        return false;
    trip->commits = trip->commits && !reads;
    return true;
}

static sg_pg_reply pg_request_send(const sg_pg *pg, sg_pg_round_trip *trip, sg_pg_request *request)
{
    if (!pg_request_queue_statements(pg, trip, request))
        return sg_pg_round_trip_broken(trip);
    if (request->outcome == SG_PG_NOT_SENT) {
        request->first_sent_ns = syncguard_clock_ns();
        request->outcome = SG_PG_ANSWERED;
    }
    sg_pg_reply reply = sg_pg_round_trip_run(trip);
    memcpy(request->results, trip->results, sizeof request->results);
    return reply;
}

/* Records that the request may have been applied when it was last sent and, unless over, may still
 * be. So too if the server has announced the end of the session, because that may have come after
 * the commit. */
static void pg_request_mark_unresolved(sg_pg *pg, sg_pg_request *request, sg_pg_reply reply,
                                       bool over)
{
    sg_pg_outcome outcome = over ? SG_PG_MAY_HAVE_BEEN_APPLIED : SG_PG_MAY_BE_IN_FLIGHT;
    if (request->outcome == SG_PG_NOT_SENT)
        return;
    if (request->outcome < outcome)
        request->outcome = outcome;
    if (request->lock_id != NULL && reply != SG_PG_GAVE_UP) /* sg_pg_abandon records it */
        sg_pg_unresolved_add(pg->pool, request->lock_id, over);
}

/* ---- sending again ---- */

/* How often a request was sent again, by cause. */
typedef struct resends {
    int conflicts;
    int breaks;
    int unprepared;
} resends;

static bool pg_sqlstate_is(const char *code, const char *wanted)
{
    return strcmp(code, wanted) == 0;
}

/* A prepared statement is missing, or is another client's: a pooler is in between. */
static bool pg_sqlstate_is_lost_statement(const char *code)
{
    return pg_sqlstate_is(code, "26000") || pg_sqlstate_is(code, "42P05");
}

/* Whether a request that the server refused should be sent again. */
static bool pg_request_prepare_resend(sg_pg *pg, sg_pg_request *request, const char *code,
                                      resends *sent)
{
    if (pg_sqlstate_is(code, SG_PG_SERIALIZATION_FAILURE) || pg_sqlstate_is(code, SG_PG_DEADLOCK) ||
        pg_sqlstate_is(code, SG_PG_OVERTAKEN))
        return sent->conflicts++ < MAX_CONFLICTS;
    if (pg_sqlstate_is(code, SG_PG_QUEUE_FULL) && request->notifies != NULL) {
        /* A listening session does not read its notifications. The lock is changed all the same. */
        *request->notifies = "f";
        request->notifies = NULL;
        if (!atomic_exchange(&pg->queue_full, true))
            syncguard_backend_log(&pg->base, SYNCGUARD_LOG_WARN,
                                  "the server's queue of notifications is full: locks are released "
                                  "without telling who waits elsewhere");
        return true;
    }
    if (pg_sqlstate_is_lost_statement(code)) {
        if (atomic_exchange(&pg->statements.prepared, false))
            syncguard_backend_log(&pg->base, SYNCGUARD_LOG_WARN,
                                  "prepared statements get lost, so they are not used any more; "
                                  "behind a transaction pooler open with pooler=1");
        return sent->unprepared++ < 1;
    }
    /* The primary has moved (25006), a plan no longer fits its table, or the session is in a
     * transaction that is not ours. A new session does not have these problems. */
    if (pg_sqlstate_is(code, "0A000") || strncmp(code, "25", 2) == 0) {
        sg_pg_pool_distrust(pg->pool);
        return sent->breaks++ < 1;
    }
    return false;
}

/* Interprets the reply. True if the request should be sent again. */
static bool pg_reply_interpret(sg_pg *pg, sg_pg_round_trip *trip, sg_pg_request *request,
                               sg_pg_reply reply, resends *sent)
{
    const char *code = trip->sqlstate;
    switch (reply) {
    case SG_PG_DONE:
        syncguard_error_clear(trip->err); /* from when it was sent earlier */
        trip->status = SYNCGUARD_OK;
        return false;
    case SG_PG_REFUSED:
        trip->status = sg_pg_fail(trip->err, code);
        if (pg_sqlstate_is(code, SG_PG_CANCELLED) &&
            syncguard_abort_triggered(trip->limits->abort_object))
            trip->status = syncguard_fail(trip->err, SYNCGUARD_E_ABORTED, code, "aborted");
        return pg_request_prepare_resend(pg, request, code, sent);
    case SG_PG_UNCONFIRMED:
        /* Committed here, but a failover may take it back, so the caller must not rely on it. When
         * it is sent again, it writes and waits once more. */
        pg_request_mark_unresolved(pg, request, reply, true);
        trip->status =
            syncguard_fail(trip->err,
                           pg_request_has_time(trip->limits) ? SYNCGUARD_E_SERVICE_UNAVAILABLE
                                                             : SYNCGUARD_E_NETWORK_TIMEOUT,
                           SG_PG_WARNING, "the wait for a synchronous standby was broken off");
        return pg_request_has_time(trip->limits) && sent->breaks++ < 1;
    case SG_PG_BROKEN:
        pg_request_mark_unresolved(pg, request, reply, trip->session_over);
        sg_pg_pool_distrust(pg->pool);
        return sent->breaks++ < 1;
    case SG_PG_GAVE_UP:
        pg_request_mark_unresolved(pg, request, reply, false);
        return false;
    }
    return false;
}

/* Rolls a session back after an error, so that the next request can use it. */
static void pg_session_recover(sg_pg_connection *connection, const syncguard_limits *limits)
{
    syncguard_limits soon = syncguard_limits_until(
        limits, syncguard_clock_after(syncguard_clock_ns(), connection->pool->timeout_ms));
    syncguard_status status = SYNCGUARD_OK;
    if (PQtransactionStatus(connection->pg) != PQTRANS_IDLE)
        status = sg_pg_query(connection, "ROLLBACK", 0, NULL, &soon, NULL, NULL);
    if (status == SYNCGUARD_OK)
        sg_pg_pool_give_back(connection);
    else
        sg_pg_pool_discard(connection);
}

/* Gives the connection back to the pool, closes it, or abandons it. */
static void pg_request_check_in(const sg_pg_round_trip *trip, const sg_pg_request *request,
                                sg_pg_reply reply)
{
    switch (reply) {
    case SG_PG_DONE:
    case SG_PG_UNCONFIRMED:
        sg_pg_pool_give_back(trip->connection);
        break;
    case SG_PG_REFUSED:
        if (pg_sqlstate_is_lost_statement(trip->sqlstate))
            sg_pg_pool_discard(trip->connection);
        else
            pg_session_recover(trip->connection, trip->limits);
        break;
    case SG_PG_BROKEN:
        sg_pg_pool_discard(trip->connection);
        break;
    case SG_PG_GAVE_UP:
        sg_pg_abandon(trip->connection, request->lock_id);
        break;
    }
}

/* ---- a connection ---- */

/* Waits for a place according to the request's policy. *place is the gate to leave; NULL if no
 * place is taken. */
static syncguard_status pg_request_enter_gate(sg_pg_pool *pool, sg_pg_policy policy,
                                              const syncguard_limits *limits,
                                              syncguard_gate **place, syncguard_error *err)
{
    int64_t now = syncguard_clock_ns();
    syncguard_limits quarter =
        syncguard_limits_until(limits, syncguard_clock_after(now, pool->timeout_ms));
    syncguard_status status = syncguard_limits_check(limits, err);
    *place = policy == SG_PG_RESERVED ? NULL : &pool->gate;
    if (status != SYNCGUARD_OK || policy == SG_PG_RESERVED)
        return status;
    if (policy == SG_PG_WAIT_IN_QUEUE)
        return syncguard_gate_enter(&pool->gate, limits, err);
    quarter.deadline_ns = now + (quarter.deadline_ns - now) / 4;
    status = syncguard_gate_enter(&pool->gate, &quarter, err);
    if (status != SYNCGUARD_E_NETWORK_TIMEOUT)
        return status;
    *place = &pool->fallback;
    return syncguard_gate_enter(&pool->fallback, limits, err);
}

/* A request that did not take a place in the queue needs an additional connection. If the server
 * has none left, the request waits in the queue after all, where each place has a connection. */
static syncguard_status pg_request_check_out(sg_pg_pool *pool, const syncguard_limits *limits,
                                             syncguard_gate **place, sg_pg_connection **out,
                                             syncguard_error *err)
{
    syncguard_status status = sg_pg_check_out(pool, limits, out, err);
    if (status != SYNCGUARD_E_RATE_LIMITED || *place == &pool->gate)
        return status;
    if (*place != NULL)
        syncguard_gate_leave(*place);
    *place = NULL;
    status = syncguard_gate_enter(&pool->gate, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    *place = &pool->gate;
    return sg_pg_check_out(pool, limits, out, err);
}

/* Called by the user of the connection, not by the thread that connects, which may outlive the
 * handle. */
static void pg_session_report_reconnect(sg_pg *pg, sg_pg_connection *connection)
{
    if (connection->replaces)
        syncguard_backend_reconnected(&pg->base);
    connection->replaces = false;
}

/* Before the first request of a handle: checks the tables and the session. A failure is not
 * remembered: the next request checks again. */
static syncguard_status pg_session_verify(sg_pg *pg, sg_pg_connection *connection,
                                          const syncguard_limits *limits, syncguard_error *err)
{
    bool has_owner = false;
    bool has_index = false;
    syncguard_status status =
        sg_pg_schema_check(connection, &pg->statements.locks, &pg->statements.fences, limits,
                           &has_owner, &has_index, err);
    if (status == SYNCGUARD_E_NETWORK_TIMEOUT || status == SYNCGUARD_E_ABORTED)
        sg_pg_abandon(connection, NULL);
    else if (status != SYNCGUARD_OK)
        sg_pg_pool_discard(connection);
    if (status != SYNCGUARD_OK)
        return status;
    if (!pg->pooler && !connection->direct && !atomic_exchange(&pg->pooler_found, true))
        syncguard_backend_log(&pg->base, SYNCGUARD_LOG_WARN,
                              "a connection pooler is in between: treated as one in transaction "
                              "mode, as if opened with pooler=1");
    int unknown = -1;
    /* The first result is kept, because sessions have prepared statements of that form. */
    (void)atomic_compare_exchange_strong(&pg->statements.form, &unknown, has_owner);
    return SYNCGUARD_OK;
}

/* The server gives up a moment before its caller's deadline. A caller that waits for a lock expects
 * the deadline to have passed. */
static void pg_request_await_deadline(const syncguard_limits *limits)
{
    struct pollfd nothing = {-1, 0, 0};
    if (syncguard_limits_left_ns(limits) <= 2 * SHORTEST_TRY_MS * SYNCGUARD_NS_PER_MS)
        (void)syncguard_wait_fds(&nothing, 1, limits, NULL);
}

syncguard_status sg_pg_request_run(sg_pg *pg, sg_pg_request *request,
                                   const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_gate *place = NULL;
    syncguard_status status = pg_request_enter_gate(pg->pool, request->policy, limits, &place, err);
    if (status != SYNCGUARD_OK)
        return status;
    resends sent = {0, 0, 0};
    bool again = true;
    while (again) {
        sg_pg_round_trip trip = {.limits = limits, .err = err};
        sg_pg_request_clear(request);
        status = pg_request_check_out(pg->pool, limits, &place, &trip.connection, err);
        if (status == SYNCGUARD_OK)
            pg_session_report_reconnect(pg, trip.connection);
        if (status == SYNCGUARD_OK && atomic_load(&pg->statements.form) < 0)
            status = pg_session_verify(pg, trip.connection, limits, err);
        if (status != SYNCGUARD_OK)
            break;
        sg_pg_reply reply = pg_request_send(pg, &trip, request);
        again = pg_reply_interpret(pg, &trip, request, reply, &sent);
        pg_request_check_in(&trip, request, reply);
        status = trip.status;
    }
    if (place != NULL)
        syncguard_gate_leave(place);
    if (status == SYNCGUARD_E_NETWORK_TIMEOUT && request->lock_id != NULL)
        pg_request_await_deadline(limits);
    return status;
}
