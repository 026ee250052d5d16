/* The minimum hold: an early release keeps the key locked until the minimum is over. */
#include "contract.h"

static syncguard_lock *hold(const char *name, int64_t ttl_ms, int64_t min_hold_ms, bool renewed)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;

    options.ttl_ms = ttl_ms;
    options.min_hold_ms = min_hold_ms;
    options.auto_extend = renewed;
    assert_status(SYNCGUARD_OK, syncguard_lock_try(store, name, &options, &lock, &err));
    return lock;
}

static syncguard_lock_info_raw stored(const char *name)
{
    syncguard_lock_info_raw info;

    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, name, NULL, &info, &err));
    return info;
}

static void early_release_keeps_the_key_locked(void **state)
{
    key name = fresh_key("early");
    syncguard_lock_options patient = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(20000);
    syncguard_lock *lock = hold(name.text, 60000, 2000, true), *next = NULL;
    int64_t granted = now_ms(), first_expiry = syncguard_lock_expires_at_ms(lock);
    syncguard_lock_info_raw info;

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_lock_release(lock, NULL, &err));
    assert_false(syncguard_lock_held(lock));
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_NO);
    assert_true(syncguard_lock_remaining_ms(lock) == 0);
    info = stored(name.text);
    assert_string_equal(info.lock_id, syncguard_lock_id(lock));
    assert_true(info.info.expires_at_ms == syncguard_lock_expires_at_ms(lock));
    assert_at_most(first_expiry - 30000, info.info.expires_at_ms);
    assert_status(SYNCGUARD_LOCKED, syncguard_lock_try(store, name.text, NULL, &next, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_lock_release(lock, NULL, &err));
    syncguard_lock_dispose(lock);
    check_locked(name.text, true);

    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(store, name.text, &patient, &next, &err));
    assert_at_least(2000, now_ms() - granted);
    syncguard_lock_dispose(next);
    check_locked(name.text, false);
}

static void release_after_the_minimum_frees_the_key(void **state)
{
    key name = fresh_key("late");
    syncguard_lock *lock = hold(name.text, 60000, 1, false);

    (void)state;
    sleep_ms(20);
    assert_status(SYNCGUARD_OK, syncguard_lock_release(lock, NULL, &err));
    check_locked(name.text, false);
    syncguard_lock_dispose(lock);
}

/* Also by dispose, and for longer than the lease was. */
static void minimum_may_exceed_the_lease(void **state)
{
    key name = fresh_key("longer");
    syncguard_lock *lock = hold(name.text, 5000, 60000, false);
    syncguard_lock_info_raw before = stored(name.text), after;

    (void)state;
    syncguard_lock_dispose(lock);
    after = stored(name.text);
    assert_string_equal(after.info.fence, before.info.fence);
    assert_at_least(before.info.acquired_at_ms + 40000, after.info.expires_at_ms);
    /* Whoever has the id can end it. */
    assert_status(SYNCGUARD_OK, syncguard_release(store, after.lock_id, NULL, &err));
    check_locked(name.text, false);
}

/* What another owner has by now is not touched. */
static void minimum_of_a_removed_lock_is_over(void **state)
{
    key name = fresh_key("removed");
    syncguard_lock *lock = hold(name.text, 60000, 60000, false);
    syncguard_grant next;
    syncguard_lock_info_raw before, after;

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_release(store, syncguard_lock_id(lock), NULL, &err));
    next = take(name.text, 30000);
    before = stored(name.text);
    assert_status(SYNCGUARD_ABSENT, syncguard_lock_release(lock, NULL, &err));
    syncguard_lock_dispose(lock);
    after = stored(name.text);
    assert_string_equal(after.lock_id, next.lock_id);
    assert_true(after.info.expires_at_ms == before.info.expires_at_ms);
    give_back(&next);
}

static void detached_lock_has_no_minimum(void **state)
{
    key name = fresh_key("detached");
    syncguard_lock *lock = hold(name.text, 30000, 60000, false);
    int64_t expires = syncguard_lock_expires_at_ms(lock);
    syncguard_lock_info_raw info;

    (void)state;
    syncguard_lock_detach(lock);
    info = stored(name.text);
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

static void count_pause(void *context, int attempts, int64_t waited_ms, int64_t remaining_ms)
{
    (void)attempts;
    (void)waited_ms;
    (void)remaining_ms;
    atomic_fetch_add(&((waiter *)context)->pauses, 1);
}

static void *wait_for_it(void *argument)
{
    waiter *self = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(50000);

    options.on_wait = count_pause;
    options.on_wait_context = self;
    self->status = syncguard_lock_acquire(store, self->name, &options, &self->lock, NULL);
    self->ended = now_ms();
    return NULL;
}

/* It neither gets the lock early nor sleeps until the former lease would have ended. */
static void waiter_gets_the_key_after_the_minimum(void **state)
{
    key name = fresh_key("waiter");
    waiter one = {.name = name.text};
    syncguard_lock *lock = hold(name.text, 60000, 2000, false);
    int64_t granted = now_ms();
    pthread_t thread = start_thread(wait_for_it, &one);

    (void)state;
    while (atomic_load(&one.pauses) == 0 && now_ms() < granted + 30000)
        sleep_ms(2);
    assert_status(SYNCGUARD_OK, syncguard_lock_release(lock, NULL, &err));
    syncguard_lock_dispose(lock);
    pthread_join(thread, NULL);
    assert_int_equal(one.status, SYNCGUARD_OK);
    assert_between(2000, 30000, one.ended - granted);
    syncguard_lock_dispose(one.lock);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(early_release_keeps_the_key_locked),
    cmocka_unit_test(release_after_the_minimum_frees_the_key),
    cmocka_unit_test(minimum_may_exceed_the_lease),
    cmocka_unit_test(minimum_of_a_removed_lock_is_over),
    cmocka_unit_test(detached_lock_has_no_minimum),
    cmocka_unit_test(waiter_gets_the_key_after_the_minimum),
};
const contract_group min_hold_group = {"minhold", tests, sizeof tests / sizeof tests[0]};
