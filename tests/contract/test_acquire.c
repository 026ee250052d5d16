/* Acquire: one attempt, its answers, its time to live. */
#include "contract.h"

#define RACERS 64
#define RACES 8

static void held_key_answers_locked_without_an_error(void **state)
{
    key name = fresh_key("held");
    syncguard_grant grant = take(name.text, 30000);
    (void)state;
    memset(&err, 0x5a, sizeof err);
    syncguard_grant other;
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(store, name.text, 1000, NULL, &other, &err));
    assert_int_equal(err.code, SYNCGUARD_OK);
    assert_string_equal(err.message, "");
    assert_string_equal(err.native, "");
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(store, name.text, 1000, NULL, &other, NULL));
    give_back(&grant);
}

static void success_carries_id_fence_and_stored_expiry(void **state)
{
    key name = fresh_key("granted");
    (void)state;
    memset(&err, 0x5a, sizeof err);
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, name.text, 12345, NULL, &grant, &err));
    assert_int_equal(err.code, SYNCGUARD_OK);
    assert_string_equal(err.message, "");
    assert_true(syncguard_lock_id_valid(grant.lock_id));
    assert_string_equal(grant.fence, "000000000000001");
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, name.text, NULL, &info, &err));
    assert_true(grant.expires_at_ms == info.expires_at_ms);
    assert_true(info.expires_at_ms - info.acquired_at_ms == 12345);
    /* Both clocks show a time of this century, at least. */
    assert_between(INT64_C(1600000000000), INT64_C(4200000000000), info.acquired_at_ms);
    give_back(&grant);
}

static void impossible_ttls_are_refused(void **state)
{
    const int64_t bad[] = {0,
                           -1,
                           -30000,
                           INT64_MIN,
                           INT64_MAX,
                           INT64_MAX - 1000,
                           SYNCGUARD_MAX_TIME_MS,
                           SYNCGUARD_MAX_TIME_MS - test_wall_ms() + 3600 * 1000};
    key name = fresh_key("ttl");
    key held = fresh_key("ttl-held");
    syncguard_grant holder = take(held.text, 30000);
    (void)state;
    syncguard_grant grant;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
        options.ttl_ms = bad[i];
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_acquire(store, name.text, bad[i], NULL, &grant, &err));
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_acquire(store, held.text, bad[i], NULL, &grant, &err));
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_extend(store, holder.lock_id, bad[i], NULL, NULL, &err));
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_extend(store, FOREIGN_ID, bad[i], NULL, NULL, &err));
        syncguard_lock *lock = NULL;
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_lock_acquire(store, name.text, &options, &lock, &err));
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_lock_try(store, name.text, &options, &lock, &err));
        assert_null(lock);
    }
    check_locked(name.text, false);
    grant = take(name.text, 1000);
    assert_string_equal(grant.fence, "000000000000001"); /* none of those was a grant */
    give_back(&grant);
    give_back(&holder);
}

static void largest_and_smallest_ttls_work(void **state)
{
    int64_t largest = SYNCGUARD_MAX_TIME_MS - test_wall_ms() - 3600 * 1000;
    key name = fresh_key("ttl-large");
    key brief = fresh_key("ttl-small");
    syncguard_grant grant = take(name.text, largest);
    (void)state;
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, name.text, NULL, &info, &err));
    assert_true(info.expires_at_ms - info.acquired_at_ms == largest);
    assert_at_most(SYNCGUARD_MAX_TIME_MS, info.expires_at_ms);
    check_locked(name.text, true);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    /* Waiting for such a lock must not spin or overflow. */
    options.timeout_ms = 150;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_E_ACQUISITION_TIMEOUT,
                  syncguard_lock_acquire(store, name.text, &options, &lock, &err));
    int64_t expires = 0;
    assert_status(SYNCGUARD_OK,
                  syncguard_extend(store, grant.lock_id, largest, NULL, &expires, &err));
    assert_at_most(SYNCGUARD_MAX_TIME_MS, expires);
    give_back(&grant);
    options.ttl_ms = largest;
    options.auto_extend = true;
    assert_status(SYNCGUARD_OK, syncguard_lock_try(store, name.text, &options, &lock, &err));
    assert_true(syncguard_lock_held(lock));
    assert_at_least(INT64_C(1000000000), syncguard_lock_remaining_ms(lock));
    syncguard_lock_dispose(lock);
    check_locked(name.text, false);
    syncguard_grant small;
    /* If a store needs longer than the whole lease to answer, there is no grant. */
    if (syncguard_acquire(store, brief.text, 1, NULL, &small, &err) == SYNCGUARD_OK) {
        check_locked(brief.text, true); /* live because of the tolerance */
        give_back(&small);
    } else {
        assert_int_equal(err.code, SYNCGUARD_E_NETWORK_TIMEOUT);
    }
}

static void contended_attempt_changes_nothing(void **state)
{
    key name = fresh_key("unchanged");
    syncguard_grant grant = take(name.text, 30000);
    (void)state;
    syncguard_lock_info_raw before;
    memset(&before, 0, sizeof before);
    syncguard_lock_info_raw after;
    memset(&after, 0, sizeof after);
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, name.text, NULL, &before, &err));
    syncguard_grant other;
    for (int i = 0; i < 5; i++)
        assert_status(SYNCGUARD_LOCKED,
                      syncguard_acquire(store, name.text, 90000, NULL, &other, &err));
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, name.text, NULL, &after, &err));
    assert_string_equal(before.key, after.key);
    assert_string_equal(before.lock_id, after.lock_id);
    assert_string_equal(before.info.fence, after.info.fence);
    assert_true(before.info.expires_at_ms == after.info.expires_at_ms);
    assert_true(before.info.acquired_at_ms == after.info.acquired_at_ms);
    give_back(&grant);
}

typedef struct race {
    key names[RACES];
    syncguard_status answers[RACES][RACERS];
    syncguard_grant grants[RACES][RACERS];
    pthread_barrier_t gate;
} race;

static void racer_acquire_all(int index, void *context)
{
    race *all = context;
    syncguard_error mine;
    for (int i = 0; i < RACES; i++) {
        pthread_barrier_wait(&all->gate);
        all->answers[i][index] = syncguard_acquire(store, all->names[i].text, 60000, NULL,
                                                   &all->grants[i][index], &mine);
    }
}

static void one_of_64_threads_wins(void **state)
{
    static race all;
    (void)state;
    assert_int_equal(pthread_barrier_init(&all.gate, NULL, RACERS), 0);
    for (int i = 0; i < RACES; i++)
        all.names[i] = fresh_key("race");
    in_threads(RACERS, racer_acquire_all, &all);
    pthread_barrier_destroy(&all.gate);
    for (int i = 0; i < RACES; i++) {
        int winners = 0;
        for (int j = 0; j < RACERS; j++) {
            if (all.answers[i][j] == SYNCGUARD_OK) {
                winners++;
                assert_string_equal(all.grants[i][j].fence, "000000000000001");
                give_back(&all.grants[i][j]);
            } else {
                assert_int_equal(all.answers[i][j], SYNCGUARD_LOCKED);
            }
        }
        assert_int_equal(winners, 1);
    }
}

static void different_keys_do_not_meet(void **state)
{
    (void)state;
    key names[40];
    syncguard_grant grants[40];
    for (int i = 0; i < 40; i++) {
        names[i] = fresh_key("many");
        grants[i] = take(names[i].text, 30000);
    }
    for (int i = 0; i < 40; i += 2)
        give_back(&grants[i]);
    for (int i = 0; i < 40; i++)
        check_locked(names[i].text, i % 2 == 1);
    for (int i = 1; i < 40; i += 2)
        give_back(&grants[i]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(held_key_answers_locked_without_an_error),
    cmocka_unit_test(success_carries_id_fence_and_stored_expiry),
    cmocka_unit_test(impossible_ttls_are_refused),
    cmocka_unit_test(largest_and_smallest_ttls_work),
    cmocka_unit_test(contended_attempt_changes_nothing),
    cmocka_unit_test(one_of_64_threads_wins),
    cmocka_unit_test(different_keys_do_not_meet),
};
const contract_group acquire_group = {"acquire", tests, sizeof tests / sizeof tests[0]};
