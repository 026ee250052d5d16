/*
 * Runs our statements one by one, in the middle of statements of other sessions: at moments that no
 * client can time, because its statements are sent together.
 */
#include "support.h"

#include "backends/postgres/errors.h"
#include "backends/postgres/sql.h"

#define DATABASE "statements"
#define ID "AAAAAAAAAAAAAAAAAAAAAA"
#define OTHER_ID "NNNNNNNNNNNNNNNNNNNNNN"

static pg_server *server;
static PGconn *plain;
static PGconn *ours;
static PGconn *foreign;

static sg_pg_statements statements;

static const char *text_of(sg_pg_statement statement)
{
    return statements.sql[1][statement];
}

static void write_statements(void)
{
    assert_status(SYNCGUARD_OK, sg_pg_table_read("syncguard_locks", "x", &statements.locks, &err));
    assert_status(SYNCGUARD_OK,
                  sg_pg_table_read("syncguard_fence_counters", "x", &statements.fences, &err));
    assert_status(SYNCGUARD_OK, sg_pg_statements_write(&statements, &err));
}

static void send_ours(sg_pg_statement statement, int count, const char *const *values)
{
    const char *sql = text_of(statement);
    assert_int_equal(PQsendQueryParams(ours, sql, count, NULL, values, NULL, NULL, 0), 1);
}

/* Returns the result of the statement that was sent. The caller must clear it. */
static PGresult *statements_answer_read(void)
{
    PGresult *result = PQgetResult(ours);
    assert_int_equal(PQresultStatus(result), PGRES_TUPLES_OK);
    assert_null(PQgetResult(ours));
    return result;
}

static PGresult *ask_ours(sg_pg_statement statement, int count, const char *const *values)
{
    send_ours(statement, count, values);
    return statements_answer_read();
}

/* Waits until the statement that was sent waits for a lock. */
static void await_wait(void)
{
    for (int i = 0; i < 500; i++) {
        if (pg_number(plain,
                      "SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND "
                      "wait_event_type = 'Lock'",
                      PQbackendPID(ours)) == 1)
            return;
        test_sleep_ms(10);
    }
    fail_msg("it does not wait");
}

/* Stores a lock that expires so many ms from now. */
static void statements_lock_plant(const char *key, int left_ms)
{
    pg_sql(plain, "DELETE FROM syncguard_locks");
    pg_sql(plain,
           "INSERT INTO syncguard_locks (key, lock_id, expires_at_ms, acquired_at_ms, fence, "
           "user_key) SELECT '%s', '" ID "', now + %d, now - 30000, '000000000000001', '%s' FROM "
           "(SELECT floor(extract(epoch from clock_timestamp()) * 1000)::bigint AS now) t",
           key, left_ms, key);
}

/* Acquire, extend and release take the advisory lock before the row: no deadlocks. */
static void advisory_lock_comes_before_the_row(void **state)
{
    const char *extend = text_of(SG_PG_LOCK_ID);
    const char *release = text_of(SG_PG_RELEASE);
    (void)state;
    pg_sql(plain, "PREPARE e AS %s", extend);
    PGresult *result = PQexec(plain, "EXPLAIN (VERBOSE, COSTS OFF) EXECUTE e ('x')");
    assert_true(PQntuples(result) > 2);
    assert_non_null(strstr(PQgetvalue(result, 0, 0), "LockRows"));
    /* The line of the scan below LockRows, with what it computes. */
    assert_non_null(strstr(PQgetvalue(result, 3, 0), "pg_advisory_xact_lock"));
    PQclear(result);
    /* A release takes the advisory lock while it scans, and only for its own row. */
    pg_sql(plain, "PREPARE r AS %s", release);
    result = PQexec(plain, "EXPLAIN (VERBOSE, COSTS OFF) EXECUTE r ('x', 1000, true)");
    assert_true(PQntuples(result) > 2);
    const char *filter = PQgetvalue(result, PQntuples(result) - 1, 0);
    assert_non_null(strstr(filter, "Filter: "));
    assert_non_null(strstr(filter, "pg_advisory_xact_lock"));
    if (strstr(PQgetvalue(result, PQntuples(result) - 2, 0), "Index Cond: ") == NULL) {
        assert_non_null(strstr(filter, "lock_id = "));
        assert_true(strstr(filter, "lock_id = ") < strstr(filter, "pg_advisory_xact_lock"));
    }
    PQclear(result);
}

/* What another session does while a release waits for it, and what the release then returns. */
static const struct {
    const char *sql;
    const char *live; /* NULL: there is no lock of ours to delete */
    int left;         /* rows afterwards */
} meanwhile[] = {
    {"SELECT 1", "f", 0},
    {"UPDATE syncguard_locks SET expires_at_ms = expires_at_ms + 30000", "t", 0},
    {"UPDATE syncguard_locks SET lock_id = '" OTHER_ID "', expires_at_ms = expires_at_ms + 30000",
     NULL, 1},
    {"DELETE FROM syncguard_locks", NULL, 0},
};

/*
 * The lock is live when the release arrives, and past its end when the release gets the row or the
 * advisory lock. The row and the time at that moment count.
 */
static void release_is_evaluated_after_the_wait(void **state)
{
    static const char *const holds[] = {
        "SELECT 1 FROM syncguard_locks FOR UPDATE",
        "SELECT pg_advisory_xact_lock(hashtext('late'))",
    };
    (void)state;
    for (size_t i = 0; i < sizeof meanwhile / sizeof *meanwhile * 2; i++) {
        statements_lock_plant("late", -500);
        pg_sql(foreign, "BEGIN");
        pg_sql(foreign, "%s", holds[i % 2]);
        pg_sql(ours, "BEGIN");
        send_ours(SG_PG_RELEASE, 3, (const char *const[]){ID, "1000", "t"});
        await_wait();
        test_sleep_ms(600);
        pg_sql(foreign, "%s", meanwhile[i / 2].sql);
        pg_sql(foreign, "COMMIT");
        PGresult *result = statements_answer_read();
        assert_int_equal(PQntuples(result), meanwhile[i / 2].live != NULL ? 1 : 0);
        if (meanwhile[i / 2].live != NULL) {
            assert_string_equal(PQgetvalue(result, 0, 0), "late");
            assert_string_equal(PQgetvalue(result, 0, 1), meanwhile[i / 2].live);
        }
        PQclear(result);
        pg_sql(ours, "COMMIT");
        assert_int_equal(pg_number(plain, "SELECT count(*) FROM syncguard_locks"),
                         meanwhile[i / 2].left);
    }
}

/* Only a release that deleted a lock need not wait for the disk, and only in its own
 * transaction. */
static void release_leaves_no_setting_behind(void **state)
{
    (void)state;
    statements_lock_plant("soon", 30000);
    pg_sql(ours, "BEGIN");
    PQclear(ask_ours(SG_PG_RELEASE, 3, (const char *const[]){ID, "1000", "t"}));
    assert_string_equal(pg_sql(ours, "SHOW synchronous_commit"), "off");
    pg_sql(ours, "COMMIT");
    assert_string_equal(pg_sql(ours, "SHOW synchronous_commit"), "on");
}

static void statements_acquire_send(void)
{
    const char *const values[] = {"wanted", OTHER_ID,       "30000",           "1000",
                                  "wanted", "fence:wanted", "900000000000000", NULL};
    send_ours(SG_PG_ACQUIRE, 8, values);
}

static int64_t statements_counter_read(void)
{
    return pg_number(plain, "SELECT coalesce(max(fence), 0) FROM syncguard_fence_counters WHERE "
                            "fence_key = 'fence:wanted'");
}

/*
 * The TypeScript library's extend locks only the row. A lock that was not past its expiry when its
 * row was read may be dead when SG_PG_ACQUIRE runs, and a concurrent extend may commit then. In
 * that case nothing may have changed, not even the counter.
 */
static void takeover_spares_a_lock_that_was_extended_meanwhile(void **state)
{
    int64_t before = statements_counter_read();
    (void)state;
    statements_lock_plant("wanted", 300);
    pg_sql(ours, "BEGIN");
    PQclear(ask_ours(SG_PG_LOCK_KEY, 1, (const char *const[]){"wanted"}));
    PGresult *result = ask_ours(SG_PG_CURRENT_ROW, 2, (const char *const[]){"wanted", OTHER_ID});
    assert_int_equal(PQntuples(result), 1);
    PQclear(result);
    pg_sql(foreign, "BEGIN");
    assert_int_equal(pg_number(foreign,
                               "WITH x AS (UPDATE syncguard_locks SET expires_at_ms = "
                               "expires_at_ms + 30000 WHERE lock_id = '" ID "' AND expires_at_ms > "
                               "floor(extract(epoch from clock_timestamp()) * 1000) - 1000 "
                               "RETURNING 1) SELECT count(*) FROM x"),
                     1);
    test_sleep_ms(1500);
    statements_acquire_send();
    await_wait();
    pg_sql(foreign, "COMMIT");
    result = PQgetResult(ours);
    assert_string_equal(PQresultErrorField(result, PG_DIAG_SQLSTATE), SG_PG_OVERTAKEN);
    PQclear(result);
    assert_null(PQgetResult(ours));
    pg_sql(ours, "ROLLBACK");
    assert_int_equal(
        pg_number(plain, "SELECT count(*) FROM syncguard_locks WHERE lock_id = '" ID "'"), 1);
    assert_int_equal(statements_counter_read(), before);
}

/* A dead row that is deleted or unlocked while an acquire waits for it: the grant is like any
 * other. */
static void takeover_of_a_dead_row_that_was_held(void **state)
{
    static const char *const acts[] = {"DELETE FROM syncguard_locks",
                                       "SELECT 1 FROM syncguard_locks FOR UPDATE"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        statements_lock_plant("wanted", -5000);
        int64_t before = statements_counter_read();
        pg_sql(foreign, "BEGIN");
        pg_sql(foreign, "%s", acts[i]);
        pg_sql(ours, "BEGIN");
        statements_acquire_send();
        await_wait();
        pg_sql(foreign, "COMMIT");
        PGresult *result = statements_answer_read();
        assert_int_equal(PQntuples(result), 1);
        assert_int_equal(strtoll(PQgetvalue(result, 0, 0), NULL, 10), before + 1);
        PQclear(result);
        pg_sql(ours, "COMMIT");
        assert_int_equal(pg_number(plain, "SELECT count(*) FROM syncguard_locks WHERE lock_id = "
                                          "'" OTHER_ID "' AND expires_at_ms - acquired_at_ms = "
                                          "30000"),
                         1);
    }
}

int main(void)
{
    write_statements();
    server = pg_server_start(NULL);
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    ours = pg_plain(server, DATABASE);
    foreign = pg_plain(server, DATABASE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(advisory_lock_comes_before_the_row),
        cmocka_unit_test(release_is_evaluated_after_the_wait),
        cmocka_unit_test(release_leaves_no_setting_behind),
        cmocka_unit_test(takeover_spares_a_lock_that_was_extended_meanwhile),
        cmocka_unit_test(takeover_of_a_dead_row_that_was_held),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    PQfinish(foreign);
    PQfinish(ours);
    PQfinish(plain);
    pg_server_end(server);
    sg_pg_statements_free(&statements);
    return failed;
}
