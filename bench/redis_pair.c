/*
 * An uncontended acquire and release on Redis.
 *
 *   one caller   pinned, against two plain hiredis calls of the same scripts in
 *                turns; also with spin_us=50, and two PINGs for scale
 *   64 threads   on one handle, distinct keys, against one connection on which
 *                plain hiredis pipelines 64 acquires, then 64 releases
 *
 *     tests/redis/with-redis tcp redis_pair
 */
#include <pthread.h>
#include <stdatomic.h>

#include "redis_common.h"

#define REPETITIONS 9
#define BLOCKS 10
#define PAIRS 100
#define SAMPLES (BLOCKS * PAIRS)
#define THREADS 64
#define ROUND_US 700000.0

static long serial;

static double plain_pair(redisContext *context)
{
    plain_lock lock;
    double start = bench_us();
    plain_make(&lock, "bench:pair", serial++);
    plain_acquire(context, &lock);
    plain_reply(context);
    plain_release(context, &lock);
    plain_reply(context);
    return bench_us() - start;
}

static double ping_pair(redisContext *context)
{
    double start = bench_us();
    for (int i = 0; i < 2; i++)
        freeReplyObject(redisCommand(context, "PING"));
    return bench_us() - start;
}

static double our_pair(syncguard_backend *backend)
{
    double start = bench_us();
    bench_pair(backend, "bench:pair");
    return bench_us() - start;
}

static bool one_caller(redisContext *context)
{
    static double plain[SAMPLES], ours[SAMPLES], spun[SAMPLES], ping[SAMPLES];
    double ratio[REPETITIONS], spin_ratio[REPETITIONS];
    double plain_us = 0, ours_us = 0, spun_us = 0, ping_us = 0;
    syncguard_backend *still = bench_open(0, false);
    syncguard_backend *spinning = bench_open(50, false);
    bench_pin();
    for (int r = -1; r < REPETITIONS; r++) {
        for (int b = 0; b < BLOCKS; b++) {
            for (int i = b * PAIRS; i < (b + 1) * PAIRS; i++)
                plain[i] = plain_pair(context);
            for (int i = b * PAIRS; i < (b + 1) * PAIRS; i++)
                ours[i] = our_pair(still);
            for (int i = b * PAIRS; i < (b + 1) * PAIRS; i++)
                spun[i] = our_pair(spinning);
            for (int i = b * PAIRS; i < (b + 1) * PAIRS; i++)
                ping[i] = ping_pair(context);
        }
        plain_us = bench_quantile(plain, SAMPLES, 0.5);
        ours_us = bench_quantile(ours, SAMPLES, 0.5);
        spun_us = bench_quantile(spun, SAMPLES, 0.5);
        ping_us = bench_quantile(ping, SAMPLES, 0.5);
        if (r >= 0) {
            ratio[r] = ours_us / plain_us;
            spin_ratio[r] = spun_us / plain_us;
        }
    }
    bench_unpin();
    printf("%-44s measured %9.2f us\n", "redis two PINGs, plain hiredis", ping_us);
    bool held = bench_figure("redis pair, one caller / plain hiredis", ours_us, "us", plain_us,
                             ratio, REPETITIONS, 1.05);
    held &= bench_figure("redis pair, spin_us=50 / plain hiredis", spun_us, "us", plain_us,
                         spin_ratio, REPETITIONS, 0.65);
    syncguard_close(still);
    syncguard_close(spinning);
    return held;
}

static atomic_bool over;
static atomic_long pairs_done;

typedef struct worker {
    syncguard_backend *backend;
    int number;
} worker;

static void *work(void *argument)
{
    const worker *self = argument;
    char key[32];
    long done = 0;
    snprintf(key, sizeof key, "bench:many:%d", self->number);
    while (!atomic_load(&over)) {
        bench_pair(self->backend, key);
        done++;
    }
    atomic_fetch_add(&pairs_done, done);
    return NULL;
}

static double our_rate(syncguard_backend *backend)
{
    pthread_t threads[THREADS];
    worker workers[THREADS];
    atomic_store(&over, false);
    atomic_store(&pairs_done, 0);
    double start = bench_us();
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){backend, i};
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
            bench_die("no thread");
    }
    usleep((useconds_t)ROUND_US);
    atomic_store(&over, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return (double)atomic_load(&pairs_done) / (bench_us() - start) * 1e6;
}

static double plain_rate(redisContext *context)
{
    static plain_lock locks[THREADS];
    double start = bench_us();
    long done = 0;
    while (bench_us() - start < ROUND_US) {
        for (int i = 0; i < THREADS; i++) {
            char key[32];
            snprintf(key, sizeof key, "bench:many:%d", i);
            plain_make(&locks[i], key, serial++);
            plain_acquire(context, &locks[i]);
        }
        for (int i = 0; i < THREADS; i++)
            plain_reply(context);
        for (int i = 0; i < THREADS; i++)
            plain_release(context, &locks[i]);
        for (int i = 0; i < THREADS; i++)
            plain_reply(context);
        done += THREADS;
    }
    return (double)done / (bench_us() - start) * 1e6;
}

static bool many_callers(redisContext *context)
{
    double ratio[5], ours = 0, plain = 0;
    syncguard_backend *backend = bench_open(0, false);
    for (int r = -1; r < 5; r++) {
        plain = plain_rate(context);
        ours = our_rate(backend);
        if (r >= 0)
            ratio[r] = plain / ours; /* the bar is an upper one: plain must not be faster */
    }
    syncguard_close(backend);
    return bench_figure("redis 64 threads: plain pipelined / ours", ours, "/s", plain, ratio, 5,
                        1.0);
}

int main(int argc, char **argv)
{
    bool one = argc < 2 || strcmp(argv[1], "many") != 0;
    bool many = argc < 2 || strcmp(argv[1], "one") != 0;
    redisContext *context = bench_connect();
    bool held = !one || one_caller(context);
    held &= !many || many_callers(context);
    redisFree(context);
    return held ? 0 : 1;
}
