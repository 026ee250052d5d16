/*
 * See schema.h.
 *
 * The first 100 bytes are checked before anything could change the file. They are read through
 * SQLite's own descriptor, without a lock and without opening a journal. Only an empty file is
 * given tables, in one transaction; only a file with our application id is switched to WAL.
 */
#include "schema.h"

#include <string.h>
#include <unistd.h>

#include "connection.h"
#include "errors.h"
#include "syncguard/sys/fail.h"

/* "SGLK" in the header of the file; the version counts incompatible layouts. */
#define APPLICATION_ID 0x53474c4b
#define LAYOUT 2

#define TEXT_OF(x) TEXT_OF_(x)
#define TEXT_OF_(x) #x

#define SET_LAYOUT                                                                                 \
    "PRAGMA application_id=" TEXT_OF(APPLICATION_ID) "; PRAGMA user_version=" TEXT_OF(LAYOUT) ";"

/*
 * The layout of PostgreSQL, with user_key computed (it is always the key: there is
 * no prefix, and no name is long enough to be hashed), plus owner and the fields
 * of the boot clock. No index on expires_at_ms: nothing searches by it, and it
 * would cost a page per write.
 */
static const char SCHEMA[] = "CREATE TABLE syncguard_locks("
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
                             ") WITHOUT ROWID;" SET_LAYOUT "COMMIT";

/* Layout 1 did not say when a row was set. 0 is before any boot clock: such rows count. */
static const char UPGRADE[] =
    "ALTER TABLE syncguard_locks"
    " ADD COLUMN boot_set_ms INTEGER NOT NULL DEFAULT 0;" SET_LAYOUT "COMMIT";

typedef enum file_kind { FILE_EMPTY, FILE_OURS, FILE_OURS_NOT_WAL } file_kind;

static uint32_t sqlite_header_number(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static syncguard_status sqlite_schema_fail_foreign(const char *path, syncguard_error *err)
{
    return sg_sqlite_fail(NULL, path, SQLITE_NOTADB, err);
}

/* The numbers at 60 and 68 are user_version and application_id; byte 18 is 2 in WAL mode. */
static syncguard_status sqlite_header_check(const unsigned char *header, const char *path,
                                            file_kind *kind, syncguard_error *err)
{
    if (memcmp(header, "SQLite format 3", 16) != 0 ||
        sqlite_header_number(header + 68) != APPLICATION_ID)
        return sqlite_schema_fail_foreign(path, err);
    uint32_t layout = sqlite_header_number(header + 60);
    if (layout != LAYOUT && layout != LAYOUT - 1)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "%s: has layout %u, this library knows %d", path, (unsigned)layout,
                              LAYOUT);
    *kind = header[18] == 2 ? FILE_OURS : FILE_OURS_NOT_WAL;
    return SYNCGUARD_OK;
}

static syncguard_status sqlite_header_read(sqlite3 *db, const char *path, file_kind *kind,
                                           syncguard_error *err)
{
    sqlite3_file *file = NULL;
    sqlite3_int64 size = 0;
    int code = sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file);
    if (code == SQLITE_OK && (file == NULL || file->pMethods == NULL))
        code = SQLITE_CANTOPEN;
    if (code == SQLITE_OK)
        code = file->pMethods->xFileSize(file, &size);
    if (code == SQLITE_OK && size == 0) {
        *kind = FILE_EMPTY;
        return SYNCGUARD_OK;
    }
    unsigned char header[SG_SQLITE_HEADER_BYTES];
    if (code == SQLITE_OK)
        code = file->pMethods->xRead(file, header, SG_SQLITE_HEADER_BYTES, 0);
    return code == SQLITE_OK ? sqlite_header_check(header, path, kind, err)
                             : sg_sqlite_fail(db, path, code, err);
}

/* The layout of our database, or whether the database is empty or foreign. */
#define CLASSIFY                                                                                   \
    "SELECT CASE WHEN application_id = " TEXT_OF(                                                  \
        APPLICATION_ID) " THEN user_version WHEN application_id = 0 AND NOT EXISTS (SELECT 1 "     \
                        "FROM sqlite_master)"                                                      \
                        " THEN 'empty' ELSE 'foreign' END FROM pragma_application_id, "            \
                        "pragma_user_version"

/* Creates the tables, or upgrades them, unless another process was faster. Leaves the transaction
 * open on failure. */
static syncguard_status sqlite_tables_create(sqlite3 *db, const char *path, syncguard_error *err)
{
    char layout[16] = "";
    const char *sql = "ROLLBACK"; /* another process was faster */
    int code = sqlite3_exec(db, "PRAGMA page_size=2048; BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (code == SQLITE_OK)
        code = sg_sqlite_query(db, CLASSIFY, layout, sizeof layout);
    if (strcmp(layout, "foreign") == 0)
        return sqlite_schema_fail_foreign(path, err);
    if (strcmp(layout, "empty") == 0)
        sql = SCHEMA;
    else if (strcmp(layout, "1") == 0)
        sql = UPGRADE;
    if (code == SQLITE_OK)
        code = sqlite3_exec(db, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? SYNCGUARD_OK : sg_sqlite_fail(db, path, code, err);
}

/* Needs exclusive use of the file for a moment, so it is busy while others create or read the
 * file. */
static syncguard_status sqlite_schema_switch_to_wal(sqlite3 *db, const char *path,
                                                    syncguard_error *err)
{
    char mode[16];
    int code = sg_sqlite_query(db, "PRAGMA journal_mode=WAL", mode, sizeof mode);
    if (code != SQLITE_OK)
        return sg_sqlite_fail(db, path, code, err);
    return strcmp(mode, "wal") == 0 ? SYNCGUARD_OK : SG_SQLITE_BUSY;
}

/* A statement can be prepared only if its tables and columns exist. */
static int sqlite_tables_check(sqlite3 *db)
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

static syncguard_status sqlite_schema_set_up(sqlite3 *db, const char *path, file_kind kind,
                                             syncguard_error *err)
{
    int code = kind == FILE_EMPTY ? SQLITE_ERROR : sqlite_tables_check(db);
    if (code == SQLITE_ERROR) {
        /* The file is empty, has the layout before this one, or its creation was interrupted and
         * has just been rolled back. */
        syncguard_status status = sqlite_tables_create(db, path, err);
        if (status == SYNCGUARD_OK)
            status = sg_sqlite_file_check_again(path, err);
        if (status != SYNCGUARD_OK)
            return status;
        if (kind == FILE_EMPTY)
            kind = FILE_OURS_NOT_WAL;
        code = sqlite_tables_check(db);
        if (code == SQLITE_ERROR)
            return sqlite_schema_fail_foreign(path, err);
    }
    if (code != SQLITE_OK)
        return sg_sqlite_fail(db, path, code, err);
    return kind == FILE_OURS ? SYNCGUARD_OK : sqlite_schema_switch_to_wal(db, path, err);
}

/* The switch to WAL needs exclusive use of the file, so processes that create the file do so one
 * after the other: many at once would keep each other from the switch. */
static syncguard_status sqlite_schema_set_up_alone(sqlite3 *db, const char *path,
                                                   syncguard_error *err)
{
    file_kind kind = FILE_EMPTY;
    int lock = -1;
    syncguard_status status = sg_sqlite_file_lock_folder(path, &lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = sqlite_header_read(db, path, &kind, err); /* another process may have been faster */
    if (status == SYNCGUARD_OK)
        status = sqlite_schema_set_up(db, path, kind, err);
    close(lock);
    return status;
}

syncguard_status sg_sqlite_schema_open(sqlite3 *db, const char *path, syncguard_error *err)
{
    file_kind kind = FILE_EMPTY;
    syncguard_status status = sqlite_header_read(db, path, &kind, err);
    if (status == SYNCGUARD_OK)
        status = kind == FILE_OURS ? sqlite_schema_set_up(db, path, kind, err)
                                   : sqlite_schema_set_up_alone(db, path, err);
    if (sqlite3_get_autocommit(db) == 0)
        (void)sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}
