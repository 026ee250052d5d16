/*
 * Which boot of the machine this is, and the boot clock that all its processes share.
 *
 * A time namespace shifts CLOCK_BOOTTIME for its members; /proc tells by how much,
 * relative to the first namespace. Rows hold the unshifted clock, so that every
 * container of one kernel compares the same numbers.
 *
 * The boot id is the kernel's unless a file is mounted over it, as some container
 * runtimes do. An id like that is different in each container, so it says
 * nothing about the boot: it counts as unknown, and the clock alone decides (see
 * sg_sqlite_remaining_ms).
 *
 * Whatever cannot be found out is an error: a wrong guess makes a second holder.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/vfs.h>
#else
#include <sys/param.h>
#include <sys/sysctl.h>
#endif

#include "internal.h"

#ifdef __linux__

#define PROC_MAGIC 0x9fa0

static syncguard_status unreadable(const char *path, const char *what, syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, sg_sqlite_errno_name(errno),
                          "%s: cannot be read, so %s cannot be told", path, what);
}

/* Not on a file that somebody mounted there. */
static bool is_procfs(const struct statfs *about)
{
    return ((unsigned long)about->f_type & 0xffffffffUL) == PROC_MAGIC;
}

static bool is_mount_point(int fd)
{
#ifdef STATX_ATTR_MOUNT_ROOT
    struct statx about;
    return statx(fd, "", AT_EMPTY_PATH, 0, &about) == 0 &&
           (about.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
#else
    (void)fd;
    return false;
#endif
}

static ssize_t read_all(int fd, char *out, size_t size)
{
    ssize_t got = read(fd, out, size - 1);
    while (got > 0 && out[got - 1] == '\n')
        got--;
    out[got > 0 ? got : 0] = '\0';
    return got;
}

/* Empty if the id is not the kernel's. */
static syncguard_status read_id(char id[SG_BOOT_ID_SIZE], syncguard_error *err)
{
    static const char source[] = "/proc/sys/kernel/random/boot_id";
    struct statfs about;
    ssize_t got = -1;
    int fd = open(source, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        got = read_all(fd, id, SG_BOOT_ID_SIZE);
        if (got > 0 && (fstatfs(fd, &about) != 0 || !is_procfs(&about) || is_mount_point(fd)))
            id[0] = '\0';
        close(fd);
    }
    return got > 0 ? SYNCGUARD_OK : unreadable(source, "locks of an earlier boot", err);
}

/* A number that ends at white space or with the text; *at moves behind it. */
static bool parse_number(const char **at, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoll(*at, &end, 10);
    bool good = errno == 0 && end != *at && strchr(" \t\n", *end) != NULL; /* NUL included */
    *at = end;
    return good;
}

/* Lines like "boottime 100000 0"; the first kernels with time namespaces wrote 7 for the name. */
static bool parse_offset(const char *text, int64_t *offset_ns)
{
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        int64_t seconds = 0;
        int64_t nanoseconds = 0;
        line += *line == '\n';
        size_t name = strcspn(line, " \t");
        const char *at = line + name;
        if ((name != 8 || memcmp(line, "boottime", 8) != 0) && (name != 1 || line[0] != '7'))
            continue;
        if (!parse_number(&at, &seconds) || !parse_number(&at, &nanoseconds))
            return false;
        *offset_ns = seconds * 1000 * SYNCGUARD_NS_PER_MS + nanoseconds;
        return true;
    }
    return false;
}

static syncguard_status read_offset(int64_t *offset_ns, syncguard_error *err)
{
    static const char source[] = "/proc/self/timens_offsets";
    struct statfs about;
    char text[256];
    bool told = false;
    int fd = open(source, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        told = fstatfs(fd, &about) == 0 && is_procfs(&about) &&
               read_all(fd, text, sizeof text) > 0 && parse_offset(text, offset_ns);
        close(fd);
    }
    return told ? SYNCGUARD_OK : unreadable(source, "the shift of the boot clock", err);
}

/* The offsets in /proc are those of the namespace that children get, so it must be our own. By
 * name: a process that changed its user may not open the folder. */
static syncguard_status read_clock(sg_boot *boot, syncguard_error *err)
{
    static const char source[] = "/proc/self/ns";
    struct stat own;
    struct stat children;
    struct statfs about;
    if (stat("/proc/self/ns/time", &own) != 0) {
        /* A kernel without time namespaces has one boot clock. */
        if (errno == ENOENT && statfs(source, &about) == 0 && is_procfs(&about))
            return SYNCGUARD_OK;
        return unreadable(source, "the shift of the boot clock", err);
    }
    boot->namespace_device = own.st_dev;
    boot->namespace_inode = own.st_ino;
    if (stat("/proc/self/ns/time_for_children", &children) != 0)
        return unreadable(source, "the shift of the boot clock", err);
    if (own.st_dev != children.st_dev || own.st_ino != children.st_ino)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                              "this process made a time namespace for its children, so the shift "
                              "of its own boot clock cannot be told");
    return read_offset(&boot->offset_ns, err);
}

syncguard_status sg_boot_read(sg_boot *boot, syncguard_error *err)
{
    sg_boot now;
    memset(&now, 0, sizeof now);
    syncguard_status status = read_id(now.id, err);
    if (status == SYNCGUARD_OK)
        status = read_clock(&now, err);
    if (status == SYNCGUARD_OK) /* half of it would count as all of it at the next look */
        *boot = now;
    return status;
}

bool sg_boot_changed(const sg_boot *boot)
{
    struct stat own;
    if (boot->namespace_inode == 0)
        return false;
    return stat("/proc/self/ns/time", &own) != 0 || own.st_dev != boot->namespace_device ||
           own.st_ino != boot->namespace_inode;
}

#else

syncguard_status sg_boot_read(sg_boot *boot, syncguard_error *err)
{
#ifdef __APPLE__
    const char *name = "kern.bootsessionuuid";
#else
    const char *name = "kern.boot_id";
#endif
    memset(boot, 0, sizeof *boot);
    size_t size = SG_BOOT_ID_SIZE - 1;
    if (sysctlbyname(name, boot->id, &size, NULL, 0) != 0 || size == 0)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                              "%s: cannot be read, so locks of an earlier boot cannot be told",
                              name);
    boot->id[size] = '\0';
    return SYNCGUARD_OK;
}

bool sg_boot_changed(const sg_boot *boot)
{
    (void)boot;
    return false;
}

#endif
