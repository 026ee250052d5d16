/* Operations that change one lock: acquire, release, extend, undo, cleanup. */
#ifndef SG_FIRESTORE_MUTATE_H
#define SG_FIRESTORE_MUTATE_H

#include "syncguard/sys/backend.h"

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

#endif
