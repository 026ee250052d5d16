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

/* Creates the file with this mode if it is missing, and refuses folders and files that are not
 * safe. Busy while another process creates it. */
syncguard_status sg_sqlite_file_prepare(const char *path, mode_t mode, syncguard_error *err);
/* For a database that is no longer empty, before SQLite creates further files beside it: in a
 * folder that all users may write to, another user could be faster. */
syncguard_status sg_sqlite_file_check_again(const char *path, syncguard_error *err);
/* Keeps other processes from creating the file, until *out is closed. Busy if another process has
 * the lock. */
syncguard_status sg_sqlite_file_lock_folder(const char *path, int *out, syncguard_error *err);
/* Refuses a file that is not regular or has a second name and, if we are root, a file that is not
 * root's. */
syncguard_status sg_sqlite_file_check(const char *path, const struct stat *about,
                                      syncguard_error *err);
/* Identifies the file at the path now, without following a link; not known if there is none. */
syncguard_fd_identity sg_sqlite_file_identify(const char *path);

#endif
