/*
 * How the backend treats what others store: planted values, damaged ones, foreign types, and dead
 * records that cleanup removes.
 */
#include "support.h"

/* ---- values of other writers ---- */

static void redis_records_plant(const char *key, const char *value)
{
    raw_do("SET syncguard:%s %s", key, value);
    raw_do("SET syncguard:id:" OTHER_ID " syncguard:%s", key);
}

static void values_of_others_are_understood(void **state)
{
    (void)state;
    static const char *const values[] = {
        "{\"key\":\"other\",\"fence\":\"000000000000007\",\"lockId\":\"" OTHER_ID
        "\",\"acquiredAtMs\":1,\"expiresAtMs\":9000000000000}",
        " { \"expiresAtMs\" : 9e12 , \"acquiredAtMs\":1.0,\n \"key\":\"\\u006fther\" ,"
        "\"lockId\" : \"" OTHER_ID
        "\" , \"fence\":\"000000000000007\" , \"more\":[1,{\"a\":null}]}",
        "{\"meta\":{\"expiresAtMs\":5,\"s\":\"\\\"expiresAtMs\\\":6\"},\"lockId\":\"" OTHER_ID
        "\",\"expiresAtMs\":9000000000000.0,\"acquiredAtMs\":1,\"key\":\"other\","
        "\"fence\":\"000000000000007\",\"keep\":[]}",
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        syncguard_grant grant;
        bool locked = false;
        redis_records_plant("other", values[i]);
        assert_status(SYNCGUARD_LOCKED,
                      syncguard_acquire(store, "other", 5000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_is_locked(store, "other", NULL, &locked, &err));
        assert_true(locked);
        syncguard_lock_info_raw info;
        assert_status(SYNCGUARD_OK, syncguard_get_by_id_raw(store, OTHER_ID, NULL, &info, &err));
        assert_string_equal(info.key, "other");
        assert_string_equal(info.info.fence, "000000000000007");
        int64_t expires = 0;
        assert_status(SYNCGUARD_OK, syncguard_extend(store, OTHER_ID, 7000, NULL, &expires, &err));
        assert_status(SYNCGUARD_OK, syncguard_get_by_id_raw(store, OTHER_ID, NULL, &info, &err));
        assert_true(info.info.expires_at_ms == expires);
        const char *value = raw_text("GET syncguard:other");
        if (strstr(values[i], "more") != NULL)
            assert_non_null(strstr(value, "\"more\":[1,{\"a\":null}]"));
        if (strstr(values[i], "meta") != NULL)
            assert_non_null(
                strstr(value, "{\"meta\":{\"expiresAtMs\":5,\"s\":\"\\\"expiresAtMs\\\":6\"},"));
        if (strstr(values[i], "keep") != NULL)
            assert_non_null(strstr(value, "\"keep\":[]"));
        assert_in_range(raw_int("PTTL syncguard:other"), 7500, 8000);
        assert_status(SYNCGUARD_OK, syncguard_release(store, OTHER_ID, NULL, &err));
        assert_int_equal(raw_int("EXISTS syncguard:other syncguard:id:" OTHER_ID), 0);
    }
}

static void unreadable_values_are_left_alone(void **state)
{
    (void)state;
    static const char *const values[] = {
        "",
        "garbage",
        "[]",
        "{}",
        "{\"lockId\":\"" OTHER_ID "\"}",
        "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":9000000000000,",
        "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":\"9000000000000\",\"acquiredAtMs\":1,"
        "\"key\":\"bad\",\"fence\":\"000000000000001\"}",
        "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":1e400,\"acquiredAtMs\":1,"
        "\"key\":\"bad\",\"fence\":\"000000000000001\"}",
        "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":nan,\"acquiredAtMs\":1,"
        "\"key\":\"bad\",\"fence\":\"000000000000001\"}",
        "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":9007199254740991.5,\"acquiredAtMs\":1,"
        "\"key\":\"bad\",\"fence\":\"000000000000001\"}",
        "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":x000000000000,\"acquiredAtMs\":1000000000000,"
        "\"fence\":\"000000000000001\",\"key\":\"bad\"}",
        "{\"lockId\":\"" OTHER_ID "\",\"acquiredAtMs\":1,\"key\":\"bad\","
        "\"fence\":\"000000000000001\"}",
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        syncguard_grant grant;
        redis_records_plant("bad", values[i]);
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_acquire(store, "bad", 5000, NULL, &grant, &err));
        assert_string_not_equal(err.key_hash, "");
        bool locked;
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_is_locked(store, "bad", NULL, &locked, &err));
        syncguard_lock_info info;
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_get_by_key(store, "bad", NULL, &info, &err));
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_get_by_id(store, OTHER_ID, NULL, &info, &err));
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_release(store, OTHER_ID, NULL, &err));
        int64_t expires;
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_extend(store, OTHER_ID, 5000, NULL, &expires, &err));
        assert_string_equal(raw_text("GET syncguard:bad"), values[i]);
        assert_int_equal(raw_int("DBSIZE"), 2);
    }
}

/* Both readers of a value, the scripts and the library, come to the same time. */
static void fractions_are_rounded_up(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t expires_at_ms;
    } cases[] = {
        {"9000000000000.75", INT64_C(9000000000001)},
        {"9000000000000.7512", INT64_C(9000000000001)},
        {"9000000000000.0000001", INT64_C(9000000000000)},
        {"9.00000000000025e12", INT64_C(9000000000001)},
        {"1.25", 2},
        {"-0.5", 0},
        {"1.0000000000000001", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char value[300];
        bool locked = false;
        bool live = cases[i].expires_at_ms > 1000;
        snprintf(value, sizeof value,
                 "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":%s,\"acquiredAtMs\":1.5,"
                 "\"key\":\"part\",\"fence\":\"000000000000001\"}",
                 cases[i].text);
        redis_records_plant("part", value);
        assert_status(SYNCGUARD_OK, syncguard_is_locked(store, "part", NULL, &locked, &err));
        assert_int_equal(locked, live);
        syncguard_grant grant;
        syncguard_lock_info info;
        int64_t expires = 0;
        if (live) {
            assert_status(SYNCGUARD_LOCKED,
                          syncguard_acquire(store, "part", 5000, NULL, &grant, &err));
            assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, "part", NULL, &info, &err));
            assert_true(info.expires_at_ms == cases[i].expires_at_ms);
            assert_status(SYNCGUARD_OK,
                          syncguard_extend(store, OTHER_ID, 7000, NULL, &expires, &err));
            assert_status(SYNCGUARD_OK, syncguard_release(store, OTHER_ID, NULL, &err));
        } else {
            /* The script removes only what has the expiry that the library has read. */
            syncguard_cleanup_op op = {.key = "part",
                                       .key_length = 4,
                                       .lock_id = OTHER_ID,
                                       .expires_at_ms = cases[i].expires_at_ms,
                                       .limits = {SYNCGUARD_NO_DEADLINE, NULL}};
            assert_status(SYNCGUARD_OK, store->ops->cleanup(store, &op, &err));
        }
        assert_int_equal(raw_int("EXISTS syncguard:part"), 0);
    }
}

static void redis_records_line_count(void *context, syncguard_log_level level, const char *text)
{
    (void)level;
    if (strstr(text, "1 stored records cannot be read") != NULL)
        ++*(int *)context;
}

/* Only the expiry decides whether a lock is live; its owner may renew and release it. */
static void damaged_values_are_held_and_released(void **state)
{
    (void)state;
    static const char *const rests[] = {
        "\"key\":\"bad\",\"fence\":7}",
        "\"key\":\"bad\",\"fence\":\"0000000000000001\"}",
        "\"key\":\"bad\",\"fence\":\"-00000000000001\"}",
        "\"key\":\"bad\",\"fence\":\"7\"}",
        "\"key\":\"bad\"}",
        "\"key\":7,\"fence\":\"000000000000001\"}",
        "\"fence\":\"000000000000001\"}",
    };
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_backend *logged = NULL;
    int lines = 0;
    options.log = redis_records_line_count;
    options.log_context = &lines;
    assert_status(SYNCGUARD_OK, syncguard_open(redis_url, &options, &logged, &err));
    int count = 0;
    for (size_t i = 0; i < sizeof rests / sizeof rests[0]; i++) {
        char value[300];
        syncguard_grant grant;
        snprintf(value, sizeof value,
                 "{\"lockId\":\"" OTHER_ID
                 "\",\"expiresAtMs\":9000000000000,\"acquiredAtMs\":\"x\",%s",
                 rests[i]);
        redis_records_plant("bad", value);
        assert_status(SYNCGUARD_LOCKED, syncguard_acquire(store, "bad", 5000, NULL, &grant, &err));
        bool locked = false;
        assert_status(SYNCGUARD_OK, syncguard_is_locked(store, "bad", NULL, &locked, &err));
        assert_true(locked);
        syncguard_lock_info info;
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_get_by_key(store, "bad", NULL, &info, &err));
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_get_by_id(store, OTHER_ID, NULL, &info, &err));
        lines = count = 0;
        assert_status(SYNCGUARD_OK, syncguard_list_raw(logged, NULL, test_count_raw, &count, &err));
        assert_int_equal(count, 0);
        assert_int_equal(lines, 1);
        int64_t expires = 0;
        assert_status(SYNCGUARD_OK, syncguard_extend(store, OTHER_ID, 5000, NULL, &expires, &err));
        assert_non_null(strstr(raw_text("GET syncguard:bad"), rests[i]));
        assert_status(SYNCGUARD_OK, syncguard_release(store, OTHER_ID, NULL, &err));
        assert_int_equal(raw_int("EXISTS syncguard:bad"), 0);

        /* Dead: as any dead record. */
        snprintf(value, sizeof value, "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":9,%s",
                 rests[i]);
        redis_records_plant("bad", value);
        assert_status(SYNCGUARD_ABSENT, syncguard_get_by_key(store, "bad", NULL, &info, &err));
        assert_status(SYNCGUARD_ABSENT, syncguard_release(store, OTHER_ID, NULL, &err));
        grant = take_lock("bad", 5000);
        assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    }
    /* An id that is no text belongs to no client; the lock ends by its expiry. */
    syncguard_grant grant;
    redis_records_plant("bad", "{\"lockId\":{},\"expiresAtMs\":9000000000000,\"key\":\"bad\"}");
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(store, "bad", 5000, NULL, &grant, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_release(store, OTHER_ID, NULL, &err));
    redis_records_plant("bad", "{\"lockId\":{},\"expiresAtMs\":9,\"key\":\"bad\"}");
    (void)take_lock("bad", 5000);
    syncguard_close(logged);
}

static void foreign_types_are_left_alone(void **state)
{
    (void)state;
    syncguard_grant grant;
    raw_do("HSET syncguard:typed a b");
    raw_do("SET syncguard:id:" OTHER_ID " syncguard:typed");
    assert_status(SYNCGUARD_E_INTERNAL,
                  syncguard_acquire(store, "typed", 5000, NULL, &grant, &err));
    assert_string_equal(err.native, "WRONGTYPE");
    bool locked;
    assert_status(SYNCGUARD_E_INTERNAL, syncguard_is_locked(store, "typed", NULL, &locked, &err));
    assert_status(SYNCGUARD_E_INTERNAL, syncguard_release(store, OTHER_ID, NULL, &err));
    assert_string_equal(raw_text("HGET syncguard:typed a"), "b");
    raw_do("RPUSH syncguard:fence:syncguard:listed x");
    assert_status(SYNCGUARD_E_INTERNAL,
                  syncguard_acquire(store, "listed", 5000, NULL, &grant, &err));
    assert_int_equal(raw_int("EXISTS syncguard:listed"), 0);
    assert_int_equal(raw_int("LLEN syncguard:fence:syncguard:listed"), 1);
}

/* The dead lock's index is foreign: the grant stands, and says so. */
static void foreign_index_of_a_dead_lock_is_left_alone(void **state)
{
    (void)state;
    syncguard_grant grant;
    raw_do("SET syncguard:dead %s",
           "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":1,\"acquiredAtMs\":0,\"key\":\"dead\","
           "\"fence\":\"000000000000001\"}");
    raw_do("HSET syncguard:id:" OTHER_ID " a b");
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, "dead", 5000, NULL, &grant, &err));
    assert_string_equal(raw_text("HGET syncguard:id:" OTHER_ID " a"), "b");
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
}

static void index_that_lies_changes_nothing(void **state)
{
    (void)state;
    syncguard_grant grant = take_lock("victim", 5000);
    int64_t expires;
    raw_do("SET syncguard:id:" OTHER_ID " syncguard:victim");
    assert_status(SYNCGUARD_ABSENT, syncguard_release(store, OTHER_ID, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_extend(store, OTHER_ID, 5000, NULL, &expires, &err));
    syncguard_lock_info info;
    assert_status(SYNCGUARD_ABSENT, syncguard_get_by_id(store, OTHER_ID, NULL, &info, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
}

/* ---- cleanup ---- */

/* A lock that expired so many ms ago, and that Redis does not remove by itself. */
static void plant_dead(char value[256], int dead_ms)
{
    redisReply *time = raw("TIME");
    long long now = strtoll(time->element[0]->str, NULL, 10) * 1000 +
                    strtoll(time->element[1]->str, NULL, 10) / 1000;
    freeReplyObject(time);
    snprintf(value, 256,
             "{\"key\":\"old\",\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":%lld,"
             "\"acquiredAtMs\":1,\"fence\":\"000000000000001\"}",
             now - dead_ms);
    redis_records_plant("old", value);
}

static void cleanup_takes_dead_records_only(void **state)
{
    (void)state;
    char value[256];
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, NULL};
    plant_dead(value, 10000);
    raw_do("SET syncguard:fence:syncguard:old 1");
    syncguard_is_locked_op op = {.key = "old", .key_length = 3, .limits = limits};
    assert_status(SYNCGUARD_OK, store->ops->is_locked(store, &op, &err));
    assert_false(op.locked);
    assert_string_equal(op.dead_lock_id, OTHER_ID);
    assert_in_range(op.dead_for_ms, 10000, 20000);
    syncguard_cleanup_op clean = {.key = "old",
                                  .key_length = 3,
                                  .lock_id = OTHER_ID,
                                  .expires_at_ms = op.dead_expires_at_ms + 1,
                                  .limits = limits};
    assert_status(SYNCGUARD_ABSENT, store->ops->cleanup(store, &clean, &err));
    clean.expires_at_ms--;
    clean.lock_id = "BBBBBBBBBBBBBBBBBBBBBB";
    assert_status(SYNCGUARD_ABSENT, store->ops->cleanup(store, &clean, &err));
    assert_string_equal(raw_text("GET syncguard:old"), value);
    clean.lock_id = OTHER_ID;
    assert_status(SYNCGUARD_OK, store->ops->cleanup(store, &clean, &err));
    assert_int_equal(raw_int("DBSIZE"), 1);
    /* Taking over a dead lock removes its index as well. */
    redis_records_plant("old", value);
    (void)take_lock("old", 5000);
    assert_int_equal(raw_int("EXISTS syncguard:id:" OTHER_ID), 0);
    assert_string_equal(raw_text("GET syncguard:fence:syncguard:old"), "2");
}

/* I-ISL-04. Where the machine was so slow that the lock became old, it is tried again. */
static void cleanup_waits_for_two_seconds(void **state)
{
    (void)state;
    char value[256];
    bool stayed = false;
    syncguard_is_locked_op op = {
        .key = "old", .key_length = 3, .limits = {SYNCGUARD_NO_DEADLINE, NULL}};
    for (int i = 0; i < 20 && !stayed; i++) {
        int64_t began = test_now_ms();
        plant_dead(value, 1700);
        assert_status(SYNCGUARD_OK, store->ops->is_locked(store, &op, &err));
        assert_string_equal(op.dead_lock_id, OTHER_ID);
        syncguard_cleanup_op clean = {.key = "old",
                                      .key_length = 3,
                                      .lock_id = OTHER_ID,
                                      .expires_at_ms = op.dead_expires_at_ms,
                                      .limits = op.limits};
        stayed = store->ops->cleanup(store, &clean, &err) == SYNCGUARD_ABSENT;
        if (!stayed) /* was it too early? */
            assert_true(1700 + (test_now_ms() - began) >= SYNCGUARD_CLEANUP_GUARD_MS);
    }
    assert_true(stayed);
    assert_string_equal(raw_text("GET syncguard:old"), value);
}

static void ask_for_dead(syncguard_backend *backend)
{
    bool locked = true;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "old", NULL, &locked, &err));
    assert_false(locked);
}

static bool old_is_gone_within(int ms)
{
    int64_t until = test_now_ms() + ms;
    while (raw_int("EXISTS syncguard:old") == 1 && test_now_ms() < until)
        test_sleep_ms(5);
    return raw_int("EXISTS syncguard:old") == 0;
}

/* I-ISL-02, 03, 05: nothing without the option; with it, a failure is not reported. */
static void cleanup_is_an_option_and_silent(void **state)
{
    (void)state;
    char value[256];
    syncguard_backend *cleaner = open_with("cleanup=1");
    plant_dead(value, 60000);
    long writes = raw_calls("set") + raw_calls("del") + raw_calls("pexpire");
    for (int i = 0; i < 100; i++)
        ask_for_dead(store);
    assert_false(old_is_gone_within(150));
    assert_int_equal(raw_calls("set") + raw_calls("del") + raw_calls("pexpire"), writes);
    assert_string_equal(raw_text("GET syncguard:old"), value);
    assert_int_equal(raw_int("PTTL syncguard:old"), -1);
    raw_do("ACL SETUSER default -del");
    ask_for_dead(cleaner);
    bool gone = old_is_gone_within(150);
    ask_for_dead(cleaner);
    raw_do("ACL SETUSER default +del");
    assert_false(gone);
    test_sleep_ms(150); /* the pause between two cleanups */
    ask_for_dead(cleaner);
    assert_true(old_is_gone_within(10000));
    syncguard_close(cleaner);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(values_of_others_are_understood, flush_all),
        cmocka_unit_test_setup(unreadable_values_are_left_alone, flush_all),
        cmocka_unit_test_setup(fractions_are_rounded_up, flush_all),
        cmocka_unit_test_setup(damaged_values_are_held_and_released, flush_all),
        cmocka_unit_test_setup(foreign_types_are_left_alone, flush_all),
        cmocka_unit_test_setup(foreign_index_of_a_dead_lock_is_left_alone, flush_all),
        cmocka_unit_test_setup(index_that_lies_changes_nothing, flush_all),
        cmocka_unit_test_setup(cleanup_takes_dead_records_only, flush_all),
        cmocka_unit_test_setup(cleanup_waits_for_two_seconds, flush_all),
        cmocka_unit_test_setup(cleanup_is_an_option_and_silent, flush_all),
    };
    return cmocka_run_group_tests_name("redis records", tests, open_store, close_store);
}
