/*
 * What the benches share: a clock, medians, and the one form in which a figure
 * is printed: what it is, measured, limit, ratio, bar, and whether it holds.
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline double bench_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static inline int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts values. part: 0.5 for the median. */
static inline double bench_quantile(double *values, size_t count, double part)
{
    qsort(values, count, sizeof *values, bench_compare);
    size_t index = (size_t)((double)count * part);
    return values[index < count ? index : count - 1];
}

/*
 * One line per figure. ratios: one per repetition, of which the median counts
 * and the extremes are the spread. bar 0: none, for information. Returns
 * whether the bar holds.
 */
static inline bool bench_figure(const char *name, double measured, const char *unit, double limit,
                                double *ratios, size_t count, double bar)
{
    double middle = bench_quantile(ratios, count, 0.5);
    bool holds = bar <= 0 || middle <= bar;
    printf("%-44s measured %9.2f %s  limit %9.2f %s  ratio %6.3f  ", name, measured, unit, limit,
           unit, middle);
    if (bar > 0)
        printf("bar %5.2f  ", bar);
    else
        printf("bar  none  ");
    printf("spread %.3f..%.3f of %zu  %s\n", ratios[0], ratios[count - 1], count,
           bar <= 0 ? ""
           : holds  ? "holds"
                    : "MISSED");
    fflush(stdout);
    return holds;
}

#endif
