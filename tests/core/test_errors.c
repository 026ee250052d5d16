/* Status names, the error struct, constants, the allocator hook. */
#include "test_assert.h"

#include <errno.h>

#include "syncguard/sys/alloc.h"
#include "syncguard/sys/fail.h"

static void test_names(void **state)
{
    (void)state;
#define CHECK(id, value, name, meaning)                                                            \
    assert_int_equal(SYNCGUARD_##id, value);                                                       \
    assert_string_equal(syncguard_status_name(SYNCGUARD_##id), name);                              \
    assert_string_equal(syncguard_status_text(SYNCGUARD_##id), meaning);
    SYNCGUARD_STATUS_MAP(CHECK)
#undef CHECK
    assert_string_equal(syncguard_status_name((syncguard_status)77), "Unknown");
    assert_non_null(syncguard_status_text((syncguard_status)-77));
}

static void test_fail(void **state)
{
    (void)state;
    syncguard_error err;
    memset(&err, 'x', sizeof err);
    assert_int_equal(syncguard_fail(&err, SYNCGUARD_E_AUTH_FAILED, "28P01", "no %s", "entry"),
                     SYNCGUARD_E_AUTH_FAILED);
    assert_int_equal(err.code, SYNCGUARD_E_AUTH_FAILED);
    assert_string_equal(err.native, "28P01");
    assert_string_equal(err.key_hash, "");
    assert_string_equal(err.message, "no entry");
    /* Arguments may point into the struct itself. */
    syncguard_fail(&err, SYNCGUARD_E_INTERNAL, err.native, "again: %s", err.message);
    assert_string_equal(err.native, "28P01");
    assert_string_equal(err.message, "again: no entry");
    syncguard_error_key(&err, "a", 1);
    assert_string_equal(err.key_hash, "0000006100000123000002a7");
    syncguard_fail_memory(&err);
    assert_int_equal(err.code, SYNCGUARD_E_OUT_OF_MEMORY);
    assert_string_equal(err.native, "");
    syncguard_error_clear(&err);
    assert_int_equal(err.code, SYNCGUARD_OK);
    assert_string_equal(err.message, "");
    assert_int_equal(syncguard_fail(NULL, SYNCGUARD_E_ABORTED, NULL, "x"), SYNCGUARD_E_ABORTED);
    assert_int_equal(syncguard_fail_memory(NULL), SYNCGUARD_E_OUT_OF_MEMORY);
    syncguard_error_clear(NULL);
    syncguard_error_key(NULL, "a", 1);
    assert_string_equal(syncguard_errno_text(EACCES), "Permission denied");
    assert_non_null(syncguard_errno_text(-1));
}

/* Cut at a character boundary, control characters replaced. */
static void test_fail_cut(void **state)
{
    (void)state;
    char text[600];
    syncguard_error err;
    size_t i;
    for (int shift = 0; shift < 4; shift++) {
        memset(text, 'a', (size_t)shift);
        for (i = (size_t)shift; i + 4 < sizeof text; i += 4)
            memcpy(text + i, "\xF0\x9F\x98\x80", 4);
        text[i] = '\0';
        syncguard_fail(&err, SYNCGUARD_E_INTERNAL, text, "%s", text);
        size_t length = strlen(err.message);
        assert_true(length < sizeof err.message && length >= sizeof err.message - 4);
        assert_int_equal((length - (size_t)shift) % 4, 0);
        length = strlen(err.native);
        assert_true(length < sizeof err.native && length >= sizeof err.native - 4);
        assert_int_equal((length - (size_t)shift) % 4, 0);
    }
    memset(text, 'b', 300);
    text[300] = '\0';
    syncguard_fail(&err, SYNCGUARD_E_INTERNAL, NULL, "%s", text);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    text[255] = '\0';
    syncguard_fail(&err, SYNCGUARD_E_INTERNAL, NULL, "%s", text);
    assert_string_equal(err.message, text);
    syncguard_fail(&err, SYNCGUARD_E_INTERNAL, "a\nb", "x\ny\x1b[31m\x7f");
    assert_string_equal(err.message, "x?y?[31m?");
    assert_string_equal(err.native, "a?b");
}

static int frees;

static void *allocator_pass_malloc(size_t size)
{
    return malloc(size);
}

static void *allocator_pass_realloc(void *block, size_t size)
{
    return realloc(block, size);
}

static void allocator_count_free(void *block)
{
    frees++;
    errno = EBADF;
    free(block);
}

static void test_allocator(void **state)
{
    static const syncguard_allocator counting = {allocator_pass_malloc, allocator_pass_realloc,
                                                 allocator_count_free};
    static const syncguard_allocator system = {malloc, realloc, free};
    static const syncguard_allocator broken = {allocator_pass_malloc, NULL, allocator_count_free};
    (void)state;
    syncguard_allocator_set(&counting);
    syncguard_allocator_set(NULL);
    syncguard_allocator_set(&broken);
    char *text = syncguard_strdup("hello");
    assert_string_equal(text, "hello");
    errno = ENOENT;
    syncguard_free(text);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(frees, 1);
    syncguard_free(NULL);
    assert_int_equal(frees, 1);
    syncguard_allocator_set(&system);
}

static void test_alloc(void **state)
{
    (void)state;
    assert_null(syncguard_calloc(SIZE_MAX / 2, 3));
    unsigned char *block = syncguard_calloc(0, 8);
    assert_non_null(block);
    syncguard_free(block);
    block = syncguard_malloc(0);
    assert_non_null(block);
    block = syncguard_realloc(block, 0);
    assert_non_null(block);
    syncguard_free(block);
    block = syncguard_calloc(3, 5);
    assert_non_null(block);
    assert_int_equal(block[14], 0);
    syncguard_free(block);
    assert_null(syncguard_strdup(NULL));
    assert_null(syncguard_strndup(NULL, 3));
    char *text = syncguard_strndup("abcdef", 3);
    assert_string_equal(text, "abc");
    syncguard_free(text);
    text = syncguard_strndup("ab", 30);
    assert_string_equal(text, "ab");
    syncguard_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),     cmocka_unit_test(test_fail),
        cmocka_unit_test(test_fail_cut),  cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_allocator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
