/*
 * Acquire: one read of lock and counter, one commit of both.
 *
 * Every change is one commit whose writes carry preconditions on what was read (the document's
 * updateTime, or that it does not exist): reads first, a decision on them by our clock read after
 * them, then a commit that applies only if nothing has changed since. That is a transaction
 * without anything held on the server; a failed precondition is its conflict, and is read and
 * decided again.
 *
 * A commit whose answer was lost may have been applied. It cannot be applied twice: the counter
 * (acquire) or the document (release) has moved on by then. So everything may be sent again, and a
 * lock that is found under our own id is the grant.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* 50 tries per second: waiters rest for three quarters of what they are told, on average. */
#define REST_PER_KEY_MS 27
#define SHORTEST_REST_MS 1000
#define LONGEST_REST_MS 300000

typedef struct acquisition {
    fs_backend *backend;
    syncguard_acquire_op *op;
    char lock_name[FS_PATH_BYTES];
    char fence_name[FS_PATH_BYTES];
    bool sent;    /* a commit left that has been, or may be, applied; its lease may have begun */
    bool counted; /* the counter has been read before */
    bool others;  /* and somebody else was granted the key since */
    int64_t last_seen; /* its value then */
    fs_instant first;  /* by which the first commit that may have been applied was made */
} acquisition;

static void remember(fs_backend *backend, const syncguard_acquire_op *op, const char *update_time)
{
    if (update_time)
        sg_fs_memo_put(&backend->memo, op->lock_id, op->key, op->key_length, update_time,
                       op->expires_at_ms, syncguard_wall_ms());
}

static syncguard_status guard(acquisition *a, fs_guarded what, const fs_instant *at,
                              syncguard_error *err)
{
    return sg_fs_clock_guard(&a->backend->clock, &a->backend->base, a->backend->max_clock_drift_ms,
                             what, at, err);
}

/* Our own id: an earlier commit of this operation was applied. By now its expiry may have passed
 * for everybody else: see commit_grant. */
static syncguard_status take_own(acquisition *a, const fs_lock *lock, syncguard_error *err)
{
    a->sent = true;
    if (!lock->record.fence[0])
        return sg_fs_unreadable(NULL, err);
    a->op->fence = strtoll(lock->record.fence, NULL, 10);
    a->op->expires_at_ms = lock->record.expires_at_ms;
    remember(a->backend, a->op, lock->update_time);
    return guard(a, FS_GUARD_EXPIRY, &a->first, err);
}

/* Commits lock and counter. lock and counter are what was read; NULL: missing. */
static syncguard_status commit_grant(acquisition *a, const json_t *lock_document,
                                     const json_t *counter, const fs_instant *at, fs_answer *answer,
                                     syncguard_error *err)
{
    syncguard_acquire_op *op = a->op;
    syncguard_record record;
    int64_t current = 0;
    int64_t next = 0;
    int64_t expires = 0;
    syncguard_status status = SYNCGUARD_OK;
    const char *lock_time = json_string_value(json_object_get(lock_document, "updateTime"));
    const char *counter_time = json_string_value(json_object_get(counter, "updateTime"));
    json_t *writes;

    memset(&record, 0, sizeof record);
    if ((lock_document && !lock_time) || (counter && !counter_time))
        return sg_fs_unreadable(NULL, err);
    if (counter)
        status = sg_fs_fence_decode(counter, &current, err);
    if (status == SYNCGUARD_OK) {
        a->others = a->others || (a->counted && current != a->last_seen);
        a->counted = true;
        a->last_seen = current;
        status = syncguard_fence_next(current, &next, err);
    }
    if (status == SYNCGUARD_OK)
        status = syncguard_fence_format(next, record.fence, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_expiry(at->wall_ms, op->ttl_ms, &expires, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_limits_check(&op->limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    memcpy(record.key, op->key, op->key_length + 1);
    memcpy(record.lock_id, op->lock_id, sizeof record.lock_id);
    (void)snprintf(record.owner, sizeof record.owner, "%s", op->owner ? op->owner : "");
    record.acquired_at_ms = at->wall_ms;
    record.expires_at_ms = expires;
    writes = sg_fs_and(json_array(), sg_fs_write_lock(a->lock_name, lock_time, &record));
    writes =
        sg_fs_and(writes, sg_fs_write_fence(a->fence_name, counter_time, record.fence, op->key));
    status = sg_fs_call(a->backend, FS_COMMIT, sg_fs_writes(writes), &op->limits, answer, err);
    if (status == SYNCGUARD_OK) {
        op->fence = next;
        op->expires_at_ms = expires;
        remember(a->backend, op, sg_fs_write_time(answer, 0));
        /* A machine that stood still, clocks and all, learns from the answer that its lock may
         * have run out for everybody else; and an answer quicker than the one before tells more
         * of a clock that has just called another's lock dead. */
        status = guard(a, lock_document ? FS_GUARD_VERDICT : FS_GUARD_EXPIRY, at, err);
        if (status != SYNCGUARD_OK)
            a->sent = true;
    }
    return status;
}

/*
 * Nobody reports a release here, and every try is billed. So the waiters of a handle share a rate:
 * the more keys are waited for, the longer each of them rests. Up to a second they poll anyway.
 */
static int64_t rest_ms(const fs_backend *backend)
{
    int64_t rest = (int64_t)syncguard_backend_waited_keys(&backend->base) * REST_PER_KEY_MS;

    if (rest > LONGEST_REST_MS)
        rest = LONGEST_REST_MS;
    return rest > SHORTEST_REST_MS ? rest : 0;
}

static syncguard_status held(acquisition *a, const fs_lock *lock, const fs_instant *at)
{
    a->op->remaining_ms = lock->record.expires_at_ms + SYNCGUARD_TIME_TOLERANCE_MS - at->wall_ms;
    if (a->op->watch)
        a->op->armed_ms = rest_ms(a->backend);
    return SYNCGUARD_LOCKED;
}

/* A waiter's try mostly finds the lock held: the lock alone, one billed read instead of two. OK: it
 * may be free, or cannot be read; reading both decides. */
static syncguard_status look_first(acquisition *a, syncguard_error *err)
{
    const json_t *document = NULL;
    fs_answer read;
    fs_instant at;
    fs_lock lock;
    syncguard_status status = sg_fs_read(
        a->backend, FS_BATCH_GET, sg_fs_documents(a->lock_name, NULL), &a->op->limits, &read, err);

    at = sg_fs_now();
    if (status == SYNCGUARD_OK)
        status = sg_fs_pick(&read, a->lock_name, &document, err);
    if (status == SYNCGUARD_OK && document) {
        sg_fs_lock_decode(document, &lock);
        if (lock.has_expiry && strcmp(lock.record.lock_id, a->op->lock_id) != 0 &&
            syncguard_is_live(lock.record.expires_at_ms, at.wall_ms))
            status = held(a, &lock, &at);
    }
    sg_fs_answer_free(&read);
    return status;
}

static syncguard_status decide(acquisition *a, const fs_answer *read, fs_answer *commit,
                               syncguard_error *err)
{
    syncguard_acquire_op *op = a->op;
    const json_t *document = NULL;
    const json_t *counter = NULL;
    syncguard_status status;
    fs_instant at = sg_fs_now();
    fs_lock lock;

    status = sg_fs_pick(read, a->lock_name, &document, err);
    if (status == SYNCGUARD_OK)
        status = sg_fs_pick(read, a->fence_name, &counter, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (document) {
        sg_fs_lock_decode(document, &lock);
        if (!lock.has_expiry)
            return sg_fs_unreadable(NULL, err);
        if (strcmp(lock.record.lock_id, op->lock_id) == 0)
            return take_own(a, &lock, err);
        if (syncguard_is_live(lock.record.expires_at_ms, at.wall_ms))
            return held(a, &lock, &at);
    }
    status = guard(a, FS_GUARD_VERDICT, &at, err);
    if (status != SYNCGUARD_OK)
        return status;
    /* The lease counts from the first commit that may have been applied. */
    if (!a->sent) {
        op->first_sent_ns = at.boot_ns;
        a->first = at;
    }
    status = commit_grant(a, document, counter, &at, commit, err);
    if (commit->ambiguous)
        a->sent = true;
    return status;
}

syncguard_status sg_fs_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                               syncguard_error *err)
{
    acquisition a = {.backend = (fs_backend *)backend, .op = op};
    syncguard_status status;
    bool conflict = false;
    int attempt = 1;

    op->remaining_ms = -1;
    status =
        sg_fs_names_of(&a.backend->names, op->key, op->key_length, a.lock_name, a.fence_name, err);
    if (status == SYNCGUARD_OK && op->watch && !op->released)
        status = look_first(&a, err);
    if (status != SYNCGUARD_OK)
        return status;
    for (;;) {
        fs_answer read;
        fs_answer commit;
        bool once_more;

        memset(&commit, 0, sizeof commit);
        status = sg_fs_read(a.backend, FS_BATCH_GET, sg_fs_documents(a.lock_name, a.fence_name),
                            &op->limits, &read, err);
        if (status == SYNCGUARD_OK)
            status = decide(&a, &read, &commit, err);
        sg_fs_answer_free(&read);
        conflict = commit.conflict;
        once_more = status < SYNCGUARD_OK &&
                    sg_fs_again(a.backend, &commit, &attempt, &op->limits, &status, err);
        sg_fs_answer_free(&commit);
        if (!once_more)
            break;
    }
    op->maybe_granted = status < SYNCGUARD_OK && a.sent;
    /* Conflicts to the last, because others took and gave back the key in between: while this
     * attempt ran the key was held, and that is an answer, not a failure. */
    if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE && conflict && a.others && !a.sent)
        status = SYNCGUARD_LOCKED;
    return status;
}
