/*
 * Pairs per second of 1, 4, 16 and 64 threads on one handle, each on a key of its own, against the
 * plain client: pipelined as wide as there are threads where the store allows that, else a
 * connection per thread, up to as many as the handle would use.
 *
 * If it may be moved, a server with one thread gets one processor, and its clients another, so that
 * the figures show the clients and not the choices of the scheduler; the widest case is also
 * measured without.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "bench.h"

#define MOST_THREADS 64
#define ROUND_US 500000

static const int widths[] = {1, 4, 16, 64};

typedef struct worker {
    const bench_raw *raw;
    void *plain; /* NULL: the library */
    syncguard_backend *backend;
    int number;
    long pairs;
    pthread_t thread;
} worker;

static atomic_bool over;

static void *worker_repeat_pairs(void *argument)
{
    worker *self = argument;
    char key[32];
    snprintf(key, sizeof key, "bench:%s:%d", self->plain == NULL ? "o" : "p", self->number);
    while (!atomic_load(&over)) {
        if (self->plain != NULL)
            self->raw->pair(self->plain, key);
        else
            bench_pair(self->backend, key);
        self->pairs++;
    }
    return NULL;
}

static double workers_measure_rate(worker *workers, int count)
{
    double start = bench_us();
    atomic_store(&over, false);
    for (int i = 0; i < count; i++) {
        workers[i].pairs = 0;
        if (pthread_create(&workers[i].thread, NULL, worker_repeat_pairs, &workers[i]) != 0)
            bench_die("threads", "no thread");
    }
    bench_pause_us(ROUND_US);
    atomic_store(&over, true);
    long pairs = 0;
    for (int i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
        pairs += workers[i].pairs;
    }
    return (double)pairs / (bench_us() - start) * 1e6;
}

static double pipelined_rate(const bench_raw *raw, void *plain, int width)
{
    double start = bench_us();
    long pairs = 0;
    for (; bench_us() - start < ROUND_US; pairs += width)
        raw->pairs(plain, width);
    return (double)pairs / (bench_us() - start) * 1e6;
}

static void one_width(const bench_store *store, int width, bool pins)
{
    const bench_raw *raw = store->raw;
    int connections = raw->pairs != NULL              ? 1
                      : width < raw->most_connections ? width
                                                      : raw->most_connections;
    worker mine[MOST_THREADS];
    syncguard_backend *backend = bench_open(store->url, NULL);
    for (int i = 0; i < width; i++)
        mine[i] = (worker){.raw = raw, .backend = backend, .number = i};
    worker theirs[MOST_THREADS];
    for (int i = 0; i < connections; i++)
        theirs[i] = (worker){.raw = raw, .plain = raw->open(store->url), .number = i};
    if (pins)
        bench_pin(store, theirs[0].plain);
    bool bar = raw->rate_threads == width && bench_has_bars(raw);
    int count = bar ? bench_often(store) : store->repetitions;
    double before = 0;
    double ours[BENCH_MAX_REPETITIONS];
    double plain[BENCH_MAX_REPETITIONS];
    for (int r = -1; r < count; r++) { /* the first warms up */
        double rate = workers_measure_rate(mine, width);
        double after = raw->pairs != NULL ? pipelined_rate(raw, theirs[0].plain, width)
                                          : workers_measure_rate(theirs, connections);
        if (r >= 0) {
            ours[r] = rate;
            plain[r] = (before + after) / 2;
        }
        before = after;
    }
    char name[64];
    snprintf(name, sizeof name, "pairs/s, %d thread%s", width, width == 1 ? "" : "s");
    bench_report(store, name, "/s", ours, plain, raw->client, count,
                 bar ? BENCH_RATIO_LEAST : BENCH_INTEREST, raw->rate_bar);
    bench_unpin();
    for (int i = 0; i < connections; i++)
        raw->close(theirs[i].plain);
    syncguard_close(backend);
}

void bench_threads(const bench_store *store)
{
    long before = bench_conflicts();
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        one_width(store, widths[i], store->raw->one_processor);
    if (store->raw->one_processor && store->own)
        one_width(store, MOST_THREADS, false);
    double conflicts[] = {(double)(bench_conflicts() - before)};
    if (store->raw->conflict_free)
        bench_report(store, "conflicts meanwhile", "", conflicts, NULL, NULL, 1, BENCH_MOST, 0);
}

int bench_answer(const char *url, const char *what, const char *number)
{
    static worker workers[MOST_THREADS];
    static double times[10000];
    int count = (int)strtol(number, NULL, 10);
    syncguard_backend *backend = bench_open(url, NULL);
    if (strcmp(what, "rate") == 0 && count >= 1 && count <= MOST_THREADS) {
        for (int i = 0; i < count; i++)
            workers[i] = (worker){.backend = backend, .number = i};
        printf("%.2f\n", workers_measure_rate(workers, count));
    } else if (strcmp(what, "pair") == 0 && count >= 1 && count <= 10000) {
        for (int i = 0; i < count; i++) {
            double start = bench_us();
            bench_pair(backend, "bench:ours");
            times[i] = bench_us() - start;
        }
        printf("%.2f\n", bench_quantile(times, (size_t)count, 0.5));
    }
    syncguard_close(backend);
    return 0;
}
