/*
 * Pairs per second of 16 threads on one handle, each on its own key, against as
 * many plain connections as the handle has, each with a thread and a key of its
 * own, doing the plain durable pair. Both in turns of a second.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "postgres_plain.h"
#include "syncguard/postgres.h"

#define REPETITIONS 7
#define THREADS 16
#define CONNECTIONS SYNCGUARD_POSTGRES_POOL_MAX
#define ROUND_US 700000.0

typedef struct worker {
    plain *raw; /* NULL: ours */
    syncguard_backend *backend;
    int number;
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
            (void)plain_pair(self->raw, key);
        else
            (void)our_pair(self->backend, key);
        self->pairs++;
    }
    return NULL;
}

/* Pairs per second of `count` workers. */
static double round_of(worker *workers, int count)
{
    double start;
    long pairs = 0;
    struct timespec pause = {0, (long)(ROUND_US * 1000)};

    atomic_store(&stop, false);
    start = bench_us();
    for (int i = 0; i < count; i++) {
        workers[i].pairs = 0;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            pg_die("no thread");
    }
    nanosleep(&pause, NULL);
    atomic_store(&stop, true);
    for (int i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
        pairs += workers[i].pairs;
    }
    return (double)pairs / (bench_us() - start) * 1e6;
}

int main(void)
{
    static plain raws[CONNECTIONS];
    static worker ours[THREADS], theirs[CONNECTIONS];
    double ratios[REPETITIONS], our_rate[REPETITIONS], their_rate[REPETITIONS];
    pg_server *server = pg_server_start(NULL);
    syncguard_backend *backend;

    pg_make_database(server, "bench");
    backend = our_open(pg_url(server, "bench", NULL));
    for (int i = 0; i < CONNECTIONS; i++) {
        plain_open(&raws[i], server, "bench");
        theirs[i] = (worker){.raw = &raws[i], .number = i};
    }
    for (int i = 0; i < THREADS; i++)
        ours[i] = (worker){.backend = backend, .number = i};
    (void)round_of(theirs, CONNECTIONS);
    (void)round_of(ours, THREADS);
    for (int r = 0; r < REPETITIONS; r++) {
        their_rate[r] = round_of(theirs, CONNECTIONS);
        our_rate[r] = round_of(ours, THREADS);
        /* As time per pair, so that less is better as in every figure. */
        ratios[r] = their_rate[r] / our_rate[r];
    }
    double measured = bench_quantile(our_rate, REPETITIONS, 0.5);
    double limit = bench_quantile(their_rate, REPETITIONS, 0.5);
    printf("postgres 16 threads: %.0f pairs/s, %d plain connections: %.0f pairs/s\n", measured,
           CONNECTIONS, limit);
    bool holds = bench_figure("postgres pair, 16 threads, time against plain", 1e6 / measured, "us",
                              1e6 / limit, ratios, REPETITIONS, 1.0);
    syncguard_close(backend);
    for (int i = 0; i < CONNECTIONS; i++)
        PQfinish(raws[i].pg);
    pg_server_end(server);
    return holds ? 0 : 1;
}
