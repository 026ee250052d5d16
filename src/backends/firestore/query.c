/* See query.h. Reads only. */
#include "query.h"

#include <stdio.h>
#include <string.h>

#include "text.h"

syncguard_status sg_firestore_get_lock(const sg_firestore_context *ctx, const char *name,
                                       sg_firestore_lock *lock)
{
    sg_firestore_answer answer;
    const json_t *document = NULL;
    syncguard_status status = sg_firestore_read(ctx, SG_FIRESTORE_BATCH_GET,
                                                json_pack("{s:[s]}", "documents", name), &answer);
    if (status == SYNCGUARD_OK)
        status = sg_firestore_answer_document(&answer, name, &document, ctx->err);
    if (status == SYNCGUARD_OK && document == NULL)
        status = SYNCGUARD_ABSENT;
    if (status == SYNCGUARD_OK) {
        sg_firestore_lock_decode(document, lock);
        lock->name = name;
    }
    sg_firestore_answer_free(&answer);
    return status;
}

syncguard_status sg_firestore_get_by_key(const sg_firestore_context *ctx, const char *key,
                                         size_t length, char name[SG_FIRESTORE_PATH_BYTES],
                                         sg_firestore_lock *lock)
{
    syncguard_status status =
        sg_firestore_names_of(&ctx->backend->names, key, length, name, NULL, ctx->err);
    return status == SYNCGUARD_OK ? sg_firestore_get_lock(ctx, name, lock) : status;
}

bool sg_firestore_cached_lock(sg_firestore_backend *backend, const char *lock_id,
                              sg_firestore_cached *cached, char name[SG_FIRESTORE_PATH_BYTES])
{
    return sg_firestore_cache_get(&backend->cache, lock_id, cached) &&
           sg_firestore_names_of(&backend->names, cached->key, cached->key_length, name, NULL,
                                 NULL) == SYNCGUARD_OK;
}

syncguard_status sg_firestore_recheck_clock(const sg_firestore_context *ctx, const char *name)
{
    sg_firestore_clock *clock = &ctx->backend->clock;
    sg_firestore_instant at = sg_firestore_now();
    if (sg_firestore_clock_check(clock, SG_FIRESTORE_EXPIRY, &at, NULL) == SYNCGUARD_OK ||
        !sg_firestore_clock_may_ask(clock))
        return SYNCGUARD_OK;
    sg_firestore_lock ignored;
    syncguard_status status = sg_firestore_get_lock(ctx, name, &ignored);
    return status == SYNCGUARD_ABSENT ? SYNCGUARD_OK : status;
}

static void matches_add(sg_firestore_matches *found, const sg_firestore_lock *lock)
{
    int64_t now_ms = found->at.wall_ms;
    found->count++;
    if (!lock->has_expiry) {
        found->unreadable = true;
    } else if (syncguard_is_live(lock->record.expires_at_ms, now_ms)) {
        found->live_count++;
        found->live = *lock;
        (void)snprintf(found->live_name, sizeof found->live_name, "%s", lock->name);
        found->live.name = found->live_name;
    } else if (now_ms - lock->record.expires_at_ms > SYNCGUARD_CLEANUP_GUARD_MS) {
        (void)json_array_append_new(found->dead,
                                    sg_firestore_write_delete(lock->name, lock->update_time));
    }
}

syncguard_status sg_firestore_find_by_id(const sg_firestore_context *ctx, const char *lock_id,
                                         sg_firestore_matches *found)
{
    sg_firestore_answer answer;
    syncguard_status status = sg_firestore_read(
        ctx, SG_FIRESTORE_QUERY, sg_firestore_query_id(ctx->backend->names.collection_id, lock_id),
        &answer);
    memset(found, 0, sizeof *found);
    found->at = sg_firestore_now();
    found->dead = json_array();
    for (size_t i = 0; status == SYNCGUARD_OK && i < json_array_size(answer.json); i++) {
        sg_firestore_lock lock;
        sg_firestore_lock_decode(json_object_get(json_array_get(answer.json, i), "document"),
                                 &lock);
        if (strcmp(lock.record.lock_id, lock_id) != 0)
            continue;
        matches_add(found, &lock);
    }
    if (found->count > 1)
        syncguard_backend_log(&ctx->backend->base, SYNCGUARD_LOG_WARN,
                              "%zu lock documents name the same lock id, %zu of them "
                              "live",
                              found->count, found->live_count);
    sg_firestore_answer_free(&answer);
    return status;
}

syncguard_status sg_firestore_explain_by_id(const sg_firestore_context *ctx, const char *lock_id,
                                            sg_firestore_plan *plan)
{
    sg_firestore_answer answer;
    json_t *query = sg_firestore_query_id(ctx->backend->names.collection_id, lock_id);
    syncguard_status status = sg_firestore_read(
        ctx, SG_FIRESTORE_QUERY, sg_firestore_set(query, "explainOptions", json_object()), &answer);
    *plan = SG_FIRESTORE_PLAN_UNKNOWN;
    for (size_t i = 0; status == SYNCGUARD_OK && i < json_array_size(answer.json); i++) {
        const json_t *metrics = json_object_get(json_array_get(answer.json, i), "explainMetrics");
        const json_t *summary = json_object_get(metrics, "planSummary");

        /* The server leaves out an empty list. */
        if (summary != NULL)
            *plan = json_array_size(json_object_get(summary, "indexesUsed")) > 0
                        ? SG_FIRESTORE_PLAN_INDEX
                        : SG_FIRESTORE_PLAN_SCAN;
    }
    sg_firestore_answer_free(&answer);
    return status;
}

syncguard_status sg_firestore_scan(const sg_firestore_context *ctx, sg_firestore_method method,
                                   json_t *query, size_t page_size, sg_firestore_document_fn fn,
                                   void *context)
{
    syncguard_status status;
    int64_t span_ns = syncguard_limits_left_ns(ctx->limits);
    bool more;
    do {
        syncguard_limits limits = syncguard_limits_from_now(ctx->limits, span_ns);
        sg_firestore_context page = {ctx->backend, &limits, ctx->err};
        more = true;
        sg_firestore_answer answer;
        status = sg_firestore_read(&page, method, json_incref(query), &answer);
        const char *last = NULL;
        size_t count = 0;
        for (size_t i = 0; more && status == SYNCGUARD_OK && i < json_array_size(answer.json);
             i++) {
            const json_t *document = json_object_get(json_array_get(answer.json, i), "document");
            const char *name = json_string_value(json_object_get(document, "name"));
            if (name == NULL)
                continue;
            last = name;
            count++;
            more = fn(context, document, name);
        }
        more = more && count >= page_size;
        if (more && !sg_firestore_query_next(query, last))
            status = syncguard_fail_memory(ctx->err);
        sg_firestore_answer_free(&answer);
    } while (more && status == SYNCGUARD_OK);
    json_decref(query);
    return status;
}
