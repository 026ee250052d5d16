/* Operations that only read: is_locked, lookup, list. */
#ifndef SG_FIRESTORE_READ_H
#define SG_FIRESTORE_READ_H

#include "syncguard/sys/backend.h"

syncguard_status sg_firestore_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                        syncguard_error *err);
syncguard_status sg_firestore_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                     syncguard_error *err);
syncguard_status sg_firestore_list(syncguard_backend *backend, const syncguard_limits *limits,
                                   syncguard_record_fn fn, void *context, syncguard_error *err);
syncguard_status sg_firestore_list_expired(syncguard_backend *backend,
                                           const syncguard_limits *limits, syncguard_record_fn fn,
                                           void *context, syncguard_error *err);

#endif
