/* Findings for `syncguard doctor`: what the user may do. */
#ifndef SYNCGUARD_REDIS_RIGHTS_H
#define SYNCGUARD_REDIS_RIGHTS_H

#include "backend.h"

syncguard_status sg_redis_diagnose_rights(sg_redis_backend *backend, const syncguard_findings *to,
                                          const syncguard_limits *limits, syncguard_error *err);

#endif
