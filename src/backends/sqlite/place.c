/*
 * Where the database lives: its folder, the creation of the empty file, the file
 * system below it, and whether others could make us write to something else.
 *
 * Creation is the only moment at which a descriptor of the database is opened
 * here. It happens with O_EXCL, so that no lock can exist yet, and under
 * list_mutex (see file.c), so that no handle of this process takes one before the
 * descriptor is closed again.
 *
 * Who may write to the folder can plant a link under the name of one of our files,
 * and we would write to its target. So nobody's folder that everybody may write
 * to is used, unless it is sticky and the files in it are ours; and root, whose
 * files are worth the most, uses only files of its own, in folders that only
 * root can change. Files with a second name are always refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#else
#include <sys/mount.h>
#include <sys/param.h>
#endif

#include "internal.h"

const char *sg_sqlite_errno_name(int error)
{
    switch (error) {
    case EACCES:
        return "EACCES";
    case EPERM:
        return "EPERM";
    case ENOENT:
        return "ENOENT";
    case ENOTDIR:
        return "ENOTDIR";
    case EROFS:
        return "EROFS";
    case ENOSPC:
        return "ENOSPC";
    case EDQUOT:
        return "EDQUOT";
    case EIO:
        return "EIO";
    case ELOOP:
        return "ELOOP";
    case ENAMETOOLONG:
        return "ENAMETOOLONG";
    case EMFILE:
        return "EMFILE";
    case ENFILE:
        return "ENFILE";
    case ENOMEM:
        return "ENOMEM";
    default:
        return "errno";
    }
}

syncguard_status sg_sqlite_fail_errno(syncguard_error *err, int error, const char *path,
                                      const char *what)
{
    syncguard_status status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    if (error == EMFILE || error == ENFILE)
        status = SYNCGUARD_E_RATE_LIMITED;
    else if (error == ELOOP || error == ENAMETOOLONG || error == ENOTDIR)
        status = SYNCGUARD_E_INVALID_ARGUMENT;
    return syncguard_fail(err, status, sg_sqlite_errno_name(error), "%s: %s (errno %d)", path, what,
                          error);
}

/* ---- file systems -------------------------------------------------------------------------- */

#ifdef __linux__

/* File systems that other kernels write too: locks of this one do not reach them. */
static const struct {
    unsigned long magic;
    const char *name;
} REMOTE[] = {
    {0x6969, "nfs"},        {0x517b, "smb"},       {0xff534d42, "cifs"},   {0xfe534d42, "smb2"},
    {0x5346414f, "afs"},    {0x6b414653, "afs"},   {0x73757245, "coda"},   {0x564c, "ncp"},
    {0x01021997, "9p"},     {0x00c36400, "ceph"},  {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"},
    {0x01161970, "gfs2"},   {0x7461636f, "ocfs2"}, {0x786f4256, "vboxsf"}, {0xbacbacbc, "vmhgfs"},
    {0x19830326, "beegfs"},
};
#define FUSE_MAGIC 0x65735546UL

/* FUSE says nothing about what is behind it; these are known to be of this machine. */
static const char *const LOCAL_FUSE[] = {"fuseblk",        "fuse.fuse-overlayfs", "fuse.mergerfs",
                                         "fuse.gocryptfs", "fuse.encfs",          "fuse.bindfs",
                                         "fuse.ntfs-3g",   "fuse.lxcfs"};

/* Finds the type of the mount with this device number in /proc/self/mountinfo. */
static bool mount_type(dev_t device, char *name, size_t size)
{
    char wanted[48];
    char line[2048];
    bool found = false;
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    if (mounts == NULL)
        return false;
    snprintf(wanted, sizeof wanted, "%u:%u", major(device), minor(device));
    while (!found && fgets(line, sizeof line, mounts) != NULL) {
        char numbers[48];
        char type[64];
        const char *rest = strstr(line, " - ");
        if (rest != NULL && sscanf(line, "%*d %*d %47s", numbers) == 1 &&
            strcmp(numbers, wanted) == 0 && sscanf(rest, " - %63s", type) == 1) {
            snprintf(name, size, "%s", type);
            found = true;
        }
    }
    fclose(mounts);
    return found;
}

static bool fuse_is_local(const char *path, char *name, size_t size)
{
    struct stat about;
    snprintf(name, size, "fuse");
    if (stat(path, &about) != 0 || !mount_type(about.st_dev, name, size))
        return false;
    for (size_t i = 0; i < sizeof LOCAL_FUSE / sizeof LOCAL_FUSE[0]; i++) {
        if (strcmp(name, LOCAL_FUSE[i]) == 0)
            return true;
    }
    return false;
}

syncguard_status sg_sqlite_file_system(const char *path, char *name, size_t size, bool *local,
                                       syncguard_error *err)
{
    struct statfs about;
    if (statfs(path, &about) != 0)
        return sg_sqlite_fail_errno(err, errno, path, "its file system cannot be told");
    unsigned long magic = (unsigned long)about.f_type & 0xffffffffUL;
    *local = true;
    snprintf(name, size, "local (type %lx)", magic);
    if (magic == FUSE_MAGIC) {
        *local = fuse_is_local(path, name, size);
        return SYNCGUARD_OK;
    }
    for (size_t i = 0; i < sizeof REMOTE / sizeof REMOTE[0]; i++) {
        if (REMOTE[i].magic == magic) {
            *local = false;
            snprintf(name, size, "%s", REMOTE[i].name);
        }
    }
    return SYNCGUARD_OK;
}

#else

syncguard_status sg_sqlite_file_system(const char *path, char *name, size_t size, bool *local,
                                       syncguard_error *err)
{
    struct statfs about;
    if (statfs(path, &about) != 0)
        return sg_sqlite_fail_errno(err, errno, path, "its file system cannot be told");
    *local = (about.f_flags & MNT_LOCAL) != 0;
    snprintf(name, size, "%s", about.f_fstypename);
    return SYNCGUARD_OK;
}

#endif

static syncguard_status refuse_remote(const char *path, syncguard_error *err)
{
    char name[64];
    bool local = true;
    syncguard_status status = sg_sqlite_file_system(path, name, sizeof name, &local, err);
    if (status == SYNCGUARD_OK && !local)
        status =
            syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                           "%s: on a file system that other machines may share (%s)", path, name);
    return status;
}

/* ---- folder and file ----------------------------------------------------------------------- */

/* The part before the last slash; "/" and "." where there is none. */
static void folder_of(const char *path, char out[SG_SQLITE_MAX_PATH_BYTES + 1])
{
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (slash == NULL)
        snprintf(out, SG_SQLITE_MAX_PATH_BYTES + 1, ".");
    else if (length == 0)
        snprintf(out, SG_SQLITE_MAX_PATH_BYTES + 1, "/");
    else
        snprintf(out, SG_SQLITE_MAX_PATH_BYTES + 1, "%.*s", (int)length, path);
}

/* So that a name that was made survives a crash of the machine. */
static void sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); /* not all file systems can */
        close(fd);
    }
}

/* Makes the last folder of the path, 0700 whatever the umask; deeper ones must exist. */
static syncguard_status make_folder(const char *folder, syncguard_error *err)
{
    char parent[SG_SQLITE_MAX_PATH_BYTES + 1];
    folder_of(folder, parent);
    if (mkdir(folder, 0700) != 0) {
        if (errno == EEXIST) /* somebody else was faster */
            return SYNCGUARD_OK;
        if (errno == ENOENT)
            return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "ENOENT",
                                  "%s: this folder does not exist", parent);
        return sg_sqlite_fail_errno(err, errno, folder, "the folder cannot be made");
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) {
        (void)fchmod(fd, 0700);
        close(fd);
    }
    sync_folder(parent);
    return SYNCGUARD_OK;
}

/* ---- whom to trust ------------------------------------------------------------------------- */

static syncguard_status unsafe(const char *path, const char *what, syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "%s: %s", path, what);
}

/* For root: nobody else may rename or replace what is in this folder. */
static syncguard_status check_folder_for_root(const char *folder, const struct stat *about,
                                              syncguard_error *err)
{
    mode_t others = about->st_gid == 0 ? 0002 : 0022;
    if (about->st_uid != 0)
        return unsafe(folder, "belongs to another user, who could plant files for root to write to",
                      err);
    if ((about->st_mode & others) != 0 && (about->st_mode & S_ISVTX) == 0)
        return unsafe(folder, "others may write here, and plant files for root to write to", err);
    return SYNCGUARD_OK;
}

/* The folder of the file, and for root all above it. *shared: others may add names to it. */
static syncguard_status check_folders(const char *folder, bool *shared, syncguard_error *err)
{
    char path[SG_SQLITE_MAX_PATH_BYTES + 1];
    struct stat about;
    snprintf(path, sizeof path, "%s", folder);
    for (bool last = true;; last = false) {
        if (stat(path, &about) != 0)
            return sg_sqlite_fail_errno(err, errno, path, "cannot be looked at");
        if (last) {
            *shared = (about.st_mode & 0002) != 0;
            if (*shared && (about.st_mode & S_ISVTX) == 0)
                return unsafe(path, "everybody may write here, and so take and drop locks", err);
        }
        if (geteuid() != 0)
            return SYNCGUARD_OK;
        syncguard_status status = check_folder_for_root(path, &about, err);
        if (status != SYNCGUARD_OK || strcmp(path, "/") == 0 || strcmp(path, ".") == 0)
            return status;
        char child[SG_SQLITE_MAX_PATH_BYTES + 1];
        memcpy(child, path, sizeof child);
        folder_of(child, path);
    }
}

syncguard_status sg_sqlite_check_kind(const char *path, const struct stat *about,
                                      syncguard_error *err)
{
    if (!S_ISREG(about->st_mode))
        return unsafe(path, "not a regular file", err);
    /* The files beside it are found by name: two names would be two sets of them. */
    if (about->st_nlink > 1)
        return unsafe(path, "has more than one name (hard link)", err);
    if (geteuid() == 0 && about->st_uid != 0)
        return unsafe(path, "belongs to another user; root uses only files of its own", err);
    return SYNCGUARD_OK;
}

/* The files that SQLite and we keep beside the database. */
static const char *const SUFFIXES[] = {"-wal", "-shm", "-wake", "-journal"};
#define SUFFIX_COUNT (sizeof SUFFIXES / sizeof SUFFIXES[0])

static syncguard_status check_one(const char *path, bool shared, bool must_be_there,
                                  syncguard_error *err)
{
    struct stat about;
    if (lstat(path, &about) != 0)
        return errno == ENOENT && !must_be_there
                   ? SYNCGUARD_OK
                   : sg_sqlite_fail_errno(err, errno, path, "cannot be looked at");
    syncguard_status status = sg_sqlite_check_kind(path, &about, err);
    if (status == SYNCGUARD_OK && shared && about.st_uid != geteuid())
        status =
            unsafe(path, "belongs to another user, in a folder that everybody may write to", err);
    return status;
}

static syncguard_status check_files(const char *path, bool shared, syncguard_error *err)
{
    char name[SG_SQLITE_MAX_PATH_BYTES + 16];
    syncguard_status status = check_one(path, shared, true, err);
    for (size_t i = 0; i < SUFFIX_COUNT && status == SYNCGUARD_OK; i++) {
        snprintf(name, sizeof name, "%s%s", path, SUFFIXES[i]);
        status = check_one(name, shared, false, err);
    }
    return status;
}

/* ---- making -------------------------------------------------------------------------------- */

/*
 * Makes the empty file, and removes what an earlier database of this name left: SQLite would take
 * it for part of the new one, and processes that have the old one open may still use it. The lock
 * on the folder keeps two of us from removing each other's files.
 */
static syncguard_status make_locked(const char *path, const char *folder, syncguard_error *err)
{
    char name[SG_SQLITE_MAX_PATH_BYTES + 16];
    struct stat about;
    if (lstat(path, &about) == 0) /* somebody else was faster */
        return SYNCGUARD_OK;
    for (size_t i = 0; i < SUFFIX_COUNT; i++) {
        snprintf(name, sizeof name, "%s%s", path, SUFFIXES[i]);
        if (unlink(name) != 0 && errno != ENOENT)
            return sg_sqlite_fail_errno(err, errno, name,
                                        "left by an earlier file, cannot be removed");
    }
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == EEXIST ? SYNCGUARD_OK
                               : sg_sqlite_fail_errno(err, errno, path, "the file cannot be made");
    (void)fchmod(fd, 0600);
    close(fd);
    sync_folder(folder);
    return SYNCGUARD_OK;
}

syncguard_status sg_sqlite_lock_folder(const char *path, int *out, syncguard_error *err)
{
    char folder[SG_SQLITE_MAX_PATH_BYTES + 1];
    syncguard_status status = SYNCGUARD_OK;
    folder_of(path, folder);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return sg_sqlite_fail_errno(err, errno, folder, "cannot be opened");
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        *out = fd;
        return status;
    }
    status = errno == EWOULDBLOCK ? SG_SQLITE_BUSY
                                  : sg_sqlite_fail_errno(err, errno, folder, "cannot be locked");
    close(fd);
    return status;
}

static syncguard_status make_file(const char *path, const char *folder, syncguard_error *err)
{
    int lock = -1;
    syncguard_status status = sg_sqlite_lock_folder(path, &lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = make_locked(path, folder, err);
    close(lock);
    return status;
}

syncguard_status sg_sqlite_place(const char *path, mode_t *mode, syncguard_error *err)
{
    char folder[SG_SQLITE_MAX_PATH_BYTES + 1];
    struct stat about;
    bool shared = false;
    folder_of(path, folder);
    syncguard_status status = check_folders(folder, &shared, err);
    if (status == SYNCGUARD_OK && lstat(path, &about) != 0) {
        if (errno != ENOENT)
            return sg_sqlite_fail_errno(err, errno, path, "cannot be looked at");
        status = refuse_remote(folder, err);
        if (status == SYNCGUARD_OK)
            status = make_file(path, folder, err);
    }
    if (status == SYNCGUARD_OK)
        status = check_files(path, shared, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (stat(path, &about) != 0)
        return sg_sqlite_fail_errno(err, errno, path, "cannot be looked at");
    *mode = about.st_mode & 0777;
    /* Here and not by SQLite, which takes a file of one byte for an empty one. */
    if (about.st_size > 0 && about.st_size < SG_SQLITE_HEADER_BYTES)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, "SQLITE_NOTADB",
                              "%s: is not a SyncGuard database; left untouched", path);
    return refuse_remote(path, err);
}

/* ---- the path ------------------------------------------------------------------------------ */

syncguard_status sg_sqlite_resolve(const char *given, char out[SG_SQLITE_MAX_PATH_BYTES + 1],
                                   syncguard_error *err)
{
    char folder[SG_SQLITE_MAX_PATH_BYTES + 1];
    char whole[PATH_MAX];
    struct stat about;
    const char *base = strrchr(given, '/') + 1; /* there is one: see plain_path */
    bool there = realpath(given, whole) != NULL;
    if (!there) {
        if (errno != ENOENT)
            return sg_sqlite_fail_errno(err, errno, given, "cannot be looked at");
        folder_of(given, folder);
        if (stat(folder, &about) != 0) {
            syncguard_status status =
                errno == ENOENT ? make_folder(folder, err)
                                : sg_sqlite_fail_errno(err, errno, folder, "cannot be looked at");
            if (status != SYNCGUARD_OK)
                return status;
        }
        if (realpath(folder, whole) == NULL)
            return sg_sqlite_fail_errno(err, errno, folder, "cannot be looked at");
    }
    const char *slash = there || strcmp(whole, "/") == 0 ? "" : "/";
    int length =
        snprintf(out, SG_SQLITE_MAX_PATH_BYTES + 1, "%s%s%s", whole, slash, there ? "" : base);
    if (length > SG_SQLITE_MAX_PATH_BYTES)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "sqlite: the path is longer than %d bytes", SG_SQLITE_MAX_PATH_BYTES);
    return SYNCGUARD_OK;
}
