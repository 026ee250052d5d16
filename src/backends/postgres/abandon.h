/*
 * Requests whose caller has left, and what is known about their end. See abandon.c.
 */
#ifndef SG_PG_ABANDON_H
#define SG_PG_ABANDON_H

#include "pool.h"

/* Leaves a connection in the middle of a request, which is cancelled in the background. lock_id: of
 * the acquire that it was, or NULL. */
void sg_pg_abandon(sg_pg_connection *connection, const char *lock_id);

/* Notes an acquire whose outcome is unknown. over: the server can no longer carry it out. */
void sg_pg_unresolved_add(sg_pg_pool *pool, const char *lock_id, bool over);
/* How many requests for lock_id may still be carried out, of *total whose outcome is unknown; -1 if
 * nothing is known of any. */
int sg_pg_unresolved_count(sg_pg_pool *pool, const char *lock_id, int *total);

#endif
