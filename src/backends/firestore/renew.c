/*
 * extend_many: one batchWrite for all cached locks, whose writes succeed or fail one by one. The
 * heartbeat sends at most SYNCGUARD_BATCH_MAX items; Firestore takes 500 writes in one request. A
 * lock that is not cached, or is refused twice, is left undecided for a single extend.
 */
#include "operations.h"

#include <string.h>

#include "query.h"
#include "text.h"

typedef struct batch {
    sg_firestore_context ctx;
    syncguard_extend_op *items;
    size_t count;
    /* of the last request */
    size_t sent[SYNCGUARD_BATCH_MAX];    /* index of the item of each write */
    uint64_t names[SYNCGUARD_BATCH_MAX]; /* hash of the document's name of each write */
    size_t sent_count;
    size_t refused[SYNCGUARD_BATCH_MAX]; /* index of each item that the answer did not renew */
    size_t refused_count;
} batch;

/* Adds the write for item i, if it is cached and live. Firestore refuses a request that names a
 * document twice: the second one (or one whose hash is the same) is left to a single extend. */
static void firestore_renew_add(batch *b, size_t i, const sg_firestore_instant *at, json_t *writes)
{
    syncguard_extend_op *item = &b->items[i];
    char name[SG_FIRESTORE_PATH_BYTES];
    sg_firestore_cached cached;
    if (!sg_firestore_cached_lock(b->ctx.backend, item->lock_id, &cached, name) ||
        !syncguard_is_live(cached.expires_at_ms, at->wall_ms) ||
        syncguard_expiry(at->wall_ms, item->ttl_ms, &item->expires_at_ms, NULL) != SYNCGUARD_OK)
        return;
    uint64_t hash = syncguard_fnv1a(name, strlen(name));
    for (size_t k = 0; k < b->sent_count; k++) {
        if (b->names[k] == hash)
            return;
    }
    if (json_array_append_new(
            writes, sg_firestore_write_expiry(name, cached.update_time, item->expires_at_ms)) != 0)
        return;
    item->first_sent_ns = at->boot_ns;
    b->names[b->sent_count] = hash;
    b->sent[b->sent_count++] = i;
}

/* Applies the result of write number `index`. False: it was refused. */
static bool firestore_renew_apply_result(batch *b, const sg_firestore_answer *answer, size_t index,
                                         int64_t now_ms)
{
    const json_t *state = json_array_get(json_object_get(answer->json, "status"), index);
    const char *update_time = sg_firestore_answer_time(answer, index);
    syncguard_extend_op *item = &b->items[b->sent[index]];
    sg_firestore_cache *cache = &b->ctx.backend->cache;
    if (!json_is_object(state) || json_integer_value(json_object_get(state, "code")) != 0 ||
        update_time == NULL)
        return false;
    item->status = SYNCGUARD_OK;
    sg_firestore_cached cached;
    if (sg_firestore_cache_get(cache, item->lock_id, &cached))
        sg_firestore_cache_put(cache, item->lock_id, cached.key, cached.key_length, update_time,
                               item->expires_at_ms, now_ms);
    return true;
}

/* Reads the first cached document only: one answer shows the time as well as many. */
static syncguard_status firestore_renew_recheck_clock(const batch *b)
{
    char name[SG_FIRESTORE_PATH_BYTES];
    sg_firestore_cached cached;
    for (size_t i = 0; i < b->count; i++) {
        if (sg_firestore_cached_lock(b->ctx.backend, b->items[i].lock_id, &cached, name))
            return sg_firestore_recheck_clock(&b->ctx, name);
    }
    return SYNCGUARD_OK;
}

/* Sends one request for the items that are not renewed yet. */
static syncguard_status firestore_renew_send(batch *b)
{
    sg_firestore_clock *clock = &b->ctx.backend->clock;
    syncguard_status status = firestore_renew_recheck_clock(b);
    sg_firestore_instant at = sg_firestore_now();
    json_t *writes = json_array();
    if (status == SYNCGUARD_OK)
        status = sg_firestore_clock_check(clock, SG_FIRESTORE_EXPIRY, &at, b->ctx.err);
    b->sent_count = b->refused_count = 0;
    for (size_t i = 0; status == SYNCGUARD_OK && i < b->count; i++) {
        if (b->items[i].status != SYNCGUARD_OK)
            firestore_renew_add(b, i, &at, writes);
    }
    if (b->sent_count == 0) {
        json_decref(writes);
        return status;
    }
    sg_firestore_answer answer;
    status = sg_firestore_call(&b->ctx, SG_FIRESTORE_BATCH_WRITE,
                               sg_firestore_set(json_object(), "writes", writes), &answer);
    if (status == SYNCGUARD_OK) {
        status = sg_firestore_clock_check(clock, SG_FIRESTORE_EXPIRY, &at, b->ctx.err);
        for (size_t i = 0; status == SYNCGUARD_OK && i < b->sent_count; i++) {
            if (!firestore_renew_apply_result(b, &answer, i, at.wall_ms))
                b->refused[b->refused_count++] = b->sent[i];
        }
    } else if ((status == SYNCGUARD_E_INVALID_ARGUMENT || status == SYNCGUARD_E_INTERNAL) &&
               !answer.may_have_been_applied) {
        /* The request was refused as a whole, and would be again. One by one the items may
         * succeed. */
        status = SYNCGUARD_OK;
    }
    sg_firestore_answer_free(&answer);
    return status;
}

/* Returns whether the document is still that lock, and live. If so, updates the cache. */
static bool firestore_renew_refresh_one(sg_firestore_backend *backend,
                                        const sg_firestore_answer *read, const char *lock_id,
                                        int64_t now_ms)
{
    char name[SG_FIRESTORE_PATH_BYTES];
    const json_t *document = NULL;
    sg_firestore_cached cached;
    if (!sg_firestore_cached_lock(backend, lock_id, &cached, name) ||
        sg_firestore_answer_document(read, name, &document, NULL) != SYNCGUARD_OK ||
        document == NULL)
        return false;
    sg_firestore_lock lock;
    sg_firestore_lock_decode(document, &lock);
    if (!lock.has_expiry || strcmp(lock.record.lock_id, lock_id) != 0 ||
        !syncguard_is_live(lock.record.expires_at_ms, now_ms))
        return false;
    sg_firestore_cache_put(&backend->cache, lock_id, cached.key, cached.key_length,
                           lock.update_time, lock.record.expires_at_ms, now_ms);
    return true;
}

/* One read of the refused documents. Sets *fresh if it is worth sending them again. */
static syncguard_status firestore_renew_refresh(const batch *b, bool *fresh)
{
    char name[SG_FIRESTORE_PATH_BYTES];
    json_t *names = json_array();
    sg_firestore_cached cached;
    for (size_t i = 0; i < b->refused_count; i++) {
        if (sg_firestore_cached_lock(b->ctx.backend, b->items[b->refused[i]].lock_id, &cached,
                                     name))
            names = sg_firestore_add(names, json_string(name));
    }
    sg_firestore_answer read;
    syncguard_status status =
        sg_firestore_read(&b->ctx, SG_FIRESTORE_BATCH_GET,
                          sg_firestore_set(json_object(), "documents", names), &read);
    int64_t now_ms = syncguard_wall_ms();
    for (size_t i = 0; status == SYNCGUARD_OK && i < b->refused_count; i++) {
        const char *lock_id = b->items[b->refused[i]].lock_id;
        if (firestore_renew_refresh_one(b->ctx.backend, &read, lock_id, now_ms))
            *fresh = true;
        else
            sg_firestore_cache_drop(&b->ctx.backend->cache, lock_id);
    }
    sg_firestore_answer_free(&read);
    return status;
}

/*
 * A refused item is a wrong guess of the cache: the lock is gone, or the answer to an earlier batch
 * was lost, and then all are refused although they are live. If they were read one by one, some
 * would expire before their turn. So they are read together, and sent again once. An item that is
 * refused again is left to a single extend.
 */
static syncguard_status firestore_renew_batch(batch *b)
{
    bool fresh = false;
    syncguard_status status = firestore_renew_send(b);
    if (status == SYNCGUARD_OK && b->refused_count > 0)
        status = firestore_renew_refresh(b, &fresh);
    if (status != SYNCGUARD_OK || !fresh)
        return status;
    status = firestore_renew_send(b);
    for (size_t i = 0; status == SYNCGUARD_OK && i < b->refused_count; i++)
        sg_firestore_cache_drop(&b->ctx.backend->cache, b->items[b->refused[i]].lock_id);
    return status;
}

syncguard_status sg_firestore_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                          size_t count, const syncguard_limits *limits,
                                          syncguard_error *err)
{
    batch b = {
        .ctx = {(sg_firestore_backend *)backend, limits, err}, .items = items, .count = count};
    for (size_t i = 0; i < count; i++) {
        items[i].status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
        items[i].reason = SYNCGUARD_REASON_NONE;
    }
    syncguard_status status = firestore_renew_batch(&b);
    bool decided = false;
    for (size_t i = 0; i < count; i++)
        decided = decided || items[i].status == SYNCGUARD_OK;
    return decided ? SYNCGUARD_OK : status;
}
