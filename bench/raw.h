/*
 * The stores, each represented by its plain client: one table of functions per store, in
 * raw_NAME.c. The groups of figures use it for the work of the plain client, which the library is
 * compared with.
 */
#ifndef BENCH_RAW_H
#define BENCH_RAW_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define BENCH_BATCH 256 /* locks that are renewed together */

/* One way to open the store whose pair has a bar of its own. */
typedef struct bench_variant {
    const char *name;
    const char *option; /* to add to the URL; NULL: none */
    double bar;         /* pair against the plain client, at most; 0: none */
} bench_variant;

/* A condition by which processes report a change to each other: polling would disturb the
 * measurement. */
typedef struct bench_condition {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} bench_condition;

/* Where the two processes of a plain hand-over meet. */
enum { BENCH_HELD, BENCH_WAITED_FOR, BENCH_TAKEN };

typedef struct bench_baton {
    bench_condition condition;
    int state;
    _Atomic double released_us; /* when release was called */
} bench_baton;

/* handover.c */
void bench_set_baton(bench_baton *shared, int state);
void bench_await_baton(bench_baton *shared, int state);
/* Takes the baton, waits until the other process has waited for it for a moment, and notes the
 * time. */
void bench_give_baton(bench_baton *shared);

typedef struct bench_store bench_store;

typedef struct bench_raw {
    const char *name;
    const char *scheme;
    const char *client; /* the client that we are compared with, for readers */
    bench_variant variants[3];
    bool beyond; /* their bars are microseconds beyond the plain client, not ratios */
    void *(*open)(const char *url);
    void (*close)(void *raw);
    /* An acquire and a release. */
    void (*pair)(void *raw, const char *key);
    /* This many pairs on distinct keys, pipelined; NULL: a connection per thread instead. */
    void (*pairs)(void *raw, int width);
    /* The number of these connections, at most. */
    int most_connections;
    double rate_bar; /* pairs/s against the plain client, at least, at rate_threads */
    int rate_threads;
    bool conflict_free; /* then without a single conflict */
    /* Renews BENCH_BATCH locks of its own at once. NULL: not measured. */
    void (*renew)(void *raw);
    /* The unit of a hand-over; NULL: pairs. */
    void (*round_trip)(void *raw);
    const char *round_trip_name;
    int turns; /* of a hand-over run; 0: not measured */
    /* The same between two processes, by the plain client and as directly as possible: one holds,
     * lets the other wait, and releases. NULL: not measured. */
    const char *by_hand; /* the client that does it */
    void (*give)(const char *url, bench_baton *shared, int turns);
    void (*take)(const char *url, bench_baton *shared, double *times, int turns);
    double handover_bar[2]; /* p50 at 2 and at 8 processes, in round trips */
    double tail_bar[2];     /* p99 */
    double handover_us;     /* p50 at 2 and 8 processes, absolute */
    /* Process of the server on this machine, to keep it off our processor; 0: none. NULL: it stays
     * where it is. */
    int (*server_pid)(void *raw);
    bool one_processor; /* the server can use one processor only */
    /* Removes the dead rows of the place url. NULL: nothing to do. */
    void (*tidy)(const char *url);
    /* The URL of a place of that name in the store of url (place.c); only this program writes to
     * it. NULL: url itself, nothing stays behind. */
    void (*place)(const char *url, const char *name, char *out, size_t size);
    /* Removes all that was written to the place url and to the places that grew beside it. It is
     * called before anything is written, too: a place that cannot be removed is not measured. */
    void (*clear)(const char *url);
    /* Makes a place beside the store's with so many live locks in it, and writes its URL. NULL:
     * none. */
    void (*grow)(const bench_store *store, long locks, char *out, size_t size);
    bool grows_together; /* places share a keyspace, unless the server is our own */
    /* False, after printing the reason: many locks would harm other users. NULL: they would not. */
    bool (*may_fill)(const char *url);
    int held;      /* locks that the long test holds; 0: none */
    int remembers; /* locks for the memory figure */
} bench_raw;

extern const bench_raw bench_raw_memory;
extern const bench_raw bench_raw_sqlite;
extern const bench_raw bench_raw_redis;
extern const bench_raw bench_raw_postgres;
extern const bench_raw bench_raw_firestore;

/* The store that is being measured. */
struct bench_store {
    const bench_raw *raw;
    const char *url; /* of our place in it */
    int repetitions;
    bool own;   /* the server has no other users: it may be moved, and need not be cleaned up */
    bool brief; /* a hundredth of the locks: to try the program */
};

#endif
