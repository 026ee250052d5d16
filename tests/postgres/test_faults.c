/*
 * Servers that restart, end sessions, hang, refuse, or hand their role to another server; and the
 * error codes of all this.
 */
#include "support.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "backends/postgres/operations.h"

#define DATABASE "faults"

static pg_server *server;
static PGconn *plain;

static void pg_faults_expect_refusal(const char *url, syncguard_status status, const char *native)
{
    assert_status(status, first_use(url));
    assert_string_equal(err.native, native);
    assert_null(strstr(err.message, "SECRET"));
}

/* Several idle connections, so that more than one is stale afterwards. */
static void *hold_a_while(void *context)
{
    char key[40];
    snprintf(key, sizeof key, "wide-%lx", (unsigned long)pthread_self());
    syncguard_error own;
    syncguard_grant grant;
    for (int i = 0; i < 20; i++) {
        if (syncguard_acquire(context, key, 30000, NULL, &grant, &own) == SYNCGUARD_OK)
            (void)syncguard_release(context, grant.lock_id, NULL, &own);
    }
    return NULL;
}

static void pg_faults_pool_widen(syncguard_backend *backend)
{
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        threads[i] = test_start_thread(hold_a_while, backend);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

static void restart_is_not_noticed(void **state)
{
    static const int modes[] = {SIGINT, SIGQUIT, SIGKILL};
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, NULL));
    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        pg_faults_pool_widen(backend);
        syncguard_grant grant;
        assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "over", 60000, NULL, &grant, &err));
        PQfinish(plain);
        pg_server_down(server, modes[i]);
        pg_server_up(server);
        plain = pg_plain(server, DATABASE);
        /* A grant is on the disk; the first call afterwards works. */
        assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
        acquire_and_release(backend, "after");
        pg_faults_pool_widen(backend);
    }
    syncguard_close(backend);
}

static void server_that_is_down(void **state)
{
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, NULL));
    (void)state;
    acquire_and_release(backend, "before");
    PQfinish(plain);
    pg_server_down(server, SIGINT);
    int64_t began = test_now_ms();
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(backend, "down", 30000, NULL, &grant, &err));
    assert_true(test_now_ms() - began < 3000);
    pg_faults_expect_refusal(pg_url(server, DATABASE, NULL), SYNCGUARD_E_SERVICE_UNAVAILABLE, "");
    /* Opening needs no server. */
    syncguard_backend *late = test_open(pg_url(server, DATABASE, NULL));
    pg_server_up(server);
    plain = pg_plain(server, DATABASE);
    acquire_and_release(backend, "down");
    acquire_and_release(late, "down");
    syncguard_close(backend);
    syncguard_close(late);
}

static atomic_bool stop;

static void *pg_faults_terminate(void *context)
{
    PGconn *pg = pg_plain(server, DATABASE);
    (void)context;
    while (!atomic_load(&stop)) {
        pg_sql(pg, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE "
                   "application_name = 'syncguard'");
        test_sleep_ms(100);
    }
    PQfinish(pg);
    return NULL;
}

/* Sessions are ended all the time. One resend per operation is not always enough, and an unresolved
 * request takes a moment to be undone; but fences only rise, and an operation that fails reports
 * it. */
static void terminated_in_the_middle(void **state)
{
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, NULL));
    int64_t end = test_now_ms() + 3000;
    (void)state;
    atomic_store(&stop, false);
    pthread_t thread = test_start_thread(pg_faults_terminate, NULL);
    char last[SYNCGUARD_FENCE_SIZE] = "";
    int done = 0;
    int failed = 0;
    while (test_now_ms() < end) {
        syncguard_grant grant;
        syncguard_status status = syncguard_acquire(backend, "shot", 30000, NULL, &grant, &err);
        if (status == SYNCGUARD_OK) {
            assert_true(strcmp(grant.fence, last) > 0);
            memcpy(last, grant.fence, sizeof last);
            do
                status = syncguard_release(backend, grant.lock_id, NULL, &err);
            while (status == SYNCGUARD_E_SERVICE_UNAVAILABLE);
            assert_int_equal(status, SYNCGUARD_OK);
            done++;
        } else {
            assert_true(status == SYNCGUARD_E_SERVICE_UNAVAILABLE || status == SYNCGUARD_LOCKED);
            failed++;
            test_sleep_ms(1);
        }
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    print_message("    %d pairs, %d refusals\n", done, failed);
    assert_true(done > 5);
    acquire_and_release(backend, "after");
    syncguard_close(backend);
}

static atomic_int replaced_lines;

static void pg_faults_line_count(void *context, syncguard_log_level level, const char *message)
{
    (void)context, (void)level;
    if (strstr(message, "had to be replaced") != NULL)
        atomic_fetch_add(&replaced_lines, 1);
}

/* Sessions that the server has ended are replaced, counted and logged. First connections are not
 * counted. */
static void pg_reconnects_are_counted(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = pg_faults_line_count;
    atomic_store(&replaced_lines, 0);
    syncguard_backend *bare = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open(pg_url(server, DATABASE, "application_name=counted"),
                                               &options, &bare, &err));
    syncguard_backend *counted = NULL;
    assert_status(SYNCGUARD_OK, syncguard_telemetry_wrap(bare, NULL, &counted, &err));
    acquire_and_release(counted, "counted");
    assert_int_equal(test_reconnects_total(counted), 0);
    for (int i = 1; i <= 2; i++) {
        pg_sql(plain, "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE "
                      "application_name = 'counted'");
        acquire_and_release(counted, "counted");
        assert_int_equal(test_reconnects_total(counted), i);
        assert_int_equal(atomic_load(&replaced_lines), i);
    }
    syncguard_close(counted);
}

/* The server process of our session is stopped: it neither answers nor dies. */
static void hanging_server(void **state)
{
    syncguard_backend *backend =
        test_open(pg_url(server, DATABASE, "pool_max=1&application_name=hang"));
    syncguard_call call = test_call(300);
    syncguard_call longer = test_call(4000);
    (void)state;
    acquire_and_release(backend, "hang");
    pid_t pid = (pid_t)pg_number(plain, "SELECT pid FROM pg_stat_activity WHERE application_name = "
                                        "'hang'");
    assert_true(pid > 1);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    int64_t began = test_now_ms();
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_acquire(backend, "hang", 3000, &call, &grant, &err));
    assert_in_range(test_now_ms() - began, 280, 2500);
    bool locked;
    /* The next request gets a connection of its own. */
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "other", &longer, &locked, &err));
    /* The request in flight is carried out when the process wakes up, and then undone. */
    assert_int_equal(kill(pid, SIGCONT), 0);
    test_sleep_ms(1500);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "hang", NULL, &locked, &err));
    assert_false(locked);
    syncguard_close(backend);
}

/* A peer that accepts connections and never answers. */
static void silent_peer(void **state)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)state;
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    char url[128];
    snprintf(url, sizeof url, "postgres://u:pw-marker-SECRET@127.0.0.1:%d/x?timeout_ms=300",
             ntohs(address.sin_port));
    int64_t began = test_now_ms();
    pg_faults_expect_refusal(url, SYNCGUARD_E_NETWORK_TIMEOUT, "");
    assert_in_range(test_now_ms() - began, 250, 2500);
    close(fd);
}

/* ---- codes ---- */

static void set_hba(const char *lines)
{
    char path[160];
    snprintf(path, sizeof path, "%s/pg_hba.conf", server->data);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(lines, file);
    fclose(file);
    pg_sql(plain, "SELECT pg_reload_conf()");
    test_sleep_ms(200);
}

static void wrong_credentials_are_refused(void **state)
{
    (void)state;
    pg_sql(plain, "CREATE ROLE secretive LOGIN PASSWORD 'pw-marker-right'");
    pg_sql(plain, "GRANT ALL ON ALL TABLES IN SCHEMA public TO secretive");
    set_hba("host all secretive 127.0.0.1/32 scram-sha-256\nhost all barred 127.0.0.1/32 reject\n"
            "host all all 127.0.0.1/32 trust\nlocal all all trust\n");
    pg_faults_expect_refusal(pg_url_as(server, "secretive:pw-marker-SECRET", DATABASE, NULL),
                             SYNCGUARD_E_AUTH_FAILED, "28P01");
    pg_faults_expect_refusal(pg_url_as(server, "secretive", DATABASE, NULL),
                             SYNCGUARD_E_AUTH_FAILED, "");
    pg_faults_expect_refusal(pg_url_as(server, "barred", DATABASE, NULL), SYNCGUARD_E_AUTH_FAILED,
                             "28000");
    syncguard_close(test_open(pg_url_as(server, "secretive:pw-marker-right", DATABASE, NULL)));
}

static void wrong_places(void **state)
{
    (void)state;
    pg_faults_expect_refusal(pg_url(server, "nowhere", NULL), SYNCGUARD_E_INVALID_ARGUMENT,
                             "3D000");
    pg_faults_expect_refusal("postgres://u:pw-marker-SECRET@127.0.0.1:1/x",
                             SYNCGUARD_E_SERVICE_UNAVAILABLE, "");
    pg_faults_expect_refusal("postgres://u:pw-marker-SECRET@no-such-host.invalid/x",
                             SYNCGUARD_E_SERVICE_UNAVAILABLE, "");
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_open("postgres://u:pw-marker-SECRET@h:port/x", NULL, &backend, &err));
    assert_null(strstr(err.message, "SECRET"));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_open("postgres://u:pw-marker-SECRET@[::1/x", NULL, &backend, &err));
    assert_null(strstr(err.message, "SECRET"));
}

static void connection_limit(void **state)
{
    (void)state;
    pg_sql(plain, "CREATE ROLE few LOGIN CONNECTION LIMIT 1");
    pg_sql(plain, "GRANT ALL ON ALL TABLES IN SCHEMA public TO few");
    syncguard_backend *backend = open_used(pg_url_as(server, "few", DATABASE, NULL));
    pg_faults_expect_refusal(pg_url_as(server, "few", DATABASE, NULL), SYNCGUARD_E_RATE_LIMITED,
                             "53300");
    syncguard_close(backend);
}

static void *wait_in_server(void *context)
{
    syncguard_call call = test_call(20000);
    syncguard_grant grant;
    syncguard_error own;
    return (void *)(intptr_t)syncguard_acquire(context, "stuck", 30000, &call, &grant, &own);
}

static void *unlock_soon(void *context)
{
    test_sleep_ms(500);
    pg_sql(context, "SELECT pg_advisory_unlock(hashtext('stuck'))");
    return NULL;
}

/* Renewals do not wait in the queue, but the server has no connection beyond those of the pool. */
static void renewal_waits_where_connections_are_limited(void **state)
{
    PGconn *foreign = pg_plain(server, DATABASE);
    syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), 20000), NULL};
    int64_t end = test_now_ms() + 15000;
    (void)state;
    pg_sql(plain, "CREATE ROLE two LOGIN CONNECTION LIMIT 2");
    pg_sql(plain, "GRANT ALL ON ALL TABLES IN SCHEMA public TO two");
    syncguard_backend *backend =
        test_open(pg_url_as(server, "two", DATABASE, "pool_max=2&listen=0"));
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "kept", 60000, NULL, &grant, &err));
    pg_sql(foreign, "SELECT pg_advisory_lock(hashtext('stuck'))");
    pthread_t threads[3];
    for (int i = 0; i < 2; i++)
        threads[i] = test_start_thread(wait_in_server, backend);
    while (pg_number(plain, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT "
                            "granted") < 2) {
        assert_true(test_now_ms() < end);
        test_sleep_ms(10);
    }
    threads[2] = test_start_thread(unlock_soon, foreign);
    syncguard_extend_op item = {.ttl_ms = 60000};
    item.lock_id = grant.lock_id;
    assert_status(SYNCGUARD_OK, sg_pg_extend_many(backend, &item, 1, &limits, &err));
    assert_int_equal(item.status, SYNCGUARD_OK);
    pthread_join(threads[2], NULL);
    for (int i = 0; i < 2; i++) {
        void *status;
        pthread_join(threads[i], &status);
        assert_true((intptr_t)status == SYNCGUARD_OK || (intptr_t)status == SYNCGUARD_LOCKED);
    }
    syncguard_close(backend);
    PQfinish(foreign);
}

static void read_only(void **state)
{
    (void)state;
    pg_sql(plain, "CREATE ROLE reader LOGIN");
    pg_sql(plain, "GRANT ALL ON ALL TABLES IN SCHEMA public TO reader");
    pg_sql(plain, "ALTER ROLE reader SET default_transaction_read_only = on");
    syncguard_backend *backend = test_open(pg_url_as(server, "reader", DATABASE, NULL));
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(backend, "ro", 30000, NULL, &grant, &err));
    assert_string_equal(err.native, "25006");
    syncguard_close(backend);
}

static void *cancel_soon(void *context)
{
    (void)context;
    test_sleep_ms(200);
    pg_sql(plain, "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE "
                  "application_name = 'syncguard'");
    return NULL;
}

/* Codes that the server can be made to report: a trigger raises the code in the key. */
static void codes_not_texts(void **state)
{
    static const struct {
        const char *code;
        syncguard_status status;
    } cases[] = {
        {"40001", SYNCGUARD_E_SERVICE_UNAVAILABLE}, {"40P01", SYNCGUARD_E_SERVICE_UNAVAILABLE},
        {"53300", SYNCGUARD_E_RATE_LIMITED},        {"53100", SYNCGUARD_E_SERVICE_UNAVAILABLE},
        {"57P03", SYNCGUARD_E_SERVICE_UNAVAILABLE}, {"08006", SYNCGUARD_E_SERVICE_UNAVAILABLE},
        {"28000", SYNCGUARD_E_AUTH_FAILED},         {"42501", SYNCGUARD_E_AUTH_FAILED},
        {"42P01", SYNCGUARD_E_INVALID_ARGUMENT},    {"57014", SYNCGUARD_E_NETWORK_TIMEOUT},
        {"55P03", SYNCGUARD_E_NETWORK_TIMEOUT},     {"25006", SYNCGUARD_E_SERVICE_UNAVAILABLE},
        {"25P02", SYNCGUARD_E_SERVICE_UNAVAILABLE}, {"25P04", SYNCGUARD_E_SERVICE_UNAVAILABLE},
        {"0A000", SYNCGUARD_E_SERVICE_UNAVAILABLE}, {"26000", SYNCGUARD_E_SERVICE_UNAVAILABLE},
        {"42P05", SYNCGUARD_E_SERVICE_UNAVAILABLE}, {"XX000", SYNCGUARD_E_INTERNAL},
        {"22012", SYNCGUARD_E_SERVICE_UNAVAILABLE}, {"P0001", SYNCGUARD_E_INTERNAL},
    };
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, NULL));
    (void)state;
    pg_sql(plain,
           "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
           "IF new.key LIKE 'code:%%' THEN RAISE EXCEPTION 'timeout 28P01 %%', new.key USING "
           "ERRCODE = substr(new.key, 6, 5); END IF; "
           "IF new.key = 'sleepy' THEN PERFORM pg_sleep(2); END IF; RETURN new; END $$");
    pg_sql(plain, "CREATE TRIGGER fail BEFORE INSERT ON syncguard_locks FOR EACH ROW EXECUTE "
                  "FUNCTION fail()");
    syncguard_grant grant;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char key[64];
        snprintf(key, sizeof key, "code:%s PERMISSION DENIED", cases[i].code);
        assert_status(cases[i].status, syncguard_acquire(backend, key, 30000, NULL, &grant, &err));
        assert_string_equal(err.native, cases[i].code);
        assert_null(strstr(err.message, "PERMISSION"));
        /* A refused acquire changes nothing: no counter has advanced. */
        assert_int_equal(pg_number(plain, "SELECT count(*) FROM syncguard_fence_counters WHERE "
                                          "fence_key LIKE 'fence:code:%%'"),
                         0);
    }
    /* An administrator cancels the statement. */
    pthread_t thread = test_start_thread(cancel_soon, NULL);
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_acquire(backend, "sleepy", 30000, NULL, &grant, &err));
    assert_string_equal(err.native, "57014");
    pthread_join(thread, NULL);
    pg_sql(plain, "DROP FUNCTION fail() CASCADE");
    acquire_and_release(backend, "after");
    syncguard_close(backend);
}

/* ---- TLS ---- */

static void tls_is_verified_on_remote_hosts(void **state)
{
    pg_server *secure = pg_server_start("fsync=off");
    (void)state;
    char command[512];
    snprintf(command, sizeof command,
             "cd %s && openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem "
             "-days 2 -subj /CN=self -addext subjectAltName=IP:0.0.0.0 2>/dev/null && "
             "chown --reference=data key.pem cert.pem && chmod 600 key.pem",
             secure->folder);
    assert_int_equal(system(command), 0);
    pg_make_database(secure, DATABASE);
    pg_server_down(secure, SIGINT);
    snprintf(secure->settings, sizeof secure->settings,
             "fsync=off\nssl=on\nssl_cert_file=%s/cert.pem\nssl_key_file=%s/key.pem",
             secure->folder, secure->folder);
    pg_server_up(secure);
    char url[256];
    /* The address of all interfaces leads to this machine, and is not a loopback address. */
    snprintf(url, sizeof url, "postgres://postgres@0.0.0.0:%d/" DATABASE, secure->port);
    pg_faults_expect_refusal(url, SYNCGUARD_E_SERVICE_UNAVAILABLE, "");
    snprintf(url, sizeof url, "postgres://postgres@0.0.0.0:%d/" DATABASE "?sslmode=require",
             secure->port);
    syncguard_close(test_open(url));
    snprintf(url, sizeof url, "postgres://postgres@0.0.0.0:%d/" DATABASE "?sslrootcert=%s/cert.pem",
             secure->port, secure->folder);
    {
        syncguard_backend *backend = test_open(url);
        acquire_and_release(backend, "tls");
        pg_faults_pool_widen(backend);
        syncguard_close(backend);
    }
    syncguard_close(test_open(pg_url(secure, DATABASE, NULL)));
    pg_server_end(secure);
    /* A server without TLS on a remote host is refused as well. */
    snprintf(url, sizeof url, "postgres://postgres@0.0.0.0:%d/" DATABASE, server->port);
    pg_faults_expect_refusal(url, SYNCGUARD_E_SERVICE_UNAVAILABLE, "");
}

/* ---- failover ---- */

static void failover_is_followed(void **state)
{
    pg_server *primary = pg_server_start("fsync=off\nsynchronous_standby_names=*");
    PGconn *pg = pg_plain(primary, "postgres");
    (void)state;
    pg_sql(pg, "SET synchronous_commit = local");
    pg_sql(pg, "ALTER SYSTEM SET synchronous_standby_names = ''");
    pg_server *standby = pg_server_standby(primary);
    pg_sql(pg, "ALTER SYSTEM RESET synchronous_standby_names");
    PQfinish(pg);
    pg_make_database(primary, DATABASE);
    char url[256];
    snprintf(url, sizeof url, "postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/" DATABASE,
             standby->port, primary->port);
    syncguard_backend *backend = test_open(url);
    pg_faults_pool_widen(backend);
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "moved", 60000, NULL, &grant, &err));
    pg_server_down(primary, SIGKILL);
    pg = pg_plain(standby, "postgres");
    pg_sql(pg, "ALTER SYSTEM SET synchronous_standby_names = ''");
    PQfinish(pg);
    pg_server_promote(standby);
    snprintf(standby->settings, sizeof standby->settings, "fsync=off");
    pg_server_down(standby, SIGINT);
    pg_server_up(standby);
    int64_t end = test_now_ms() + 15000;
    while (syncguard_release(backend, grant.lock_id, NULL, &err) != SYNCGUARD_OK)
        assert_true(test_now_ms() < end);
    syncguard_grant next;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "moved", 60000, NULL, &next, &err));
    assert_true(strcmp(next.fence, grant.fence) > 0);
    syncguard_close(backend);
    pg_server_end(primary);
    pg_server_end(standby);
}

/* The server behind one address becomes read-only: connections are replaced. */
static void role_change_under_open_connections(void **state)
{
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, NULL));
    (void)state;
    acquire_and_release(backend, "role");
    /* Only sessions that exist already are read-only. */
    pg_sql(plain, "ALTER DATABASE " DATABASE " SET default_transaction_read_only = on");
    {
        syncguard_backend *stale = test_open(pg_url(server, DATABASE, NULL));
        PGconn *other = pg_plain(server, "postgres");
        pg_sql(other, "ALTER DATABASE " DATABASE " RESET default_transaction_read_only");
        PQfinish(other);
        acquire_and_release(stale, "role");
        syncguard_close(stale);
    }
    acquire_and_release(backend, "role");
    syncguard_close(backend);
}

int main(void)
{
    server = pg_server_start(NULL);
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restart_is_not_noticed),
        cmocka_unit_test(server_that_is_down),
        cmocka_unit_test(terminated_in_the_middle),
        cmocka_unit_test(pg_reconnects_are_counted),
        cmocka_unit_test(hanging_server),
        cmocka_unit_test(silent_peer),
        cmocka_unit_test(wrong_credentials_are_refused),
        cmocka_unit_test(wrong_places),
        cmocka_unit_test(connection_limit),
        cmocka_unit_test(renewal_waits_where_connections_are_limited),
        cmocka_unit_test(read_only),
        cmocka_unit_test(codes_not_texts),
        cmocka_unit_test(tls_is_verified_on_remote_hosts),
        cmocka_unit_test(failover_is_followed),
        cmocka_unit_test(role_change_under_open_connections),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    PQfinish(plain);
    pg_server_end(server);
    return failed;
}
