/* is_locked, lookup, owns and list: they only read, and show no secrets unless asked for. */
#include "contract.h"

/* True if text occurs anywhere in the bytes of a struct. */
static bool bytes_contain_text(const void *bytes, size_t size, const char *text)
{
    return memmem(bytes, size, text, strlen(text)) != NULL;
}

static void is_locked_follows_the_lock(void **state)
{
    key name = fresh_key("state");
    (void)state;
    check_locked(name.text, false);
    syncguard_grant grant = take(name.text, 30000);
    for (int i = 0; i < 10; i++)
        check_locked(name.text, true);
    give_back(&grant);
    check_locked(name.text, false);
    grant = take(name.text, 30000);
    check_locked(name.text, true);
    give_back(&grant);
}

static void reading_changes_nothing(void **state)
{
    key name = fresh_key("readonly");
    syncguard_grant grant = take(name.text, 30000);
    (void)state;
    syncguard_lock_info first;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, name.text, NULL, &first, &err));
    syncguard_lock_info info;
    bool owned = false;
    for (int i = 0; i < 30; i++) {
        check_locked(name.text, true);
        assert_status(SYNCGUARD_OK, syncguard_owns(store, grant.lock_id, NULL, &owned, &err));
        assert_status(SYNCGUARD_OK, syncguard_get_by_id(store, grant.lock_id, NULL, &info, &err));
        assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, name.text, NULL, &info, &err));
        assert_true(info.expires_at_ms == first.expires_at_ms);
        assert_true(info.acquired_at_ms == first.acquired_at_ms);
        assert_string_equal(info.fence, first.fence);
    }
    give_back(&grant);
    for (int i = 0; i < 5; i++) {
        check_locked(name.text, false);
        assert_status(SYNCGUARD_ABSENT, syncguard_get_by_key(store, name.text, NULL, &info, &err));
    }
    grant = take(name.text, 1000);
    assert_string_equal(grant.fence, "000000000000002");
    give_back(&grant);
}

static void lookups_by_key_and_by_id_agree(void **state)
{
    key name = fresh_key("agree");
    syncguard_grant grant = take(name.text, 30000);
    (void)state;
    syncguard_lock_info by_key;
    memset(&by_key, 0, sizeof by_key);
    syncguard_lock_info by_id;
    memset(&by_id, 0, sizeof by_id);
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, name.text, NULL, &by_key, &err));
    assert_status(SYNCGUARD_OK, syncguard_get_by_id(store, grant.lock_id, NULL, &by_id, &err));
    assert_string_equal(by_key.key_hash, by_id.key_hash);
    assert_string_equal(by_key.lock_id_hash, by_id.lock_id_hash);
    assert_string_equal(by_key.fence, by_id.fence);
    assert_true(by_key.expires_at_ms == by_id.expires_at_ms);
    assert_true(by_key.acquired_at_ms == by_id.acquired_at_ms);
    assert_true(by_key.expires_at_ms == grant.expires_at_ms);
    assert_string_equal(by_key.fence, grant.fence);
    assert_false(bytes_contain_text(&by_key, sizeof by_key, name.text));
    assert_false(bytes_contain_text(&by_id, sizeof by_id, grant.lock_id));
    assert_false(bytes_contain_text(&by_key, sizeof by_key, grant.lock_id));
    give_back(&grant);
    assert_status(SYNCGUARD_ABSENT, syncguard_get_by_key(store, name.text, NULL, &by_key, &err));
    assert_int_equal(err.code, SYNCGUARD_OK);
    assert_status(SYNCGUARD_ABSENT, syncguard_get_by_id(store, grant.lock_id, NULL, &by_id, &err));
}

/* The lock was acquired or extended after began (a time of test_now_ms()). */
static void lookup_check_ages(const syncguard_lock_info *info, int64_t ttl_ms, int64_t began)
{
    const int64_t rounding_ms = 20;
    int64_t passed_ms = test_now_ms() - began + rounding_ms;
    assert_between(0, passed_ms, info->now_ms - info->acquired_at_ms);
    assert_between(ttl_ms - passed_ms, ttl_ms + rounding_ms, info->expires_at_ms - info->now_ms);
}

static void lookups_tell_the_time_of_the_store(void **state)
{
    key name = fresh_key("now");
    int64_t began = test_now_ms();
    syncguard_grant grant = take(name.text, 300000);
    (void)state;
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(store, name.text, NULL, &info, &err));
    lookup_check_ages(&info, 300000, began);
    test_sleep_ms(300);
    syncguard_lock_info later;
    assert_status(SYNCGUARD_OK, syncguard_get_by_id(store, grant.lock_id, NULL, &later, &err));
    lookup_check_ages(&later, 300000, began);
    assert_at_least(250, later.now_ms - info.now_ms);
    assert_status(SYNCGUARD_OK, syncguard_extend(store, grant.lock_id, 600000, NULL, NULL, &err));
    syncguard_lock_info_raw raw;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, name.text, NULL, &raw, &err));
    lookup_check_ages(&raw.info, 600000, began);
    give_back(&grant);
}

static void raw_twins_tell_key_id_and_owner(void **state)
{
    key name = fresh_key("raw");
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.owner = "worker-\xC3\xA9 \"7\"@host:123";
    syncguard_backend *labelled = open_store(&options);
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(labelled, name.text, 30000, NULL, &grant, &err));
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(labelled, name.text, NULL, &info, &err));
    syncguard_lock_info_raw by_key;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(labelled, name.text, NULL, &by_key, &err));
    syncguard_lock_info_raw by_id;
    assert_status(SYNCGUARD_OK,
                  syncguard_get_by_id_raw(labelled, grant.lock_id, NULL, &by_id, &err));
    assert_string_equal(by_key.key, name.text);
    assert_string_equal(by_key.lock_id, grant.lock_id);
    assert_string_equal(by_key.owner, options.owner);
    assert_string_equal(by_id.key, name.text);
    assert_string_equal(by_id.lock_id, grant.lock_id);
    assert_string_equal(by_id.owner, options.owner);
    assert_string_equal(by_key.info.key_hash, info.key_hash);
    assert_string_equal(by_id.info.lock_id_hash, info.lock_id_hash);
    assert_string_equal(by_id.info.fence, info.fence);
    assert_true(by_id.info.expires_at_ms == info.expires_at_ms);
    assert_true(by_key.info.acquired_at_ms == info.acquired_at_ms);
    assert_false(bytes_contain_text(&info, sizeof info, "worker"));
    assert_status(SYNCGUARD_OK, syncguard_extend(labelled, grant.lock_id, 40000, NULL, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(labelled, name.text, NULL, &by_key, &err));
    assert_string_equal(by_key.owner, options.owner);
    assert_status(SYNCGUARD_OK, syncguard_release(labelled, grant.lock_id, NULL, &err));
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_get_by_key_raw(labelled, name.text, NULL, &by_key, &err));
    syncguard_close(labelled);
}

static void an_owner_does_not_outlive_its_grant(void **state)
{
    key name = fresh_key("owner");
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.owner = "first";
    syncguard_backend *labelled = open_store(&options);
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(labelled, name.text, 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(labelled, grant.lock_id, NULL, &err));
    syncguard_close(labelled);
    grant = take(name.text, 30000);
    syncguard_lock_info_raw raw;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, name.text, NULL, &raw, &err));
    assert_string_equal(raw.owner, "");
    give_back(&grant);
}

static void owns_is_true_only_for_the_holder(void **state)
{
    key name = fresh_key("owns");
    syncguard_grant first = take(name.text, 30000);
    (void)state;
    bool owned = false;
    assert_status(SYNCGUARD_OK, syncguard_owns(store, first.lock_id, NULL, &owned, &err));
    assert_true(owned);
    give_back(&first);
    assert_status(SYNCGUARD_OK, syncguard_owns(store, first.lock_id, NULL, &owned, &err));
    assert_false(owned);
    syncguard_grant second = take(name.text, 30000);
    assert_status(SYNCGUARD_OK, syncguard_owns(store, first.lock_id, NULL, &owned, &err));
    assert_false(owned);
    assert_status(SYNCGUARD_OK, syncguard_owns(store, second.lock_id, NULL, &owned, &err));
    assert_true(owned);
    give_back(&second);
}

#define LISTED 12

typedef struct listing {
    char hashes[LISTED][SYNCGUARD_HASH_SIZE];
    syncguard_grant grants[LISTED];
    key names[LISTED];
    int seen[LISTED];
    int mismatches;
    int calls;
    int stop_after; /* 0: never */
} listing;

static bool on_info(void *context, const syncguard_lock_info *info)
{
    listing *all = context;
    all->calls++;
    for (int i = 0; i < LISTED; i++) {
        if (strcmp(info->key_hash, all->hashes[i]) != 0)
            continue;
        all->seen[i]++;
        if (info->expires_at_ms != all->grants[i].expires_at_ms ||
            strcmp(info->fence, all->grants[i].fence) != 0 || info->now_ms < info->acquired_at_ms ||
            info->now_ms > info->expires_at_ms ||
            bytes_contain_text(info, sizeof *info, all->grants[i].lock_id))
            all->mismatches++;
    }
    return all->stop_after == 0 || all->calls < all->stop_after;
}

static bool on_raw(void *context, const syncguard_lock_info_raw *raw)
{
    listing *all = context;
    all->calls++;
    for (int i = 0; i < LISTED; i++) {
        if (strcmp(raw->key, all->names[i].text) != 0)
            continue;
        all->seen[i]++;
        if (strcmp(raw->lock_id, all->grants[i].lock_id) != 0 ||
            strcmp(raw->info.key_hash, all->hashes[i]) != 0)
            all->mismatches++;
    }
    return all->stop_after == 0 || all->calls < all->stop_after;
}

static void forget_seen(listing *all)
{
    memset(all->seen, 0, sizeof all->seen);
    all->mismatches = 0;
    all->calls = 0;
}

static void list_shows_live_locks_only(void **state)
{
    static listing all;
    (void)state;
    for (int i = 0; i < LISTED; i++) {
        all.names[i] = fresh_key("list");
        all.grants[i] = take(all.names[i].text, 60000);
        assert_true(syncguard_hash(all.names[i].text, all.hashes[i]));
    }
    give_back(&all.grants[0]);
    assert_status(SYNCGUARD_OK, syncguard_list(store, NULL, on_info, &all, &err));
    assert_int_equal(all.mismatches, 0);
    for (int i = 0; i < LISTED; i++)
        assert_int_equal(all.seen[i], i > 0 ? 1 : 0);
    forget_seen(&all);
    assert_status(SYNCGUARD_OK, syncguard_list_raw(store, NULL, on_raw, &all, &err));
    assert_int_equal(all.mismatches, 0);
    for (int i = 0; i < LISTED; i++)
        assert_int_equal(all.seen[i], i > 0 ? 1 : 0);
    forget_seen(&all);
    all.stop_after = 3;
    assert_status(SYNCGUARD_OK, syncguard_list(store, NULL, on_info, &all, &err));
    assert_int_equal(all.calls, 3);
    forget_seen(&all);
    assert_status(SYNCGUARD_OK, syncguard_list_raw(store, NULL, on_raw, &all, &err));
    assert_int_equal(all.calls, 3);
    for (int i = 1; i < LISTED; i++)
        give_back(&all.grants[i]);
}

#define PAGED 200

static bool lookup_list_slowly(void *context, const syncguard_lock_info *info)
{
    int *seen = context;
    (void)info;
    (*seen)++;
    test_sleep_ms(10);
    return true;
}

/* Reading all pages takes twice the call's timeout, which applies to each page. */
static void each_page_of_a_listing_has_its_own_time(void **state)
{
    static syncguard_grant grants[PAGED];
    (void)state;
    for (int i = 0; i < PAGED; i++) {
        key name = fresh_key("page");
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(store, name.text, 600000, NULL, &grants[i], &err));
    }
    syncguard_call call = test_call(1000);
    int seen = 0;
    assert_status(SYNCGUARD_OK, syncguard_list(store, &call, lookup_list_slowly, &seen, &err));
    assert_true(seen >= PAGED);
    for (int i = 0; i < PAGED; i++)
        assert_status(SYNCGUARD_OK, syncguard_release(store, grants[i].lock_id, NULL, &err));
}

static bool one_line(const char *text)
{
    return text != NULL && text[0] != '\0' && strchr(text, '\n') == NULL;
}

/* Every finding also says why it is a problem, and what to do. */
static void count_finding(void *context, const syncguard_finding *finding)
{
    int *bad = context;
    bool fine = finding->severity == SYNCGUARD_FINE;
    if (finding->severity > SYNCGUARD_BLOCK || !one_line(finding->topic) ||
        strchr(finding->topic, ' ') != NULL || !one_line(finding->text) ||
        one_line(finding->why) == fine || one_line(finding->change) == fine)
        (*bad)++;
}

static void diagnose_reports_in_one_form(void **state)
{
    (void)state;
    int bad = 0;
    assert_status(SYNCGUARD_OK, syncguard_examine(store, NULL, count_finding, &bad, &err));
    assert_int_equal(bad, 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(is_locked_follows_the_lock),
    cmocka_unit_test(reading_changes_nothing),
    cmocka_unit_test(lookups_by_key_and_by_id_agree),
    cmocka_unit_test(lookups_tell_the_time_of_the_store),
    cmocka_unit_test(raw_twins_tell_key_id_and_owner),
    cmocka_unit_test(an_owner_does_not_outlive_its_grant),
    cmocka_unit_test(owns_is_true_only_for_the_holder),
    cmocka_unit_test(list_shows_live_locks_only),
    cmocka_unit_test(each_page_of_a_listing_has_its_own_time),
    cmocka_unit_test(diagnose_reports_in_one_form),
};
const contract_group lookup_group = {"lookup", tests, sizeof tests / sizeof tests[0]};
