/*
 * Rides, see ride.h.
 *
 * The gate's mutex decides whether one in line is admitted, taken along or gives
 * up. After that the pool's mutex guards what rider and driver share:
 *
 *   taken   the driver reads the request, and the rider may not go; if its time is
 *           up it says so and waits for the driver, which does not block here
 *   sent    seat and ride know of each other. Who parts them first decides: the
 *           rider by leaving, and then the driver drops its results; or the driver
 *           by handing them over
 *   over    the driver unparks, when the mutex is free again, and touches the ride
 *           no more; the rider returns only after that, for the parker is on its
 *           stack
 *
 * Who parts them without an answer enters the doubt about an acquire. If the answer
 * still comes, the driver settles it.
 */
#include <string.h>

#include "ride.h"

/* Which request of the exchange rides. */
#define RIDER 1

void sg_pg_ride_init(sg_pg_ride *ride, sg_pg_flush *flush, const syncguard_limits *limits,
                     int64_t joins_until_ns, bool returns)
{
    memset(ride, 0, sizeof *ride);
    ride->waiter.joins_until_ns = joins_until_ns;
    ride->waiter.returns = returns;
    ride->flush = flush;
    ride->limits = limits;
}

/* Under the mutex: there is no answer, and none will be waited for. */
static void part(sg_pg_pool *pool, sg_pg_seat *seat, bool final)
{
    const sg_pg_flush *flush = seat->ride->flush;

    if (flush->sent && flush->lock_id) {
        memcpy(seat->lock_id, flush->lock_id, sizeof seat->lock_id);
        seat->doubt = sg_pg_doubt_put(pool, flush->lock_id, final);
    }
    seat->ride = NULL;
}

bool sg_pg_ride_leave(sg_pg_pool *pool, sg_pg_ride *ride)
{
    bool left;

    pthread_mutex_lock(&pool->mutex);
    left = ride->seat && !ride->over;
    if (left)
        part(pool, ride->seat, false);
    ride->leaves = true;
    pthread_mutex_unlock(&pool->mutex);
    if (left)
        return true;
    (void)syncguard_parker_park(&ride->waiter.parker, NULL, NULL);
    return ride->outcome == SG_PG_LEFT;
}

void sg_pg_seat_fill(sg_pg_pool *pool, sg_pg_seat *seat)
{
    seat->ride = (sg_pg_ride *)(void *)syncguard_gate_take(&pool->gate);
    seat->filled = seat->ride != NULL;
    seat->doubt = -1;
}

void sg_pg_seat_sent(sg_pg_pool *pool, sg_pg_seat *seat)
{
    sg_pg_ride *ride = seat->ride;
    bool leaves;

    pthread_mutex_lock(&pool->mutex);
    ride->seat = seat;
    leaves = ride->leaves;
    if (leaves) {
        ride->outcome = SG_PG_LEFT;
        ride->over = true;
        part(pool, seat, false);
    }
    pthread_mutex_unlock(&pool->mutex);
    if (leaves)
        syncguard_parker_unpark(&ride->waiter.parker);
}

void sg_pg_seat_end(sg_pg_pool *pool, sg_pg_seat *seat, sg_pg_exchange *ex, sg_pg_outcome all)
{
    PGresult **results = sg_pg_exchange_results(ex, RIDER);
    sg_pg_outcome outcome = sg_pg_exchange_part(ex, RIDER, all);
    bool answered = all == SG_PG_DONE || all == SG_PG_REFUSED || ex->final;
    sg_pg_ride *ride;
    int i;

    pthread_mutex_lock(&pool->mutex);
    ride = seat->ride;
    if (ride) {
        ride->left = outcome == SG_PG_LEFT;
        if (ride->left)
            outcome = SG_PG_BROKEN;
        ride->outcome = outcome;
        ride->final = ex->final;
        memcpy(ride->sqlstate, ex->sqlstate, sizeof ride->sqlstate);
        memcpy(ride->flush->results, results, sizeof ride->flush->results);
        ride->over = true;
        if (outcome == SG_PG_BROKEN || outcome == SG_PG_UNCONFIRMED)
            part(pool, seat, outcome == SG_PG_UNCONFIRMED || ex->final);
        seat->ride = NULL;
    } else if (seat->doubt >= 0 && answered) {
        sg_pg_doubt_settle(pool, seat->doubt, seat->lock_id);
    }
    pthread_mutex_unlock(&pool->mutex);
    if (ride) {
        syncguard_parker_unpark(&ride->waiter.parker);
        return;
    }
    for (i = 0; i < SG_PG_MAX_CALLS; i++)
        PQclear(results[i]);
}
