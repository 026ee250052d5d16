/* Release and extend: by lock id alone, once, harmless without ownership. */
#include "contract.h"

#define RELEASERS 32

static void released_once_then_absent(void **state)
{
    key name = fresh_key("once");
    syncguard_grant grant = take(name.text, 30000);
    (void)state;
    check_locked(name.text, true);
    memset(&err, 0x5a, sizeof err);
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    assert_int_equal(err.code, SYNCGUARD_OK);
    check_locked(name.text, false);
    for (int i = 0; i < 50; i++) {
        memset(&err, 0x5a, sizeof err);
        assert_status(SYNCGUARD_ABSENT, syncguard_release(store, grant.lock_id, NULL, &err));
        assert_int_equal(err.code, SYNCGUARD_OK);
        assert_string_equal(err.message, "");
    }
}

static void old_id_does_not_touch_the_next_owner(void **state)
{
    key name = fresh_key("next");
    syncguard_grant old = take(name.text, 30000);
    (void)state;
    give_back(&old);
    syncguard_grant new = take(name.text, 30000);
    assert_string_not_equal(old.lock_id, new.lock_id);
    for (int i = 0; i < 20; i++) {
        assert_status(SYNCGUARD_ABSENT, syncguard_release(store, old.lock_id, NULL, &err));
        assert_status(SYNCGUARD_ABSENT,
                      syncguard_extend(store, old.lock_id, 1000, NULL, NULL, &err));
    }
    bool owned = false;
    assert_status(SYNCGUARD_OK, syncguard_owns(store, new.lock_id, NULL, &owned, &err));
    assert_true(owned);
    give_back(&new);
}

typedef struct parallel_release {
    syncguard_grant grant;
    atomic_int released;
    atomic_int absent;
} parallel_release;

static void releaser_release_once(int index, void *context)
{
    parallel_release *all = context;
    syncguard_error mine;
    syncguard_status status = syncguard_release(store, all->grant.lock_id, NULL, &mine);
    (void)index;
    if (status == SYNCGUARD_OK)
        atomic_fetch_add(&all->released, 1);
    else if (status == SYNCGUARD_ABSENT)
        atomic_fetch_add(&all->absent, 1);
}

static void one_of_many_releases_is_applied(void **state)
{
    key name = fresh_key("parallel");
    (void)state;
    for (int round = 0; round < 5; round++) {
        parallel_release all;
        memset(&all, 0, sizeof all);
        all.grant = take(name.text, 30000);
        in_threads(RELEASERS, releaser_release_once, &all);
        assert_int_equal(atomic_load(&all.released), 1);
        assert_int_equal(atomic_load(&all.absent), RELEASERS - 1);
    }
}

static void extend_sets_the_time_and_does_not_add(void **state)
{
    key name = fresh_key("extend");
    syncguard_grant grant = take(name.text, 60000);
    (void)state;
    syncguard_lock_info_raw before;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, name.text, NULL, &before, &err));
    int64_t expires = 0;
    assert_status(SYNCGUARD_OK, syncguard_extend(store, grant.lock_id, 5000, NULL, &expires, &err));
    syncguard_lock_info_raw after;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, name.text, NULL, &after, &err));
    assert_true(after.info.expires_at_ms == expires);
    assert_at_most(grant.expires_at_ms - 30000, expires);
    assert_between(5000, 25000, expires - before.info.acquired_at_ms);
    assert_string_equal(after.key, before.key);
    assert_string_equal(after.lock_id, before.lock_id);
    assert_string_equal(after.owner, before.owner);
    assert_string_equal(after.info.fence, before.info.fence);
    assert_true(after.info.acquired_at_ms == before.info.acquired_at_ms);
    assert_status(SYNCGUARD_OK,
                  syncguard_extend(store, grant.lock_id, 90000, NULL, &expires, &err));
    assert_at_least(grant.expires_at_ms + 1, expires);
    assert_status(SYNCGUARD_OK, syncguard_extend(store, grant.lock_id, 90000, NULL, NULL, NULL));
    give_back(&grant);
}

static void extend_of_nothing_is_absent(void **state)
{
    key name = fresh_key("gone");
    syncguard_grant grant = take(name.text, 30000);
    (void)state;
    give_back(&grant);
    int64_t expires = 0;
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(store, grant.lock_id, 30000, NULL, &expires, &err));
    assert_int_equal(err.code, SYNCGUARD_OK);
    check_locked(name.text, false);
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(store, FOREIGN_ID, 30000, NULL, &expires, &err));
}

static void release_keeps_the_counter(void **state)
{
    key name = fresh_key("counter");
    syncguard_grant grant = take(name.text, 30000);
    (void)state;
    give_back(&grant);
    grant = take(name.text, 30000);
    assert_string_equal(grant.fence, "000000000000002");
    give_back(&grant);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(released_once_then_absent),
    cmocka_unit_test(old_id_does_not_touch_the_next_owner),
    cmocka_unit_test(one_of_many_releases_is_applied),
    cmocka_unit_test(extend_sets_the_time_and_does_not_add),
    cmocka_unit_test(extend_of_nothing_is_absent),
    cmocka_unit_test(release_keeps_the_counter),
};
const contract_group release_group = {"release", tests, sizeof tests / sizeof tests[0]};
