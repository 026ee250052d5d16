/*
 * The library against its headers: constants as compiled in, initializers as macros and as
 * functions, names of the one table of statuses. The same comparisons would catch a program that
 * was compiled with other headers than its library.
 */

#ifdef HAVE_FIRESTORE
#include "test_assert.h"

#include <syncguard/firestore.h>
#endif
#ifdef HAVE_POSTGRES
#include <syncguard/postgres.h>
#endif
#ifdef HAVE_REDIS
#include <syncguard/redis.h>
#endif
#ifdef HAVE_SQLITE
#include <syncguard/sqlite.h>
#endif

static void constants_agree(void **state)
{
    (void)state;
    const syncguard_constants *c = syncguard_constants_get();
    assert_string_equal(c->version, SYNCGUARD_VERSION_STRING);
    assert_int_equal(c->max_key_bytes, SYNCGUARD_MAX_KEY_BYTES);
    assert_int_equal(c->max_raw_key_bytes, SYNCGUARD_MAX_RAW_KEY_BYTES);
    assert_int_equal(c->default_ttl_ms, SYNCGUARD_DEFAULT_TTL_MS);
    assert_int_equal(c->time_tolerance_ms, SYNCGUARD_TIME_TOLERANCE_MS);
    assert_int_equal(c->default_timeout_ms, SYNCGUARD_DEFAULT_TIMEOUT_MS);
    assert_int_equal(c->max_time_ms, SYNCGUARD_MAX_TIME_MS);
    assert_int_equal(c->fence_max, SYNCGUARD_FENCE_MAX);
    assert_int_equal(c->fence_warn, SYNCGUARD_FENCE_WARN);
    assert_int_equal(c->redis_limit_bytes, SYNCGUARD_REDIS_LIMIT_BYTES);
    assert_int_equal(c->redis_reserve_bytes, SYNCGUARD_REDIS_RESERVE_BYTES);
    assert_int_equal(c->postgres_limit_bytes, SYNCGUARD_POSTGRES_LIMIT_BYTES);
    assert_int_equal(c->postgres_reserve_bytes, SYNCGUARD_POSTGRES_RESERVE_BYTES);
    assert_int_equal(c->firestore_limit_bytes, SYNCGUARD_FIRESTORE_LIMIT_BYTES);
    assert_int_equal(c->firestore_reserve_bytes, SYNCGUARD_FIRESTORE_RESERVE_BYTES);
    assert_int_equal(c->sqlite_limit_bytes, SYNCGUARD_SQLITE_LIMIT_BYTES);
    assert_int_equal(c->sqlite_reserve_bytes, SYNCGUARD_SQLITE_RESERVE_BYTES);
}

static void version_agrees_with_its_parts(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", SYNCGUARD_VERSION_MAJOR, SYNCGUARD_VERSION_MINOR,
             SYNCGUARD_VERSION_PATCH);
    assert_string_equal(text, SYNCGUARD_VERSION_STRING);
    assert_string_equal(text, PROJECT_VERSION);
}

/* The values that the common interface fixes, repeated here. */
static void constants_are_the_agreed_ones(void **state)
{
    (void)state;
    assert_int_equal(SYNCGUARD_MAX_KEY_BYTES, 512);
    assert_int_equal(SYNCGUARD_DEFAULT_TTL_MS, 30000);
    assert_int_equal(SYNCGUARD_TIME_TOLERANCE_MS, 1000);
    assert_true(SYNCGUARD_FENCE_MAX == INT64_C(900000000000000));
    assert_true(SYNCGUARD_FENCE_WARN == INT64_C(90000000000000));
    assert_int_equal(SYNCGUARD_FENCE_DIGITS, 15);
    assert_true(SYNCGUARD_MAX_TIME_MS == (INT64_C(1) << 53) - 1);
    assert_int_equal(sizeof(((syncguard_grant *)0)->lock_id), 23);
    assert_int_equal(sizeof(((syncguard_grant *)0)->fence), 16);
}

/* The padding between members has no defined value. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
#define CLEAR_PADDING(object) __builtin_clear_padding(object)
#endif
#endif
#ifndef CLEAR_PADDING
#error "this test needs a compiler that can clear padding (GCC 11 or later)"
#endif

/*
 * Both initializers of one options struct, the macro and the function. The function gets memory
 * that is full of garbage; with a smaller size, it must not write past it.
 */
#define CHECK_TWINS(type, macro, function)                                                         \
    do {                                                                                           \
        type from_macro = macro;                                                                   \
        type from_function;                                                                        \
        _Alignas(type) unsigned char small[sizeof(type)];                                          \
        memset(&from_function, 0x5a, sizeof from_function);                                        \
        function(&from_function, sizeof from_function);                                            \
        CLEAR_PADDING(&from_macro);                                                                \
        CLEAR_PADDING(&from_function);                                                             \
        assert_int_equal(from_macro.size, sizeof(type));                                           \
        assert_memory_equal(&from_macro, &from_function, sizeof(type));                            \
        memset(small, 0x5a, sizeof small);                                                         \
        function((type *)(void *)small, sizeof(size_t));                                           \
        for (size_t i = sizeof(size_t); i < sizeof small; i++)                                     \
            assert_int_equal(small[i], 0x5a);                                                      \
    } while (0)

static void wait_a_minute(syncguard_lock_options *options, size_t size)
{
    syncguard_lock_options_init(options, size);
    if (size == sizeof *options)
        syncguard_lock_options_wait(options, 60000);
}

static void core_initializers_agree(void **state)
{
    (void)state;
    CHECK_TWINS(syncguard_options, SYNCGUARD_OPTIONS_INIT, syncguard_options_init);
    CHECK_TWINS(syncguard_call, SYNCGUARD_CALL_INIT, syncguard_call_init);
    CHECK_TWINS(syncguard_lock_options, SYNCGUARD_LOCK_OPTIONS_INIT, syncguard_lock_options_init);
    CHECK_TWINS(syncguard_queue_options, SYNCGUARD_QUEUE_OPTIONS_INIT,
                syncguard_queue_options_init);
    CHECK_TWINS(syncguard_lock_options, SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000), wait_a_minute);
    CHECK_TWINS(syncguard_telemetry_options, SYNCGUARD_TELEMETRY_OPTIONS_INIT,
                syncguard_telemetry_options_init);
#ifdef HAVE_SQLITE
    CHECK_TWINS(syncguard_sqlite_options, SYNCGUARD_SQLITE_OPTIONS_INIT,
                syncguard_sqlite_options_init);
#endif
#ifdef HAVE_REDIS
    CHECK_TWINS(syncguard_redis_options, SYNCGUARD_REDIS_OPTIONS_INIT,
                syncguard_redis_options_init);
#endif
#ifdef HAVE_POSTGRES
    CHECK_TWINS(syncguard_postgres_options, SYNCGUARD_POSTGRES_OPTIONS_INIT,
                syncguard_postgres_options_init);
#endif
#ifdef HAVE_FIRESTORE
    CHECK_TWINS(syncguard_firestore_options, SYNCGUARD_FIRESTORE_OPTIONS_INIT,
                syncguard_firestore_options_init);
#endif
}

static void defaults_are_the_documented_ones(void **state)
{
    (void)state;
    syncguard_lock_options o = SYNCGUARD_LOCK_OPTIONS_INIT;
    assert_int_equal(o.ttl_ms, 30000);
    assert_int_equal(o.max_retries, 10);
    assert_int_equal(o.retry_delay_ms, 100);
    assert_int_equal(o.backoff, SYNCGUARD_BACKOFF_EXPONENTIAL);
    assert_int_equal(o.jitter, SYNCGUARD_JITTER_EQUAL);
    assert_int_equal(o.timeout_ms, 5000);
    assert_false(o.retry_unavailable);
    assert_false(o.auto_extend);
    assert_null(o.abort_object);
}

static void status_names_come_from_the_table(void **state)
{
    (void)state;
#define CHECK_STATUS(id, value, name, meaning)                                                     \
    assert_int_equal(SYNCGUARD_##id, value);                                                       \
    assert_string_equal(syncguard_status_name(SYNCGUARD_##id), name);                              \
    assert_string_equal(syncguard_status_text(SYNCGUARD_##id), meaning);
    SYNCGUARD_STATUS_MAP(CHECK_STATUS)
#undef CHECK_STATUS
    assert_string_equal(syncguard_status_name((syncguard_status)77), "Unknown");
    assert_non_null(syncguard_status_text((syncguard_status)-77));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constants_agree),
        cmocka_unit_test(version_agrees_with_its_parts),
        cmocka_unit_test(constants_are_the_agreed_ones),
        cmocka_unit_test(core_initializers_agree),
        cmocka_unit_test(defaults_are_the_documented_ones),
        cmocka_unit_test(status_names_come_from_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
