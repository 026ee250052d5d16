/* See test_support.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "test_support.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>

static int64_t time_of_clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t test_now_ns(void)
{
    return time_of_clock_ns(CLOCK_MONOTONIC);
}

int64_t test_now_us(void)
{
    return test_now_ns() / 1000;
}

int64_t test_now_ms(void)
{
    return test_now_ns() / 1000000;
}

double test_now_s(void)
{
    return (double)test_now_ns() / 1e9;
}

int64_t test_wall_ns(void)
{
    return time_of_clock_ns(CLOCK_REALTIME);
}

int64_t test_wall_ms(void)
{
    return test_wall_ns() / 1000000;
}

void test_sleep_us(int64_t us)
{
    struct timespec left = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    while (us > 0 && nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

void test_sleep_ms(int64_t ms)
{
    test_sleep_us(ms * 1000);
}

void test_sleep_until_ms(int64_t at)
{
    test_sleep_ms(at - test_now_ms());
}

int test_compare_int64(const void *a, const void *b)
{
    int64_t first = *(const int64_t *)a;
    int64_t second = *(const int64_t *)b;
    return (first > second) - (first < second);
}

int test_compare_double(const void *a, const void *b)
{
    double first = *(const double *)a;
    double second = *(const double *)b;
    return (first > second) - (first < second);
}

syncguard_call test_call(int64_t timeout_ms)
{
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.timeout_ms = timeout_ms;
    return call;
}

/* ---- callbacks ---- */

bool test_ignore_info(void *context, const syncguard_lock_info *info)
{
    (void)context, (void)info;
    return true;
}

bool test_ignore_raw(void *context, const syncguard_lock_info_raw *info)
{
    (void)context, (void)info;
    return true;
}

void test_ignore_event(void *context, const syncguard_event *event)
{
    (void)context, (void)event;
}

void test_ignore_finding(void *context, const syncguard_finding *finding)
{
    (void)context, (void)finding;
}

void test_ignore_report(void *context, const syncguard_error *error, const char *key,
                        const char *lock_id, const char *source)
{
    (void)context, (void)error, (void)key, (void)lock_id, (void)source;
}

bool test_count_info(void *context, const syncguard_lock_info *info)
{
    (void)info;
    ++*(int *)context;
    return true;
}

bool test_count_raw(void *context, const syncguard_lock_info_raw *info)
{
    (void)info;
    ++*(int *)context;
    return true;
}

void test_count_finding(void *context, const syncguard_finding *finding)
{
    (void)finding;
    ++*(int *)context;
}

void test_count_event(void *context, const syncguard_event *event)
{
    (void)event;
    atomic_fetch_add((atomic_int *)context, 1);
}

void test_count_loss(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)lock, (void)reason;
    atomic_fetch_add((atomic_int *)context, 1);
}

void test_count_wait(void *context, int attempts, int64_t waited_ms, int64_t remaining_ms)
{
    (void)attempts, (void)waited_ms, (void)remaining_ms;
    atomic_fetch_add((atomic_int *)context, 1);
}
