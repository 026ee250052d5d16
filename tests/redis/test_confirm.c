/*
 * wait_replicas: a write waits for replicas, on the connection that wrote it; a request that
 * changed nothing does not wait. Servers: a primary and a replica (test_topology.c has more tests
 * with them).
 */
#include "support.h"

#include "backends/redis/request.h"

/* A well-formed id that no lock has. */
#define NO_LOCK "AAAAAAAAAAAAAAAAAAAAAA"

/* A handle on the primary that does not wait for replicas. */
static syncguard_backend *other;

static int open_both(void **state)
{
    other = open_port(redis_port(0), "");
    return open_store(state);
}

static int close_both(void **state)
{
    syncguard_close(other);
    return close_store(state);
}

/* The server knows no script, and the replica receives nothing. */
static void stop_replica(void)
{
    raw_do("SCRIPT FLUSH");
    kill(redis_pid(1), SIGSTOP);
}

static void continue_replica(void)
{
    kill(redis_pid(1), SIGCONT);
}

static void refusals_do_not_wait(void **state)
{
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(other, "taken", 60000, NULL, &grant, &err));
    long waits = raw_calls("wait");
    stop_replica();
    int64_t start = test_now_ms();
    syncguard_status unknown = syncguard_extend(store, NO_LOCK, 5000, NULL, NULL, &err);
    syncguard_status taken = syncguard_acquire(store, "taken", 5000, NULL, &grant, &err);
    raw_do("CONFIG SET maxmemory 1");
    syncguard_error full;
    syncguard_status refused = syncguard_acquire(store, "full", 5000, NULL, &grant, &full);
    raw_do("CONFIG SET maxmemory 0");
    int64_t elapsed = test_now_ms() - start;
    waits = raw_calls("wait") - waits;
    continue_replica();
    assert_int_equal(unknown, SYNCGUARD_ABSENT);
    assert_int_equal(taken, SYNCGUARD_LOCKED);
    assert_int_equal(refused, SYNCGUARD_E_RATE_LIMITED);
    assert_string_equal(full.native, "OOM");
    assert_int_equal(waits, 0);
    assert_true(elapsed < PROMPT_MS);
}

/* Others of the batch wait, but not for as long as their deadlines would permit. */
static void lost_lock_is_reported_soon_in_a_batch(void **state)
{
    (void)state;
    syncguard_grant grant = take_lock("in a batch", 30000);
    syncguard_extend_op items[] = {{.lock_id = NO_LOCK, .ttl_ms = 30000},
                                   {.lock_id = grant.lock_id, .ttl_ms = 30000}};
    stop_replica();
    int64_t start = test_now_ms();
    syncguard_limits limits = {syncguard_clock_ns() + 10000 * SYNCGUARD_NS_PER_MS, NULL};
    syncguard_status status = store->ops->extend_many(store, items, 2, &limits, &err);
    int64_t elapsed = test_now_ms() - start;
    continue_replica();
    assert_int_equal(status, SYNCGUARD_OK);
    assert_int_equal(items[0].status, SYNCGUARD_ABSENT);
    assert_int_equal(items[1].status, SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_true(elapsed < PROMPT_MS);
    assert_status(SYNCGUARD_OK, store->ops->extend_many(store, items, 2, &limits, &err));
    assert_int_equal(items[1].status, SYNCGUARD_OK);
}

static void confirm_on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)lock;
    if (reason == SYNCGUARD_LOST_ABSENT)
        atomic_store((_Atomic int64_t *)context, test_now_ms());
}

/* An operator releases the lock while the replica is missing: the next renewal, after a third of
 * the TTL, notices it. */
static void renewal_reports_the_loss(void **state)
{
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 15000;
    options.auto_extend = true;
    options.on_lost = confirm_on_lost;
    _Atomic int64_t lost_ms = 0;
    options.on_lost_context = &lost_ms;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(store, "renewed", &options, &lock, &err));
    int64_t start = test_now_ms();
    assert_status(SYNCGUARD_OK, syncguard_release(other, syncguard_lock_id(lock), NULL, &err));
    stop_replica();
    for (int i = 0; i < 1200 && atomic_load(&lost_ms) == 0; i++)
        test_sleep_ms(10);
    continue_replica();
    syncguard_lock_dispose(lock);
    assert_true(atomic_load(&lost_ms) != 0);
    assert_true(atomic_load(&lost_ms) - start < 5000 + PROMPT_MS);
}

typedef struct waiting_extend {
    const char *lock_id;
    syncguard_status status;
    syncguard_error error;
} waiting_extend;

static void *extend_and_wait(void *argument)
{
    waiting_extend *w = argument;
    syncguard_call call = test_call(10000);
    w->status = syncguard_extend(store, w->lock_id, 60000, &call, NULL, &w->error);
    return NULL;
}

/* Extends share a connection, on which the server executes nothing while a WAIT lasts. */
static void waiting_extend_lets_others_through(void **state)
{
    (void)state;
    syncguard_grant grant = take_lock("waiting", 30000);
    waiting_extend w = {.lock_id = grant.lock_id};
    stop_replica();
    pthread_t thread = test_start_thread(extend_and_wait, &w);
    test_sleep_ms(1000);
    int64_t start = test_now_ms();
    syncguard_status status = syncguard_extend(store, NO_LOCK, 5000, NULL, NULL, &err);
    int64_t elapsed = test_now_ms() - start;
    pthread_join(thread, NULL);
    continue_replica();
    assert_int_equal(status, SYNCGUARD_ABSENT);
    assert_true(elapsed < PROMPT_MS);
    assert_int_equal(w.status, SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_string_equal(w.error.native, "NOREPLICAS");
}

/* A connection that wrote nothing would be told that the replicas have all of it. */
static void another_connection_is_not_asked(void **state)
{
    (void)state;
    sg_redis_backend *backend = (sg_redis_backend *)(void *)store;
    sg_redis_link *link = sg_redis_extend_link(backend);
    syncguard_limits limits = {syncguard_clock_ns() + 5000 * SYNCGUARD_NS_PER_MS, NULL};
    syncguard_grant grant = take_lock("connection", 30000);
    bool confirmed = false;
    assert_status(SYNCGUARD_OK, syncguard_extend(store, grant.lock_id, 30000, NULL, NULL, &err));
    uint64_t serial = link->conn->serial;
    assert_status(SYNCGUARD_OK, sg_redis_confirm(backend, link, serial, &limits, &confirmed, &err));
    assert_true(confirmed);
    sg_redis_link_reset(link);
    long waits = raw_calls("wait");
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  sg_redis_confirm(backend, link, serial, &limits, &confirmed, &err));
    assert_false(confirmed);
    assert_int_equal(raw_calls("wait"), waits);
    assert_status(SYNCGUARD_ABSENT, syncguard_extend(store, NO_LOCK, 5000, NULL, NULL, &err));
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  sg_redis_confirm(backend, link, serial, &limits, &confirmed, &err));
    assert_int_equal(raw_calls("wait"), waits);
}

/* The lock is granted, and then the server falls silent. */
static void grant_without_wait_is_undone(void **state)
{
    (void)state;
    proxy p;
    syncguard_grant grant;
    syncguard_call brief = test_call(1500);
    proxy_start(&p, redis_port(0));
    syncguard_backend *via = open_port(p.port, "wait_replicas=1");
    assert_status(SYNCGUARD_OK, syncguard_acquire(via, "warm", 30000, NULL, &grant, &err));
    atomic_store(&p.last, true);
    syncguard_status status = syncguard_acquire(via, "cut off", 120000, &brief, &grant, &err);
    atomic_store(&p.silent, 0);
    assert_true(status < SYNCGUARD_OK);
    bool locked = true;
    for (int i = 0; i < 600 && locked; i++) {
        test_sleep_ms(50);
        assert_status(SYNCGUARD_OK, syncguard_is_locked(other, "cut off", NULL, &locked, &err));
    }
    assert_false(locked);
    syncguard_close(via);
    proxy_stop(&p);
}

static atomic_bool stop_writing;

static void *write_always(void *argument)
{
    redisContext *context = redisConnect("127.0.0.1", *(int *)argument);
    while (!atomic_load(&stop_writing)) {
        freeReplyObject(redisCommand(context, "SET written x"));
        test_sleep_ms(5);
    }
    redisFree(context);
    return NULL;
}

/* A replica that is far away, while others write: before 7.2, WAIT may ask for those writes,
 * too. */
static void slow_replica_confirms(void **state)
{
    (void)state;
    server primary;
    proxy p;
    char port[16];
    server_start(&primary, 0, without_persistence);
    proxy_start(&p, primary.port);
    snprintf(port, sizeof port, "%d", p.port);
    server replica;
    server_start(&replica, 0,
                 (const char *[]){"--save", "", "--replicaof", "127.0.0.1", port, NULL});
    syncguard_backend *far = open_port(primary.port, "wait_replicas=1");
    syncguard_call call = test_call(20000);
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(far, "far", 60000, &call, &grant, &err));
    pthread_t thread = test_start_thread(write_always, &primary.port);
    atomic_store(&p.delay_ms, 300);
    test_sleep_ms(1000);
    for (int i = 0; i < 2; i++) {
        call.timeout_ms = 10000;
        assert_status(SYNCGUARD_OK, syncguard_extend(far, grant.lock_id, 60000, &call, NULL, &err));
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(far, i == 0 ? "a" : "b", 60000, &call, &grant, &err));
    }
    atomic_store(&stop_writing, true);
    pthread_join(thread, NULL);
    syncguard_close(far);
    proxy_stop(&p);
    server_remove(&replica);
    server_remove(&primary);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_do_not_wait),
        cmocka_unit_test(lost_lock_is_reported_soon_in_a_batch),
        cmocka_unit_test(renewal_reports_the_loss),
        cmocka_unit_test(waiting_extend_lets_others_through),
        cmocka_unit_test(another_connection_is_not_asked),
        cmocka_unit_test(grant_without_wait_is_undone),
        cmocka_unit_test(slow_replica_confirms),
    };
    return cmocka_run_group_tests_name("redis confirm", tests, open_both, close_both);
}
