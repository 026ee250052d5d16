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
    sg_redis_caller *leader;   /* whose thread reads, for all */
    sg_redis_caller *queue;    /* not sent yet: waiting for a connection */
    sg_redis_caller *queue_last;
    sg_redis_caller *flight; /* sent: waiting for replies, in order */
    sg_redis_caller *flight_last;
    uint32_t uncollected; /* threads woken with a reply that have not come for it yet */
    int64_t used_ns;
    int64_t heard_ns;
    uint64_t connections;       /* made so far */
    bool connected_before;      /* to where it leads now */
    bool reconnected;           /* and nobody has reported it */
    syncguard_backend *backend; /* to report it to; NULL: not reported */
    atomic_bool polling;        /* the leader sleeps: whoever adds a command sends it */
    atomic_int load;            /* round trips under way; no mutex needed */
    /* The thread that connects. */
    bool connecting;
    bool joinable;
    pthread_t connector;
    syncguard_abort *stop; /* ends it */
    char host[256];        /* where to; port 0: to the primary */
    int port;
} sg_redis_link;

syncguard_status sg_redis_link_init(sg_redis_link *link, const sg_redis_dialer *dialer,
                                    sg_redis_topology *topology, sg_redis_tracker *tracker,
                                    syncguard_error *err);
/* forked: the connection is the parent's, and the memory may be in any state: descriptors are
 * closed, the rest is left. */
void sg_redis_link_fini(sg_redis_link *link, bool forked);
/*
 * Sends and waits for the replies. ServiceUnavailable with trip->sent says that the connection
 * broke: the request may have been carried out. With trip->only it also says that the connection is
 * not there any more.
 */
syncguard_status sg_redis_link_round_trip(sg_redis_link *link, sg_redis_round_trip *trip,
                                          const syncguard_limits *limits, syncguard_error *err);
/* True if the connection has ended while no request was using it; it is given up. Never blocks. */
bool sg_redis_link_ended(sg_redis_link *link);
/* Where the link is to lead from now on, instead of to the primary. */
void sg_redis_link_aim(sg_redis_link *link, const char *host, int port);
/* Gives the connection up; the next round trip makes a new one. */
void sg_redis_link_reset(sg_redis_link *link);

/* The connection if it reports to the tracker, else NULL; until it is given back. */
sg_redis_connection *sg_redis_link_tracked(sg_redis_link *link);
void sg_redis_link_give_back(sg_redis_link *link, sg_redis_connection *conn, bool broken);

#endif
