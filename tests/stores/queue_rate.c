/*
 * The speed of a completion queue against the blocking calls, in turns in one run.
 *
 *     queue_rate URL [ROUNDS [MAX_THREADS...]]
 *
 * First one pair (acquire and release) at a time: the median time of a pair through the queue and
 * through the blocking calls. Then 64 at once: pairs per second of one queue with 64 open requests,
 * and of 64 threads. The ratio of a round is taken within the round, and the median of the rounds
 * is reported, so that other load on the machine changes it little. Exit 1 if the ratio of a queue
 * with the default options is beyond its limit; other MAX_THREADS are only shown.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "test_support.h"

#define WIDTH 64
#define ROUND_S 0.3
#define BLOCKS 10
#define BLOCK_PAIRS 30
#define MAX_ROUNDS 100
/* The aims are 1.3 and 0.9; these allow for a machine that others use. */
#define MOST_PAIR_RATIO 2.0
#define LEAST_RATE_RATIO 0.7

static void rate_die(const char *what)
{
    printf("%s\n", what);
    exit(70);
}

static double rate_quantile(double *values, int count, double part)
{
    qsort(values, (size_t)count, sizeof values[0], test_compare_double);
    return values[(int)(part * (count - 1) + 0.5)];
}

/* ---- blocking calls ---- */

static void blocking_pair(syncguard_backend *backend, const char *key)
{
    syncguard_lock *lock = NULL;
    syncguard_error err;
    if (syncguard_lock_acquire(backend, key, NULL, &lock, &err) != SYNCGUARD_OK)
        rate_die(err.message);
    if (syncguard_lock_release(lock, NULL, &err) != SYNCGUARD_OK)
        rate_die(err.message);
    syncguard_lock_dispose(lock);
}

typedef struct caller {
    syncguard_backend *backend;
    char key[32];
    long pairs;
    pthread_t thread;
} caller;

static atomic_bool over;

static void *rate_caller_run(void *argument)
{
    caller *self = argument;
    while (!atomic_load(&over)) {
        blocking_pair(self->backend, self->key);
        self->pairs++;
    }
    return NULL;
}

static double threads_rate(syncguard_backend *backend)
{
    static caller callers[WIDTH];
    double start = test_now_s();
    atomic_store(&over, false);
    for (int i = 0; i < WIDTH; i++) {
        callers[i].backend = backend;
        callers[i].pairs = 0;
        snprintf(callers[i].key, sizeof callers[i].key, "queue-rate-%d", i);
        if (pthread_create(&callers[i].thread, NULL, rate_caller_run, &callers[i]) != 0)
            rate_die("thread");
    }
    test_sleep_us((int64_t)(ROUND_S * 1e6));
    atomic_store(&over, true);
    long pairs = 0;
    for (int i = 0; i < WIDTH; i++) {
        pthread_join(callers[i].thread, NULL);
        pairs += callers[i].pairs;
    }
    return (double)pairs / (test_now_s() - start);
}

/* ---- the queue ---- */

static syncguard_queue *rate_open_queue(syncguard_backend *backend, int max_threads)
{
    syncguard_queue *queue = NULL;
    syncguard_queue_options options = SYNCGUARD_QUEUE_OPTIONS_INIT;
    if (max_threads > 0)
        options.max_threads = max_threads;
    if (syncguard_queue_open(backend, &options, &queue, NULL) != SYNCGUARD_OK)
        rate_die("queue");
    return queue;
}

static syncguard_completion rate_next_completion(syncguard_queue *queue)
{
    syncguard_completion done;
    struct pollfd fd = {syncguard_queue_fd(queue), POLLIN, 0};
    while (!syncguard_queue_next(queue, &done))
        (void)poll(&fd, 1, -1);
    if (done.status != SYNCGUARD_OK)
        rate_die(done.error.message);
    return done;
}

static void rate_start_acquire(syncguard_queue *queue, char *key)
{
    if (syncguard_lock_acquire_async(queue, key, NULL, key, NULL, NULL) != SYNCGUARD_OK)
        rate_die("acquire");
}

static void rate_start_release(syncguard_queue *queue, const syncguard_completion *granted)
{
    if (syncguard_lock_release_async(queue, granted->lock, NULL, granted->context, NULL, NULL) !=
        SYNCGUARD_OK)
        rate_die("release");
}

static void async_pair(syncguard_queue *queue, char *key)
{
    rate_start_acquire(queue, key);
    syncguard_completion granted = rate_next_completion(queue);
    rate_start_release(queue, &granted);
    (void)rate_next_completion(queue);
}

static double queue_rate(syncguard_queue *queue)
{
    static char keys[WIDTH][32];
    long pairs = 0;
    int open = WIDTH;
    double start = test_now_s();
    for (int i = 0; i < WIDTH; i++) {
        snprintf(keys[i], sizeof keys[i], "queue-rate-%d", i);
        rate_start_acquire(queue, keys[i]);
    }
    while (open > 0) {
        syncguard_completion done = rate_next_completion(queue);
        if (done.kind == SYNCGUARD_COMPLETION_ACQUIRE) {
            rate_start_release(queue, &done);
            continue;
        }
        pairs++;
        if (test_now_s() - start < ROUND_S)
            rate_start_acquire(queue, done.context);
        else
            open--;
    }
    return (double)pairs / (test_now_s() - start);
}

/* ---- comparing ---- */

static void rate_report(const char *name, double *ours, double *theirs, const char *unit,
                        int rounds)
{
    double ratios[MAX_ROUNDS];
    for (int i = 0; i < rounds; i++)
        ratios[i] = ours[i] / theirs[i];
    double ratio = rate_quantile(ratios, rounds, 0.5);
    printf("%-34s %9.1f %s, blocking %9.1f, ratio %.2f (%.2f to %.2f)\n", name,
           rate_quantile(ours, rounds, 0.5), unit, rate_quantile(theirs, rounds, 0.5), ratio,
           ratios[0], ratios[rounds - 1]);
    fflush(stdout);
    ours[0] = ratio;
}

/* Times of pairs through the queue, or through the backend. */
static void time_block(syncguard_queue *queue, syncguard_backend *backend, double *took)
{
    char key[] = "queue-rate-pair";
    for (int i = 0; i < BLOCK_PAIRS; i++) {
        double start = test_now_s();
        if (queue != NULL)
            async_pair(queue, key);
        else
            blocking_pair(backend, key);
        took[i] = (test_now_s() - start) * 1e6;
    }
}

/* Returns the ratio of the times of a pair. */
static double compare_pairs(syncguard_backend *backend, int rounds)
{
    static double took[2][BLOCKS * BLOCK_PAIRS];
    double ours[MAX_ROUNDS], theirs[MAX_ROUNDS];
    syncguard_queue *queue = rate_open_queue(backend, 0);
    for (int round = -1; round < rounds; round++) { /* the first warms up */
        for (int block = 0; block < BLOCKS; block++) {
            time_block(queue, NULL, &took[0][block * BLOCK_PAIRS]);
            time_block(NULL, backend, &took[1][block * BLOCK_PAIRS]);
        }
        if (round < 0)
            continue;
        ours[round] = rate_quantile(took[0], BLOCKS * BLOCK_PAIRS, 0.5);
        theirs[round] = rate_quantile(took[1], BLOCKS * BLOCK_PAIRS, 0.5);
    }
    syncguard_queue_close(queue);
    rate_report("a pair, one at a time", ours, theirs, "us", rounds);
    return ours[0];
}

/* Returns the ratio of the rates; max_threads 0: the default. */
static double compare_rates(syncguard_backend *backend, int max_threads, int rounds)
{
    double ours[MAX_ROUNDS], theirs[MAX_ROUNDS];
    char name[64];
    syncguard_queue *queue = rate_open_queue(backend, max_threads);
    for (int round = -1; round < rounds; round++) { /* the first warms up */
        double before = threads_rate(backend);
        double rate = queue_rate(queue);
        double after = threads_rate(backend);
        if (round < 0)
            continue;
        ours[round] = rate;
        theirs[round] = (before + after) / 2;
    }
    syncguard_queue_close(queue);
    if (max_threads > 0)
        snprintf(name, sizeof name, "pairs/s, 64 open, max_threads %d", max_threads);
    else
        snprintf(name, sizeof name, "pairs/s, 64 open");
    rate_report(name, ours, theirs, "/s", rounds);
    return ours[0];
}

int main(int argc, char **argv)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 15;
    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS)
        rate_die("usage: queue_rate URL [ROUNDS [MAX_THREADS...]]");
    if (syncguard_open(argv[1], NULL, &backend, &err) != SYNCGUARD_OK)
        rate_die(err.message);
    double pair = compare_pairs(backend, rounds);
    double rate = compare_rates(backend, 0, rounds);
    for (int i = 3; i < argc; i++)
        (void)compare_rates(backend, (int)strtol(argv[i], NULL, 10), rounds);
    syncguard_close(backend);
    if (pair > MOST_PAIR_RATIO)
        printf("FAILED: a pair takes more than %.1f of a blocking one\n", MOST_PAIR_RATIO);
    if (rate < LEAST_RATE_RATIO)
        printf("FAILED: fewer than %.1f of the pairs of 64 threads\n", LEAST_RATE_RATIO);
    return pair > MOST_PAIR_RATIO || rate < LEAST_RATE_RATIO ? 1 : 0;
}
