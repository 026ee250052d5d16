/*
 * What one exchange with the server is about, see exchange.c.
 */
#ifndef SG_PG_EXCHANGE_H
#define SG_PG_EXCHANGE_H

#include "pg.h"

typedef enum sg_pg_outcome {
    SG_PG_DONE,
    SG_PG_REFUSED, /* the server answered with an error; the session lives */
    SG_PG_BROKEN,  /* the connection is gone */
    SG_PG_LEFT     /* our time is up, or the abort was triggered */
} sg_pg_outcome;

/* What one exchange is about. */
typedef struct sg_pg_exchange {
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
} sg_pg_exchange;

/* Queues a statement of the table, whose result is the one at which. False: the connection is of no
 * more use. */
bool sg_pg_exchange_queue(const sg_pg *pg, sg_pg_exchange *ex, const sg_pg_call *call, bool session,
                          int which);
/* Sends what was queued and waits for all answers. */
sg_pg_outcome sg_pg_exchange_run(sg_pg_exchange *ex, PGresult **results);
/* The connection is gone: says so. */
sg_pg_outcome sg_pg_exchange_lost(sg_pg_exchange *ex);

#endif
