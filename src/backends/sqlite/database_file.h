/*
 * The database file: its creation, and whether other users could make us write
 * to another file.
 */
#ifndef SG_SQLITE_DATABASE_FILE_H
#define SG_SQLITE_DATABASE_FILE_H

#include <stdbool.h>
#include <sys/stat.h>

#include "path.h"
#include "syncguard/error.h"
#include "syncguard/sys/descriptor.h"

/* A shorter file is no SQLite database. */
#define SG_SQLITE_HEADER_BYTES 100

/* Creates the file with this mode if it is missing; refuses folders and files that are not safe.
 * Busy while another process creates it. */
syncguard_status sg_sqlite_file_prepare(const char *path, mode_t mode, syncguard_error *err);
/* For a database that is no longer empty, before SQLite creates further files beside it: in a
 * folder that everybody may write to, another user could be faster. */
syncguard_status sg_sqlite_file_check_again(const char *path, syncguard_error *err);
/* Keeps other processes from creating the file, until *out is closed. Busy if one has the lock. */
syncguard_status sg_sqlite_file_lock_folder(const char *path, int *out, syncguard_error *err);
/* Refuses a file that is not regular, has a second name, or is not root's if we are root. */
syncguard_status sg_sqlite_file_check(const char *path, const struct stat *about,
                                      syncguard_error *err);
/* What is at the path now, a link not followed; not known if nothing is. */
syncguard_fd_identity sg_sqlite_file_identify(const char *path);

#endif
