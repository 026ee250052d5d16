/*
 * The boot id and the shift of the boot clock.
 *
 * A time namespace shifts CLOCK_BOOTTIME for its members; /proc says by how much, relative to the
 * first namespace. Rows hold the unshifted clock, so that all containers of one kernel compare the
 * same numbers.
 *
 * Some container runtimes mount a file over the kernel's boot id. Such an id differs between
 * containers and says nothing about the boot: it counts as unknown, and the clock alone decides
 * (see sqlite_record_read_remaining in record.c).
 *
 * A value that cannot be determined is an error: a wrong guess makes a second holder.
 */
#include "boot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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

#include "errors.h"
#include "syncguard/sys/wait.h"

int64_t sg_sqlite_boot_ms(const sg_sqlite_boot *boot, int64_t now_ns)
{
    return (now_ns - boot->offset_ns) / SYNCGUARD_NS_PER_MS;
}

#ifdef __linux__

#define PROC_MAGIC 0x9fa0

static syncguard_status boot_fail_unreadable(const char *path, const char *what,
                                             syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, sg_sqlite_errno_name(errno),
                          "%s: cannot be read, so %s is unknown", path, what);
}

/* False for a file that is mounted over one of /proc. */
static bool boot_file_is_procfs(const struct statfs *about)
{
    return ((unsigned long)about->f_type & 0xffffffffUL) == PROC_MAGIC;
}

static bool boot_file_is_mount_point(int fd)
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

/* Empty if the id is not the kernel's. */
static syncguard_status boot_id_read(char id[SG_SQLITE_BOOT_ID_SIZE], syncguard_error *err)
{
    static const char source[] = "/proc/sys/kernel/random/boot_id";
    struct statfs about;
    FILE *file = fopen(source, "re");
    bool known = file != NULL && fscanf(file, "%63s", id) == 1;
    if (known && (fstatfs(fileno(file), &about) != 0 || !boot_file_is_procfs(&about) ||
                  boot_file_is_mount_point(fileno(file))))
        id[0] = '\0';
    if (file != NULL)
        fclose(file);
    return known ? SYNCGUARD_OK : boot_fail_unreadable(source, "the boot id", err);
}

static bool boot_number_parse(const char *text, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == '\0';
}

/* Lines like "boottime 100000 0"; the first kernels with time namespaces wrote 7 for the name. */
static syncguard_status boot_offset_read(int64_t *offset_ns, syncguard_error *err)
{
    static const char source[] = "/proc/self/timens_offsets";
    struct statfs about;
    char word[3][24];
    int64_t seconds = 0;
    int64_t nanoseconds = 0;
    bool found = false;
    FILE *file = fopen(source, "re");
    bool readable =
        file != NULL && fstatfs(fileno(file), &about) == 0 && boot_file_is_procfs(&about);
    while (readable && !found && fscanf(file, "%23s %23s %23s", word[0], word[1], word[2]) == 3)
        found = strcmp(word[0], "boottime") == 0 || strcmp(word[0], "7") == 0;
    if (file != NULL)
        fclose(file);
    if (!found || !boot_number_parse(word[1], &seconds) ||
        !boot_number_parse(word[2], &nanoseconds))
        return boot_fail_unreadable(source, "the shift of the boot clock", err);
    *offset_ns = seconds * 1000 * SYNCGUARD_NS_PER_MS + nanoseconds;
    return SYNCGUARD_OK;
}

/* The offsets in /proc are those of the namespace that children get, so it must be our own. The
 * namespaces are compared by name: a process that changed its user may not open the folder. */
static syncguard_status boot_namespace_read(sg_sqlite_boot *boot, syncguard_error *err)
{
    static const char source[] = "/proc/self/ns";
    struct stat own;
    struct statfs about;
    if (stat("/proc/self/ns/time", &own) != 0) {
        /* A kernel without time namespaces has one boot clock. */
        if (errno == ENOENT && statfs(source, &about) == 0 && boot_file_is_procfs(&about))
            return SYNCGUARD_OK;
        return boot_fail_unreadable(source, "the shift of the boot clock", err);
    }
    boot->namespace_device = own.st_dev;
    boot->namespace_inode = own.st_ino;
    struct stat children;
    if (stat("/proc/self/ns/time_for_children", &children) != 0)
        return boot_fail_unreadable(source, "the shift of the boot clock", err);
    if (own.st_dev != children.st_dev || own.st_ino != children.st_ino)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                              "this process made a time namespace for its children, so the shift "
                              "of its own boot clock is unknown");
    return boot_offset_read(&boot->offset_ns, err);
}

syncguard_status sg_sqlite_boot_read(sg_sqlite_boot *boot, syncguard_error *err)
{
    sg_sqlite_boot now;
    memset(&now, 0, sizeof now);
    syncguard_status status = boot_id_read(now.id, err);
    if (status == SYNCGUARD_OK)
        status = boot_namespace_read(&now, err);
    if (status == SYNCGUARD_OK) /* a half-filled value would look complete at the next check */
        *boot = now;
    return status;
}

bool sg_sqlite_boot_changed(const sg_sqlite_boot *boot)
{
    struct stat own;
    if (boot->namespace_inode == 0)
        return false;
    return stat("/proc/self/ns/time", &own) != 0 || own.st_dev != boot->namespace_device ||
           own.st_ino != boot->namespace_inode;
}

#else

syncguard_status sg_sqlite_boot_read(sg_sqlite_boot *boot, syncguard_error *err)
{
#ifdef __APPLE__
    const char *name = "kern.bootsessionuuid";
#else
    const char *name = "kern.boot_id";
#endif
    memset(boot, 0, sizeof *boot);
    size_t size = SG_SQLITE_BOOT_ID_SIZE - 1;
    if (sysctlbyname(name, boot->id, &size, NULL, 0) != 0 || size == 0)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                              "%s: cannot be read, so the boot id is unknown", name);
    boot->id[size] = '\0';
    return SYNCGUARD_OK;
}

bool sg_sqlite_boot_changed(const sg_sqlite_boot *boot)
{
    (void)boot;
    return false;
}

#endif
