/*
 * The completion queue over the memory backend and over a fake backend.
 *
 * Interleavings that are made here on purpose:
 *   - cancel: in the ready list, in flight, waiting, granted or failed and not taken, taken
 *   - deadline: in the ready list behind a hung try, waiting, behind an extend
 *   - release: behind an extend in flight, of a lost lock, cancelled, of a blocking lock
 */
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_backend.h"
#include "syncguard/memory.h"
#include "syncguard/queue.h"
#include "test_assert.h"

static syncguard_error err;

static syncguard_queue *queue_open_on(syncguard_backend *backend, int max_threads)
{
    syncguard_queue_options options = SYNCGUARD_QUEUE_OPTIONS_INIT;
    syncguard_queue *queue = NULL;
    options.max_threads = max_threads;
    assert_int_equal(syncguard_queue_open(backend, &options, &queue, &err), SYNCGUARD_OK);
    return queue;
}

static syncguard_backend *queue_open_memory(void)
{
    syncguard_backend *backend = NULL;
    assert_int_equal(syncguard_memory_open(NULL, &backend, &err), SYNCGUARD_OK);
    return backend;
}

static bool queue_is_readable(const syncguard_queue *queue, int timeout_ms)
{
    struct pollfd fd = {syncguard_queue_fd(queue), POLLIN, 0};
    return poll(&fd, 1, timeout_ms) == 1;
}

/* Takes the next completion, which must be of this kind and status. */
static syncguard_completion queue_take_completion(syncguard_queue *queue,
                                                  syncguard_completion_kind kind,
                                                  syncguard_status status)
{
    syncguard_completion done;
    assert_true(queue_is_readable(queue, 30000));
    assert_true(syncguard_queue_next(queue, &done));
    if (done.status != status)
        print_message("%s\n", done.error.message);
    assert_int_equal(done.kind, kind);
    assert_int_equal(done.status, status);
    assert_int_equal(done.error.code, status < SYNCGUARD_OK ? status : SYNCGUARD_OK);
    return done;
}

static syncguard_request queue_start_acquire(syncguard_queue *queue, const char *key,
                                             const syncguard_lock_options *options, void *context)
{
    syncguard_request request = 0;
    assert_int_equal(syncguard_lock_acquire_async(queue, key, options, context, &request, &err),
                     SYNCGUARD_OK);
    assert_true(request != 0);
    return request;
}

static syncguard_lock *queue_get_lock(syncguard_queue *queue, const char *key,
                                      const syncguard_lock_options *options)
{
    queue_start_acquire(queue, key, options, NULL);
    syncguard_lock *lock =
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK).lock;
    assert_non_null(lock);
    return lock;
}

static void queue_release_lock(syncguard_queue *queue, syncguard_lock *lock,
                               syncguard_status status)
{
    assert_int_equal(syncguard_lock_release_async(queue, lock, NULL, NULL, NULL, &err),
                     SYNCGUARD_OK);
    assert_null(queue_take_completion(queue, SYNCGUARD_COMPLETION_RELEASE, status).lock);
}

static bool queue_key_is_locked(syncguard_backend *backend, const char *key)
{
    bool locked = false;
    assert_int_equal(syncguard_is_locked(backend, key, NULL, &locked, &err), SYNCGUARD_OK);
    return locked;
}

/* A lock that is released in the background is gone soon. */
static void assert_free_soon(syncguard_backend *backend, const char *key)
{
    for (int i = 0; i < 3000 && queue_key_is_locked(backend, key); i++)
        test_sleep_ms(10);
    assert_false(queue_key_is_locked(backend, key));
}

/* ---- plain use ---- */

static void acquire_extend_release_complete(void **state)
{
    (void)state;
    int job = 0;
    syncguard_backend *backend = queue_open_memory();
    syncguard_queue *queue = queue_open_on(backend, 4);
    assert_false(queue_is_readable(queue, 0));
    syncguard_request request = queue_start_acquire(queue, "k", NULL, &job);
    syncguard_completion done =
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK);
    assert_true(done.request == request);
    assert_ptr_equal(done.context, &job);
    assert_true(syncguard_lock_held(done.lock));
    assert_string_equal(syncguard_lock_key(done.lock), "k");
    assert_true(queue_key_is_locked(backend, "k"));
    assert_false(queue_is_readable(queue, 0));
    assert_false(syncguard_queue_next(queue, &done));
    syncguard_lock *lock = done.lock;
    assert_false(syncguard_queue_cancel(queue, request));
    assert_int_equal(syncguard_lock_extend_async(queue, lock, 60000, NULL, &job, &request, &err),
                     SYNCGUARD_OK);
    done = queue_take_completion(queue, SYNCGUARD_COMPLETION_EXTEND, SYNCGUARD_OK);
    assert_ptr_equal(done.lock, lock);
    assert_true(done.expires_at_ms == syncguard_lock_expires_at_ms(lock));
    queue_release_lock(queue, lock, SYNCGUARD_OK);
    assert_false(queue_key_is_locked(backend, "k"));
    syncguard_queue_close(queue);
    syncguard_queue_close(NULL);
    syncguard_close(backend);
}

static void bad_arguments_start_nothing(void **state)
{
    (void)state;
    syncguard_backend *backend = queue_open_memory();
    syncguard_backend *other = queue_open_memory();
    syncguard_queue_options options = SYNCGUARD_QUEUE_OPTIONS_INIT;
    syncguard_queue *queue = NULL;
    options.max_threads = 0;
    assert_int_equal(syncguard_queue_open(backend, &options, &queue, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    options.max_threads = 65;
    assert_int_equal(syncguard_queue_open(backend, &options, &queue, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_queue_open(NULL, NULL, &queue, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_null(queue);
    queue = queue_open_on(backend, 1);
    assert_int_equal(syncguard_lock_acquire_async(NULL, "k", NULL, NULL, NULL, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_lock_acquire_async(queue, "", NULL, NULL, NULL, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_lock_acquire_async(queue, NULL, NULL, NULL, NULL, NULL),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    syncguard_lock_options lock_options = SYNCGUARD_LOCK_OPTIONS_INIT;
    lock_options.ttl_ms = 0;
    assert_int_equal(syncguard_lock_acquire_async(queue, "k", &lock_options, NULL, NULL, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    lock_options = (syncguard_lock_options)SYNCGUARD_LOCK_OPTIONS_INIT;
    assert_int_equal(syncguard_abort_create(&lock_options.abort_object, &err), SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_acquire_async(queue, "k", &lock_options, NULL, NULL, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = lock_options.abort_object;
    syncguard_lock *lock = queue_get_lock(queue, "k", NULL);
    assert_int_equal(syncguard_lock_release_async(queue, NULL, NULL, NULL, NULL, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_lock_release_async(queue, lock, &call, NULL, NULL, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_lock_extend_async(queue, lock, -1, NULL, NULL, NULL, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    syncguard_queue *second = queue_open_on(backend, 1);
    syncguard_queue *foreign = queue_open_on(other, 1);
    assert_int_equal(syncguard_lock_release_async(second, lock, NULL, NULL, NULL, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_lock_release_async(foreign, lock, NULL, NULL, NULL, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    queue_release_lock(queue, lock, SYNCGUARD_OK);
    assert_false(queue_is_readable(queue, 0));
    assert_false(syncguard_queue_cancel(queue, 0));
    assert_false(syncguard_queue_cancel(queue, 4711));
    assert_int_equal(syncguard_queue_fd(NULL), -1);
    assert_false(syncguard_queue_next(NULL, NULL));
    syncguard_queue_close(queue);
    syncguard_queue_close(second);
    syncguard_queue_close(foreign);
    syncguard_abort_free(lock_options.abort_object);
    syncguard_close(other);
    syncguard_close(backend);
}

/* One key, many waiters: each release grants one, in the order of the requests. */
static void waiters_get_it_one_after_the_other(void **state)
{
    (void)state;
    enum { MANY = 200 };
    static int jobs[MANY];
    syncguard_backend *backend = queue_open_memory();
    syncguard_queue *queue = queue_open_on(backend, 4);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    syncguard_lock *lock = queue_get_lock(queue, "k", &options);
    for (int i = 0; i < MANY; i++)
        queue_start_acquire(queue, "k", &options, &jobs[i]);
    for (int i = 0; i < MANY; i++) {
        syncguard_completion done;
        assert_int_equal(syncguard_lock_release_async(queue, lock, NULL, NULL, NULL, &err),
                         SYNCGUARD_OK);
        lock = NULL;
        for (int taken = 0; taken < 2; taken++) {
            assert_true(queue_is_readable(queue, 30000));
            assert_true(syncguard_queue_next(queue, &done));
            assert_int_equal(done.status, SYNCGUARD_OK);
            if (done.kind == SYNCGUARD_COMPLETION_ACQUIRE) {
                assert_null(lock);
                lock = done.lock;
                (*(int *)done.context)++;
            }
        }
        assert_non_null(lock);
    }
    for (int i = 0; i < MANY; i++)
        assert_int_equal(jobs[i], 1);
    queue_release_lock(queue, lock, SYNCGUARD_OK);
    syncguard_queue_close(queue);
    syncguard_close(backend);
}

/* Blocking and queued waiters of one key wake each other. */
static void blocking_locks_mix_with_the_queue(void **state)
{
    (void)state;
    syncguard_backend *backend = queue_open_memory();
    syncguard_queue *queue = queue_open_on(backend, 1);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(backend, "k", &options, &lock, &err), SYNCGUARD_OK);
    queue_start_acquire(queue, "k", &options, NULL);
    assert_false(queue_is_readable(queue, 50));
    assert_int_equal(syncguard_lock_extend_async(queue, lock, 5000, NULL, NULL, NULL, &err),
                     SYNCGUARD_OK);
    queue_take_completion(queue, SYNCGUARD_COMPLETION_EXTEND, SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_release(lock, NULL, &err), SYNCGUARD_OK);
    syncguard_lock_dispose(lock);
    lock = queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK).lock;
    syncguard_lock_dispose(lock);
    assert_int_equal(syncguard_lock_acquire(backend, "k", &options, &lock, &err), SYNCGUARD_OK);
    queue_release_lock(queue, lock, SYNCGUARD_OK);
    lock = queue_get_lock(queue, "k", NULL);
    syncguard_lock_detach(lock);
    assert_true(queue_key_is_locked(backend, "k"));
    syncguard_queue_close(queue);
    syncguard_close(backend);
}

/* ---- deadlines ---- */

static atomic_bool hangs;

/* A store that hangs until the deadline or abort of the operation. */
static syncguard_status queue_hang_operation(const syncguard_limits *limits, syncguard_error *error)
{
    syncguard_status status = SYNCGUARD_OK;
    while (status == SYNCGUARD_OK && atomic_load(&hangs))
        status = syncguard_wait_until(syncguard_clock_ns() + SYNCGUARD_NS_PER_MS, limits, error);
    return status;
}

static syncguard_status queue_hang_acquire(fake_backend *p, syncguard_acquire_op *op,
                                           syncguard_error *error)
{
    syncguard_status status = queue_hang_operation(&op->limits, error);
    op->fence = atomic_fetch_add(&p->fence, 1) + 1;
    return status;
}

static syncguard_status queue_hang_extend(fake_backend *p, syncguard_extend_op *op,
                                          syncguard_error *error)
{
    (void)p;
    return queue_hang_operation(&op->limits, error);
}

static syncguard_status queue_hang_release(fake_backend *p, syncguard_release_op *op,
                                           syncguard_error *error)
{
    (void)p;
    return queue_hang_operation(&op->limits, error);
}

static fake_backend *open_hanging(void)
{
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = queue_hang_acquire;
    p->on_release = queue_hang_release;
    atomic_store(&p->on_extend, queue_hang_extend);
    atomic_store(&hangs, false);
    return p;
}

/* Far more requests than threads, all in a store that hangs: each completes at its own deadline, in
 * the order of the deadlines. */
static void a_hung_store_delays_nothing_beyond_the_deadline(void **state)
{
    (void)state;
    enum { MANY = 100 };
    fake_backend *p = open_hanging();
    syncguard_queue *queue = queue_open_on(&p->base, 2);
    syncguard_call call = SYNCGUARD_CALL_INIT;
    syncguard_lock *extended = queue_get_lock(queue, "e", NULL);
    syncguard_lock *released = queue_get_lock(queue, "r", NULL);
    atomic_store(&hangs, true);
    int64_t begun = syncguard_clock_ns();
    for (int i = 0; i < MANY; i++) {
        syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(500 + i * 5);
        queue_start_acquire(queue, "k", &options, NULL);
    }
    call.timeout_ms = 100;
    assert_int_equal(syncguard_lock_extend_async(queue, extended, 60000, &call, NULL, NULL, &err),
                     SYNCGUARD_OK);
    call.timeout_ms = 200;
    assert_int_equal(syncguard_lock_release_async(queue, released, &call, NULL, NULL, &err),
                     SYNCGUARD_OK);
    assert_ptr_equal(
        queue_take_completion(queue, SYNCGUARD_COMPLETION_EXTEND, SYNCGUARD_E_NETWORK_TIMEOUT).lock,
        extended);
    queue_take_completion(queue, SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_E_NETWORK_TIMEOUT);
    for (int i = 0; i < MANY; i++) {
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ACQUISITION_TIMEOUT);
        assert_true(syncguard_clock_ns() - begun >= (500 + i * 5) * SYNCGUARD_NS_PER_MS);
    }
    assert_true(syncguard_clock_ns() - begun < 3000 * SYNCGUARD_NS_PER_MS);
    atomic_store(&hangs, false);
    queue_release_lock(queue, extended, SYNCGUARD_OK);
    syncguard_queue_close(queue);
    syncguard_close(&p->base);
}

static void a_waiting_acquire_ends_in_time(void **state)
{
    (void)state;
    syncguard_backend *backend = queue_open_memory();
    syncguard_queue *queue = queue_open_on(backend, 1);
    syncguard_lock *lock = queue_get_lock(queue, "k", NULL);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(100);
    queue_start_acquire(queue, "k", &options, NULL);
    queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    options = (syncguard_lock_options)SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 0;
    queue_start_acquire(queue, "k", &options, NULL);
    queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    options.timeout_ms = SYNCGUARD_WAIT_FOREVER;
    options.max_retries = 3;
    options.retry_delay_ms = 5;
    queue_start_acquire(queue, "k", &options, NULL);
    queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    queue_release_lock(queue, lock, SYNCGUARD_OK);
    syncguard_queue_close(queue);
    syncguard_close(backend);
}

static atomic_int refusals;

static syncguard_status refuse_some(fake_backend *p, syncguard_acquire_op *op,
                                    syncguard_error *error)
{
    if (atomic_fetch_sub(&refusals, 1) > 0)
        return syncguard_fail(error, SYNCGUARD_E_SERVICE_UNAVAILABLE, "X1", "refused");
    op->fence = atomic_fetch_add(&p->fence, 1) + 1;
    return SYNCGUARD_OK;
}

/* Failures are kept only as long as the waiting needs them. */
static void retry_unavailable_counts_as_in_the_blocking_call(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_queue *queue = queue_open_on(&p->base, 2);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    p->on_acquire = refuse_some;
    options.retry_delay_ms = 2;
    options.retry_unavailable = true;
    atomic_store(&refusals, 5);
    syncguard_lock *lock = queue_get_lock(queue, "k", &options);
    assert_int_equal(atomic_load(&p->acquires), 6);
    atomic_store(&refusals, 1000);
    queue_start_acquire(queue, "k", &options, NULL);
    syncguard_completion done =
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_string_equal(done.error.native, "X1");
    options.retry_unavailable = false;
    queue_start_acquire(queue, "k", &options, NULL);
    done =
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_string_equal(done.error.native, "X1");
    queue_release_lock(queue, lock, SYNCGUARD_OK);
    syncguard_queue_close(queue);
    syncguard_close(&p->base);
}

static syncguard_status locked_for_long(fake_backend *p, syncguard_acquire_op *op,
                                        syncguard_error *error)
{
    (void)p, (void)error;
    op->remaining_ms = 60000;
    op->armed_ms = 60000;
    return SYNCGUARD_LOCKED;
}

/* A waiter that becomes the first of its key needs no attempt, only the time of its next one. While
 * no worker is free to compute it, the waiter goes on waiting: it has not missed an attempt. */
static void a_waiter_with_nothing_to_try_misses_no_attempt(void **state)
{
    (void)state;
    syncguard_options slow = SYNCGUARD_OPTIONS_INIT;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(SYNCGUARD_WAIT_FOREVER);
    slow.timeout_ms = 1500;
    options.retry_delay_ms = 60000;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    options.jitter = SYNCGUARD_JITTER_NONE;
    syncguard_call call = test_call(60000);
    fake_backend *p = fake_backend_open(&slow);
    syncguard_queue *queue = queue_open_on(&p->base, 1);
    syncguard_lock *lock = queue_get_lock(queue, "held", NULL);
    p->on_release = queue_hang_release;
    p->on_acquire = locked_for_long;
    syncguard_request first = queue_start_acquire(queue, "k", &options, NULL);
    assert_true(wait_for_count(&p->watched, 1));
    syncguard_request second = queue_start_acquire(queue, "k", &options, NULL);
    assert_true(wait_for_count(&p->acquires, 4));
    atomic_store(&hangs, true);
    assert_int_equal(syncguard_lock_release_async(queue, lock, &call, NULL, NULL, &err),
                     SYNCGUARD_OK);
    assert_true(wait_for_count(&p->releases, 1));
    assert_true(syncguard_queue_cancel(queue, first));
    queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ABORTED);
    assert_false(queue_is_readable(queue, 2500));
    atomic_store(&hangs, false);
    queue_take_completion(queue, SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_OK);
    assert_true(syncguard_queue_cancel(queue, second));
    queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ABORTED);
    syncguard_queue_close(queue);
    syncguard_close(&p->base);
}

/* ---- cancel ---- */

static void cancel_in_every_state(void **state)
{
    (void)state;
    fake_backend *p = open_hanging();
    syncguard_queue *queue = queue_open_on(&p->base, 1);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(SYNCGUARD_WAIT_FOREVER);
    syncguard_request granted = queue_start_acquire(queue, "g", &options, NULL);
    assert_true(queue_is_readable(queue, 30000));
    assert_true(syncguard_queue_cancel(queue, granted)); /* granted, not taken */
    assert_true(syncguard_queue_cancel(queue, granted));
    assert_null(
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ABORTED).lock);
    assert_false(syncguard_queue_cancel(queue, granted));
    assert_true(wait_for_count(&p->releases, 1));
    syncguard_lock *lock = queue_get_lock(queue, "l", &options);
    syncguard_lock *other = queue_get_lock(queue, "o", &options);
    atomic_store(&hangs, true);
    int before = atomic_load(&p->acquires);
    syncguard_request flying = queue_start_acquire(queue, "k", &options, NULL);
    assert_true(wait_for_count(&p->acquires, before + 1));
    syncguard_request ready = queue_start_acquire(queue, "k", &options, NULL);
    syncguard_request extend = 0;
    syncguard_request behind = 0;
    syncguard_request released = 0;
    assert_int_equal(syncguard_lock_extend_async(queue, lock, 9000, NULL, NULL, &extend, &err),
                     SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_release_async(queue, lock, NULL, NULL, &behind, &err),
                     SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_release_async(queue, other, NULL, NULL, &released, &err),
                     SYNCGUARD_OK);
    assert_true(syncguard_queue_cancel(queue, ready));
    assert_true(
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ABORTED).request ==
        ready);
    assert_true(syncguard_queue_cancel(queue, extend));
    assert_null(
        queue_take_completion(queue, SYNCGUARD_COMPLETION_EXTEND, SYNCGUARD_E_ABORTED).lock);
    assert_true(syncguard_queue_cancel(queue, behind));
    assert_true(
        queue_take_completion(queue, SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_E_ABORTED).request ==
        behind);
    assert_true(syncguard_queue_cancel(queue, flying));
    assert_true(
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ABORTED).request ==
        flying);
    assert_true(wait_for_count(&p->releases, 3)); /* of `lock` in the background; of `other` */
    assert_true(syncguard_queue_cancel(queue, released)); /* in flight */
    assert_true(
        queue_take_completion(queue, SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_E_ABORTED).request ==
        released);
    atomic_store(&hangs, false);
    assert_true(wait_for_count(&p->releases, 4)); /* of `other`, in the background */
    lock = queue_get_lock(queue, "again", NULL);  /* the abort object of the worker is a new one */
    queue_release_lock(queue, lock, SYNCGUARD_OK);
    syncguard_queue_close(queue);
    syncguard_close(&p->base);
}

static void cancel_while_waiting(void **state)
{
    (void)state;
    syncguard_backend *backend = queue_open_memory();
    syncguard_queue *queue = queue_open_on(backend, 1);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(SYNCGUARD_WAIT_FOREVER);
    syncguard_lock *lock = queue_get_lock(queue, "k", &options);
    syncguard_request first = queue_start_acquire(queue, "k", &options, NULL);
    syncguard_request second = queue_start_acquire(queue, "k", &options, NULL);
    assert_false(queue_is_readable(queue, 50));
    assert_true(syncguard_queue_cancel(queue, first));
    assert_true(
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ABORTED).request ==
        first);
    queue_release_lock(queue, lock, SYNCGUARD_OK);
    syncguard_completion done =
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK);
    assert_true(done.request == second);
    queue_release_lock(queue, done.lock, SYNCGUARD_OK);
    assert_int_equal(syncguard_backend_waited_keys(backend), 0);
    syncguard_queue_close(queue);
    syncguard_close(backend);
}

static syncguard_status refuse_acquire(fake_backend *p, syncguard_acquire_op *op,
                                       syncguard_error *e)
{
    (void)p, (void)op;
    return syncguard_fail(e, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "the store is down");
}

/* An acquire that timed out, and one that failed. */
static void cancel_of_a_failure_that_was_not_taken(void **state)
{
    (void)state;
    fake_backend *p = open_hanging();
    syncguard_queue *queue = queue_open_on(&p->base, 1);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(1);
    atomic_store(&hangs, true);
    syncguard_request late = queue_start_acquire(queue, "k", &options, NULL);
    assert_true(queue_is_readable(queue, 30000));
    assert_true(syncguard_queue_cancel(queue, late));
    assert_true(syncguard_queue_cancel(queue, late));
    assert_true(
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ABORTED).request ==
        late);
    atomic_store(&hangs, false);
    p->on_acquire = refuse_acquire;
    syncguard_request failed = queue_start_acquire(queue, "k", NULL, NULL);
    assert_true(queue_is_readable(queue, 30000));
    assert_true(syncguard_queue_cancel(queue, failed));
    assert_true(
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ABORTED).request ==
        failed);
    assert_false(syncguard_queue_cancel(queue, failed));
    assert_false(queue_is_readable(queue, 0));
    syncguard_queue_close(queue);
    syncguard_close(&p->base);
}

/* ---- extend, release, loss ---- */

/* The release waits for an extend that was started before it, without a thread. */
static atomic_bool busy_hangs;
static atomic_int tries_of_free;
static _Atomic int64_t free_at_ns;

/* Key "busy" keeps its worker; "k" is held until free_at_ns, and its waiters are armed. */
static syncguard_status held_until(fake_backend *p, syncguard_acquire_op *op, syncguard_error *e)
{
    while (op->key[0] == 'b' && atomic_load(&busy_hangs))
        test_sleep_ms(1);
    int64_t left_ns = atomic_load(&free_at_ns) - syncguard_clock_ns();
    if (op->key[0] == 'b' || left_ns <= 0) {
        op->fence = (uint64_t)atomic_fetch_add(&p->fence, 1) + 1;
        if (op->key[0] == 'k')
            atomic_fetch_add(&tries_of_free, 1);
        return SYNCGUARD_OK;
    }
    (void)e;
    op->remaining_ms = left_ns / SYNCGUARD_NS_PER_MS + 1;
    op->armed_ms = 60000;
    return SYNCGUARD_LOCKED;
}

/* The lock expires; its first waiter is due, has no worker yet, and is cancelled: the second waiter
 * must try at once, not after its pause. */
static void an_expiry_is_not_forgotten_by_a_cancel(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = held_until;
    syncguard_queue *queue = queue_open_on(&p->base, 1);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(300000);
    options.retry_delay_ms = 120000;
    options.jitter = SYNCGUARD_JITTER_NONE;
    atomic_store(&free_at_ns, syncguard_clock_after(syncguard_clock_ns(), 2000));
    atomic_store(&tries_of_free, 0);
    int first = 1;
    syncguard_request request = queue_start_acquire(queue, "k", &options, &first);
    assert_true(wait_for_count(&p->watched, 1));
    int second = 2;
    queue_start_acquire(queue, "k", &options, &second);
    assert_true(wait_for_count(&p->acquires, 3));
    test_sleep_ms(500); /* both are armed */
    atomic_store(&busy_hangs, true);
    int busy = 3;
    queue_start_acquire(queue, "busy", NULL, &busy);
    while (syncguard_clock_ns() < atomic_load(&free_at_ns))
        test_sleep_ms(10);
    test_sleep_ms(1500); /* expired, with the tolerance: the first is ready, behind "busy" */
    assert_true(syncguard_queue_cancel(queue, request));
    int64_t begun = syncguard_clock_ns();
    atomic_store(&busy_hangs, false);
    for (int left = 3; left > 0; left--) {
        syncguard_completion done;
        assert_true(queue_is_readable(queue, 30000));
        assert_true(syncguard_queue_next(queue, &done));
        if (done.lock != NULL)
            syncguard_lock_dispose(done.lock);
    }
    assert_int_equal(atomic_load(&tries_of_free), 1);
    assert_in_range((syncguard_clock_ns() - begun) / SYNCGUARD_NS_PER_MS, 0, 20000);
    syncguard_queue_close(queue);
    syncguard_close(&p->base);
}

static void release_does_not_overtake_an_extend(void **state)
{
    (void)state;
    fake_backend *p = open_hanging();
    syncguard_queue *queue = queue_open_on(&p->base, 4);
    syncguard_lock *lock = queue_get_lock(queue, "k", NULL);
    atomic_store(&hangs, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(
            syncguard_lock_extend_async(queue, lock, 60000 + i, NULL, NULL, NULL, &err),
            SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_release_async(queue, lock, NULL, NULL, NULL, &err),
                     SYNCGUARD_OK);
    assert_true(wait_for_count(&p->extends, 1));
    test_sleep_ms(20);
    assert_int_equal(atomic_load(&p->extends), 1);
    assert_int_equal(atomic_load(&p->releases), 0);
    assert_int_equal(syncguard_lock_extend_async(queue, lock, 1000, NULL, NULL, NULL, &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    atomic_store(&hangs, false);
    for (int i = 0; i < 3; i++)
        assert_null(queue_take_completion(queue, SYNCGUARD_COMPLETION_EXTEND, SYNCGUARD_OK).lock);
    queue_take_completion(queue, SYNCGUARD_COMPLETION_RELEASE, SYNCGUARD_OK);
    assert_int_equal(atomic_load(&p->extends), 3);
    syncguard_queue_close(queue);
    syncguard_close(&p->base);
}

/* A release that ends early ends the extends before it: RELEASE is the last completion of its lock,
 * no matter what ends it. */
static void an_abandoned_release_ends_its_extends(void **state)
{
    (void)state;
    fake_backend *p = open_hanging();
    syncguard_queue *queue = queue_open_on(&p->base, 4);
    syncguard_call call = SYNCGUARD_CALL_INIT;
    syncguard_request request = 0;
    for (int cancels = 0; cancels < 2; cancels++) {
        syncguard_lock *lock = queue_get_lock(queue, "k", NULL);
        int extends = atomic_load(&p->extends);
        int releases = atomic_load(&p->releases);
        atomic_store(&hangs, true);
        call.timeout_ms = 60000;
        for (int i = 0; i < 2; i++)
            assert_int_equal(
                syncguard_lock_extend_async(queue, lock, 60000, &call, NULL, NULL, &err),
                SYNCGUARD_OK);
        assert_true(wait_for_count(&p->extends, extends + 1));
        call.timeout_ms = cancels != 0 ? 60000 : 100;
        assert_int_equal(syncguard_lock_release_async(queue, lock, &call, NULL, &request, &err),
                         SYNCGUARD_OK);
        if (cancels != 0)
            assert_true(syncguard_queue_cancel(queue, request));
        queue_take_completion(queue, SYNCGUARD_COMPLETION_EXTEND, SYNCGUARD_ABSENT);
        queue_take_completion(queue, SYNCGUARD_COMPLETION_EXTEND, SYNCGUARD_E_ABORTED);
        queue_take_completion(queue, SYNCGUARD_COMPLETION_RELEASE,
                              cancels != 0 ? SYNCGUARD_E_ABORTED : SYNCGUARD_E_NETWORK_TIMEOUT);
        atomic_store(&hangs, false);
        assert_true(wait_for_count(&p->releases, releases + 1));
    }
    syncguard_queue_close(queue);
    syncguard_close(&p->base);
}

static void a_lost_lock_is_one_completion(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_queue *queue = queue_open_on(&p->base, 2);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 2000; /* a loaded machine must renew before the lease ends */
    options.auto_extend = true;
    atomic_store(&p->on_extend, fake_extend_absent);
    int job = 0;
    syncguard_request request = queue_start_acquire(queue, "k", &options, &job);
    assert_true(queue_is_readable(queue, 30000));
    test_sleep_ms(1000); /* lost before the grant was taken */
    syncguard_lock *lock =
        queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK).lock;
    syncguard_completion done =
        queue_take_completion(queue, SYNCGUARD_COMPLETION_LOST, SYNCGUARD_ABSENT);
    assert_ptr_equal(done.lock, lock);
    assert_ptr_equal(done.context, &job);
    assert_true(done.request == request);
    assert_int_equal(done.lost, SYNCGUARD_LOST_ABSENT);
    assert_false(syncguard_queue_cancel(queue, request));
    assert_false(queue_is_readable(queue, 200));
    queue_release_lock(queue, lock, SYNCGUARD_ABSENT);
    queue_start_acquire(queue, "k", &options, &job);
    lock = queue_take_completion(queue, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK).lock;
    assert_true(queue_is_readable(queue, 30000)); /* LOST, withdrawn by the release */
    queue_release_lock(queue, lock, SYNCGUARD_ABSENT);
    assert_false(queue_is_readable(queue, 0));
    lock = queue_get_lock(queue, "k", &options); /* withdrawn by the blocking calls, too */
    assert_true(queue_is_readable(queue, 30000));
    syncguard_lock_dispose(lock);
    assert_false(queue_is_readable(queue, 0));
    options.ttl_ms = 60000;
    lock = queue_get_lock(queue, "k", &options);
    assert_int_equal(syncguard_lock_extend_async(queue, lock, 60000, NULL, NULL, NULL, &err),
                     SYNCGUARD_OK);
    queue_take_completion(queue, SYNCGUARD_COMPLETION_EXTEND, SYNCGUARD_ABSENT);
    queue_take_completion(queue, SYNCGUARD_COMPLETION_LOST, SYNCGUARD_ABSENT);
    queue_release_lock(queue, lock, SYNCGUARD_ABSENT);
    syncguard_queue_close(queue);
    syncguard_close(&p->base);
}

/* The lease ends during an extend that hangs: the loss is reported at once, not after the
 * extend. */
static void a_loss_does_not_wait_for_a_hung_extend(void **state)
{
    (void)state;
    fake_backend *p = open_hanging();
    syncguard_queue *queue = queue_open_on(&p->base, 2);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    options.ttl_ms = 1000;
    options.auto_extend = true;
    call.timeout_ms = 60000;
    atomic_store(&hangs, true);
    p->on_acquire = NULL;
    syncguard_lock *lock = queue_get_lock(queue, "k", &options);
    syncguard_request request = 0;
    assert_int_equal(syncguard_lock_extend_async(queue, lock, 60000, &call, NULL, &request, &err),
                     SYNCGUARD_OK);
    syncguard_completion done =
        queue_take_completion(queue, SYNCGUARD_COMPLETION_LOST, SYNCGUARD_ABSENT);
    assert_int_equal(done.lost, SYNCGUARD_LOST_UNCONFIRMED);
    assert_true(syncguard_queue_cancel(queue, request));
    queue_take_completion(queue, SYNCGUARD_COMPLETION_EXTEND, SYNCGUARD_E_ABORTED);
    atomic_store(&hangs, false);
    queue_release_lock(queue, lock, SYNCGUARD_OK);
    syncguard_queue_close(queue);
    syncguard_close(&p->base);
}

/* ---- close and fork ---- */

/* Requests in every state: in flight, ready, waiting, granted and not taken, held, lost and not
 * taken, releasing, extending. */
static syncguard_lock *fill_queue(fake_backend *p, syncguard_queue *queue)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(SYNCGUARD_WAIT_FOREVER);
    options.auto_extend = true;
    syncguard_lock *held = queue_get_lock(queue, "held", &options);
    syncguard_lock *extending = queue_get_lock(queue, "extending", &options);
    syncguard_lock *releasing = queue_get_lock(queue, "releasing", &options);
    queue_start_acquire(queue, "granted", &options, NULL);
    assert_true(queue_is_readable(queue, 30000));
    atomic_store(&hangs, true);
    int before = atomic_load(&p->extends);
    assert_int_equal(syncguard_lock_extend_async(queue, extending, 60000, NULL, NULL, NULL, &err),
                     SYNCGUARD_OK);
    assert_true(wait_for_count(&p->extends, before + 1));
    assert_int_equal(syncguard_lock_extend_async(queue, extending, 60000, NULL, NULL, NULL, &err),
                     SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_release_async(queue, extending, NULL, NULL, NULL, &err),
                     SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_release_async(queue, releasing, NULL, NULL, NULL, &err),
                     SYNCGUARD_OK);
    for (int i = 0; i < 8; i++)
        queue_start_acquire(queue, "k", &options, NULL);
    return held;
}

static void close_with_requests_in_every_state(void **state)
{
    (void)state;
    fake_backend *p = open_hanging();
    syncguard_queue *queue = queue_open_on(&p->base, 2);
    syncguard_lock *held = fill_queue(p, queue);
    int64_t begun = syncguard_clock_ns();
    syncguard_queue_close(queue);
    assert_true(syncguard_clock_ns() - begun < 3000 * SYNCGUARD_NS_PER_MS);
    atomic_store(&hangs, false);
    assert_true(wait_for_count(&p->releases, 3)); /* extending, releasing, granted */
    assert_true(syncguard_lock_held(held));
    assert_int_equal(syncguard_lock_release(held, NULL, &err), SYNCGUARD_OK);
    syncguard_lock_dispose(held);
    syncguard_close(&p->base);
}

static void close_frees_waiters(void **state)
{
    (void)state;
    syncguard_backend *backend = queue_open_memory();
    syncguard_queue *queue = queue_open_on(backend, 4);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(SYNCGUARD_WAIT_FOREVER);
    syncguard_lock *lock = queue_get_lock(queue, "k", &options);
    for (int i = 0; i < 100; i++)
        queue_start_acquire(queue, "k", &options, NULL);
    queue_start_acquire(queue, "granted", &options, NULL);
    assert_true(queue_is_readable(queue, 30000));
    syncguard_close(backend); /* the queue and the lock keep it open */
    sg_backend_ref(backend);
    syncguard_queue_close(queue);
    assert_int_equal(syncguard_backend_waited_keys(backend), 0);
    assert_free_soon(backend, "granted");
    syncguard_lock_dispose(lock);
    assert_false(queue_key_is_locked(backend, "k"));
    syncguard_close(backend);
}

static void in_a_forked_child_the_queue_is_empty(void **state)
{
    if (getenv("UNDER_MEMCHECK") != NULL)
        return; /* the requests that the parent's workers were processing are leaked in a child by
                   design */
    (void)state;
    fake_backend *p = open_hanging();
    syncguard_queue *queue = queue_open_on(&p->base, 2);
    syncguard_lock *held = fill_queue(p, queue);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        syncguard_completion done;
        bool right = syncguard_queue_fd(queue) == -1 && !syncguard_queue_next(queue, &done) &&
                     !syncguard_queue_cancel(queue, 1) &&
                     syncguard_lock_acquire_async(queue, "k", NULL, NULL, NULL, NULL) ==
                         SYNCGUARD_E_INVALID_ARGUMENT &&
                     syncguard_lock_release_async(queue, held, NULL, NULL, NULL, NULL) ==
                         SYNCGUARD_E_INVALID_ARGUMENT;
        syncguard_queue_close(queue);
        syncguard_lock_dispose(held);
        syncguard_close(&p->base);
        _exit(right ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(queue_is_readable(queue, 0));
    syncguard_queue_close(queue);
    atomic_store(&hangs, false);
    syncguard_lock_dispose(held);
    syncguard_close(&p->base);
}

/* ---- races ---- */

typedef struct taker {
    syncguard_queue *queue;
    atomic_int *left;
    atomic_int wrong;
} taker;

/* Takes completions; releases the grants among them. */
static void *queue_taker_run(void *argument)
{
    taker *mine = argument;
    syncguard_completion done;
    while (atomic_load(mine->left) > 0) {
        if (!syncguard_queue_next(mine->queue, &done)) {
            (void)queue_is_readable(mine->queue, 10);
            continue;
        }
        if (done.status != SYNCGUARD_OK) {
            atomic_fetch_add(&mine->wrong, 1);
        } else if (done.kind == SYNCGUARD_COMPLETION_ACQUIRE &&
                   syncguard_lock_release_async(mine->queue, done.lock, NULL, NULL, NULL, NULL) !=
                       SYNCGUARD_OK) {
            atomic_fetch_add(&mine->wrong, 1);
        }
        atomic_fetch_sub(mine->left, 1);
    }
    return NULL;
}

static void several_threads_take_completions(void **state)
{
    (void)state;
    enum { TAKERS = 4, ROUNDS = 2000 };
    atomic_int left = 2 * ROUNDS;
    pthread_t threads[TAKERS];
    taker takers[TAKERS];
    char key[16];
    syncguard_backend *backend = queue_open_memory();
    syncguard_queue *queue = queue_open_on(backend, 4);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    for (int i = 0; i < TAKERS; i++) {
        takers[i] = (taker){queue, &left, 0};
        threads[i] = test_start_thread(queue_taker_run, &takers[i]);
    }
    for (int i = 0; i < ROUNDS; i++) {
        snprintf(key, sizeof key, "k%d", i % 7);
        queue_start_acquire(queue, key, &options, NULL);
    }
    for (int i = 0; i < TAKERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(atomic_load(&takers[i].wrong), 0);
    }
    syncguard_queue_close(queue);
    syncguard_close(backend);
}

enum { DISPOSED = 8 };

static void *queue_dispose_locks(void *argument)
{
    syncguard_lock **locks = argument;
    for (int i = 0; i < DISPOSED; i++)
        syncguard_lock_dispose(locks[i]);
    return NULL;
}

/* Granted locks belong to the caller, who may dispose of them while the queue closes. */
static void dispose_meets_close(void **state)
{
    (void)state;
    syncguard_lock *locks[DISPOSED];
    pthread_t thread;
    char key[16];
    syncguard_backend *backend = queue_open_memory();
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    options.auto_extend = true;
    for (int round = 0; round < 50; round++) {
        syncguard_queue *queue = queue_open_on(backend, 1);
        for (int i = 0; i < DISPOSED; i++) {
            snprintf(key, sizeof key, "k%d", i);
            locks[i] = queue_get_lock(queue, key, &options);
        }
        thread = test_start_thread(queue_dispose_locks, locks);
        syncguard_queue_close(queue);
        pthread_join(thread, NULL);
    }
    syncguard_close(backend);
}

/* Two queues on one backend share its wait queue: no release is lost between them. */
static void two_queues_on_one_backend(void **state)
{
    (void)state;
    syncguard_backend *backend = queue_open_memory();
    syncguard_queue *queues[2] = {queue_open_on(backend, 1), queue_open_on(backend, 2)};
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    syncguard_lock *lock = queue_get_lock(queues[0], "k", &options);
    for (int i = 0; i < 500; i++) {
        syncguard_queue *from = queues[i % 2];
        syncguard_queue *to = queues[1 - i % 2];
        queue_start_acquire(to, "k", &options, NULL);
        queue_release_lock(from, lock, SYNCGUARD_OK);
        lock = queue_take_completion(to, SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK).lock;
    }
    syncguard_queue_close(queues[1]);
    queue_release_lock(queues[0], lock, SYNCGUARD_OK);
    syncguard_queue_close(queues[0]);
    syncguard_close(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(acquire_extend_release_complete),
        cmocka_unit_test(bad_arguments_start_nothing),
        cmocka_unit_test(waiters_get_it_one_after_the_other),
        cmocka_unit_test(blocking_locks_mix_with_the_queue),
        cmocka_unit_test(a_hung_store_delays_nothing_beyond_the_deadline),
        cmocka_unit_test(a_waiting_acquire_ends_in_time),
        cmocka_unit_test(retry_unavailable_counts_as_in_the_blocking_call),
        cmocka_unit_test(a_waiter_with_nothing_to_try_misses_no_attempt),
        cmocka_unit_test(cancel_in_every_state),
        cmocka_unit_test(cancel_while_waiting),
        cmocka_unit_test(cancel_of_a_failure_that_was_not_taken),
        cmocka_unit_test(an_expiry_is_not_forgotten_by_a_cancel),
        cmocka_unit_test(release_does_not_overtake_an_extend),
        cmocka_unit_test(an_abandoned_release_ends_its_extends),
        cmocka_unit_test(a_lost_lock_is_one_completion),
        cmocka_unit_test(a_loss_does_not_wait_for_a_hung_extend),
        cmocka_unit_test(close_with_requests_in_every_state),
        cmocka_unit_test(close_frees_waiters),
        cmocka_unit_test(in_a_forked_child_the_queue_is_empty),
        cmocka_unit_test(several_threads_take_completions),
        cmocka_unit_test(dispose_meets_close),
        cmocka_unit_test(two_queues_on_one_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
