/*
 * Records that cannot be read (ADR 0043): the expiry decides whether one is live. The owner of a
 * live one can extend and release it. Only operations that must return a damaged field fail.
 */
#include "support.h"

#include "syncguard/sys/backend.h"

#define DATABASE "records"

static pg_server *server;
static PGconn *plain;
static syncguard_backend *backend;
static int logged;

static void pg_records_warning_count(void *context, syncguard_log_level level, const char *message)
{
    (void)context;
    if (level == SYNCGUARD_LOG_WARN && strstr(message, "cannot be read") != NULL)
        logged++;
}

static void pg_records_damage(const char *key, const char *change)
{
    pg_sql(plain, "UPDATE syncguard_locks SET %s WHERE key = '%s'", change, key);
}

static const char *const harmless[] = {"fence = '1234567890123456'", "fence = '-00000000000001'",
                                       "fence = ''"};

static void live_record_is_held(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        syncguard_grant grant;
        assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "odd", 30000, NULL, &grant, &err));
        pg_records_damage("odd", harmless[i]);
        syncguard_grant other;
        assert_status(SYNCGUARD_LOCKED,
                      syncguard_acquire(backend, "odd", 30000, NULL, &other, &err));
        bool locked = false;
        assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "odd", NULL, &locked, &err));
        assert_true(locked);
        syncguard_lock_info info;
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_get_by_key(backend, "odd", NULL, &info, &err));
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_get_by_id(backend, grant.lock_id, NULL, &info, &err));
        logged = 0;
        int listed = 0;
        assert_status(SYNCGUARD_OK, syncguard_list(backend, NULL, test_count_info, &listed, &err));
        assert_int_equal(listed, 0);
        assert_int_equal(logged, 1);
        int64_t expires = 0;
        assert_status(SYNCGUARD_OK,
                      syncguard_extend(backend, grant.lock_id, 30000, NULL, &expires, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    }
}

static void dead_record_is_dead(void **state)
{
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "dead", 30000, NULL, &grant, &err));
    pg_records_damage("dead", "fence = 'x', expires_at_ms = 5");
    bool locked = true;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "dead", NULL, &locked, &err));
    assert_false(locked);
    syncguard_lock_info info;
    assert_status(SYNCGUARD_ABSENT, syncguard_get_by_key(backend, "dead", NULL, &info, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_get_by_id(backend, grant.lock_id, NULL, &info, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "dead", 30000, NULL, &grant, &err));
    assert_string_equal(grant.fence, "000000000000002");
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
}

static const char *const endless[] = {"expires_at_ms = 9007199254740992",
                                      "expires_at_ms = 9223372036854775807",
                                      "expires_at_ms = -9223372036854775807"};

/* It is unknown whether the lock is live: its record is not changed, and other locks are not
 * affected. */
static void unreadable_expiry_is_left_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof endless / sizeof *endless; i++) {
        syncguard_grant grant;
        syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), 5000), NULL};
        assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "ends", 30000, NULL, &grant, &err));
        syncguard_grant healthy;
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(backend, "healthy", 30000, NULL, &healthy, &err));
        pg_records_damage("ends", endless[i]);
        syncguard_grant other;
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_acquire(backend, "ends", 30000, NULL, &other, &err));
        assert_non_null(strstr(err.message, "the stored record cannot be read"));
        bool locked = false;
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_is_locked(backend, "ends", NULL, &locked, &err));
        syncguard_lock_info info;
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_get_by_key(backend, "ends", NULL, &info, &err));
        int64_t expires = 0;
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_extend(backend, grant.lock_id, 30000, NULL, &expires, &err));
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_release(backend, grant.lock_id, NULL, &err));
        /* A batch that contains it renews the other locks. */
        syncguard_extend_op ops[2];
        memset(ops, 0, sizeof ops);
        ops[0].lock_id = grant.lock_id;
        ops[1].lock_id = healthy.lock_id;
        ops[0].ttl_ms = ops[1].ttl_ms = 30000;
        assert_status(SYNCGUARD_OK, backend->ops->extend_many(backend, ops, 2, &limits, &err));
        assert_true(ops[0].status < 0);
        assert_int_equal(ops[1].status, SYNCGUARD_OK);
        logged = 0;
        int listed = 0;
        assert_status(SYNCGUARD_OK, syncguard_list(backend, NULL, test_count_info, &listed, &err));
        assert_int_equal(listed, 1);
        assert_int_equal(logged, 1);
        assert_int_equal(
            pg_number(plain, "SELECT count(*) FROM syncguard_locks WHERE %s", endless[i]), 1);
        pg_sql(plain, "DELETE FROM syncguard_locks WHERE key = 'ends'");
        assert_status(SYNCGUARD_OK, syncguard_release(backend, healthy.lock_id, NULL, &err));
    }
}

static void pg_records_finding_note(void *context, const syncguard_finding *finding)
{
    char *found = context;
    if (finding->severity == SYNCGUARD_WARN)
        found[strlen(found)] = finding->topic[0];
}

/* The doctor finds records that cannot be read, and snapshots that slow busy keys down. */
static void pg_doctor_finds_them(void **state)
{
    PGconn *reader = pg_plain(server, DATABASE);
    (void)state;
    char found[32] = "";
    assert_status(SYNCGUARD_OK,
                  syncguard_examine(backend, NULL, pg_records_finding_note, found, &err));
    assert_null(strpbrk(found, "rs"));
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "odd", 30000, NULL, &grant, &err));
    pg_records_damage("odd", "fence = 'x'");
    pg_sql(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    pg_sql(reader, "SELECT count(*) FROM syncguard_locks");
    pg_sql(plain, "CREATE TABLE busy (n int)");
    pg_sql(plain, "DO $$ BEGIN FOR i IN 1..11000 LOOP BEGIN INSERT INTO busy VALUES (i); EXCEPTION "
                  "WHEN OTHERS THEN NULL; END; END LOOP; END $$");
    memset(found, 0, sizeof found);
    assert_status(SYNCGUARD_OK,
                  syncguard_examine(backend, NULL, pg_records_finding_note, found, &err));
    assert_non_null(strchr(found, 'r'));
    assert_non_null(strchr(found, 's'));
    PQfinish(reader);
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
}

int main(void)
{
    server = pg_server_start("fsync=off");
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = pg_records_warning_count;
    if (syncguard_open(pg_url(server, DATABASE, NULL), &options, &backend, &err) != SYNCGUARD_OK)
        pg_die("open: %s", err.message);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_record_is_held),
        cmocka_unit_test(dead_record_is_dead),
        cmocka_unit_test(unreadable_expiry_is_left_alone),
        cmocka_unit_test(pg_doctor_finds_them),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    syncguard_close(backend);
    PQfinish(plain);
    pg_server_end(server);
    return failed;
}
