/* One operation of the store, with the checks and the cleanup that the core adds. */
#ifndef SG_OPERATIONS_H
#define SG_OPERATIONS_H

#include "syncguard/sys/backend.h"

/* Checks a key, also against the limits of the store, and writes its NFC form. */
syncguard_status sg_key_read(const syncguard_backend *backend, const char *key,
                             char out[SYNCGUARD_KEY_SIZE], size_t *length, syncguard_error *err);
/* Reads call (NULL: defaults) into limits. timeout_ms applies if call has no timeout. */
syncguard_status sg_call_read(const syncguard_call *call, int64_t timeout_ms,
                              syncguard_limits *limits, syncguard_error *err);
/* The same with the timeout of backend. */
syncguard_status sg_limits_read(const syncguard_backend *backend, const syncguard_call *call,
                                syncguard_limits *limits, syncguard_error *err);
/* Adds the hash of a normalized key to an error that is being returned. */
void sg_error_key(const syncguard_backend *backend, syncguard_error *err, const char *key,
                  size_t length);
syncguard_status sg_ttl_check(int64_t ttl_ms, syncguard_error *err);

/*
 * One attempt: draws the id into lock_id, sends the request, and undoes a grant that is late or
 * unknown. The caller has filled in op's in fields except lock_id and owner.
 */
syncguard_status sg_acquire_once(syncguard_backend *backend, syncguard_acquire_op *op,
                                 char lock_id[SYNCGUARD_LOCK_ID_SIZE], syncguard_error *err);
/* The same in two halves, before and after the operation acquire. If begin is not OK, the caller
 * must not go on. */
syncguard_status sg_acquire_once_begin(syncguard_backend *backend, syncguard_acquire_op *op,
                                       char lock_id[SYNCGUARD_LOCK_ID_SIZE], syncguard_error *err);
syncguard_status sg_acquire_once_end(syncguard_backend *backend, const syncguard_acquire_op *op,
                                     syncguard_status status, syncguard_error *err);
/* Releases by id and wakes the local waiters; key may be NULL if it is not known. The caller has
 * filled in op's in fields. */
syncguard_status sg_release_once(syncguard_backend *backend, syncguard_release_op *op,
                                 const char *key, size_t key_length, syncguard_error *err);
syncguard_status sg_release_once_begin(syncguard_backend *backend, const syncguard_limits *limits,
                                       syncguard_error *err);
syncguard_status sg_release_once_end(syncguard_backend *backend, const syncguard_release_op *op,
                                     const char *key, size_t key_length, syncguard_status status,
                                     syncguard_error *err);

/* Looks up by key or, if lock_id is not NULL, by id. */
syncguard_status sg_lookup(syncguard_backend *backend, const char *key, const char *lock_id,
                           const syncguard_call *call, syncguard_record *record,
                           syncguard_error *err);
syncguard_status sg_list(syncguard_backend *backend, const syncguard_call *call,
                         syncguard_record_fn fn, void *context, syncguard_error *err);
syncguard_status sg_list_expired(syncguard_backend *backend, const syncguard_call *call,
                                 syncguard_record_fn fn, void *context, syncguard_error *err);

#endif
