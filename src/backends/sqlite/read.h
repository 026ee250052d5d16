/* The operations that only read. Contracts: syncguard/sys/backend.h. */
#ifndef SG_SQLITE_READ_H
#define SG_SQLITE_READ_H

#include "syncguard/sys/backend.h"

syncguard_status sg_sqlite_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                     syncguard_error *err);
syncguard_status sg_sqlite_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                  syncguard_error *err);
syncguard_status sg_sqlite_list(syncguard_backend *backend, const syncguard_limits *limits,
                                syncguard_record_fn fn, void *context, syncguard_error *err);
syncguard_status sg_sqlite_list_expired(syncguard_backend *backend, const syncguard_limits *limits,
                                        syncguard_record_fn fn, void *context,
                                        syncguard_error *err);

#endif
