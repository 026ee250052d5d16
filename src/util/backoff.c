/* Pauses between tries: doubling, and jitter. */
#include "syncguard/sys/backoff.h"

#include "syncguard/sys/random.h"

int64_t syncguard_backoff_ns(int64_t first_ns, int round, int64_t longest_ns)
{
    int64_t pause = first_ns;
    for (int i = 0; i < round && pause > 0 && pause < longest_ns; i++)
        pause = pause <= INT64_MAX / 2 ? pause * 2 : INT64_MAX;
    return pause < longest_ns ? pause : longest_ns;
}

syncguard_status syncguard_backoff_wait(int64_t first_ns, int round, int64_t longest_ns,
                                        const syncguard_limits *limits, syncguard_error *err)
{
    int64_t half = syncguard_backoff_ns(first_ns, round, longest_ns) / 2;
    return syncguard_wait_until(syncguard_clock_ns() + half + syncguard_random_below(half + 1),
                                limits, err);
}
