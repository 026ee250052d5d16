/*
 * One exchange with the server on one connection, see exchange.c.
 */
#ifndef SG_PG_EXCHANGE_H
#define SG_PG_EXCHANGE_H

#include "pg.h"

/* The requests of an exchange: that of the thread with the connection, and one that rides along. */
#define SG_PG_MAX_REQUESTS 2

typedef enum sg_pg_outcome {
    SG_PG_DONE,
    SG_PG_UNCONFIRMED, /* committed, but the wait for a synchronous standby was broken off */
    SG_PG_REFUSED,     /* the server answered with an error; the session lives */
    SG_PG_SKIPPED,     /* the request before it was refused: certainly not carried out */
    SG_PG_BROKEN,      /* the connection is gone */
    SG_PG_LEFT         /* our time is up, or the abort was triggered */
} sg_pg_outcome;

/* What one exchange is about. */
typedef struct sg_pg_exchange {
    sg_pg_connection *connection;
    const syncguard_limits *limits;
    syncguard_error *err;
    syncguard_status status;
    int spin_us;
    char sqlstate[6];
    int refused_at; /* which answer that code came with */
    bool final;     /* broken, but the server said that it ended the session */
    int requests;
    struct {
        int first; /* of its calls that is sent */
        int calls;
        int left_out; /* of them */
        int end;      /* of its answers among those expected */
        bool commits; /* with its last answer */
        bool unconfirmed;
    } request[SG_PG_MAX_REQUESTS];
    /* which result an answer is; -1 - statement: it prepares that one */
    int expected[SG_PG_MAX_REQUESTS * 2 * SG_PG_MAX_CALLS];
    int expected_count;
    uint32_t preparing; /* bit per sg_pg_statement */
    PGresult *results[SG_PG_MAX_REQUESTS * SG_PG_MAX_CALLS];
} sg_pg_exchange;

/* Queues a request behind those queued before. Does not block, and keeps nothing of it. False: the
 * connection is of no more use. */
bool sg_pg_exchange_queue(const sg_pg *pg, sg_pg_exchange *ex, const sg_pg_flush *flush);
/* Sends what was queued and waits for all answers. */
sg_pg_outcome sg_pg_exchange_run(sg_pg_exchange *ex);
/* The connection is gone: says so. */
sg_pg_outcome sg_pg_exchange_lost(sg_pg_exchange *ex);
/* What became of one request, from what became of all. */
sg_pg_outcome sg_pg_exchange_part(const sg_pg_exchange *ex, int request, sg_pg_outcome all);
/* The results of one request. */
PGresult **sg_pg_exchange_results(sg_pg_exchange *ex, int request);

#endif
