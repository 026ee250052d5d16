/*
 * Connects a handle to its files, and notices that they were removed or replaced.
 *
 * A database that is removed or replaced still works for a process that has it open, while other
 * processes acquire the same locks in the new one. So device and inode of the database, its -wal
 * and its -shm file are noted, and compared before an operation, every few milliseconds at most. If
 * they differ, the connection is closed and a new one is made to the files that are at the paths
 * then: waiters continue there, and a holder's lock is not found.
 *
 * A user who removes files by hand removes them one by one, so a new connection is made only some
 * time after the removal was noticed.
 *
 * SQLite shares the mapping of -shm between the connections of a process by the inode of the
 * database, and truncates that file if no other process has it locked. So nothing is connected
 * while another handle of this process still has earlier files of the same paths. `attached` lists
 * the handles; `list_mutex` guards it.
 *
 * All functions are called inside the gate. Locking order: gate, list_mutex.
 */
#include "backend.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "errors.h"
#include "schema.h"

#define CHECK_EVERY_NS (10 * SYNCGUARD_NS_PER_MS)
#define REATTACH_AFTER_NS (1000 * SYNCGUARD_NS_PER_MS)
/* When the database is older than this, all files of a group exist and have their mode. */
#define CREATION_S 2

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static sg_sqlite *attached;

/* ---- which files they are ---- */

static bool identity_is_same(syncguard_fd_identity a, syncguard_fd_identity b)
{
    return a.known && b.known && a.device == b.device && a.inode == b.inode;
}

static sg_sqlite_files files_identify(const sg_sqlite *sqlite)
{
    sg_sqlite_files files = {sg_sqlite_file_identify(sqlite->connection.path),
                             sg_sqlite_file_identify(sqlite->wal.path),
                             sg_sqlite_file_identify(sqlite->shm_path)};
    return files;
}

static bool files_are_same(const sg_sqlite_files *a, const sg_sqlite_files *b)
{
    return identity_is_same(a->database, b->database) && identity_is_same(a->wal, b->wal) &&
           identity_is_same(a->shm, b->shm);
}

bool sg_sqlite_in_place(const sg_sqlite *sqlite)
{
    sg_sqlite_files now = files_identify(sqlite);
    return files_are_same(&sqlite->files, &now);
}

/* ---- the list of attached handles ---- */

static void attached_add(sg_sqlite *sqlite)
{
    pthread_mutex_lock(&list_mutex);
    sqlite->next = attached;
    attached = sqlite;
    pthread_mutex_unlock(&list_mutex);
}

static void attached_remove(const sg_sqlite *sqlite)
{
    pthread_mutex_lock(&list_mutex);
    sg_sqlite **link = &attached;
    while (*link != NULL && *link != sqlite)
        link = &(*link)->next;
    if (*link != NULL)
        *link = sqlite->next;
    pthread_mutex_unlock(&list_mutex);
}

/* Whether another handle has earlier files of these paths. The caller holds list_mutex. */
static bool attached_others_are_stale(const sg_sqlite *sqlite, const sg_sqlite_files *now)
{
    for (const sg_sqlite *other = attached; other != NULL; other = other->next) {
        if (strcmp(other->connection.path, sqlite->connection.path) == 0 &&
            !files_are_same(&other->files, now))
            return true;
    }
    return false;
}

/* ---- attaching ---- */

/* NORMAL: see wal.h. The cache bounds memory; deleted content need not be wiped. */
static const char SETTINGS[] = "PRAGMA synchronous=NORMAL;"
                               "PRAGMA cache_size=-16384;"
                               "PRAGMA secure_delete=OFF;"
                               "PRAGMA journal_size_limit=16777216";

static syncguard_status attach_fail_replaced(const sg_sqlite *sqlite, const char *what,
                                             syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "SQLITE_READONLY_DBMOVED",
                          "%s: was %s", sqlite->connection.path, what);
}

/* Opens the file at the path without reading it. */
static syncguard_status attach_open_database(sg_sqlite *sqlite, syncguard_error *err)
{
    const char *path = sqlite->connection.path;
    pthread_mutex_lock(&list_mutex);
    syncguard_status status = sg_sqlite_file_prepare(path, sqlite->mode, err);
    sg_sqlite_files now = files_identify(sqlite);
    if (status == SYNCGUARD_OK && attached_others_are_stale(sqlite, &now))
        status =
            attach_fail_replaced(sqlite,
                                 "removed or replaced, and another handle of this process has not "
                                 "noticed yet",
                                 err);
    /* SQLite would take the content of the old -wal and -shm files for part of the new database. */
    if (status == SYNCGUARD_OK && sqlite->old_shm >= 0 &&
        identity_is_same(now.shm, sqlite->files.shm))
        status =
            attach_fail_replaced(sqlite,
                                 "replaced, but not its -wal and -shm files; stop what uses it and "
                                 "remove those",
                                 err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_connect(path, &sqlite->connection.db, err);
    pthread_mutex_unlock(&list_mutex);
    return status;
}

/* Busy if the files have been replaced meanwhile. */
static syncguard_status attach_identify_files(sg_sqlite *sqlite)
{
    int moved = 0;
    sqlite->files = files_identify(sqlite);
    int code = sqlite3_file_control(sqlite->connection.db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    return code == SQLITE_OK && moved == 0 && sqlite->files.database.known &&
                   sqlite->files.wal.known && sqlite->files.shm.known
               ? SYNCGUARD_OK
               : SG_SQLITE_BUSY;
}

/* Whether another user of the group may be creating the files right now. */
static bool attach_group_file_is_new(const sg_sqlite *sqlite)
{
    struct stat about;
    if ((sqlite->mode & 0060) == 0 || lstat(sqlite->connection.path, &about) != 0)
        return false;
    time_t age = time(NULL) - about.st_ctime; /* -1: the clocks' ticks differ */
    return age >= -1 && age <= CREATION_S;
}

/* A file that was private when SQLite opened it to write may have been opened to read only. */
static syncguard_status attach_check_writable(const sg_sqlite *sqlite, syncguard_error *err)
{
    sqlite3 *db = sqlite->connection.db;
    int code = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (code != SQLITE_OK)
        return sg_sqlite_fail(db, sqlite->connection.path, code, err);
    code = sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    return code == SQLITE_OK ? SYNCGUARD_OK
                             : sg_sqlite_fail(db, sqlite->connection.path, code, err);
}

static syncguard_status attach_set_up_connection(sg_sqlite *sqlite, syncguard_error *err)
{
    sqlite3 *db = sqlite->connection.db;
    const char *path = sqlite->connection.path;
    syncguard_status status = sg_sqlite_schema_open(db, path, err);
    if (status != SYNCGUARD_OK)
        return status;
    int code = sqlite3_exec(db, SETTINGS, NULL, NULL, NULL);
    if (code != SQLITE_OK)
        return sg_sqlite_fail(db, path, code, err);
    status = attach_identify_files(sqlite);
    if (status == SYNCGUARD_OK && attach_group_file_is_new(sqlite))
        status = attach_check_writable(sqlite, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_notify_open(&sqlite->notify, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_wal_open(&sqlite->wal, db, sqlite->durable, sqlite->files.wal, err);
    return status;
}

static void attach_close_old_shm(sg_sqlite *sqlite)
{
    if (sqlite->old_shm >= 0)
        close(sqlite->old_shm);
    sqlite->old_shm = -1;
}

/* Files of a group are private for a moment after their creation. The result is busy meanwhile. */
static syncguard_status attach_connect(sg_sqlite *sqlite, syncguard_error *err)
{
    syncguard_error refusal;
    syncguard_error_clear(&refusal);
    syncguard_status status = attach_open_database(sqlite, &refusal);
    if (status == SYNCGUARD_OK)
        status = attach_set_up_connection(sqlite, &refusal);
    bool passing =
        status == SYNCGUARD_E_AUTH_FAILED || strcmp(refusal.native, "SQLITE_READONLY") == 0;
    if (passing && attach_group_file_is_new(sqlite))
        return SG_SQLITE_BUSY;
    if (status != SYNCGUARD_OK && err != NULL)
        *err = refusal;
    return status;
}

static syncguard_status attach_files(sg_sqlite *sqlite, syncguard_error *err)
{
    sg_sqlite_files before = sqlite->files;
    syncguard_status status = attach_connect(sqlite, err);
    if (status != SYNCGUARD_OK) {
        sg_sqlite_disconnect(&sqlite->connection);
        sqlite->files = before; /* the next attempt recognizes old_shm by it */
        return status;
    }
    sqlite->attached = true;
    attach_close_old_shm(sqlite);
    attached_add(sqlite);
    return SYNCGUARD_OK;
}

/* ---- detaching ---- */

/* Keeps the inode number of the -shm file in use, so that the file can be recognized after the
 * connection is closed. Closing an O_PATH descriptor drops no POSIX locks. */
static int attach_keep_shm(const sg_sqlite *sqlite)
{
#ifdef O_PATH
    int fd = open(sqlite->shm_path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && !syncguard_fd_same(fd, sqlite->files.shm)) {
        close(fd);
        fd = -1;
    }
#else
    (void)sqlite;
#endif
    return fd;
}

void sg_sqlite_detach(sg_sqlite *sqlite)
{
    if (sqlite->attached)
        attached_remove(sqlite);
    sqlite->attached = false;
    sg_sqlite_disconnect(&sqlite->connection);
    sg_sqlite_wal_close(&sqlite->wal);
    attach_close_old_shm(sqlite);
}

/* Makes no checkpoint, which would write to files that are no longer ours. */
static void detach_replaced(sg_sqlite *sqlite)
{
    const char *path = sqlite->connection.path;
    sqlite->was_replaced = true;
    bool replaced = !identity_is_same(sg_sqlite_file_identify(path), sqlite->files.database);
    int kept = replaced ? attach_keep_shm(sqlite) : -1;
    sg_sqlite_detach(sqlite);
    sqlite->old_shm = kept;
}

syncguard_status sg_sqlite_attach(sg_sqlite *sqlite, syncguard_error *err)
{
    int64_t now_ns = syncguard_clock_ns();
    bool changed = atomic_exchange(&sqlite->notify.files_changed, false);
    if (sqlite->attached && !changed && now_ns >= sqlite->checked_ns &&
        now_ns - sqlite->checked_ns < CHECK_EVERY_NS)
        return SYNCGUARD_OK;
    syncguard_status status = SYNCGUARD_OK;
    if (sg_sqlite_boot_changed(&sqlite->boot)) {
        status = sg_sqlite_boot_read(&sqlite->boot, err);
        if (status != SYNCGUARD_OK)
            return status;
        sqlite->lost_ns = 0; /* it was a time of the other clock */
    }
    if (sqlite->attached && !sg_sqlite_in_place(sqlite)) {
        detach_replaced(sqlite);
        sqlite->lost_ns = now_ns;
    }
    if (!sqlite->attached && sqlite->lost_ns != 0 && now_ns - sqlite->lost_ns < REATTACH_AFTER_NS)
        return SG_SQLITE_BUSY;
    if (!sqlite->attached)
        status = attach_files(sqlite, err);
    else if (!sg_sqlite_notify_in_place(&sqlite->notify))
        status = sg_sqlite_notify_open(&sqlite->notify, err);
    if (status == SYNCGUARD_OK && sqlite->lost_ns != 0)
        sqlite->reconnected = true;
    if (status == SYNCGUARD_OK) {
        sqlite->checked_ns = now_ns;
        sqlite->lost_ns = 0;
    }
    return status;
}

void sg_sqlite_leave(sg_sqlite *sqlite)
{
    bool was_replaced = sqlite->was_replaced;
    bool reconnected = sqlite->reconnected;
    sqlite->was_replaced = sqlite->reconnected = false;
    syncguard_gate_leave(&sqlite->gate);
    if (was_replaced)
        syncguard_backend_log(&sqlite->base, SYNCGUARD_LOG_WARN,
                              "%s: was removed or replaced while it was open; its locks are lost",
                              sqlite->connection.path);
    if (reconnected)
        syncguard_backend_reconnected(&sqlite->base);
}
