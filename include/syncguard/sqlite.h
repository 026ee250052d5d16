/*
 * The SQLite backend: one file for all processes of one machine (of one kernel, including its
 * containers), without a server.
 *
 * The file is created with mode 0600, and its last folder, if missing, with 0700 (with the option
 * mode=0660: 0660 and 02770). A file on a network file system is refused, and so are files and
 * folders through which other users could redirect writes (see docs/backends/sqlite.md). A corrupt
 * file, or one of another program, is an error and is not changed. Opening does not wait: if the
 * file is busy, the first operation connects. If the file is removed or replaced while it is open,
 * it is opened again, and all its locks are lost. In a forked child whose parent used this backend,
 * neither an inherited handle nor a new one works (InvalidArgument), unless the child calls exec: a
 * server that forks workers must open its handles in the workers.
 */
#ifndef SYNCGUARD_SQLITE_H
#define SYNCGUARD_SQLITE_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a crash of the machine may lose. */
typedef enum syncguard_sqlite_durability {
    SYNCGUARD_SQLITE_FULL = 0,  /* a grant is on disk before it is returned */
    SYNCGUARD_SQLITE_NORMAL = 1 /* a crash of the machine may lose the latest fences */
} syncguard_sqlite_durability;

/* Options of this store: see docs/backends/sqlite.md. */
typedef struct syncguard_sqlite_options {
    size_t size;
    const char *path; /* required */
    syncguard_sqlite_durability durability;
    /* Of a file that is created: 0 or 0600, or 0660 to share it with a group. */
    unsigned mode;
} syncguard_sqlite_options;

#define SYNCGUARD_SQLITE_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(syncguard_sqlite_options), NULL, SYNCGUARD_SQLITE_FULL, 0                           \
    }

/* Function twin of SYNCGUARD_SQLITE_OPTIONS_INIT. */
SYNCGUARD_API void syncguard_sqlite_options_init(syncguard_sqlite_options *options, size_t size);

/* Same as opening "sqlite:PATH?durability=full|normal&mode=0600|0660". options may be NULL. The
 * caller owns *out.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_sqlite_open(
    const syncguard_sqlite_options *sqlite_options, const syncguard_options *options,
    syncguard_backend **out, syncguard_error *err);

/*
 * For programs that link the static library of this backend (SyncGuard::sqlite_static, or
 * pkg-config --static syncguard-sqlite): makes sqlite: URLs known to syncguard_open, which then
 * loads no module. Call it before the first open; it may be called again, and by several threads at
 * once. Programs that link the shared libraries do not need it. InvalidArgument if the static
 * library belongs to another version of the library.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_sqlite_register(syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
