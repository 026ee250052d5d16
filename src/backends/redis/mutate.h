/* Operations that change something. The comments of syncguard_backend_ops say what each does. */
#ifndef SYNCGUARD_REDIS_MUTATE_H
#define SYNCGUARD_REDIS_MUTATE_H

#include "request.h"

syncguard_status sg_redis_acquire(syncguard_backend *base, syncguard_acquire_op *op,
                                  syncguard_error *err);
syncguard_status sg_redis_release(syncguard_backend *base, syncguard_release_op *op,
                                  syncguard_error *err);
void sg_redis_do_many(syncguard_backend *base, syncguard_many_op *items, size_t count,
                      const syncguard_limits *limits);
syncguard_status sg_redis_extend(syncguard_backend *base, syncguard_extend_op *op,
                                 syncguard_error *err);
syncguard_status sg_redis_undo(syncguard_backend *base, const char *key, size_t key_length,
                               const char *lock_id, int64_t until_ns,
                               const syncguard_limits *limits, syncguard_error *err);
syncguard_status sg_redis_undo_many(syncguard_backend *base, syncguard_undo_op *items, size_t count,
                                    const syncguard_limits *limits, syncguard_error *err);
syncguard_status sg_redis_cleanup(syncguard_backend *base, const syncguard_cleanup_op *op,
                                  syncguard_error *err);

/* Makes the request of an extend; renew.c uses it for batches. The caller must free the request. */
void sg_redis_extend_request(sg_redis_backend *backend, const syncguard_extend_op *op,
                             const syncguard_limits *limits, sg_redis_request *request);
syncguard_status sg_redis_extend_interpret(syncguard_extend_op *op, const redisReply *reply,
                                           syncguard_error *err);

#endif
