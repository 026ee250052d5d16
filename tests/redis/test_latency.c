/*
 * A server that is far away: deadlines shorter than a round trip or than the set-up of a connection
 * break nothing that other callers wait for.
 */
#include "support.h"

static atomic_bool over;

static void *latency_impatient_run(void *argument)
{
    syncguard_backend *backend = argument;
    syncguard_call brief = test_call(50);
    bool locked;
    while (!atomic_load(&over)) {
        syncguard_status either = syncguard_is_locked(backend, "impatient", &brief, &locked, NULL);
        (void)either; /* a late reply may still be in time */
    }
    return NULL;
}

/* A round trip takes more than a second. Callers with deadlines of 50 ms give up all the time;
 * callers with longer deadlines still get their answers, and locks are renewed. */
static void impatience_breaks_nothing(void **state)
{
    (void)state;
    enum { CALLERS = 10 };
    server s;
    proxy p;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_call patient = test_call(20000);
    server_start(&s, 0, without_persistence);
    proxy_start(&p, s.port);
    syncguard_backend *backend = open_port(p.port, "connections=1&timeout_ms=10000");
    options.ttl_ms = 12000;
    options.auto_extend = true;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(backend, "renewed", &options, &lock, &err));
    atomic_store(&p.delay_ms, 600);
    atomic_store(&over, false);
    pthread_t threads[CALLERS];
    for (int i = 0; i < CALLERS; i++)
        threads[i] = test_start_thread(latency_impatient_run, backend);
    int good = 0;
    syncguard_grant grant;
    for (int i = 0; i < 3; i++) {
        test_sleep_ms(2000);
        if (syncguard_acquire(backend, "patient", 30000, &patient, &grant, &err) == SYNCGUARD_OK &&
            syncguard_release(backend, grant.lock_id, &patient, &err) == SYNCGUARD_OK)
            good++;
    }
    test_sleep_ms(2000);
    atomic_store(&over, true);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(good, 3);
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_NO);
    assert_in_range(atomic_load(&p.accepted), 1, 4);
    syncguard_lock_dispose(lock);
    syncguard_close(backend);
    proxy_stop(&p);
    server_remove(&s);
}

/* The deadline is shorter than the set-up of a connection: the set-up is finished all the same, and
 * later calls use the connection. */
static void connection_outlives_its_caller(void **state)
{
    (void)state;
    proxy p;
    char url[1024];
    syncguard_call brief = test_call(240); /* less than a round trip: nothing is answered */
    proxy_start(&p, redis_port(0));
    atomic_store(&p.delay_ms, 200);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d?connections=1", p.port);
    syncguard_backend *backend = test_open(url);
    bool locked = true;
    int good = 0;
    for (int i = 0; i < 5; i++)
        good += syncguard_is_locked(backend, "short", &brief, &locked, &err) == SYNCGUARD_OK;
    assert_int_equal(good, 0);
    brief.timeout_ms = 700; /* a round trip, but not two */
    for (int i = 0; i < 10; i++)
        good += syncguard_is_locked(backend, "short", &brief, &locked, &err) == SYNCGUARD_OK;
    assert_true(good >= 9);
    assert_int_equal(atomic_load(&p.accepted), 1);
    syncguard_close(backend);
    proxy_stop(&p);
}

/* Closing does not wait for a connection that no caller waits for. */
static void close_ends_connecting(void **state)
{
    (void)state;
    proxy p;
    bool locked;
    syncguard_call brief = test_call(30);
    proxy_start(&p, redis_port(0));
    atomic_store(&p.silent, 1000);
    syncguard_backend *backend = open_port(p.port, "");
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_is_locked(backend, "gone", &brief, &locked, &err));
    int64_t start = test_now_ms();
    syncguard_close(backend);
    assert_in_range(test_now_ms() - start, 0, PROMPT_MS);
    proxy_stop(&p);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impatience_breaks_nothing),
        cmocka_unit_test(connection_outlives_its_caller),
        cmocka_unit_test(close_ends_connecting),
    };
    return cmocka_run_group_tests_name("redis latency", tests, open_store, close_store);
}
