/*
 * The Firestore backend: Google Cloud Firestore over its REST interface.
 *
 * Firestore offers no clock to ask, so each client's own clock decides whether a lock is live:
 * keep the clocks of all clients in step. The backend watches its own from the times that every
 * answer carries, says so in the log from 200 ms on, and refuses to acquire from
 * max_clock_drift_ms on; to extend too if it is behind.
 */
#ifndef SYNCGUARD_FIRESTORE_H
#define SYNCGUARD_FIRESTORE_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Limits for the offset of this machine's clock; each includes its bound. */
#define SYNCGUARD_FIRESTORE_CLOCK_TARGET_MS 100
#define SYNCGUARD_FIRESTORE_CLOCK_WARN_MS 200
#define SYNCGUARD_FIRESTORE_CLOCK_BLOCK_MS 500

/*
 * Writes an access token, NUL-terminated, into buffer, and how long it is good for into
 * *lifetime_ms. Returns OK or a failure (fill err if it is not NULL; no credentials in it). It is
 * asked by one thread at a time, shortly before the last token runs out or after the server
 * refused it; should return within timeout_ms and when abort_object (may be NULL) is triggered;
 * must not call back into the handle.
 */
typedef syncguard_status (*syncguard_firestore_token_fn)(void *context, int64_t timeout_ms,
                                                         syncguard_abort *abort_object,
                                                         char *buffer, size_t size,
                                                         int64_t *lifetime_ms,
                                                         syncguard_error *err);

/* Strings are copied at open. */
typedef struct syncguard_firestore_options {
    size_t size;
    const char *project;          /* must be given */
    const char *database;         /* NULL: "(default)" */
    const char *collection;       /* of the locks; NULL: "locks" */
    const char *fence_collection; /* of the counters; NULL: "fence_counters" */
    /* HOST:PORT of an emulator: no TLS, no credentials, so a loopback address unless
     * emulator_any_host is set. NULL: FIRESTORE_EMULATOR_HOST, if set (environment variables are
     * not read in a setuid program). "": none, whatever the environment says. */
    const char *emulator_host;
    /* Base URL of the service. NULL: https://firestore.googleapis.com. Anything but https needs a
     * loopback address. FIRESTORE_EMULATOR_HOST goes before it. */
    const char *endpoint;
    /* Key file of a service account, or of a user. NULL: the usual places (see the manual). */
    const char *credentials_file;
    /* CA certificates (PEM) instead of those that libcurl trusts. NULL: libcurl's. */
    const char *ca_file;
    /* Goes before every file. NULL: none. The context must outlive the handle. */
    syncguard_firestore_token_fn token;
    void *token_context;
    /* Connections at once, each kept alive; further callers wait. 0: 32. */
    int32_t max_connections;
    /* Offset (less its error bound) from which acquire is ServiceUnavailable, and extend if the
     * clock is behind. 0: never. */
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
 * the credentials file and sends nothing. InvalidArgument for names that Firestore would not take,
 * for equal collections and for a credentials file that is unreadable. options may be NULL. The
 * caller owns *out.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_firestore_open(
    const syncguard_firestore_options *firestore_options, const syncguard_options *options,
    syncguard_backend **out, syncguard_error *err);

/* What is known of this machine's clock against the server's. */
typedef struct syncguard_firestore_clock_info {
    size_t size;
    int64_t offset_us; /* positive: this machine is ahead */
    int64_t error_us;  /* the truth is within offset_us +- error_us */
    int64_t age_ms;    /* since the answer that it rests on */
    uint64_t samples;  /* answers seen so far */
} syncguard_firestore_clock_info;

#define SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT                                                        \
    {                                                                                              \
        sizeof(syncguard_firestore_clock_info), 0, 0, 0, 0                                         \
    }

/* Function twin of SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT. */
SYNCGUARD_API void syncguard_firestore_clock_info_init(syncguard_firestore_clock_info *info,
                                                       size_t size);

/*
 * The current estimate; sends nothing. ABSENT before the first answer of the server.
 * InvalidArgument for a handle of another backend (also for a telemetry decorator: ask the
 * handle before it is wrapped, or use syncguard_examine).
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_firestore_clock(
    syncguard_backend *backend, syncguard_firestore_clock_info *info, syncguard_error *err);

/*
 * For programs that link the archive of this backend (SyncGuard::firestore_static, or pkg-config
 * --static syncguard-firestore): makes firestore: URLs known to syncguard_open, which loads nothing
 * then. Call it before the first open; again does no harm, also from several threads. Programs that
 * link the shared libraries do not need it. InvalidArgument if the archive belongs to another
 * version of the library.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_firestore_register(syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
