/*
 * Internal parts of the telemetry decorator: its counts, and the queue that passes
 * events on from the thread of an operation. Only src/core/telemetry.c, metrics.c,
 * labels.c and event_queue.c use this header.
 */
#ifndef SYNCGUARD_CORE_TELEMETRY_H
#define SYNCGUARD_CORE_TELEMETRY_H

#include "counters.h"
#include "syncguard/sys/backend.h"

#define SG_EVENT_TYPES 5
#define SG_EVENT_REASONS 4
/* Failures of the status table: -1 to -9. */
#define SG_EVENT_ERRORS 9
/* ok, fail with each reason (none included), fail with each error. */
#define SG_EVENT_OUTCOMES (1 + SG_EVENT_REASONS + SG_EVENT_ERRORS)

/* The result of one operation; strings belong to the caller and are valid during the call. */
typedef struct sg_observation {
    syncguard_event_type type;
    bool ok;
    syncguard_event_reason reason;
    syncguard_status error;
    int64_t duration_ns;
    const char *key; /* NULL: no key took part */
    size_t key_length;
    const char *lock_id; /* NULL: no lock id took part */
} sg_observation;

/* Counters only increase. Each is exact, but a text that is made meanwhile is not a snapshot. */
typedef struct sg_metrics {
    atomic_uint_fast64_t operations[SG_EVENT_TYPES][SG_EVENT_OUTCOMES];
    sg_histogram durations[SG_EVENT_TYPES]; /* ns */
} sg_metrics;

/* The contents of the text for Prometheus. */
typedef struct sg_metrics_view {
    const sg_metrics *metrics;
    const sg_counters *counters;
    uint64_t waiting;
    uint64_t dropped;
    const char *labels; /* of every series */
} sg_metrics_view;

/* Sets all counts to zero. No other thread may use the metrics meanwhile. */
void sg_metrics_reset(sg_metrics *metrics);
void sg_metrics_count(sg_metrics *metrics, const sg_observation *seen);
/* The contract of syncguard_telemetry_prometheus. */
size_t sg_metrics_text(const sg_metrics_view *view, char *buffer, size_t size);

/* The labels of every series: backend, handle, and those of the options. The caller frees *out.
 * InvalidArgument for names and values that Prometheus would not accept, or OutOfMemory. */
syncguard_status sg_labels_make(const char *backend, const syncguard_telemetry_options *options,
                                char **out, syncguard_error *err);

typedef struct sg_event_queue sg_event_queue;

/* Creates the queue and starts its thread. InvalidArgument, OutOfMemory, or RateLimited if no
 * thread can be started. */
syncguard_status sg_event_queue_open(const syncguard_telemetry_options *options,
                                     const char *hash_secret, sg_event_queue **out,
                                     syncguard_error *err);
/* Never waits for the callback: a full queue counts the event as dropped. */
void sg_event_queue_push(sg_event_queue *queue, const sg_observation *seen);
uint64_t sg_event_queue_dropped(const sg_event_queue *queue);
/* In a forked child, while it has one thread: empties the queue and starts a thread for it. */
syncguard_status sg_event_queue_after_fork(sg_event_queue *queue, syncguard_error *err);
/* Delivers queued events for at most drain_ms, waits for a callback that is running, and frees the
 * queue. NULL is ignored. */
void sg_event_queue_close(sg_event_queue *queue, int64_t drain_ms);

#endif
