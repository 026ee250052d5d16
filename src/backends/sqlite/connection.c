/* See connection.h. */
#include "connection.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "errors.h"
#include "syncguard/sys/fail.h"

#define RECORD_COLUMNS                                                                             \
    "SELECT key, lock_id, owner, fence, expires_at_ms, acquired_at_ms, boot_id, boot_set_ms,"      \
    " boot_expires_ms FROM syncguard_locks"

static const char *const SQL[SG_SQLITE_STATEMENT_COUNT] = {
    [SG_SQLITE_BEGIN] = "BEGIN",
    [SG_SQLITE_BEGIN_IMMEDIATE] = "BEGIN IMMEDIATE",
    [SG_SQLITE_COMMIT] = "COMMIT",
    [SG_SQLITE_ROLLBACK] = "ROLLBACK",
    [SG_SQLITE_READ_KEY] = RECORD_COLUMNS " WHERE key = ?1",
    [SG_SQLITE_READ_ID] = RECORD_COLUMNS " WHERE lock_id = ?1",
    [SG_SQLITE_READ_PAGE] = RECORD_COLUMNS " WHERE key > ?1 ORDER BY key LIMIT ?2",
    [SG_SQLITE_READ_COUNTER] = "SELECT fence FROM syncguard_fence_counters WHERE fence_key = ?1",
    [SG_SQLITE_WRITE_COUNTER] =
        "INSERT INTO syncguard_fence_counters(fence_key, fence) VALUES(?1, ?2)"
        " ON CONFLICT(fence_key) DO UPDATE SET fence = ?2",
    [SG_SQLITE_WRITE_LOCK] =
        "INSERT INTO syncguard_locks(key, lock_id, expires_at_ms, acquired_at_ms, fence, owner,"
        " boot_id, boot_set_ms, boot_expires_ms) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
        " ON CONFLICT(key) DO UPDATE SET lock_id = ?2, expires_at_ms = ?3, acquired_at_ms = ?4,"
        " fence = ?5, owner = ?6, boot_id = ?7, boot_set_ms = ?8, boot_expires_ms = ?9",
    [SG_SQLITE_DELETE_LOCK] = "DELETE FROM syncguard_locks WHERE lock_id = ?1",
    [SG_SQLITE_EXTEND_LOCK] =
        "UPDATE syncguard_locks SET expires_at_ms = ?2, boot_id = ?3, boot_set_ms = ?4,"
        " boot_expires_ms = ?5 WHERE lock_id = ?1",
};

/* The mode of the file is not the reason if its file system is read-only. */
static syncguard_status sqlite_fail_readonly(const char *path, syncguard_error *err)
{
    if (access(path, W_OK) != 0 && errno == EROFS)
        return sg_sqlite_fail_errno(err, EROFS, path, "cannot be written");
    return syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, "EACCES", "%s: may be read but not written",
                          path);
}

syncguard_status sg_sqlite_connect(const char *path, sqlite3 **out, syncguard_error *err)
{
    sqlite3 *db = NULL;
    syncguard_status status = SYNCGUARD_OK;
    /* No CREATE: the file was created with its mode. NOMUTEX: the caller serializes. "unix": locks
     * of another kind, which the program may have chosen, do not exclude other processes. */
    int code = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, "unix");
    if (db == NULL)
        return syncguard_fail_memory(err);
    if (code == SQLITE_OK)
        code = sqlite3_extended_result_codes(db, 1);
    if (code != SQLITE_OK)
        status = sg_sqlite_fail(db, path, code, err);
    else if (sqlite3_db_readonly(db, "main") == 1)
        status = sqlite_fail_readonly(path, err);
    if (status != SYNCGUARD_OK) {
        sqlite3_close(db);
        return status;
    }
    /* Keeping the WAL saves the next start of a command two syncs and the creation of files. */
    sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    *out = db;
    return SYNCGUARD_OK;
}

void sg_sqlite_disconnect(sg_sqlite_connection *connection)
{
    for (int i = 0; i < SG_SQLITE_STATEMENT_COUNT; i++) {
        sqlite3_finalize(connection->statements[i]);
        connection->statements[i] = NULL;
    }
    sqlite3_close(connection->db);
    connection->db = NULL;
}

int sg_sqlite_query(sqlite3 *db, const char *sql, char *out, size_t size)
{
    sqlite3_stmt *statement = NULL;
    out[0] = '\0';
    int code = sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
    if (code == SQLITE_OK && sqlite3_step(statement) == SQLITE_ROW) {
        const unsigned char *text = sqlite3_column_text(statement, 0);
        snprintf(out, size, "%s", text == NULL ? "" : (const char *)text);
    }
    int end = sqlite3_finalize(statement);
    return code == SQLITE_OK ? end : code;
}

/* ---- statements ---- */

syncguard_status sg_sqlite_prepare(sg_sqlite_connection *connection, sg_sqlite_statement which,
                                   sqlite3_stmt **out, syncguard_error *err)
{
    sqlite3_stmt **statement = &connection->statements[which];
    if (*statement == NULL) {
        int code = sqlite3_prepare_v3(connection->db, SQL[which], -1, SQLITE_PREPARE_PERSISTENT,
                                      statement, NULL);
        if (code != SQLITE_OK)
            return sg_sqlite_fail(connection->db, connection->path, code, err);
    }
    *out = *statement;
    return SYNCGUARD_OK;
}

syncguard_status sg_sqlite_step(sg_sqlite_connection *connection, sqlite3_stmt *statement,
                                bool *row, syncguard_error *err)
{
    int code = sqlite3_step(statement);
    *row = code == SQLITE_ROW;
    if (code == SQLITE_ROW || code == SQLITE_DONE)
        return SYNCGUARD_OK;
    connection->disk_full = connection->disk_full || (code & 0xff) == SQLITE_FULL;
    return sg_sqlite_fail(connection->db, connection->path, code, err);
}

syncguard_status sg_sqlite_finish(sg_sqlite_connection *connection, sqlite3_stmt *statement,
                                  syncguard_error *err)
{
    bool row = false;
    syncguard_status status = sg_sqlite_step(connection, statement, &row, err);
    sqlite3_reset(statement);
    return status;
}

syncguard_status sg_sqlite_execute(sg_sqlite_connection *connection, sg_sqlite_statement which,
                                   syncguard_error *err)
{
    sqlite3_stmt *statement = NULL;
    syncguard_status status = sg_sqlite_prepare(connection, which, &statement, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_finish(connection, statement, err);
    return status;
}

/* ---- transactions ---- */

syncguard_status sg_sqlite_begin(sg_sqlite_connection *connection, bool immediate,
                                 syncguard_error *err)
{
    /* ROLLBACK is prepared first, because that may fail for lack of memory, and a transaction that
     * cannot be ended would block the file for all processes. */
    sqlite3_stmt *rollback = NULL;
    syncguard_status status = sg_sqlite_prepare(connection, SG_SQLITE_ROLLBACK, &rollback, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_execute(connection,
                                   immediate ? SG_SQLITE_BEGIN_IMMEDIATE : SG_SQLITE_BEGIN, err);
    return status;
}

void sg_sqlite_rollback(sg_sqlite_connection *connection)
{
    if (sqlite3_get_autocommit(connection->db) == 0)
        (void)sg_sqlite_execute(connection, SG_SQLITE_ROLLBACK, NULL);
}
