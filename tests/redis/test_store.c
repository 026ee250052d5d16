/*
 * What is stored, and what the backend makes of what others store: names and
 * values of DESIGN.md section 6, hashed names, planted values, counters at their
 * ends, forgotten scripts, options.
 */
#include "support.h"

#include "backends/redis/internal.h"

static syncguard_backend *store;

static int open_store(void **state)
{
    (void)state;
    store = open_url(test_url);
    return 0;
}

static int close_store(void **state)
{
    (void)state;
    syncguard_close(store);
    return 0;
}

static int flush_all(void **state)
{
    (void)state;
    raw_do("FLUSHALL");
    return 0;
}

static syncguard_grant take(const char *key, int64_t ttl_ms)
{
    syncguard_grant grant;
    assert_status(syncguard_acquire(store, key, ttl_ms, NULL, &grant, &err), SYNCGUARD_OK);
    return grant;
}

static void stored_lock_is_as_agreed(void **state)
{
    (void)state;
    syncguard_grant grant = take("fields \"quoted\" \xC3\xA9\n", 5000);
    char name[64], index[64], counter[128];
    syncguard_record record;
    snprintf(name, sizeof name, "syncguard:%s", "fields \"quoted\" \xC3\xA9\n");
    snprintf(index, sizeof index, "syncguard:id:%s", grant.lock_id);
    snprintf(counter, sizeof counter, "syncguard:fence:%s", name);

    redisReply *value = raw("GET %s", name);
    assert_int_equal(value->type, REDIS_REPLY_STRING);
    assert_int_equal(sg_redis_value_read(value->str, (size_t)value->len, &record), SG_VALUE_WHOLE);
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
    assert_status(syncguard_extend(store, grant.lock_id, 9000, NULL, &expires, &err), SYNCGUARD_OK);
    assert_in_range(raw_int("PTTL %s", name), 9500, 10000);
    assert_in_range(raw_int("PTTL %s", index), 9500, 10000);
    assert_string_equal(raw_text("GET %s", index), name);
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
    assert_int_equal(raw_int("EXISTS %s %s", name, index), 0);
    assert_int_equal(raw_int("PTTL %s", counter), -1);
}

static void owner_is_one_more_field(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_backend *owned = NULL;
    syncguard_grant grant;
    syncguard_lock_info_raw info;
    options.owner = "me@\"here\"";
    assert_status(syncguard_open(test_url, &options, &owned, &err), SYNCGUARD_OK);
    assert_status(syncguard_acquire(owned, "owned", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    assert_non_null(strstr(raw_text("GET syncguard:owned"), "\"owner\":\"me@\\\"here\\\"\""));
    assert_status(syncguard_get_by_key_raw(store, "owned", NULL, &info, &err), SYNCGUARD_OK);
    assert_string_equal(info.owner, "me@\"here\"");
    syncguard_close(owned);
}

/* A key of 512 bytes under a prefix of 470: lock, index and counter through every operation. */
static void hashed_names_work_everywhere(void **state)
{
    (void)state;
    char prefix[471], extra[520], key[513], name[1200];
    syncguard_grant first, second;
    syncguard_lock_info_raw info;
    int64_t expires;
    bool locked = false;
    memset(prefix, 'p', 470);
    prefix[470] = '\0';
    memset(key, 'k', 512);
    key[512] = '\0';
    snprintf(extra, sizeof extra, "prefix=%s", prefix);
    syncguard_backend *hashed = open_with(extra);
    assert_status(syncguard_acquire(hashed, key, 5000, NULL, &first, &err), SYNCGUARD_OK);
    assert_status(syncguard_acquire(hashed, key, 5000, NULL, &second, &err), SYNCGUARD_LOCKED);
    snprintf(name, sizeof name, "%s:id:%s", prefix, first.lock_id);
    assert_int_equal(strlen(raw_text("GET %s", name)), 470 + 1 + 22);
    assert_status(syncguard_is_locked(hashed, key, NULL, &locked, &err), SYNCGUARD_OK);
    assert_true(locked);
    assert_status(syncguard_get_by_id_raw(hashed, first.lock_id, NULL, &info, &err), SYNCGUARD_OK);
    assert_string_equal(info.key, key);
    assert_status(syncguard_get_by_key_raw(hashed, key, NULL, &info, &err), SYNCGUARD_OK);
    assert_string_equal(info.lock_id, first.lock_id);
    assert_status(syncguard_extend(hashed, first.lock_id, 6000, NULL, &expires, &err),
                  SYNCGUARD_OK);
    assert_status(syncguard_release(hashed, first.lock_id, NULL, &err), SYNCGUARD_OK);

    /* Another long key has a counter of its own. */
    assert_status(syncguard_acquire(hashed, key, 5000, NULL, &first, &err), SYNCGUARD_OK);
    assert_string_equal(first.fence, "000000000000002");
    key[511] = 'x';
    assert_status(syncguard_acquire(hashed, key, 5000, NULL, &second, &err), SYNCGUARD_OK);
    assert_string_equal(second.fence, "000000000000001");

    /* Waiters are woken through the hashed name, too. */
    syncguard_lock *lock = NULL;
    syncguard_lock_options patient = SYNCGUARD_LOCK_OPTIONS_INIT;
    patient.retry_delay_ms = 100;
    assert_status(syncguard_release(hashed, second.lock_id, NULL, &err), SYNCGUARD_OK);
    assert_status(syncguard_lock_acquire(hashed, key, &patient, &lock, &err), SYNCGUARD_OK);
    syncguard_lock_dispose(lock);
    syncguard_close(hashed);
}

static bool count_records(void *context, const syncguard_lock_info_raw *info)
{
    (void)info;
    ++*(int *)context;
    return true;
}

static void list_shows_our_locks_only(void **state)
{
    (void)state;
    char key[32];
    int count = 0;
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "listed:%d", i);
        (void)take(key, 5000);
    }
    (void)take("id:short", 5000);
    raw_do("SET syncguard:foreign something");
    raw_do("HSET syncguard:hash a b");
    raw_do(
        "SET syncguard:nested:inner %s",
        "{\"lockId\":\"AAAAAAAAAAAAAAAAAAAAAA\",\"expiresAtMs\":9000000000000,\"acquiredAtMs\":1,"
        "\"key\":\"inner\",\"fence\":\"000000000000001\"}");
    raw_do("SET syncguard:dead %s",
           "{\"lockId\":\"AAAAAAAAAAAAAAAAAAAAAA\",\"expiresAtMs\":1000,\"acquiredAtMs\":1,"
           "\"key\":\"dead\",\"fence\":\"000000000000001\"}");
    assert_status(syncguard_list_raw(store, NULL, count_records, &count, &err), SYNCGUARD_OK);
    assert_int_equal(count, 301);
}

/* --- values of other writers --- */

#define OTHER_ID "Zm9yZWlnbi1sb2NrLWlkLQ"

static void plant(const char *key, const char *value)
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
        syncguard_lock_info_raw info;
        bool locked = false;
        int64_t expires = 0;
        plant("other", values[i]);
        assert_status(syncguard_acquire(store, "other", 5000, NULL, &grant, &err),
                      SYNCGUARD_LOCKED);
        assert_status(syncguard_is_locked(store, "other", NULL, &locked, &err), SYNCGUARD_OK);
        assert_true(locked);
        assert_status(syncguard_get_by_id_raw(store, OTHER_ID, NULL, &info, &err), SYNCGUARD_OK);
        assert_string_equal(info.key, "other");
        assert_string_equal(info.info.fence, "000000000000007");
        assert_status(syncguard_extend(store, OTHER_ID, 7000, NULL, &expires, &err), SYNCGUARD_OK);
        assert_status(syncguard_get_by_id_raw(store, OTHER_ID, NULL, &info, &err), SYNCGUARD_OK);
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
        assert_status(syncguard_release(store, OTHER_ID, NULL, &err), SYNCGUARD_OK);
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
        "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":9000000000000.5,\"acquiredAtMs\":1,"
        "\"key\":\"bad\",\"fence\":\"000000000000001\"}",
        "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":x000000000000,\"acquiredAtMs\":1000000000000,"
        "\"fence\":\"000000000000001\",\"key\":\"bad\"}",
        "{\"lockId\":\"" OTHER_ID "\",\"acquiredAtMs\":1,\"key\":\"bad\","
        "\"fence\":\"000000000000001\"}",
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        syncguard_grant grant;
        syncguard_lock_info info;
        bool locked;
        int64_t expires;
        plant("bad", values[i]);
        assert_status(syncguard_acquire(store, "bad", 5000, NULL, &grant, &err),
                      SYNCGUARD_E_INTERNAL);
        assert_string_not_equal(err.key_hash, "");
        assert_status(syncguard_is_locked(store, "bad", NULL, &locked, &err), SYNCGUARD_E_INTERNAL);
        assert_status(syncguard_get_by_key(store, "bad", NULL, &info, &err), SYNCGUARD_E_INTERNAL);
        assert_status(syncguard_get_by_id(store, OTHER_ID, NULL, &info, &err),
                      SYNCGUARD_E_INTERNAL);
        assert_status(syncguard_release(store, OTHER_ID, NULL, &err), SYNCGUARD_E_INTERNAL);
        assert_status(syncguard_extend(store, OTHER_ID, 5000, NULL, &expires, &err),
                      SYNCGUARD_E_INTERNAL);
        assert_string_equal(raw_text("GET syncguard:bad"), values[i]);
        assert_int_equal(raw_int("DBSIZE"), 2);
    }
}

static void note_line(void *context, syncguard_log_level level, const char *text)
{
    (void)level;
    if (strstr(text, "1 stored records cannot be read") != NULL)
        ++*(int *)context;
}

/* Only the expiry decides whether a lock is live; its owner may renew it and give it back. */
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
    int lines = 0, count = 0;
    options.log = note_line;
    options.log_context = &lines;
    assert_status(syncguard_open(test_url, &options, &logged, &err), SYNCGUARD_OK);
    for (size_t i = 0; i < sizeof rests / sizeof rests[0]; i++) {
        char value[300];
        syncguard_grant grant;
        syncguard_lock_info info;
        bool locked = false;
        int64_t expires = 0;
        snprintf(value, sizeof value,
                 "{\"lockId\":\"" OTHER_ID
                 "\",\"expiresAtMs\":9000000000000,\"acquiredAtMs\":\"x\",%s",
                 rests[i]);
        plant("bad", value);
        assert_status(syncguard_acquire(store, "bad", 5000, NULL, &grant, &err), SYNCGUARD_LOCKED);
        assert_status(syncguard_is_locked(store, "bad", NULL, &locked, &err), SYNCGUARD_OK);
        assert_true(locked);
        assert_status(syncguard_get_by_key(store, "bad", NULL, &info, &err), SYNCGUARD_E_INTERNAL);
        assert_status(syncguard_get_by_id(store, OTHER_ID, NULL, &info, &err),
                      SYNCGUARD_E_INTERNAL);
        lines = count = 0;
        assert_status(syncguard_list_raw(logged, NULL, count_records, &count, &err), SYNCGUARD_OK);
        assert_int_equal(count, 0);
        assert_int_equal(lines, 1);
        assert_status(syncguard_extend(store, OTHER_ID, 5000, NULL, &expires, &err), SYNCGUARD_OK);
        assert_non_null(strstr(raw_text("GET syncguard:bad"), rests[i]));
        assert_status(syncguard_release(store, OTHER_ID, NULL, &err), SYNCGUARD_OK);
        assert_int_equal(raw_int("EXISTS syncguard:bad"), 0);

        /* Dead: as any dead record. */
        snprintf(value, sizeof value, "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":9,%s",
                 rests[i]);
        plant("bad", value);
        assert_status(syncguard_get_by_key(store, "bad", NULL, &info, &err), SYNCGUARD_ABSENT);
        assert_status(syncguard_release(store, OTHER_ID, NULL, &err), SYNCGUARD_ABSENT);
        grant = take("bad", 5000);
        assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
    }
    /* An id that is no text is nobody's; the lock ends by its expiry. */
    syncguard_grant grant;
    plant("bad", "{\"lockId\":{},\"expiresAtMs\":9000000000000,\"key\":\"bad\"}");
    assert_status(syncguard_acquire(store, "bad", 5000, NULL, &grant, &err), SYNCGUARD_LOCKED);
    assert_status(syncguard_release(store, OTHER_ID, NULL, &err), SYNCGUARD_ABSENT);
    plant("bad", "{\"lockId\":{},\"expiresAtMs\":9,\"key\":\"bad\"}");
    (void)take("bad", 5000);
    syncguard_close(logged);
}

static void foreign_types_are_left_alone(void **state)
{
    (void)state;
    syncguard_grant grant;
    bool locked;
    raw_do("HSET syncguard:typed a b");
    raw_do("SET syncguard:id:" OTHER_ID " syncguard:typed");
    assert_status(syncguard_acquire(store, "typed", 5000, NULL, &grant, &err),
                  SYNCGUARD_E_INTERNAL);
    assert_string_equal(err.native, "WRONGTYPE");
    assert_status(syncguard_is_locked(store, "typed", NULL, &locked, &err), SYNCGUARD_E_INTERNAL);
    assert_status(syncguard_release(store, OTHER_ID, NULL, &err), SYNCGUARD_E_INTERNAL);
    assert_string_equal(raw_text("HGET syncguard:typed a"), "b");
    raw_do("RPUSH syncguard:fence:syncguard:listed x");
    assert_status(syncguard_acquire(store, "listed", 5000, NULL, &grant, &err),
                  SYNCGUARD_E_INTERNAL);
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
    assert_status(syncguard_acquire(store, "dead", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    assert_string_equal(raw_text("HGET syncguard:id:" OTHER_ID " a"), "b");
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
}

/* Prefixes of 949 to 951 bytes: the index's name is hashed, as the other library does it. The known
 * answers are its own. */
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
        char prefix[952], extra[1000], index[1024], full[1024], hash[SYNCGUARD_LOCK_ID_SIZE];
        static const char value[] =
            "{\"lockId\":\"" OTHER_ID "\",\"expiresAtMs\":9000000000000,\"acquiredAtMs\":1,"
            "\"key\":\"other\",\"fence\":\"000000000000007\"}";
        syncguard_lock_info_raw info;
        syncguard_grant grant;
        int64_t expires = 0;
        memset(prefix, 'p', sizeof prefix);
        prefix[cases[i].length] = '\0';
        snprintf(extra, sizeof extra, "prefix=%s", prefix);
        snprintf(index, sizeof index, "%s:%s", prefix, cases[i].index);
        syncguard_backend *distant = open_with(extra);

        /* What the other library stored is found, renewed and released by id. */
        raw_do("SET %s:other %s", prefix, value);
        raw_do("SET %s %s:other", index, prefix);
        assert_status(syncguard_get_by_id_raw(distant, OTHER_ID, NULL, &info, &err), SYNCGUARD_OK);
        assert_string_equal(info.key, "other");
        assert_status(syncguard_extend(distant, OTHER_ID, 60000, NULL, &expires, &err),
                      SYNCGUARD_OK);
        assert_in_range(raw_int("PTTL %s", index), 50000, 61000);
        assert_status(syncguard_release(distant, OTHER_ID, NULL, &err), SYNCGUARD_OK);
        assert_int_equal(raw_int("EXISTS %s:other %s", prefix, index), 0);

        /* What we store is where it looks. */
        assert_status(syncguard_acquire(distant, "ours", 5000, NULL, &grant, &err), SYNCGUARD_OK);
        snprintf(full, sizeof full, "%s:id:%s", prefix, grant.lock_id);
        syncguard_name_hash(full, strlen(full), hash);
        if (cases[i].length > 948)
            snprintf(full, sizeof full, "%s:%s", prefix, hash);
        snprintf(index, sizeof index, "%s:ours", prefix);
        assert_string_equal(raw_text("GET %s", full), index);
        assert_status(syncguard_acquire(distant, "ours", 5000, NULL, &grant, &err),
                      SYNCGUARD_LOCKED);

        /* Undoing, finding one's own grant, and taking over need the id, too. */
        syncguard_acquire_op op = {.key = "again",
                                   .key_length = 5,
                                   .lock_id = OTHER_ID,
                                   .ttl_ms = 5000,
                                   .owner = "",
                                   .limits = {SYNCGUARD_NO_DEADLINE, NULL}};
        assert_status(distant->ops->acquire(distant, &op, &err), SYNCGUARD_OK);
        assert_status(distant->ops->acquire(distant, &op, &err), SYNCGUARD_OK);
        assert_true(op.fence == 1);
        assert_status(distant->ops->undo(distant, "again", 5, OTHER_ID,
                                         syncguard_clock_ns() + 5000 * SYNCGUARD_NS_PER_MS,
                                         &op.limits, &err),
                      SYNCGUARD_OK);
        assert_int_equal(raw_int("EXISTS %s:again", prefix), 0);
        assert_status(distant->ops->acquire(distant, &op, &err), SYNCGUARD_E_INTERNAL);
        assert_string_equal(err.native, "SPENT");
        int count = 0;
        assert_status(syncguard_list_raw(distant, NULL, count_records, &count, &err), SYNCGUARD_OK);
        assert_int_equal(count, 1);
        syncguard_close(distant);
        raw_do("FLUSHALL");
    }
}

static void index_that_lies_changes_nothing(void **state)
{
    (void)state;
    syncguard_grant grant = take("victim", 5000);
    syncguard_lock_info info;
    int64_t expires;
    raw_do("SET syncguard:id:" OTHER_ID " syncguard:victim");
    assert_status(syncguard_release(store, OTHER_ID, NULL, &err), SYNCGUARD_ABSENT);
    assert_status(syncguard_extend(store, OTHER_ID, 5000, NULL, &expires, &err), SYNCGUARD_ABSENT);
    assert_status(syncguard_get_by_id(store, OTHER_ID, NULL, &info, &err), SYNCGUARD_ABSENT);
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
}

/* --- counters --- */

static void counter_ends_where_it_must(void **state)
{
    (void)state;
    syncguard_grant grant;
    raw_do("SET syncguard:fence:syncguard:end 899999999999999");
    grant = take("end", 5000);
    assert_string_equal(grant.fence, "900000000000000");
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
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
        assert_status(syncguard_acquire(store, "end", 5000, NULL, &grant, &err),
                      SYNCGUARD_E_INTERNAL);
        assert_string_equal(raw_text("GET syncguard:fence:syncguard:end"), values[i]);
        assert_int_equal(raw_int("DBSIZE"), 1);
    }
}

/* --- tombstones --- */

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
    assert_status(store->ops->undo(store, "undone", 6, id, until, &op.limits, &err), SYNCGUARD_OK);
    assert_in_range(raw_int("PTTL syncguard:id:%s", id), 4000, 6100);
    assert_status(store->ops->acquire(store, &op, &err), SYNCGUARD_E_INTERNAL);
    assert_string_equal(err.native, "SPENT");
    assert_int_equal(raw_int("EXISTS syncguard:undone"), 0);
    assert_int_equal(raw_int("EXISTS syncguard:fence:syncguard:undone"), 0);
    assert_status(syncguard_release(store, id, NULL, &err), SYNCGUARD_ABSENT);
    /* And a grant that is there goes. */
    syncguard_grant grant = take("undone", 5000);
    assert_status(store->ops->undo(store, "undone", 6, grant.lock_id, until, &op.limits, &err),
                  SYNCGUARD_OK);
    assert_int_equal(raw_int("EXISTS syncguard:undone"), 0);
    /* But nobody else's. */
    grant = take("undone", 5000);
    assert_status(store->ops->undo(store, "undone", 6, id, until, &op.limits, &err), SYNCGUARD_OK);
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
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
    assert_status(store->ops->acquire(store, &op, &err), SYNCGUARD_OK);
    int64_t fence = op.fence, expires = op.expires_at_ms;
    assert_status(store->ops->acquire(store, &op, &err), SYNCGUARD_OK);
    assert_true(op.fence == fence && op.expires_at_ms == expires);
    assert_string_equal(raw_text("GET syncguard:fence:syncguard:twice"), "1");
}

/* --- scripts --- */

static void forgotten_scripts_are_recovered(void **state)
{
    (void)state;
    syncguard_grant grant = take("flushed", 5000);
    syncguard_extend_op items[300];
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, NULL};
    bool locked;
    int64_t expires;
    raw_do("SCRIPT FLUSH");
    assert_status(syncguard_extend(store, grant.lock_id, 5000, NULL, &expires, &err), SYNCGUARD_OK);
    raw_do("SCRIPT FLUSH");
    assert_status(syncguard_is_locked(store, "flushed", NULL, &locked, &err), SYNCGUARD_OK);
    assert_true(locked);
    raw_do("SCRIPT FLUSH");
    memset(items, 0, sizeof items);
    for (int i = 0; i < 300; i++) {
        items[i].lock_id = i % 2 == 0 ? grant.lock_id : OTHER_ID;
        items[i].ttl_ms = 6000;
    }
    assert_status(store->ops->extend_many(store, items, 300, &limits, &err), SYNCGUARD_OK);
    for (int i = 0; i < 300; i++)
        assert_int_equal(items[i].status, i % 2 == 0 ? SYNCGUARD_OK : SYNCGUARD_ABSENT);
    raw_do("SCRIPT FLUSH");
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
    raw_do("SCRIPT FLUSH");
    (void)take("flushed", 5000);
}

static void embedded_digests_are_right(void **state)
{
    (void)state;
    for (int i = 0; i < SG_SCRIPTS; i++)
        assert_string_equal(raw_text("SCRIPT LOAD %s", sg_redis_scripts[i].text),
                            sg_redis_scripts[i].sha);
}

static void one_command_per_operation(void **state)
{
    (void)state;
    bool locked;
    syncguard_lock_info info;
    syncguard_grant grant = take("counted", 5000);
    assert_status(syncguard_is_locked(store, "counted", NULL, &locked, &err), SYNCGUARD_OK);
    assert_status(syncguard_get_by_id(store, grant.lock_id, NULL, &info, &err), SYNCGUARD_OK);
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
    raw_do("CONFIG RESETSTAT");
    grant = take("counted", 5000);
    assert_status(syncguard_is_locked(store, "counted", NULL, &locked, &err), SYNCGUARD_OK);
    assert_status(syncguard_get_by_id(store, grant.lock_id, NULL, &info, &err), SYNCGUARD_OK);
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
    assert_int_equal(raw_calls("evalsha"), 4);
    assert_int_equal(raw_calls("eval"), 0);
}

/* --- cleanup --- */

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
    plant("old", value);
}

static void cleanup_takes_dead_records_only(void **state)
{
    (void)state;
    char value[256];
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, NULL};
    plant_dead(value, 10000);
    raw_do("SET syncguard:fence:syncguard:old 1");
    syncguard_is_locked_op op = {.key = "old", .key_length = 3, .limits = limits};
    assert_status(store->ops->is_locked(store, &op, &err), SYNCGUARD_OK);
    assert_false(op.locked);
    assert_string_equal(op.dead_lock_id, OTHER_ID);
    assert_in_range(op.dead_for_ms, 10000, 20000);
    syncguard_cleanup_op clean = {.key = "old",
                                  .key_length = 3,
                                  .lock_id = OTHER_ID,
                                  .expires_at_ms = op.dead_expires_at_ms + 1,
                                  .limits = limits};
    assert_status(store->ops->cleanup(store, &clean, &err), SYNCGUARD_ABSENT);
    clean.expires_at_ms--;
    clean.lock_id = "BBBBBBBBBBBBBBBBBBBBBB";
    assert_status(store->ops->cleanup(store, &clean, &err), SYNCGUARD_ABSENT);
    assert_string_equal(raw_text("GET syncguard:old"), value);
    clean.lock_id = OTHER_ID;
    assert_status(store->ops->cleanup(store, &clean, &err), SYNCGUARD_OK);
    assert_int_equal(raw_int("DBSIZE"), 1);
    /* Take-over removes the dead one's index as well. */
    plant("old", value);
    (void)take("old", 5000);
    assert_int_equal(raw_int("EXISTS syncguard:id:" OTHER_ID), 0);
    assert_string_equal(raw_text("GET syncguard:fence:syncguard:old"), "2");
}

/* I-ISL-04. Where the machine was so slow that the lock became old, it is tried again. */
static void cleanup_waits_for_two_seconds(void **state)
{
    (void)state;
    char value[256];
    bool stayed = false;
    int64_t began = 0;
    syncguard_is_locked_op op = {
        .key = "old", .key_length = 3, .limits = {SYNCGUARD_NO_DEADLINE, NULL}};
    for (int i = 0; i < 20 && !stayed; i++) {
        began = now_ms();
        plant_dead(value, 1700);
        assert_status(store->ops->is_locked(store, &op, &err), SYNCGUARD_OK);
        assert_string_equal(op.dead_lock_id, OTHER_ID);
        syncguard_cleanup_op clean = {.key = "old",
                                      .key_length = 3,
                                      .lock_id = OTHER_ID,
                                      .expires_at_ms = op.dead_expires_at_ms,
                                      .limits = op.limits};
        stayed = store->ops->cleanup(store, &clean, &err) == SYNCGUARD_ABSENT;
        if (!stayed) /* was it too early? */
            assert_true(1700 + (now_ms() - began) >= SYNCGUARD_CLEANUP_GUARD_MS);
    }
    assert_true(stayed);
    assert_string_equal(raw_text("GET syncguard:old"), value);
}

static void ask_for_dead(syncguard_backend *backend)
{
    bool locked = true;
    assert_status(syncguard_is_locked(backend, "old", NULL, &locked, &err), SYNCGUARD_OK);
    assert_false(locked);
}

static bool old_is_gone_within(int ms)
{
    int64_t until = now_ms() + ms;
    while (raw_int("EXISTS syncguard:old") == 1 && now_ms() < until)
        pause_ms(5);
    return raw_int("EXISTS syncguard:old") == 0;
}

/* I-ISL-02, 03, 05: nothing without the option; with it, a failure is nobody's business. */
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
    pause_ms(150); /* the pause between two cleanups */
    ask_for_dead(cleaner);
    assert_true(old_is_gone_within(10000));
    syncguard_close(cleaner);
}

/* --- keys and options --- */

static void note_event(void *context, const syncguard_event *event)
{
    (void)event;
    ++*(int *)context;
}

/* They are wrong whatever else is: before the abort object, and without an event. */
static void colliding_keys_are_refused_first(void **state)
{
    (void)state;
    static const char key[] = "fence:syncguard:x";
    int events = 0;
    syncguard_grant grant;
    syncguard_lock *lock = NULL;
    syncguard_lock_info info;
    bool locked;
    syncguard_backend *watched = NULL;
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    syncguard_lock_options waiting = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_call aborted = SYNCGUARD_CALL_INIT;
    options.on_event = note_event;
    options.on_event_context = &events;
    assert_status(syncguard_telemetry_wrap(open_url(test_url), &options, &watched, &err),
                  SYNCGUARD_OK);
    assert_status(syncguard_abort_create(&aborted.abort_object, &err), SYNCGUARD_OK);
    waiting.abort_object = aborted.abort_object;
    syncguard_abort_trigger(aborted.abort_object);
    assert_status(syncguard_acquire(watched, key, 5000, &aborted, &grant, &err),
                  SYNCGUARD_E_INVALID_ARGUMENT);
    assert_status(syncguard_is_locked(watched, key, &aborted, &locked, &err),
                  SYNCGUARD_E_INVALID_ARGUMENT);
    assert_status(syncguard_get_by_key(watched, key, &aborted, &info, &err),
                  SYNCGUARD_E_INVALID_ARGUMENT);
    assert_status(syncguard_lock_acquire(watched, key, &waiting, &lock, &err),
                  SYNCGUARD_E_INVALID_ARGUMENT);
    assert_status(syncguard_lock_try(watched, key, &waiting, &lock, &err),
                  SYNCGUARD_E_INVALID_ARGUMENT);
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
        assert_status(syncguard_acquire(store, keys[i], 5000, NULL, &grant, &err),
                      SYNCGUARD_E_INVALID_ARGUMENT);
        assert_status(syncguard_is_locked(store, keys[i], NULL, &locked, &err),
                      SYNCGUARD_E_INVALID_ARGUMENT);
    }
    (void)take("fence:other:x", 5000);
    (void)take("id:AbCdEfGhIjKlMnOpQrStU", 5000);
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
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/3?client_name=tester", test_port(0));
    syncguard_backend *other = open_url(url);
    assert_status(syncguard_acquire(other, "there", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    assert_int_equal(raw_int("DBSIZE"), 0);
    assert_non_null(strstr(raw_text("CLIENT LIST"), "name=tester"));
    syncguard_close(other);
}

static int findings;

static void note_finding(void *context, syncguard_severity severity, const char *topic,
                         const char *text)
{
    (void)context;
    (void)text;
    findings++;
    if (strcmp(topic, "persistence") == 0)
        assert_int_equal(severity, SYNCGUARD_WARN);
    else
        assert_int_equal(severity, SYNCGUARD_FINE);
}

static void note_eviction(void *context, syncguard_severity severity, const char *topic,
                          const char *text)
{
    (void)text;
    if (strcmp(topic, "eviction") == 0)
        *(syncguard_severity *)context = severity;
}

static void note_records(void *context, syncguard_severity severity, const char *topic,
                         const char *text)
{
    if (strcmp(topic, "records") == 0 && strstr(text, "2 stored records") != NULL)
        *(syncguard_severity *)context = severity;
}

static void examine_tells_what_is_wrong(void **state)
{
    (void)state;
    syncguard_severity severity = SYNCGUARD_FINE;
    assert_status(syncguard_examine(store, NULL, note_finding, NULL, &err), SYNCGUARD_OK);
    assert_int_equal(findings, 5);
    raw_do("SET syncguard:a {}");
    raw_do("SET syncguard:b %s", "{\"expiresAtMs\":9000000000000,\"key\":\"b\"}");
    assert_status(syncguard_examine(store, NULL, note_records, &severity, &err), SYNCGUARD_OK);
    assert_int_equal(severity, SYNCGUARD_WARN);
    raw_do("CONFIG SET maxmemory 1gb maxmemory-policy allkeys-lru");
    assert_status(syncguard_examine(store, NULL, note_eviction, &severity, &err), SYNCGUARD_OK);
    raw_do("CONFIG SET maxmemory 0 maxmemory-policy noeviction");
    assert_int_equal(severity, SYNCGUARD_BLOCK);
}

/* One of the requests of an acquire while a slot moves; the reply's text, or a number as text. */
static void hold_name(const char *id, const char *fence, const char *taken, char out[256])
{
    redisReply *reply = raw("EVAL %s 1 held-name 1000 2000 %s %s %s %s",
                            sg_redis_scripts[SG_HOLD].text, id, fence, "\"key\":\"k\"}", taken);
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
    const char *one = "AAAAAAAAAAAAAAAAAAAAAA", *other = "BBBBBBBBBBBBBBBBBBBBBB";
    char text[256], taken[32] = "";
    hold_name(one, "000000000000000", "0", text);
    const char *at = strstr(text, "\"acquiredAtMs\":");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"acquiredAtMs\":%31[0-9]", taken), 1);
    raw_do("DEL held-name"); /* its time is over */
    hold_name(other, "000000000000000", "0", text);
    raw_do("DEL held-name"); /* granted and released by the other */
    pause_ms(5);
    hold_name(one, "000000000000000", "0", text); /* the late copy */
    hold_name(one, "000000000000005", taken, text);
    assert_string_equal(text, "0");
    raw_do("DEL held-name");

    /* Without all that it is granted, also when the request is sent again. */
    hold_name(one, "000000000000000", "0", text);
    assert_int_equal(sscanf(strstr(text, "\"acquiredAtMs\":"), "\"acquiredAtMs\":%31[0-9]", taken),
                     1);
    for (int i = 0; i < 2; i++) {
        hold_name(one, "000000000000005", taken, text);
        assert_non_null(strstr(text, "\"fence\":\"000000000000005\""));
        pause_ms(3);
    }
    raw_do("DEL held-name");
}

int main(int argc, char **argv)
{
    test_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_copy_makes_no_grant),
        cmocka_unit_test_setup(stored_lock_is_as_agreed, flush_all),
        cmocka_unit_test_setup(owner_is_one_more_field, flush_all),
        cmocka_unit_test_setup(hashed_names_work_everywhere, flush_all),
        cmocka_unit_test_setup(long_prefixes_hash_the_index, flush_all),
        cmocka_unit_test_setup(list_shows_our_locks_only, flush_all),
        cmocka_unit_test_setup(values_of_others_are_understood, flush_all),
        cmocka_unit_test_setup(unreadable_values_are_left_alone, flush_all),
        cmocka_unit_test_setup(damaged_values_are_held_and_released, flush_all),
        cmocka_unit_test_setup(foreign_types_are_left_alone, flush_all),
        cmocka_unit_test_setup(foreign_index_of_a_dead_lock_is_left_alone, flush_all),
        cmocka_unit_test_setup(index_that_lies_changes_nothing, flush_all),
        cmocka_unit_test_setup(counter_ends_where_it_must, flush_all),
        cmocka_unit_test_setup(undone_id_is_never_granted, flush_all),
        cmocka_unit_test_setup(own_grant_is_found_again, flush_all),
        cmocka_unit_test_setup(forgotten_scripts_are_recovered, flush_all),
        cmocka_unit_test_setup(embedded_digests_are_right, flush_all),
        cmocka_unit_test_setup(one_command_per_operation, flush_all),
        cmocka_unit_test_setup(cleanup_takes_dead_records_only, flush_all),
        cmocka_unit_test_setup(cleanup_waits_for_two_seconds, flush_all),
        cmocka_unit_test_setup(cleanup_is_an_option_and_silent, flush_all),
        cmocka_unit_test_setup(colliding_keys_are_refused, flush_all),
        cmocka_unit_test_setup(colliding_keys_are_refused_first, flush_all),
        cmocka_unit_test_setup(bad_urls_are_refused, flush_all),
        cmocka_unit_test_setup(database_and_name_are_used, flush_all),
        cmocka_unit_test_setup(examine_tells_what_is_wrong, flush_all),
    };
    return cmocka_run_group_tests_name("redis store", tests, open_store, close_store);
}
