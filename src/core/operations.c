/*
 * The operations of every backend: checks, deadlines, and the cleanup that the core adds to one
 * operation of the store. The op table below trusts its input.
 *
 * Order in every public call: arguments, then fork, then abort, then the store.
 */
#include "operations.h"

#include <string.h>

#include "core.h"
#include "hash.h"

syncguard_status sg_key_read(const syncguard_backend *backend, const char *key,
                             char out[SYNCGUARD_KEY_SIZE], size_t *length, syncguard_error *err)
{
    syncguard_status status = syncguard_key_normalize(key, out, length, err);
    if (status == SYNCGUARD_OK && backend->ops->check_key != NULL)
        status = backend->ops->check_key(backend, out, *length, err);
    return status;
}

syncguard_status sg_call_read(const syncguard_call *call, int64_t timeout_ms,
                              syncguard_limits *limits, syncguard_error *err)
{
    syncguard_call known = SYNCGUARD_CALL_INIT;
    if (call != NULL) {
        syncguard_status status =
            syncguard_struct_read(call, &known, sizeof known,
                                  SYNCGUARD_SIZE_UP_TO(syncguard_call, timeout_ms), "call", err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    if (known.timeout_ms < 0)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "timeout_ms of the call is negative");
    if (known.timeout_ms > 0)
        timeout_ms = known.timeout_ms;
    limits->deadline_ns = syncguard_clock_after(syncguard_clock_ns(), timeout_ms);
    limits->abort_object = known.abort_object;
    return SYNCGUARD_OK;
}

syncguard_status sg_limits_read(const syncguard_backend *backend, const syncguard_call *call,
                                syncguard_limits *limits, syncguard_error *err)
{
    return sg_call_read(call, backend->core->options.timeout_ms, limits, err);
}

syncguard_status sg_ttl_check(int64_t ttl_ms, syncguard_error *err)
{
    int64_t expiry;
    return syncguard_expiry(syncguard_wall_ms(), ttl_ms, &expiry, err);
}

/* The last step before the store. */
static syncguard_status operation_begin(syncguard_backend *backend, const syncguard_limits *limits,
                                        syncguard_error *err)
{
    syncguard_status status = sg_backend_enter(backend, err);
    return status == SYNCGUARD_OK ? syncguard_limits_check(limits, err) : status;
}

/* After the store has answered: clears the error that an earlier, failed attempt left. */
static syncguard_status error_clear_if_answered(syncguard_status status, syncguard_error *err)
{
    if (status >= 0)
        syncguard_error_clear(err);
    return status;
}

static syncguard_status lock_id_check(const char *lock_id, syncguard_error *err)
{
    if (syncguard_lock_id_valid(lock_id))
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "a lock id is 22 base64url characters");
}

void sg_error_key(const syncguard_backend *backend, syncguard_error *err, const char *key,
                  size_t length)
{
    if (backend->core->hash_secret == NULL)
        syncguard_error_key(err, key, length);
    else if (err != NULL)
        (void)sg_hash_text(backend->core->hash_secret, key, length, err->key_hash);
}

/* ---- acquire ---- */

/* A grant that cannot be handed out is a failure; the caller undoes it. */
static syncguard_status grant_check(const syncguard_acquire_op *op, syncguard_error *err)
{
    if (op->fence < 1 || op->fence > SYNCGUARD_FENCE_MAX)
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                              "the store granted the lock with a fence out of range");
    if (syncguard_clock_ns() >= syncguard_clock_after(op->first_sent_ns, op->ttl_ms))
        return syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, NULL,
                              "the grant arrived after its lease had run out");
    return SYNCGUARD_OK;
}

syncguard_status sg_acquire_once_begin(syncguard_backend *backend, syncguard_acquire_op *op,
                                       char lock_id[SYNCGUARD_LOCK_ID_SIZE], syncguard_error *err)
{
    const struct syncguard_core *core = backend->core;
    syncguard_status status = operation_begin(backend, &op->limits, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_lock_id_draw(lock_id, err);
    if (status != SYNCGUARD_OK)
        return status;
    op->lock_id = lock_id;
    op->owner = core->owner != NULL ? core->owner : "";
    op->remaining_ms = -1;
    op->armed_ms = 0;
    op->may_have_been_granted = false;
    op->first_sent_ns = syncguard_clock_ns();
    return SYNCGUARD_OK;
}

syncguard_status sg_acquire_once_end(syncguard_backend *backend, const syncguard_acquire_op *op,
                                     syncguard_status status, syncguard_error *err)
{
    struct syncguard_core *core = backend->core;
    bool granted = status == SYNCGUARD_OK;
    (void)error_clear_if_answered(status, err);
    if (granted)
        status = grant_check(op, err);
    if (granted)
        sg_heartbeat_note_time(&core->heartbeat, op->first_sent_ns, op->expires_at_ms, op->ttl_ms);
    if (status == SYNCGUARD_OK && op->fence > SYNCGUARD_FENCE_WARN)
        sg_fence_warnings_log(&core->fence_warnings, backend, op->key, op->key_length);
    if (status < 0 && (granted || op->may_have_been_granted))
        sg_background_undo(&core->background, op);
    if (status < 0)
        sg_error_key(backend, err, op->key, op->key_length);
    return status;
}

syncguard_status sg_acquire_once(syncguard_backend *backend, syncguard_acquire_op *op,
                                 char lock_id[SYNCGUARD_LOCK_ID_SIZE], syncguard_error *err)
{
    syncguard_status status = sg_acquire_once_begin(backend, op, lock_id, err);
    if (status != SYNCGUARD_OK)
        return status;
    return sg_acquire_once_end(backend, op, backend->ops->acquire(backend, op, err), err);
}

syncguard_status syncguard_acquire(syncguard_backend *backend, const char *key, int64_t ttl_ms,
                                   const syncguard_call *call, syncguard_grant *grant,
                                   syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    char normal[SYNCGUARD_KEY_SIZE];
    syncguard_acquire_op op = {.key = normal, .ttl_ms = ttl_ms};
    syncguard_error_clear(err);
    if (backend == NULL || grant == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend or grant is NULL");
    memset(grant, 0, sizeof *grant);
    syncguard_status status = sg_key_read(backend, key, normal, &op.key_length, err);
    if (status == SYNCGUARD_OK)
        status = sg_ttl_check(ttl_ms, err);
    if (status == SYNCGUARD_OK)
        status = sg_limits_read(backend, call, &op.limits, err);
    if (status == SYNCGUARD_OK)
        status = sg_acquire_once(backend, &op, grant->lock_id, err);
    if (status == SYNCGUARD_OK) {
        grant->expires_at_ms = op.expires_at_ms;
        (void)syncguard_fence_format(op.fence, grant->fence, NULL); /* grant_check has checked it */
    } else {
        memset(grant, 0, sizeof *grant);
    }
    return status;
}

/* ---- release, extend, is_locked ---- */

syncguard_status sg_release_once_begin(syncguard_backend *backend, const syncguard_limits *limits,
                                       syncguard_error *err)
{
    return operation_begin(backend, limits, err);
}

syncguard_status sg_release_once_end(syncguard_backend *backend, const syncguard_release_op *op,
                                     const char *key, size_t key_length, syncguard_status status,
                                     syncguard_error *err)
{
    if (key == NULL) {
        key = op->key;
        key_length = op->key_length;
    }
    if (status == SYNCGUARD_OK && key_length > 0)
        sg_wait_queue_released(backend->core->wait_queue, key, key_length);
    return error_clear_if_answered(status, err);
}

syncguard_status sg_release_once(syncguard_backend *backend, syncguard_release_op *op,
                                 const char *key, size_t key_length, syncguard_error *err)
{
    syncguard_status status = sg_release_once_begin(backend, &op->limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = backend->ops->release(backend, op, err);
    return sg_release_once_end(backend, op, key, key_length, status, err);
}

syncguard_status syncguard_release(syncguard_backend *backend, const char *lock_id,
                                   const syncguard_call *call, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_release_op op = {.lock_id = lock_id};
    syncguard_error_clear(err);
    if (backend == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend is NULL");
    syncguard_status status = lock_id_check(lock_id, err);
    if (status == SYNCGUARD_OK)
        status = sg_limits_read(backend, call, &op.limits, err);
    if (status == SYNCGUARD_OK)
        status = sg_release_once(backend, &op, NULL, 0, err);
    return status;
}

syncguard_status syncguard_extend(syncguard_backend *backend, const char *lock_id, int64_t ttl_ms,
                                  const syncguard_call *call, int64_t *expires_at_ms,
                                  syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_extend_op op = {.lock_id = lock_id, .ttl_ms = ttl_ms};
    syncguard_error_clear(err);
    if (expires_at_ms != NULL)
        *expires_at_ms = 0;
    if (backend == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend is NULL");
    syncguard_status status = lock_id_check(lock_id, err);
    if (status == SYNCGUARD_OK)
        status = sg_ttl_check(ttl_ms, err);
    if (status == SYNCGUARD_OK)
        status = sg_limits_read(backend, call, &op.limits, err);
    if (status == SYNCGUARD_OK)
        status = operation_begin(backend, &op.limits, err);
    if (status == SYNCGUARD_OK) {
        op.first_sent_ns = syncguard_clock_ns();
        status = error_clear_if_answered(backend->ops->extend(backend, &op, err), err);
    }
    if (status != SYNCGUARD_OK)
        return status;
    sg_heartbeat_note_time(&backend->core->heartbeat, op.first_sent_ns, op.expires_at_ms, ttl_ms);
    if (expires_at_ms != NULL)
        *expires_at_ms = op.expires_at_ms;
    return status;
}

syncguard_status syncguard_is_locked(syncguard_backend *backend, const char *key,
                                     const syncguard_call *call, bool *locked, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    char normal[SYNCGUARD_KEY_SIZE];
    syncguard_is_locked_op op = {.key = normal};
    syncguard_error_clear(err);
    if (backend == NULL || locked == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend or locked is NULL");
    *locked = false;
    syncguard_status status = sg_key_read(backend, key, normal, &op.key_length, err);
    if (status == SYNCGUARD_OK)
        status = sg_limits_read(backend, call, &op.limits, err);
    if (status == SYNCGUARD_OK)
        status = operation_begin(backend, &op.limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = error_clear_if_answered(backend->ops->is_locked(backend, &op, err), err);
    if (status != SYNCGUARD_OK) {
        sg_error_key(backend, err, normal, op.key_length);
        return status;
    }
    *locked = op.locked;
    if (backend->core->options.cleanup_in_is_locked && !op.locked && op.dead_lock_id[0] != '\0' &&
        op.dead_for_ms > SYNCGUARD_CLEANUP_GUARD_MS && backend->ops->cleanup != NULL)
        sg_background_cleanup(&backend->core->background, &op);
    return SYNCGUARD_OK;
}

/* ---- for diagnostics.c ---- */

syncguard_status sg_lookup(syncguard_backend *backend, const char *key, const char *lock_id,
                           const syncguard_call *call, syncguard_record *record,
                           syncguard_error *err)
{
    syncguard_lookup_op op = {.lock_id = lock_id};
    if (backend == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend is NULL");
    char normal[SYNCGUARD_KEY_SIZE];
    syncguard_status status;
    if (lock_id != NULL) {
        status = lock_id_check(lock_id, err);
    } else {
        status = sg_key_read(backend, key, normal, &op.key_length, err);
        op.key = normal;
    }
    if (status == SYNCGUARD_OK)
        status = sg_limits_read(backend, call, &op.limits, err);
    if (status == SYNCGUARD_OK)
        status = operation_begin(backend, &op.limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = error_clear_if_answered(backend->ops->lookup(backend, &op, err), err);
    if (status == SYNCGUARD_OK)
        *record = op.record;
    else if (status < SYNCGUARD_OK && op.key != NULL)
        sg_error_key(backend, err, op.key, op.key_length);
    return status;
}

syncguard_status sg_list(syncguard_backend *backend, const syncguard_call *call,
                         syncguard_record_fn fn, void *context, syncguard_error *err)
{
    syncguard_limits limits;
    syncguard_status status = sg_limits_read(backend, call, &limits, err);
    if (status == SYNCGUARD_OK)
        status = operation_begin(backend, &limits, err);
    if (status == SYNCGUARD_OK)
        status =
            error_clear_if_answered(backend->ops->list(backend, &limits, fn, context, err), err);
    return status;
}

syncguard_status sg_list_expired(syncguard_backend *backend, const syncguard_call *call,
                                 syncguard_record_fn fn, void *context, syncguard_error *err)
{
    syncguard_limits limits;
    syncguard_status status = sg_limits_read(backend, call, &limits, err);
    if (status == SYNCGUARD_OK)
        status = operation_begin(backend, &limits, err);
    if (status != SYNCGUARD_OK || backend->ops->list_expired == NULL)
        return status;
    return error_clear_if_answered(backend->ops->list_expired(backend, &limits, fn, context, err),
                                   err);
}

syncguard_status syncguard_examine(syncguard_backend *backend, const syncguard_call *call,
                                   syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (backend == NULL || fn == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend or fn is NULL");
    syncguard_limits limits;
    syncguard_status status = sg_limits_read(backend, call, &limits, err);
    if (status == SYNCGUARD_OK)
        status = operation_begin(backend, &limits, err);
    if (status == SYNCGUARD_OK && backend->ops->diagnose != NULL)
        status = error_clear_if_answered(backend->ops->diagnose(backend, &limits, fn, context, err),
                                         err);
    return status;
}
