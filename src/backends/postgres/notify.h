/*
 * Reports releases to waiters, by LISTEN and NOTIFY: see notify.c.
 */
#ifndef SG_PG_NOTIFY_H
#define SG_PG_NOTIFY_H

#include "pool.h"
#include "syncguard/sys/backend.h"

typedef struct sg_pg_listener sg_pg_listener;

syncguard_status sg_pg_listener_create(syncguard_backend *backend, sg_pg_pool *pool,
                                       sg_pg_listener **out, syncguard_error *err);
void sg_pg_listener_destroy(sg_pg_listener *listener);
/* In a forked child, where the thread does not exist. The pool has cut off the connection. */
syncguard_status sg_pg_listener_forget(sg_pg_listener *listener, syncguard_error *err);

/* Makes sure that releases of key are reported from now on. Returns for how many milliseconds a
 * waiter may rely on it without another try; 0: they are not reported, so the waiter must poll.
 * Blocks within limits only. */
int64_t sg_pg_listener_arm(sg_pg_listener *listener, const char *key, size_t length,
                           const syncguard_limits *limits);
void sg_pg_listener_disarm(sg_pg_listener *listener, const char *key, size_t length);

#endif
