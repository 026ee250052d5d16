/*
 * The heap of a lane of the heartbeat: locks by the time of their next renewal, and that time.
 * Each lock knows its place, so that it can be taken out from anywhere.
 *
 * Locking: the caller of everything here holds heartbeat.mutex.
 */
#include <string.h>
#include <unistd.h>

#include "core.h"

#define SHORTEST_RETRY_NS (10 * SYNCGUARD_NS_PER_MS)
#define LONGEST_RETRY_NS (500 * SYNCGUARD_NS_PER_MS)

static void heap_place(sg_lane *lane, syncguard_lock *lock, size_t index)
{
    lane->heap[index] = lock;
    lock->heap_index = index;
}

static void heap_rise(sg_lane *lane, size_t index)
{
    syncguard_lock *lock = lane->heap[index];
    while (index > 0 && lane->heap[(index - 1) / 2]->next_ns > lock->next_ns) {
        heap_place(lane, lane->heap[(index - 1) / 2], index);
        index = (index - 1) / 2;
    }
    heap_place(lane, lock, index);
}

static void heap_sink(sg_lane *lane, size_t index)
{
    syncguard_lock *lock = lane->heap[index];
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= lane->count)
            break;
        if (child + 1 < lane->count && lane->heap[child + 1]->next_ns < lane->heap[child]->next_ns)
            child++;
        if (lane->heap[child]->next_ns >= lock->next_ns)
            break;
        heap_place(lane, lane->heap[child], index);
        index = child;
    }
    heap_place(lane, lock, index);
}

bool sg_lane_reserve(sg_lane *lane, size_t count)
{
    if (count <= lane->capacity)
        return true;
    size_t capacity = lane->capacity == 0 ? 16 : lane->capacity * 2;
    if (capacity < count)
        capacity = count;
    syncguard_lock **heap = syncguard_malloc(capacity * sizeof(syncguard_lock *));
    syncguard_lock **old = lane->heap;
    if (heap == NULL)
        return false;
    if (lane->count > 0)
        memcpy(heap, old, lane->count * sizeof(syncguard_lock *));
    lane->heap = heap;
    lane->capacity = capacity;
    /* After its pointer is gone: a child forked at any moment frees what it finds. */
    syncguard_free(old);
    return true;
}

void sg_lane_push(sg_lane *lane, syncguard_lock *lock)
{
    sg_heartbeat *heartbeat = lane->heartbeat;
    heap_place(lane, lock, lane->count++);
    heap_rise(lane, lock->heap_index);
    lock->lane = lane->name;
    if (lock->on_lost != NULL && sg_lock_lease_end(lock) < heartbeat->watch_ns) {
        heartbeat->watch_ns = sg_lock_lease_end(lock);
        pthread_cond_broadcast(&heartbeat->told);
    }
}

void sg_lane_remove(sg_lane *lane, syncguard_lock *lock)
{
    size_t index = lock->heap_index;
    lock->lane = SG_LANE_NONE;
    lane->count--;
    if (index == lane->count)
        return;
    heap_place(lane, lane->heap[lane->count], index);
    heap_rise(lane, index);
    heap_sink(lane, lane->heap[index]->heap_index);
}

void sg_lane_sink(sg_lane *lane)
{
    heap_sink(lane, 0);
}

/* ---- when to renew ----------------------------------------------------------------------------
 */

/* A third of the TTL after the lease began, up to a tenth of that earlier so that locks taken
 * together do not stay together. */
static int64_t renewal_time(const syncguard_lock *lock)
{
    int64_t ttl_ns = syncguard_clock_after(0, atomic_load(&lock->ttl_ms));
    int64_t lease_end = sg_lock_lease_end(lock);
    int64_t third = ttl_ns / 3;
    uint32_t chance = 0;
    if (getentropy(&chance, sizeof chance) != 0)
        chance = (uint32_t)(uintptr_t)lock;
    int64_t early = third / 10 / UINT32_C(1024) * (int64_t)(chance % 1024);
    return lease_end - ttl_ns + third - early;
}

void sg_lane_schedule(syncguard_lock *lock)
{
    int64_t next = renewal_time(lock);
    if (next >= lock->hold_end_ns)
        next = sg_lock_lease_end(lock);
    lock->next_ns = next;
}

void sg_lane_schedule_retry(syncguard_lock *lock)
{
    int64_t pause = syncguard_clock_after(0, atomic_load(&lock->ttl_ms)) / 20;
    if (pause < SHORTEST_RETRY_NS)
        pause = SHORTEST_RETRY_NS;
    if (pause > LONGEST_RETRY_NS)
        pause = LONGEST_RETRY_NS;
    int64_t next = syncguard_clock_ns() + pause;
    int64_t lease_end = sg_lock_lease_end(lock);
    lock->next_ns = next < lease_end ? next : lease_end;
}
