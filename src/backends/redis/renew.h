/* Many renewals in one round trip. */
#ifndef SYNCGUARD_REDIS_RENEW_H
#define SYNCGUARD_REDIS_RENEW_H

#include "syncguard/sys/backend.h"

syncguard_status sg_redis_extend_many(syncguard_backend *base, syncguard_extend_op *items,
                                      size_t count, const syncguard_limits *limits,
                                      syncguard_error *err);

#endif
