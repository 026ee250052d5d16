/*
 * More than one server: the backend follows a failover of Sentinel, and counts replicas. Clusters:
 * see test_cluster.c.
 *
 * Order of the servers in the environment: see tests/servers.
 */
#include "support.h"

/* ---- wake-up ---- */

static void *redis_topology_woken_waiter_run(void *argument)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.retry_delay_ms = 3000; /* polling would be seen */
    options.jitter = SYNCGUARD_JITTER_NONE;
    options.timeout_ms = 60000;
    syncguard_lock *lock = NULL;
    syncguard_error error;
    if (syncguard_lock_acquire(argument, "woken", &options, &lock, &error) != SYNCGUARD_OK)
        return NULL;
    syncguard_lock_dispose(lock);
    return argument;
}

static void waiters_are_woken_here_too(void **state)
{
    (void)state;
    syncguard_backend *other = test_open(redis_url);
    for (int i = 0; i < 3; i++) {
        syncguard_grant grant;
        assert_status(SYNCGUARD_OK, syncguard_acquire(store, "woken", 30000, NULL, &grant, &err));
        pthread_t thread = test_start_thread(redis_topology_woken_waiter_run, other);
        test_sleep_ms(500);
        int64_t start = test_now_ms();
        assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
        void *result = NULL;
        pthread_join(thread, &result);
        assert_non_null(result);
        assert_true(test_now_ms() - start < 1500);
    }
    syncguard_close(other);
}

/* ---- Sentinel: primary, 2 replicas, 3 sentinels ---- */

typedef struct waiter {
    pthread_t thread;
    syncguard_status status;
    int64_t got_ms;
} waiter;

static void *redis_topology_waiter_run(void *argument)
{
    waiter *self = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = 60000;
    options.retry_unavailable = true;
    syncguard_lock *lock = NULL;
    syncguard_error error;
    self->status = syncguard_lock_acquire(store, "waited for", &options, &lock, &error);
    self->got_ms = test_now_ms();
    syncguard_lock_dispose(lock);
    return NULL;
}

static void sentinel_failover_is_followed(void **state)
{
    (void)state;
    syncguard_grant held, grant;
    waiter w;
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, "held", 60000, NULL, &held, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, "waited for", 60000, NULL, &grant, &err));
    w.thread = test_start_thread(redis_topology_waiter_run, &w);
    test_sleep_ms(500); /* replication and the waiter's first try */
    kill(redis_pid(0), SIGKILL);
    int64_t start = test_now_ms();
    int64_t expires;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_extend(store, held.lock_id, 60000, NULL, &expires, &err));
    syncguard_status status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    while (status != SYNCGUARD_OK && test_now_ms() - start < 40000) {
        test_sleep_ms(100);
        status = syncguard_extend(store, held.lock_id, 60000, NULL, &expires, &err);
        if (status != SYNCGUARD_OK && status != SYNCGUARD_E_SERVICE_UNAVAILABLE &&
            status != SYNCGUARD_E_NETWORK_TIMEOUT)
            fail_msg("%s %s %s", syncguard_status_name(status), err.native, err.message);
    }
    assert_int_equal(status, SYNCGUARD_OK);
    print_message("followed after %d ms\n", (int)(test_now_ms() - start));
    syncguard_grant other;
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(store, "held", 60000, NULL, &other, &err));

    /* The waiter has followed, too, and is woken by the new primary. */
    test_sleep_ms(1500);
    int64_t released = test_now_ms();
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    pthread_join(w.thread, NULL);
    assert_int_equal(w.status, SYNCGUARD_OK);
    assert_true(w.got_ms - released < 2500);
    assert_status(SYNCGUARD_OK, syncguard_release(store, held.lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, "held", 60000, NULL, &other, &err));
    assert_string_equal(other.fence, "000000000000002");
}

static void unknown_primary_is_unavailable(void **state)
{
    (void)state;
    char url[256];
    syncguard_grant grant;
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d/unknown", redis_port(3));
    syncguard_backend *wrong = test_open(url);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(wrong, "a", 5000, NULL, &grant, &err));
    syncguard_close(wrong);
}

/* The only sentinel that the handle was given dies, but the handle has learnt of the others from
 * it. */
static void sentinels_tell_of_each_other(void **state)
{
    (void)state;
    char url[256];
    syncguard_grant grant;
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d/main", redis_port(3));
    syncguard_backend *other = test_open(url);
    assert_status(SYNCGUARD_OK, syncguard_acquire(other, "told", 30000, NULL, &grant, &err));
    kill(redis_pid(3), SIGSTOP);
    freeReplyObject(raw_at(redis_port(0), "CLIENT KILL TYPE normal SKIPME yes"));
    syncguard_status status = syncguard_release(other, grant.lock_id, NULL, &err);
    kill(redis_pid(3), SIGCONT);
    assert_status(SYNCGUARD_OK, status);
    syncguard_close(other);
}

/* ---- replicas: primary, replica, wait_replicas=1 ---- */

static void missing_replicas_undo_the_grant(void **state)
{
    (void)state;
    syncguard_grant grant;
    syncguard_call brief = test_call(800);
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, "copied", 30000, NULL, &grant, &err));
    redisReply *reply = raw_at(redis_port(1), "GET syncguard:copied");
    assert_int_equal(reply->type, REDIS_REPLY_STRING);
    freeReplyObject(reply);
    kill(redis_pid(1), SIGSTOP);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(store, "alone", 30000, &brief, &grant, &err));
    assert_string_equal(err.native, "NOREPLICAS");
    bool locked = true;
    for (int i = 0; i < 60 && locked; i++) {
        test_sleep_ms(50);
        assert_status(SYNCGUARD_OK, syncguard_is_locked(store, "alone", NULL, &locked, &err));
    }
    assert_false(locked);
    kill(redis_pid(1), SIGCONT);
    test_sleep_ms(100);
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, "alone", 30000, NULL, &grant, &err));
}

/* A grant that is found again over a new connection counts only when the replica has it. */
static void lost_reply_does_not_pass_for_replicated(void **state)
{
    (void)state;
    proxy p;
    syncguard_grant grant;
    syncguard_call brief = test_call(2000);
    proxy_start(&p, redis_port(0));
    syncguard_backend *via = open_port(p.port, "wait_replicas=1");
    assert_status(SYNCGUARD_OK, syncguard_acquire(via, "warm", 30000, NULL, &grant, &err));
    /* In 7.0 WAIT covers what any connection wrote, in later versions it does not: check that this
     * connection writes. */
    long before = raw_calls("pexpire");
    atomic_store(&p.lose, 1);
    assert_status(SYNCGUARD_OK, syncguard_acquire(via, "found", 30000, NULL, &grant, &err));
    assert_int_equal(atomic_load(&p.lose), 0);
    assert_int_equal(raw_calls("pexpire") - before, 1);
    assert_in_range(raw_int("PTTL syncguard:found"), 25000, 31000);
    kill(redis_pid(1), SIGSTOP);
    atomic_store(&p.lose, 1);
    syncguard_status status = syncguard_acquire(via, "unsafe", 30000, &brief, &grant, &err);
    kill(redis_pid(1), SIGCONT);
    assert_int_equal(atomic_load(&p.lose), 0);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE, status);
    assert_string_equal(err.native, "NOREPLICAS");
    syncguard_close(via);
    proxy_stop(&p);
}

/* The server goes on waiting on that connection: the next acquire must not wait behind that. */
static void given_up_wait_is_in_nobodys_way(void **state)
{
    (void)state;
    syncguard_call aborted = SYNCGUARD_CALL_INIT, brief = SYNCGUARD_CALL_INIT;
    brief.timeout_ms = 2000;
    aborted.timeout_ms = 30000;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&aborted.abort_object, &err));
    kill(redis_pid(1), SIGSTOP);
    pthread_t thread = test_trigger_soon(aborted.abort_object);
    syncguard_grant grant;
    syncguard_status first = syncguard_acquire(store, "aborted", 30000, &aborted, &grant, &err);
    pthread_join(thread, NULL);
    syncguard_status second = syncguard_acquire(store, "behind", 30000, &brief, &grant, &err);
    kill(redis_pid(1), SIGCONT);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE, second); /* not NetworkTimeout */
    assert_string_equal(err.native, "NOREPLICAS");
    assert_int_equal(first, SYNCGUARD_E_ABORTED);
    brief.timeout_ms = 3000;
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, "after", 30000, &brief, &grant, &err));
    syncguard_abort_free(aborted.abort_object);
}

/* After a failover, another client could take a lock whose lease only the old primary knew. */
static void extend_waits_for_replicas(void **state)
{
    (void)state;
    syncguard_grant grant;
    syncguard_call brief = SYNCGUARD_CALL_INIT;
    int64_t expires = 0;
    brief.timeout_ms = 3000; /* a quarter of it is left for the reply */
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, "prolonged", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_extend(store, grant.lock_id, 30000, NULL, &expires,
                                                 &err)); /* so that the server knows the script */
    kill(redis_pid(1), SIGSTOP);
    syncguard_status status = syncguard_extend(store, grant.lock_id, 60000, &brief, &expires, &err);
    kill(redis_pid(1), SIGCONT);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE, status);
    assert_string_equal(err.native, "NOREPLICAS");
    assert_status(SYNCGUARD_OK,
                  syncguard_extend(store, grant.lock_id, 60000, NULL, &expires, &err));
    redisReply *reply = raw_at(redis_port(1), "PTTL syncguard:prolonged");
    assert_in_range(reply->integer, 50000, 61000);
    freeReplyObject(reply);
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
}

static void extend_many_waits_for_replicas(void **state)
{
    (void)state;
    enum { LOCKS = SYNCGUARD_BATCH_MAX };
    static syncguard_grant grants[LOCKS];
    static syncguard_extend_op items[LOCKS];
    char key[32];
    for (int i = 0; i < LOCKS; i++) {
        snprintf(key, sizeof key, "many:%d", i);
        assert_status(SYNCGUARD_OK, syncguard_acquire(store, key, 30000, NULL, &grants[i], &err));
        items[i] = (syncguard_extend_op){.lock_id = grants[i].lock_id, .ttl_ms = 60000};
    }
    memcpy(grants[7].lock_id, "AAAAAAAAAAAAAAAAAAAAAA", 22);
    syncguard_limits limits = {syncguard_clock_ns() + 800 * SYNCGUARD_NS_PER_MS, NULL};
    kill(redis_pid(1), SIGSTOP);
    syncguard_status status = store->ops->extend_many(store, items, LOCKS, &limits, &err);
    kill(redis_pid(1), SIGCONT);
    assert_status(SYNCGUARD_OK, status); /* one was decided */
    for (int i = 0; i < LOCKS; i++)
        assert_true(i == 7 ? items[i].status == SYNCGUARD_ABSENT : items[i].status < SYNCGUARD_OK);
    limits.deadline_ns = syncguard_clock_ns() + 5000 * SYNCGUARD_NS_PER_MS;
    assert_status(SYNCGUARD_OK, store->ops->extend_many(store, items, LOCKS, &limits, &err));
    for (int i = 0; i < LOCKS; i++)
        assert_int_equal(items[i].status, i == 7 ? SYNCGUARD_ABSENT : SYNCGUARD_OK);
}

typedef struct cut_wait {
    syncguard_backend *store;
    const char *lock_id; /* extended, if set; else "cut" is acquired */
    syncguard_status status;
    atomic_bool done;
} cut_wait;

static void *write_and_wait(void *argument)
{
    cut_wait *w = argument;
    syncguard_grant grant;
    syncguard_call call = test_call(20000);
    w->status = w->lock_id != NULL
                    ? syncguard_extend(w->store, w->lock_id, 60000, &call, NULL, NULL)
                    : syncguard_acquire(w->store, "cut", 30000, &call, &grant, NULL);
    atomic_store(&w->done, true);
    return NULL;
}

/* The write is done, and its connection is killed while it waits for the replica: the write that is
 * found or repeated over another connection counts only when the replica has it. */
static void killed_wait_is_waited_for_again(void **state)
{
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, "cut too", 30000, NULL, &grant, &err));
    for (int round = 0; round < 2; round++) {
        cut_wait w = {.store = store, .lock_id = round == 1 ? grant.lock_id : NULL};
        kill(redis_pid(1), SIGSTOP);
        pthread_t thread = test_start_thread(write_and_wait, &w);
        for (int i = 0; i < 3; i++) {
            test_sleep_ms(300);
            raw_do("CLIENT KILL TYPE normal SKIPME yes");
        }
        test_sleep_ms(300);
        bool early = atomic_load(&w.done);
        kill(redis_pid(1), SIGCONT);
        pthread_join(thread, NULL);
        assert_false(early);
        assert_int_equal(w.status, SYNCGUARD_OK);
    }
    redisReply *reply = raw_at(redis_port(1), "EXISTS syncguard:cut");
    assert_int_equal(reply->integer, 1);
    freeReplyObject(reply);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest sentinel[] = {
        cmocka_unit_test(waiters_are_woken_here_too),
        cmocka_unit_test(unknown_primary_is_unavailable),
        cmocka_unit_test(sentinels_tell_of_each_other),
        cmocka_unit_test(sentinel_failover_is_followed),
    };
    const struct CMUnitTest replicas[] = {
        cmocka_unit_test(waiters_are_woken_here_too),
        cmocka_unit_test(missing_replicas_undo_the_grant),
        cmocka_unit_test(lost_reply_does_not_pass_for_replicated),
        cmocka_unit_test(given_up_wait_is_in_nobodys_way),
        cmocka_unit_test(extend_waits_for_replicas),
        cmocka_unit_test(extend_many_waits_for_replicas),
        cmocka_unit_test(killed_wait_is_waited_for_again),
    };
    if (strncmp(redis_url, "redis+sentinel", 14) == 0)
        return cmocka_run_group_tests_name("redis sentinel", sentinel, open_store, close_store);
    return cmocka_run_group_tests_name("redis replicas", replicas, open_store, close_store);
}
