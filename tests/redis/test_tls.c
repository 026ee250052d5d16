/*
 * TLS: who the server is gets checked, by authority and by name, unless that is
 * turned off; servers that want a certificate get one.
 */
#include "support.h"

static char host[64];
static const char *dir;

static syncguard_status try_url(const char *format, ...)
{
    char url[1024];
    syncguard_backend *backend = NULL;
    syncguard_grant grant;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(url, sizeof url, format, arguments);
    va_end(arguments);
    syncguard_status status = syncguard_open(url, NULL, &backend, &err);
    if (status == SYNCGUARD_OK)
        status = syncguard_acquire(backend, "tls", 5000, NULL, &grant, &err);
    if (status == SYNCGUARD_OK)
        status = syncguard_release(backend, grant.lock_id, NULL, &err);
    assert_null(strstr(err.message, "s3cret"));
    syncguard_close(backend);
    return status;
}

#define CLIENT "tls_cert=%s/client.pem&tls_key=%s/client.key"

static void authority_is_checked(void **state)
{
    (void)state;
    assert_status(try_url("rediss://locker:s3cret@localhost:%s?" CLIENT, host, dir, dir),
                  SYNCGUARD_E_AUTH_FAILED);
    assert_status(
        try_url("rediss://locker:s3cret@localhost:%s?tls_insecure=1&" CLIENT, host, dir, dir),
        SYNCGUARD_OK);
    assert_status(try_url("rediss://locker:s3cret@localhost:%s?tls_ca=%s/ca.pem&" CLIENT, host, dir,
                          dir, dir),
                  SYNCGUARD_OK);
}

static void name_is_checked(void **state)
{
    (void)state;
    assert_status(try_url("rediss://locker:s3cret@127.0.0.1:%s?tls_ca=%s/ca.pem&" CLIENT, host, dir,
                          dir, dir),
                  SYNCGUARD_OK);
    assert_status(try_url("rediss://locker:s3cret@localhost:%s?tls_ca=%s/ca.pem&" CLIENT
                          "&tls_server_name=other.example",
                          host, dir, dir, dir),
                  SYNCGUARD_E_AUTH_FAILED);
    assert_status(try_url("rediss://locker:s3cret@127.0.0.1:%s?tls_ca=%s/ca.pem&" CLIENT
                          "&tls_server_name=localhost",
                          host, dir, dir, dir),
                  SYNCGUARD_OK);
}

static void missing_certificate_and_plain_text_fail(void **state)
{
    (void)state;
    assert_status(try_url("rediss://locker:s3cret@localhost:%s?tls_ca=%s/ca.pem", host, dir),
                  SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_status(try_url("redis://locker:s3cret@localhost:%s", host),
                  SYNCGUARD_E_SERVICE_UNAVAILABLE);
}

static void *hammer(void *argument)
{
    syncguard_grant grant;
    char key[48];
    snprintf(key, sizeof key, "tls:%lx", (unsigned long)pthread_self());
    for (int i = 0; i < 100; i++) {
        if (syncguard_acquire(argument, key, 20000, NULL, &grant, NULL) != SYNCGUARD_OK ||
            syncguard_release(argument, grant.lock_id, NULL, NULL) != SYNCGUARD_OK)
            return NULL;
    }
    return argument;
}

static void many_threads_share_a_session(void **state)
{
    (void)state;
    pthread_t threads[16];
    syncguard_backend *store = open_url(test_url);
    for (int i = 0; i < 16; i++)
        pthread_create(&threads[i], NULL, hammer, store);
    for (int i = 0; i < 16; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        assert_non_null(result);
    }
    syncguard_close(store);
}

int main(int argc, char **argv)
{
    test_begin(argc, argv);
    dir = getenv("REDIS_TEST_DIR");
    const char *at = strchr(strchr(test_url, '@'), ':'); /* the port */
    snprintf(host, sizeof host, "%.*s", (int)strcspn(at + 1, "?/"), at + 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(authority_is_checked),
        cmocka_unit_test(name_is_checked),
        cmocka_unit_test(missing_certificate_and_plain_text_fail),
        cmocka_unit_test(many_threads_share_a_session),
    };
    return cmocka_run_group_tests_name("redis TLS", tests, NULL, NULL);
}
