/*
 * See path.h.
 *
 * A user who can change a link on the way to the database decides which files we use: after the
 * link is changed, the next process finds other files, and there are two holders. So the path is
 * followed component by component, as realpath does, and every link and, for root, every folder on
 * the way is checked.
 */
#include "path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "errors.h"

#define MOST_LINKS 40 /* as in the kernel */

void sg_sqlite_path_folder(const char *path, char out[SG_SQLITE_PATH_SIZE])
{
    size_t length = (size_t)(strrchr(path, '/') - path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    snprintf(out, SG_SQLITE_PATH_SIZE, "%.*s", length == 0 ? 1 : (int)length, path);
}

void sg_sqlite_path_sync(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); /* not all file systems can */
        close(fd);
    }
}

/* ---- trust ---- */

syncguard_status sg_sqlite_path_unsafe(const char *path, const char *what, syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "%s: %s", path, what);
}

syncguard_status sg_sqlite_path_inspect_folder(const char *folder, struct stat *about,
                                               syncguard_error *err)
{
    if (lstat(folder, about) != 0)
        return sg_sqlite_fail_errno(err, errno, folder, "cannot be inspected");
    if (!S_ISDIR(about->st_mode))
        return sg_sqlite_fail_errno(err, ENOTDIR, folder, "cannot be inspected");
    return SYNCGUARD_OK;
}

syncguard_status sg_sqlite_path_check_for_root(const char *folder, const struct stat *about,
                                               syncguard_error *err)
{
    mode_t others = about->st_gid == 0 ? 0002 : 0022;
    if (about->st_uid != 0)
        return sg_sqlite_path_unsafe(
            folder, "belongs to another user, who could plant files for root to write to", err);
    if ((about->st_mode & others) == 0 || (about->st_mode & S_ISVTX) != 0)
        return SYNCGUARD_OK;
    return sg_sqlite_path_unsafe(
        folder,
        (about->st_mode & 0002) != 0
            ? "everybody may write here, and plant files for root to write to"
            : "others may write here, and plant files for root to write to",
        err);
}

/* A user other than root trusts the owners of the folders on the way, but not all users. */
static syncguard_status path_check_link(const char *path, const struct stat *link,
                                        const struct stat *folder, syncguard_error *err)
{
    bool foreign = link->st_uid != 0 && link->st_uid != geteuid();
    if (foreign && (geteuid() == 0 || (folder->st_mode & 0002) != 0))
        return sg_sqlite_path_unsafe(path, "a link of another user, who could repoint it", err);
    return SYNCGUARD_OK;
}

/* ---- links ---- */

typedef struct path_walk {
    char done[PATH_MAX]; /* without links; empty for the root */
    char rest[PATH_MAX]; /* still to be followed from there, beginning with byte `at` */
    size_t at;
    int links;
    bool missing; /* the end of the path does not exist */
} path_walk;

static syncguard_status path_fail_too_long(const char *path, syncguard_error *err)
{
    return sg_sqlite_fail_errno(err, ENAMETOOLONG, path, "cannot be inspected");
}

/* Copies the next component of rest to name. */
static bool path_walk_next(path_walk *walk, char name[PATH_MAX])
{
    walk->at += strspn(walk->rest + walk->at, "/");
    size_t length = strcspn(walk->rest + walk->at, "/");
    memcpy(name, walk->rest + walk->at, length);
    name[length] = '\0';
    walk->at += length;
    return length > 0;
}

static syncguard_status path_walk_link(path_walk *walk, const char *path, syncguard_error *err)
{
    char target[PATH_MAX];
    char rest[PATH_MAX];
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0 || ++walk->links > MOST_LINKS)
        return sg_sqlite_fail_errno(err, length < 0 ? errno : ELOOP, path, "cannot be inspected");
    target[length] = '\0';
    memcpy(rest, walk->rest, sizeof rest);
    int needed = snprintf(walk->rest, sizeof walk->rest, "%s/%s", target, rest + walk->at);
    if (needed < 0 || (size_t)needed >= sizeof walk->rest)
        return path_fail_too_long(path, err);
    walk->at = 0;
    if (target[0] == '/')
        walk->done[0] = '\0';
    return SYNCGUARD_OK;
}

/* Enters name in the folder done. */
static syncguard_status path_walk_enter(path_walk *walk, const char *name,
                                        const struct stat *folder, syncguard_error *err)
{
    char path[PATH_MAX];
    struct stat about;
    int length = snprintf(path, sizeof path, "%s/%s", walk->done, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return path_fail_too_long(walk->done, err);
    if (lstat(path, &about) != 0) {
        walk->missing = errno == ENOENT;
        return walk->missing ? SYNCGUARD_OK
                             : sg_sqlite_fail_errno(err, errno, path, "cannot be inspected");
    }
    if (S_ISLNK(about.st_mode)) {
        syncguard_status status = path_check_link(path, &about, folder, err);
        return status == SYNCGUARD_OK ? path_walk_link(walk, path, err) : status;
    }
    memcpy(walk->done, path, (size_t)length + 1);
    return SYNCGUARD_OK;
}

static syncguard_status path_walk_step(path_walk *walk, const char *name, syncguard_error *err)
{
    struct stat folder;
    const char *done = walk->done[0] == '\0' ? "/" : walk->done;
    syncguard_status status = sg_sqlite_path_inspect_folder(done, &folder, err);
    if (status == SYNCGUARD_OK && geteuid() == 0)
        status = sg_sqlite_path_check_for_root(done, &folder, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (strcmp(name, ".") == 0)
        return SYNCGUARD_OK;
    if (strcmp(name, "..") == 0) {
        char *last = strrchr(walk->done, '/');
        if (last != NULL)
            *last = '\0';
        return SYNCGUARD_OK;
    }
    return path_walk_enter(walk, name, &folder, err);
}

/* A link of /proc to the root of another process reads as "/", which would be our own root; and the
 * working folder may have been entered through such a link: even if it is the same folder, other
 * files may be mounted in it. */
static syncguard_status path_refuse_other_root(const char *given, const char *resolved,
                                               syncguard_error *err)
{
    struct stat there;
    struct stat here;
    if (stat(given, &there) != 0)
        return sg_sqlite_fail_errno(err, errno, given, "cannot be inspected");
    bool exists = stat(resolved, &here) == 0;
    if (!exists && errno != ENOENT)
        return sg_sqlite_fail_errno(err, errno, resolved, "cannot be inspected");
    if (!exists || here.st_dev != there.st_dev || here.st_ino != there.st_ino)
        return sg_sqlite_path_unsafe(
            given, "leads into the root of another process; use a path of this one", err);
    return SYNCGUARD_OK;
}

/* Writes the path without links to out. *exists is false if its end is missing. */
static syncguard_status path_follow_links(const char *given, char out[PATH_MAX], bool *exists,
                                          syncguard_error *err)
{
    path_walk walk = {.links = 0};
    char name[PATH_MAX];
    char here[PATH_MAX] = "";
    if (given[0] != '/' && getcwd(here, sizeof here) == NULL)
        return sg_sqlite_fail_errno(err, errno, ".", "cannot be inspected");
    int length = snprintf(walk.rest, sizeof walk.rest, "%s/%s", here, given);
    if (length < 0 || (size_t)length >= sizeof walk.rest)
        return path_fail_too_long(given, err);
    syncguard_status status =
        here[0] != '\0' ? path_refuse_other_root(".", here, err) : SYNCGUARD_OK;
    while (status == SYNCGUARD_OK && !walk.missing && path_walk_next(&walk, name))
        status = path_walk_step(&walk, name, err);
    *exists = status == SYNCGUARD_OK && !walk.missing;
    (void)snprintf(out, PATH_MAX, "%s", walk.done[0] == '\0' ? "/" : walk.done);
    if (*exists && (walk.links > 0 || given[0] != '/'))
        status = path_refuse_other_root(given, out, err);
    return status;
}

/* ---- the path of the database ---- */

/* mkdir keeps the sticky bit whatever the umask is, so a folder that we have just created has
 * it. */
#define FRESH_MODE (S_ISVTX | 0700)

/* A user who may write to the parent can put another folder of ours in the place of the new one, so
 * that we would open that one to a group. */
static bool path_folder_is_fresh(int fd)
{
    struct stat about;
    return fstat(fd, &about) == 0 && about.st_uid == geteuid() &&
           (about.st_mode & (S_ISVTX | 0077)) == S_ISVTX;
}

/* Creates the last folder of the path for a file of this mode, independent of the umask. Its parent
 * must exist. In the folder of a group, files belong to the group of the folder. */
static syncguard_status path_create_folder(const char *folder, mode_t mode, syncguard_error *err)
{
    mode_t wanted = (mode & 0060) != 0 ? 02770 : 0700;
    char parent[SG_SQLITE_PATH_SIZE];
    char whole[PATH_MAX];
    bool exists = false;
    sg_sqlite_path_folder(folder, parent);
    syncguard_status status = path_follow_links(parent, whole, &exists, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (!exists)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "ENOENT",
                              "%s: this folder does not exist", parent);
    char path[PATH_MAX + SG_SQLITE_PATH_SIZE];
    snprintf(path, sizeof path, "%s%s", whole, strrchr(folder, '/'));
    if (mkdir(path, FRESH_MODE) != 0)
        return errno == EEXIST /* another process was faster */
                   ? SYNCGUARD_OK
                   : sg_sqlite_fail_errno(err, errno, folder, "the folder cannot be created");
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && path_folder_is_fresh(fd))
        (void)fchmod(fd, wanted);
    if (fd >= 0)
        close(fd);
    sg_sqlite_path_sync(whole);
    return SYNCGUARD_OK;
}

/* Resolves the folder of given without links, and creates it if it is missing. */
static syncguard_status path_resolve_folder(const char *given, mode_t mode, char whole[PATH_MAX],
                                            syncguard_error *err)
{
    char folder[SG_SQLITE_PATH_SIZE];
    bool exists = false;
    sg_sqlite_path_folder(given, folder);
    syncguard_status status = path_follow_links(folder, whole, &exists, err);
    if (status != SYNCGUARD_OK || exists)
        return status;
    if (strchr(folder, '/') == NULL) /* the working folder, removed meanwhile */
        return sg_sqlite_fail_errno(err, ENOENT, folder, "cannot be inspected");
    status = path_create_folder(folder, mode, err);
    if (status == SYNCGUARD_OK)
        status = path_follow_links(folder, whole, &exists, err);
    if (status == SYNCGUARD_OK && !exists)
        status = sg_sqlite_fail_errno(err, ENOENT, folder, "cannot be inspected");
    return status;
}

syncguard_status sg_sqlite_path_resolve(const char *given, mode_t mode,
                                        char out[SG_SQLITE_PATH_SIZE], syncguard_error *err)
{
    char whole[PATH_MAX];
    const char *name = ""; /* the part of the path that follows the resolved one */
    bool exists = false;
    syncguard_status status = path_follow_links(given, whole, &exists, err);
    if (status == SYNCGUARD_OK && !exists) {
        status = path_resolve_folder(given, mode, whole, err);
        name = strrchr(given, '/');
        if (strcmp(whole, "/") == 0)
            whole[0] = '\0';
    }
    if (status != SYNCGUARD_OK)
        return status;
    int length = snprintf(out, SG_SQLITE_PATH_SIZE, "%s%s", whole, name);
    if (length > SG_SQLITE_MAX_PATH_BYTES)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the path is longer than %d bytes", SG_SQLITE_MAX_PATH_BYTES);
    return SYNCGUARD_OK;
}
