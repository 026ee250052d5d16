/*
 * The file system and the mount that a file is on: whether all processes that open the file share
 * its locks and the files beside it.
 */
#ifndef SG_SQLITE_FILE_SYSTEM_H
#define SG_SQLITE_FILE_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>

#include "syncguard/error.h"

typedef enum sg_sqlite_file_system_kind {
    SG_SQLITE_FILE_SYSTEM_LOCAL,
    SG_SQLITE_FILE_SYSTEM_MEMORY,  /* a reboot deletes it */
    SG_SQLITE_FILE_SYSTEM_ALIASED, /* its files may have a second path, with other locks or with
                                      other files beside them */
    SG_SQLITE_FILE_SYSTEM_REMOTE,  /* other machines may write to it */
} sg_sqlite_file_system_kind;

/* The file system of path and its name. */
syncguard_status sg_sqlite_file_system_read(const char *path, sg_sqlite_file_system_kind *kind,
                                            char *name, size_t size, syncguard_error *err);
/* Refuses a folder that other machines may share, or that is in the upper folder of an overlay. */
syncguard_status sg_sqlite_file_system_refuse(const char *folder, syncguard_error *err);
/* Refuses a file that is a mount of its own. The path has no links. */
syncguard_status sg_sqlite_file_system_refuse_mount(const char *path, syncguard_error *err);
/* Whether the folder is, or is below, a lower folder of an overlay that this process sees. */
bool sg_sqlite_file_system_is_lower(const char *folder);

/* Why files in the folder cannot grow, for example "the file system is full"; NULL if they can, or
 * if a missing permission or an unknown error hides the reason. Leaves nothing behind. */
const char *sg_sqlite_file_system_shortage(const char *folder);

#endif
