/*
 * One round trip on one connection: statements leave in one write, and their results come back in
 * one read.
 */
#ifndef SG_PG_ROUND_TRIP_H
#define SG_PG_ROUND_TRIP_H

#include "connection.h"
#include "sql.h"
#include "syncguard/sys/wait.h"

/* The most results of a round trip: of five statements, and of the one that sets time limits. */
#define SG_PG_MAX_RESULTS 6

typedef enum sg_pg_reply {
    SG_PG_DONE,
    SG_PG_UNCONFIRMED, /* committed, but the wait for a synchronous standby was broken off */
    SG_PG_REFUSED,     /* the server answered with an error; the session lives */
    SG_PG_BROKEN,      /* the connection is gone */
    SG_PG_GAVE_UP      /* the deadline passed, or the abort was triggered */
} sg_pg_reply;

typedef struct sg_pg_round_trip {
    /* in */
    sg_pg_connection *connection;
    const syncguard_limits *limits;
    syncguard_error *err;
    /* out */
    syncguard_status status; /* of BROKEN and GAVE_UP */
    char sqlstate[6];
    bool session_over; /* the server has reported the end of the session: it applies nothing more */
    PGresult *results[SG_PG_MAX_RESULTS];
    /* what was queued */
    int result_count;
    bool commits;     /* the last statement is a COMMIT */
    bool unconfirmed; /* the server warned during that COMMIT */
    /* for each result of libpq: its index in results, or -1 - statement if it prepares one */
    int expected[2 * SG_PG_MAX_RESULTS];
    int expected_count;
} sg_pg_round_trip;

/* Queues a statement; its result becomes results[result]. Prepares it on its first use on the
 * connection. Does not block, and does not keep the values. False: the connection cannot be used
 * any more. */
bool sg_pg_round_trip_add(sg_pg_round_trip *trip, const sg_pg_statements *statements,
                          sg_pg_statement statement, int count, const char *const *values,
                          int result);
/* Sends the queued statements and waits for all results. */
sg_pg_reply sg_pg_round_trip_run(sg_pg_round_trip *trip);
/* Sets the status of a round trip whose connection is gone. */
sg_pg_reply sg_pg_round_trip_broken(sg_pg_round_trip *trip);

/* Runs one statement that is not in the table of statements. *result has one row and belongs to the
 * caller; result may be NULL. */
syncguard_status sg_pg_query(sg_pg_connection *connection, const char *sql, int count,
                             const char *const *values, const syncguard_limits *limits,
                             PGresult **result, syncguard_error *err);

/* False for a state that none of our statements leads to, such as those of a COPY. libpq may report
 * it forever: the connection must be closed. */
bool sg_pg_is_expected(const PGresult *result);
/* True if result reports that the server has ended the session, and so applies nothing more of it.
 * False behind a pooler, which may report the end of a session that goes on. */
bool sg_pg_ends_session(const sg_pg_connection *connection, const PGresult *result);

#endif
