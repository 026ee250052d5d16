/*
 * Deadline and abort in every phase of a request: resolving, connecting, TLS, waiting for the
 * answer, reading it, waiting for a connection, and between reading and writing. Also the effects
 * of connections on the program: forks, programs that it starts, other threads.
 */
#include "support.h"

#include "backends/firestore/backend.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Replaces the one of libc: a name server that does not answer. */
static atomic_int slow_lookups;
/* "turning.invalid" is this machine for this many lookups, and is slow afterwards. */
static atomic_int lookups_left;

/* One block, as libc's freeaddrinfo wants it. */
static struct addrinfo *limits_loopback_address(in_port_t port)
{
    struct addrinfo *info = calloc(1, sizeof *info + sizeof(struct sockaddr_in));
    struct sockaddr_in *address = (struct sockaddr_in *)(info + 1);
    address->sin_family = AF_INET;
    address->sin_port = htons(port);
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    info->ai_family = AF_INET;
    info->ai_socktype = SOCK_STREAM;
    info->ai_protocol = IPPROTO_TCP;
    info->ai_addrlen = sizeof *address;
    info->ai_addr = (struct sockaddr *)address;
    return info;
}

__attribute__((visibility("default"))) int getaddrinfo(const char *restrict node,
                                                       const char *restrict service,
                                                       const struct addrinfo *restrict hints,
                                                       struct addrinfo **restrict res)
{
    (void)hints;
    if (node != NULL && strcmp(node, "turning.invalid") == 0 && atomic_load(&lookups_left) > 0) {
        atomic_fetch_sub(&lookups_left, 1);
        *res = limits_loopback_address((in_port_t)strtol(service, NULL, 10));
        return 0;
    }
    if (node != NULL && strstr(node, ".invalid") != NULL) {
        atomic_fetch_add(&slow_lookups, 1);
        test_sleep_ms(3000);
    }
    return EAI_NONAME;
}

static syncguard_backend *open_at(const char *host)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = 1;
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    own.project = "test";
    own.emulator_host = host;
    own.emulator_any_host = true;
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_OK, syncguard_firestore_open(&own, &options, &backend, &err));
    return backend;
}

/* Each operation ends at once after an abort, and in time at its deadline. */
static void ends_in_time(syncguard_backend *backend)
{
    syncguard_call call = SYNCGUARD_CALL_INIT;
    syncguard_grant grant;
    bool locked;
    for (int i = 0; i < 3; i++) {
        later l;
        later_start(&l, 60);
        call.abort_object = l.abort_object;
        call.timeout_ms = 5000;
        syncguard_status status;
        if (i == 0)
            status = syncguard_is_locked(backend, "k", &call, &locked, &err);
        else if (i == 1)
            status = syncguard_acquire(backend, "k", 30000, &call, &grant, &err);
        else
            status = syncguard_release(backend, "AAAAAAAAAAAAAAAAAAAAAA", &call, &err);
        double late = later_end(&l);
        assert_status(SYNCGUARD_E_ABORTED, status);
        print_message("    aborted after %.2f ms\n", late);
        assert_true(late < 100);
    }
    call.abort_object = NULL;
    call.timeout_ms = 200;
    int64_t before = test_now_ms();
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_is_locked(backend, "k", &call, &locked, &err));
    assert_in_range(test_now_ms() - before, 190, 2000);
}

static void while_waiting_for_the_answer(void **state)
{
    syncguard_backend *mine = open_at(server.host);
    (void)state;
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"hang\",\"times\":-1},"
                               "{\"on\":\"runQuery\",\"do\":\"hang\",\"times\":-1}]");
    ends_in_time(mine);
    syncguard_close(mine);
}

static void while_reading_the_answer(void **state)
{
    syncguard_backend *mine = open_at(server.host);
    (void)state;
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"slow\",\"ms\":20,\"times\":-1},"
                               "{\"on\":\"runQuery\",\"do\":\"slow\",\"ms\":20,\"times\":-1}]");
    ends_in_time(mine);
    syncguard_close(mine);
}

static int listen_somewhere(int backlog, char *host, size_t size)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    snprintf(host, size, "127.0.0.1:%d", ntohs(address.sin_port));
    return fd;
}

static void while_connecting(void **state)
{
    char host[32];
    int listener = listen_somewhere(0, host, sizeof host);
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    (void)state;
    /* A full backlog: further connections hang in their handshake. */
    getsockname(listener, (struct sockaddr *)&address, &length);
    int fillers[4];
    for (size_t i = 0; i < 4; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)connect(fillers[i], (struct sockaddr *)&address, sizeof address);
    }
    test_sleep_ms(50);
    syncguard_backend *mine = open_at(host);
    ends_in_time(mine);
    syncguard_close(mine);
    for (size_t i = 0; i < 4; i++)
        close(fillers[i]);
    close(listener);
}

static syncguard_status fixed_token(void *context, int64_t timeout_ms,
                                    syncguard_abort *abort_object, char *buffer, size_t size,
                                    int64_t *lifetime_ms, syncguard_error *error)
{
    (void)context;
    (void)timeout_ms;
    (void)abort_object;
    (void)error;
    snprintf(buffer, size, "fixed-token");
    *lifetime_ms = 3600000;
    return SYNCGUARD_OK;
}

static syncguard_backend *open_https(const char *host)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = 1;
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "https://%s", host);
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    own.project = "test";
    own.endpoint = endpoint;
    own.token = fixed_token;
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_OK, syncguard_firestore_open(&own, &options, &backend, &err));
    return backend;
}

static void while_shaking_hands_for_tls(void **state)
{
    char host[32];
    int listener = listen_somewhere(16, host, sizeof host);
    syncguard_backend *mine = open_https(host);
    (void)state;
    ends_in_time(mine);
    syncguard_close(mine);
    close(listener);
}

#define FLOOD_MS 30000

/* Answers each greeting with messages that OpenSSL reads and ignores, as fast as it can. */
static void *firestore_tls_flood(void *context)
{
    static unsigned char hello_requests[9 * 20000];
    static const struct timeval patience = {1, 0};        /* towards a peer that is gone */
    for (size_t i = 0; i < sizeof hello_requests; i += 9) /* a record with one message */
        memcpy(hello_requests + i, "\x16\3\3\0\4\0\0\0", 9);
    unsigned char greeting[4096];
    int client;
    while ((client = accept(*(const int *)context, NULL, NULL)) >= 0) {
        int64_t end = test_now_ms() + FLOOD_MS;
        (void)setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        if (recv(client, greeting, sizeof greeting, 0) > 0) {
            while (test_now_ms() < end &&
                   send(client, hello_requests, sizeof hello_requests, MSG_NOSIGNAL) > 0)
                continue;
        }
        close(client);
    }
    return NULL;
}

/* Messages that have arrived are still read, which takes a moment. */
static void while_tls_is_flooded(void **state)
{
    char host[32];
    int listener = listen_somewhere(16, host, sizeof host);
    syncguard_backend *mine = open_https(host);
    int64_t before = test_now_ms();
    (void)state;
    syncguard_call call = test_call(500);
    pthread_t thread = test_start_thread(firestore_tls_flood, &listener);
    bool locked;
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_is_locked(mine, "k", &call, &locked, &err));
    syncguard_close(mine);
    assert_true(test_now_ms() - before < FLOOD_MS / 2);
    shutdown(listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listener);
}

static void while_resolving(void **state)
{
    syncguard_backend *mine = open_https("slow.invalid");
    (void)state;
    ends_in_time(mine);
    assert_true(atomic_load(&slow_lookups) >= 4);
    syncguard_close(mine);
}

static int threads_of_this_process(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    char line[128];
    int threads = 0;
    while (fgets(line, sizeof line, file) != NULL)
        (void)sscanf(line, "Threads: %d", &threads);
    fclose(file);
    return threads;
}

/* Callers that give up leave threads behind, but only a limited number. */
static void while_nobody_resolves(void **state)
{
    syncguard_backend *mine = open_at("slow.invalid:1");
    int64_t before = test_now_ms();
    (void)state;
    syncguard_call call = test_call(10);
    int refused = 0;
    bool locked;
    for (int i = 0; i < SG_FIRESTORE_MAX_ABANDONED + 20; i++) {
        syncguard_status status = syncguard_is_locked(mine, "k", &call, &locked, &err);
        assert_true(status == SYNCGUARD_E_NETWORK_TIMEOUT ||
                    status == SYNCGUARD_E_SERVICE_UNAVAILABLE);
        refused += status == SYNCGUARD_E_SERVICE_UNAVAILABLE;
    }
    /* The lookups take three seconds each, on a machine that is not too busy for this. */
    if (test_now_ms() - before < 2500)
        assert_true(refused > 0);
    assert_true(threads_of_this_process() <= 2 * SG_FIRESTORE_MAX_ABANDONED + 10);
    before = test_now_ms();
    while (atomic_load(((sg_firestore_backend *)mine)->pool.holders) > 1 &&
           test_now_ms() - before < 20000)
        test_sleep_ms(20);
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_is_locked(mine, "k", &call, &locked, &err));
    syncguard_close(mine);
}

/* The connection breaks, and libcurl sends the request again by itself, to a name that it must
 * resolve anew. */
static void while_resolving_to_send_again(void **state)
{
    int slow = atomic_load(&slow_lookups);
    (void)state;
    char host[48];
    snprintf(host, sizeof host, "turning.invalid:%d", server.port);
    atomic_store(&lookups_left, 1);
    syncguard_backend *mine = open_at(host);
    bool locked;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
    /* As if the minute for which libcurl caches the name had passed. */
    curl_easy_setopt(SYNCGUARD_LINKED(((sg_firestore_backend *)mine)->pool.handles.first,
                                      sg_firestore_handle, link)
                         ->easy,
                     CURLOPT_DNS_CACHE_TIMEOUT, 0L);
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"reset_before\",\"times\":-1}]");
    syncguard_call call = test_call(300);
    int64_t before = test_now_ms();
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_is_locked(mine, "k", &call, &locked, &err));
    assert_in_range(test_now_ms() - before, 290, 2000);
    assert_int_equal(atomic_load(&slow_lookups), slow + 1);
    syncguard_close(mine);
}

static void *hold_connection(void *context)
{
    syncguard_call call = test_call(1500);
    syncguard_error mine;
    bool locked;
    return syncguard_is_locked(context, "k", &call, &locked, &mine) == SYNCGUARD_OK ? context
                                                                                    : NULL;
}

static void while_all_connections_are_taken(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = 1;
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    own.project = "test";
    own.emulator_host = server.host;
    own.max_connections = 1;
    syncguard_backend *mine = NULL;
    assert_status(SYNCGUARD_OK, syncguard_firestore_open(&own, &options, &mine, &err));
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"hang\",\"times\":-1}]");
    pthread_t thread = test_start_thread(hold_connection, mine);
    test_sleep_ms(100);
    ends_in_time(mine);
    pthread_join(thread, NULL);
    syncguard_close(mine);
}

static void between_reading_and_writing(void **state)
{
    syncguard_backend *mine = open_at(server.host);
    (void)state;
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"delay\",\"ms\":200}]");
    later l;
    later_start(&l, 60);
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = l.abort_object;
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_ABORTED, syncguard_acquire(mine, "k", 30000, &call, &grant, &err));
    later_end(&l);
    test_sleep_ms(300);
    assert_int_equal(fake_server_calls(&server, "commit"), 0);
    syncguard_close(mine);
}

static void nobody_is_there(void **state)
{
    char host[32];
    int listener = listen_somewhere(1, host, sizeof host);
    int64_t before = test_now_ms();
    (void)state;
    close(listener);
    syncguard_backend *mine = open_at(host);
    bool locked;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_is_locked(mine, "k", NULL, &locked, &err));
    assert_string_equal(err.native, "CURLE_7");
    assert_true(test_now_ms() - before < 1000);
    syncguard_close(mine);
}

static void a_slow_read_delays_the_expiry(void **state)
{
    syncguard_backend *mine = open_at(server.host);
    int64_t before = test_wall_ms();
    (void)state;
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"delay\",\"ms\":1000}]");
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    assert_true(grant.expires_at_ms >= before + 31000);
    syncguard_close(mine);
}

/* A program that the caller starts inherits none of our descriptors. */
static void started_programs_inherit_nothing(void **state)
{
    syncguard_backend *mine = open_at(server.host);
    (void)state;
    bool locked;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
    int kept = 0;
    for (int fd = 3; fd < 256; fd++) {
        int flags = fcntl(fd, F_GETFD);
        struct sockaddr_storage address;
        socklen_t length = sizeof address;
        if (flags >= 0 && (flags & FD_CLOEXEC) == 0 &&
            getsockname(fd, (struct sockaddr *)&address, &length) == 0)
            kept++;
    }
    assert_int_equal(kept, 0);
    syncguard_close(mine);
}

/* So few descriptors are left that a connection, a resolver or libcurl itself lacks one. */
static void firestore_without_descriptors(void **state)
{
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit few;
    int taken[64];
    int refused = 0;
    for (int left = 0; left < 6; left++) {
        /* By address, and by a name that has to be resolved. */
        syncguard_backend *by_address = open_at(server.host);
        syncguard_backend *by_name = open_at("other.example:80");
        few = before;
        few.rlim_cur = 64;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        size_t count = 0;
        while (count < 64 && (taken[count] = open("/dev/null", O_RDONLY)) >= 0)
            count++;
        for (int i = 0; i < left; i++)
            close(taken[--count]);
        syncguard_status status[2];
        syncguard_error why[2];
        bool locked;
        status[0] = syncguard_is_locked(by_address, "k", NULL, &locked, &why[0]);
        status[1] = syncguard_is_locked(by_name, "k", NULL, &locked, &why[1]);
        while (count > 0)
            close(taken[--count]);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        syncguard_close(by_address);
        syncguard_close(by_name);
        print_message("    %d left: %s, %s\n", left, syncguard_status_name(status[0]),
                      syncguard_status_name(status[1]));
        if (status[0] != SYNCGUARD_OK) {
            test_check_status(status[0], SYNCGUARD_E_RATE_LIMITED, "", &why[0], __FILE__, __LINE__);
            refused++;
        }
        /* The name cannot be resolved in any case. */
        if (left == 0)
            assert_int_equal(status[1], SYNCGUARD_E_RATE_LIMITED);
        else
            assert_true(status[1] == SYNCGUARD_E_RATE_LIMITED ||
                        status[1] == SYNCGUARD_E_SERVICE_UNAVAILABLE);
    }
    assert_true(refused > 0);
}

/* Replaces all sockets with files of the program; returns their number. */
static size_t replace_sockets(int files[16])
{
    size_t count = 0;
    for (int fd = 3; fd < 64 && count < 16; fd++) {
        struct sockaddr_storage address;
        socklen_t length = sizeof address;
        char name[] = "/tmp/syncguard-feet-XXXXXX";
        if (getsockname(fd, (struct sockaddr *)&address, &length) != 0)
            continue;
        int file = mkstemp(name);
        if (file < 0 || unlink(name) != 0 || write(file, "mine", 4) != 4 || dup2(file, fd) != fd)
            return 0;
        close(file);
        files[count++] = fd;
    }
    return count;
}

static int lose_sockets(void)
{
    syncguard_backend *mine = open_at(server.host);
    bool locked;
    if (syncguard_is_locked(mine, "k", NULL, &locked, &err) != SYNCGUARD_OK)
        return 1;
    int files[16];
    size_t count = replace_sockets(files);
    if (count == 0)
        return 2;
    if (syncguard_is_locked(mine, "k", NULL, &locked, &err) != SYNCGUARD_OK)
        return 3;
    syncguard_close(mine);
    struct stat about;
    char text[8];
    for (size_t i = 0; i < count; i++) {
        if (fstat(files[i], &about) != 0 || !S_ISREG(about.st_mode) ||
            pread(files[i], text, sizeof text, 0) != 4)
            return 4;
    }
    return 0;
}

/* A program closes every descriptor and opens others while it uses the library. The memory that
 * libcurl keeps for them is lost, so this happens in a process that is not checked for leaks. */
static void closed_under_our_feet(void **state)
{
    pid_t pid = fork();
    (void)state;
    if (pid == 0)
        _exit(lose_sockets());
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* A child uses connections of its own, and those of the parent continue to work. */
static void child_makes_its_own_connections(void **state)
{
    syncguard_backend *mine = open_at(server.host);
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    pid_t pid = fork();
    if (pid == 0) {
        bool locked = false;
        syncguard_error inner;
        bool good = syncguard_is_locked(mine, "k", NULL, &locked, &inner) == SYNCGUARD_OK && locked;
        syncguard_close(mine);
        _exit(good ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
    json_t *log = fake_server_control(&server, "GET", "log", NULL);
    assert_int_equal(json_array_size(log), 4);
    assert_int_not_equal(json_integer_value(json_object_get(json_array_get(log, 0), "connection")),
                         json_integer_value(json_object_get(json_array_get(log, 2), "connection")));
    assert_int_equal(json_integer_value(json_object_get(json_array_get(log, 0), "connection")),
                     json_integer_value(json_object_get(json_array_get(log, 3), "connection")));
    json_decref(log);
    syncguard_close(mine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(while_waiting_for_the_answer, reset_server),
        cmocka_unit_test_setup(while_reading_the_answer, reset_server),
        cmocka_unit_test_setup(while_connecting, reset_server),
        cmocka_unit_test_setup(while_shaking_hands_for_tls, reset_server),
        cmocka_unit_test_setup(while_tls_is_flooded, reset_server),
        cmocka_unit_test_setup(while_resolving, reset_server),
        cmocka_unit_test_setup(while_nobody_resolves, reset_server),
        cmocka_unit_test_setup(while_resolving_to_send_again, reset_server),
        cmocka_unit_test_setup(while_all_connections_are_taken, reset_server),
        cmocka_unit_test_setup(between_reading_and_writing, reset_server),
        cmocka_unit_test_setup(nobody_is_there, reset_server),
        cmocka_unit_test_setup(a_slow_read_delays_the_expiry, reset_server),
        cmocka_unit_test_setup(started_programs_inherit_nothing, reset_server),
        cmocka_unit_test_setup(firestore_without_descriptors, reset_server),
        cmocka_unit_test_setup(closed_under_our_feet, reset_server),
        cmocka_unit_test_setup(child_makes_its_own_connections, reset_server),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
