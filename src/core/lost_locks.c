/* See lost_locks.h. */
#include "lost_locks.h"

#include <time.h>

#include "core.h"
#include "lock_state.h"
#include "util/thread.h"

/* Most ended leases that one check collects, and the least time between two checks. */
#define ENDED_MAX 64
#define SHORTEST_CHECK_NS (2 * SYNCGUARD_NS_PER_MS)
/* The timer of a condition variable stops while the machine is suspended: it is set again after
 * this time. */
#define LONGEST_WAIT_NS (10000 * SYNCGUARD_NS_PER_MS)

void sg_lost_locks_push(sg_lost_locks *lost, syncguard_lock *lock)
{
    if (!sg_lock_tells(lock) || lock->lost_queued)
        return;
    lock->lost_queued = true;
    syncguard_links_append(&lost->queued, &lock->lost);
    pthread_cond_broadcast(&lost->changed);
}

void sg_lost_locks_watch(sg_lost_locks *lost, const syncguard_lock *lock)
{
    if (sg_lock_tells(lock) && sg_lock_lease_end(lock) < lost->next_check_ns) {
        lost->next_check_ns = sg_lock_lease_end(lock);
        pthread_cond_broadcast(&lost->changed);
    }
}

/* ---- the thread: it holds the mutex except during the callback ---- */

/* Removes the locks whose lease has ended from a queue. Returns when to check again. */
static int64_t lost_locks_check_queue(sg_lost_locks *lost, const sg_renewal_queue *queue)
{
    syncguard_lock *ended[ENDED_MAX];
    size_t count = 0;
    int64_t earliest = SYNCGUARD_NO_DEADLINE;
    for (size_t i = 0; i < queue->count; i++) {
        syncguard_lock *lock = SG_HEAP_OWNER(queue->entries[i], syncguard_lock, renewal);
        if (!sg_lock_tells(lock) || atomic_load(&lock->released))
            continue;
        if (sg_lock_check_lease(lock) != SYNCGUARD_LOST_NO && count < ENDED_MAX)
            ended[count++] = lock;
        else if (sg_lock_lease_end(lock) < earliest) /* 0 for one that did not fit: at once */
            earliest = sg_lock_lease_end(lock);
    }
    for (size_t i = 0; i < count; i++) {
        sg_renewal_queue_remove(ended[i]);
        sg_lost_locks_push(lost, ended[i]);
    }
    return earliest;
}

static void lost_locks_check_leases(sg_lost_locks *lost)
{
    int64_t soonest = syncguard_clock_ns() + SHORTEST_CHECK_NS;
    int64_t next = SYNCGUARD_NO_DEADLINE;
    for (size_t i = 0; i < SG_RENEWAL_QUEUES; i++) {
        int64_t earliest = lost_locks_check_queue(lost, lost->queues[i]);
        next = earliest < next ? earliest : next;
    }
    lost->next_check_ns = next < soonest ? soonest : next;
}

/* Waits until a lock is queued or a check is due. */
static void lost_locks_wait(sg_lost_locks *lost)
{
    int64_t left = lost->next_check_ns - syncguard_clock_ns();
    if (left <= 0) {
        lost_locks_check_leases(lost);
        return;
    }
    if (left > LONGEST_WAIT_NS)
        left = LONGEST_WAIT_NS;
    struct timespec until = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &until);
    left += until.tv_nsec;
    until.tv_sec += (time_t)(left / 1000000000);
    until.tv_nsec = (long)(left % 1000000000);
    if (lost->next_check_ns == SYNCGUARD_NO_DEADLINE)
        pthread_cond_wait(&lost->changed, lost->mutex);
    else
        (void)pthread_cond_timedwait(&lost->changed, lost->mutex, &until);
}

static void lost_locks_tell_first(sg_lost_locks *lost)
{
    syncguard_lock *lock =
        SYNCGUARD_LINKED(syncguard_links_pop(&lost->queued), syncguard_lock, lost);
    lock->lost_queued = false;
    lost->telling = lock;
    syncguard_lost_fn on_lost = lock->on_lost;
    void *context = lock->on_lost_context;
    pthread_mutex_unlock(lost->mutex);
    sg_incidents_log_losses(lost->backend);
    syncguard_abort_trigger(lock->abort_on_lost);
    if (on_lost != NULL)
        on_lost(context, lock, sg_lock_check_lease(lock));
    pthread_mutex_lock(lost->mutex); /* the callback may have freed the lock */
    lost->telling = NULL;
    pthread_cond_broadcast(&lost->changed);
}

static void *lost_locks_dispatch(void *argument)
{
    sg_lost_locks *lost = argument;
    syncguard_backend *backend = lost->backend;
    pthread_mutex_lock(lost->mutex);
    while (!lost->close_requested && (lost->queued.first != NULL || !lost->stopping)) {
        if (lost->queued.first != NULL)
            lost_locks_tell_first(lost);
        else
            lost_locks_wait(lost);
    }
    bool close_here = lost->close_requested;
    pthread_mutex_unlock(lost->mutex);
    if (close_here) {
        pthread_detach(pthread_self());
        lost->started = false;
        lost->close(backend);
    }
    return NULL;
}

/* ---- for other threads ---- */

static void lost_locks_unqueue(sg_lost_locks *lost, syncguard_lock *lock)
{
    if (!lock->lost_queued)
        return;
    syncguard_links_remove(&lost->queued, &lock->lost);
    lock->lost_queued = false;
}

void sg_lost_locks_detach(sg_lost_locks *lost, syncguard_lock *lock)
{
    lock->on_lost = NULL;
    if (!sg_lock_tells(lock))
        lost_locks_unqueue(lost, lock);
    while (lost->telling == lock)
        pthread_cond_wait(&lost->changed, lost->mutex);
}

void sg_lost_locks_silence(sg_lost_locks *lost, syncguard_lock *lock)
{
    pthread_mutex_lock(lost->mutex);
    lost_locks_unqueue(lost, lock);
    if (lost->telling == lock && pthread_equal(lost->thread, pthread_self()))
        lost->telling = NULL;
    while (lost->telling == lock)
        pthread_cond_wait(&lost->changed, lost->mutex);
    pthread_mutex_unlock(lost->mutex);
}

bool sg_lost_locks_close_later(sg_lost_locks *lost)
{
    pthread_mutex_lock(lost->mutex);
    bool inside_on_lost = lost->started && pthread_equal(lost->thread, pthread_self());
    lost->close_requested = inside_on_lost;
    pthread_mutex_unlock(lost->mutex);
    return inside_on_lost;
}

syncguard_status sg_lost_locks_start(sg_lost_locks *lost, syncguard_error *err)
{
    if (lost->started)
        return SYNCGUARD_OK;
    syncguard_status status =
        sg_thread_start(&lost->thread, lost_locks_dispatch, lost, "tell of lost locks", err);
    lost->started = status == SYNCGUARD_OK;
    return status;
}

/* Its timed waits must not follow steps of the wall clock. */
static bool lost_locks_init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return false;
    bool made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(condition, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return made;
}

syncguard_status sg_lost_locks_init(sg_lost_locks *lost, syncguard_error *err)
{
    lost->next_check_ns = SYNCGUARD_NO_DEADLINE;
    return lost_locks_init_condition(&lost->changed) ? SYNCGUARD_OK : syncguard_fail_memory(err);
}

void sg_lost_locks_stop(sg_lost_locks *lost)
{
    pthread_mutex_lock(lost->mutex);
    lost->stopping = true;
    pthread_cond_broadcast(&lost->changed);
    pthread_mutex_unlock(lost->mutex);
    if (lost->started) {
        pthread_join(lost->thread, NULL);
        lost->started = false;
    }
}

void sg_lost_locks_destroy(sg_lost_locks *lost)
{
    pthread_cond_destroy(&lost->changed);
}
