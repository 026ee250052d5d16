/* Against the fake server: how many requests an operation takes, and how renewals share them. */
#include "support.h"

#include <syncguard/sys/backend.h>

static void requests_per_operation(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    syncguard_backend *other = fake_server_open(&server, NULL);
    (void)state;
    calls_since();
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    assert_int_equal(calls_since(), 2);
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(other, "k", 30000, NULL, &grant, &err));
    assert_int_equal(calls_since(), 1);
    bool locked;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
    assert_int_equal(calls_since(), 1);
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(mine, "k", NULL, &info, &err));
    assert_int_equal(calls_since(), 1);
    syncguard_close(other);
    syncguard_close(mine);
}

static void requests_of_the_holder(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    calls_since();
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 40000, NULL, NULL, &err));
    assert_int_equal(calls_since(), 1);
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 40000, NULL, NULL, &err));
    assert_int_equal(calls_since(), 1);
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_id(mine, grant.lock_id, NULL, &info, &err));
    assert_int_equal(calls_since(), 1);
    assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
    assert_int_equal(calls_since(), 1);
    syncguard_close(mine);
}

static void requests_of_another_process(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    syncguard_backend *other = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    syncguard_grant second;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "l", 30000, NULL, &second, &err));
    calls_since();
    assert_status(SYNCGUARD_OK, syncguard_extend(other, grant.lock_id, 40000, NULL, NULL, &err));
    assert_int_equal(calls_since(), 2);
    assert_status(SYNCGUARD_OK, syncguard_release(other, second.lock_id, NULL, &err));
    assert_int_equal(calls_since(), 2);
    /* The other process has changed the document, so the cache of this one is out of date. */
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 50000, NULL, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_release(mine, second.lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
    syncguard_close(other);
    syncguard_close(mine);
}

/* I-TEL-07: requests of all operations that may find nothing, through a handle or its decorator. */
static size_t requests_of(syncguard_backend *backend)
{
    calls_since();
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    syncguard_grant other;
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(backend, "k", 30000, NULL, &other, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(backend, grant.lock_id, 30000, NULL, NULL, &err));
    return calls_since();
}

static void the_reason_costs_no_request(void **state)
{
    syncguard_backend *bare = fake_server_open(&server, NULL);
    size_t plain = requests_of(bare);
    (void)state;
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    options.on_event = test_ignore_event;
    syncguard_backend *decorated = NULL;
    assert_status(SYNCGUARD_OK, syncguard_telemetry_wrap(bare, &options, &decorated, &err));
    assert_int_equal(requests_of(decorated), plain);
    syncguard_close(decorated);
}

/* Many renewals are one request; a lock that cannot be renewed is left to a single extend. */
static void renewals_share_a_request(void **state)
{
    enum { LOCKS = SYNCGUARD_BATCH_MAX, GONE = 3, FOREIGN = 7 };
    static syncguard_grant grants[LOCKS];
    static syncguard_extend_op items[LOCKS];
    syncguard_backend *mine = fake_server_open(&server, NULL);
    syncguard_backend *other = fake_server_open(&server, NULL);
    syncguard_limits limits = {syncguard_clock_ns() + INT64_C(20000000000), NULL};
    (void)state;
    for (int i = 0; i < LOCKS; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_status(SYNCGUARD_OK, syncguard_acquire(i == FOREIGN ? other : mine, key, 30000, NULL,
                                                      &grants[i], &err));
        items[i] = (syncguard_extend_op){.lock_id = grants[i].lock_id, .ttl_ms = 60000};
    }
    assert_status(SYNCGUARD_OK, syncguard_release(other, grants[GONE].lock_id, NULL, &err));
    calls_since();
    assert_int_equal(mine->ops->extend_many(mine, items, LOCKS, &limits, &err), SYNCGUARD_OK);
    /* One batch, and one read of the refused documents. */
    assert_int_equal(fake_server_calls(&server, "batchWrite"), 1);
    assert_int_equal(fake_server_calls(&server, "batchGet"), 1);
    assert_int_equal(calls_since(), 2);
    for (int i = 0; i < LOCKS; i++) {
        if (i == GONE || i == FOREIGN) {
            assert_true(items[i].status < 0);
        } else {
            assert_int_equal(items[i].status, SYNCGUARD_OK);
            assert_true(items[i].expires_at_ms > grants[i].expires_at_ms);
        }
    }
    /* The new updateTime is cached; a lock that was refused needs a query. */
    assert_status(SYNCGUARD_OK, syncguard_release(mine, grants[0].lock_id, NULL, &err));
    assert_int_equal(calls_since(), 1);
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(mine, grants[GONE].lock_id, 1000, NULL, NULL, &err));
    assert_status(SYNCGUARD_OK,
                  syncguard_extend(mine, grants[FOREIGN].lock_id, 1000, NULL, NULL, &err));
    syncguard_close(other);
    syncguard_close(mine);
}

/* After a lost reply every guess of the cache is wrong, although every lock is live. */
static void lost_reply_to_a_batch(void **state)
{
    enum { LOCKS = 20, GONE = 3, TAKEN = 7 };
    static syncguard_grant grants[LOCKS];
    static syncguard_extend_op items[LOCKS];
    syncguard_backend *mine = fake_server_open(&server, NULL);
    syncguard_backend *other = fake_server_open(&server, NULL);
    syncguard_limits limits = {syncguard_clock_ns() + INT64_C(20000000000), NULL};
    (void)state;
    for (int i = 0; i < LOCKS; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_status(SYNCGUARD_OK, syncguard_acquire(mine, key, 30000, NULL, &grants[i], &err));
        items[i] = (syncguard_extend_op){.lock_id = grants[i].lock_id, .ttl_ms = 60000};
    }
    assert_status(SYNCGUARD_OK, syncguard_release(other, grants[GONE].lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(other, grants[TAKEN].lock_id, NULL, &err));
    syncguard_grant taken;
    assert_status(SYNCGUARD_OK, syncguard_acquire(other, "k7", 30000, NULL, &taken, &err));
    calls_since();
    fake_server_rules(&server, "[{\"on\":\"batchWrite\",\"do\":\"reset_after\"}]");
    /* libcurl may have sent it again by itself. */
    if (mine->ops->extend_many(mine, items, LOCKS, &limits, &err) != SYNCGUARD_OK)
        assert_status(SYNCGUARD_OK, mine->ops->extend_many(mine, items, LOCKS, &limits, &err));
    assert_int_equal(fake_server_calls(&server, "batchWrite"), 3);
    assert_int_equal(fake_server_calls(&server, "batchGet"), 1);
    assert_int_equal(calls_since(), 4);
    for (int i = 0; i < LOCKS; i++) {
        if (i == GONE || i == TAKEN)
            assert_true(items[i].status < 0);
        else
            assert_int_equal(items[i].status, SYNCGUARD_OK);
    }
    assert_status(SYNCGUARD_OK, syncguard_extend(other, taken.lock_id, 30000, NULL, NULL, &err));
    syncguard_close(other);
    syncguard_close(mine);
}

/* An outdated id is cached with the same document as the current id. */
static void a_batch_names_a_document_once(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    syncguard_backend *other = fake_server_open(&server, NULL);
    syncguard_limits limits = {syncguard_clock_ns() + INT64_C(20000000000), NULL};
    (void)state;
    syncguard_grant grants[3];
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grants[0], &err));
    assert_status(SYNCGUARD_OK, syncguard_release(other, grants[0].lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grants[1], &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "x", 30000, NULL, &grants[2], &err));
    syncguard_extend_op items[3] = {{.ttl_ms = 60000}, {.ttl_ms = 60000}, {.ttl_ms = 60000}};
    for (int i = 0; i < 3; i++)
        items[i].lock_id = grants[i].lock_id;
    assert_status(SYNCGUARD_OK, mine->ops->extend_many(mine, items, 3, &limits, &err));
    assert_true(items[0].status < 0);
    assert_int_equal(items[2].status, SYNCGUARD_OK);
    /* By now the cache has dropped the old id. */
    assert_status(SYNCGUARD_OK, mine->ops->extend_many(mine, items, 3, &limits, &err));
    assert_int_equal(items[1].status, SYNCGUARD_OK);
    syncguard_close(other);
    syncguard_close(mine);
}

/* Holds this many auto-extended locks under these rules, and counts those that are lost. */
static int losses_under(int count, int64_t ttl_ms, int64_t for_ms, const char *rules)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    syncguard_lock **locks = calloc((size_t)count, sizeof(syncguard_lock *));
    assert_non_null(locks);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = ttl_ms;
    options.auto_extend = true;
    options.on_lost = test_count_loss;
    atomic_int lost = 0;
    options.on_lost_context = &lost;
    for (int i = 0; i < count; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_status(SYNCGUARD_OK, syncguard_lock_acquire(mine, key, &options, &locks[i], &err));
    }
    fake_server_rules(&server, rules);
    test_sleep_ms(for_ms);
    fake_server_rules(&server, "[]");
    for (int i = 0; i < count; i++)
        syncguard_lock_dispose(locks[i]);
    free(locks);
    syncguard_close(mine);
    return atomic_load(&lost);
}

static void a_lost_reply_loses_no_locks(void **state)
{
    (void)state;
    /* While the first batch is slow, all other locks become due, and are in the batch that is cut
     * off. */
    assert_int_equal(losses_under(250, 9000, 12000,
                                  "[{\"on\":\"batchWrite\",\"do\":\"delay\",\"ms\":1500},"
                                  "{\"on\":\"batchWrite\",\"do\":\"reset_after\"},"
                                  "{\"on\":\"runQuery\",\"do\":\"delay\",\"ms\":50,\"times\":-1},"
                                  "{\"on\":\"commit\",\"do\":\"delay\",\"ms\":50,\"times\":-1}]"),
                     0);
}

static void renewals_do_without_batches(void **state)
{
    (void)state;
    assert_int_equal(losses_under(5, 2000, 5000,
                                  "[{\"on\":\"batchWrite\",\"do\":\"status\",\"http\":400,"
                                  "\"status\":\"INVALID_ARGUMENT\",\"times\":-1}]"),
                     0);
    assert_true(fake_server_calls(&server, "batchWrite") > 0);
    assert_int_equal(fake_server_calls(&server, "runQuery"), 0);
}

static void one_connection_serves_one_caller(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    for (int i = 0; i < 5; i++) {
        assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
    }
    json_t *log = fake_server_control(&server, "GET", "log", NULL);
    assert_int_equal(json_array_size(log), 15);
    json_int_t first = json_integer_value(json_object_get(json_array_get(log, 0), "connection"));
    for (size_t i = 1; i < json_array_size(log); i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(log, i), "connection")),
                         first);
    json_decref(log);
    syncguard_close(mine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(requests_per_operation, reset_server),
        cmocka_unit_test_setup(requests_of_the_holder, reset_server),
        cmocka_unit_test_setup(requests_of_another_process, reset_server),
        cmocka_unit_test_setup(the_reason_costs_no_request, reset_server),
        cmocka_unit_test_setup(renewals_share_a_request, reset_server),
        cmocka_unit_test_setup(lost_reply_to_a_batch, reset_server),
        cmocka_unit_test_setup(a_batch_names_a_document_once, reset_server),
        cmocka_unit_test_setup(a_lost_reply_loses_no_locks, reset_server),
        cmocka_unit_test_setup(renewals_do_without_batches, reset_server),
        cmocka_unit_test_setup(one_connection_serves_one_caller, reset_server),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
