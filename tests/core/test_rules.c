/* Keys, hashes, fences, liveness, names: cases that are not in the vectors. */
#include "test_assert.h"

#include "syncguard/sys/names.h"

static syncguard_status rules_normalize_key(const char *key)
{
    char out[SYNCGUARD_KEY_SIZE];
    size_t length = 99;
    syncguard_error err;
    syncguard_status status = syncguard_key_normalize(key, out, &length, &err);
    if (status != SYNCGUARD_OK) {
        assert_int_equal(err.code, status);
        assert_int_equal(length, 0);
        assert_int_equal(out[0], 0);
    }
    return status;
}

/* I-KEY-05 */
static void test_key_bad_utf8(void **state)
{
    static const char *const bad[] = {
        "",             /* empty */
        "\x80",         /* continuation without a lead */
        "a\xC3",        /* truncated */
        "\xE2\x82",     /* truncated */
        "\xF0\x9F\x98", /* truncated */
        "\xC0\xAF",     /* overlong */
        "\xE0\x80\xAF", /* overlong */
        "\xF0\x80\x80\xAF",
        "\xED\xA0\x80", /* surrogate */
        "\xED\xBF\xBF",
        "\xF4\x90\x80\x80", /* past U+10FFFF */
        "\xF8\x88\x80\x80\x80",
        "\xFF",
        "ok\xFE",
        "\xC3\x28",
    };
    (void)state;
    assert_int_equal(rules_normalize_key(NULL), SYNCGUARD_E_INVALID_ARGUMENT);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(rules_normalize_key(bad[i]), SYNCGUARD_E_INVALID_ARGUMENT);
    char hash[SYNCGUARD_HASH_SIZE] = "x";
    assert_false(syncguard_hash(bad[1], hash));
    assert_string_equal(hash, "");
    assert_false(syncguard_hash(NULL, hash));
}

/* I-KEY-04: a huge key is refused by its first 4097 bytes */
static void test_key_huge(void **state)
{
    char *huge = malloc(SYNCGUARD_MAX_RAW_KEY_BYTES + 2);
    (void)state;
    assert_non_null(huge);
    /* Without a terminating NUL: reading past the limit would leave the block. */
    memset(huge, 'k', SYNCGUARD_MAX_RAW_KEY_BYTES + 2);
    assert_int_equal(rules_normalize_key(huge), SYNCGUARD_E_INVALID_ARGUMENT);
    huge[SYNCGUARD_MAX_RAW_KEY_BYTES] = '\0';
    assert_int_equal(rules_normalize_key(huge), SYNCGUARD_E_INVALID_ARGUMENT);
    huge[512] = '\0';
    assert_int_equal(rules_normalize_key(huge), SYNCGUARD_OK);
    huge[512] = 'k';
    huge[513] = '\0';
    assert_int_equal(rules_normalize_key(huge), SYNCGUARD_E_INVALID_ARGUMENT);
    free(huge);
}

static void test_nfc_bounds(void **state)
{
    static char text[SYNCGUARD_MAX_RAW_KEY_BYTES + 1];
    static char out[SYNCGUARD_MAX_RAW_KEY_BYTES * 6];
    (void)state;
    /* U+0390 in NFD is three characters; composed again it is itself. */
    for (size_t i = 0; i < SYNCGUARD_MAX_RAW_KEY_BYTES; i += 2)
        memcpy(text + i, "\xCE\x90", 2);
    assert_int_equal(syncguard_nfc(text, 4096, out, sizeof out), 4096);
    assert_memory_equal(text, out, 4096);
    assert_int_equal(syncguard_nfc(text, 4096, out, 4096), -1);
    assert_int_equal(syncguard_nfc(text, 4096, out, 4097), 4096);
    assert_int_equal(syncguard_nfc(text, 4097, out, sizeof out), -1);
    assert_int_equal(syncguard_nfc(NULL, 0, out, sizeof out), -1);
    assert_int_equal(syncguard_nfc("", 0, out, 1), 0);
    /* Thousands of marks in one run. */
    for (size_t i = 0; i < SYNCGUARD_MAX_RAW_KEY_BYTES; i += 4)
        memcpy(text + i, "\xCC\x81\xCC\xA3", 4);
    assert_int_equal(syncguard_nfc(text, 4096, out, sizeof out), 4096);
    assert_memory_equal(out, "\xCC\xA3\xCC\xA3", 4);
    assert_memory_equal(out + 4092, "\xCC\x81\xCC\x81", 4);
    char hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash_n(text, 4096, hash));
    assert_false(syncguard_hash_n(text, 4097, hash));
}

/* I-FEN-06, I-FEN-08 */
static void test_fence_next(void **state)
{
    (void)state;
    int64_t next = -7;
    assert_int_equal(syncguard_fence_next(0, &next, NULL), SYNCGUARD_OK);
    assert_int_equal(next, 1);
    assert_int_equal(syncguard_fence_next(SYNCGUARD_FENCE_MAX - 1, &next, NULL), SYNCGUARD_OK);
    assert_int_equal(next, SYNCGUARD_FENCE_MAX);
    next = -7;
    assert_int_equal(syncguard_fence_next(SYNCGUARD_FENCE_MAX, &next, NULL), SYNCGUARD_E_INTERNAL);
    assert_int_equal(syncguard_fence_next(INT64_C(1000000000000000), &next, NULL),
                     SYNCGUARD_E_INTERNAL);
    assert_int_equal(syncguard_fence_next(INT64_MAX, &next, NULL), SYNCGUARD_E_INTERNAL);
    assert_int_equal(syncguard_fence_next(-1, &next, NULL), SYNCGUARD_E_INTERNAL);
    assert_int_equal(syncguard_fence_next(INT64_MIN, &next, NULL), SYNCGUARD_E_INTERNAL);
    assert_int_equal(next, -7);
}

static void test_fence_valid(void **state)
{
    (void)state;
    assert_true(syncguard_fence_valid("000000000000001"));
    assert_false(syncguard_fence_valid(NULL));
    assert_false(syncguard_fence_valid(""));
    assert_false(syncguard_fence_valid("00000000000001"));
    assert_false(syncguard_fence_valid("0000000000000001"));
    assert_false(syncguard_fence_valid("00000000000000a"));
    assert_false(syncguard_fence_valid("-00000000000001"));
}

/* I-ACQ-05 */
static void test_rules_expiry(void **state)
{
    (void)state;
    const int64_t now = INT64_C(1700000000000);
    int64_t at = 0;
    assert_int_equal(syncguard_expiry(now, 1, &at, NULL), SYNCGUARD_OK);
    assert_int_equal(at, now + 1);
    assert_int_equal(syncguard_expiry(now, SYNCGUARD_MAX_TIME_MS - now, &at, NULL), SYNCGUARD_OK);
    assert_int_equal(at, SYNCGUARD_MAX_TIME_MS);
    assert_int_equal(syncguard_expiry(now, SYNCGUARD_MAX_TIME_MS - now + 1, &at, NULL),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_expiry(now, INT64_MAX, &at, NULL), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_expiry(INT64_MIN, INT64_MAX, &at, NULL),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_expiry(now, 0, &at, NULL), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_expiry(now, -1, &at, NULL), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_expiry(now, INT64_MIN, &at, NULL), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(at, SYNCGUARD_MAX_TIME_MS);
}

static void test_live_extremes(void **state)
{
    (void)state;
    assert_true(syncguard_is_live(INT64_MIN, INT64_MIN));
    assert_true(syncguard_is_live(INT64_MAX, INT64_MAX));
    assert_false(syncguard_is_live(INT64_MIN, INT64_MAX));
    assert_true(syncguard_is_live(INT64_MAX, INT64_MIN));
}

/* I-KEY-15: two long keys under a long prefix never share a counter */
static void test_names_differ(void **state)
{
    (void)state;
    char prefix[471];
    memset(prefix, 'p', 470);
    prefix[470] = '\0';
    char key[2][513];
    char base[2][SYNCGUARD_NAME_SIZE];
    char fence[2][SYNCGUARD_NAME_SIZE];
    size_t length;
    for (int i = 0; i < 2; i++) {
        memset(key[i], 'k', 512);
        key[i][511] = (char)('a' + i);
        key[i][512] = '\0';
        assert_int_equal(syncguard_storage_name(prefix, key[i], 1000, 26, base[i], &length, NULL),
                         SYNCGUARD_OK);
        assert_int_equal(length, strlen(base[i]));
        assert_int_equal(syncguard_fence_name(prefix, base[i], 1000, 26, fence[i], &length, NULL),
                         SYNCGUARD_OK);
        assert_true(length <= 974);
    }
    assert_string_not_equal(base[0], base[1]);
    assert_string_not_equal(fence[0], fence[1]);
    assert_string_not_equal(fence[0], base[0]);
}

static void test_name_buffer_size(void **state)
{
    char *text = malloc(4001);
    (void)state;
    assert_non_null(text);
    memset(text, 't', 4000);
    text[4000] = '\0';
    char out[SYNCGUARD_NAME_SIZE];
    size_t length = 0;
    /* A limit beyond the size of the buffer makes a hashed name instead of an overflow. */
    assert_int_equal(syncguard_storage_name(NULL, text, 100000, 0, out, &length, NULL),
                     SYNCGUARD_OK);
    assert_int_equal(length, 22);
    text[1700] = '\0';
    assert_int_equal(syncguard_storage_name("", text, 100000, 0, out, &length, NULL), SYNCGUARD_OK);
    assert_int_equal(length, 1700);
    assert_int_equal(syncguard_storage_name(":::", "k", 10, 0, out, &length, NULL), SYNCGUARD_OK);
    assert_string_equal(out, "k");
    free(text);
}

static void test_name_hash(void **state)
{
    (void)state;
    char out[SYNCGUARD_LOCK_ID_SIZE];
    /* SHA-256 of "abc" begins ba7816bf8f01cfea414140de5dae2223. */
    syncguard_name_hash("abc", 3, out);
    assert_string_equal(out, "ungWv48Bz-pBQUDeXa4iIw");
}

static void test_fence_parse(void **state)
{
    static const char *const bad[] = {"", "a", "1a", " 1", "-1", "+1", "0000000000000001"};
    (void)state;
    int64_t value = 7;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(syncguard_fence_parse(bad[i], &value));
    assert_int_equal(value, 7);
    assert_true(syncguard_fence_parse("0", &value));
    assert_int_equal(value, 0);
    assert_true(syncguard_fence_parse("000000000000042", &value));
    assert_int_equal(value, 42);
    assert_true(syncguard_fence_parse("999999999999999", &value));
    assert_true(value == INT64_C(999999999999999));
}

/* Positive exactly while the lock is live. */
static void test_remaining(void **state)
{
    (void)state;
    for (int64_t now = 5990; now < 6010; now++)
        assert_int_equal(syncguard_remaining_ms(5000, now) > 0, syncguard_is_live(5000, now));
    assert_int_equal(syncguard_remaining_ms(5000, 5000), SYNCGUARD_TIME_TOLERANCE_MS);
}

/* The published test values. */
static void test_fnv1a(void **state)
{
    (void)state;
    assert_true(syncguard_fnv1a("", 0) == UINT64_C(0xcbf29ce484222325));
    assert_true(syncguard_fnv1a("a", 1) == UINT64_C(0xaf63dc4c8601ec8c));
    assert_true(syncguard_fnv1a("foobar", 6) == UINT64_C(0x85944171f73967e8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key_bad_utf8),
        cmocka_unit_test(test_key_huge),
        cmocka_unit_test(test_nfc_bounds),
        cmocka_unit_test(test_fence_next),
        cmocka_unit_test(test_fence_valid),
        cmocka_unit_test(test_rules_expiry),
        cmocka_unit_test(test_live_extremes),
        cmocka_unit_test(test_names_differ),
        cmocka_unit_test(test_name_buffer_size),
        cmocka_unit_test(test_name_hash),
        cmocka_unit_test(test_fence_parse),
        cmocka_unit_test(test_remaining),
        cmocka_unit_test(test_fnv1a),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
