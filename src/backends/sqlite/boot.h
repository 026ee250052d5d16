/* Identifies the boot of the machine, and reads the boot clock that all its processes share. */
#ifndef SG_SQLITE_BOOT_H
#define SG_SQLITE_BOOT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "syncguard/error.h"

#define SG_SQLITE_BOOT_ID_SIZE 64

typedef struct sg_sqlite_boot {
    char id[SG_SQLITE_BOOT_ID_SIZE]; /* of the kernel; empty: unknown */
    int64_t offset_ns;               /* how far our boot clock is ahead of the kernel's */
    dev_t namespace_device;          /* our time namespace; both 0: the kernel has none */
    ino_t namespace_inode;
} sg_sqlite_boot;

/* Leaves *boot alone on failure. */
syncguard_status sg_sqlite_boot_read(sg_sqlite_boot *boot, syncguard_error *err);
/* Whether the process has entered another time namespace since boot was read. */
bool sg_sqlite_boot_changed(const sg_sqlite_boot *boot);
/* The kernel's boot clock in milliseconds, at our time now_ns. */
int64_t sg_sqlite_boot_ms(const sg_sqlite_boot *boot, int64_t now_ns);

#endif
