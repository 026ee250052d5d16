/* See counters.h. All counts are atomics with relaxed order: each count is exact, but several
 * together are not a snapshot. */
#include "counters.h"

#include "syncguard/sys/wait.h"

static bool counters_are_on(const sg_counters *counters)
{
    return atomic_load_explicit(&counters->on, memory_order_relaxed);
}

static void counters_increment(const sg_counters *counters, atomic_uint_fast64_t *count)
{
    if (counters_are_on(counters))
        atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
}

void sg_counters_reset(sg_counters *counters)
{
    for (size_t i = 0; i < SG_LOST_REASONS; i++)
        atomic_init(&counters->lost[i], 0);
    for (size_t i = 0; i < SG_RENEWAL_RESULTS; i++)
        atomic_init(&counters->renewals[i], 0);
    for (size_t i = 0; i < SG_UNDO_RESULTS; i++)
        atomic_init(&counters->undone[i], 0);
    atomic_init(&counters->reconnects, 0);
    atomic_init(&counters->held, 0);
    sg_histogram_reset(&counters->holds);
    sg_histogram_reset(&counters->waits);
    sg_histogram_reset(&counters->attempts);
}

void sg_counters_lost(sg_counters *counters, syncguard_lost_reason reason)
{
    counters_increment(counters, &counters->lost[reason]);
}

void sg_counters_renewal(sg_counters *counters, sg_renewal_result result)
{
    counters_increment(counters, &counters->renewals[result]);
}

void sg_counters_undone(sg_counters *counters, sg_undo_result result)
{
    counters_increment(counters, &counters->undone[result]);
}

void sg_counters_reconnect(sg_counters *counters)
{
    counters_increment(counters, &counters->reconnects);
}

void sg_counters_wait(sg_counters *counters, int64_t started_ns, int attempts)
{
    if (!counters_are_on(counters))
        return;
    sg_histogram_observe(&counters->waits, &sg_wait_bounds, syncguard_clock_ns() - started_ns);
    sg_histogram_observe(&counters->attempts, &sg_attempt_bounds, attempts);
}

bool sg_counters_hold_begin(sg_counters *counters)
{
    if (!counters_are_on(counters))
        return false;
    atomic_fetch_add_explicit(&counters->held, 1, memory_order_relaxed);
    return true;
}

void sg_counters_hold_end(sg_counters *counters, int64_t held_ns)
{
    atomic_fetch_sub_explicit(&counters->held, 1, memory_order_relaxed);
    sg_histogram_observe(&counters->holds, &sg_hold_bounds, held_ns);
}
