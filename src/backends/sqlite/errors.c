/* See errors.h. Codes decide, never the texts of SQLite. */
#include "errors.h"

#include <errno.h>

static const struct {
    int error;
    const char *name;
} ERRNO_NAMES[] = {
    {EACCES, "EACCES"}, {EPERM, "EPERM"},   {ENOENT, "ENOENT"}, {ENOTDIR, "ENOTDIR"},
    {EROFS, "EROFS"},   {ENOSPC, "ENOSPC"}, {EDQUOT, "EDQUOT"}, {EIO, "EIO"},
    {ELOOP, "ELOOP"},   {EMFILE, "EMFILE"}, {ENFILE, "ENFILE"}, {ENAMETOOLONG, "ENAMETOOLONG"},
    {ENOMEM, "ENOMEM"},
};

const char *sg_sqlite_errno_name(int error)
{
    for (size_t i = 0; i < sizeof ERRNO_NAMES / sizeof ERRNO_NAMES[0]; i++) {
        if (ERRNO_NAMES[i].error == error)
            return ERRNO_NAMES[i].name;
    }
    return "errno";
}

syncguard_status sg_sqlite_fail_errno(syncguard_error *err, int error, const char *path,
                                      const char *what)
{
    syncguard_status status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    if (error == EACCES || error == EPERM)
        status = SYNCGUARD_E_AUTH_FAILED;
    else if (error == EMFILE || error == ENFILE)
        status = SYNCGUARD_E_RATE_LIMITED;
    else if (error == ELOOP || error == ENAMETOOLONG || error == ENOTDIR)
        status = SYNCGUARD_E_INVALID_ARGUMENT;
    return syncguard_fail(err, status, sg_sqlite_errno_name(error), "%s: %s: %s", path, what,
                          syncguard_errno_text(error));
}

static const struct failure {
    int code;
    syncguard_status status;
    const char *name;
    const char *what;
} FAILURES[] = {
    {SQLITE_FULL, SYNCGUARD_E_SERVICE_UNAVAILABLE, "SQLITE_FULL", "the disk is full"},
    {SQLITE_IOERR, SYNCGUARD_E_SERVICE_UNAVAILABLE, "SQLITE_IOERR", "reading or writing failed"},
    {SQLITE_CANTOPEN, SYNCGUARD_E_SERVICE_UNAVAILABLE, "SQLITE_CANTOPEN", "cannot be opened"},
    {SQLITE_READONLY, SYNCGUARD_E_SERVICE_UNAVAILABLE, "SQLITE_READONLY", "cannot be written"},
    {SQLITE_CORRUPT, SYNCGUARD_E_SERVICE_UNAVAILABLE, "SQLITE_CORRUPT",
     "the database is damaged; left as it is"},
    {SQLITE_NOTADB, SYNCGUARD_E_INVALID_ARGUMENT, "SQLITE_NOTADB",
     "is not a SyncGuard database; left untouched"},
    {SQLITE_PERM, SYNCGUARD_E_AUTH_FAILED, "SQLITE_PERM", "access was refused"},
    {SQLITE_AUTH, SYNCGUARD_E_AUTH_FAILED, "SQLITE_AUTH", "access was refused"},
    /* Any other code. */
    {SQLITE_ERROR, SYNCGUARD_E_INTERNAL, "SQLITE_ERROR", "an SQLite statement failed"},
};

syncguard_status sg_sqlite_fail(sqlite3 *db, const char *path, int code, syncguard_error *err)
{
    int error = db == NULL ? 0 : sqlite3_system_errno(db);
    int primary = code & 0xff;
    /* SQLITE_PROTOCOL: SQLite has lost too many races for the locks of the WAL. */
    if (primary == SQLITE_BUSY || primary == SQLITE_LOCKED || primary == SQLITE_PROTOCOL)
        return SG_SQLITE_BUSY;
    if (primary == SQLITE_NOMEM)
        return syncguard_fail_memory(err);
    if (code == SQLITE_READONLY_DIRECTORY)
        return syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, "SQLITE_READONLY",
                              "%s: its folder is not writable, so the files beside it cannot be "
                              "created",
                              path);
    const struct failure *failure = FAILURES;
    while (failure->code != primary && failure->code != SQLITE_ERROR)
        failure++;
    syncguard_status status = failure->status;
    if (primary == SQLITE_CANTOPEN && (error == EACCES || error == EPERM))
        status = SYNCGUARD_E_AUTH_FAILED;
    if (primary == SQLITE_CANTOPEN && (error == EMFILE || error == ENFILE))
        status = SYNCGUARD_E_RATE_LIMITED;
    return syncguard_fail(err, status, failure->name, "%s: %s (SQLite code %d)%s%s", path,
                          failure->what, code, error != 0 ? ": " : "",
                          error != 0 ? syncguard_errno_text(error) : "");
}
