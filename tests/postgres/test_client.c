/*
 * The client's side: options that are refused, and what the error says; descriptors that run out or
 * change their meaning after a fork; what libpq would print.
 */
#include "support.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "backends/postgres/target.h"

#define DATABASE "client"

static pg_server *server;
static PGconn *plain;

/* The wrong option, and the name that the error contains. It contains none of the values. */
static const char *const refused[][2] = {
    {"sslmode=SECRET", "sslmode"},
    {"sslmode=Require", "sslmode"},
    {"target_session_attrs=SECRET", "target_session_attrs"},
    {"channel_binding=SECRET", "channel_binding"},
    {"gssencmode=SECRET", "gssencmode"},
    {"connect_timeout=SECRET", "connect_timeout"},
    {"keepalives_idle=SECRET", "keepalives_idle"},
    {"host=SECRET", "host"},
    {"port=5432", "port"},
    {"user=SECRET", "user"},
    {"dbname=SECRET", "dbname"},
    {"ssl=true&sslmode=disable", "ssl"},
    {"pooler=1&listen=1", "listen"},
    {"pooler=1&prepared=1", "prepared"},
};

static void refused_options_are_named(void **state)
{
    (void)state;
    syncguard_backend *backend = NULL;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_status(
            SYNCGUARD_E_INVALID_ARGUMENT,
            syncguard_open(pg_url(server, DATABASE, refused[i][0]), NULL, &backend, &err));
        assert_non_null(strstr(err.message, refused[i][1]));
        assert_null(strstr(err.message, "SECRET"));
        assert_null(strstr(err.message, "Require"));
    }
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_open("postgres://h/d?port=0", NULL, &backend, &err));
    assert_non_null(strstr(err.message, "port"));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_open("postgres://h:65536/d", NULL, &backend, &err));
    assert_non_null(strstr(err.message, "port"));
}

static void missing_service_has_a_reason(void **state)
{
    (void)state;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, first_use("postgres:///?service=SECRET"));
    assert_non_null(strstr(err.message, "service"));
    assert_null(strstr(err.message, "SECRET"));
}

static bool has_roots(const char *conninfo)
{
    sg_pg_target *target = NULL;
    assert_status(SYNCGUARD_OK, sg_pg_target_read(conninfo, 1000, &target, &err));
    bool found = false;
    for (int i = 0; target->keywords[i] != NULL; i++)
        found = found || strcmp(target->keywords[i], "sslrootcert") == 0;
    sg_pg_target_free(target);
    return found;
}

static void system_roots_are_used_where_all_is_verified(void **state)
{
    (void)state;
    setenv("HOME", "/nonexistent", 1);
    unsetenv("PGSSLROOTCERT");
    bool wanted = has_roots("host=db.example");
    if (access("/etc/ssl/certs/ca-certificates.crt", R_OK) == 0)
        assert_true(wanted);
    assert_int_equal(has_roots("host=db.example sslmode=verify-full"), wanted);
    assert_false(has_roots("host=db.example sslmode=verify-ca"));
    assert_false(has_roots("host=db.example sslmode=require"));
}

/* However few descriptors are left, the status is the right one. */
static void no_descriptor_is_rate_limited(void **state)
{
    (void)state;
    int limited = 0;
    for (int spare = 0; spare < 8; spare++) {
        syncguard_backend *backend = test_open(pg_url(server, DATABASE, "listen=0"));
        int next = dup(0);
        close(next);
        struct rlimit before;
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
        struct rlimit none = before;
        none.rlim_cur = (rlim_t)(next + spare);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        bool locked = false;
        syncguard_status status = syncguard_is_locked(backend, "few", NULL, &locked, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        if (status != SYNCGUARD_OK)
            assert_status(SYNCGUARD_E_RATE_LIMITED, status);
        limited += status != SYNCGUARD_OK;
        assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "few", NULL, &locked, &err));
        syncguard_close(backend);
    }
    assert_true(limited > 0);
}

/* libpq prints a warning on stderr about a password file that others may read. */
static void nothing_is_printed(void **state)
{
    char file[] = "/tmp/syncguard-pass.XXXXXX";
    char printed[] = "/tmp/syncguard-printed.XXXXXX";
    int fd = mkstemp(file);
    int out = mkstemp(printed);
    int kept = dup(STDERR_FILENO);
    (void)state;
    assert_true(fd >= 0 && out >= 0 && kept >= 0);
    assert_int_equal(fchmod(fd, 0644), 0);
    setenv("PGPASSFILE", file, 1);
    fflush(stderr);
    dup2(out, STDERR_FILENO);
    syncguard_status status = first_use(pg_url(server, DATABASE, NULL));
    dup2(kept, STDERR_FILENO);
    unsetenv("PGPASSFILE");
    assert_status(SYNCGUARD_OK, status);
    struct stat size;
    assert_int_equal(fstat(out, &size), 0);
    assert_int_equal(size.st_size, 0);
    close(fd);
    close(out);
    close(kept);
    unlink(file);
    unlink(printed);
}

#define FILES 24

static int daemon_of(syncguard_backend *backend, const char *lock_id)
{
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    struct stat before[FILES];
    char path[64];
    for (int i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "/tmp/syncguard-daemon.%d.%d", (int)getpid(), i);
        if (open(path, O_RDWR | O_CREAT, 0600) != 3 + i || fstat(3 + i, &before[i]) != 0)
            return 2;
        unlink(path);
    }
    syncguard_grant grant;
    if (lock_id != NULL &&
        syncguard_acquire(backend, "child", 30000, NULL, &grant, &err) != SYNCGUARD_OK)
        return 3;
    if (lock_id != NULL && syncguard_release(backend, lock_id, NULL, &err) != SYNCGUARD_OK)
        return 4;
    syncguard_close(backend);
    struct stat after;
    for (int i = 0; i < FILES; i++) {
        if (fstat(3 + i, &after) != 0 || after.st_ino != before[i].st_ino ||
            after.st_dev != before[i].st_dev)
            return 10 + i;
    }
    return 0;
}

/* A daemon closes all descriptors and opens its own, which get the same numbers. */
static void daemon_keeps_its_files(void **state)
{
    (void)state;
    for (int used = 0; used < 2; used++) {
        syncguard_backend *backend = open_used(pg_url(server, DATABASE, NULL));
        syncguard_grant grant;
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(backend, "parent", 30000, NULL, &grant, &err));
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0)
            _exit(daemon_of(backend, used != 0 ? grant.lock_id : NULL));
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        /* The parent's connection is unchanged. */
        assert_status(used != 0 ? SYNCGUARD_ABSENT : SYNCGUARD_OK,
                      syncguard_release(backend, grant.lock_id, NULL, &err));
        pg_sql(plain, "DELETE FROM syncguard_locks");
        syncguard_close(backend);
    }
}

int main(void)
{
    server = pg_server_start("fsync=off");
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_options_are_named),
        cmocka_unit_test(missing_service_has_a_reason),
        cmocka_unit_test(no_descriptor_is_rate_limited),
        cmocka_unit_test(nothing_is_printed),
        cmocka_unit_test(daemon_keeps_its_files),
        cmocka_unit_test(system_roots_are_used_where_all_is_verified),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    PQfinish(plain);
    pg_server_end(server);
    return failed;
}
