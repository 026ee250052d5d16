/*
 * What the file contains, and how it is told from files of others.
 *
 * The first 100 bytes decide before anything could change the file: they are
 * read through SQLite's own descriptor, without a lock and without opening a
 * journal. Only an empty file is given tables, in one transaction; only a file
 * with our application id is switched to WAL.
 */
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define TEXT_OF(x) TEXT_OF_(x)
#define TEXT_OF_(x) #x

/*
 * The layout that PostgreSQL has, with user_key computed (no prefix, no name
 * long enough to be hashed: it is always the key), plus owner and the boot
 * clock's fields. No index on expires_at_ms: nothing searches by it, and it
 * would cost a page per write.
 */
static const char SCHEMA[] =
    "CREATE TABLE syncguard_locks("
    " key TEXT NOT NULL PRIMARY KEY,"
    " lock_id TEXT NOT NULL UNIQUE,"
    " expires_at_ms INTEGER NOT NULL,"
    " acquired_at_ms INTEGER NOT NULL,"
    " fence TEXT NOT NULL,"
    " owner TEXT NOT NULL DEFAULT '',"
    " boot_id TEXT NOT NULL,"
    " boot_expires_ms INTEGER NOT NULL,"
    " boot_set_ms INTEGER NOT NULL DEFAULT 0,"
    " user_key TEXT NOT NULL GENERATED ALWAYS AS (key) VIRTUAL"
    ") WITHOUT ROWID;"
    "CREATE TABLE syncguard_fence_counters("
    " fence_key TEXT NOT NULL PRIMARY KEY,"
    " fence INTEGER NOT NULL DEFAULT 0,"
    " key_debug TEXT"
    ") WITHOUT ROWID;"
    "PRAGMA application_id=" TEXT_OF(SG_SQLITE_APPLICATION_ID) ";"
                                                               "PRAGMA user_version=" TEXT_OF(
                                                                   SG_SQLITE_LAYOUT) ";"
                                                                                     "COMMIT";

typedef enum file_kind { FILE_EMPTY, FILE_OURS, FILE_OURS_NOT_WAL } file_kind;

static uint32_t big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static syncguard_status foreign(const char *path, syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, "SQLITE_NOTADB",
                          "%s: is not a SyncGuard database; left untouched", path);
}

/* Numbers at 60 and 68: user_version, application_id; 18: 2 in WAL mode. */
static syncguard_status judge_header(const unsigned char *header, const char *path, file_kind *kind,
                                     syncguard_error *err)
{
    if (memcmp(header, "SQLite format 3", 16) != 0 ||
        big_endian(header + 68) != SG_SQLITE_APPLICATION_ID)
        return foreign(path, err);
    uint32_t layout = big_endian(header + 60);
    if (layout != SG_SQLITE_LAYOUT && layout != SG_SQLITE_LAYOUT - 1)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "%s: has layout %u, this library knows %d", path, (unsigned)layout,
                              SG_SQLITE_LAYOUT);
    *kind = header[18] == 2 ? FILE_OURS : FILE_OURS_NOT_WAL;
    return SYNCGUARD_OK;
}

static syncguard_status read_header(sqlite3 *db, const char *path, file_kind *kind,
                                    syncguard_error *err)
{
    unsigned char header[SG_SQLITE_HEADER_BYTES];
    sqlite3_file *file = NULL;
    sqlite3_int64 size = 0;
    int code = sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file);
    if (code == SQLITE_OK && (file == NULL || file->pMethods == NULL))
        code = SQLITE_CANTOPEN;
    if (code == SQLITE_OK)
        code = file->pMethods->xFileSize(file, &size);
    if (code != SQLITE_OK)
        return sg_sqlite_fail(db, path, code, err);
    if (size == 0) {
        *kind = FILE_EMPTY;
        return SYNCGUARD_OK;
    }
    if (size < SG_SQLITE_HEADER_BYTES)
        return foreign(path, err);
    code = file->pMethods->xRead(file, header, SG_SQLITE_HEADER_BYTES, 0);
    if (code != SQLITE_OK)
        return sg_sqlite_fail(db, path, code, err);
    return judge_header(header, path, kind, err);
}

/* Runs SQL that answers one integer. */
static int ask(sqlite3 *db, const char *sql, int64_t *answer)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
    if (code == SQLITE_OK && sqlite3_step(statement) == SQLITE_ROW)
        *answer = sqlite3_column_int64(statement, 0);
    int end = sqlite3_finalize(statement);
    return code == SQLITE_OK ? end : code;
}

/* Layout 1 did not say when a row was set. 0 is before any boot clock: such rows count. */
static const char UPGRADE[] = "ALTER TABLE syncguard_locks"
                              " ADD COLUMN boot_set_ms INTEGER NOT NULL DEFAULT 0;"
                              "PRAGMA user_version=" TEXT_OF(SG_SQLITE_LAYOUT) ";"
                                                                               "COMMIT";

/* Creates the tables, or brings them up to date, unless somebody else was faster. */
static syncguard_status fill_once(sqlite3 *db, const char *path, syncguard_error *err)
{
    int64_t tables = 0;
    int64_t application = 0;
    int64_t layout = 0;
    int code = sqlite3_exec(db, "PRAGMA page_size=2048; BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (code == SQLITE_OK)
        code = ask(db, "SELECT count(*) FROM sqlite_master", &tables);
    if (code == SQLITE_OK)
        code = ask(db, "PRAGMA application_id", &application);
    if (code == SQLITE_OK)
        code = ask(db, "PRAGMA user_version", &layout);
    bool empty = tables == 0 && application == 0;
    if (code == SQLITE_OK && !empty && application != SG_SQLITE_APPLICATION_ID)
        return foreign(path, err);
    if (code == SQLITE_OK && (empty || layout == SG_SQLITE_LAYOUT - 1))
        code = sqlite3_exec(db, empty ? SCHEMA : UPGRADE, NULL, NULL, NULL);
    return code == SQLITE_OK ? SYNCGUARD_OK : sg_sqlite_fail(db, path, code, err);
}

/* Needs the file alone for a moment, so it is busy while others create or read it. */
static syncguard_status switch_to_wal(sqlite3 *db, const char *path, syncguard_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool is_wal = false;
    int code = sqlite3_prepare_v2(db, "PRAGMA journal_mode=WAL", -1, &statement, NULL);
    if (code == SQLITE_OK && sqlite3_step(statement) == SQLITE_ROW) {
        const unsigned char *mode = sqlite3_column_text(statement, 0);
        is_wal = mode != NULL && strcmp((const char *)mode, "wal") == 0;
    }
    int end = sqlite3_finalize(statement);
    if (code == SQLITE_OK)
        code = end;
    if (code != SQLITE_OK)
        return sg_sqlite_fail(db, path, code, err);
    return is_wal ? SYNCGUARD_OK : SG_SQLITE_BUSY;
}

/* Opening SQL text proves that the tables are there and have the columns. */
static int probe(sqlite3 *db)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(db,
                                  "SELECT l.key, l.lock_id, l.expires_at_ms, l.acquired_at_ms,"
                                  " l.fence, l.owner, l.boot_id, l.boot_set_ms,"
                                  " l.boot_expires_ms, c.fence"
                                  " FROM syncguard_locks l, syncguard_fence_counters c",
                                  -1, &statement, NULL);
    sqlite3_finalize(statement);
    return code;
}

static syncguard_status set_up(sqlite3 *db, const char *path, file_kind kind, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    int code = kind == FILE_EMPTY ? SQLITE_ERROR : probe(db);
    if (code == SQLITE_ERROR) {
        /* Empty, of the layout before, or its making was cut short and has just been rolled
         * back. */
        status = fill_once(db, path, err);
        if (status == SYNCGUARD_OK && sqlite3_get_autocommit(db) == 0)
            (void)sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
        if (status != SYNCGUARD_OK)
            return status;
        if (kind == FILE_EMPTY)
            kind = FILE_OURS_NOT_WAL;
        code = probe(db);
        if (code == SQLITE_ERROR)
            return foreign(path, err);
    }
    if (code != SQLITE_OK)
        return sg_sqlite_fail(db, path, code, err);
    return kind == FILE_OURS ? SYNCGUARD_OK : switch_to_wal(db, path, err);
}

/* The switch to WAL needs the file alone, so those who make it come one after the other: many at
 * once would keep each other from it. */
static syncguard_status make_alone(sqlite3 *db, const char *path, syncguard_error *err)
{
    file_kind kind = FILE_EMPTY;
    int lock = -1;
    syncguard_status status = sg_sqlite_lock_folder(path, &lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = read_header(db, path, &kind, err); /* somebody may have been faster */
    if (status == SYNCGUARD_OK)
        status = set_up(db, path, kind, err);
    if (sqlite3_get_autocommit(db) == 0)
        (void)sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    close(lock);
    return status;
}

syncguard_status sg_sqlite_recognise(sqlite3 *db, const char *path, syncguard_error *err)
{
    file_kind kind = FILE_EMPTY;
    syncguard_status status = read_header(db, path, &kind, err);
    if (status == SYNCGUARD_OK)
        status = kind == FILE_OURS ? set_up(db, path, kind, err) : make_alone(db, path, err);
    if (sqlite3_get_autocommit(db) == 0)
        (void)sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}
