/*
 * Abandoned requests, and whether they may still take effect. See abandon.c.
 */
#ifndef SG_PG_ABANDON_H
#define SG_PG_ABANDON_H

#include "pool.h"

/* Abandons a connection in the middle of a request: the request is cancelled and the connection
 * closed in the background. lock_id: that of the acquire; NULL for any other request. */
void sg_pg_abandon(sg_pg_connection *connection, const char *lock_id);

/* Records an acquire with an unknown outcome. over: the server can no longer apply it. */
void sg_pg_unresolved_add(sg_pg_pool *pool, const char *lock_id, bool over);
/* Returns how many requests for lock_id may still be applied, and in *total the number of those
 * with an unknown outcome. -1 if none is recorded. */
int sg_pg_unresolved_count(sg_pg_pool *pool, const char *lock_id, int *total);

#endif
