/*
 * Operations while the hash slot moves from one node of a Cluster to another. Each function takes a
 * request that returned SG_REDIS_HASH_SLOT_SPLIT, and leaves the reply in request->reply in the
 * form that the script would give. ABSENT: the lock id is unknown.
 */
#ifndef SYNCGUARD_REDIS_CLUSTER_H
#define SYNCGUARD_REDIS_CLUSTER_H

#include "request.h"

/* The names of one lock. */
typedef struct sg_redis_lock_names {
    sg_redis_name lock;
    sg_redis_name index;
    sg_redis_name counter; /* acquire only */
} sg_redis_lock_names;

syncguard_status sg_redis_cluster_acquire(sg_redis_request *request,
                                          const sg_redis_lock_names *names,
                                          syncguard_acquire_op *op, syncguard_error *err);
syncguard_status sg_redis_cluster_release(sg_redis_request *request, const sg_redis_name *index,
                                          const char *lock_id, syncguard_error *err);
syncguard_status sg_redis_cluster_extend(sg_redis_request *request, const sg_redis_name *index,
                                         const syncguard_extend_op *op, syncguard_error *err);
syncguard_status sg_redis_cluster_undo(sg_redis_request *request, const sg_redis_lock_names *names,
                                       const char *lock_id, int64_t life_ms, syncguard_error *err);
syncguard_status sg_redis_cluster_find(sg_redis_request *request, const sg_redis_name *index,
                                       syncguard_error *err);
/* Asks for a name that never exists, in order to learn where the hash slot is and whether it moves.
 * While it moves, backend->ask leads to its new node. */
syncguard_status sg_redis_cluster_probe(sg_redis_backend *backend, const syncguard_limits *limits,
                                        bool *moving, syncguard_error *err);

#endif
