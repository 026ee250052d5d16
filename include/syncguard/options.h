/*
 * Options of a backend handle and of a single call.
 */
#ifndef SYNCGUARD_OPTIONS_H
#define SYNCGUARD_OPTIONS_H

#include "abort.h"
#include "error.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How severe a log line is. */
typedef enum syncguard_log_level {
    SYNCGUARD_LOG_DEBUG = 0,
    SYNCGUARD_LOG_INFO = 1,
    SYNCGUARD_LOG_WARN = 2,
    SYNCGUARD_LOG_ERROR = 3
} syncguard_log_level;

/* Receives one line without a newline, and without keys, lock ids or credentials. May be called on
 * any thread, never while the library holds a mutex; must not call functions of the library. ERROR
 * means a lost lock; docs/guides/telemetry.md lists the lines about losses, renewals and
 * reconnects. */
typedef void (*syncguard_log_fn)(void *context, syncguard_log_level level, const char *message);

/*
 * Called when a lock could not be released while its handle was disposed of. source says where:
 * "scope" (disposed handle) or "helper" (callback form). The context must outlive the backend or
 * lock that it was given to. Runs in the thread that disposes of the handle. key and lock_id are
 * the raw values: take care where you write them. An absent lock is not an error and is not
 * reported.
 */
typedef void (*syncguard_release_error_fn)(void *context, const syncguard_error *error,
                                           const char *key, const char *lock_id,
                                           const char *source);

/* Options of a handle, for every backend. Strings are copied. */
typedef struct syncguard_options {
    size_t size;
    /* Deadline of one operation, connecting included. Default 5000; must be positive. */
    int64_t timeout_ms;
    /* Time limit for the release when a lock is disposed of, and for background work at close. 0
     * (default): timeout_ms limits each release, and close waits for at most one second. */
    int64_t dispose_timeout_ms;
    /* Label of up to 128 bytes of UTF-8 that tells others who holds a lock. NULL (default): none.
     */
    const char *owner;
    /* Let is_locked remove the records of expired locks in the background. Default false. */
    bool cleanup_in_is_locked;
    syncguard_log_fn log;
    void *log_context;
    syncguard_release_error_fn on_release_error;
    void *on_release_error_context;
    /* Secret for the hashes that replace keys and lock ids in lookups, listings, telemetry, errors
     * and log lines of this handle: 16 to 1024 random bytes, the same wherever hashes are to be
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

/* Limits of one call. NULL: no abort object, the handle's timeout. */
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

#ifdef __cplusplus
}
#endif

#endif
