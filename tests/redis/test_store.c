/*
 * What is stored: names and values, hashed names, counters at their ends, tombstones, scripts.
 */
#include "support.h"

#include "backends/redis/record.h"
#include "backends/redis/scripts.h"

static void stored_lock_is_as_agreed(void **state)
{
    (void)state;
    syncguard_grant grant = take_lock("fields \"quoted\" \xC3\xA9\n", 5000);
    char name[64], index[64], counter[128];
    snprintf(name, sizeof name, "syncguard:%s", "fields \"quoted\" \xC3\xA9\n");
    snprintf(index, sizeof index, "syncguard:id:%s", grant.lock_id);
    snprintf(counter, sizeof counter, "syncguard:fence:%s", name);
    redisReply *value = raw("GET %s", name);
    assert_int_equal(value->type, REDIS_REPLY_STRING);
    syncguard_record record;
    assert_int_equal(sg_redis_record_read(value->str, (size_t)value->len, &record), SG_REDIS_WHOLE);
    assert_string_equal(record.lock_id, grant.lock_id);
    assert_string_equal(record.key, name + 10);
    assert_string_equal(record.fence, grant.fence);
    assert_string_equal(record.fence, "000000000000001");
    assert_true(record.expires_at_ms == grant.expires_at_ms);
    assert_true(record.expires_at_ms - record.acquired_at_ms == 5000);
    freeReplyObject(value);
    assert_string_equal(raw_text("GET %s", index), name);
    assert_string_equal(raw_text("GET %s", counter), "1");
    assert_in_range(raw_int("PTTL %s", name), 5500, 6000);
    assert_in_range(raw_int("PTTL %s", index), 5500, 6000);
    assert_int_equal(raw_int("PTTL %s", counter), -1);
    assert_int_equal(raw_int("DBSIZE"), 3);
    int64_t expires = 0;
    assert_status(SYNCGUARD_OK, syncguard_extend(store, grant.lock_id, 9000, NULL, &expires, &err));
    assert_in_range(raw_int("PTTL %s", name), 9500, 10000);
    assert_in_range(raw_int("PTTL %s", index), 9500, 10000);
    assert_string_equal(raw_text("GET %s", index), name);
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    assert_int_equal(raw_int("EXISTS %s %s", name, index), 0);
    assert_int_equal(raw_int("PTTL %s", counter), -1);
}

static void owner_is_one_more_field(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_backend *owned = NULL;
    syncguard_grant grant;
    options.owner = "me@\"here\"";
    assert_status(SYNCGUARD_OK, syncguard_open(redis_url, &options, &owned, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(owned, "owned", 5000, NULL, &grant, &err));
    assert_non_null(strstr(raw_text("GET syncguard:owned"), "\"owner\":\"me@\\\"here\\\"\""));
    syncguard_lock_info_raw info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, "owned", NULL, &info, &err));
    assert_string_equal(info.owner, "me@\"here\"");
    syncguard_close(owned);
}

/* A key of 512 bytes under a prefix of 470: lock, index and counter through every operation. */
static void hashed_names_work_everywhere(void **state)
{
    (void)state;
    char prefix[471], key[513];
    memset(prefix, 'p', 470);
    prefix[470] = '\0';
    memset(key, 'k', 512);
    key[512] = '\0';
    char extra[520];
    snprintf(extra, sizeof extra, "prefix=%s", prefix);
    syncguard_backend *hashed = open_with(extra);
    syncguard_grant first;
    assert_status(SYNCGUARD_OK, syncguard_acquire(hashed, key, 5000, NULL, &first, &err));
    syncguard_grant second;
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(hashed, key, 5000, NULL, &second, &err));
    char name[1200];
    snprintf(name, sizeof name, "%s:id:%s", prefix, first.lock_id);
    assert_int_equal(strlen(raw_text("GET %s", name)), 470 + 1 + 22);
    bool locked = false;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(hashed, key, NULL, &locked, &err));
    assert_true(locked);
    syncguard_lock_info_raw info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_id_raw(hashed, first.lock_id, NULL, &info, &err));
    assert_string_equal(info.key, key);
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(hashed, key, NULL, &info, &err));
    assert_string_equal(info.lock_id, first.lock_id);
    int64_t expires;
    assert_status(SYNCGUARD_OK,
                  syncguard_extend(hashed, first.lock_id, 6000, NULL, &expires, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(hashed, first.lock_id, NULL, &err));

    /* Another long key has a counter of its own. */
    assert_status(SYNCGUARD_OK, syncguard_acquire(hashed, key, 5000, NULL, &first, &err));
    assert_string_equal(first.fence, "000000000000002");
    key[511] = 'x';
    assert_status(SYNCGUARD_OK, syncguard_acquire(hashed, key, 5000, NULL, &second, &err));
    assert_string_equal(second.fence, "000000000000001");

    /* Waiters are woken through the hashed name, too. */
    syncguard_lock *lock = NULL;
    syncguard_lock_options patient = SYNCGUARD_LOCK_OPTIONS_INIT;
    patient.retry_delay_ms = 100;
    assert_status(SYNCGUARD_OK, syncguard_release(hashed, second.lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(hashed, key, &patient, &lock, &err));
    syncguard_lock_dispose(lock);
    syncguard_close(hashed);
}

static void list_shows_our_locks_only(void **state)
{
    (void)state;
    char key[32];
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "listed:%d", i);
        (void)take_lock(key, 5000);
    }
    (void)take_lock("id:short", 5000);
    raw_do("SET syncguard:foreign something");
    raw_do("HSET syncguard:hash a b");
    raw_do(
        "SET syncguard:nested:inner %s",
        "{\"lockId\":\"AAAAAAAAAAAAAAAAAAAAAA\",\"expiresAtMs\":9000000000000,\"acquiredAtMs\":1,"
        "\"key\":\"inner\",\"fence\":\"000000000000001\"}");
    raw_do("SET syncguard:dead %s",
           "{\"lockId\":\"AAAAAAAAAAAAAAAAAAAAAA\",\"expiresAtMs\":1000,\"acquiredAtMs\":1,"
           "\"key\":\"dead\",\"fence\":\"000000000000001\"}");
    int count = 0;
    assert_status(SYNCGUARD_OK, syncguard_list_raw(store, NULL, test_count_raw, &count, &err));
    assert_int_equal(count, 301);
}

/* Prefixes of 949 to 951 bytes: the index's name is hashed, as the TypeScript library does it. The
 * known answers are those of that library. */
static void long_prefixes_hash_the_index(void **state)
{
    (void)state;
    static const struct {
        int length;
        const char *index;
    } cases[] = {
        {948, "id:" OTHER_ID},
        {949, "7NFHQ1ntXqPpcwm3oSlQkA"},
        {950, "jdrd0f7HUnJSKro21MHePA"},
        {951, "kkUkHM3W1hP7v7Uu_62q5Q"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char prefix[952], extra[1000];
        static const char value[] =
            "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":9000000000000,\"acquiredAtMs\":1,"
            "\"key\":\"other\",\"fence\":\"000000000000007\"}";
        memset(prefix, 'p', sizeof prefix);
        prefix[cases[i].length] = '\0';
        snprintf(extra, sizeof extra, "prefix=%s", prefix);
        char index[1024];
        snprintf(index, sizeof index, "%s:%s", prefix, cases[i].index);
        syncguard_backend *distant = open_with(extra);

        /* What the TypeScript library stored is found, renewed and released by id. */
        raw_do("SET %s:other %s", prefix, value);
        raw_do("SET %s %s:other", index, prefix);
        syncguard_lock_info_raw info;
        assert_status(SYNCGUARD_OK, syncguard_get_by_id_raw(distant, OTHER_ID, NULL, &info, &err));
        assert_string_equal(info.key, "other");
        int64_t expires = 0;
        assert_status(SYNCGUARD_OK,
                      syncguard_extend(distant, OTHER_ID, 60000, NULL, &expires, &err));
        assert_in_range(raw_int("PTTL %s", index), 50000, 61000);
        assert_status(SYNCGUARD_OK, syncguard_release(distant, OTHER_ID, NULL, &err));
        assert_int_equal(raw_int("EXISTS %s:other %s", prefix, index), 0);
        syncguard_grant grant;
        /* What we store is where that library looks for it. */
        assert_status(SYNCGUARD_OK, syncguard_acquire(distant, "ours", 5000, NULL, &grant, &err));
        char full[1024];
        snprintf(full, sizeof full, "%s:id:%s", prefix, grant.lock_id);
        char hash[SYNCGUARD_LOCK_ID_SIZE];
        syncguard_name_hash(full, strlen(full), hash);
        if (cases[i].length > 948)
            snprintf(full, sizeof full, "%s:%s", prefix, hash);
        snprintf(index, sizeof index, "%s:ours", prefix);
        assert_string_equal(raw_text("GET %s", full), index);
        assert_status(SYNCGUARD_LOCKED,
                      syncguard_acquire(distant, "ours", 5000, NULL, &grant, &err));

        /* Undoing, finding one's own grant, and taking over need the id, too. */
        syncguard_acquire_op op = {.key = "again",
                                   .key_length = 5,
                                   .lock_id = OTHER_ID,
                                   .ttl_ms = 5000,
                                   .owner = "",
                                   .limits = {SYNCGUARD_NO_DEADLINE, NULL}};
        assert_status(SYNCGUARD_OK, distant->ops->acquire(distant, &op, &err));
        assert_status(SYNCGUARD_OK, distant->ops->acquire(distant, &op, &err));
        assert_true(op.fence == 1);
        assert_status(SYNCGUARD_OK,
                      distant->ops->undo(distant, "again", 5, OTHER_ID,
                                         syncguard_clock_ns() + 5000 * SYNCGUARD_NS_PER_MS,
                                         &op.limits, &err));
        assert_int_equal(raw_int("EXISTS %s:again", prefix), 0);
        assert_status(SYNCGUARD_E_INTERNAL, distant->ops->acquire(distant, &op, &err));
        assert_string_equal(err.native, "SPENT");
        int count = 0;
        assert_status(SYNCGUARD_OK,
                      syncguard_list_raw(distant, NULL, test_count_raw, &count, &err));
        assert_int_equal(count, 1);
        syncguard_close(distant);
        raw_do("FLUSHALL");
    }
}

/* ---- counters ---- */

static void counter_ends_where_it_must(void **state)
{
    (void)state;
    raw_do("SET syncguard:fence:syncguard:end 899999999999999");
    syncguard_grant grant = take_lock("end", 5000);
    assert_string_equal(grant.fence, "900000000000000");
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    static const char *const values[] = {"900000000000000",
                                         "1000000000000000",
                                         "9223372036854775807",
                                         "99999999999999999999999999",
                                         "-1",
                                         "x",
                                         "",
                                         "1.5",
                                         "007",
                                         " 1"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        raw_do("SET syncguard:fence:syncguard:end %s", values[i]);
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_acquire(store, "end", 5000, NULL, &grant, &err));
        assert_string_equal(raw_text("GET syncguard:fence:syncguard:end"), values[i]);
        assert_int_equal(raw_int("DBSIZE"), 1);
    }
}

/* ---- tombstones ---- */

static void undone_id_is_never_granted(void **state)
{
    (void)state;
    static const char id[] = "dW5kb25lLWxvY2staWQtMQ";
    syncguard_acquire_op op = {.key = "undone",
                               .key_length = 6,
                               .lock_id = id,
                               .ttl_ms = 5000,
                               .owner = "",
                               .limits = {SYNCGUARD_NO_DEADLINE, NULL}};
    int64_t until = syncguard_clock_ns() + 5000 * SYNCGUARD_NS_PER_MS;
    assert_status(SYNCGUARD_OK, store->ops->undo(store, "undone", 6, id, until, &op.limits, &err));
    assert_in_range(raw_int("PTTL syncguard:id:%s", id), 4000, 6100);
    assert_status(SYNCGUARD_E_INTERNAL, store->ops->acquire(store, &op, &err));
    assert_string_equal(err.native, "SPENT");
    assert_int_equal(raw_int("EXISTS syncguard:undone"), 0);
    assert_int_equal(raw_int("EXISTS syncguard:fence:syncguard:undone"), 0);
    assert_status(SYNCGUARD_ABSENT, syncguard_release(store, id, NULL, &err));
    /* A grant that exists is removed. */
    syncguard_grant grant = take_lock("undone", 5000);
    assert_status(SYNCGUARD_OK,
                  store->ops->undo(store, "undone", 6, grant.lock_id, until, &op.limits, &err));
    assert_int_equal(raw_int("EXISTS syncguard:undone"), 0);
    /* But not that of another id. */
    grant = take_lock("undone", 5000);
    assert_status(SYNCGUARD_OK, store->ops->undo(store, "undone", 6, id, until, &op.limits, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
}

static void own_grant_is_found_again(void **state)
{
    (void)state;
    static const char id[] = "c2VudC10d2ljZS1sb2NrLQ";
    syncguard_acquire_op op = {.key = "twice",
                               .key_length = 5,
                               .lock_id = id,
                               .ttl_ms = 5000,
                               .owner = "",
                               .limits = {SYNCGUARD_NO_DEADLINE, NULL}};
    assert_status(SYNCGUARD_OK, store->ops->acquire(store, &op, &err));
    int64_t fence = op.fence, expires = op.expires_at_ms;
    assert_status(SYNCGUARD_OK, store->ops->acquire(store, &op, &err));
    assert_true(op.fence == fence && op.expires_at_ms == expires);
    assert_string_equal(raw_text("GET syncguard:fence:syncguard:twice"), "1");
}

/* ---- scripts ---- */

static void forgotten_scripts_are_recovered(void **state)
{
    (void)state;
    syncguard_grant grant = take_lock("flushed", 5000);
    int64_t expires;
    raw_do("SCRIPT FLUSH");
    assert_status(SYNCGUARD_OK, syncguard_extend(store, grant.lock_id, 5000, NULL, &expires, &err));
    raw_do("SCRIPT FLUSH");
    bool locked;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(store, "flushed", NULL, &locked, &err));
    assert_true(locked);
    raw_do("SCRIPT FLUSH");
    syncguard_extend_op items[SYNCGUARD_BATCH_MAX];
    memset(items, 0, sizeof items);
    for (int i = 0; i < SYNCGUARD_BATCH_MAX; i++) {
        items[i].lock_id = i % 2 == 0 ? grant.lock_id : OTHER_ID;
        items[i].ttl_ms = 6000;
    }
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, NULL};
    assert_status(SYNCGUARD_OK,
                  store->ops->extend_many(store, items, SYNCGUARD_BATCH_MAX, &limits, &err));
    for (int i = 0; i < SYNCGUARD_BATCH_MAX; i++)
        assert_int_equal(items[i].status, i % 2 == 0 ? SYNCGUARD_OK : SYNCGUARD_ABSENT);
    raw_do("SCRIPT FLUSH");
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    raw_do("SCRIPT FLUSH");
    (void)take_lock("flushed", 5000);
}

static void embedded_digests_are_right(void **state)
{
    (void)state;
    for (int i = 0; i < SG_REDIS_SCRIPTS; i++)
        assert_string_equal(raw_text("SCRIPT LOAD %s", sg_redis_scripts[i].text),
                            sg_redis_scripts[i].sha);
}

static void one_command_per_operation(void **state)
{
    (void)state;
    bool locked;
    syncguard_lock_info info;
    syncguard_grant grant = take_lock("counted", 5000);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(store, "counted", NULL, &locked, &err));
    assert_status(SYNCGUARD_OK, syncguard_get_by_id(store, grant.lock_id, NULL, &info, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    raw_do("CONFIG RESETSTAT");
    grant = take_lock("counted", 5000);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(store, "counted", NULL, &locked, &err));
    assert_status(SYNCGUARD_OK, syncguard_get_by_id(store, grant.lock_id, NULL, &info, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    assert_int_equal(raw_calls("evalsha"), 4);
    assert_int_equal(raw_calls("eval"), 0);
}

/* A request of an acquire while a hash slot moves; out: the reply's text, or a number as text. */
static void hold_name(const char *id, const char *fence, const char *taken, char out[256])
{
    redisReply *reply =
        raw("EVAL %s 1 held-name 1000 2000 %s %s %s %s",
            sg_redis_scripts[SG_REDIS_SCRIPT_HOLD].text, id, fence, "\"key\":\"k\"}", taken);
    if (reply->type == REDIS_REPLY_INTEGER)
        snprintf(out, 256, "%lld", reply->integer);
    else
        snprintf(out, 256, "%s", reply->str);
    freeReplyObject(reply);
}

/* A late copy of the request that took the name must not make a grant with a fence from before
 * another's grant. */
static void late_copy_makes_no_grant(void **state)
{
    (void)state;
    const char *one = "AAAAAAAAAAAAAAAAAAAAAA";
    char text[256], taken[32] = "";
    hold_name(one, "000000000000000", "0", text);
    const char *at = strstr(text, "\"acquiredAtMs\":");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"acquiredAtMs\":%31[0-9]", taken), 1);
    raw_do("DEL held-name"); /* as if its time were over */
    const char *other = "BBBBBBBBBBBBBBBBBBBBBB";
    hold_name(other, "000000000000000", "0", text);
    raw_do("DEL held-name"); /* granted and released by the other */
    test_sleep_ms(5);
    hold_name(one, "000000000000000", "0", text); /* the late copy */
    hold_name(one, "000000000000005", taken, text);
    assert_string_equal(text, "0");
    raw_do("DEL held-name");

    /* Without a late copy the lock is granted, also when the request is sent again. */
    hold_name(one, "000000000000000", "0", text);
    assert_int_equal(sscanf(strstr(text, "\"acquiredAtMs\":"), "\"acquiredAtMs\":%31[0-9]", taken),
                     1);
    for (int i = 0; i < 2; i++) {
        hold_name(one, "000000000000005", taken, text);
        assert_non_null(strstr(text, "\"fence\":\"000000000000005\""));
        test_sleep_ms(3);
    }
    raw_do("DEL held-name");
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_copy_makes_no_grant),
        cmocka_unit_test_setup(stored_lock_is_as_agreed, flush_all),
        cmocka_unit_test_setup(owner_is_one_more_field, flush_all),
        cmocka_unit_test_setup(hashed_names_work_everywhere, flush_all),
        cmocka_unit_test_setup(long_prefixes_hash_the_index, flush_all),
        cmocka_unit_test_setup(list_shows_our_locks_only, flush_all),
        cmocka_unit_test_setup(counter_ends_where_it_must, flush_all),
        cmocka_unit_test_setup(undone_id_is_never_granted, flush_all),
        cmocka_unit_test_setup(own_grant_is_found_again, flush_all),
        cmocka_unit_test_setup(forgotten_scripts_are_recovered, flush_all),
        cmocka_unit_test_setup(embedded_digests_are_right, flush_all),
        cmocka_unit_test_setup(one_command_per_operation, flush_all),
    };
    return cmocka_run_group_tests_name("redis store", tests, open_store, close_store);
}
