/* is_locked, lookup, list. ADR 0043 defines how each of them treats a document that cannot be
 * read. */
#include "operations.h"

#include <string.h>

#include "query.h"

#define PAGE 300

syncguard_status sg_firestore_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                        syncguard_error *err)
{
    sg_firestore_context ctx = {(sg_firestore_backend *)backend, &op->limits, err};
    char name[SG_FIRESTORE_PATH_BYTES];
    sg_firestore_lock lock;
    syncguard_status status = sg_firestore_get_by_key(&ctx, op->key, op->key_length, name, &lock);
    op->locked = false;
    op->dead_lock_id[0] = '\0';
    if (status != SYNCGUARD_OK)
        return status == SYNCGUARD_ABSENT ? SYNCGUARD_OK : status;
    int64_t now_ms = syncguard_wall_ms();
    if (!lock.has_expiry)
        return sg_firestore_fail_unreadable(&lock, err);
    if (syncguard_is_live(lock.record.expires_at_ms, now_ms)) {
        op->locked = true;
    } else {
        memcpy(op->dead_lock_id, lock.record.lock_id, sizeof op->dead_lock_id);
        op->dead_expires_at_ms = lock.record.expires_at_ms;
        op->dead_for_ms = now_ms - lock.record.expires_at_ms;
    }
    return SYNCGUARD_OK;
}

static syncguard_status firestore_lookup_by_key(const sg_firestore_context *ctx,
                                                syncguard_lookup_op *op)
{
    char name[SG_FIRESTORE_PATH_BYTES];
    sg_firestore_lock lock;
    syncguard_status status = sg_firestore_get_by_key(ctx, op->key, op->key_length, name, &lock);
    if (status != SYNCGUARD_OK)
        return status;
    lock.record.now_ms = syncguard_wall_ms();
    if (lock.has_expiry && !syncguard_is_live(lock.record.expires_at_ms, lock.record.now_ms))
        return SYNCGUARD_ABSENT;
    if (!lock.complete)
        return sg_firestore_fail_unreadable(&lock, ctx->err);
    op->record = lock.record;
    return SYNCGUARD_OK;
}

static syncguard_status firestore_lookup_by_id(const sg_firestore_context *ctx,
                                               syncguard_lookup_op *op)
{
    sg_firestore_matches found;
    syncguard_status status = sg_firestore_find_by_id(ctx, op->lock_id, &found);
    json_decref(found.dead);
    if (status != SYNCGUARD_OK)
        return status;
    if (found.unreadable || (found.live_count == 1 && !found.live.complete))
        return sg_firestore_fail_unreadable(&found.live, ctx->err);
    if (found.live_count != 1)
        return SYNCGUARD_ABSENT;
    op->record = found.live.record;
    op->record.now_ms = found.at.wall_ms;
    return SYNCGUARD_OK;
}

syncguard_status sg_firestore_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                     syncguard_error *err)
{
    sg_firestore_context ctx = {(sg_firestore_backend *)backend, &op->limits, err};
    return op->key != NULL ? firestore_lookup_by_key(&ctx, op) : firestore_lookup_by_id(&ctx, op);
}

typedef struct listing {
    syncguard_record_fn fn;
    void *context;
    bool expired;      /* locks that cleanup may remove, instead of live ones */
    size_t unreadable; /* records that cannot be shown, or not told live from dead */
    bool no_memory;
} listing;

static bool firestore_listing_wants(const listing *l, const syncguard_record *record)
{
    return l->expired ? record->now_ms - record->expires_at_ms > SYNCGUARD_CLEANUP_GUARD_MS
                      : syncguard_is_live(record->expires_at_ms, record->now_ms);
}

static bool firestore_listing_show(void *context, const json_t *document, const char *name)
{
    listing *l = context;
    (void)name;
    sg_firestore_lock lock;
    sg_firestore_lock_decode(document, &lock);
    lock.record.now_ms = syncguard_wall_ms();
    if (lock.has_expiry && !firestore_listing_wants(l, &lock.record))
        return true;
    if (lock.complete)
        return l->fn(l->context, &lock.record);
    l->no_memory = lock.no_memory;
    l->unreadable++;
    return !lock.no_memory;
}

static syncguard_status firestore_list_locks(syncguard_backend *backend, bool expired,
                                             const syncguard_limits *limits, syncguard_record_fn fn,
                                             void *context, syncguard_error *err)
{
    sg_firestore_context ctx = {(sg_firestore_backend *)backend, limits, err};
    listing l = {.fn = fn, .context = context, .expired = expired};
    syncguard_status status = sg_firestore_scan(
        &ctx, SG_FIRESTORE_QUERY, sg_firestore_query_page(ctx.backend->names.collection_id, PAGE),
        PAGE, firestore_listing_show, &l);
    if (l.no_memory)
        return syncguard_fail_memory(err);
    if (l.unreadable > 0)
        syncguard_backend_log(backend, SYNCGUARD_LOG_WARN,
                              "%zu stored records cannot be read and are not listed", l.unreadable);
    return status;
}

syncguard_status sg_firestore_list(syncguard_backend *backend, const syncguard_limits *limits,
                                   syncguard_record_fn fn, void *context, syncguard_error *err)
{
    return firestore_list_locks(backend, false, limits, fn, context, err);
}

syncguard_status sg_firestore_list_expired(syncguard_backend *backend,
                                           const syncguard_limits *limits, syncguard_record_fn fn,
                                           void *context, syncguard_error *err)
{
    return firestore_list_locks(backend, true, limits, fn, context, err);
}
