/* See renewal_queue.h. */
#include "renewal_queue.h"

#include <string.h>

#include "lock_state.h"
#include "syncguard/sys/alloc.h"
#include "syncguard/sys/random.h"

#define SHORTEST_RETRY_NS (10 * SYNCGUARD_NS_PER_MS)
#define LONGEST_RETRY_NS (500 * SYNCGUARD_NS_PER_MS)

static void renewal_heap_place(sg_renewal_queue *queue, syncguard_lock *lock, size_t index)
{
    queue->heap[index] = lock;
    lock->heap_index = index;
}

static void renewal_heap_sift_up(sg_renewal_queue *queue, size_t index)
{
    syncguard_lock *lock = queue->heap[index];
    while (index > 0 && queue->heap[(index - 1) / 2]->next_ns > lock->next_ns) {
        renewal_heap_place(queue, queue->heap[(index - 1) / 2], index);
        index = (index - 1) / 2;
    }
    renewal_heap_place(queue, lock, index);
}

static void renewal_heap_sift_down(sg_renewal_queue *queue, size_t index)
{
    syncguard_lock *lock = queue->heap[index];
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= queue->count)
            break;
        if (child + 1 < queue->count &&
            queue->heap[child + 1]->next_ns < queue->heap[child]->next_ns)
            child++;
        if (queue->heap[child]->next_ns >= lock->next_ns)
            break;
        renewal_heap_place(queue, queue->heap[child], index);
        index = child;
    }
    renewal_heap_place(queue, lock, index);
}

bool sg_renewal_queue_reserve(sg_renewal_queue *queue, size_t count)
{
    if (count <= queue->capacity)
        return true;
    size_t capacity = queue->capacity == 0 ? 16 : queue->capacity * 2;
    if (capacity < count)
        capacity = count;
    syncguard_lock **heap = syncguard_malloc(capacity * sizeof(syncguard_lock *));
    syncguard_lock **old = queue->heap;
    if (heap == NULL)
        return false;
    if (queue->count > 0)
        memcpy(heap, old, queue->count * sizeof(syncguard_lock *));
    queue->heap = heap;
    queue->capacity = capacity;
    /* Only now, after its pointer is gone: a child forked at any moment frees the heap that it
     * finds. */
    syncguard_free(old);
    return true;
}

void sg_renewal_queue_push(sg_renewal_queue *queue, syncguard_lock *lock)
{
    renewal_heap_place(queue, lock, queue->count++);
    renewal_heap_sift_up(queue, lock->heap_index);
    lock->queue = queue;
}

void sg_renewal_queue_remove(syncguard_lock *lock)
{
    sg_renewal_queue *queue = lock->queue;
    size_t index = lock->heap_index;
    lock->queue = NULL;
    queue->count--;
    if (index == queue->count)
        return;
    renewal_heap_place(queue, queue->heap[queue->count], index);
    renewal_heap_sift_up(queue, index);
    renewal_heap_sift_down(queue, queue->heap[index]->heap_index);
}

void sg_renewal_queue_move_all(sg_renewal_queue *from, sg_renewal_queue *to)
{
    while (from->count > 0) {
        syncguard_lock *lock = from->heap[from->count - 1];
        sg_renewal_queue_remove(lock);
        sg_renewal_queue_push(to, lock);
    }
}

int64_t sg_renewal_queue_next_ns(const sg_renewal_queue *queue)
{
    return queue->count > 0 ? queue->heap[0]->next_ns : SYNCGUARD_NO_DEADLINE;
}

/* ---- when to renew ---- */

/* A third of the TTL after the lease began, or up to a tenth of that earlier, so that locks that
 * were acquired together are not always renewed together. */
static int64_t renewal_time(const syncguard_lock *lock)
{
    int64_t ttl_ns = syncguard_clock_after(0, atomic_load(&lock->ttl_ms));
    int64_t lease_end = sg_lock_lease_end(lock);
    int64_t third = ttl_ns / 3;
    return lease_end - ttl_ns + third - syncguard_random_below(third / 10);
}

bool sg_renewal_is_last_lease(const syncguard_lock *lock)
{
    return sg_lock_lease_end(lock) >= atomic_load(&lock->hold_end_ns);
}

/* A last lease cannot become longer, but renewals still show whether the store has the lock. They
 * stop when less is left than the time in which a loss is noticed anyway. */
static void renewal_schedule_at(syncguard_lock *lock, int64_t next_ns)
{
    int64_t lease_end = sg_lock_lease_end(lock);
    int64_t third = syncguard_clock_after(0, lock->wanted_ttl_ms) / 3;
    bool too_late = sg_renewal_is_last_lease(lock) && lease_end - next_ns < third;
    lock->next_ns = next_ns < lease_end && !too_late ? next_ns : lease_end;
}

void sg_renewal_schedule(syncguard_lock *lock)
{
    renewal_schedule_at(lock, renewal_time(lock));
}

void sg_renewal_schedule_retry(syncguard_lock *lock, int64_t sent_ns)
{
    int64_t pause = syncguard_clock_after(0, atomic_load(&lock->ttl_ms)) / 20;
    if (pause < SHORTEST_RETRY_NS)
        pause = SHORTEST_RETRY_NS;
    if (pause > LONGEST_RETRY_NS)
        pause = LONGEST_RETRY_NS;
    int64_t now = syncguard_clock_ns();
    renewal_schedule_at(lock, sent_ns + pause > now ? sent_ns + pause : now);
}
