/* Slots: at most N holders of a name, and waiters that take whichever slot becomes free. */
#include "contract.h"

#include <poll.h>

#define SLOTS 3

static key slot_key(const char *name, int slot)
{
    key made;
    assert_status(SYNCGUARD_OK, syncguard_slot_key(name, slot, made.text, &err));
    return made;
}

static syncguard_lock_options slots_of(int count, int64_t wait_ms)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(wait_ms);
    options.slots = count;
    return options;
}

static syncguard_lock *take_slot(const char *name, const syncguard_lock_options *options)
{
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_try(store, name, options, &lock, &err));
    return lock;
}

/* locks[i] is slot i + 1. */
static void take_all_slots(const char *name, syncguard_lock *locks[SLOTS])
{
    syncguard_lock_options options = slots_of(SLOTS, 0);
    memset(locks, 0, SLOTS * sizeof *locks);
    for (int i = 0; i < SLOTS; i++) {
        syncguard_lock *lock = take_slot(name, &options);
        int slot = syncguard_lock_slot(lock);
        assert_in_range(slot, 1, SLOTS);
        assert_null(locks[slot - 1]);
        locks[slot - 1] = lock;
    }
}

static void slots_dispose_all(syncguard_lock *locks[SLOTS])
{
    for (int i = 0; i < SLOTS; i++)
        syncguard_lock_dispose(locks[i]);
}

static void no_more_than_so_many_hold_a_name(void **state)
{
    key name = fresh_key("slots");
    syncguard_lock_options options = slots_of(SLOTS, 100);
    (void)state;
    syncguard_lock *locks[SLOTS];
    take_all_slots(name.text, locks);
    for (int i = 0; i < SLOTS; i++) {
        key expected = slot_key(name.text, i + 1);
        assert_string_equal(syncguard_lock_key(locks[i]), expected.text);
        assert_string_equal(syncguard_lock_fence(locks[i]), "000000000000001");
        check_locked(expected.text, true);
    }
    check_locked(name.text, false);
    syncguard_lock *more = NULL;
    assert_status(SYNCGUARD_LOCKED, syncguard_lock_try(store, name.text, &options, &more, &err));
    assert_status(SYNCGUARD_E_ACQUISITION_TIMEOUT,
                  syncguard_lock_acquire(store, name.text, &options, &more, &err));
    assert_non_null(strstr(err.message, "all 3 slots are held"));
    char hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash(name.text, hash));
    assert_string_equal(err.key_hash, hash);
    assert_status(SYNCGUARD_OK, syncguard_lock_release(locks[1], NULL, &err));
    more = take_slot(name.text, &options);
    assert_int_equal(syncguard_lock_slot(more), 2);
    assert_string_equal(syncguard_lock_fence(more), "000000000000002");
    syncguard_lock_dispose(more);
    slots_dispose_all(locks);
}

static void callers_may_disagree_on_the_number(void **state)
{
    key name = fresh_key("disagree");
    syncguard_lock_options one = slots_of(1, 0), two = slots_of(2, 0);
    syncguard_lock *first = take_slot(name.text, &one);
    (void)state;
    assert_int_equal(syncguard_lock_slot(first), 1);
    syncguard_lock *none = NULL;
    assert_status(SYNCGUARD_LOCKED, syncguard_lock_try(store, name.text, &one, &none, &err));
    syncguard_lock *second = take_slot(name.text, &two);
    assert_int_equal(syncguard_lock_slot(second), 2);
    assert_status(SYNCGUARD_LOCKED, syncguard_lock_try(store, name.text, &two, &none, &err));
    syncguard_lock_dispose(first);
    syncguard_lock_dispose(second);
}

static void bad_slots_are_refused(void **state)
{
    key name = fresh_key_of(SYNCGUARD_MAX_SLOT_NAME_BYTES);
    key longer = fresh_key_of(SYNCGUARD_MAX_SLOT_NAME_BYTES + 1);
    const char *two[] = {name.text, longer.text};
    const char *one[] = {name.text, name.text};
    syncguard_lock_options options = slots_of(SYNCGUARD_SLOTS_MAX, 0);
    (void)state;
    syncguard_lock_dispose(take_slot(name.text, &options));
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_try(store, longer.text, &options, &lock, &err));
    syncguard_lock_set *set = NULL;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_try_all(store, two, 2, &options, &set, &err));
    assert_status(SYNCGUARD_OK, syncguard_lock_try_all(store, one, 2, &options, &set, &err));
    assert_int_equal(syncguard_lock_set_count(set), 1);
    assert_ptr_equal(syncguard_lock_set_find(set, name.text), syncguard_lock_set_at(set, 0));
    assert_in_range(syncguard_lock_slot(syncguard_lock_set_at(set, 0)), 1, SYNCGUARD_SLOTS_MAX);
    syncguard_lock_set_dispose(set);
    options.slots = SYNCGUARD_SLOTS_MAX + 1;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_try(store, name.text, &options, &lock, &err));
    options.slots = -1;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_try(store, name.text, &options, &lock, &err));
}

typedef struct waiter {
    syncguard_backend *backend;
    const char *name;
    pthread_t thread;
    syncguard_status status;
    syncguard_lock *lock;
} waiter;

static void *contract_wait_for_slot(void *argument)
{
    waiter *self = argument;
    syncguard_lock_options options = slots_of(SLOTS, 30000);
    self->status = syncguard_lock_acquire(self->backend, self->name, &options, &self->lock, NULL);
    return NULL;
}

static void check_woken(syncguard_backend *backend, const char *name)
{
    syncguard_lock *locks[SLOTS];
    take_all_slots(name, locks);
    for (int i = 0; i < SLOTS; i++) {
        waiter self = {.backend = backend, .name = name};
        self.thread = test_start_thread(contract_wait_for_slot, &self);
        test_sleep_ms(300);
        assert_status(SYNCGUARD_OK, syncguard_lock_release(locks[i], NULL, &err));
        syncguard_lock_dispose(locks[i]);
        pthread_join(self.thread, NULL);
        assert_status(SYNCGUARD_OK, self.status);
        assert_int_equal(syncguard_lock_slot(self.lock), i + 1);
        locks[i] = self.lock;
    }
    slots_dispose_all(locks);
}

static void release_of_any_slot_ends_the_waiting(void **state)
{
    key name = fresh_key("woken");
    (void)state;
    check_woken(store, name.text);
}

static void release_by_another_handle_ends_the_waiting(void **state)
{
    key name = fresh_key("woken elsewhere");
    (void)state;
    if (!store_is_shared()) {
        not_applicable("handles of this store share nothing");
        return;
    }
    syncguard_backend *other = open_store(NULL);
    check_woken(other, name.text);
    syncguard_close(other);
}

/* The holder of slot 2 has died and never releases it. */
static void expiry_of_any_slot_ends_the_waiting(void **state)
{
    key name = fresh_key("expiry");
    key second = slot_key(name.text, 2);
    syncguard_lock_options options = slots_of(SLOTS, 30000);
    syncguard_grant gone = take(second.text, 1500);
    (void)state;
    key other = slot_key(name.text, 1);
    syncguard_grant first = take(other.text, 60000);
    other = slot_key(name.text, 3);
    syncguard_grant third = take(other.text, 60000);
    int64_t begun = test_now_ms();
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(store, name.text, &options, &lock, &err));
    assert_int_equal(syncguard_lock_slot(lock), 2);
    assert_at_most(15000, test_now_ms() - begun);
    assert_string_not_equal(syncguard_lock_id(lock), gone.lock_id);
    syncguard_lock_dispose(lock);
    give_back(&first);
    give_back(&third);
}

static void slot_is_renewed_lost_and_kept_as_any_lock(void **state)
{
    key name = fresh_key("kept");
    syncguard_lock_options options = slots_of(SLOTS, 0);
    (void)state;
    options.ttl_ms = 1500;
    options.auto_extend = true;
    options.on_lost = test_count_loss;
    atomic_int losses = 0;
    options.on_lost_context = &losses;
    syncguard_lock *lock = take_slot(name.text, &options);
    test_sleep_ms(3000);
    assert_true(syncguard_lock_held(lock));
    assert_status(SYNCGUARD_OK, syncguard_release(store, syncguard_lock_id(lock), NULL, &err));
    for (int i = 0; i < 1000 && atomic_load(&losses) == 0; i++)
        test_sleep_ms(10);
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_ABSENT);
    syncguard_lock_dispose(lock);
    assert_int_equal(atomic_load(&losses), 1);
    options = slots_of(1, 0);
    options.min_hold_ms = 60000;
    lock = take_slot(name.text, &options);
    key text = slot_key(name.text, 1);
    assert_status(SYNCGUARD_OK, syncguard_lock_release(lock, NULL, &err));
    check_locked(text.text, true);
    assert_status(SYNCGUARD_OK, syncguard_release(store, syncguard_lock_id(lock), NULL, &err));
    syncguard_lock_dispose(lock);
}

static int note_slot(void *context, syncguard_lock *lock)
{
    *(int *)context = syncguard_lock_slot(lock);
    return 7;
}

static void callback_form_takes_a_slot(void **state)
{
    key name = fresh_key("callback");
    syncguard_lock_options options = slots_of(SLOTS, 1000);
    (void)state;
    int slot = 0;
    int result = 0;
    assert_status(SYNCGUARD_OK,
                  syncguard_with_lock(store, name.text, &options, note_slot, &slot, &result, &err));
    assert_int_equal(result, 7);
    assert_in_range(slot, 1, SLOTS);
    key text = slot_key(name.text, slot);
    check_locked(text.text, false);
}

static void requests_of_a_queue_take_slots(void **state)
{
    key name = fresh_key("requests");
    syncguard_lock_options options = slots_of(SLOTS, 30000);
    (void)state;
    syncguard_lock *locks[SLOTS];
    take_all_slots(name.text, locks);
    syncguard_queue *queue = NULL;
    assert_status(SYNCGUARD_OK, syncguard_queue_open(store, NULL, &queue, &err));
    for (int i = 0; i < SLOTS; i++)
        assert_status(SYNCGUARD_OK,
                      syncguard_lock_acquire_async(queue, name.text, &options, NULL, NULL, &err));
    test_sleep_ms(300);
    slots_dispose_all(locks);
    syncguard_completion done;
    for (int i = 0; i < SLOTS; i++) {
        struct pollfd fd = {syncguard_queue_fd(queue), POLLIN, 0};
        assert_int_equal(poll(&fd, 1, 30000), 1);
        assert_true(syncguard_queue_next(queue, &done));
        assert_status(SYNCGUARD_OK, done.status);
        locks[i] = done.lock;
        for (int j = 0; j < i; j++)
            assert_int_not_equal(syncguard_lock_slot(locks[j]), syncguard_lock_slot(done.lock));
    }
    slots_dispose_all(locks);
    syncguard_queue_close(queue);
}

typedef struct crowd {
    key name;
    atomic_int inside;
    atomic_int most;
    atomic_int failures;
} crowd;

static void take_in_turn(int index, void *context)
{
    crowd *self = context;
    syncguard_lock_options options = slots_of(SLOTS, 60000);
    (void)index;
    for (int round = 0; round < 5; round++) {
        syncguard_lock *lock = NULL;
        if (syncguard_lock_acquire(store, self->name.text, &options, &lock, NULL) != SYNCGUARD_OK) {
            atomic_fetch_add(&self->failures, 1);
            continue;
        }
        int inside = atomic_fetch_add(&self->inside, 1) + 1, most = atomic_load(&self->most);
        while (inside > most && !atomic_compare_exchange_weak(&self->most, &most, inside))
            continue;
        test_sleep_ms(2);
        atomic_fetch_sub(&self->inside, 1);
        syncguard_lock_dispose(lock);
    }
}

static void crowd_shares_the_slots(void **state)
{
    (void)state;
    crowd all;
    memset(&all, 0, sizeof all);
    all.name = fresh_key("crowd");
    in_threads(8, take_in_turn, &all);
    assert_int_equal(atomic_load(&all.failures), 0);
    assert_in_range(atomic_load(&all.most), 1, SLOTS);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(no_more_than_so_many_hold_a_name),
    cmocka_unit_test(callers_may_disagree_on_the_number),
    cmocka_unit_test(bad_slots_are_refused),
    cmocka_unit_test(release_of_any_slot_ends_the_waiting),
    cmocka_unit_test(release_by_another_handle_ends_the_waiting),
    cmocka_unit_test(expiry_of_any_slot_ends_the_waiting),
    cmocka_unit_test(slot_is_renewed_lost_and_kept_as_any_lock),
    cmocka_unit_test(callback_form_takes_a_slot),
    cmocka_unit_test(requests_of_a_queue_take_slots),
    cmocka_unit_test(crowd_shares_the_slots),
};
const contract_group slots_group = {"slots", tests, sizeof tests / sizeof tests[0]};
