/* The minimum hold: an early release keeps the key locked until the minimum is over. */
#include "contract.h"

#include <poll.h>

static syncguard_lock *min_hold_try_lock(const char *name, int64_t ttl_ms, int64_t min_hold_ms,
                                         bool renewed)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = ttl_ms;
    options.min_hold_ms = min_hold_ms;
    options.auto_extend = renewed;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_try(store, name, &options, &lock, &err));
    return lock;
}

static syncguard_lock_info_raw min_hold_read_stored(const char *name)
{
    syncguard_lock_info_raw info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, name, NULL, &info, &err));
    return info;
}

static void early_release_keeps_the_key_locked(void **state)
{
    key name = fresh_key("early");
    syncguard_lock *lock = min_hold_try_lock(name.text, 60000, 2000, true);
    int64_t granted = test_now_ms(), first_expiry = syncguard_lock_expires_at_ms(lock);
    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_lock_release(lock, NULL, &err));
    assert_false(syncguard_lock_held(lock));
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_NO);
    assert_true(syncguard_lock_remaining_ms(lock) == 0);
    syncguard_lock_info_raw info = min_hold_read_stored(name.text);
    assert_string_equal(info.lock_id, syncguard_lock_id(lock));
    assert_true(info.info.expires_at_ms == syncguard_lock_expires_at_ms(lock));
    assert_at_most(first_expiry - 30000, info.info.expires_at_ms);
    syncguard_lock *next = NULL;
    assert_status(SYNCGUARD_LOCKED, syncguard_lock_try(store, name.text, NULL, &next, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_lock_release(lock, NULL, &err));
    syncguard_lock_dispose(lock);
    check_locked(name.text, true);
    syncguard_lock_options patient = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(20000);
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(store, name.text, &patient, &next, &err));
    assert_at_least(2000, test_now_ms() - granted);
    syncguard_lock_dispose(next);
    check_locked(name.text, false);
}

static void release_after_the_minimum_frees_the_key(void **state)
{
    key name = fresh_key("late");
    syncguard_lock *lock = min_hold_try_lock(name.text, 60000, 1, false);
    (void)state;
    test_sleep_ms(20);
    assert_status(SYNCGUARD_OK, syncguard_lock_release(lock, NULL, &err));
    check_locked(name.text, false);
    syncguard_lock_dispose(lock);
}

/* Also by dispose, and for longer than the lease was. */
static void minimum_may_exceed_the_lease(void **state)
{
    key name = fresh_key("longer");
    syncguard_lock *lock = min_hold_try_lock(name.text, 5000, 60000, false);
    syncguard_lock_info_raw before = min_hold_read_stored(name.text);
    (void)state;
    syncguard_lock_dispose(lock);
    syncguard_lock_info_raw after = min_hold_read_stored(name.text);
    assert_string_equal(after.info.fence, before.info.fence);
    assert_at_least(before.info.acquired_at_ms + 40000, after.info.expires_at_ms);
    /* The lock id permits to end it. */
    assert_status(SYNCGUARD_OK, syncguard_release(store, after.lock_id, NULL, &err));
    check_locked(name.text, false);
}

/* A lock that another owner has by now is not touched. */
static void minimum_of_a_removed_lock_is_over(void **state)
{
    key name = fresh_key("removed");
    syncguard_lock *lock = min_hold_try_lock(name.text, 60000, 60000, false);
    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_release(store, syncguard_lock_id(lock), NULL, &err));
    syncguard_grant next = take(name.text, 30000);
    syncguard_lock_info_raw before = min_hold_read_stored(name.text);
    assert_status(SYNCGUARD_ABSENT, syncguard_lock_release(lock, NULL, &err));
    syncguard_lock_dispose(lock);
    syncguard_lock_info_raw after = min_hold_read_stored(name.text);
    assert_string_equal(after.lock_id, next.lock_id);
    assert_true(after.info.expires_at_ms == before.info.expires_at_ms);
    give_back(&next);
}

static void detached_lock_has_no_minimum(void **state)
{
    key name = fresh_key("detached");
    syncguard_lock *lock = min_hold_try_lock(name.text, 30000, 60000, false);
    int64_t expires = syncguard_lock_expires_at_ms(lock);
    (void)state;
    syncguard_lock_detach(lock);
    syncguard_lock_info_raw info = min_hold_read_stored(name.text);
    assert_true(info.info.expires_at_ms == expires);
    assert_status(SYNCGUARD_OK, syncguard_release(store, info.lock_id, NULL, &err));
}

typedef struct waiter {
    const char *name;
    syncguard_lock *lock;
    syncguard_status status;
    int64_t ended;
    atomic_int pauses;
} waiter;

static void *min_hold_wait_for_lock(void *argument)
{
    waiter *self = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(50000);
    options.on_wait = test_count_wait;
    options.on_wait_context = &self->pauses;
    self->status = syncguard_lock_acquire(store, self->name, &options, &self->lock, NULL);
    self->ended = test_now_ms();
    return NULL;
}

/* The waiter neither gets the lock early nor sleeps until the former lease would have ended. */
static void waiter_gets_the_key_after_the_minimum(void **state)
{
    key name = fresh_key("waiter");
    waiter one = {.name = name.text};
    syncguard_lock *lock = min_hold_try_lock(name.text, 60000, 2000, false);
    int64_t granted = test_now_ms();
    pthread_t thread = test_start_thread(min_hold_wait_for_lock, &one);
    (void)state;
    while (atomic_load(&one.pauses) == 0 && test_now_ms() < granted + 30000)
        test_sleep_ms(2);
    assert_status(SYNCGUARD_OK, syncguard_lock_release(lock, NULL, &err));
    syncguard_lock_dispose(lock);
    pthread_join(thread, NULL);
    assert_int_equal(one.status, SYNCGUARD_OK);
    assert_between(2000, 30000, one.ended - granted);
    syncguard_lock_dispose(one.lock);
}

/* ---- every extend that lets a lock end earlier ---- */

#define KEYS 7
#define MIN_HOLD_MS 2000
#define SHORT_TTL_MS 3000
/* Waiters that poll are later than this, and so is the end of the former lease. */
#define PAUSE_MS 40000
#define LATEST_MS 20000

/* The ways to wait. */
typedef enum { FOR_A_LOCK, FOR_A_SLOT, FOR_A_SET, IN_A_QUEUE } way;

typedef struct patient {
    way how;
    key name, free_name; /* the second of a set */
    syncguard_lock *lock;
    syncguard_lock_set *set;
    atomic_int pauses;
    syncguard_status status;
    int64_t ended;
} patient;

/* Where the store reports releases, the pause is long, so that a poll cannot help. */
static syncguard_lock_options patient_init_options(patient *self)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(50000);
    if (able()->wakes_waiters) {
        options.retry_delay_ms = PAUSE_MS;
        options.backoff = SYNCGUARD_BACKOFF_FIXED;
        options.jitter = SYNCGUARD_JITTER_NONE;
    }
    options.on_wait = test_count_wait;
    options.on_wait_context = &self->pauses;
    options.slots = self->how == FOR_A_SLOT ? 2 : 0;
    return options;
}

static void patient_wait_in_queue(patient *self, const syncguard_lock_options *options)
{
    syncguard_queue *queue = NULL;
    self->status = syncguard_queue_open(store, NULL, &queue, NULL);
    if (self->status != SYNCGUARD_OK)
        return;
    self->status = syncguard_lock_acquire_async(queue, self->name.text, options, NULL, NULL, NULL);
    atomic_fetch_add(&self->pauses, 1);
    struct pollfd fd = {-1, POLLIN, 0};
    fd.fd = syncguard_queue_fd(queue);
    syncguard_completion done;
    if (self->status == SYNCGUARD_OK)
        self->status = poll(&fd, 1, 50000) == 1 && syncguard_queue_next(queue, &done)
                           ? done.status
                           : SYNCGUARD_E_INTERNAL;
    self->ended = test_now_ms();
    if (self->status == SYNCGUARD_OK)
        syncguard_lock_dispose(done.lock);
    syncguard_queue_close(queue);
}

static void *patient_wait(void *argument)
{
    patient *self = argument;
    syncguard_lock_options options = patient_init_options(self);
    const char *names[] = {self->name.text, self->free_name.text};
    if (self->how == IN_A_QUEUE) {
        options.on_wait = NULL;
        patient_wait_in_queue(self, &options);
        return NULL;
    }
    if (self->how == FOR_A_SET)
        self->status = syncguard_lock_acquire_all(store, names, 2, &options, &self->set, NULL);
    else
        self->status = syncguard_lock_acquire(store, self->name.text, &options, &self->lock, NULL);
    self->ended = test_now_ms();
    syncguard_lock_set_dispose(self->set);
    syncguard_lock_dispose(self->lock);
    return NULL;
}

static syncguard_lock *patient_lock_key(syncguard_backend *backend, const patient *one,
                                        int64_t min_hold_ms)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 60000;
    options.min_hold_ms = min_hold_ms;
    options.slots = one->how == FOR_A_SLOT ? 2 : 0;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_try(backend, one->name.text, &options, &lock, &err));
    return lock;
}

static void let_end(syncguard_lock *lock)
{
    assert_status(SYNCGUARD_OK, syncguard_lock_release(lock, NULL, &err));
    syncguard_lock_dispose(lock);
}

/*
 * Waiters know when the current lock ends, and rest until then. A release before the minimum hold
 * is over, or an extend with a shorter TTL, must reach them as a release does, no matter where it
 * comes from: another process, another handle, or their own.
 */
static void earlier_end_reaches_waiters(void **state)
{
    static const way ways[KEYS] = {FOR_A_LOCK, FOR_A_SLOT, FOR_A_SET, IN_A_QUEUE,
                                   FOR_A_LOCK, FOR_A_LOCK, FOR_A_LOCK};
    syncguard_backend *other = store_is_shared() ? open_store(NULL) : store;
    (void)state;
    patient waiters[KEYS];
    memset(waiters, 0, sizeof waiters);
    syncguard_lock *locks[KEYS];
    for (int i = 0; i < KEYS; i++) {
        waiters[i].how = ways[i];
        waiters[i].name = fresh_key("earlier");
        waiters[i].free_name = fresh_key("earlier-free");
        locks[i] = patient_lock_key(i < 5 ? other : store, &waiters[i], i < 4 ? MIN_HOLD_MS : 0);
    }
    syncguard_lock *slot = patient_lock_key(other, &waiters[1], 0);
    pthread_t threads[KEYS];
    for (int i = 0; i < KEYS; i++)
        threads[i] = test_start_thread(patient_wait, &waiters[i]);
    int64_t end = test_now_ms() + 10000;
    for (int i = 0; i < KEYS; i++)
        while (atomic_load(&waiters[i].pauses) == 0 && test_now_ms() < end)
            test_sleep_ms(2);
    test_sleep_ms(200); /* time to get from the callback, or the queue's thread, into the pause */
    for (int i = 0; i < 4; i++)
        let_end(locks[i]);
    if (store_is_shared())
        assert_int_equal(in_other_process("shorten", syncguard_lock_id(locks[4])), SYNCGUARD_OK);
    else
        assert_status(SYNCGUARD_OK,
                      syncguard_lock_extend(locks[4], SHORT_TTL_MS, NULL, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_lock_extend(locks[5], SHORT_TTL_MS, NULL, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_extend(store, syncguard_lock_id(locks[6]), SHORT_TTL_MS,
                                                 NULL, NULL, &err));
    end = test_now_ms() + SHORT_TTL_MS + 1000;
    for (int i = 0; i < KEYS; i++) {
        pthread_join(threads[i], NULL);
        assert_status(SYNCGUARD_OK, waiters[i].status);
        if (waiters[i].ended >= end + LATEST_MS)
            fail_msg("waiter %d: %lld ms late", i, (long long)(waiters[i].ended - end));
    }
    for (int i = 4; i < KEYS; i++)
        syncguard_lock_dispose(locks[i]);
    let_end(slot);
    if (other != store)
        syncguard_close(other);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(early_release_keeps_the_key_locked),
    cmocka_unit_test(release_after_the_minimum_frees_the_key),
    cmocka_unit_test(minimum_may_exceed_the_lease),
    cmocka_unit_test(minimum_of_a_removed_lock_is_over),
    cmocka_unit_test(detached_lock_has_no_minimum),
    cmocka_unit_test(waiter_gets_the_key_after_the_minimum),
    cmocka_unit_test(earlier_end_reaches_waiters),
};
const contract_group min_hold_group = {"minhold", tests, sizeof tests / sizeof tests[0]};
