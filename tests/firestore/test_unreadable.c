/*
 * Documents that cannot be read, or only in part: every operation treats them in the same way (ADR
 * 0043). The expiry decides whether a lock is live. Only an operation that must return a field that
 * cannot be read fails.
 */
#include "support.h"

#define ID_A "AAAAAAAAAAAAAAAAAAAAAA"

/* Stores a valid lock document in which one field is replaced by value (NULL: the field is
 * missing). */
static void unreadable_record_plant(const char *key, int64_t expires_at_ms, const char *field,
                                    const char *value)
{
    char expires[32];
    snprintf(expires, sizeof expires, "%lld", (long long)expires_at_ms);
    json_t *fields = json_pack(
        "{s:{s:s},s:{s:s},s:{s:s},s:{s:s},s:{s:s},s:{s:s}}", "lockId", "stringValue", ID_A, "key",
        "stringValue", key, "fence", "stringValue", "000000000000007", "expiresAtMs",
        "integerValue", expires, "acquiredAtMs", "integerValue", "5", "owner", "stringValue", "me");
    assert_non_null(fields);
    if (value != NULL)
        json_object_set_new(fields, field, json_loads(value, 0, NULL));
    else
        json_object_del(fields, field);
    char name[256];
    snprintf(name, sizeof name, PREFIX "locks/%s", key);
    json_t *body = json_pack("{s:o}", name, fields);
    char *text = json_dumps(body, 0);
    json_decref(fake_server_control(&server, "PUT", "documents", text));
    free(text);
    json_decref(body);
}

static void plant_again(const char *field, const char *value)
{
    unreadable_record_plant("k", test_wall_ms() + 60000, field, value);
}

static int unreadable_list_count(syncguard_backend *backend)
{
    int count = 0;
    assert_status(SYNCGUARD_OK, syncguard_list_raw(backend, NULL, test_count_raw, &count, &err));
    return count;
}

static void nobody_guesses_an_expiry(void **state)
{
    static const char *const expiries[] = {
        NULL,
        "{\"stringValue\":\"99999999999999\"}",
        "{\"stringValue\":\"1\"}",
        "{\"doubleValue\":\"NaN\"}",
        "{\"doubleValue\":1e300}",
        "{\"doubleValue\":9007199254740992.0}",
        "{\"integerValue\":\"12a\"}",
        "{\"integerValue\":\"9007199254740992\"}",
        "{\"integerValue\":\"\"}",
        "{\"nullValue\":null}",
        "{\"booleanValue\":true}",
    };
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_lock_info info;
    syncguard_grant grant;
    bool locked;
    for (size_t i = 0; i < sizeof expiries / sizeof expiries[0]; i++) {
        plant_again("expiresAtMs", expiries[i]);
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        assert_string_equal(err.message, "the stored record cannot be read");
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_is_locked(mine, "k", NULL, &locked, &err));
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_get_by_key(mine, "k", NULL, &info, &err));
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_get_by_id(mine, ID_A, NULL, &info, &err));
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_extend(mine, ID_A, 9000, NULL, NULL, &err));
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_release(mine, ID_A, NULL, &err));
        assert_string_equal(err.message, "the stored record cannot be read");
        assert_int_equal(unreadable_list_count(mine), 0);
    }
    assert_int_equal(fake_server_calls(&server, "commit"), 0);
    syncguard_close(mine);
}

/* As another client may have computed it. */
static void an_expiry_with_a_fraction_is_rounded_up(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    plant_again("expiresAtMs", "{\"doubleValue\":99999999999999.5}");
    syncguard_grant grant;
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    bool locked = false;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
    assert_true(locked);
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(mine, "k", NULL, &info, &err));
    assert_true(info.expires_at_ms == INT64_C(100000000000000));
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, ID_A, 9000, NULL, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(mine, ID_A, NULL, &err));
    syncguard_close(mine);
}

/* It is unknown whether a second document with the same id and an unreadable expiry is live. */
static void nor_beside_a_live_one(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    unreadable_record_plant("a", test_wall_ms() + 60000, "owner", NULL);
    unreadable_record_plant("b", 0, "expiresAtMs", "{\"stringValue\":\"1\"}");
    unreadable_record_plant("c", test_wall_ms() - 60000, "owner", NULL);
    assert_status(SYNCGUARD_E_INTERNAL, syncguard_extend(mine, ID_A, 9000, NULL, NULL, &err));
    assert_status(SYNCGUARD_E_INTERNAL, syncguard_release(mine, ID_A, NULL, &err));
    assert_int_equal(fake_server_calls(&server, "commit"), 0);
    syncguard_close(mine);
}

typedef struct damage {
    const char *field;
    const char *value;
} damage;

static const damage shown[] = {
    {"fence", "{\"stringValue\":\"1000000000000000\"}"},
    {"fence", "{\"stringValue\":\"-00000000000001\"}"},
    {"fence", "{\"integerValue\":\"7\"}"},
    {"fence", NULL},
    {"key", NULL},
    {"key", "{\"stringValue\":\"\"}"},
    {"key", "{\"integerValue\":\"1\"}"},
};

static void what_is_live_is_held_and_its_owner_may_go_on(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = log_book_write;
    log_book book = LOG_BOOK_INIT;
    options.log_context = &book;
    syncguard_backend *mine = fake_server_open(&server, &options);
    syncguard_lock_info info;
    syncguard_grant grant;
    bool locked;
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        plant_again(shown[i].field, shown[i].value);
        assert_status(SYNCGUARD_LOCKED, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
        assert_true(locked);
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_get_by_key(mine, "k", NULL, &info, &err));
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_get_by_id(mine, ID_A, NULL, &info, &err));
        book.warnings = 0;
        assert_int_equal(unreadable_list_count(mine), 0);
        assert_int_equal(book.warnings, 1);
        assert_status(SYNCGUARD_OK, syncguard_extend(mine, ID_A, 30000, NULL, NULL, &err));
        assert_status(SYNCGUARD_OK, syncguard_extend(mine, ID_A, 30000, NULL, NULL, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(mine, ID_A, NULL, &err));
        assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
        assert_false(locked);
    }
    syncguard_close(mine);
}

static void an_id_that_nobody_can_have(void **state)
{
    static const char *const ids[] = {NULL, "{\"integerValue\":\"1\"}",
                                      "{\"stringValue\":\"short\"}"};
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_lock_info info;
    syncguard_grant grant;
    bool locked;
    for (size_t i = 0; i < 3; i++) {
        plant_again("lockId", ids[i]);
        assert_status(SYNCGUARD_LOCKED, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
        assert_true(locked);
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_get_by_key(mine, "k", NULL, &info, &err));
        assert_status(SYNCGUARD_ABSENT, syncguard_release(mine, ID_A, NULL, &err));
        assert_int_equal(unreadable_list_count(mine), 0);
    }
    syncguard_close(mine);
}

static void what_is_dead_is_taken_over(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_lock_info info;
    syncguard_grant grant;
    bool locked;
    for (size_t i = 0; i < sizeof shown / sizeof shown[0] + 1; i++) {
        damage d = i < sizeof shown / sizeof shown[0] ? shown[i] : (damage){"lockId", NULL};
        unreadable_record_plant("k", test_wall_ms() - 60000, d.field, d.value);
        assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
        assert_false(locked);
        assert_status(SYNCGUARD_ABSENT, syncguard_get_by_key(mine, "k", NULL, &info, &err));
        assert_status(SYNCGUARD_ABSENT, syncguard_get_by_id(mine, ID_A, NULL, &info, &err));
        assert_status(SYNCGUARD_ABSENT, syncguard_extend(mine, ID_A, 9000, NULL, NULL, &err));
        assert_status(SYNCGUARD_ABSENT, syncguard_release(mine, ID_A, NULL, &err));
        unreadable_record_plant("k", test_wall_ms() - 60000, d.field, d.value);
        assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
    }
    syncguard_close(mine);
}

/* Owner and time of acquisition are only shown. */
static void what_nobody_needs_fails_nothing(void **state)
{
    static const damage harmless[] = {
        {"owner", "{\"integerValue\":\"1\"}"},
        {"acquiredAtMs", NULL},
        {"acquiredAtMs", "{\"stringValue\":\"yesterday\"}"},
    };
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_lock_info_raw raw;
    for (size_t i = 0; i < 3; i++) {
        plant_again(harmless[i].field, harmless[i].value);
        assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(mine, "k", NULL, &raw, &err));
        assert_string_equal(raw.owner, i == 0 ? "" : "me");
        assert_int_equal(raw.info.acquired_at_ms, i == 0 ? 5 : 0);
        assert_int_equal(unreadable_list_count(mine), 1);
    }
    syncguard_close(mine);
}

/* 200 times e and a combining acute accent: 600 bytes as stored, 400 in NFC. */
static void a_key_is_normalized_when_it_is_read(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    char stored[601];
    char composed[401];
    for (size_t i = 0; i < 200; i++) {
        memcpy(stored + 3 * i, "e\xCC\x81", 4);
        memcpy(composed + 2 * i, "\xC3\xA9", 3);
    }
    char value[700];
    snprintf(value, sizeof value, "{\"stringValue\":\"%s\"}", stored);
    plant_again("key", value);
    syncguard_lock_info_raw raw;
    assert_status(SYNCGUARD_OK, syncguard_get_by_id_raw(mine, ID_A, NULL, &raw, &err));
    assert_string_equal(raw.key, composed);
    assert_int_equal(unreadable_list_count(mine), 1);
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, ID_A, 30000, NULL, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(mine, ID_A, NULL, &err));
    syncguard_close(mine);
}

/* An acquire finds its own grant again, but the fence has been damaged meanwhile: there is no fence
 * to return, and the lock must not stay behind. */
static void a_grant_without_a_fence_is_taken_back(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_call call = test_call(5000);
    fake_server_rules(&server, "[{\"on\":\"commit\",\"do\":\"damage_fence\",\"times\":1}]");
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_INTERNAL, syncguard_acquire(mine, "k", 30000, &call, &grant, &err));
    json_t *document = NULL;
    for (int i = 0; i < 100; i++) {
        json_decref(document);
        document = fake_server_document(&server, "locks/k");
        if (document == NULL)
            break;
        test_sleep_ms(50);
    }
    assert_null(document);
    syncguard_close(mine);
}

static void firestore_doctor_finds_them(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    unreadable_record_plant("fine", test_wall_ms() + 60000, "owner", NULL);
    unreadable_record_plant("dead", test_wall_ms() - 60000, "fence", NULL);
    findings f = {SYNCGUARD_FINE, ""};
    assert_status(SYNCGUARD_OK, syncguard_examine(mine, NULL, findings_note, &f, &err));
    assert_int_equal(f.worst, SYNCGUARD_FINE);
    assert_non_null(strstr(f.text, "0 records:"));
    unreadable_record_plant("secret-a", 0, "expiresAtMs", "{\"stringValue\":\"1\"}");
    unreadable_record_plant("secret-b", test_wall_ms() + 60000, "fence", NULL);
    json_decref(fake_server_control(&server, "PUT", "documents",
                                    "{\"" PREFIX "fence_counters/fence:x\":{},"
                                    "\"" PREFIX "fence_counters_2/y\":{},"
                                    "\"" PREFIX "locks-2/y\":{}}"));
    f = (findings){SYNCGUARD_FINE, ""};
    assert_status(SYNCGUARD_OK, syncguard_examine(mine, NULL, findings_note, &f, &err));
    assert_non_null(strstr(f.text, "1 records: 2 locks and 1 counters"));
    assert_null(strstr(f.text, "secret"));
    assert_null(strstr(f.text, "slashes"));
    syncguard_close(mine);
}

/* The TypeScript library uses the key as a path: a/b/c is document c below document a. */
static void doctor_finds_locks_of_keys_with_slashes(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    unreadable_record_plant("a/b/c", test_wall_ms() + 60000, "owner", NULL);
    json_decref(fake_server_control(
        &server, "PUT", "documents",
        "{\"" PREFIX "fence_counters/fence:a/b/c\":{\"fence\":{\"stringValue\":\"1\"}}}"));
    findings f = {SYNCGUARD_FINE, ""};
    assert_status(SYNCGUARD_OK, syncguard_examine(mine, NULL, findings_note, &f, &err));
    assert_non_null(strstr(f.text, "1 slashes: 2 documents"));
    assert_non_null(strstr(f.text, "0 records:"));
    syncguard_close(mine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nobody_guesses_an_expiry, reset_server),
        cmocka_unit_test_setup(an_expiry_with_a_fraction_is_rounded_up, reset_server),
        cmocka_unit_test_setup(nor_beside_a_live_one, reset_server),
        cmocka_unit_test_setup(what_is_live_is_held_and_its_owner_may_go_on, reset_server),
        cmocka_unit_test_setup(an_id_that_nobody_can_have, reset_server),
        cmocka_unit_test_setup(what_is_dead_is_taken_over, reset_server),
        cmocka_unit_test_setup(what_nobody_needs_fails_nothing, reset_server),
        cmocka_unit_test_setup(a_key_is_normalized_when_it_is_read, reset_server),
        cmocka_unit_test_setup(a_grant_without_a_fence_is_taken_back, reset_server),
        cmocka_unit_test_setup(firestore_doctor_finds_them, reset_server),
        cmocka_unit_test_setup(doctor_finds_locks_of_keys_with_slashes, reset_server),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
