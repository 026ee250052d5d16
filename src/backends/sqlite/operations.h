/* The operations, as syncguard_backend_ops describes them. */
#ifndef SG_SQLITE_OPERATIONS_H
#define SG_SQLITE_OPERATIONS_H

#include "backend.h"

/* mutate.c */
syncguard_status sg_sqlite_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                                   syncguard_error *err);
syncguard_status sg_sqlite_release(syncguard_backend *backend, syncguard_release_op *op,
                                   syncguard_error *err);
syncguard_status sg_sqlite_undo(syncguard_backend *backend, const char *key, size_t key_length,
                                const char *lock_id, int64_t until_ns,
                                const syncguard_limits *limits, syncguard_error *err);
syncguard_status sg_sqlite_extend(syncguard_backend *backend, syncguard_extend_op *op,
                                  syncguard_error *err);
syncguard_status sg_sqlite_cleanup(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                   syncguard_error *err);

/* One extend inside a transaction: OK or ABSENT; nothing is committed yet. *cell: the cell that the
 * caller must publish after the commit because the lock ends earlier now, or SG_SQLITE_NO_CELL. */
syncguard_status sg_sqlite_extend_row(sg_sqlite *sqlite, syncguard_extend_op *op, int *cell,
                                      syncguard_error *err);

/* renew.c */
syncguard_status sg_sqlite_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                       size_t count, const syncguard_limits *limits,
                                       syncguard_error *err);

/* read.c */
syncguard_status sg_sqlite_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                     syncguard_error *err);
syncguard_status sg_sqlite_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                  syncguard_error *err);
syncguard_status sg_sqlite_list(syncguard_backend *backend, const syncguard_limits *limits,
                                syncguard_record_fn fn, void *context, syncguard_error *err);
syncguard_status sg_sqlite_list_expired(syncguard_backend *backend, const syncguard_limits *limits,
                                        syncguard_record_fn fn, void *context,
                                        syncguard_error *err);

/* diagnose.c */
syncguard_status sg_sqlite_diagnose(syncguard_backend *backend, const syncguard_limits *limits,
                                    syncguard_finding_fn fn, void *context, syncguard_error *err);

#endif
