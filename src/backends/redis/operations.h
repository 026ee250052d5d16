/* The operations, as syncguard_backend_ops describes them. */
#ifndef SYNCGUARD_REDIS_OPERATIONS_H
#define SYNCGUARD_REDIS_OPERATIONS_H

#include "request.h"

/* mutate.c */
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

/* renew.c */
syncguard_status sg_redis_extend_many(syncguard_backend *base, syncguard_extend_op *items,
                                      size_t count, const syncguard_limits *limits,
                                      syncguard_error *err);

/* read.c */
syncguard_status sg_redis_is_locked(syncguard_backend *base, syncguard_is_locked_op *op,
                                    syncguard_error *err);
syncguard_status sg_redis_lookup(syncguard_backend *base, syncguard_lookup_op *op,
                                 syncguard_error *err);
syncguard_status sg_redis_list(syncguard_backend *base, const syncguard_limits *limits,
                               syncguard_record_fn fn, void *context, syncguard_error *err);
/* Counts the locks that list has to leave out because they cannot be read. */
syncguard_status sg_redis_count_unreadable(sg_redis_backend *backend,
                                           const syncguard_limits *limits, size_t *count,
                                           syncguard_error *err);

/* diagnose.c */
syncguard_status sg_redis_diagnose(syncguard_backend *base, const syncguard_limits *limits,
                                   syncguard_finding_fn fn, void *context, syncguard_error *err);

/* rights.c: a part of the findings */
syncguard_status sg_redis_diagnose_rights(sg_redis_backend *backend, const syncguard_findings *to,
                                          const syncguard_limits *limits, syncguard_error *err);

#endif
