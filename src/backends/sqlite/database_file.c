/*
 * See database_file.h.
 *
 * Creation is the only moment at which a descriptor of the database is opened here. It uses O_EXCL,
 * so that no lock can exist yet, and runs under list_mutex (see attach.c), so that no handle of
 * this process takes one before the descriptor is closed again.
 *
 * A user who may write to the folder can plant a link under the name of one of our files, and we
 * would write to its target. So a folder that all users may write to is used only if it is sticky
 * and the files in it are ours, and root uses only files of its own, in folders that only root can
 * change. path.c checks the folders on the way there. Files with a second name are always refused.
 */
#include "database_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "errors.h"
#include "file_system.h"

/* ---- ownership and permissions ---- */

/* Checks the folder of the file and, for root, all folders above it. *shared: other users may add
 * names to it. */
static syncguard_status database_file_check_folders(const char *folder, bool *shared,
                                                    syncguard_error *err)
{
    char path[SG_SQLITE_PATH_SIZE];
    struct stat about;
    snprintf(path, sizeof path, "%s", folder);
    for (bool last = true;; last = false) {
        syncguard_status status = sg_sqlite_path_inspect_folder(path, &about, err);
        if (status != SYNCGUARD_OK)
            return status;
        if (last) {
            *shared = (about.st_mode & 0002) != 0;
            if (*shared && (about.st_mode & S_ISVTX) == 0)
                return sg_sqlite_path_unsafe(
                    path, "everybody may write here, and so take and drop locks", err);
        }
        if (geteuid() != 0)
            return SYNCGUARD_OK;
        status = sg_sqlite_path_check_for_root(path, &about, err);
        if (status != SYNCGUARD_OK || strcmp(path, "/") == 0)
            return status;
        char child[SG_SQLITE_PATH_SIZE];
        memcpy(child, path, sizeof child);
        sg_sqlite_path_folder(child, path);
    }
}

syncguard_status sg_sqlite_file_check(const char *path, const struct stat *about,
                                      syncguard_error *err)
{
    if (!S_ISREG(about->st_mode))
        return sg_sqlite_path_unsafe(path, "not a regular file", err);
    /* The files beside it are found by name: two names would be two sets of them. */
    if (about->st_nlink > 1)
        return sg_sqlite_path_unsafe(path, "has more than one name (hard link)", err);
    if (geteuid() == 0 && about->st_uid != 0)
        return sg_sqlite_path_unsafe(
            path, "belongs to another user; root uses only files of its own", err);
    return SYNCGUARD_OK;
}

/* The database, and the files that SQLite and we keep beside it. */
static const char *const SUFFIXES[] = {"", "-wal", "-shm", "-wake", "-journal"};
#define SUFFIX_COUNT (sizeof SUFFIXES / sizeof SUFFIXES[0])

static syncguard_status database_file_check_one(const char *path, bool shared, bool there,
                                                bool database, syncguard_error *err)
{
    struct stat about;
    if (lstat(path, &about) != 0)
        return errno == ENOENT && !there
                   ? SYNCGUARD_OK
                   : sg_sqlite_fail_errno(err, errno, path, "cannot be inspected");
    syncguard_status status = sg_sqlite_file_check(path, &about, err);
    /* The files beside it are those of its folder; another mount of the file has others. */
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_file_system_refuse_mount(path, err);
    if (status == SYNCGUARD_OK && shared && about.st_uid != geteuid())
        status = sg_sqlite_path_unsafe(
            path, "belongs to another user, in a folder that everybody may write to", err);
    /* SQLite takes a file of one byte for an empty one. */
    if (status == SYNCGUARD_OK && database && about.st_size > 0 &&
        about.st_size < SG_SQLITE_HEADER_BYTES)
        status = sg_sqlite_fail(NULL, path, SQLITE_NOTADB, err);
    return status;
}

/*
 * Where all users may add names, a file that is missing now could be another user's when SQLite
 * opens it: above all a journal, whose pages SQLite writes back. So the names are claimed with
 * empty files, which no other user can remove or replace. SQLite ignores them while they are empty;
 * beside an empty database it removes two of them.
 *
 * False if the name may still be free.
 */
static bool database_file_claim_name(const char *path, const char *suffix,
                                     char name[SG_SQLITE_BESIDE_SIZE])
{
    struct stat about;
    bool removed = strcmp(suffix, "-wal") == 0 || strcmp(suffix, "-journal") == 0;
    if (lstat(path, &about) != 0 || (about.st_size == 0 && removed))
        return false;
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == EEXIST;
    (void)fchmod(fd, about.st_mode & 0777);
    close(fd);
    return true;
}

static syncguard_status database_file_check_all(const char *path, bool shared, syncguard_error *err)
{
    char name[SG_SQLITE_BESIDE_SIZE];
    syncguard_status status = SYNCGUARD_OK;
    for (size_t i = 0; i < SUFFIX_COUNT && status == SYNCGUARD_OK; i++) {
        snprintf(name, sizeof name, "%s%s", path, SUFFIXES[i]);
        bool there = i == 0 || (shared && database_file_claim_name(path, SUFFIXES[i], name));
        status = database_file_check_one(name, shared, there, i == 0, err);
    }
    return status;
}

syncguard_fd_identity sg_sqlite_file_identify(const char *path)
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

/* ---- creation ---- */

/*
 * Creates the empty file, and removes the files that an earlier database of this name has left:
 * SQLite would take them for part of the new one, and processes that have the old one open may
 * still use them. The lock on the folder keeps two processes from removing each other's files.
 */
static syncguard_status database_file_create_locked(const char *path, const char *folder,
                                                    mode_t mode, syncguard_error *err)
{
    char name[SG_SQLITE_BESIDE_SIZE];
    struct stat about;
    if (lstat(path, &about) == 0) /* another process was faster */
        return SYNCGUARD_OK;
    for (size_t i = 1; i < SUFFIX_COUNT; i++) {
        snprintf(name, sizeof name, "%s%s", path, SUFFIXES[i]);
        /* On a read-only file system unlink fails for missing names, too. */
        if (lstat(name, &about) == 0 && unlink(name) != 0 && errno != ENOENT)
            return sg_sqlite_fail_errno(err, errno, name,
                                        "left by an earlier file, cannot be removed");
    }
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == EEXIST
                   ? SYNCGUARD_OK
                   : sg_sqlite_fail_errno(err, errno, path, "the file cannot be created");
    (void)fchmod(fd, mode); /* independent of the umask */
    close(fd);
    sg_sqlite_path_sync(folder);
    return SYNCGUARD_OK;
}

syncguard_status sg_sqlite_file_lock_folder(const char *path, int *out, syncguard_error *err)
{
    char folder[SG_SQLITE_PATH_SIZE];
    sg_sqlite_path_folder(path, folder);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return sg_sqlite_fail_errno(err, errno, folder, "cannot be opened");
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        *out = fd;
        return SYNCGUARD_OK;
    }
    syncguard_status status = errno == EWOULDBLOCK
                                  ? SG_SQLITE_BUSY
                                  : sg_sqlite_fail_errno(err, errno, folder, "cannot be locked");
    close(fd);
    return status;
}

static syncguard_status database_file_create(const char *path, const char *folder, mode_t mode,
                                             syncguard_error *err)
{
    int lock = -1;
    syncguard_status status = sg_sqlite_file_lock_folder(path, &lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = database_file_create_locked(path, folder, mode, err);
    close(lock);
    return status;
}

syncguard_status sg_sqlite_file_prepare(const char *path, mode_t mode, syncguard_error *err)
{
    char folder[SG_SQLITE_PATH_SIZE];
    struct stat about;
    bool shared = false;
    sg_sqlite_path_folder(path, folder);
    syncguard_status status = database_file_check_folders(folder, &shared, err);
    if (status == SYNCGUARD_OK)
        status = sg_sqlite_file_system_refuse(folder, err);
    if (status == SYNCGUARD_OK && lstat(path, &about) != 0)
        status = errno == ENOENT ? database_file_create(path, folder, mode, err)
                                 : sg_sqlite_fail_errno(err, errno, path, "cannot be inspected");
    if (status == SYNCGUARD_OK)
        status = database_file_check_all(path, shared, err);
    return status;
}

syncguard_status sg_sqlite_file_check_again(const char *path, syncguard_error *err)
{
    char folder[SG_SQLITE_PATH_SIZE];
    bool shared = false;
    sg_sqlite_path_folder(path, folder);
    syncguard_status status = database_file_check_folders(folder, &shared, err);
    if (status == SYNCGUARD_OK && shared)
        status = database_file_check_all(path, shared, err);
    return status;
}
