/* Replicas confirm what a connection has written (the option wait_replicas). */
#ifndef SYNCGUARD_REDIS_CONFIRM_H
#define SYNCGUARD_REDIS_CONFIRM_H

#include "backend.h"

/* The link that all extends share, with wait_replicas or with waiters. */
sg_redis_link *sg_redis_extend_link(const sg_redis_backend *backend);
/*
 * Waits until wait_replicas replicas have what was written by the link's connection `serial`; OK
 * also if they do not have it in time. ServiceUnavailable: the connection broke, so it remains
 * unknown whether they have it.
 */
syncguard_status sg_redis_confirm(const sg_redis_backend *backend, sg_redis_link *link,
                                  uint64_t serial, const syncguard_limits *limits, bool *confirmed,
                                  syncguard_error *err);

#endif
