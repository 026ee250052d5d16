/*
 * Does one more pair cost more when many locks are held? Places with 1, 1,000, 100,000 and
 * 1,000,000 live locks are measured alternately; each pair is on a random key among the others. If
 * the places would share a keyspace, it is filled and measured step by step instead. The locks are
 * written in bulk, in a way that only the store sees, because only their number matters.
 */
#include "bench.h"

#define BLOCKS 50
#define PAIRS 10
#define SAMPLES (BLOCKS * PAIRS)

static const long sizes[] = {1, 1000, 100000, 1000000};
static const char *const names[] = {"1", "1,000", "100,000", "1,000,000"};
#define SIZES (sizeof sizes / sizeof sizes[0])

static double samples[SIZES][SAMPLES];
static double middle[SIZES][BENCH_MAX_REPETITIONS];

static void growth_measure_blocks(syncguard_backend **stores, size_t from, size_t to,
                                  unsigned *seed)
{
    for (int block = 0; block < BLOCKS; block++) {
        for (size_t size = from; size < to; size++) {
            for (int i = 0; i < PAIRS; i++) {
                char key[32];
                snprintf(key, sizeof key, "grow-%07d-x", rand_r(seed) % 1000000);
                double start = bench_us();
                bench_pair(stores[size], key);
                samples[size][block * PAIRS + i] = bench_us() - start;
            }
        }
    }
}

static void growth_repeat_measurement(const bench_store *store, syncguard_backend **stores,
                                      size_t from, size_t to)
{
    unsigned seed = 1;
    for (int r = -1; r < store->repetitions; r++) { /* the first warms up */
        growth_measure_blocks(stores, from, to, &seed);
        for (size_t size = from; size < to && r >= 0; size++)
            middle[size][r] = bench_quantile(samples[size], SAMPLES, 0.5);
    }
}

void bench_growth(const bench_store *store)
{
    const bench_raw *raw = store->raw;
    syncguard_backend *stores[SIZES];
    bool steps = raw->grows_together && !store->own;
    if (raw->grow == NULL)
        return;
    for (size_t size = 0; size < SIZES; size++) {
        char url[BENCH_URL_SIZE];
        raw->grow(store, bench_scaled(store, sizes[size]), url, sizeof url);
        stores[size] = bench_open(url, NULL);
        if (steps)
            growth_repeat_measurement(store, stores, size, size + 1);
    }
    if (!steps)
        growth_repeat_measurement(store, stores, 0, SIZES);
    double base[BENCH_MAX_REPETITIONS];
    for (size_t size = 1; size < SIZES; size++) {
        char name[64];
        memcpy(base, middle[0], sizeof base); /* bench_report sorts its arguments */
        snprintf(name, sizeof name, "pair, p50, %s locks in the store", names[size]);
        bench_report(store, name, "us", middle[size], base, "with 1 lock", store->repetitions,
                     BENCH_RATIO_MOST, 1.2);
    }
    for (size_t size = 0; size < SIZES; size++)
        syncguard_close(stores[size]);
}
