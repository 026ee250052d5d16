/* Renewals in batches. Contract: syncguard/sys/backend.h. */
#ifndef SG_SQLITE_RENEW_H
#define SG_SQLITE_RENEW_H

#include "syncguard/sys/backend.h"

syncguard_status sg_sqlite_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                       size_t count, const syncguard_limits *limits,
                                       syncguard_error *err);

#endif
