/* Fences: form, order, and that only a grant moves the counter. */
#include "contract.h"

#define CLIMBERS 8
#define CLIMBS 12

static void check_fence(const char *fence)
{
    assert_int_equal(strlen(fence), SYNCGUARD_FENCE_DIGITS);
    assert_int_equal(strspn(fence, "0123456789"), SYNCGUARD_FENCE_DIGITS);
}

static void first_grant_is_1_and_each_next_is_higher(void **state)
{
    key name = fresh_key("fence");
    (void)state;
    char previous[SYNCGUARD_FENCE_SIZE] = "000000000000000";
    for (int i = 1; i <= 12; i++) {
        syncguard_grant grant = take(name.text, 30000);
        check_fence(grant.fence);
        char expected[SYNCGUARD_FENCE_SIZE];
        snprintf(expected, sizeof expected, "%015d", i);
        assert_string_equal(grant.fence, expected);
        assert_true(strcmp(grant.fence, previous) > 0);
        memcpy(previous, grant.fence, sizeof previous);
        give_back(&grant);
    }
}

static void refused_attempts_do_not_move_the_counter(void **state)
{
    key name = fresh_key("refused");
    syncguard_grant grant = take(name.text, 30000);
    (void)state;
    syncguard_grant other;
    for (int i = 0; i < 40; i++)
        assert_status(SYNCGUARD_LOCKED,
                      syncguard_acquire(store, name.text, 1000, NULL, &other, &err));
    give_back(&grant);
    grant = take(name.text, 30000);
    assert_string_equal(grant.fence, "000000000000002");
    give_back(&grant);
}

static void extend_keeps_the_fence(void **state)
{
    key name = fresh_key("kept");
    syncguard_grant grant = take(name.text, 5000);
    (void)state;
    for (int i = 0; i < 3; i++)
        assert_status(SYNCGUARD_OK,
                      syncguard_extend(store, grant.lock_id, 20000, NULL, NULL, &err));
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, name.text, NULL, &info, &err));
    assert_string_equal(info.fence, grant.fence);
    give_back(&grant);
    grant = take(name.text, 5000);
    assert_string_equal(grant.fence, "000000000000002");
    give_back(&grant);
}

static bool find_raw(void *context, const syncguard_lock_info_raw *raw)
{
    syncguard_lock_info_raw *wanted = context;
    if (strcmp(raw->lock_id, wanted->lock_id) != 0)
        return true;
    *wanted = *raw;
    return false;
}

static int copy_fence(void *context, syncguard_lock *lock)
{
    snprintf(context, SYNCGUARD_FENCE_SIZE, "%s", syncguard_lock_fence(lock));
    return 0;
}

static void every_answer_carries_the_fence(void **state)
{
    key name = fresh_key("carried");
    syncguard_grant grant = take(name.text, 30000);
    (void)state;
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, name.text, NULL, &info, &err));
    assert_string_equal(info.fence, grant.fence);
    assert_status(SYNCGUARD_OK, syncguard_get_by_id(store, grant.lock_id, NULL, &info, &err));
    assert_string_equal(info.fence, grant.fence);
    syncguard_lock_info_raw raw;
    assert_status(SYNCGUARD_OK, syncguard_get_by_id_raw(store, grant.lock_id, NULL, &raw, &err));
    assert_string_equal(raw.info.fence, grant.fence);
    syncguard_lock_info_raw listed;
    memset(&listed, 0, sizeof listed);
    memcpy(listed.lock_id, grant.lock_id, sizeof listed.lock_id);
    assert_status(SYNCGUARD_OK, syncguard_list_raw(store, NULL, find_raw, &listed, &err));
    assert_string_equal(listed.info.fence, grant.fence);
    give_back(&grant);
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_try(store, name.text, NULL, &lock, &err));
    assert_string_equal(syncguard_lock_fence(lock), "000000000000002");
    syncguard_lock_dispose(lock);
    char fence[SYNCGUARD_FENCE_SIZE] = "";
    assert_status(SYNCGUARD_OK,
                  syncguard_with_lock(store, name.text, NULL, copy_fence, fence, NULL, &err));
    assert_string_equal(fence, "000000000000003");
}

typedef struct climb {
    key name;
    long long highest; /* guarded by the lock under test */
    atomic_int granted;
    atomic_int out_of_order;
    atomic_int failures;
} climb;

static void fences_climb_once(climb *all)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = 30000;
    options.retry_delay_ms = 5;
    syncguard_error mine;
    syncguard_lock *lock = NULL;
    if (syncguard_lock_acquire(store, all->name.text, &options, &lock, &mine) != SYNCGUARD_OK) {
        atomic_fetch_add(&all->failures, 1);
        return;
    }
    long long fence = strtoll(syncguard_lock_fence(lock), NULL, 10);
    if (fence <= all->highest)
        atomic_fetch_add(&all->out_of_order, 1);
    all->highest = fence;
    atomic_fetch_add(&all->granted, 1);
    if (syncguard_lock_release(lock, NULL, &mine) != SYNCGUARD_OK)
        atomic_fetch_add(&all->failures, 1);
    syncguard_lock_dispose(lock);
}

static void fences_climb_many(int index, void *context)
{
    (void)index;
    for (int i = 0; i < CLIMBS; i++)
        fences_climb_once(context);
}

static void fences_rise_with_many_threads(void **state)
{
    (void)state;
    climb all;
    memset(&all, 0, sizeof all);
    all.name = fresh_key("climb");
    in_threads(CLIMBERS, fences_climb_many, &all);
    assert_int_equal(atomic_load(&all.failures), 0);
    assert_int_equal(atomic_load(&all.out_of_order), 0);
    assert_int_equal(atomic_load(&all.granted), CLIMBERS * CLIMBS);
    assert_int_equal(all.highest, CLIMBERS * CLIMBS);
}

static void fences_go_on_in_a_new_handle(void **state)
{
    key name = fresh_key("handles");
    (void)state;
    if (!store_is_shared()) {
        not_applicable("counters of the memory backend end with its handle");
        return;
    }
    for (int i = 1; i <= 3; i++) {
        char expected[SYNCGUARD_FENCE_SIZE];
        syncguard_backend *handle = open_store(NULL);
        snprintf(expected, sizeof expected, "%015d", i);
        syncguard_grant grant;
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(handle, name.text, 30000, NULL, &grant, &err));
        assert_string_equal(grant.fence, expected);
        assert_status(SYNCGUARD_OK, syncguard_release(handle, grant.lock_id, NULL, &err));
        syncguard_close(handle);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(first_grant_is_1_and_each_next_is_higher),
    cmocka_unit_test(refused_attempts_do_not_move_the_counter),
    cmocka_unit_test(extend_keeps_the_fence),
    cmocka_unit_test(every_answer_carries_the_fence),
    cmocka_unit_test(fences_rise_with_many_threads),
    cmocka_unit_test(fences_go_on_in_a_new_handle),
};
const contract_group fences_group = {"fences", tests, sizeof tests / sizeof tests[0]};
