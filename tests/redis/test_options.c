/*
 * Keys that are refused, URLs, options.
 */
#include "support.h"

/* ---- keys and options ---- */

/* They are refused before anything else is checked: before the abort object, and without an
 * event. */
static void colliding_keys_are_refused_first(void **state)
{
    (void)state;
    static const char key[] = "fence:syncguard:x";
    atomic_int events = 0;
    syncguard_backend *watched = NULL;
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    options.on_event = test_count_event;
    options.on_event_context = &events;
    assert_status(SYNCGUARD_OK,
                  syncguard_telemetry_wrap(test_open(redis_url), &options, &watched, &err));
    syncguard_call aborted = SYNCGUARD_CALL_INIT;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&aborted.abort_object, &err));
    syncguard_lock_options waiting = SYNCGUARD_LOCK_OPTIONS_INIT;
    waiting.abort_object = aborted.abort_object;
    syncguard_abort_trigger(aborted.abort_object);
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_acquire(watched, key, 5000, &aborted, &grant, &err));
    bool locked;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_is_locked(watched, key, &aborted, &locked, &err));
    syncguard_lock_info info;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_get_by_key(watched, key, &aborted, &info, &err));
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_acquire(watched, key, &waiting, &lock, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_try(watched, key, &waiting, &lock, &err));
    syncguard_close(watched);
    assert_int_equal(events, 0);
    syncguard_abort_free(aborted.abort_object);
}

static void colliding_keys_are_refused(void **state)
{
    (void)state;
    syncguard_grant grant;
    bool locked;
    static const char *const keys[] = {"fence:syncguard:x", "id:AbCdEfGhIjKlMnOpQrStUv"};
    for (int i = 0; i < 2; i++) {
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_acquire(store, keys[i], 5000, NULL, &grant, &err));
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_is_locked(store, keys[i], NULL, &locked, &err));
    }
    (void)take_lock("fence:other:x", 5000);
    (void)take_lock("id:AbCdEfGhIjKlMnOpQrStU", 5000);
    assert_int_equal(raw_int("DBSIZE"), 6);
}

static void bad_urls_are_refused(void **state)
{
    (void)state;
    char longest[1100] = "redis://h?prefix=", too_long[1100] = "redis://h?prefix=";
    memset(longest + 17, 'p', 951);
    memset(too_long + 17, 'p', 952);
    const char *const bad[] = {
        "redis://h?prefix=",
        "redis://h?prefix=::",
        "redis://h?prefix=a:fence:b",
        "redis://h?prefix=fence",
        "redis://h?prefix=a:id",
        "redis://h?prefix=afence:",
        "redis://h?unknown=1",
        "redis://h?spin_us=x",
        "redis://h?spin_us=2000",
        "redis://h?connections=1&connections=1",
        "redis://h?tolerance_ms=0",
        "redis://h:x",
        "redis://h:70000",
        "redis://h/x",
        "redis://h/99999",
        "redis://a,b",
        "redis://user@h",
        "redis://h?tls_ca=x",
        "rediss://h?tls_ca=/does/not/exist",
        "rediss://h?tls_server_name=",
        "rediss://h?tls=0",
        "rediss://h?tls=false",
        "redis://h?tls=1",
        "redis+unix:///p?tls=1",
        "redis+sentinel://h/m?tls_ca=x",
        "redis+cluster://h?sentinel_user=u&sentinel_password=p",
        "redis://h/3?database=4",
        "redis+sentinel://h/m/3?database=4",
        "redis+cluster://h?database=1",
        "redis+sentinel://h",
        "redis+cluster://h?prefix=plain",
        "redis+cluster://h/1",
        "redis+unix://h/path",
        "redis+unix://",
        "redis://[::1",
        "redis://h?client_name=a%20b",
        too_long,
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        syncguard_backend *backend = NULL;
        if (syncguard_open(bad[i], NULL, &backend, &err) != SYNCGUARD_E_INVALID_ARGUMENT)
            fail_msg("accepted: %s (%s)", bad[i], err.message);
        assert_null(backend);
        assert_null(strstr(err.message, "memory"));
        const char *value = strrchr(bad[i], '=');
        if (value != NULL && strlen(value) > 6)
            assert_null(strstr(err.message, value + 1));
    }
    const char *const good[] = {
        "redis://",
        "redis://h",
        "redis://u:p@[::1]:7/3",
        "redis://:p@h",
        "redis://h?prefix=a::",
        "rediss://h?tls_insecure=1",
        "rediss://h?tls=1",
        "redis://h?tls=0",
        "redis://h/3?database=3",
        "redis+sentinel://h/m?tls=1",
        "redis+cluster://h?tls=1",
        "redis+sentinel://a,b:1/m/2",
        "redis+cluster://a,b,c",
        "redis+cluster://a?prefix=x%7By%7D",
        "redis+unix:///run/redis.sock?database=3",
        longest,
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        syncguard_backend *backend = NULL;
        if (syncguard_open(good[i], NULL, &backend, &err) != SYNCGUARD_OK)
            fail_msg("refused: %s (%s)", good[i], err.message);
        syncguard_close(backend);
    }
}

static void database_and_name_are_used(void **state)
{
    (void)state;
    char url[128];
    syncguard_grant grant;
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/3?client_name=tester", redis_port(0));
    syncguard_backend *other = test_open(url);
    assert_status(SYNCGUARD_OK, syncguard_acquire(other, "there", 5000, NULL, &grant, &err));
    assert_int_equal(raw_int("DBSIZE"), 0);
    assert_non_null(strstr(raw_text("CLIENT LIST"), "name=tester"));
    syncguard_close(other);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(colliding_keys_are_refused, flush_all),
        cmocka_unit_test_setup(colliding_keys_are_refused_first, flush_all),
        cmocka_unit_test_setup(bad_urls_are_refused, flush_all),
        cmocka_unit_test_setup(database_and_name_are_used, flush_all),
    };
    return cmocka_run_group_tests_name("redis options", tests, open_store, close_store);
}
