/*
 * A request: statements that go to the server in one exchange, on a connection of
 * the pool.
 *
 * After an error the session is rolled back before anybody else gets it.
 *
 * What broke is sent again, once, on another connection: every request acts by
 * lock id, so that doing it twice is doing it once.
 *
 * Where all connections are in use, a request that gets one takes the next in line
 * along (ride.c). Neither may then wait for long inside the server, for the answers
 * come together. So a session waits for a lock for SG_PG_BRIEF_MS only; what is refused
 * for that says, when it is sent again, how long it can wait. What is sent again, for
 * whatever reason, goes alone.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ride.h"

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

static void clear_results(sg_pg_flush *flush)
{
    int i;

    for (i = 0; i < SG_PG_MAX_CALLS; i++) {
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

/* How long the server may wait, and whether it has to be told. A read that takes longer than its
 * caller does no harm there; one that has no time for being refused says so at once. */
static void set_bound(const sg_pg_connection *connection, sg_pg_flush *flush,
                      const syncguard_limits *limits)
{
    int64_t usual_ms = connection->pool->timeout_ms;
    int64_t left_ns = syncguard_limits_left_ns(limits);
    int64_t left_ms = left_ns == SYNCGUARD_NO_DEADLINE ? usual_ms : left_ns / SYNCGUARD_NS_PER_MS;
    bool reads = flush->calls[0].statement != SG_PG_BEGIN;
    bool near = connection->settled && left_ms >= (usual_ms + sg_pg_server_ms(usual_ms)) / 2;
    int64_t lock_ms;
    int64_t all_ms;

    if (reads)
        near = !sg_pg_hurries(connection) || left_ms > 2 * SG_PG_BRIEF_MS + ANSWER_MS;
    flush->session = !flush->waits && left_ms <= usual_ms && near;
    if (flush->session)
        return;
    left_ms = left_ms < INT32_MAX ? left_ms : INT32_MAX;
    lock_ms = sg_pg_server_ms(left_ms);
    all_ms = lock_ms + (left_ms - lock_ms + 1) / 2;
    snprintf(flush->lock_ms, sizeof flush->lock_ms, "%lld", (long long)lock_ms);
    snprintf(flush->all_ms, sizeof flush->all_ms, "%lld", (long long)all_ms);
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

bool sg_pg_expiry(const PGresult *result, int row, int column, int64_t *out)
{
    return sg_pg_int64(result, row, column, out) && *out < INT64_C(1) << 53 &&
           *out > -(INT64_C(1) << 53);
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

/* The session is not what it was taken for: a pooler is in between. */
static bool spoils(const char *code)
{
    return strcmp(code, "26000") == 0 || strcmp(code, "42P05") == 0;
}

/* Says what the server's refusal means; true if the request should be sent again. */
static bool refused(sg_pg *pg, sg_pg_exchange *ex, sg_pg_flush *flush, resends *sent)
{
    const char *code = ex->sqlstate;
    bool again = false;

    if (strcmp(code, "40001") == 0 || strcmp(code, "40P01") == 0 ||
        strcmp(code, SG_PG_OVERTAKEN) == 0) {
        again = sent->conflicts++ < MAX_CONFLICTS;
    } else if (strcmp(code, "55P03") == 0) {
        /* Unless that was all its time: the session is in a hurry, this need not be. */
        again = (flush->session || flush->shared) &&
                syncguard_limits_left_ns(ex->limits) > ANSWER_MS * SYNCGUARD_NS_PER_MS;
        flush->waits = true;
    } else if (strcmp(code, SG_PG_QUEUE_FULL) == 0 && flush->tells) {
        /* A session somewhere does not read what it listens to. The lock goes all the same. */
        *flush->tells = "f";
        flush->tells = NULL;
        if (!atomic_exchange(&pg->queue_full, true))
            syncguard_backend_log(&pg->base, SYNCGUARD_LOG_WARN,
                                  "the server's queue of notifications is full: locks are released "
                                  "without telling who waits elsewhere");
        again = true;
    } else if (strcmp(code, "57014") == 0 && flush->shared) {
        /* Perhaps the other one was meant. */
        again = true;
    } else if (spoils(code)) {
        /* Another server session than the one that prepared it. */
        if (atomic_exchange(&pg->prepared, false))
            syncguard_backend_log(&pg->base, SYNCGUARD_LOG_WARN,
                                  "prepared statements get lost, so they are not used any more; "
                                  "behind a transaction pooler open with pooler=1");
        again = sent->unprepared++ < 1;
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

static void mark_sent(sg_pg_flush *flush)
{
    if (!flush->sent)
        flush->first_sent_ns = syncguard_clock_ns();
    flush->sent = true;
}

/* The request may have been carried out; unless that is final, it may still be. */
static void doubt(sg_pg_flush *flush, bool final)
{
    flush->perhaps_done = flush->sent;
    flush->unknown = flush->unknown || flush->sent;
    flush->pending = flush->pending || (flush->sent && !final);
}

/* The transaction is committed here, but a failover may take it back: nobody may rely on it. True
 * if it should be sent again, to write and to wait once more. */
static bool unconfirmed(sg_pg_exchange *ex, resends *sent)
{
    bool time_left = syncguard_limits_left_ns(ex->limits) > ANSWER_MS * SYNCGUARD_NS_PER_MS;

    ex->status = syncguard_fail(
        ex->err, time_left ? SYNCGUARD_E_SERVICE_UNAVAILABLE : SYNCGUARD_E_NETWORK_TIMEOUT, "01000",
        "the wait for a synchronous standby was broken off");
    return time_left && sent->breaks++ < 1;
}

/* Sends a request, and with it the one that the seat was filled with. */
static sg_pg_outcome send_flush(sg_pg *pg, sg_pg_exchange *ex, sg_pg_flush *flush, sg_pg_seat *seat)
{
    bool queued;

    set_bound(ex->connection, flush, ex->limits);
    flush->shared = seat->filled;
    queued = sg_pg_exchange_queue(pg, ex, flush);
    if (queued)
        mark_sent(flush);
    if (seat->filled) {
        sg_pg_flush *second = seat->ride->flush;

        second->shared = true;
        if (queued) {
            mark_sent(second);
            queued = sg_pg_exchange_queue(pg, ex, second);
        }
        sg_pg_seat_sent(pg->pool, seat);
    }
    return queued ? sg_pg_exchange_run(ex) : sg_pg_exchange_lost(ex);
}

/* What becomes of the connection. lock_id: of the acquire that is left on it, or NULL. */
static void put_away(sg_pg *pg, const sg_pg_exchange *ex, sg_pg_outcome all, const char *lock_id)
{
    switch (all) {
    case SG_PG_DONE:
    case SG_PG_UNCONFIRMED: /* of a part only */
        sg_pg_give_back(ex->connection);
        break;
    case SG_PG_REFUSED:
        if (spoils(ex->sqlstate))
            sg_pg_discard(ex->connection);
        else
            recover(pg, ex->connection, ex->limits);
        break;
    case SG_PG_SKIPPED: /* of a part only */
    case SG_PG_BROKEN:
        sg_pg_discard(ex->connection);
        break;
    case SG_PG_LEFT:
        sg_pg_abandon(ex->connection, lock_id);
        break;
    }
}

/* What became of a request. True if it should be sent again. */
static bool conclude(sg_pg *pg, sg_pg_exchange *ex, sg_pg_flush *flush, sg_pg_outcome outcome,
                     resends *sent)
{
    switch (outcome) {
    case SG_PG_DONE:
        /* What an earlier try left there. */
        syncguard_error_clear(ex->err);
        ex->status = SYNCGUARD_OK;
        return false;
    case SG_PG_UNCONFIRMED:
        doubt(flush, true);
        return unconfirmed(ex, sent);
    case SG_PG_REFUSED:
        return refused(pg, ex, flush, sent);
    case SG_PG_SKIPPED:
        return true;
    case SG_PG_BROKEN:
        /* Also if the server has said its last word: that may have been after the commit. */
        doubt(flush, ex->final);
        return sent->breaks++ < 1;
    case SG_PG_LEFT:
        flush->unknown = flush->sent;
        flush->pending = flush->sent;
        return false;
    }
    return false;
}

/* True if there is time for a try together with another and, if that is refused, for one alone. A
 * rider cannot be reached by an abort. */
static bool may_share(const sg_pg_flush *flush, const syncguard_limits *limits)
{
    return flush->shares && !limits->abort_object &&
           syncguard_limits_left_ns(limits) >= SG_PG_SHARING_MS * SYNCGUARD_NS_PER_MS;
}

/* When may_share ends, 0 if it has. */
static int64_t shares_until(const sg_pg_flush *flush, const syncguard_limits *limits)
{
    if (!may_share(flush, limits))
        return 0;
    return limits->deadline_ns == SYNCGUARD_NO_DEADLINE
               ? SYNCGUARD_NO_DEADLINE
               : limits->deadline_ns - SG_PG_SHARING_MS * SYNCGUARD_NS_PER_MS;
}

/* One try on one connection. True if another should follow. */
static bool try_once(sg_pg *pg, sg_pg_exchange *ex, sg_pg_flush *flush, bool shares, resends *sent)
{
    sg_pg_seat seat = {.filled = false};
    sg_pg_outcome all;
    sg_pg_outcome mine;
    const char *lock_id;
    bool again;

    /* It may have come here late. */
    if (shares && may_share(flush, ex->limits) && sg_pg_hurries(ex->connection) &&
        !ex->connection->listener)
        sg_pg_seat_fill(pg->pool, &seat);
    all = send_flush(pg, ex, flush, &seat);
    mine = sg_pg_exchange_part(ex, 0, all);
    memcpy(flush->results, sg_pg_exchange_results(ex, 0), sizeof flush->results);
    if (all == SG_PG_BROKEN) /* before the other sends again */
        sg_pg_distrust(pg->pool);
    if (seat.filled)
        sg_pg_seat_end(pg->pool, &seat, ex, all);
    lock_id = flush->sent ? flush->lock_id : NULL;
    if (lock_id && (mine == SG_PG_BROKEN || mine == SG_PG_UNCONFIRMED))
        sg_pg_doubt_add(pg->pool, lock_id, mine == SG_PG_UNCONFIRMED || ex->final);
    again = conclude(pg, ex, flush, mine, sent);
    put_away(pg, ex, all, mine == SG_PG_LEFT ? lock_id : NULL);
    return again;
}

/* A request was taken along, and is back, or its time is up: waited says that. True if it should be
 * sent again. */
static bool arrive(sg_pg *pg, sg_pg_exchange *ex, sg_pg_ride *ride, syncguard_status waited,
                   resends *sent)
{
    ex->status = waited;
    if (waited != SYNCGUARD_OK && sg_pg_ride_leave(pg->pool, ride))
        return conclude(pg, ex, ride->flush, SG_PG_LEFT, sent);
    memcpy(ex->sqlstate, ride->sqlstate, sizeof ex->sqlstate);
    ex->final = ride->final;
    if (ride->outcome == SG_PG_BROKEN && ride->left && ride->flush->lock_id) {
        /* The server lives: a grant to what was sent first might come after the release of what
         * is sent again. */
        doubt(ride->flush, false);
        ex->status = syncguard_fail(ex->err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                                    "the connection was left while the lock was asked for");
        return false;
    }
    return conclude(pg, ex, ride->flush, ride->outcome, sent);
}

/*
 * Lets a request in, unless it is taken along: *in is the gate to leave, NULL for one that stays
 * out of the line. One that is pressing may find the line full of callers whose key is stuck in the
 * server: it waits there for a quarter of its time, then for the place aside.
 */
static syncguard_status enter(sg_pg_pool *pool, sg_pg_ride *ride, syncguard_gate **in,
                              syncguard_error *err)
{
    const sg_pg_flush *flush = ride->flush;
    const syncguard_limits *limits = ride->limits;
    int64_t now;
    syncguard_limits patience;
    syncguard_status status = syncguard_limits_check(limits, err);

    *in = flush->apart ? NULL : &pool->gate;
    if (status != SYNCGUARD_OK || flush->apart)
        return status;
    if (!flush->pressing)
        return syncguard_gate_enter_or_join(&pool->gate, &ride->waiter, limits, err);
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
static syncguard_status lend(sg_pg *pg, const sg_pg_flush *flush, const syncguard_limits *limits,
                             syncguard_gate **in, sg_pg_connection **out, syncguard_error *err)
{
    sg_pg_pool *pool = pg->pool;
    syncguard_status status;

    /* Not one that has had to wait: others listen there. */
    if (flush->contended && !flush->waits && pg->listener && sg_pg_listener_lend(pg->listener, out))
        return SYNCGUARD_OK;
    status = sg_pg_lend(pool, limits, out, err);
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

/* The server gave up a moment before its caller's deadline: with that over, the caller knows what
 * has ended the waiting. */
static void wait_out(const syncguard_limits *limits)
{
    struct pollfd nothing = {-1, 0, 0};

    if (syncguard_limits_left_ns(limits) <= 2 * ANSWER_MS * SYNCGUARD_NS_PER_MS)
        (void)syncguard_wait_fds(&nothing, 1, limits, NULL);
}

/* The first operation of a handle looks whether the server has what is needed. */
static syncguard_status verify(sg_pg *pg, sg_pg_connection *connection,
                               const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_status status = sg_pg_verify(pg, connection, limits, err);

    if (status == SYNCGUARD_E_NETWORK_TIMEOUT || status == SYNCGUARD_E_ABORTED)
        sg_pg_abandon(connection, NULL);
    else if (status != SYNCGUARD_OK)
        sg_pg_discard(connection);
    return status;
}

syncguard_status sg_pg_flush_run(sg_pg *pg, sg_pg_flush *flush, const syncguard_limits *limits,
                                 syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    resends sent = {0, 0, 0};
    syncguard_gate *in = NULL;
    bool inside = false;
    bool shares = true;
    bool again = true;

    for (; again; shares = false) {
        sg_pg_exchange ex = {.limits = limits, .err = err, .spin_us = pg->spin_us};

        clear_results(flush);
        if (!inside) {
            sg_pg_ride ride;

            sg_pg_ride_init(&ride, flush, limits, shares ? shares_until(flush, limits) : 0,
                            !shares);
            status = enter(pg->pool, &ride, &in, err);
            if (ride.waiter.taken) {
                again = arrive(pg, &ex, &ride, status, &sent);
                status = ex.status;
                continue;
            }
            if (status != SYNCGUARD_OK)
                return status;
            inside = true;
        }
        status = lend(pg, flush, limits, &in, &ex.connection, err);
        if (status == SYNCGUARD_OK && atomic_load(&pg->form) < 0)
            status = verify(pg, ex.connection, limits, err);
        if (status != SYNCGUARD_OK)
            break;
        again = try_once(pg, &ex, flush, shares, &sent);
        status = ex.status;
    }
    if (inside && in)
        syncguard_gate_leave(in);
    if (status == SYNCGUARD_E_NETWORK_TIMEOUT && flush->lock_id && flush->waits)
        wait_out(limits);
    return status;
}
