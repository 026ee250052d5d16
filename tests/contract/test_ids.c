/* Lock ids and hashes. */
#include "contract.h"

#define DRAWERS 4
#define DRAWS 60

static const struct {
    const char *id;
    const char *what;
} bad_ids[] = {
    {NULL, "NULL"},
    {"", "empty"},
    {"AAAAAAAAAAAAAAAAAAAAA", "21 characters"},
    {"AAAAAAAAAAAAAAAAAAAAAAA", "23 characters"},
    {"AAAAAAAAAAAAAAAAAAAAAA==", "padded"},
    {"AAAAAAAAAAAAAAAAAAAA+A", "plus"},
    {"AAAAAAAAAAAAAAAAAAAA/A", "slash"},
    {"AAAAAAAAAAAAAAAAAAAA A", "space"},
    {"AAAAAAAAAAAAAAAAAAAAA\n", "newline"},
    {"AAAAAAAAAAAAAAAAAAAA\xC3\xA9", "not ASCII"},
    {"AAAAAAAAAA'; DROP --AA", "quotes"},
};
#define BAD_IDS (sizeof bad_ids / sizeof bad_ids[0])

static void malformed_ids_are_refused_by_every_operation(void **state)
{
    (void)state;
    syncguard_lock_info info;
    syncguard_lock_info_raw raw;
    bool owned = false;
    for (size_t i = 0; i < BAD_IDS; i++) {
        const char *id = bad_ids[i].id;
        print_message("    bad id: %s\n", bad_ids[i].what);
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_release(store, id, NULL, &err));
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_extend(store, id, 1000, NULL, NULL, &err));
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_get_by_id(store, id, NULL, &info, &err));
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_get_by_id_raw(store, id, NULL, &raw, &err));
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_owns(store, id, NULL, &owned, &err));
        assert_false(syncguard_lock_id_valid(id));
    }
}

static void well_formed_unknown_ids_are_absent(void **state)
{
    /* The second has bits in its tail that no id of 16 bytes has: valid, and absent. */
    static const char *const ids[] = {FOREIGN_ID, "AAAAAAAAAAAAAAAAAAAAAB",
                                      "-_-_-_-_-_-_-_-_-_-_-_", "zzzzzzzzzzzzzzzzzzzzzz"};
    (void)state;
    syncguard_lock_info info;
    syncguard_lock_info_raw raw;
    bool owned = true;
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        assert_true(syncguard_lock_id_valid(ids[i]));
        assert_status(SYNCGUARD_ABSENT, syncguard_release(store, ids[i], NULL, &err));
        assert_int_equal(err.code, SYNCGUARD_OK);
        assert_status(SYNCGUARD_ABSENT, syncguard_extend(store, ids[i], 1000, NULL, NULL, &err));
        assert_status(SYNCGUARD_ABSENT, syncguard_get_by_id(store, ids[i], NULL, &info, &err));
        assert_status(SYNCGUARD_ABSENT, syncguard_get_by_id_raw(store, ids[i], NULL, &raw, &err));
        assert_status(SYNCGUARD_OK, syncguard_owns(store, ids[i], NULL, &owned, &err));
        assert_false(owned);
    }
}

typedef struct drawing {
    key keys[DRAWERS];
    char ids[DRAWERS * DRAWS][SYNCGUARD_LOCK_ID_SIZE];
    atomic_int failures;
} drawing;

static void ids_draw_many(int index, void *context)
{
    drawing *all = context;
    syncguard_error mine;
    syncguard_grant grant;
    for (int i = 0; i < DRAWS; i++) {
        if (syncguard_acquire(store, all->keys[index].text, 30000, NULL, &grant, &mine) !=
            SYNCGUARD_OK) {
            atomic_fetch_add(&all->failures, 1);
            return;
        }
        memcpy(all->ids[index * DRAWS + i], grant.lock_id, SYNCGUARD_LOCK_ID_SIZE);
        syncguard_release(store, grant.lock_id, NULL, &mine);
    }
}

static int compare_ids(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void ids_are_new_for_every_grant(void **state)
{
    static drawing all;
    (void)state;
    for (int i = 0; i < DRAWERS; i++)
        all.keys[i] = fresh_key("draw");
    in_threads(DRAWERS, ids_draw_many, &all);
    assert_int_equal(atomic_load(&all.failures), 0);
    qsort(all.ids, DRAWERS * DRAWS, sizeof all.ids[0], compare_ids);
    for (int i = 0; i < DRAWERS * DRAWS; i++) {
        assert_true(syncguard_lock_id_valid(all.ids[i]));
        /* 16 bytes leave four bits of the last character at zero. */
        assert_non_null(strchr("AQgw", all.ids[i][21]));
        if (i > 0)
            assert_string_not_equal(all.ids[i], all.ids[i - 1]);
    }
}

static void possession_of_the_id_is_enough(void **state)
{
    key name = fresh_key("possession");
    syncguard_grant grant = take(name.text, 30000);
    (void)state;
    if (!store_is_shared()) {
        give_back(&grant);
        not_applicable("no other process sees this store");
        return;
    }
    assert_int_equal(in_other_process("is_locked", name.text), SYNCGUARD_LOCKED);
    assert_int_equal(in_other_process("acquire", name.text), SYNCGUARD_LOCKED);
    syncguard_lock_info before;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, name.text, NULL, &before, &err));
    assert_int_equal(in_other_process("extend", grant.lock_id), SYNCGUARD_OK);
    syncguard_lock_info after;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, name.text, NULL, &after, &err));
    assert_at_least(before.expires_at_ms + 1, after.expires_at_ms);
    assert_string_equal(after.fence, before.fence);
    assert_int_equal(in_other_process("release", grant.lock_id), SYNCGUARD_OK);
    assert_int_equal(in_other_process("release", grant.lock_id), SYNCGUARD_ABSENT);
    assert_status(SYNCGUARD_ABSENT, syncguard_release(store, grant.lock_id, NULL, &err));
    check_locked(name.text, false);
}

static bool find_hash(void *context, const syncguard_lock_info *info)
{
    syncguard_lock_info *wanted = context;
    if (strcmp(info->key_hash, wanted->key_hash) != 0)
        return true;
    *wanted = *info;
    return false;
}

static void one_hash_stands_for_a_key_everywhere(void **state)
{
    key plain = fresh_key("hash");
    (void)state;
    char nfc[SYNCGUARD_KEY_SIZE];
    snprintf(nfc, sizeof nfc, "%.400s-\xC3\xA9\xF0\x9F\x94\x92", plain.text);
    char nfd[SYNCGUARD_KEY_SIZE];
    snprintf(nfd, sizeof nfd, "%.400s-e\xCC\x81\xF0\x9F\x94\x92", plain.text);
    char hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash(nfc, hash));
    char other[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash(nfd, other));
    assert_string_equal(hash, other);
    assert_int_equal(strlen(hash), SYNCGUARD_HASH_CHARS);
    assert_int_equal(strspn(hash, "0123456789abcdef"), SYNCGUARD_HASH_CHARS);
    syncguard_grant grant = take(nfd, 30000);
    char id_hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash(grant.lock_id, id_hash));
    syncguard_lock_info by_key;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, nfc, NULL, &by_key, &err));
    syncguard_lock_info by_id;
    assert_status(SYNCGUARD_OK, syncguard_get_by_id(store, grant.lock_id, NULL, &by_id, &err));
    syncguard_lock_info listed;
    memset(&listed, 0, sizeof listed);
    memcpy(listed.key_hash, hash, sizeof hash);
    assert_status(SYNCGUARD_OK, syncguard_list(store, NULL, find_hash, &listed, &err));
    assert_string_equal(by_key.key_hash, hash);
    assert_string_equal(by_id.key_hash, hash);
    assert_string_equal(by_key.lock_id_hash, id_hash);
    assert_string_equal(by_id.lock_id_hash, id_hash);
    assert_string_equal(listed.lock_id_hash, id_hash);
    if (contract.telemetry) {
        syncguard_event event;
        event_filter filter = {SYNCGUARD_EVENT_ACQUIRE, nfd, grant.lock_id};
        assert_int_equal(await_events(filter, 1, &event), 1);
        assert_string_equal(event.key_hash, hash);
        assert_string_equal(event.lock_id_hash, id_hash);
    }
    give_back(&grant);
}

/* A handle with a secret shows other hashes, in every place that shows hashes. */
static void a_secret_makes_the_hashes_its_own(void **state)
{
    static const char secret[] = "0123456789abcdef of this test";
    key name = fresh_key("keyed");
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.hash_secret = "too short";
    syncguard_backend *keyed = NULL;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_open(contract.url, &options, &keyed, &err));
    assert_null(strstr(err.message, "too short"));
    options.hash_secret = secret;
    keyed = open_store(&options);
    char plain[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash(name.text, plain));
    char hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash_keyed(secret, name.text, hash));
    assert_string_not_equal(hash, plain);
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(keyed, name.text, 30000, NULL, &grant, &err));
    char id_hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash_keyed(secret, grant.lock_id, id_hash));
    syncguard_lock_info by_key;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(keyed, name.text, NULL, &by_key, &err));
    syncguard_lock_info_raw by_id;
    assert_status(SYNCGUARD_OK, syncguard_get_by_id_raw(keyed, grant.lock_id, NULL, &by_id, &err));
    syncguard_lock_info listed;
    memcpy(listed.key_hash, hash, sizeof hash);
    assert_status(SYNCGUARD_OK, syncguard_list(keyed, NULL, find_hash, &listed, &err));
    assert_string_equal(by_key.key_hash, hash);
    assert_string_equal(by_key.lock_id_hash, id_hash);
    assert_string_equal(by_id.info.key_hash, hash);
    assert_string_equal(listed.lock_id_hash, id_hash);
    syncguard_lock_options waiting = SYNCGUARD_LOCK_OPTIONS_INIT;
    waiting.timeout_ms = 0;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_E_ACQUISITION_TIMEOUT,
                  syncguard_lock_acquire(keyed, name.text, &waiting, &lock, &err));
    assert_string_equal(err.key_hash, hash);
    assert_status(SYNCGUARD_OK, syncguard_release(keyed, grant.lock_id, NULL, &err));
    syncguard_close(keyed); /* delivers the events */
    if (contract.telemetry) {
        assert_int_equal(count_events((event_filter){-1, name.text, NULL}, NULL), 0);
        assert_int_equal(count_events((event_filter){-1, NULL, grant.lock_id}, NULL), 0);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(malformed_ids_are_refused_by_every_operation),
    cmocka_unit_test(well_formed_unknown_ids_are_absent),
    cmocka_unit_test(ids_are_new_for_every_grant),
    cmocka_unit_test(possession_of_the_id_is_enough),
    cmocka_unit_test(one_hash_stands_for_a_key_everywhere),
    cmocka_unit_test(a_secret_makes_the_hashes_its_own),
};
const contract_group ids_group = {"ids", tests, sizeof tests / sizeof tests[0]};
