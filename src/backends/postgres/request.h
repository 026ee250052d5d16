/*
 * A request: statements that go to the server in one round trip, on a connection of the pool.
 */
#ifndef SG_PG_REQUEST_H
#define SG_PG_REQUEST_H

#include "backend.h"
#include "round_trip.h"

#define SG_PG_MAX_CALLS 5
#define SG_PG_MAX_VALUES 8

typedef struct sg_pg_call {
    sg_pg_statement statement;
    int count;
    const char *values[SG_PG_MAX_VALUES];
} sg_pg_call;

/* How a request gets a connection when all connections of the pool are in use. */
typedef enum sg_pg_policy {
    SG_PG_WAIT_IN_QUEUE,
    SG_PG_FALL_BACK, /* waits in the queue for a quarter of its time, then for the fallback place */
    SG_PG_RESERVED   /* does not wait: uses an additional connection */
} sg_pg_policy;

/* What is known about the effect of a request, over all the times that it was sent. */
typedef enum sg_pg_outcome {
    SG_PG_NOT_SENT,
    SG_PG_ANSWERED,              /* the server has answered each time */
    SG_PG_MAY_HAVE_BEEN_APPLIED, /* it may have been applied, but can no longer be */
    SG_PG_MAY_BE_IN_FLIGHT       /* it may still be applied */
} sg_pg_outcome;

/* Starts as {0}, with policy, lock_id and notifies set as needed. */
typedef struct sg_pg_request {
    /* in */
    int count;
    sg_pg_call calls[SG_PG_MAX_CALLS];
    sg_pg_policy policy;
    const char *lock_id;   /* of an acquire, which must be undone if its outcome is unknown */
    const char **notifies; /* the value that tells whether waiters are notified, or NULL */
    /* out */
    PGresult *results[SG_PG_MAX_RESULTS]; /* in the order of calls */
    sg_pg_outcome outcome;
    int64_t first_sent_ns; /* unless NOT_SENT */
} sg_pg_request;

/* Adds a statement with its `count` values, each a const char * that must stay valid. */
void sg_pg_request_add(sg_pg_request *request, sg_pg_statement statement, int count, ...);
/* Sends the request and waits for all results; sends it again on another connection where that is
 * safe. OK: every statement succeeded. */
syncguard_status sg_pg_request_run(sg_pg *pg, sg_pg_request *request,
                                   const syncguard_limits *limits, syncguard_error *err);
void sg_pg_request_clear(sg_pg_request *request);

#endif
