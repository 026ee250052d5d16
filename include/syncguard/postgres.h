/*
 * The PostgreSQL backend: server 13 or later, one round trip per operation.
 *
 * The tables must be there before a handle is opened: syncguard_setup,
 * syncguard_postgres_setup or `syncguard setup` makes them, with the rights of
 * whoever may create tables. Afterwards a role that can SELECT, INSERT, UPDATE
 * and DELETE on the two tables is enough.
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
    /* Any connection string of libpq: a postgres:// URI (without options of ours) or keywords
     * such as "host=db dbname=app". NULL: what libpq's environment variables say. */
    const char *conninfo;
    /* A name, or schema.name: letters, digits, _ and $, taken literally (case counts). NULL: the
     * default. The two must differ. */
    const char *lock_table;
    const char *fence_table;
    /* Most connections for operations; a listening one comes on top, and one for renewals while
     * all are busy. 1 to 1000. */
    int pool_max;
    /* The server is reached through a pooler in transaction mode: neither prepared statements nor
     * LISTEN nor session settings. Overrides the next two. */
    bool pooler;
    bool prepared; /* prepare statements once per connection; default true */
    bool listen;   /* have waiters woken through LISTEN; default true */
    /* Look for the answer this long before sleeping; costs processor time. Default 0. */
    int spin_us;
} syncguard_postgres_options;

#define SYNCGUARD_POSTGRES_OPTIONS_INIT                                                            \
    {                                                                                              \
        sizeof(syncguard_postgres_options), NULL, NULL, NULL, SYNCGUARD_POSTGRES_POOL_MAX, false,  \
            true, true, 0                                                                          \
    }

/* Function twin of SYNCGUARD_POSTGRES_OPTIONS_INIT. */
SYNCGUARD_API void syncguard_postgres_options_init(syncguard_postgres_options *options,
                                                   size_t size);

/*
 * Checks the options; the first operation connects and checks the schema (InvalidArgument if it is
 * not there). Same as opening
 * "postgres://...?lock_table=&fence_table=&pool_max=&pooler=&prepared=&listen=&spin_us=".
 * Either options may be NULL. The caller owns *out.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_postgres_open(
    const syncguard_postgres_options *postgres_options, const syncguard_options *options,
    syncguard_backend **out, syncguard_error *err);

/*
 * Creates what is missing of the schema; see syncguard_setup. With print given nothing is changed
 * nor connected to: the statements are passed to it, one per call, ready for psql. Of options only
 * timeout_ms counts.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_postgres_setup(
    const syncguard_postgres_options *postgres_options, const syncguard_options *options,
    syncguard_print_fn print, void *print_context, syncguard_error *err);

/*
 * For programs that link the archive of this backend (SyncGuard::postgres_static, or pkg-config
 * --static syncguard-postgres): makes postgres: and postgresql: URLs known to syncguard_open, which
 * loads nothing then. Call it before the first open; again does no harm, also from several threads.
 * Programs that link the shared libraries do not need it. InvalidArgument if the archive belongs to
 * another version of the library.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_postgres_register(syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
