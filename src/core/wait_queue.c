/*
 * The wait queue: see wait_queue.h.
 *
 * The waiters of one key share what they know, so that one release costs this process one try,
 * however many waiters there are:
 *   - An event (a release by this handle, or a notification of the store) wakes the first waiter
 *     that is not trying already. If it leaves without an answer, the next one is woken.
 *   - A try by any waiter replaces the polls of the others (sg_wait_queue_tried_since), and only
 *     the first waiter watches for the expiry of the current lock.
 *
 * No lost wake-up: a waiter joins first and tries afterwards with the watch flag set. Events that
 * arrive while a try is in flight are counted; a try that is answered LOCKED compares the count and
 * is repeated if it has changed.
 *
 * `armed` means: a try was answered LOCKED after the store had been asked to report the release,
 * and there was no event since. Notifications for a key that is not armed are echoes (of a grant to
 * this handle, of a release that was handled locally) and wake no waiter. A store that reports
 * releases without being asked (memory) has no echoes.
 *
 * Resting: a waiter that does not count its retries need not poll while the store reports releases
 * (armed_ms of its answer). Whenever that ends without a try that could renew it (the time is over,
 * a try failed, a waiter got the lock), the first waiter tries within POLL_MS, for all of them
 * (poll_at_ns). So only the first waiter must be woken then, and a waiter that becomes the first is
 * woken. If the store reports releases, the same applies to waiters that poll at their own pace:
 * while reporting is interrupted, they would find a release only at their next poll.
 *
 * Slots: an acquire that waits for several keys has a waiter in the list of each. An event of one
 * key makes it try that key alone. An acquire that is trying another key is chosen only if there is
 * no other waiter, so that two releases lead to two tries at once. An acquire that gets one key
 * leaves all lists, and an event of another key that it was chosen for passes to the next waiter of
 * that key. The tries for resting waiters are limited for each acquire, not for each key: one in
 * POLL_MS.
 *
 * A waiter in its caller's on_wait is away: it is not chosen, and the next one counts as the first.
 * If all are away, the event is kept (unhandled) for the first that returns.
 *
 * Locking: everything is guarded by queue->mutex.
 */
#include "wait_queue.h"

#include <string.h>

#include "core.h"
#include "util/check.h"

/* The first waiter tries within this time if it is unknown whether a release would be reported. */
#define POLL_MS 1000
/* All keys of a handle together make about 50 tries per second while their waiters rest (a pause is
 * three quarters of this on average), however many keys there are, as long as each is tried every 5
 * minutes. Resting waiters do not wake up more often: only the first of a key must try in time. */
#define REST_EACH_MS 27
#define LONGEST_REST_MS 300000

struct sg_key_waiters {
    sg_key_waiters *next; /* in its bucket */
    uint64_t hash;
    syncguard_links waiters; /* sg_waiter */
    uint64_t events;
    bool armed;
    bool unhandled; /* an event found all waiters away */
    bool resting;   /* some waiter may rest for longer than POLL_MS */
    bool locked;    /* the last try that ended was answered LOCKED; false: it failed */
    int trying;
    int64_t armed_ms;   /* from the last answer; 0: unknown whether releases are reported */
    int64_t poll_at_ns; /* when the first waiter tries for those that rest */
    int64_t last_try_ns;
    int64_t expires_ns; /* when the current lock expires, if that is known */
    size_t key_length;
    char key[];
};

syncguard_status sg_wait_queue_init(sg_wait_queue *queue, bool notified, syncguard_error *err)
{
    queue->notified = notified;
    memset(queue->buckets, 0, sizeof queue->buckets);
    atomic_init(&queue->key_count, 0);
    atomic_init(&queue->changes, 0);
    atomic_init(&queue->waiters, 0);
    if (pthread_mutex_init(&queue->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    return SYNCGUARD_OK;
}

void sg_wait_queue_destroy(sg_wait_queue *queue)
{
    pthread_mutex_destroy(&queue->mutex);
}

void sg_wait_queue_forget(sg_wait_queue *queue)
{
    for (size_t i = 0; i < SG_WAIT_QUEUE_BUCKETS; i++) {
        while (queue->buckets[i] != NULL) {
            sg_key_waiters *waiters = queue->buckets[i];
            queue->buckets[i] = waiters->next;
            syncguard_free(waiters);
        }
    }
    (void)sg_wait_queue_init(queue, queue->notified, NULL);
}

/* ---- the waiters of a key: callers hold the mutex ---- */

static sg_key_waiters *key_waiters_find(sg_wait_queue *queue, const char *key, size_t length)
{
    uint64_t hash = syncguard_fnv1a(key, length);
    sg_key_waiters *waiters = queue->buckets[hash % SG_WAIT_QUEUE_BUCKETS];
    while (waiters != NULL && (waiters->hash != hash || waiters->key_length != length ||
                               memcmp(waiters->key, key, length) != 0))
        waiters = waiters->next;
    return waiters;
}

/* The end of ms milliseconds from now; -1: unknown. */
static int64_t wait_queue_end_ns(int64_t ms)
{
    return ms < 0 ? SYNCGUARD_NO_DEADLINE : syncguard_clock_after(syncguard_clock_ns(), ms);
}

/* Notes whether, and for how long, releases are reported from now on. */
static void key_waiters_set_armed_ms(sg_key_waiters *waiters, int64_t armed_ms)
{
    waiters->armed_ms = armed_ms;
    waiters->poll_at_ns = wait_queue_end_ns(armed_ms > 0 ? armed_ms : POLL_MS);
}

static sg_key_waiters *key_waiters_add(sg_wait_queue *queue, const char *key, size_t length)
{
    sg_key_waiters *waiters = syncguard_calloc(1, sizeof *waiters + length + 1);
    if (waiters == NULL)
        return NULL;
    waiters->hash = syncguard_fnv1a(key, length);
    waiters->expires_ns = SYNCGUARD_NO_DEADLINE;
    key_waiters_set_armed_ms(waiters, 0);
    waiters->key_length = length;
    memcpy(waiters->key, key, length);
    sg_key_waiters **bucket = &queue->buckets[waiters->hash % SG_WAIT_QUEUE_BUCKETS];
    waiters->next = *bucket;
    *bucket = waiters;
    atomic_fetch_add(&queue->key_count, 1);
    return waiters;
}

static void key_waiters_remove(sg_wait_queue *queue, sg_key_waiters *waiters)
{
    sg_key_waiters **link = &queue->buckets[waiters->hash % SG_WAIT_QUEUE_BUCKETS];
    while (*link != waiters)
        link = &(*link)->next;
    *link = waiters->next;
    atomic_fetch_sub(&queue->key_count, 1);
    syncguard_free(waiters);
}

static sg_waiter *waiter_of(syncguard_link *link)
{
    return SYNCGUARD_LINKED(link, sg_waiter, link);
}

static bool waiter_is_trying(const sg_waiter *waiter)
{
    return waiter->state == SG_WAITER_CHOSEN || waiter->state == SG_WAITER_TRYING;
}

/* The only function that changes the state of a waiter that has joined. */
static void waiter_set_state(sg_waiter *waiter, sg_waiter_state state)
{
    SG_CHECK(state == SG_WAITER_TRYING || state != waiter->state);
    SG_CHECK(state != SG_WAITER_MISSED);
    int before = waiter_is_trying(waiter) ? 1 : 0;
    waiter->state = state;
    int more = (waiter_is_trying(waiter) ? 1 : 0) - before;
    waiter->key_waiters->trying += more;
    waiter->waiting->trying = (uint16_t)(waiter->waiting->trying + more);
    SG_CHECK(waiter->key_waiters->trying >= 0);
}

/* The first waiter of the key that can try; with idle: whose acquire is not trying another key. */
static sg_waiter *key_waiters_first_free(const sg_key_waiters *waiters, bool idle)
{
    sg_waiter *waiter = waiter_of(waiters->waiters.first);
    while (waiter != NULL && (waiter_is_trying(waiter) || waiter->waiting->away ||
                              (idle && waiter->waiting->trying > 0)))
        waiter = waiter_of(waiter->link.next);
    return waiter;
}

/* Chooses a waiter and wakes it; no waiter may be trying the key. */
static void key_waiters_wake_one(sg_key_waiters *waiters)
{
    sg_waiter *waiter = key_waiters_first_free(waiters, true);
    if (waiter == NULL)
        waiter = key_waiters_first_free(waiters, false);
    if (waiter == NULL) {
        waiters->unhandled = true;
        return;
    }
    waiter_set_state(waiter, SG_WAITER_CHOSEN);
    waiter->waiting->wake(waiter->waiting);
}

/* The waiter that watches the time for all waiters of the key. */
static sg_waiter *key_waiters_first_present(const sg_key_waiters *waiters)
{
    sg_waiter *waiter = waiter_of(waiters->waiters.first);
    while (waiter != NULL && waiter->waiting->away)
        waiter = waiter_of(waiter->link.next);
    return waiter;
}

/* Makes the first waiter poll again, because its times have changed. */
static void key_waiters_wake_first(const sg_key_waiters *waiters)
{
    sg_waiter *first = key_waiters_first_present(waiters);
    if (first != NULL)
        first->waiting->wake(first->waiting);
}

/* The index that a search reaches after so many others. */
static size_t waiting_index_after(const sg_waiting *waiting, size_t others)
{
    return (waiting->next_index + others) % waiting->count;
}

/* ---- joining and leaving ---- */

syncguard_status sg_wait_queue_join(sg_wait_queue *queue, sg_waiting *waiting, const char *key,
                                    size_t length, int64_t remaining_ms, bool missed,
                                    syncguard_error *err)
{
    pthread_mutex_lock(&queue->mutex);
    sg_key_waiters *waiters = key_waiters_find(queue, key, length);
    if (waiters == NULL)
        waiters = key_waiters_add(queue, key, length);
    if (waiters != NULL) {
        sg_waiter *waiter = &waiting->waiters[waiting->count];
        *waiter = (sg_waiter){.waiting = waiting, .key_waiters = waiters};
        syncguard_links_append(&waiters->waiters, &waiter->link);
        /* Compared now that the key is in its bucket: a later change finds it. */
        if (missed || atomic_load(&queue->changes) != waiting->changes)
            waiter->state = SG_WAITER_MISSED;
        if (waiting->count++ == 0)
            atomic_fetch_add(&queue->waiters, 1);
        if (waiters->expires_ns == SYNCGUARD_NO_DEADLINE)
            waiters->expires_ns = wait_queue_end_ns(remaining_ms);
    }
    pthread_mutex_unlock(&queue->mutex);
    return waiters != NULL ? SYNCGUARD_OK : syncguard_fail_memory(err);
}

static void waiter_leave(sg_wait_queue *queue, syncguard_backend *backend, sg_waiter *waiter,
                         int64_t granted_until_ns)
{
    sg_key_waiters *waiters = waiter->key_waiters;
    bool was_first = key_waiters_first_present(waiters) == waiter;
    bool unanswered = waiter_is_trying(waiter) && granted_until_ns == 0;
    if (waiter->state != SG_WAITER_IDLE)
        waiter_set_state(waiter, SG_WAITER_IDLE);
    SG_CHECK(syncguard_links_check(&waiters->waiters));
    syncguard_links_remove(&waiters->waiters, &waiter->link);
    if (granted_until_ns != 0) {
        waiters->armed = false;
        waiters->expires_ns = granted_until_ns;
        key_waiters_set_armed_ms(waiters, 0);
    }
    if (waiters->waiters.first == NULL) {
        /* Under the mutex, so that it cannot undo the arming of the next waiters of this key. */
        if (backend->ops->unwatch != NULL)
            backend->ops->unwatch(backend, waiters->key, waiters->key_length);
        key_waiters_remove(queue, waiters);
    } else if (unanswered && waiters->trying == 0) {
        key_waiters_wake_one(waiters);
    } else if (was_first || granted_until_ns != 0) {
        key_waiters_wake_first(waiters); /* watches for this expiry from now on */
    }
}

void sg_wait_queue_leave(sg_wait_queue *queue, syncguard_backend *backend, sg_waiting *waiting,
                         size_t granted, int64_t granted_until_ns)
{
    pthread_mutex_lock(&queue->mutex);
    if (waiting->count > 0)
        atomic_fetch_sub(&queue->waiters, 1);
    for (size_t i = 0; i < waiting->count; i++)
        waiter_leave(queue, backend, &waiting->waiters[i], i == granted ? granted_until_ns : 0);
    waiting->count = 0;
    pthread_mutex_unlock(&queue->mutex);
}

/* ---- trying ---- */

uint64_t sg_wait_queue_try_begin(sg_wait_queue *queue, sg_waiting *waiting, size_t index)
{
    pthread_mutex_lock(&queue->mutex);
    sg_waiter *waiter = &waiting->waiters[index];
    sg_key_waiters *waiters = waiter->key_waiters;
    waiting->next_index = (uint16_t)((index + 1) % waiting->count);
    waiters->unhandled = false;
    waiter_set_state(waiter, SG_WAITER_TRYING);
    waiters->last_try_ns = syncguard_clock_ns();
    uint64_t events = waiters->events;
    pthread_mutex_unlock(&queue->mutex);
    return events;
}

/* A rest of armed_ms (0: none), or longer if there are many. */
static int64_t wait_queue_shared_rest_ms(size_t count, int64_t armed_ms)
{
    int64_t share_ms = (int64_t)count * REST_EACH_MS;
    if (share_ms > LONGEST_REST_MS)
        share_ms = LONGEST_REST_MS;
    return armed_ms > 0 && armed_ms < share_ms ? share_ms : armed_ms;
}

void sg_wait_queue_try_locked(sg_wait_queue *queue, sg_waiting *waiting, size_t index,
                              uint64_t events, const syncguard_acquire_op *op)
{
    pthread_mutex_lock(&queue->mutex);
    sg_waiter *waiter = &waiting->waiters[index];
    sg_key_waiters *waiters = waiter->key_waiters;
    if (waiters->events != events) {
        waiter_set_state(waiter, SG_WAITER_CHOSEN);
    } else {
        waiters->locked = true;
        waiters->armed = true;
        waiters->expires_ns = wait_queue_end_ns(op->remaining_ms);
        /* No store reports that a lock expired: if its expiry is unknown, no waiter may rest. */
        int64_t armed_ms = op->remaining_ms < 0 ? 0 : op->armed_ms;
        key_waiters_set_armed_ms(
            waiters, wait_queue_shared_rest_ms(atomic_load(&queue->key_count), armed_ms));
        waiter_set_state(waiter, SG_WAITER_IDLE);
        if (key_waiters_first_present(waiters) != waiter)
            key_waiters_wake_first(waiters); /* its timer is out of date */
    }
    pthread_mutex_unlock(&queue->mutex);
}

void sg_wait_queue_try_failed(sg_wait_queue *queue, sg_waiting *waiting, size_t index)
{
    pthread_mutex_lock(&queue->mutex);
    sg_waiter *waiter = &waiting->waiters[index];
    if (waiter_is_trying(waiter)) /* a try that could not even begin leaves MISSED as it is */
        waiter_set_state(waiter, SG_WAITER_IDLE);
    waiter->key_waiters->locked = false;
    key_waiters_set_armed_ms(waiter->key_waiters, 0);
    if (key_waiters_first_present(waiter->key_waiters) != waiter)
        key_waiters_wake_first(waiter->key_waiters); /* it left the expiry to the try */
    pthread_mutex_unlock(&queue->mutex);
}

bool sg_wait_queue_tried_since(sg_wait_queue *queue, const sg_waiting *waiting, int64_t since_ns,
                               size_t *index, bool *locked)
{
    pthread_mutex_lock(&queue->mutex);
    *index = waiting_index_after(waiting, 0);
    const sg_key_waiters *oldest = waiting->waiters[*index].key_waiters;
    for (size_t i = 1; i < waiting->count; i++) {
        size_t at = waiting_index_after(waiting, i);
        const sg_key_waiters *waiters = waiting->waiters[at].key_waiters;
        if (waiters->last_try_ns < oldest->last_try_ns) {
            oldest = waiters;
            *index = at;
        }
    }
    bool tried = oldest->last_try_ns > since_ns;
    *locked = oldest->locked;
    pthread_mutex_unlock(&queue->mutex);
    return tried;
}

/* ---- waiting ---- */

int64_t sg_wait_queue_rest_ms(sg_wait_queue *queue, const sg_waiting *waiting)
{
    int64_t armed_ms = 0;
    pthread_mutex_lock(&queue->mutex);
    for (size_t i = 0; i < waiting->count; i++) {
        const sg_key_waiters *waiters = waiting->waiters[i].key_waiters;
        armed_ms = waiters->armed_ms > armed_ms ? waiters->armed_ms : armed_ms;
    }
    /* If the store reports nothing, an acquire that waits for several keys polls them in turn. */
    bool first_polls = armed_ms > 0 && (queue->notified || waiting->count == 1);
    for (size_t i = 0; first_polls && i < waiting->count; i++)
        waiting->waiters[i].key_waiters->resting = true;
    int64_t rest_ms = wait_queue_shared_rest_ms(atomic_load(&queue->waiters), armed_ms);
    pthread_mutex_unlock(&queue->mutex);
    return rest_ms;
}

int64_t sg_wait_queue_remaining_ms(sg_wait_queue *queue, const sg_waiting *waiting)
{
    int64_t expires_ns = SYNCGUARD_NO_DEADLINE;
    pthread_mutex_lock(&queue->mutex);
    for (size_t i = 0; i < waiting->count; i++) {
        const sg_key_waiters *waiters = waiting->waiters[i].key_waiters;
        expires_ns = waiters->expires_ns < expires_ns ? waiters->expires_ns : expires_ns;
    }
    pthread_mutex_unlock(&queue->mutex);
    if (expires_ns == SYNCGUARD_NO_DEADLINE)
        return -1;
    int64_t left = expires_ns - syncguard_clock_ns();
    return left > 0 ? left / SYNCGUARD_NS_PER_MS : 0;
}

static void waiter_set_away(sg_waiter *waiter, bool away)
{
    sg_key_waiters *waiters = waiter->key_waiters;
    if (away &&
        waiter_is_trying(waiter)) { /* it was chosen a moment ago: another tries in its place */
        waiter_set_state(waiter, SG_WAITER_IDLE);
        if (waiters->trying == 0)
            key_waiters_wake_one(waiters);
    } else if (away) {
        key_waiters_wake_first(waiters); /* the first may be another waiter now */
    }
}

void sg_wait_queue_set_away(sg_wait_queue *queue, sg_waiting *waiting, bool away)
{
    pthread_mutex_lock(&queue->mutex);
    waiting->away = away;
    for (size_t i = 0; i < waiting->count; i++)
        waiter_set_away(&waiting->waiters[i], away);
    pthread_mutex_unlock(&queue->mutex);
}

/* Finds a waiter that an event has chosen. An event that found all waiters away chooses the first
 * that asks. */
static bool waiting_find_woken(const sg_waiting *waiting, size_t *index)
{
    for (size_t i = 0; i < waiting->count; i++) {
        sg_waiter *waiter = &waiting->waiters[waiting_index_after(waiting, i)];
        sg_key_waiters *waiters = waiter->key_waiters;
        if (waiters->unhandled && waiters->trying == 0) {
            waiters->unhandled = false;
            waiter_set_state(waiter, SG_WAITER_CHOSEN);
        }
        if (waiter->state == SG_WAITER_CHOSEN) {
            *index = waiting_index_after(waiting, i);
            return true;
        }
    }
    return false;
}

/* Finds a waiter whose key may have been released before it joined. A try by another waiter of the
 * key makes its own try unnecessary: if that one does not get the lock it arms, and if it gets it
 * this process will notice the release. */
static bool waiting_find_missed(const sg_waiting *waiting, size_t *index)
{
    for (size_t i = 0; i < waiting->count; i++) {
        sg_waiter *waiter = &waiting->waiters[waiting_index_after(waiting, i)];
        if (waiter->state != SG_WAITER_MISSED)
            continue;
        if (waiter->key_waiters->armed || waiter->key_waiters->trying > 0) {
            waiter_set_state(waiter, SG_WAITER_IDLE);
        } else {
            *index = waiting_index_after(waiting, i);
            return true;
        }
    }
    return false;
}

bool sg_wait_queue_chosen(sg_wait_queue *queue, sg_waiting *waiting, size_t *index)
{
    pthread_mutex_lock(&queue->mutex);
    bool chosen = waiting_find_woken(waiting, index) || waiting_find_missed(waiting, index);
    pthread_mutex_unlock(&queue->mutex);
    return chosen;
}

/* Checks the times that only the first waiter watches. True if it must try now. */
static bool waiter_first_is_due(const sg_wait_queue *queue, sg_waiter *first, int64_t now,
                                int64_t *until_ns)
{
    sg_key_waiters *waiters = first->key_waiters;
    sg_waiting *waiting = first->waiting;
    bool polls = waiters->resting || (queue->notified && waiters->armed_ms == 0);
    int64_t poll_at_ns =
        waiters->poll_at_ns > waiting->next_poll_ns ? waiters->poll_at_ns : waiting->next_poll_ns;
    if (polls && now >= poll_at_ns) {
        key_waiters_set_armed_ms(waiters, 0);
        waiting->next_poll_ns = waiters->poll_at_ns;
        return true;
    }
    if (now >= waiters->expires_ns) {
        waiters->expires_ns = SYNCGUARD_NO_DEADLINE;
        return true;
    }
    if (polls && poll_at_ns < *until_ns)
        *until_ns = poll_at_ns;
    if (waiters->expires_ns < *until_ns)
        *until_ns = waiters->expires_ns;
    return false;
}

static bool waiting_find_due(const sg_wait_queue *queue, const sg_waiting *waiting, int64_t now,
                             int64_t *until_ns, size_t *index)
{
    for (size_t i = 0; i < waiting->count; i++) {
        sg_waiter *waiter = &waiting->waiters[waiting_index_after(waiting, i)];
        if (key_waiters_first_present(waiter->key_waiters) == waiter &&
            waiter->key_waiters->trying == 0 && waiter_first_is_due(queue, waiter, now, until_ns)) {
            waiter_set_state(
                waiter, SG_WAITER_TRYING); /* if it leaves before it tries, the next waiter tries */
            *index = waiting_index_after(waiting, i);
            return true;
        }
    }
    return false;
}

bool sg_wait_queue_poll(sg_wait_queue *queue, sg_waiting *waiting, int64_t *until_ns,
                        sg_wake_reason *reason, size_t *index)
{
    int64_t now = syncguard_clock_ns();
    pthread_mutex_lock(&queue->mutex);
    bool due = true;
    if (waiting_find_woken(waiting, index)) {
        *reason = SG_WAKE_EVENT;
    } else if (waiting_find_due(queue, waiting, now, until_ns, index)) {
        *reason = SG_WAKE_EXPIRY;
    } else {
        *reason = SG_WAKE_TIMER;
        due = now >= *until_ns;
    }
    pthread_mutex_unlock(&queue->mutex);
    return due;
}

/* ---- events ---- */

/* Caller holds the mutex. */
static void key_waiters_count_event(sg_key_waiters *waiters)
{
    waiters->events++;
    waiters->armed = false;
    waiters->armed_ms = 0;
    if (waiters->trying == 0)
        key_waiters_wake_one(waiters);
}

void sg_wait_queue_released(sg_wait_queue *queue, const char *key, size_t length)
{
    atomic_fetch_add(&queue->changes, 1);
    if (atomic_load(&queue->key_count) == 0)
        return;
    pthread_mutex_lock(&queue->mutex);
    sg_key_waiters *waiters = key_waiters_find(queue, key, length);
    if (waiters != NULL)
        key_waiters_count_event(waiters);
    pthread_mutex_unlock(&queue->mutex);
}

void sg_wait_queue_set_expiry(sg_wait_queue *queue, const char *key, size_t length,
                              int64_t remaining_ms)
{
    atomic_fetch_add(&queue->changes, 1);
    if (atomic_load(&queue->key_count) == 0)
        return;
    pthread_mutex_lock(&queue->mutex);
    sg_key_waiters *waiters = key_waiters_find(queue, key, length);
    if (waiters != NULL) {
        waiters->events++; /* a try that is in flight may return the former expiry */
        waiters->expires_ns = wait_queue_end_ns(remaining_ms);
        key_waiters_wake_first(waiters);
    }
    pthread_mutex_unlock(&queue->mutex);
}

size_t syncguard_backend_waited_keys(const syncguard_backend *backend)
{
    /* An acquire that waits for several keys polls them in turn, as often as for a single key. */
    size_t keys = atomic_load(&backend->core->wait_queue->key_count);
    size_t waiters = atomic_load(&backend->core->wait_queue->waiters);
    return keys < waiters ? keys : waiters;
}

void syncguard_backend_key_changed(syncguard_backend *backend, const char *key, size_t key_length)
{
    sg_wait_queue *queue = backend->core->wait_queue;
    atomic_fetch_add(&queue->changes, 1);
    if (atomic_load(&queue->key_count) == 0)
        return;
    pthread_mutex_lock(&queue->mutex);
    sg_key_waiters *waiters = key_waiters_find(queue, key, key_length);
    if (waiters != NULL && (waiters->armed || waiters->trying > 0 || !queue->notified))
        key_waiters_count_event(waiters);
    pthread_mutex_unlock(&queue->mutex);
}

void syncguard_backend_notifications_lost(syncguard_backend *backend)
{
    sg_wait_queue *queue = backend->core->wait_queue;
    pthread_mutex_lock(&queue->mutex);
    for (size_t i = 0; i < SG_WAIT_QUEUE_BUCKETS; i++) {
        for (sg_key_waiters *waiters = queue->buckets[i]; waiters != NULL; waiters = waiters->next)
            key_waiters_count_event(waiters);
    }
    pthread_mutex_unlock(&queue->mutex);
}
