/*
 * One connection to the server.
 */
#ifndef SG_PG_CONNECTION_H
#define SG_PG_CONNECTION_H

#include <libpq-fe.h>
#include <stdatomic.h>

#include "syncguard/sys/descriptor.h"
#include "target.h"

typedef struct sg_pg_connection {
    PGconn *pg;                   /* NULL until connecting has begun */
    syncguard_fd_identity socket; /* of pg, once connected */
    uint32_t prepared;            /* bit per sg_pg_statement */
    bool direct;                  /* no pooler in between: the session is ours alone */
    bool limited;                 /* direct, and the session has the target's time limits */
    bool ended;                   /* the server has said that it ends the session */
    bool warned;                  /* the server warned during the statement answered next */
    /* the pool's */
    struct sg_pg_pool *pool;
    uint64_t generation;
    int server_pid; /* 0 until connected, and once abandoned; guarded by the pool's mutex */
    bool lost;      /* counted in the pool as to be replaced; guarded likewise */
    bool replaces;  /* was made in place of such a one, which is not reported yet */
    bool busy;      /* not idle: in a forked child its memory is left alone */
    struct sg_pg_connection *next_idle;
    _Atomic(struct sg_pg_connection *) next; /* of all; readable at any instant (fork) */
} sg_pg_connection;

/* Connects, trying the hosts in turn from number *host on, which becomes the one that worked.
 * Blocks, and in name resolution beyond the deadline too. */
syncguard_status sg_pg_connection_open(sg_pg_connection *connection, const sg_pg_target *target,
                                       int *host, int64_t deadline_ns, syncguard_error *err);

/* False if the program has closed the descriptor: its number may be that of another one by now, to
 * which libpq would write, and which PQfinish would close. */
bool sg_pg_connection_is_open(const sg_pg_connection *connection);

/*
 * In a forked child: puts another socket under the descriptor, so that libpq's Terminate message
 * does not reach the server. False: PQfinish must not be called, because the descriptor is
 * another's by now (the child has closed the parent's and opened its own), or there is none to
 * spare.
 */
bool sg_pg_connection_cut_off(const sg_pg_connection *connection);

#endif
