/*
 * See notify.h.
 *
 * Locking: the mutex guards everything. The core is never called while it is held, because the core
 * calls unwatch with its wait queue locked.
 */
#include "notify.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/inotify.h>
#endif

#include "errors.h"

typedef struct sg_sqlite_watched {
    struct sg_sqlite_watched *next;
    uint64_t seen; /* the last value of the cell */
    uint32_t cell;
    uint16_t length;
    bool changed; /* to be reported */
    char key[];
} sg_sqlite_watched;

syncguard_status sg_sqlite_notify_init(sg_sqlite_notify *notify, syncguard_backend *backend,
                                       const char *database, syncguard_error *err)
{
    notify->backend = backend;
    notify->database = database;
    snprintf(notify->path, sizeof notify->path, "%s-wake", database);
    notify->fd = -1;
    notify->inotify_fd = -1;
    notify->stop.fds[0] = -1;
    notify->stop.fds[1] = -1;
    if (pthread_mutex_init(&notify->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    return SYNCGUARD_OK;
}

/* The same in every process and every version, because it is part of the file format. */
int sg_sqlite_notify_cell(const char *key, size_t length)
{
    uint64_t hash = syncguard_fnv1a(key, length);
    return (int)((hash ^ hash >> 32) % SG_SQLITE_CELLS);
}

/* Every handle starts with another value. */
static uint64_t sqlite_notify_first_value(void)
{
    uint64_t value = 0;
    if (!syncguard_random_bytes(&value, sizeof value))
        value = (uint64_t)syncguard_clock_ns() ^ (uint64_t)getpid() << 40;
    return value;
}

/* ---- the file ---- */

/* Creates the file with the mode and, if permitted, the group of the database, because all its
 * users need access. */
static int sqlite_notify_create_file(const sg_sqlite_notify *notify, int flags)
{
    struct stat about;
    int fd = open(notify->path, flags | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || stat(notify->database, &about) != 0)
        return fd;
    if (about.st_gid != getegid() && fchown(fd, (uid_t)-1, about.st_gid) != 0)
        return fd; /* stays private until a user of the group creates it */
    (void)fchmod(fd, about.st_mode & 0777);
    return fd;
}

/* Allocates the cells, because a release must always be able to write its own. */
static int sqlite_notify_allocate_cells(int fd)
{
#ifdef __linux__
    if (fallocate(fd, 0, 0, SG_SQLITE_CELLS * (off_t)sizeof(uint64_t)) != 0 && errno == ENOSPC)
        return errno;
#else
    (void)fd;
#endif
    return 0;
}

static syncguard_status sqlite_notify_open_file(const sg_sqlite_notify *notify, int *out,
                                                syncguard_error *err)
{
    const char *path = notify->path;
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    struct stat about;
    int fd = open(path, flags);
    if (fd < 0 && errno == ENOENT) {
        fd = sqlite_notify_create_file(notify, flags);
        if (fd < 0 && errno == EEXIST)
            fd = open(path, flags);
    }
    if (fd < 0 && (errno == EACCES || errno == EPERM))
        return syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, sg_sqlite_errno_name(errno),
                              "%s: may not be written", path);
    if (fd < 0 || fstat(fd, &about) != 0) {
        syncguard_status status = sg_sqlite_fail_errno(err, errno, path, "cannot be opened");
        if (fd >= 0)
            close(fd);
        return status;
    }
    syncguard_status status = sg_sqlite_file_check(path, &about, err);
    int error = status == SYNCGUARD_OK ? sqlite_notify_allocate_cells(fd) : 0;
    if (error != 0)
        status = sg_sqlite_fail_errno(err, error, path, "there is no room for it");
    if (status != SYNCGUARD_OK)
        close(fd);
    else
        *out = fd;
    return status;
}

/* Cells beyond the end of the file read as 0. */
static bool sqlite_notify_read_cells(int fd, size_t first, size_t count, uint64_t *out)
{
    memset(out, 0, count * sizeof *out);
    return pread(fd, out, count * sizeof *out, (off_t)(first * sizeof *out)) >= 0;
}

/* ---- the thread ---- */

#ifdef __linux__

/* Marks the keys whose cells differ from what was seen. The caller holds the mutex. */
static void sqlite_watched_mark_changed(sg_sqlite_notify *notify,
                                        const uint64_t values[SG_SQLITE_CELLS])
{
    for (size_t i = 0; i < SG_SQLITE_WATCH_BUCKETS; i++) {
        for (sg_sqlite_watched *key = notify->watched[i]; key != NULL; key = key->next) {
            key->changed = key->changed || key->seen != values[key->cell];
            key->seen = values[key->cell];
        }
    }
}

/* Takes one marked key, beginning with *bucket. */
static bool sqlite_watched_take_changed(sg_sqlite_notify *notify, size_t *bucket,
                                        char key[SYNCGUARD_KEY_SIZE], size_t *length)
{
    sg_sqlite_watched *watched = NULL;
    pthread_mutex_lock(&notify->mutex);
    while (*bucket < SG_SQLITE_WATCH_BUCKETS) {
        watched = notify->watched[*bucket];
        while (watched != NULL && !watched->changed)
            watched = watched->next;
        if (watched != NULL)
            break;
        (*bucket)++;
    }
    if (watched != NULL) {
        watched->changed = false;
        memcpy(key, watched->key, watched->length);
        *length = watched->length;
    }
    pthread_mutex_unlock(&notify->mutex);
    return watched != NULL;
}

static void sqlite_watched_report_changed(sg_sqlite_notify *notify)
{
    char key[SYNCGUARD_KEY_SIZE];
    size_t length = 0;
    size_t bucket = 0;
    while (sqlite_watched_take_changed(notify, &bucket, key, &length))
        syncguard_backend_key_changed(notify->backend, key, length);
}

/* A file was removed, renamed, or got another owner. */
#define FILE_EVENTS (IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF)

/* Returns true if a file may no longer be the one at its path. */
static bool sqlite_notify_read_events(int fd)
{
    union {
        struct inotify_event event;
        char bytes[4096];
    } buffer;
    bool changed = false;
    ssize_t got = 0;
    while ((got = read(fd, buffer.bytes, sizeof buffer.bytes)) > 0) {
        for (const char *at = buffer.bytes; at < buffer.bytes + got;) {
            struct inotify_event event;
            memcpy(&event, at, sizeof event);
            changed = changed || (event.mask & FILE_EVENTS) != 0;
            at += sizeof event + event.len;
        }
    }
    return changed;
}

static void *sqlite_notify_run(void *argument)
{
    sg_sqlite_notify *notify = argument;
    syncguard_limits forever = {SYNCGUARD_NO_DEADLINE, NULL};
    uint64_t values[SG_SQLITE_CELLS];
    for (;;) {
        struct pollfd fds[2] = {{notify->inotify_fd, POLLIN, 0}, {notify->stop.fds[0], POLLIN, 0}};
        syncguard_status status = syncguard_wait_fds(fds, 2, &forever, NULL);
        if (status == SYNCGUARD_OK && fds[1].revents == POLLIN)
            return NULL;
        /* Anything but POLLIN means that the program has closed the descriptor. */
        bool failed = status != SYNCGUARD_OK || fds[0].revents != POLLIN;
        bool files_changed = !failed && sqlite_notify_read_events(notify->inotify_fd);
        pthread_mutex_lock(&notify->mutex);
        notify->failed = notify->failed || failed;
        if (sqlite_notify_read_cells(notify->fd, 0, SG_SQLITE_CELLS, values))
            sqlite_watched_mark_changed(notify, values);
        pthread_mutex_unlock(&notify->mutex);
        sqlite_watched_report_changed(notify);
        if (failed || files_changed) {
            /* The next attempt checks the files, or learns that it must poll. */
            atomic_store(&notify->files_changed, true);
            syncguard_backend_notifications_lost(notify->backend);
        }
        if (failed)
            return NULL;
    }
}

/* Watches of earlier files stay; an event of those only costs a needless attempt. */
static bool sqlite_notify_watch_files(const sg_sqlite_notify *notify)
{
    return inotify_add_watch(notify->inotify_fd, notify->path, IN_MODIFY | FILE_EVENTS) >= 0 &&
           inotify_add_watch(notify->inotify_fd, notify->database, FILE_EVENTS) >= 0;
}

/* Starts the thread with the first waiter. The caller holds the mutex. */
static bool sqlite_notify_start(sg_sqlite_notify *notify)
{
    if (notify->started)
        return !notify->failed;
    notify->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (notify->inotify_fd < 0 || syncguard_parker_open(&notify->stop, NULL) != SYNCGUARD_OK ||
        !sqlite_notify_watch_files(notify) ||
        syncguard_thread_start(&notify->thread, sqlite_notify_run, notify) != 0) {
        if (notify->inotify_fd >= 0)
            close(notify->inotify_fd);
        notify->inotify_fd = -1;
        syncguard_parker_close(&notify->stop);
        return false; /* the next waiter tries again */
    }
    notify->started = true;
    return true;
}

#else

static bool sqlite_notify_watch_files(const sg_sqlite_notify *notify)
{
    (void)notify;
    return false;
}

static bool sqlite_notify_start(sg_sqlite_notify *notify)
{
    (void)notify;
    return false;
}

#endif

/* ---- opening and reopening ---- */

/* Caller holds the mutex. */
static void sqlite_notify_replace_file(sg_sqlite_notify *notify, int fd)
{
    if (notify->fd >= 0)
        close(notify->fd);
    notify->fd = fd;
    if (!notify->started || notify->failed)
        return;
    /* The file is watched before it is read, so a write in between is both seen and reported. */
    notify->failed = !sqlite_notify_watch_files(notify);
    for (size_t i = 0; i < SG_SQLITE_WATCH_BUCKETS; i++) {
        for (sg_sqlite_watched *key = notify->watched[i]; key != NULL; key = key->next)
            notify->failed =
                !sqlite_notify_read_cells(fd, key->cell, 1, &key->seen) || notify->failed;
    }
}

syncguard_status sg_sqlite_notify_open(sg_sqlite_notify *notify, syncguard_error *err)
{
    int fd = -1;
    syncguard_status status = sqlite_notify_open_file(notify, &fd, err);
    if (status != SYNCGUARD_OK)
        return status;
    pthread_mutex_lock(&notify->mutex);
    if (notify->next_value == 0)
        notify->next_value = sqlite_notify_first_value();
    sqlite_notify_replace_file(notify, fd);
    pthread_mutex_unlock(&notify->mutex);
    /* A release that was written to the old file after its replacement is unknown. */
    syncguard_backend_notifications_lost(notify->backend);
    return SYNCGUARD_OK;
}

bool sg_sqlite_notify_in_place(sg_sqlite_notify *notify)
{
    pthread_mutex_lock(&notify->mutex);
    bool same = syncguard_fd_same(notify->fd, sg_sqlite_file_identify(notify->path));
    pthread_mutex_unlock(&notify->mutex);
    return same;
}

/* ---- watching ---- */

static sg_sqlite_watched **sqlite_watched_find(sg_sqlite_notify *notify, size_t cell,
                                               const char *key, size_t length)
{
    sg_sqlite_watched **link = &notify->watched[cell % SG_SQLITE_WATCH_BUCKETS];
    while (*link != NULL && ((*link)->length != length || memcmp((*link)->key, key, length) != 0))
        link = &(*link)->next;
    return link;
}

/* Caller holds the mutex. */
static bool sqlite_watched_add(sg_sqlite_notify *notify, size_t cell, const char *key,
                               size_t length)
{
    sg_sqlite_watched **bucket = &notify->watched[cell % SG_SQLITE_WATCH_BUCKETS];
    uint64_t seen;
    if (notify->fd < 0 || !sqlite_notify_start(notify) ||
        !sqlite_notify_read_cells(notify->fd, cell, 1, &seen))
        return false;
    sg_sqlite_watched *watched = syncguard_calloc(1, offsetof(sg_sqlite_watched, key) + length);
    if (watched == NULL)
        return false;
    memcpy(watched->key, key, length);
    watched->length = (uint16_t)length;
    watched->cell = (uint32_t)cell;
    watched->seen = seen;
    watched->next = *bucket;
    *bucket = watched;
    return true;
}

bool sg_sqlite_notify_watch(sg_sqlite_notify *notify, const char *key, size_t length, bool *added)
{
    size_t cell = (size_t)sg_sqlite_notify_cell(key, length);
    pthread_mutex_lock(&notify->mutex);
    /* If the key was watched already, every release since is or will be reported, so this attempt
     * counts. */
    bool before = *sqlite_watched_find(notify, cell, key, length) != NULL;
    *added = !before && sqlite_watched_add(notify, cell, key, length);
    bool armed = (before || *added) && !notify->failed;
    pthread_mutex_unlock(&notify->mutex);
    return armed;
}

void sg_sqlite_notify_unwatch(sg_sqlite_notify *notify, const char *key, size_t length)
{
    pthread_mutex_lock(&notify->mutex);
    size_t cell = (size_t)sg_sqlite_notify_cell(key, length);
    sg_sqlite_watched **link = sqlite_watched_find(notify, cell, key, length);
    sg_sqlite_watched *watched = *link;
    if (watched != NULL)
        *link = watched->next;
    pthread_mutex_unlock(&notify->mutex);
    syncguard_free(watched);
}

/* ---- publishing ---- */

/* Writes a new value to the cell and returns it; 0: the write failed. The caller holds the
 * mutex. */
static uint64_t sqlite_notify_write_cell(sg_sqlite_notify *notify, size_t cell)
{
    uint64_t value = notify->next_value++;
    ssize_t written = pwrite(notify->fd, &value, sizeof value, (off_t)(cell * sizeof value));
    return written == (ssize_t)sizeof value ? value : 0;
}

/*
 * The core notifies our own waiters of the key, so for them our own value counts as seen. But the
 * value may overwrite one by which another process released another key of the cell. The waiters of
 * that key are therefore notified of our value as of any other.
 */
void sg_sqlite_notify_publish(sg_sqlite_notify *notify, const char *key, size_t length)
{
    size_t cell = (size_t)sg_sqlite_notify_cell(key, length);
    pthread_mutex_lock(&notify->mutex);
    sg_sqlite_watched *watched = *sqlite_watched_find(notify, cell, key, length);
    uint64_t value = sqlite_notify_write_cell(notify, cell);
    if (value != 0 && watched != NULL)
        watched->seen = value;
    pthread_mutex_unlock(&notify->mutex);
}

void sg_sqlite_notify_publish_cell(sg_sqlite_notify *notify, int cell)
{
    pthread_mutex_lock(&notify->mutex);
    (void)sqlite_notify_write_cell(notify, (size_t)cell);
    pthread_mutex_unlock(&notify->mutex);
}

void sg_sqlite_notify_destroy(sg_sqlite_notify *notify, bool forked)
{
    if (notify->started && !forked) {
        syncguard_parker_unpark(&notify->stop);
        (void)pthread_join(notify->thread, NULL);
        syncguard_parker_close(&notify->stop);
    }
    if (notify->inotify_fd >= 0 && !forked)
        close(notify->inotify_fd);
    if (notify->fd >= 0 && !forked)
        close(notify->fd);
    for (size_t i = 0; i < SG_SQLITE_WATCH_BUCKETS; i++) {
        while (notify->watched[i] != NULL) {
            sg_sqlite_watched *watched = notify->watched[i];
            notify->watched[i] = watched->next;
            syncguard_free(watched);
        }
    }
    if (!forked)
        pthread_mutex_destroy(&notify->mutex);
}
