/* The lock helper: retries, pauses, timeout, the callback form and the scope form. */
#include "contract.h"

#define PAUSES 32
/* Tries of a wait that are not counted: more than any store's reports cause, on a slow machine. */
#define UNCOUNTED 20

/* What on_wait saw of one waiting acquire. */
typedef struct pauses {
    int calls;
    int attempts[PAUSES];
    int64_t at[PAUSES + 1]; /* the last one: when it ended */
    int64_t remaining[PAUSES];
    int64_t waited[PAUSES];
} pauses;

static void helper_note_pause(void *context, int attempts, int64_t waited_ms, int64_t remaining_ms)
{
    pauses *all = context;
    if (all->calls < PAUSES) {
        all->attempts[all->calls] = attempts;
        all->at[all->calls] = test_now_ms();
        all->remaining[all->calls] = remaining_ms;
        all->waited[all->calls] = waited_ms;
    }
    all->calls++;
}

/* Tries to get a held key with these options; returns how long that took. */
static int64_t helper_wait_in_vain(const char *name, syncguard_lock_options *options, pauses *all,
                                   syncguard_status expected)
{
    syncguard_lock *lock = (syncguard_lock *)&err;
    int64_t started = test_now_ms();
    memset(all, 0, sizeof *all);
    options->on_wait = helper_note_pause;
    options->on_wait_context = all;
    assert_status(expected, syncguard_lock_acquire(store, name, options, &lock, &err));
    assert_null(lock);
    assert_int_equal(err.code, expected);
    if (all->calls <= PAUSES)
        all->at[all->calls] = test_now_ms();
    return test_now_ms() - started;
}

static void ten_retries_are_eleven_attempts(void **state)
{
    key name = fresh_key("eleven");
    syncguard_grant holder = take(name.text, 60000);
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    options.jitter = SYNCGUARD_JITTER_NONE;
    options.retry_delay_ms = 20;
    options.timeout_ms = 30000;
    pauses all;
    helper_wait_in_vain(name.text, &options, &all, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_int_equal(all.calls, 10);
    for (int i = 0; i < 10; i++) {
        /* All tries: the counted ones, one after joining the waiters, and those after notifications
         * of the store, whose number varies. tests/core counts exactly. */
        assert_in_range(all.attempts[i], i + 1, i + 1 + UNCOUNTED);
        assert_at_least(0, all.waited[i]);
        /* Between -1 (unknown) and the most that the holder may still have, tolerance included. */
        assert_between(-1, 61000, all.remaining[i]);
    }
    if (contract.telemetry) {
        event_filter filter = {SYNCGUARD_EVENT_ACQUIRE, name.text, NULL};
        /* The holder's acquire, eleven tries, and the uncounted ones. */
        await_events(filter, 12, NULL);
        test_sleep_ms(50);
        assert_in_range(count_events(filter, NULL), 12, 12 + UNCOUNTED);
    }
    give_back(&holder);
}

static void retries_used_up_is_acquisition_timeout(void **state)
{
    key name = fresh_key("used-up");
    syncguard_grant holder = take(name.text, 60000);
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = 2;
    options.retry_delay_ms = 10;
    options.timeout_ms = SYNCGUARD_WAIT_FOREVER;
    pauses all;
    helper_wait_in_vain(name.text, &options, &all, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_int_equal(all.calls, 2);
    give_back(&holder);
}

static void zero_retries_or_timeout_is_one_attempt(void **state)
{
    key name = fresh_key("zero");
    syncguard_grant holder = take(name.text, 60000);
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = 0;
    pauses all;
    helper_wait_in_vain(name.text, &options, &all, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_int_equal(all.calls, 0);
    syncguard_lock_options_init(&options, sizeof options);
    options.timeout_ms = 0;
    helper_wait_in_vain(name.text, &options, &all, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_int_equal(all.calls, 0);
    syncguard_lock_options_init(&options, sizeof options);
    options.retry_delay_ms = 0; /* no pause, still ten retries */
    helper_wait_in_vain(name.text, &options, &all, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    give_back(&holder);
    /* One attempt is enough for a free key. */
    options.max_retries = 0;
    options.timeout_ms = 0;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(store, name.text, &options, &lock, &err));
    syncguard_lock_dispose(lock);
}

static void timeout_ends_the_waiting(void **state)
{
    key name = fresh_key("timeout");
    syncguard_grant holder = take(name.text, 60000);
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = 300;
    pauses all;
    int64_t took = helper_wait_in_vain(name.text, &options, &all, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_between(290, 1300, took);
    /* A pause is cut to the time that is left. */
    options.retry_delay_ms = 60000;
    options.jitter = SYNCGUARD_JITTER_NONE;
    took = helper_wait_in_vain(name.text, &options, &all, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_between(290, 1300, took);
    give_back(&holder);
}

static void check_pauses(const pauses *all, int count, const int *least, const int *most)
{
    assert_int_equal(all->calls, count);
    for (int i = 0; i < count; i++) {
        int64_t took = all->at[i + 1] - all->at[i];
        if (took < least[i] || took > most[i] + 700)
            fail_msg("pause %d took %lld ms, not %d to %d", i + 1, (long long)took, least[i],
                     most[i]);
    }
}

static void pauses_follow_backoff_and_jitter(void **state)
{
    key name = fresh_key("pauses");
    syncguard_grant holder = take(name.text, 60000);
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = 4;
    options.retry_delay_ms = 40;
    options.timeout_ms = 60000;
    options.jitter = SYNCGUARD_JITTER_NONE;
    pauses all;
    helper_wait_in_vain(name.text, &options, &all, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    check_pauses(&all, 4, (int[]){39, 79, 159, 319}, (int[]){40, 80, 160, 320});
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    helper_wait_in_vain(name.text, &options, &all, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    check_pauses(&all, 4, (int[]){39, 39, 39, 39}, (int[]){40, 40, 40, 40});
    options.jitter = SYNCGUARD_JITTER_EQUAL;
    helper_wait_in_vain(name.text, &options, &all, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    check_pauses(&all, 4, (int[]){19, 19, 19, 19}, (int[]){40, 40, 40, 40});
    options.jitter = SYNCGUARD_JITTER_FULL;
    helper_wait_in_vain(name.text, &options, &all, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    check_pauses(&all, 4, (int[]){0, 0, 0, 0}, (int[]){40, 40, 40, 40});
    give_back(&holder);
}

static void bad_lock_options_are_refused(void **state)
{
    key name = fresh_key("bad-options");
    (void)state;
    syncguard_lock_options good = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock_options bad[13];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        bad[i] = good;
    bad[0].size = 4;
    bad[1].size = 0;
    bad[2].ttl_ms = 0;
    bad[3].max_retries = -2;
    bad[4].retry_delay_ms = -1;
    bad[5].timeout_ms = -2;
    bad[6].max_hold_ms = -1;
    bad[7].backoff = (syncguard_backoff)7;
    bad[8].jitter = (syncguard_jitter)7;
    bad[9].on_lost = (syncguard_lost_fn)abort; /* needs auto_extend; never called */
    bad[10].ttl_ms = -7;
    bad[11].min_hold_ms = -1;
    bad[12].min_hold_ms = INT64_MAX;
    syncguard_lock *lock = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        print_message("    bad options %zu\n", i);
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_lock_acquire(store, name.text, &bad[i], &lock, &err));
        assert_null(lock);
    }
    check_locked(name.text, false);
}

static void try_answers_locked_at_once(void **state)
{
    key name = fresh_key("try");
    syncguard_grant holder = take(name.text, 60000);
    syncguard_lock *lock = (syncguard_lock *)&err;
    int64_t started = test_now_ms();
    (void)state;
    assert_status(SYNCGUARD_LOCKED, syncguard_lock_try(store, name.text, NULL, &lock, &err));
    assert_null(lock);
    assert_int_equal(err.code, SYNCGUARD_OK);
    assert_at_most(1500, test_now_ms() - started);
    give_back(&holder);
    assert_status(SYNCGUARD_OK, syncguard_lock_try(store, name.text, NULL, &lock, &err));
    assert_non_null(lock);
    syncguard_lock_dispose(lock);
    check_locked(name.text, false);
}

typedef struct job {
    const char *name;
    int result;
    int ran;
    bool held_inside;
    bool locked_inside;
    bool release_inside;
    syncguard_abort *trigger;
} job;

static int helper_job_run(void *context, syncguard_lock *lock)
{
    job *task = context;
    task->ran++;
    task->held_inside = syncguard_lock_held(lock);
    syncguard_error mine;
    if (syncguard_is_locked(store, task->name, NULL, &task->locked_inside, &mine) != SYNCGUARD_OK)
        task->locked_inside = false;
    if (task->release_inside)
        syncguard_lock_release(lock, NULL, &mine);
    syncguard_abort_trigger(task->trigger);
    return task->result;
}

static void callback_form_runs_and_releases(void **state)
{
    key name = fresh_key("callback");
    job task = {.name = name.text, .result = 0};
    (void)state;
    int result = -1;
    for (int i = 0; i < 3; i++) {
        task.result = i * 21; /* also results that an application would call a failure */
        assert_status(SYNCGUARD_OK, syncguard_with_lock(store, name.text, NULL, helper_job_run,
                                                        &task, &result, &err));
        assert_int_equal(result, task.result);
        assert_true(task.held_inside && task.locked_inside);
        check_locked(name.text, false);
    }
    assert_int_equal(task.ran, 3);
    task.release_inside = true;
    assert_status(SYNCGUARD_OK,
                  syncguard_with_lock(store, name.text, NULL, helper_job_run, &task, NULL, &err));
    check_locked(name.text, false);
}

static void callback_form_does_not_run_without_the_lock(void **state)
{
    key name = fresh_key("not-run");
    syncguard_grant holder = take(name.text, 60000);
    job task = {.name = name.text};
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 60;
    int result = 77;
    assert_status(
        SYNCGUARD_E_ACQUISITION_TIMEOUT,
        syncguard_with_lock(store, name.text, &options, helper_job_run, &task, &result, &err));
    assert_int_equal(task.ran, 0);
    check_locked(name.text, true);
    give_back(&holder);
}

static void abort_inside_the_work_does_not_stop_the_release(void **state)
{
    key name = fresh_key("abort-work");
    job task = {.name = name.text, .result = 5};
    (void)state;
    syncguard_abort *abort_object = NULL;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&abort_object, &err));
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.abort_object = abort_object;
    task.trigger = abort_object;
    int result = 0;
    assert_status(SYNCGUARD_OK, syncguard_with_lock(store, name.text, &options, helper_job_run,
                                                    &task, &result, &err));
    assert_int_equal(result, 5);
    check_locked(name.text, false);
    syncguard_abort_free(abort_object);
}

static bool early_return(const char *name, int way)
{
    SYNCGUARD_SCOPED syncguard_lock *lock = NULL;
    if (syncguard_lock_try(store, name, NULL, &lock, &err) != SYNCGUARD_OK)
        return false;
    for (int i = 0; i < 2; i++) {
        if (way == 0)
            return true;
        if (way == 1)
            break;
    }
    return true;
}

static void scope_form_releases_on_every_way_out(void **state)
{
    key name = fresh_key("scope");
    (void)state;
    for (int way = 0; way < 3; way++) {
        assert_true(early_return(name.text, way));
        check_locked(name.text, false);
    }
    /* A scope without a lock disposes of nothing. */
    syncguard_grant holder = take(name.text, 30000);
    assert_false(early_return(name.text, 0));
    check_locked(name.text, true);
    give_back(&holder);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ten_retries_are_eleven_attempts),
    cmocka_unit_test(retries_used_up_is_acquisition_timeout),
    cmocka_unit_test(zero_retries_or_timeout_is_one_attempt),
    cmocka_unit_test(timeout_ends_the_waiting),
    cmocka_unit_test(pauses_follow_backoff_and_jitter),
    cmocka_unit_test(bad_lock_options_are_refused),
    cmocka_unit_test(try_answers_locked_at_once),
    cmocka_unit_test(callback_form_runs_and_releases),
    cmocka_unit_test(callback_form_does_not_run_without_the_lock),
    cmocka_unit_test(abort_inside_the_work_does_not_stop_the_release),
    cmocka_unit_test(scope_form_releases_on_every_way_out),
};
const contract_group helper_group = {"helper", tests, sizeof tests / sizeof tests[0]};
