/*
 * Inspecting locks. The store returns raw records; everything that the sanitized
 * functions return is hashed here, in one place.
 */
#include <stdio.h>
#include <string.h>

#include "core.h"
#include "hash.h"
#include "operations.h"

static syncguard_status diagnostics_require_out(const void *out, syncguard_error *err)
{
    if (out != NULL)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "the result pointer is NULL");
}

static void lock_info_from_record(const syncguard_backend *backend, const syncguard_record *record,
                                  syncguard_lock_info *info)
{
    const char *secret = backend->core->hash_secret;
    memset(info, 0, sizeof *info);
    (void)sg_hash_text(secret, record->key, strlen(record->key), info->key_hash);
    (void)sg_hash_text(secret, record->lock_id, strlen(record->lock_id), info->lock_id_hash);
    memcpy(info->fence, record->fence, sizeof info->fence);
    info->expires_at_ms = record->expires_at_ms;
    info->acquired_at_ms = record->acquired_at_ms;
    info->now_ms = record->now_ms;
}

static void lock_info_raw_from_record(const syncguard_backend *backend,
                                      const syncguard_record *record, syncguard_lock_info_raw *raw)
{
    memset(raw, 0, sizeof *raw);
    lock_info_from_record(backend, record, &raw->info);
    snprintf(raw->key, sizeof raw->key, "%s", record->key);
    snprintf(raw->lock_id, sizeof raw->lock_id, "%s", record->lock_id);
    snprintf(raw->owner, sizeof raw->owner, "%s", record->owner);
}

static syncguard_status lock_info_get(syncguard_backend *backend, const char *key,
                                      const char *lock_id, const syncguard_call *call,
                                      syncguard_lock_info *info, syncguard_error *err)
{
    syncguard_error_clear(err);
    syncguard_status status = diagnostics_require_out(info, err);
    if (status != SYNCGUARD_OK)
        return status;
    memset(info, 0, sizeof *info);
    syncguard_record record;
    status = sg_lookup(backend, key, lock_id, call, &record, err);
    if (status == SYNCGUARD_OK)
        lock_info_from_record(backend, &record, info);
    return status;
}

static syncguard_status lock_info_get_raw(syncguard_backend *backend, const char *key,
                                          const char *lock_id, const syncguard_call *call,
                                          syncguard_lock_info_raw *raw, syncguard_error *err)
{
    syncguard_error_clear(err);
    syncguard_status status = diagnostics_require_out(raw, err);
    if (status != SYNCGUARD_OK)
        return status;
    memset(raw, 0, sizeof *raw);
    syncguard_record record;
    status = sg_lookup(backend, key, lock_id, call, &record, err);
    if (status == SYNCGUARD_OK)
        lock_info_raw_from_record(backend, &record, raw);
    return status;
}

syncguard_status syncguard_get_by_key(syncguard_backend *backend, const char *key,
                                      const syncguard_call *call, syncguard_lock_info *info,
                                      syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    return lock_info_get(backend, key, NULL, call, info, err);
}

/* A NULL id must not be taken for a lookup by key. */
static const char *diagnostics_id_or_empty(const char *lock_id)
{
    return lock_id != NULL ? lock_id : "";
}

syncguard_status syncguard_get_by_id(syncguard_backend *backend, const char *lock_id,
                                     const syncguard_call *call, syncguard_lock_info *info,
                                     syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    return lock_info_get(backend, NULL, diagnostics_id_or_empty(lock_id), call, info, err);
}

syncguard_status syncguard_get_by_key_raw(syncguard_backend *backend, const char *key,
                                          const syncguard_call *call, syncguard_lock_info_raw *info,
                                          syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    return lock_info_get_raw(backend, key, NULL, call, info, err);
}

syncguard_status syncguard_get_by_id_raw(syncguard_backend *backend, const char *lock_id,
                                         const syncguard_call *call, syncguard_lock_info_raw *info,
                                         syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    return lock_info_get_raw(backend, NULL, diagnostics_id_or_empty(lock_id), call, info, err);
}

syncguard_status syncguard_owns(syncguard_backend *backend, const char *lock_id,
                                const syncguard_call *call, bool *owned, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    syncguard_status status = diagnostics_require_out(owned, err);
    if (status != SYNCGUARD_OK)
        return status;
    *owned = false;
    syncguard_record record;
    status = sg_lookup(backend, NULL, diagnostics_id_or_empty(lock_id), call, &record, err);
    if (status < SYNCGUARD_OK)
        return status;
    *owned = status == SYNCGUARD_OK;
    return SYNCGUARD_OK;
}

typedef struct list_call {
    const syncguard_backend *backend;
    syncguard_list_fn fn;
    syncguard_list_raw_fn raw_fn;
    void *context;
} list_call;

static bool list_call_report(void *context, const syncguard_record *record)
{
    const list_call *list = context;
    syncguard_lock_info info;
    lock_info_from_record(list->backend, record, &info);
    return list->fn(list->context, &info);
}

static bool list_call_report_raw(void *context, const syncguard_record *record)
{
    const list_call *list = context;
    syncguard_lock_info_raw raw;
    lock_info_raw_from_record(list->backend, record, &raw);
    return list->raw_fn(list->context, &raw);
}

syncguard_status syncguard_list(syncguard_backend *backend, const syncguard_call *call,
                                syncguard_list_fn fn, void *context, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    list_call list = {backend, fn, NULL, context};
    syncguard_error_clear(err);
    if (backend == NULL || fn == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend or fn is NULL");
    return sg_list(backend, call, list_call_report, &list, err);
}

syncguard_status syncguard_list_raw(syncguard_backend *backend, const syncguard_call *call,
                                    syncguard_list_raw_fn fn, void *context, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    list_call list = {backend, NULL, fn, context};
    syncguard_error_clear(err);
    if (backend == NULL || fn == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend or fn is NULL");
    return sg_list(backend, call, list_call_report_raw, &list, err);
}

/* ---- prune ---- */

typedef struct prune_call {
    syncguard_backend *backend;
    const syncguard_call *call;
    bool dry_run;
    syncguard_list_raw_fn fn;
    void *context;
    syncguard_error failure; /* of a removal, which ends the listing */
} prune_call;

/* A record that was renewed or replaced since it was read stays: cleanup compares id and expiry. */
static bool prune_call_handle_record(void *context, const syncguard_record *record)
{
    prune_call *prune = context;
    syncguard_cleanup_op op = {
        .key = record->key,
        .key_length = strlen(record->key),
        .lock_id = record->lock_id,
        .expires_at_ms = record->expires_at_ms,
    };
    syncguard_status status = SYNCGUARD_OK;
    if (!prune->dry_run)
        status = sg_limits_read(prune->backend, prune->call, &op.limits, &prune->failure);
    if (!prune->dry_run && status == SYNCGUARD_OK)
        status = prune->backend->ops->cleanup(prune->backend, &op, &prune->failure);
    if (status != SYNCGUARD_OK || prune->fn == NULL)
        return status >= 0;
    syncguard_lock_info_raw raw;
    lock_info_raw_from_record(prune->backend, record, &raw);
    return prune->fn(prune->context, &raw);
}

syncguard_status syncguard_prune(syncguard_backend *backend, const syncguard_call *call,
                                 bool dry_run, syncguard_list_raw_fn fn, void *context,
                                 syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    prune_call prune = {backend, call, dry_run, fn, context, {0}};
    syncguard_error_clear(err);
    syncguard_error_clear(&prune.failure);
    if (backend == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend is NULL");
    syncguard_status status = sg_list_expired(backend, call, prune_call_handle_record, &prune, err);
    if (status != SYNCGUARD_OK || prune.failure.code >= 0)
        return status;
    if (err != NULL)
        *err = prune.failure;
    return prune.failure.code;
}
