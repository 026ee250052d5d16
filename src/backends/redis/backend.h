/*
 * The handle of the Redis backend.
 *
 *   mutate.c, renew.c, read.c, diagnose.c, rights.c   operations
 *   notify.c                  waiters are told of releases
 *   dispatch.c               one operation: its script or, if the hash slot is split, cluster.c
 *   cluster.c                 operations, one name at a time, while the hash slot moves
 *   request.c, scripts.c      one request: sending again, redirections, NOSCRIPT
 *   confirm.c                 waiting for replicas, with wait_replicas
 *   link.c, pipeline.c, caller.c   a connection that many threads share
 *   tracker.c                 which connections report changes, and to where
 *   route.c, topology.c       where the primary is: address, Sentinel, Cluster
 *   connection.c, tls.c, resolve.c, text.c   one socket, and the protocol
 *   record.c, names.c, errors.c, options.c
 *
 * Each file uses only those below it. Order of locks: the mutex of a link, then that of the tracker
 * or the topology. None of them is held during a wait or a call into the core.
 */
#ifndef SYNCGUARD_REDIS_BACKEND_H
#define SYNCGUARD_REDIS_BACKEND_H

#include "link.h"
#include "names.h"
#include "syncguard/sys/backend.h"

typedef struct sg_redis_notifier sg_redis_notifier;

typedef struct sg_redis_backend {
    syncguard_backend base;
    sg_redis_config config;
    sg_redis_dialer dialer;
    sg_redis_topology topology;
    sg_redis_link *links; /* shared ones; with wait_replicas, those for WAIT; one for extends */
    size_t link_count;
    sg_redis_link ask; /* Cluster: to the node that our hash slot moves to */
    syncguard_gate wait_gate;
    pthread_mutex_t wait_mutex;
    uint64_t wait_busy; /* one bit per link for WAIT */
    sg_redis_tracker tracker;
    sg_redis_notifier *notifier; /* NULL: waiters poll */
    bool has_mutexes;            /* those of the tracker and the topology, and wait_mutex */
    sg_redis_name tombstone;
    int64_t tolerance_ms;
} sg_redis_backend;

#endif
