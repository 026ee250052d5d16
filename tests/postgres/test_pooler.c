/*
 * PgBouncer in transaction mode without the option pooler, and settings of the session that come
 * from elsewhere: the kind of session is detected, never assumed.
 */
#include "support.h"

#include "backends/postgres/sql.h"

#define DATABASE "pooled"

static pg_server *server;
static pg_server via; /* the same through PgBouncer, which has two sessions for all clients */
static PGconn *plain;

/* Makes the server wait for a foreign lock. The reply of the server itself shows that it was given
 * a time limit. */
static void expect_bound(const char *url)
{
    PGconn *foreign = pg_plain(server, DATABASE);
    syncguard_backend *backend = test_open(url);
    syncguard_grant grant;
    bool answered = false;
    pg_sql(foreign, "BEGIN");
    pg_sql(foreign, "SELECT pg_advisory_xact_lock(hashtext('bound'))");
    /* On a busy machine the reply may come after the deadline of the caller. */
    for (int i = 0; i < 5 && !answered; i++) {
        assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                      syncguard_acquire(backend, "bound", 30000, NULL, &grant, &err));
        /* The limits of lock and statement are nearly the same: either may be reached first. */
        answered = strcmp(err.native, "55P03") == 0 || strcmp(err.native, "57014") == 0;
    }
    assert_true(answered);
    pg_sql(foreign, "COMMIT");
    PQfinish(foreign);
    syncguard_close(backend);
}

static void bounds_hold_whatever_the_session_was_told(void **state)
{
    (void)state;
    assert_int_equal(setenv("PGOPTIONS", "-c statement_timeout=0 -c lock_timeout=0", 1), 0);
    expect_bound(pg_url(server, DATABASE, "timeout_ms=1500"));
    assert_int_equal(unsetenv("PGOPTIONS"), 0);
    expect_bound(pg_url(server, DATABASE,
                        "timeout_ms=1500&options=-c%20statement_timeout%3D0%20-c%20lock_timeout"
                        "%3D0"));
    expect_bound(pg_url(&via, DATABASE, "timeout_ms=1500"));
    expect_bound(pg_url(&via, DATABASE, "timeout_ms=1500&pooler=1"));
}

static void expect_pair(const char *url)
{
    syncguard_backend *backend = test_open(url);
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "level", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_extend(backend, grant.lock_id, 30000, NULL,
                                                 &grant.expires_at_ms, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
}

/* With a service file our settings are left out: such a session has the isolation level of the
 * database. */
static void level_holds_whatever_the_session_was_told(void **state)
{
    static const char serializable[] = "-c default_transaction_isolation=serializable";
    (void)state;
    pg_make_serializable(plain, DATABASE);
    assert_int_equal(setenv("PGOPTIONS", serializable, 1), 0);
    expect_pair(pg_url(server, DATABASE, NULL));
    assert_int_equal(unsetenv("PGOPTIONS"), 0);
    expect_pair(
        pg_url(server, DATABASE, "options=-c%20default_transaction_isolation%3Dserializable"));
    expect_pair(pg_url(&via, DATABASE, NULL));
    expect_pair(pg_url(&via, DATABASE, "pooler=1"));
    char path[300];
    snprintf(path, sizeof path, "%s/services", server->folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "[locks]\nhost=127.0.0.1\nport=%d\nuser=postgres\ndbname=%s\noptions=%s\n",
            server->port, DATABASE, serializable);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(setenv("PGSERVICEFILE", path, 1), 0);
    expect_pair("postgres:///?service=locks&sslmode=disable");
    assert_int_equal(unsetenv("PGSERVICEFILE"), 0);
}

static void handles_keep_their_tables(void **state)
{
    (void)state;
    const char *query = "lock_table=locks_b&fence_table=fences_b";
    assert_status(SYNCGUARD_OK,
                  syncguard_setup(pg_url(server, DATABASE, query), NULL, NULL, NULL, &err));
    syncguard_backend *a = test_open(pg_url(&via, DATABASE, NULL));
    syncguard_backend *b = test_open(pg_url(&via, DATABASE, query));
    PGconn *through[2];
    for (int i = 0; i < 2; i++) {
        through[i] = PQconnectdb(pg_url(&via, DATABASE, "sslmode=disable"));
        assert_int_equal(PQstatus(through[i]), CONNECTION_OK);
        pg_sql(through[i], "BEGIN");
    }
    /* Both sessions of the pooler exist now. */
    for (int i = 0; i < 2; i++)
        pg_sql(through[i], "COMMIT");
    syncguard_grant grant_a;
    syncguard_grant grant_b;
    /* Each handle uses its own session, and in the next round that of the other. */
    for (int i = 0; i < 20; i++) {
        assert_status(SYNCGUARD_OK, syncguard_acquire(a, "mine", 30000, NULL, &grant_a, &err));
        assert_status(SYNCGUARD_OK, syncguard_acquire(b, "mine", 30000, NULL, &grant_b, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(a, grant_a.lock_id, NULL, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(b, grant_b.lock_id, NULL, &err));
        pg_sql(through[0], "SELECT 1");
    }
    for (int i = 0; i < 2; i++)
        PQfinish(through[i]);
    assert_int_equal(pg_number(plain, "SELECT fence FROM syncguard_fence_counters WHERE fence_key "
                                      "= 'fence:mine'"),
                     20);
    assert_int_equal(pg_number(plain, "SELECT fence FROM fences_b WHERE fence_key = 'fence:mine'"),
                     20);
    syncguard_close(a);
    syncguard_close(b);
}

/* Two tables, or two versions of a text, never share a name. */
static void names_tell_texts_apart(void **state)
{
    (void)state;
    sg_pg_statements ours = {.locks.bare = ""};
    assert_status(SYNCGUARD_OK, sg_pg_table_read("locks", "x", &ours.locks, &err));
    sg_pg_statements other = {.locks.bare = ""};
    assert_status(SYNCGUARD_OK, sg_pg_table_read("other", "x", &other.locks, &err));
    assert_status(SYNCGUARD_OK, sg_pg_table_read("fences", "x", &ours.fences, &err));
    other.fences = ours.fences;
    assert_status(SYNCGUARD_OK, sg_pg_statements_write(&ours, &err));
    assert_status(SYNCGUARD_OK, sg_pg_statements_write(&other, &err));
    for (int i = 0; i < SG_PG_STATEMENTS; i++) {
        for (int k = 0; k < i; k++)
            assert_string_not_equal(ours.names[1][i], ours.names[1][k]);
    }
    assert_string_not_equal(ours.names[1][SG_PG_ACQUIRE], other.names[1][SG_PG_ACQUIRE]);
    assert_string_not_equal(ours.names[1][SG_PG_RELEASE], other.names[1][SG_PG_RELEASE]);
    sg_pg_statements_free(&ours);
    sg_pg_statements_free(&other);
}

/* A waiter leaves nothing behind in sessions that all clients share. */
static void listener_leaves_the_sessions_alone(void **state)
{
    syncguard_backend *holder = test_open(pg_url(&via, DATABASE, "listen=1"));
    syncguard_backend *other = test_open(pg_url(&via, DATABASE, "listen=1"));
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 20000;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "awaited", 500, NULL, &grant, &err));
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(other, "awaited", &options, &lock, &err));
    assert_int_equal(pg_number(plain, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"),
                     0);
    PGconn *both[2];
    for (int i = 0; i < 2; i++) {
        both[i] = PQconnectdb(pg_url(&via, DATABASE, "sslmode=disable"));
        assert_int_equal(PQstatus(both[i]), CONNECTION_OK);
        pg_sql(both[i], "BEGIN");
    }
    for (int i = 0; i < 2; i++) {
        assert_string_equal(pg_sql(both[i], "SHOW lock_timeout"), "0");
        assert_string_equal(pg_sql(both[i], "SHOW statement_timeout"), "0");
        assert_int_equal(pg_number(both[i], "SELECT count(*) FROM pg_listening_channels()"), 0);
        assert_int_equal(pg_number(both[i], "SELECT count(*) FROM pg_prepared_statements"), 0);
    }
    for (int i = 0; i < 2; i++)
        PQfinish(both[i]);
    syncguard_lock_dispose(lock);
    syncguard_close(holder);
    syncguard_close(other);
}

int main(void)
{
    server = pg_server_start("fsync=off");
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    via = *server;
    via.port = pg_bouncer(
        server, "ignore_startup_parameters=options\ndefault_pool_size=2\nserver_round_robin=1");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_hold_whatever_the_session_was_told),
        cmocka_unit_test(handles_keep_their_tables),
        cmocka_unit_test(names_tell_texts_apart),
        cmocka_unit_test(listener_leaves_the_sessions_alone),
        cmocka_unit_test(level_holds_whatever_the_session_was_told),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    PQfinish(plain);
    pg_server_end(server);
    return failed;
}
