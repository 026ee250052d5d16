/*
 * The waiting room: threads of this process that wait for keys of one backend.
 *
 * Waiters of one key form a group and share what they know, so that one release
 * costs this process one try however many wait:
 *   - News about a key (a release by this handle, or a report of the store)
 *     wakes the first waiter that is not trying already. If it leaves without an
 *     answer, it passes the news on.
 *   - A try by any waiter stands for the polls of the others (tried_since), and
 *     only the first waiter watches for the expiry of the lock in the way.
 *
 * No lost wake-up: a waiter joins first and tries afterwards with the watch flag
 * set. News that arrives while a try is under way is counted; a try that is
 * answered LOCKED compares the count and is repeated if it moved.
 *
 * `armed` means: a try was answered LOCKED after the store had been told to
 * report, and nothing has been reported since. Reports of an unarmed group are
 * echoes (of our own grant, of a release that was told locally) and wake nobody.
 *
 * Resting: a waiter that does not count its retries need not poll while the store reports
 * releases (armed_ms of its answer). It relies on the group: whenever that trust ends
 * without a try that could renew it (the time is over, a try failed, a waiter got the lock), the
 * first waiter tries within POLL_MS, for all of them (poll_at_ns). So only the first has to be
 * woken when the trust ends, and whoever becomes the first is woken to see it.
 *
 * A waiter in its caller's on_wait is away: it is not chosen, and the next one counts as the first.
 * If all are away, the news is kept (unheard) for the first that comes back.
 *
 * Hope: the first try after the news of a release mostly gets the lock, and need not
 * find out how long another's lives. If it does not get it, the first waiter looks again
 * within the tolerance, or at the expiry known before, whichever is sooner.
 *
 * Who hears: a waiter that sleeps may read the store's reports itself (listen), so
 * that its own news need not come by way of another thread. One at a time has the
 * descriptor for that (may_listen). Whoever sleeps sees to it that somebody
 * listens: itself, another waiter, or the backend (take_over). While the only waiter
 * tries, nobody needs to.
 *
 * Locking: everything is guarded by room->mutex. Waiters live on their threads'
 * stacks and are only touched while they are members of a group.
 */
#include <string.h>

#include "core.h"

/* By when the first waiter tries if nobody can say whether a release would be reported. */
#define POLL_MS 1000

struct sg_group {
    sg_group *next; /* in its bucket */
    uint64_t hash;
    sg_waiter *first;
    sg_waiter *last;
    uint64_t news;
    bool freed; /* the last news was a release, and nobody has tried since */
    bool armed;
    bool unheard; /* news that found all waiters away */
    bool relied;  /* some waiter may rest for longer than POLL_MS */
    bool locked;  /* what the last try that ended found; false: it failed */
    int trying;
    int64_t armed_ms;   /* as the last try was told; 0: unknown whether releases are reported */
    int64_t poll_at_ns; /* when the first waiter tries for those that rest */
    int64_t last_try_ns;
    int64_t free_at_ns; /* when the lock in the way dies by itself, if that is known */
    size_t key_length;
    char key[];
};

/* FNV-1a: short keys, no enemy (a flood of colliding keys only slows its own process). */
static uint64_t hash_bytes(const char *bytes, size_t length)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < length; i++) {
        hash ^= (unsigned char)bytes[i];
        hash *= UINT64_C(1099511628211);
    }
    return hash;
}

syncguard_status sg_room_init(sg_room *room, syncguard_error *err)
{
    memset(room->buckets, 0, sizeof room->buckets);
    room->waiters = 0;
    room->claimed = false;
    room->parker = (syncguard_parker)SYNCGUARD_PARKER_INIT;
    room->ear = SG_EAR_STORE;
    atomic_init(&room->group_count, 0);
    atomic_init(&room->releases, 0);
    if (pthread_mutex_init(&room->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    return SYNCGUARD_OK;
}

void sg_room_destroy(sg_room *room)
{
    syncguard_parker_close(&room->parker);
    pthread_mutex_destroy(&room->mutex);
}

void sg_room_forget(sg_room *room)
{
    for (size_t i = 0; i < SG_ROOM_BUCKETS; i++) {
        while (room->buckets[i] != NULL) {
            sg_group *group = room->buckets[i];
            room->buckets[i] = group->next;
            syncguard_free(group);
        }
    }
    syncguard_parker_close(&room->parker);
    (void)sg_room_init(room, NULL);
}

static sg_group *find_group(sg_room *room, uint64_t hash, const char *key, size_t length)
{
    sg_group *group = room->buckets[hash % SG_ROOM_BUCKETS];
    while (group != NULL && (group->hash != hash || group->key_length != length ||
                             memcmp(group->key, key, length) != 0))
        group = group->next;
    return group;
}

static sg_group *make_group(sg_room *room, uint64_t hash, const char *key, size_t length)
{
    sg_group *group = syncguard_calloc(1, sizeof *group + length + 1);
    if (group == NULL)
        return NULL;
    group->hash = hash;
    group->free_at_ns = SYNCGUARD_NO_DEADLINE;
    group->key_length = length;
    memcpy(group->key, key, length);
    group->next = room->buckets[hash % SG_ROOM_BUCKETS];
    room->buckets[hash % SG_ROOM_BUCKETS] = group;
    atomic_fetch_add(&room->group_count, 1);
    return group;
}

static void drop_group(sg_room *room, sg_group *group)
{
    sg_group **link = &room->buckets[group->hash % SG_ROOM_BUCKETS];
    while (*link != group)
        link = &(*link)->next;
    *link = group->next;
    atomic_fetch_sub(&room->group_count, 1);
    syncguard_free(group);
}

/* When a lock dies that has remaining_ms left; -1: unknown. */
static int64_t death_of(int64_t remaining_ms)
{
    return remaining_ms < 0 ? SYNCGUARD_NO_DEADLINE
                            : syncguard_clock_after(syncguard_clock_ns(), remaining_ms);
}

/* Only who may listen needs a descriptor to be woken by, and there is one for whoever that is. */
static syncguard_status open_parker(sg_room *room, const syncguard_backend *backend,
                                    const syncguard_limits *limits, sg_waiter *waiter,
                                    syncguard_error *err)
{
    waiter->may_listen = false;
    if (backend->core->listens) {
        pthread_mutex_lock(&room->mutex);
        if (!room->claimed && (room->parker.fds[0] >= 0 ||
                               syncguard_parker_open(&room->parker, NULL) == SYNCGUARD_OK))
            room->claimed = waiter->may_listen = true;
        pthread_mutex_unlock(&room->mutex);
    }
    if (!waiter->may_listen)
        return syncguard_parker_open_light(&waiter->parker, limits, err);
    waiter->parker = room->parker;
    return SYNCGUARD_OK;
}

/* Caller holds the mutex. */
static void give_claim_back(sg_room *room, sg_waiter *waiter)
{
    room->claimed = room->claimed && !waiter->may_listen;
}

static void close_parker(sg_waiter *waiter)
{
    if (!waiter->may_listen)
        syncguard_parker_close(&waiter->parker);
}

syncguard_status sg_room_join(sg_room *room, const syncguard_backend *backend, const char *key,
                              size_t length, int64_t remaining_ms, const syncguard_limits *limits,
                              sg_waiter *waiter, bool *armed, syncguard_error *err)
{
    syncguard_status status = open_parker(room, backend, limits, waiter, err);
    if (status != SYNCGUARD_OK)
        return status;
    waiter->thread = pthread_self();

    uint64_t hash = hash_bytes(key, length);
    pthread_mutex_lock(&room->mutex);
    sg_group *group = find_group(room, hash, key, length);
    if (group == NULL)
        group = make_group(room, hash, key, length);
    if (group != NULL) {
        room->waiters++;
        waiter->group = group;
        waiter->next = NULL;
        waiter->previous = group->last;
        if (group->last != NULL)
            group->last->next = waiter;
        else
            group->first = waiter;
        group->last = waiter;
        /* Somebody's try will tell: if it fails to get the lock it arms, if it gets it this
         * process will hear of the release. */
        *armed = group->armed || group->trying > 0;
        if (group->free_at_ns == SYNCGUARD_NO_DEADLINE)
            group->free_at_ns = death_of(remaining_ms);
    } else {
        give_claim_back(room, waiter);
    }
    pthread_mutex_unlock(&room->mutex);

    if (group == NULL) {
        close_parker(waiter);
        return syncguard_fail_memory(err);
    }
    return SYNCGUARD_OK;
}

static void choose(sg_waiter *waiter)
{
    waiter->woken = true;
    waiter->trying = true;
    waiter->group->trying++;
}

/* Chooses the first waiter that is idle; nobody is trying. Caller holds the mutex. */
static void wake_one(sg_group *group)
{
    for (sg_waiter *waiter = group->first; waiter != NULL; waiter = waiter->next) {
        if (!waiter->trying && !waiter->away) {
            choose(waiter);
            if (!pthread_equal(waiter->thread, pthread_self())) /* it heard this itself */
                syncguard_parker_unpark(&waiter->parker);
            return;
        }
    }
    group->unheard = true;
}

/* The waiter that watches the time for all. Caller holds the mutex. */
static sg_waiter *first_of(const sg_group *group)
{
    sg_waiter *waiter = group->first;
    while (waiter != NULL && waiter->away)
        waiter = waiter->next;
    return waiter;
}

/* What the first goes by has changed. Caller holds the mutex. */
static void unpark_first(const sg_group *group)
{
    sg_waiter *first = first_of(group);
    if (first != NULL)
        syncguard_parker_unpark(&first->parker);
}

/* Whether, and for how long, releases are reported from now on. Caller holds the mutex. */
static void trust(sg_group *group, int64_t armed_ms)
{
    group->armed_ms = armed_ms;
    group->poll_at_ns = death_of(armed_ms > 0 ? armed_ms : POLL_MS);
}

static void end_try(sg_waiter *waiter)
{
    if (waiter->trying)
        waiter->group->trying--;
    waiter->trying = false;
    waiter->woken = false;
}

static void unlink_waiter(sg_waiter *waiter)
{
    sg_group *group = waiter->group;
    if (waiter->previous != NULL)
        waiter->previous->next = waiter->next;
    else
        group->first = waiter->next;
    if (waiter->next != NULL)
        waiter->next->previous = waiter->previous;
    else
        group->last = waiter->previous;
}

void sg_room_leave(sg_room *room, syncguard_backend *backend, sg_waiter *waiter,
                   int64_t granted_until_ns)
{
    pthread_mutex_lock(&room->mutex);
    sg_group *group = waiter->group;
    bool was_first = first_of(group) == waiter;
    bool unanswered = waiter->trying && granted_until_ns == 0;
    end_try(waiter);
    unlink_waiter(waiter);
    room->waiters--;
    give_claim_back(room, waiter);
    if (granted_until_ns != 0) {
        group->armed = group->armed && backend->core->watch_lasts;
        group->free_at_ns = granted_until_ns;
        trust(group, 0);
    }
    if (group->first == NULL) {
        /* Under the mutex, so that it cannot undo the arming of the next group of this key. */
        if (backend->ops->unwatch != NULL)
            backend->ops->unwatch(backend, group->key, group->key_length);
        drop_group(room, group);
    } else if (unanswered && group->trying == 0) {
        wake_one(group);
    } else if (was_first || granted_until_ns != 0) {
        unpark_first(group); /* watches for this expiry from now on */
    }
    pthread_mutex_unlock(&room->mutex);
    close_parker(waiter);
}

uint64_t sg_room_try_begin(sg_room *room, sg_waiter *waiter)
{
    pthread_mutex_lock(&room->mutex);
    sg_group *group = waiter->group;
    waiter->woken = false;
    group->freed = false;
    group->unheard = false;
    if (!waiter->trying) {
        waiter->trying = true;
        group->trying++;
    }
    group->last_try_ns = syncguard_clock_ns();
    uint64_t news = group->news;
    pthread_mutex_unlock(&room->mutex);
    return news;
}

/* Who has just taken what was freed has it for a while: time enough to find out for how long. */
static int64_t look_again_at(const sg_group *group)
{
    int64_t soon = death_of(SYNCGUARD_TIME_TOLERANCE_MS);
    return group->free_at_ns < soon ? group->free_at_ns : soon;
}

bool sg_room_try_locked(sg_room *room, sg_waiter *waiter, uint64_t news,
                        const syncguard_acquire_op *op)
{
    pthread_mutex_lock(&room->mutex);
    sg_group *group = waiter->group;
    bool again = group->news != news;
    bool unknown = op->remaining_ms < 0;
    if (!again) {
        group->locked = true;
        group->armed = true;
        group->free_at_ns =
            op->released && unknown ? look_again_at(group) : death_of(op->remaining_ms);
        /* No store reports that a lock expired: without its time there is nothing to rely on. */
        trust(group, unknown && !op->released ? 0 : op->armed_ms);
        end_try(waiter);
        if (first_of(group) != waiter)
            unpark_first(group); /* its timer is out of date */
    }
    pthread_mutex_unlock(&room->mutex);
    return again;
}

void sg_room_try_failed(sg_room *room, sg_waiter *waiter)
{
    pthread_mutex_lock(&room->mutex);
    end_try(waiter);
    waiter->group->locked = false;
    trust(waiter->group, 0);
    if (first_of(waiter->group) != waiter)
        unpark_first(waiter->group); /* it left the expiry to the try */
    pthread_mutex_unlock(&room->mutex);
}

bool sg_room_tried_since(sg_room *room, const sg_waiter *waiter, int64_t since_ns, bool *locked)
{
    pthread_mutex_lock(&room->mutex);
    bool tried = waiter->group->last_try_ns > since_ns;
    *locked = waiter->group->locked;
    pthread_mutex_unlock(&room->mutex);
    return tried;
}

int64_t sg_room_rely(sg_room *room, const sg_waiter *waiter)
{
    pthread_mutex_lock(&room->mutex);
    sg_group *group = waiter->group;
    group->relied = group->relied || group->armed_ms > 0;
    int64_t armed_ms = group->armed_ms;
    pthread_mutex_unlock(&room->mutex);
    return armed_ms;
}

void sg_room_away(sg_room *room, sg_waiter *waiter, bool away)
{
    pthread_mutex_lock(&room->mutex);
    sg_group *group = waiter->group;
    waiter->away = away;
    if (away && waiter->trying) { /* was chosen a moment ago: passes it on */
        end_try(waiter);
        if (group->trying == 0)
            wake_one(group);
    } else if (away) {
        unpark_first(group); /* it may be another now */
    }
    pthread_mutex_unlock(&room->mutex);
}

/* True if the waiter has to do something now; else *until_ns is when to look again. */
static bool take_turn(sg_waiter *waiter, int64_t *until_ns, sg_turn *turn)
{
    sg_group *group = waiter->group;
    int64_t now = syncguard_clock_ns();
    if (waiter->woken) {
        *turn = group->freed ? SG_TURN_FREED : SG_TURN_WOKEN;
        return true;
    }
    if (group->unheard && group->trying == 0) {
        group->unheard = false;
        choose(waiter);
        *turn = group->freed ? SG_TURN_FREED : SG_TURN_WOKEN;
        return true;
    }
    if (first_of(group) == waiter && group->trying == 0) {
        if (group->relied && now >= group->poll_at_ns) {
            trust(group, 0);
            *turn = SG_TURN_EXPIRY;
            return true;
        }
        if (group->relied && group->poll_at_ns < *until_ns)
            *until_ns = group->poll_at_ns;
        if (now >= group->free_at_ns) {
            group->free_at_ns = SYNCGUARD_NO_DEADLINE;
            *turn = SG_TURN_EXPIRY;
            return true;
        }
        if (group->free_at_ns < *until_ns)
            *until_ns = group->free_at_ns;
    }
    *turn = SG_TURN_PAUSE;
    return now >= *until_ns;
}

/* Caller holds the mutex. */
static void leave_to_store(sg_room *room, syncguard_backend *backend)
{
    room->ear = SG_EAR_STORE;
    backend->ops->take_over(backend);
}

/* Before a waiter sleeps. Caller holds the mutex. */
static void find_ear(sg_room *room, syncguard_backend *backend, const sg_waiter *waiter)
{
    if (waiter->may_listen)
        room->ear = SG_EAR_WAITER;
    else if (room->ear == SG_EAR_NOBODY)
        leave_to_store(room, backend);
}

/* Before a waiter does something else. Caller holds the mutex. */
static void stop_listening(sg_room *room, syncguard_backend *backend, const sg_waiter *waiter)
{
    if (!waiter->may_listen || room->ear != SG_EAR_WAITER)
        return;
    if (room->waiters > 1)
        leave_to_store(room, backend);
    else
        room->ear = SG_EAR_NOBODY;
}

/* Until it is unparked, has heard something, or limits end. */
static syncguard_status rest(sg_room *room, syncguard_backend *backend, sg_waiter *waiter,
                             const syncguard_limits *limits, syncguard_error *err)
{
    if (waiter->may_listen) {
        syncguard_status status = backend->ops->listen(backend, &waiter->parker, limits, err);
        if (status != SYNCGUARD_ABSENT)
            return status;
        pthread_mutex_lock(&room->mutex);
        leave_to_store(room, backend);
        pthread_mutex_unlock(&room->mutex);
    }
    return syncguard_parker_park(&waiter->parker, limits, err);
}

syncguard_status sg_room_wait(sg_room *room, syncguard_backend *backend, sg_waiter *waiter,
                              int64_t until_ns, const syncguard_limits *limits, sg_turn *turn,
                              syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    for (;;) {
        int64_t wake_ns = until_ns;
        pthread_mutex_lock(&room->mutex);
        bool mine = status != SYNCGUARD_OK || take_turn(waiter, &wake_ns, turn);
        if (mine)
            stop_listening(room, backend, waiter);
        else
            find_ear(room, backend, waiter);
        pthread_mutex_unlock(&room->mutex);
        if (mine)
            return status;

        syncguard_limits step = syncguard_limits_until(limits, wake_ns);
        status = rest(room, backend, waiter, &step, err);
        if (status == SYNCGUARD_E_NETWORK_TIMEOUT)
            status = syncguard_limits_check(limits, err); /* the pause ended, or the whole? */
    }
}

/* Caller holds the mutex. */
static void spread_news(sg_group *group, bool stays_armed, bool freed)
{
    group->news++;
    group->freed = freed;
    group->armed = group->armed && stays_armed;
    group->armed_ms = group->armed ? group->armed_ms : 0;
    if (group->trying == 0)
        wake_one(group);
}

void sg_room_freed(sg_room *room, const char *key, size_t length, bool watch_lasts)
{
    atomic_fetch_add(&room->releases, 1);
    if (atomic_load(&room->group_count) == 0)
        return;
    pthread_mutex_lock(&room->mutex);
    sg_group *group = find_group(room, hash_bytes(key, length), key, length);
    if (group != NULL)
        spread_news(group, watch_lasts, true);
    pthread_mutex_unlock(&room->mutex);
}

size_t syncguard_backend_waited_keys(const syncguard_backend *backend)
{
    return atomic_load(&backend->core->room->group_count);
}

void syncguard_backend_stirred(syncguard_backend *backend, const char *key, size_t key_length)
{
    sg_room *room = backend->core->room;
    if (atomic_load(&room->group_count) == 0)
        return;
    pthread_mutex_lock(&room->mutex);
    sg_group *group = find_group(room, hash_bytes(key, key_length), key, key_length);
    if (group != NULL && (group->armed || group->trying > 0))
        spread_news(group, backend->ops->watch_lasts, true);
    pthread_mutex_unlock(&room->mutex);
}

void syncguard_backend_stirred_all(syncguard_backend *backend)
{
    sg_room *room = backend->core->room;
    pthread_mutex_lock(&room->mutex);
    for (size_t i = 0; i < SG_ROOM_BUCKETS; i++) {
        for (sg_group *group = room->buckets[i]; group != NULL; group = group->next)
            spread_news(group, false, false);
    }
    pthread_mutex_unlock(&room->mutex);
}
