/*
 * Requests with an unknown outcome: the connection ends between the commit and its reply, a reply
 * cannot be used, a request is carried out long after its caller has given up. A proxy between the
 * library and the server does all that. Also a host with an address that never answers.
 */
#include "support.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include "syncguard/diagnostics.h"
#include "syncguard/sys/backend.h"

#define DATABASE "unresolved"

static pg_server *server;
static pg_server via; /* the same through the proxy */
static PGconn *plain;

/* ---- the proxy ---- */

typedef enum mode {
    PASS,
    END_AFTER_COMMIT, /* the server ends the session between the commit and its reply */
    NO_CODE,          /* the reply to one request is an error without a code */
    COPY_ONCE,        /* the reply to one request begins a COPY */
    COPY_ALWAYS,      /* the reply to every request does */
    NO_ROWS,          /* no result has a row */
    NO_COLUMNS,       /* the rows of all results are empty */
    SILENT            /* from the next request on, a connection gets no replies */
} mode;

static atomic_int proxy_mode;
static atomic_bool proxy_closed; /* new connections are closed */
static atomic_int proxy_cuts;    /* incremented to close all connections */
static atomic_int proxy_lines;   /* open connections */
static atomic_int copy_type;     /* of the message that begins a COPY: G, H or W */

typedef struct line {
    int client;
    int server;
    int cuts;
    bool swallow; /* drops the rest of the reply */
    bool silent;
    size_t have;
    unsigned char buffer[65536];
} line;

static bool pg_unresolved_bytes_send(int fd, const void *bytes, size_t count)
{
    return send(fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count;
}

static bool put_error(int fd, const char *fields, size_t count)
{
    unsigned char head[5] = {'E', 0, 0, 0, (unsigned char)(count + 4)};
    return pg_unresolved_bytes_send(fd, head, 5) && pg_unresolved_bytes_send(fd, fields, count);
}

/* Begins a COPY in text format, without columns. */
static bool put_copy(int fd)
{
    unsigned char message[8] = {(unsigned char)atomic_load(&copy_type), 0, 0, 0, 7};
    return pg_unresolved_bytes_send(fd, message, sizeof message);
}

/* A row or a row description without columns. */
static bool put_no_columns(int fd, unsigned char type)
{
    const unsigned char message[7] = {type, 0, 0, 0, 6};
    return pg_unresolved_bytes_send(fd, message, sizeof message);
}

/* Passes on, replaces or drops one message of the server. False: the connection is over. */
static bool pass_message(line *self, const unsigned char *message, size_t length)
{
    static const char fatal[] = "SFATAL\0VFATAL\0C57P01\0Mgone\0";
    static const char uncoded[] = "SERROR\0VERROR\0Mno memory\0";
    const char *tag = message[0] == 'C' ? (const char *)message + 5 : "";
    int now = atomic_load(&proxy_mode);
    if (now == SILENT && strcmp(tag, "BEGIN") == 0) {
        atomic_store(&proxy_mode, PASS);
        self->silent = true;
    }
    if (self->silent || (self->swallow && message[0] != 'Z'))
        return true;
    self->swallow = false;
    if (now == NO_CODE && strcmp(tag, "BEGIN") == 0) {
        atomic_store(&proxy_mode, PASS);
        self->swallow = true;
        return put_error(self->client, uncoded, sizeof uncoded);
    }
    if ((now == COPY_ONCE || now == COPY_ALWAYS) && strcmp(tag, "BEGIN") == 0) {
        if (now == COPY_ONCE)
            atomic_store(&proxy_mode, PASS);
        self->swallow = true;
        return put_copy(self->client);
    }
    if (now == END_AFTER_COMMIT && strcmp(tag, "COMMIT") == 0) {
        atomic_store(&proxy_mode, PASS);
        atomic_store(&proxy_closed, true);
        (void)put_error(self->client, fatal, sizeof fatal);
        return false;
    }
    if (now == NO_ROWS && message[0] == 'D')
        return true;
    if (now == NO_COLUMNS && (message[0] == 'T' || message[0] == 'D'))
        return put_no_columns(self->client, message[0]);
    return pg_unresolved_bytes_send(self->client, message, length);
}

static bool from_server(line *self)
{
    ssize_t got =
        recv(self->server, self->buffer + self->have, sizeof self->buffer - self->have, 0);
    if (got <= 0)
        return false;
    self->have += (size_t)got;
    size_t at = 0;
    while (self->have - at >= 5) {
        const unsigned char *m = self->buffer + at;
        size_t length = 1 + ((size_t)m[1] << 24 | (size_t)m[2] << 16 | (size_t)m[3] << 8 | m[4]);
        if (self->have - at < length)
            break;
        if (!pass_message(self, m, length))
            return false;
        at += length;
    }
    memmove(self->buffer, self->buffer + at, self->have - at);
    self->have -= at;
    return true;
}

static bool from_client(line *self)
{
    unsigned char bytes[8192];
    ssize_t got = recv(self->client, bytes, sizeof bytes, 0);
    return got > 0 && pg_unresolved_bytes_send(self->server, bytes, (size_t)got);
}

static void *serve_line(void *context)
{
    line *self = context;
    bool going = true;
    while (going && self->cuts == atomic_load(&proxy_cuts)) {
        struct pollfd fds[2] = {{self->client, POLLIN, 0}, {self->server, POLLIN, 0}};
        if (poll(fds, 2, 20) <= 0)
            continue;
        if (fds[0].revents != 0)
            going = from_client(self);
        if (going && fds[1].revents != 0)
            going = from_server(self);
    }
    close(self->client);
    close(self->server);
    free(self);
    atomic_fetch_sub(&proxy_lines, 1);
    return NULL;
}

static int server_port; /* a copy, because the proxy outlives the struct of the server */

static void *accept_lines(void *context)
{
    int listening = *(int *)context;
    for (;;) {
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                      .sin_port = htons((uint16_t)server_port)};
        int client = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        line *self = calloc(1, sizeof *self);
        if (client < 0 || self == NULL || atomic_load(&proxy_closed)) {
            close(client);
            free(self);
            continue;
        }
        self->client = client;
        self->cuts = atomic_load(&proxy_cuts);
        self->server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        pthread_t thread;
        if (connect(self->server, (struct sockaddr *)&address, sizeof address) != 0 ||
            pthread_create(&thread, NULL, serve_line, self) != 0)
            pg_die("the proxy cannot reach the server");
        atomic_fetch_add(&proxy_lines, 1);
        pthread_detach(thread);
    }
    return NULL;
}

static int start_proxy(void)
{
    static int listening;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    server_port = server->port;
    listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pthread_t thread;
    if (bind(listening, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listening, 64) != 0 ||
        getsockname(listening, (struct sockaddr *)&address, &length) != 0 ||
        pthread_create(&thread, NULL, accept_lines, &listening) != 0)
        pg_die("no proxy");
    pthread_detach(thread);
    return ntohs(address.sin_port);
}

/* ---- a name with two addresses ---- */

/* libpq calls this function too: the first address of two.test never answers, the second is that of
 * the server. */
__attribute__((visibility("default"))) int getaddrinfo(const char *host, const char *service,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **out)
{
    typedef int resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    bool two = host != NULL && strcmp(host, "two.test") == 0;
    resolver *real;
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    int status = real(two ? "127.0.0.2" : host, service, hints, out);
    if (!two || status != 0)
        return status;
    struct addrinfo *second = NULL;
    status = real("127.0.0.1", service, hints, &second);
    if (status == 0)
        (*out)->ai_next = second; /* freeaddrinfo frees both */
    return status;
}

/* Fills the queue of a listening port, so that it does not answer any more. */
static void pg_unresolved_port_fill(int port, int fds[4])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    assert_int_equal(inet_pton(AF_INET, "127.0.0.2", &address.sin_addr), 1);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fds[0], (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fds[0], 0), 0);
    for (int i = 1; i < 4; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(fds[i], (struct sockaddr *)&address, sizeof address);
    }
    test_sleep_ms(100);
}

/* ---- the tests ---- */

static void session_ended_after_the_commit(void **state)
{
    syncguard_backend *backend = test_open(pg_url(&via, DATABASE, NULL));
    (void)state;
    acquire_and_release(backend, "ended");
    atomic_store(&proxy_mode, END_AFTER_COMMIT);
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(backend, "ended", 60000, NULL, &grant, &err));
    assert_true(atomic_load(&proxy_closed));
    assert_int_equal(lock_rows(plain, "ended"), 1);
    atomic_store(&proxy_closed, false);
    expect_gone(plain, "ended");
    acquire_and_release(backend, "ended");
    syncguard_close(backend);
}

/* A missing result does not mean an empty one: the request is sent again, and the grant is
 * found. */
static void error_without_a_code(void **state)
{
    syncguard_backend *backend = test_open(pg_url(&via, DATABASE, NULL));
    (void)state;
    acquire_and_release(backend, "uncoded");
    atomic_store(&proxy_mode, NO_CODE);
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "uncoded", 60000, NULL, &grant, &err));
    assert_int_equal(atomic_load(&proxy_mode), PASS);
    assert_string_equal(grant.fence, "000000000000002");
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
}

static void *pg_unresolved_waiter_run(void *context)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 20000;
    options.retry_delay_ms = 20000;
    syncguard_lock *lock = NULL;
    syncguard_error own;
    if (syncguard_lock_acquire(context, "uncoded", &options, &lock, &own) != SYNCGUARD_OK)
        return NULL;
    return lock;
}

/* The same for a waiter that tries after a release. */
static void error_without_a_code_after_a_release(void **state)
{
    syncguard_backend *holder = test_open(pg_url(server, DATABASE, NULL));
    syncguard_backend *backend = test_open(pg_url(&via, DATABASE, NULL));
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "uncoded", 60000, NULL, &grant, &err));
    pthread_t thread = test_start_thread(pg_unresolved_waiter_run, backend);
    test_sleep_ms(500);
    atomic_store(&proxy_mode, NO_CODE);
    assert_status(SYNCGUARD_OK, syncguard_release(holder, grant.lock_id, NULL, &err));
    void *lock = NULL;
    pthread_join(thread, &lock);
    assert_int_equal(atomic_load(&proxy_mode), PASS);
    assert_non_null(lock);
    assert_int_equal(strtoll(syncguard_lock_fence(lock), NULL, 10),
                     strtoll(grant.fence, NULL, 10) + 1);
    assert_status(SYNCGUARD_OK, syncguard_lock_release(lock, NULL, &err));
    syncguard_lock_dispose(lock);
    syncguard_close(backend);
    syncguard_close(holder);
}

/* libpq reports a COPY again and again until the caller takes part in it. */
static void copy_ends_the_connection(void **state)
{
    static const char types[] = {'G', 'H', 'W'};
    syncguard_backend *backend = test_open(pg_url(&via, DATABASE, NULL));
    (void)state;
    acquire_and_release(backend, "copy");
    syncguard_grant grant;
    for (size_t i = 0; i < sizeof types; i++) {
        atomic_store(&copy_type, types[i]);
        atomic_store(&proxy_mode, COPY_ONCE);
        acquire_and_release(backend, "copy");
        assert_int_equal(atomic_load(&proxy_mode), PASS);
        atomic_store(&proxy_mode, COPY_ALWAYS);
        assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                      syncguard_acquire(backend, "copy", 60000, NULL, &grant, &err));
        atomic_store(&proxy_mode, PASS);
        expect_gone(plain, "copy");
    }
    syncguard_close(backend);
}

/* The same for an abandoned request: its connection is closed, and its acquire does not count as
 * over. */
static void copy_after_the_caller_left(void **state)
{
    syncguard_backend *backend = test_open(pg_url(&via, DATABASE, "application_name=copied"));
    syncguard_call call = test_call(300);
    (void)state;
    acquire_and_release(backend, "copied");
    pid_t pid = (pid_t)pg_number(plain, "SELECT pid FROM pg_stat_activity WHERE application_name = "
                                        "'copied'");
    assert_true(pid > 1);
    int lines = atomic_load(&proxy_lines);
    atomic_store(&copy_type, 'G');
    atomic_store(&proxy_mode, COPY_ONCE);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    syncguard_grant grant;
    syncguard_status status = syncguard_acquire(backend, "copied", 60000, &call, &grant, &err);
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT, status);
    for (int64_t end = test_now_ms() + 30000; atomic_load(&proxy_mode) != PASS; test_sleep_ms(5))
        assert_true(test_now_ms() < end);
    expect_gone(plain, "copied");
    syncguard_close(backend);
    for (int64_t end = test_now_ms() + 30000; atomic_load(&proxy_lines) >= lines; test_sleep_ms(5))
        assert_true(test_now_ms() < end);
}

/* The replies about the session and the tables are expected to have one row of several values. */
static void answers_without_values(void **state)
{
    static const mode modes[] = {NO_ROWS, NO_COLUMNS};
    (void)state;
    syncguard_grant grant;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        syncguard_backend *known = test_open(pg_url(&via, DATABASE, NULL));
        syncguard_backend *fresh = test_open(pg_url(&via, DATABASE, NULL));
        acquire_and_release(known, "values");
        atomic_store(&proxy_mode, modes[i]);
        assert_true(syncguard_examine(known, NULL, test_ignore_finding, NULL, &err) < SYNCGUARD_OK);
        assert_true(syncguard_acquire(fresh, "values", 60000, NULL, &grant, &err) < SYNCGUARD_OK);
        atomic_store(&proxy_mode, PASS);
        acquire_and_release(fresh, "values");
        syncguard_close(known);
        syncguard_close(fresh);
    }
}

/* The network breaks before the server reads the request: the server carries it out all the same,
 * later. */
static void carried_out_after_the_connection_broke(void **state)
{
    syncguard_backend *backend = test_open(pg_url(&via, DATABASE, "application_name=late"));
    syncguard_call call = test_call(300);
    (void)state;
    acquire_and_release(backend, "late");
    pid_t pid = (pid_t)pg_number(plain, "SELECT pid FROM pg_stat_activity WHERE application_name = "
                                        "'late'");
    assert_true(pid > 1);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    syncguard_grant grant;
    syncguard_status status = syncguard_acquire(backend, "late", 60000, &call, &grant, &err);
    atomic_fetch_add(&proxy_cuts, 1);
    test_sleep_ms(1500);
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT, status);
    test_sleep_ms(300);
    /* The acquire was carried out, because the counter has advanced, and undone. */
    assert_int_equal(pg_number(plain, "SELECT fence FROM syncguard_fence_counters WHERE fence_key "
                                      "= 'fence:late'"),
                     2);
    expect_gone(plain, "late");
    syncguard_close(backend);
}

/* After a release was sent twice, it is unknown which of the two found nothing, or a dead lock. */
static void release_that_was_sent_again(void **state)
{
    static const char *const meanwhile[] = {
        "DELETE FROM syncguard_locks WHERE key = 'again'",
        "UPDATE syncguard_locks SET expires_at_ms = 1 WHERE key = 'again'",
    };
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, "application_name=again"));
    (void)state;
    for (size_t i = 0; i < sizeof meanwhile / sizeof *meanwhile; i++) {
        for (int broken = 0; broken < 2; broken++) {
            syncguard_grant grant;
            assert_status(SYNCGUARD_OK,
                          syncguard_acquire(backend, "again", 30000, NULL, &grant, &err));
            pg_sql(plain, "%s", meanwhile[i]);
            if (broken != 0)
                pg_sql(plain, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE "
                              "application_name = 'again'");
            assert_status(broken != 0 ? SYNCGUARD_OK : SYNCGUARD_ABSENT,
                          syncguard_release(backend, grant.lock_id, NULL, &err));
        }
    }
    syncguard_close(backend);
}

static atomic_int told_of_all;
static atomic_int told_of_left;

void __real_syncguard_backend_notifications_lost(syncguard_backend *backend);
void __wrap_syncguard_backend_notifications_lost(syncguard_backend *backend);
void __real_syncguard_backend_key_changed(syncguard_backend *backend, const char *key,
                                          size_t length);
void __wrap_syncguard_backend_key_changed(syncguard_backend *backend, const char *key,
                                          size_t length);

void __wrap_syncguard_backend_notifications_lost(syncguard_backend *backend)
{
    atomic_fetch_add(&told_of_all, 1);
    __real_syncguard_backend_notifications_lost(backend);
}

void __wrap_syncguard_backend_key_changed(syncguard_backend *backend, const char *key,
                                          size_t length)
{
    if (strcmp(key, "left") == 0)
        atomic_fetch_add(&told_of_left, 1);
    __real_syncguard_backend_key_changed(backend, key, length);
}

/* Watches the key that the handle itself holds. */
static void watch_left(syncguard_backend *backend)
{
    syncguard_acquire_op op = {.key = "left",
                               .key_length = 4,
                               .lock_id = "0123456789012345678901",
                               .ttl_ms = 60000,
                               .owner = "",
                               .watch = true};
    while (op.armed_ms == 0) {
        op.limits.deadline_ns = syncguard_clock_after(syncguard_clock_ns(), 5000);
        assert_status(SYNCGUARD_LOCKED, backend->ops->acquire(backend, &op, &err));
    }
}

/* A release that is carried out after its caller has given up, and that gets no reply: the waiters
 * of the same handle are told of it, although it was a release of this handle. */
static void release_that_comes_late_is_reported(void **state)
{
    syncguard_backend *backend = test_open(pg_url(&via, DATABASE, "application_name=left"));
    syncguard_call call = test_call(300);
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "left", 60000, NULL, &grant, &err));
    watch_left(backend);
    pid_t pid =
        (pid_t)pg_number(plain, "SELECT pid FROM pg_stat_activity WHERE application_name = "
                                "'left' AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype "
                                "= 'advisory')");
    assert_true(pid > 1);
    atomic_store(&told_of_all, 0);
    atomic_store(&told_of_left, 0);
    atomic_store(&proxy_mode, SILENT);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    syncguard_status status = syncguard_release(backend, grant.lock_id, &call, &err);
    test_sleep_ms(300); /* the cancel request finds nothing to cancel */
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT, status);
    expect_gone(plain, "left");
    assert_int_equal(atomic_load(&told_of_all), 1);
    for (int64_t end = test_now_ms() + 10000; atomic_load(&told_of_left) == 0; test_sleep_ms(5))
        assert_true(test_now_ms() < end);
    backend->ops->unwatch(backend, "left", 4);
    atomic_fetch_add(&proxy_cuts, 1);
    syncguard_close(backend);
}

static void second_address_is_reached(void **state)
{
    (void)state;
    int fds[4];
    pg_unresolved_port_fill(server->port, fds);
    char url[160];
    snprintf(url, sizeof url,
             "postgres://postgres@two.test:%d/" DATABASE "?sslmode=disable&timeout_ms=3000",
             server->port);
    syncguard_backend *backend = test_open(url);
    acquire_and_release(backend, "second");
    syncguard_close(backend);
    for (int i = 0; i < 4; i++)
        close(fds[i]);
}

int main(void)
{
    server = pg_server_start("fsync=off");
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    via = *server;
    via.port = start_proxy();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(session_ended_after_the_commit),
        cmocka_unit_test(error_without_a_code),
        cmocka_unit_test(error_without_a_code_after_a_release),
        cmocka_unit_test(copy_ends_the_connection),
        cmocka_unit_test(copy_after_the_caller_left),
        cmocka_unit_test(answers_without_values),
        cmocka_unit_test(carried_out_after_the_connection_broke),
        cmocka_unit_test(release_that_was_sent_again),
        cmocka_unit_test(release_that_comes_late_is_reported),
        cmocka_unit_test(second_address_is_reached),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    PQfinish(plain);
    pg_server_end(server);
    return failed;
}
