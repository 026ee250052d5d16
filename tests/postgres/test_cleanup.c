/* Cleanup of dead rows after is_locked: off by default, not too early, only the row that was seen,
 * and without an error. */
#include "support.h"

#define DATABASE "cleanup"
#define KEY "k"
#define ID "AAAAAAAAAAAAAAAAAAAAAA"
#define OTHER_ID "NNNNNNNNNNNNNNNNNNNNNN"
#define NOW "floor(extract(epoch from clock_timestamp()) * 1000)::bigint"

static pg_server *server;
static PGconn *plain;

/* A lock that expired so many ms ago, and its counter. */
static void pg_cleanup_plant(int dead_ms)
{
    pg_sql(plain, "DELETE FROM syncguard_locks");
    pg_sql(plain,
           "INSERT INTO syncguard_locks (key, lock_id, expires_at_ms, acquired_at_ms, fence, "
           "user_key) VALUES ('" KEY "', '" ID "', " NOW " - %d, 1, '000000000000001', '" KEY "')",
           dead_ms);
}

static long pg_cleanup_rows(void)
{
    return pg_number(plain, "SELECT count(*) FROM syncguard_locks");
}

static bool gone_within(int64_t ms)
{
    int64_t end = test_now_ms() + ms;
    while (pg_cleanup_rows() > 0 && test_now_ms() < end)
        test_sleep_ms(20);
    return pg_cleanup_rows() == 0;
}

static void pg_cleanup_ask(syncguard_backend *backend)
{
    bool locked = true;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, KEY, NULL, &locked, &err));
    assert_false(locked);
}

/* I-ISL-02, I-ISL-03 */
static void off_by_default(void **state)
{
    syncguard_backend *backend = open_used(pg_url(server, DATABASE, NULL));
    (void)state;
    pg_cleanup_plant(60000);
    char before[64];
    snprintf(before, sizeof before, "%s",
             pg_sql(plain, "SELECT xmin || ' ' || ctid FROM syncguard_locks"));
    for (int i = 0; i < 200; i++)
        pg_cleanup_ask(backend);
    test_sleep_ms(300);
    assert_string_equal(pg_sql(plain, "SELECT xmin || ' ' || ctid FROM syncguard_locks"), before);
    syncguard_close(backend);
}

/* Returns whether a row that has been dead for so long is kept. On a slow machine it may be old
 * enough by the time of the next look; its removal then shows nothing. */
static bool young_row_stays(syncguard_backend *backend, int dead_ms)
{
    pg_cleanup_plant(dead_ms);
    long expires = pg_number(plain, "SELECT max(expires_at_ms) FROM syncguard_locks");
    pg_cleanup_ask(backend);
    test_sleep_ms(120); /* more than the pause between two cleanups */
    bool kept = pg_cleanup_rows() == 1;
    long age = pg_number(plain, "SELECT " NOW " - %ld", expires);
    if (!kept && age < 2000)
        fail_msg("removed at most %ld ms past its expiry", age);
    return kept;
}

/* I-ISL-04: not before 2000 ms past the expiry. The slower the machine is, the younger the row. */
static void waits_for_two_seconds_past_the_expiry(void **state)
{
    syncguard_backend *backend = open_used(pg_url(server, DATABASE, "cleanup=1"));
    (void)state;
    bool stayed = false;
    for (int i = 0; i < 20 && !stayed; i++)
        stayed = young_row_stays(backend, i < 6 ? 1800 - 100 * i : 1200);
    assert_true(stayed);
    pg_cleanup_plant(2200);
    test_sleep_ms(150); /* the pause between two cleanups */
    pg_cleanup_ask(backend);
    assert_true(gone_within(20000));
    syncguard_close(backend);
}

/* I-ISL-05: a failed cleanup changes neither the result nor later operations. */
static void failure_is_silent(void **state)
{
    syncguard_backend *backend = open_used(pg_url(server, DATABASE, "cleanup=1"));
    (void)state;
    pg_cleanup_plant(60000);
    pg_sql(plain, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                  "$$ BEGIN RAISE EXCEPTION 'no'; END $$");
    pg_sql(plain, "CREATE TRIGGER refuse BEFORE DELETE ON syncguard_locks FOR EACH ROW EXECUTE "
                  "FUNCTION refuse()");
    for (int i = 0; i < 5; i++) {
        pg_cleanup_ask(backend);
        test_sleep_ms(120);
    }
    assert_int_equal(pg_cleanup_rows(), 1);
    pg_sql(plain, "DROP FUNCTION refuse CASCADE");
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, KEY, 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
}

/* While the cleanup waits for the key, the row changes: change is the SET clause. */
static void pg_cleanup_row_changes(const char *change)
{
    syncguard_backend *backend = open_used(pg_url(server, DATABASE, "cleanup=1"));
    PGconn *holder = pg_plain(server, DATABASE);
    pg_cleanup_plant(60000);
    pg_sql(holder, "SELECT pg_advisory_lock(hashtext('" KEY "'))");
    pg_cleanup_ask(backend);
    bool waits = false;
    for (int i = 0; i < 500 && !waits; i++) {
        waits = pg_number(plain, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND "
                                 "NOT granted") > 0;
        test_sleep_ms(2);
    }
    assert_true(waits);
    pg_sql(plain, "UPDATE syncguard_locks SET %s", change);
    PQfinish(holder); /* frees the key */
    syncguard_close(backend);
    assert_int_equal(pg_cleanup_rows(), 1);
}

/* I-ISL-06 */
static void only_what_was_seen(void **state)
{
    (void)state;
    pg_cleanup_row_changes("lock_id = '" OTHER_ID "'");
    pg_cleanup_row_changes("expires_at_ms = expires_at_ms + 1");
}

/* I-FEN-03 */
static void counters_stay(void **state)
{
    syncguard_backend *backend = open_used(pg_url(server, DATABASE, "cleanup=1"));
    (void)state;
    pg_sql(plain, "DELETE FROM syncguard_locks");
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, KEY, 30000, NULL, &grant, &err));
    long before = pg_number(plain, "SELECT sum(fence) FROM syncguard_fence_counters");
    pg_sql(plain, "UPDATE syncguard_locks SET expires_at_ms = 1");
    test_sleep_ms(150);
    pg_cleanup_ask(backend);
    assert_true(gone_within(20000));
    assert_int_equal(pg_number(plain, "SELECT sum(fence) FROM syncguard_fence_counters"), before);
    syncguard_close(backend);
}

int main(void)
{
    server = pg_server_start(NULL);
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(off_by_default),
        cmocka_unit_test(waits_for_two_seconds_past_the_expiry),
        cmocka_unit_test(failure_is_silent),
        cmocka_unit_test(only_what_was_seen),
        cmocka_unit_test(counters_stay),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    PQfinish(plain);
    pg_server_end(server);
    return failed;
}
