/* Keys: normalizing, limits, bad input for every operation, strange but legal characters. */
#include "contract.h"

static int never_called(void *context, syncguard_lock *lock)
{
    (void)lock;
    *(bool *)context = true;
    return 0;
}

/* Every operation that takes a key must refuse this one, and leave its results unchanged or
 * empty. */
static void refused_everywhere(const char *bad, const char *what)
{
    print_message("    bad key: %s\n", what);
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_acquire(store, bad, 1000, NULL, &grant, &err));
    assert_int_equal(err.code, SYNCGUARD_E_INVALID_ARGUMENT);
    assert_string_not_equal(err.message, "");
    bool flag = false;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_is_locked(store, bad, NULL, &flag, &err));
    syncguard_lock_info info;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_get_by_key(store, bad, NULL, &info, &err));
    syncguard_lock_info_raw raw;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_get_by_key_raw(store, bad, NULL, &raw, &err));
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_lock_acquire(store, bad, NULL, &lock, &err));
    assert_null(lock);
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_lock_try(store, bad, NULL, &lock, &err));
    assert_null(lock);
    bool ran = false;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_with_lock(store, bad, NULL, never_called, &ran, NULL, &err));
    assert_false(ran);
}

static void nfc_and_nfd_spellings_are_one_key(void **state)
{
    key plain = fresh_key("cafe");
    (void)state;
    key nfc;
    snprintf(nfc.text, sizeof nfc.text, "%.400s-\xC3\xA9", plain.text);
    key nfd;
    snprintf(nfd.text, sizeof nfd.text, "%.400s-e\xCC\x81", plain.text);
    syncguard_grant grant = take(nfd.text, 30000);
    syncguard_grant second;
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(store, nfc.text, 1000, NULL, &second, &err));
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(store, nfd.text, 1000, NULL, &second, &err));
    check_locked(nfc.text, true);
    check_locked(nfd.text, true);
    syncguard_lock_info_raw raw;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, nfd.text, NULL, &raw, &err));
    assert_string_equal(raw.key, nfc.text);
    give_back(&grant);
    check_locked(nfc.text, false);
}

static void limit_is_512_bytes(void **state)
{
    key longest = fresh_key_of(512);
    syncguard_grant grant = take(longest.text, 30000);
    (void)state;
    syncguard_lock_info_raw raw;
    assert_status(SYNCGUARD_OK, syncguard_get_by_id_raw(store, grant.lock_id, NULL, &raw, &err));
    assert_string_equal(raw.key, longest.text);
    give_back(&grant);
    char over[514];
    memset(over, 'x', 513);
    over[513] = '\0';
    refused_everywhere(over, "513 bytes");
}

static void limit_counts_after_normalizing(void **state)
{
    key start = fresh_key("shrinks");
    size_t length = strlen(start.text);
    (void)state;
    char raw[1024];
    /* e and an accent are 3 bytes that become 2. */
    memcpy(raw, start.text, length);
    size_t used = length;
    if (length % 2 == 1)
        raw[used++] = 'x';
    for (size_t final = used; final < 512; final += 2) {
        memcpy(raw + used, "e\xCC\x81", 3);
        used += 3;
    }
    raw[used] = '\0';
    assert_true(used > 600);
    syncguard_grant grant = take(raw, 30000);
    syncguard_lock_info_raw info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, raw, NULL, &info, &err));
    assert_int_equal(strlen(info.key), 512);
    give_back(&grant);

    /* One more character is one too many. */
    memcpy(raw + used, "e\xCC\x81", 4);
    refused_everywhere(raw, "514 bytes after NFC");
    char grown[200];
    /* U+1D160 has no composed form: 4 bytes become 12, so 172 become 516. */
    for (size_t i = 0; i < 43; i++)
        memcpy(grown + 4 * i, "\xF0\x9D\x85\xA0", 4);
    grown[172] = '\0';
    refused_everywhere(grown, "172 bytes that grow to 516");
}

static void bad_keys_are_refused_by_every_operation(void **state)
{
    static const struct {
        const char *bytes;
        const char *what;
    } bad[] = {
        {NULL, "NULL"},
        {"", "empty"},
        {"a\x80", "stray continuation"},
        {"\xC0\x80", "overlong NUL"},
        {"\xC1\xBF", "overlong, 2 bytes"},
        {"\xE0\x80\xAF", "overlong, 3 bytes"},
        {"\xF0\x80\x80\xAF", "overlong, 4 bytes"},
        {"a\xED\xA0\x80", "high surrogate"},
        {"a\xED\xBF\xBF", "low surrogate"},
        {"\xF4\x90\x80\x80", "beyond U+10FFFF"},
        {"\xF8\x88\x80\x80\x80", "5 bytes"},
        {"a\xC3", "cut after 1 of 2"},
        {"a\xE2\x82", "cut after 2 of 3"},
        {"a\xF0\x9F\x98", "cut after 3 of 4"},
        {"\xFF", "0xFF"},
        {"\xFE\xFF"
         "a",
         "byte order mark of UTF-16"},
        {"caf\xE9", "Latin-1"},
    };
    char *huge = malloc(SYNCGUARD_MAX_RAW_KEY_BYTES + 2);
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refused_everywhere(bad[i].bytes, bad[i].what);
    assert_non_null(huge);
    memset(huge, 'y', SYNCGUARD_MAX_RAW_KEY_BYTES + 1);
    huge[SYNCGUARD_MAX_RAW_KEY_BYTES + 1] = '\0';
    refused_everywhere(huge, "one byte over the raw limit");
    free(huge);
}

static void strange_characters_come_back_unchanged(void **state)
{
    static const char *const tails[] = {
        " ",
        "\t",
        "\n",
        "\r\n",
        "\x01\x02\x1f\x7f",
        "\"",
        "'",
        "`",
        "\\",
        "\\\"",
        "''; DROP TABLE x",
        "{\"a\":1}",
        "%s%n%d",
        "%00",
        "*",
        "?[a]",
        "$1",
        "a:b:",
        ":",
        "::",
        "/",
        "a/b/../c",
        "..",
        "-- x",
        "#",
        "\xC2\xA0",
        "\xE2\x80\x8B",
        "\xEF\xBB\xBF",
        "\xF0\x9F\x94\x92",
        "\xF3\xA0\x80\x81",
        "\xE0\xB8\x8F",
        "\xF0\x9F\xBF\xBE",
        "\xEF\xBF\xBF",
        "\xEF\xBF\xBD",
        "\xED\x95\x9C\xE1\x86\xA7", /* a Hangul syllable and U+11A7, which must stay */
        "fence",
        "PERMISSION_DENIED",
        "timeout",
        "NOAUTH WRONGPASS",
        "ABORTED",
        "42P01",
    };
    (void)state;
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        key start = fresh_key("odd");
        key odd;
        snprintf(odd.text, sizeof odd.text, "%.300s%s", start.text, tails[i]);
        syncguard_grant grant = take(odd.text, 30000);
        check_locked(odd.text, true);
        check_locked(start.text, false);
        syncguard_lock_info_raw by_key;
        assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, odd.text, NULL, &by_key, &err));
        assert_string_equal(by_key.key, odd.text);
        syncguard_lock_info_raw by_id;
        assert_status(SYNCGUARD_OK,
                      syncguard_get_by_id_raw(store, grant.lock_id, NULL, &by_id, &err));
        assert_string_equal(by_id.key, odd.text);
        give_back(&grant);
    }
}

/* Names that some store cannot use as they are. The acquires wait, because all runs share these
 * keys. */
static void names_that_stores_reserve_work(void **state)
{
    static const char *const names[] = {".", "..", "__x__", "/", "a/b", "*", "-", "0", "null"};
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 20000;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.ttl_ms = 5000;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        SYNCGUARD_SCOPED syncguard_lock *lock = NULL;
        assert_status(SYNCGUARD_OK, syncguard_lock_acquire(store, names[i], &options, &lock, &err));
        syncguard_lock_info_raw raw;
        assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(store, names[i], NULL, &raw, &err));
        assert_string_equal(raw.key, names[i]);
        assert_string_equal(raw.lock_id, syncguard_lock_id(lock));
        assert_status(SYNCGUARD_OK, syncguard_lock_extend(lock, 5000, NULL, NULL, &err));
    }
}

static void long_keys_have_counters_of_their_own(void **state)
{
    key first = fresh_key_of(512);
    key second = first;
    (void)state;
    second.text[511] = 'y';
    for (int round = 1; round <= 2; round++) {
        char expected[SYNCGUARD_FENCE_SIZE];
        syncguard_grant a = take(first.text, 30000);
        syncguard_grant b = take(second.text, 30000);
        snprintf(expected, sizeof expected, "%015d", round);
        assert_string_equal(a.fence, expected);
        assert_string_equal(b.fence, expected);
        give_back(&a);
        give_back(&b);
    }
}

static void case_and_space_tell_keys_apart(void **state)
{
    key lower = fresh_key("case");
    key upper = lower;
    (void)state;
    upper.text[0] = 'C';
    key padded;
    snprintf(padded.text, sizeof padded.text, "%.500s ", lower.text);
    syncguard_grant a = take(lower.text, 30000);
    syncguard_grant b = take(upper.text, 30000);
    syncguard_grant c = take(padded.text, 30000);
    give_back(&a);
    give_back(&b);
    give_back(&c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(nfc_and_nfd_spellings_are_one_key),
    cmocka_unit_test(limit_is_512_bytes),
    cmocka_unit_test(limit_counts_after_normalizing),
    cmocka_unit_test(bad_keys_are_refused_by_every_operation),
    cmocka_unit_test(strange_characters_come_back_unchanged),
    cmocka_unit_test(names_that_stores_reserve_work),
    cmocka_unit_test(long_keys_have_counters_of_their_own),
    cmocka_unit_test(case_and_space_tell_keys_apart),
};
const contract_group keys_group = {"keys", tests, sizeof tests / sizeof tests[0]};
