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
static void clean_duplicates(fs_backend *backend, fs_findings *found, const fs_instant *at,
                             const syncguard_limits *limits)
{
    fs_answer answer;

    if (found->matches > 1 && json_array_size(found->dead) > 0 &&
        json_array_size(found->dead) <= 500 &&
        sg_fs_clock_guard(&backend->clock, &backend->base, backend->max_clock_drift_ms,
                          FS_GUARD_VERDICT, at, NULL) == SYNCGUARD_OK) {
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
static syncguard_status guard_expiry(fs_backend *backend, const fs_instant *at,
                                     syncguard_error *err)
{
    return sg_fs_clock_guard(&backend->clock, &backend->base, backend->max_clock_drift_ms,
                             FS_GUARD_EXPIRY, at, err);
}

/*
 * An estimate that refuses is put to the test with a read: nothing else is sent while it refuses,
 * and a clock that was slewed right takes the boot clock along, so that it would refuse for ever.
 * To be called before the clocks are read: one may be set meanwhile.
 */
static syncguard_status test_estimate(fs_backend *backend, const char *name,
                                      const syncguard_limits *limits, syncguard_error *err)
{
    fs_instant at = sg_fs_now();
    fs_answer read;
    syncguard_status status;

    if (guard_expiry(backend, &at, NULL) == SYNCGUARD_OK || !sg_fs_clock_may_ask(&backend->clock))
        return SYNCGUARD_OK;
    status = sg_fs_read(backend, FS_BATCH_GET, sg_fs_documents(name, NULL), limits, &read, err);
    sg_fs_answer_free(&read);
    return status;
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
    bool nameless;  /* the document does not tell its key: the memo could not find it again */
} change;

/* The commit for one document; it was found live at that instant. */
static syncguard_status commit_change(change *c, const char *name, const char *update_time,
                                      const fs_instant *at, fs_answer *answer, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    json_t *write;

    memset(answer, 0, sizeof *answer);
    if (c->ttl_ms > 0)
        status = guard_expiry(c->backend, at, err);
    if (status == SYNCGUARD_OK && c->ttl_ms > 0)
        status = syncguard_expiry(at->wall_ms, c->ttl_ms, &c->expires_at_ms, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_limits_check(c->limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    write = c->ttl_ms > 0 ? sg_fs_write_expiry(name, update_time, c->expires_at_ms)
                          : sg_fs_write_delete(name, update_time);
    status = sg_fs_call(c->backend, FS_COMMIT, sg_fs_writes(sg_fs_and(json_array(), write)),
                        c->limits, answer, err);
    c->sent = c->sent || answer->ambiguous;
    if (status == SYNCGUARD_OK && c->ttl_ms > 0 && sg_fs_write_time(answer, 0) && !c->nameless)
        sg_fs_memo_put(&c->backend->memo, c->lock_id, c->known.key, c->known.key_length,
                       sg_fs_write_time(answer, 0), c->expires_at_ms, at->wall_ms);
    else if (status == SYNCGUARD_OK || answer->conflict || answer->ambiguous)
        sg_fs_memo_drop(&c->backend->memo, c->lock_id);
    if (status == SYNCGUARD_OK && c->ttl_ms > 0)
        status = guard_expiry(c->backend, at, err);
    return status;
}

/* Without a read, if this process knows the lock and it is live. False: it has to be looked up. */
static bool change_known(change *c, fs_answer *answer, syncguard_status *status,
                         syncguard_error *err)
{
    char name[FS_PATH_BYTES];
    fs_instant at;

    if (c->looked || !sg_fs_memo_get(&c->backend->memo, c->lock_id, &c->known))
        return false;
    *status =
        sg_fs_names_of(&c->backend->names, c->known.key, c->known.key_length, name, NULL, err);
    if (*status == SYNCGUARD_OK && c->ttl_ms > 0)
        *status = test_estimate(c->backend, name, c->limits, err);
    at = sg_fs_now();
    /* Another process may have extended it: the store knows better than we do. */
    if (!syncguard_is_live(c->known.expires_at_ms, at.wall_ms)) {
        sg_fs_memo_drop(&c->backend->memo, c->lock_id);
        return false;
    }
    if (!c->sent)
        c->first_sent_ns = at.boot_ns;
    if (*status == SYNCGUARD_OK)
        *status = commit_change(c, name, c->known.update_time, &at, answer, err);
    c->looked = true;
    return true;
}

static syncguard_status change_found(change *c, fs_answer *answer, syncguard_error *err)
{
    fs_answer read;
    fs_findings found = {.dead = NULL};
    syncguard_status status;
    fs_instant at;

    memset(answer, 0, sizeof *answer);
    status = sg_fs_read(c->backend, FS_QUERY,
                        sg_fs_query_id(c->backend->names.collection_id, c->lock_id), c->limits,
                        &read, err);
    if (status != SYNCGUARD_OK)
        goto out;
    at = sg_fs_now();
    sg_fs_weigh(&read, c->lock_id, at.wall_ms, &found);
    sg_fs_warn_duplicates(c->backend, &found);
    if (found.unreadable) {
        status = sg_fs_unreadable(NULL, err);
    } else if (found.lives != 1) {
        status = SYNCGUARD_ABSENT;
        c->reason = found.matches == 0 ? SYNCGUARD_REASON_NOT_FOUND
                    : found.lives == 0 ? SYNCGUARD_REASON_EXPIRED
                                       : SYNCGUARD_REASON_NONE;
        sg_fs_memo_drop(&c->backend->memo, c->lock_id);
    } else {
        size_t length = strlen(found.live.record.key);
        memcpy(c->known.key, found.live.record.key, length + 1);
        c->known.key_length = length;
        c->nameless = length == 0;
        if (!c->sent)
            c->first_sent_ns = at.boot_ns;
        status = commit_change(c, found.live.name, found.live.update_time, &at, answer, err);
    }
    if (status >= SYNCGUARD_OK && found.lives <= 1)
        clean_duplicates(c->backend, &found, &at, c->limits);

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

#define BATCH                                                                                      \
    256 /* what the heartbeat brings at most; Firestore takes 500 writes in one request            \
         */

/* The items of one request, by their index. */
typedef struct batch {
    size_t items[BATCH];
    uint64_t names[BATCH]; /* hashes of their documents' names */
    size_t count;
    size_t refused[BATCH]; /* those of them that the answer did not renew */
    size_t refused_count;
} batch;

static uint64_t hash_of(const char *name)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(1099511628211);
    return hash;
}

/* The document of a lock that this process knows. */
static bool known_document(fs_backend *backend, const char *lock_id, fs_known *known,
                           char name[FS_PATH_BYTES])
{
    return sg_fs_memo_get(&backend->memo, lock_id, known) &&
           sg_fs_names_of(&backend->names, known->key, known->key_length, name, NULL, NULL) ==
               SYNCGUARD_OK;
}

/* Adds the write for one item, if it is known and live. Firestore refuses a request that names a
 * document twice: the second one (or one whose hash is the same) is left to a single extend. */
static bool batch_add(fs_backend *backend, batch *b, syncguard_extend_op *item, int64_t now_ms,
                      json_t *writes)
{
    char name[FS_PATH_BYTES];
    fs_known known;
    uint64_t hash;

    if (!known_document(backend, item->lock_id, &known, name) ||
        !syncguard_is_live(known.expires_at_ms, now_ms) ||
        syncguard_expiry(now_ms, item->ttl_ms, &item->expires_at_ms, NULL) != SYNCGUARD_OK)
        return false;
    hash = hash_of(name);
    for (size_t i = 0; i < b->count; i++) {
        if (b->names[i] == hash)
            return false;
    }
    b->names[b->count] = hash;
    return json_array_append_new(
               writes, sg_fs_write_expiry(name, known.update_time, item->expires_at_ms)) == 0;
}

/* False: refused. */
static bool batch_settle(fs_backend *backend, const fs_answer *answer, syncguard_extend_op *item,
                         size_t index, int64_t now_ms)
{
    const json_t *state = json_array_get(json_object_get(answer->json, "status"), index);
    const char *update_time = sg_fs_write_time(answer, index);
    fs_known known;

    if (!json_is_object(state) || json_integer_value(json_object_get(state, "code")) != 0 ||
        !update_time)
        return false;
    item->status = SYNCGUARD_OK;
    if (sg_fs_memo_get(&backend->memo, item->lock_id, &known))
        sg_fs_memo_put(&backend->memo, item->lock_id, known.key, known.key_length, update_time,
                       item->expires_at_ms, now_ms);
    return true;
}

/* With the first document that is known: one tells the time as well as all. */
static syncguard_status batch_test_estimate(fs_backend *backend, const syncguard_extend_op *items,
                                            size_t count, const syncguard_limits *limits,
                                            syncguard_error *err)
{
    char name[FS_PATH_BYTES];
    fs_known known;
    fs_instant at = sg_fs_now();

    if (guard_expiry(backend, &at, NULL) == SYNCGUARD_OK)
        return SYNCGUARD_OK;
    for (size_t i = 0; i < count; i++) {
        if (known_document(backend, items[i].lock_id, &known, name))
            return test_estimate(backend, name, limits, err);
    }
    return SYNCGUARD_OK;
}

/* One request for those of at most BATCH items that are not renewed yet. */
static syncguard_status batch_send(fs_backend *backend, batch *b, syncguard_extend_op *items,
                                   size_t count, const syncguard_limits *limits,
                                   syncguard_error *err)
{
    syncguard_status status = batch_test_estimate(backend, items, count, limits, err);
    fs_instant at = sg_fs_now();
    json_t *writes = json_array();
    fs_answer answer;

    if (status == SYNCGUARD_OK)
        status = guard_expiry(backend, &at, err);
    b->count = b->refused_count = 0;
    for (size_t i = 0; status == SYNCGUARD_OK && i < count; i++) {
        if (items[i].status != SYNCGUARD_OK &&
            batch_add(backend, b, &items[i], at.wall_ms, writes)) {
            items[i].first_sent_ns = at.boot_ns;
            b->items[b->count++] = i;
        }
    }
    if (b->count == 0) {
        json_decref(writes);
        return status;
    }
    status = sg_fs_call(backend, FS_BATCH_WRITE, sg_fs_writes(writes), limits, &answer, err);
    if (status == SYNCGUARD_OK) {
        status = guard_expiry(backend, &at, err);
        for (size_t i = 0; status == SYNCGUARD_OK && i < b->count; i++) {
            if (!batch_settle(backend, &answer, &items[b->items[i]], i, at.wall_ms))
                b->refused[b->refused_count++] = b->items[i];
        }
    } else if ((status == SYNCGUARD_E_INVALID_ARGUMENT || status == SYNCGUARD_E_INTERNAL) &&
               !answer.ambiguous) {
        /* Refused as a whole, and it would be again: singly they may do. */
        status = SYNCGUARD_OK;
    }
    sg_fs_answer_free(&answer);
    return status;
}

/* Whether the document is still that lock, and live; then the memo knows it as it is now. */
static bool refresh_one(fs_backend *backend, const fs_answer *read, const char *lock_id,
                        int64_t now_ms)
{
    char name[FS_PATH_BYTES];
    const json_t *document = NULL;
    fs_known known;
    fs_lock lock;

    if (!known_document(backend, lock_id, &known, name) ||
        sg_fs_pick(read, name, &document, NULL) != SYNCGUARD_OK || !document)
        return false;
    sg_fs_lock_decode(document, &lock);
    if (!lock.has_expiry || strcmp(lock.record.lock_id, lock_id) != 0 ||
        !syncguard_is_live(lock.record.expires_at_ms, now_ms))
        return false;
    sg_fs_memo_put(&backend->memo, lock_id, known.key, known.key_length, lock.update_time,
                   lock.record.expires_at_ms, now_ms);
    return true;
}

/* One read of the refused ones' documents. Sets *fresh if it is worth sending them again. */
static syncguard_status batch_refresh(fs_backend *backend, const batch *b,
                                      const syncguard_extend_op *items,
                                      const syncguard_limits *limits, bool *fresh,
                                      syncguard_error *err)
{
    char name[FS_PATH_BYTES];
    json_t *names = json_array();
    int64_t now_ms;
    fs_answer read;
    fs_known known;
    syncguard_status status;

    for (size_t i = 0; i < b->refused_count; i++) {
        if (known_document(backend, items[b->refused[i]].lock_id, &known, name))
            names = sg_fs_and(names, json_string(name));
    }
    status = sg_fs_read(backend, FS_BATCH_GET, sg_fs_with(json_object(), "documents", names),
                        limits, &read, err);
    now_ms = syncguard_wall_ms();
    for (size_t i = 0; status == SYNCGUARD_OK && i < b->refused_count; i++) {
        const char *lock_id = items[b->refused[i]].lock_id;
        if (refresh_one(backend, &read, lock_id, now_ms))
            *fresh = true;
        else
            sg_fs_memo_drop(&backend->memo, lock_id);
    }
    sg_fs_answer_free(&read);
    return status;
}

/*
 * At most BATCH items. A refused one is a wrong guess of the memo: the lock is gone, or the answer
 * to an earlier batch was lost, and then all of them are refused, of locks in the best of health.
 * Looked at one by one, some would be lost before it was their turn. So they are looked at
 * together, and sent again once; what is refused even then is left to a single extend.
 */
static syncguard_status extend_batch(fs_backend *backend, syncguard_extend_op *items, size_t count,
                                     const syncguard_limits *limits, syncguard_error *err)
{
    batch b;
    bool fresh = false;
    syncguard_status status = batch_send(backend, &b, items, count, limits, err);

    if (status == SYNCGUARD_OK && b.refused_count > 0)
        status = batch_refresh(backend, &b, items, limits, &fresh, err);
    if (status == SYNCGUARD_OK && fresh) {
        status = batch_send(backend, &b, items, count, limits, err);
        for (size_t i = 0; status == SYNCGUARD_OK && i < b.refused_count; i++)
            sg_fs_memo_drop(&backend->memo, items[b.refused[i]].lock_id);
    }
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
                              count - i < BATCH ? count - i : BATCH, limits, err);
    for (size_t i = 0; i < count; i++)
        decided = decided || items[i].status == SYNCGUARD_OK;
    return decided ? SYNCGUARD_OK : status;
}
