/* Operations that only read. */
#ifndef SYNCGUARD_REDIS_READ_H
#define SYNCGUARD_REDIS_READ_H

#include "backend.h"

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

#endif
