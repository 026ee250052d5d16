/*
 * The outcomes of acquire, release and extend: what is written, what is not, when the clock is
 * read, and what sessions that hold rows or advisory locks in the server can do to our requests
 * (nothing beyond the deadline).
 */
#include "support.h"

#define DATABASE "decide"

static pg_server *server;
static syncguard_backend *backend;
static PGconn *plain;

static syncguard_grant pg_lock_take(const char *key, int64_t ttl_ms)
{
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, key, ttl_ms, NULL, &grant, &err));
    return grant;
}

static void stored_as_agreed(void **state)
{
    syncguard_grant grant = pg_lock_take("stored", 30000);
    (void)state;
    assert_int_equal(pg_number(plain,
                               "SELECT count(*) FROM syncguard_locks WHERE key = 'stored' AND "
                               "lock_id = '%s' AND expires_at_ms = %lld AND expires_at_ms - "
                               "acquired_at_ms = 30000 AND fence = '000000000000001' AND user_key "
                               "= 'stored'",
                               grant.lock_id, (long long)grant.expires_at_ms),
                     1);
    assert_int_equal(pg_number(plain, "SELECT fence FROM syncguard_fence_counters WHERE fence_key "
                                      "= 'fence:stored' AND key_debug = 'stored'"),
                     1);
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_int_equal(pg_number(plain, "SELECT count(*) FROM syncguard_locks WHERE key = 'stored'"),
                     0);
    assert_int_equal(pg_number(plain, "SELECT count(*) FROM syncguard_fence_counters WHERE "
                                      "fence_key = 'fence:stored'"),
                     1);
}

static void set_age(const char *key, int ms_past_expiry)
{
    pg_sql(plain,
           "UPDATE syncguard_locks SET expires_at_ms = floor(extract(epoch from "
           "clock_timestamp()) * 1000)::bigint - %d WHERE key = '%s'",
           ms_past_expiry, key);
}

/* Not even the hidden fields of the row change, and no transaction id is used up. A row past its
 * expiry is locked for a moment. */
static void contended_acquire_changes_nothing(void **state)
{
    static const char visible[] =
        "SELECT (SELECT l::text || l.xmin || l.ctid FROM syncguard_locks l WHERE key = 'busy') || "
        "(SELECT f::text || f.xmin || f.ctid FROM syncguard_fence_counters f WHERE fence_key = "
        "'fence:busy')";
    static const char facts[] =
        "SELECT (SELECT l::text || l.xmin || l.xmax || l.ctid FROM syncguard_locks l WHERE key = "
        "'busy') || (SELECT f::text || f.xmin || f.xmax || f.ctid FROM syncguard_fence_counters f "
        "WHERE fence_key = 'fence:busy') || txid_current_snapshot()";
    syncguard_grant holder = pg_lock_take("busy", 30000);
    (void)state;
    syncguard_grant grant;
    char before[512];
    for (int past = 0; past < 2; past++) {
        if (past != 0) /* past its expiry, but within the tolerance */
            set_age("busy", 0);
        snprintf(before, sizeof before, "%s", pg_sql(plain, past != 0 ? visible : facts));
        for (int i = 0; i < (past != 0 ? 3 : 20); i++)
            assert_status(SYNCGUARD_LOCKED,
                          syncguard_acquire(backend, "busy", 30000, NULL, &grant, &err));
        assert_string_equal(before, pg_sql(plain, past != 0 ? visible : facts));
    }
    (void)syncguard_release(backend, holder.lock_id, NULL, &err);
}

static void *commit_soon(void *context)
{
    test_sleep_ms(40);
    pg_sql(context, "COMMIT");
    return NULL;
}

/* Neither does an acquire change anything if the lock was dead when its row was read, and is then
 * extended by a session that locks only the row. */
static void overtaken_acquire_changes_nothing(void **state)
{
    PGconn *foreign = pg_plain(server, DATABASE);
    syncguard_grant holder = pg_lock_take("overtaken", 30000);
    (void)state;
    syncguard_grant grant;
    for (int i = 0; i < 5; i++) {
        set_age("overtaken", 5000);
        pg_sql(foreign, "BEGIN");
        pg_sql(foreign, "UPDATE syncguard_locks SET expires_at_ms = expires_at_ms + 60000 WHERE "
                        "key = 'overtaken'");
        pthread_t thread = test_start_thread(commit_soon, foreign);
        assert_status(SYNCGUARD_LOCKED,
                      syncguard_acquire(backend, "overtaken", 30000, NULL, &grant, &err));
        pthread_join(thread, NULL);
        assert_int_equal(pg_number(plain, "SELECT fence FROM syncguard_fence_counters WHERE "
                                          "fence_key = 'fence:overtaken'"),
                         1);
    }
    assert_status(SYNCGUARD_OK, syncguard_release(backend, holder.lock_id, NULL, &err));
    PQfinish(foreign);
}

static void set_counter(const char *key, const char *value)
{
    pg_sql(plain,
           "INSERT INTO syncguard_fence_counters (fence_key, fence) VALUES ('fence:%s', %s) ON "
           "CONFLICT (fence_key) DO UPDATE SET fence = excluded.fence",
           key, value);
}

static void counter_ends_at_its_limit(void **state)
{
    static const char *const bad[] = {
        "900000000000000",     "900000000000001", "9000000000000000", "9223372036854775807", "-1",
        "-9223372036854775808"};
    (void)state;
    set_counter("limit", "899999999999999");
    syncguard_grant grant = pg_lock_take("limit", 30000);
    assert_string_equal(grant.fence, "900000000000000");
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        set_counter("limit", bad[i]);
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_acquire(backend, "limit", 30000, NULL, &grant, &err));
        assert_string_equal(pg_sql(plain, "SELECT fence FROM syncguard_fence_counters WHERE "
                                          "fence_key = 'fence:limit'"),
                            bad[i]);
        assert_int_equal(
            pg_number(plain, "SELECT count(*) FROM syncguard_locks WHERE key = 'limit'"), 0);
    }
}

static void *unlock_later(void *context)
{
    test_sleep_ms(1500);
    pg_sql(context, "COMMIT");
    return NULL;
}

/* The clock is read after the wait for a row, not at the start of the transaction. */
static void clock_is_read_after_the_wait(void **state)
{
    PGconn *foreign = pg_plain(server, DATABASE);
    syncguard_grant old = pg_lock_take("late", 30000);
    (void)state;
    /* A takeover that waits for the row: the expiry is a whole TTL away from the grant. */
    set_age("late", 5000);
    pg_sql(foreign, "BEGIN");
    pg_sql(foreign, "SELECT 1 FROM syncguard_locks WHERE key = 'late' FOR UPDATE");
    pthread_t thread = test_start_thread(unlock_later, foreign);
    syncguard_grant grant = pg_lock_take("late", 10000);
    pthread_join(thread, NULL);
    assert_true(grant.expires_at_ms - 10000 >
                pg_number(plain, "SELECT floor(extract(epoch from clock_timestamp()) * 1000)"
                                 "::bigint - 1000"));
    /* An extend that was in time when it arrived, but not when it got the row. */
    set_age("late", 0);
    pg_sql(foreign, "BEGIN");
    pg_sql(foreign, "SELECT 1 FROM syncguard_locks WHERE key = 'late' FOR UPDATE");
    thread = test_start_thread(unlock_later, foreign);
    int64_t expires;
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(backend, grant.lock_id, 30000, NULL, &expires, &err));
    pthread_join(thread, NULL);
    /* A release that was in time when it arrived, but not when it got the row. */
    set_age("late", 0);
    pg_sql(foreign, "BEGIN");
    pg_sql(foreign, "SELECT 1 FROM syncguard_locks WHERE key = 'late' FOR UPDATE");
    thread = test_start_thread(unlock_later, foreign);
    assert_status(SYNCGUARD_ABSENT, syncguard_release(backend, grant.lock_id, NULL, &err));
    pthread_join(thread, NULL);
    assert_status(SYNCGUARD_ABSENT, syncguard_release(backend, old.lock_id, NULL, &err));
    PQfinish(foreign);
}

/* Each mutation takes the advisory lock that the TypeScript library's acquire relies on. */
static void advisory_lock_is_the_agreed_one(void **state)
{
    PGconn *foreign = pg_plain(server, DATABASE);
    syncguard_call call = test_call(300);
    syncguard_grant holder = pg_lock_take("advisory", 30000);
    (void)state;
    pg_sql(foreign, "BEGIN");
    pg_sql(foreign, "SELECT pg_advisory_xact_lock(hashtext('advisory'))");
    int64_t began = test_now_ms();
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_acquire(backend, "advisory", 30000, &call, &grant, &err));
    int64_t expires;
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_extend(backend, holder.lock_id, 30000, &call, &expires, &err));
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_release(backend, holder.lock_id, &call, &err));
    assert_true(test_now_ms() - began < 6000);
    pg_sql(foreign, "COMMIT");
    assert_status(SYNCGUARD_OK, syncguard_release(backend, holder.lock_id, NULL, &err));
    PQfinish(foreign);
}

typedef struct attempt {
    const char *key;
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    int kind;
    syncguard_call call;
    syncguard_status status;
    int64_t ended;
} attempt;

static void *try_it(void *context)
{
    attempt *self = context;
    syncguard_grant grant;
    syncguard_error own;
    int64_t expires;
    if (self->kind == 0)
        self->status = syncguard_acquire(backend, self->key, 30000, &self->call, &grant, &own);
    else if (self->kind == 1)
        self->status = syncguard_extend(backend, self->lock_id, 30000, &self->call, &expires, &own);
    else
        self->status = syncguard_release(backend, self->lock_id, &self->call, &own);
    self->ended = test_now_ms();
    return NULL;
}

/* Acquires as soon as the grants of abandoned acquires are undone. */
static syncguard_grant take_after_undo(const char *key, int64_t ttl_ms)
{
    syncguard_grant grant;
    syncguard_status status = SYNCGUARD_LOCKED;
    for (int i = 0; i < 1500 && status == SYNCGUARD_LOCKED; i++) {
        status = syncguard_acquire(backend, key, ttl_ms, NULL, &grant, &err);
        if (status == SYNCGUARD_LOCKED)
            test_sleep_ms(10);
    }
    assert_status(SYNCGUARD_OK, status);
    return grant;
}

/* A foreign session holds the row: each mutation still ends at its deadline or its abort. */
static void row_of_a_foreign_session(void **state)
{
    PGconn *foreign = pg_plain(server, DATABASE);
    (void)state;
    syncguard_abort *abort_object = NULL;
    for (int kind = 0; kind < 3; kind++) {
        syncguard_grant holder = take_after_undo("row", 30000);
        attempt one = {.key = "row", .kind = kind, .call = test_call(300)};
        memcpy(one.lock_id, holder.lock_id, sizeof one.lock_id);
        if (kind == 0) /* with a live lock the result would be LOCKED at once */
            set_age("row", 5000);
        pg_sql(foreign, "BEGIN");
        pg_sql(foreign, "SELECT 1 FROM syncguard_locks WHERE key = 'row' FOR UPDATE");
        int64_t began = test_now_ms();
        (void)try_it(&one);
        assert_int_equal(one.status, SYNCGUARD_E_NETWORK_TIMEOUT);
        assert_in_range(one.ended - began, 250, 2500);
        assert_status(SYNCGUARD_OK, syncguard_abort_create(&abort_object, &err));
        one.call = test_call(10000);
        one.call.abort_object = abort_object;
        pthread_t thread = test_start_thread(try_it, &one);
        test_sleep_ms(150);
        began = test_now_ms();
        syncguard_abort_trigger(abort_object);
        pthread_join(thread, NULL);
        assert_int_equal(one.status, SYNCGUARD_E_ABORTED);
        assert_true(one.ended - began < 1000);
        syncguard_abort_free(abort_object);
        pg_sql(foreign, "COMMIT");
        if (kind == 0)
            pg_sql(plain, "DELETE FROM syncguard_locks WHERE key = 'row'");
        else
            (void)syncguard_release(backend, holder.lock_id, NULL, &err);
    }
    PQfinish(foreign);
}

/* An acquire that was abandoned while the server was waiting leaves no lock behind. */
static void abandoned_acquire_is_undone(void **state)
{
    PGconn *foreign = pg_plain(server, DATABASE);
    (void)state;
    pg_sql(foreign, "BEGIN");
    pg_sql(foreign, "SELECT pg_advisory_xact_lock(hashtext('ghost'))");
    syncguard_abort *abort_object = NULL;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&abort_object, &err));
    attempt one = {.key = "ghost", .kind = 0};
    one.call = test_call(10000);
    one.call.abort_object = abort_object;
    pthread_t thread = test_start_thread(try_it, &one);
    test_sleep_ms(150);
    syncguard_abort_trigger(abort_object);
    pthread_join(thread, NULL);
    assert_int_equal(one.status, SYNCGUARD_E_ABORTED);
    test_sleep_ms(200);
    /* The request is cancelled on the server too: no session waits there any more. */
    assert_int_equal(pg_number(plain,
                               "SELECT count(*) FROM pg_stat_activity WHERE "
                               "wait_event_type = 'Lock' AND query LIKE '%%advisory%%' AND "
                               "application_name = 'syncguard' AND query NOT LIKE '%%DELETE%%'"
                               " AND now() - xact_start > '1 s'"),
                     0);
    pg_sql(foreign, "COMMIT");
    test_sleep_ms(300);
    bool locked = true;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "ghost", NULL, &locked, &err));
    assert_false(locked);
    syncguard_abort_free(abort_object);
    PQfinish(foreign);
}

/* The session can be used after an error inside a transaction. */
static void errors_leave_no_open_transaction(void **state)
{
    (void)state;
    pg_sql(plain, "ALTER TABLE syncguard_locks RENAME TO away");
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_acquire(backend, "after", 30000, NULL, &grant, &err));
    assert_string_equal(err.native, "42P01");
    assert_non_null(strstr(err.message, "setup"));
    pg_sql(plain, "ALTER TABLE away RENAME TO syncguard_locks");
    assert_int_equal(pg_number(plain, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE "
                                      "'idle in%%' AND application_name = 'syncguard'"),
                     0);
    grant = pg_lock_take("after", 30000);
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
}

static void waiting_transactions_are_bounded_on_the_server(void **state)
{
    PGconn *foreign = pg_plain(server, DATABASE);
    syncguard_call call = test_call(2000);
    (void)state;
    pg_sql(foreign, "BEGIN");
    pg_sql(foreign, "SELECT pg_advisory_xact_lock(hashtext('bounded'))");
    syncguard_grant grant;
    /* The reply came from the server: the outcome is known and the session goes on. It has 50 ms
     * for the way, which may be too short once or twice while the machine is busy. */
    bool replied = false;
    for (int i = 0; i < 5 && !replied; i++) {
        assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                      syncguard_acquire(backend, "bounded", 30000, &call, &grant, &err));
        replied = strcmp(err.native, "55P03") == 0;
    }
    assert_true(replied);
    pg_sql(foreign, "COMMIT");
    PQfinish(foreign);
}

/* A read with more time than usual may use it, although the session's limit is the usual one. */
static void reads_have_the_time_that_they_are_given(void **state)
{
    syncguard_backend *hasty = test_open(pg_url(server, DATABASE, "timeout_ms=1000"));
    PGconn *foreign = pg_plain(server, DATABASE);
    syncguard_call call = test_call(20000);
    syncguard_grant grant = pg_lock_take("patient", 60000);
    (void)state;
    syncguard_lock_info info;
    for (int kind = 0; kind < 4; kind++) {
        pg_sql(foreign, "BEGIN");
        pg_sql(foreign, "LOCK TABLE syncguard_locks IN ACCESS EXCLUSIVE MODE");
        pthread_t thread = test_start_thread(unlock_later, foreign);
        bool locked = false;
        int count = 0;
        if (kind == 0)
            assert_status(SYNCGUARD_OK,
                          syncguard_is_locked(hasty, "patient", &call, &locked, &err));
        else if (kind == 1)
            assert_status(SYNCGUARD_OK, syncguard_get_by_key(hasty, "patient", &call, &info, &err));
        else if (kind == 2)
            assert_status(SYNCGUARD_OK,
                          syncguard_get_by_id(hasty, grant.lock_id, &call, &info, &err));
        else
            assert_status(SYNCGUARD_OK,
                          syncguard_list(hasty, &call, test_count_info, &count, &err));
        assert_true(kind != 0 || locked);
        assert_true(kind != 3 || count > 0);
        pthread_join(thread, NULL);
    }
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    PQfinish(foreign);
    syncguard_close(hasty);
}

#define SHARERS 12

static void *pg_backend_share(void *context)
{
    char key[40];
    snprintf(key, sizeof key, "share-%lx", (unsigned long)pthread_self());
    syncguard_error own;
    syncguard_grant grant;
    for (int i = 0; i < 20; i++) {
        if (syncguard_acquire(context, key, 30000, NULL, &grant, &own) != SYNCGUARD_OK ||
            syncguard_release(context, grant.lock_id, NULL, &own) != SYNCGUARD_OK)
            return context;
    }
    return NULL;
}

/* More threads than connections. */
static void threads_share_few_connections(void **state)
{
    static const char *const queries[] = {"pool_max=1", "pool_max=3"};
    (void)state;
    for (size_t q = 0; q < 2; q++) {
        syncguard_backend *shared = test_open(pg_url(server, DATABASE, queries[q]));
        pthread_t threads[SHARERS];
        for (int i = 0; i < SHARERS; i++)
            threads[i] = test_start_thread(pg_backend_share, shared);
        for (int i = 0; i < SHARERS; i++) {
            void *failed;
            pthread_join(threads[i], &failed);
            assert_null(failed);
        }
        assert_true(pg_number(plain, "SELECT count(*) FROM pg_stat_activity WHERE "
                                     "application_name = 'syncguard'") <= 12);
        syncguard_close(shared);
    }
}

static void long_keys_and_odd_keys(void **state)
{
    (void)state;
    char key[SYNCGUARD_KEY_SIZE];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    memcpy(key, "q'\"\\$1%_{}\n\t", 12);
    syncguard_grant grant = pg_lock_take(key, 30000);
    syncguard_lock_info_raw info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_id_raw(backend, grant.lock_id, NULL, &info, &err));
    assert_string_equal(info.key, key);
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
}

static void list_goes_over_pages(void **state)
{
    (void)state;
    pg_sql(plain, "INSERT INTO syncguard_locks SELECT 'page' || i, lpad(i::text, 22, 'p'), "
                  "floor(extract(epoch from clock_timestamp()) * 1000)::bigint + "
                  "CASE WHEN i %% 2 = 0 THEN 60000 ELSE -60000 END, 0, '000000000000001', 'page' "
                  "|| i FROM generate_series(1, 2400) i");
    int count = 0;
    assert_status(SYNCGUARD_OK, syncguard_list(backend, NULL, test_count_info, &count, &err));
    assert_true(count >= 1200 && count < 1300);
    pg_sql(plain, "DELETE FROM syncguard_locks WHERE key LIKE 'page%%'");
}

typedef struct findings {
    int worst;
    char topics[512];
} findings;

static void pg_doctor_finding_note(void *context, const syncguard_finding *finding)
{
    findings *self = context;
    if ((int)finding->severity > self->worst)
        self->worst = (int)finding->severity;
    if (finding->severity != SYNCGUARD_FINE)
        snprintf(self->topics + strlen(self->topics), sizeof self->topics - strlen(self->topics),
                 "%s ", finding->topic);
}

static void diagnose_reports_what_is_wrong(void **state)
{
    (void)state;
    findings found = {0, ""};
    assert_status(SYNCGUARD_OK,
                  syncguard_examine(backend, NULL, pg_doctor_finding_note, &found, &err));
    assert_int_equal(found.worst, SYNCGUARD_FINE);
    pg_sql(plain, "ALTER DATABASE " DATABASE " SET synchronous_commit = off");
    syncguard_backend *fresh = test_open(pg_url(server, DATABASE, NULL));
    assert_status(SYNCGUARD_OK,
                  syncguard_examine(fresh, NULL, pg_doctor_finding_note, &found, &err));
    assert_int_equal(found.worst, SYNCGUARD_WARN);
    assert_non_null(strstr(found.topics, "durability"));
    pg_sql(plain, "ALTER DATABASE " DATABASE " RESET synchronous_commit");
    syncguard_close(fresh);
}

/* The server has a synchronous standby that our sessions do not wait for. */
static void diagnose_reports_standbys_that_are_not_waited_for(void **state)
{
    (void)state;
    pg_sql(plain, "SET synchronous_commit = local");
    pg_sql(plain, "ALTER DATABASE " DATABASE " SET synchronous_commit = local");
    pg_sql(plain, "ALTER SYSTEM SET synchronous_standby_names = 'elsewhere'");
    pg_sql(plain, "SELECT pg_reload_conf()");
    pg_sql(plain, "SELECT pg_sleep(0.5)");
    syncguard_backend *fresh = test_open(pg_url(server, DATABASE, NULL));
    findings found = {0, ""};
    assert_status(SYNCGUARD_OK,
                  syncguard_examine(fresh, NULL, pg_doctor_finding_note, &found, &err));
    syncguard_close(fresh);
    pg_sql(plain, "ALTER SYSTEM RESET synchronous_standby_names");
    pg_sql(plain, "SELECT pg_reload_conf()");
    pg_sql(plain, "SELECT pg_sleep(0.5)");
    pg_sql(plain, "ALTER DATABASE " DATABASE " RESET synchronous_commit");
    assert_int_equal(found.worst, SYNCGUARD_WARN);
    assert_non_null(strstr(found.topics, "replication"));
}

int main(void)
{
    server = pg_server_start(NULL);
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    backend = test_open(pg_url(server, DATABASE, NULL));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_as_agreed),
        cmocka_unit_test(contended_acquire_changes_nothing),
        cmocka_unit_test(overtaken_acquire_changes_nothing),
        cmocka_unit_test(counter_ends_at_its_limit),
        cmocka_unit_test(clock_is_read_after_the_wait),
        cmocka_unit_test(advisory_lock_is_the_agreed_one),
        cmocka_unit_test(row_of_a_foreign_session),
        cmocka_unit_test(abandoned_acquire_is_undone),
        cmocka_unit_test(errors_leave_no_open_transaction),
        cmocka_unit_test(waiting_transactions_are_bounded_on_the_server),
        cmocka_unit_test(reads_have_the_time_that_they_are_given),
        cmocka_unit_test(threads_share_few_connections),
        cmocka_unit_test(long_keys_and_odd_keys),
        cmocka_unit_test(list_goes_over_pages),
        cmocka_unit_test(diagnose_reports_what_is_wrong),
        cmocka_unit_test(diagnose_reports_standbys_that_are_not_waited_for),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    syncguard_close(backend);
    PQfinish(plain);
    pg_server_end(server);
    return failed;
}
