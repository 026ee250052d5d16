/*
 * The cost of waiting: Firestore reports no release and bills every read, so waiters poll, and all
 * waiters of a handle together stay below a rate.
 */
#include "support.h"

#define WAITERS 200

typedef struct waiter {
    pthread_t thread;
    syncguard_backend *backend;
    syncguard_abort *abort_object;
    char key[16];
    syncguard_status status;
    int64_t granted_ms;
} waiter;

static void *firestore_waiter_run(void *context)
{
    waiter *w = context;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = 120000;
    options.abort_object = w->abort_object;
    syncguard_lock *lock = NULL;
    syncguard_error why;
    w->status = syncguard_lock_acquire(w->backend, w->key, &options, &lock, &why);
    w->granted_ms = test_now_ms();
    syncguard_lock_dispose(lock);
    return NULL;
}

static void firestore_waiter_start(waiter *w, syncguard_backend *backend,
                                   syncguard_abort *abort_object, int number)
{
    w->backend = backend;
    w->abort_object = abort_object;
    snprintf(w->key, sizeof w->key, "k%d", number);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 18);
    assert_int_equal(pthread_create(&w->thread, &small, firestore_waiter_run, w), 0);
    pthread_attr_destroy(&small);
}

/* Tries per second of this many waiters, on as many keys or on one, once their rate is steady. */
static double firestore_waiter_try_rate(size_t count, bool one_key, int64_t settle_ms,
                                        int64_t measure_ms)
{
    static waiter waiters[WAITERS];
    syncguard_backend *mine = fake_server_open(&server, NULL);
    for (size_t i = 0; i < count; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", one_key ? 0 : (int)i);
        fake_server_plant(&server, key, key, "AAAAAAAAAAAAAAAAAAAAAA", test_wall_ms() + 600000);
    }
    syncguard_abort *abort_object = NULL;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&abort_object, &err));
    for (size_t i = 0; i < count; i++)
        firestore_waiter_start(&waiters[i], mine, abort_object, one_key ? 0 : (int)i);
    test_sleep_ms(settle_ms);
    fake_server_forget(&server);
    test_sleep_ms(measure_ms);
    size_t tries = fake_server_calls(&server, "batchGet");
    syncguard_abort_trigger(abort_object);
    for (size_t i = 0; i < count; i++) {
        pthread_join(waiters[i].thread, NULL);
        assert_int_equal(waiters[i].status, SYNCGUARD_E_ABORTED);
    }
    syncguard_abort_free(abort_object);
    syncguard_close(mine);
    print_message("    %zu waiters on %s: %.1f tries per second\n", count,
                  one_key ? "one key" : "as many keys", (double)tries * 1000 / (double)measure_ms);
    return (double)tries * 1000 / (double)measure_ms;
}

static void many_waiters_share_a_rate(void **state)
{
    (void)state;
    assert_true(firestore_waiter_try_rate(WAITERS, false, 8000, 8000) < 80);
}

static void waiters_of_one_key_share_one_poll(void **state)
{
    (void)state;
    assert_true(firestore_waiter_try_rate(50, true, 2000, 4000) < 4);
}

/* A single waiter is not slower than without the rate, and reads only the lock, not the counter. */
static void one_waiter_is_not_slowed_down(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    fake_server_plant(&server, "k7", "k7", "AAAAAAAAAAAAAAAAAAAAAA", test_wall_ms() + 600000);
    waiter w;
    firestore_waiter_start(&w, mine, NULL, 7);
    test_sleep_ms(3000);
    fake_server_forget(&server);
    test_sleep_ms(3000);
    json_t *log = fake_server_control(&server, "GET", "log", NULL);
    assert_true(json_array_size(log) >= 2);
    for (size_t i = 0; i < json_array_size(log); i++) {
        const json_t *body = json_object_get(json_array_get(log, i), "body");
        assert_int_equal(json_array_size(json_object_get(body, "documents")), 1);
    }
    json_decref(log);
    json_decref(fake_server_control(&server, "PUT", "documents", "{\"" PREFIX "locks/k7\":null}"));
    int64_t released = test_now_ms();
    pthread_join(w.thread, NULL);
    assert_int_equal(w.status, SYNCGUARD_OK);
    assert_true(w.granted_ms - released < 3000);
    syncguard_close(mine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(many_waiters_share_a_rate, reset_server),
        cmocka_unit_test_setup(waiters_of_one_key_share_one_poll, reset_server),
        cmocka_unit_test_setup(one_waiter_is_not_slowed_down, reset_server),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
