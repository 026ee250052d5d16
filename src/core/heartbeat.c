/*
 * The heartbeat: renews the auto-extended locks of one backend, and tells their
 * owners when one is lost.
 *
 * Two lanes of the same build, each a heap by next renewal and a thread that is
 * started by the first lock that needs it. The batch lane renews many locks per
 * request. A lock that an answered batch leaves undecided goes to the single lane,
 * which can wait for it, so that one stuck key costs nobody else; a renewal that succeeds
 * there brings it back.
 *
 * A request that fails as a whole is repeated before what became due meanwhile: its locks have
 * the least time left, and after an outage everything is due.
 *
 * Invariants:
 *   - A lock is renewed only while its thread has claimed it (lock->claimed), and
 *     disposing claims it too: a lock that is in a request is never freed.
 *   - Lost is told in time even if the store hangs: a request never outlasts the
 *     earliest end of a lease in it, and meanwhile the dispatcher watches over
 *     those that are not in it (it looks at all of them, but only when the
 *     earliest lease that it saw would have ended: renewed ones have moved on).
 *   - lost is set once. A renewal that succeeds afterwards is released.
 *   - on_lost runs on the dispatcher, with no lock of ours held; `telling` names
 *     the lock whose callback runs, and disposing it waits (unless it is the
 *     callback itself that disposes).
 *
 * Locking: mutex guards heaps, the queue of lost locks and the fields of a lock
 * marked so in core.h. It is never held during an operation or a callback.
 */
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

#define BATCH_MAX 256
/* Locks due within this time go along with the next batch. */
#define SLACK_NS (10 * SYNCGUARD_NS_PER_MS)
#define SINGLE_STEP_NS (1000 * SYNCGUARD_NS_PER_MS)
/* A store may be slow without being dead, and giving up a request can cost its connection. */
#define SHORTEST_REQUEST_NS (1000 * SYNCGUARD_NS_PER_MS)
#define SHORTEST_RETRY_NS (10 * SYNCGUARD_NS_PER_MS)
/* Ended leases that one look of the dispatcher takes out, and the least time between two looks. */
#define ENDED_MAX 64
#define SHORTEST_LOOK_NS (2 * SYNCGUARD_NS_PER_MS)
/* The dispatcher's timer stands still in suspend: it is set anew after this. */
#define LONGEST_LOOK_NS (10000 * SYNCGUARD_NS_PER_MS)

static sg_lane *lane_of(sg_heartbeat *heartbeat, const syncguard_lock *lock)
{
    if (lock->lane == SG_LANE_RETRY)
        return &heartbeat->retry;
    return lock->lane == SG_LANE_SINGLE ? &heartbeat->single : &heartbeat->batch;
}

/* ---- telling of losses ---------------------------------------------------------------------- */

/* Caller holds the mutex; the lock is lost and in no lane. */
static void tell_lost(sg_heartbeat *heartbeat, syncguard_lock *lock)
{
    if (lock->on_lost == NULL || lock->lost_queued)
        return;
    lock->lost_queued = true;
    lock->lost_next = NULL;
    if (heartbeat->lost_last != NULL)
        heartbeat->lost_last->lost_next = lock;
    else
        heartbeat->lost_first = lock;
    heartbeat->lost_last = lock;
    pthread_cond_broadcast(&heartbeat->told);
}

/* Takes locks out of a lane whose lease has ended. Returns when to look again. Caller holds the
 * mutex. */
static int64_t look_at(sg_lane *lane)
{
    syncguard_lock *ended[ENDED_MAX];
    size_t count = 0;
    int64_t earliest = SYNCGUARD_NO_DEADLINE;
    for (size_t i = 0; i < lane->count; i++) {
        syncguard_lock *lock = lane->heap[i];
        if (lock->on_lost == NULL || atomic_load(&lock->released))
            continue;
        if (sg_lock_judge(lock) != SYNCGUARD_LOST_NO && count < ENDED_MAX)
            ended[count++] = lock;
        else if (sg_lock_lease_end(lock) < earliest) /* one that found no room says 0: at once */
            earliest = sg_lock_lease_end(lock);
    }
    for (size_t i = 0; i < count; i++) {
        sg_lane_remove(lane, ended[i]);
        tell_lost(lane->heartbeat, ended[i]);
    }
    return earliest;
}

/* Caller holds the mutex. */
static void look_for_ended(sg_heartbeat *heartbeat)
{
    int64_t soonest = syncguard_clock_ns() + SHORTEST_LOOK_NS;
    int64_t batch = look_at(&heartbeat->batch);
    int64_t single = look_at(&heartbeat->single);
    int64_t retry = look_at(&heartbeat->retry);
    int64_t next = batch < single ? batch : single;
    next = retry < next ? retry : next;
    heartbeat->watch_ns = next < soonest ? soonest : next;
}

/* The dispatcher's wait, until a lock is queued or a look is due. Caller holds the mutex. */
static void wait_for_lost(sg_heartbeat *heartbeat)
{
    int64_t left = heartbeat->watch_ns - syncguard_clock_ns();
    if (left <= 0) {
        look_for_ended(heartbeat);
        return;
    }
    if (left > LONGEST_LOOK_NS)
        left = LONGEST_LOOK_NS;
    struct timespec until = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &until);
    left += until.tv_nsec;
    until.tv_sec += (time_t)(left / 1000000000);
    until.tv_nsec = (long)(left % 1000000000);
    if (heartbeat->watch_ns == SYNCGUARD_NO_DEADLINE)
        pthread_cond_wait(&heartbeat->told, &heartbeat->mutex);
    else
        (void)pthread_cond_timedwait(&heartbeat->told, &heartbeat->mutex, &until);
}

static void *dispatch_loop(void *argument)
{
    sg_heartbeat *heartbeat = argument;
    syncguard_backend *backend = heartbeat->backend;
    pthread_mutex_lock(&heartbeat->mutex);
    while (!heartbeat->close_requested) {
        syncguard_lock *lock = heartbeat->lost_first;
        if (lock == NULL) {
            if (heartbeat->stopping)
                break;
            wait_for_lost(heartbeat);
            continue;
        }
        heartbeat->lost_first = lock->lost_next;
        if (heartbeat->lost_first == NULL)
            heartbeat->lost_last = NULL;
        lock->lost_queued = false;
        heartbeat->telling = lock;
        syncguard_lost_fn on_lost = lock->on_lost;
        void *context = lock->on_lost_context;
        pthread_mutex_unlock(&heartbeat->mutex);
        on_lost(context, lock, sg_lock_judge(lock));
        pthread_mutex_lock(&heartbeat->mutex); /* the callback may have freed the lock */
        heartbeat->telling = NULL;
        pthread_cond_broadcast(&heartbeat->told);
    }
    bool close_here = heartbeat->close_requested;
    pthread_mutex_unlock(&heartbeat->mutex);
    if (close_here) {
        pthread_detach(pthread_self());
        heartbeat->dispatcher_started = false;
        sg_backend_close_now(backend);
    }
    return NULL;
}

void sg_heartbeat_silence(sg_heartbeat *heartbeat, syncguard_lock *lock)
{
    pthread_mutex_lock(&heartbeat->mutex);
    if (lock->lost_queued) {
        syncguard_lock **link = &heartbeat->lost_first;
        syncguard_lock *before = NULL;
        while (*link != lock) {
            before = *link;
            link = &(*link)->lost_next;
        }
        *link = lock->lost_next;
        if (heartbeat->lost_last == lock)
            heartbeat->lost_last = before;
        lock->lost_queued = false;
    }
    if (heartbeat->telling == lock && pthread_equal(heartbeat->dispatcher, pthread_self()))
        heartbeat->telling = NULL;
    while (heartbeat->telling == lock)
        pthread_cond_wait(&heartbeat->told, &heartbeat->mutex);
    pthread_mutex_unlock(&heartbeat->mutex);
}

/* ---- renewing ---------------------------------------------------------------------------------
 */

/*
 * Takes due locks out of the heap and claims them; once one is due, those that
 * are nearly so come along. A lock whose lease is over is lost; one that its
 * owner is just using comes again a moment later. There are count in batch already, and it has
 * room for most. Caller holds the mutex.
 */
static size_t collect_from(sg_lane *lane, syncguard_lock **batch, size_t count, size_t most)
{
    int64_t now = syncguard_clock_ns();
    int64_t due = now;
    while (count < most && lane->count > 0 && lane->heap[0]->next_ns <= due) {
        syncguard_lock *lock = lane->heap[0];
        int64_t lease_end = sg_lock_lease_end(lock);
        due = now + SLACK_NS;
        if (atomic_load(&lock->released)) {
            sg_lane_remove(lane, lock);
        } else if (sg_lock_judge(lock) != SYNCGUARD_LOST_NO) {
            sg_lane_remove(lane, lock);
            tell_lost(lane->heartbeat, lock);
        } else if (lock->next_ns >= lease_end) { /* not renewed any more: wait for the end */
            break;
        } else if (now >= lock->hold_end_ns) { /* retried until here, but no further */
            lock->next_ns = lease_end;
            sg_lane_sink(lane);
        } else if (!sg_lock_try_claim(lock)) {
            lock->next_ns = now + SHORTEST_RETRY_NS + SLACK_NS;
            sg_lane_sink(lane);
        } else {
            sg_lane_remove(lane, lock);
            batch[count++] = lock;
        }
    }
    return count;
}

/* Those whose last request failed have the least time left, whatever has become due meanwhile. */
static size_t collect(sg_lane *lane, syncguard_lock **batch)
{
    if (lane->name == SG_LANE_SINGLE)
        return collect_from(lane, batch, 0, 1);
    size_t count = collect_from(&lane->heartbeat->retry, batch, 0, BATCH_MAX);
    return collect_from(lane, batch, count, BATCH_MAX);
}

static int64_t next_of(const sg_lane *lane)
{
    return lane->count > 0 ? lane->heap[0]->next_ns : SYNCGUARD_NO_DEADLINE;
}

/* When the thread of a lane has to look again. Caller holds the mutex. */
static int64_t next_look(const sg_lane *lane)
{
    int64_t next = next_of(lane);
    int64_t retry = next_of(&lane->heartbeat->retry);
    return lane->name == SG_LANE_BATCH && retry < next ? retry : next;
}

/* A request takes at most half of the time that is left, and no longer than any other operation:
 * if it hangs on a connection that is dead, there must be time for another one. */
static int64_t request_end(const sg_lane *lane, int64_t now, int64_t earliest_end)
{
    int64_t timeout_ms = lane->heartbeat->backend->core->options.timeout_ms;
    int64_t end = syncguard_clock_after(now, timeout_ms);
    if (lane->name == SG_LANE_SINGLE && now + SINGLE_STEP_NS < end)
        end = now + SINGLE_STEP_NS;
    int64_t left = earliest_end > now ? earliest_end - now : 0;
    int64_t most = left > 2 * SHORTEST_REQUEST_NS ? left / 2 : SHORTEST_REQUEST_NS;
    if (most > left)
        most = left;
    return end - now > most ? now + most : end;
}

/* False if the request as a whole failed. */
static bool send(sg_lane *lane, syncguard_extend_op *items, size_t count, int64_t earliest_end)
{
    syncguard_backend *backend = lane->heartbeat->backend;
    int64_t now = syncguard_clock_ns();
    syncguard_limits limits = {request_end(lane, now, earliest_end), lane->abort_object};
    for (size_t i = 0; i < count; i++) {
        items[i].limits = limits;
        items[i].first_sent_ns = now;
        items[i].status = SYNCGUARD_E_NETWORK_TIMEOUT;
    }
    if (lane->name != SG_LANE_SINGLE && backend->ops->extend_many != NULL)
        return backend->ops->extend_many(backend, items, count, &limits, NULL) == SYNCGUARD_OK;
    bool answered = false;
    for (size_t i = 0; i < count; i++) {
        items[i].first_sent_ns = syncguard_clock_ns();
        items[i].status = backend->ops->extend(backend, &items[i], NULL);
        answered = answered || items[i].status >= SYNCGUARD_OK;
    }
    return answered;
}

static syncguard_status start_lane(sg_lane *lane, syncguard_error *err);

/* What the answer means for the lock. Caller holds the mutex and the claim. */
static void conclude(sg_heartbeat *heartbeat, sg_lane *lane, syncguard_lock *lock,
                     const syncguard_extend_op *item, bool answered)
{
    bool is_single = lane->name == SG_LANE_SINGLE;
    if (atomic_load(&lock->released)) /* its release waits in the background */
        return;
    if (item->status == SYNCGUARD_OK) {
        if (!sg_lock_renewed(lock, item)) { /* lost is final */
            sg_lock_release_later(lock);
            tell_lost(heartbeat, lock);
            return;
        }
        sg_lane_schedule(lock);
        sg_lane_push(&heartbeat->batch, lock);
        if (is_single)
            syncguard_parker_unpark(&heartbeat->batch.parker);
    } else if (item->status == SYNCGUARD_ABSENT) {
        sg_lock_lose(lock, SYNCGUARD_LOST_ABSENT);
        tell_lost(heartbeat, lock);
    } else {
        sg_lane_schedule_retry(lock);
        bool aside = answered && start_lane(&heartbeat->single, NULL) == SYNCGUARD_OK;
        sg_lane_push(is_single || aside ? &heartbeat->single : &heartbeat->retry, lock);
        if (aside)
            syncguard_parker_unpark(&heartbeat->single.parker);
    }
}

static void renew(sg_lane *lane, syncguard_lock **batch, size_t count)
{
    sg_heartbeat *heartbeat = lane->heartbeat;
    syncguard_extend_op items[BATCH_MAX];
    int64_t earliest_end = SYNCGUARD_NO_DEADLINE;

    for (size_t i = 0; i < count; i++) {
        int64_t end = sg_lock_lease_end(batch[i]);
        items[i] = (syncguard_extend_op){.lock_id = batch[i]->lock_id,
                                         .ttl_ms = atomic_load(&batch[i]->ttl_ms)};
        if (end < earliest_end)
            earliest_end = end;
    }
    bool answered = send(lane, items, count, earliest_end);

    pthread_mutex_lock(&heartbeat->mutex);
    for (size_t i = 0; i < count; i++) {
        conclude(heartbeat, lane, batch[i], &items[i], answered);
        sg_lock_unclaim(batch[i]);
    }
    pthread_mutex_unlock(&heartbeat->mutex);
}

/* An interrupted lane goes on with a new abort object; without one it tries again later. Caller
 * holds the mutex. */
static void rearm(sg_lane *lane)
{
    syncguard_abort *used = lane->abort_object;
    syncguard_abort *fresh = NULL;
    if (!syncguard_abort_triggered(used) || syncguard_abort_create(&fresh, NULL) != SYNCGUARD_OK)
        return;
    lane->abort_object = fresh;
    syncguard_abort_free(used); /* in this order, for a child forked in between */
}

void sg_heartbeat_interrupt(sg_heartbeat *heartbeat)
{
    pthread_mutex_lock(&heartbeat->mutex);
    syncguard_abort_trigger(heartbeat->batch.abort_object);
    syncguard_abort_trigger(heartbeat->single.abort_object);
    pthread_mutex_unlock(&heartbeat->mutex);
}

static void *lane_loop(void *argument)
{
    sg_lane *lane = argument;
    sg_heartbeat *heartbeat = lane->heartbeat;
    syncguard_lock *batch[BATCH_MAX];

    pthread_mutex_lock(&heartbeat->mutex);
    while (!heartbeat->stopping) {
        rearm(lane);
        size_t count = collect(lane, batch);
        int64_t next = next_look(lane);
        pthread_mutex_unlock(&heartbeat->mutex);
        if (count > 0) {
            renew(lane, batch, count);
        } else {
            syncguard_limits limits = {next, NULL};
            (void)syncguard_parker_park(&lane->parker, &limits, NULL);
        }
        pthread_mutex_lock(&heartbeat->mutex);
    }
    pthread_mutex_unlock(&heartbeat->mutex);
    return NULL;
}

/* ---- joining and leaving -------------------------------------------------------------------- */

static syncguard_status start_thread(pthread_t *thread, void *(*run)(void *), void *argument,
                                     bool *started, syncguard_error *err)
{
    int failed = syncguard_thread_start(thread, run, argument);
    *started = failed == 0;
    if (failed == ENOMEM)
        return syncguard_fail_memory(err);
    if (failed != 0)
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL,
                              "no thread can be started to renew locks");
    return SYNCGUARD_OK;
}

/* Caller holds the mutex. */
static syncguard_status start_lane(sg_lane *lane, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    if (lane->started)
        return status;
    if (lane->parker.fds[0] < 0)
        status = syncguard_parker_open(&lane->parker, err);
    if (status == SYNCGUARD_OK && lane->abort_object == NULL)
        status = syncguard_abort_create(&lane->abort_object, err);
    if (status == SYNCGUARD_OK)
        status = start_thread(&lane->thread, lane_loop, lane, &lane->started, err);
    return status;
}

/* Caller holds the mutex. */
static syncguard_status start_all(sg_heartbeat *heartbeat, bool tells, syncguard_error *err)
{
    size_t total = heartbeat->batch.count + heartbeat->single.count + heartbeat->retry.count +
                   heartbeat->expected + 1;
    /* Locks that are in a request are in no heap but come back: BATCH_MAX + 1 at most. */
    if (!sg_lane_reserve(&heartbeat->batch, total + BATCH_MAX + 1) ||
        !sg_lane_reserve(&heartbeat->single, total + BATCH_MAX + 1) ||
        !sg_lane_reserve(&heartbeat->retry, total + BATCH_MAX + 1))
        return syncguard_fail_memory(err);
    syncguard_status status = start_lane(&heartbeat->batch, err);
    if (status == SYNCGUARD_OK && tells && !heartbeat->dispatcher_started)
        status = start_thread(&heartbeat->dispatcher, dispatch_loop, heartbeat,
                              &heartbeat->dispatcher_started, err);
    return status;
}

syncguard_status sg_heartbeat_expect(sg_heartbeat *heartbeat, bool tells, syncguard_error *err)
{
    pthread_mutex_lock(&heartbeat->mutex);
    syncguard_status status = start_all(heartbeat, tells, err);
    if (status == SYNCGUARD_OK)
        heartbeat->expected++;
    pthread_mutex_unlock(&heartbeat->mutex);
    return status;
}

void sg_heartbeat_expect_no_more(sg_heartbeat *heartbeat)
{
    pthread_mutex_lock(&heartbeat->mutex);
    heartbeat->expected--;
    pthread_mutex_unlock(&heartbeat->mutex);
}

void sg_heartbeat_add(sg_heartbeat *heartbeat, syncguard_lock *lock)
{
    pthread_mutex_lock(&heartbeat->mutex);
    heartbeat->expected--;
    sg_lane_schedule(lock);
    sg_lane_push(&heartbeat->batch, lock);
    if (lock->heap_index == 0)
        syncguard_parker_unpark(&heartbeat->batch.parker);
    pthread_mutex_unlock(&heartbeat->mutex);
}

void sg_heartbeat_reschedule(sg_heartbeat *heartbeat, syncguard_lock *lock)
{
    pthread_mutex_lock(&heartbeat->mutex);
    if (lock->lane != SG_LANE_NONE) {
        sg_lane_remove(lane_of(heartbeat, lock), lock);
        sg_lane_schedule(lock);
        sg_lane_push(&heartbeat->batch, lock);
        syncguard_parker_unpark(&heartbeat->batch.parker);
    }
    pthread_mutex_unlock(&heartbeat->mutex);
}

void sg_heartbeat_remove(sg_heartbeat *heartbeat, syncguard_lock *lock)
{
    pthread_mutex_lock(&heartbeat->mutex);
    if (lock->lane != SG_LANE_NONE)
        sg_lane_remove(lane_of(heartbeat, lock), lock);
    pthread_mutex_unlock(&heartbeat->mutex);
}

void sg_heartbeat_lost(sg_heartbeat *heartbeat, syncguard_lock *lock)
{
    pthread_mutex_lock(&heartbeat->mutex);
    if (lock->lane != SG_LANE_NONE) {
        sg_lane_remove(lane_of(heartbeat, lock), lock);
        tell_lost(heartbeat, lock);
    }
    pthread_mutex_unlock(&heartbeat->mutex);
}

/* ---- life cycle -------------------------------------------------------------------------------
 */

static void init_lane(sg_lane *lane, sg_heartbeat *heartbeat, sg_lane_name name)
{
    lane->heartbeat = heartbeat;
    lane->name = name;
    lane->parker = (syncguard_parker)SYNCGUARD_PARKER_INIT;
}

/* Its timed waits must not follow steps of the wall clock. */
static bool init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return false;
    bool made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(condition, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return made;
}

syncguard_status sg_heartbeat_init(sg_heartbeat *heartbeat, syncguard_backend *backend,
                                   syncguard_error *err)
{
    memset(heartbeat, 0, sizeof *heartbeat);
    heartbeat->backend = backend;
    heartbeat->watch_ns = SYNCGUARD_NO_DEADLINE;
    init_lane(&heartbeat->batch, heartbeat, SG_LANE_BATCH);
    init_lane(&heartbeat->single, heartbeat, SG_LANE_SINGLE);
    init_lane(&heartbeat->retry, heartbeat, SG_LANE_RETRY);
    if (pthread_mutex_init(&heartbeat->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    if (!init_condition(&heartbeat->told)) {
        pthread_mutex_destroy(&heartbeat->mutex);
        return syncguard_fail_memory(err);
    }
    return SYNCGUARD_OK;
}

static void join_lane(sg_lane *lane)
{
    if (!lane->started)
        return;
    syncguard_parker_unpark(&lane->parker);
    pthread_join(lane->thread, NULL);
    lane->started = false;
}

void sg_heartbeat_stop(sg_heartbeat *heartbeat)
{
    pthread_mutex_lock(&heartbeat->mutex);
    heartbeat->stopping = true;
    pthread_cond_broadcast(&heartbeat->told);
    pthread_mutex_unlock(&heartbeat->mutex);
    sg_heartbeat_interrupt(heartbeat);
    join_lane(&heartbeat->batch);
    join_lane(&heartbeat->single);
    if (heartbeat->dispatcher_started) {
        pthread_join(heartbeat->dispatcher, NULL);
        heartbeat->dispatcher_started = false;
    }
}

static void free_all(sg_heartbeat *heartbeat)
{
    syncguard_free(heartbeat->batch.heap);
    syncguard_free(heartbeat->single.heap);
    syncguard_free(heartbeat->retry.heap);
    syncguard_parker_close(&heartbeat->batch.parker);
    syncguard_parker_close(&heartbeat->single.parker);
    syncguard_abort_free(heartbeat->batch.abort_object);
    syncguard_abort_free(heartbeat->single.abort_object);
}

void sg_heartbeat_destroy(sg_heartbeat *heartbeat)
{
    sg_heartbeat_stop(heartbeat);
    free_all(heartbeat);
    pthread_cond_destroy(&heartbeat->told);
    pthread_mutex_destroy(&heartbeat->mutex);
}

void sg_heartbeat_forget(sg_heartbeat *heartbeat)
{
    free_all(heartbeat);
    (void)sg_heartbeat_init(heartbeat, heartbeat->backend, NULL);
}
