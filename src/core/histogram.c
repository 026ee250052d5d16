/* See histogram.h. Counts are atomics with relaxed order: each is exact, but several together are
 * not a snapshot. */
#include "histogram.h"

#define US INT64_C(1000)
#define MS INT64_C(1000000)
#define SECOND INT64_C(1000000000)

/* Memory answers in microseconds, a remote store within its deadline of seconds. */
static const sg_bound durations[] = {
    {1 * US, "0.000001"}, {5 * US, "0.000005"},  {10 * US, "0.00001"},  {25 * US, "0.000025"},
    {50 * US, "0.00005"}, {100 * US, "0.0001"},  {250 * US, "0.00025"}, {500 * US, "0.0005"},
    {1 * MS, "0.001"},    {2500 * US, "0.0025"}, {5 * MS, "0.005"},     {10 * MS, "0.01"},
    {25 * MS, "0.025"},   {50 * MS, "0.05"},     {100 * MS, "0.1"},     {250 * MS, "0.25"},
    {500 * MS, "0.5"},    {1 * SECOND, "1"},     {2500 * MS, "2.5"},    {5 * SECOND, "5"},
    {10 * SECOND, "10"},
};

static const sg_bound waits[] = {
    {100 * US, "0.0001"}, {500 * US, "0.0005"}, {1 * MS, "0.001"},     {5 * MS, "0.005"},
    {10 * MS, "0.01"},    {50 * MS, "0.05"},    {100 * MS, "0.1"},     {500 * MS, "0.5"},
    {1 * SECOND, "1"},    {2500 * MS, "2.5"},   {5 * SECOND, "5"},     {10 * SECOND, "10"},
    {30 * SECOND, "30"},  {60 * SECOND, "60"},  {300 * SECOND, "300"}, {3600 * SECOND, "3600"},
};

/* From a critical section of code to a nightly job. */
static const sg_bound holds[] = {
    {1 * MS, "0.001"},         {10 * MS, "0.01"},         {100 * MS, "0.1"},
    {500 * MS, "0.5"},         {1 * SECOND, "1"},         {5 * SECOND, "5"},
    {10 * SECOND, "10"},       {30 * SECOND, "30"},       {60 * SECOND, "60"},
    {300 * SECOND, "300"},     {900 * SECOND, "900"},     {3600 * SECOND, "3600"},
    {14400 * SECOND, "14400"}, {86400 * SECOND, "86400"},
};

static const sg_bound attempts[] = {
    {1, "1"},   {2, "2"},   {3, "3"},   {5, "5"},     {8, "8"},
    {11, "11"}, {20, "20"}, {50, "50"}, {100, "100"}, {1000, "1000"},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
_Static_assert(COUNT(durations) < SG_HISTOGRAM_BUCKETS, "room for +Inf");
_Static_assert(COUNT(waits) < SG_HISTOGRAM_BUCKETS, "room for +Inf");
_Static_assert(COUNT(holds) < SG_HISTOGRAM_BUCKETS, "room for +Inf");
_Static_assert(COUNT(attempts) < SG_HISTOGRAM_BUCKETS, "room for +Inf");

const sg_bounds sg_duration_bounds = {durations, COUNT(durations)};
const sg_bounds sg_wait_bounds = {waits, COUNT(waits)};
const sg_bounds sg_hold_bounds = {holds, COUNT(holds)};
const sg_bounds sg_attempt_bounds = {attempts, COUNT(attempts)};

void sg_histogram_reset(sg_histogram *histogram)
{
    for (size_t i = 0; i < SG_HISTOGRAM_BUCKETS; i++)
        atomic_init(&histogram->buckets[i], 0);
    atomic_init(&histogram->sum, 0);
}

void sg_histogram_observe(sg_histogram *histogram, const sg_bounds *bounds, int64_t value)
{
    if (value < 0)
        value = 0;
    size_t at = 0;
    while (at < bounds->count && value > bounds->items[at].value)
        at++;
    atomic_fetch_add_explicit(&histogram->buckets[at], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum, (uint64_t)value, memory_order_relaxed);
}
