/* Waiting: ended by a release, by an expiry, never forgotten, ended by an abort at once. */
#include "contract.h"

/* One waiting acquire in a thread of its own. */
typedef struct waiter {
    syncguard_backend *backend;
    const char *name;
    syncguard_lock_options options;
    pthread_t thread;
    syncguard_status status;
    syncguard_lock *lock;
    syncguard_error error;
    atomic_int pauses;
    int64_t ended;
} waiter;

static void *waiting_acquire_lock(void *argument)
{
    waiter *self = argument;
    self->status = syncguard_lock_acquire(self->backend, self->name, &self->options, &self->lock,
                                          &self->error);
    self->ended = test_now_ms();
    return NULL;
}

/* Long pauses: a waiter that gets the lock soon was woken. */
static void waiting_init_waiter(waiter *self, syncguard_backend *backend, const char *name)
{
    memset(self, 0, sizeof *self);
    self->backend = backend;
    self->name = name;
    syncguard_lock_options_init(&self->options, sizeof self->options);
    self->options.max_retries = SYNCGUARD_RETRY_FOREVER;
    self->options.timeout_ms = 20000;
    self->options.retry_delay_ms = 15000;
    self->options.backoff = SYNCGUARD_BACKOFF_FIXED;
    self->options.jitter = SYNCGUARD_JITTER_NONE;
    self->options.on_wait = test_count_wait;
    self->options.on_wait_context = &self->pauses;
}

static void await_pause(waiter *self)
{
    int64_t until = test_now_ms() + 5000;
    while (atomic_load(&self->pauses) == 0 && test_now_ms() < until)
        test_sleep_ms(2);
    assert_at_least(1, atomic_load(&self->pauses));
    test_sleep_ms(50); /* time to get from the callback into the pause */
}

static void release_wakes_a_waiter(void **state)
{
    key name = fresh_key("wake");
    (void)state;
    if (!able()->wakes_waiters) {
        not_applicable("this store cannot tell of releases: waiters poll");
        return;
    }
    for (int i = 0; i < 3; i++) {
        syncguard_grant holder = take(name.text, 60000);
        waiter one;
        waiting_init_waiter(&one, store, name.text);
        one.thread = test_start_thread(waiting_acquire_lock, &one);
        await_pause(&one);
        int64_t released = test_now_ms();
        give_back(&holder);
        pthread_join(one.thread, NULL);
        assert_status(SYNCGUARD_OK, one.status);
        assert_at_most(1500, one.ended - released);
        syncguard_lock_dispose(one.lock);
    }
}

static void release_by_another_handle_wakes_a_waiter(void **state)
{
    key name = fresh_key("wake-other");
    (void)state;
    if (!store_is_shared() || !able()->wakes_waiters) {
        not_applicable("no other handle sees this store, or it cannot tell of releases");
        return;
    }
    syncguard_backend *other = open_store(NULL);
    syncguard_grant holder;
    waiter one;
    for (int i = 0; i < 2; i++) {
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(other, name.text, 60000, NULL, &holder, &err));
        waiting_init_waiter(&one, store, name.text);
        one.thread = test_start_thread(waiting_acquire_lock, &one);
        await_pause(&one);
        int64_t released = test_now_ms();
        if (i == 0)
            assert_status(SYNCGUARD_OK, syncguard_release(other, holder.lock_id, NULL, &err));
        else
            assert_int_equal(in_other_process("release", holder.lock_id), SYNCGUARD_OK);
        pthread_join(one.thread, NULL);
        assert_status(SYNCGUARD_OK, one.status);
        assert_at_most(2000, one.ended - released);
        syncguard_lock_dispose(one.lock);
    }
    syncguard_close(other);
}

static void expiry_wakes_a_waiter(void **state)
{
    key name = fresh_key("expiry");
    int64_t taken = test_now_ms();
    (void)state;
    syncguard_grant crashed = take(name.text, 700); /* its holder never contacts the store again */
    waiter one;
    waiting_init_waiter(&one, store, name.text);
    one.thread = test_start_thread(waiting_acquire_lock, &one);
    pthread_join(one.thread, NULL);
    assert_status(SYNCGUARD_OK, one.status);
    /* Not before TTL and tolerance, and long before the pause of 15 s is over. */
    assert_between(1690, 4000, one.ended - taken);
    assert_string_equal(syncguard_lock_fence(one.lock), "000000000000002");
    assert_status(SYNCGUARD_ABSENT, syncguard_release(store, crashed.lock_id, NULL, &err));
    syncguard_lock_dispose(one.lock);
}

#define CROWD 24

typedef struct crowd_state {
    key name;
    atomic_int inside;
    atomic_int overlaps;
    atomic_int failures;
    atomic_int served;
} crowd_state;

static void crowd_member_wait(int index, void *context)
{
    crowd_state *all = context;
    (void)index;
    waiter one;
    waiting_init_waiter(&one, store, all->name.text);
    if (!able()->wakes_waiters)
        one.options.retry_delay_ms = 20;
    waiting_acquire_lock(&one);
    if (one.status != SYNCGUARD_OK) {
        atomic_fetch_add(&all->failures, 1);
        return;
    }
    if (atomic_fetch_add(&all->inside, 1) != 0)
        atomic_fetch_add(&all->overlaps, 1);
    test_sleep_ms(3);
    atomic_fetch_sub(&all->inside, 1);
    atomic_fetch_add(&all->served, 1);
    syncguard_lock_dispose(one.lock);
}

static void many_waiters_are_all_served_one_at_a_time(void **state)
{
    (void)state;
    crowd_state all;
    memset(&all, 0, sizeof all);
    all.name = fresh_key("crowd");
    int64_t started = test_now_ms();
    in_threads(CROWD, crowd_member_wait, &all);
    assert_int_equal(atomic_load(&all.failures), 0);
    assert_int_equal(atomic_load(&all.overlaps), 0);
    assert_int_equal(atomic_load(&all.served), CROWD);
    /* With pauses of 15 s, this shows that no waiter was forgotten. */
    assert_at_most(10000, test_now_ms() - started);
    check_locked(all.name.text, false);
}

static void abort_ends_a_pause_at_once(void **state)
{
    key name = fresh_key("abort-pause");
    syncguard_grant holder = take(name.text, 60000);
    (void)state;
    syncguard_abort *mine = NULL;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&mine, &err));
    syncguard_abort *others = NULL;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&others, &err));
    waiter aborted;
    waiting_init_waiter(&aborted, store, name.text);
    aborted.options.abort_object = mine;
    waiter bystander;
    waiting_init_waiter(&bystander, store, name.text);
    bystander.options.abort_object = others;
    aborted.thread = test_start_thread(waiting_acquire_lock, &aborted);
    bystander.thread = test_start_thread(waiting_acquire_lock, &bystander);
    await_pause(&aborted);
    await_pause(&bystander);
    int64_t triggered = test_now_ms();
    syncguard_abort_trigger(mine);
    pthread_join(aborted.thread, NULL);
    assert_int_equal(aborted.status, SYNCGUARD_E_ABORTED);
    assert_int_equal(aborted.error.code, SYNCGUARD_E_ABORTED);
    assert_null(aborted.lock);
    assert_at_most(500, aborted.ended - triggered);

    /* The other waiter of the same handle and key goes on. */
    give_back(&holder);
    if (!able()->wakes_waiters)
        syncguard_abort_trigger(others);
    pthread_join(bystander.thread, NULL);
    if (able()->wakes_waiters)
        assert_int_equal(bystander.status, SYNCGUARD_OK);
    syncguard_lock_dispose(bystander.lock);
    syncguard_abort_free(mine);
    syncguard_abort_free(others);
}

static void waiters_of_different_keys_do_not_disturb_each_other(void **state)
{
    key busy = fresh_key("busy"), free_soon = fresh_key("free-soon");
    syncguard_grant long_holder = take(busy.text, 60000), holder = take(free_soon.text, 60000);
    (void)state;
    waiter stuck;
    waiting_init_waiter(&stuck, store, busy.text);
    stuck.options.timeout_ms = 900;
    waiter lucky;
    waiting_init_waiter(&lucky, store, free_soon.text);
    if (!able()->wakes_waiters)
        lucky.options.retry_delay_ms = 50;
    stuck.thread = test_start_thread(waiting_acquire_lock, &stuck);
    lucky.thread = test_start_thread(waiting_acquire_lock, &lucky);
    await_pause(&lucky);
    give_back(&holder);
    pthread_join(lucky.thread, NULL);
    pthread_join(stuck.thread, NULL);
    assert_int_equal(lucky.status, SYNCGUARD_OK);
    assert_int_equal(stuck.status, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    syncguard_lock_dispose(lucky.lock);
    give_back(&long_holder);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(release_wakes_a_waiter),
    cmocka_unit_test(release_by_another_handle_wakes_a_waiter),
    cmocka_unit_test(expiry_wakes_a_waiter),
    cmocka_unit_test(many_waiters_are_all_served_one_at_a_time),
    cmocka_unit_test(abort_ends_a_pause_at_once),
    cmocka_unit_test(waiters_of_different_keys_do_not_disturb_each_other),
};
const contract_group waiting_group = {"waiting", tests, sizeof tests / sizeof tests[0]};
