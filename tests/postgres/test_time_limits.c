/*
 * Waits for locks inside the server: no request is refused before its time is up, and then it is
 * the server that refuses it.
 */
#include "support.h"

#include "backends/postgres/backend.h"

#define DATABASE "time_limits"

static pg_server *server;
static PGconn *foreign; /* holds the locks that requests wait for */

static const char *const locks[] = {
    "SELECT pg_advisory_xact_lock(hashtext('patient'))",
    "LOCK TABLE syncguard_locks IN ACCESS EXCLUSIVE MODE",
    "SELECT 1 FROM syncguard_locks WHERE key = 'patient' FOR UPDATE",
};
#define LOCKS 3
#define TABLE_LOCK 1

typedef enum operation { ACQUIRE, EXTEND, IS_LOCKED, RELEASE, OPERATIONS } operation;

static void *commit_after(void *ms)
{
    test_sleep_ms((intptr_t)ms);
    pg_sql(foreign, "COMMIT");
    return NULL;
}

static syncguard_status pg_time_limits_run(syncguard_backend *backend, operation what,
                                           const syncguard_call *call, syncguard_grant *grant)
{
    bool locked = false;
    syncguard_status status = SYNCGUARD_OK;
    switch (what) {
    case ACQUIRE:
        return syncguard_acquire(backend, "patient", 60000, call, grant, &err);
    case EXTEND:
        return syncguard_extend(backend, grant->lock_id, 60000, call, NULL, &err);
    case IS_LOCKED:
        status = syncguard_is_locked(backend, "patient", call, &locked, &err);
        assert_true(status != SYNCGUARD_OK || locked);
        return status;
    case RELEASE:
    case OPERATIONS:
        break;
    }
    return syncguard_release(backend, grant->lock_id, call, &err);
}

/* Operations meet each kind of lock, or only one kind, which is held for hold_ms. */
static void waits_for_all(const char *query, const syncguard_call *call, int64_t hold_ms, int kind)
{
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, query));
    for (int i = kind < 0 ? 0 : kind; i < LOCKS * OPERATIONS; i += kind < 0 ? 1 : LOCKS) {
        operation what = (operation)(i / LOCKS);
        syncguard_grant grant;
        if (what != ACQUIRE)
            assert_status(SYNCGUARD_OK, pg_time_limits_run(backend, ACQUIRE, NULL, &grant));
        pg_sql(foreign, "BEGIN");
        pg_sql(foreign, "%s", locks[i % LOCKS]);
        int64_t began = test_now_ms();
        pthread_t thread = test_start_thread(commit_after, (void *)(intptr_t)hold_ms);
        assert_status(SYNCGUARD_OK, pg_time_limits_run(backend, what, call, &grant));
        assert_true(test_now_ms() - began < hold_ms + 2000);
        pthread_join(thread, NULL);
        if (what != RELEASE)
            assert_status(SYNCGUARD_OK, pg_time_limits_run(backend, RELEASE, NULL, &grant));
    }
    syncguard_close(backend);
}

static void nobody_gives_up_early(void **state)
{
    syncguard_call shorter = test_call(3000);
    syncguard_call longer = test_call(20000);
    (void)state;
    waits_for_all("pool_max=1&listen=0", NULL, 250, -1);
    waits_for_all("pool_max=1&listen=0", &shorter, 250, -1);
    waits_for_all("pool_max=1&listen=0&timeout_ms=900", &longer, 1100, TABLE_LOCK);
}

/* A read that has little time. */
static void short_reads_wait_too(void **state)
{
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, "pool_max=1&listen=0"));
    syncguard_call call = test_call(240);
    (void)state;
    int waited = 0;
    for (int i = 0; i < 20 && waited < 2; i++) { /* the machine may be late */
        pg_sql(foreign, "BEGIN");
        pg_sql(foreign, "LOCK TABLE syncguard_locks IN ACCESS EXCLUSIVE MODE");
        pthread_t thread = test_start_thread(commit_after, (void *)(intptr_t)150);
        bool locked;
        waited += syncguard_is_locked(backend, "nobody's", &call, &locked, &err) == SYNCGUARD_OK;
        pthread_join(thread, NULL);
    }
    assert_int_equal(waited, 2);
    syncguard_close(backend);
}

static int session_of(syncguard_backend *backend)
{
    sg_pg_pool *pool = sg_pg_of(backend)->pool;
    pthread_mutex_lock(&pool->mutex);
    const sg_pg_connection *first = atomic_load(&pool->all);
    int session = 0;
    if (first != NULL)
        session = PQbackendPID(first->pg);
    pthread_mutex_unlock(&pool->mutex);
    return session;
}

/* True if the reply came from the server: then the outcome is known, and the session goes on. */
static bool refused_by_the_server(operation what)
{
    syncguard_backend *backend =
        open_used(pg_url(server, DATABASE, "pool_max=1&listen=0&timeout_ms=1200"));
    int session = session_of(backend);
    syncguard_grant grant;
    if (what != ACQUIRE)
        assert_status(SYNCGUARD_OK, pg_time_limits_run(backend, ACQUIRE, NULL, &grant));
    pg_sql(foreign, "BEGIN");
    pg_sql(foreign, "LOCK TABLE syncguard_locks IN ACCESS EXCLUSIVE MODE");
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT, pg_time_limits_run(backend, what, NULL, &grant));
    bool refused = strcmp(err.native, "55P03") == 0;
    pg_sql(foreign, "COMMIT");
    if (refused) {
        if (what == ACQUIRE)
            assert_status(SYNCGUARD_OK, pg_time_limits_run(backend, ACQUIRE, NULL, &grant));
        assert_status(SYNCGUARD_OK, pg_time_limits_run(backend, RELEASE, NULL, &grant));
        /* On a busy machine there may be no time left to roll the session back. */
        refused = session_of(backend) == session;
    } else if (what != ACQUIRE) {
        (void)pg_time_limits_run(backend, RELEASE, NULL, &grant);
    }
    syncguard_close(backend);
    expect_gone(foreign, "patient");
    return refused;
}

static void the_server_says_when_time_is_up(void **state)
{
    (void)state;
    for (int what = 0; what < OPERATIONS; what++) {
        int tries = 0;
        while (!refused_by_the_server((operation)what)) /* the reply may have been late */
            assert_true(++tries < 10);
    }
}

static void a_set_up_has_time(void **state)
{
    (void)state;
    pg_sql(foreign, "CREATE DATABASE later");
    PQfinish(foreign);
    foreign = pg_plain(server, "later");
    pg_sql(foreign, "BEGIN");
    pg_sql(foreign, "SELECT pg_advisory_xact_lock(" SG_PG_SETUP_LOCK ")");
    pthread_t thread = test_start_thread(commit_after, (void *)(intptr_t)500);
    assert_status(SYNCGUARD_OK,
                  syncguard_setup(pg_url(server, "later", NULL), NULL, NULL, NULL, &err));
    pthread_join(thread, NULL);
}

int main(void)
{
    server = pg_server_start("fsync=off");
    pg_make_database(server, DATABASE);
    foreign = pg_plain(server, DATABASE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_gives_up_early),
        cmocka_unit_test(short_reads_wait_too),
        cmocka_unit_test(the_server_says_when_time_is_up),
        cmocka_unit_test(a_set_up_has_time),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    PQfinish(foreign);
    pg_server_end(server);
    return failed;
}
