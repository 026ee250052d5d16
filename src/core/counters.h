/*
 * Counters of telemetry for what happens to locks and connections besides operations. The counters
 * belong to the store's handle, and its decorators use the same ones (as they do its wait queue):
 * reconnects are reported to the store's handle, but locks belong to the decorator.
 *
 * Nothing is counted before a decorator has switched the counters on: until then each of these
 * functions is one load.
 */
#ifndef SG_COUNTERS_H
#define SG_COUNTERS_H

#include "histogram.h"
#include "syncguard/lock.h"

#define SG_LOST_REASONS (SYNCGUARD_LOST_MAX_HOLD + 1)

typedef enum sg_renewal_result {
    SG_RENEWAL_CONFIRMED,
    SG_RENEWAL_FAILED, /* no answer, or one that leaves it undecided */
    SG_RENEWAL_ABSENT,
    SG_RENEWAL_RESULTS
} sg_renewal_result;

typedef enum sg_undo_result {
    SG_UNDO_CONFIRMED, /* the store confirms that the acquire can never take effect */
    SG_UNDO_EXPIRED,   /* the lock would have expired by now */
    SG_UNDO_RESULTS
} sg_undo_result;

typedef struct sg_counters {
    atomic_bool on;
    atomic_uint_fast64_t lost[SG_LOST_REASONS]; /* the first entry is not used */
    atomic_uint_fast64_t renewals[SG_RENEWAL_RESULTS];
    atomic_uint_fast64_t undone[SG_UNDO_RESULTS];
    atomic_uint_fast64_t reconnects;
    atomic_int_fast64_t held; /* lock handles */
    sg_histogram holds;       /* ns */
    sg_histogram waits;       /* ns */
    sg_histogram attempts;
} sg_counters;

/* Sets all counts to zero; `on` does not change. No other thread may use the counters meanwhile. */
void sg_counters_reset(sg_counters *counters);
void sg_counters_lost(sg_counters *counters, syncguard_lost_reason reason);
void sg_counters_renewal(sg_counters *counters, sg_renewal_result result);
void sg_counters_undone(sg_counters *counters, sg_undo_result result);
void sg_counters_reconnect(sg_counters *counters);
/* A waiting acquire of the lock helper is over. */
void sg_counters_wait(sg_counters *counters, int64_t started_ns, int attempts);
/* A lock handle exists from now on; false: it is not counted. A caller that got true must call end
 * once. */
bool sg_counters_hold_begin(sg_counters *counters);
void sg_counters_hold_end(sg_counters *counters, int64_t held_ns);

#endif
