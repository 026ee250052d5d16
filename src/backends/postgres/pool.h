/*
 * The connections of a handle: idle ones, busy ones, and places for those who use them.
 */
#ifndef SG_PG_POOL_H
#define SG_PG_POOL_H

#include <pthread.h>

#include "connection.h"
#include "syncguard/sys/wait.h"

#define SG_PG_MAX_UNRESOLVED 64

/* An acquire that was left in the middle; see abandon.c. */
typedef struct sg_pg_unresolved {
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    bool over; /* the server can no longer carry it out */
} sg_pg_unresolved;

/* Outlives the handle while threads still have to end connections. */
typedef struct sg_pg_pool {
    pthread_mutex_t mutex;
    int references;
    bool closed;
    sg_pg_target *target;
    int max;
    int64_t timeout_ms;              /* the usual deadline of a request */
    atomic_uint_fast64_t generation; /* connections of an older one are not used again */
    int first_host;                  /* the one that worked last */
    int lost;                        /* connections given up that have not been replaced yet */
    sg_pg_connection *idle;
    _Atomic(sg_pg_connection *) all;
    syncguard_gate gate;     /* the queue for a place: one per connection */
    syncguard_gate fallback; /* one place more, for requests that must not wait behind stuck ones */
    /* connector.c */
    struct sg_pg_attempt *orphans;
    int attempts;
    /* abandon.c */
    int drains;  /* threads that end abandoned connections */
    int cancels; /* of those, in a cancel request */
    sg_pg_unresolved unresolved[SG_PG_MAX_UNRESOLVED];
    unsigned next_unresolved;
} sg_pg_pool;

/* Takes over target, also on failure. */
syncguard_status sg_pg_pool_create(sg_pg_target *target, int max, int64_t timeout_ms,
                                   sg_pg_pool **out, syncguard_error *err);
/* Ends idle connections and lets the busy ones end themselves. */
void sg_pg_pool_close(sg_pg_pool *pool);
void sg_pg_pool_unref(sg_pg_pool *pool);
/* In a forked child: drops the parent's connections without talking to them. */
void sg_pg_pool_forget(sg_pg_pool *pool);

/* A new connection, not open yet; NULL without memory. */
sg_pg_connection *sg_pg_pool_add(sg_pg_pool *pool);
/* An idle connection that is trusted; NULL: there is none. */
sg_pg_connection *sg_pg_pool_take_idle(sg_pg_pool *pool);
/* Makes a healthy connection idle. */
void sg_pg_pool_give_back(sg_pg_connection *connection);
/* Ends a connection that is of no more use. */
void sg_pg_pool_discard(sg_pg_connection *connection);

/* Counts a connection as to be replaced; discarding does it, too. */
void sg_pg_pool_count_lost(sg_pg_connection *connection);

bool sg_pg_pool_is_trusted(const sg_pg_connection *connection);
/* The server or its role has changed: what is connected now is not used again. */
void sg_pg_pool_distrust(sg_pg_pool *pool);
/* True if an idle connection has ended that was trusted: then none of them is any more. Never
 * blocks. */
bool sg_pg_pool_has_ended(sg_pg_pool *pool);
/* True if the server process pid serves a connection of this pool. */
bool sg_pg_pool_is_own(sg_pg_pool *pool, int pid);

#endif
