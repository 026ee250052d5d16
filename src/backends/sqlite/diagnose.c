/*
 * Finds what would break the guarantees on this file, for `syncguard doctor`.
 *
 * The check of the file's structure reads all of it, so it runs on a connection of its own, and
 * stops at the limits. Nothing is changed.
 */
#include "operations.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "errors.h"
#include "file_system.h"

typedef struct diagnosis {
    sg_sqlite *sqlite;
    const syncguard_limits *limits;
    syncguard_findings to;
} diagnosis;

/* The folder of the file; "/" for the root. */
static void sqlite_folder_name(const diagnosis *self, char out[SG_SQLITE_PATH_SIZE])
{
    const char *path = self->sqlite->connection.path;
    size_t length = (size_t)(strrchr(path, '/') - path);
    snprintf(out, SG_SQLITE_PATH_SIZE, "%.*s", length == 0 ? 1 : (int)length, path);
}

static void sqlite_diagnose_file_system(const diagnosis *self)
{
    char folder[SG_SQLITE_PATH_SIZE], name[64];
    sg_sqlite_file_system_kind kind = SG_SQLITE_FILE_SYSTEM_LOCAL;
    sqlite_folder_name(self, folder);
    if (sg_sqlite_file_system_read(folder, &kind, name, sizeof name, NULL) != SYNCGUARD_OK)
        syncguard_report(&self->to, SYNCGUARD_BLOCK, "file_system", "the file system is unknown",
                         "if other machines share it, they do not see its locks",
                         "use a folder on a local disk");
    else if (kind == SG_SQLITE_FILE_SYSTEM_REMOTE)
        syncguard_report(&self->to, SYNCGUARD_BLOCK, "file_system", name,
                         "other machines may share it, and they do not see its locks",
                         "use a folder on a local disk, or a server for locks of many machines");
    else if (kind == SG_SQLITE_FILE_SYSTEM_MEMORY)
        syncguard_report(&self->to, SYNCGUARD_WARN, "file_system", name,
                         "it is in memory: a reboot deletes the file, and fences start again",
                         "use a folder on a disk, or accept it");
    else if (kind == SG_SQLITE_FILE_SYSTEM_ALIASED)
        syncguard_report(&self->to, SYNCGUARD_WARN, "file_system", name,
                         "the same file may have a second path or name, and programs that use it "
                         "there have other locks",
                         "use one path everywhere, in a container that of a mounted folder");
    else if (sg_sqlite_file_system_is_lower(folder))
        syncguard_report(&self->to, SYNCGUARD_WARN, "file_system", "a lower folder of an overlay",
                         "programs that use the file through the overlay have other locks",
                         "use a folder outside the overlay, and mount it where it is needed");
    else
        syncguard_report_fine(&self->to, "file_system", name);
}

/* Whether the URL says that a group shares the file. */
static bool sqlite_group_shares_file(const diagnosis *self)
{
    return (self->sqlite->mode & 0020) != 0;
}

/* Checks the mode of the file, which SQLite also gives to the files beside it. */
static void sqlite_diagnose_mode(const diagnosis *self, mode_t mode)
{
    char text[32];
    snprintf(text, sizeof text, "%04o", (unsigned)mode);
    if (sqlite_group_shares_file(self) && mode == self->sqlite->mode)
        syncguard_report_fine(&self->to, "mode", "0660, as the URL says: a group shares the locks");
    else if (sqlite_group_shares_file(self) && (mode & 0060) != 0060)
        syncguard_report(&self->to, SYNCGUARD_WARN, "mode", text,
                         "the URL says mode=0660, but the file exists and the group cannot use it",
                         "chmod 0660 and chgrp the file and the -wal, -shm and -wake files");
    else if ((mode & 0022) != 0)
        syncguard_report(&self->to, (mode & 0002) != 0 ? SYNCGUARD_BLOCK : SYNCGUARD_WARN, "mode",
                         text, "other users can free and forge locks",
                         "chmod 0600; mode=0660 in the URL says that a group shares the locks");
    else if ((mode & 0044) != 0)
        syncguard_report(&self->to, SYNCGUARD_WARN, "mode", text,
                         "other users can read keys and lock ids, which free locks", "chmod 0600");
    else
        syncguard_report_fine(&self->to, "mode", text);
}

/* A user who may write to the folder can replace the file, and then there are two sets of locks. */
static void sqlite_diagnose_folder(const diagnosis *self)
{
    char folder[SG_SQLITE_PATH_SIZE], text[64];
    struct stat about;
    sqlite_folder_name(self, folder);
    if (stat(folder, &about) != 0)
        return; /* sqlite_diagnose_file reports that the file is gone */
    mode_t mode = about.st_mode & 07777;
    bool foreign = about.st_uid != geteuid() && about.st_uid != 0;
    snprintf(text, sizeof text, "mode %04o%s", (unsigned)mode,
             foreign ? ", belongs to another user" : "");
    if (sqlite_group_shares_file(self) && (mode & 0002) == 0 && (mode & S_ISGID) == 0)
        syncguard_report(&self->to, SYNCGUARD_WARN, "folder", text,
                         "a new file belongs to the group of the user who creates it, and others "
                         "cannot use it",
                         "chgrp the folder to the group that shares the locks, and chmod 2770");
    else if (sqlite_group_shares_file(self) && (mode & 0002) == 0 && (mode & S_ISVTX) != 0)
        syncguard_report(&self->to, SYNCGUARD_WARN, "folder", text,
                         "it is sticky: with fs.protected_regular=2 only the creator of the files "
                         "can use them",
                         "chmod 2770 the folder");
    else if (sqlite_group_shares_file(self) && (mode & 0002) == 0)
        syncguard_report_fine(&self->to, "folder", text);
    else if (foreign || ((mode & 0022) != 0 && (mode & S_ISVTX) == 0))
        syncguard_report(&self->to, SYNCGUARD_WARN, "folder", text,
                         "others can replace the file: two holders at once become possible",
                         "use a folder of your own with mode 0700");
    else
        syncguard_report_fine(&self->to, "folder", text);
}

/* SQLite writes to the files beside the database, and creates them if they are missing. */
static void sqlite_diagnose_rights(const diagnosis *self)
{
    static const char *const SUFFIXES[] = {"", "-wal", "-shm", "-wake"};
    const char *path = self->sqlite->connection.path;
    char name[SG_SQLITE_BESIDE_SIZE], missing[80] = "";
    for (size_t i = 0; i < sizeof SUFFIXES / sizeof SUFFIXES[0]; i++) {
        size_t used = strlen(missing);
        snprintf(name, sizeof name, "%s%s", path, SUFFIXES[i]);
        if (faccessat(AT_FDCWD, name, R_OK | W_OK, AT_EACCESS) != 0 && errno != ENOENT)
            snprintf(missing + used, sizeof missing - used, "%s%s", used > 0 ? ", " : "",
                     i == 0 ? "the file" : SUFFIXES[i]);
    }
    snprintf(name, sizeof name, "%.*s", (int)(strrchr(path, '/') - path) + 1, path);
    if (faccessat(AT_FDCWD, name, W_OK | X_OK, AT_EACCESS) != 0) {
        size_t used = strlen(missing);
        snprintf(missing + used, sizeof missing - used, "%sthe folder", used > 0 ? ", " : "");
    }
    char text[120];
    snprintf(text, sizeof text, "this user may not write to %s", missing);
    if (missing[0] != '\0')
        syncguard_report(
            &self->to, SYNCGUARD_BLOCK, "permissions", text,
            "no lock can be acquired as soon as one of them has to be written or created",
            "change the owner or the mode, or run as the user that owns them");
    else
        syncguard_report_fine(&self->to, "permissions", "this user may write to all files");
}

/* A full disk is noticed late, because the files are reused and seldom grow. */
static void sqlite_diagnose_space(const diagnosis *self)
{
    char folder[SG_SQLITE_PATH_SIZE];
    sqlite_folder_name(self, folder);
    const char *shortage = sg_sqlite_file_system_shortage(folder);
    if (shortage != NULL)
        syncguard_report(&self->to, SYNCGUARD_BLOCK, "space", shortage,
                         "as soon as one of the files has to grow, no lock can be acquired or "
                         "renewed, and running jobs lose theirs",
                         "make space, raise the quota, or move the file to another file system");
    else
        syncguard_report_fine(&self->to, "space", "the files can grow");
}

static void sqlite_diagnose_file(const diagnosis *self)
{
    struct stat about;
    sqlite_diagnose_file_system(self);
    if (stat(self->sqlite->connection.path, &about) != 0) {
        syncguard_report(&self->to, SYNCGUARD_BLOCK, "file", "the file is gone",
                         "processes that have it open no longer exclude new ones",
                         "restart them; the next lock creates a new file");
        return;
    }
    sqlite_diagnose_mode(self, about.st_mode & 0777);
    sqlite_diagnose_folder(self);
    sqlite_diagnose_rights(self);
    sqlite_diagnose_space(self);
}

static syncguard_status sqlite_diagnose_fail_busy(const diagnosis *self, syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "SQLITE_BUSY",
                          "%s: busy, cannot be checked now", self->sqlite->connection.path);
}

static void sqlite_diagnose_clock(const diagnosis *self, const sg_sqlite_boot *boot)
{
    char text[160];
    if (boot->id[0] == '\0')
        syncguard_report(&self->to, SYNCGUARD_WARN, "boot_id",
                         "a file is mounted over the kernel's boot id, as some container runtimes "
                         "do",
                         "locks of an earlier boot may count until they expire",
                         "accept it, or keep locks short");
    if (boot->offset_ns != 0) {
        snprintf(text, sizeof text, "this time namespace is ahead by %llds; corrected",
                 (long long)(boot->offset_ns / (1000 * SYNCGUARD_NS_PER_MS)));
        syncguard_report_fine(&self->to, "boot_clock", text);
    }
}

static syncguard_status sqlite_diagnose_settings(const diagnosis *self, syncguard_error *err)
{
    if (self->sqlite->durable)
        syncguard_report_fine(&self->to, "durability",
                              "full: a grant is on the disk before it is reported");
    else
        syncguard_report(&self->to, SYNCGUARD_WARN, "durability", "normal",
                         "a crash of the machine may repeat the latest fences",
                         "use durability=full, or accept it");
    syncguard_status status = syncguard_gate_enter(&self->sqlite->gate, self->limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = sg_sqlite_attach(self->sqlite, err);
    bool failed = sg_sqlite_wal_failed(&self->sqlite->wal);
    sg_sqlite_boot boot = self->sqlite->boot;
    sg_sqlite_leave(self->sqlite);
    if (status == SG_SQLITE_BUSY)
        return sqlite_diagnose_fail_busy(self, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite_diagnose_clock(self, &boot);
    if (failed)
        syncguard_report(&self->to, SYNCGUARD_BLOCK, "disk", "the last sync failed",
                         "nothing is granted until a checkpoint succeeds",
                         "check the disk: it may be full or damaged");
    return SYNCGUARD_OK;
}

static int sqlite_limits_are_reached(void *context)
{
    return syncguard_limits_check(context, NULL) != SYNCGUARD_OK;
}

/* The fields that the operations need: see docs/adr on records that cannot be read. */
static const char DAMAGED[] =
    "SELECT count(*) FROM syncguard_locks WHERE typeof(key) <> 'text'"
    " OR length(CAST(key AS BLOB)) > 512 OR typeof(lock_id) <> 'text' OR length(lock_id) <> 22"
    " OR typeof(fence) <> 'text' OR length(fence) <> 15 OR fence GLOB '*[^0-9]*'"
    " OR typeof(expires_at_ms) <> 'integer' OR typeof(boot_id) <> 'text'"
    " OR typeof(boot_set_ms) <> 'integer' OR typeof(boot_expires_ms) <> 'integer'"
    " OR abs(boot_expires_ms) > 9007199254740991";

static int sqlite_diagnose_records(const diagnosis *self, sqlite3 *db)
{
    char count[24] = "";
    char text[96];
    int code = sg_sqlite_query(db, DAMAGED, count, sizeof count);
    if (code != SQLITE_OK || strcmp(count, "0") == 0)
        return code;
    snprintf(text, sizeof text, "%s stored locks cannot be read", count);
    syncguard_report(&self->to, SYNCGUARD_WARN, "records", text, "they may block their keys",
                     "repair or delete their rows");
    return code;
}

static void sqlite_diagnose_damage(const diagnosis *self)
{
    syncguard_report(&self->to, SYNCGUARD_BLOCK, "structure", "the database is damaged",
                     "locks and fences may be lost",
                     "stop all programs that use it, and restore the file or move it away");
}

static syncguard_status sqlite_diagnose_content(const diagnosis *self, sqlite3 *db,
                                                syncguard_error *err)
{
    char answer[64] = "";
    sqlite3_progress_handler(db, 10000, sqlite_limits_are_reached, (void *)self->limits);
    int code = sg_sqlite_query(db, "PRAGMA journal_mode", answer, sizeof answer);
    if (code == SQLITE_OK) {
        if (strcmp(answer, "wal") == 0)
            syncguard_report_fine(&self->to, "journal", answer);
        else
            syncguard_report(&self->to, SYNCGUARD_BLOCK, "journal", answer,
                             "grants are made durable through the write-ahead log",
                             "let no other program change journal_mode; open the file again");
        code = sg_sqlite_query(db, "PRAGMA quick_check(1)", answer, sizeof answer);
    }
    if (code == SQLITE_OK)
        code = sqlite_diagnose_records(self, db);
    if (code == SQLITE_INTERRUPT)
        return syncguard_limits_check(self->limits, err);
    if ((code & 0xff) == SQLITE_CORRUPT || (code & 0xff) == SQLITE_NOTADB) {
        sqlite_diagnose_damage(self);
        return SYNCGUARD_OK;
    }
    if (code != SQLITE_OK) {
        syncguard_status status = sg_sqlite_fail(db, self->sqlite->connection.path, code, err);
        return status == SG_SQLITE_BUSY ? sqlite_diagnose_fail_busy(self, err) : status;
    }
    if (strcmp(answer, "ok") == 0)
        syncguard_report_fine(&self->to, "structure", "whole");
    else
        sqlite_diagnose_damage(self);
    return SYNCGUARD_OK;
}

syncguard_status sg_sqlite_diagnose(syncguard_backend *backend, const syncguard_limits *limits,
                                    syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    diagnosis self = {sg_sqlite_of(backend), limits, {fn, context}};
    syncguard_status status = syncguard_limits_check(limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    sqlite_diagnose_file(&self);
    status = sqlite_diagnose_settings(&self, err);
    sqlite3 *db = NULL;
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_connect(self.sqlite->connection.path, &db, err);
    if (status == SYNCGUARD_OK)
        status = sqlite_diagnose_content(&self, db, err);
    if (db != NULL)
        sqlite3_close(db);
    return status;
}
