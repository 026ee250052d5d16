/*
 * The files behind a handle: connecting to them, and noticing that they are no
 * longer the ones at their paths.
 *
 * A database that somebody removes or replaces goes on working for whoever has it
 * open, while others take the same locks in the new one. So device and inode of
 * the database, its -wal and its -shm file are noted, and compared before an
 * operation, every few milliseconds at most. Where they differ the connection is
 * given up and made anew, with whatever is at the paths then: waiters go on
 * there, and a holder's lock is not found.
 *
 * Whoever removes files by hand removes them one by one, so a new connection is
 * made only some time after the loss was noticed.
 *
 * SQLite shares the mapping of -shm between the connections of a process by the
 * database's inode, and truncates that file if no other process has it locked. So
 * nothing is connected while another handle of this process still has files that
 * were at the same paths before. `connected` lists the handles; `list_mutex` guards it.
 *
 * All functions are called inside the gate; locking order: gate, list_mutex.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "internal.h"

#define LOOK_EVERY_NS (10 * SYNCGUARD_NS_PER_MS)
#define SETTLE_NS (1000 * SYNCGUARD_NS_PER_MS)
/* Of the file system, so that our WAL does not fill a small one. */
#define WAL_SHARE 8
#define FRAME_BYTES 2072

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static sg_sqlite *connected;

/* ---- which files they are ------------------------------------------------------------------ */

static syncguard_fd_identity identify(const char *path)
{
    struct stat about;
    syncguard_fd_identity identity = {0, 0, false};
    if (lstat(path, &about) == 0) {
        identity.device = (uint64_t)about.st_dev;
        identity.inode = (uint64_t)about.st_ino;
        identity.known = true;
    }
    return identity;
}

static bool same(syncguard_fd_identity a, syncguard_fd_identity b)
{
    return a.known && b.known && a.device == b.device && a.inode == b.inode;
}

static sg_files files_at_paths(const sg_sqlite *sqlite)
{
    sg_files files = {identify(sqlite->path), identify(sqlite->wal_path),
                      identify(sqlite->shm_path)};
    return files;
}

static bool same_files(const sg_files *a, const sg_files *b)
{
    return same(a->database, b->database) && same(a->wal, b->wal) && same(a->shm, b->shm);
}

bool sg_sqlite_in_place(const sg_sqlite *sqlite)
{
    sg_files now = files_at_paths(sqlite);
    return same_files(&sqlite->files, &now);
}

/* ---- the list of connected handles --------------------------------------------------------- */

static void list_add(sg_sqlite *sqlite)
{
    pthread_mutex_lock(&list_mutex);
    sqlite->next = connected;
    connected = sqlite;
    pthread_mutex_unlock(&list_mutex);
}

static void list_remove(const sg_sqlite *sqlite)
{
    pthread_mutex_lock(&list_mutex);
    sg_sqlite **link = &connected;
    while (*link != NULL && *link != sqlite)
        link = &(*link)->next;
    if (*link != NULL)
        *link = sqlite->next;
    pthread_mutex_unlock(&list_mutex);
}

/* Another handle has earlier files of these paths. Caller holds list_mutex. */
static bool others_are_stale(const sg_sqlite *sqlite, const sg_files *now)
{
    for (const sg_sqlite *other = connected; other != NULL; other = other->next) {
        if (strcmp(other->path, sqlite->path) == 0 && !same_files(&other->files, now))
            return true;
    }
    return false;
}

/* ---- connecting ---------------------------------------------------------------------------- */

static int note_frames(void *context, sqlite3 *db, const char *name, int frames)
{
    (void)db;
    (void)name;
    ((sg_sqlite *)context)->wal_frames = frames;
    return SQLITE_OK;
}

/* NORMAL: see durability.c. The cache bounds memory; deleted content need not be wiped. */
static const char SETTINGS[] = "PRAGMA synchronous=NORMAL;"
                               "PRAGMA cache_size=-16384;"
                               "PRAGMA secure_delete=OFF;"
                               "PRAGMA journal_size_limit=16777216";

/* Frames from which a checkpoint is due: fewer on a file system so small that ours would fill it.
 */
static int frames_for(const char *path)
{
    struct statvfs about;
    if (statvfs(path, &about) != 0 || about.f_frsize == 0)
        return SG_CHECKPOINT_FRAMES;
    uint64_t share = (uint64_t)about.f_blocks * about.f_frsize / WAL_SHARE / FRAME_BYTES;
    return share > SG_CHECKPOINT_FRAMES         ? SG_CHECKPOINT_FRAMES
           : share < SG_CHECKPOINT_FRAMES_LEAST ? SG_CHECKPOINT_FRAMES_LEAST
                                                : (int)share;
}

/* The file at the path, opened but not yet read. */
static syncguard_status open_file(sg_sqlite *sqlite, syncguard_error *err)
{
    pthread_mutex_lock(&list_mutex);
    syncguard_status status = sg_sqlite_place(sqlite->path, &sqlite->mode, err);
    sg_files now = files_at_paths(sqlite);
    if (status == SYNCGUARD_OK && others_are_stale(sqlite, &now))
        status = syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "SQLITE_READONLY_DBMOVED",
                                "%s: was removed or replaced, and another handle of this process "
                                "has not noticed yet",
                                sqlite->path);
    /* SQLite would take what the old -wal and -shm files hold for part of the new database. */
    if (status == SYNCGUARD_OK && sqlite->old_shm >= 0 && same(now.shm, sqlite->files.shm))
        status = syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "SQLITE_READONLY_DBMOVED",
                                "%s: was replaced, but not its -wal and -shm files; stop what uses "
                                "it and remove those",
                                sqlite->path);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_connect(sqlite->path, &sqlite->db, err);
    pthread_mutex_unlock(&list_mutex);
    return status;
}

/* Notes the files; false if they have been replaced meanwhile. */
static bool note_files(sg_sqlite *sqlite)
{
    int moved = 0;
    sqlite->files = files_at_paths(sqlite);
    return sqlite3_file_control(sqlite->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK &&
           !moved && sqlite->files.database.known && sqlite->files.wal.known &&
           sqlite->files.shm.known;
}

static void forget_old_shm(sg_sqlite *sqlite)
{
    if (sqlite->old_shm >= 0)
        close(sqlite->old_shm);
    sqlite->old_shm = -1;
}

static syncguard_status connect_files(sg_sqlite *sqlite, syncguard_error *err)
{
    syncguard_status status = open_file(sqlite, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_recognise(sqlite->db, sqlite->path, err);
    if (status == SYNCGUARD_OK) {
        int code = sqlite3_exec(sqlite->db, SETTINGS, NULL, NULL, NULL);
        if (code != SQLITE_OK)
            status = sg_sqlite_fail(sqlite->db, sqlite->path, code, err);
    }
    if (status == SYNCGUARD_OK && !note_files(sqlite))
        status = SG_SQLITE_BUSY;
    if (status == SYNCGUARD_OK)
        status = sg_wake_open(sqlite, err);
    if (status != SYNCGUARD_OK) {
        sg_sqlite_disconnect(sqlite);
        return status;
    }
    /* Also ends SQLite's own checkpoints: ours come when an acquire syncs anyway. */
    sqlite3_wal_hook(sqlite->db, note_frames, sqlite);
    sqlite->checkpoint_frames = frames_for(sqlite->path);
    sqlite->ready = true;
    forget_old_shm(sqlite);
    list_add(sqlite);
    return SYNCGUARD_OK;
}

/* Keeps the number of the -shm file from being given to another, so that it can be recognised when
 * the connection is closed. Such a descriptor is none for POSIX locks: closing it drops none. */
static int keep_shm(const sg_sqlite *sqlite)
{
    int fd = -1;
#ifdef O_PATH
    fd = open(sqlite->shm_path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && !syncguard_fd_same(fd, sqlite->files.shm)) {
        close(fd);
        fd = -1;
    }
#else
    (void)sqlite;
#endif
    return fd;
}

/* Without a checkpoint: it would write to files that are not ours any more. */
static void give_up(sg_sqlite *sqlite)
{
    syncguard_backend_log(&sqlite->base, SYNCGUARD_LOG_WARN,
                          "%s: was removed or replaced while it was open; its locks are lost",
                          sqlite->path);
    int kept = same(identify(sqlite->path), sqlite->files.database) ? -1 : keep_shm(sqlite);
    sg_sqlite_detach(sqlite);
    sqlite->old_shm = kept;
}

void sg_sqlite_detach(sg_sqlite *sqlite)
{
    if (sqlite->ready)
        list_remove(sqlite);
    sqlite->ready = false;
    sg_sqlite_disconnect(sqlite);
    sg_sync_forget(sqlite);
    forget_old_shm(sqlite);
}

syncguard_status sg_sqlite_ready(sg_sqlite *sqlite, syncguard_error *err)
{
    int64_t now_ns = syncguard_clock_ns();
    bool told = atomic_exchange(&sqlite->disturbed, false);
    if (sqlite->ready && !told && now_ns >= sqlite->looked_ns &&
        now_ns - sqlite->looked_ns < LOOK_EVERY_NS)
        return SYNCGUARD_OK;
    if (sg_boot_changed(&sqlite->boot)) {
        syncguard_status status = sg_boot_read(&sqlite->boot, err);
        if (status != SYNCGUARD_OK)
            return status;
        sqlite->lost_ns = 0; /* was of the other clock */
    }
    if (sqlite->ready && !sg_sqlite_in_place(sqlite)) {
        give_up(sqlite);
        sqlite->lost_ns = now_ns;
    }
    if (!sqlite->ready && sqlite->lost_ns != 0 && now_ns - sqlite->lost_ns < SETTLE_NS)
        return SG_SQLITE_BUSY;
    syncguard_status status = SYNCGUARD_OK;
    if (!sqlite->ready)
        status = connect_files(sqlite, err);
    else if (!sg_wake_in_place(sqlite))
        status = sg_wake_open(sqlite, err);
    if (status == SYNCGUARD_OK) {
        sqlite->looked_ns = now_ns;
        sqlite->lost_ns = 0;
    }
    return status;
}
