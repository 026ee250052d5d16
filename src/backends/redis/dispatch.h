/* One operation, outside batches: its script or, while the hash slot moves, cluster.c. */
#ifndef SYNCGUARD_REDIS_DISPATCH_H
#define SYNCGUARD_REDIS_DISPATCH_H

#include "cluster.h"

/* Runs the script of the request. If the hash slot is split, calls the handler with op instead, or
 * fails if that is NULL. */
syncguard_status sg_redis_dispatch(sg_redis_request *request, sg_redis_split_handler *handler,
                                   void *op, syncguard_error *err);

#endif
