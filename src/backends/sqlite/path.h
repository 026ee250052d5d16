/* The path of the database: links on the way to it, and the folders that they are in. */
#ifndef SG_SQLITE_PATH_H
#define SG_SQLITE_PATH_H

#include <sys/stat.h>

#include "syncguard/error.h"

/* SQLite limits names to 512 bytes, its suffixes included. */
#define SG_SQLITE_MAX_PATH_BYTES 480
#define SG_SQLITE_PATH_SIZE (SG_SQLITE_MAX_PATH_BYTES + 1)
/* A path with one of the suffixes of the files beside the database. */
#define SG_SQLITE_BESIDE_SIZE (SG_SQLITE_PATH_SIZE + 16)

/* The part before the last slash, which must be there; "/" for the root. */
void sg_sqlite_path_folder(const char *path, char out[SG_SQLITE_PATH_SIZE]);
/* Syncs the folder, so that a new name in it survives a crash of the machine. */
void sg_sqlite_path_sync(const char *folder);
/* Fails with InvalidArgument and the reason. */
syncguard_status sg_sqlite_path_unsafe(const char *path, const char *what, syncguard_error *err);
/* Inspects a folder whose path has no links. A link that is found there now was put in the place of
 * a folder by another user, and is not followed. */
syncguard_status sg_sqlite_path_inspect_folder(const char *folder, struct stat *about,
                                               syncguard_error *err);
/* For root: no other user may rename or replace what is in this folder. */
syncguard_status sg_sqlite_path_check_for_root(const char *folder, const struct stat *about,
                                               syncguard_error *err);
/* Resolves the links of a path with at least one slash. Creates its folder, for a file of this
 * mode, if it is missing. Refuses links that untrusted users can change, and links into the root of
 * another process. */
syncguard_status sg_sqlite_path_resolve(const char *given, mode_t mode,
                                        char out[SG_SQLITE_PATH_SIZE], syncguard_error *err);

#endif
