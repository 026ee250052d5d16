/* Several keys at once: all or none, in one order, lost and released together. */
#include "contract.h"

#define KEYS 3

/* Keys whose byte order is that of their index. */
typedef struct names {
    key texts[KEYS];
    const char *list[KEYS];
} names;

static void name_keys(names *all)
{
    key stem = fresh_key("set");
    for (int i = 0; i < KEYS; i++) {
        snprintf(all->texts[i].text, sizeof all->texts[i].text, "%.400s/%c", stem.text, 'a' + i);
        all->list[i] = all->texts[i].text;
    }
}

static void check_all_locked(const names *all, bool expected)
{
    for (int i = 0; i < KEYS; i++)
        check_locked(all->list[i], expected);
}

static syncguard_lock_set *sets_acquire_all(const names *all, const syncguard_lock_options *options)
{
    syncguard_lock_set *set = NULL;
    assert_status(SYNCGUARD_OK,
                  syncguard_lock_acquire_all(store, all->list, KEYS, options, &set, &err));
    return set;
}

static void keys_are_locked_once_and_in_order(void **state)
{
    key composed = fresh_key("caf\xc3\xa9");
    (void)state;
    names all;
    name_keys(&all);
    char *accent = strstr(composed.text, "\xc3\xa9");
    assert_non_null(accent);
    key decomposed;
    snprintf(decomposed.text, sizeof decomposed.text, "%.*se\xcc\x81%s",
             (int)(accent - composed.text), composed.text, accent + 2);
    const char *given[] = {decomposed.text, all.list[2], all.list[0], all.list[2],
                           composed.text,   all.list[1], all.list[0]};
    syncguard_lock_set *set = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire_all(store, given, 7, NULL, &set, &err));
    assert_int_equal(syncguard_lock_set_count(set), 4);
    for (size_t i = 1; i < 4; i++)
        assert_true(strcmp(syncguard_lock_key(syncguard_lock_set_at(set, i - 1)),
                           syncguard_lock_key(syncguard_lock_set_at(set, i))) < 0);
    assert_null(syncguard_lock_set_at(set, 4));
    assert_ptr_equal(syncguard_lock_set_find(set, composed.text),
                     syncguard_lock_set_find(set, decomposed.text));
    assert_string_equal(syncguard_lock_key(syncguard_lock_set_find(set, decomposed.text)),
                        composed.text);
    assert_null(syncguard_lock_set_find(set, "another"));
    assert_string_equal(syncguard_lock_fence(syncguard_lock_set_find(set, all.list[1])),
                        "000000000000001");
    assert_true(syncguard_lock_set_held(set));
    assert_at_least(1, syncguard_lock_set_remaining_ms(set));
    assert_int_equal(syncguard_lock_set_lost(set), SYNCGUARD_LOST_NO);
    check_all_locked(&all, true);
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_LOCKED, syncguard_lock_try(store, all.list[1], NULL, &lock, &err));
    assert_status(SYNCGUARD_OK, syncguard_lock_set_extend(set, 60000, NULL, &err));
    assert_at_least(30000, syncguard_lock_set_remaining_ms(set));
    assert_status(SYNCGUARD_OK, syncguard_lock_set_release(set, NULL, &err));
    check_all_locked(&all, false);
    assert_false(syncguard_lock_set_held(set));
    assert_status(SYNCGUARD_ABSENT, syncguard_lock_set_release(set, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_lock_set_extend(set, 60000, NULL, &err));
    syncguard_lock_set_dispose(set);
}

static void all_are_given_back_if_one_is_held(void **state)
{
    (void)state;
    names all;
    name_keys(&all);
    syncguard_grant holder = take(all.list[1], 60000);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(300);
    options.min_hold_ms = 60000; /* does not apply if the set was not granted */
    syncguard_lock_set *set = NULL;
    assert_status(SYNCGUARD_E_ACQUISITION_TIMEOUT,
                  syncguard_lock_acquire_all(store, all.list, KEYS, &options, &set, &err));
    assert_null(set);
    char hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash(all.list[1], hash));
    assert_string_equal(err.key_hash, hash);
    check_locked(all.list[0], false);
    check_locked(all.list[2], false);
    assert_status(SYNCGUARD_LOCKED,
                  syncguard_lock_try_all(store, all.list, KEYS, &options, &set, &err));
    assert_null(set);
    check_locked(all.list[0], false);
    give_back(&holder);
    assert_status(SYNCGUARD_OK, syncguard_lock_try_all(store, all.list, KEYS, NULL, &set, &err));
    syncguard_lock_set_dispose(set);
    check_all_locked(&all, false);
}

static void bad_sets_are_refused(void **state)
{
    (void)state;
    names all;
    name_keys(&all);
    const char *many[SYNCGUARD_LOCK_SET_MAX + 1];
    key texts[SYNCGUARD_LOCK_SET_MAX];
    for (int i = 0; i < SYNCGUARD_LOCK_SET_MAX; i++) {
        texts[i] = fresh_key("many");
        many[i] = texts[i].text;
    }
    many[SYNCGUARD_LOCK_SET_MAX] = all.list[0];
    syncguard_lock_set *set = NULL;
    assert_status(
        SYNCGUARD_E_INVALID_ARGUMENT,
        syncguard_lock_acquire_all(store, many, SYNCGUARD_LOCK_SET_MAX + 1, NULL, &set, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_acquire_all(store, many, 0, NULL, &set, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_acquire_all(store, NULL, 1, NULL, &set, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_acquire_all(store, all.list, KEYS, NULL, NULL, &err));
    all.list[2] = "";
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_acquire_all(store, all.list, KEYS, NULL, &set, &err));
    check_locked(all.list[0], false);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 0;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_acquire_all(store, many, 2, &options, &set, &err));
    assert_null(set);
    syncguard_lock_set_dispose(NULL);
    assert_int_equal(syncguard_lock_set_release(NULL, NULL, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire_all(store, many, SYNCGUARD_LOCK_SET_MAX,
                                                           NULL, &set, &err));
    assert_int_equal(syncguard_lock_set_count(set), SYNCGUARD_LOCK_SET_MAX);
    syncguard_lock_set_dispose(set);
}

typedef struct late_release {
    syncguard_grant grant;
    int64_t after_ms;
} late_release;

static void *release_later(void *argument)
{
    const late_release *self = argument;
    test_sleep_ms(self->after_ms);
    return (void *)(intptr_t)syncguard_release(store, self->grant.lock_id, NULL, NULL);
}

/* Keys that were locked early also get the whole lease. */
static void leases_begin_together(void **state)
{
    (void)state;
    names all;
    name_keys(&all);
    late_release last = {take(all.list[2], 60000), 1500};
    pthread_t thread = test_start_thread(release_later, &last);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(20000);
    options.ttl_ms = 10000;
    syncguard_lock_set *set = sets_acquire_all(&all, &options);
    int64_t newest = syncguard_lock_remaining_ms(syncguard_lock_set_at(set, 2));
    int64_t oldest = syncguard_lock_remaining_ms(syncguard_lock_set_at(set, 0));
    pthread_join(thread, NULL);
    assert_at_least(newest - 1000, oldest);
    syncguard_lock_set_dispose(set);
}

static void one_deadline_counts_for_all(void **state)
{
    (void)state;
    names all;
    name_keys(&all);
    syncguard_grant held = take(all.list[2], 60000);
    late_release second = {take(all.list[1], 60000), 1500};
    pthread_t thread = test_start_thread(release_later, &second);
    int64_t begun = test_now_ms();
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(2500);
    syncguard_lock_set *set = NULL;
    assert_status(SYNCGUARD_E_ACQUISITION_TIMEOUT,
                  syncguard_lock_acquire_all(store, all.list, KEYS, &options, &set, &err));
    int64_t took = test_now_ms() - begun;
    pthread_join(thread, NULL);
    assert_between(2400, 3900, took); /* 4000 with a deadline for each */
    check_locked(all.list[0], false);
    give_back(&held);
}

typedef struct loss {
    atomic_int told;
    _Atomic(syncguard_lock_set *) set;
    bool dispose;
    syncguard_lost_reason reason;
} loss;

static void sets_note_loss(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    loss *self = context;
    (void)lock;
    self->reason = reason;
    if (self->dispose) {
        while (atomic_load(&self->set) == NULL)
            sched_yield();
        syncguard_lock_set_dispose(atomic_load(&self->set));
    }
    atomic_fetch_add(&self->told, 1);
}

static void sets_remove_lock(const names *all, int index)
{
    syncguard_lock_info_raw info;
    assert_status(SYNCGUARD_OK,
                  syncguard_get_by_key_raw(store, all->list[index], NULL, &info, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(store, info.lock_id, NULL, &err));
}

static void one_lost_key_loses_the_set_and_is_told_once(void **state)
{
    for (int dispose = 0; dispose < 2; dispose++) {
        loss seen = {.dispose = dispose != 0};
        int64_t until = test_now_ms() + 20000;
        (void)state;
        names all;
        name_keys(&all);
        syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
        options.ttl_ms = 1500;
        options.auto_extend = true;
        options.on_lost = sets_note_loss;
        options.on_lost_context = &seen;
        assert_status(SYNCGUARD_OK, syncguard_abort_create(&options.abort_on_lost, &err));
        syncguard_lock_set *set = sets_acquire_all(&all, &options);
        atomic_store(&seen.set, set);
        assert_false(syncguard_abort_triggered(options.abort_on_lost));
        sets_remove_lock(&all, 1);
        sets_remove_lock(&all, 2);
        while (atomic_load(&seen.told) == 0 && test_now_ms() < until)
            test_sleep_ms(5);
        assert_int_equal(atomic_load(&seen.told), 1);
        assert_int_equal(seen.reason, SYNCGUARD_LOST_ABSENT);
        assert_true(syncguard_abort_triggered(options.abort_on_lost));
        if (dispose == 0) {
            assert_false(syncguard_lock_set_held(set));
            assert_int_equal(syncguard_lock_set_lost(set), SYNCGUARD_LOST_ABSENT);
            assert_true(syncguard_lock_set_remaining_ms(set) == 0);
            test_sleep_ms(1200); /* both are lost by now, and the first one is renewed */
            assert_int_equal(atomic_load(&seen.told), 1);
            check_locked(all.list[0], true);
            assert_status(SYNCGUARD_ABSENT, syncguard_lock_set_release(set, NULL, &err));
            syncguard_lock_set_dispose(set);
        }
        check_all_locked(&all, false);
        syncguard_abort_free(options.abort_on_lost);
    }
}

static void minimum_hold_of_a_set(void **state)
{
    (void)state;
    names all;
    name_keys(&all);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.min_hold_ms = 60000;
    syncguard_lock_set_dispose(sets_acquire_all(&all, &options));
    check_all_locked(&all, true);
    for (int i = 0; i < KEYS; i++)
        sets_remove_lock(&all, i);
}

typedef struct crowd {
    names all;
    atomic_int inside;
    atomic_int overlaps;
    atomic_int failures;
} crowd;

static void take_in_own_order(int index, void *context)
{
    crowd *self = context;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    for (int round = 0; round < 5; round++) {
        const char *pair[] = {self->all.list[(index + round) % KEYS],
                              self->all.list[(index + round + 1 + index % 2) % KEYS]};
        syncguard_lock_set *set = NULL;
        if (syncguard_lock_acquire_all(store, pair, 2, &options, &set, NULL) != SYNCGUARD_OK)
            atomic_fetch_add(&self->failures, 1);
        else if (atomic_fetch_add(&self->inside, 1) != 0) /* two pairs of three keys overlap */
            atomic_fetch_add(&self->overlaps, 1);
        if (set != NULL)
            atomic_fetch_sub(&self->inside, 1);
        syncguard_lock_set_dispose(set);
    }
}

static void opposite_orders_do_not_deadlock(void **state)
{
    (void)state;
    crowd all;
    memset(&all, 0, sizeof all);
    name_keys(&all.all);
    in_threads(6, take_in_own_order, &all);
    assert_int_equal(atomic_load(&all.failures), 0);
    assert_int_equal(atomic_load(&all.overlaps), 0);
    check_all_locked(&all.all, false);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(keys_are_locked_once_and_in_order),
    cmocka_unit_test(all_are_given_back_if_one_is_held),
    cmocka_unit_test(bad_sets_are_refused),
    cmocka_unit_test(leases_begin_together),
    cmocka_unit_test(one_deadline_counts_for_all),
    cmocka_unit_test(one_lost_key_loses_the_set_and_is_told_once),
    cmocka_unit_test(minimum_hold_of_a_set),
    cmocka_unit_test(opposite_orders_do_not_deadlock),
};
const contract_group sets_group = {"sets", tests, sizeof tests / sizeof tests[0]};
