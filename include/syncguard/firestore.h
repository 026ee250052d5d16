/*
 * The Firestore backend: Google Cloud Firestore over its REST interface.
 *
 * Firestore does not evaluate expiry on the server, so each client's own clock determines whether a
 * lock is live: keep the clocks of all clients synchronized. The backend compares its clock with
 * the times in the server's replies. It writes a warning to the log if the offset is 200 ms or
 * more. If the offset is max_clock_drift_ms or more, it refuses to acquire and, if the clock is
 * behind, to extend.
 */
#ifndef SYNCGUARD_FIRESTORE_H
#define SYNCGUARD_FIRESTORE_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Thresholds (inclusive) for the offset of this machine's clock, less its error bound. */
#define SYNCGUARD_FIRESTORE_CLOCK_TARGET_MS 100
#define SYNCGUARD_FIRESTORE_CLOCK_WARN_MS 200
#define SYNCGUARD_FIRESTORE_CLOCK_BLOCK_MS 500

/*
 * Writes a NUL-terminated access token to buffer, and its lifetime to *lifetime_ms. Returns OK or a
 * failure (then fill err if it is not NULL, without credentials). Called by one thread at a time,
 * shortly before the last token expires or after the server has refused it. Should return within
 * timeout_ms, and when abort_object (may be NULL) is triggered. Must not call functions on the
 * handle.
 */
typedef syncguard_status (*syncguard_firestore_token_fn)(void *context, int64_t timeout_ms,
                                                         syncguard_abort *abort_object,
                                                         char *buffer, size_t size,
                                                         int64_t *lifetime_ms,
                                                         syncguard_error *err);

/* Strings are copied at open. */
typedef struct syncguard_firestore_options {
    size_t size;
    const char *project;          /* required */
    const char *database;         /* NULL: "(default)" */
    const char *collection;       /* of the locks; NULL: "locks" */
    const char *fence_collection; /* of the counters; NULL: "fence_counters" */
    /* HOST:PORT of an emulator, which is used without TLS and credentials; it must be a loopback
     * address unless emulator_any_host is set. NULL: FIRESTORE_EMULATOR_HOST, if set (environment
     * variables are not read in a setuid program). "": no emulator, whatever the environment says.
     */
    const char *emulator_host;
    /* Base URL of the service. NULL: https://firestore.googleapis.com. Anything but https needs a
     * loopback address. FIRESTORE_EMULATOR_HOST takes precedence over it. */
    const char *endpoint;
    /* Credentials file of a service account or of a user. NULL: the usual places (see
     * docs/backends/firestore.md). */
    const char *credentials_file;
    /* CA certificates (PEM) instead of those that libcurl trusts. NULL: libcurl's. */
    const char *ca_file;
    /* Takes precedence over every file. NULL: none. The context must outlive the handle. */
    syncguard_firestore_token_fn token;
    void *token_context;
    /* Maximum number of connections, which are kept alive; further callers wait. 0: 32. */
    int32_t max_connections;
    /* If the clock's offset, less its error bound, is at least this large, acquire fails with
     * ServiceUnavailable, and so does extend if the clock is behind. 0: never. */
    int64_t max_clock_drift_ms;
    /* The emulator may be on another machine. */
    bool emulator_any_host;
} syncguard_firestore_options;

#define SYNCGUARD_FIRESTORE_OPTIONS_INIT                                                           \
    {                                                                                              \
        sizeof(syncguard_firestore_options), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
            NULL, 0, SYNCGUARD_FIRESTORE_CLOCK_BLOCK_MS, false                                     \
    }

/* Function twin of SYNCGUARD_FIRESTORE_OPTIONS_INIT. */
SYNCGUARD_API void syncguard_firestore_options_init(syncguard_firestore_options *options,
                                                    size_t size);

/*
 * Same as opening "firestore://PROJECT[/DATABASE]?collection=&fence_collection=&emulator_host=
 * &emulator_any_host=&endpoint=&credentials=&ca_file=&max_connections=&max_clock_drift_ms=". Reads
 * the credentials file and sends nothing. InvalidArgument if Firestore would refuse a name, if both
 * collections are the same, or if the credentials file cannot be read. options may be NULL. The
 * caller owns *out.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_firestore_open(
    const syncguard_firestore_options *firestore_options, const syncguard_options *options,
    syncguard_backend **out, syncguard_error *err);

/* What is known about the offset of this machine's clock from the server's. */
typedef struct syncguard_firestore_clock_info {
    size_t size;
    int64_t offset_us; /* positive: this machine is ahead */
    int64_t error_us;  /* the truth is within offset_us +- error_us */
    int64_t age_ms;    /* since the reply that it is based on */
    uint64_t samples;  /* replies seen so far */
} syncguard_firestore_clock_info;

#define SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT                                                        \
    {                                                                                              \
        sizeof(syncguard_firestore_clock_info), 0, 0, 0, 0                                         \
    }

/* Function twin of SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT. */
SYNCGUARD_API void syncguard_firestore_clock_info_init(syncguard_firestore_clock_info *info,
                                                       size_t size);

/*
 * Returns the current estimate; sends nothing. ABSENT before the first reply of the server.
 * InvalidArgument for a handle of another backend, and for a telemetry decorator (use the handle
 * before it is wrapped, or syncguard_examine).
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_firestore_clock(
    syncguard_backend *backend, syncguard_firestore_clock_info *info, syncguard_error *err);

/*
 * For programs that link the static library of this backend (SyncGuard::firestore_static, or
 * pkg-config --static syncguard-firestore): makes firestore: URLs known to syncguard_open, which
 * then loads no module. Call it before the first open; it may be called again, and by several
 * threads at once. Programs that link the shared libraries do not need it. InvalidArgument if the
 * static library belongs to another version of the library.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_firestore_register(syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
