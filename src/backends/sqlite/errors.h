/* Maps failures of SQLite and of system calls to statuses. Every message names the file. */
#ifndef SG_SQLITE_ERRORS_H
#define SG_SQLITE_ERRORS_H

#include <sqlite3.h>

#include "syncguard/sys/fail.h"

/* Inside the backend only: another process is writing, try again. */
#define SG_SQLITE_BUSY ((syncguard_status)100)

/* Fails with the status of an SQLite code. Busy codes become SG_SQLITE_BUSY and leave err
 * unchanged. db may be NULL. */
syncguard_status sg_sqlite_fail(sqlite3 *db, const char *path, int code, syncguard_error *err);
/* Fails with AuthFailed, RateLimited, InvalidArgument or ServiceUnavailable, depending on errno. */
syncguard_status sg_sqlite_fail_errno(syncguard_error *err, int error, const char *path,
                                      const char *what);
/* "EACCES" and the like, for the native field of an error. */
const char *sg_sqlite_errno_name(int error);

#endif
