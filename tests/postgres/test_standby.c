/*
 * A primary with a synchronous standby that stops, and a failover to it. A COMMIT waits for the
 * standby. The wait ends early if the server process is terminated or the wait is cancelled; the
 * library cancels it too when the caller's time is up. The transaction is then committed on the
 * primary only, so it must not be reported as a success: after the failover it does not exist.
 *
 * The tests run in order, on one pair of servers.
 */
#include "support.h"

#include <signal.h>

#include "syncguard/sys/backend.h"

#define DATABASE "pair"
#define TTL_MS 600000
#define SHORT_TTL_MS 3000

/* How a COMMIT's wait for the standby ends. */
typedef enum ending { TERMINATE, CANCEL, TIMEOUT, ENDINGS } ending;

static const char *const ending_names[ENDINGS] = {"terminate", "cancel", "timeout"};
static const char *const ending_calls[ENDINGS] = {"pg_terminate_backend(pid)",
                                                  "pg_cancel_backend(pid)", "NULL"};

static pg_server *primary;
static pg_server *standby;
static PGconn *plain;

typedef struct request {
    syncguard_backend *backend;
    char key[32];
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    int64_t timeout_ms;
    syncguard_status status;
    syncguard_grant grant;
    syncguard_error err;
    pthread_t thread;
} request;

static request acquires[ENDINGS];
static request extends[ENDINGS];
static request batches[ENDINGS];

static syncguard_backend *open_primary(int64_t timeout_ms)
{
    char query[64];
    snprintf(query, sizeof query, "timeout_ms=%lld", (long long)timeout_ms);
    return test_open(pg_url(primary, DATABASE, query));
}

static void *standby_acquire_run(void *context)
{
    request *r = context;
    syncguard_call call = test_call(r->timeout_ms);
    r->status = syncguard_acquire(r->backend, r->key, TTL_MS, &call, &r->grant, &r->err);
    return NULL;
}

static void *standby_extend_run(void *context)
{
    request *r = context;
    syncguard_call call = test_call(r->timeout_ms);
    int64_t expires = 0;
    r->status = syncguard_extend(r->backend, r->lock_id, TTL_MS, &call, &expires, &r->err);
    return NULL;
}

static void *run_batch(void *context)
{
    request *r = context;
    syncguard_extend_op op = {.lock_id = r->lock_id, .ttl_ms = TTL_MS};
    syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), r->timeout_ms), NULL};
    r->status = r->backend->ops->extend_many(r->backend, &op, 1, &limits, &r->err);
    if (r->status == SYNCGUARD_OK)
        r->status = op.status;
    return NULL;
}

#define WAITING "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

/* Ends the waits for the standby in the given way, as soon as there are count of them. */
static void end_waits(ending how, long count)
{
    int64_t end = test_now_ms() + 10000;
    if (how == TIMEOUT)
        return;
    while (pg_number(plain, "SELECT count(*) " WAITING) < count) {
        assert_true(test_now_ms() < end);
        test_sleep_ms(10);
    }
    pg_sql(plain, "SELECT %s " WAITING, ending_calls[how]);
}

static void standby_request_start(request *r, void *(*run)(void *))
{
    r->thread = test_start_thread(run, r);
}

static void standby_request_finish(request *r)
{
    pthread_join(r->thread, NULL);
    syncguard_close(r->backend);
    r->backend = NULL;
}

static void await_standby(void)
{
    int64_t end = test_now_ms() + 20000;
    while (pg_number(plain, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") ==
           0) {
        assert_true(test_now_ms() < end);
        test_sleep_ms(20);
    }
}

/* The standby comes back while the request that was sent again waits for it. */
static void granted_when_the_standby_is_back(void **state)
{
    (void)state;
    for (int how = TERMINATE; how <= CANCEL; how++) {
        request r = {.backend = open_primary(20000), .timeout_ms = 20000};
        snprintf(r.key, sizeof r.key, "back %s", ending_names[how]);
        pg_server_down(standby, SIGINT);
        standby_request_start(&r, standby_acquire_run);
        end_waits((ending)how, 1);
        test_sleep_ms(300);
        pg_server_up(standby);
        standby_request_finish(&r);
        err = r.err;
        assert_status(SYNCGUARD_OK, r.status);
        PGconn *other = pg_plain(standby, DATABASE);
        for (int64_t end = test_now_ms() + 10000; lock_rows(other, r.key) != 1; test_sleep_ms(20))
            assert_true(test_now_ms() <
                        end); /* the standby has the log, but may not have applied it yet */
        PQfinish(other);
        await_standby();
    }
}

/* Nothing is granted or extended while the standby is away, however the wait for it ends. */
static void nothing_succeeds_without_the_standby(void **state)
{
    syncguard_backend *holder = open_primary(5000);
    (void)state;
    for (int how = 0; how < ENDINGS; how++) {
        request *each[] = {&acquires[how], &extends[how], &batches[how]};
        for (int i = 0; i < 3; i++) {
            each[i]->timeout_ms = 2500;
            snprintf(each[i]->key, sizeof each[i]->key, "%d %s", i, ending_names[how]);
            if (i == 0)
                continue;
            syncguard_grant grant;
            assert_status(SYNCGUARD_OK, syncguard_acquire(holder, each[i]->key, SHORT_TTL_MS, NULL,
                                                          &grant, &err));
            memcpy(each[i]->lock_id, grant.lock_id, sizeof each[i]->lock_id);
        }
    }
    pg_server_down(standby, SIGINT);
    for (int how = 0; how < ENDINGS; how++) {
        request *each[] = {&extends[how], &batches[how], &acquires[how]};
        void *(*const runs[])(void *) = {standby_extend_run, run_batch, standby_acquire_run};
        for (int i = 0; i < 3; i++) {
            each[i]->backend = open_primary(2500);
            standby_request_start(each[i], runs[i]);
        }
        end_waits((ending)how, 3);
        for (int i = 0; i < 3; i++)
            standby_request_finish(each[i]);
    }
    syncguard_close(holder);
}

/* True if there is one holder. */
static bool is_alone(syncguard_backend *second, const request *first)
{
    syncguard_grant grant;
    syncguard_status status = syncguard_acquire(second, first->key, 30000, NULL, &grant, &err);
    assert_status(SYNCGUARD_OK, status);
    if (first->status >= 0)
        print_error("two holders of '%s' (%s): fences %s and %s\n", first->key,
                    syncguard_status_name(first->status), first->grant.fence, grant.fence);
    return first->status < 0;
}

static void one_holder_after_the_failover(void **state)
{
    (void)state;
    PQfinish(plain);
    plain = NULL;
    pg_server_down(primary, SIGKILL);
    pg_server_up(standby);
    pg_server_promote(standby);
    test_sleep_ms(SHORT_TTL_MS);
    syncguard_backend *second = test_open(pg_url(standby, DATABASE, NULL));
    int alone = 0;
    for (int how = 0; how < ENDINGS; how++) {
        alone += is_alone(second, &acquires[how]);
        alone += is_alone(second, &extends[how]);
        alone += is_alone(second, &batches[how]);
    }
    assert_int_equal(alone, 3 * ENDINGS);
    syncguard_close(second);
}

int main(void)
{
    primary = pg_server_start("fsync=off");
    pg_make_database(primary, DATABASE);
    plain = pg_plain(primary, DATABASE);
    standby = pg_server_standby(primary);
    /* Set only now: without a standby every commit would wait. */
    pg_sql(plain, "ALTER SYSTEM SET synchronous_standby_names = '*'");
    pg_sql(plain, "SELECT pg_reload_conf()");
    await_standby();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(granted_when_the_standby_is_back),
        cmocka_unit_test(nothing_succeeds_without_the_standby),
        cmocka_unit_test(one_holder_after_the_failover),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (plain != NULL)
        PQfinish(plain);
    pg_server_end(primary);
    pg_server_end(standby);
    return failed;
}
