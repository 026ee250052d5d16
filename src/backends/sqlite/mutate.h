/* The operations that change locks. Contracts: syncguard/sys/backend.h. */
#ifndef SG_SQLITE_MUTATE_H
#define SG_SQLITE_MUTATE_H

#include "backend.h"

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

#endif
