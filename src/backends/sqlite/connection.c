/*
 * The connection: settings, prepared statements, the loop around a busy
 * database, and SQLite's codes in our words.
 */
#include <errno.h>

#include "internal.h"

#define PAUSE_FIRST_NS 50000
#define PAUSE_LAST_NS (2 * SYNCGUARD_NS_PER_MS)

static const char *const SQL[SG_STATEMENT_COUNT] = {
    [SG_BEGIN] = "BEGIN",
    [SG_BEGIN_IMMEDIATE] = "BEGIN IMMEDIATE",
    [SG_COMMIT] = "COMMIT",
    [SG_ROLLBACK] = "ROLLBACK",
    [SG_FIND_KEY] = "SELECT NULL, lock_id, fence, expires_at_ms, boot_id, boot_set_ms,"
                    " boot_expires_ms"
                    " FROM syncguard_locks WHERE key = ?1",
    [SG_FIND_ID] = "SELECT key, lock_id, fence, expires_at_ms, boot_id, boot_set_ms,"
                   " boot_expires_ms"
                   " FROM syncguard_locks WHERE lock_id = ?1",
    [SG_COUNTER] = "SELECT fence FROM syncguard_fence_counters WHERE fence_key = ?1",
    [SG_NEW_COUNTER] = "INSERT INTO syncguard_fence_counters(fence_key, fence) VALUES(?1, ?2)",
    [SG_SET_COUNTER] = "UPDATE syncguard_fence_counters SET fence = ?2 WHERE fence_key = ?1",
    [SG_NEW_LOCK] =
        "INSERT INTO syncguard_locks(key, lock_id, expires_at_ms, acquired_at_ms, fence, owner,"
        " boot_id, boot_set_ms, boot_expires_ms) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    [SG_SET_LOCK] =
        "UPDATE syncguard_locks SET lock_id = ?2, expires_at_ms = ?3, acquired_at_ms = ?4,"
        " fence = ?5, owner = ?6, boot_id = ?7, boot_set_ms = ?8,"
        " boot_expires_ms = ?9 WHERE key = ?1",
    [SG_DROP_LOCK] = "DELETE FROM syncguard_locks WHERE lock_id = ?1",
    [SG_RENEW] = "UPDATE syncguard_locks SET expires_at_ms = ?2, boot_id = ?3, boot_set_ms = ?4,"
                 " boot_expires_ms = ?5 WHERE lock_id = ?1",
    [SG_LOOKUP_KEY] = "SELECT user_key, lock_id, owner, fence, expires_at_ms, acquired_at_ms,"
                      " boot_id, boot_set_ms, boot_expires_ms FROM syncguard_locks WHERE key = ?1",
    [SG_LOOKUP_ID] =
        "SELECT user_key, lock_id, owner, fence, expires_at_ms, acquired_at_ms,"
        " boot_id, boot_set_ms, boot_expires_ms FROM syncguard_locks WHERE lock_id = ?1",
    [SG_PAGE] =
        "SELECT user_key, lock_id, owner, fence, expires_at_ms, acquired_at_ms, boot_id,"
        " boot_set_ms, boot_expires_ms FROM syncguard_locks WHERE key > ?1 ORDER BY key LIMIT ?2",
};

/* ---- SQLite's codes ------------------------------------------------------------------------ */

static const char *code_name(int code)
{
    switch (code & 0xff) {
    case SQLITE_BUSY:
        return "SQLITE_BUSY";
    case SQLITE_FULL:
        return "SQLITE_FULL";
    case SQLITE_IOERR:
        return "SQLITE_IOERR";
    case SQLITE_CANTOPEN:
        return "SQLITE_CANTOPEN";
    case SQLITE_READONLY:
        return "SQLITE_READONLY";
    case SQLITE_CORRUPT:
        return "SQLITE_CORRUPT";
    case SQLITE_NOTADB:
        return "SQLITE_NOTADB";
    case SQLITE_PERM:
        return "SQLITE_PERM";
    case SQLITE_AUTH:
        return "SQLITE_AUTH";
    case SQLITE_CONSTRAINT:
        return "SQLITE_CONSTRAINT";
    case SQLITE_MISUSE:
        return "SQLITE_MISUSE";
    default:
        return "SQLITE_ERROR";
    }
}

syncguard_status sg_sqlite_fail(sqlite3 *db, const char *path, int code, syncguard_error *err)
{
    int error = db == NULL ? 0 : sqlite3_system_errno(db);
    syncguard_status status = SYNCGUARD_E_INTERNAL;
    const char *what = "an SQLite statement failed";
    switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL: /* too many lost races for the WAL's locks */
        return SG_SQLITE_BUSY;
    case SQLITE_NOMEM:
        return syncguard_fail_memory(err);
    case SQLITE_FULL:
        status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
        what = "the disk is full";
        break;
    case SQLITE_IOERR:
        status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
        what = "reading or writing failed";
        break;
    case SQLITE_CANTOPEN:
        status = error == EACCES || error == EPERM    ? SYNCGUARD_E_AUTH_FAILED
                 : error == EMFILE || error == ENFILE ? SYNCGUARD_E_RATE_LIMITED
                                                      : SYNCGUARD_E_SERVICE_UNAVAILABLE;
        what = "cannot be opened";
        break;
    case SQLITE_READONLY:
        status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
        what = "cannot be written";
        break;
    case SQLITE_CORRUPT:
        status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
        what = "the database is damaged; left as it is";
        break;
    case SQLITE_NOTADB:
        status = SYNCGUARD_E_INVALID_ARGUMENT;
        what = "is not a SyncGuard database; left untouched";
        break;
    case SQLITE_PERM:
    case SQLITE_AUTH:
        status = SYNCGUARD_E_AUTH_FAILED;
        what = "access was refused";
        break;
    default:
        break;
    }
    return syncguard_fail(err, status, code_name(code), "%s: %s (SQLite code %d, errno %d)", path,
                          what, code, error);
}

/* ---- connection and statements -------------------------------------------------------------- */

syncguard_status sg_sqlite_connect(const char *path, sqlite3 **out, syncguard_error *err)
{
    sqlite3 *db = NULL;
    syncguard_status status = SYNCGUARD_OK;
    /* No CREATE: the file was made with its mode. NOMUTEX: the gate serialises. "unix": locks of
     * another kind, should the program have chosen one, would not exclude other processes. */
    int code = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, "unix");
    if (db == NULL)
        return syncguard_fail_memory(err);
    if (code == SQLITE_OK)
        code = sqlite3_extended_result_codes(db, 1);
    if (code != SQLITE_OK) {
        status = sg_sqlite_fail(db, path, code, err);
        goto out;
    }
    if (sqlite3_db_readonly(db, "main") == 1) {
        status = syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, "EACCES",
                                "%s: may be read but not written", path);
        goto out;
    }
    /* Keeping the WAL saves the next start of a command two syncs and the making of files. */
    sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    *out = db;
    db = NULL;
out:
    if (db != NULL)
        sqlite3_close(db);
    return status;
}

void sg_sqlite_disconnect(sg_sqlite *sqlite)
{
    if (sqlite->db == NULL)
        return;
    for (int i = 0; i < SG_STATEMENT_COUNT; i++) {
        sqlite3_finalize(sqlite->statements[i]);
        sqlite->statements[i] = NULL;
    }
    sqlite3_close(sqlite->db);
    sqlite->db = NULL;
}

syncguard_status sg_sqlite_statement(sg_sqlite *sqlite, sg_statement which, sqlite3_stmt **out,
                                     syncguard_error *err)
{
    if (sqlite->statements[which] == NULL) {
        int code = sqlite3_prepare_v3(sqlite->db, SQL[which], -1, SQLITE_PREPARE_PERSISTENT,
                                      &sqlite->statements[which], NULL);
        if (code != SQLITE_OK)
            return sg_sqlite_fail(sqlite->db, sqlite->path, code, err);
    }
    *out = sqlite->statements[which];
    return SYNCGUARD_OK;
}

syncguard_status sg_sqlite_done(sg_sqlite *sqlite, sqlite3_stmt *statement, syncguard_error *err)
{
    int code = sqlite3_step(statement);
    if (code == SQLITE_DONE) {
        sqlite3_reset(statement);
        return SYNCGUARD_OK;
    }
    if (code == SQLITE_ROW)
        code = SQLITE_MISUSE;
    sqlite->full = sqlite->full || (code & 0xff) == SQLITE_FULL;
    syncguard_status status = sg_sqlite_fail(sqlite->db, sqlite->path, code, err);
    sqlite3_reset(statement);
    return status;
}

syncguard_status sg_sqlite_do(sg_sqlite *sqlite, sg_statement which, syncguard_error *err)
{
    sqlite3_stmt *statement = NULL;
    syncguard_status status = sg_sqlite_statement(sqlite, which, &statement, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_done(sqlite, statement, err);
    return status;
}

/* ---- transactions -------------------------------------------------------------------------- */

/*
 * A plain BEGIN reads first and takes the write lock with the first write, which
 * fails if anybody committed in between. So what was read still holds when it is
 * acted upon, and an attempt that finds nothing to do never takes the write lock.
 */
syncguard_status sg_sqlite_begin(sg_sqlite *sqlite, bool immediate, syncguard_error *err)
{
    /* The way back is made ready first: without memory it could not be prepared any more, and a
     * transaction that cannot be ended would hold the file against everybody. */
    sqlite3_stmt *way_back = NULL;
    syncguard_status status = sg_sqlite_statement(sqlite, SG_ROLLBACK, &way_back, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_do(sqlite, immediate ? SG_BEGIN_IMMEDIATE : SG_BEGIN, err);
    return status;
}

/* *room_made: the WAL was emptied for this operation, which is worth one more attempt, not two. */
static syncguard_status attempt_in_gate(sg_sqlite *sqlite, const syncguard_limits *limits,
                                        sg_attempt attempt, void *op, bool immediate,
                                        bool *room_made, syncguard_error *err)
{
    syncguard_status status = syncguard_gate_enter(&sqlite->gate, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite->full = false;
    status = sg_sqlite_ready(sqlite, err);
    if (status == SYNCGUARD_OK) {
        status = attempt(sqlite, op, immediate, err);
        if (sqlite3_get_autocommit(sqlite->db) == 0)
            (void)sg_sqlite_do(sqlite, SG_ROLLBACK, NULL);
        if (status < 0 && sqlite->full && !*room_made && sg_sqlite_make_room(sqlite)) {
            *room_made = true;
            status = SG_SQLITE_BUSY;
        }
    }
    syncguard_gate_leave(&sqlite->gate);
    return status;
}

/* The pause grows by half; its last bits vary, so that rivals do not stay in step. */
static int64_t next_pause(int64_t pause_ns, int64_t now_ns)
{
    pause_ns += pause_ns / 2 + now_ns % 16384;
    return pause_ns > PAUSE_LAST_NS ? PAUSE_LAST_NS - now_ns % 524288 : pause_ns;
}

syncguard_status sg_sqlite_run(sg_sqlite *sqlite, const syncguard_limits *limits,
                               sg_attempt attempt, void *op, syncguard_error *err)
{
    int64_t pause_ns = PAUSE_FIRST_NS;
    bool immediate = false;
    bool room_made = false;
    for (;;) {
        syncguard_status status =
            attempt_in_gate(sqlite, limits, attempt, op, immediate, &room_made, err);
        if (status != SG_SQLITE_BUSY)
            return status;
        immediate = !immediate;
        if (immediate) /* most likely our view was out of date: no reason to wait */
            continue;
        int64_t now_ns = syncguard_clock_ns();
        status = syncguard_wait_until(now_ns + pause_ns, limits, err);
        if (status == SYNCGUARD_E_NETWORK_TIMEOUT)
            return syncguard_fail(err, status, "SQLITE_BUSY",
                                  "%s: busy, another process held it until the deadline",
                                  sqlite->path);
        if (status != SYNCGUARD_OK)
            return status;
        pause_ns = next_pause(pause_ns, now_ns);
    }
}
