/*
 * Acquire, release, extend, undo, cleanup.
 *
 * Every change is one commit whose writes carry preconditions on what was read (the document's
 * updateTime, or that it does not exist). An operation first reads the documents, then reads our
 * clock and decides, then sends a commit that applies only if nothing has changed since. That is a
 * transaction that holds nothing on the server. A failed precondition is its conflict, and leads to
 * another read and another decision.
 *
 * A commit whose answer was lost may have been applied. It cannot be applied twice: the counter
 * (acquire) or the document (release) has another updateTime by then. So every commit may be sent
 * again, and a lock that is found with our own id is the grant.
 */
#include "operations.h"

#include <stdio.h>
#include <string.h>

#include "query.h"
#include "text.h"

/* 50 tries per second: on average, waiters pause for three quarters of the pause that they get from
 * here. */
#define PAUSE_PER_KEY_MS 27
#define SHORTEST_PAUSE_MS 1000
#define LONGEST_PAUSE_MS 300000

/* ---- acquire ---- */

typedef struct acquisition {
    sg_firestore_context ctx;
    syncguard_acquire_op *op;
    char lock_name[SG_FIRESTORE_PATH_BYTES];
    char fence_name[SG_FIRESTORE_PATH_BYTES];
    bool may_have_been_applied; /* a commit of this operation; its lease may have begun */
    bool counter_read;
    bool others_granted;        /* the counter has moved between two reads */
    int64_t counter;            /* as it was read last */
    sg_firestore_instant first; /* of the first commit that may have been applied */
} acquisition;

static void firestore_grant_cache(const acquisition *a, const char *update_time)
{
    const syncguard_acquire_op *op = a->op;
    if (update_time != NULL)
        sg_firestore_cache_put(&a->ctx.backend->cache, op->lock_id, op->key, op->key_length,
                               update_time, op->expires_at_ms, syncguard_wall_ms());
}

/* The lock has our own id: an earlier commit of this operation was applied. Its expiry may have
 * passed for all other clients by now: see firestore_grant_commit. */
static syncguard_status firestore_grant_from_lock(acquisition *a, const sg_firestore_lock *lock)
{
    a->may_have_been_applied = true;
    if (!syncguard_fence_parse(lock->record.fence, &a->op->fence))
        return sg_firestore_fail_unreadable(lock, a->ctx.err);
    a->op->expires_at_ms = lock->record.expires_at_ms;
    firestore_grant_cache(a, lock->update_time);
    return sg_firestore_clock_check(&a->ctx.backend->clock, SG_FIRESTORE_EXPIRY, &a->first,
                                    a->ctx.err);
}

/* Sets *next to the value that the counter (document, NULL: missing) gets with the grant. */
static syncguard_status firestore_grant_next_fence(acquisition *a, const json_t *document,
                                                   sg_firestore_counter *counter, int64_t *next)
{
    memset(counter, 0, sizeof *counter);
    syncguard_status status = SYNCGUARD_OK;
    if (document != NULL)
        status = sg_firestore_counter_decode(document, counter, a->ctx.err);
    if (status != SYNCGUARD_OK)
        return status;
    if (a->counter_read && counter->value != a->counter)
        a->others_granted = true;
    a->counter_read = true;
    a->counter = counter->value;
    return syncguard_fence_next(counter->value, next, a->ctx.err);
}

static syncguard_status firestore_grant_make_record(const syncguard_acquire_op *op, int64_t fence,
                                                    int64_t now_ms, syncguard_record *record,
                                                    syncguard_error *err)
{
    memset(record, 0, sizeof *record);
    syncguard_status status = syncguard_fence_format(fence, record->fence, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_expiry(now_ms, op->ttl_ms, &record->expires_at_ms, err);
    memcpy(record->key, op->key, op->key_length + 1);
    memcpy(record->lock_id, op->lock_id, sizeof record->lock_id);
    (void)snprintf(record->owner, sizeof record->owner, "%s", op->owner != NULL ? op->owner : "");
    record->acquired_at_ms = now_ms;
    return status;
}

/* Commits lock and counter. lock_time is the updateTime of the dead lock, "" if there is none. */
static syncguard_status firestore_grant_commit(acquisition *a, const char *lock_time,
                                               const json_t *counter_document,
                                               const sg_firestore_instant *at,
                                               sg_firestore_answer *answer)
{
    syncguard_acquire_op *op = a->op;
    sg_firestore_counter counter;
    syncguard_record record;
    int64_t next;
    syncguard_status status = firestore_grant_next_fence(a, counter_document, &counter, &next);
    if (status == SYNCGUARD_OK)
        status = firestore_grant_make_record(op, next, at->wall_ms, &record, a->ctx.err);
    if (status == SYNCGUARD_OK)
        status = syncguard_limits_check(&op->limits, a->ctx.err);
    if (status != SYNCGUARD_OK)
        return status;
    json_t *writes =
        sg_firestore_add(json_array(), sg_firestore_write_lock(a->lock_name, lock_time, &record));
    writes = sg_firestore_add(writes, sg_firestore_write_fence(a->fence_name, counter.update_time,
                                                               record.fence, op->key));
    status = sg_firestore_commit(&a->ctx, writes, answer);
    if (status != SYNCGUARD_OK)
        return status;
    op->fence = next;
    op->expires_at_ms = record.expires_at_ms;
    firestore_grant_cache(a, sg_firestore_answer_time(answer, 0));
    /* The answer may show that the machine was suspended together with its clocks, so that the lock
     * may have expired for all other clients. Also, an answer that came faster than the one before
     * gives a tighter bound on a clock that has just found another holder's lock dead. */
    status = sg_firestore_clock_check(
        &a->ctx.backend->clock, lock_time[0] != 0 ? SG_FIRESTORE_LIVENESS : SG_FIRESTORE_EXPIRY, at,
        a->ctx.err);
    if (status != SYNCGUARD_OK)
        a->may_have_been_applied = true;
    return status;
}

/*
 * Firestore reports no releases, and every try is billed. So the waiters of a handle share a rate:
 * the more keys they wait for, the longer each of them pauses. For a pause of up to a second the
 * result is 0, and the waiters poll as usual.
 */
static int64_t firestore_waiter_pause_ms(const sg_firestore_backend *backend)
{
    int64_t pause = (int64_t)syncguard_backend_waited_keys(&backend->base) * PAUSE_PER_KEY_MS;
    if (pause > LONGEST_PAUSE_MS)
        pause = LONGEST_PAUSE_MS;
    return pause > SHORTEST_PAUSE_MS ? pause : 0;
}

static syncguard_status firestore_acquire_report_held(acquisition *a, const sg_firestore_lock *lock,
                                                      const sg_firestore_instant *at)
{
    a->op->remaining_ms = syncguard_remaining_ms(lock->record.expires_at_ms, at->wall_ms);
    if (a->op->watch)
        a->op->armed_ms = firestore_waiter_pause_ms(a->ctx.backend);
    return SYNCGUARD_LOCKED;
}

/* A waiter's try mostly finds the lock held: it reads the lock alone, one billed read instead of
 * two. OK: the key may be free, or its lock cannot be read; reading both documents decides. */
static syncguard_status firestore_acquire_check_held(acquisition *a)
{
    sg_firestore_lock lock;
    syncguard_status status = sg_firestore_get_lock(&a->ctx, a->lock_name, &lock);
    sg_firestore_instant at = sg_firestore_now();
    if (status == SYNCGUARD_OK && lock.has_expiry &&
        strcmp(lock.record.lock_id, a->op->lock_id) != 0 &&
        syncguard_is_live(lock.record.expires_at_ms, at.wall_ms))
        status = firestore_acquire_report_held(a, &lock, &at);
    return status == SYNCGUARD_ABSENT ? SYNCGUARD_OK : status;
}

/* Evaluates what was read and commits a grant if the key is free. */
static syncguard_status firestore_acquire_evaluate(acquisition *a, const sg_firestore_answer *read,
                                                   sg_firestore_answer *commit)
{
    syncguard_acquire_op *op = a->op;
    sg_firestore_instant at = sg_firestore_now();
    const json_t *document = NULL;
    const json_t *counter = NULL;
    syncguard_status status =
        sg_firestore_answer_document(read, a->lock_name, &document, a->ctx.err);
    if (status == SYNCGUARD_OK)
        status = sg_firestore_answer_document(read, a->fence_name, &counter, a->ctx.err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_firestore_lock lock = {.name = NULL};
    if (document != NULL) {
        sg_firestore_lock_decode(document, &lock);
        if (!lock.has_expiry)
            return sg_firestore_fail_unreadable(&lock, a->ctx.err);
        if (strcmp(lock.record.lock_id, op->lock_id) == 0)
            return firestore_grant_from_lock(a, &lock);
        if (syncguard_is_live(lock.record.expires_at_ms, at.wall_ms))
            return firestore_acquire_report_held(a, &lock, &at);
    }
    status =
        sg_firestore_clock_check(&a->ctx.backend->clock, SG_FIRESTORE_LIVENESS, &at, a->ctx.err);
    if (status != SYNCGUARD_OK)
        return status;
    /* The lease counts from the first commit that may have been applied. */
    if (!a->may_have_been_applied) {
        op->first_sent_ns = at.boot_ns;
        a->first = at;
    }
    status = firestore_grant_commit(a, lock.update_time, counter, &at, commit);
    if (commit->may_have_been_applied)
        a->may_have_been_applied = true;
    return status;
}

syncguard_status sg_firestore_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                                      syncguard_error *err)
{
    acquisition a = {.ctx = {(sg_firestore_backend *)backend, &op->limits, err}, .op = op};
    op->remaining_ms = -1;
    syncguard_status status = sg_firestore_names_of(&a.ctx.backend->names, op->key, op->key_length,
                                                    a.lock_name, a.fence_name, err);
    if (status == SYNCGUARD_OK && op->watch)
        status = firestore_acquire_check_held(&a);
    if (status != SYNCGUARD_OK)
        return status;
    sg_firestore_answer commit;
    int attempt = 1;
    bool again;
    do {
        memset(&commit, 0, sizeof commit);
        sg_firestore_answer read;
        status = sg_firestore_read(&a.ctx, SG_FIRESTORE_BATCH_GET,
                                   json_pack("{s:[s,s]}", "documents", a.lock_name, a.fence_name),
                                   &read);
        if (status == SYNCGUARD_OK)
            status = firestore_acquire_evaluate(&a, &read, &commit);
        sg_firestore_answer_free(&read);
        again = status < SYNCGUARD_OK && sg_firestore_retry(&a.ctx, &commit, &attempt, &status);
        sg_firestore_answer_free(&commit);
    } while (again);
    op->may_have_been_granted = status < SYNCGUARD_OK && a.may_have_been_applied;
    /* Every attempt ended in a conflict, because others acquired and released the key in between.
     * So the key was held while this operation ran, which is an answer and not a failure. */
    if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE && commit.conflict && a.others_granted &&
        !a.may_have_been_applied)
        status = SYNCGUARD_LOCKED;
    return status;
}

/* ---- release and extend: one change of one lock, found by its id ---- */

/*
 * A lock that this process acquired is in its cache and needs no read: after a check of the cached
 * expiry against the clock, the commit is conditional on the cached updateTime. Any other lock
 * needs a query by lock id, a decision, and a commit conditional on what was read.
 */
typedef struct change {
    sg_firestore_context ctx;
    const char *lock_id;
    int64_t ttl_ms; /* 0: release */
    int64_t expires_at_ms;
    int64_t first_sent_ns;
    syncguard_event_reason reason;
    char key[SYNCGUARD_KEY_SIZE]; /* "": the document does not hold it */
    size_t key_length;
    bool may_have_been_applied; /* a commit whose answer is unknown */
    bool ignore_cache;
} change;

static void firestore_change_set_key(change *c, const char *key, size_t length)
{
    memcpy(c->key, key, length + 1);
    c->key_length = length;
}

static void firestore_change_update_cache(const change *c, const sg_firestore_answer *answer,
                                          syncguard_status status, int64_t now_ms)
{
    const char *update_time = sg_firestore_answer_time(answer, 0);
    if (status == SYNCGUARD_OK && c->ttl_ms > 0 && update_time != NULL && c->key_length > 0)
        sg_firestore_cache_put(&c->ctx.backend->cache, c->lock_id, c->key, c->key_length,
                               update_time, c->expires_at_ms, now_ms);
    else if (status == SYNCGUARD_OK || answer->conflict || answer->may_have_been_applied)
        sg_firestore_cache_drop(&c->ctx.backend->cache, c->lock_id);
}

/*
 * Commits the change of one document, which was found live at that instant. An expiry by a clock
 * that is behind may already have passed for all other clients. So such an expiry is not written,
 * and does not count as stored if the answer shows that the clock is behind: the holder's lease
 * ends by the boot clock while the expiry that was stored before is still valid.
 */
static syncguard_status firestore_change_commit(change *c, const char *name,
                                                const char *update_time,
                                                const sg_firestore_instant *at,
                                                sg_firestore_answer *answer)
{
    sg_firestore_clock *clock = &c->ctx.backend->clock;
    bool extend = c->ttl_ms > 0;
    if (!c->may_have_been_applied)
        c->first_sent_ns = at->boot_ns;
    syncguard_status status = SYNCGUARD_OK;
    if (extend)
        status = sg_firestore_clock_check(clock, SG_FIRESTORE_EXPIRY, at, c->ctx.err);
    if (status == SYNCGUARD_OK && extend)
        status = syncguard_expiry(at->wall_ms, c->ttl_ms, &c->expires_at_ms, c->ctx.err);
    if (status == SYNCGUARD_OK)
        status = syncguard_limits_check(c->ctx.limits, c->ctx.err);
    if (status != SYNCGUARD_OK)
        return status;
    json_t *write = extend ? sg_firestore_write_expiry(name, update_time, c->expires_at_ms)
                           : sg_firestore_write_delete(name, update_time);
    status = sg_firestore_commit(&c->ctx, sg_firestore_add(json_array(), write), answer);
    if (answer->may_have_been_applied)
        c->may_have_been_applied = true;
    firestore_change_update_cache(c, answer, status, at->wall_ms);
    if (status == SYNCGUARD_OK && extend)
        status = sg_firestore_clock_check(clock, SG_FIRESTORE_EXPIRY, at, c->ctx.err);
    return status;
}

/* Makes the change without a read, if the lock is cached and live. False: the caller must query for
 * it. */
static bool firestore_change_by_cache(change *c, sg_firestore_answer *answer,
                                      syncguard_status *status)
{
    char name[SG_FIRESTORE_PATH_BYTES];
    sg_firestore_cached cached;
    if (c->ignore_cache || !sg_firestore_cached_lock(c->ctx.backend, c->lock_id, &cached, name))
        return false;
    *status = SYNCGUARD_OK;
    if (c->ttl_ms > 0)
        *status = sg_firestore_recheck_clock(&c->ctx, name);
    sg_firestore_instant at = sg_firestore_now();
    /* Another process may have extended the lock, which only the store knows. */
    if (!syncguard_is_live(cached.expires_at_ms, at.wall_ms)) {
        sg_firestore_cache_drop(&c->ctx.backend->cache, c->lock_id);
        return false;
    }
    c->ignore_cache = true;
    firestore_change_set_key(c, cached.key, cached.key_length);
    if (*status == SYNCGUARD_OK)
        *status = firestore_change_commit(c, name, cached.update_time, &at, answer);
    return true;
}

/* Deletes expired duplicates only, and only by a clock that can be trusted. A single expired lock
 * is left as it is. */
static void firestore_duplicates_delete(const sg_firestore_context *ctx,
                                        const sg_firestore_matches *found)
{
    sg_firestore_context own = {ctx->backend, ctx->limits, NULL};
    sg_firestore_answer answer;
    size_t dead = json_array_size(found->dead);
    if (found->count > 1 && found->live_count <= 1 && dead > 0 && dead <= 500 &&
        sg_firestore_clock_check(&ctx->backend->clock, SG_FIRESTORE_LIVENESS, &found->at, NULL) ==
            SYNCGUARD_OK) {
        (void)sg_firestore_commit(&own, json_incref(found->dead), &answer);
        sg_firestore_answer_free(&answer);
    }
}

static syncguard_status firestore_change_by_query(change *c, sg_firestore_answer *answer)
{
    sg_firestore_matches found;
    syncguard_status status = sg_firestore_find_by_id(&c->ctx, c->lock_id, &found);
    if (status != SYNCGUARD_OK)
        goto done;
    if (found.unreadable) {
        status = sg_firestore_fail_unreadable(&found.live, c->ctx.err);
    } else if (found.live_count != 1) {
        status = SYNCGUARD_ABSENT;
        c->reason = found.count == 0        ? SYNCGUARD_REASON_NOT_FOUND
                    : found.live_count == 0 ? SYNCGUARD_REASON_EXPIRED
                                            : SYNCGUARD_REASON_NONE;
        sg_firestore_cache_drop(&c->ctx.backend->cache, c->lock_id);
    } else {
        firestore_change_set_key(c, found.live.record.key, strlen(found.live.record.key));
        status =
            firestore_change_commit(c, found.live.name, found.live.update_time, &found.at, answer);
    }
    if (status >= SYNCGUARD_OK)
        firestore_duplicates_delete(&c->ctx, &found);
done:
    json_decref(found.dead);
    return status;
}

static syncguard_status firestore_change_run(change *c)
{
    syncguard_status status;
    int attempt = 1;
    bool again;
    do {
        sg_firestore_answer answer;
        memset(&answer, 0, sizeof answer);
        status = syncguard_limits_check(c->ctx.limits, c->ctx.err);
        if (status != SYNCGUARD_OK)
            break;
        bool cached = firestore_change_by_cache(c, &answer, &status);
        if (!cached)
            status = firestore_change_by_query(c, &answer);
        if (cached && answer.conflict && attempt == 1) {
            /* The cache was wrong, which is not contention: query at once. */
            attempt++;
            again = true;
        } else {
            again =
                status < SYNCGUARD_OK && sg_firestore_retry(&c->ctx, &answer, &attempt, &status);
        }
        sg_firestore_answer_free(&answer);
    } while (again);
    return status;
}

syncguard_status sg_firestore_release(syncguard_backend *backend, syncguard_release_op *op,
                                      syncguard_error *err)
{
    change c = {.ctx = {(sg_firestore_backend *)backend, &op->limits, err}, .lock_id = op->lock_id};
    syncguard_status status = firestore_change_run(&c);

    /* The lock is gone after a delete of ours that may have been applied: so it was applied. */
    if (status == SYNCGUARD_ABSENT && c.may_have_been_applied)
        status = SYNCGUARD_OK;
    op->key_length = 0;
    op->reason = status == SYNCGUARD_ABSENT ? c.reason : SYNCGUARD_REASON_NONE;
    if (status == SYNCGUARD_OK) {
        memcpy(op->key, c.key, c.key_length + 1);
        op->key_length = c.key_length;
    }
    return status;
}

syncguard_status sg_firestore_extend(syncguard_backend *backend, syncguard_extend_op *op,
                                     syncguard_error *err)
{
    change c = {.ctx = {(sg_firestore_backend *)backend, &op->limits, err},
                .lock_id = op->lock_id,
                .ttl_ms = op->ttl_ms,
                .first_sent_ns = op->first_sent_ns};
    syncguard_status status = firestore_change_run(&c);
    op->first_sent_ns = c.first_sent_ns;
    op->reason = status == SYNCGUARD_ABSENT ? c.reason : SYNCGUARD_REASON_NONE;
    if (status == SYNCGUARD_OK)
        op->expires_at_ms = c.expires_at_ms;
    return status;
}

/* ---- undo and cleanup ---- */

/* Deletes the document if it has not changed since it was read. ABSENT: it has. */
static syncguard_status firestore_lock_delete(const sg_firestore_context *ctx,
                                              const sg_firestore_lock *lock)
{
    json_t *write = sg_firestore_write_delete(lock->name, lock->update_time);
    sg_firestore_answer answer;
    syncguard_status status =
        sg_firestore_commit(ctx, sg_firestore_add(json_array(), write), &answer);
    if (answer.conflict)
        status = SYNCGUARD_ABSENT;
    sg_firestore_answer_free(&answer);
    return status;
}

syncguard_status sg_firestore_undo(syncguard_backend *backend, const char *key, size_t key_length,
                                   const char *lock_id, int64_t until_ns,
                                   const syncguard_limits *limits, syncguard_error *err)
{
    sg_firestore_context ctx = {(sg_firestore_backend *)backend, limits, err};
    (void)until_ns;
    sg_firestore_cache_drop(&ctx.backend->cache, lock_id);
    char name[SG_FIRESTORE_PATH_BYTES];
    sg_firestore_lock lock;
    syncguard_status status = sg_firestore_get_by_key(&ctx, key, key_length, name, &lock);
    if (status != SYNCGUARD_OK)
        return status;
    if (strcmp(lock.record.lock_id, lock_id) != 0)
        return SYNCGUARD_ABSENT;
    /* Once the grant is deleted it cannot be made again: the counter has moved on. */
    return firestore_lock_delete(&ctx, &lock);
}

/* A lock that is dead by a wrong clock may be live. The read has just shown how wrong our clock
 * is. */
syncguard_status sg_firestore_cleanup(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                      syncguard_error *err)
{
    sg_firestore_context ctx = {(sg_firestore_backend *)backend, &op->limits, err};
    char name[SG_FIRESTORE_PATH_BYTES];
    sg_firestore_lock lock;
    syncguard_status status = sg_firestore_get_by_key(&ctx, op->key, op->key_length, name, &lock);
    if (status != SYNCGUARD_OK)
        return status;
    sg_firestore_instant at = sg_firestore_now();
    if (!lock.has_expiry || strcmp(lock.record.lock_id, op->lock_id) != 0 ||
        lock.record.expires_at_ms != op->expires_at_ms ||
        at.wall_ms - lock.record.expires_at_ms <= SYNCGUARD_CLEANUP_GUARD_MS)
        return SYNCGUARD_ABSENT;
    status = sg_firestore_clock_check(&ctx.backend->clock, SG_FIRESTORE_LIVENESS, &at, err);
    return status == SYNCGUARD_OK ? firestore_lock_delete(&ctx, &lock) : status;
}
