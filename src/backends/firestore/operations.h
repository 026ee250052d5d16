/* The operations, as syncguard_backend_ops describes them. */
#ifndef SG_FIRESTORE_OPERATIONS_H
#define SG_FIRESTORE_OPERATIONS_H

#include "syncguard/sys/backend.h"

/* mutate.c */
syncguard_status sg_firestore_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                                      syncguard_error *err);
syncguard_status sg_firestore_release(syncguard_backend *backend, syncguard_release_op *op,
                                      syncguard_error *err);
syncguard_status sg_firestore_extend(syncguard_backend *backend, syncguard_extend_op *op,
                                     syncguard_error *err);
syncguard_status sg_firestore_undo(syncguard_backend *backend, const char *key, size_t key_length,
                                   const char *lock_id, int64_t until_ns,
                                   const syncguard_limits *limits, syncguard_error *err);
syncguard_status sg_firestore_cleanup(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                      syncguard_error *err);

/* renew.c */
syncguard_status sg_firestore_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                          size_t count, const syncguard_limits *limits,
                                          syncguard_error *err);

/* read.c */
syncguard_status sg_firestore_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                        syncguard_error *err);
syncguard_status sg_firestore_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                     syncguard_error *err);
syncguard_status sg_firestore_list(syncguard_backend *backend, const syncguard_limits *limits,
                                   syncguard_record_fn fn, void *context, syncguard_error *err);
syncguard_status sg_firestore_list_expired(syncguard_backend *backend,
                                           const syncguard_limits *limits, syncguard_record_fn fn,
                                           void *context, syncguard_error *err);

/* diagnose.c */
syncguard_status sg_firestore_diagnose(syncguard_backend *backend, const syncguard_limits *limits,
                                       syncguard_finding_fn fn, void *context,
                                       syncguard_error *err);

#endif
