/* Setup and check of the schema: repeated, at once from many threads, printed, with any names, with
 * the least privileges, on tables that others have created. */
#include "support.h"

#include "backends/postgres/sql.h"
#include "backends/postgres/target.h"

static pg_server *server;

static PGconn *fresh_database(const char *name)
{
    PGconn *pg = pg_plain(server, "postgres");
    pg_sql(pg, "CREATE DATABASE %s", name);
    PQfinish(pg);
    return pg_plain(server, name);
}

static void missing_schema_says_what_to_do(void **state)
{
    PGconn *pg = fresh_database("empty");
    (void)state;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, first_use(pg_url(server, "empty", NULL)));
    assert_string_equal(err.native, "42P01");
    assert_non_null(strstr(err.message, "setup"));
    PQfinish(pg);
}

static void setup_twice(void **state)
{
    const char *url = pg_url(server, "twice", NULL);
    PGconn *pg = fresh_database("twice");
    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_setup(url, NULL, NULL, NULL, &err));
    syncguard_backend *backend = test_open(url);
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_setup(url, NULL, NULL, NULL, &err));
    assert_int_equal(pg_number(pg, "SELECT count(*) FROM syncguard_locks"), 1);
    assert_int_equal(pg_number(pg, "SELECT fence FROM syncguard_fence_counters"), 1);
    syncguard_close(backend);
    PQfinish(pg);
}

/* Appends each line. */
static void pg_schema_line_append(void *context, syncguard_log_level level, const char *message)
{
    char *lines = context;
    assert_int_equal(level, SYNCGUARD_LOG_INFO);
    strncat(lines, message, 1023 - strlen(lines));
    strncat(lines, "\n", 1023 - strlen(lines));
}

static void setup_logs_what_it_changes(void **state)
{
    const char *url = pg_url(server, "logged", NULL);
    PGconn *pg = fresh_database("logged");
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = pg_schema_line_append;
    char lines[1024] = "";
    options.log_context = lines;
    assert_status(SYNCGUARD_OK, syncguard_setup(url, &options, NULL, NULL, &err));
    assert_string_equal(lines, "created the table \"syncguard_locks\"\n"
                               "created the table \"syncguard_fence_counters\"\n");
    lines[0] = '\0';
    assert_status(SYNCGUARD_OK, syncguard_setup(url, &options, NULL, NULL, &err));
    assert_string_equal(lines, "");
    pg_sql(pg, "ALTER TABLE syncguard_locks DROP COLUMN owner");
    pg_sql(pg, "DROP INDEX syncguard_locks_expires_at_ms_idx");
    assert_status(SYNCGUARD_OK, syncguard_setup(url, &options, NULL, NULL, &err));
    assert_string_equal(lines, "added the column owner to the table \"syncguard_locks\"\n"
                               "created an index on the expiry of the table \"syncguard_locks\"\n");
    PQfinish(pg);
}

#define CALLERS 12

static atomic_int changes;

static void count_change(void *context, syncguard_log_level level, const char *message)
{
    (void)context;
    (void)message;
    atomic_fetch_add(&changes, level == SYNCGUARD_LOG_INFO);
}

static void *pg_schema_set_up(void *context)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = count_change;
    syncguard_error own;
    return (void *)(intptr_t)syncguard_setup(context, &options, NULL, NULL, &own);
}

static void setup_by_many_at_once(void **state)
{
    PGconn *pg = fresh_database("many");
    (void)state;
    pthread_t threads[CALLERS];
    for (int round = 0; round < 5; round++) {
        const char *url = pg_url(server, "many", NULL);
        pg_sql(pg, "DROP TABLE IF EXISTS syncguard_locks, syncguard_fence_counters");
        for (int i = 0; i < CALLERS; i++)
            threads[i] = test_start_thread(pg_schema_set_up, (void *)url);
        for (int i = 0; i < CALLERS; i++) {
            void *result;
            pthread_join(threads[i], &result);
            assert_int_equal((int)(intptr_t)result, SYNCGUARD_OK);
        }
        assert_int_equal(atomic_exchange(&changes, 0), 2); /* by all callers together */
    }
    PQfinish(pg);
}

/* The server refuses in time, so no request needs to be cancelled; the session and its thread are
 * ended all the same. */
static void refused_setup_ends_its_session(void **state)
{
    PGconn *pg = fresh_database("refused");
    (void)state;
    pg_sql(pg, "SELECT pg_advisory_lock(" SG_PG_SETUP_LOCK ")");
    pg_sql(pg, "ALTER DATABASE refused SET lock_timeout = '200 ms'");
    /* A session behind a pooler does not get our own time limits, which could end at the same
     * moment. */
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_setup(pg_url(server, "refused", "pooler=1&application_name=refused"),
                                  NULL, NULL, NULL, &err));
    assert_string_equal(err.native, "55P03");
    int64_t end = test_now_ms() + 10000;
    while (pg_number(pg, "SELECT count(*) FROM pg_stat_activity WHERE application_name = "
                         "'refused'") > 0) {
        assert_true(test_now_ms() < end);
        test_sleep_ms(20);
    }
    PQfinish(pg);
}

static void run_line(void *context, const char *line)
{
    pg_sql(context, "%s", line);
}

static void printed_statements_do_it_alone(void **state)
{
    const char *url = pg_url(server, "printed", "lock_table=app.Locks&fence_table=app.fences");
    PGconn *pg = fresh_database("printed");
    (void)state;
    pg_sql(pg, "CREATE SCHEMA app");
    for (int i = 0; i < 2; i++)
        assert_status(SYNCGUARD_OK, syncguard_setup(url, NULL, run_line, pg, &err));
    syncguard_close(test_open(url));
    assert_int_equal(pg_number(pg, "SELECT count(*) FROM app.\"Locks\""), 0);
    PQfinish(pg);
}

static void pg_schema_line_count(void *context, const char *line)
{
    (void)line;
    ++*(int *)context;
}

static void printing_changes_nothing(void **state)
{
    const char *url = pg_url(server, "quiet", NULL);
    PGconn *pg = fresh_database("quiet");
    (void)state;
    int lines = 0;
    assert_status(SYNCGUARD_OK, syncguard_setup(url, NULL, pg_schema_line_count, &lines, &err));
    assert_true(lines > 3);
    assert_int_equal(pg_number(pg, "SELECT count(*) FROM pg_class WHERE relname LIKE 'sync%%'"), 0);
    /* This does not even need a server. */
    assert_status(SYNCGUARD_OK, syncguard_setup("postgres://127.0.0.1:1/x", NULL,
                                                pg_schema_line_count, &lines, &err));
    PQfinish(pg);
}

static void bad_names_are_refused(void **state)
{
    static const char *const bad[] = {
        "lock_table=",
        "lock_table=a.b.c",
        "lock_table=1a",
        "lock_table=a%22b",
        "lock_table=a%27b",
        "lock_table=a%20b",
        "lock_table=a;b",
        "lock_table=.a",
        "lock_table=a.",
        "lock_table=a-b",
        "fence_table=a%22--",
        "lock_table=x&fence_table=x",
        "fence_table=syncguard_locks",
        "lock_table=syncguard_fence_counters",
        "lock_table=a123456789012345678901234567890123456789012345678901234567890123",
    };
    (void)state;
    syncguard_backend *backend = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_open(pg_url(server, "twice", bad[i]), NULL, &backend, &err));
        assert_non_null(strstr(err.message, "table"));
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                      syncguard_setup(pg_url(server, "twice", bad[i]), NULL, NULL, NULL, &err));
    }
}

/* One table under two names: only the server can tell. */
static void same_table_by_two_names_is_refused(void **state)
{
    const char *url =
        pg_url(server, "twice", "lock_table=syncguard_locks&fence_table=public.syncguard_locks");
    (void)state;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, first_use(url));
    assert_non_null(strstr(err.message, "same table"));
}

/* Tables as the TypeScript library creates them: other names of indexes, no owner column. */
static void foreign_tables_serve(void **state)
{
    const char *url = pg_url(server, "foreign_made", NULL);
    PGconn *pg = fresh_database("foreign_made");
    (void)state;
    pg_sql(pg, "CREATE TABLE syncguard_locks (key text PRIMARY KEY, lock_id text NOT NULL, "
               "expires_at_ms bigint NOT NULL, acquired_at_ms bigint NOT NULL, fence text NOT "
               "NULL, user_key text NOT NULL, remark text DEFAULT 'x')");
    pg_sql(pg, "CREATE UNIQUE INDEX a ON syncguard_locks (lock_id)");
    pg_sql(pg, "CREATE INDEX b ON syncguard_locks (expires_at_ms)");
    pg_sql(pg, "CREATE TABLE syncguard_fence_counters (fence_key text PRIMARY KEY, fence bigint "
               "NOT NULL DEFAULT 0, key_debug text)");
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.owner = "me";
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open(url, &options, &backend, &err));
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    syncguard_lock_info_raw info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(backend, "k", NULL, &info, &err));
    assert_string_equal(info.owner, "");
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
    /* Setup adds the column and no second index. */
    assert_status(SYNCGUARD_OK, syncguard_setup(url, NULL, NULL, NULL, &err));
    assert_int_equal(pg_number(pg, "SELECT count(*) FROM pg_indexes WHERE tablename = "
                                   "'syncguard_locks'"),
                     3);
    assert_status(SYNCGUARD_OK, syncguard_open(url, &options, &backend, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(backend, "k", NULL, &info, &err));
    assert_string_equal(info.owner, "me");
    /* The TypeScript library takes the lock over and does not change the column. */
    pg_sql(pg, "UPDATE syncguard_locks SET lock_id = 'BBBBBBBBBBBBBBBBBBBBBB'");
    assert_status(SYNCGUARD_OK, syncguard_get_by_key_raw(backend, "k", NULL, &info, &err));
    assert_string_equal(info.owner, "");
    syncguard_close(backend);
    PQfinish(pg);
}

static void unfit_tables_are_refused(void **state)
{
    PGconn *pg = fresh_database("unfit");
    (void)state;
    pg_sql(pg, "CREATE TABLE syncguard_locks (key text, lock_id text)");
    pg_sql(pg, "CREATE TABLE syncguard_fence_counters (fence_key text PRIMARY KEY, fence bigint "
               "NOT NULL DEFAULT 0, key_debug text)");
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, first_use(pg_url(server, "unfit", NULL)));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_setup(pg_url(server, "unfit", NULL), NULL, NULL, NULL, &err));
    PQfinish(pg);
}

static void rows_are_enough_after_setup(void **state)
{
    PGconn *pg = fresh_database("least");
    (void)state;
    pg_sql(pg, "REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    pg_sql(pg, "CREATE ROLE least LOGIN");
    assert_status(
        SYNCGUARD_E_AUTH_FAILED,
        syncguard_setup(pg_url_as(server, "least", "least", NULL), NULL, NULL, NULL, &err));
    assert_string_equal(err.native, "42501");
    assert_status(SYNCGUARD_OK,
                  syncguard_setup(pg_url(server, "least", NULL), NULL, NULL, NULL, &err));
    syncguard_backend *backend = test_open(pg_url_as(server, "least", "least", NULL));
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_AUTH_FAILED,
                  syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    pg_sql(pg, "GRANT SELECT, INSERT, UPDATE, DELETE ON syncguard_locks, "
               "syncguard_fence_counters TO least");
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    /* Checking complete tables needs no privilege to create. */
    assert_status(SYNCGUARD_OK, syncguard_setup(pg_url_as(server, "least", "least", NULL), NULL,
                                                NULL, NULL, &err));
    syncguard_close(backend);
    PQfinish(pg);
}

#define SAME(member) assert_true(from_macro.member == from_function.member)

static void pg_initializers_agree(void **state)
{
    (void)state;
    syncguard_postgres_options from_function;
    memset(&from_function, 0x5a, sizeof from_function);
    syncguard_postgres_options_init(&from_function, sizeof from_function);
    const syncguard_postgres_options from_macro = SYNCGUARD_POSTGRES_OPTIONS_INIT;
    SAME(size);
    SAME(conninfo);
    SAME(lock_table);
    SAME(fence_table);
    SAME(pool_max);
    SAME(pooler);
    SAME(prepared);
    SAME(listen);
    from_function.pool_max = 0;
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_postgres_open(&from_function, NULL, &backend, &err));
    from_function.pool_max = 1;
    from_function.size = 4;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_postgres_open(&from_function, NULL, &backend, &err));
}

static void constructor_takes_keywords(void **state)
{
    (void)state;
    char conninfo[128];
    /* Through the socket in the server's folder. */
    snprintf(conninfo, sizeof conninfo, "host=%s port=%d user=postgres dbname=twice",
             server->folder, server->port);
    syncguard_postgres_options options = SYNCGUARD_POSTGRES_OPTIONS_INIT;
    options.conninfo = conninfo;
    options.pool_max = 1;
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_OK, syncguard_postgres_open(&options, NULL, &backend, &err));
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "typed", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
}

static void url_forms(void **state)
{
    (void)state;
    char url[256];
    snprintf(url, sizeof url, "postgresql:///twice?host=%s&port=%d&user=postgres&timeout_ms=4000",
             server->folder, server->port);
    syncguard_close(test_open(url));
    snprintf(url, sizeof url,
             "postgres://postgres@localhost:%d/twice?application_name=x&pool_max=2", server->port);
    syncguard_close(test_open(url));
    snprintf(url, sizeof url,
             "postgres://postgres:pw-marker-SECRET@127.0.0.1:%d/twice?no_such=SECRET",
             server->port);
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_open(url, NULL, &backend, &err));
    assert_non_null(strstr(err.message, "no_such"));
    assert_null(strstr(err.message, "SECRET"));
}

/* A service has precedence over the environment, and its options are not replaced. */
static void service_file_counts(void **state)
{
    PGconn *pg = fresh_database("served");
    (void)state;
    pg_sql(pg, "CREATE SCHEMA app");
    assert_status(SYNCGUARD_OK,
                  syncguard_setup(pg_url(server, "served",
                                         "lock_table=app.syncguard_locks&fence_table=app."
                                         "syncguard_fence_counters"),
                                  NULL, NULL, NULL, &err));
    char path[128];
    snprintf(path, sizeof path, "%s/services", server->folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "[locks]\nhost=127.0.0.1\nport=%d\nuser=postgres\ndbname=served\n"
            "options=-c search_path=app\n",
            server->port);
    fclose(file);
    setenv("PGSERVICEFILE", path, 1);
    setenv("PGHOST", "no-such-host.invalid", 1);
    setenv("PGPORT", "1", 1);
    setenv("PGOPTIONS", "-c search_path=nowhere", 1);
    syncguard_postgres_options options = SYNCGUARD_POSTGRES_OPTIONS_INIT;
    options.conninfo = "service=locks sslmode=disable";
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_OK, syncguard_postgres_open(&options, NULL, &backend, &err));
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
    /* Without an option for TLS the host counts as remote, and this server has no TLS. */
    options.conninfo = "service=locks";
    assert_status(SYNCGUARD_OK, syncguard_postgres_open(&options, NULL, &backend, &err));
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    syncguard_close(backend);
    unsetenv("PGSERVICEFILE");
    unsetenv("PGHOST");
    unsetenv("PGPORT");
    unsetenv("PGOPTIONS");
    PQfinish(pg);
}

static const char *sslmode_of(const char *conninfo)
{
    static char value[32];
    value[0] = '\0';
    sg_pg_target *target = NULL;
    assert_status(SYNCGUARD_OK, sg_pg_target_read(conninfo, 1000, &target, &err));
    for (size_t i = 0; target->keywords[i] != NULL; i++) {
        if (strcmp(target->keywords[i], "sslmode") == 0)
            snprintf(value, sizeof value, "%s", target->values[i]);
    }
    sg_pg_target_free(target);
    return value;
}

static void names_are_not_addresses(void **state)
{
    (void)state;
    assert_string_equal(sslmode_of("host=127.0.0.1"), "allow");
    assert_string_equal(sslmode_of("host=127.8.9.10"), "allow");
    assert_string_equal(sslmode_of("host=localhost"), "allow");
    assert_string_equal(sslmode_of("host=127.example.com"), "verify-full");
    assert_string_equal(sslmode_of("host=127.0.0.1.example.com"), "verify-full");
    assert_string_equal(sslmode_of("host=/tmp,127.evil"), "verify-full");
}

int main(void)
{
    server = pg_server_start("fsync=off");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_schema_says_what_to_do),
        cmocka_unit_test(setup_twice),
        cmocka_unit_test(setup_logs_what_it_changes),
        cmocka_unit_test(setup_by_many_at_once),
        cmocka_unit_test(refused_setup_ends_its_session),
        cmocka_unit_test(printed_statements_do_it_alone),
        cmocka_unit_test(printing_changes_nothing),
        cmocka_unit_test(bad_names_are_refused),
        cmocka_unit_test(same_table_by_two_names_is_refused),
        cmocka_unit_test(foreign_tables_serve),
        cmocka_unit_test(unfit_tables_are_refused),
        cmocka_unit_test(rows_are_enough_after_setup),
        cmocka_unit_test(pg_initializers_agree),
        cmocka_unit_test(constructor_takes_keywords),
        cmocka_unit_test(url_forms),
        cmocka_unit_test(service_file_counts),
        cmocka_unit_test(names_are_not_addresses),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    pg_server_end(server);
    return failed;
}
