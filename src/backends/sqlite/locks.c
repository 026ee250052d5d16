/*
 * Granting and freeing: acquire, release, undo, cleanup.
 *
 * Every decision is made in one transaction that first reads, then reads the
 * clock, then writes; SQLite lets the write through only if nothing was
 * committed since the read. Liveness is judged by the boot clock that all
 * processes of one kernel share; the wall clock's times are for people.
 */
#include <string.h>

#include "internal.h"

/* Integers beyond this are not times that anybody wrote. */
#define LARGEST_TIME_MS INT64_C(9007199254740991)

static bool read_time(sqlite3_stmt *statement, int column, int64_t *out)
{
    if (sqlite3_column_type(statement, column) != SQLITE_INTEGER)
        return false;
    *out = sqlite3_column_int64(statement, column);
    return *out >= -LARGEST_TIME_MS && *out <= LARGEST_TIME_MS;
}

/*
 * Two known boot ids that differ are two boots: the row is dead. Where one of
 * them is unknown the row may be of this boot. The clock only runs forward, so a
 * row that was set in this boot was set before now; one that seems to be set
 * later is of an earlier boot. What remains counts until it expires: a lock of an
 * earlier boot may so be held for its TTL once more, but never a live one freed.
 */
bool sg_sqlite_remaining_ms(const sg_sqlite *sqlite, sqlite3_stmt *statement, int column,
                            int64_t now_ns, int64_t *remaining_ms)
{
    const sg_boot *boot = &sqlite->boot;
    int64_t now_ms = sg_boot_ms(boot, now_ns);
    int64_t set_ms = 0;
    int64_t expires_ms = 0;
    if (sqlite3_column_type(statement, column) != SQLITE_TEXT ||
        !read_time(statement, column + 1, &set_ms) ||
        !read_time(statement, column + 2, &expires_ms))
        return false;
    const char *id = (const char *)sqlite3_column_text(statement, column);
    size_t length = (size_t)sqlite3_column_bytes(statement, column);
    if (id == NULL)
        return false;
    bool unknown = length == 0 || boot->id[0] == '\0';
    bool same = length == strlen(boot->id) && memcmp(id, boot->id, length) == 0;
    if (unknown ? now_ms < set_ms : !same)
        *remaining_ms = -now_ms; /* dead at least since this boot began */
    else if (syncguard_is_live(expires_ms, now_ms))
        *remaining_ms = expires_ms + SYNCGUARD_TIME_TOLERANCE_MS - now_ms;
    else
        *remaining_ms = expires_ms - now_ms;
    return true;
}

/* ---- reading a row ------------------------------------------------------------------------- */

bool sg_sqlite_text(sqlite3_stmt *statement, int column, char *out, size_t size, size_t *length)
{
    out[0] = '\0';
    if (sqlite3_column_type(statement, column) != SQLITE_TEXT)
        return false;
    const unsigned char *text = sqlite3_column_text(statement, column);
    size_t bytes = (size_t)sqlite3_column_bytes(statement, column);
    if (text == NULL || bytes >= size)
        return false;
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    if (length != NULL)
        *length = bytes;
    return true;
}

/* Only the expiry must be readable: what else is damaged is empty, and fails whoever needs it. */
static bool read_row(const sg_sqlite *sqlite, sqlite3_stmt *statement, sg_row *row, int64_t now_ns)
{
    if (!sg_sqlite_remaining_ms(sqlite, statement, 4, now_ns, &row->remaining_ms))
        return false;
    row->live = row->remaining_ms > 0;
    row->found = true;
    row->key_length = 0;
    (void)sg_sqlite_text(statement, 0, row->key, sizeof row->key, &row->key_length);
    (void)sg_sqlite_text(statement, 1, row->lock_id, sizeof row->lock_id, NULL);
    (void)sg_sqlite_text(statement, 2, row->fence, sizeof row->fence, NULL);
    row->dated = read_time(statement, 3, &row->expires_at_ms);
    return true;
}

syncguard_status sg_sqlite_unreadable(const sg_sqlite *sqlite, syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "%s: the stored record cannot be read",
                          sqlite->path);
}

syncguard_status sg_sqlite_find(sg_sqlite *sqlite, sg_statement which, const char *text,
                                size_t length, sg_row *row, int64_t *now_ns, syncguard_error *err)
{
    sqlite3_stmt *statement = NULL;
    row->found = false;
    row->live = false;
    syncguard_status status = sg_sqlite_statement(sqlite, which, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite3_bind_text(statement, 1, text, (int)length, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    *now_ns = syncguard_clock_ns();
    if (code == SQLITE_ROW) {
        if (!read_row(sqlite, statement, row, *now_ns))
            status = sg_sqlite_unreadable(sqlite, err);
    } else if (code != SQLITE_DONE) {
        status = sg_sqlite_fail(sqlite->db, sqlite->path, code, err);
    }
    sqlite3_reset(statement);
    return status;
}

/* ---- acquire ------------------------------------------------------------------------------- */

typedef struct acquire_work {
    syncguard_acquire_op *op;
    char name[SYNCGUARD_NAME_SIZE];
    size_t name_length;
    char counter[SYNCGUARD_NAME_SIZE];
    size_t counter_length;
    unsigned failures; /* of syncs, when the attempt began */
} acquire_work;

static syncguard_status read_counter(sg_sqlite *sqlite, const acquire_work *work, int64_t *current,
                                     bool *found, syncguard_error *err)
{
    sqlite3_stmt *statement = NULL;
    syncguard_status status = sg_sqlite_statement(sqlite, SG_COUNTER, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    *current = 0;
    *found = false;
    sqlite3_bind_text(statement, 1, work->counter, (int)work->counter_length, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    if (code == SQLITE_ROW) {
        *found = true;
        if (sqlite3_column_type(statement, 0) == SQLITE_INTEGER)
            *current = sqlite3_column_int64(statement, 0);
        else
            status = syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                                    "%s: holds a fence counter that is no integer", sqlite->path);
    } else if (code != SQLITE_DONE) {
        status = sg_sqlite_fail(sqlite->db, sqlite->path, code, err);
    }
    sqlite3_reset(statement);
    return status;
}

static syncguard_status write_counter(sg_sqlite *sqlite, const acquire_work *work, int64_t fence,
                                      bool found, syncguard_error *err)
{
    sqlite3_stmt *statement = NULL;
    syncguard_status status =
        sg_sqlite_statement(sqlite, found ? SG_SET_COUNTER : SG_NEW_COUNTER, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite3_bind_text(statement, 1, work->counter, (int)work->counter_length, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, fence);
    return sg_sqlite_done(sqlite, statement, err);
}

static syncguard_status write_lock(sg_sqlite *sqlite, const acquire_work *work, const char *fence,
                                   int64_t wall_ms, int64_t now_ns, bool found,
                                   syncguard_error *err)
{
    const syncguard_acquire_op *op = work->op;
    sqlite3_stmt *statement = NULL;
    syncguard_status status =
        sg_sqlite_statement(sqlite, found ? SG_SET_LOCK : SG_NEW_LOCK, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite3_bind_text(statement, 1, work->name, (int)work->name_length, SQLITE_STATIC);
    sqlite3_bind_text(statement, 2, op->lock_id, SYNCGUARD_LOCK_ID_CHARS, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 3, op->expires_at_ms);
    sqlite3_bind_int64(statement, 4, wall_ms);
    sqlite3_bind_text(statement, 5, fence, SYNCGUARD_FENCE_DIGITS, SQLITE_STATIC);
    sqlite3_bind_text(statement, 6, op->owner == NULL ? "" : op->owner, -1, SQLITE_STATIC);
    sqlite3_bind_text(statement, 7, sqlite->boot.id, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 8, sg_boot_ms(&sqlite->boot, now_ns));
    sqlite3_bind_int64(statement, 9, sg_boot_ms(&sqlite->boot, now_ns) + op->ttl_ms);
    return sg_sqlite_done(sqlite, statement, err);
}

/* A commit that failed is rolled back; only a file that cannot be read leaves a doubt. */
static syncguard_status commit_grant(sg_sqlite *sqlite, const acquire_work *work,
                                     syncguard_error *err)
{
    syncguard_status status = sg_sqlite_do(sqlite, SG_COMMIT, err);
    if (status == SYNCGUARD_OK)
        return status;
    if (sqlite3_get_autocommit(sqlite->db) == 0)
        (void)sg_sqlite_do(sqlite, SG_ROLLBACK, NULL);
    sg_row row;
    int64_t now_ns = 0;
    syncguard_status seen =
        sg_sqlite_find(sqlite, SG_FIND_KEY, work->name, work->name_length, &row, &now_ns, NULL);
    if (seen != SYNCGUARD_OK)
        work->op->maybe_granted = true;
    else if (row.found && strcmp(row.lock_id, work->op->lock_id) == 0)
        return SYNCGUARD_OK;
    return status;
}

static syncguard_status grant(sg_sqlite *sqlite, acquire_work *work, bool over_dead, int64_t now_ns,
                              syncguard_error *err)
{
    syncguard_acquire_op *op = work->op;
    char fence[SYNCGUARD_FENCE_SIZE];
    int64_t current = 0;
    bool counted = false;
    int64_t wall_ms = syncguard_wall_ms();

    syncguard_status status = read_counter(sqlite, work, &current, &counted, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_fence_next(current, &op->fence, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_fence_format(op->fence, fence, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_expiry(wall_ms, op->ttl_ms, &op->expires_at_ms, err);
    if (status == SYNCGUARD_OK)
        status = write_counter(sqlite, work, op->fence, counted, err);
    if (status == SYNCGUARD_OK)
        status = write_lock(sqlite, work, fence, wall_ms, now_ns, over_dead, err);
    if (status == SYNCGUARD_OK)
        status = commit_grant(sqlite, work, err);
    return status;
}

/* The same request again: its grant is what the row says. */
static syncguard_status grant_again(const sg_sqlite *sqlite, syncguard_acquire_op *op,
                                    const sg_row *row, syncguard_error *err)
{
    if (!syncguard_fence_valid(row->fence) || !row->dated) {
        op->maybe_granted = true; /* it is ours, but there is nothing to hand out */
        return sg_sqlite_unreadable(sqlite, err);
    }
    op->fence = 0;
    for (const char *digit = row->fence; *digit != '\0'; digit++)
        op->fence = op->fence * 10 + (*digit - '0');
    op->expires_at_ms = row->expires_at_ms;
    return SYNCGUARD_OK;
}

static syncguard_status attempt_acquire(sg_sqlite *sqlite, void *argument, bool immediate,
                                        syncguard_error *err)
{
    acquire_work *work = argument;
    syncguard_acquire_op *op = work->op;
    sg_row row;
    int64_t now_ns = 0;
    syncguard_status status = sg_sqlite_heal(sqlite, &work->failures, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_begin(sqlite, immediate, err);
    if (status == SYNCGUARD_OK)
        status =
            sg_sqlite_find(sqlite, SG_FIND_KEY, work->name, work->name_length, &row, &now_ns, err);
    if (status != SYNCGUARD_OK)
        return status;

    if (row.live && strcmp(row.lock_id, op->lock_id) != 0) {
        op->remaining_ms = row.remaining_ms;
        return SYNCGUARD_LOCKED;
    }
    if (row.live) {
        status = grant_again(sqlite, op, &row, err);
    } else {
        op->first_sent_ns = now_ns; /* the stored expiry counts from here, so the lease may too */
        status = grant(sqlite, work, row.found, now_ns, err);
    }
    if (status != SYNCGUARD_OK)
        return status;
    status = sg_sqlite_settle(sqlite, err);
    if (status != SYNCGUARD_OK)
        op->maybe_granted = true; /* committed, but it cannot be made durable */
    return status;
}

static syncguard_status attempt_release(sg_sqlite *sqlite, void *argument, bool immediate,
                                        syncguard_error *err);

/* A grant that may not survive a crash is not told: it is taken back. */
static void take_back(sg_sqlite *sqlite, syncguard_acquire_op *op)
{
    syncguard_limits limits = {syncguard_clock_ns() + 100 * SYNCGUARD_NS_PER_MS, NULL};
    syncguard_release_op release;
    memset(&release, 0, sizeof release);
    release.lock_id = op->lock_id;
    syncguard_status status = sg_sqlite_run(sqlite, &limits, attempt_release, &release, NULL);
    if (status == SYNCGUARD_OK)
        sg_wake_publish(sqlite, release.key, release.key_length);
    op->maybe_granted = status != SYNCGUARD_OK && status != SYNCGUARD_ABSENT;
}

syncguard_status sg_sqlite_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                                   syncguard_error *err)
{
    sg_sqlite *sqlite = sg_sqlite_of(backend);
    acquire_work work;
    work.op = op;
    syncguard_status status = sg_sqlite_same_process(sqlite, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_storage_name(NULL, op->key, SYNCGUARD_SQLITE_LIMIT_BYTES,
                                        SYNCGUARD_SQLITE_RESERVE_BYTES, work.name,
                                        &work.name_length, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_fence_name(NULL, work.name, SYNCGUARD_SQLITE_LIMIT_BYTES,
                                      SYNCGUARD_SQLITE_RESERVE_BYTES, work.counter,
                                      &work.counter_length, err);
    if (status != SYNCGUARD_OK)
        return status;

    status = sg_sqlite_run(sqlite, &op->limits, attempt_acquire, &work, err);
    /* Watching costs a thread, so only who finds the key held arms, and then decides again. */
    if (status == SYNCGUARD_LOCKED && op->watch) {
        bool added = false;
        bool armed = sg_wake_watch(sqlite, op->key, op->key_length, &added);
        if (added)
            status = sg_sqlite_run(sqlite, &op->limits, attempt_acquire, &work, err);
        op->armed_ms = armed ? SYNCGUARD_ARMED_MS : 0;
    }
    if (status == SYNCGUARD_OK && sqlite->durable) {
        status = sg_sqlite_sync(sqlite, work.failures, err);
        op->maybe_granted = status != SYNCGUARD_OK;
    }
    /* Here and not in the background, which needs a thread and descriptors: they may be short. */
    if (status < 0 && op->maybe_granted)
        take_back(sqlite, op);
    return status;
}

/* ---- release, undo ------------------------------------------------------------------------- */

static syncguard_status drop(sg_sqlite *sqlite, const char *lock_id, syncguard_error *err)
{
    sqlite3_stmt *statement = NULL;
    syncguard_status status = sg_sqlite_statement(sqlite, SG_DROP_LOCK, &statement, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite3_bind_text(statement, 1, lock_id, -1, SQLITE_STATIC);
    status = sg_sqlite_done(sqlite, statement, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_do(sqlite, SG_COMMIT, err);
    if (status == SYNCGUARD_OK)
        sg_sqlite_checkpoint_late(sqlite);
    return status;
}

static syncguard_status attempt_release(sg_sqlite *sqlite, void *argument, bool immediate,
                                        syncguard_error *err)
{
    syncguard_release_op *op = argument;
    sg_row row;
    int64_t now_ns = 0;
    syncguard_status status = sg_sqlite_begin(sqlite, immediate, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_find(sqlite, SG_FIND_ID, op->lock_id, SYNCGUARD_LOCK_ID_CHARS, &row,
                                &now_ns, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (!row.live || strcmp(row.lock_id, op->lock_id) != 0) {
        op->reason = row.found ? SYNCGUARD_REASON_EXPIRED : SYNCGUARD_REASON_NOT_FOUND;
        return SYNCGUARD_ABSENT;
    }
    status = drop(sqlite, row.lock_id, err);
    if (status == SYNCGUARD_OK) {
        memcpy(op->key, row.key, row.key_length + 1);
        op->key_length = row.key_length;
    }
    return status;
}

syncguard_status sg_sqlite_release(syncguard_backend *backend, syncguard_release_op *op,
                                   syncguard_error *err)
{
    sg_sqlite *sqlite = sg_sqlite_of(backend);
    syncguard_status status = sg_sqlite_same_process(sqlite, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_run(sqlite, &op->limits, attempt_release, op, err);
    if (status == SYNCGUARD_OK)
        sg_wake_publish(sqlite, op->key, op->key_length);
    return status;
}

/* Nothing of ours is under way in a store that answers at once: what is not there now never
 * comes. */
syncguard_status sg_sqlite_undo(syncguard_backend *backend, const char *key, size_t key_length,
                                const char *lock_id, int64_t until_ns,
                                const syncguard_limits *limits, syncguard_error *err)
{
    (void)key;
    (void)key_length;
    (void)until_ns;
    syncguard_release_op op;
    memset(&op, 0, sizeof op);
    op.lock_id = lock_id;
    op.limits = *limits;
    syncguard_status status = sg_sqlite_release(backend, &op, err);
    return status == SYNCGUARD_ABSENT ? SYNCGUARD_OK : status;
}

/* ---- cleanup ------------------------------------------------------------------------------- */

static syncguard_status attempt_cleanup(sg_sqlite *sqlite, void *argument, bool immediate,
                                        syncguard_error *err)
{
    const syncguard_cleanup_op *op = argument;
    sg_row row;
    int64_t now_ns = 0;
    syncguard_status status = sg_sqlite_begin(sqlite, immediate, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_find(sqlite, SG_FIND_KEY, op->key, op->key_length, &row, &now_ns, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (!row.found || !row.dated || strcmp(row.lock_id, op->lock_id) != 0 ||
        row.expires_at_ms != op->expires_at_ms || row.remaining_ms >= -SYNCGUARD_CLEANUP_GUARD_MS)
        return SYNCGUARD_OK;
    return drop(sqlite, op->lock_id, err);
}

syncguard_status sg_sqlite_cleanup(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                   syncguard_error *err)
{
    sg_sqlite *sqlite = sg_sqlite_of(backend);
    syncguard_status status = sg_sqlite_same_process(sqlite, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_run(sqlite, &op->limits, attempt_cleanup, (void *)op, err);
    return status;
}
