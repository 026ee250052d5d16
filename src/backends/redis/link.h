/* A connection that any number of threads share. */
#ifndef SYNCGUARD_REDIS_LINK_H
#define SYNCGUARD_REDIS_LINK_H

#include "caller.h"
#include "route.h"
#include "tracker.h"

typedef struct sg_redis_link {
    const sg_redis_dialer *dialer;
    sg_redis_topology *topology;
    sg_redis_tracker *tracker; /* NULL: waiters are not told of releases */
    sg_redis_callers callers;  /* its mutex guards everything below */
    sg_redis_connection *conn; /* NULL: not connected */
    sg_redis_caller *leader;   /* its thread reads the replies for all callers */
    sg_redis_caller *queue;    /* not sent yet: waiting for a connection */
    sg_redis_caller *queue_last;
    sg_redis_caller *flight; /* sent: waiting for replies, in order */
    sg_redis_caller *flight_last;
    uint32_t uncollected; /* threads that were woken with a reply and have not collected it yet */
    int64_t used_ns;
    int64_t heard_ns;
    uint64_t connections;       /* made so far */
    bool connected_before;      /* to the server that it leads to now */
    bool reconnected;           /* a reconnection that has not been reported yet */
    syncguard_backend *backend; /* to report it to; NULL: not reported */
    atomic_bool polling;        /* the leader sleeps: a caller that adds a command sends it */
    atomic_int load;            /* round trips under way; no mutex needed */
    /* The thread that connects. */
    bool connecting;
    bool joinable;
    pthread_t connector;
    syncguard_abort *stop; /* ends it */
    char host[256];        /* where to connect; port 0: to the primary */
    int port;
} sg_redis_link;

/* On failure `dialer` is NULL, and there is nothing to finish. */
syncguard_status sg_redis_link_init(sg_redis_link *link, const sg_redis_dialer *dialer,
                                    sg_redis_topology *topology, sg_redis_tracker *tracker,
                                    syncguard_error *err);
/* forked: the connection is the parent's, and the memory may be in any state: descriptors are
 * closed, the rest is left. */
void sg_redis_link_fini(sg_redis_link *link, bool forked);
/*
 * Sends the text and waits for the replies. ServiceUnavailable with trip->sent means that the
 * connection broke: the request may have been applied. With trip->only, ServiceUnavailable may also
 * mean that the link no longer has that connection.
 */
syncguard_status sg_redis_link_round_trip(sg_redis_link *link, sg_redis_round_trip *trip,
                                          const syncguard_limits *limits, syncguard_error *err);
/* True if the connection has ended while no request was using it; it is then given up. Never
 * blocks. */
bool sg_redis_link_ended(sg_redis_link *link);
/* Makes the link lead to this server from now on, instead of to the primary. */
void sg_redis_link_aim(sg_redis_link *link, const char *host, int port);
/* Gives the connection up; the next round trip makes a new one. */
void sg_redis_link_reset(sg_redis_link *link);

/* Returns the connection if it reports to the tracker, else NULL. The caller must give it back. */
sg_redis_connection *sg_redis_link_tracked(sg_redis_link *link);
void sg_redis_link_give_back(sg_redis_link *link, sg_redis_connection *conn, bool broken);

#endif
