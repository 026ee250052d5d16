/*
 * Failures of servers and connections, and what callers are told: lost replies, servers that stop,
 * hang, restart, refuse; unknown outcomes that are undone; one code per cause.
 */
#include "support.h"

#include <sys/wait.h>
#include <time.h>

static void lost_replies_change_nothing(void **state)
{
    (void)state;
    server s;
    proxy p;
    syncguard_grant grant;
    server_start(&s, 0, without_persistence);
    proxy_start(&p, s.port);
    syncguard_backend *backend = open_port(p.port, "connections=1");
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "warm", 5000, NULL, &grant, &err));
    atomic_store(&p.lose, 1);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "lost", 5000, NULL, &grant, &err));
    assert_int_equal(atomic_load(&p.lose), 0);
    assert_string_equal(grant.fence, "000000000000001");
    atomic_store(&p.lose, 1);
    syncguard_grant second;
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(backend, "lost", 5000, NULL, &second, &err));
    atomic_store(&p.lose, 1);
    int64_t expires;
    assert_status(SYNCGUARD_OK,
                  syncguard_extend(backend, grant.lock_id, 5000, NULL, &expires, &err));
    atomic_store(&p.lose, 1);
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "lost", 5000, NULL, &grant, &err));
    assert_string_equal(grant.fence, "000000000000002");
    syncguard_close(backend);
    proxy_stop(&p);
    server_remove(&s);
}

/* As by CLIENT KILL, or by a proxy that restarts; but not forever. */
static void broken_connection_attempts_are_repeated(void **state)
{
    (void)state;
    proxy p;
    syncguard_grant grant;
    proxy_start(&p, redis_port(0));
    syncguard_backend *backend = open_port(p.port, "connections=1");
    atomic_store(&p.lose, 2);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "attempt", 5000, NULL, &grant, &err));
    assert_int_equal(atomic_load(&p.accepted), 3);
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
    backend = open_port(p.port, "connections=1");
    atomic_store(&p.lose, 1000);
    int64_t start = test_now_ms();
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(backend, "attempt", 5000, NULL, &grant, &err));
    assert_true(test_now_ms() - start < PROMPT_MS);
    syncguard_close(backend);
    proxy_stop(&p);
}

static void dead_server_is_told_at_once(void **state)
{
    (void)state;
    server s;
    syncguard_grant grant;
    server_start(&s, 0, without_persistence);
    syncguard_backend *backend = open_port(s.port, "");
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "a", 5000, NULL, &grant, &err));
    server_kill(&s);
    int64_t start = test_now_ms();
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(backend, "b", 5000, NULL, &grant, &err));
    assert_status(
        SYNCGUARD_E_SERVICE_UNAVAILABLE,
        syncguard_release(backend, grant.lock_id[0] != 0 ? grant.lock_id : "AAAAAAAAAAAAAAAAAAAAAA",
                          NULL, &err));
    assert_true(test_now_ms() - start < PROMPT_MS);
    /* The server comes back without its data, and the handle finds it. */
    server_start(&s, s.port, without_persistence);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "a", 5000, NULL, &grant, &err));
    assert_string_equal(grant.fence, "000000000000001");
    syncguard_close(backend);
    server_remove(&s);
}

static void restart_with_persistence_keeps_locks_and_fences(void **state)
{
    (void)state;
    static const char *const durable[] = {"--save", "",  "--appendonly", "yes", "--appendfsync",
                                          "always", NULL};
    server s;
    syncguard_grant first, grant;
    server_start(&s, 0, durable);
    syncguard_backend *backend = open_port(s.port, "");
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "kept", 30000, NULL, &first, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "other", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    server_kill(&s);
    server_start(&s, s.port, durable);
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(backend, "kept", 30000, NULL, &grant, &err));
    int64_t expires;
    assert_status(SYNCGUARD_OK,
                  syncguard_extend(backend, first.lock_id, 30000, NULL, &expires, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, first.lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "kept", 30000, NULL, &grant, &err));
    assert_string_equal(grant.fence, "000000000000002");
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "other", 30000, NULL, &grant, &err));
    assert_string_equal(grant.fence, "000000000000002");
    syncguard_close(backend);
    server_remove(&s);
}

/* A server that hangs: the deadline holds, and what the server does when it continues is undone. */
static void redis_unknown_outcome_is_undone(void **state)
{
    (void)state;
    server s;
    syncguard_grant grant;
    syncguard_call brief = test_call(300);
    server_start(&s, 0, without_persistence);
    syncguard_backend *backend = open_port(s.port, "");
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "warm", 5000, NULL, &grant, &err));
    kill(s.pid, SIGSTOP);
    int64_t start = test_now_ms();
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_acquire(backend, "ghost", 30000, &brief, &grant, &err));
    assert_true(test_now_ms() - start < PROMPT_MS);
    kill(s.pid, SIGCONT);
    /* Long before the 30 s of its ttl the key is free, and stays so. */
    syncguard_status status = SYNCGUARD_LOCKED;
    bool locked = true;
    for (int i = 0; i < 100 && (status != SYNCGUARD_OK || locked); i++) {
        status = syncguard_is_locked(backend, "ghost", NULL, &locked, &err);
        test_sleep_ms(50);
    }
    assert_false(locked);
    test_sleep_ms(300);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "ghost", 5000, NULL, &grant, &err));
    syncguard_close(backend);
    server_remove(&s);
}

/* Median within 10 ms, never over 100, in every operation, also while connecting. */
static void abort_ends_a_hanging_call(void **state)
{
    (void)state;
    server s;
    syncguard_grant grant;
    server_start(&s, 0, without_persistence);
    syncguard_backend *backend = open_port(s.port, "");
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "warm", 5000, NULL, &grant, &err));
    kill(s.pid, SIGSTOP);
    for (int i = 0; i < 4; i++) {
        syncguard_backend *used = i < 3 ? backend : open_port(s.port, "");
        syncguard_call call = SYNCGUARD_CALL_INIT;
        syncguard_status status = SYNCGUARD_OK;
        bool locked;
        assert_status(SYNCGUARD_OK, syncguard_abort_create(&call.abort_object, &err));
        pthread_t thread = test_trigger_soon(call.abort_object);
        int64_t start = test_now_ms();
        if (i == 0 || i == 3)
            status = syncguard_acquire(used, "hang", 5000, &call, &grant, &err);
        else if (i == 1)
            status = syncguard_release(used, "AAAAAAAAAAAAAAAAAAAAAA", &call, &err);
        else
            status = syncguard_is_locked(used, "hang", &call, &locked, &err);
        int64_t took = test_now_ms() - start;
        assert_int_equal(status, SYNCGUARD_E_ABORTED);
        assert_in_range(took, 0, PROMPT_MS);
        pthread_join(thread, NULL);
        syncguard_abort_free(call.abort_object);
        if (i == 3)
            syncguard_close(used);
    }
    kill(s.pid, SIGCONT);
    /* Replies to abandoned requests do not confuse later ones. */
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof key, "after%d", i);
        assert_status(SYNCGUARD_OK, syncguard_acquire(backend, key, 5000, NULL, &grant, &err));
        assert_string_equal(grant.fence, "000000000000001");
        assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    }
    syncguard_close(backend);
    server_remove(&s);
}

static void black_hole_ends_by_the_deadline(void **state)
{
    (void)state;
    syncguard_call brief = test_call(300);
    syncguard_grant grant;
    syncguard_backend *backend = test_open("redis://192.0.2.1:6379");
    int64_t start = test_now_ms();
    syncguard_status status = syncguard_acquire(backend, "a", 5000, &brief, &grant, &err);
    /* Some networks answer that address with an error at once. */
    assert_true(status == SYNCGUARD_E_NETWORK_TIMEOUT || status == SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_true(test_now_ms() - start < PROMPT_MS);
    syncguard_close(backend);
    backend = test_open("redis://name.invalid");
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(backend, "a", 5000, NULL, &grant, &err));
    syncguard_close(backend);
}

/* A network path that swallows everything: even callers with short deadlines get another
 * connection, and the kernel discards the unsent bytes of their requests. */
static void silent_connection_is_given_up(void **state)
{
    (void)state;
    proxy p;
    syncguard_grant grant;
    syncguard_call brief = test_call(500);
    proxy_start(&p, redis_port(0));
    syncguard_backend *backend = open_port(p.port, "connections=1&no_tracking=true");
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "warm", 5000, NULL, &grant, &err));
    atomic_store(&p.silent, 1);
    int64_t start = test_now_ms();
    syncguard_status status = SYNCGUARD_E_NETWORK_TIMEOUT;
    bool locked = true;
    for (int i = 0; status == SYNCGUARD_E_NETWORK_TIMEOUT && i < 20; i++)
        status = syncguard_is_locked(backend, "silent", &brief, &locked, &err);
    assert_status(SYNCGUARD_OK, status);
    assert_in_range(test_now_ms() - start, 900, 4000);
    for (int i = 0; i < 100 && atomic_load(&p.resets) == 0; i++)
        test_sleep_ms(10);
    assert_int_equal(atomic_load(&p.resets), 1);
    syncguard_close(backend);
    proxy_stop(&p);
}

/* ---- what the server refuses ---- */

static void check_refusal(syncguard_backend *backend, syncguard_status expected, const char *native)
{
    syncguard_grant grant;
    assert_status(expected,
                  syncguard_acquire(backend, "NOAUTH timeout OOM", 5000, NULL, &grant, &err));
    assert_string_equal(err.native, native);
    assert_null(strstr(err.message, "s3cret"));
    syncguard_close(backend);
}

static void refused_credentials_are_auth_failed(void **state)
{
    (void)state;
    static const char *const guarded[] = {"--requirepass", "pw-marker-s3cret", NULL};
    char url[128];
    server s;
    server_start(&s, 0, guarded);
    check_refusal(open_port(s.port, ""), SYNCGUARD_E_AUTH_FAILED, "NOAUTH");
    snprintf(url, sizeof url, "redis://:wrong@127.0.0.1:%d", s.port);
    check_refusal(test_open(url), SYNCGUARD_E_AUTH_FAILED, "WRONGPASS");
    snprintf(url, sizeof url, "redis://nobody:pw-marker-s3cret@127.0.0.1:%d", s.port);
    check_refusal(test_open(url), SYNCGUARD_E_AUTH_FAILED, "WRONGPASS");
    snprintf(url, sizeof url, "redis://:pw-marker-s3cret@127.0.0.1:%d", s.port);
    syncguard_backend *backend = test_open(url);
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "a", 5000, NULL, &grant, &err));
    freeReplyObject(raw_at(s.port, "AUTH pw-marker-s3cret"));
    freeReplyObject(raw_at(s.port, "ACL SETUSER default -evalsha"));
    assert_status(SYNCGUARD_E_AUTH_FAILED, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_string_equal(err.native, "NOPERM");
    syncguard_close(backend);
    server_remove(&s);
}

/* The stored expiry, and the lifetime of the lock and of its index. */
static void check_stored_lease(int port, const char *key, const char *lock_id, int64_t expires,
                               int64_t ttl_ms)
{
    char digits[40];
    snprintf(digits, sizeof digits, "\"expiresAtMs\":%lld,", (long long)expires);
    redisReply *value = raw_at(port, "GET syncguard:%s", key);
    redisReply *life = raw_at(port, "PTTL syncguard:%s", key);
    redisReply *index_life = raw_at(port, "PTTL syncguard:id:%s", lock_id);
    assert_non_null(strstr(value->str, digits));
    assert_in_range(life->integer, 1, ttl_ms + 1000);
    assert_in_range(index_life->integer, life->integer - 1000, ttl_ms + 1000);
    freeReplyObject(value);
    freeReplyObject(life);
    freeReplyObject(index_life);
}

static void full_memory_is_rate_limited(void **state)
{
    (void)state;
    server s;
    syncguard_grant grant;
    server_start(&s, 0, without_persistence);
    syncguard_backend *backend = open_port(s.port, "");
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "before", 5000, NULL, &grant, &err));
    syncguard_grant undone;
    assert_status(SYNCGUARD_OK,
                  syncguard_acquire(backend, "taken back", 60000, NULL, &undone, &err));
    freeReplyObject(raw_at(s.port, "CONFIG SET maxmemory 1"));
    syncguard_grant refused;
    assert_status(SYNCGUARD_E_RATE_LIMITED,
                  syncguard_acquire(backend, "full", 5000, NULL, &refused, &err));
    assert_string_equal(err.native, "OOM");
    /* Held locks are renewed, one by one and in batches, to longer and to shorter leases. */
    int64_t expires = 0;
    static const int64_t leases[] = {60000, 5000};
    for (size_t i = 0; i < sizeof leases / sizeof leases[0]; i++) {
        assert_status(SYNCGUARD_OK,
                      syncguard_extend(backend, grant.lock_id, leases[i], NULL, &expires, &err));
        check_stored_lease(s.port, "before", grant.lock_id, expires, leases[i]);
    }
    syncguard_extend_op item = {.lock_id = grant.lock_id, .ttl_ms = 30000};
    syncguard_limits limits = {syncguard_clock_ns() + 5000 * SYNCGUARD_NS_PER_MS, NULL};
    assert_status(SYNCGUARD_OK, backend->ops->extend_many(backend, &item, 1, &limits, &err));
    assert_status(SYNCGUARD_OK, item.status);
    check_stored_lease(s.port, "before", grant.lock_id, item.expires_at_ms, 30000);
    /* Neither undoing nor releasing needs memory. */
    assert_status(SYNCGUARD_OK, backend->ops->undo(backend, "taken back", 10, undone.lock_id,
                                                   limits.deadline_ns, &limits, &err));
    bool locked = true;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "taken back", NULL, &locked, &err));
    assert_false(locked);
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
    server_remove(&s);
}

static void connection_limit_is_rate_limited(void **state)
{
    (void)state;
    server s;
    server_start(&s, 0, without_persistence);
    redisContext *one = redisConnect("127.0.0.1", s.port);
    freeReplyObject(redisCommand(one, "CONFIG SET maxclients 1"));
    redisContext *two = redisConnect("127.0.0.1", s.port);
    check_refusal(open_port(s.port, ""), SYNCGUARD_E_RATE_LIMITED, "ERR");
    redisFree(two);
    redisFree(one);
    server_remove(&s);
}

static void replica_and_missing_replicas_are_unavailable(void **state)
{
    (void)state;
    server s;
    server_start(&s, 0, without_persistence);
    freeReplyObject(raw_at(s.port, "CONFIG SET min-replicas-to-write 1"));
    check_refusal(open_port(s.port, ""), SYNCGUARD_E_SERVICE_UNAVAILABLE, "NOREPLICAS");
    freeReplyObject(raw_at(s.port, "CONFIG SET min-replicas-to-write 0"));
    freeReplyObject(raw_at(s.port, "REPLICAOF 127.0.0.1 1"));
    syncguard_backend *backend = open_port(s.port, "");
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(backend, "a", 5000, NULL, &grant, &err));
    syncguard_close(backend);
    server_remove(&s);
}

static void *run_forever(void *argument)
{
    redisContext *context = redisConnect("127.0.0.1", *(int *)argument);
    redisReply *reply = redisCommand(context, "EVAL %s 0", "while true do end");
    if (reply != NULL)
        freeReplyObject(reply);
    redisFree(context);
    return NULL;
}

static void busy_script_is_unavailable(void **state)
{
    (void)state;
    static const char *const quick[] = {"--save", "", "--busy-reply-threshold", "50", NULL};
    server s;
    server_start(&s, 0, quick);
    syncguard_backend *backend = open_port(s.port, "");
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "a", 5000, NULL, &grant, &err));
    pthread_t thread = test_start_thread(run_forever, &s.port);
    test_sleep_ms(300);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(backend, "b", 5000, NULL, &grant, &err));
    assert_string_equal(err.native, "BUSY");
    freeReplyObject(raw_at(s.port, "SCRIPT KILL"));
    pthread_join(thread, NULL);
    syncguard_close(backend);
    server_remove(&s);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_replies_change_nothing),
        cmocka_unit_test(broken_connection_attempts_are_repeated),
        cmocka_unit_test(dead_server_is_told_at_once),
        cmocka_unit_test(restart_with_persistence_keeps_locks_and_fences),
        cmocka_unit_test(redis_unknown_outcome_is_undone),
        cmocka_unit_test(abort_ends_a_hanging_call),
        cmocka_unit_test(black_hole_ends_by_the_deadline),
        cmocka_unit_test(silent_connection_is_given_up),
        cmocka_unit_test(refused_credentials_are_auth_failed),
        cmocka_unit_test(full_memory_is_rate_limited),
        cmocka_unit_test(connection_limit_is_rate_limited),
        cmocka_unit_test(replica_and_missing_replicas_are_unavailable),
        cmocka_unit_test(busy_script_is_unavailable),
    };
    return cmocka_run_group_tests_name("redis faults", tests, NULL, NULL);
}
