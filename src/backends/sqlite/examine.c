/*
 * What would break the promises on this file: for `syncguard doctor`.
 *
 * The check of the file's structure reads all of it, so it runs on a connection
 * of its own, and stops at the limits. Nothing is changed.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "internal.h"

typedef struct examination {
    sg_sqlite *sqlite;
    const syncguard_limits *limits;
    syncguard_finding_fn fn;
    void *context;
} examination;

static void tell(const examination *self, syncguard_severity severity, const char *topic,
                 const char *text)
{
    self->fn(self->context, severity, topic, text);
}

static void examine_place(const examination *self)
{
    char name[64];
    char text[160];
    bool local = false;
    struct stat about;
    if (sg_sqlite_file_system(self->sqlite->path, name, sizeof name, &local, NULL) !=
        SYNCGUARD_OK) {
        tell(self, SYNCGUARD_BLOCK, "file_system", "the file system cannot be told");
    } else {
        snprintf(text, sizeof text, "%s%s", name,
                 local ? "" : ": other machines may share it, locks do not reach them");
        tell(self, local ? SYNCGUARD_FINE : SYNCGUARD_BLOCK, "file_system", text);
    }
    if (stat(self->sqlite->path, &about) != 0) {
        tell(self, SYNCGUARD_BLOCK, "file", "the file is gone");
        return;
    }
    mode_t mode = about.st_mode & 0777;
    snprintf(text, sizeof text, "mode %04o%s", (unsigned)mode,
             mode & 0022   ? ": others may write, and so free or forge locks"
             : mode & 0044 ? ": others may read keys and lock ids"
                           : "");
    tell(self,
         mode & 0002   ? SYNCGUARD_BLOCK
         : mode & 0066 ? SYNCGUARD_WARN
                       : SYNCGUARD_FINE,
         "mode", text);
}

static syncguard_status fail_busy(const examination *self, syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "SQLITE_BUSY",
                          "%s: busy, cannot be examined now", self->sqlite->path);
}

static void examine_clock(const examination *self, const sg_boot *boot)
{
    char text[160];
    if (boot->id[0] == '\0')
        tell(self, SYNCGUARD_WARN, "boot_id",
             "a file is mounted over the kernel's boot id, as some container runtimes do: locks of "
             "an earlier boot may count until they expire");
    if (boot->offset_ns != 0) {
        snprintf(text, sizeof text, "this time namespace is ahead by %lld s; corrected",
                 (long long)(boot->offset_ns / (1000 * SYNCGUARD_NS_PER_MS)));
        tell(self, SYNCGUARD_FINE, "boot_clock", text);
    }
}

static syncguard_status examine_settings(const examination *self, syncguard_error *err)
{
    tell(self, self->sqlite->durable ? SYNCGUARD_FINE : SYNCGUARD_WARN, "durability",
         self->sqlite->durable ? "full: a grant is on the disk before it is told"
                               : "normal: a crash of the machine may repeat the latest fences");
    syncguard_status status = syncguard_gate_enter(&self->sqlite->gate, self->limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = sg_sqlite_ready(self->sqlite, err);
    bool sick = atomic_load(&self->sqlite->sync.failures) != self->sqlite->healed;
    sg_boot boot = self->sqlite->boot;
    syncguard_gate_leave(&self->sqlite->gate);
    if (status == SG_SQLITE_BUSY)
        return fail_busy(self, err);
    if (status != SYNCGUARD_OK)
        return status;
    examine_clock(self, &boot);
    if (sick)
        tell(self, SYNCGUARD_BLOCK, "disk", "the last sync failed; no grants until a checkpoint");
    return SYNCGUARD_OK;
}

static int out_of_time(void *context)
{
    return syncguard_limits_check(context, NULL) != SYNCGUARD_OK;
}

/* Reads the first word of the answer of a pragma. */
static int ask_text(sqlite3 *db, const char *sql, char *out, size_t size)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
    if (code == SQLITE_OK && sqlite3_step(statement) == SQLITE_ROW) {
        const unsigned char *text = sqlite3_column_text(statement, 0);
        snprintf(out, size, "%s", text == NULL ? "" : (const char *)text);
    }
    int end = sqlite3_finalize(statement);
    return code == SQLITE_OK ? end : code;
}

/* The fields that the operations need: see docs/adr on records that cannot be read. */
static const char DAMAGED[] =
    "SELECT count(*) FROM syncguard_locks WHERE typeof(key) <> 'text'"
    " OR length(CAST(key AS BLOB)) > 512 OR typeof(lock_id) <> 'text' OR length(lock_id) <> 22"
    " OR typeof(fence) <> 'text' OR length(fence) <> 15 OR fence GLOB '*[^0-9]*'"
    " OR typeof(expires_at_ms) <> 'integer' OR typeof(boot_id) <> 'text'"
    " OR typeof(boot_set_ms) <> 'integer' OR typeof(boot_expires_ms) <> 'integer'"
    " OR abs(boot_expires_ms) > 9007199254740991";

static int examine_records(const examination *self, sqlite3 *db)
{
    char count[24] = "";
    char text[96];
    int code = ask_text(db, DAMAGED, count, sizeof count);
    if (code != SQLITE_OK || strcmp(count, "0") == 0)
        return code;
    snprintf(text, sizeof text, "%s stored locks cannot be read: repair or delete them", count);
    tell(self, SYNCGUARD_WARN, "records", text);
    return code;
}

static syncguard_status examine_content(const examination *self, sqlite3 *db, syncguard_error *err)
{
    char answer[64] = "";
    sqlite3_progress_handler(db, 10000, out_of_time, (void *)self->limits);
    int code = ask_text(db, "PRAGMA journal_mode", answer, sizeof answer);
    if (code == SQLITE_OK) {
        bool wal = strcmp(answer, "wal") == 0;
        tell(self, wal ? SYNCGUARD_FINE : SYNCGUARD_BLOCK, "journal", answer);
        code = ask_text(db, "PRAGMA quick_check(1)", answer, sizeof answer);
    }
    if (code == SQLITE_OK)
        code = examine_records(self, db);
    if (code == SQLITE_INTERRUPT)
        return syncguard_limits_check(self->limits, err);
    if ((code & 0xff) == SQLITE_CORRUPT || (code & 0xff) == SQLITE_NOTADB) {
        tell(self, SYNCGUARD_BLOCK, "structure", "the database is damaged");
        return SYNCGUARD_OK;
    }
    if (code != SQLITE_OK) {
        syncguard_status status = sg_sqlite_fail(db, self->sqlite->path, code, err);
        return status == SG_SQLITE_BUSY ? fail_busy(self, err) : status;
    }
    bool whole = strcmp(answer, "ok") == 0;
    tell(self, whole ? SYNCGUARD_FINE : SYNCGUARD_BLOCK, "structure",
         whole ? "whole" : "the database is damaged");
    return SYNCGUARD_OK;
}

syncguard_status sg_sqlite_examine(syncguard_backend *backend, const syncguard_limits *limits,
                                   syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    examination self = {sg_sqlite_of(backend), limits, fn, context};
    sqlite3 *db = NULL;
    syncguard_status status = sg_sqlite_same_process(self.sqlite, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_limits_check(limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    examine_place(&self);
    status = examine_settings(&self, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_connect(self.sqlite->path, &db, err);
    if (status == SYNCGUARD_OK)
        status = examine_content(&self, db, err);
    if (db != NULL)
        sqlite3_close(db);
    return status;
}
