/*
 * Acquire, release, extend, undo and cleanup: each a transaction that goes to the server in one
 * round trip (see sql.c for the order inside it).
 */
#include <stdio.h>
#include <string.h>

#include "operations.h"
#include "request.h"

static syncguard_status pg_mutate_fail_unreadable(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "the stored record cannot be read");
}

/* ---- acquire ---- */

/* Columns of the current row, and of the grant. */
enum { ROW_MINE, ROW_EXPIRES, ROW_FENCE, ROW_NOW };
enum { GRANT_FENCE, GRANT_EXPIRES };

/* The values of the statements of an acquire. */
typedef struct acquire_values {
    char name[SYNCGUARD_NAME_SIZE];
    char counter[SYNCGUARD_NAME_SIZE];
    char owner[SYNCGUARD_LOCK_ID_SIZE + SYNCGUARD_OWNER_SIZE];
    char ttl[SG_PG_NUMBER_SIZE];
} acquire_values;

static syncguard_status pg_grant_read(syncguard_acquire_op *op, const PGresult *result,
                                      int fence_column, int expires_column, syncguard_error *err)
{
    char fence[SYNCGUARD_FENCE_SIZE];
    if (!sg_pg_text(result, 0, fence_column, fence, sizeof fence) ||
        !syncguard_fence_valid(fence) || !syncguard_fence_parse(fence, &op->fence) ||
        !sg_pg_int64(result, 0, expires_column, &op->expires_at_ms))
        return pg_mutate_fail_unreadable(err);
    return SYNCGUARD_OK;
}

/* There was no grant although no live lock was seen: either the counter is at its limit, or a
 * session without the advisory lock changed the row in between. */
static syncguard_status pg_acquire_explain_refusal(sg_pg *pg, syncguard_acquire_op *op,
                                                   const char *counter, syncguard_error *err)
{
    sg_pg_request request = {0};
    sg_pg_request_add(&request, SG_PG_COUNTER, 1, counter);
    syncguard_status status = sg_pg_request_run(pg, &request, &op->limits, err);
    int64_t fence = 0;
    if (status == SYNCGUARD_OK) {
        op->remaining_ms = -1;
        status = SYNCGUARD_LOCKED;
        if (PQntuples(request.results[0]) > 0 && (!sg_pg_int64(request.results[0], 0, 0, &fence) ||
                                                  fence < 0 || fence >= SYNCGUARD_FENCE_MAX))
            status = syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                                    "the fence counter is at its end, or is not a counter");
    }
    sg_pg_request_clear(&request);
    return status;
}

/* Interprets the current row and the grant. *found: the request was granted when it was sent
 * earlier. ABSENT: neither a grant nor a live lock. */
static syncguard_status pg_acquire_interpret(syncguard_acquire_op *op, const PGresult *row,
                                             const PGresult *grant, bool *found,
                                             syncguard_error *err)
{
    if (PQntuples(grant) > 0)
        return pg_grant_read(op, grant, GRANT_FENCE, GRANT_EXPIRES, err);
    if (PQntuples(row) == 0)
        return SYNCGUARD_ABSENT;
    int64_t now = 0;
    int64_t expires = 0;
    if (!sg_pg_int64(row, 0, ROW_NOW, &now) || !sg_pg_expiry(row, 0, ROW_EXPIRES, &expires))
        return pg_mutate_fail_unreadable(err);
    if (!syncguard_is_live(expires, now))
        return SYNCGUARD_ABSENT;
    *found = sg_pg_bool(row, 0, ROW_MINE);
    if (*found)
        return pg_grant_read(op, row, ROW_FENCE, ROW_EXPIRES, err);
    op->remaining_ms = syncguard_remaining_ms(expires, now);
    return SYNCGUARD_LOCKED;
}

/* Renewals must not wait behind requests that are stuck in the server. */
static syncguard_status pg_extend_run(sg_pg *pg, const char *lock_id, const char *ttl,
                                      const syncguard_limits *limits, sg_pg_request *request,
                                      syncguard_error *err)
{
    request->policy = SG_PG_FALL_BACK;
    sg_pg_request_add(request, SG_PG_BEGIN, 0);
    sg_pg_request_add(request, SG_PG_LOCK_ID, 1, lock_id);
    sg_pg_request_add(request, SG_PG_EXTEND, 4, lock_id, pg->tolerance, "t", ttl);
    request->notifies = &request->calls[2].values[2];
    sg_pg_request_add(request, SG_PG_COMMIT, 0);
    return sg_pg_request_run(pg, request, limits, err);
}

/*
 * The request was granted when it was sent earlier, and it is unknown whether that commit waited
 * for the synchronous standby, if there is one. So the row is written once more, and this commit
 * must wait (ADR 0034).
 */
static syncguard_status pg_grant_confirm(sg_pg *pg, syncguard_acquire_op *op, const char *ttl,
                                         syncguard_error *err)
{
    sg_pg_request request = {0};
    syncguard_status status = pg_extend_run(pg, op->lock_id, ttl, &op->limits, &request, err);
    if (status == SYNCGUARD_OK && (PQntuples(request.results[2]) == 0 ||
                                   !sg_pg_int64(request.results[2], 0, 0, &op->expires_at_ms)))
        status = syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                                "the lock was lost while it was asked for again");
    sg_pg_request_clear(&request);
    return status;
}

static syncguard_status pg_acquire_make_values(const syncguard_acquire_op *op, acquire_values *out,
                                               syncguard_error *err)
{
    syncguard_status status = sg_pg_name(op->key, out->name, err);
    if (status == SYNCGUARD_OK)
        status = sg_pg_counter_name(out->name, out->counter, err);
    sg_pg_format(out->ttl, op->ttl_ms);
    /* The label begins with the lock id that it belongs to, because the TypeScript library does not
     * change the column. */
    snprintf(out->owner, sizeof out->owner, "%s %s", op->lock_id,
             op->owner != NULL ? op->owner : "");
    return status;
}

static void pg_acquire_add_calls(const sg_pg *pg, const syncguard_acquire_op *op,
                                 const acquire_values *v, sg_pg_request *request)
{
    const char *owner = op->owner != NULL && *op->owner != 0 ? v->owner : NULL;
    sg_pg_request_add(request, SG_PG_BEGIN, 0);
    sg_pg_request_add(request, SG_PG_LOCK_KEY, 1, v->name);
    sg_pg_request_add(request, SG_PG_CURRENT_ROW, 2, v->name, op->lock_id);
    sg_pg_request_add(request, SG_PG_ACQUIRE, 8, v->name, op->lock_id, v->ttl, pg->tolerance,
                      op->key, v->counter, pg->fence_max, owner);
    sg_pg_request_add(request, SG_PG_COMMIT, 0);
}

syncguard_status sg_pg_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                               syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    sg_pg_request request = {.lock_id = op->lock_id};
    acquire_values values;
    syncguard_status status = pg_acquire_make_values(op, &values, err);
    if (status != SYNCGUARD_OK)
        return status;
    /* Armed before the request is sent, so that no release after it goes unnoticed. */
    if (op->watch && pg->listener != NULL && !atomic_load(&pg->pooler_found))
        op->armed_ms = sg_pg_listener_arm(pg->listener, op->key, op->key_length, &op->limits);
    pg_acquire_add_calls(pg, op, &values, &request);
    status = sg_pg_request_run(pg, &request, &op->limits, err);
    bool found = false;
    if (status == SYNCGUARD_OK)
        status = pg_acquire_interpret(op, request.results[2], request.results[3], &found, err);
    if (status == SYNCGUARD_OK && found)
        status = pg_grant_confirm(pg, op, values.ttl, err);
    if (status == SYNCGUARD_ABSENT)
        status = pg_acquire_explain_refusal(pg, op, values.counter, err);
    if (status == SYNCGUARD_LOCKED && request.outcome == SG_PG_MAY_BE_IN_FLIGHT)
        status = syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                                "the connection was lost while the lock was asked for");
    if (request.outcome != SG_PG_NOT_SENT)
        op->first_sent_ns = request.first_sent_ns;
    op->may_have_been_granted =
        status < 0 && (request.outcome >= SG_PG_MAY_HAVE_BEEN_APPLIED || found);
    sg_pg_request_clear(&request);
    return status;
}

/* ---- release and extend ---- */

/* Columns of the row that a release has deleted. */
enum { GONE_KEY, GONE_LIVE };

syncguard_status sg_pg_release(syncguard_backend *backend, syncguard_release_op *op,
                               syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    op->key_length = 0;
    op->reason = SYNCGUARD_REASON_NONE;
    sg_pg_request request = {0};
    sg_pg_request_add(&request, SG_PG_BEGIN, 0);
    sg_pg_request_add(&request, SG_PG_RELEASE, 3, op->lock_id, pg->tolerance, "t");
    request.notifies = &request.calls[1].values[2];
    sg_pg_request_add(&request, SG_PG_COMMIT, 0);
    syncguard_status status = sg_pg_request_run(pg, &request, &op->limits, err);
    const PGresult *gone = request.results[1];
    if (status != SYNCGUARD_OK)
        goto done;
    if (PQntuples(gone) == 0)
        op->reason = SYNCGUARD_REASON_NOT_FOUND;
    else if (!sg_pg_bool(gone, 0, GONE_LIVE))
        op->reason = SYNCGUARD_REASON_EXPIRED;
    if (PQntuples(gone) > 0 && sg_pg_text(gone, 0, GONE_KEY, op->key, sizeof op->key))
        op->key_length = strlen(op->key);
    /* A lock that is absent now may have been released when the request was sent earlier. */
    if (op->reason != SYNCGUARD_REASON_NONE && request.outcome < SG_PG_MAY_HAVE_BEEN_APPLIED)
        status = SYNCGUARD_ABSENT;
done:
    /* A request without a reply may have released the lock, and the listener may have ignored the
     * notification as that of a release that the core has already reported. */
    if (request.outcome >= SG_PG_MAY_HAVE_BEEN_APPLIED)
        syncguard_backend_notifications_lost(backend);
    sg_pg_request_clear(&request);
    return status;
}

syncguard_status sg_pg_extend(syncguard_backend *backend, syncguard_extend_op *op,
                              syncguard_error *err)
{
    char ttl[SG_PG_NUMBER_SIZE];
    sg_pg_format(ttl, op->ttl_ms);
    op->reason = SYNCGUARD_REASON_NONE;
    sg_pg_request request = {0};
    syncguard_status status =
        pg_extend_run(sg_pg_of(backend), op->lock_id, ttl, &op->limits, &request, err);
    if (request.outcome != SG_PG_NOT_SENT)
        op->first_sent_ns = request.first_sent_ns;
    if (status == SYNCGUARD_OK && PQntuples(request.results[2]) == 0) {
        op->reason = PQntuples(request.results[1]) > 0 ? SYNCGUARD_REASON_EXPIRED
                                                       : SYNCGUARD_REASON_NOT_FOUND;
        status = SYNCGUARD_ABSENT;
    }
    if (status == SYNCGUARD_OK && !sg_pg_int64(request.results[2], 0, 0, &op->expires_at_ms))
        status = pg_mutate_fail_unreadable(err);
    sg_pg_request_clear(&request);
    return status;
}

/* ---- undo and cleanup ---- */

syncguard_status sg_pg_undo(syncguard_backend *backend, const char *key, size_t key_length,
                            const char *lock_id, int64_t until_ns, const syncguard_limits *limits,
                            syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    /* Only requests that were over before the DELETE count: one that ends during it may write after
     * it. */
    int total = 0;
    int open = sg_pg_unresolved_count(pg->pool, lock_id, &total);
    char name[SYNCGUARD_NAME_SIZE];
    syncguard_status status = sg_pg_name(key, name, err);
    (void)until_ns;
    if (status != SYNCGUARD_OK)
        return status;
    sg_pg_request request = {0};
    sg_pg_request_add(&request, SG_PG_BEGIN, 0);
    sg_pg_request_add(&request, SG_PG_LOCK_KEY, 1, name);
    sg_pg_request_add(&request, SG_PG_UNDO, 3, name, lock_id, "t");
    request.notifies = &request.calls[2].values[2];
    sg_pg_request_add(&request, SG_PG_COMMIT, 0);
    status = sg_pg_request_run(pg, &request, limits, err);
    /* If there was only one request, and its grant is deleted now, it is over, even if it was not
     * known to be. Of several requests it is unknown which one was granted. */
    if (status == SYNCGUARD_OK && open != 0 && (PQntuples(request.results[2]) == 0 || total > 1)) {
        status = SYNCGUARD_ABSENT;
        /* The key is free for now. The core does not learn of a deleted grant, so it wakes no
         * waiter. */
        if (PQntuples(request.results[2]) > 0)
            syncguard_backend_key_changed(backend, key, key_length);
    }
    sg_pg_request_clear(&request);
    return status;
}

syncguard_status sg_pg_cleanup(syncguard_backend *backend, const syncguard_cleanup_op *op,
                               syncguard_error *err)
{
    char name[SYNCGUARD_NAME_SIZE];
    syncguard_status status = sg_pg_name(op->key, name, err);
    if (status != SYNCGUARD_OK)
        return status;
    char expires[SG_PG_NUMBER_SIZE];
    sg_pg_format(expires, op->expires_at_ms);
    char guard[SG_PG_NUMBER_SIZE];
    sg_pg_format(guard, SYNCGUARD_CLEANUP_GUARD_MS);
    sg_pg_request request = {0};
    sg_pg_request_add(&request, SG_PG_BEGIN, 0);
    sg_pg_request_add(&request, SG_PG_LOCK_KEY, 1, name);
    sg_pg_request_add(&request, SG_PG_CLEANUP, 4, name, op->lock_id, expires, guard);
    sg_pg_request_add(&request, SG_PG_COMMIT, 0);
    status = sg_pg_request_run(sg_pg_of(backend), &request, &op->limits, err);
    if (status == SYNCGUARD_OK && strcmp(PQcmdTuples(request.results[2]), "0") == 0)
        status = SYNCGUARD_ABSENT;
    sg_pg_request_clear(&request);
    return status;
}
