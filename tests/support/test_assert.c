/* See test_assert.h. */
#include "test_assert.h"

void test_check_status(syncguard_status got, syncguard_status wanted, const char *text,
                       const syncguard_error *err, const char *file, int line)
{
    if (got == wanted)
        return;
    bool failed = got < 0; /* otherwise err is that of an earlier call */
    print_error("%s\n    gave %s instead of %s (%s %s)\n", text, syncguard_status_name(got),
                syncguard_status_name(wanted), failed ? err->native : "",
                failed ? err->message : "");
    _fail(file, line);
}

syncguard_backend *test_open(const char *url)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    assert_status(SYNCGUARD_OK, syncguard_open(url, NULL, &backend, &err));
    assert_non_null(backend);
    return backend;
}

pthread_t test_start_thread(void *(*run)(void *), void *context)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run, context), 0);
    return thread;
}

static void *abort_trigger_soon(void *abort_object)
{
    test_sleep_ms(100);
    syncguard_abort_trigger(abort_object);
    return NULL;
}

pthread_t test_trigger_soon(syncguard_abort *abort_object)
{
    return test_start_thread(abort_trigger_soon, abort_object);
}

long test_reconnects_total(const syncguard_backend *backend)
{
    static const char name[] = "\nsyncguard_reconnects_total{";
    static char text[65536];
    (void)syncguard_telemetry_prometheus(backend, text, sizeof text);
    const char *at = strstr(text, name);
    assert_non_null(at);
    return strtol(strchr(at, '}') + 1, NULL, 10);
}
