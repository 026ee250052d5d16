/* The size rule of structs, and the options that all backends share. */
#include "test_assert.h"

#include "syncguard/sys/options.h"
#include "syncguard/sys/url.h"

typedef struct older {
    size_t size;
    int64_t a;
} older;

typedef struct newer {
    size_t size;
    int64_t a;
    int64_t b;
} newer;

static void test_read(void **state)
{
    newer known = {sizeof known, 1, 2};
    older small = {sizeof small, 10};
    newer same = {sizeof same, 11, 12};
    struct {
        newer head;
        int64_t c;
    } large = {{sizeof large, 21, 22}, 0};
    (void)state;
    syncguard_error err;
    assert_int_equal(syncguard_struct_read(NULL, &known, sizeof known, sizeof small, "it", &err),
                     SYNCGUARD_OK);
    assert_int_equal(known.a, 1);
    assert_int_equal(syncguard_struct_read(&small, &known, sizeof known, sizeof small, "it", &err),
                     SYNCGUARD_OK);
    assert_int_equal(known.size, sizeof known);
    assert_int_equal(known.a, 10);
    assert_int_equal(known.b, 2);
    assert_int_equal(syncguard_struct_read(&same, &known, sizeof known, sizeof small, "it", &err),
                     SYNCGUARD_OK);
    assert_int_equal(known.b, 12);
    assert_int_equal(syncguard_struct_read(&large, &known, sizeof known, sizeof small, "it", &err),
                     SYNCGUARD_OK);
    assert_int_equal(known.b, 22);
    assert_int_equal(known.size, sizeof known);
    large.c = INT64_C(1) << 56;
    assert_int_equal(syncguard_struct_read(&large, &known, sizeof known, sizeof small, "it", &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    same.size = SIZE_MAX; /* never set: nothing past the struct is read */
    assert_int_equal(syncguard_struct_read(&same, &known, sizeof known, sizeof small, "it", &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    small.size = sizeof small - 1;
    assert_int_equal(syncguard_struct_read(&small, &known, sizeof known, sizeof small, "it", &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    small.size = 0;
    assert_int_equal(syncguard_struct_read(&small, &known, sizeof known, 0, "it", &err),
                     SYNCGUARD_E_INVALID_ARGUMENT);
}

static void test_init(void **state)
{
    static const newer defaults = {sizeof defaults, 3, 4};
    struct {
        newer head;
        int64_t c;
    } large;
    (void)state;
    older small;
    memset(&small, 'x', sizeof small);
    memset(&large, 'x', sizeof large);
    syncguard_struct_init(&small, sizeof small, &defaults, sizeof defaults);
    assert_int_equal(small.size, sizeof small);
    assert_int_equal(small.a, 3);
    syncguard_struct_init(&large, sizeof large, &defaults, sizeof defaults);
    assert_int_equal(large.head.size, sizeof large);
    assert_int_equal(large.head.b, 4);
    assert_int_equal(large.c, 0);
    syncguard_struct_init(NULL, sizeof large, &defaults, sizeof defaults);
    syncguard_struct_init(&large, 1, &defaults, sizeof defaults);
    assert_int_equal(large.head.b, 4);
}

static syncguard_status read_with(void (*change)(syncguard_options *), syncguard_options *out)
{
    syncguard_options given = SYNCGUARD_OPTIONS_INIT;
    change(&given);
    syncguard_error err;
    syncguard_status status = syncguard_options_read(&given, out, &err);
    if (status != SYNCGUARD_OK)
        assert_int_equal(err.code, status);
    return status;
}

static char owner[SYNCGUARD_OWNER_SIZE + 1];

static void no_timeout(syncguard_options *o)
{
    o->timeout_ms = 0;
}
static void long_timeout(syncguard_options *o)
{
    o->timeout_ms = INT64_MAX;
}
static void bad_dispose(syncguard_options *o)
{
    o->dispose_timeout_ms = -1;
}
static void use_owner(syncguard_options *o)
{
    o->owner = owner;
}
static void no_size(syncguard_options *o)
{
    o->size = 0;
}
static void options_change_nothing(syncguard_options *o)
{
    (void)o;
}

static void test_options(void **state)
{
    (void)state;
    syncguard_options twin;
    memset(&twin, 'x', sizeof twin);
    syncguard_options_init(&twin, sizeof twin);
    const syncguard_options defaults = SYNCGUARD_OPTIONS_INIT;
    assert_int_equal(twin.timeout_ms, defaults.timeout_ms);
    assert_null(twin.owner);
    syncguard_options out;
    assert_int_equal(syncguard_options_read(NULL, &out, NULL), SYNCGUARD_OK);
    assert_int_equal(out.timeout_ms, SYNCGUARD_DEFAULT_TIMEOUT_MS);
    assert_int_equal(read_with(options_change_nothing, &out), SYNCGUARD_OK);
    assert_int_equal(read_with(no_timeout, &out), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(read_with(long_timeout, &out), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(read_with(bad_dispose, &out), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(read_with(no_size, &out), SYNCGUARD_E_INVALID_ARGUMENT);
    memset(owner, 'o', SYNCGUARD_MAX_OWNER_BYTES);
    assert_int_equal(read_with(use_owner, &out), SYNCGUARD_OK);
    assert_ptr_equal(out.owner, owner);
    owner[SYNCGUARD_MAX_OWNER_BYTES] = 'o';
    assert_int_equal(read_with(use_owner, &out), SYNCGUARD_E_INVALID_ARGUMENT);
    memcpy(owner, "\xC3\x28", 3);
    assert_int_equal(read_with(use_owner, &out), SYNCGUARD_E_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
