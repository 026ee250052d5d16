/*
 * Requests of a completion queue that share a round trip, over a fake backend. The acquire of
 * "gate" occupies the only worker until the requests of a batch are READY.
 */
#include <poll.h>
#include <sys/resource.h>

#include "fake_backend.h"
#include "syncguard/queue.h"
#include "test_assert.h"

#define WIDTH 20

static syncguard_error err;
static atomic_bool gate_closed; /* the acquire of "gate" hangs */
static atomic_bool hangs;       /* all other operations hang */
static fake_backend *fake;
static syncguard_queue *queue;
static syncguard_lock *locks[WIDTH];
static syncguard_lock *held[4 * WIDTH]; /* by this test, until the end; NULL: an unused entry */

static syncguard_status batch_hang_operation(atomic_bool *flag, const syncguard_limits *limits,
                                             syncguard_error *error)
{
    syncguard_status status = SYNCGUARD_OK;
    while (status == SYNCGUARD_OK && atomic_load(flag))
        status = syncguard_wait_until(syncguard_clock_ns() + SYNCGUARD_NS_PER_MS, limits, error);
    return status;
}

static syncguard_status on_acquire(fake_backend *p, syncguard_acquire_op *op,
                                   syncguard_error *error)
{
    (void)p;
    if (strcmp(op->key, "gate") == 0)
        return batch_hang_operation(&gate_closed, &op->limits, error);
    if (strcmp(op->key, "down") == 0)
        return syncguard_fail(error, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "down");
    return batch_hang_operation(&hangs, &op->limits, error);
}

static syncguard_status on_release(fake_backend *p, syncguard_release_op *op,
                                   syncguard_error *error)
{
    (void)p;
    return batch_hang_operation(&hangs, &op->limits, error);
}

static int open_all(void **state)
{
    (void)state;
    syncguard_queue_options options = SYNCGUARD_QUEUE_OPTIONS_INIT;
    options.max_threads = 1;
    atomic_store(&gate_closed, false);
    atomic_store(&hangs, false);
    fake = fake_backend_open_many(NULL);
    fake->on_acquire = on_acquire;
    fake->on_release = on_release;
    return syncguard_queue_open(&fake->base, &options, &queue, &err) == SYNCGUARD_OK ? 0 : 1;
}

/* Puts a lock in the entry of another. */
static void replace_held(const syncguard_lock *old, syncguard_lock *lock)
{
    size_t i = 0;
    while (i < 4 * WIDTH && held[i] != old)
        i++;
    assert_true(i < 4 * WIDTH);
    held[i] = lock;
}

static void batch_dispose_lock(syncguard_lock *lock)
{
    replace_held(lock, NULL);
    syncguard_lock_dispose(lock);
}

static int close_all(void **state)
{
    (void)state;
    atomic_store(&hangs, false);
    for (size_t i = 0; i < 4 * WIDTH; i++) {
        syncguard_lock_dispose(held[i]);
        held[i] = NULL;
    }
    syncguard_queue_close(queue);
    syncguard_close(&fake->base);
    return 0;
}

static syncguard_completion batch_take_completion(syncguard_completion_kind kind,
                                                  syncguard_status status)
{
    syncguard_completion done;
    struct pollfd fd = {syncguard_queue_fd(queue), POLLIN, 0};
    assert_int_equal(poll(&fd, 1, 30000), 1);
    assert_true(syncguard_queue_next(queue, &done));
    if (done.status != status)
        print_message("%s\n", done.error.message);
    assert_int_equal(done.kind, kind);
    assert_int_equal(done.status, status);
    assert_int_equal(done.error.code, status < SYNCGUARD_OK ? status : SYNCGUARD_OK);
    if (done.lock != NULL)
        replace_held(NULL, done.lock);
    return done;
}

static syncguard_request batch_start_acquire(const char *key, const syncguard_lock_options *options)
{
    syncguard_request request = 0;
    assert_int_equal(syncguard_lock_acquire_async(queue, key, options, NULL, &request, &err),
                     SYNCGUARD_OK);
    return request;
}

static syncguard_request batch_start_release(syncguard_lock *lock)
{
    syncguard_request request = 0;
    assert_int_equal(syncguard_lock_release_async(queue, lock, NULL, NULL, &request, &err),
                     SYNCGUARD_OK);
    replace_held(lock, NULL);
    return request;
}

static void close_gate(void)
{
    int before = atomic_load(&fake->acquires);
    atomic_store(&gate_closed, true);
    batch_start_acquire("gate", NULL);
    assert_true(wait_for_count(&fake->acquires, before + 1));
}

/* All requests that were started since close_gate form one batch; returns when it has begun. */
static void open_gate(void)
{
    int before = atomic_load(&fake->many_batches);
    atomic_store(&gate_closed, false);
    batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK);
    assert_true(wait_for_count(&fake->many_batches, before + 1));
}

static void acquire_width(void)
{
    char key[16];
    close_gate();
    for (int i = 0; i < WIDTH; i++) {
        snprintf(key, sizeof key, "k%d", i);
        batch_start_acquire(key, NULL);
    }
    open_gate();
    for (int i = 0; i < WIDTH; i++)
        locks[i] = batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK).lock;
}

static void ready_requests_share_a_round_trip(void **state)
{
    (void)state;
    acquire_width();
    assert_int_equal(atomic_load(&fake->many_largest), WIDTH);
    close_gate();
    for (int i = 0; i < WIDTH; i++)
        batch_start_release(locks[i]);
    batch_start_acquire("k", NULL);
    open_gate();
    for (int i = 0; i < WIDTH; i++)
        batch_take_completion(SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_OK);
    batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK);
    assert_int_equal(atomic_load(&fake->many_largest), WIDTH + 1);
    assert_int_equal(atomic_load(&fake->many_batches), 2);
    assert_int_equal(atomic_load(&fake->releases), WIDTH);
}

static void batched_requests_have_own_outcomes(void **state)
{
    (void)state;
    close_gate();
    batch_start_acquire("a", NULL);
    batch_start_acquire("down", NULL);
    batch_start_acquire("b", NULL);
    open_gate();
    batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK);
    batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_SERVICE_UNAVAILABLE);
    batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK);
}

/* The heartbeat that renews the locks cannot be started. Nothing is sent for these requests, and
 * they complete and are freed while the rest of their batch is still in progress. */
static void those_that_cannot_begin_fail_alone(void **state)
{
    (void)state;
    struct rlimit limit;
    syncguard_lock_options renewed = SYNCGUARD_LOCK_OPTIONS_INIT;
    renewed.auto_extend = true;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    struct rlimit none = limit;
    none.rlim_cur = 3;
    for (int round = 0; round < 200; round++) {
        close_gate();
        for (int i = 1; i < WIDTH; i++)
            batch_start_acquire("k", &renewed);
        batch_start_acquire("last", NULL);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        atomic_store(&gate_closed, false);
        syncguard_lock *first =
            batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK).lock;
        for (int i = 1; i < WIDTH; i++)
            batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_RATE_LIMITED);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        batch_dispose_lock(first);
        batch_dispose_lock(batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK).lock);
    }
    assert_int_equal(atomic_load(&fake->many_largest), 1);
}

/* The other requests of its batch still hang at that time, and get their locks afterwards. */
static void a_cancelled_acquire_completes_at_once(void **state)
{
    (void)state;
    close_gate();
    batch_start_acquire("a", NULL);
    syncguard_request request = batch_start_acquire("b", NULL);
    batch_start_acquire("c", NULL);
    atomic_store(&hangs, true);
    open_gate();
    assert_true(syncguard_queue_cancel(queue, request));
    assert_true(syncguard_queue_cancel(queue, request));
    syncguard_completion done =
        batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ABORTED);
    assert_true(done.request == request);
    assert_null(done.lock);
    assert_false(syncguard_queue_cancel(queue, request));
    assert_int_equal(atomic_load(&fake->releases), 0);
    atomic_store(&hangs, false);
    batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK);
    batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK);
    assert_true(wait_for_count(&fake->releases, 1)); /* the grant is released */
}

static void a_cancelled_release_completes_at_once(void **state)
{
    (void)state;
    acquire_width();
    close_gate();
    syncguard_request request = batch_start_release(locks[0]);
    batch_start_release(locks[1]);
    atomic_store(&hangs, true);
    open_gate();
    assert_true(syncguard_queue_cancel(queue, request));
    assert_true(batch_take_completion(SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_E_ABORTED).request ==
                request);
    atomic_store(&hangs, false);
    batch_take_completion(SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_OK);
    assert_int_equal(atomic_load(&fake->releases), 2);
}

/* Requests with other deadlines are not in the batch, and do not wait for it. */
static void a_hung_batch_ends_in_time(void **state)
{
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(400);
    syncguard_lock_options earlier = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(200);
    close_gate();
    int64_t begun = syncguard_clock_ns();
    for (int i = 0; i < WIDTH; i++)
        batch_start_acquire("k", &options);
    batch_start_acquire("e", &earlier);
    atomic_store(&hangs, true);
    open_gate();
    batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    int64_t first_ns = syncguard_clock_ns() - begun;
    for (int i = 0; i < WIDTH; i++)
        batch_take_completion(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    int64_t last_ns = syncguard_clock_ns() - begun;
    assert_true(first_ns >= 200 * SYNCGUARD_NS_PER_MS && first_ns < last_ns);
    assert_in_range(last_ns / SYNCGUARD_NS_PER_MS, 400, 1500);
}

/* A renewal has claimed one of the locks. */
static void a_release_that_has_to_wait_holds_up_nobody(void **state)
{
    (void)state;
    acquire_width();
    close_gate();
    assert_true(sg_lock_try_claim(locks[0]));
    for (int i = 0; i < WIDTH; i++)
        batch_start_release(locks[i]);
    open_gate();
    for (int i = 1; i < WIDTH; i++)
        batch_take_completion(SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_OK);
    sg_lock_unclaim(locks[0]);
    batch_take_completion(SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_OK);
}

/* Renewals have claimed two of the locks; the other one is released all the same. */
static void a_cancel_ends_no_other_release_that_has_to_wait(void **state)
{
    (void)state;
    acquire_width();
    close_gate();
    assert_true(sg_lock_try_claim(locks[0]));
    assert_true(sg_lock_try_claim(locks[1]));
    syncguard_request requests[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        requests[i] = batch_start_release(locks[i]);
    open_gate();
    for (int i = 2; i < WIDTH; i++)
        batch_take_completion(SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_OK);
    test_sleep_ms(50);
    assert_true(syncguard_queue_cancel(queue, requests[0]));
    sg_lock_unclaim(locks[0]);
    assert_true(batch_take_completion(SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_E_ABORTED).request ==
                requests[0]);
    test_sleep_ms(50);
    sg_lock_unclaim(locks[1]);
    assert_true(batch_take_completion(SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_OK).request ==
                requests[1]);
}

static void close_ends_a_hung_batch(void **state)
{
    for (int cancelled = 0; cancelled < 2; cancelled++) {
        syncguard_request requests[WIDTH];
        close_gate();
        for (int i = 0; i < WIDTH; i++)
            requests[i] = batch_start_acquire("k", NULL);
        atomic_store(&hangs, true);
        open_gate();
        for (int i = 0; i < WIDTH && cancelled != 0; i++)
            assert_true(syncguard_queue_cancel(queue, requests[i]));
        int64_t begun = syncguard_clock_ns();
        syncguard_queue_close(queue);
        queue = NULL;
        assert_true(syncguard_clock_ns() - begun < 1000 * SYNCGUARD_NS_PER_MS);
        close_all(state);
        assert_int_equal(open_all(state), 0);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ready_requests_share_a_round_trip),
        TEST(batched_requests_have_own_outcomes),
        TEST(those_that_cannot_begin_fail_alone),
        TEST(a_cancelled_acquire_completes_at_once),
        TEST(a_cancelled_release_completes_at_once),
        TEST(a_hung_batch_ends_in_time),
        TEST(a_release_that_has_to_wait_holds_up_nobody),
        TEST(a_cancel_ends_no_other_release_that_has_to_wait),
        TEST(close_ends_a_hung_batch),
    };
    return cmocka_run_group_tests_name("queue batch", tests, NULL, NULL);
}
