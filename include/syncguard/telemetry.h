/*
 * Telemetry: a decorator that can wrap any backend.
 *
 * Without it nothing is hashed, queued or counted. With it every operation, including those for
 * renewing, undoing and waiting, produces an event and updates counters. Losses of locks and
 * reconnects are also counted. Events pass through a bounded queue to a thread of the decorator, so
 * a slow callback never delays an operation; events that do not fit into the queue are counted as
 * dropped.
 */
#ifndef SYNCGUARD_TELEMETRY_H
#define SYNCGUARD_TELEMETRY_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The operation that an event reports. */
typedef enum syncguard_event_type {
    SYNCGUARD_EVENT_ACQUIRE = 0,
    SYNCGUARD_EVENT_RELEASE = 1,
    SYNCGUARD_EVENT_EXTEND = 2,
    SYNCGUARD_EVENT_IS_LOCKED = 3,
    SYNCGUARD_EVENT_LOOKUP = 4
} syncguard_event_type;

/* Why an operation without an error did not succeed. */
typedef enum syncguard_event_reason {
    SYNCGUARD_REASON_NONE = 0,
    SYNCGUARD_REASON_LOCKED = 1,
    SYNCGUARD_REASON_EXPIRED = 2,
    SYNCGUARD_REASON_NOT_FOUND = 3
} syncguard_event_reason;

/*
 * One operation. Strings that do not apply are "": the key is set for acquire, is_locked and lookup
 * by key; the lock id is set for release, extend, lookup by id and a granted acquire. If is_locked
 * is false or a lookup finds nothing, the result is fail without a reason. Each renewal of a lock
 * is an extend; undoing an acquire with an unknown outcome is a release (with key and lock id);
 * each try of a waiter is an acquire; a release before min_hold_ms is an extend. list, cleanup and
 * examine produce no event.
 *
 * A call that ends before it reaches the backend produces none and is not counted: its arguments
 * are refused, its abort object is already triggered, its time is already over, its lock was
 * already released or found absent, it extends a lock that is lost, or it is made in a forked child
 * that cannot use the handle. (A lock whose lease has ended is still released in the store.) A call
 * that times out or is aborted inside the backend does, with that error. The end of a wait is no
 * event; the tries of the wait are.
 */
typedef struct syncguard_event {
    syncguard_event_type type;
    bool ok; /* result: "ok" or "fail" */
    syncguard_event_reason reason;
    /* SYNCGUARD_OK, unless the operation failed with an error; then ok is false, without a reason.
     */
    syncguard_status error;
    int64_t duration_us;
    char key_hash[SYNCGUARD_HASH_SIZE];
    char lock_id_hash[SYNCGUARD_HASH_SIZE];
    /* Only with include_raw. */
    char key[SYNCGUARD_KEY_SIZE];
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
} syncguard_event;

/* "acquire", "release", "extend", "isLocked", "lookup". */
SYNCGUARD_API const char *syncguard_event_type_name(syncguard_event_type type);
/* "locked", "expired", "not-found", or "" for none. */
SYNCGUARD_API const char *syncguard_event_reason_name(syncguard_event_reason reason);

/* Runs on the decorator's thread; the event is valid only during the call. It must not throw an
 * exception, call longjmp or end its thread. It should return soon, and not do long work on the
 * decorated handle: events queue up in the meantime. Closing the handle delivers queued events for
 * at most dispose_timeout_ms (one second if that is 0) and waits for a running callback. */
typedef void (*syncguard_event_fn)(void *context, const syncguard_event *event);

/* A label that every Prometheus series of a handle has, such as {"service", "billing"}. */
typedef struct syncguard_label {
    /* Up to 64 ASCII letters, digits and underscores; begins with neither a digit nor __. Not one
     * of backend, handle, type, result, reason, error, quantile, le. */
    const char *name;
    const char *value; /* up to 256 bytes of UTF-8; escaped where the text format needs it */
} syncguard_label;

/* Limits of the labels: their number, and bytes of a name and of a value. */
#define SYNCGUARD_MAX_LABELS 16
#define SYNCGUARD_MAX_LABEL_NAME 64
#define SYNCGUARD_MAX_LABEL_VALUE 256

/* Options of the decorator. Strings are copied. */
typedef struct syncguard_telemetry_options {
    size_t size;
    syncguard_event_fn on_event; /* NULL: counters only, and no thread */
    void *on_event_context;
    bool include_raw;    /* default false */
    size_t queue_length; /* events, at most 1048576; 0 and default: 1024 */
    /* The label `handle` of this handle's Prometheus series: up to 64 printable ASCII characters
     * without blanks, quotes and backslashes. NULL (default): a number that no other handle of
     * this process has. Copied. */
    const char *handle_name;
    const syncguard_label *labels; /* label_count of them, names all different; copied */
    size_t label_count;            /* at most 16; default 0 */
} syncguard_telemetry_options;

#define SYNCGUARD_MAX_HANDLE_NAME 64 /* characters of handle_name */

#define SYNCGUARD_TELEMETRY_OPTIONS_INIT                                                           \
    {                                                                                              \
        sizeof(syncguard_telemetry_options), NULL, NULL, false, 1024, NULL, NULL, 0                \
    }

/* Function twin of SYNCGUARD_TELEMETRY_OPTIONS_INIT. */
SYNCGUARD_API void syncguard_telemetry_options_init(syncguard_telemetry_options *options,
                                                    size_t size);

/*
 * Wraps inner. On success *out owns inner: use and close only *out. On failure inner is unchanged
 * and still belongs to the caller. options may be NULL.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_telemetry_wrap(syncguard_backend *inner, const syncguard_telemetry_options *options,
                         syncguard_backend **out, syncguard_error *err);

/* Number of events dropped because the queue was full. 0 for a backend that is not a telemetry
 * decorator. */
SYNCGUARD_API uint64_t syncguard_telemetry_dropped(const syncguard_backend *backend);

/*
 * Writes counters, gauges and histograms in the Prometheus text format (docs/guides/telemetry.md
 * lists them). Every series has the labels `backend` and `handle`, so that the texts of several
 * handles can be served together (keep the lines that begin with # only once). Writes the text,
 * with a closing NUL, to buffer (which may be NULL if size is 0). Returns the length of the whole
 * text without the NUL: if it is size or more, the text was truncated and the call can be repeated
 * with a larger buffer. 0 for a backend that is not a telemetry decorator.
 */
SYNCGUARD_API size_t syncguard_telemetry_prometheus(const syncguard_backend *backend, char *buffer,
                                                    size_t size);

#ifdef __cplusplus
}
#endif

#endif
