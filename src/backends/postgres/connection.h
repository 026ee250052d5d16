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
    bool direct;                  /* no pooler in between: no other client uses the session */
    bool limited;                 /* direct, and the session has the target's time limits */
    bool ended;                   /* the server has said that it ends the session */
    bool warned;                  /* the server warned during the next result's statement */
    /* fields of the pool */
    struct sg_pg_pool *pool;
    uint64_t generation;
    int server_pid; /* 0 until connected, and once abandoned; guarded by the pool's mutex */
    bool lost;      /* counted in pool->lost; guarded by the mutex of the pool */
    bool replaces;  /* replaces a lost connection, which is not reported yet */
    bool busy;      /* not idle: a forked child does not free its memory */
    struct sg_pg_connection *next_idle;
    _Atomic(struct sg_pg_connection *) next; /* list of all; readable at any instant (fork) */
} sg_pg_connection;

/* Connects: tries the hosts in turn, beginning with number *host, and sets *host to the one that
 * worked. Blocks; name resolution may exceed the deadline. */
syncguard_status sg_pg_connection_open(sg_pg_connection *connection, const sg_pg_target *target,
                                       int *host, int64_t deadline_ns, syncguard_error *err);

/* False if the program has closed the descriptor. Its number may belong to another file by now:
 * libpq would write to that file, and PQfinish would close it. */
bool sg_pg_connection_is_open(const sg_pg_connection *connection);

/*
 * In a forked child: replaces the socket behind the descriptor, so that libpq's Terminate message
 * does not reach the server. False: PQfinish must not be called, because the descriptor belongs to
 * another file by now (the child has closed the parent's and opened its own), or because no
 * descriptor is left.
 */
bool sg_pg_connection_cut_off(const sg_pg_connection *connection);

#endif
