/*
 * Rides: a request that waits in line for a connection goes along in the exchange
 * of one that has got its own, and so both cost one write, one read and one sleep.
 * Who drives is the thread with the connection. See ride.c.
 */
#ifndef SG_PG_RIDE_H
#define SG_PG_RIDE_H

#include "exchange.h"

/* The rider's side, on its stack. */
typedef struct sg_pg_ride {
    syncguard_gate_waiter waiter; /* the first member, for the gate hands out this one */
    sg_pg_flush *flush;
    const syncguard_limits *limits;
    /* guarded by the pool's mutex once it was taken */
    struct sg_pg_seat *seat; /* set when the request is libpq's: the rider may leave now */
    bool leaves;             /* it wants to, as soon as it may */
    bool over;
    /* how it ended */
    sg_pg_outcome outcome;
    bool final; /* broken, but the server said that it ended the session */
    bool left; /* who drove has left the connection: what was sent may still be carried out there */
    char sqlstate[6];
} sg_pg_ride;

/* The driver's side, on its stack. */
typedef struct sg_pg_seat {
    bool filled;
    sg_pg_ride *ride; /* NULL when one of the two has ended it */
    int doubt;        /* about a rider that left before the answer came; -1: none */
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
} sg_pg_seat;

/* Before a request waits in line. joins_until_ns: it may be taken along until then. returns: it
 * was, and in vain. */
void sg_pg_ride_init(sg_pg_ride *ride, sg_pg_flush *flush, const syncguard_limits *limits,
                     int64_t joins_until_ns, bool returns);
/* The time of one that was taken is up. True if it has left; false if its ride is over. */
bool sg_pg_ride_leave(sg_pg_pool *pool, sg_pg_ride *ride);

/* Takes the first in line along, if there is one that joins. */
void sg_pg_seat_fill(sg_pg_pool *pool, sg_pg_seat *seat);
/* The request is libpq's: the rider's memory is not needed any more. */
void sg_pg_seat_sent(sg_pg_pool *pool, sg_pg_seat *seat);
/* Hands over what became of it: all is what became of the exchange, of which it was the second. */
void sg_pg_seat_end(sg_pg_pool *pool, sg_pg_seat *seat, sg_pg_exchange *ex, sg_pg_outcome all);

#endif
