/*
 * A Cluster: locks stay what they are while their hash slot moves, in every distribution of their
 * names over the two nodes; a handle survives the death of a seed, and of the node of the hash
 * slot. Callers that continue while the hash slot moves: see test_cluster_move.c.
 */
#include "cluster.h"

#include "backends/redis/operations.h"

/* ---- every distribution of a lock's names over the two nodes ---- */

static const syncguard_call *cluster_short_call(void)
{
    static syncguard_call call = SYNCGUARD_CALL_INIT;
    call.timeout_ms = 2000;
    return &call;
}

static void held_lock_stays_held(const char *key, const char *lock_id)
{
    syncguard_lock_info info;
    int64_t expires = 0;
    assert_status(SYNCGUARD_OK,
                  syncguard_extend(store, lock_id, 60000, cluster_short_call(), &expires, &err));
    assert_status(SYNCGUARD_OK,
                  syncguard_get_by_id(store, lock_id, cluster_short_call(), &info, &err));
    assert_status(SYNCGUARD_OK,
                  syncguard_get_by_key(store, key, cluster_short_call(), &info, &err));
    bool flag = false;
    assert_status(SYNCGUARD_OK, syncguard_owns(store, lock_id, cluster_short_call(), &flag, &err));
    assert_true(flag);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(store, key, cluster_short_call(), &flag, &err));
    assert_true(flag);
    syncguard_grant grant;
    assert_status(SYNCGUARD_LOCKED,
                  syncguard_acquire(store, key, 60000, cluster_short_call(), &grant, &err));
}

static void released_lock_is_gone(const char *key, const char *lock_id)
{
    int64_t expires = 0;
    assert_status(SYNCGUARD_OK, syncguard_release(store, lock_id, cluster_short_call(), &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_release(store, lock_id, cluster_short_call(), &err));
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(store, lock_id, 60000, cluster_short_call(), &expires, &err));
    bool flag = true;
    assert_status(SYNCGUARD_OK, syncguard_owns(store, lock_id, cluster_short_call(), &flag, &err));
    assert_false(flag);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(store, key, cluster_short_call(), &flag, &err));
    assert_false(flag);
}

static void half_moved_locks_are_what_they_are(void **state)
{
    (void)state;
    enum { STATES = 8 };
    syncguard_grant grants[STATES], grant;
    char key[32];
    move m;
    for (int mask = 0; mask < STATES; mask++) {
        snprintf(key, sizeof key, "half:%d", mask);
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(store, key, 60000, NULL, &grants[mask], &err));
    }
    begin_move(&m);
    for (int mask = 0; mask < STATES; mask++) {
        snprintf(key, sizeof key, "half:%d", mask);
        spread(&m, key, grants[mask].lock_id, mask);
        held_lock_stays_held(key, grants[mask].lock_id);
        released_lock_is_gone(key, grants[mask].lock_id);
        /* The counter is where it was, and the other names are gone: the next grant counts on. */
        for (int turn = 2; turn <= 3; turn++) {
            assert_status(SYNCGUARD_OK,
                          syncguard_acquire(store, key, 60000, cluster_short_call(), &grant, &err));
            assert_int_equal(strtoll(grant.fence, NULL, 10), turn);
            held_lock_stays_held(key, grant.lock_id);
            released_lock_is_gone(key, grant.lock_id);
        }
    }
    assert_status(SYNCGUARD_OK,
                  syncguard_acquire(store, "half:new", 60000, cluster_short_call(), &grant, &err));
    assert_string_equal(grant.fence, "000000000000001");
    released_lock_is_gone("half:new", grant.lock_id);
    end_move(&m);
    only_counters_are_left(&m);
    assert_status(SYNCGUARD_OK,
                  syncguard_acquire(store, "half:5", 60000, cluster_short_call(), &grant, &err));
    assert_string_equal(grant.fence, "000000000000004");
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
}

/* Wherever the names are, the acquire is undone, and its id cannot be granted any more. */
static void half_moved_grants_are_undone(void **state)
{
    (void)state;
    syncguard_grant grants[8];
    char key[32];
    move m;
    for (int mask = 0; mask < 8; mask++) {
        snprintf(key, sizeof key, "undone:%d", mask);
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(store, key, 60000, NULL, &grants[mask], &err));
    }
    begin_move(&m);
    for (int mask = 0; mask < 8; mask++) {
        syncguard_limits limits = {syncguard_clock_ns() + 2000 * SYNCGUARD_NS_PER_MS, NULL};
        snprintf(key, sizeof key, "undone:%d", mask);
        spread(&m, key, grants[mask].lock_id, mask);
        assert_status(SYNCGUARD_OK,
                      sg_redis_undo(store, key, strlen(key), grants[mask].lock_id,
                                    syncguard_clock_ns() + 60000 * SYNCGUARD_NS_PER_MS, &limits,
                                    &err));
        bool locked = true;
        assert_status(SYNCGUARD_OK,
                      syncguard_is_locked(store, key, cluster_short_call(), &locked, &err));
        assert_false(locked);
        syncguard_acquire_op op;
        memset(&op, 0, sizeof op);
        op.key = key;
        op.key_length = strlen(key);
        op.lock_id = grants[mask].lock_id;
        op.owner = "";
        op.ttl_ms = 60000;
        op.limits = limits;
        assert_int_equal(sg_redis_acquire(store, &op, &err), SYNCGUARD_E_INTERNAL);
        assert_string_equal(err.native, "SPENT");
        assert_status(SYNCGUARD_OK,
                      syncguard_is_locked(store, key, cluster_short_call(), &locked, &err));
        assert_false(locked);
    }
    end_move(&m);
}

/* A dead lock is taken over, wherever its names are. */
static void half_moved_dead_locks_are_taken_over(void **state)
{
    (void)state;
    syncguard_grant grants[8];
    char key[32];
    move m;
    for (int mask = 0; mask < 8; mask++) {
        snprintf(key, sizeof key, "dead:%d", mask);
        assert_status(SYNCGUARD_OK, syncguard_acquire(store, key, 100, NULL, &grants[mask], &err));
        char id[64];
        int owner = owner_of(our_hash_slot(), id);
        freeReplyObject(raw_at(redis_port(owner), "PERSIST {syncguard}:%s", key));
        freeReplyObject(
            raw_at(redis_port(owner), "PERSIST {syncguard}:id:%s", grants[mask].lock_id));
    }
    test_sleep_ms(1300);
    begin_move(&m);
    syncguard_grant grant;
    for (int mask = 0; mask < 8; mask++) {
        snprintf(key, sizeof key, "dead:%d", mask);
        spread(&m, key, grants[mask].lock_id, mask);
        int64_t expires = 0;
        assert_status(SYNCGUARD_ABSENT, syncguard_extend(store, grants[mask].lock_id, 60000,
                                                         cluster_short_call(), &expires, &err));
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(store, key, 60000, cluster_short_call(), &grant, &err));
        assert_string_equal(grant.fence, "000000000000002");
        held_lock_stays_held(key, grant.lock_id);
        released_lock_is_gone(key, grant.lock_id);
    }
    end_move(&m);
    for (int mask = 0; mask < 8; mask++) /* their index would have expired */
        freeReplyObject(raw_at(redis_port(m.to), "DEL {syncguard}:id:%s", grants[mask].lock_id));
}

static int64_t life_ms(const move *m, const char *format, const char *text)
{
    redisReply *reply = raw_at(redis_port(m->to), format, text);
    int64_t life = reply->integer;
    freeReplyObject(reply);
    assert_true(life > 0);
    return life;
}

/* A live lock whose index has expired would count as absent. The lock is written after it. */
static void index_outlives_its_lock(void **state)
{
    (void)state;
    syncguard_grant grants[2];
    move m;
    assert_status(SYNCGUARD_OK,
                  syncguard_acquire(store, "outlived:0", 30000, NULL, &grants[0], &err));
    begin_move(&m);
    spread(&m, "outlived:0", grants[0].lock_id, 1);
    int64_t expires = 0;
    assert_status(SYNCGUARD_OK,
                  syncguard_extend(store, grants[0].lock_id, 60000, NULL, &expires, &err));
    assert_status(SYNCGUARD_OK,
                  syncguard_acquire(store, "outlived:1", 60000, NULL, &grants[1], &err));
    end_move(&m);
    for (int i = 0; i < 2; i++) {
        int64_t lock = life_ms(&m, "PTTL {syncguard}:outlived:%s", i == 0 ? "0" : "1");
        assert_true(life_ms(&m, "PTTL {syncguard}:id:%s", grants[i].lock_id) > lock);
        assert_status(SYNCGUARD_OK, syncguard_release(store, grants[i].lock_id, NULL, &err));
    }
    only_counters_are_left(&m);
}

/* ---- every seed and every node ---- */

/* From any seed, a handle finds the node of its hash slot, also to list. */
static void any_seed_will_do(void **state)
{
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, "seeded", 60000, NULL, &grant, &err));
    for (int i = 0; i < 3; i++) {
        char url[128];
        int count = 0;
        snprintf(url, sizeof url, "redis+cluster://127.0.0.1:1,127.0.0.1:%d", redis_port(i));
        syncguard_backend *other = test_open(url);
        assert_status(SYNCGUARD_OK, syncguard_list(other, NULL, test_count_info, &count, &err));
        assert_int_equal(count, 1);
        syncguard_grant refused;
        assert_status(SYNCGUARD_LOCKED,
                      syncguard_acquire(other, "seeded", 5000, NULL, &refused, &err));
        syncguard_close(other);
    }
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
}

/* No lock is left out of a list, whichever node has it. */
static void list_sees_both_nodes(void **state)
{
    (void)state;
    syncguard_grant grants[20];
    char key[32];
    move m;
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "listed:%d", i);
        assert_status(SYNCGUARD_OK, syncguard_acquire(store, key, 60000, NULL, &grants[i], &err));
    }
    begin_move(&m);
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "listed:%d", i);
        spread(&m, key, grants[i].lock_id, i % 8);
    }
    int count = 0;
    assert_status(SYNCGUARD_OK, syncguard_list(store, NULL, test_count_info, &count, &err));
    assert_int_equal(count, 20);
    end_move(&m);
    for (int i = 0; i < 20; i++)
        assert_status(SYNCGUARD_OK, syncguard_release(store, grants[i].lock_id, NULL, &err));
}

/* ---- the death of nodes ---- */

/* The other nodes hear of a new owner from each other, after the client may have found it. */
static int owner_in_the_end(int hash_slot, int expected)
{
    char id[64];
    int owner = owner_of(hash_slot, id);
    for (int i = 0; i < 200 && owner != expected; i++) {
        test_sleep_ms(100);
        owner = owner_of(hash_slot, id);
    }
    return owner;
}

/* A cluster answers again once all its nodes have agreed. */
static syncguard_status acquire_in_the_end(syncguard_backend *other, const char *key,
                                           syncguard_grant *grant)
{
    syncguard_status status = syncguard_acquire(other, key, 60000, NULL, grant, &err);
    for (int i = 0; i < 200 && status == SYNCGUARD_E_SERVICE_UNAVAILABLE; i++) {
        test_sleep_ms(100);
        status = syncguard_acquire(other, key, 60000, NULL, grant, &err);
    }
    return status;
}

/* The only server that the handle was given is the one that dies. */
static void cluster_outlives_its_seed(void **state)
{
    (void)state;
    char url[128], id[64];
    syncguard_grant grant;
    int hash_slot = our_hash_slot();
    int owner = owner_of(hash_slot, id);
    snprintf(url, sizeof url, "redis+cluster://127.0.0.1:%d", redis_port(owner));
    syncguard_backend *other = test_open(url);
    assert_status(SYNCGUARD_OK, syncguard_acquire(other, "outlives", 120000, NULL, &grant, &err));
    test_sleep_ms(500); /* replication */
    witness = (owner + 1) % PRIMARIES;
    kill(redis_pid(owner), SIGKILL);
    int64_t start = test_now_ms();
    syncguard_status status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    int64_t expires;
    while (status != SYNCGUARD_OK && test_now_ms() - start < 40000) {
        test_sleep_ms(100);
        status = syncguard_extend(other, grant.lock_id, 120000, NULL, &expires, &err);
        if (status != SYNCGUARD_OK && status != SYNCGUARD_E_SERVICE_UNAVAILABLE &&
            status != SYNCGUARD_E_NETWORK_TIMEOUT)
            fail_msg("%s %s %s", syncguard_status_name(status), err.native, err.message);
    }
    assert_status(SYNCGUARD_OK, status);
    print_message("followed after %d ms\n", (int)(test_now_ms() - start));
    assert_int_equal(owner_in_the_end(hash_slot, owner + PRIMARIES), owner + PRIMARIES);
    assert_status(SYNCGUARD_OK, syncguard_release(other, grant.lock_id, NULL, &err));
    syncguard_close(other);
}

/* A server that has the address of a former node, and would grant anything. */
static void stranger_is_not_taken_for_a_node(void **state)
{
    (void)state;
    char url[128], id[64];
    syncguard_grant grant;
    int hash_slot = our_hash_slot();
    int owner = owner_of(hash_slot, id);
    if (owner == witness)
        witness = (owner + 1) % PRIMARIES;
    snprintf(url, sizeof url, "redis+cluster://127.0.0.1:%d", redis_port(witness));
    syncguard_backend *other = test_open(url);
    assert_status(SYNCGUARD_OK, acquire_in_the_end(other, "strange", &grant));
    server stranger;
    server_start(&stranger, 0, NULL);
    server_kill(&stranger);
    kill(redis_pid(owner), SIGKILL);
    test_sleep_ms(300);
    server_start(&stranger, redis_port(owner), NULL);
    for (int i = 0; i < 3; i++) {
        syncguard_grant wrong;
        syncguard_status status =
            syncguard_acquire(other, "strange", 60000, cluster_short_call(), &wrong, &err);
        assert_true(status < 0 || status == SYNCGUARD_LOCKED);
    }
    redisReply *reply = raw_at(stranger.port, "DBSIZE");
    assert_int_equal(reply->integer, 0);
    freeReplyObject(reply);
    syncguard_close(other);
    server_kill(&stranger);
    server_remove(&stranger);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_seed_will_do),
        cmocka_unit_test(half_moved_locks_are_what_they_are),
        cmocka_unit_test(half_moved_dead_locks_are_taken_over),
        cmocka_unit_test(index_outlives_its_lock),
        cmocka_unit_test(list_sees_both_nodes),
        cmocka_unit_test(half_moved_grants_are_undone),
        cmocka_unit_test(cluster_outlives_its_seed), /* the last: servers are missing then */
        cmocka_unit_test(stranger_is_not_taken_for_a_node),
    };
    return cmocka_run_group_tests_name("redis cluster", tests, open_store, close_store);
}
