/*
 * An uncontended acquire and release by one caller. All ways to open the store and the plain client
 * are measured alternately, in short blocks, so that all see the same machine; first, if the server
 * may be moved, with the server on one processor and us on another, then left to the scheduler.
 */
#include "bench.h"

#define BLOCKS 20
#define VARIANTS 3

typedef struct side {
    const bench_variant *variant;
    syncguard_backend *backend;
    void *raw;
    double *ours, *plain; /* samples */
    double p50[2][BENCH_MAX_REPETITIONS], p99[2][BENCH_MAX_REPETITIONS];
} side;

static void side_measure_block(const bench_raw *raw, side *s, int from, int count)
{
    for (int i = from; i < from + count; i++) {
        double start = bench_us();
        raw->pair(s->raw, "bench:plain");
        s->plain[i] = bench_us() - start;
    }
    for (int i = from; i < from + count; i++) {
        double start = bench_us();
        bench_pair(s->backend, "bench:ours");
        s->ours[i] = bench_us() - start;
    }
}

static void side_report(const bench_store *store, side *s)
{
    const bench_raw *raw = store->raw;
    char name[96];
    bool has_bar = s->variant->bar > 0 && bench_has_bars(raw);
    bench_bar_kind how = !has_bar      ? BENCH_INTEREST
                         : raw->beyond ? BENCH_BEYOND_MOST
                                       : BENCH_RATIO_MOST;
    snprintf(name, sizeof name, "%s, p50", s->variant->name);
    bench_report(store, name, "us", s->p50[0], s->p50[1], raw->client, bench_often(store), how,
                 s->variant->bar);
    snprintf(name, sizeof name, "%s, p99", s->variant->name);
    bench_report(store, name, "us", s->p99[0], s->p99[1], raw->client, bench_often(store),
                 BENCH_INTEREST, 0);
}

static void sides_take_turns(const bench_store *store, side *sides, int count, int pairs)
{
    size_t samples = (size_t)(BLOCKS * pairs);
    bench_tidy(store);
    for (int r = -1; r < bench_often(store); r++) { /* the first warms up */
        for (int block = 0; block < BLOCKS; block++) {
            for (int v = 0; v < count; v++)
                side_measure_block(store->raw, &sides[v], block * pairs, pairs);
        }
        for (int v = 0; v < count && r >= 0; v++) {
            sides[v].p50[0][r] = bench_quantile(sides[v].ours, samples, 0.5);
            sides[v].p50[1][r] = bench_quantile(sides[v].plain, samples, 0.5);
            sides[v].p99[0][r] = bench_quantile(sides[v].ours, samples, 0.99);
            sides[v].p99[1][r] = bench_quantile(sides[v].plain, samples, 0.99);
        }
    }
    for (int v = 0; v < count; v++)
        side_report(store, &sides[v]);
}

void bench_pairs(const bench_store *store)
{
    const bench_raw *raw = store->raw;
    side sides[VARIANTS];
    int count = 0;
    int pairs = strcmp(raw->name, "firestore") == 0 ? 5 : 30;
    for (; count < VARIANTS && raw->variants[count].name != NULL; count++) {
        char url[BENCH_URL_SIZE];
        side *s = &sides[count];
        s->variant = &raw->variants[count];
        bench_with_option(store->url, s->variant->option, url, sizeof url);
        s->backend = bench_open(url, NULL);
        s->raw = raw->open(url);
        s->ours = calloc((size_t)(BLOCKS * pairs), sizeof(double));
        s->plain = calloc((size_t)(BLOCKS * pairs), sizeof(double));
        if (s->ours == NULL || s->plain == NULL)
            bench_die("pair", "out of memory");
    }
    if (bench_pin(store, sides[0].raw)) {
        sides_take_turns(store, sides, count, pairs);
        bench_unpin();
    }
    sides_take_turns(store, sides, count, pairs);
    for (int v = 0; v < count; v++) {
        syncguard_close(sides[v].backend);
        raw->close(sides[v].raw);
        free(sides[v].ours);
        free(sides[v].plain);
    }
}
