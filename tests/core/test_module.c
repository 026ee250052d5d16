/* Opening by URL: built-in backends, registered ones, refused ones. */
#include "test_assert.h"

#include "syncguard/sys/backend.h"

static int setups;
static const char *opened;

static syncguard_status open_toy(const char *url, const syncguard_options *options,
                                 syncguard_backend **out, syncguard_error *err)
{
    opened = url;
    return syncguard_memory_open(options, out, err);
}

static syncguard_status setup_toy(const char *url, const syncguard_options *options,
                                  syncguard_print_fn print, void *print_context,
                                  syncguard_error *err)
{
    (void)url;
    (void)options;
    (void)err;
    setups++;
    if (print != NULL)
        print(print_context, "make toys");
    return SYNCGUARD_OK;
}

static const char *const schemes[] = {"toy", "toys", NULL};
static const syncguard_module toy = {SYNCGUARD_ABI, "toy", schemes, open_toy, setup_toy};
static const syncguard_module stranger = {SYNCGUARD_ABI + 1, "alien", schemes, open_toy, NULL};
static const syncguard_module hollow = {SYNCGUARD_ABI, "hollow", schemes, NULL, NULL};

static void module_assert_refused(const char *url, const char *named)
{
    syncguard_backend *backend = (syncguard_backend *)&backend;
    syncguard_error err;
    assert_int_equal(syncguard_open(url, NULL, &backend, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_null(backend);
    if (strstr(err.message, named) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.message, named);
    assert_null(strstr(err.message, "secret"));
}

static void test_module_refused(void **state)
{
    (void)state;
    module_assert_refused("nosuch://u:secret@h", "nosuch");
    module_assert_refused("", "scheme");
    module_assert_refused("secret", "scheme");
    module_assert_refused("memory:secret", "memory");
    module_assert_refused("memory://u:secret@h/", "memory");
    module_assert_refused("memory:?tolerance_ms=0", "tolerance_ms");
    module_assert_refused("memory:?timeout_ms=1&timeout_ms=2", "timeout_ms");
    module_assert_refused("memory:?timeout_ms=secret", "timeout_ms");
    module_assert_refused("firestore-x://p", "firestore-x");
    /* A statically linked program loads no module. */
    module_assert_refused("redis://u:secret@h", "redis");
    syncguard_error err;
    assert_int_equal(syncguard_open("memory:", NULL, NULL, &err), SYNCGUARD_E_INVALID_ARGUMENT);
}

static void test_memory(void **state)
{
    (void)state;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    assert_int_equal(syncguard_open("MEMORY:?timeout_ms=100&cleanup=true", NULL, &backend, &err),
                     SYNCGUARD_OK);
    const syncguard_capabilities *can = syncguard_capabilities_get(backend);
    assert_string_equal(can->backend, "memory");
    assert_true(can->supports_fencing);
    assert_int_equal(can->time_authority, SYNCGUARD_TIME_SERVER);
    assert_int_equal(syncguard_backend_options(backend)->timeout_ms, 100);
    assert_true(syncguard_backend_options(backend)->cleanup_in_is_locked);
    syncguard_close(backend);
    assert_int_equal(syncguard_setup("memory:", NULL, NULL, NULL, &err), SYNCGUARD_OK);
    setenv("SYNCGUARD_URL", "memory:", 1);
    assert_int_equal(syncguard_open(NULL, NULL, &backend, &err), SYNCGUARD_OK);
    syncguard_close(backend);
}

static void module_keep_line(void *context, const char *line)
{
    *(const char **)context = line;
}

static void test_register(void **state)
{
    (void)state;
    module_assert_refused("toys:x", "toys");
    syncguard_error err;
    assert_int_equal(syncguard_module_register(NULL, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_module_register(&stranger, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_module_register(&hollow, &err), SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(syncguard_module_register(&toy, &err), SYNCGUARD_OK);
    assert_int_equal(syncguard_module_register(&toy, &err), SYNCGUARD_OK);
    syncguard_backend *backend = NULL;
    assert_int_equal(syncguard_open("Toys:x", NULL, &backend, &err), SYNCGUARD_OK);
    assert_string_equal(opened, "Toys:x");
    syncguard_close(backend);
    const char *line = NULL;
    assert_int_equal(syncguard_setup("toy:", NULL, module_keep_line, &line, &err), SYNCGUARD_OK);
    assert_int_equal(setups, 1);
    assert_string_equal(line, "make toys");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_module_refused),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_register),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
