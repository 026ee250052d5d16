/* Operations while the hash slot moves from one node of a Cluster to another. */
#ifndef SYNCGUARD_REDIS_CLUSTER_H
#define SYNCGUARD_REDIS_CLUSTER_H

#include "request.h"

/*
 * Does the operation of a request that returned SG_REDIS_HASH_SLOT_SPLIT, one of request->names at
 * a time, and leaves the reply in request->reply in the form that the script would give. ABSENT:
 * the lock id is unknown.
 */
typedef syncguard_status sg_redis_split_handler(sg_redis_request *request, void *op,
                                                syncguard_error *err);

sg_redis_split_handler sg_redis_cluster_acquire; /* op: syncguard_acquire_op */
sg_redis_split_handler sg_redis_cluster_release; /* op: syncguard_release_op */
sg_redis_split_handler sg_redis_cluster_extend;  /* op: syncguard_extend_op */
sg_redis_split_handler sg_redis_cluster_undo;    /* op: syncguard_undo_op; leaves no reply */
sg_redis_split_handler sg_redis_cluster_find;    /* op: NULL */
/* Asks for a name that never exists, in order to learn where the hash slot is and whether it moves.
 * While it moves, backend->ask leads to its new node. */
syncguard_status sg_redis_cluster_probe(sg_redis_backend *backend, const syncguard_limits *limits,
                                        bool *moving, syncguard_error *err);

#endif
