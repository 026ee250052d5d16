/*
 * A program that holds a lock and asks nothing, whose connection ends: the server may be another
 * one, so the lock is renewed at once. Its TTL is so long that a third of it outlasts every wait
 * here.
 */
#include "support.h"

#define DATABASE "idle"
#define TTL_MS 300000
#define LONGEST_WAIT_MS 60000

static pg_server *server;
static PGconn *plain;
static atomic_int losses;
static atomic_int last_reason;

static void on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)context, (void)lock;
    atomic_store(&last_reason, (int)reason);
    atomic_fetch_add(&losses, 1);
}

static syncguard_lock *hold(syncguard_backend *backend)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;

    atomic_store(&losses, 0);
    options.ttl_ms = TTL_MS;
    options.auto_extend = true;
    options.on_lost = on_lost;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(backend, "idle", &options, &lock, &err));
    sleep_ms(10);
    return lock;
}

static void terminate(void)
{
    pg_sql(plain, "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE "
                  "application_name = 'syncguard'");
}

static void a_broken_connection_renews(void **state)
{
    syncguard_backend *backend = open_url(pg_url(server, DATABASE, NULL));
    syncguard_lock *lock = hold(backend);

    (void)state;
    for (int i = 0; i < 2; i++) {
        int64_t expiry = syncguard_lock_expires_at_ms(lock);
        int64_t end = now_ms() + LONGEST_WAIT_MS;

        terminate();
        while (syncguard_lock_expires_at_ms(lock) == expiry && now_ms() < end)
            sleep_ms(10);
        assert_true(syncguard_lock_expires_at_ms(lock) > expiry);
        assert_true(syncguard_lock_held(lock));
    }
    syncguard_lock_dispose(lock);
    syncguard_close(backend);
}

static void a_server_without_the_lock_is_told_at_once(void **state)
{
    syncguard_backend *backend = open_url(pg_url(server, DATABASE, NULL));
    syncguard_lock *lock = hold(backend);
    int64_t end = now_ms() + LONGEST_WAIT_MS;

    (void)state;
    pg_sql(plain, "DELETE FROM syncguard_locks");
    terminate();
    while (atomic_load(&losses) == 0 && now_ms() < end)
        sleep_ms(10);
    assert_int_equal(atomic_load(&losses), 1);
    assert_int_equal(atomic_load(&last_reason), SYNCGUARD_LOST_ABSENT);
    syncguard_lock_dispose(lock);
    syncguard_close(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_connection_renews),
        cmocka_unit_test(a_server_without_the_lock_is_told_at_once),
    };
    int failures;

    server = pg_server_start("fsync=off");
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    failures = cmocka_run_group_tests(tests, NULL, NULL);
    PQfinish(plain);
    pg_server_end(server);
    return failures;
}
