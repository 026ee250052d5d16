/*
 * The counts of the telemetry decorator, and their text for Prometheus.
 *
 * All counts are atomics with relaxed order: each is exact, but the text is not
 * a snapshot across counts. A histogram's _count is the sum of its buckets, so
 * that it always agrees with the +Inf bucket. Numbers are written from integers,
 * because printf of a float depends on the locale and Prometheus does not.
 */
#include "core/telemetry.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

const char *syncguard_event_type_name(syncguard_event_type type)
{
    static const char *const names[SG_EVENT_TYPES] = {"acquire", "release", "extend", "isLocked",
                                                      "lookup"};
    return (unsigned)type < SG_EVENT_TYPES ? names[type] : "unknown";
}

const char *syncguard_event_reason_name(syncguard_event_reason reason)
{
    static const char *const names[SG_EVENT_REASONS] = {"", "locked", "expired", "not-found"};
    return (unsigned)reason < SG_EVENT_REASONS ? names[reason] : "";
}

_Static_assert(SYNCGUARD_E_OUT_OF_MEMORY == -SG_EVENT_ERRORS, "an outcome per failure");

static uint64_t metrics_count_load(const atomic_uint_fast64_t *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

void sg_metrics_reset(sg_metrics *metrics)
{
    for (size_t type = 0; type < SG_EVENT_TYPES; type++) {
        for (size_t outcome = 0; outcome < SG_EVENT_OUTCOMES; outcome++)
            atomic_init(&metrics->operations[type][outcome], 0);
        sg_histogram_reset(&metrics->durations[type]);
    }
}

static size_t metrics_outcome_index(const sg_observation *seen)
{
    if (seen->ok)
        return 0;
    if (seen->error < 0 && seen->error >= -SG_EVENT_ERRORS)
        return (size_t)(SG_EVENT_REASONS - seen->error);
    return 1 + (size_t)seen->reason;
}

void sg_metrics_count(sg_metrics *metrics, const sg_observation *seen)
{
    atomic_fetch_add_explicit(&metrics->operations[seen->type][metrics_outcome_index(seen)], 1,
                              memory_order_relaxed);
    sg_histogram_observe(&metrics->durations[seen->type], &sg_duration_bounds, seen->duration_ns);
}

/* Text that does not fit is counted in length, but not written. */
typedef struct text_sink {
    char *buffer;
    size_t size;
    size_t length;
    const char *labels; /* of every series */
} text_sink;

static void SYNCGUARD_PRINTF(2, 3) metrics_put_format(text_sink *sink, const char *format, ...)
{
    size_t room = sink->length < sink->size ? sink->size - sink->length : 0;
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(room > 0 ? sink->buffer + sink->length : NULL, room, format, arguments);
    va_end(arguments);
    if (written > 0)
        sink->length += (size_t)written;
}

static void metrics_put_head(text_sink *sink, const char *name, const char *type, const char *help)
{
    metrics_put_format(sink, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Whether an outcome is a normal answer of a type, and therefore shown even if its count is 0. */
static bool metrics_outcome_is_normal(syncguard_event_type type, size_t outcome)
{
    switch (type) {
    case SYNCGUARD_EVENT_ACQUIRE:
        return outcome == 0 || outcome == 1 + SYNCGUARD_REASON_LOCKED;
    case SYNCGUARD_EVENT_RELEASE:
    case SYNCGUARD_EVENT_EXTEND:
        return outcome == 0 || outcome == 1 + SYNCGUARD_REASON_EXPIRED ||
               outcome == 1 + SYNCGUARD_REASON_NOT_FOUND;
    default:
        return outcome == 0 || outcome == 1 + SYNCGUARD_REASON_NONE;
    }
}

static void metrics_put_operation(text_sink *sink, syncguard_event_type type, size_t outcome,
                                  uint64_t value)
{
    const char *reason = "";
    const char *error = "";
    if (outcome > SG_EVENT_REASONS)
        error = syncguard_status_name((syncguard_status)(SG_EVENT_REASONS - (int)outcome));
    else if (outcome > 0)
        reason = syncguard_event_reason_name((syncguard_event_reason)(outcome - 1));
    metrics_put_format(
        sink,
        "syncguard_operations_total{%s,type=\"%s\",result=\"%s\",reason=\"%s\",error=\"%s\"} "
        "%" PRIu64 "\n",
        sink->labels, syncguard_event_type_name(type), outcome == 0 ? "ok" : "fail", reason, error,
        value);
}

static void metrics_put_operations(text_sink *sink, const sg_metrics *metrics)
{
    metrics_put_head(sink, "syncguard_operations_total", "counter", "Lock operations by outcome.");
    for (int type = 0; type < SG_EVENT_TYPES; type++) {
        for (size_t outcome = 0; outcome < SG_EVENT_OUTCOMES; outcome++) {
            uint64_t value = metrics_count_load(&metrics->operations[type][outcome]);
            if (value > 0 || metrics_outcome_is_normal((syncguard_event_type)type, outcome))
                metrics_put_operation(sink, (syncguard_event_type)type, outcome, value);
        }
    }
}

/* more is `,type="acquire"` or "". in_ns: the sum is nanoseconds, shown as seconds. */
static void metrics_put_histogram(text_sink *sink, const char *name, const char *more,
                                  const sg_histogram *histogram, const sg_bounds *bounds,
                                  bool in_ns)
{
    uint64_t sum = metrics_count_load(&histogram->sum);
    uint64_t total = 0;
    for (size_t i = 0; i <= bounds->count; i++) {
        total += metrics_count_load(&histogram->buckets[i]);
        metrics_put_format(sink, "%s_bucket{%s%s,le=\"%s\"} %" PRIu64 "\n", name, sink->labels,
                           more, i < bounds->count ? bounds->items[i].text : "+Inf", total);
    }
    const uint64_t second = 1000000000;
    if (in_ns)
        metrics_put_format(sink, "%s_sum{%s%s} %" PRIu64 ".%09" PRIu64 "\n", name, sink->labels,
                           more, sum / second, sum % second);
    else
        metrics_put_format(sink, "%s_sum{%s%s} %" PRIu64 "\n", name, sink->labels, more, sum);
    metrics_put_format(sink, "%s_count{%s%s} %" PRIu64 "\n", name, sink->labels, more, total);
}

static void metrics_put_durations(text_sink *sink, const sg_metrics *metrics)
{
    metrics_put_head(sink, "syncguard_operation_duration_seconds", "histogram",
                     "Time that lock operations took.");
    char more[32];
    for (int type = 0; type < SG_EVENT_TYPES; type++) {
        snprintf(more, sizeof more, ",type=\"%s\"",
                 syncguard_event_type_name((syncguard_event_type)type));
        metrics_put_histogram(sink, "syncguard_operation_duration_seconds", more,
                              &metrics->durations[type], &sg_duration_bounds, true);
    }
}

/* One series per word. */
static void metrics_put_counters(text_sink *sink, const char *name, const char *label,
                                 const char *const *words, const atomic_uint_fast64_t *counts,
                                 size_t count)
{
    for (size_t i = 0; i < count; i++)
        metrics_put_format(sink, "%s{%s,%s=\"%s\"} %" PRIu64 "\n", name, sink->labels, label,
                           words[i], metrics_count_load(&counts[i]));
}

static void metrics_put_number(text_sink *sink, const char *name, const char *type,
                               const char *help, uint64_t value)
{
    metrics_put_head(sink, name, type, help);
    metrics_put_format(sink, "%s{%s} %" PRIu64 "\n", name, sink->labels, value);
}

static void metrics_put_locks(text_sink *sink, const sg_counters *counters, uint64_t waiting)
{
    static const char *const reasons[] = {"absent", "unconfirmed", "max-hold"};
    static const char *const renewals[SG_RENEWAL_RESULTS] = {"confirmed", "failed", "absent"};
    static const char *const undos[SG_UNDO_RESULTS] = {"confirmed", "expired"};
    int64_t held = atomic_load_explicit(&counters->held, memory_order_relaxed);
    metrics_put_head(sink, "syncguard_locks_lost_total", "counter",
                     "Locks whose holders could no longer be sure to hold them.");
    metrics_put_counters(sink, "syncguard_locks_lost_total", "reason", reasons, counters->lost + 1,
                         SG_LOST_REASONS - 1);
    metrics_put_head(sink, "syncguard_renewals_total", "counter",
                     "Renewals in the background by result.");
    metrics_put_counters(sink, "syncguard_renewals_total", "result", renewals, counters->renewals,
                         SG_RENEWAL_RESULTS);
    metrics_put_head(sink, "syncguard_acquires_undone_total", "counter",
                     "Acquires of unknown outcome that were taken back.");
    metrics_put_counters(sink, "syncguard_acquires_undone_total", "result", undos, counters->undone,
                         SG_UNDO_RESULTS);
    metrics_put_number(sink, "syncguard_reconnects_total", "counter",
                       "Connections to the store that had to be replaced.",
                       metrics_count_load(&counters->reconnects));
    metrics_put_number(sink, "syncguard_locks_held", "gauge", "Lock handles that hold their lock.",
                       held > 0 ? (uint64_t)held : 0);
    metrics_put_number(sink, "syncguard_acquires_waiting", "gauge",
                       "Acquires that wait for a lock of another owner.", waiting);
}

static void metrics_put_waits(text_sink *sink, const sg_counters *counters)
{
    metrics_put_head(sink, "syncguard_wait_seconds", "histogram",
                     "Time that the lock helper took until it had the lock or gave up.");
    metrics_put_histogram(sink, "syncguard_wait_seconds", "", &counters->waits, &sg_wait_bounds,
                          true);
    metrics_put_head(sink, "syncguard_wait_attempts", "histogram",
                     "Attempts that the lock helper made until it had the lock or gave up.");
    metrics_put_histogram(sink, "syncguard_wait_attempts", "", &counters->attempts,
                          &sg_attempt_bounds, false);
    metrics_put_head(sink, "syncguard_hold_seconds", "histogram",
                     "Time from the grant of a lock handle to its release or loss.");
    metrics_put_histogram(sink, "syncguard_hold_seconds", "", &counters->holds, &sg_hold_bounds,
                          true);
}

size_t sg_metrics_text(const sg_metrics_view *view, char *buffer, size_t size)
{
    text_sink sink = {buffer, buffer != NULL ? size : 0, 0, view->labels};
    if (sink.size > 0)
        buffer[0] = '\0';
    metrics_put_operations(&sink, view->metrics);
    metrics_put_durations(&sink, view->metrics);
    metrics_put_waits(&sink, view->counters);
    metrics_put_locks(&sink, view->counters, view->waiting);
    metrics_put_number(&sink, "syncguard_events_dropped_total", "counter",
                       "Telemetry events that the full queue refused.", view->dropped);
    return sink.length;
}
