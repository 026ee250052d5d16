/*
 * The telemetry decorator over a fake backend: failures, undoing and batches as events (I-TEL-09,
 * 11), one wait queue for both handles, the thread and its signals, closing and forking.
 */

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_backend.h"
#include "test_assert.h"

/* Events in the order of their arrival; the test reads them when there are enough. */
typedef struct record {
    atomic_int count;
    syncguard_event events[256];
    sigset_t blocked; /* in the thread of the decorator */
} record;

static void on_event(void *context, const syncguard_event *event)
{
    record *into = context;
    int at = atomic_load(&into->count);
    pthread_sigmask(SIG_BLOCK, NULL, &into->blocked);
    if (at < 256) {
        into->events[at] = *event;
        atomic_store(&into->count, at + 1);
    }
}

static syncguard_backend *telemetry_wrap_fake(fake_backend *p, record *into)
{
    memset(into, 0, sizeof *into);
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    options.on_event = on_event;
    options.on_event_context = into;
    syncguard_backend *decorated = NULL;
    assert_int_equal(syncguard_telemetry_wrap(&p->base, &options, &decorated, NULL), SYNCGUARD_OK);
    return decorated;
}

static void failures_and_undoing_are_events(void **state)
{
    static record seen;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_backend *decorated = telemetry_wrap_fake(p, &seen);
    (void)state;
    p->on_acquire = fake_acquire_unknown;
    p->on_undo = fake_undo_late;
    syncguard_grant grant;
    assert_int_equal(syncguard_acquire(decorated, "k", 30000, NULL, &grant, NULL),
                     SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_true(wait_for_count(&seen.count, 4)); /* the acquire, undo twice absent, undo */
    assert_int_equal(seen.events[0].type, SYNCGUARD_EVENT_ACQUIRE);
    assert_false(seen.events[0].ok);
    assert_int_equal(seen.events[0].error, SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_int_equal(seen.events[0].reason, SYNCGUARD_REASON_NONE);
    assert_string_equal(seen.events[0].lock_id_hash, "");
    char hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash("k", hash));
    for (int i = 0; i < 4; i++)
        assert_string_equal(seen.events[i].key_hash, hash);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(seen.events[i].type, SYNCGUARD_EVENT_RELEASE);
        assert_int_equal(seen.events[i].ok, i == 3);
        assert_int_equal(seen.events[i].reason,
                         i == 3 ? SYNCGUARD_REASON_NONE : SYNCGUARD_REASON_NOT_FOUND);
        assert_int_equal(strlen(seen.events[i].lock_id_hash), SYNCGUARD_HASH_CHARS);
    }
    syncguard_close(decorated);
}

static syncguard_status some_absent(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p;
    (void)err;
    op->reason = SYNCGUARD_REASON_EXPIRED;
    return op->lock_id[0] < 'Q' ? SYNCGUARD_OK : SYNCGUARD_ABSENT;
}

static void each_lock_of_a_batch_is_an_event(void **state)
{
    static record seen;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_backend *decorated = telemetry_wrap_fake(p, &seen);
    (void)state;
    atomic_store(&p->on_extend, some_absent);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.auto_extend = true;
    options.ttl_ms = 600;
    syncguard_lock *locks[20];
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(syncguard_lock_acquire(decorated, key, &options, &locks[i], NULL),
                         SYNCGUARD_OK);
    }
    assert_true(wait_for_count(&seen.count, 40)); /* each acquired, each extended once */
    int extends = 0;
    for (int i = 20; i < 40; i++) {
        const syncguard_event *event = &seen.events[i];
        if (event->type != SYNCGUARD_EVENT_EXTEND)
            continue;
        extends++;
        assert_int_equal(event->reason,
                         event->ok ? SYNCGUARD_REASON_NONE : SYNCGUARD_REASON_EXPIRED);
        assert_int_equal(strlen(event->lock_id_hash), SYNCGUARD_HASH_CHARS);
        assert_string_equal(event->key_hash, "");
    }
    assert_true(extends >= 20);
    assert_true(atomic_load(&p->batches) > 0);
    for (int i = 0; i < 20; i++)
        syncguard_lock_dispose(locks[i]);
    syncguard_close(decorated);
}

static atomic_bool is_free;

static syncguard_status locked_until_free(fake_backend *p, syncguard_acquire_op *op,
                                          syncguard_error *err)
{
    (void)p;
    (void)err;
    op->remaining_ms = 60000;
    return atomic_load(&is_free) ? SYNCGUARD_OK : SYNCGUARD_LOCKED;
}

typedef struct waiter {
    syncguard_backend *backend;
    syncguard_status status;
    syncguard_lock *lock;
} waiter;

static void *telemetry_wait_for_lock(void *context)
{
    waiter *self = context;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 20000;
    options.timeout_ms = 30000;
    self->status = syncguard_lock_acquire(self->backend, "k", &options, &self->lock, NULL);
    return NULL;
}

static void notifications_of_the_inner_backend_wake_the_outer(void **state)
{
    static record seen;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_backend *decorated = telemetry_wrap_fake(p, &seen);
    waiter one = {.backend = decorated};
    int64_t started = syncguard_clock_ns();
    (void)state;
    atomic_store(&is_free, false);
    p->on_acquire = locked_until_free;
    pthread_t thread = test_start_thread(telemetry_wait_for_lock, &one);
    assert_true(wait_for_count(&p->watched, 1));
    test_sleep_ms(50);
    atomic_store(&is_free, true);
    syncguard_backend_key_changed(&p->base, "k", 1); /* the store reports to the inner backend */
    pthread_join(thread, NULL);
    assert_int_equal(one.status, SYNCGUARD_OK);
    assert_true(syncguard_clock_ns() - started < 5000 * SYNCGUARD_NS_PER_MS);
    assert_int_equal(atomic_load(&p->unwatches), 1);
    syncguard_lock_dispose(one.lock);
    syncguard_close(decorated);
}

static int count_threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    int count = 0;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count - 2;
}

static void a_thread_only_for_a_callback(void **state)
{
    static record seen;
    fake_backend *p = fake_backend_open(NULL);
    int before = count_threads();
    (void)state;
    syncguard_backend *decorated = NULL;
    assert_int_equal(syncguard_telemetry_wrap(&p->base, NULL, &decorated, NULL), SYNCGUARD_OK);
    syncguard_grant grant;
    assert_int_equal(syncguard_acquire(decorated, "k", 30000, NULL, &grant, NULL), SYNCGUARD_OK);
    assert_int_equal(count_threads(), before);
    syncguard_close(decorated);
    p = fake_backend_open(NULL);
    decorated = telemetry_wrap_fake(p, &seen);
    assert_int_equal(count_threads(), before + 1);
    assert_int_equal(syncguard_acquire(decorated, "k", 30000, NULL, &grant, NULL), SYNCGUARD_OK);
    assert_true(wait_for_count(&seen.count, 1));
    for (int number = 1; number < 32; number++) {
        if (number != SIGKILL && number != SIGSTOP)
            assert_int_equal(sigismember(&seen.blocked, number), 1);
    }
    syncguard_close(decorated);
    assert_int_equal(count_threads(), before);
}

static void closing_delivers_what_is_queued(void **state)
{
    static record seen;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_backend *decorated = telemetry_wrap_fake(p, &seen);
    (void)state;
    bool locked = false;
    for (int i = 0; i < 200; i++)
        assert_int_equal(syncguard_is_locked(decorated, "k", NULL, &locked, NULL), SYNCGUARD_OK);
    syncguard_close(decorated);
    assert_int_equal(atomic_load(&seen.count), 200);
}

/* A release that the callback itself makes must neither deadlock nor be lost. */
typedef struct closer {
    syncguard_lock *lock;
    atomic_bool done;
} closer;

static void dispose_from_callback(void *context, const syncguard_event *event)
{
    closer *self = context;
    if (event->type != SYNCGUARD_EVENT_IS_LOCKED)
        return;
    syncguard_lock_dispose(self->lock); /* the last reference: closes the decorator */
    atomic_store(&self->done, true);
}

static void closing_from_the_callback(void **state)
{
    static closer self;
    fake_backend *p = fake_backend_open(NULL);
    int threads = count_threads();
    (void)state;
    atomic_bool destroyed = false;
    p->destroyed = &destroyed;
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    options.on_event = dispose_from_callback;
    options.on_event_context = &self;
    syncguard_backend *decorated = NULL;
    assert_int_equal(syncguard_telemetry_wrap(&p->base, &options, &decorated, NULL), SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_acquire(decorated, "k", NULL, &self.lock, NULL), SYNCGUARD_OK);
    bool locked = false;
    assert_int_equal(syncguard_is_locked(decorated, "k", NULL, &locked, NULL), SYNCGUARD_OK);
    syncguard_close(decorated);
    for (int i = 0; i < 5000 && !atomic_load(&self.done); i++)
        test_sleep_ms(1);
    assert_true(atomic_load(&self.done));
    assert_true(atomic_load(&destroyed));
    for (int i = 0; i < 2000 && count_threads() > threads; i++)
        test_sleep_ms(1);
    assert_int_equal(count_threads(), threads);
}

#ifndef __SANITIZE_THREAD__
static void a_child_counts_for_itself(void **state)
{
    static record seen;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_backend *decorated = telemetry_wrap_fake(p, &seen);
    (void)state;
    bool locked = false;
    for (int i = 0; i < 5; i++)
        assert_int_equal(syncguard_is_locked(decorated, "k", NULL, &locked, NULL), SYNCGUARD_OK);
    assert_true(wait_for_count(&seen.count, 5));
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(20);
        if (syncguard_is_locked(decorated, "k", NULL, &locked, NULL) != SYNCGUARD_OK)
            _exit(1);
        if (!wait_for_count(&seen.count, 6))
            _exit(2);
        char text[16384];
        syncguard_telemetry_prometheus(decorated, text, sizeof text);
        if (strstr(text, ",type=\"isLocked\",result=\"ok\",reason=\"\",error=\"\"} 1\n") == NULL)
            _exit(3);
        syncguard_close(decorated);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(syncguard_is_locked(decorated, "k", NULL, &locked, NULL), SYNCGUARD_OK);
    assert_true(wait_for_count(&seen.count, 6));
    syncguard_close(decorated);
}
#endif

static syncguard_status telemetry_answer_absent(fake_backend *p, syncguard_release_op *op,
                                                syncguard_error *err)
{
    (void)p, (void)err;
    op->reason = SYNCGUARD_REASON_NONE;
    return SYNCGUARD_ABSENT;
}

static syncguard_status absent_too(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p, (void)err;
    op->reason = SYNCGUARD_REASON_NONE;
    return SYNCGUARD_ABSENT;
}

static void check_call(fake_backend *p, syncguard_status wanted, syncguard_status got)
{
    assert_int_equal(got, wanted);
    assert_int_equal(atomic_exchange(&p->calls, 0), 1);
}

/* I-TEL-07: the store is asked once for each outcome, also if it gave no reason. */
static void the_store_is_asked_once(void **state)
{
    static const char id[] = "AAAAAAAAAAAAAAAAAAAAAA";
    static record seen;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_backend *decorated = telemetry_wrap_fake(p, &seen);
    (void)state;
    syncguard_grant grant;
    for (int i = 0; i < 2; i++) {
        bool no = i == 1;
        p->on_acquire = no ? fake_acquire_locked : NULL;
        p->on_release = no ? telemetry_answer_absent : NULL;
        atomic_store(&p->on_extend, no ? absent_too : NULL);
        check_call(p, no ? SYNCGUARD_LOCKED : SYNCGUARD_OK,
                   syncguard_acquire(decorated, "k", 1000, NULL, &grant, NULL));
        check_call(p, no ? SYNCGUARD_ABSENT : SYNCGUARD_OK,
                   syncguard_extend(decorated, id, 1000, NULL, NULL, NULL));
        check_call(p, no ? SYNCGUARD_ABSENT : SYNCGUARD_OK,
                   syncguard_release(decorated, id, NULL, NULL));
    }
    bool flag;
    check_call(p, SYNCGUARD_OK, syncguard_is_locked(decorated, "k", NULL, &flag, NULL));
    syncguard_lock_info info;
    check_call(p, SYNCGUARD_ABSENT, syncguard_get_by_key(decorated, "k", NULL, &info, NULL));
    check_call(p, SYNCGUARD_ABSENT, syncguard_get_by_id(decorated, id, NULL, &info, NULL));
    check_call(p, SYNCGUARD_OK, syncguard_owns(decorated, id, NULL, &flag, NULL));
    assert_true(wait_for_count(&seen.count, 10));
    for (int i = 0; i < 10; i++)
        assert_int_equal(seen.events[i].reason,
                         i == 3 ? SYNCGUARD_REASON_LOCKED : SYNCGUARD_REASON_NONE);
    syncguard_close(decorated);
    assert_int_equal(atomic_load(&seen.count), 10);
}

static syncguard_status too_late(fake_backend *p, syncguard_acquire_op *op, syncguard_error *err)
{
    (void)p, (void)op;
    return syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, NULL, "the server did not answer");
}

/* An operation that ends before it reaches the store is no event; a timeout inside the store is
 * one. */
static void only_what_reaches_the_store_is_an_event(void **state)
{
    static const char id[] = "AAAAAAAAAAAAAAAAAAAAAA";
    static record seen;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_backend *decorated = telemetry_wrap_fake(p, &seen);
    (void)state;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    assert_int_equal(syncguard_abort_create(&call.abort_object, NULL), SYNCGUARD_OK);
    syncguard_abort_trigger(call.abort_object);
    syncguard_grant grant;
    assert_int_equal(syncguard_acquire(decorated, "k", 1000, &call, &grant, NULL),
                     SYNCGUARD_E_ABORTED);
    assert_int_equal(syncguard_extend(decorated, id, 1000, &call, NULL, NULL), SYNCGUARD_E_ABORTED);
    assert_int_equal(syncguard_release(decorated, id, &call, NULL), SYNCGUARD_E_ABORTED);
    bool flag = false;
    assert_int_equal(syncguard_is_locked(decorated, "k", &call, &flag, NULL), SYNCGUARD_E_ABORTED);
    assert_int_equal(syncguard_owns(decorated, id, &call, &flag, NULL), SYNCGUARD_E_ABORTED);
    syncguard_abort_free(call.abort_object);
    assert_int_equal(atomic_load(&p->calls), 0);
    p->on_acquire = too_late;
    assert_int_equal(syncguard_acquire(decorated, "k", 1000, NULL, &grant, NULL),
                     SYNCGUARD_E_NETWORK_TIMEOUT);
    assert_true(wait_for_count(&seen.count, 1));
    assert_int_equal(seen.events[0].type, SYNCGUARD_EVENT_ACQUIRE);
    assert_int_equal(seen.events[0].error, SYNCGUARD_E_NETWORK_TIMEOUT);

    /* The end of a wait is not an event either: there is one for each try. */
    p->on_acquire = fake_acquire_locked;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 50;
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(decorated, "k", &options, &lock, NULL),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    syncguard_close(decorated);
    int tries = atomic_load(&seen.count);
    assert_true(tries > 1);
    for (int i = 1; i < tries; i++) {
        assert_int_equal(seen.events[i].error, SYNCGUARD_OK);
        assert_int_equal(seen.events[i].reason, SYNCGUARD_REASON_LOCKED);
    }
}

/* The lease of a lock has ended: it is not extended, but released in the store. */
static void a_lost_lock_is_released_in_the_store(void **state)
{
    static record seen;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_backend *decorated = telemetry_wrap_fake(p, &seen);
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 1000;
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(decorated, "k", &options, &lock, NULL), SYNCGUARD_OK);
    while (syncguard_lock_held(lock))
        test_sleep_ms(10);
    assert_int_equal(syncguard_lock_extend(lock, 1000, NULL, NULL, NULL), SYNCGUARD_ABSENT);
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_ABSENT);
    syncguard_lock_dispose(lock);
    syncguard_close(decorated);
    assert_int_equal(atomic_load(&seen.count), 2);
    assert_int_equal(seen.events[1].type, SYNCGUARD_EVENT_RELEASE);
    assert_true(seen.events[1].ok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failures_and_undoing_are_events),
        cmocka_unit_test(each_lock_of_a_batch_is_an_event),
        cmocka_unit_test(the_store_is_asked_once),
        cmocka_unit_test(only_what_reaches_the_store_is_an_event),
        cmocka_unit_test(a_lost_lock_is_released_in_the_store),
        cmocka_unit_test(notifications_of_the_inner_backend_wake_the_outer),
        cmocka_unit_test(a_thread_only_for_a_callback),
        cmocka_unit_test(closing_delivers_what_is_queued),
        cmocka_unit_test(closing_from_the_callback),
/* The thread sanitizer does not follow a fork of a program with threads. */
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(a_child_counts_for_itself),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
