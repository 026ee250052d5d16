/*
 * What the operations share, the reading ones, taking back, tidying up, and the table of them all.
 * Changes are in acquire.c and change.c.
 */
#include <string.h>
#include <unistd.h>

#include "internal.h"

static fs_backend *self(syncguard_backend *backend)
{
    return (fs_backend *)backend;
}

/*
 * Whether to make another attempt after a failure. The pause counts against limits; if it does not
 * come to its end, *status tells why.
 */
bool sg_fs_again(const fs_backend *backend, const fs_answer *answer, int *attempt,
                 const syncguard_limits *limits, syncguard_status *status, syncguard_error *err)
{
    syncguard_status waited;

    if (answer->again)
        syncguard_backend_log(&backend->base, SYNCGUARD_LOG_DEBUG, "firestore: attempt %d: %s",
                              *attempt, answer->conflict ? "conflict" : "connection broke");

    if (!answer->again || *attempt >= FS_MAX_ATTEMPTS)
        return false;
    waited = sg_fs_backoff(*attempt, limits, err);
    if (waited != SYNCGUARD_OK) {
        *status = waited;
        return false;
    }
    (*attempt)++;
    return true;
}

syncguard_status sg_fs_read(fs_backend *backend, fs_call call, json_t *body,
                            const syncguard_limits *limits, fs_answer *answer, syncguard_error *err)
{
    syncguard_status status;
    int attempt = 1;

    memset(answer, 0, sizeof *answer);
    for (;;) {
        status = syncguard_limits_check(limits, err);
        if (status != SYNCGUARD_OK)
            break;
        status = sg_fs_call(backend, call, json_incref(body), limits, answer, err);
        if (status == SYNCGUARD_OK || !sg_fs_again(backend, answer, &attempt, limits, &status, err))
            break;
        sg_fs_answer_free(answer);
    }
    json_decref(body);
    if (status == SYNCGUARD_OK)
        status = syncguard_limits_check(limits, err);
    return status;
}

syncguard_status sg_fs_unreadable(const fs_lock *lock, syncguard_error *err)
{
    if (lock && lock->no_memory)
        return syncguard_fail_memory(err);
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "the stored record cannot be read");
}

/* --- what a query by lock id found --- */

void sg_fs_weigh(const fs_answer *answer, const char *lock_id, int64_t now_ms, fs_findings *found)
{
    memset(found, 0, sizeof *found);
    found->dead = json_array();
    for (size_t i = 0; i < json_array_size(answer->json); i++) {
        const json_t *document = json_object_get(json_array_get(answer->json, i), "document");
        fs_lock lock;

        if (!document)
            continue;
        sg_fs_lock_decode(document, &lock);
        if (strcmp(lock.record.lock_id, lock_id) != 0)
            continue;
        found->matches++;
        if (!lock.has_expiry) {
            found->unreadable = true;
        } else if (syncguard_is_live(lock.record.expires_at_ms, now_ms)) {
            found->lives++;
            found->live = lock;
        } else if (now_ms - lock.record.expires_at_ms > SYNCGUARD_CLEANUP_GUARD_MS) {
            (void)json_array_append_new(found->dead,
                                        sg_fs_write_delete(lock.name, lock.update_time));
        }
    }
}

void sg_fs_warn_duplicates(const fs_backend *backend, const fs_findings *found)
{
    if (found->matches > 1)
        syncguard_backend_log(&backend->base, SYNCGUARD_LOG_WARN,
                              "firestore: %zu lock documents name the same lock id, %zu of them "
                              "live",
                              found->matches, found->lives);
}

/* --- reading --- */

/* Reads the lock document of a key. OK with *document NULL: there is none. */
static syncguard_status read_key(fs_backend *backend, const char *key, size_t length,
                                 const syncguard_limits *limits, fs_answer *answer,
                                 const json_t **document, syncguard_error *err)
{
    char name[FS_PATH_BYTES];
    syncguard_status status;

    memset(answer, 0, sizeof *answer);
    *document = NULL;
    status = sg_fs_names_of(&backend->names, key, length, name, NULL, err);
    if (status == SYNCGUARD_OK)
        status =
            sg_fs_read(backend, FS_BATCH_GET, sg_fs_documents(name, NULL), limits, answer, err);
    if (status == SYNCGUARD_OK)
        status = sg_fs_pick(answer, name, document, err);
    return status;
}

static syncguard_status fs_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                     syncguard_error *err)
{
    const json_t *document;
    fs_answer answer;
    fs_lock lock;
    int64_t now_ms;
    syncguard_status status =
        read_key(self(backend), op->key, op->key_length, &op->limits, &answer, &document, err);

    op->locked = false;
    op->dead_lock_id[0] = '\0';
    if (status != SYNCGUARD_OK || !document)
        goto out;
    now_ms = syncguard_wall_ms();
    sg_fs_lock_decode(document, &lock);
    if (!lock.has_expiry) {
        status = sg_fs_unreadable(NULL, err);
    } else if (syncguard_is_live(lock.record.expires_at_ms, now_ms)) {
        op->locked = true;
    } else {
        memcpy(op->dead_lock_id, lock.record.lock_id, sizeof op->dead_lock_id);
        op->dead_expires_at_ms = lock.record.expires_at_ms;
        op->dead_for_ms = now_ms - lock.record.expires_at_ms;
    }

out:
    sg_fs_answer_free(&answer);
    return status;
}

static syncguard_status lookup_key(fs_backend *backend, syncguard_lookup_op *op,
                                   syncguard_error *err)
{
    const json_t *document;
    fs_answer answer;
    fs_lock lock;
    syncguard_status status =
        read_key(backend, op->key, op->key_length, &op->limits, &answer, &document, err);

    if (status == SYNCGUARD_OK && !document)
        status = SYNCGUARD_ABSENT;
    if (status == SYNCGUARD_OK) {
        sg_fs_lock_decode(document, &lock);
        if (lock.has_expiry && !syncguard_is_live(lock.record.expires_at_ms, syncguard_wall_ms()))
            status = SYNCGUARD_ABSENT;
        else if (!lock.complete)
            status = sg_fs_unreadable(&lock, err);
        else
            op->record = lock.record;
    }
    sg_fs_answer_free(&answer);
    return status;
}

static syncguard_status lookup_id(fs_backend *backend, syncguard_lookup_op *op,
                                  syncguard_error *err)
{
    fs_answer answer;
    fs_findings found = {.dead = NULL};
    syncguard_status status =
        sg_fs_read(backend, FS_QUERY, sg_fs_query_id(backend->names.collection_id, op->lock_id),
                   &op->limits, &answer, err);

    if (status != SYNCGUARD_OK)
        goto out;
    sg_fs_weigh(&answer, op->lock_id, syncguard_wall_ms(), &found);
    sg_fs_warn_duplicates(backend, &found);
    if (found.unreadable || (found.lives == 1 && !found.live.complete))
        status = sg_fs_unreadable(found.unreadable ? NULL : &found.live, err);
    else if (found.lives != 1)
        status = SYNCGUARD_ABSENT;
    else
        op->record = found.live.record;

out:
    json_decref(found.dead);
    sg_fs_answer_free(&answer);
    return status;
}

static syncguard_status fs_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                  syncguard_error *err)
{
    return op->key ? lookup_key(self(backend), op, err) : lookup_id(self(backend), op, err);
}

/* --- taking back and tidying up --- */

/* Deletes the document if it is still the one that was read. ABSENT: it is not. */
static syncguard_status delete_read(fs_backend *backend, const fs_lock *lock,
                                    const syncguard_limits *limits, syncguard_error *err)
{
    fs_answer answer;
    syncguard_status status;

    status = syncguard_limits_check(limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = sg_fs_call(
        backend, FS_COMMIT,
        sg_fs_writes(sg_fs_and(json_array(), sg_fs_write_delete(lock->name, lock->update_time))),
        limits, &answer, err);
    if (answer.conflict)
        status = SYNCGUARD_ABSENT;
    sg_fs_answer_free(&answer);
    return status;
}

static syncguard_status fs_undo(syncguard_backend *backend, const char *key, size_t key_length,
                                const char *lock_id, int64_t until_ns,
                                const syncguard_limits *limits, syncguard_error *err)
{
    const json_t *document;
    fs_answer answer;
    fs_lock lock;
    syncguard_status status;

    (void)until_ns;
    sg_fs_memo_drop(&self(backend)->memo, lock_id);
    status = read_key(self(backend), key, key_length, limits, &answer, &document, err);
    if (status == SYNCGUARD_OK && !document)
        status = SYNCGUARD_ABSENT;
    if (status == SYNCGUARD_OK) {
        sg_fs_lock_decode(document, &lock);
        /* Once granted and deleted it cannot be granted again: the counter has moved on. */
        if (strcmp(lock.record.lock_id, lock_id) == 0)
            status = delete_read(self(backend), &lock, limits, err);
        else
            status = SYNCGUARD_ABSENT;
    }
    sg_fs_answer_free(&answer);
    return status;
}

/* What is dead by a wrong clock may be alive: the read has just told how wrong ours is. */
static syncguard_status fs_cleanup(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                   syncguard_error *err)
{
    const json_t *document;
    fs_answer answer;
    fs_lock lock;
    syncguard_status status =
        read_key(self(backend), op->key, op->key_length, &op->limits, &answer, &document, err);

    if (status == SYNCGUARD_OK && !document)
        status = SYNCGUARD_ABSENT;
    if (status == SYNCGUARD_OK) {
        fs_instant at = sg_fs_now();
        sg_fs_lock_decode(document, &lock);
        if (lock.has_expiry && strcmp(lock.record.lock_id, op->lock_id) == 0 &&
            lock.record.expires_at_ms == op->expires_at_ms &&
            at.wall_ms - lock.record.expires_at_ms > SYNCGUARD_CLEANUP_GUARD_MS)
            status =
                sg_fs_clock_guard(&self(backend)->clock, backend, self(backend)->max_clock_drift_ms,
                                  FS_GUARD_VERDICT, &at, err);
        else
            status = SYNCGUARD_ABSENT;
        if (status == SYNCGUARD_OK)
            status = delete_read(self(backend), &lock, &op->limits, err);
    }
    sg_fs_answer_free(&answer);
    return status;
}

/* --- life --- */

static syncguard_status fs_after_fork(syncguard_backend *backend, syncguard_error *err)
{
    fs_backend *b = self(backend);
    syncguard_status status = sg_fs_pool_forget(&b->pool, b->connections, err);

    if (status == SYNCGUARD_OK)
        status = sg_fs_auth_after_fork(&b->auth, err);
    if (status == SYNCGUARD_OK)
        status = sg_fs_clock_init(&b->clock, err);
    if (status == SYNCGUARD_OK)
        status = sg_fs_memo_forget(&b->memo, err);
    if (status == SYNCGUARD_OK)
        b->pid = getpid();
    return status;
}

void sg_fs_dismantle(fs_backend *b)
{
    syncguard_error ignored;

    /* In a forked child nothing may be said on the parent's connections. */
    if (b->pid != getpid()) {
        (void)sg_fs_pool_forget(&b->pool, b->connections, &ignored);
        (void)sg_fs_memo_forget(&b->memo, &ignored);
    }
    sg_fs_pool_destroy(&b->pool);
    sg_fs_auth_destroy(&b->auth);
    sg_fs_clock_destroy(&b->clock);
    sg_fs_memo_destroy(&b->memo);
    sg_fs_names_destroy(&b->names);
}

static void fs_destroy(syncguard_backend *backend)
{
    fs_backend *b = self(backend);

    sg_fs_dismantle(b);
    syncguard_backend_fini(backend);
    syncguard_free(b);
}

const syncguard_backend_ops sg_fs_ops = {
    .acquire = sg_fs_acquire,
    .release = sg_fs_release,
    .extend = sg_fs_extend,
    .extend_many = sg_fs_extend_many,
    .is_locked = fs_is_locked,
    .lookup = fs_lookup,
    .list = sg_fs_list,
    .undo = fs_undo,
    .cleanup = fs_cleanup,
    .examine = sg_fs_examine,
    .after_fork = fs_after_fork,
    .destroy = fs_destroy,
};
