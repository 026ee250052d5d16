/*
 * Checking a connection out of the pool: an idle one, or a new one. See connector.c.
 */
#ifndef SG_PG_CONNECTOR_H
#define SG_PG_CONNECTOR_H

#include "pool.h"

/* Connects in a thread; returns when it is done or limits end the waiting. */
syncguard_status sg_pg_connector_wait(sg_pg_pool *pool, const syncguard_limits *limits,
                                      sg_pg_connection **out, syncguard_error *err);
/* An idle connection, else a new one. The caller has a place in the pool. */
syncguard_status sg_pg_check_out(sg_pg_pool *pool, const syncguard_limits *limits,
                                 sg_pg_connection **out, syncguard_error *err);

#endif
