/*
 * Wake-up across processes: a file of 512 eight-byte slots beside the database.
 *
 * A release writes a value that nobody has written before into the slot of its
 * key. A handle with waiters has one thread that is told of writes by the kernel
 * (inotify), reads the table and reports the watched keys whose slot changed.
 * The slot's value is remembered before the attempt that decides whether to wait
 * (sg_wake_watch), and a release is committed before its slot is written: so no
 * release is missed, and a spurious report only costs a try.
 *
 * The file holds nothing that matters: it is read and written, never mapped (a
 * truncated mapping is a signal). Waiters rely on it, so every handle opens it
 * before it works at all, room for the slots included: a release can always tell.
 * If the kernel cannot be heard, waiters poll. If the file is removed or replaced,
 * the kernel tells that too, and everybody tries again.
 *
 * Locking: wake.mutex guards everything. The core is never called with it held,
 * because the core calls unwatch with its waiting room locked.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/inotify.h>
#include <sys/random.h>
#endif

#include "internal.h"

typedef struct sg_watched {
    struct sg_watched *next;
    bool stirred; /* to be reported */
    size_t length;
    char key[];
} sg_watched;

syncguard_status sg_wake_init(sg_wake *wake, syncguard_error *err)
{
    memset(wake, 0, sizeof *wake);
    wake->fd = -1;
    wake->inotify_fd = -1;
    wake->watches[0] = -1;
    wake->watches[1] = -1;
    wake->stop.fds[0] = -1;
    wake->stop.fds[1] = -1;
    if (pthread_mutex_init(&wake->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    return SYNCGUARD_OK;
}

/* The same in every process and version: it is part of the file's meaning. FNV-1a. */
static size_t slot_of(const char *key, size_t length)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < length; i++) {
        hash ^= (unsigned char)key[i];
        hash *= UINT64_C(1099511628211);
    }
    return (size_t)((hash ^ hash >> 32) % SG_WAKE_SLOTS);
}

/* A start that other handles do not share; without randomness clock and address must do. */
static uint64_t first_value(const sg_wake *wake)
{
    uint64_t value =
        (uint64_t)syncguard_clock_ns() ^ (uint64_t)(uintptr_t)wake << 20 ^ (uint64_t)getpid() << 40;
#ifdef __linux__
    uint64_t drawn = 0;
    if (getrandom(&drawn, sizeof drawn, GRND_NONBLOCK) == (ssize_t)sizeof drawn)
        value = drawn;
#endif
    return value;
}

/* ---- the file ------------------------------------------------------------------------------ */

/* Makes it with the mode and, if we may, the group of the database: all its users must reach it. */
static int make_file(const sg_sqlite *sqlite, int flags)
{
    struct stat about;
    int fd = open(sqlite->wake_path, flags | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return fd;
    if (stat(sqlite->path, &about) == 0 && about.st_gid != getegid() &&
        fchown(fd, (uid_t)-1, about.st_gid) != 0)
        return fd; /* private until somebody with the right group makes it */
    (void)fchmod(fd, sqlite->mode);
    return fd;
}

/* A release must always be able to write its slot, so the room for it is taken now. */
static int take_room(int fd)
{
#ifdef __linux__
    if (fallocate(fd, 0, 0, SG_WAKE_SLOTS * (off_t)sizeof(uint64_t)) != 0 && errno == ENOSPC)
        return errno;
#else
    (void)fd;
#endif
    return 0;
}

static syncguard_status open_file(const sg_sqlite *sqlite, int *out, syncguard_error *err)
{
    const char *path = sqlite->wake_path;
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    struct stat about;
    int fd = open(path, flags);
    if (fd < 0 && errno == ENOENT) {
        fd = make_file(sqlite, flags);
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
    syncguard_status status = sg_sqlite_check_kind(path, &about, err);
    int error = status == SYNCGUARD_OK ? take_room(fd) : 0;
    if (error != 0)
        status = sg_sqlite_fail_errno(err, error, path, "there is no room for it");
    if (status != SYNCGUARD_OK)
        close(fd);
    else
        *out = fd;
    return status;
}

/* What is not in the file yet reads as 0. */
static bool read_slots(int fd, size_t first, size_t count, uint64_t *out)
{
    memset(out, 0, count * sizeof *out);
    return pread(fd, out, count * sizeof *out, (off_t)(first * sizeof *out)) >= 0;
}

/* ---- the thread ---------------------------------------------------------------------------- */

/* Marks the keys of slots that differ from what was seen. Caller holds the mutex. */
static void mark_changed(sg_wake *wake, const uint64_t *values, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sg_watched *watched = wake->watched[first + i];
        if (watched == NULL || wake->seen[first + i] == values[i])
            continue;
        wake->seen[first + i] = values[i];
        for (; watched != NULL; watched = watched->next)
            watched->stirred = true;
    }
}

/* Takes one marked key out of the slots from *slot on. */
static bool next_stirred(sg_wake *wake, size_t *slot, size_t end, char key[SYNCGUARD_KEY_SIZE],
                         size_t *length)
{
    bool found = false;
    pthread_mutex_lock(&wake->mutex);
    while (!found && *slot < end) {
        sg_watched *watched = wake->watched[*slot];
        while (watched != NULL && !watched->stirred)
            watched = watched->next;
        if (watched == NULL) {
            (*slot)++;
            continue;
        }
        watched->stirred = false;
        memcpy(key, watched->key, watched->length);
        *length = watched->length;
        found = true;
    }
    pthread_mutex_unlock(&wake->mutex);
    return found;
}

static void report(sg_sqlite *sqlite, size_t first, size_t count)
{
    char key[SYNCGUARD_KEY_SIZE];
    size_t length = 0;
    size_t slot = first;
    while (next_stirred(&sqlite->wake, &slot, first + count, key, &length))
        syncguard_backend_stirred(&sqlite->base, key, length);
}

#ifdef __linux__

/* Bits that say more than that somebody wrote: a file was removed, renamed or changed hands. */
#define IN_PLACE_EVENTS (IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF)

/* True if a file may no longer be the one at its path. */
static bool read_events(int fd)
{
    union {
        struct inotify_event event;
        char bytes[4096];
    } buffer;
    bool disturbed = false;
    ssize_t got = 0;
    while ((got = read(fd, buffer.bytes, sizeof buffer.bytes)) > 0) {
        for (const char *at = buffer.bytes; at < buffer.bytes + got;) {
            struct inotify_event event;
            memcpy(&event, at, sizeof event);
            disturbed = disturbed || (event.mask & IN_PLACE_EVENTS) != 0;
            at += sizeof event + event.len;
        }
    }
    return disturbed;
}

static void *watch_thread(void *argument)
{
    sg_sqlite *sqlite = argument;
    sg_wake *wake = &sqlite->wake;
    syncguard_limits forever = {SYNCGUARD_NO_DEADLINE, NULL};
    uint64_t values[SG_WAKE_SLOTS];
    for (;;) {
        struct pollfd fds[2] = {{wake->inotify_fd, POLLIN, 0}, {wake->stop.fds[0], POLLIN, 0}};
        syncguard_status status = syncguard_wait_fds(fds, 2, &forever, NULL);
        if (status == SYNCGUARD_OK && fds[1].revents == POLLIN)
            return NULL;
        bool deaf = status != SYNCGUARD_OK || fds[0].revents != POLLIN; /* closed under us */
        bool disturbed = !deaf && read_events(wake->inotify_fd);
        pthread_mutex_lock(&wake->mutex);
        wake->deaf = wake->deaf || deaf;
        if (read_slots(wake->fd, 0, SG_WAKE_SLOTS, values))
            mark_changed(wake, values, 0, SG_WAKE_SLOTS);
        pthread_mutex_unlock(&wake->mutex);
        report(sqlite, 0, SG_WAKE_SLOTS);
        if (deaf || disturbed) {
            /* Their next try looks at the files, or learns that it must poll. */
            atomic_store(&sqlite->disturbed, true);
            syncguard_backend_stirred_all(&sqlite->base);
        }
        if (deaf)
            return NULL;
    }
}

/* Caller holds the mutex. */
static bool watch_files(sg_sqlite *sqlite)
{
    sg_wake *wake = &sqlite->wake;
    for (int i = 0; i < 2; i++) {
        if (wake->watches[i] >= 0)
            (void)inotify_rm_watch(wake->inotify_fd, wake->watches[i]);
    }
    wake->watches[0] =
        inotify_add_watch(wake->inotify_fd, sqlite->wake_path, IN_MODIFY | IN_PLACE_EVENTS);
    wake->watches[1] = inotify_add_watch(wake->inotify_fd, sqlite->path, IN_PLACE_EVENTS);
    return wake->watches[0] >= 0 && wake->watches[1] >= 0;
}

/* Starts the thread with the first waiter. Caller holds the mutex. */
static bool start(sg_sqlite *sqlite)
{
    sg_wake *wake = &sqlite->wake;
    if (wake->started)
        return !wake->deaf;
    wake->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (wake->inotify_fd < 0 || syncguard_parker_open(&wake->stop, NULL) != SYNCGUARD_OK ||
        !watch_files(sqlite) || syncguard_thread_start(&wake->thread, watch_thread, sqlite) != 0) {
        if (wake->inotify_fd >= 0)
            close(wake->inotify_fd);
        wake->inotify_fd = -1;
        wake->watches[0] = -1;
        wake->watches[1] = -1;
        syncguard_parker_close(&wake->stop);
        return false; /* perhaps the next waiter has more luck */
    }
    wake->started = true;
    return true;
}

#else

static bool watch_files(sg_sqlite *sqlite)
{
    (void)sqlite;
    return false;
}

static bool start(sg_sqlite *sqlite)
{
    (void)sqlite;
    return false;
}

#endif

/* ---- opening, and again -------------------------------------------------------------------- */

/* Caller holds the mutex. What changed while the old file was watched is not known: all are told.
 */
static void replace_file(sg_sqlite *sqlite, int fd)
{
    sg_wake *wake = &sqlite->wake;
    if (wake->fd >= 0)
        close(wake->fd);
    wake->fd = fd;
    if (!wake->started || wake->deaf)
        return;
    /* Watched first, read then: a write in between is both seen and told. */
    wake->deaf = !watch_files(sqlite) || !read_slots(fd, 0, SG_WAKE_SLOTS, wake->seen);
}

syncguard_status sg_wake_open(sg_sqlite *sqlite, syncguard_error *err)
{
    sg_wake *wake = &sqlite->wake;
    int fd = -1;
    syncguard_status status = open_file(sqlite, &fd, err);
    if (status != SYNCGUARD_OK)
        return status;
    pthread_mutex_lock(&wake->mutex);
    if (wake->next_value == 0)
        wake->next_value = first_value(wake);
    replace_file(sqlite, fd);
    bool waiters = wake->watched_count > 0;
    pthread_mutex_unlock(&wake->mutex);
    if (waiters)
        syncguard_backend_stirred_all(&sqlite->base);
    return SYNCGUARD_OK;
}

bool sg_wake_in_place(sg_sqlite *sqlite)
{
    sg_wake *wake = &sqlite->wake;
    struct stat path;
    struct stat file;
    pthread_mutex_lock(&wake->mutex);
    bool same = lstat(sqlite->wake_path, &path) == 0 && fstat(wake->fd, &file) == 0 &&
                path.st_dev == file.st_dev && path.st_ino == file.st_ino;
    pthread_mutex_unlock(&wake->mutex);
    return same;
}

/* ---- watching ------------------------------------------------------------------------------ */

static sg_watched **find_watched(sg_wake *wake, size_t slot, const char *key, size_t length)
{
    sg_watched **link = &wake->watched[slot];
    while (*link != NULL && ((*link)->length != length || memcmp((*link)->key, key, length) != 0))
        link = &(*link)->next;
    return link;
}

/* Caller holds the mutex. */
static bool add_watched(sg_sqlite *sqlite, size_t slot, const char *key, size_t length)
{
    sg_wake *wake = &sqlite->wake;
    if (wake->fd < 0 || !start(sqlite))
        return false;
    /* Other keys of the slot have their value already, and a change of it is still to be told. */
    if (wake->watched[slot] == NULL && !read_slots(wake->fd, slot, 1, &wake->seen[slot]))
        return false;
    sg_watched *watched = syncguard_calloc(1, sizeof *watched + length);
    if (watched == NULL)
        return false;
    memcpy(watched->key, key, length);
    watched->length = length;
    watched->next = wake->watched[slot];
    wake->watched[slot] = watched;
    wake->watched_count++;
    return true;
}

bool sg_wake_watch(sg_sqlite *sqlite, const char *key, size_t length, bool *added)
{
    sg_wake *wake = &sqlite->wake;
    size_t slot = slot_of(key, length);
    pthread_mutex_lock(&wake->mutex);
    /* Armed already: whatever happened since is or will be reported, this attempt counts. */
    bool before = *find_watched(wake, slot, key, length) != NULL;
    *added = !before && add_watched(sqlite, slot, key, length);
    bool armed = (before || *added) && !wake->deaf;
    pthread_mutex_unlock(&wake->mutex);
    return armed;
}

void sg_wake_unwatch(syncguard_backend *backend, const char *key, size_t length)
{
    sg_wake *wake = &sg_sqlite_of(backend)->wake;
    size_t slot = slot_of(key, length);
    pthread_mutex_lock(&wake->mutex);
    sg_watched **link = find_watched(wake, slot, key, length);
    sg_watched *watched = *link;
    if (watched != NULL) {
        *link = watched->next;
        wake->watched_count--;
    }
    pthread_mutex_unlock(&wake->mutex);
    syncguard_free(watched);
}

/* ---- telling ------------------------------------------------------------------------------- */

/* Whether waiters of other keys share the slot. Caller holds the mutex. */
static bool shared_slot(const sg_wake *wake, size_t slot, const char *key, size_t length)
{
    const sg_watched *first = wake->watched[slot];
    return first != NULL &&
           (first->next != NULL || first->length != length || memcmp(first->key, key, length) != 0);
}

/*
 * Our own waiters of the key are told by the core, so our own value counts as
 * seen; but first look whether somebody else's is about to be overwritten. One
 * that is written between the look and our write would be lost on waiters of
 * other keys in the slot: there our value is news like any other.
 */
void sg_wake_publish(sg_sqlite *sqlite, const char *key, size_t length)
{
    sg_wake *wake = &sqlite->wake;
    size_t slot = slot_of(key, length);
    bool watching = false;
    pthread_mutex_lock(&wake->mutex);
    if (wake->fd >= 0) {
        uint64_t value = wake->next_value++;
        uint64_t before = 0;
        watching = wake->watched[slot] != NULL;
        if (watching && read_slots(wake->fd, slot, 1, &before))
            mark_changed(wake, &before, slot, 1);
        if (pwrite(wake->fd, &value, sizeof value, (off_t)(slot * sizeof value)) ==
                (ssize_t)sizeof value &&
            !shared_slot(wake, slot, key, length))
            wake->seen[slot] = value;
    }
    pthread_mutex_unlock(&wake->mutex);
    if (watching)
        report(sqlite, slot, 1);
}

void sg_wake_destroy(sg_wake *wake, bool forked)
{
    if (wake->started && !forked) {
        syncguard_parker_unpark(&wake->stop);
        (void)pthread_join(wake->thread, NULL);
        syncguard_parker_close(&wake->stop);
    }
    if (wake->inotify_fd >= 0 && !forked)
        close(wake->inotify_fd);
    if (wake->fd >= 0 && !forked)
        close(wake->fd);
    for (size_t slot = 0; slot < SG_WAKE_SLOTS; slot++) {
        while (wake->watched[slot] != NULL) {
            sg_watched *watched = wake->watched[slot];
            wake->watched[slot] = watched->next;
            syncguard_free(watched);
        }
    }
    if (!forked)
        pthread_mutex_destroy(&wake->mutex);
}
