/*
 * Slots: pooling, sleeping, waking. See slot.h.
 *
 * Threads with an abort object sleep in a parker, because they watch a
 * descriptor too. The others need none and sleep on a futex: the first 32 of a
 * link on link->word with one bit each, so that one system call wakes all whose
 * replies came in one read; any further ones on a word of their own.
 */
#include <limits.h>
#include <string.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

#include "slot.h"

/* Longest sleep on a futex: its clock stops in suspend, ours does not. */
#define NAP_NS (1000 * SYNCGUARD_NS_PER_MS)

/* --- sleeping and waking --- */

#ifdef __linux__
static void futex_wake(atomic_int *word, uint32_t bits)
{
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, NULL, NULL, bits);
}

static void futex_wait(atomic_int *word, int seen, uint32_t bits, int64_t left_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    left_ns = (left_ns < NAP_NS ? left_ns : NAP_NS) + until.tv_nsec;
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

void sg_redis_wake_later(sg_link *link, sg_wakes *wakes, sg_slot *slot)
{
    if (!slot->sleeping)
        return;
    if (!slot->by_parker && slot->bit != 0) {
        atomic_fetch_add(&link->word, 1);
        wakes->bits |= slot->bit;
        return;
    }
    if (!slot->by_parker)
        atomic_fetch_add(&slot->word, 1);
    wakes->items[wakes->count].slot = slot;
    wakes->items[wakes->count].by_parker = slot->by_parker;
    wakes->count++;
}

void sg_redis_wake_all(sg_link *link, sg_wakes *wakes)
{
    if (wakes->bits != 0)
        futex_wake(&link->word, wakes->bits);
    for (size_t i = 0; i < wakes->count; i++) {
        if (wakes->items[i].by_parker)
            syncguard_parker_unpark(&wakes->items[i].slot->parker);
        else
            futex_wake(&wakes->items[i].slot->word, ~UINT32_C(0));
    }
    wakes->bits = 0;
    wakes->count = 0;
}

void sg_redis_wake_now(sg_link *link, sg_slot *slot)
{
    sg_wakes wakes;
    wakes.bits = 0;
    wakes.count = 0;
    sg_redis_wake_later(link, &wakes, slot);
    sg_redis_wake_all(link, &wakes);
}

syncguard_status sg_redis_slot_sleep(sg_link *link, sg_slot *slot, const syncguard_limits *limits,
                                     syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    slot->sleeping = true;
    if (slot->by_parker) {
        pthread_mutex_unlock(&link->mutex);
        status = syncguard_parker_park(&slot->parker, limits, err);
    } else {
#ifdef __linux__
        atomic_int *word = slot->bit != 0 ? &link->word : &slot->word;
        int seen = atomic_load(word);
        pthread_mutex_unlock(&link->mutex);
        int64_t left = syncguard_limits_left_ns(limits);
        if (left > 0)
            futex_wait(word, seen, slot->bit != 0 ? slot->bit : ~UINT32_C(0), left);
        else
            status = syncguard_limits_check(limits, err);
#endif
    }
    pthread_mutex_lock(&link->mutex);
    slot->sleeping = false;
    return status;
}

/* --- slots --- */

syncguard_status sg_redis_slot_take(sg_link *link, bool by_parker, sg_slot **out,
                                    syncguard_error *err)
{
    *out = NULL;
#ifndef __linux__
    by_parker = true;
#endif
    sg_slot *slot = link->spare;
    if (slot != NULL) {
        link->spare = slot->next;
    } else {
        slot = syncguard_calloc(1, sizeof *slot);
        if (slot == NULL)
            return syncguard_fail_memory(err);
        atomic_init(&slot->word, 0);
        if (link->slot_count < 32)
            slot->bit = UINT32_C(1) << link->slot_count;
        link->slot_count++;
    }
    if (by_parker && !slot->parker_open) {
        syncguard_status status = syncguard_parker_open(&slot->parker, err);
        if (status != SYNCGUARD_OK) {
            slot->next = link->spare;
            link->spare = slot;
            return status;
        }
        slot->parker_open = true;
    }
    slot->next = NULL;
    slot->request = NULL;
    slot->expected = 1;
    slot->got = 0;
    slot->queued = slot->tracking = slot->done = slot->counted = false;
    slot->by_parker = by_parker;
    slot->status = SYNCGUARD_OK;
    slot->sleeping = false;
    *out = slot;
    return SYNCGUARD_OK;
}

void sg_redis_slot_give(sg_link *link, sg_slot *slot)
{
    slot->request = NULL;
    slot->next = link->spare;
    link->spare = slot;
}

void sg_redis_slots_free(sg_slot *slot)
{
    while (slot != NULL) {
        sg_slot *next = slot->next;
        if (slot->parker_open)
            syncguard_parker_close(&slot->parker);
        syncguard_free(slot);
        slot = next;
    }
}
