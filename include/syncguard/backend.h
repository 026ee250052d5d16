/*
 * How to open a store, and the operations that every store has.
 *
 * Each operation is one attempt: it does not retry if the key is held, does not wait for a lock,
 * and gives no order among callers. Most programs should use the lock helper in syncguard/lock.h,
 * which retries, waits, renews and releases.
 *
 * All arguments are checked before anything is sent, and before the abort object is checked: an
 * invalid argument is InvalidArgument on every backend.
 *
 * No function of this library is a cancellation point: pthread_cancel takes effect after the call
 * has returned (to end a call, trigger its abort object). The caller's callbacks run with
 * cancellation disabled.
 */
#ifndef SYNCGUARD_BACKEND_H
#define SYNCGUARD_BACKEND_H

#include "allocator.h"
#include "default_url.h"
#include "options.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A handle to a store. Any number of threads may share it. */
typedef struct syncguard_backend syncguard_backend;

/*
 * Opens a backend by URL:
 *   memory:                        the threads that share this one handle
 *   sqlite:/path/to/file           all processes of this machine; created if missing
 *   redis:// rediss:// redis+unix:// redis+sentinel:// redis+cluster://
 *   postgres://                    anything libpq accepts; needs syncguard_setup once
 *   firestore://project[/database]
 *   NAME:                          another backend: libsyncguard-NAME.so beside this library
 * If url is NULL, the URL is that of syncguard_default_url, and all missing folders of its path are
 * created (mode 0700); for a given path, only the last folder is created. The query may contain the
 * options timeout_ms, dispose_timeout_ms and cleanup (each overrides the struct), and those of the
 * backend. An unknown, repeated or unreadable option is InvalidArgument, and the message names it.
 * Messages never contain user info or option values.
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
 * Closes a handle. No operation may be running on it. Lock handles and queues made from it keep it
 * open until the last of them is gone. Background work is finished first, as far as
 * dispose_timeout_ms allows: undoing acquires whose outcome is unknown, releasing grants that a
 * queue did not hand out, and repeating releases that failed. In a forked child it frees the handle
 * and sends nothing to the store. The memory that client libraries keep for the parent's
 * connections (20 to 80 kB each) cannot be freed without sending something to the server, and stays
 * allocated in the child. NULL is ignored.
 */
SYNCGUARD_API void syncguard_close(syncguard_backend *backend);

/*
 * Creates or checks what a store needs before it can be used: the tables of PostgreSQL (without
 * them opening succeeds, but every operation is InvalidArgument). Idempotent, and safe to run in
 * several places at once. Each change is reported to the log of options (INFO). If print is not
 * NULL, nothing is changed; each statement is passed to print instead. For a store that needs
 * nothing the result is OK.
 */
typedef void (*syncguard_print_fn)(void *context, const char *line);
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_setup(const char *url, const syncguard_options *options, syncguard_print_fn print,
                void *print_context, syncguard_error *err);

/* Whose clock determines whether a lock has expired. */
typedef enum syncguard_time_authority {
    SYNCGUARD_TIME_SERVER = 0, /* one clock counts for all clients */
    SYNCGUARD_TIME_CLIENT = 1  /* each client's clock counts: keep the clocks synchronized */
} syncguard_time_authority;

/* What a store can do. */
typedef struct syncguard_capabilities {
    const char *backend; /* "memory", "sqlite", "redis", "postgres", "firestore", ... */
    bool supports_fencing;
    syncguard_time_authority time_authority;
    bool wakes_waiters;  /* a release by anybody wakes a waiter at once; else waiters poll */
    bool is_shared;      /* other handles and processes see the same locks */
    bool keeps_expired;  /* an expired lock stays until it is taken over or cleaned up */
    bool works_in_child; /* a forked child may use the handle; else only after exec */
} syncguard_capabilities;

/* What the store of the handle can do. The struct belongs to the handle. */
SYNCGUARD_API const syncguard_capabilities *
syncguard_capabilities_get(const syncguard_backend *backend);

/*
 * Tries once to acquire key for ttl_ms. OK fills *grant; LOCKED means that another owner holds the
 * key, and nothing was changed. After a failure with an unknown outcome, the library undoes a
 * possible grant in the background; if it cannot reach the store, such a grant ends with its TTL.
 * Internal if the fence counter is at its end (SYNCGUARD_FENCE_MAX). Others cannot acquire the key
 * for ttl_ms plus the tolerance.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_acquire(syncguard_backend *backend, const char *key, int64_t ttl_ms,
                  const syncguard_call *call, syncguard_grant *grant, syncguard_error *err);

/*
 * Releases the lock with this id. OK if this call released it, ABSENT if there is no live lock with
 * this id (never granted, released, expired). May be repeated, and may be called with an id that
 * holds no lock.
 */
SYNCGUARD_API syncguard_status syncguard_release(syncguard_backend *backend, const char *lock_id,
                                                 const syncguard_call *call, syncguard_error *err);

/*
 * Sets the expiry to now + ttl_ms (the rest of the old lease is not added). ABSENT if there is no
 * live lock with this id; an expired lock is never revived. expires_at_ms may be NULL. Do not use
 * it to test ownership: it changes the expiry.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_extend(syncguard_backend *backend, const char *lock_id, int64_t ttl_ms,
                 const syncguard_call *call, int64_t *expires_at_ms, syncguard_error *err);

/* Tells whether key is held right now. Do not base a change on the result: it may be out of date.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_is_locked(syncguard_backend *backend,
                                                                        const char *key,
                                                                        const syncguard_call *call,
                                                                        bool *locked,
                                                                        syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
