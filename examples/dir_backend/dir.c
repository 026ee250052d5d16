/*
 * A backend in one file: locks in a folder, for the processes of one machine. dir:/path/of/folder
 *
 *     c-HASH        the counter of a key, never removed; each change of the key holds its flock
 *     BOOT/k-HASH   the lock of the key, live or expired; replaced by rename, so always whole
 *     BOOT/t-HASH   the next k-HASH while it is written
 *     BOOT/i-ID     a symbolic link to HASH: the way from a lock id to the key
 *
 * HASH stands for the key, which may be longer than a file name and have any characters. Time is
 * the boot clock, which all processes of a machine share and which cannot be set. It begins anew
 * with each boot, and so do the locks: BOOT is the kernel's boot id. Only the two paths are kept in
 * memory, so there is nothing to do after a fork.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <syncguard/sys/backend.h>
#include <syncguard/sys/url.h>

#define NAME_SIZE (PATH_MAX + 80)
#define FIRST_PAUSE_NS 50000
#define LONGEST_PAUSE_NS (2 * SYNCGUARD_NS_PER_MS)

typedef struct dir_backend {
    syncguard_backend base;
    char counters[PATH_MAX];
    char locks[PATH_MAX + 40];
} dir_backend;

typedef struct stored { /* what k-HASH contains */
    int64_t expires_boot_ms;
    syncguard_record record;
} stored;

typedef struct held { /* a key whose flock this call holds, and the lock that was found */
    dir_backend *dir;
    char hash[SYNCGUARD_LOCK_ID_SIZE];
    int counter; /* descriptor of c-HASH; -1: the key was never locked */
    bool found, live;
    int64_t now_ns, now_ms;
    stored lock;
} held;

/* ---- files ---- */

static const char *dir_file_path(const dir_backend *dir, char kind, const char *name,
                                 char out[NAME_SIZE])
{
    snprintf(out, NAME_SIZE, "%s/%c-%s", kind == 'c' ? dir->counters : dir->locks, kind, name);
    return out;
}

static syncguard_status dir_fail_errno(syncguard_error *err, const char *what)
{
    int error = errno;
    syncguard_status status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    if (error == EACCES || error == EPERM || error == EROFS)
        status = SYNCGUARD_E_AUTH_FAILED;
    else if (error == EMFILE || error == ENFILE)
        status = SYNCGUARD_E_RATE_LIMITED;
    return syncguard_fail(err, status, NULL, "%s: %s", what, syncguard_errno_text(error));
}

/* OK, ABSENT or a failure. */
static syncguard_status dir_lock_read(const dir_backend *dir, const char *hash, stored *out,
                                      syncguard_error *err)
{
    char name[NAME_SIZE];
    int fd = open(dir_file_path(dir, 'k', hash, name), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? SYNCGUARD_ABSENT : dir_fail_errno(err, "a lock cannot be read");
    ssize_t got = read(fd, out, sizeof *out);
    close(fd);
    out->record.key[sizeof out->record.key - 1] = '\0';
    out->record.owner[sizeof out->record.owner - 1] = '\0';
    if (got != (ssize_t)sizeof *out || !syncguard_lock_id_valid(out->record.lock_id) ||
        !syncguard_fence_valid(out->record.fence))
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "a lock cannot be understood");
    return SYNCGUARD_OK;
}

static syncguard_status dir_lock_replace(const held *key, const stored *lock, syncguard_error *err)
{
    char next[NAME_SIZE];
    int fd = open(dir_file_path(key->dir, 't', key->hash, next),
                  O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool written = fd >= 0 && write(fd, lock, sizeof *lock) == (ssize_t)sizeof *lock;
    if (fd >= 0 && close(fd) != 0)
        written = false;
    char name[NAME_SIZE];
    if (written && rename(next, dir_file_path(key->dir, 'k', key->hash, name)) == 0)
        return SYNCGUARD_OK;
    return dir_fail_errno(err, "a lock cannot be written");
}

static syncguard_status dir_lock_remove(const held *key, syncguard_error *err)
{
    char name[NAME_SIZE];
    if (unlink(dir_file_path(key->dir, 'k', key->hash, name)) != 0)
        return dir_fail_errno(err, "a lock cannot be removed");
    (void)unlink(dir_file_path(key->dir, 'i', key->lock.record.lock_id, name));
    return SYNCGUARD_OK;
}

/* The boot clock determines expiry; now_ms is as far from expires_at_ms as that clock is from the
 * expiry. */
static void dir_lock_set_now(stored *lock, int64_t now_boot_ms)
{
    lock->record.now_ms = lock->record.expires_at_ms - (lock->expires_boot_ms - now_boot_ms);
}

/* ---- one key at a time ---- */

/* Waits for the flock within the limits. The kernel releases the flock of a process that dies. */
static syncguard_status dir_counter_lock(int fd, const syncguard_limits *limits,
                                         syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    int round = 0;
    while (status == SYNCGUARD_OK && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return dir_fail_errno(err, "a counter cannot be locked");
        status = syncguard_backoff_wait(FIRST_PAUSE_NS, round++, LONGEST_PAUSE_NS, limits, err);
    }
    return status;
}

/* A child that was forked meanwhile has inherited the descriptor, so closing it is not enough: the
 * explicit unlock ends the flock. */
static void dir_key_leave(held *key)
{
    if (key->counter < 0)
        return;
    (void)flock(key->counter, LOCK_UN);
    close(key->counter);
    key->counter = -1;
}

/* On success the caller holds the flock and must call dir_key_leave. The clock is read last, when
 * no other process can change the key. */
static syncguard_status dir_key_enter(held *key, bool create, const syncguard_limits *limits,
                                      syncguard_error *err)
{
    key->found = key->live = false;
    char name[NAME_SIZE];
    key->counter = open(dir_file_path(key->dir, 'c', key->hash, name),
                        O_RDWR | O_NOFOLLOW | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
    if (key->counter < 0)
        return !create && errno == ENOENT ? SYNCGUARD_OK
                                          : dir_fail_errno(err, "a counter cannot be opened");
    syncguard_status status = dir_counter_lock(key->counter, limits, err);
    if (status == SYNCGUARD_OK)
        status = dir_lock_read(key->dir, key->hash, &key->lock, err);
    key->now_ns = syncguard_clock_ns();
    key->now_ms = key->now_ns / SYNCGUARD_NS_PER_MS;
    key->found = status == SYNCGUARD_OK;
    key->live = key->found && syncguard_is_live(key->lock.expires_boot_ms, key->now_ms);
    if (status < 0)
        dir_key_leave(key);
    return status < 0 ? status : SYNCGUARD_OK;
}

static syncguard_status dir_key_enter_by_name(held *key, syncguard_backend *backend,
                                              const char *text, size_t length, bool create,
                                              const syncguard_limits *limits, syncguard_error *err)
{
    key->dir = (dir_backend *)(void *)backend;
    syncguard_name_hash(text, length, key->hash);
    return dir_key_enter(key, create, limits, err);
}

/* OK with a live lock of this id; ABSENT with the reason, or a failure, without the flock. */
static syncguard_status dir_key_enter_by_id(held *key, syncguard_backend *backend,
                                            const char *lock_id, const syncguard_limits *limits,
                                            syncguard_event_reason *reason, syncguard_error *err)
{
    *reason = SYNCGUARD_REASON_NOT_FOUND;
    key->dir = (dir_backend *)(void *)backend;
    char name[NAME_SIZE];
    ssize_t length =
        readlink(dir_file_path(key->dir, 'i', lock_id, name), key->hash, sizeof key->hash - 1);
    if (length < 0)
        return errno == ENOENT ? SYNCGUARD_ABSENT : dir_fail_errno(err, "a lock id cannot be read");
    key->hash[length] = '\0';
    syncguard_status status = dir_key_enter(key, false, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (key->found && strcmp(key->lock.record.lock_id, lock_id) == 0) {
        if (key->live)
            return SYNCGUARD_OK;
        *reason = SYNCGUARD_REASON_EXPIRED;
    }
    dir_key_leave(key);
    return SYNCGUARD_ABSENT;
}

/* ---- acquire, release, extend ---- */

static syncguard_status dir_counter_read(const held *key, int64_t *value, syncguard_error *err)
{
    char digits[SYNCGUARD_FENCE_SIZE] = "";
    ssize_t got = pread(key->counter, digits, SYNCGUARD_FENCE_DIGITS, 0);
    *value = 0; /* a counter that was just made is empty */
    if (got < 0)
        return dir_fail_errno(err, "a counter cannot be read");
    if (got == 0 || syncguard_fence_parse(digits, value))
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "a counter cannot be understood");
}

/* Syncs the counter, and the name of a new one: a crash of the machine repeats no fence. */
static syncguard_status dir_counter_write(const held *key, const char *fence, bool is_new,
                                          syncguard_error *err)
{
    int folder = is_new ? open(key->dir->counters, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    bool written =
        (!is_new || folder >= 0) &&
        pwrite(key->counter, fence, SYNCGUARD_FENCE_DIGITS, 0) == SYNCGUARD_FENCE_DIGITS &&
        fdatasync(key->counter) == 0 && (!is_new || fsync(folder) == 0);
    syncguard_status status =
        written ? SYNCGUARD_OK : dir_fail_errno(err, "a counter cannot be written");
    if (folder >= 0)
        close(folder);
    return status;
}

/* The counter is written first: a crash before the lock is written skips a number, but no number
 * is given twice. */
static syncguard_status dir_grant_store(held *key, const stored *lock, bool is_new,
                                        syncguard_error *err)
{
    syncguard_status status = dir_counter_write(key, lock->record.fence, is_new, err);
    if (status == SYNCGUARD_OK)
        status = dir_lock_replace(key, lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    char name[NAME_SIZE];
    if (key->found)
        (void)unlink(dir_file_path(key->dir, 'i', key->lock.record.lock_id, name));
    key->lock = *lock;
    if (symlink(key->hash, dir_file_path(key->dir, 'i', lock->record.lock_id, name)) == 0)
        return SYNCGUARD_OK;
    status = dir_fail_errno(err, "a lock id cannot be written");
    (void)dir_lock_remove(key, NULL);
    return status;
}

static syncguard_status dir_key_grant(held *key, syncguard_acquire_op *op, syncguard_error *err)
{
    stored lock = {.expires_boot_ms = key->now_ms + op->ttl_ms};
    int64_t current = 0;
    syncguard_status status = dir_counter_read(key, &current, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_fence_next(current, &op->fence, err);
    lock.record.acquired_at_ms = syncguard_wall_ms();
    if (status == SYNCGUARD_OK)
        status = syncguard_expiry(lock.record.acquired_at_ms, op->ttl_ms, &op->expires_at_ms, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_fence_format(op->fence, lock.record.fence, err);
    if (status != SYNCGUARD_OK)
        return status;
    lock.record.expires_at_ms = op->expires_at_ms;
    memcpy(lock.record.lock_id, op->lock_id, sizeof lock.record.lock_id);
    memcpy(lock.record.key, op->key, op->key_length + 1);
    snprintf(lock.record.owner, sizeof lock.record.owner, "%s", op->owner);
    return dir_grant_store(key, &lock, current == 0, err);
}

static syncguard_status dir_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                                    syncguard_error *err)
{
    held key;
    syncguard_status status =
        dir_key_enter_by_name(&key, backend, op->key, op->key_length, true, &op->limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (key.live && strcmp(key.lock.record.lock_id, op->lock_id) == 0) { /* it was sent again */
        op->expires_at_ms = key.lock.record.expires_at_ms;
        (void)syncguard_fence_parse(key.lock.record.fence, &op->fence);
    } else if (key.live) { /* armed_ms stays 0: a waiter polls */
        op->remaining_ms = syncguard_remaining_ms(key.lock.expires_boot_ms, key.now_ms);
        status = SYNCGUARD_LOCKED;
    } else {
        status = dir_key_grant(&key, op, err);
    }
    dir_key_leave(&key);
    return status;
}

static syncguard_status dir_release(syncguard_backend *backend, syncguard_release_op *op,
                                    syncguard_error *err)
{
    held key;
    syncguard_status status =
        dir_key_enter_by_id(&key, backend, op->lock_id, &op->limits, &op->reason, err);
    op->key_length = 0;
    if (status != SYNCGUARD_OK)
        return status;
    status = dir_lock_remove(&key, err);
    if (status == SYNCGUARD_OK) { /* so that the core wakes waiters of this handle */
        op->key_length = strlen(key.lock.record.key);
        memcpy(op->key, key.lock.record.key, op->key_length + 1);
    }
    dir_key_leave(&key);
    return status;
}

static syncguard_status dir_extend(syncguard_backend *backend, syncguard_extend_op *op,
                                   syncguard_error *err)
{
    held key;
    syncguard_status status =
        dir_key_enter_by_id(&key, backend, op->lock_id, &op->limits, &op->reason, err);
    if (status != SYNCGUARD_OK)
        return status;
    op->first_sent_ns = key.now_ns; /* the lease counts from here, however long the flock took */
    status = syncguard_expiry(syncguard_wall_ms(), op->ttl_ms, &op->expires_at_ms, err);
    key.lock.expires_boot_ms = key.now_ms + op->ttl_ms;
    key.lock.record.expires_at_ms = op->expires_at_ms;
    if (status == SYNCGUARD_OK)
        status = dir_lock_replace(&key, &key.lock, err);
    dir_key_leave(&key);
    return status;
}

/* An acquire has taken effect or failed when it returns, so none takes effect after this. */
static syncguard_status dir_undo(syncguard_backend *backend, const char *text, size_t length,
                                 const char *lock_id, int64_t until_ns,
                                 const syncguard_limits *limits, syncguard_error *err)
{
    held key;
    syncguard_status status =
        dir_key_enter_by_name(&key, backend, text, length, false, limits, err);
    (void)until_ns;
    if (status == SYNCGUARD_OK && key.found && strcmp(key.lock.record.lock_id, lock_id) == 0)
        status = dir_lock_remove(&key, err);
    dir_key_leave(&key);
    return status;
}

static bool dir_lock_is_old(const stored *lock, int64_t now_ms)
{
    return now_ms - lock->expires_boot_ms > SYNCGUARD_CLEANUP_GUARD_MS;
}

static syncguard_status dir_cleanup(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                    syncguard_error *err)
{
    held key;
    syncguard_status status =
        dir_key_enter_by_name(&key, backend, op->key, op->key_length, false, &op->limits, err);
    if (status == SYNCGUARD_OK) {
        bool same = key.found && strcmp(key.lock.record.lock_id, op->lock_id) == 0 &&
                    key.lock.record.expires_at_ms == op->expires_at_ms &&
                    dir_lock_is_old(&key.lock, key.now_ms);
        status = same ? dir_lock_remove(&key, err) : SYNCGUARD_ABSENT;
    }
    dir_key_leave(&key);
    return status;
}

/* ---- reading ---- */

static syncguard_status dir_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                      syncguard_error *err)
{
    held key;
    syncguard_status status =
        dir_key_enter_by_name(&key, backend, op->key, op->key_length, false, &op->limits, err);
    op->dead_lock_id[0] = '\0';
    if (status != SYNCGUARD_OK)
        return status;
    op->locked = key.live;
    if (key.found && !key.live) {
        memcpy(op->dead_lock_id, key.lock.record.lock_id, sizeof op->dead_lock_id);
        op->dead_expires_at_ms = key.lock.record.expires_at_ms;
        op->dead_for_ms = key.now_ms - key.lock.expires_boot_ms;
    }
    dir_key_leave(&key);
    return SYNCGUARD_OK;
}

static syncguard_status dir_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                   syncguard_error *err)
{
    held key;
    syncguard_event_reason reason;
    syncguard_status status =
        op->lock_id != NULL
            ? dir_key_enter_by_id(&key, backend, op->lock_id, &op->limits, &reason, err)
            : dir_key_enter_by_name(&key, backend, op->key, op->key_length, false, &op->limits,
                                    err);
    if (status != SYNCGUARD_OK)
        return status;
    if (key.live) {
        dir_lock_set_now(&key.lock, key.now_ms);
        op->record = key.lock.record;
    }
    dir_key_leave(&key);
    return key.live ? SYNCGUARD_OK : SYNCGUARD_ABSENT;
}

/* Reads the names of the counters, which stay, while a rename may hide a lock from readdir. A lock
 * file is always whole, so it is read without the flock. */
static syncguard_status dir_list_by_counter(dir_backend *dir, bool expired,
                                            const syncguard_limits *limits, syncguard_record_fn fn,
                                            void *context, syncguard_error *err)
{
    int64_t span_ns = syncguard_limits_left_ns(limits);
    syncguard_limits page = *limits;
    DIR *folder = opendir(dir->counters);
    if (folder == NULL)
        return dir_fail_errno(err, "the folder cannot be read");
    syncguard_status status = SYNCGUARD_OK;
    struct dirent *entry;
    stored lock;
    while (status >= 0 && (entry = readdir(folder)) != NULL) {
        if (strncmp(entry->d_name, "c-", 2) != 0)
            continue;
        status = syncguard_limits_check(&page, err);
        if (status == SYNCGUARD_OK)
            status = dir_lock_read(dir, entry->d_name + 2, &lock, err);
        if (status == SYNCGUARD_OK) {
            int64_t now_ms = syncguard_clock_ns() / SYNCGUARD_NS_PER_MS;
            bool listed = expired ? dir_lock_is_old(&lock, now_ms)
                                  : syncguard_is_live(lock.expires_boot_ms, now_ms);
            dir_lock_set_now(&lock, now_ms);
            if (listed && !fn(context, &lock.record))
                break;
            page = syncguard_limits_from_now(limits, span_ns);
        }
    }
    closedir(folder);
    return status < 0 ? status : SYNCGUARD_OK;
}

static syncguard_status dir_list(syncguard_backend *backend, const syncguard_limits *limits,
                                 syncguard_record_fn fn, void *context, syncguard_error *err)
{
    return dir_list_by_counter((dir_backend *)(void *)backend, false, limits, fn, context, err);
}

static syncguard_status dir_list_expired(syncguard_backend *backend, const syncguard_limits *limits,
                                         syncguard_record_fn fn, void *context,
                                         syncguard_error *err)
{
    return dir_list_by_counter((dir_backend *)(void *)backend, true, limits, fn, context, err);
}

/* ---- the module ---- */

static syncguard_status dir_after_fork(syncguard_backend *backend, syncguard_error *err)
{
    (void)backend;
    (void)err;
    return SYNCGUARD_OK;
}

static void dir_destroy(syncguard_backend *backend)
{
    syncguard_backend_fini(backend);
    syncguard_free(backend);
}

static const syncguard_backend_ops OPS = {
    .acquire = dir_acquire,
    .release = dir_release,
    .extend = dir_extend,
    .is_locked = dir_is_locked,
    .lookup = dir_lookup,
    .list = dir_list,
    .list_expired = dir_list_expired,
    .undo = dir_undo,
    .cleanup = dir_cleanup,
    .after_fork = dir_after_fork,
    .destroy = dir_destroy,
};

static const syncguard_capabilities CAPABILITIES = {
    .backend = "dir",
    .supports_fencing = true,
    .time_authority = SYNCGUARD_TIME_SERVER, /* one clock for all */
    .wakes_waiters = false,
    .is_shared = true,
    .keeps_expired = true,
    .works_in_child = true,
};

static syncguard_status dir_folders_make(dir_backend *dir, const char *path, syncguard_error *err)
{
    char boot_id[40];
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    bool known = file != NULL && fscanf(file, "%39s", boot_id) == 1;
    if (file != NULL)
        fclose(file);
    if (!known)
        return dir_fail_errno(err, "the boot id cannot be read");
    if ((mkdir(path, 0700) != 0 && errno != EEXIST) || realpath(path, dir->counters) == NULL)
        return dir_fail_errno(err, "the folder cannot be made");
    snprintf(dir->locks, sizeof dir->locks, "%s/%s", dir->counters, boot_id);
    if (mkdir(dir->locks, 0700) != 0 && errno != EEXIST)
        return dir_fail_errno(err, "the folder cannot be made");
    return SYNCGUARD_OK;
}

static syncguard_status dir_create(const char *path, const syncguard_options *options,
                                   syncguard_backend **out, syncguard_error *err)
{
    dir_backend *dir = syncguard_calloc(1, sizeof *dir);
    if (dir == NULL)
        return syncguard_fail_memory(err);
    syncguard_status status = dir_folders_make(dir, path, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_backend_init(&dir->base, &OPS, &CAPABILITIES, options, err);
    if (status == SYNCGUARD_OK)
        *out = &dir->base;
    else
        syncguard_free(dir);
    return status;
}

static syncguard_status dir_open_url(const char *text, const syncguard_options *given,
                                     syncguard_backend **out, syncguard_error *err)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_url *url = NULL;
    syncguard_status status = syncguard_options_read(given, &options, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_parse(text, &url, err);
    if (status == SYNCGUARD_OK &&
        (url->user != NULL || (url->hosts != NULL && url->hosts[0] != 0) || url->path[0] == '\0'))
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "the URL names no folder; write dir:/path/of/folder");
    if (status == SYNCGUARD_OK)
        status = syncguard_url_common(url, &options, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_done(url, err);
    if (status == SYNCGUARD_OK)
        status = dir_create(url->path, &options, out, err);
    syncguard_url_free(url);
    return status;
}

static const char *const SCHEMES[] = {"dir", NULL};

SYNCGUARD_API extern const syncguard_module syncguard_module_dir;
const syncguard_module syncguard_module_dir = {SYNCGUARD_ABI, "dir", SCHEMES, dir_open_url, NULL};
