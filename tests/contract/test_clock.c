/*
 * Steps of this machine's wall clock, forward and back: they make no timeout early or late and no
 * lease shorter or longer. The program has a clock_gettime of its own, which the libraries use too.
 */
#include "contract.h"

#include <sys/syscall.h>

#define STEP_S 20 /* no test here takes that long */
#define LATE_MS 10000

static atomic_int wall_shift_s;

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *out)
{
    int result = (int)syscall(SYS_clock_gettime, id, out);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        out->tv_sec += atomic_load(&wall_shift_s);
    return result;
}

static int set_clock_right(void **state)
{
    (void)state;
    atomic_store(&wall_shift_s, 0);
    return 0;
}

/* For stores that use the client's clock, a step has other effects:
 * tests/firestore/test_clock.c. */
static bool clock_decides(void)
{
    if (able()->time_authority != SYNCGUARD_TIME_CLIENT)
        return false;
    not_applicable("this machine's wall clock is the one that decides here");
    return true;
}

static void clock_step_on_wait(void *context, int attempts, int64_t waited_ms, int64_t remaining_ms)
{
    (void)attempts;
    (void)waited_ms;
    (void)remaining_ms;
    atomic_store(&wall_shift_s, *(const int *)context);
}

/* The library does see the steps: otherwise the other tests would show nothing. */
static void steps_are_seen(void **state)
{
    (void)state;
    syncguard_backend *memory = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open("memory:", NULL, &memory, &err));
    syncguard_grant before;
    assert_status(SYNCGUARD_OK, syncguard_acquire(memory, "before", 1000, NULL, &before, &err));
    atomic_store(&wall_shift_s, STEP_S);
    syncguard_grant after;
    assert_status(SYNCGUARD_OK, syncguard_acquire(memory, "after", 1000, NULL, &after, &err));
    assert_at_least(STEP_S * 1000, after.expires_at_ms - before.expires_at_ms);
    syncguard_close(memory);
}

static void timeouts_do_not_follow_the_wall_clock(void **state)
{
    static const int steps[] = {STEP_S, -STEP_S};
    key name = fresh_key("step-timeout");
    (void)state;
    if (clock_decides())
        return;
    syncguard_grant holder = take(name.text, 60000);
    for (int i = 0; i < 2; i++) {
        syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(500);
        int64_t began = test_now_ms();
        options.on_wait = clock_step_on_wait;
        options.on_wait_context = (void *)&steps[i];
        syncguard_lock *lock = NULL;
        assert_status(SYNCGUARD_E_ACQUISITION_TIMEOUT,
                      syncguard_lock_acquire(store, name.text, &options, &lock, &err));
        assert_int_equal(atomic_load(&wall_shift_s), steps[i]);
        assert_in_range(test_now_ms() - began, 450, LATE_MS);
        set_clock_right(NULL);
    }
    give_back(&holder);
}

static void waiters_wake_at_the_expiry_all_the_same(void **state)
{
    static const int back = -STEP_S;
    key name = fresh_key("step-expiry");
    int64_t began = test_now_ms();
    (void)state;
    if (clock_decides())
        return;
    (void)take(name.text, 100);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(3 * LATE_MS);
    options.on_wait = clock_step_on_wait;
    options.on_wait_context = (void *)&back;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(store, name.text, &options, &lock, &err));
    assert_in_range(test_now_ms() - began, 0, LATE_MS);
    syncguard_lock_dispose(lock);
}

static void leases_do_not_follow_the_wall_clock(void **state)
{
    key names[2] = {fresh_key("step-lease"), fresh_key("step-lease")};
    (void)state;
    if (clock_decides())
        return;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = LATE_MS;
    syncguard_lock *longer = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_try(store, names[0].text, &options, &longer, &err));
    options.ttl_ms = 300;
    syncguard_lock *shorter = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_try(store, names[1].text, &options, &shorter, &err));
    atomic_store(&wall_shift_s, STEP_S);
    assert_true(syncguard_lock_held(longer));
    assert_between(1, LATE_MS, syncguard_lock_remaining_ms(longer));
    atomic_store(&wall_shift_s, -STEP_S);
    int64_t until = test_now_ms() + LATE_MS;
    while (syncguard_lock_held(shorter) && test_now_ms() < until)
        test_sleep_ms(10);
    assert_false(syncguard_lock_held(shorter));
    assert_at_most(LATE_MS, syncguard_lock_remaining_ms(longer));
    syncguard_lock_dispose(shorter);
    syncguard_lock_dispose(longer);
}

static bool clock_check_ages(void *context, const syncguard_lock_info *info)
{
    const char *key_hash = context;
    if (strcmp(info->key_hash, key_hash) != 0)
        return true;
    assert_between(0, LATE_MS, info->now_ms - info->acquired_at_ms);
    assert_between(60000 - LATE_MS, 60000, info->expires_at_ms - info->now_ms);
    return true;
}

static void ages_do_not_follow_the_wall_clock(void **state)
{
    static const int steps[] = {STEP_S, -STEP_S};
    key name = fresh_key("step-age");
    (void)state;
    if (clock_decides())
        return;
    char key_hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash(name.text, key_hash));
    syncguard_grant grant = take(name.text, 60000);
    syncguard_lock_info info;
    for (int i = 0; i < 2; i++) {
        atomic_store(&wall_shift_s, steps[i]);
        assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, name.text, NULL, &info, &err));
        clock_check_ages(key_hash, &info);
        assert_status(SYNCGUARD_OK, syncguard_get_by_id(store, grant.lock_id, NULL, &info, &err));
        clock_check_ages(key_hash, &info);
        assert_status(SYNCGUARD_OK, syncguard_list(store, NULL, clock_check_ages, key_hash, &err));
    }
    give_back(&grant);
}

/* Steps back and forth, until the lock would be dead without its renewals. */
static void renewals_go_on(void **state)
{
    key name = fresh_key("step-renewal");
    (void)state;
    if (clock_decides())
        return;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 2000;
    options.auto_extend = true;
    options.on_lost = test_count_loss;
    atomic_int losses = 0;
    options.on_lost_context = &losses;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_try(store, name.text, &options, &lock, &err));
    for (int i = 0; i < 34; i++) {
        atomic_store(&wall_shift_s, i % 16 < 8 ? -STEP_S : STEP_S);
        test_sleep_ms(100);
    }
    check_locked(name.text, true);
    assert_true(syncguard_lock_held(lock));
    assert_int_equal(atomic_load(&losses), 0);
    syncguard_lock_dispose(lock);
}

#define TEST(name) cmocka_unit_test_teardown(name, set_clock_right)
static const struct CMUnitTest tests[] = {
    TEST(steps_are_seen),
    TEST(timeouts_do_not_follow_the_wall_clock),
    TEST(waiters_wake_at_the_expiry_all_the_same),
    TEST(leases_do_not_follow_the_wall_clock),
    TEST(ages_do_not_follow_the_wall_clock),
    TEST(renewals_go_on),
};
const contract_group clock_group = {"clock", tests, sizeof tests / sizeof tests[0]};
