/* Findings for `syncguard doctor`. */
#ifndef SYNCGUARD_REDIS_DIAGNOSE_H
#define SYNCGUARD_REDIS_DIAGNOSE_H

#include "syncguard/sys/backend.h"

syncguard_status sg_redis_diagnose(syncguard_backend *base, const syncguard_limits *limits,
                                   syncguard_finding_fn fn, void *context, syncguard_error *err);

#endif
