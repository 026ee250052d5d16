/*
 * See heartbeat.h.
 *
 * Invariants:
 *   - A renewer claims a lock (lock->claimed) before it renews it, and so does a thread that
 *     disposes of it: a lock that is in a request is never freed.
 *   - A request never outlasts the earliest end of a lease in it.
 *   - Lost is final: a renewal that succeeds afterwards is released.
 *
 * Locking: mutex is never held during an operation or a callback.
 */
#include "heartbeat.h"

#include <string.h>

#include "abort.h"
#include "background.h"
#include "core.h"
#include "lock_state.h"
#include "util/check.h"
#include "util/thread.h"

/* Locks due within this time go with the next batch. */
#define SLACK_NS (10 * SYNCGUARD_NS_PER_MS)
/* A store may be slow without being dead, and giving up a request can cost its connection. */
#define SHORTEST_REQUEST_NS (1000 * SYNCGUARD_NS_PER_MS)
#define CLAIMED_PAUSE_NS (20 * SYNCGUARD_NS_PER_MS)
/* All locks are renewed at most once in this time, plus the time below for each of them: broken
 * connections, or requests that time out because the server is busy, must not make it busier. */
#define RENEW_ALL_PAUSE_NS (1000 * SYNCGUARD_NS_PER_MS)
#define RENEW_EACH_PAUSE_NS SYNCGUARD_NS_PER_MS
/* Idle connections are checked at most once in this time. */
#define CHECK_PAUSE_NS (1000 * SYNCGUARD_NS_PER_MS)
/* With more undecided locks than this, a request for each takes too long on a slow store. */
#define MOST_ALONE 4

/* Caller holds the mutex. */
static void heartbeat_enqueue(sg_heartbeat *heartbeat, sg_renewal_queue *queue,
                              syncguard_lock *lock)
{
    sg_renewal_queue_push(queue, lock);
    sg_lost_locks_watch(&heartbeat->lost, lock);
}

/* Sets when to renew a lock that was confirmed just now. If the renewal of all locks began after
 * the request was sent, the former server may have confirmed it. Caller holds the mutex. */
static void heartbeat_schedule_lock(const sg_heartbeat *heartbeat, syncguard_lock *lock)
{
    sg_renewal_schedule(lock);
    if (lock->confirmed_ns < heartbeat->all_begun_ns &&
        lock->renewal.due_ns > heartbeat->all_begun_ns)
        lock->renewal.due_ns = heartbeat->all_begun_ns;
}

/* ---- another server ---- */

/* Caller holds the mutex. The mutex of a decorator is taken after that of inner. */
static void heartbeat_schedule_all(sg_heartbeat *heartbeat, int64_t now)
{
    int64_t earliest =
        heartbeat->all_begun_ns + RENEW_ALL_PAUSE_NS +
        (int64_t)(heartbeat->batch.count + heartbeat->early.count) * RENEW_EACH_PAUSE_NS;
    if (heartbeat->batch_renewer.started && heartbeat->all_due_ns == SYNCGUARD_NO_DEADLINE) {
        heartbeat->all_due_ns = now > earliest ? now : earliest;
        syncguard_parker_unpark(&heartbeat->batch_renewer.parker);
    }
    sg_heartbeat *outer = heartbeat->outer;
    if (outer == NULL)
        return;
    pthread_mutex_lock(&outer->mutex);
    heartbeat_schedule_all(outer, now);
    pthread_mutex_unlock(&outer->mutex);
}

void sg_heartbeat_renew_all(sg_heartbeat *heartbeat)
{
    pthread_mutex_lock(&heartbeat->mutex);
    heartbeat_schedule_all(heartbeat, syncguard_clock_ns());
    pthread_mutex_unlock(&heartbeat->mutex);
}

/* Only the clock of another machine says something about the server. Caller holds the mutex. */
static void heartbeat_note_time_locked(sg_heartbeat *heartbeat, int64_t sent_ns,
                                       int64_t expires_at_ms, int64_t ttl_ms)
{
    const syncguard_capabilities *store = &heartbeat->backend->capabilities;
    int64_t now = syncguard_clock_ns();
    if (store->is_shared && store->time_authority == SYNCGUARD_TIME_SERVER &&
        expires_at_ms > ttl_ms &&
        sg_server_clock_jumped(&heartbeat->clock, sent_ns, now, expires_at_ms - ttl_ms))
        heartbeat_schedule_all(heartbeat, now);
}

void sg_heartbeat_note_time(sg_heartbeat *heartbeat, int64_t sent_ns, int64_t expires_at_ms,
                            int64_t ttl_ms)
{
    pthread_mutex_lock(&heartbeat->mutex);
    heartbeat_note_time_locked(heartbeat, sent_ns, expires_at_ms, ttl_ms);
    pthread_mutex_unlock(&heartbeat->mutex);
}

/* Caller holds the mutex. */
static void heartbeat_begin_all_if_due(sg_heartbeat *heartbeat)
{
    int64_t now = syncguard_clock_ns();
    if (now < heartbeat->all_due_ns)
        return;
    heartbeat->all_due_ns = SYNCGUARD_NO_DEADLINE;
    heartbeat->all_begun_ns = now;
    sg_renewal_queue_move_all(&heartbeat->batch, &heartbeat->early);
}

static bool renewer_checks_connections(const sg_renewer *renewer)
{
    const sg_heartbeat *heartbeat = renewer->heartbeat;
    return renewer == &heartbeat->batch_renewer && heartbeat->batch.count > 0 &&
           heartbeat->backend->core->checks_connections;
}

/* Whether it is time to check the idle connections. Caller holds the mutex. */
static bool renewer_claim_due_check(sg_renewer *renewer)
{
    int64_t now = syncguard_clock_ns();
    if (!renewer_checks_connections(renewer) || now < renewer->heartbeat->check_ns)
        return false;
    renewer->heartbeat->check_ns = now + CHECK_PAUSE_NS;
    return true;
}

/* No mutex is held. */
static void heartbeat_check_connections(sg_heartbeat *heartbeat)
{
    syncguard_backend *backend = heartbeat->backend;
    if (backend->ops->connection_ended(backend))
        sg_heartbeat_renew_all(heartbeat);
}

/* ---- one request ---- */

/*
 * Takes due locks out of the queue and claims them; once one is due, those that are nearly due go
 * with it. In the early queue every lock counts as due, even one that only waits for the end of its
 * lease. A lock whose lease is over is lost; a lock that its owner is using is retried a moment
 * later. batch has count locks already, and space for most. Caller holds the mutex.
 */
static size_t heartbeat_collect_from(sg_heartbeat *heartbeat, sg_renewal_queue *queue,
                                     syncguard_lock **batch, size_t count, size_t most)
{
    bool early = queue == &heartbeat->early;
    int64_t now = syncguard_clock_ns();
    int64_t due = now;
    while (count < most && queue->count > 0 && (early || sg_renewal_queue_next_ns(queue) <= due)) {
        syncguard_lock *lock = sg_renewal_queue_first(queue);
        int64_t lease_end = sg_lock_lease_end(lock);
        due = now + SLACK_NS;
        if (atomic_load(&lock->released)) {
            sg_renewal_queue_remove(lock);
        } else if (sg_lock_check_lease(lock) != SYNCGUARD_LOST_NO) {
            sg_renewal_queue_remove(lock);
            sg_lost_locks_push(&heartbeat->lost, lock);
        } else if (!early &&
                   lock->renewal.due_ns >= lease_end) { /* waits for the end of its lease */
            break;
        } else if (!sg_lock_try_claim(lock)) {
            sg_renewal_queue_remove(lock);
            lock->renewal.due_ns = now + CLAIMED_PAUSE_NS;
            sg_renewal_queue_push(early ? &heartbeat->batch : queue, lock);
        } else {
            sg_renewal_queue_remove(lock);
            batch[count++] = lock;
        }
    }
    return count;
}

static bool renewer_is_single(const sg_renewer *renewer)
{
    return renewer == &renewer->heartbeat->single_renewer;
}

/* If many locks are undecided, they probably come from a batch that was given up while the store
 * was busy with it: they go in a batch again until few are left. But the store may leave them
 * undecided because it can only answer for each lock alone. Caller holds the mutex. */
static size_t heartbeat_collect_single(sg_heartbeat *heartbeat, syncguard_lock **batch)
{
    sg_renewer *renewer = &heartbeat->single_renewer;
    bool many = heartbeat->single.count > MOST_ALONE;
    if (!many) {
        renewer->alone = 0;
        renewer->next_alone = 1;
    }
    bool together = many && renewer->alone == 0 && heartbeat->backend->ops->extend_many != NULL;
    return heartbeat_collect_from(heartbeat, &heartbeat->single, batch, 0,
                                  together ? SYNCGUARD_BATCH_MAX : 1);
}

/* Updates how many locks are tried alone, after an answer for count locks. Caller holds the mutex,
 * and calls this only for the single renewer. */
static void renewer_note_decided(sg_renewer *renewer, size_t count, size_t decided)
{
    bool together = count > 1;
    if (together ? decided > 0 : decided == 0) {
        renewer->alone = 0;
        renewer->next_alone = 1;
    } else if (!together) {
        renewer->alone -= renewer->alone > 0;
    } else {
        renewer->alone = renewer->next_alone;
        if (renewer->next_alone < SYNCGUARD_BATCH_MAX)
            renewer->next_alone *= 2;
    }
}

/* Caller holds the mutex. */
static void heartbeat_move_due_from_early(sg_heartbeat *heartbeat)
{
    int64_t now = syncguard_clock_ns();
    while (sg_renewal_queue_next_ns(&heartbeat->early) <= now) {
        syncguard_lock *lock = sg_renewal_queue_first(&heartbeat->early);
        sg_renewal_queue_remove(lock);
        sg_renewal_queue_push(&heartbeat->batch, lock);
    }
}

/* Locks whose last request failed have the least time left, even compared with those that became
 * due meanwhile; locks that are not due have the most. Caller holds the mutex. */
static size_t renewer_collect(sg_renewer *renewer, syncguard_lock **batch)
{
    sg_heartbeat *heartbeat = renewer->heartbeat;
    if (renewer_is_single(renewer))
        return heartbeat_collect_single(heartbeat, batch);
    heartbeat_move_due_from_early(heartbeat);
    size_t count =
        heartbeat_collect_from(heartbeat, &heartbeat->retry, batch, 0, SYNCGUARD_BATCH_MAX);
    count = heartbeat_collect_from(heartbeat, &heartbeat->batch, batch, count, SYNCGUARD_BATCH_MAX);
    return heartbeat_collect_from(heartbeat, &heartbeat->early, batch, count, SYNCGUARD_BATCH_MAX);
}

/* When a renewer must collect again. Caller holds the mutex. */
static int64_t renewer_next_ns(const sg_renewer *renewer)
{
    const sg_heartbeat *heartbeat = renewer->heartbeat;
    SG_CHECK(sg_heap_check(renewer->queue));
    int64_t next = sg_renewal_queue_next_ns(renewer->queue);
    if (renewer_is_single(renewer))
        return next;
    if (heartbeat->early.count > 0)
        return 0;
    int64_t retry = sg_renewal_queue_next_ns(&heartbeat->retry);
    if (retry < next)
        next = retry;
    if (heartbeat->all_due_ns < next)
        next = heartbeat->all_due_ns;
    return renewer_checks_connections(renewer) && heartbeat->check_ns < next ? heartbeat->check_ns
                                                                             : next;
}

/* When the first lease of a request ends. */
typedef struct earliest_end {
    int64_t of_all;
    int64_t to_renew; /* without leases that no renewal makes longer, unless all are such */
} earliest_end;

static earliest_end earliest_end_find(syncguard_lock *const *batch, size_t count)
{
    earliest_end ends = {SYNCGUARD_NO_DEADLINE, SYNCGUARD_NO_DEADLINE};
    for (size_t i = 0; i < count; i++) {
        int64_t end = sg_lock_lease_end(batch[i]);
        if (end < ends.of_all)
            ends.of_all = end;
        if (end < ends.to_renew && !sg_renewal_is_last_lease(batch[i]))
            ends.to_renew = end;
    }
    if (ends.to_renew == SYNCGUARD_NO_DEADLINE)
        ends.to_renew = ends.of_all;
    return ends;
}

/* A request takes at most half of the time that is left, and no longer than any other operation:
 * if it hangs on a dead connection, there must be time for another request. Locks that are tried
 * one by one share that time. */
static int64_t renewer_request_end(const sg_renewer *renewer, int64_t now, const earliest_end *ends)
{
    int64_t timeout_ms = renewer->heartbeat->backend->core->options.timeout_ms;
    int64_t end = syncguard_clock_after(now, timeout_ms);
    int64_t left = ends->of_all > now ? ends->of_all - now : 0;
    int64_t most = (ends->to_renew - now) / 2 / renewer->sharing;
    if (most < SHORTEST_REQUEST_NS)
        most = SHORTEST_REQUEST_NS;
    if (most > left)
        most = left;
    return end - now > most ? now + most : end;
}

/* False if the request as a whole failed; then err says why. */
static bool renewer_send_extends(const sg_renewer *renewer, syncguard_extend_op *items,
                                 size_t count, const earliest_end *ends, syncguard_error *err)
{
    syncguard_backend *backend = renewer->heartbeat->backend;
    int64_t now = syncguard_clock_ns();
    syncguard_limits limits = {renewer_request_end(renewer, now, ends), renewer->abort_object};
    bool alone = renewer_is_single(renewer) && count == 1;
    bool answered = false;
    for (size_t i = 0; i < count; i++) {
        items[i].limits = limits;
        items[i].first_sent_ns = now;
        items[i].status = SYNCGUARD_E_NETWORK_TIMEOUT;
    }
    if (!alone && backend->ops->extend_many != NULL) {
        syncguard_status status = backend->ops->extend_many(backend, items, count, &limits, err);
        for (size_t i = 0; i < count && status != SYNCGUARD_OK; i++)
            items[i].status = status;
        return status == SYNCGUARD_OK;
    }
    for (size_t i = 0; i < count; i++) {
        items[i].first_sent_ns = syncguard_clock_ns();
        items[i].status = backend->ops->extend(backend, &items[i], err);
        answered = answered || items[i].status >= SYNCGUARD_OK;
    }
    return answered;
}

static syncguard_status renewer_start(sg_renewer *renewer, syncguard_error *err);

/* The renewal failed, or the answer left it undecided. */
static void renewer_retry_later(sg_renewer *renewer, syncguard_lock *lock, int64_t sent_ns,
                                bool answered)
{
    sg_heartbeat *heartbeat = renewer->heartbeat;
    bool single = answered && renewer_start(&heartbeat->single_renewer, NULL) == SYNCGUARD_OK;
    sg_renewal_schedule_retry(lock, sent_ns);
    heartbeat_enqueue(heartbeat,
                      single || renewer_is_single(renewer) ? &heartbeat->single : &heartbeat->retry,
                      lock);
    if (single)
        syncguard_parker_unpark(&heartbeat->single_renewer.parker);
}

/* Applies the answer to the lock. Caller holds the mutex and the claim. */
static void renewer_apply_result(sg_renewer *renewer, syncguard_lock *lock,
                                 const syncguard_extend_op *item, bool answered)
{
    sg_heartbeat *heartbeat = renewer->heartbeat;
    if (item->status == SYNCGUARD_OK)
        heartbeat_note_time_locked(heartbeat, item->first_sent_ns, item->expires_at_ms,
                                   item->ttl_ms);
    if (atomic_load(&lock->released)) { /* the background thread will release it, or has done so */
        sg_background_release_again(&heartbeat->backend->core->background, lock, item->status);
        return;
    }
    if (item->status == SYNCGUARD_ABSENT) {
        sg_lock_lose(lock, SYNCGUARD_LOST_ABSENT);
        sg_lost_locks_push(&heartbeat->lost, lock);
    } else if (item->status != SYNCGUARD_OK) {
        (void)sg_lock_note_unresolved(lock, item); /* limits later extends, not this lease */
        renewer_retry_later(renewer, lock, item->first_sent_ns, answered);
    } else if (!sg_lock_renewed(lock, item)) { /* lost is final */
        sg_background_release(&heartbeat->backend->core->background, lock);
        sg_lost_locks_push(&heartbeat->lost, lock);
    } else {
        heartbeat_schedule_lock(heartbeat, lock);
        heartbeat_enqueue(heartbeat, &heartbeat->batch, lock);
        if (renewer_is_single(renewer))
            syncguard_parker_unpark(&heartbeat->batch_renewer.parker);
    }
}

static void renewer_renew_batch(sg_renewer *renewer, syncguard_lock **batch, size_t count)
{
    sg_heartbeat *heartbeat = renewer->heartbeat;
    syncguard_extend_op items[SYNCGUARD_BATCH_MAX];
    earliest_end ends = earliest_end_find(batch, count);
    for (size_t i = 0; i < count; i++)
        items[i] = (syncguard_extend_op){.lock_id = batch[i]->lock_id,
                                         .ttl_ms = sg_lock_renewal_ttl_ms(batch[i])};
    int64_t begun = syncguard_clock_ns();
    syncguard_error error;
    syncguard_error_clear(&error);
    bool answered = renewer_send_extends(renewer, items, count, &ends, &error);
    sg_incidents_renewed(heartbeat->backend, items, count, begun, &error);
    size_t decided = 0;
    pthread_mutex_lock(&heartbeat->mutex);
    for (size_t i = 0; i < count; i++) {
        decided += items[i].status >= SYNCGUARD_OK;
        renewer_apply_result(renewer, batch[i], &items[i], answered);
        sg_lock_unclaim(batch[i]);
    }
    if (renewer_is_single(renewer) && (answered || count == 1))
        renewer_note_decided(renewer, count, decided);
    pthread_mutex_unlock(&heartbeat->mutex);
}

/* ---- threads ---- */

void sg_heartbeat_interrupt(sg_heartbeat *heartbeat)
{
    pthread_mutex_lock(&heartbeat->mutex);
    syncguard_abort_trigger(heartbeat->batch_renewer.abort_object);
    syncguard_abort_trigger(heartbeat->single_renewer.abort_object);
    pthread_mutex_unlock(&heartbeat->mutex);
}

static void *renewer_run(void *argument)
{
    sg_renewer *renewer = argument;
    sg_heartbeat *heartbeat = renewer->heartbeat;
    pthread_mutex_lock(&heartbeat->mutex);
    syncguard_lock *batch[SYNCGUARD_BATCH_MAX];
    while (!heartbeat->stopping) {
        sg_abort_reset(renewer->abort_object); /* it may have been interrupted */
        if (!renewer_is_single(renewer))
            heartbeat_begin_all_if_due(heartbeat);
        size_t count = renewer_collect(renewer, batch);
        bool alone = renewer_is_single(renewer) && count == 1;
        renewer->sharing = alone ? (int64_t)heartbeat->single.count + 1 : 1;
        bool check = count == 0 && renewer_claim_due_check(renewer);
        syncguard_limits limits = {renewer_next_ns(renewer), NULL};
        pthread_mutex_unlock(&heartbeat->mutex);
        sg_incidents_log_losses(heartbeat->backend);
        if (count > 0)
            renewer_renew_batch(renewer, batch, count);
        else if (check)
            heartbeat_check_connections(heartbeat);
        else
            (void)syncguard_parker_park(&renewer->parker, &limits, NULL);
        pthread_mutex_lock(&heartbeat->mutex);
    }
    pthread_mutex_unlock(&heartbeat->mutex);
    return NULL;
}

/* Caller holds the mutex. */
static syncguard_status renewer_start(sg_renewer *renewer, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    if (renewer->started)
        return status;
    if (renewer->parker.fds[0] < 0)
        status = syncguard_parker_open(&renewer->parker, err);
    if (status == SYNCGUARD_OK && renewer->abort_object == NULL)
        status = syncguard_abort_create(&renewer->abort_object, err);
    if (status == SYNCGUARD_OK)
        status = sg_thread_start(&renewer->thread, renewer_run, renewer, "renew locks", err);
    renewer->started = status == SYNCGUARD_OK;
    return status;
}

/* Caller holds the mutex. */
static syncguard_status heartbeat_start_and_reserve(sg_heartbeat *heartbeat, bool tells,
                                                    syncguard_error *err)
{
    /* Locks that are in a request are in no queue, but return to one. */
    size_t total = heartbeat->batch.count + heartbeat->single.count + heartbeat->retry.count +
                   heartbeat->early.count + heartbeat->expected + 1 + 2 * SYNCGUARD_BATCH_MAX;
    if (!sg_heap_reserve(&heartbeat->batch, total) || !sg_heap_reserve(&heartbeat->single, total) ||
        !sg_heap_reserve(&heartbeat->retry, total) || !sg_heap_reserve(&heartbeat->early, total))
        return syncguard_fail_memory(err);
    syncguard_status status = renewer_start(&heartbeat->batch_renewer, err);
    if (status == SYNCGUARD_OK && tells)
        status = sg_lost_locks_start(&heartbeat->lost, err);
    return status;
}

/* ---- adding and removing locks ---- */

syncguard_status sg_heartbeat_expect(sg_heartbeat *heartbeat, bool tells, syncguard_error *err)
{
    pthread_mutex_lock(&heartbeat->mutex);
    syncguard_status status = heartbeat_start_and_reserve(heartbeat, tells, err);
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
    heartbeat_schedule_lock(heartbeat, lock);
    heartbeat_enqueue(heartbeat, &heartbeat->batch, lock);
    if (sg_renewal_queue_first(&heartbeat->batch) == lock)
        syncguard_parker_unpark(&heartbeat->batch_renewer.parker);
    pthread_mutex_unlock(&heartbeat->mutex);
}

void sg_heartbeat_reschedule(sg_heartbeat *heartbeat, syncguard_lock *lock)
{
    pthread_mutex_lock(&heartbeat->mutex);
    if (lock->queue != NULL) {
        sg_renewal_queue_remove(lock);
        heartbeat_schedule_lock(heartbeat, lock);
        heartbeat_enqueue(heartbeat, &heartbeat->batch, lock);
        syncguard_parker_unpark(&heartbeat->batch_renewer.parker);
    }
    pthread_mutex_unlock(&heartbeat->mutex);
}

void sg_heartbeat_remove(sg_heartbeat *heartbeat, syncguard_lock *lock)
{
    pthread_mutex_lock(&heartbeat->mutex);
    if (lock->queue != NULL)
        sg_renewal_queue_remove(lock);
    pthread_mutex_unlock(&heartbeat->mutex);
}

void sg_heartbeat_lost(sg_heartbeat *heartbeat, syncguard_lock *lock)
{
    pthread_mutex_lock(&heartbeat->mutex);
    if (lock->queue != NULL) {
        sg_renewal_queue_remove(lock);
        sg_lost_locks_push(&heartbeat->lost, lock);
    }
    pthread_mutex_unlock(&heartbeat->mutex);
}

/* ---- life cycle ---- */

static void renewer_init(sg_renewer *renewer, sg_heartbeat *heartbeat, sg_renewal_queue *queue)
{
    renewer->heartbeat = heartbeat;
    renewer->queue = queue;
    renewer->next_alone = 1;
    renewer->parker = (syncguard_parker)SYNCGUARD_PARKER_INIT;
}

syncguard_status sg_heartbeat_init(sg_heartbeat *heartbeat, syncguard_backend *backend,
                                   void (*close)(syncguard_backend *), syncguard_error *err)
{
    memset(heartbeat, 0, sizeof *heartbeat);
    heartbeat->backend = backend;
    heartbeat->all_due_ns = SYNCGUARD_NO_DEADLINE;
    heartbeat->lost = (sg_lost_locks){
        .backend = backend,
        .close = close,
        .mutex = &heartbeat->mutex,
        .queues = {&heartbeat->batch, &heartbeat->single, &heartbeat->retry, &heartbeat->early},
    };
    renewer_init(&heartbeat->batch_renewer, heartbeat, &heartbeat->batch);
    renewer_init(&heartbeat->single_renewer, heartbeat, &heartbeat->single);
    if (pthread_mutex_init(&heartbeat->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    syncguard_status status = sg_lost_locks_init(&heartbeat->lost, err);
    if (status != SYNCGUARD_OK)
        pthread_mutex_destroy(&heartbeat->mutex);
    return status;
}

static void renewer_join(sg_renewer *renewer)
{
    if (!renewer->started)
        return;
    syncguard_parker_unpark(&renewer->parker);
    pthread_join(renewer->thread, NULL);
    pthread_mutex_lock(&renewer->heartbeat->mutex);
    renewer->started = false;
    pthread_mutex_unlock(&renewer->heartbeat->mutex);
}

void sg_heartbeat_stop(sg_heartbeat *heartbeat)
{
    pthread_mutex_lock(&heartbeat->mutex);
    heartbeat->stopping = true;
    pthread_mutex_unlock(&heartbeat->mutex);
    sg_heartbeat_interrupt(heartbeat);
    renewer_join(&heartbeat->batch_renewer);
    renewer_join(&heartbeat->single_renewer);
    sg_lost_locks_stop(&heartbeat->lost);
}

static void renewer_free_resources(sg_renewer *renewer)
{
    sg_heap_free(renewer->queue);
    syncguard_parker_close(&renewer->parker);
    syncguard_abort_free(renewer->abort_object);
}

static void heartbeat_free_resources(sg_heartbeat *heartbeat)
{
    renewer_free_resources(&heartbeat->batch_renewer);
    renewer_free_resources(&heartbeat->single_renewer);
    sg_heap_free(&heartbeat->retry);
    sg_heap_free(&heartbeat->early);
}

void sg_heartbeat_attach(sg_heartbeat *outer, sg_heartbeat *inner)
{
    outer->inner = inner;
    pthread_mutex_lock(&inner->mutex);
    inner->outer = outer;
    pthread_mutex_unlock(&inner->mutex);
}

static void heartbeat_detach(sg_heartbeat *heartbeat)
{
    sg_heartbeat *inner = heartbeat->inner;
    if (inner == NULL)
        return;
    pthread_mutex_lock(&inner->mutex);
    if (inner->outer == heartbeat)
        inner->outer = NULL;
    pthread_mutex_unlock(&inner->mutex);
}

void sg_heartbeat_destroy(sg_heartbeat *heartbeat)
{
    sg_heartbeat_stop(heartbeat);
    heartbeat_detach(heartbeat);
    heartbeat_free_resources(heartbeat);
    sg_lost_locks_destroy(&heartbeat->lost);
    pthread_mutex_destroy(&heartbeat->mutex);
}

void sg_heartbeat_forget(sg_heartbeat *heartbeat)
{
    heartbeat_free_resources(heartbeat);
    (void)sg_heartbeat_init(heartbeat, heartbeat->backend, heartbeat->lost.close, NULL);
}
