/* Which servers there are, and which of them is the primary; no I/O. */
#ifndef SYNCGUARD_REDIS_TOPOLOGY_H
#define SYNCGUARD_REDIS_TOPOLOGY_H

#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdatomic.h>

#include "options.h"

/* Other servers that are remembered, besides the seeds. */
#define SG_REDIS_MAX_NODES 64

typedef struct sg_redis_node {
    char host[256];
    int port;
    char id[48]; /* its own, which does not change; "": any */
} sg_redis_node;

typedef struct sg_redis_topology {
    pthread_mutex_t mutex;
    uint64_t generation;
    bool known;                              /* Cluster: a redirection has named the target */
    sg_redis_node target;                    /* without an id */
    size_t first;                            /* of the seeds and nodes, the one to be tried first */
    sg_redis_node nodes[SG_REDIS_MAX_NODES]; /* of the Cluster, or other sentinels */
    size_t node_count;
    atomic_llong learned_ns; /* Cluster: when the nodes were asked for; 0: never */
} sg_redis_topology;

uint64_t sg_redis_topology_generation(sg_redis_topology *topology);
/* The primary is elsewhere: forces new connections, unless the generation has changed since
 * `seen`. */
void sg_redis_topology_forget(sg_redis_topology *topology, uint64_t seen);
void sg_redis_topology_moved(sg_redis_topology *topology, const char *host, int port);
/* The node that redirections point at, with its id if that is known. False: there is none. */
bool sg_redis_topology_target(sg_redis_topology *topology, sg_redis_node *out);
/* The target cannot be reached: the others are asked where the hash slot is now. */
void sg_redis_topology_lose_target(sg_redis_topology *topology);

/* The seeds and the servers that they have named, in the order in which they are tried. */
size_t sg_redis_topology_candidates(sg_redis_topology *topology, const sg_redis_config *config,
                                    size_t *first);
void sg_redis_topology_candidate(sg_redis_topology *topology, const sg_redis_config *config,
                                 size_t number, sg_redis_node *out);
void sg_redis_topology_begin_with(sg_redis_topology *topology, size_t number);

/* Reads a port that another server names. */
bool sg_redis_topology_port(const char *text, int *port);
/* Reads "MOVED HASH-SLOT HOST:PORT" or "ASK ..."; peer is used for an empty host. */
bool sg_redis_topology_redirection(const redisReply *reply, const char *peer, char host[256],
                                   int *port);
/* Whether the list of nodes is older than age_ns. If so, the caller must renew it. */
bool sg_redis_topology_due(sg_redis_topology *topology, int64_t age_ns);
/* Reads the answer to CLUSTER SLOTS of peer. */
void sg_redis_topology_read_hash_slots(sg_redis_topology *topology, const redisReply *ranges,
                                       const char *peer);
/* Reads the answer to SENTINEL SENTINELS. */
void sg_redis_topology_read_sentinels(sg_redis_topology *topology, const redisReply *sentinels);

#endif
