/*
 * The SQLite backend: one file, all processes of one machine (of one kernel, its containers
 * included), nothing to start.
 *
 * The file is created with mode 0600, its missing last folder with 0700. A file on a
 * network file system is refused, and so are files and folders through which others
 * could make us write elsewhere (see docs/backends/sqlite.md); a corrupt or foreign file
 * is an error and is left untouched. Opening waits for nobody: a file that is busy
 * is connected by the first operation. A file that is removed or replaced while it is
 * open is opened again, and all its locks are lost. Neither an inherited handle nor a new one works
 * in a child that forked and did not exec, when its parent used this backend: InvalidArgument (a
 * pre-forking server opens in its workers, never before).
 */
#ifndef SYNCGUARD_SQLITE_H
#define SYNCGUARD_SQLITE_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a crash of the machine may take back. */
typedef enum syncguard_sqlite_durability {
    SYNCGUARD_SQLITE_FULL = 0,  /* a grant is on the disk before the caller hears of it */
    SYNCGUARD_SQLITE_NORMAL = 1 /* a crash of the machine may take back the latest fences */
} syncguard_sqlite_durability;

/* Options of this store: see docs/backends/sqlite.md. */
typedef struct syncguard_sqlite_options {
    size_t size;
    const char *path; /* must be given */
    syncguard_sqlite_durability durability;
} syncguard_sqlite_options;

#define SYNCGUARD_SQLITE_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(syncguard_sqlite_options), NULL, SYNCGUARD_SQLITE_FULL                              \
    }

/* Function twin of SYNCGUARD_SQLITE_OPTIONS_INIT. */
SYNCGUARD_API void syncguard_sqlite_options_init(syncguard_sqlite_options *options, size_t size);

/* Same as opening "sqlite:PATH?durability=full|normal". options may be NULL. The caller owns *out.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_sqlite_open(
    const syncguard_sqlite_options *sqlite_options, const syncguard_options *options,
    syncguard_backend **out, syncguard_error *err);

/*
 * For programs that link the archive of this backend (SyncGuard::sqlite_static, or pkg-config
 * --static syncguard-sqlite): makes sqlite: URLs known to syncguard_open, which loads nothing then.
 * Call it before the first open; again does no harm, also from several threads. Programs that link
 * the shared libraries do not need it. InvalidArgument if the archive belongs to another version of
 * the library.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_sqlite_register(syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
