/* See renewal_queue.h. */
#include "renewal_queue.h"

#include "lock_state.h"
#include "syncguard/sys/random.h"

#define SHORTEST_RETRY_NS (10 * SYNCGUARD_NS_PER_MS)
#define LONGEST_RETRY_NS (500 * SYNCGUARD_NS_PER_MS)

syncguard_lock *sg_renewal_queue_first(const sg_renewal_queue *queue)
{
    return SG_HEAP_OWNER(sg_heap_first(queue), syncguard_lock, renewal);
}

void sg_renewal_queue_push(sg_renewal_queue *queue, syncguard_lock *lock)
{
    sg_heap_push(queue, &lock->renewal);
    lock->queue = queue;
}

void sg_renewal_queue_remove(syncguard_lock *lock)
{
    sg_heap_remove(lock->queue, &lock->renewal);
    lock->queue = NULL;
}

void sg_renewal_queue_move_all(sg_renewal_queue *from, sg_renewal_queue *to)
{
    while (from->count > 0) {
        syncguard_lock *lock =
            SG_HEAP_OWNER(from->entries[from->count - 1], syncguard_lock, renewal);
        sg_renewal_queue_remove(lock);
        sg_renewal_queue_push(to, lock);
    }
}

int64_t sg_renewal_queue_next_ns(const sg_renewal_queue *queue)
{
    return queue->count > 0 ? queue->entries[0]->due_ns : SYNCGUARD_NO_DEADLINE;
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
    lock->renewal.due_ns = next_ns < lease_end && !too_late ? next_ns : lease_end;
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
