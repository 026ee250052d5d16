/*
 * See file_system.h.
 *
 * SQLite finds the -wal and -shm files by the name of the database, and its locks
 * belong to an inode. Two paths to one database are safe only if both lead to the
 * same folder and the same inodes. They do not if the file itself is mounted
 * elsewhere, or if one path leads through an overlay and the other to one of its
 * layers.
 */
#include "file_system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#else
#include <sys/mount.h>
#include <sys/param.h>
#endif

#include "errors.h"

#ifdef __linux__

/* ---- file systems ---- */

/* All others are local. */
static const struct {
    unsigned long magic;
    sg_sqlite_file_system_kind kind;
    const char *name;
} KNOWN[] = {
    /* Other machines do not see the locks of this kernel. */
    {0x6969, SG_SQLITE_FILE_SYSTEM_REMOTE, "nfs"},
    {0x517b, SG_SQLITE_FILE_SYSTEM_REMOTE, "smb"},
    {0xff534d42, SG_SQLITE_FILE_SYSTEM_REMOTE, "cifs"},
    {0xfe534d42, SG_SQLITE_FILE_SYSTEM_REMOTE, "smb2"},
    {0x5346414f, SG_SQLITE_FILE_SYSTEM_REMOTE, "afs"},
    {0x6b414653, SG_SQLITE_FILE_SYSTEM_REMOTE, "afs"},
    {0x73757245, SG_SQLITE_FILE_SYSTEM_REMOTE, "coda"},
    {0x564c, SG_SQLITE_FILE_SYSTEM_REMOTE, "ncp"},
    {0x01021997, SG_SQLITE_FILE_SYSTEM_REMOTE, "9p"},
    {0x00c36400, SG_SQLITE_FILE_SYSTEM_REMOTE, "ceph"},
    {0x0bd00bd0, SG_SQLITE_FILE_SYSTEM_REMOTE, "lustre"},
    {0x47504653, SG_SQLITE_FILE_SYSTEM_REMOTE, "gpfs"},
    {0x01161970, SG_SQLITE_FILE_SYSTEM_REMOTE, "gfs2"},
    {0x7461636f, SG_SQLITE_FILE_SYSTEM_REMOTE, "ocfs2"},
    {0x786f4256, SG_SQLITE_FILE_SYSTEM_REMOTE, "vboxsf"},
    {0xbacbacbc, SG_SQLITE_FILE_SYSTEM_REMOTE, "vmhgfs"},
    {0x19830326, SG_SQLITE_FILE_SYSTEM_REMOTE, "beegfs"},
    {0x01021994, SG_SQLITE_FILE_SYSTEM_MEMORY, "tmpfs"},
    {0x858458f6, SG_SQLITE_FILE_SYSTEM_MEMORY, "ramfs"},
    /* The layers have paths of their own. */
    {0x794c7630, SG_SQLITE_FILE_SYSTEM_ALIASED, "overlay"},
    /* "locks.db." or LOCKS~1.DB may be the same file, but the files beside it are not. */
    {0x4d44, SG_SQLITE_FILE_SYSTEM_ALIASED, "vfat"},
    {0x2011bab0, SG_SQLITE_FILE_SYSTEM_ALIASED, "exfat"},
    {0x5346544e, SG_SQLITE_FILE_SYSTEM_ALIASED, "ntfs"},
    {0x7366746e, SG_SQLITE_FILE_SYSTEM_ALIASED, "ntfs3"},
};
#define FUSE_MAGIC 0x65735546UL
#define OVERLAY_MAGIC 0x794c7630UL

/* FUSE does not say what is behind it; these are known to be local. */
static const struct {
    const char *name;
    sg_sqlite_file_system_kind kind;
} LOCAL_FUSE[] = {
    {"fuse.gocryptfs", SG_SQLITE_FILE_SYSTEM_LOCAL},
    {"fuse.encfs", SG_SQLITE_FILE_SYSTEM_LOCAL},
    {"fuse.lxcfs", SG_SQLITE_FILE_SYSTEM_LOCAL},
    /* These show folders that also have another path, or names with aliases. */
    {"fuse.fuse-overlayfs", SG_SQLITE_FILE_SYSTEM_ALIASED},
    {"fuse.mergerfs", SG_SQLITE_FILE_SYSTEM_ALIASED},
    {"fuse.bindfs", SG_SQLITE_FILE_SYSTEM_ALIASED},
    {"fuseblk", SG_SQLITE_FILE_SYSTEM_ALIASED},
    {"fuse.ntfs-3g", SG_SQLITE_FILE_SYSTEM_ALIASED},
};

static const char MOUNTS[] = "/proc/self/mountinfo";

/* The type of the mount of path, as mountinfo names it. */
static bool mountinfo_find_type(const char *path, char *name, size_t size)
{
    struct stat about;
    char wanted[48];
    char line[2048];
    bool found = false;
    FILE *mounts = stat(path, &about) == 0 ? fopen(MOUNTS, "re") : NULL;
    if (mounts == NULL)
        return false;
    snprintf(wanted, sizeof wanted, "%u:%u", major(about.st_dev), minor(about.st_dev));
    while (!found && fgets(line, sizeof line, mounts) != NULL) {
        char device[48];
        char type[64];
        const char *rest = strstr(line, " - ");
        found = rest != NULL && sscanf(line, "%*d %*d %47s", device) == 1 &&
                strcmp(device, wanted) == 0 && sscanf(rest, " - %63s", type) == 1;
        if (found)
            snprintf(name, size, "%s", type);
    }
    fclose(mounts);
    return found;
}

static sg_sqlite_file_system_kind file_system_fuse_kind(const char *path, char *name, size_t size)
{
    snprintf(name, size, "fuse");
    if (mountinfo_find_type(path, name, size)) {
        for (size_t i = 0; i < sizeof LOCAL_FUSE / sizeof LOCAL_FUSE[0]; i++) {
            if (strcmp(name, LOCAL_FUSE[i].name) == 0)
                return LOCAL_FUSE[i].kind;
        }
    }
    return SG_SQLITE_FILE_SYSTEM_REMOTE;
}

static unsigned long file_system_magic(const struct statfs *about)
{
    return (unsigned long)about->f_type & 0xffffffffUL;
}

syncguard_status sg_sqlite_file_system_read(const char *path, sg_sqlite_file_system_kind *kind,
                                            char *name, size_t size, syncguard_error *err)
{
    struct statfs about;
    if (statfs(path, &about) != 0)
        return sg_sqlite_fail_errno(err, errno, path, "its file system is unknown");
    unsigned long magic = file_system_magic(&about);
    *kind = SG_SQLITE_FILE_SYSTEM_LOCAL;
    snprintf(name, size, "local (type %lx)", magic);
    if (magic == FUSE_MAGIC)
        *kind = file_system_fuse_kind(path, name, size);
    for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++) {
        if (KNOWN[i].magic == magic) {
            *kind = KNOWN[i].kind;
            snprintf(name, size, "%s", KNOWN[i].name);
        }
    }
    return SYNCGUARD_OK;
}

/* ---- mounts ---- */

/* Our paths are shorter, so a word that does not fit is not one of them. */
#define WORD_SIZE 1024

/* The byte that three octal digits stand for. */
static int mountinfo_read_escape(FILE *mounts)
{
    int code = 0;
    for (int i = 0; i < 3; i++) {
        int digit = getc(mounts);
        if (digit < '0' || digit > '7')
            return '\\';
        code = code * 8 + (digit - '0');
    }
    return code & 0xff;
}

/* Reads up to one of ends, which is returned, or EOF. Decodes octal escapes. A word that is too
 * long becomes empty. */
static int mountinfo_read_word(FILE *mounts, const char *ends, char word[WORD_SIZE])
{
    size_t length = 0;
    int c = getc(mounts);
    for (; c != EOF && strchr(ends, c) == NULL; c = getc(mounts)) {
        int byte = c == '\\' ? mountinfo_read_escape(mounts) : c;
        if (length < WORD_SIZE)
            word[length++] = (char)byte;
    }
    word[length < WORD_SIZE ? length : 0] = '\0';
    return c;
}

static bool mount_path_is_below(const char *path, const char *folder)
{
    size_t length = strlen(folder);
    return folder[0] == '/' && strncmp(path, folder, length) == 0 &&
           (path[length] == '/' || path[length] == '\0' || length == 1);
}

typedef struct mount_search {
    const char *path;
    bool lower_too; /* find is_lower, too: there may be thousands of lower folders to inspect */
    bool is_mount_point;
    bool is_upper; /* path is, or is below, the upper folder of an overlay */
    bool is_lower; /* the same for a lower folder */
} mount_search;

/* The options of an overlay have escapes of their own, for commas and colons. */
static void layer_unescape(char *text)
{
    char *to = text;
    for (; *text != '\0'; text++) {
        if (*text == '\\' && text[1] != '\0')
            text++;
        *to++ = *text;
    }
    *to = '\0';
}

/* Like mount_path_is_below, but also finds a layer that is named through links, or mounted
 * elsewhere. */
static bool mount_path_is_in_layer(const char *path, char *layer)
{
    char above[WORD_SIZE];
    struct stat top;
    layer_unescape(layer);
    if (mount_path_is_below(path, layer))
        return true;
    if (layer[0] != '/' || strlen(path) >= sizeof above || stat(layer, &top) != 0)
        return false;
    snprintf(above, sizeof above, "%s", path);
    struct stat here;
    while (above[0] != '\0') {
        if (stat(above, &here) == 0 && here.st_dev == top.st_dev && here.st_ino == top.st_ino)
            return true;
        *strrchr(above, '/') = '\0';
    }
    return false;
}

/* Reads the options of an overlay, the rest of its line: "rw,lowerdir=/a:/b,upperdir=/c". In other
 * values a colon is not a separator. */
static int mount_search_layers(FILE *mounts, mount_search *search)
{
    char word[WORD_SIZE];
    int end = ',';
    while (end != '\n' && end != EOF) {
        end = mountinfo_read_word(mounts, "=,\n", word);
        bool several = strcmp(word, "lowerdir") == 0;
        bool lower = several || strcmp(word, "lowerdir+") == 0;
        bool upper = strcmp(word, "upperdir") == 0;
        while (end == '=' || end == ':') {
            end = mountinfo_read_word(mounts, several ? ":,\n" : ",\n", word);
            if (lower && search->lower_too && mount_path_is_in_layer(search->path, word))
                search->is_lower = true;
            if (upper && mount_path_is_in_layer(search->path, word))
                search->is_upper = true;
        }
    }
    return end;
}

/* A line is "ID PARENT DEVICE ROOT MOUNTPOINT OPTIONS FIELDS... - TYPE SOURCE OPTIONS". */
static int mount_search_line(FILE *mounts, mount_search *search)
{
    char word[WORD_SIZE];
    int end = ' ';
    for (int i = 0; i < 5 && end == ' '; i++)
        end = mountinfo_read_word(mounts, " \n", word);
    if (end == ' ' && strcmp(word, search->path) == 0)
        search->is_mount_point = true;
    while (end == ' ' && strcmp(word, "-") != 0)
        end = mountinfo_read_word(mounts, " \n", word);
    if (end == ' ')
        end = mountinfo_read_word(mounts, " \n", word);
    bool overlay = strcmp(word, "overlay") == 0;
    if (end == ' ')
        end = mountinfo_read_word(mounts, " \n", word);
    if (end == ' ' && overlay)
        end = mount_search_layers(mounts, search);
    while (end == ' ')
        end = mountinfo_read_word(mounts, " \n", word);
    return end;
}

static syncguard_status mount_search_run(mount_search *search, syncguard_error *err)
{
    FILE *mounts = fopen(MOUNTS, "re");
    if (mounts == NULL)
        return sg_sqlite_fail_errno(err, errno, MOUNTS,
                                    "cannot be read, so the mount of the file is unknown");
    while (mount_search_line(mounts, search) != EOF)
        continue;
    fclose(mounts);
    return SYNCGUARD_OK;
}

/* Whether path is a mount point. *known is false if the kernel does not say. */
static bool mount_path_is_mount_root(const char *path, bool *known)
{
    *known = false;
#ifdef STATX_ATTR_MOUNT_ROOT
    struct statx about;
    if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, 0, &about) == 0) {
        *known = (about.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0;
        return (about.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
    }
#else
    (void)path;
#endif
    return false;
}

syncguard_status sg_sqlite_file_system_refuse_mount(const char *path, syncguard_error *err)
{
    mount_search search = {.path = path};
    bool known = false;
    bool mounted = mount_path_is_mount_root(path, &known);
    if (!known) {
        syncguard_status status = mount_search_run(&search, err);
        if (status != SYNCGUARD_OK)
            return status;
        mounted = search.is_mount_point;
    }
    if (mounted)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "%s: is mounted as a single file, without the files beside it: mount "
                              "the folder",
                              path);
    return SYNCGUARD_OK;
}

/* Whether folder is inside an overlay, where names may be the same as in its layers. */
static bool overlay_contains_folder(const char *folder)
{
    struct statfs about;
    return statfs(folder, &about) == 0 && file_system_magic(&about) == OVERLAY_MAGIC;
}

static syncguard_status overlay_refuse_upper(const char *folder, syncguard_error *err)
{
    mount_search search = {.path = folder};
    if (overlay_contains_folder(folder))
        return SYNCGUARD_OK;
    syncguard_status status = mount_search_run(&search, err);
    if (status == SYNCGUARD_OK && search.is_upper)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "%s: in the upper folder of an overlay, whose users have other "
                                "locks: use the path in the overlay",
                                folder);
    return status;
}

bool sg_sqlite_file_system_is_lower(const char *folder)
{
    mount_search search = {.path = folder, .lower_too = true};
    return !overlay_contains_folder(folder) && mount_search_run(&search, NULL) == SYNCGUARD_OK &&
           search.is_lower;
}

#else

syncguard_status sg_sqlite_file_system_read(const char *path, sg_sqlite_file_system_kind *kind,
                                            char *name, size_t size, syncguard_error *err)
{
    struct statfs about;
    if (statfs(path, &about) != 0)
        return sg_sqlite_fail_errno(err, errno, path, "its file system is unknown");
    bool local = (about.f_flags & MNT_LOCAL) != 0;
    *kind = local ? SG_SQLITE_FILE_SYSTEM_LOCAL : SG_SQLITE_FILE_SYSTEM_REMOTE;
    snprintf(name, size, "%s", about.f_fstypename);
    return SYNCGUARD_OK;
}

/* Only folders are mounted. */
syncguard_status sg_sqlite_file_system_refuse_mount(const char *path, syncguard_error *err)
{
    (void)path;
    (void)err;
    return SYNCGUARD_OK;
}

static syncguard_status overlay_refuse_upper(const char *folder, syncguard_error *err)
{
    (void)folder;
    (void)err;
    return SYNCGUARD_OK;
}

bool sg_sqlite_file_system_is_lower(const char *folder)
{
    (void)folder;
    return false;
}

#endif

syncguard_status sg_sqlite_file_system_refuse(const char *folder, syncguard_error *err)
{
    char name[64];
    sg_sqlite_file_system_kind kind = SG_SQLITE_FILE_SYSTEM_LOCAL;
    syncguard_status status = sg_sqlite_file_system_read(folder, &kind, name, sizeof name, err);
    if (status == SYNCGUARD_OK && kind == SG_SQLITE_FILE_SYSTEM_REMOTE)
        status =
            syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                           "%s: on a file system that other machines may share (%s)", folder, name);
    return status == SYNCGUARD_OK ? overlay_refuse_upper(folder, err) : status;
}

/* ---- space ---- */

/* A file must be able to grow by this much or, on a small file system, by the share of its WAL (see
 * wal.c). */
#define GROWTH_BYTES (64 * 1024)
#define SMALL_SHARE 8

static const char *file_system_shortage_text(int error, const struct statvfs *about)
{
    if (error == EDQUOT)
        return "the quota of this user is used up";
    if (error == ENOSPC && about->f_files > 0 && about->f_favail == 0)
        return "no inode is left on the file system";
    return error == ENOSPC ? "the file system is full" : NULL;
}

#ifdef O_TMPFILE

/* 0 or an errno. */
static int file_system_grow_file(int fd, off_t length)
{
    static const char zeros[4096];
    int error = posix_fallocate(fd, 0, length);
    if (error != EOPNOTSUPP && error != EINVAL)
        return error;
    for (off_t at = 0; at < length; at += (off_t)sizeof zeros) {
        if (pwrite(fd, zeros, sizeof zeros, at) < 0)
            return errno;
    }
    return 0;
}

#endif

const char *sg_sqlite_file_system_shortage(const char *folder)
{
    struct statvfs about;
    if (statvfs(folder, &about) != 0)
        return NULL;
    uint64_t share = (uint64_t)about.f_blocks * about.f_frsize / SMALL_SHARE;
    uint64_t length = share > 0 && share < GROWTH_BYTES ? share : GROWTH_BYTES;
#ifdef O_TMPFILE
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    int error = fd < 0 ? errno : file_system_grow_file(fd, (off_t)length);
    if (fd >= 0)
        close(fd);
    if (error != EOPNOTSUPP && error != EISDIR)
        return file_system_shortage_text(error, &about);
#endif
    /* The file system has no files without a name, so its own figures must suffice. */
    bool enough = (uint64_t)about.f_bavail * about.f_frsize >= length &&
                  (about.f_files == 0 || about.f_favail > 0);
    error = enough ? 0 : ENOSPC;
    return file_system_shortage_text(error, &about);
}
