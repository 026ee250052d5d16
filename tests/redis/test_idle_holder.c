/*
 * A program that holds a lock and sends no requests, whose connection ends: the server may be
 * another one, so the lock is renewed at once. Its TTL is so long that a third of it outlasts every
 * wait here.
 */
#include "support.h"

#define TTL_MS 300000
#define LONGEST_WAIT_MS 60000

static atomic_int losses;
static atomic_int last_reason;

static void redis_idle_on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)context, (void)lock;
    atomic_store(&last_reason, (int)reason);
    atomic_fetch_add(&losses, 1);
}

static syncguard_lock *redis_idle_hold(syncguard_backend *backend)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    atomic_store(&losses, 0);
    options.ttl_ms = TTL_MS;
    options.auto_extend = true;
    options.on_lost = redis_idle_on_lost;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(backend, "idle", &options, &lock, &err));
    test_sleep_ms(10);
    return lock;
}

static void assert_renewed(const syncguard_lock *lock, int64_t expiry)
{
    int64_t end = test_now_ms() + LONGEST_WAIT_MS;
    while (syncguard_lock_expires_at_ms(lock) == expiry && test_now_ms() < end)
        test_sleep_ms(10);
    assert_true(syncguard_lock_expires_at_ms(lock) > expiry);
    assert_true(syncguard_lock_held(lock));
}

static void redis_broken_connection_renews(void **state)
{
    (void)state;
    server s;
    server_start(&s, 0, without_persistence);
    syncguard_backend *backend = open_port(s.port, "");
    syncguard_lock *lock = redis_idle_hold(backend);
    for (int i = 0; i < 2; i++) {
        int64_t expiry = syncguard_lock_expires_at_ms(lock);
        freeReplyObject(raw_at(s.port, "CLIENT KILL TYPE normal"));
        assert_renewed(lock, expiry);
    }
    syncguard_lock_dispose(lock);
    syncguard_close(backend);
    server_remove(&s);
}

static void redis_holder_learns_of_lost_lock(void **state)
{
    (void)state;
    server s;
    server_start(&s, 0, without_persistence);
    syncguard_backend *backend = open_port(s.port, "");
    syncguard_lock *lock = redis_idle_hold(backend);
    server_kill(&s);
    server_start(&s, s.port, without_persistence);
    int64_t end = test_now_ms() + LONGEST_WAIT_MS;
    while (atomic_load(&losses) == 0 && test_now_ms() < end)
        test_sleep_ms(10);
    assert_int_equal(atomic_load(&losses), 1);
    assert_int_equal(atomic_load(&last_reason), SYNCGUARD_LOST_ABSENT);
    syncguard_lock_dispose(lock);
    syncguard_close(backend);
    server_remove(&s);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(redis_broken_connection_renews),
        cmocka_unit_test(redis_holder_learns_of_lost_lock),
    };
    return cmocka_run_group_tests_name("redis idle holder", tests, NULL, NULL);
}
