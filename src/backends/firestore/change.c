/*
 * Release and extend: one change of one lock that is found by its id, and many renewals at once.
 *
 * What this process acquired it finds in its memo, and needs no read: the commit is conditional on
 * the updateTime that it remembers, after a look at the clock against the expiry that it
 * remembers. Everything else is a query by lockId, a decision, and a commit conditional on what
 * was read.
 */
#include <string.h>

#include "internal.h"

/* Expired duplicates only, and by a clock that can be trusted; a single expired lock is left as it
 * is. */
static void clean_duplicates(fs_backend *backend, fs_findings *found,
                             const syncguard_limits *limits)
{
    fs_answer answer;

    if (found->matches > 1 && json_array_size(found->dead) > 0 &&
        json_array_size(found->dead) <= 500 &&
        sg_fs_clock_guard(&backend->clock, &backend->base, backend->max_clock_drift_ms,
                          FS_GUARD_VERDICT, NULL) == SYNCGUARD_OK) {
        (void)sg_fs_call(backend, FS_COMMIT, sg_fs_writes(json_incref(found->dead)), limits,
                         &answer, NULL);
        sg_fs_answer_free(&answer);
    }
}

/*
 * An expiry by a clock that is behind may have passed already for everybody else. So none is
 * written, and none is believed whose answer tells that the clock is behind: the holder's lease
 * runs out by the boot clock while what was stored before is still good.
 */
static syncguard_status guard_expiry(fs_backend *backend, syncguard_error *err)
{
    return sg_fs_clock_guard(&backend->clock, &backend->base, backend->max_clock_drift_ms,
                             FS_GUARD_EXPIRY, err);
}

/* --- release and extend: one change of one lock, found by its id --- */

typedef struct change {
    fs_backend *backend;
    const char *lock_id;
    const syncguard_limits *limits;
    int64_t ttl_ms; /* 0: release */
    int64_t expires_at_ms;
    int64_t first_sent_ns;
    syncguard_event_reason reason;
    fs_known known; /* key of the lock that is being changed */
    bool sent;      /* a commit may have been applied whose answer is unknown */
    bool looked;    /* do not trust the memo any more */
} change;

/* The commit for one document; now_ms is the time by which it was found live. */
static syncguard_status commit_change(change *c, const char *name, const char *update_time,
                                      int64_t now_ms, fs_answer *answer, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    json_t *write;

    memset(answer, 0, sizeof *answer);
    if (c->ttl_ms > 0)
        status = guard_expiry(c->backend, err);
    if (status == SYNCGUARD_OK && c->ttl_ms > 0)
        status = syncguard_expiry(now_ms, c->ttl_ms, &c->expires_at_ms, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_limits_check(c->limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    write = c->ttl_ms > 0 ? sg_fs_write_expiry(name, update_time, c->expires_at_ms)
                          : sg_fs_write_delete(name, update_time);
    status = sg_fs_call(c->backend, FS_COMMIT, sg_fs_writes(sg_fs_and(json_array(), write)),
                        c->limits, answer, err);
    c->sent = c->sent || answer->ambiguous;
    if (status == SYNCGUARD_OK && c->ttl_ms > 0 && sg_fs_write_time(answer, 0))
        sg_fs_memo_put(&c->backend->memo, c->lock_id, c->known.key, c->known.key_length,
                       sg_fs_write_time(answer, 0), c->expires_at_ms, now_ms);
    else if (status == SYNCGUARD_OK || answer->conflict || answer->ambiguous)
        sg_fs_memo_drop(&c->backend->memo, c->lock_id);
    if (status == SYNCGUARD_OK && c->ttl_ms > 0)
        status = guard_expiry(c->backend, err);
    return status;
}

/* Without a read, if this process knows the lock and it is live. False: it has to be looked up. */
static bool change_known(change *c, fs_answer *answer, syncguard_status *status,
                         syncguard_error *err)
{
    char name[FS_PATH_BYTES];
    int64_t before_ns = syncguard_clock_ns();
    int64_t now_ms = syncguard_wall_ms();

    if (c->looked || !sg_fs_memo_get(&c->backend->memo, c->lock_id, &c->known))
        return false;
    /* Another process may have extended it: the store knows better than we do. */
    if (!syncguard_is_live(c->known.expires_at_ms, now_ms)) {
        sg_fs_memo_drop(&c->backend->memo, c->lock_id);
        return false;
    }
    if (!c->sent)
        c->first_sent_ns = before_ns;
    *status =
        sg_fs_names_of(&c->backend->names, c->known.key, c->known.key_length, name, NULL, err);
    if (*status == SYNCGUARD_OK)
        *status = commit_change(c, name, c->known.update_time, now_ms, answer, err);
    c->looked = true;
    return true;
}

static syncguard_status change_found(change *c, fs_answer *answer, syncguard_error *err)
{
    fs_answer read;
    fs_findings found = {.dead = NULL};
    syncguard_status status;
    int64_t before_ns;
    int64_t now_ms;

    memset(answer, 0, sizeof *answer);
    status = sg_fs_read(c->backend, FS_QUERY,
                        sg_fs_query_id(c->backend->names.collection_id, c->lock_id), c->limits,
                        &read, err);
    if (status != SYNCGUARD_OK)
        goto out;
    before_ns = syncguard_clock_ns();
    now_ms = syncguard_wall_ms();
    sg_fs_weigh(&read, c->lock_id, now_ms, &found);
    sg_fs_warn_duplicates(c->backend, &found);
    if (found.lives != 1) {
        status = SYNCGUARD_ABSENT;
        c->reason = found.matches == 0 ? SYNCGUARD_REASON_NOT_FOUND
                    : found.lives == 0 ? SYNCGUARD_REASON_EXPIRED
                                       : SYNCGUARD_REASON_NONE;
        sg_fs_memo_drop(&c->backend->memo, c->lock_id);
    } else {
        size_t length = strlen(found.live.record.key);
        memcpy(c->known.key, found.live.record.key, length + 1);
        c->known.key_length = length;
        if (!c->sent)
            c->first_sent_ns = before_ns;
        status = commit_change(c, found.live.name, found.live.update_time, now_ms, answer, err);
    }
    if (status >= SYNCGUARD_OK && found.lives <= 1)
        clean_duplicates(c->backend, &found, c->limits);

out:
    json_decref(found.dead);
    sg_fs_answer_free(&read);
    return status;
}

static syncguard_status change_run(change *c, syncguard_error *err)
{
    syncguard_status status;
    int attempt = 1;

    for (;;) {
        fs_answer answer;
        bool known;
        bool once_more = false;

        memset(&answer, 0, sizeof answer);
        status = syncguard_limits_check(c->limits, err);
        if (status != SYNCGUARD_OK)
            break;
        known = change_known(c, &answer, &status, err);
        if (!known)
            status = change_found(c, &answer, err);
        if (status < SYNCGUARD_OK && known && answer.conflict && attempt == 1) {
            /* The guess was wrong, that is no contention: look at once. */
            attempt++;
            once_more = true;
        } else if (status < SYNCGUARD_OK) {
            once_more = sg_fs_again(c->backend, &answer, &attempt, c->limits, &status, err);
        }
        sg_fs_answer_free(&answer);
        if (!once_more)
            break;
    }
    return status;
}

syncguard_status sg_fs_release(syncguard_backend *backend, syncguard_release_op *op,
                               syncguard_error *err)
{
    change c = {.backend = (fs_backend *)backend, .lock_id = op->lock_id, .limits = &op->limits};
    syncguard_status status = change_run(&c, err);

    /* Gone after we sent the deletion more than once: it was us. */
    if (status == SYNCGUARD_ABSENT && c.sent)
        status = SYNCGUARD_OK;
    op->key_length = 0;
    op->reason = status == SYNCGUARD_ABSENT ? c.reason : SYNCGUARD_REASON_NONE;
    if (status == SYNCGUARD_OK) {
        memcpy(op->key, c.known.key, c.known.key_length + 1);
        op->key_length = c.known.key_length;
    }
    return status;
}

syncguard_status sg_fs_extend(syncguard_backend *backend, syncguard_extend_op *op,
                              syncguard_error *err)
{
    change c = {.backend = (fs_backend *)backend,
                .lock_id = op->lock_id,
                .limits = &op->limits,
                .ttl_ms = op->ttl_ms,
                .first_sent_ns = op->first_sent_ns};
    syncguard_status status = change_run(&c, err);

    op->first_sent_ns = c.first_sent_ns;
    op->reason = status == SYNCGUARD_ABSENT ? c.reason : SYNCGUARD_REASON_NONE;
    if (status == SYNCGUARD_OK)
        op->expires_at_ms = c.expires_at_ms;
    return status;
}

/* --- many renewals in one request --- */

#define BATCH 200 /* Firestore takes 500 writes in one request */

/* Adds the write for one item, if it is known and live. */
static bool batch_add(fs_backend *backend, syncguard_extend_op *item, int64_t now_ms,
                      json_t *writes, fs_known *known)
{
    char name[FS_PATH_BYTES];

    return sg_fs_memo_get(&backend->memo, item->lock_id, known) &&
           syncguard_is_live(known->expires_at_ms, now_ms) &&
           syncguard_expiry(now_ms, item->ttl_ms, &item->expires_at_ms, NULL) == SYNCGUARD_OK &&
           sg_fs_names_of(&backend->names, known->key, known->key_length, name, NULL, NULL) ==
               SYNCGUARD_OK &&
           json_array_append_new(
               writes, sg_fs_write_expiry(name, known->update_time, item->expires_at_ms)) == 0;
}

static void batch_settle(fs_backend *backend, const fs_answer *answer, syncguard_extend_op *item,
                         size_t index, int64_t now_ms)
{
    const json_t *state = json_array_get(json_object_get(answer->json, "status"), index);
    const char *update_time = sg_fs_write_time(answer, index);
    fs_known known;

    /* Anything but success is left to a single extend, which looks before it decides. */
    if (!json_is_object(state) || json_integer_value(json_object_get(state, "code")) != 0 ||
        !update_time) {
        sg_fs_memo_drop(&backend->memo, item->lock_id);
        return;
    }
    item->status = SYNCGUARD_OK;
    if (sg_fs_memo_get(&backend->memo, item->lock_id, &known))
        sg_fs_memo_put(&backend->memo, item->lock_id, known.key, known.key_length, update_time,
                       item->expires_at_ms, now_ms);
}

/* One request for at most BATCH items. Sets *decided if any was. */
static syncguard_status extend_batch(fs_backend *backend, syncguard_extend_op *items, size_t count,
                                     const syncguard_limits *limits, bool *decided,
                                     syncguard_error *err)
{
    size_t chosen[BATCH];
    size_t chosen_count = 0;
    int64_t before_ns = syncguard_clock_ns();
    int64_t now_ms = syncguard_wall_ms();
    json_t *writes = json_array();
    fs_answer answer;
    fs_known known;
    syncguard_status status = guard_expiry(backend, err);

    for (size_t i = 0; status == SYNCGUARD_OK && i < count; i++) {
        if (batch_add(backend, &items[i], now_ms, writes, &known)) {
            items[i].first_sent_ns = before_ns;
            chosen[chosen_count++] = i;
        }
    }
    if (chosen_count == 0) {
        json_decref(writes);
        return status;
    }
    status = sg_fs_call(backend, FS_BATCH_WRITE, sg_fs_writes(writes), limits, &answer, err);
    if (status == SYNCGUARD_OK)
        status = guard_expiry(backend, err);
    for (size_t i = 0; status == SYNCGUARD_OK && i < chosen_count; i++) {
        batch_settle(backend, &answer, &items[chosen[i]], i, now_ms);
        *decided = *decided || items[chosen[i]].status == SYNCGUARD_OK;
    }
    sg_fs_answer_free(&answer);
    return status;
}

syncguard_status sg_fs_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                   size_t count, const syncguard_limits *limits,
                                   syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    bool decided = false;

    for (size_t i = 0; i < count; i++) {
        items[i].status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
        items[i].reason = SYNCGUARD_REASON_NONE;
    }
    for (size_t i = 0; i < count && status == SYNCGUARD_OK; i += BATCH)
        status = extend_batch((fs_backend *)backend, items + i,
                              count - i < BATCH ? count - i : BATCH, limits, &decided, err);
    return decided ? SYNCGUARD_OK : status;
}
