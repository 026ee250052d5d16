/*
 * Where to connect, and with which parameters: see target.c.
 */
#ifndef SG_PG_TARGET_H
#define SG_PG_TARGET_H

#include "syncguard/sys/fail.h"

#define SG_PG_MAX_HOSTS 16

/* How long the server may wait for one lock, and how long a whole statement may take: longer, so
 * that the server reports the code of a lock (55P03). */
typedef struct sg_pg_time_limits {
    int64_t lock_ms;
    int64_t statement_ms;
} sg_pg_time_limits;

/* The limits for a caller that has so much time left: less than that, so that the reply arrives in
 * time. */
sg_pg_time_limits sg_pg_time_limits_for(int64_t left_ms);

/* Immutable once read. */
typedef struct sg_pg_target {
    char **keywords; /* NULL-terminated; without host, hostaddr and port */
    char **values;
    int host_count;
    char *hosts[SG_PG_MAX_HOSTS]; /* any may be NULL: libpq's default */
    char *hostaddrs[SG_PG_MAX_HOSTS];
    char *ports[SG_PG_MAX_HOSTS];
    bool service;               /* the parameters name a service file entry */
    bool passfile_refused;      /* libpq would not read the password file */
    int64_t connect_timeout_ms; /* per host; 0: not given */
    sg_pg_time_limits session;  /* the limits that sessions are started with; 0: none */
} sg_pg_target;

/* conninfo may be NULL. timeout_ms: the usual deadline of a request, from which the limits of
 * sessions are derived; 0: no settings of ours may be sent at start-up. */
syncguard_status sg_pg_target_read(const char *conninfo, int64_t timeout_ms, sg_pg_target **out,
                                   syncguard_error *err);
/* Copies the target for one of its hosts, regardless of the role of that server. */
syncguard_status sg_pg_target_of_host(const sg_pg_target *from, int host, sg_pg_target **out,
                                      syncguard_error *err);
/* Wipes and frees. */
void sg_pg_target_free(sg_pg_target *target);

#endif
