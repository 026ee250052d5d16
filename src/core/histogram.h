/* Histograms for telemetry: fixed bounds, atomic counts. */
#ifndef SG_HISTOGRAM_H
#define SG_HISTOGRAM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define SG_HISTOGRAM_BUCKETS 24

/* One count per bucket (not cumulative); the last one is for values above every bound. */
typedef struct sg_histogram {
    atomic_uint_fast64_t buckets[SG_HISTOGRAM_BUCKETS];
    atomic_uint_fast64_t sum;
} sg_histogram;

typedef struct sg_bound {
    int64_t value;
    const char *text; /* in the unit that is shown: seconds, or a number */
} sg_bound;

typedef struct sg_bounds {
    const sg_bound *items;
    size_t count;
} sg_bounds;

extern const sg_bounds sg_duration_bounds; /* of operations, in ns */
extern const sg_bounds sg_wait_bounds;     /* ns */
extern const sg_bounds sg_hold_bounds;     /* ns */
extern const sg_bounds sg_attempt_bounds;

void sg_histogram_reset(sg_histogram *histogram);
void sg_histogram_observe(sg_histogram *histogram, const sg_bounds *bounds, int64_t value);

#endif
