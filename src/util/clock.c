/*
 * The two clocks: one that cannot be set and continues during suspend, for every decision of this
 * process, and the wall clock, for times that are stored or shown.
 */
#include <time.h>

#include "syncguard/sys/wait.h"

#define NS_PER_S INT64_C(1000000000)

static int64_t clock_read_ns(clockid_t id)
{
    struct timespec now = {0, 0};
    if (clock_gettime(id, &now) != 0)
        return -1;
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

int64_t syncguard_clock_ns(void)
{
#ifdef CLOCK_BOOTTIME
    int64_t now = clock_read_ns(CLOCK_BOOTTIME);

    /* A kernel without this clock refuses every call, so all calls read the same clock. */
    if (now >= 0)
        return now;
#endif
    return clock_read_ns(CLOCK_MONOTONIC);
}

int64_t syncguard_wall_ms(void)
{
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t syncguard_clock_after(int64_t from_ns, int64_t ms)
{
    if (ms < 0)
        ms = 0;
    if (ms > (SYNCGUARD_NO_DEADLINE - from_ns) / SYNCGUARD_NS_PER_MS)
        return SYNCGUARD_NO_DEADLINE;
    return from_ns + ms * SYNCGUARD_NS_PER_MS;
}
