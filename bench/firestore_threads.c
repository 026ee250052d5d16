/*
 * 16 threads on one handle, each on its own key, against 16 plain connections with a thread each.
 * In turns of a second. Not one conflict may be answered on the way.
 */
#include <pthread.h>

#include "firestore_plain.h"

#define REPETITIONS 7
#define THREADS 16
#define ROUND_MS 1000

typedef struct worker {
    plain *raw; /* NULL: ours */
    syncguard_backend *backend;
    int number;
    int rounds;
    long pairs;
    pthread_t thread;
} worker;

static atomic_bool stop;

static void *work(void *argument)
{
    worker *self = argument;
    char key[32];

    snprintf(key, sizeof key, "%s-%d", self->raw ? "plain" : "ours", self->number);
    while (!atomic_load(&stop)) {
        if (self->raw)
            plain_pair(self->raw, key, ++self->rounds);
        else
            our_pair(self->backend, key);
        self->pairs++;
    }
    return NULL;
}

/* Pairs per second. */
static double round_of(worker *workers)
{
    struct timespec pause = {ROUND_MS / 1000, (ROUND_MS % 1000) * 1000000L};
    double start = bench_us();
    long pairs = 0;

    atomic_store(&stop, false);
    for (int i = 0; i < THREADS; i++) {
        workers[i].pairs = 0;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            bench_die("no thread");
    }
    nanosleep(&pause, NULL);
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        pairs += workers[i].pairs;
    }
    return (double)pairs / (bench_us() - start) * 1e6;
}

int main(void)
{
    static plain raws[THREADS];
    static worker ours[THREADS], theirs[THREADS];
    double ratios[REPETITIONS], our_rate[REPETITIONS], their_rate[REPETITIONS];
    syncguard_backend *backend = our_open();
    double measured, limit;
    int conflicts;
    bool holds;

    for (int i = 0; i < THREADS; i++) {
        plain_open(&raws[i]);
        theirs[i] = (worker){.raw = &raws[i], .number = i};
        ours[i] = (worker){.backend = backend, .number = i};
    }
    for (int i = 0; i < 3; i++) { /* the emulator compiles as it goes */
        (void)round_of(theirs);
        (void)round_of(ours);
    }
    for (int r = 0; r < REPETITIONS; r++) {
        their_rate[r] = round_of(theirs);
        our_rate[r] = round_of(ours);
        /* As time per pair, so that less is better as in every figure. */
        ratios[r] = their_rate[r] / our_rate[r];
    }
    measured = bench_quantile(our_rate, REPETITIONS, 0.5);
    limit = bench_quantile(their_rate, REPETITIONS, 0.5);
    conflicts = atomic_load(&bench_conflicts);
    printf("firestore 16 threads: %.0f pairs/s, 16 plain connections: %.0f pairs/s, "
           "conflicts %d (bar 0)\n",
           measured, limit, conflicts);
    holds = bench_figure("firestore pair, 16 threads, time against libcurl", 1e6 / measured, "us",
                         1e6 / limit, ratios, REPETITIONS, 1.0 / 0.9);
    syncguard_close(backend);
    for (int i = 0; i < THREADS; i++)
        plain_close(&raws[i]);
    return holds && conflicts == 0 ? 0 : 1;
}
