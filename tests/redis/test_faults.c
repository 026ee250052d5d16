/*
 * What goes wrong with servers and connections, and what callers hear of it:
 * lost replies, servers that stop, hang, restart, refuse; unknown outcomes that
 * are undone; one code per cause.
 */
#include "support.h"

#include <sys/wait.h>
#include <time.h>

/* Well before the default timeout of 5 s, which is when what hangs would end: a busy machine may
 * need this long for what takes milliseconds. */
#define PROMPT_MS 3000

static const char *const plain[] = {"--save", "", "--appendonly", "no", NULL};

static syncguard_call call_of(int64_t timeout_ms)
{
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.timeout_ms = timeout_ms;
    return call;
}

static void lost_replies_change_nothing(void **state)
{
    (void)state;
    server s;
    proxy p;
    syncguard_grant grant, second;
    int64_t expires;
    server_start(&s, 0, plain);
    proxy_start(&p, s.port);
    syncguard_backend *store = open_port(p.port, "connections=1");
    assert_status(syncguard_acquire(store, "warm", 5000, NULL, &grant, &err), SYNCGUARD_OK);

    atomic_store(&p.lose, 1);
    assert_status(syncguard_acquire(store, "lost", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    assert_int_equal(atomic_load(&p.lose), 0);
    assert_string_equal(grant.fence, "000000000000001");
    atomic_store(&p.lose, 1);
    assert_status(syncguard_acquire(store, "lost", 5000, NULL, &second, &err), SYNCGUARD_LOCKED);
    atomic_store(&p.lose, 1);
    assert_status(syncguard_extend(store, grant.lock_id, 5000, NULL, &expires, &err), SYNCGUARD_OK);
    atomic_store(&p.lose, 1);
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_ABSENT);
    assert_status(syncguard_acquire(store, "lost", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    assert_string_equal(grant.fence, "000000000000002");
    syncguard_close(store);
    proxy_stop(&p);
    server_remove(&s);
}

static void dead_server_is_told_at_once(void **state)
{
    (void)state;
    server s;
    syncguard_grant grant;
    server_start(&s, 0, plain);
    syncguard_backend *store = open_port(s.port, "");
    assert_status(syncguard_acquire(store, "a", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    server_kill(&s);
    int64_t start = now_ms();
    assert_status(syncguard_acquire(store, "b", 5000, NULL, &grant, &err),
                  SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_status(syncguard_release(store,
                                    grant.lock_id[0] ? grant.lock_id : "AAAAAAAAAAAAAAAAAAAAAA",
                                    NULL, &err),
                  SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_true(now_ms() - start < PROMPT_MS);
    /* It comes back without its data, and the handle finds it. */
    server_start(&s, s.port, plain);
    assert_status(syncguard_acquire(store, "a", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    assert_string_equal(grant.fence, "000000000000001");
    syncguard_close(store);
    server_remove(&s);
}

static void restart_with_persistence_keeps_locks_and_fences(void **state)
{
    (void)state;
    static const char *const durable[] = {"--save", "",  "--appendonly", "yes", "--appendfsync",
                                          "always", NULL};
    server s;
    syncguard_grant first, grant;
    int64_t expires;
    server_start(&s, 0, durable);
    syncguard_backend *store = open_port(s.port, "");
    assert_status(syncguard_acquire(store, "kept", 30000, NULL, &first, &err), SYNCGUARD_OK);
    assert_status(syncguard_acquire(store, "other", 30000, NULL, &grant, &err), SYNCGUARD_OK);
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
    server_kill(&s);
    server_start(&s, s.port, durable);
    assert_status(syncguard_acquire(store, "kept", 30000, NULL, &grant, &err), SYNCGUARD_LOCKED);
    assert_status(syncguard_extend(store, first.lock_id, 30000, NULL, &expires, &err),
                  SYNCGUARD_OK);
    assert_status(syncguard_release(store, first.lock_id, NULL, &err), SYNCGUARD_OK);
    assert_status(syncguard_acquire(store, "kept", 30000, NULL, &grant, &err), SYNCGUARD_OK);
    assert_string_equal(grant.fence, "000000000000002");
    assert_status(syncguard_acquire(store, "other", 30000, NULL, &grant, &err), SYNCGUARD_OK);
    assert_string_equal(grant.fence, "000000000000002");
    syncguard_close(store);
    server_remove(&s);
}

/* A server that hangs: the deadline holds, and what it does when it wakes is undone. */
static void unknown_outcome_is_undone(void **state)
{
    (void)state;
    server s;
    syncguard_grant grant;
    syncguard_call brief = call_of(300);
    server_start(&s, 0, plain);
    syncguard_backend *store = open_port(s.port, "");
    assert_status(syncguard_acquire(store, "warm", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    kill(s.pid, SIGSTOP);
    int64_t start = now_ms();
    assert_status(syncguard_acquire(store, "ghost", 30000, &brief, &grant, &err),
                  SYNCGUARD_E_NETWORK_TIMEOUT);
    assert_true(now_ms() - start < PROMPT_MS);
    kill(s.pid, SIGCONT);
    /* Long before the 30 s of its ttl the key is free, and stays so. */
    syncguard_status status = SYNCGUARD_LOCKED;
    bool locked = true;
    for (int i = 0; i < 100 && (status != SYNCGUARD_OK || locked); i++) {
        status = syncguard_is_locked(store, "ghost", NULL, &locked, &err);
        pause_ms(50);
    }
    assert_false(locked);
    pause_ms(300);
    assert_status(syncguard_acquire(store, "ghost", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    syncguard_close(store);
    server_remove(&s);
}

static void *trigger_soon(void *argument)
{
    pause_ms(100);
    syncguard_abort_trigger(argument);
    return NULL;
}

/* Median within 10 ms, never over 100, in every operation, also while connecting. */
static void abort_ends_a_hanging_call(void **state)
{
    (void)state;
    server s;
    syncguard_grant grant;
    server_start(&s, 0, plain);
    syncguard_backend *store = open_port(s.port, "");
    assert_status(syncguard_acquire(store, "warm", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    kill(s.pid, SIGSTOP);
    for (int i = 0; i < 4; i++) {
        syncguard_backend *used = i < 3 ? store : open_port(s.port, "");
        syncguard_call call = SYNCGUARD_CALL_INIT;
        syncguard_status status = SYNCGUARD_OK;
        bool locked;
        pthread_t thread;
        assert_status(syncguard_abort_create(&call.abort_object, &err), SYNCGUARD_OK);
        pthread_create(&thread, NULL, trigger_soon, call.abort_object);
        int64_t start = now_ms();
        if (i == 0 || i == 3)
            status = syncguard_acquire(used, "hang", 5000, &call, &grant, &err);
        else if (i == 1)
            status = syncguard_release(used, "AAAAAAAAAAAAAAAAAAAAAA", &call, &err);
        else
            status = syncguard_is_locked(used, "hang", &call, &locked, &err);
        int64_t took = now_ms() - start;
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
        assert_status(syncguard_acquire(store, key, 5000, NULL, &grant, &err), SYNCGUARD_OK);
        assert_string_equal(grant.fence, "000000000000001");
        assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
    }
    syncguard_close(store);
    server_remove(&s);
}

static void black_hole_ends_by_the_deadline(void **state)
{
    (void)state;
    syncguard_call brief = call_of(300);
    syncguard_grant grant;
    syncguard_backend *store = open_url("redis://192.0.2.1:6379");
    int64_t start = now_ms();
    syncguard_status status = syncguard_acquire(store, "a", 5000, &brief, &grant, &err);
    /* Some networks answer that address with an error at once. */
    assert_true(status == SYNCGUARD_E_NETWORK_TIMEOUT || status == SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_true(now_ms() - start < PROMPT_MS);
    syncguard_close(store);
    store = open_url("redis://name.invalid");
    assert_status(syncguard_acquire(store, "a", 5000, NULL, &grant, &err),
                  SYNCGUARD_E_SERVICE_UNAVAILABLE);
    syncguard_close(store);
}

/* A path that swallows everything: callers in a hurry find another one, too, and what the kernel
 * has left of their requests is thrown away. */
static void deaf_connection_is_given_up(void **state)
{
    (void)state;
    proxy p;
    syncguard_grant grant;
    syncguard_call brief = call_of(500);
    bool locked = true;
    proxy_start(&p, test_port(0));
    syncguard_backend *store = open_port(p.port, "connections=1&no_tracking=true");
    assert_status(syncguard_acquire(store, "warm", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    atomic_store(&p.deaf, 1);
    int64_t start = now_ms();
    syncguard_status status = SYNCGUARD_E_NETWORK_TIMEOUT;
    for (int i = 0; status == SYNCGUARD_E_NETWORK_TIMEOUT && i < 20; i++)
        status = syncguard_is_locked(store, "deaf", &brief, &locked, &err);
    assert_status(status, SYNCGUARD_OK);
    assert_in_range(now_ms() - start, 900, 4000);
    for (int i = 0; i < 100 && atomic_load(&p.resets) == 0; i++)
        pause_ms(10);
    assert_int_equal(atomic_load(&p.resets), 1);
    syncguard_close(store);
    proxy_stop(&p);
}

/* --- what the server refuses --- */

static void check_refusal(syncguard_backend *store, syncguard_status expected, const char *native)
{
    syncguard_grant grant;
    assert_status(syncguard_acquire(store, "NOAUTH timeout OOM", 5000, NULL, &grant, &err),
                  expected);
    assert_string_equal(err.native, native);
    assert_null(strstr(err.message, "s3cret"));
    syncguard_close(store);
}

static void refused_credentials_are_auth_failed(void **state)
{
    (void)state;
    static const char *const guarded[] = {"--requirepass", "s3cret", NULL};
    char url[128];
    server s;
    server_start(&s, 0, guarded);
    check_refusal(open_port(s.port, ""), SYNCGUARD_E_AUTH_FAILED, "NOAUTH");
    snprintf(url, sizeof url, "redis://:wrong@127.0.0.1:%d", s.port);
    check_refusal(open_url(url), SYNCGUARD_E_AUTH_FAILED, "WRONGPASS");
    snprintf(url, sizeof url, "redis://nobody:s3cret@127.0.0.1:%d", s.port);
    check_refusal(open_url(url), SYNCGUARD_E_AUTH_FAILED, "WRONGPASS");
    snprintf(url, sizeof url, "redis://:s3cret@127.0.0.1:%d", s.port);
    syncguard_backend *store = open_url(url);
    syncguard_grant grant;
    assert_status(syncguard_acquire(store, "a", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    freeReplyObject(raw_at(s.port, "AUTH s3cret"));
    freeReplyObject(raw_at(s.port, "ACL SETUSER default -evalsha"));
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_E_AUTH_FAILED);
    assert_string_equal(err.native, "NOPERM");
    syncguard_close(store);
    server_remove(&s);
}

static void full_memory_is_rate_limited(void **state)
{
    (void)state;
    server s;
    syncguard_grant grant;
    server_start(&s, 0, plain);
    syncguard_backend *store = open_port(s.port, "");
    assert_status(syncguard_acquire(store, "before", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    syncguard_grant undone;
    assert_status(syncguard_acquire(store, "taken back", 60000, NULL, &undone, &err), SYNCGUARD_OK);
    freeReplyObject(raw_at(s.port, "CONFIG SET maxmemory 1"));
    syncguard_grant refused;
    assert_status(syncguard_acquire(store, "full", 5000, NULL, &refused, &err),
                  SYNCGUARD_E_RATE_LIMITED);
    assert_string_equal(err.native, "OOM");
    /* Neither undoing nor releasing needs memory. */
    syncguard_limits limits = {syncguard_clock_ns() + 5000 * SYNCGUARD_NS_PER_MS, NULL};
    assert_status(store->ops->undo(store, "taken back", 10, undone.lock_id, limits.deadline_ns,
                                   &limits, &err),
                  SYNCGUARD_OK);
    bool locked = true;
    assert_status(syncguard_is_locked(store, "taken back", NULL, &locked, &err), SYNCGUARD_OK);
    assert_false(locked);
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
    syncguard_close(store);
    server_remove(&s);
}

static void connection_limit_is_rate_limited(void **state)
{
    (void)state;
    server s;
    server_start(&s, 0, plain);
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
    server_start(&s, 0, plain);
    freeReplyObject(raw_at(s.port, "CONFIG SET min-replicas-to-write 1"));
    check_refusal(open_port(s.port, ""), SYNCGUARD_E_SERVICE_UNAVAILABLE, "NOREPLICAS");
    freeReplyObject(raw_at(s.port, "CONFIG SET min-replicas-to-write 0"));
    freeReplyObject(raw_at(s.port, "REPLICAOF 127.0.0.1 1"));
    syncguard_backend *store = open_port(s.port, "");
    syncguard_grant grant;
    assert_status(syncguard_acquire(store, "a", 5000, NULL, &grant, &err),
                  SYNCGUARD_E_SERVICE_UNAVAILABLE);
    syncguard_close(store);
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
    pthread_t thread;
    server_start(&s, 0, quick);
    syncguard_backend *store = open_port(s.port, "");
    syncguard_grant grant;
    assert_status(syncguard_acquire(store, "a", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    pthread_create(&thread, NULL, run_forever, &s.port);
    pause_ms(300);
    assert_status(syncguard_acquire(store, "b", 5000, NULL, &grant, &err),
                  SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_string_equal(err.native, "BUSY");
    freeReplyObject(raw_at(s.port, "SCRIPT KILL"));
    pthread_join(thread, NULL);
    syncguard_close(store);
    server_remove(&s);
}

/* --- many callers --- */

static atomic_bool over;
static atomic_int failures;

static void *hammer(void *argument)
{
    syncguard_backend *store = argument;
    static atomic_int number;
    char key[32];
    syncguard_error error;
    snprintf(key, sizeof key, "hammer:%d", atomic_fetch_add(&number, 1));
    int64_t last = 0;
    while (!atomic_load(&over)) {
        syncguard_grant grant;
        syncguard_status status = syncguard_acquire(store, key, 20000, NULL, &grant, &error);
        if (status == SYNCGUARD_OK) {
            int64_t fence = strtoll(grant.fence, NULL, 10);
            if (fence <= last)
                atomic_fetch_add(&failures, 1);
            last = fence;
            status = syncguard_release(store, grant.lock_id, NULL, &error);
        }
        if (status != SYNCGUARD_OK) {
            if (atomic_fetch_add(&failures, 1) < 10)
                fprintf(stderr, "hammer: %s %s %s\n", syncguard_status_name(status), error.native,
                        error.message);
        }
    }
    return NULL;
}

/* Connections that break under load are replaced, and nobody gets another's reply. */
static void broken_connections_disturb_nobody(void **state)
{
    (void)state;
    server s;
    pthread_t threads[32];
    server_start(&s, 0, plain);
    atomic_store(&over, false);
    atomic_store(&failures, 0);
    syncguard_backend *store = open_port(s.port, "");
    for (int i = 0; i < 32; i++)
        pthread_create(&threads[i], NULL, hammer, store);
    for (int i = 0; i < 20; i++) {
        pause_ms(50);
        freeReplyObject(raw_at(s.port, "CLIENT KILL TYPE normal SKIPME yes"));
        if (i % 5 == 0)
            freeReplyObject(raw_at(s.port, "SCRIPT FLUSH"));
    }
    atomic_store(&over, true);
    for (int i = 0; i < 32; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&failures), 0);
    syncguard_close(store);
    server_remove(&s);
}

static void *one_acquire(void *argument)
{
    syncguard_backend *store = argument;
    syncguard_grant grant;
    syncguard_error error;
    syncguard_call brief = call_of(400);
    char key[40];
    snprintf(key, sizeof key, "stall:%lx", (unsigned long)pthread_self());
    if (syncguard_acquire(store, key, 5000, &brief, &grant, &error) != SYNCGUARD_E_NETWORK_TIMEOUT)
        atomic_fetch_add(&failures, 1);
    return NULL;
}

static void followers_keep_their_own_deadlines(void **state)
{
    (void)state;
    server s;
    pthread_t threads[64];
    syncguard_grant grant;
    server_start(&s, 0, plain);
    atomic_store(&failures, 0);
    syncguard_backend *store = open_port(s.port, "");
    assert_status(syncguard_acquire(store, "warm", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    kill(s.pid, SIGSTOP);
    int64_t start = now_ms();
    for (int i = 0; i < 64; i++)
        pthread_create(&threads[i], NULL, one_acquire, store);
    for (int i = 0; i < 64; i++)
        pthread_join(threads[i], NULL);
    assert_in_range(now_ms() - start, 390, 1500);
    assert_int_equal(atomic_load(&failures), 0);
    kill(s.pid, SIGCONT);
    syncguard_close(store);
    server_remove(&s);
}

#ifndef __SANITIZE_THREAD__ /* which runs handlers later, perhaps under a mutex of ours */
static void hold_the_thread(int signal)
{
    (void)signal;
    pause_ms(2000);
}

static void *ask_once(void *argument)
{
    bool locked = true;
    if (syncguard_is_locked(argument, "asked", NULL, &locked, NULL) != SYNCGUARD_OK)
        atomic_fetch_add(&failures, 1);
    return NULL;
}

/* A thread that does not come for its reply does not keep others from sending. */
static void stuck_follower_holds_up_nobody(void **state)
{
    (void)state;
    server s;
    pthread_t leader, follower;
    bool locked = true;
    struct sigaction hold = {.sa_handler = hold_the_thread}, before;
    assert_int_equal(sigaction(SIGUSR1, &hold, &before), 0);
    server_start(&s, 0, plain);
    atomic_store(&failures, 0);
    syncguard_backend *store = open_port(s.port, "connections=1&no_tracking=true");
    assert_status(syncguard_is_locked(store, "warm", NULL, &locked, &err), SYNCGUARD_OK);
    kill(s.pid, SIGSTOP);
    pthread_create(&leader, NULL, ask_once, store);
    pause_ms(100);
    pthread_create(&follower, NULL, ask_once, store);
    pause_ms(100);
    pthread_kill(follower, SIGUSR1);
    pause_ms(100);
    int64_t start = now_ms();
    kill(s.pid, SIGCONT);
    pthread_join(leader, NULL);
    assert_status(syncguard_is_locked(store, "asked", NULL, &locked, &err), SYNCGUARD_OK);
    int64_t took = now_ms() - start;
    pthread_join(follower, NULL);
    assert_in_range(took, 0, PROMPT_MS);
    assert_int_equal(atomic_load(&failures), 0);
    syncguard_close(store);
    server_remove(&s);
    assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
}
#endif

/* --- long ways --- */

static void *impatient(void *argument)
{
    syncguard_backend *store = argument;
    syncguard_call brief = call_of(50);
    bool locked;
    while (!atomic_load(&over))
        if (syncguard_is_locked(store, "impatient", &brief, &locked, NULL) == SYNCGUARD_OK)
            atomic_fetch_add(&failures, 1); /* an answer without a way */
    return NULL;
}

/* Over a way of more than a second, callers with deadlines of 50 ms get nothing, but those with
 * time get their answers, and locks are renewed: nobody breaks what others wait for. */
static void impatience_breaks_nothing(void **state)
{
    (void)state;
    enum { CALLERS = 10 };
    server s;
    proxy p;
    pthread_t threads[CALLERS];
    syncguard_grant grant;
    syncguard_lock *lock = NULL;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_call patient = call_of(20000);
    server_start(&s, 0, plain);
    proxy_start(&p, s.port);
    syncguard_backend *store = open_port(p.port, "connections=1&timeout_ms=10000");
    options.ttl_ms = 12000;
    options.auto_extend = true;
    assert_status(syncguard_lock_acquire(store, "renewed", &options, &lock, &err), SYNCGUARD_OK);
    atomic_store(&p.delay_ms, 600);
    atomic_store(&over, false);
    for (int i = 0; i < CALLERS; i++)
        pthread_create(&threads[i], NULL, impatient, store);
    int good = 0;
    for (int i = 0; i < 3; i++) {
        pause_ms(2000);
        if (syncguard_acquire(store, "patient", 30000, &patient, &grant, &err) == SYNCGUARD_OK &&
            syncguard_release(store, grant.lock_id, &patient, &err) == SYNCGUARD_OK)
            good++;
    }
    pause_ms(2000);
    atomic_store(&over, true);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(good, 3);
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_NO);
    assert_in_range(atomic_load(&p.accepted), 1, 4);
    syncguard_lock_dispose(lock);
    syncguard_close(store);
    proxy_stop(&p);
    server_remove(&s);
}

/* A deadline shorter than the set-up of a connection: it is finished all the same, and the next
 * calls have it. */
static void connection_outlives_who_asked_for_it(void **state)
{
    (void)state;
    proxy p;
    char url[1024];
    bool locked = true;
    syncguard_call brief = call_of(150);
    int good = 0;
    proxy_start(&p, test_port(0));
    atomic_store(&p.delay_ms, 50);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d?connections=1", p.port);
    syncguard_backend *store = open_url(url);
    brief.timeout_ms = 60; /* less than one round trip: nothing is answered, but it connects */
    for (int i = 0; i < 5; i++)
        good += syncguard_is_locked(store, "short", &brief, &locked, &err) == SYNCGUARD_OK;
    assert_int_equal(good, 0);
    brief.timeout_ms = 150; /* a round trip, but not two */
    for (int i = 0; i < 10; i++)
        good += syncguard_is_locked(store, "short", &brief, &locked, &err) == SYNCGUARD_OK;
    assert_true(good >= 9);
    assert_int_equal(atomic_load(&p.accepted), 1);
    syncguard_close(store);
    proxy_stop(&p);
}

/* Closing does not wait for a connection that nobody waits for. */
static void close_ends_connecting(void **state)
{
    (void)state;
    proxy p;
    bool locked;
    syncguard_call brief = call_of(30);
    proxy_start(&p, test_port(0));
    atomic_store(&p.deaf, 1000);
    syncguard_backend *store = open_port(p.port, "");
    assert_status(syncguard_is_locked(store, "gone", &brief, &locked, &err),
                  SYNCGUARD_E_NETWORK_TIMEOUT);
    int64_t start = now_ms();
    syncguard_close(store);
    assert_in_range(now_ms() - start, 0, PROMPT_MS);
    proxy_stop(&p);
}

static atomic_long latest_ms;
static atomic_int attempts;

static void *give_up_always(void *argument)
{
    syncguard_backend *store = argument;
    syncguard_call brief = call_of(15);
    syncguard_grant grant;
    char key[32];
    while (!atomic_load(&over)) {
        snprintf(key, sizeof key, "ghost:%d", atomic_fetch_add(&attempts, 1));
        int64_t start = now_ms();
        syncguard_status status = syncguard_acquire(store, key, 60000, &brief, &grant, NULL);
        long took = (long)(now_ms() - start);
        /* The answer was there before a busy machine let this thread look at the clock. */
        if (status == SYNCGUARD_OK &&
            syncguard_release(store, grant.lock_id, NULL, NULL) != SYNCGUARD_OK)
            atomic_fetch_add(&failures, 1);
        long seen = atomic_load(&latest_ms);
        while (took > seen && !atomic_compare_exchange_weak(&latest_ms, &seen, took))
            ;
    }
    return NULL;
}

/* Many callers whose grants always come too late: they are taken back as fast as they are made, and
 * nobody waits for that. */
static void undoing_keeps_up(void **state)
{
    (void)state;
    enum { CALLERS = 50 };
    server s;
    proxy p;
    pthread_t threads[CALLERS];
    server_start(&s, 0, plain);
    proxy_start(&p, s.port);
    syncguard_backend *store = open_port(p.port, "");
    bool locked;
    assert_status(syncguard_is_locked(store, "warm", NULL, &locked, &err), SYNCGUARD_OK);
    atomic_store(&p.delay_ms, 10);
    atomic_store(&over, false);
    atomic_store(&failures, 0);
    atomic_store(&attempts, 0);
    atomic_store(&latest_ms, 0);
    for (int i = 0; i < CALLERS; i++)
        pthread_create(&threads[i], NULL, give_up_always, store);
    pause_ms(3000);
    atomic_store(&over, true);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    /* Far less than the ttl; how soon depends on the machine. */
    long long ghosts = 1;
    for (int i = 0; i < 200 && ghosts > 0; i++) {
        pause_ms(100);
        redisReply *reply = raw_at(
            s.port, "EVAL %s 0",
            "local n = 0 for _, k in ipairs(redis.call('KEYS', 'syncguard:ghost:*')) do n = n + 1 "
            "end return n");
        ghosts = reply->integer;
        freeReplyObject(reply);
    }
    print_message("%d attempts, latest %ld ms, %lld ghosts left\n", atomic_load(&attempts),
                  atomic_load(&latest_ms), ghosts);
    assert_int_equal(atomic_load(&failures), 0);
    assert_int_equal(ghosts, 0);
    assert_in_range(atomic_load(&latest_ms), 0, 2000);
    syncguard_close(store);
    proxy_stop(&p);
    server_remove(&s);
}

#ifndef __SANITIZE_THREAD__ /* which takes closing another thread's descriptor for a race */
static void *wait_long(void *argument)
{
    syncguard_lock *lock = NULL;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = 60000;
    if (syncguard_lock_acquire(argument, "awaited", &options, &lock, NULL) == SYNCGUARD_OK)
        syncguard_lock_dispose(lock);
    return NULL;
}

static double processor_s(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

/* Threads of every kind sleep on descriptors when all of them are closed. 0: all is well. */
static int close_all_and_go_on(void)
{
    syncguard_backend *store = NULL;
    syncguard_lock *lock = NULL;
    syncguard_grant grant, other;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_call brief = call_of(1);
    pthread_t thread;
    options.auto_extend = true;
    if (syncguard_open(test_url, NULL, &store, NULL) != SYNCGUARD_OK ||
        syncguard_lock_acquire(store, "renewed", &options, &lock, NULL) != SYNCGUARD_OK ||
        syncguard_acquire(store, "awaited", 30000, NULL, &grant, NULL) != SYNCGUARD_OK)
        return 1;
    pthread_create(&thread, NULL, wait_long, store);
    for (int i = 0; i < 20; i++) { /* something for the background */
        if (syncguard_acquire(store, "late", 1000, &brief, &other, NULL) == SYNCGUARD_OK)
            (void)!syncguard_release(store, other.lock_id, NULL, NULL);
    }
    pause_ms(500);
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    pause_ms(500);
    double before = processor_s();
    pause_ms(2000);
    double used = processor_s() - before;
    fprintf(stderr, "used %.3f s of 2 s\n", used);
    if (used > 0.3)
        return 2;
    if (syncguard_release(store, grant.lock_id, NULL, NULL) < SYNCGUARD_OK)
        return 3;
    pthread_join(thread, NULL);
    return syncguard_lock_lost(lock) == SYNCGUARD_LOST_NO ? 0 : 4;
}

static void closed_descriptors_burn_no_processor(void **state)
{
    (void)state;
    int status = -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(30);
        _exit(close_all_and_go_on());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}
#endif

int main(int argc, char **argv)
{
    test_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_replies_change_nothing),
        cmocka_unit_test(dead_server_is_told_at_once),
        cmocka_unit_test(restart_with_persistence_keeps_locks_and_fences),
        cmocka_unit_test(unknown_outcome_is_undone),
        cmocka_unit_test(abort_ends_a_hanging_call),
        cmocka_unit_test(deaf_connection_is_given_up),
        cmocka_unit_test(black_hole_ends_by_the_deadline),
        cmocka_unit_test(refused_credentials_are_auth_failed),
        cmocka_unit_test(full_memory_is_rate_limited),
        cmocka_unit_test(connection_limit_is_rate_limited),
        cmocka_unit_test(replica_and_missing_replicas_are_unavailable),
        cmocka_unit_test(busy_script_is_unavailable),
        cmocka_unit_test(broken_connections_disturb_nobody),
        cmocka_unit_test(impatience_breaks_nothing),
        cmocka_unit_test(connection_outlives_who_asked_for_it),
        cmocka_unit_test(close_ends_connecting),
        cmocka_unit_test(undoing_keeps_up),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(closed_descriptors_burn_no_processor),
#endif
        cmocka_unit_test(followers_keep_their_own_deadlines),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(stuck_follower_holds_up_nobody),
#endif
    };
    return cmocka_run_group_tests_name("redis faults", tests, NULL, NULL);
}
