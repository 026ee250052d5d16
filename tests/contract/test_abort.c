/* Abort objects: already triggered, from another thread, from a signal handler. */
#include "contract.h"

#include <syncguard/sys/backend.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

static int abort_note_work_ran(void *context, syncguard_lock *lock)
{
    (void)lock;
    *(int *)context = 1;
    return 0;
}

static syncguard_abort *triggered_abort(void)
{
    syncguard_abort *made = NULL;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&made, &err));
    assert_false(syncguard_abort_triggered(made));
    syncguard_abort_trigger(made);
    syncguard_abort_trigger(made);
    assert_true(syncguard_abort_triggered(made));
    return made;
}

static void every_operation_answers_aborted(void **state)
{
    key name = fresh_key("aborted"), held = fresh_key("aborted-held");
    syncguard_grant holder = take(held.text, 30000);
    syncguard_abort *abort_object = triggered_abort();
    (void)state;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = abort_object;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.abort_object = abort_object;
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, held.text, NULL, &info, &err));
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_ABORTED,
                  syncguard_acquire(store, name.text, 1000, &call, &grant, &err));
    assert_int_equal(err.code, SYNCGUARD_E_ABORTED);
    assert_status(SYNCGUARD_E_ABORTED, syncguard_release(store, holder.lock_id, &call, &err));
    assert_status(SYNCGUARD_E_ABORTED,
                  syncguard_extend(store, holder.lock_id, 90000, &call, NULL, &err));
    bool flag = false;
    assert_status(SYNCGUARD_E_ABORTED, syncguard_is_locked(store, held.text, &call, &flag, &err));
    syncguard_lock_info after;
    assert_status(SYNCGUARD_E_ABORTED, syncguard_get_by_key(store, held.text, &call, &after, &err));
    assert_status(SYNCGUARD_E_ABORTED,
                  syncguard_get_by_id(store, holder.lock_id, &call, &after, &err));
    syncguard_lock_info_raw raw;
    assert_status(SYNCGUARD_E_ABORTED,
                  syncguard_get_by_key_raw(store, held.text, &call, &raw, &err));
    assert_status(SYNCGUARD_E_ABORTED,
                  syncguard_get_by_id_raw(store, holder.lock_id, &call, &raw, &err));
    assert_status(SYNCGUARD_E_ABORTED, syncguard_owns(store, holder.lock_id, &call, &flag, &err));
    int calls = 0;
    assert_status(SYNCGUARD_E_ABORTED, syncguard_list(store, &call, test_count_info, &calls, &err));
    assert_status(SYNCGUARD_E_ABORTED,
                  syncguard_list_raw(store, &call, test_count_raw, &calls, &err));
    assert_status(SYNCGUARD_E_ABORTED,
                  syncguard_examine(store, &call, test_count_finding, &calls, &err));
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_E_ABORTED,
                  syncguard_lock_acquire(store, name.text, &options, &lock, &err));
    assert_status(SYNCGUARD_E_ABORTED, syncguard_lock_try(store, name.text, &options, &lock, &err));
    assert_status(
        SYNCGUARD_E_ABORTED,
        syncguard_with_lock(store, name.text, &options, abort_note_work_ran, &calls, NULL, &err));
    assert_null(lock);
    assert_int_equal(calls, 0);

    /* Nothing was sent: the first key is free with an untouched counter, the second is unchanged.
     */
    check_locked(name.text, false);
    grant = take(name.text, 30000);
    assert_string_equal(grant.fence, "000000000000001");
    give_back(&grant);
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, held.text, NULL, &after, &err));
    assert_true(after.expires_at_ms == info.expires_at_ms);
    give_back(&holder);
    syncguard_abort_free(abort_object);
}

static void invalid_input_wins_over_an_abort(void **state)
{
    key name = fresh_key("both");
    syncguard_abort *abort_object = triggered_abort();
    (void)state;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = abort_object;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.abort_object = abort_object;
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_acquire(store, "", 1000, &call, &grant, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_acquire(store, name.text, 0, &call, &grant, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_release(store, "x", &call, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_extend(store, "x", 1000, &call, NULL, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_extend(store, FOREIGN_ID, 0, &call, NULL, &err));
    bool flag = false;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_is_locked(store, "\xFF", &call, &flag, &err));
    syncguard_lock_info info;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_get_by_key(store, "", &call, &info, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_get_by_id(store, "x", &call, &info, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_owns(store, "x", &call, &flag, &err));
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_acquire(store, "", &options, &lock, &err));
    options.ttl_ms = 0;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_try(store, name.text, &options, &lock, &err));
    syncguard_abort_free(abort_object);
}

/* The same for every other argument of every call, and no such call is an event. */
static void no_argument_waits_for_its_turn(void **state)
{
    key name = fresh_key("first");
    syncguard_abort *abort_object = triggered_abort();
    size_t before = count_events((event_filter){-1, name.text, NULL}, NULL);
    size_t foreign = count_events((event_filter){-1, NULL, FOREIGN_ID}, NULL);
    (void)state;
    syncguard_call bad = SYNCGUARD_CALL_INIT;
    bad.abort_object = abort_object;
    bad.timeout_ms = -1;
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_acquire(store, name.text, 1000, &bad, &grant, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_release(store, FOREIGN_ID, &bad, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_extend(store, FOREIGN_ID, 1000, &bad, NULL, &err));
    bool flag = false;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_is_locked(store, name.text, &bad, &flag, &err));
    syncguard_lock_info info;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_get_by_key(store, name.text, &bad, &info, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_get_by_id(store, FOREIGN_ID, &bad, &info, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_owns(store, FOREIGN_ID, &bad, &flag, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_list(store, &bad, test_ignore_info, NULL, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_examine(store, &bad, test_count_finding, NULL, &err));
    if (contract.telemetry) {
        test_sleep_ms(50);
        assert_int_equal(count_events((event_filter){-1, name.text, NULL}, NULL), before);
        assert_int_equal(count_events((event_filter){-1, NULL, FOREIGN_ID}, NULL), foreign);
    }
    syncguard_abort_free(abort_object);
}

static int abort_count_work_runs(void *context, syncguard_lock *lock)
{
    (void)lock;
    (*(int *)context)++;
    return 0;
}

/* The raw calls, the callback form, and the calls on a handle. */
static void twins_and_handles_check_arguments_first(void **state)
{
    key name = fresh_key("twins");
    syncguard_abort *abort_object = triggered_abort();
    (void)state;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(store, name.text, NULL, &lock, &err));
    syncguard_call call = SYNCGUARD_CALL_INIT;
    syncguard_call bad = SYNCGUARD_CALL_INIT;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    call.abort_object = bad.abort_object = options.abort_object = abort_object;
    bad.timeout_ms = -1;
    syncguard_lock_info_raw info;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_get_by_key_raw(store, "", &call, &info, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_get_by_id_raw(store, "x", &call, &info, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_list_raw(store, &bad, test_ignore_raw, NULL, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_list_raw(store, &call, NULL, NULL, &err));
    int ran = 0;
    assert_status(
        SYNCGUARD_E_INVALID_ARGUMENT,
        syncguard_with_lock(store, "", &options, abort_count_work_runs, &ran, NULL, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_with_lock(store, name.text, &options, NULL, &ran, NULL, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_lock_extend(lock, 0, &call, NULL, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_extend(lock, 1000, &bad, NULL, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_lock_release(lock, &bad, &err));
    assert_int_equal(ran, 0);
    assert_true(syncguard_lock_held(lock));
    syncguard_lock_dispose(lock);
    syncguard_abort_free(abort_object);
}

/* Keys that are reserved by a store are invalid arguments like any other. */
static void reserved_keys_are_refused_first(void **state)
{
    syncguard_abort *abort_object = triggered_abort();
    (void)state;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    call.abort_object = options.abort_object = abort_object;
    const char *reserved = "id:" FOREIGN_ID;
    syncguard_status expected = SYNCGUARD_E_ABORTED;
    if (store->ops->check_key != NULL &&
        store->ops->check_key(store, reserved, strlen(reserved), &err) != SYNCGUARD_OK)
        expected = SYNCGUARD_E_INVALID_ARGUMENT;
    syncguard_grant grant;
    assert_status(expected, syncguard_acquire(store, reserved, 1000, &call, &grant, &err));
    bool flag = false;
    assert_status(expected, syncguard_is_locked(store, reserved, &call, &flag, &err));
    syncguard_lock_info info;
    assert_status(expected, syncguard_get_by_key(store, reserved, &call, &info, &err));
    syncguard_lock *lock = NULL;
    assert_status(expected, syncguard_lock_acquire(store, reserved, &options, &lock, &err));
    assert_status(expected, syncguard_lock_try(store, reserved, &options, &lock, &err));
    if (contract.telemetry) {
        test_sleep_ms(50);
        assert_int_equal(count_events((event_filter){-1, reserved, NULL}, NULL), 0);
    }
    syncguard_abort_free(abort_object);
}

static void abort_objects_take_nothing_for_granted(void **state)
{
    key name = fresh_key("untouched");
    (void)state;
    syncguard_abort *untouched = NULL;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&untouched, &err));
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = untouched;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, name.text, 30000, &call, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, &call, &err));
    syncguard_abort_free(untouched);
    syncguard_abort_free(NULL);
    syncguard_abort_trigger(NULL);
    assert_false(syncguard_abort_triggered(NULL));
}

static syncguard_abort *signalled;
static atomic_llong signalled_at_us;

static void abort_on_alarm(int number)
{
    int before = errno;
    (void)number;
    atomic_store(&signalled_at_us, test_now_us());
    errno = 12345;
    syncguard_abort_trigger(signalled);
    if (errno != 12345)
        atomic_store(&signalled_at_us, 0);
    errno = before;
}

#define SIGNALS 15

/* How late this machine ends a plain sleep meanwhile: that delay is not the library's. */
static atomic_bool napping;
static int64_t latest_nap_us;

static void *abort_measure_nap_lateness(void *unused)
{
    (void)unused;
    while (atomic_load(&napping)) {
        int64_t begun = test_now_us();
        test_sleep_ms(1);
        int64_t late = test_now_us() - begun - 1000;
        if (late > latest_nap_us)
            latest_nap_us = late;
    }
    return NULL;
}

static void signal_handler_ends_a_blocked_acquire(void **state)
{
    key name = fresh_key("signal");
    syncguard_grant holder = take(name.text, 60000);
    (void)state;
    sigset_t alarm;
    /* The signal goes to the thread that waits for the lock. */
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigset_t mask;
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &alarm, &mask), 0);
    latest_nap_us = 0;
    atomic_store(&napping, true);
    pthread_t napper = test_start_thread(abort_measure_nap_lateness, NULL);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &mask, NULL), 0);
    struct sigaction action = {.sa_handler = abort_on_alarm};
    struct sigaction before;
    assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
    struct itimerval timer = {{0, 0}, {0, 40000}};
    int64_t delays[SIGNALS];
    for (int i = 0; i < SIGNALS; i++) {
        assert_status(SYNCGUARD_OK, syncguard_abort_create(&signalled, &err));
        syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
        options.abort_object = signalled;
        options.retry_delay_ms = 10000;
        options.timeout_ms = 30000;
        assert_int_equal(setitimer(ITIMER_REAL, &timer, NULL), 0);
        syncguard_lock *lock = NULL;
        assert_status(SYNCGUARD_E_ABORTED,
                      syncguard_lock_acquire(store, name.text, &options, &lock, &err));
        delays[i] = test_now_us() - atomic_load(&signalled_at_us);
        syncguard_abort_free(signalled);
    }
    sigaction(SIGALRM, &before, NULL);
    qsort(delays, SIGNALS, sizeof delays[0], test_compare_int64);
    atomic_store(&napping, false);
    pthread_join(napper, NULL);
    print_message(
        "    median %lld us, worst %lld us; a plain sleep of 1 ms was up to %lld us late\n",
        (long long)delays[SIGNALS / 2], (long long)delays[SIGNALS - 1], (long long)latest_nap_us);
    assert_at_most(10000 + latest_nap_us, delays[SIGNALS / 2]);
    assert_at_most(100000 + latest_nap_us, delays[SIGNALS - 1]);
    give_back(&holder);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_operation_answers_aborted),
    cmocka_unit_test(invalid_input_wins_over_an_abort),
    cmocka_unit_test(no_argument_waits_for_its_turn),
    cmocka_unit_test(twins_and_handles_check_arguments_first),
    cmocka_unit_test(reserved_keys_are_refused_first),
    cmocka_unit_test(abort_objects_take_nothing_for_granted),
    cmocka_unit_test(signal_handler_ends_a_blocked_acquire),
};
const contract_group abort_group = {"abort", tests, sizeof tests / sizeof tests[0]};
