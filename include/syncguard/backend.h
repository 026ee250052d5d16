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

#include "allocator.h"
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
 * NULL stands for syncguard_default_url, and creates the missing folders of its path (mode 0700);
 * for a path that was given, only the last folder is created.
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
 * The store of this user, which the command uses, too: the environment variable
 * SYNCGUARD_URL (a URL, or @ and the name of a file), else the first line of
 * syncguard/url in $XDG_CONFIG_HOME (or ~/.config), else of /etc/syncguard/url,
 * else "sqlite:" and the user's file ($XDG_STATE_HOME or ~/.local/state,
 * syncguard/locks.db; for root /var/lib/syncguard/locks.db). Reads files, no network.
 * InvalidArgument if SYNCGUARD_URL is empty, a file is there but cannot be read or has
 * no URL, the URL does not fit into buffer, or no folder can be found. A setuid program
 * uses no environment. Any thread may call it.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_default_url(char *buffer, size_t size,
                                                                          syncguard_error *err);

/*
 * Closes a handle. No operation may be running on it. Lock handles and queues made from it
 * keep it open until the last of them is gone. Work in the background is drained first: undoing of
 * acquires whose outcome is unknown, grants that a queue gives back, releases that failed (see
 * dispose_timeout_ms).
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

/* Whose clock decides whether a lock has expired. */
typedef enum syncguard_time_authority {
    SYNCGUARD_TIME_SERVER = 0, /* one clock decides for all clients */
    SYNCGUARD_TIME_CLIENT = 1  /* each client's clock decides: keep them in step */
} syncguard_time_authority;

/* What a store can do. */
typedef struct syncguard_capabilities {
    const char *backend; /* "memory", "sqlite", "redis", "postgres", "firestore" */
    bool supports_fencing;
    syncguard_time_authority time_authority;
} syncguard_capabilities;

/* What the store behind the handle can do; belongs to the handle. */
SYNCGUARD_API const syncguard_capabilities *
syncguard_capabilities_get(const syncguard_backend *backend);

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

#ifdef __cplusplus
}
#endif

#endif
