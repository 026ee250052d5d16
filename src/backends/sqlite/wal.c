/*
 * See wal.h.
 *
 * One fdatasync through a descriptor of our own is enough: a checkpoint of any process syncs the
 * WAL before it copies, and the database before it lets the WAL be overwritten; and the WAL file is
 * not replaced while a connection is open. The descriptor is harmless because SQLite takes no locks
 * on the WAL.
 *
 * Threads share syncs. A sync that starts after a commit covers it, so threads that arrive while
 * one is running wait for the next, which one of them makes for all. A failure counts for every
 * thread that began before it (`failures`): the kernel reports it once, and marks the lost pages as
 * clean afterwards.
 */
#include "wal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "errors.h"
#include "syncguard/sys/wait.h"

/* New frames that make a checkpoint due, and frames from which it keeps writers out. */
#define CHECKPOINT_FRAMES 1000
#define RESTART_FRAMES 6000
/* On a small file system the WAL gets this share; both limits are then the same. */
#define SMALL_SHARE 8
#define SMALL_FRAMES_LEAST 16
#define FRAME_BYTES 2072

#define BUSY_TRIES 50
#define BUSY_PAUSE_NS 200000

syncguard_status sg_sqlite_wal_init(sg_sqlite_wal *wal, const char *database, syncguard_error *err)
{
    snprintf(wal->path, sizeof wal->path, "%s-wal", database);
    wal->fd = -1;
    if (pthread_mutex_init(&wal->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    if (pthread_cond_init(&wal->done, NULL) != 0) {
        pthread_mutex_destroy(&wal->mutex);
        return syncguard_fail_memory(err);
    }
    return SYNCGUARD_OK;
}

void sg_sqlite_wal_destroy(sg_sqlite_wal *wal)
{
    pthread_cond_destroy(&wal->done);
    pthread_mutex_destroy(&wal->mutex);
}

static int wal_note_commit(void *context, sqlite3 *db, const char *name, int frames)
{
    (void)db;
    (void)name;
    sg_sqlite_wal *wal = context;
    wal->frames = frames;
    wal->committed = true;
    return SQLITE_OK;
}

static void wal_set_limits(sg_sqlite_wal *wal)
{
    struct statvfs about;
    wal->checkpoint_frames = CHECKPOINT_FRAMES;
    wal->restart_frames = RESTART_FRAMES;
    if (statvfs(wal->path, &about) != 0 || about.f_frsize == 0)
        return;
    uint64_t share = (uint64_t)about.f_blocks * about.f_frsize / SMALL_SHARE / FRAME_BYTES;
    if (share >= CHECKPOINT_FRAMES)
        return;
    wal->checkpoint_frames = share < SMALL_FRAMES_LEAST ? SMALL_FRAMES_LEAST : (int)share;
    wal->restart_frames = wal->checkpoint_frames;
}

syncguard_status sg_sqlite_wal_open(sg_sqlite_wal *wal, sqlite3 *db, bool durable,
                                    syncguard_fd_identity expected, syncguard_error *err)
{
    int fd = -1;
    if (durable) {
        fd = open(wal->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 && errno != ENOENT)
            return sg_sqlite_fail_errno(err, errno, wal->path, "cannot be opened");
        if (!syncguard_fd_same(fd, expected)) {
            if (fd >= 0)
                close(fd);
            return SG_SQLITE_BUSY;
        }
    }
    pthread_mutex_lock(&wal->mutex);
    wal->fd = fd;
    pthread_mutex_unlock(&wal->mutex);
    wal_set_limits(wal);
    /* Also ends SQLite's own checkpoints. */
    sqlite3_wal_hook(db, wal_note_commit, wal);
    return SYNCGUARD_OK;
}

void sg_sqlite_wal_close(sg_sqlite_wal *wal)
{
    pthread_mutex_lock(&wal->mutex);
    while (wal->syncing)
        pthread_cond_wait(&wal->done, &wal->mutex);
    if (wal->fd >= 0)
        close(wal->fd);
    wal->fd = -1;
    wal->error = ENOENT;
    /* The next WAL has nothing to recover from. */
    wal->recovered = atomic_fetch_add(&wal->failures, 1) + 1;
    pthread_mutex_unlock(&wal->mutex);
    wal->frames = 0;
    wal->copied = 0;
}

/* ---- syncs ---- */

/* Makes one sync for all threads that wait. The caller holds the mutex, which is unlocked during
 * the sync. */
static void wal_sync_for_all(sg_sqlite_wal *wal)
{
    uint64_t number = ++wal->started;
    int fd = wal->fd;
    int result = -1;
    wal->syncing = true;
    pthread_mutex_unlock(&wal->mutex);
    do {
        result = fdatasync(fd);
    } while (result != 0 && errno == EINTR);
    int error = errno;
    pthread_mutex_lock(&wal->mutex);
    wal->syncing = false;
    wal->finished = number;
    if (result != 0) {
        atomic_fetch_add(&wal->failures, 1);
        wal->error = error;
    }
    pthread_cond_broadcast(&wal->done);
}

syncguard_status sg_sqlite_wal_sync(sg_sqlite_wal *wal, unsigned failures_before,
                                    syncguard_error *err)
{
    pthread_mutex_lock(&wal->mutex);
    uint64_t needed = wal->started + 1;
    while (wal->finished < needed) {
        if (wal->syncing)
            pthread_cond_wait(&wal->done, &wal->mutex);
        else
            wal_sync_for_all(wal);
    }
    bool failed = atomic_load(&wal->failures) != failures_before;
    int error = wal->error;
    pthread_mutex_unlock(&wal->mutex);
    if (!failed)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, sg_sqlite_errno_name(error),
                          "%s: could not be synced to the disk: %s", wal->path,
                          syncguard_errno_text(error));
}

bool sg_sqlite_wal_failed(const sg_sqlite_wal *wal)
{
    return atomic_load(&wal->failures) != wal->recovered;
}

/* After a complete checkpoint it does not matter which part of the WAL is on the disk. */
syncguard_status sg_sqlite_wal_recover(sg_sqlite_wal *wal, sqlite3 *db, unsigned *failures,
                                       syncguard_error *err)
{
    *failures = atomic_load(&wal->failures);
    if (*failures == wal->recovered)
        return SYNCGUARD_OK;
    int code = sg_sqlite_wal_truncate(wal, db);
    if (code != SQLITE_OK)
        return sg_sqlite_fail(db, wal->path, code, err);
    wal->recovered = *failures;
    return SYNCGUARD_OK;
}

/* ---- checkpoints ---- */

/* Waits for a short time only, because transactions of other users of the file take
 * microseconds. */
static int wal_pause_while_busy(void *context, int tries)
{
    syncguard_limits none = {SYNCGUARD_NO_DEADLINE, NULL};
    (void)context;
    return tries < BUSY_TRIES &&
           syncguard_wait_until(syncguard_clock_ns() + BUSY_PAUSE_NS, &none, NULL) == SYNCGUARD_OK;
}

static int wal_checkpoint_run(sqlite3 *db, int mode, int *copied)
{
    sqlite3_busy_handler(db, wal_pause_while_busy, NULL);
    int code = sqlite3_wal_checkpoint_v2(db, NULL, mode, NULL, copied);
    sqlite3_busy_handler(db, NULL, NULL);
    return code;
}

int sg_sqlite_wal_truncate(sg_sqlite_wal *wal, sqlite3 *db)
{
    int code = wal_checkpoint_run(db, SQLITE_CHECKPOINT_TRUNCATE, NULL);
    if (code == SQLITE_OK) {
        wal->frames = 0;
        wal->copied = 0;
    }
    return code;
}

/*
 * A passive checkpoint copies what it can beside readers and writers; but while other processes go
 * on committing, it never catches up with them, and the WAL grows. So a long WAL gets a checkpoint
 * that keeps writers out until all of it is copied and the WAL can start from its beginning again.
 *
 * While readers come and go, the WAL may stay long after a checkpoint, so only the frames that were
 * added since the last one count. The WAL is shorter than that one left it if another process has
 * restarted it.
 */
void sg_sqlite_wal_checkpoint(sg_sqlite_wal *wal, sqlite3 *db)
{
    bool restart = wal->frames >= wal->restart_frames;
    if (!wal->committed)
        return;
    wal->committed = false;
    if (wal->frames < wal->copied)
        wal->copied = 0;
    if (wal->frames - wal->copied < wal->checkpoint_frames)
        return;
    int copied = -1;
    (void)wal_checkpoint_run(db, restart ? SQLITE_CHECKPOINT_RESTART : SQLITE_CHECKPOINT_PASSIVE,
                             &copied);
    wal->copied = copied > 0 ? copied : wal->frames;
}
