/*
 * Acquire, release, extend, undo and cleanup: each a transaction that goes to
 * the server in one flush (see sql.c for the order inside it).
 */
#include <stdio.h>
#include <string.h>

#include "pg.h"

syncguard_status sg_pg_name(const char *key, char *out, syncguard_error *err)
{
    size_t length = 0;

    return syncguard_storage_name(NULL, key, SYNCGUARD_POSTGRES_LIMIT_BYTES,
                                  SYNCGUARD_POSTGRES_RESERVE_BYTES, out, &length, err);
}

static void number(char out[24], int64_t value)
{
    snprintf(out, 24, "%lld", (long long)value);
}

static void add(sg_pg_flush *flush, sg_pg_statement statement)
{
    sg_pg_flush_add(flush, statement, 0, NULL);
}

static syncguard_status unexpected(syncguard_error *err, const char *what)
{
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "%s", what);
}

/* ---- acquire ----------------------------------------------------------------------------- */

/* Columns of what is there before the decision, and of the grant. */
enum { LOOK_MINE, LOOK_EXPIRES, LOOK_FENCE, LOOK_NOW };
enum { GRANT_FENCE, GRANT_EXPIRES };

static syncguard_status read_grant(syncguard_acquire_op *op, const PGresult *result,
                                   int fence_column, int expires_column, syncguard_error *err)
{
    char fence[SYNCGUARD_FENCE_SIZE];

    if (!sg_pg_text(result, 0, fence_column, fence, sizeof fence) ||
        !syncguard_fence_valid(fence) || !sg_pg_int64(result, 0, fence_column, &op->fence) ||
        !sg_pg_int64(result, 0, expires_column, &op->expires_at_ms))
        return unexpected(err, "the stored record cannot be read");
    return SYNCGUARD_OK;
}

/*
 * There was no grant, although no live lock was seen: the counter is at its end,
 * or a session without the advisory lock came in between. Worth another look.
 */
static syncguard_status explain_refusal(sg_pg *pg, syncguard_acquire_op *op, const char *counter,
                                        syncguard_error *err)
{
    int64_t fence = 0;
    sg_pg_flush flush;
    syncguard_status status;

    sg_pg_flush_init(&flush);
    sg_pg_flush_add(&flush, SG_PG_COUNTER, 1, (const char *const[]){counter});
    status = sg_pg_flush_run(pg, &flush, &op->limits, err);
    if (status == SYNCGUARD_OK) {
        op->remaining_ms = -1;
        status = SYNCGUARD_LOCKED;
        if (PQntuples(flush.results[0]) > 0 && (!sg_pg_int64(flush.results[0], 0, 0, &fence) ||
                                                fence < 0 || fence >= SYNCGUARD_FENCE_MAX))
            status = unexpected(err, "the fence counter is at its end, or is not a counter");
    }
    sg_pg_flush_clear(&flush);
    return status;
}

/* What the two results say; look is NULL if it was left out. *found: an earlier try was granted.
 * ABSENT: neither a grant nor a live lock. */
static syncguard_status read_acquire(syncguard_acquire_op *op, const PGresult *look,
                                     const PGresult *grant, bool *found, syncguard_error *err)
{
    int64_t now = 0;
    int64_t expires = 0;

    if (PQntuples(grant) > 0)
        return read_grant(op, grant, GRANT_FENCE, GRANT_EXPIRES, err);
    if (!look) {
        op->remaining_ms = -1;
        return SYNCGUARD_LOCKED;
    }
    if (PQntuples(look) == 0)
        return SYNCGUARD_ABSENT;
    if (!sg_pg_int64(look, 0, LOOK_NOW, &now) || !sg_pg_expiry(look, 0, LOOK_EXPIRES, &expires))
        return unexpected(err, "the stored record cannot be read");
    if (!syncguard_is_live(expires, now))
        return SYNCGUARD_ABSENT;
    *found = PQgetvalue(look, 0, LOOK_MINE)[0] == 't';
    if (*found)
        return read_grant(op, look, LOOK_FENCE, LOOK_EXPIRES, err);
    op->remaining_ms = expires + SYNCGUARD_TIME_TOLERANCE_MS - now;
    return SYNCGUARD_LOCKED;
}

static syncguard_status renew(sg_pg *pg, const char *lock_id, const char *ttl,
                              const syncguard_limits *limits, sg_pg_flush *flush,
                              syncguard_error *err)
{
    flush->pressing = true;
    add(flush, SG_PG_BEGIN);
    sg_pg_flush_add(flush, SG_PG_LOCK_ID, 1, (const char *const[]){lock_id});
    sg_pg_flush_add(flush, SG_PG_EXTEND, 3, (const char *const[]){lock_id, pg->tolerance, ttl});
    add(flush, SG_PG_COMMIT);
    return sg_pg_flush_run(pg, flush, limits, err);
}

/*
 * An earlier try was granted, and nobody knows whether its commit has waited for the synchronous
 * standby, if there is one. So the row is written once more, and this commit has to wait.
 */
static syncguard_status confirm_grant(sg_pg *pg, syncguard_acquire_op *op, const char *ttl,
                                      syncguard_error *err)
{
    sg_pg_flush flush;
    syncguard_status status;

    sg_pg_flush_init(&flush);
    status = renew(pg, op->lock_id, ttl, &op->limits, &flush, err);
    if (status == SYNCGUARD_OK && (PQntuples(flush.results[2]) == 0 ||
                                   !sg_pg_int64(flush.results[2], 0, 0, &op->expires_at_ms)))
        status = syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                                "the lock was lost while it was asked for again");
    sg_pg_flush_clear(&flush);
    return status;
}

/* The label goes with the id that it belongs to: another library leaves the column alone. */
static const char *label(const syncguard_acquire_op *op, char *out, size_t size)
{
    if (!op->owner || !*op->owner)
        return NULL;
    snprintf(out, size, "%s %s", op->lock_id, op->owner);
    return out;
}

static void build_acquire(const sg_pg *pg, const syncguard_acquire_op *op, const char *name,
                          const char *counter, const char *ttl, const char *owner,
                          sg_pg_flush *flush)
{
    add(flush, SG_PG_BEGIN);
    sg_pg_flush_add(flush, SG_PG_LOCK_KEY, 1, (const char *const[]){name});
    sg_pg_flush_add(flush, SG_PG_ACQUIRE_LOOK, 2, (const char *const[]){name, op->lock_id});
    sg_pg_flush_add(flush, SG_PG_ACQUIRE, 8,
                    (const char *const[]){name, op->lock_id, ttl, pg->tolerance, op->key, counter,
                                          pg->fence_max, owner});
    add(flush, SG_PG_COMMIT);
}

syncguard_status sg_pg_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                               syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    char name[SYNCGUARD_NAME_SIZE];
    char counter[SYNCGUARD_NAME_SIZE];
    char owner[SYNCGUARD_LOCK_ID_SIZE + SYNCGUARD_OWNER_SIZE];
    char ttl[24];
    size_t length = 0;
    bool found = false;
    int64_t armed_ms = 0;
    sg_pg_flush flush;
    syncguard_status status;

    status = sg_pg_name(op->key, name, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_fence_name(NULL, name, SYNCGUARD_POSTGRES_LIMIT_BYTES,
                                      SYNCGUARD_POSTGRES_RESERVE_BYTES, counter, &length, err);
    if (status != SYNCGUARD_OK)
        return status;
    /* Before the decision, so that no release after it goes unnoticed. */
    if (op->watch && pg->listener && !atomic_load(&pg->unexpected))
        armed_ms = sg_pg_listener_arm(pg->listener, op->key, op->key_length, &op->limits);
    number(ttl, op->ttl_ms);
    sg_pg_flush_init(&flush);
    flush.lock_id = op->lock_id;
    flush.shares = op->ttl_ms >= SG_PG_SHARING_MS; /* its answer may come late */
    flush.contended = op->watch;
    flush.hopes = op->released;
    build_acquire(pg, op, name, counter, ttl, label(op, owner, sizeof owner), &flush);
    status = sg_pg_flush_run(pg, &flush, &op->limits, err);
    if (status == SYNCGUARD_OK)
        status = read_acquire(op, flush.results[2], flush.results[3], &found, err);
    if (status == SYNCGUARD_OK && found)
        status = confirm_grant(pg, op, ttl, err);
    if (status == SYNCGUARD_ABSENT)
        status = explain_refusal(pg, op, counter, err);
    if (status == SYNCGUARD_LOCKED && flush.pending)
        status = syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                                "the connection was lost while the lock was asked for");
    if (flush.sent)
        op->first_sent_ns = flush.first_sent_ns;
    op->armed_ms = armed_ms;
    op->maybe_granted = status < 0 && (flush.unknown || found);
    sg_pg_flush_clear(&flush);
    return status;
}

/* ---- release and extend ------------------------------------------------------------------ */

/* Columns of what a release took away. */
enum { GONE_KEY, GONE_LIVE };

syncguard_status sg_pg_release(syncguard_backend *backend, syncguard_release_op *op,
                               syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    const PGresult *gone;
    sg_pg_flush flush;
    syncguard_status status;

    op->key_length = 0;
    op->reason = SYNCGUARD_REASON_NONE;
    sg_pg_flush_init(&flush);
    flush.shares = true;
    flush.contended = op->contended;
    add(&flush, SG_PG_BEGIN);
    sg_pg_flush_add(&flush, SG_PG_RELEASE, 3,
                    (const char *const[]){op->lock_id, pg->tolerance, "t"});
    flush.tells = &flush.calls[1].values[2];
    add(&flush, SG_PG_COMMIT);
    status = sg_pg_flush_run(pg, &flush, &op->limits, err);
    if (status != SYNCGUARD_OK)
        goto out;
    gone = flush.results[1];
    if (PQntuples(gone) == 0)
        op->reason = SYNCGUARD_REASON_NOT_FOUND;
    else if (PQgetvalue(gone, 0, GONE_LIVE)[0] != 't')
        op->reason = SYNCGUARD_REASON_EXPIRED;
    if (PQntuples(gone) > 0 && sg_pg_text(gone, 0, GONE_KEY, op->key, sizeof op->key))
        op->key_length = strlen(op->key);
    if (op->reason != SYNCGUARD_REASON_NONE && !flush.perhaps_done)
        status = SYNCGUARD_ABSENT;
out:
    sg_pg_flush_clear(&flush);
    return status;
}

syncguard_status sg_pg_extend(syncguard_backend *backend, syncguard_extend_op *op,
                              syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    char ttl[24];
    sg_pg_flush flush;
    syncguard_status status;

    number(ttl, op->ttl_ms);
    op->reason = SYNCGUARD_REASON_NONE;
    sg_pg_flush_init(&flush);
    status = renew(pg, op->lock_id, ttl, &op->limits, &flush, err);
    if (flush.sent)
        op->first_sent_ns = flush.first_sent_ns;
    if (status != SYNCGUARD_OK)
        goto out;
    if (PQntuples(flush.results[2]) == 0) {
        op->reason =
            PQntuples(flush.results[1]) > 0 ? SYNCGUARD_REASON_EXPIRED : SYNCGUARD_REASON_NOT_FOUND;
        status = SYNCGUARD_ABSENT;
    } else if (!sg_pg_int64(flush.results[2], 0, 0, &op->expires_at_ms)) {
        status = unexpected(err, "the server's answer is unreadable");
    }
out:
    sg_pg_flush_clear(&flush);
    return status;
}

/* ---- undo and cleanup -------------------------------------------------------------------- */

syncguard_status sg_pg_undo(syncguard_backend *backend, const char *key, size_t key_length,
                            const char *lock_id, int64_t until_ns, const syncguard_limits *limits,
                            syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    /* What ends while we delete might write after we looked: only what had ended before counts. */
    int total = 0;
    int open = sg_pg_doubts_open(pg->pool, lock_id, &total);
    char name[SYNCGUARD_NAME_SIZE];
    sg_pg_flush flush;
    syncguard_status status = sg_pg_name(key, name, err);

    (void)key_length;
    (void)until_ns;
    if (status != SYNCGUARD_OK)
        return status;
    sg_pg_flush_init(&flush);
    add(&flush, SG_PG_BEGIN);
    sg_pg_flush_add(&flush, SG_PG_LOCK_KEY, 1, (const char *const[]){name});
    sg_pg_flush_add(&flush, SG_PG_UNDO, 3, (const char *const[]){name, lock_id, "t"});
    flush.tells = &flush.calls[2].values[2];
    add(&flush, SG_PG_COMMIT);
    status = sg_pg_flush_run(pg, &flush, limits, err);
    /* The only request was carried out and taken back: it is over, open or not. Of several it is
     * not known which one that was. */
    if (status == SYNCGUARD_OK && open != 0 && (PQntuples(flush.results[2]) == 0 || total > 1))
        status = SYNCGUARD_ABSENT;
    sg_pg_flush_clear(&flush);
    return status;
}

syncguard_status sg_pg_cleanup(syncguard_backend *backend, const syncguard_cleanup_op *op,
                               syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    char name[SYNCGUARD_NAME_SIZE];
    char expires[24];
    char guard[24];
    sg_pg_flush flush;
    syncguard_status status = sg_pg_name(op->key, name, err);

    if (status != SYNCGUARD_OK)
        return status;
    number(expires, op->expires_at_ms);
    number(guard, SYNCGUARD_CLEANUP_GUARD_MS);
    sg_pg_flush_init(&flush);
    add(&flush, SG_PG_BEGIN);
    sg_pg_flush_add(&flush, SG_PG_LOCK_KEY, 1, (const char *const[]){name});
    sg_pg_flush_add(&flush, SG_PG_CLEANUP, 4,
                    (const char *const[]){name, op->lock_id, expires, guard});
    add(&flush, SG_PG_COMMIT);
    status = sg_pg_flush_run(pg, &flush, &op->limits, err);
    sg_pg_flush_clear(&flush);
    return status;
}
