/*
 * The PostgreSQL backend: server version 13 or later, one round trip per operation.
 *
 * The tables must exist before the first operation: syncguard_setup, syncguard_postgres_setup or
 * `syncguard setup` creates them, and must run as a role that may create tables. Afterwards a role
 * needs only SELECT, INSERT, UPDATE and DELETE on the table of locks, SELECT, INSERT and UPDATE on
 * the table of counters, and USAGE on their schema.
 */
#ifndef SYNCGUARD_POSTGRES_H
#define SYNCGUARD_POSTGRES_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The defaults of the options. */
#define SYNCGUARD_POSTGRES_LOCK_TABLE "syncguard_locks"
#define SYNCGUARD_POSTGRES_FENCE_TABLE "syncguard_fence_counters"
#define SYNCGUARD_POSTGRES_POOL_MAX 8

/* Options of this store: see docs/backends/postgres.md. */
typedef struct syncguard_postgres_options {
    size_t size;
    /* Any connection string of libpq: a postgres:// URI (without the options of this library) or
     * keywords such as "host=db dbname=app". NULL: libpq's environment variables are used. */
    const char *conninfo;
    /* A name, or schema.name: letters, digits, _ and $, taken literally (case-sensitive). NULL: the
     * default. The two tables must differ. */
    const char *lock_table;
    const char *fence_table;
    /* Maximum number of connections for operations, 1 to 1000. In addition there may be one for
     * notifications and, while all are busy, one for renewals and one for an extend. */
    int pool_max;
    /* The server is reached through a pooler in transaction mode: prepared statements, LISTEN and
     * session settings are not used. Overrides the next two options. */
    bool pooler;
    bool prepared; /* prepare statements once per connection; default true */
    bool listen;   /* notify waiters through LISTEN; default true */
} syncguard_postgres_options;

#define SYNCGUARD_POSTGRES_OPTIONS_INIT                                                            \
    {                                                                                              \
        sizeof(syncguard_postgres_options), NULL, NULL, NULL, SYNCGUARD_POSTGRES_POOL_MAX, false,  \
            true, true                                                                             \
    }

/* Function twin of SYNCGUARD_POSTGRES_OPTIONS_INIT. */
SYNCGUARD_API void syncguard_postgres_options_init(syncguard_postgres_options *options,
                                                   size_t size);

/*
 * Checks the options; the first operation connects and checks the tables (InvalidArgument if they
 * are missing). Same as opening
 * "postgres://...?lock_table=&fence_table=&pool_max=&pooler=&prepared=&listen=". Both option
 * structs may be NULL. The caller owns *out.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_postgres_open(
    const syncguard_postgres_options *postgres_options, const syncguard_options *options,
    syncguard_backend **out, syncguard_error *err);

/*
 * Creates missing tables; see syncguard_setup. If print is not NULL, the function does not connect
 * and changes nothing; the statements are passed to print, one per call, ready for psql. Of
 * options, only timeout_ms has an effect.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_postgres_setup(
    const syncguard_postgres_options *postgres_options, const syncguard_options *options,
    syncguard_print_fn print, void *print_context, syncguard_error *err);

/*
 * For programs that link the static library of this backend (SyncGuard::postgres_static, or
 * pkg-config --static syncguard-postgres): makes postgres: and postgresql: URLs known to
 * syncguard_open, which then loads no module. Call it before the first open; it may be called
 * again, and by several threads at once. Programs that link the shared libraries do not need it.
 * InvalidArgument if the static library belongs to another version of the library.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_postgres_register(syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
