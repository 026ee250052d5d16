/* The lock helper's counting and the wait queue. */

#include "fake_backend.h"
#include "test_assert.h"

/* attempts: eleven that are counted, and the one after joining if the store reports releases. */
static void check_ten_retries(fake_backend *p, int attempts)
{
    p->on_acquire = fake_acquire_locked;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 2;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    options.timeout_ms = SYNCGUARD_WAIT_FOREVER;
    syncguard_lock *lock = NULL;
    syncguard_error err;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, &err),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_null(lock);
    assert_int_equal(atomic_load(&p->acquires), attempts);
    assert_int_equal(atomic_load(&p->watched), attempts - 1);
}

/* I-LCK-02, I-LCK-03 */
static void retries_are_counted(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    check_ten_retries(p, 12);
    assert_int_equal(atomic_load(&p->unwatches), 1);
    syncguard_close(&p->base);
}

/* No release can be reported before the waiter joins, so there is nothing to miss. */
static void a_store_that_reports_nothing_is_not_tried_after_joining(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open_silent(NULL);
    check_ten_retries(p, 11);
    syncguard_close(&p->base);
    p = fake_backend_open_polled(NULL);
    check_ten_retries(p, 11);
    assert_int_equal(atomic_load(&p->unwatches), 1);
    syncguard_close(&p->base);
}

/* I-LCK-12 */
static void no_retries_mean_one_attempt(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = fake_acquire_locked;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;
    options.max_retries = 0;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_int_equal(atomic_load(&p->acquires), 1);
    assert_int_equal(syncguard_lock_try(&p->base, "k", NULL, &lock, NULL), SYNCGUARD_LOCKED);
    assert_int_equal(atomic_load(&p->acquires), 2);
    syncguard_close(&p->base);
}

/* Each of the two limits has its own message. */
static void the_message_says_what_ended_the_waiting(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = fake_acquire_locked;
    syncguard_lock_options few = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;
    syncguard_error err;
    few.retry_delay_ms = 1;
    few.timeout_ms = 60000;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &few, &lock, &err),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_non_null(strstr(err.message, "gave up after 10 retries ("));
    syncguard_lock_options brief = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(300);
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &brief, &lock, &err),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_non_null(strstr(err.message, "gave up after 3"));
    assert_null(strstr(err.message, "retr"));
    few.max_retries = 0;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &few, &lock, &err),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_non_null(strstr(err.message, "no retry"));
    syncguard_close(&p->base);
}

static syncguard_status down_twice(fake_backend *p, syncguard_acquire_op *op, syncguard_error *err)
{
    (void)op;
    if (atomic_load(&p->acquires) > 2)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "down");
}

/* I-LCK-07 */
static void unavailability_is_retried_if_asked(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = down_twice;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 1;
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL),
                     SYNCGUARD_E_SERVICE_UNAVAILABLE);
    atomic_store(&p->acquires, 0);
    options.retry_unavailable = true;
    syncguard_error err;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, &err), SYNCGUARD_OK);
    assert_int_equal(err.code, SYNCGUARD_OK); /* failures that were retried are not the outcome */
    assert_string_equal(err.message, "");
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static syncguard_status always_down(fake_backend *p, syncguard_acquire_op *op, syncguard_error *err)
{
    (void)p, (void)op;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "down");
}

/* I-LCK-03: the store never answered, so that is the outcome, not a busy lock. */
static void retries_used_up_on_a_store_that_is_down(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = always_down;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 1;
    options.max_retries = 3;
    options.retry_unavailable = true;
    syncguard_lock *lock = NULL;
    syncguard_error err;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, &err),
                     SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_string_equal(err.message, "down");
    assert_int_equal(atomic_load(&p->acquires), 4);
    options.max_retries = 0;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, &err),
                     SYNCGUARD_E_SERVICE_UNAVAILABLE);
    syncguard_close(&p->base);
}

static void waits_for(fake_backend *p, int64_t timeout_ms, syncguard_status wanted,
                      const char *message)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.retry_delay_ms = 5;
    options.retry_unavailable = true;
    options.timeout_ms = timeout_ms;
    syncguard_lock *lock = NULL;
    syncguard_error err;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, &err), wanted);
    assert_int_equal(err.code, wanted);
    if (message != NULL)
        assert_string_equal(err.message, message);
    /* The same without an error struct. */
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL), wanted);
    syncguard_close(&p->base);
}

static void a_wait_that_nobody_answers_ends_with_the_failure(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = always_down;
    waits_for(p, 100, SYNCGUARD_E_SERVICE_UNAVAILABLE, "down");
}

/* A store that should report releases is polled every second while it does not report. Such a poll
 * does not postpone the next retry. */
static void retries_longer_than_the_polls_are_counted(void **state)
{
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    (void)state;
    p->on_acquire = always_down;
    options.retry_unavailable = true;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    options.jitter = SYNCGUARD_JITTER_NONE;
    options.retry_delay_ms = 1300;
    options.max_retries = 1;
    options.timeout_ms = 6000;
    int64_t begun = syncguard_clock_ns();
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL),
                     SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_true(syncguard_clock_ns() - begun < 5000 * SYNCGUARD_NS_PER_MS);
    assert_in_range(atomic_load(&p->acquires), 2, 3);
    syncguard_close(&p->base);
}

static syncguard_status down_then_locked(fake_backend *p, syncguard_acquire_op *op,
                                         syncguard_error *err)
{
    return atomic_load(&p->acquires) <= 2 ? always_down(p, op, err) : SYNCGUARD_LOCKED;
}

static void a_lock_that_is_held_in_the_end_is_a_timeout(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = down_then_locked;
    waits_for(p, 100, SYNCGUARD_E_ACQUISITION_TIMEOUT, NULL);
}

static syncguard_status locked_then_down(fake_backend *p, syncguard_acquire_op *op,
                                         syncguard_error *err)
{
    return atomic_load(&p->acquires) <= 2 ? SYNCGUARD_LOCKED : always_down(p, op, err);
}

static void a_store_that_goes_down_meanwhile_is_the_outcome(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = locked_then_down;
    waits_for(p, 100, SYNCGUARD_E_SERVICE_UNAVAILABLE, "down");
}

/* I-LCK-06 */
static void timeout_ends_a_hanging_attempt(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = fake_acquire_hangs;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 80;
    syncguard_lock *lock = NULL;
    int64_t begun = syncguard_clock_ns();
    syncguard_error err;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, &err),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_in_range((syncguard_clock_ns() - begun) / SYNCGUARD_NS_PER_MS, 79, 2000);
    /* No answer has said that there is another owner. */
    assert_non_null(strstr(err.message, "the store did not answer"));
    syncguard_close(&p->base);
}

/* The last attempt is cut short by the end of the waiting: the answer before it counts. */
static syncguard_status locked_then_hang(fake_backend *p, syncguard_acquire_op *op,
                                         syncguard_error *err)
{
    return atomic_load(&p->acquires) <= 2 ? SYNCGUARD_LOCKED : fake_acquire_hangs(p, op, err);
}

static void an_attempt_that_is_cut_short_is_no_answer(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = fake_acquire_hangs;
    waits_for(p, 80, SYNCGUARD_E_NETWORK_TIMEOUT, NULL);
    p = fake_backend_open(NULL);
    p->on_acquire = locked_then_hang;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 1;
    options.retry_unavailable = true;
    options.timeout_ms = 80;
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    syncguard_close(&p->base);
}

static syncguard_status hang_twice(fake_backend *p, syncguard_acquire_op *op, syncguard_error *err)
{
    return atomic_load(&p->acquires) > 2 ? SYNCGUARD_OK : fake_acquire_hangs(p, op, err);
}

/* The deadline of one attempt is not the deadline of the waiting. */
static void attempts_that_hang_are_continued_only_if_asked(void **state)
{
    (void)state;
    syncguard_options quick = SYNCGUARD_OPTIONS_INIT;
    quick.timeout_ms = 30;
    fake_backend *p = fake_backend_open(&quick);
    p->on_acquire = hang_twice;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 1;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = SYNCGUARD_WAIT_FOREVER;
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL),
                     SYNCGUARD_E_NETWORK_TIMEOUT);
    atomic_store(&p->acquires, 0);
    options.retry_unavailable = true;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL), SYNCGUARD_OK);
    assert_int_equal(atomic_load(&p->acquires), 3);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* I-LCK-10 */
static void abort_ends_a_long_pause(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = fake_acquire_locked;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 5000;
    options.timeout_ms = 30000;
    assert_int_equal(syncguard_abort_create(&options.abort_object, NULL), SYNCGUARD_OK);
    pthread_t thread = test_trigger_soon(options.abort_object);
    syncguard_lock *lock = NULL;
    int64_t begun = syncguard_clock_ns();
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL),
                     SYNCGUARD_E_ABORTED);
    assert_in_range((syncguard_clock_ns() - begun) / SYNCGUARD_NS_PER_MS, 40, 2000);
    pthread_join(thread, NULL);
    syncguard_abort_free(options.abort_object);
    syncguard_close(&p->base);
}

/* A store with one lock, which reports its releases. */
static atomic_bool held;
static syncguard_status waiting_answer_acquire(fake_backend *p, syncguard_acquire_op *op,
                                               syncguard_error *err)
{
    (void)p, (void)op, (void)err;
    return atomic_exchange(&held, true) ? SYNCGUARD_LOCKED : SYNCGUARD_OK;
}

static syncguard_status free_one_lock(fake_backend *p, syncguard_release_op *op,
                                      syncguard_error *err)
{
    (void)p, (void)op, (void)err;
    atomic_store(&held, false);
    return SYNCGUARD_OK;
}

typedef struct worker {
    pthread_t thread;
    fake_backend *p;
    syncguard_status status;
} worker;

static void *waiting_worker_run(void *argument)
{
    worker *w = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 20000; /* only a wake-up can end the wait in time */
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = 60000;
    syncguard_lock *lock = NULL;
    w->status = syncguard_lock_acquire(&w->p->base, "k", &options, &lock, NULL);
    syncguard_lock_dispose(lock);
    return NULL;
}

#define CROWD 200

/* One try per release from this process, however many waiters there are. */
static void a_crowd_costs_one_try_per_release(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = waiting_answer_acquire;
    p->on_release = free_one_lock;
    atomic_store(&held, true);
    worker workers[CROWD];
    for (int i = 0; i < CROWD; i++) {
        workers[i] = (worker){.p = p};
        workers[i].thread = test_start_thread(waiting_worker_run, &workers[i]);
    }
    assert_true(wait_for_count(&p->acquires, CROWD)); /* each tries once by itself */
    test_sleep_ms(200);
    int before = atomic_load(&p->acquires);
    assert_in_range(before, CROWD, 2 * CROWD);
    atomic_store(&held, false);
    syncguard_backend_key_changed(&p->base, "k", 1);
    for (int i = 0; i < CROWD; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].status, SYNCGUARD_OK);
    }
    assert_in_range(atomic_load(&p->acquires) - before, CROWD, CROWD + CROWD / 10);
    syncguard_close(&p->base);
}

/* An event that arrives while the try is in flight must not be lost. */
static syncguard_status released_meanwhile(fake_backend *p, syncguard_acquire_op *op,
                                           syncguard_error *err)
{
    (void)err;
    if (!op->watch || atomic_load(&p->watched) > 1)
        return atomic_load(&p->watched) > 1 ? SYNCGUARD_OK : SYNCGUARD_LOCKED;
    syncguard_backend_key_changed(&p->base, "k", 1);
    return SYNCGUARD_LOCKED;
}

static void event_during_a_try_is_not_lost(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = released_meanwhile;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 20000;
    options.timeout_ms = 60000;
    syncguard_lock *lock = NULL;
    int64_t begun = syncguard_clock_ns();
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL), SYNCGUARD_OK);
    assert_true(syncguard_clock_ns() - begun < 5000 * SYNCGUARD_NS_PER_MS);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static int64_t dies_at_ns;
static syncguard_status dying_lock(fake_backend *p, syncguard_acquire_op *op, syncguard_error *err)
{
    (void)p, (void)err;
    int64_t left = dies_at_ns - syncguard_clock_ns();
    if (left <= 0)
        return SYNCGUARD_OK;
    op->remaining_ms = left / SYNCGUARD_NS_PER_MS + 1;
    return SYNCGUARD_LOCKED;
}

static void expiry_wakes_the_waiter(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = dying_lock;
    dies_at_ns = syncguard_clock_ns() + 300 * SYNCGUARD_NS_PER_MS;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 20000;
    options.timeout_ms = 60000;
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL), SYNCGUARD_OK);
    assert_true(syncguard_clock_ns() - dies_at_ns < 5000 * SYNCGUARD_NS_PER_MS);
    assert_in_range(atomic_load(&p->acquires), 3, 4);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* A woken waiter that gives up passes the event on. */
static void *give_up_soon(void *argument)
{
    worker *w = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 20000;
    options.timeout_ms = 300;
    syncguard_lock *lock = NULL;
    w->status = syncguard_lock_acquire(&w->p->base, "k", &options, &lock, NULL);
    syncguard_lock_dispose(lock);
    return NULL;
}

static atomic_bool break_next;
static syncguard_status fail_when_woken(fake_backend *p, syncguard_acquire_op *op,
                                        syncguard_error *err)
{
    (void)p, (void)op;
    if (atomic_exchange(&break_next, false))
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "broken");
    return atomic_exchange(&held, true) ? SYNCGUARD_LOCKED : SYNCGUARD_OK;
}

static void leaving_waiter_passes_the_event_on(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = fail_when_woken;
    p->on_release = free_one_lock;
    atomic_store(&held, true);
    worker first = {.p = p}, second = {.p = p};
    first.thread = test_start_thread(waiting_worker_run, &first);
    assert_true(wait_for_count(&p->acquires, 2));
    second.thread = test_start_thread(waiting_worker_run, &second);
    assert_true(wait_for_count(&p->acquires, 3));
    test_sleep_ms(100);
    atomic_store(&break_next, true);
    atomic_store(&held, false);
    syncguard_backend_key_changed(&p->base, "k", 1);
    pthread_join(first.thread, NULL);
    pthread_join(second.thread, NULL);
    assert_int_equal(first.status, SYNCGUARD_E_INTERNAL);
    assert_int_equal(second.status, SYNCGUARD_OK);
    worker third = {.p = p};
    atomic_store(&held, true);
    third.thread = test_start_thread(give_up_soon, &third);
    pthread_join(third.thread, NULL);
    assert_int_equal(third.status, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    syncguard_close(&p->base);
}

static syncguard_status release_unheard(fake_backend *p, syncguard_release_op *op,
                                        syncguard_error *err)
{
    (void)op;
    if (atomic_load(&p->releases) > 1)
        return SYNCGUARD_ABSENT;
    atomic_store(&held, false);
    return syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, NULL, "the reply was lost");
}

/* The second release, in the background, finds nothing: the first one did free the key. */
static void a_release_whose_reply_was_lost_wakes_too(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = waiting_answer_acquire;
    p->on_release = release_unheard;
    atomic_store(&held, false);
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", NULL, &lock, NULL), SYNCGUARD_OK);
    worker waiting = {.p = p};
    int64_t begun = syncguard_clock_ns();
    waiting.thread = test_start_thread(waiting_worker_run, &waiting);
    assert_true(wait_for_count(&p->watched, 1));
    test_sleep_ms(50);
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_E_NETWORK_TIMEOUT);
    pthread_join(waiting.thread, NULL);
    assert_int_equal(waiting.status, SYNCGUARD_OK);
    assert_true(syncguard_clock_ns() - begun < 9000 * SYNCGUARD_NS_PER_MS);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(retries_are_counted),
        cmocka_unit_test(a_store_that_reports_nothing_is_not_tried_after_joining),
        cmocka_unit_test(no_retries_mean_one_attempt),
        cmocka_unit_test(the_message_says_what_ended_the_waiting),
        cmocka_unit_test(unavailability_is_retried_if_asked),
        cmocka_unit_test(retries_used_up_on_a_store_that_is_down),
        cmocka_unit_test(retries_longer_than_the_polls_are_counted),
        cmocka_unit_test(a_wait_that_nobody_answers_ends_with_the_failure),
        cmocka_unit_test(a_lock_that_is_held_in_the_end_is_a_timeout),
        cmocka_unit_test(a_store_that_goes_down_meanwhile_is_the_outcome),
        cmocka_unit_test(timeout_ends_a_hanging_attempt),
        cmocka_unit_test(an_attempt_that_is_cut_short_is_no_answer),
        cmocka_unit_test(attempts_that_hang_are_continued_only_if_asked),
        cmocka_unit_test(abort_ends_a_long_pause),
        cmocka_unit_test(a_crowd_costs_one_try_per_release),
        cmocka_unit_test(event_during_a_try_is_not_lost),
        cmocka_unit_test(expiry_wakes_the_waiter),
        cmocka_unit_test(leaving_waiter_passes_the_event_on),
        cmocka_unit_test(a_release_whose_reply_was_lost_wakes_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
