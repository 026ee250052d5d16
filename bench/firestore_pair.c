/*
 * One caller: acquire and release on Google's emulator, against plain libcurl doing the same three
 * requests on one kept-alive connection. Both in turns of a few pairs, so that the emulator's moods
 * meet both.
 */
#include "firestore_plain.h"

#define REPETITIONS 7
#define TURNS 40
#define PAIRS 5

int main(void)
{
    static plain raw;
    double ratios[REPETITIONS], ours[REPETITIONS], theirs[REPETITIONS];
    syncguard_backend *backend = our_open();
    int round = 0;
    bool holds;

    plain_open(&raw);
    for (int i = 0; i < 300; i++) { /* the emulator compiles as it goes */
        our_pair(backend, "bench-ours");
        plain_pair(&raw, "bench-plain", ++round);
    }
    for (int r = 0; r < REPETITIONS; r++) {
        static double our_us[TURNS * PAIRS], their_us[TURNS * PAIRS];
        size_t n = 0;
        for (int t = 0; t < TURNS; t++) {
            for (int p = 0; p < PAIRS; p++) {
                double start = bench_us();
                our_pair(backend, "bench-ours");
                our_us[n + (size_t)p] = bench_us() - start;
            }
            for (int p = 0; p < PAIRS; p++) {
                double start = bench_us();
                plain_pair(&raw, "bench-plain", ++round);
                their_us[n + (size_t)p] = bench_us() - start;
            }
            n += PAIRS;
        }
        ours[r] = bench_quantile(our_us, n, 0.5);
        theirs[r] = bench_quantile(their_us, n, 0.5);
        ratios[r] = ours[r] / theirs[r];
    }
    holds = bench_figure("firestore pair, one caller, against libcurl",
                         bench_quantile(ours, REPETITIONS, 0.5), "us",
                         bench_quantile(theirs, REPETITIONS, 0.5), ratios, REPETITIONS, 1.1);
    syncguard_close(backend);
    plain_close(&raw);
    return holds ? 0 : 1;
}
