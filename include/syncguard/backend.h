/*
 * Opening a store, and the operations that every store has.
 *
 * Each operation is one attempt: no retries on contention, no waiting for a
 * lock, no order among callers. Most programs want the lock helper in
 * syncguard/lock.h, which retries, waits, renews and releases.
 *
 * All arguments are checked before anything is sent, and before a triggered
 * abort object is looked at: a bad one is InvalidArgument on every backend.
 *
 * No call of this library is a cancellation point: pthread_cancel takes effect
 * after it (to end a call, trigger its abort object). Callbacks of the caller run with
 * cancellation off.
 */
#ifndef SYNCGUARD_BACKEND_H
#define SYNCGUARD_BACKEND_H

#include "abort.h"
#include "error.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct syncguard_backend syncguard_backend;

typedef enum syncguard_log_level {
    SYNCGUARD_LOG_DEBUG = 0,
    SYNCGUARD_LOG_INFO = 1,
    SYNCGUARD_LOG_WARN = 2,
    SYNCGUARD_LOG_ERROR = 3
} syncguard_log_level;

/* Receives one line without a newline, and without keys, lock ids or credentials. May be called
 * from any thread, never with a lock of the library held; must not call back into the library. */
typedef void (*syncguard_log_fn)(void *context, syncguard_log_level level, const char *message);

/*
 * Told when a lock could not be released while its handle was disposed of.
 * source says where: "scope" (disposed handle) or "helper" (callback form).
 * The context must outlive the backend or lock that it was given to.
 * Runs in the disposing thread. key and lock_id are the raw ones: take care
 * where you write them. An absent lock is no error and is not reported.
 */
typedef void (*syncguard_release_error_fn)(void *context, const syncguard_error *error,
                                           const char *key, const char *lock_id,
                                           const char *source);

/* Options of a handle, for every backend. Strings are copied. */
typedef struct syncguard_options {
    size_t size;
    /* Deadline of one operation, connecting included. Default 5000; must be positive. */
    int64_t timeout_ms;
    /* Bound on the release at disposal and on draining at close. 0 (default): timeout_ms bounds
     * each release, close drains for at most one second. */
    int64_t dispose_timeout_ms;
    /* Label of up to 128 bytes of UTF-8 that answers "who holds it". NULL (default): none. */
    const char *owner;
    /* Let is_locked remove long expired locks in the background. Default false. */
    bool cleanup_in_is_locked;
    syncguard_log_fn log;
    void *log_context;
    syncguard_release_error_fn on_release_error;
    void *on_release_error_context;
    /* Key of the hashes that stand for keys and lock ids in lookups, listings, telemetry, errors
     * and log lines of this handle: 16 to 1024 bytes, random, the same wherever hashes are to be
     * compared. NULL (default): syncguard_hash, which can be reversed. */
    const char *hash_secret;
} syncguard_options;

#define SYNCGUARD_OPTIONS_INIT                                                                     \
    {                                                                                              \
        sizeof(syncguard_options), SYNCGUARD_DEFAULT_TIMEOUT_MS, 0, NULL, false, NULL, NULL, NULL, \
            NULL, NULL                                                                             \
    }

/* Function twin of SYNCGUARD_OPTIONS_INIT; size is sizeof *options as the caller knows it. */
SYNCGUARD_API void syncguard_options_init(syncguard_options *options, size_t size);

/*
 * Opens a backend by URL:
 *   memory:                        the threads that share this one handle
 *   sqlite:/path/to/file           all processes of this machine; made if it is not there
 *   redis:// rediss:// redis+unix:// redis+sentinel:// redis+cluster://
 *   postgres://                    anything libpq accepts; needs syncguard_setup once
 *   firestore://project[/database]
 * NULL stands for syncguard_default_url, and makes the folders that its path lacks (0700); of a
 * path that was given, only the last folder is made.
 * Options may stand in the query: timeout_ms, dispose_timeout_ms, cleanup (each overrides the
 * struct), and those of the backend. An unknown, repeated or unreadable option is
 * InvalidArgument and is named. Messages never contain user info or option values.
 *
 * The module of a scheme is loaded on demand from the folder of this library;
 * a scheme that is unknown or whose module is not installed is InvalidArgument.
 * options may be NULL. The caller owns *out and closes it.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_open(const char *url,
                                                                   const syncguard_options *options,
                                                                   syncguard_backend **out,
                                                                   syncguard_error *err);

/*
 * Where the command puts locks unless told otherwise: the environment variable
 * SYNCGUARD_URL, else "sqlite:" and the user's file ($XDG_STATE_HOME or
 * ~/.local/state, syncguard/locks.db; for root /var/lib/syncguard/locks.db).
 * InvalidArgument if the URL does not fit into buffer or no folder can be found.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_default_url(char *buffer, size_t size,
                                                                          syncguard_error *err);

/*
 * Closes a handle. No operation may be running on it. Lock handles made from it
 * keep it open behind the scenes until the last of them is disposed of. Undoing
 * of acquires whose outcome is unknown is drained first (see dispose_timeout_ms).
 * In a forked child it frees the handle and says nothing to the store. What client
 * libraries keep for connections that the parent made cannot be freed without a word
 * to the server and stays allocated there: 20 to 80 kB for each. NULL is ignored.
 */
SYNCGUARD_API void syncguard_close(syncguard_backend *backend);

/*
 * Creates or checks what a store needs before it can be used: the tables of PostgreSQL (without
 * them every operation is InvalidArgument; opening succeeds). Idempotent, safe to run at the same
 * time from many places. With print given nothing is changed: each statement is passed to it. A
 * store that needs nothing answers OK.
 */
typedef void (*syncguard_print_fn)(void *context, const char *line);
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_setup(const char *url, const syncguard_options *options, syncguard_print_fn print,
                void *print_context, syncguard_error *err);

typedef enum syncguard_time_authority {
    SYNCGUARD_TIME_SERVER = 0, /* one clock decides for all clients */
    SYNCGUARD_TIME_CLIENT = 1  /* each client's clock decides: keep them in step */
} syncguard_time_authority;

typedef struct syncguard_capabilities {
    const char *backend; /* "memory", "sqlite", "redis", "postgres", "firestore" */
    bool supports_fencing;
    syncguard_time_authority time_authority;
} syncguard_capabilities;

/* What the store behind the handle can do; belongs to the handle. */
SYNCGUARD_API const syncguard_capabilities *
syncguard_capabilities_get(const syncguard_backend *backend);

/* What one call may use up. NULL: no abort, the handle's timeout. */
typedef struct syncguard_call {
    size_t size;
    syncguard_abort *abort_object;
    int64_t timeout_ms; /* 0: the handle's timeout_ms; negative: InvalidArgument */
} syncguard_call;

#define SYNCGUARD_CALL_INIT                                                                        \
    {                                                                                              \
        sizeof(syncguard_call), NULL, 0                                                            \
    }

/* Function twin of SYNCGUARD_CALL_INIT. */
SYNCGUARD_API void syncguard_call_init(syncguard_call *call, size_t size);

/*
 * Tries once to take key for ttl_ms. OK fills *grant; LOCKED means that another
 * owner holds the key, and nothing was changed. After a failure whose outcome
 * is unknown the library undoes the grant in the background; if it cannot reach
 * the store it ends with its TTL. Internal at the end of the fence counter
 * (SYNCGUARD_FENCE_MAX). Others are kept out for ttl_ms and the tolerance.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_acquire(syncguard_backend *backend, const char *key, int64_t ttl_ms,
                  const syncguard_call *call, syncguard_grant *grant, syncguard_error *err);

/*
 * Releases the lock with this id. OK if this call released it, ABSENT if there
 * is no live lock with this id (never granted, released, expired). Safe to call
 * without owning anything and to repeat.
 */
SYNCGUARD_API syncguard_status syncguard_release(syncguard_backend *backend, const char *lock_id,
                                                 const syncguard_call *call, syncguard_error *err);

/*
 * Moves the expiry to now + ttl_ms (what was left is not added). ABSENT if there
 * is no live lock with this id; an expired lock is never revived. expires_at_ms
 * may be NULL. Not a test of ownership: it changes the expiry.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_extend(syncguard_backend *backend, const char *lock_id, int64_t ttl_ms,
                 const syncguard_call *call, int64_t *expires_at_ms, syncguard_error *err);

/* Tells whether key is held right now. Not a guard: it may change before you look. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_is_locked(syncguard_backend *backend,
                                                                        const char *key,
                                                                        const syncguard_call *call,
                                                                        bool *locked,
                                                                        syncguard_error *err);

/*
 * Replaces the allocator of the whole library. Call it before anything else and
 * at most once; all three functions must be given and be thread-safe.
 * Libraries below this one (SQLite, libpq, libcurl) keep their own.
 */
typedef struct syncguard_allocator {
    void *(*malloc_fn)(size_t size);
    void *(*realloc_fn)(void *block, size_t size);
    void (*free_fn)(void *block);
} syncguard_allocator;
SYNCGUARD_API void syncguard_allocator_set(const syncguard_allocator *allocator);

#ifdef __cplusplus
}
#endif

#endif
