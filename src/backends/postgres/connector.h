/*
 * Checking a connection out of the pool: an idle one, or a new one. See connector.c.
 */
#ifndef SG_PG_CONNECTOR_H
#define SG_PG_CONNECTOR_H

#include "pool.h"

/* Connects in a thread of its own. Returns when the attempt has ended or the limits are reached. */
syncguard_status sg_pg_connector_wait(sg_pg_pool *pool, const syncguard_limits *limits,
                                      sg_pg_connection **out, syncguard_error *err);
/* Returns an idle connection, or else a new one. The caller must have a place in the pool. */
syncguard_status sg_pg_check_out(sg_pg_pool *pool, const syncguard_limits *limits,
                                 sg_pg_connection **out, syncguard_error *err);

#endif
