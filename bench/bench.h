/*
 * syncguard-bench: shared by its files, beside the plain clients of the stores (raw.h).
 *
 * A figure is what we measured beside what a plain client of the same store needs for the same work
 * (the limit), alternately, over several repetitions. There is a file per group of figures.
 *
 * This is a program, not the library: any failure ends it with one line.
 */
#ifndef BENCH_H
#define BENCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "raw.h"
#include "syncguard.h"

#define BENCH_MAX_REPETITIONS 25
#define BENCH_URL_SIZE 4400
#define BENCH_URL_VARIABLE "SYNCGUARD_BENCH_URL"
#define BENCH_NAME_SIZE 48

/* ---- groups of figures ---- */

void bench_pairs(const bench_store *store);   /* pair.c */
void bench_threads(const bench_store *store); /* threads.c */
/* One number, for bench/peers.py: "pair" or "rate". */
int bench_answer(const char *url, const char *what, const char *number);
void bench_handover(const bench_store *store); /* handover.c */
/* One of the processes of a hand-over; their URL is in the environment, out of sight of ps. */
int bench_take_turns(const char *url, char **arguments);
void bench_waiters(const bench_store *store); /* waiters.c */
void bench_takeover(const bench_store *store);
void bench_renewals(const bench_store *store); /* hold.c */
void bench_memory(const bench_store *store);
int bench_remember(const char *url, const char *text); /* the process that it measures */
void bench_held(const bench_store *store);
void bench_growth(const bench_store *store);      /* growth.c */
void bench_server_time(const bench_store *store); /* raw_redis.c: only Redis has it */

/* ---- figures (report.c) ---- */

typedef enum bench_bar_kind {
    BENCH_INTEREST,    /* no bar */
    BENCH_RATIO_MOST,  /* measured / limit at most the bar */
    BENCH_RATIO_LEAST, /* the same, at least */
    BENCH_BEYOND_MOST, /* measured - limit at most the bar */
    BENCH_MOST         /* measured at most the bar */
} bench_bar_kind;

typedef struct bench_figure {
    char store[16];
    char name[96];
    char unit[24];
    char against[64]; /* what the limit is; "": there is none */
    double measured, limit, ratio;
    double low, high; /* of the ratio; of measured where there is no limit */
    int repetitions;
    bench_bar_kind bar_kind;
    double bar;
    bool holds;
} bench_figure;

/* measured and limit: one value per repetition; limit may be NULL. */
void bench_report(const bench_store *store, const char *name, const char *unit, double *measured,
                  double *limit, const char *against, int count, bench_bar_kind how, double bar);
void bench_report_json(bool on);
/* Takes figures from a file of JSON lines. */
void bench_read(const char *path);
/* All figures so far. */
const bench_figure *bench_figures(size_t *count);
/* False if a bar was missed. */
bool bench_all_hold(void);
void bench_plot(const char *path); /* plot.c */

/* ---- places (place.c) ---- */

void bench_make_name(char out[BENCH_NAME_SIZE]);
/* The value of an option of the URL; false: it has none. */
bool bench_option(const char *url, const char *name, char *out, size_t size);
/* The URL with this option instead of any with the same name. */
void bench_set_option(const char *url, const char *name, const char *value, char *out, size_t size);
/* Creates a new folder, below the working directory if possible. */
void bench_make_folder(void);
const char *bench_folder(void);
void bench_remove_tree(const char *path);

/* ---- processes (supervise.c) ---- */

typedef int (*bench_work)(void *context);
/* From here on signals are handled by bench_supervise. */
void bench_supervise_start(void);
/* Runs work in a process of its own, and ends everything that the process started. Returns its exit
 * code, or 128 + the signal that stopped it. */
int bench_supervise(bench_work work, void *context);
int bench_ended_by(void);

/* ---- small things (common.c) ---- */

/* Repetitions of a short measurement that has a bar: three times as many, so that a moment in which
 * the machine is busy has no effect on the result. */
int bench_often(const bench_store *store);
/* Returns the number of locks, or a hundredth of it with --brief. */
long bench_scaled(const bench_store *store, long locks);
double bench_us(void);
/* Sorts values. part: 0.5 for the median. */
double bench_quantile(double *values, size_t count, double part);
void bench_die(const char *what, const char *why) __attribute__((noreturn));
void bench_pause_us(long us);
/* Opens url, with an option of the query added (may be NULL). */
syncguard_backend *bench_open(const char *url, const char *option);
/* Conflicts and broken connections so far, as the handles of bench_open log them. */
long bench_conflicts(void);
void bench_with_option(const char *url, const char *option, char *out, size_t size);
void bench_pair(syncguard_backend *backend, const char *key);
/* The server goes to the first processor, this program and its children to the last; figures that
 * are reported meanwhile say so. False: all stay where they are. */
bool bench_pin(const bench_store *store, void *plain);
void bench_unpin(void);
bool bench_pinned(void);
/* The bars of a server that can use only one processor are for figures that are pinned. */
bool bench_has_bars(const bench_raw *raw);
/* Before a measurement that should not depend on the one before. */
void bench_tidy(const bench_store *store);
long bench_rss_bytes(void);

#endif
