/*
 * The connections of a handle, idle and busy, and the gates in front of them.
 */
#ifndef SG_PG_POOL_H
#define SG_PG_POOL_H

#include <pthread.h>

#include "connection.h"
#include "syncguard/sys/wait.h"

#define SG_PG_MAX_UNRESOLVED 64

/* An acquire with an unknown outcome; see abandon.c. */
typedef struct sg_pg_unresolved {
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    bool over; /* the server can no longer apply it */
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
    int first_host;                  /* the host that worked last */
    int lost;                        /* connections given up that have not been replaced yet */
    sg_pg_connection *idle;
    _Atomic(sg_pg_connection *) all;
    syncguard_gate gate;     /* the queue for connections: one place for each */
    syncguard_gate fallback; /* one more place, for requests that must not wait behind stuck ones */
    /* connector.c */
    struct sg_pg_attempt *orphans;
    int attempts;
    /* abandon.c */
    int drains;  /* threads that end abandoned connections */
    int cancels; /* of these, those that are in a cancel request */
    sg_pg_unresolved unresolved[SG_PG_MAX_UNRESOLVED];
    unsigned next_unresolved;
} sg_pg_pool;

/* Takes ownership of target, also on failure. */
syncguard_status sg_pg_pool_create(sg_pg_target *target, int max, int64_t timeout_ms,
                                   sg_pg_pool **out, syncguard_error *err);
/* Closes the idle connections; busy ones are closed when they are given back. */
void sg_pg_pool_close(sg_pg_pool *pool);
void sg_pg_pool_unref(sg_pg_pool *pool);
/* In a forked child: drops the parent's connections without writing to them. */
void sg_pg_pool_forget(sg_pg_pool *pool);

/* Adds a connection that is not open yet; NULL if out of memory. */
sg_pg_connection *sg_pg_pool_add(sg_pg_pool *pool);
/* Takes an idle connection that is trusted; NULL if there is none. */
sg_pg_connection *sg_pg_pool_take_idle(sg_pg_pool *pool);
/* Makes a healthy connection idle. */
void sg_pg_pool_give_back(sg_pg_connection *connection);
/* Closes and frees a connection. */
void sg_pg_pool_discard(sg_pg_connection *connection);

/* Counts a connection as lost, that is, to be replaced; sg_pg_pool_discard does so too. */
void sg_pg_pool_count_lost(sg_pg_connection *connection);

bool sg_pg_pool_is_trusted(const sg_pg_connection *connection);
/* To be called when the server or its role has changed: no connection that exists now is used
 * again. */
void sg_pg_pool_distrust(sg_pg_pool *pool);
/* True if a trusted idle connection has ended; then all connections are distrusted. Never
 * blocks. */
bool sg_pg_pool_has_ended(sg_pg_pool *pool);
/* True if the server process pid serves a connection of this pool. */
bool sg_pg_pool_is_own(sg_pg_pool *pool, int pid);

/* ---- connector.c: a connection out of the pool ---- */

/* Connects in a thread of its own. Returns when the attempt has ended or the limits are reached. */
syncguard_status sg_pg_connector_wait(sg_pg_pool *pool, const syncguard_limits *limits,
                                      sg_pg_connection **out, syncguard_error *err);
/* Returns an idle connection, or else a new one. The caller must have a place in the pool. */
syncguard_status sg_pg_check_out(sg_pg_pool *pool, const syncguard_limits *limits,
                                 sg_pg_connection **out, syncguard_error *err);

/* ---- abandon.c: requests whose caller gave up ---- */

/* Abandons a connection in the middle of a request: the request is cancelled and the connection
 * closed in the background. lock_id: that of the acquire; NULL for any other request. */
void sg_pg_abandon(sg_pg_connection *connection, const char *lock_id);

/* Records an acquire with an unknown outcome. over: the server can no longer apply it. */
void sg_pg_unresolved_add(sg_pg_pool *pool, const char *lock_id, bool over);
/* Returns how many requests for lock_id may still be applied, and in *total the number of those
 * with an unknown outcome. -1 if none is recorded. */
int sg_pg_unresolved_count(sg_pg_pool *pool, const char *lock_id, int *total);

#endif
