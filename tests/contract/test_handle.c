/* Lock handles: facts, one release, extending, disposal. */
#include "contract.h"

static atomic_int reported;

static void handle_count_report(void *context, const syncguard_error *error, const char *name,
                                const char *lock_id, const char *source)
{
    (void)context;
    (void)error;
    (void)name;
    (void)lock_id;
    (void)source;
    atomic_fetch_add(&reported, 1);
}

static syncguard_lock *take_handle(const char *name, int64_t ttl_ms)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = ttl_ms;
    options.on_release_error = handle_count_report;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(store, name, &options, &lock, &err));
    assert_non_null(lock);
    return lock;
}

static size_t releases_of(const char *lock_id)
{
    event_filter filter = {SYNCGUARD_EVENT_RELEASE, NULL, lock_id};
    await_events(filter, 1, NULL);
    test_sleep_ms(30); /* time for a second release, which would be one too many */
    return count_events(filter, NULL);
}

static void handle_tells_the_facts_of_the_grant(void **state)
{
    key plain = fresh_key("facts");
    (void)state;
    char nfc[SYNCGUARD_KEY_SIZE];
    snprintf(nfc, sizeof nfc, "%.400s\xC3\xA9", plain.text);
    char nfd[SYNCGUARD_KEY_SIZE];
    snprintf(nfd, sizeof nfd, "%.400se\xCC\x81", plain.text);
    syncguard_lock *lock = take_handle(nfd, 20000);
    assert_string_equal(syncguard_lock_key(lock), nfc);
    syncguard_lock_info_raw raw;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, nfc, NULL, &raw, &err));
    assert_string_equal(syncguard_lock_id(lock), raw.lock_id);
    assert_string_equal(syncguard_lock_fence(lock), raw.info.fence);
    assert_true(syncguard_lock_expires_at_ms(lock) == raw.info.expires_at_ms);
    assert_between(10000, 20000, syncguard_lock_remaining_ms(lock));
    assert_true(syncguard_lock_held(lock));
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_NO);
    syncguard_lock_dispose(lock);
    check_locked(nfc, false);
}

static void release_is_once_and_later_ones_are_absent(void **state)
{
    key name = fresh_key("handle-once");
    syncguard_lock *lock = take_handle(name.text, 20000);
    (void)state;
    char id[SYNCGUARD_LOCK_ID_SIZE];
    memcpy(id, syncguard_lock_id(lock), sizeof id);
    assert_status(SYNCGUARD_OK, syncguard_lock_release(lock, NULL, &err));
    assert_false(syncguard_lock_held(lock));
    assert_true(syncguard_lock_remaining_ms(lock) == 0);
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_NO);
    syncguard_grant next = take(name.text, 20000);
    for (int i = 0; i < 3; i++)
        assert_status(SYNCGUARD_ABSENT, syncguard_lock_release(lock, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_lock_extend(lock, 5000, NULL, NULL, &err));
    syncguard_lock_dispose(lock);
    check_locked(name.text, true);
    if (contract.telemetry)
        assert_int_equal(releases_of(id), 1);
    give_back(&next);
}

static void dispose_releases_once(void **state)
{
    key name = fresh_key("dispose");
    syncguard_lock *lock = take_handle(name.text, 20000);
    (void)state;
    char id[SYNCGUARD_LOCK_ID_SIZE];
    memcpy(id, syncguard_lock_id(lock), sizeof id);
    syncguard_lock_dispose(lock);
    check_locked(name.text, false);
    if (contract.telemetry)
        assert_int_equal(releases_of(id), 1);
    syncguard_lock_dispose(NULL);
    lock = NULL;
    syncguard_lock_dispose_scoped(&lock);
}

static void scoped_dispose_is_idempotent(void **state)
{
    key name = fresh_key("scoped");
    syncguard_lock *lock = take_handle(name.text, 20000);
    (void)state;
    syncguard_lock_dispose_scoped(&lock);
    assert_null(lock);
    syncguard_grant next = take(name.text, 20000);
    syncguard_lock_dispose_scoped(&lock);
    check_locked(name.text, true);
    give_back(&next);
}

static void absent_at_disposal_is_not_reported(void **state)
{
    key name = fresh_key("absent");
    syncguard_lock *lock = take_handle(name.text, 20000);
    (void)state;
    atomic_store(&reported, 0);
    assert_status(SYNCGUARD_OK, syncguard_release(store, syncguard_lock_id(lock), NULL, &err));
    syncguard_lock_dispose(lock);
    assert_int_equal(atomic_load(&reported), 0);
    lock = take_handle(name.text, 20000);
    assert_status(SYNCGUARD_OK, syncguard_release(store, syncguard_lock_id(lock), NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_lock_release(lock, NULL, &err));
    syncguard_lock_dispose(lock);
    assert_int_equal(atomic_load(&reported), 0);
}

static void handle_extends(void **state)
{
    key name = fresh_key("handle-extend");
    syncguard_lock *lock = take_handle(name.text, 5000);
    int64_t first = syncguard_lock_expires_at_ms(lock);
    (void)state;
    int64_t expires = 0;
    assert_status(SYNCGUARD_OK, syncguard_lock_extend(lock, 40000, NULL, &expires, &err));
    assert_at_least(first + 20000, expires);
    assert_true(syncguard_lock_expires_at_ms(lock) == expires);
    assert_at_least(30000, syncguard_lock_remaining_ms(lock));
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, name.text, NULL, &info, &err));
    assert_true(info.expires_at_ms == expires);
    assert_string_equal(info.fence, syncguard_lock_fence(lock));
    assert_status(SYNCGUARD_OK, syncguard_lock_extend(lock, 6000, NULL, NULL, &err));
    assert_at_most(6000, syncguard_lock_remaining_ms(lock));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_lock_extend(lock, 0, NULL, NULL, &err));
    assert_true(syncguard_lock_held(lock));
    syncguard_lock_dispose(lock);
}

static void aborted_extend_leaves_the_lock(void **state)
{
    key name = fresh_key("abort-extend");
    syncguard_lock *lock = take_handle(name.text, 20000);
    (void)state;
    syncguard_abort *abort_object = NULL;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&abort_object, &err));
    syncguard_abort_trigger(abort_object);
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = abort_object;
    assert_status(SYNCGUARD_E_ABORTED, syncguard_lock_extend(lock, 90000, &call, NULL, &err));
    assert_true(syncguard_lock_held(lock));
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_NO);
    assert_status(SYNCGUARD_OK, syncguard_lock_extend(lock, 20000, NULL, NULL, &err));
    syncguard_lock_dispose(lock);
    check_locked(name.text, false);
    syncguard_abort_free(abort_object);
}

static void extend_that_finds_nothing_means_lost(void **state)
{
    key name = fresh_key("extend-lost");
    syncguard_lock *lock = take_handle(name.text, 20000);
    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_release(store, syncguard_lock_id(lock), NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_lock_extend(lock, 20000, NULL, NULL, &err));
    assert_false(syncguard_lock_held(lock));
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_ABSENT);
    assert_status(SYNCGUARD_ABSENT, syncguard_lock_extend(lock, 20000, NULL, NULL, &err));
    syncguard_lock_dispose(lock);
    check_locked(name.text, false);
}

static void handle_keeps_a_closed_backend_open(void **state)
{
    key name = fresh_key("closed");
    syncguard_backend *backend = open_store(NULL);
    (void)state;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(backend, name.text, NULL, &lock, &err));
    syncguard_close(backend);
    assert_true(syncguard_lock_held(lock));
    assert_status(SYNCGUARD_OK, syncguard_lock_extend(lock, 20000, NULL, NULL, &err));
    if (store_is_shared())
        check_locked(name.text, true);
    assert_status(SYNCGUARD_OK, syncguard_lock_release(lock, NULL, &err));
    syncguard_lock_dispose(lock);
    if (store_is_shared())
        check_locked(name.text, false);
}

typedef struct shared_handle {
    syncguard_lock *lock;
    atomic_int released;
    atomic_int absent;
    atomic_int extended;
} shared_handle;

static void shared_handle_use(int index, void *context)
{
    shared_handle *all = context;
    syncguard_error mine;
    syncguard_status status;
    if (index % 2 == 0) {
        status = syncguard_lock_extend(all->lock, 20000, NULL, NULL, &mine);
        if (status == SYNCGUARD_OK || status == SYNCGUARD_ABSENT)
            atomic_fetch_add(&all->extended, 1);
        return;
    }
    status = syncguard_lock_release(all->lock, NULL, &mine);
    if (status == SYNCGUARD_OK)
        atomic_fetch_add(&all->released, 1);
    else if (status == SYNCGUARD_ABSENT)
        atomic_fetch_add(&all->absent, 1);
}

static void threads_share_a_handle(void **state)
{
    key name = fresh_key("shared");
    (void)state;
    shared_handle all;
    memset(&all, 0, sizeof all);
    all.lock = take_handle(name.text, 20000);
    in_threads(16, shared_handle_use, &all);
    assert_int_equal(atomic_load(&all.extended), 8);
    assert_int_equal(atomic_load(&all.released), 1);
    assert_int_equal(atomic_load(&all.absent), 7);
    assert_int_equal(syncguard_lock_lost(all.lock), SYNCGUARD_LOST_NO);
    syncguard_lock_dispose(all.lock);
    check_locked(name.text, false);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(handle_tells_the_facts_of_the_grant),
    cmocka_unit_test(release_is_once_and_later_ones_are_absent),
    cmocka_unit_test(dispose_releases_once),
    cmocka_unit_test(scoped_dispose_is_idempotent),
    cmocka_unit_test(absent_at_disposal_is_not_reported),
    cmocka_unit_test(handle_extends),
    cmocka_unit_test(aborted_extend_leaves_the_lock),
    cmocka_unit_test(extend_that_finds_nothing_means_lost),
    cmocka_unit_test(handle_keeps_a_closed_backend_open),
    cmocka_unit_test(threads_share_a_handle),
};
const contract_group handle_group = {"handle", tests, sizeof tests / sizeof tests[0]};
