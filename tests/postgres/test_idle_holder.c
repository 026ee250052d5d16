/*
 * The connection of a program that holds a lock and sends no requests ends. The server may be
 * another one, so the lock is renewed at once. Its TTL is so long that a third of it outlasts every
 * wait here.
 */
#include "support.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define DATABASE "idle"
#define TTL_MS 300000
#define LONGEST_WAIT_MS 60000

static pg_server *server;
static PGconn *plain;
static atomic_int losses;
static atomic_int last_reason;

static void pg_idle_on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)context, (void)lock;
    atomic_store(&last_reason, (int)reason);
    atomic_fetch_add(&losses, 1);
}

static syncguard_lock *pg_idle_hold(syncguard_backend *backend)
{
    atomic_store(&losses, 0);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = TTL_MS;
    options.auto_extend = true;
    options.on_lost = pg_idle_on_lost;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(backend, "idle", &options, &lock, &err));
    test_sleep_ms(10);
    return lock;
}

static void pg_idle_terminate(void)
{
    pg_sql(plain, "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE "
                  "application_name = 'syncguard'");
}

static void pg_broken_connection_renews(void **state)
{
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, NULL));
    syncguard_lock *lock = pg_idle_hold(backend);
    (void)state;
    for (int i = 0; i < 2; i++) {
        int64_t expiry = syncguard_lock_expires_at_ms(lock);
        int64_t end = test_now_ms() + LONGEST_WAIT_MS;
        pg_idle_terminate();
        while (syncguard_lock_expires_at_ms(lock) == expiry && test_now_ms() < end)
            test_sleep_ms(10);
        assert_true(syncguard_lock_expires_at_ms(lock) > expiry);
        assert_true(syncguard_lock_held(lock));
    }
    syncguard_lock_dispose(lock);
    syncguard_close(backend);
}

static void pg_holder_learns_of_lost_lock(void **state)
{
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, NULL));
    syncguard_lock *lock = pg_idle_hold(backend);
    int64_t end = test_now_ms() + LONGEST_WAIT_MS;
    (void)state;
    pg_sql(plain, "DELETE FROM syncguard_locks");
    pg_idle_terminate();
    while (atomic_load(&losses) == 0 && test_now_ms() < end)
        test_sleep_ms(10);
    assert_int_equal(atomic_load(&losses), 1);
    assert_int_equal(atomic_load(&last_reason), SYNCGUARD_LOST_ABSENT);
    syncguard_lock_dispose(lock);
    syncguard_close(backend);
}

static bool is_socket(int fd)
{
    int type = 0;
    socklen_t size = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

/* The program closes the socket of the library, and opens one that gets its number. Returns 0 if
 * the library neither writes to it nor closes it, and goes on with another connection. */
static int pg_idle_fd_reuse(void)
{
    bool before[64];
    for (int i = 0; i < 64; i++)
        before[i] = is_socket(i);
    syncguard_backend *backend = NULL;
    bool locked = true;
    if (syncguard_open(pg_url(server, DATABASE, NULL), NULL, &backend, NULL) != SYNCGUARD_OK ||
        syncguard_is_locked(backend, "a", NULL, &locked, NULL) != SYNCGUARD_OK)
        return 1;
    int fd = -1;
    for (int i = 0; i < 64; i++)
        fd = is_socket(i) && !before[i] ? i : fd;
    int pair[2];
    if (fd < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || dup2(pair[0], fd) != fd)
        return 2;
    if (syncguard_is_locked(backend, "a", NULL, &locked, NULL) != SYNCGUARD_OK)
        return 3;
    syncguard_close(backend);
    char byte = 'x';
    if (recv(pair[1], &byte, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN)
        return 4;
    return send(fd, &byte, 1, MSG_NOSIGNAL) == 1 ? 0 : 5;
}

/* In a child, because the memory that libpq has for that connection is leaked. */
static void pg_reused_fd_is_left_alone(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(pg_idle_fd_reuse());
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    server = pg_server_start("fsync=off");
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pg_broken_connection_renews),
        cmocka_unit_test(pg_holder_learns_of_lost_lock),
        cmocka_unit_test(pg_reused_fd_is_left_alone),
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    PQfinish(plain);
    pg_server_end(server);
    return failures;
}
