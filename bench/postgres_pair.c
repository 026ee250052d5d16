/*
 * An uncontended acquire and release by one caller, against the plain durable
 * pair (postgres_plain.h). The two take turns in short blocks, so that both see
 * the same machine; each repetition gives the ratio of two medians.
 */
#include "postgres_plain.h"

#define REPETITIONS 7
#define BLOCKS 10
#define PAIRS 60
#define SAMPLES (BLOCKS * PAIRS)
#define BAR 0.85

int main(void)
{
    static double ours[SAMPLES], theirs[SAMPLES];
    double ratios[REPETITIONS], our_middle[REPETITIONS], their_middle[REPETITIONS];
    pg_server *server = pg_server_start(NULL);
    syncguard_backend *backend;
    plain raw;

    pg_make_database(server, "bench");
    plain_open(&raw, server, "bench");
    backend = our_open(pg_url(server, "bench", NULL));
    for (int i = 0; i < 200; i++) {
        (void)plain_pair(&raw, "warm-plain");
        (void)our_pair(backend, "warm-ours");
    }
    for (int r = 0; r < REPETITIONS; r++) {
        for (int b = 0; b < BLOCKS; b++) {
            for (int i = 0; i < PAIRS; i++)
                theirs[b * PAIRS + i] = plain_pair(&raw, "plain");
            for (int i = 0; i < PAIRS; i++)
                ours[b * PAIRS + i] = our_pair(backend, "ours");
        }
        our_middle[r] = bench_quantile(ours, SAMPLES, 0.5);
        their_middle[r] = bench_quantile(theirs, SAMPLES, 0.5);
        ratios[r] = our_middle[r] / their_middle[r];
    }
    bool holds =
        bench_figure("postgres pair, one caller, against plain durable",
                     bench_quantile(our_middle, REPETITIONS, 0.5), "us",
                     bench_quantile(their_middle, REPETITIONS, 0.5), ratios, REPETITIONS, BAR);
    syncguard_close(backend);
    PQfinish(raw.pg);
    pg_server_end(server);
    return holds ? 0 : 1;
}
