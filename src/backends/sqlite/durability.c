/*
 * What makes a grant durable, and checkpoints.
 *
 * Durability. Commits run with synchronous=NORMAL, so SQLite itself syncs only at
 * checkpoints. A grant is made durable by one fdatasync of the WAL through a
 * descriptor of our own, after its commit and before it is told; outside the
 * gate, so that other threads go on and share the sync. This is enough because a
 * checkpoint, by whomever, syncs the WAL before it copies and the database before
 * it lets the WAL be overwritten; and the WAL file is not replaced while a
 * connection is open. See docs/adr for the whole argument.
 *
 * Threads share syncs: one that starts after a commit covers it, so whoever
 * comes while one is running waits for the next, which one of them makes for all.
 * A failure counts for everybody who began before it (`failures`): the kernel
 * reports it once, and calls the lost pages clean afterwards.
 *
 * Locking: sync.mutex guards sqlite->sync; the rest belongs to the gate.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "internal.h"

#define PATIENCE_TRIES 50
#define PATIENCE_STEP_NS 200000

syncguard_status sg_sync_init(sg_sync *sync, syncguard_error *err)
{
    if (pthread_mutex_init(&sync->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    if (pthread_cond_init(&sync->done, NULL) != 0) {
        pthread_mutex_destroy(&sync->mutex);
        return syncguard_fail_memory(err);
    }
    return SYNCGUARD_OK;
}

void sg_sync_destroy(sg_sync *sync)
{
    pthread_cond_destroy(&sync->done);
    pthread_mutex_destroy(&sync->mutex);
}

/* One sync for all who wait. Caller holds the mutex, which is left meanwhile. */
static void lead(sg_sqlite *sqlite)
{
    sg_sync *sync = &sqlite->sync;
    uint64_t number = ++sync->started;
    int fd = sqlite->wal_fd;
    int result = -1;
    sync->running = true;
    pthread_mutex_unlock(&sync->mutex);
    do {
        result = fdatasync(fd);
    } while (result != 0 && errno == EINTR);
    int error = errno;
    pthread_mutex_lock(&sync->mutex);
    sync->running = false;
    sync->finished = number;
    if (result != 0) {
        atomic_fetch_add(&sync->failures, 1);
        sync->error = error;
    }
    pthread_cond_broadcast(&sync->done);
}

void sg_sync_forget(sg_sqlite *sqlite)
{
    sg_sync *sync = &sqlite->sync;
    pthread_mutex_lock(&sync->mutex);
    while (sync->running)
        pthread_cond_wait(&sync->done, &sync->mutex);
    if (sqlite->wal_fd >= 0)
        close(sqlite->wal_fd);
    sqlite->wal_fd = -1;
    sync->error = ENOENT;
    /* The next WAL has no failures to make good. */
    sqlite->healed = atomic_fetch_add(&sync->failures, 1) + 1;
    pthread_mutex_unlock(&sync->mutex);
    sqlite->wal_frames = 0;
    sqlite->wal_copied = 0;
}

syncguard_status sg_sqlite_sync(sg_sqlite *sqlite, unsigned failures_before, syncguard_error *err)
{
    sg_sync *sync = &sqlite->sync;
    pthread_mutex_lock(&sync->mutex);
    uint64_t needed = sync->started + 1;
    while (sync->finished < needed) {
        if (sync->running)
            pthread_cond_wait(&sync->done, &sync->mutex);
        else
            lead(sqlite);
    }
    bool failed = atomic_load(&sync->failures) != failures_before;
    int error = sync->error;
    pthread_mutex_unlock(&sync->mutex);
    if (!failed)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, sg_sqlite_errno_name(error),
                          "%s: could not be brought to the disk (errno %d)", sqlite->wal_path,
                          error);
}

/* A complete checkpoint makes the WAL, and what is missing from it on the disk, irrelevant. */
syncguard_status sg_sqlite_heal(sg_sqlite *sqlite, unsigned *failures, syncguard_error *err)
{
    *failures = atomic_load(&sqlite->sync.failures);
    if (*failures == sqlite->healed)
        return SYNCGUARD_OK;
    int code = sqlite3_wal_checkpoint_v2(sqlite->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    if (code != SQLITE_OK)
        return sg_sqlite_fail(sqlite->db, sqlite->path, code, err);
    sqlite->healed = *failures;
    sqlite->wal_frames = 0;
    sqlite->wal_copied = 0;
    return SYNCGUARD_OK;
}

/* For a moment only: whoever is in the way is in the middle of a transaction of microseconds. */
static int wait_a_moment(void *context, int tries)
{
    syncguard_limits none = {SYNCGUARD_NO_DEADLINE, NULL};
    (void)context;
    return tries < PATIENCE_TRIES && syncguard_wait_until(syncguard_clock_ns() + PATIENCE_STEP_NS,
                                                          &none, NULL) == SYNCGUARD_OK;
}

static int threshold(const sg_sqlite *sqlite, int usual)
{
    return sqlite->checkpoint_frames < SG_CHECKPOINT_FRAMES ? sqlite->checkpoint_frames : usual;
}

bool sg_sqlite_make_room(sg_sqlite *sqlite)
{
    sqlite3_busy_handler(sqlite->db, wait_a_moment, NULL);
    int code = sqlite3_wal_checkpoint_v2(sqlite->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    sqlite3_busy_handler(sqlite->db, NULL, NULL);
    if (code != SQLITE_OK)
        return false;
    sqlite->wal_frames = 0;
    sqlite->wal_copied = 0;
    return true;
}

/*
 * A passive checkpoint copies what it can beside readers and writers; but while
 * other processes go on committing, it never catches up with them, and the WAL
 * grows. So a long WAL gets one that keeps writers out until all of it is copied
 * and can start anew. Either may fail: the next one comes.
 */
static void checkpoint(sg_sqlite *sqlite)
{
    bool longer = sqlite->wal_frames >= threshold(sqlite, SG_CHECKPOINT_FRAMES_LONG);
    int copied = -1;
    if (longer)
        sqlite3_busy_handler(sqlite->db, wait_a_moment, NULL);
    (void)sqlite3_wal_checkpoint_v2(sqlite->db, NULL,
                                    longer ? SQLITE_CHECKPOINT_RESTART : SQLITE_CHECKPOINT_PASSIVE,
                                    NULL, &copied);
    if (longer)
        sqlite3_busy_handler(sqlite->db, NULL, NULL);
    sqlite->wal_copied = copied > 0 ? copied : sqlite->wal_frames;
}

/*
 * While readers come and go the WAL may stay long after a checkpoint, so what
 * counts is what was added since the last one; it is shorter than that again
 * when somebody started it anew.
 */
static int frames_due(sg_sqlite *sqlite)
{
    if (sqlite->wal_frames < sqlite->wal_copied)
        sqlite->wal_copied = 0;
    return sqlite->wal_frames - sqlite->wal_copied;
}

syncguard_status sg_sqlite_settle(sg_sqlite *sqlite, syncguard_error *err)
{
    if (frames_due(sqlite) >= sqlite->checkpoint_frames)
        checkpoint(sqlite);
    if (!sqlite->durable || sqlite->wal_fd >= 0)
        return SYNCGUARD_OK;
    int fd = open(sqlite->wal_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && !syncguard_fd_same(fd, sqlite->files.wal)) {
        close(fd);
        atomic_store(&sqlite->disturbed, true);
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "SQLITE_READONLY_DBMOVED",
                              "%s: was removed or replaced while it was open", sqlite->wal_path);
    }
    if (fd >= 0) {
        pthread_mutex_lock(&sqlite->sync.mutex);
        sqlite->wal_fd = fd;
        pthread_mutex_unlock(&sqlite->sync.mutex);
        return SYNCGUARD_OK;
    }
    return syncguard_fail(err,
                          errno == EMFILE || errno == ENFILE ? SYNCGUARD_E_RATE_LIMITED
                                                             : SYNCGUARD_E_SERVICE_UNAVAILABLE,
                          sg_sqlite_errno_name(errno), "%s: cannot be opened (errno %d)",
                          sqlite->wal_path, errno);
}

void sg_sqlite_checkpoint_late(sg_sqlite *sqlite)
{
    if (frames_due(sqlite) >= threshold(sqlite, SG_CHECKPOINT_FRAMES_LATE))
        checkpoint(sqlite);
}
