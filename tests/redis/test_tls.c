/*
 * TLS: the server is verified, by authority and by name, unless that is turned off; servers that
 * require a certificate of the client get one.
 */
#include "support.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char host[64];
static const char *dir;

static syncguard_status try_url(const char *format, ...)
{
    char url[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(url, sizeof url, format, arguments);
    va_end(arguments);
    syncguard_backend *backend = NULL;
    syncguard_status status = syncguard_open(url, NULL, &backend, &err);
    syncguard_grant grant;
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
    assert_status(SYNCGUARD_E_AUTH_FAILED,
                  try_url("rediss://locker:pw-marker-s3cret@localhost:%s?" CLIENT, host, dir, dir));
    assert_status(SYNCGUARD_OK,
                  try_url("rediss://locker:pw-marker-s3cret@localhost:%s?tls_insecure=1&" CLIENT,
                          host, dir, dir));
    assert_status(SYNCGUARD_OK,
                  try_url("rediss://locker:pw-marker-s3cret@localhost:%s?tls_ca=%s/ca.pem&" CLIENT,
                          host, dir, dir, dir));
}

static void name_is_checked(void **state)
{
    (void)state;
    assert_status(SYNCGUARD_OK,
                  try_url("rediss://locker:pw-marker-s3cret@127.0.0.1:%s?tls_ca=%s/ca.pem&" CLIENT,
                          host, dir, dir, dir));
    assert_status(SYNCGUARD_E_AUTH_FAILED,
                  try_url("rediss://locker:pw-marker-s3cret@localhost:%s?tls_ca=%s/ca.pem&" CLIENT
                          "&tls_server_name=other.example",
                          host, dir, dir, dir));
    assert_status(SYNCGUARD_OK,
                  try_url("rediss://locker:pw-marker-s3cret@127.0.0.1:%s?tls_ca=%s/ca.pem&" CLIENT
                          "&tls_server_name=localhost",
                          host, dir, dir, dir));
}

static void missing_certificate_and_plain_text_fail(void **state)
{
    (void)state;
    assert_status(
        SYNCGUARD_E_SERVICE_UNAVAILABLE,
        try_url("rediss://locker:pw-marker-s3cret@localhost:%s?tls_ca=%s/ca.pem", host, dir));
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  try_url("redis://locker:pw-marker-s3cret@localhost:%s", host));
}

/* The effective user opens the files, so its rights count. */
static void another_real_user_changes_nothing(void **state)
{
    (void)state;
    char path[1024];
    if (geteuid() != 0 || setresuid(65534, 0, 0) != 0)
        return;
    snprintf(path, sizeof path, "%s/ca.pem", dir);
    assert_int_equal(chmod(path, 0600), 0);
    syncguard_status status =
        try_url("rediss://locker:pw-marker-s3cret@localhost:%s?tls_ca=%s/ca.pem&" CLIENT, host, dir,
                dir, dir);
    assert_int_equal(setresuid(0, 0, 0), 0);
    assert_status(SYNCGUARD_OK, status);
}

static void *redis_tls_hammer(void *argument)
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
    syncguard_backend *backend = test_open(redis_url);
    for (int i = 0; i < 16; i++)
        threads[i] = test_start_thread(redis_tls_hammer, backend);
    for (int i = 0; i < 16; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        assert_non_null(result);
    }
    syncguard_close(backend);
}

static const char *url_via(const proxy *p)
{
    static char url[1024];
    snprintf(url, sizeof url,
             "rediss://locker:pw-marker-s3cret@localhost:%d?connections=1&tls_ca=%s/ca.pem&" CLIENT,
             p->port, dir, dir, dir);
    return url;
}

/* Connecting takes two round trips of 40 ms, an operation one: with 70 ms the first calls fail, but
 * the connection that they began is finished. */
static void short_deadlines_connect_in_the_end(void **state)
{
    (void)state;
    proxy p;
    syncguard_call brief = test_call(70);
    proxy_start(&p, (int)strtol(host, NULL, 10));
    atomic_store(&p.delay_ms, 20);
    syncguard_backend *backend = test_open(url_via(&p));
    bool locked;
    int good = 0;
    for (int i = 0; i < 100; i++)
        good += syncguard_is_locked(backend, "short", &brief, &locked, &err) == SYNCGUARD_OK;
    print_message("%d of 100\n", good);
    assert_true(good > 50);
    syncguard_close(backend);
    proxy_stop(&p);
}

#define FLOOD_MS 10000

/* Answers each greeting with messages that OpenSSL reads and ignores, as fast as it can. */
static void *redis_tls_flood(void *argument)
{
    int listener = *(const int *)argument;
    static unsigned char hello_requests[9 * 20000];
    unsigned char greeting[4096];
    for (size_t i = 0; i < sizeof hello_requests; i += 9) /* a record with one message */
        memcpy(hello_requests + i, "\x16\3\3\0\4", 5);
    int64_t end = test_now_ms() + FLOOD_MS;
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0)
            return NULL;
        if (recv(client, greeting, sizeof greeting, 0) > 0) {
            while (test_now_ms() < end &&
                   send(client, hello_requests, sizeof hello_requests, MSG_NOSIGNAL) > 0)
                continue;
        }
        close(client);
    }
}

/* A handshake without end does not outlast the deadline, and close does not wait for it. */
static void flood_of_messages_ends_at_the_deadline(void **state)
{
    (void)state;
    syncguard_call brief = test_call(500);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 16), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    pthread_t thread = test_start_thread(redis_tls_flood, &listener);
    char url[128];
    snprintf(url, sizeof url, "rediss://127.0.0.1:%d?tls_insecure=1", ntohs(address.sin_port));
    syncguard_backend *backend = test_open(url);
    int64_t start = test_now_ms();
    bool locked;
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_is_locked(backend, "flooded", &brief, &locked, &err));
    syncguard_close(backend);
    assert_true(test_now_ms() - start < FLOOD_MS / 2);
    shutdown(listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listener);
}

#ifndef __SANITIZE_THREAD__ /* which does not get along with exit beside running threads */
static void *keep_connecting(void *argument)
{
    bool locked;
    syncguard_call brief = test_call(20);
    for (;;) {
        syncguard_backend *backend = NULL;
        if (syncguard_open(argument, NULL, &backend, NULL) == SYNCGUARD_OK &&
            syncguard_is_locked(backend, "exit", &brief, &locked, NULL) != SYNCGUARD_OK)
            locked = false;
        syncguard_close(backend);
    }
    return NULL;
}

/* exit() while some threads are in the middle of handshakes, and others of sessions. */
static void exit_is_safe_at_any_moment(void **state)
{
    (void)state;
    enum { CHILDREN = 100, THREADS = 8 };
    proxy p;
    proxy_start(&p, (int)strtol(host, NULL, 10));
    (void)url_via(&p);
    fflush(NULL);
    for (int i = 0; i < CHILDREN; i++) {
        int status = -1;
        pid_t pid = fork();
        if (pid == 0) {
            pthread_t threads[THREADS];
            char *url = strdup(i % 2 == 0 ? redis_url : url_via(&p));
            alarm(20);
            for (int k = 0; k < THREADS; k++)
                pthread_create(&threads[k], NULL, keep_connecting, url);
            test_sleep_ms(20 + i % 50);
            exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (!WIFEXITED(status))
            fail_msg("child %d died of signal %d", i, WTERMSIG(status));
    }
    proxy_stop(&p);
}
#endif

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    dir = getenv("REDIS_TEST_DIR");
    const char *at = strchr(strchr(redis_url, '@'), ':'); /* the port */
    snprintf(host, sizeof host, "%.*s", (int)strcspn(at + 1, "?/"), at + 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(authority_is_checked),
        cmocka_unit_test(name_is_checked),
        cmocka_unit_test(missing_certificate_and_plain_text_fail),
        cmocka_unit_test(another_real_user_changes_nothing),
        cmocka_unit_test(many_threads_share_a_session),
        cmocka_unit_test(short_deadlines_connect_in_the_end),
        cmocka_unit_test(flood_of_messages_ends_at_the_deadline),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(exit_is_safe_at_any_moment),
#endif
    };
    return cmocka_run_group_tests_name("redis TLS", tests, NULL, NULL);
}
