/*
 * What the telemetry decorator counts, and its text for Prometheus.
 *
 * Everything is an atomic with relaxed order: a count is exact, the text is not
 * a snapshot across counts. A histogram's _count is made from its buckets, so
 * that it always agrees with the +Inf bucket. Numbers are written from integers,
 * because printf of a float follows the locale and Prometheus does not.
 */
#include "core/telemetry.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct bound {
    int64_t value;
    const char *text;
} bound;

#define US INT64_C(1000)
#define MS INT64_C(1000000)
#define SECOND INT64_C(1000000000)

/* Memory answers in microseconds, a remote store within its deadline of seconds. */
static const bound duration_bounds[] = {
    {1 * US, "0.000001"}, {5 * US, "0.000005"},  {10 * US, "0.00001"},  {25 * US, "0.000025"},
    {50 * US, "0.00005"}, {100 * US, "0.0001"},  {250 * US, "0.00025"}, {500 * US, "0.0005"},
    {1 * MS, "0.001"},    {2500 * US, "0.0025"}, {5 * MS, "0.005"},     {10 * MS, "0.01"},
    {25 * MS, "0.025"},   {50 * MS, "0.05"},     {100 * MS, "0.1"},     {250 * MS, "0.25"},
    {500 * MS, "0.5"},    {1 * SECOND, "1"},     {2500 * MS, "2.5"},    {5 * SECOND, "5"},
    {10 * SECOND, "10"},
};

static const bound wait_bounds[] = {
    {100 * US, "0.0001"}, {500 * US, "0.0005"}, {1 * MS, "0.001"},     {5 * MS, "0.005"},
    {10 * MS, "0.01"},    {50 * MS, "0.05"},    {100 * MS, "0.1"},     {500 * MS, "0.5"},
    {1 * SECOND, "1"},    {2500 * MS, "2.5"},   {5 * SECOND, "5"},     {10 * SECOND, "10"},
    {30 * SECOND, "30"},  {60 * SECOND, "60"},  {300 * SECOND, "300"}, {3600 * SECOND, "3600"},
};

static const bound attempt_bounds[] = {
    {1, "1"},   {2, "2"},   {3, "3"},   {5, "5"},     {8, "8"},
    {11, "11"}, {20, "20"}, {50, "50"}, {100, "100"}, {1000, "1000"},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

_Static_assert(COUNT(duration_bounds) < SG_HISTOGRAM_BUCKETS, "room for +Inf");
_Static_assert(COUNT(wait_bounds) < SG_HISTOGRAM_BUCKETS, "room for +Inf");
_Static_assert(COUNT(attempt_bounds) < SG_HISTOGRAM_BUCKETS, "room for +Inf");
_Static_assert(SYNCGUARD_E_OUT_OF_MEMORY == -SG_EVENT_ERRORS, "an outcome per failure");

static void increment(atomic_uint_fast64_t *count, uint64_t by)
{
    atomic_fetch_add_explicit(count, by, memory_order_relaxed);
}

static uint64_t value_of(const atomic_uint_fast64_t *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

static void observe(sg_histogram *histogram, const bound *bounds, size_t count, int64_t value)
{
    size_t at = 0;

    if (value < 0)
        value = 0;
    while (at < count && value > bounds[at].value)
        at++;
    increment(&histogram->buckets[at], 1);
    increment(&histogram->sum, (uint64_t)value);
}

static void histogram_reset(sg_histogram *histogram)
{
    for (size_t i = 0; i < SG_HISTOGRAM_BUCKETS; i++)
        atomic_init(&histogram->buckets[i], 0);
    atomic_init(&histogram->sum, 0);
}

void sg_metrics_reset(sg_metrics *metrics)
{
    for (size_t type = 0; type < SG_EVENT_TYPES; type++) {
        for (size_t outcome = 0; outcome < SG_EVENT_OUTCOMES; outcome++)
            atomic_init(&metrics->operations[type][outcome], 0);
        histogram_reset(&metrics->durations[type]);
    }
    histogram_reset(&metrics->waits);
    histogram_reset(&metrics->attempts);
}

static size_t outcome_of(const sg_observation *seen)
{
    if (seen->ok)
        return 0;
    if (seen->error < 0 && seen->error >= -SG_EVENT_ERRORS)
        return (size_t)(SG_EVENT_REASONS - seen->error);
    return 1 + (size_t)seen->reason;
}

void sg_metrics_count(sg_metrics *metrics, const sg_observation *seen)
{
    increment(&metrics->operations[seen->type][outcome_of(seen)], 1);
    observe(&metrics->durations[seen->type], duration_bounds, COUNT(duration_bounds),
            seen->duration_ns);
}

void sg_metrics_wait(sg_metrics *metrics, int64_t waited_ns, int attempts)
{
    observe(&metrics->waits, wait_bounds, COUNT(wait_bounds), waited_ns);
    observe(&metrics->attempts, attempt_bounds, COUNT(attempt_bounds), attempts);
}

/* Counts what does not fit as well. */
typedef struct text_sink {
    char *buffer;
    size_t size;
    size_t length;
    const char *labels; /* of every series */
} text_sink;

static void SYNCGUARD_PRINTF(2, 3) put(text_sink *sink, const char *format, ...)
{
    size_t room = sink->length < sink->size ? sink->size - sink->length : 0;
    va_list arguments;
    int written;

    va_start(arguments, format);
    written = vsnprintf(room > 0 ? sink->buffer + sink->length : NULL, room, format, arguments);
    va_end(arguments);
    if (written > 0)
        sink->length += (size_t)written;
}

static void put_head(text_sink *sink, const char *name, const char *type, const char *help)
{
    put(sink, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Whether an outcome belongs to the normal answers of a type, and so is shown as 0 too. */
static bool is_regular(syncguard_event_type type, size_t outcome)
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

static void put_operation(text_sink *sink, syncguard_event_type type, size_t outcome,
                          uint64_t value)
{
    const char *reason = "";
    const char *error = "";

    if (outcome > SG_EVENT_REASONS)
        error = syncguard_status_name((syncguard_status)(SG_EVENT_REASONS - (int)outcome));
    else if (outcome > 0)
        reason = syncguard_event_reason_name((syncguard_event_reason)(outcome - 1));
    put(sink,
        "syncguard_operations_total{%s,type=\"%s\",result=\"%s\",reason=\"%s\",error=\"%s\"} "
        "%" PRIu64 "\n",
        sink->labels, syncguard_event_type_name(type), outcome == 0 ? "ok" : "fail", reason, error,
        value);
}

static void put_operations(text_sink *sink, const sg_metrics *metrics)
{
    put_head(sink, "syncguard_operations_total", "counter", "Lock operations by outcome.");
    for (int type = 0; type < SG_EVENT_TYPES; type++) {
        for (size_t outcome = 0; outcome < SG_EVENT_OUTCOMES; outcome++) {
            uint64_t value = value_of(&metrics->operations[type][outcome]);
            if (value > 0 || is_regular((syncguard_event_type)type, outcome))
                put_operation(sink, (syncguard_event_type)type, outcome, value);
        }
    }
}

/* more is `,type="acquire"` or "". in_ns: the sum is nanoseconds, shown as seconds. */
static void put_histogram(text_sink *sink, const char *name, const char *more,
                          const sg_histogram *histogram, const bound *bounds, size_t count,
                          bool in_ns)
{
    uint64_t sum = value_of(&histogram->sum);
    uint64_t total = 0;

    for (size_t i = 0; i <= count; i++) {
        total += value_of(&histogram->buckets[i]);
        put(sink, "%s_bucket{%s%s,le=\"%s\"} %" PRIu64 "\n", name, sink->labels, more,
            i < count ? bounds[i].text : "+Inf", total);
    }
    if (in_ns)
        put(sink, "%s_sum{%s%s} %" PRIu64 ".%09" PRIu64 "\n", name, sink->labels, more,
            sum / (uint64_t)SECOND, sum % (uint64_t)SECOND);
    else
        put(sink, "%s_sum{%s%s} %" PRIu64 "\n", name, sink->labels, more, sum);
    put(sink, "%s_count{%s%s} %" PRIu64 "\n", name, sink->labels, more, total);
}

static void put_durations(text_sink *sink, const sg_metrics *metrics)
{
    char more[32];

    put_head(sink, "syncguard_operation_duration_seconds", "histogram",
             "Time that lock operations took.");
    for (int type = 0; type < SG_EVENT_TYPES; type++) {
        snprintf(more, sizeof more, ",type=\"%s\"",
                 syncguard_event_type_name((syncguard_event_type)type));
        put_histogram(sink, "syncguard_operation_duration_seconds", more, &metrics->durations[type],
                      duration_bounds, COUNT(duration_bounds), true);
    }
}

size_t sg_metrics_text(const sg_metrics *metrics, const char *labels, uint64_t dropped,
                       char *buffer, size_t size)
{
    text_sink sink = {buffer, buffer != NULL ? size : 0, 0, labels};

    if (sink.size > 0)
        buffer[0] = '\0';
    put_operations(&sink, metrics);
    put_durations(&sink, metrics);
    put_head(&sink, "syncguard_wait_seconds", "histogram",
             "Time that the lock helper took until it had the lock or gave up.");
    put_histogram(&sink, "syncguard_wait_seconds", "", &metrics->waits, wait_bounds,
                  COUNT(wait_bounds), true);
    put_head(&sink, "syncguard_wait_attempts", "histogram",
             "Attempts that the lock helper made until it had the lock or gave up.");
    put_histogram(&sink, "syncguard_wait_attempts", "", &metrics->attempts, attempt_bounds,
                  COUNT(attempt_bounds), false);
    put_head(&sink, "syncguard_events_dropped_total", "counter",
             "Telemetry events that the full queue refused.");
    put(&sink, "syncguard_events_dropped_total{%s} %" PRIu64 "\n", labels, dropped);
    return sink.length;
}
