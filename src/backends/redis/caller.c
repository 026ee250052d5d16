/*
 * Pooling, sleeping, waking.
 *
 * A thread with an abort object sleeps in a parker, because it watches a descriptor too. The others
 * sleep on a futex: the first 32 of a pool on its word with one bit each, so that one system call
 * wakes all threads whose replies came in one read; any further ones on a word of their own.
 */
#include "caller.h"

#include <limits.h>
#include <string.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

#include "syncguard/sys/alloc.h"
#include "syncguard/sys/fail.h"

/* Longest sleep on a futex: its clock stops in suspend, ours does not. */
#define MAX_SLEEP_NS (1000 * SYNCGUARD_NS_PER_MS)

/* ---- sleeping and waking ---- */

#ifdef __linux__
static void futex_wake(atomic_int *word, uint32_t bits)
{
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, NULL, NULL, bits);
}

static void futex_wait(atomic_int *word, int seen, uint32_t bits, int64_t left_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    left_ns = (left_ns < MAX_SLEEP_NS ? left_ns : MAX_SLEEP_NS) + until.tv_nsec;
    until.tv_sec += (time_t)(left_ns / 1000000000);
    until.tv_nsec = (long)(left_ns % 1000000000);
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, &until, NULL, bits);
}
#else
static void futex_wake(atomic_int *word, uint32_t bits)
{
    (void)word;
    (void)bits;
}
#endif

void sg_redis_wakes_init(sg_redis_wakes *wakes)
{
    wakes->bits = 0;
    wakes->count = 0;
}

void sg_redis_wake_later(sg_redis_callers *pool, sg_redis_wakes *wakes, sg_redis_caller *caller)
{
    if (!caller->sleeping)
        return;
    if (!caller->by_parker && caller->bit != 0) {
        atomic_fetch_add(&pool->word, 1);
        wakes->bits |= caller->bit;
        return;
    }
    if (!caller->by_parker)
        atomic_fetch_add(&caller->word, 1);
    wakes->items[wakes->count].caller = caller;
    wakes->items[wakes->count].by_parker = caller->by_parker;
    wakes->count++;
}

void sg_redis_wake_all(sg_redis_callers *pool, sg_redis_wakes *wakes)
{
    if (wakes->bits != 0)
        futex_wake(&pool->word, wakes->bits);
    for (size_t i = 0; i < wakes->count; i++) {
        if (wakes->items[i].by_parker)
            syncguard_parker_unpark(&wakes->items[i].caller->parker);
        else
            futex_wake(&wakes->items[i].caller->word, ~UINT32_C(0));
    }
    sg_redis_wakes_init(wakes);
}

syncguard_status sg_redis_caller_sleep(sg_redis_callers *pool, sg_redis_caller *caller,
                                       const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    caller->sleeping = true;
    if (caller->by_parker) {
        pthread_mutex_unlock(&pool->mutex);
        status = syncguard_parker_park(&caller->parker, limits, err);
    } else {
#ifdef __linux__
        atomic_int *word = caller->bit != 0 ? &pool->word : &caller->word;
        int seen = atomic_load(word);
        pthread_mutex_unlock(&pool->mutex);
        int64_t left = syncguard_limits_left_ns(limits);
        if (left > 0)
            futex_wait(word, seen, caller->bit != 0 ? caller->bit : ~UINT32_C(0), left);
        else
            status = syncguard_limits_check(limits, err);
#endif
    }
    pthread_mutex_lock(&pool->mutex);
    caller->sleeping = false;
    return status;
}

/* ---- the pool ---- */

syncguard_status sg_redis_caller_take(sg_redis_callers *pool, bool by_parker, sg_redis_caller **out,
                                      syncguard_error *err)
{
    *out = NULL;
#ifndef __linux__
    by_parker = true;
#endif
    sg_redis_caller *caller = pool->spare;
    if (caller != NULL) {
        pool->spare = caller->next;
    } else {
        caller = syncguard_calloc(1, sizeof *caller);
        if (caller == NULL)
            return syncguard_fail_memory(err);
        atomic_init(&caller->word, 0);
        if (pool->count < 32)
            caller->bit = UINT32_C(1) << pool->count;
        pool->count++;
    }
    if (by_parker && !caller->parker_open) {
        syncguard_status status = syncguard_parker_open(&caller->parker, err);
        if (status != SYNCGUARD_OK) {
            caller->next = pool->spare;
            pool->spare = caller;
            return status;
        }
        caller->parker_open = true;
    }
    caller->next = NULL;
    caller->trip = NULL;
    caller->expected = 1;
    caller->got = 0;
    caller->queued = caller->tracking = caller->done = caller->uncollected = false;
    caller->by_parker = by_parker;
    caller->status = SYNCGUARD_OK;
    caller->sleeping = false;
    *out = caller;
    return SYNCGUARD_OK;
}

void sg_redis_caller_give(sg_redis_callers *pool, sg_redis_caller *caller)
{
    caller->trip = NULL;
    caller->next = pool->spare;
    pool->spare = caller;
}

void sg_redis_callers_free(sg_redis_caller *caller)
{
    while (caller != NULL) {
        sg_redis_caller *next = caller->next;
        if (caller->parker_open)
            syncguard_parker_close(&caller->parker);
        syncguard_free(caller);
        caller = next;
    }
}
