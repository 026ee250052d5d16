/*
 * The cases with known answers in tests/vectors.
 *
 * Cases that C cannot have are skipped by the rule in `vector_is_foreign`, never by name, and
 * counted: inputs that are not strings, doubles where C takes integers, strings with a NUL inside,
 * text that is not well formed.
 */
#include "test_assert.h"

#include "core/hash.h"
#include "core/liveness.h"
#include "syncguard/sys/names.h"
#include "vector_file.h"

static const char *folder;
static vector_file file;

static bool vector_is_foreign(const char *kind, const vector_bytes *text)
{
    bool is_foreign = strcmp(kind, "other") == 0 || strcmp(kind, "surrogate") == 0 ||
                      strcmp(kind, "double") == 0 ||
                      (text != NULL && memchr(text->data, 0, text->length) != NULL);
    if (is_foreign)
        file.skipped++;
    else
        file.run++;
    return is_foreign;
}

static void vectors_open_file(const char *name)
{
    assert_true(vector_open(&file, folder, name));
}

static void vectors_close_file(const char *name, int expected)
{
    assert_int_equal(file.run + file.skipped, expected);
    vector_close(&file, name);
}

static void same_bytes(const char *id, const char *got, size_t length, const vector_bytes *wanted)
{
    if (length != wanted->length || memcmp(got, wanted->data, length) != 0)
        fail_msg("case %s: other bytes (%zu, wanted %zu)", id, length, wanted->length);
}

static void same_outcome(const char *id, syncguard_status got, const char *wanted)
{
    const char *name = got == SYNCGUARD_OK ? "ok" : syncguard_status_name(got);
    if (strcmp(name, wanted) != 0)
        fail_msg("case %s: %s, wanted %s", id, name, wanted);
}

/* I-KEY-01, I-KEY-02, I-KEY-03: id, kind, key, outcome, nfc */
static void test_key(void **state)
{
    static vector_bytes key;
    static vector_bytes nfc;
    (void)state;
    vectors_open_file("key.txt");
    char out[SYNCGUARD_KEY_SIZE];
    size_t length;
    while (vector_next(&file)) {
        assert_true(vector_read(file.field[2], &key) && vector_read(file.field[4], &nfc));
        if (vector_is_foreign(file.field[1], &key))
            continue;
        same_outcome(file.field[0], syncguard_key_normalize(key.data, out, &length, NULL),
                     file.field[3]);
        same_bytes(file.field[0], out, length, &nfc);
        assert_int_equal(out[length], 0);
    }
    vectors_close_file("key.txt", 63);
}

/* RFC 4231, cases 2, 3 and 6 (a key longer than a block), cut to 24 digits. */
static void test_hash_keyed(void **state)
{
    (void)state;
    char hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash_keyed("Jefe", "what do ya want for nothing?", hash));
    assert_string_equal(hash, "5bdcc146bf60754e6a042426");
    char bytes[51];
    memset(bytes, 0xDD, 50);
    char long_key[132];
    memset(long_key, 0xAA, 131);
    uint8_t sum[32];
    sg_hmac_sha256(long_key, 20, bytes, 50, sum);
    assert_memory_equal(sum, "\x77\x3e\xa9\x1e\x36\x80\x0e\x46\x85\x4d\xb8\xeb", 12);
    long_key[131] = '\0';
    assert_true(syncguard_hash_keyed(
        long_key, "Test Using Larger Than Block-Size Key - Hash Key First", hash));
    assert_string_equal(hash, "60e431591ee0b67f0d8a26aa");
    /* All spellings of a key have one hash here, too. */
    char nfd[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash_keyed("Jefe", "caf\xC3\xA9", hash));
    assert_true(syncguard_hash_keyed("Jefe", "cafe\xCC\x81", nfd));
    assert_string_equal(hash, nfd);
    assert_false(syncguard_hash_keyed(NULL, "a", hash));
    assert_string_equal(hash, "");
    assert_false(syncguard_hash_keyed("Jefe", NULL, hash));
}

/* I-HSH-01: id, kind, text, nfc, hash */
static void test_hash(void **state)
{
    static vector_bytes text;
    static vector_bytes nfc;
    static char out[SYNCGUARD_MAX_RAW_KEY_BYTES * 6];
    (void)state;
    vectors_open_file("hash.txt");
    char hash[SYNCGUARD_HASH_SIZE];
    while (vector_next(&file)) {
        assert_true(vector_read(file.field[2], &text) && vector_read(file.field[3], &nfc));
        if (vector_is_foreign(file.field[1], &text))
            continue;
        assert_true(syncguard_hash(text.data, hash));
        assert_string_equal(hash, file.field[4]);
        assert_true(syncguard_hash_n(nfc.data, nfc.length, hash));
        assert_string_equal(hash, file.field[4]);
        ptrdiff_t length = syncguard_nfc(text.data, text.length, out, sizeof out);
        assert_true(length >= 0);
        same_bytes(file.field[0], out, (size_t)length, &nfc);
    }
    vectors_close_file("hash.txt", 110);
}

/* I-ID-04, I-ID-05, I-ID-06: id, kind, lock id, outcome */
static void test_lock_id(void **state)
{
    static vector_bytes text;
    (void)state;
    vectors_open_file("lock_id.txt");
    while (vector_next(&file)) {
        assert_true(vector_read(file.field[2], &text));
        if (vector_is_foreign(file.field[1], &text))
            continue;
        if (syncguard_lock_id_valid(text.data) != (strcmp(file.field[3], "ok") == 0))
            fail_msg("case %s: not %s", file.field[0], file.field[3]);
    }
    vectors_close_file("lock_id.txt", 34);
}

/* I-FEN-01: id, kind, value, outcome, fence */
static void test_fence_format(void **state)
{
    (void)state;
    vectors_open_file("fence_format.txt");
    char fence[SYNCGUARD_FENCE_SIZE];
    while (vector_next(&file)) {
        if (vector_is_foreign(file.field[1], NULL))
            continue;
        syncguard_status status =
            syncguard_fence_format(strtoll(file.field[2], NULL, 10), fence, NULL);
        same_outcome(file.field[0], status, file.field[3]);
        if (status == SYNCGUARD_OK) {
            assert_string_equal(fence, file.field[4]);
            assert_true(syncguard_fence_valid(fence));
        }
    }
    vectors_close_file("fence_format.txt", 24);
}

/* I-TIM-01, I-TIM-05: id, kind, expires or seconds, now or microseconds, tolerance, answer */
static void test_live(void **state)
{
    (void)state;
    vectors_open_file("live.txt");
    while (vector_next(&file)) {
        int64_t first = strtoll(file.field[2], NULL, 10);
        int64_t second = strtoll(file.field[3], NULL, 10);
        int64_t tolerance = strtoll(file.field[4], NULL, 10);
        bool live = strcmp(file.field[5], "live") == 0;
        if (vector_is_foreign(file.field[1], NULL))
            continue;
        if (strcmp(file.field[1], "redis-time") == 0) {
            assert_int_equal(first * 1000 + second / 1000, strtoll(file.field[5], NULL, 10));
            continue;
        }
        if (sg_is_live_within(first, second, tolerance) != live)
            fail_msg("case %s: not %s", file.field[0], file.field[5]);
        if (tolerance == SYNCGUARD_TIME_TOLERANCE_MS)
            assert_int_equal(syncguard_is_live(first, second), live);
    }
    vectors_close_file("live.txt", 25);
}

/* The stored name as a backend builds it: the key in NFC, then the name. */
static syncguard_status name_of(const vector_bytes *prefix, const vector_bytes *key, size_t limit,
                                size_t reserve, char *out, size_t *length)
{
    static char nfc[SYNCGUARD_MAX_RAW_KEY_BYTES * 6];
    assert_true(syncguard_nfc(key->data, key->length, nfc, sizeof nfc) >= 0);
    return syncguard_storage_name(prefix->data, nfc, limit, reserve, out, length, NULL);
}

/* I-KEY-10 to I-KEY-13: id, kind, prefix, key, limit, reserve, outcome, name */
static void test_storage_name(void **state)
{
    static vector_bytes prefix;
    static vector_bytes key;
    static vector_bytes wanted;
    (void)state;
    vectors_open_file("storage_name.txt");
    char out[SYNCGUARD_NAME_SIZE];
    size_t length = 0;
    while (vector_next(&file)) {
        assert_true(vector_read(file.field[2], &prefix) && vector_read(file.field[3], &key) &&
                    vector_read(file.field[7], &wanted));
        if (vector_is_foreign(file.field[1], &key))
            continue;
        syncguard_status status = name_of(&prefix, &key, strtoul(file.field[4], NULL, 10),
                                          strtoul(file.field[5], NULL, 10), out, &length);
        same_outcome(file.field[0], status, file.field[6]);
        if (status == SYNCGUARD_OK)
            same_bytes(file.field[0], out, length, &wanted);
    }
    vectors_close_file("storage_name.txt", 112);
}

/* I-KEY-14: id, kind, prefix, key, limit, reserve, outcome, lock's name, counter's name */
static void test_fence_name(void **state)
{
    static vector_bytes prefix;
    static vector_bytes key;
    static vector_bytes base;
    static vector_bytes counter;
    (void)state;
    vectors_open_file("fence_name.txt");
    char out[SYNCGUARD_NAME_SIZE];
    char fence[SYNCGUARD_NAME_SIZE];
    size_t length = 0;
    while (vector_next(&file)) {
        size_t limit = strtoul(file.field[4], NULL, 10);
        size_t reserve = strtoul(file.field[5], NULL, 10);
        assert_true(vector_read(file.field[2], &prefix) && vector_read(file.field[3], &key) &&
                    vector_read(file.field[7], &base) && vector_read(file.field[8], &counter));
        if (vector_is_foreign(file.field[1], &key))
            continue;
        syncguard_status status = name_of(&prefix, &key, limit, reserve, out, &length);
        same_outcome(file.field[0], status, file.field[6]);
        if (status != SYNCGUARD_OK)
            continue;
        same_bytes(file.field[0], out, length, &base);
        assert_int_equal(
            syncguard_fence_name(prefix.data, out, limit, reserve, fence, &length, NULL),
            SYNCGUARD_OK);
        same_bytes(file.field[0], fence, length, &counter);
    }
    vectors_close_file("fence_name.txt", 40);
}

/* id, text, nfc; a text in NFC does not change */
static void test_nfc(void **state)
{
    static vector_bytes text;
    static vector_bytes nfc;
    static char out[SYNCGUARD_MAX_RAW_KEY_BYTES * 6];
    (void)state;
    vectors_open_file("nfc.txt");
    while (vector_next(&file)) {
        assert_true(vector_read(file.field[1], &text) && vector_read(file.field[2], &nfc));
        file.run++;
        ptrdiff_t length = syncguard_nfc(text.data, text.length, out, sizeof out);
        assert_true(length >= 0);
        same_bytes(file.field[0], out, (size_t)length, &nfc);
        length = syncguard_nfc(nfc.data, nfc.length, out, sizeof out);
        assert_true(length >= 0);
        same_bytes(file.field[0], out, (size_t)length, &nfc);
    }
    vectors_close_file("nfc.txt", 218);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: unit_vectors FOLDER\n");
        return 2;
    }
    folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key),          cmocka_unit_test(test_hash),
        cmocka_unit_test(test_hash_keyed),   cmocka_unit_test(test_lock_id),
        cmocka_unit_test(test_fence_format), cmocka_unit_test(test_live),
        cmocka_unit_test(test_storage_name), cmocka_unit_test(test_fence_name),
        cmocka_unit_test(test_nfc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
