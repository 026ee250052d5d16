/*
 * No descriptors, no threads: an acquire allocates what the grant needs before it asks the store,
 * and the error names the resource that is missing.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_backend.h"
#include "syncguard/queue.h"
#include "test_assert.h"

#define HANG_MS 30000

static atomic_bool no_threads;

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument)
{
    return atomic_load(&no_threads) ? EAGAIN
                                    : __real_pthread_create(thread, attributes, run, argument);
}

static void leave_descriptors(int spare)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 1000;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    int first = dup(0);
    assert_true(first >= 0);
    close(first);
    limit.rlim_cur = (rlim_t)(first + spare);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void shortage_ignore_loss(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)context, (void)lock, (void)reason;
}

static syncguard_status shortage_acquire_lock(fake_backend *p, syncguard_error *err)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;
    options.auto_extend = true;
    options.on_lost = shortage_ignore_loss;
    syncguard_status status = syncguard_lock_acquire(&p->base, "k", &options, &lock, err);
    syncguard_lock_dispose(lock);
    return status;
}

static void refused_before_the_store_is_asked(fake_backend *p, const char *word)
{
    syncguard_error err;
    int before = atomic_load(&p->acquires);
    assert_int_equal(shortage_acquire_lock(p, &err), SYNCGUARD_E_RATE_LIMITED);
    assert_non_null(strstr(err.message, word));
    assert_int_equal(atomic_load(&p->acquires), before);
    assert_int_equal(atomic_load(&p->undos), 0);
}

static void without_descriptors_nothing_is_asked_for(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    for (int spare = 0; spare < 2; spare++) { /* the renewer needs two */
        leave_descriptors(spare);
        refused_before_the_store_is_asked(p, "descriptor");
    }
    leave_descriptors(100);
    assert_int_equal(shortage_acquire_lock(p, NULL), SYNCGUARD_OK);
    /* They are available now. */
    leave_descriptors(0);
    assert_int_equal(shortage_acquire_lock(p, NULL), SYNCGUARD_OK);
    leave_descriptors(100);
    syncguard_close(&p->base);
}

static void without_threads_nothing_is_asked_for(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    atomic_store(&no_threads, true);
    refused_before_the_store_is_asked(p, "thread");
    atomic_store(&no_threads, false);
    assert_int_equal(shortage_acquire_lock(p, NULL), SYNCGUARD_OK);
    syncguard_close(&p->base);
}

static syncguard_completion shortage_next_completion(syncguard_queue *queue)
{
    syncguard_completion done;
    while (!syncguard_queue_next(queue, &done))
        test_sleep_ms(1);
    assert_int_equal(done.status, SYNCGUARD_OK);
    return done;
}

/* Opening needs descriptors and a thread; without a worker the timekeeper does the work. */
static void a_queue_that_is_open_needs_nothing_more(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_queue *queue = NULL;
    syncguard_error err;
    atomic_store(&no_threads, true);
    assert_int_equal(syncguard_queue_open(&p->base, NULL, &queue, &err), SYNCGUARD_E_RATE_LIMITED);
    assert_non_null(strstr(err.message, "thread"));
    atomic_store(&no_threads, false);
    leave_descriptors(0);
    assert_int_equal(syncguard_queue_open(&p->base, NULL, &queue, &err), SYNCGUARD_E_RATE_LIMITED);
    assert_non_null(strstr(err.message, "descriptor"));
    leave_descriptors(100);
    assert_int_equal(syncguard_queue_open(&p->base, NULL, &queue, &err), SYNCGUARD_OK);
    leave_descriptors(0);
    atomic_store(&no_threads, true);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(syncguard_lock_acquire_async(queue, "k", NULL, NULL, NULL, &err),
                         SYNCGUARD_OK);
        assert_int_equal(syncguard_lock_release_async(queue, shortage_next_completion(queue).lock,
                                                      NULL, NULL, NULL, &err),
                         SYNCGUARD_OK);
        (void)shortage_next_completion(queue);
    }
    atomic_store(&no_threads, false);
    leave_descriptors(100);
    syncguard_queue_close(queue);
    syncguard_close(&p->base);
}

/* Cancels a request that a thread is busy with; false if that did not end it. */
static bool cancel_in_flight(syncguard_queue *queue, fake_backend *p)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(HANG_MS);
    syncguard_request request = 0;
    int before = atomic_load(&p->acquires);
    int64_t begun_ns = syncguard_clock_ns();
    assert_int_equal(syncguard_lock_acquire_async(queue, "k", &options, NULL, &request, NULL),
                     SYNCGUARD_OK);
    assert_true(wait_for_count(&p->acquires, before + 1));
    assert_true(syncguard_queue_cancel(queue, request));
    syncguard_completion done = {0};
    while (!syncguard_queue_next(queue, &done))
        test_sleep_ms(1);
    return done.status == SYNCGUARD_E_ABORTED &&
           syncguard_clock_ns() - begun_ns < HANG_MS / 2 * SYNCGUARD_NS_PER_MS;
}

/* Repeatedly, by the timekeeper and by a worker that was started earlier. */
static void requests_are_cancelled_without_descriptors(void **state)
{
    (void)state;
    for (int workers = 0; workers < 2; workers++) {
        syncguard_options options = SYNCGUARD_OPTIONS_INIT;
        syncguard_queue *queue = NULL;
        options.timeout_ms = HANG_MS;
        fake_backend *p = fake_backend_open(&options);
        p->on_acquire = fake_acquire_hangs;
        assert_int_equal(syncguard_queue_open(&p->base, NULL, &queue, NULL), SYNCGUARD_OK);
        if (workers > 0)
            assert_true(cancel_in_flight(queue, p));
        leave_descriptors(0);
        for (int i = 0; i < 3; i++)
            assert_true(cancel_in_flight(queue, p));
        leave_descriptors(100);
        syncguard_queue_close(queue);
        syncguard_close(&p->base);
    }
}

static void *give_back_the_descriptors(void *argument)
{
    (void)argument;
    test_sleep_ms(200);
    leave_descriptors(100);
    return NULL;
}

/* A waiter that waits while the store lacks resources waits while the process lacks them as
 * well. */
static void a_patient_waiter_outlasts_it(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.auto_extend = true;
    options.retry_unavailable = true;
    leave_descriptors(0);
    pthread_t thread = test_start_thread(give_back_the_descriptors, NULL);
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL), SYNCGUARD_OK);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&p->acquires), 1);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static void telemetry_without_a_thread(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    syncguard_backend *outer = NULL;
    options.on_event = test_ignore_event;
    atomic_store(&no_threads, true);
    assert_int_equal(syncguard_telemetry_wrap(&p->base, &options, &outer, NULL),
                     SYNCGUARD_E_RATE_LIMITED);
    atomic_store(&no_threads, false);
    syncguard_close(&p->base);
}

/* The thread sanitizer does not follow a fork of a program with threads. */
#ifndef __SANITIZE_THREAD__
/* The first use there fails; the next one starts the thread, and events arrive. */
static void telemetry_without_a_thread_in_a_child(void **state)
{
    static atomic_int events;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    (void)state;
    options.on_event = test_count_event;
    options.on_event_context = &events;
    syncguard_backend *outer = NULL;
    assert_int_equal(syncguard_telemetry_wrap(&p->base, &options, &outer, NULL), SYNCGUARD_OK);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    bool locked = false;
    if (pid == 0) {
        alarm(20);
        atomic_store(&no_threads, true);
        if (syncguard_is_locked(outer, "k", NULL, &locked, NULL) != SYNCGUARD_E_RATE_LIMITED)
            _exit(1);
        atomic_store(&no_threads, false);
        if (syncguard_is_locked(outer, "k", NULL, &locked, NULL) != SYNCGUARD_OK)
            _exit(2);
        for (int i = 0; i < 10000 && atomic_load(&events) == 0; i++)
            test_sleep_ms(1);
        if (atomic_load(&events) != 1)
            _exit(3);
        syncguard_close(outer);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    syncguard_close(outer);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_descriptors_nothing_is_asked_for),
        cmocka_unit_test(without_threads_nothing_is_asked_for),
        cmocka_unit_test(a_queue_that_is_open_needs_nothing_more),
        cmocka_unit_test(requests_are_cancelled_without_descriptors),
        cmocka_unit_test(a_patient_waiter_outlasts_it),
        cmocka_unit_test(telemetry_without_a_thread),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(telemetry_without_a_thread_in_a_child),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
