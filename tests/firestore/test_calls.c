/*
 * Against the stand-in: how many requests an operation takes, what each status of
 * the server means, conflicts, lost replies, bad bodies.
 */
#include "standin.h"

#include <syncguard/sys/backend.h>

static standin server;
static syncguard_error err;

static int start(void **state)
{
    (void)state;
    standin_start(&server, NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    standin_stop(&server);
    return 0;
}

static int clean(void **state)
{
    (void)state;
    standin_reset(&server);
    return 0;
}

static size_t calls_since(void)
{
    size_t count = standin_calls(&server, NULL);
    standin_forget(&server);
    return count;
}

static void requests_per_operation(void **state)
{
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_backend *other = standin_open(&server, NULL);
    syncguard_grant grant;
    syncguard_lock_info info;
    bool locked;

    (void)state;
    calls_since();
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    assert_int_equal(calls_since(), 2);
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(other, "k", 30000, NULL, &grant, &err));
    assert_int_equal(calls_since(), 1);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
    assert_int_equal(calls_since(), 1);
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(mine, "k", NULL, &info, &err));
    assert_int_equal(calls_since(), 1);
    syncguard_close(other);
    syncguard_close(mine);
}

static void requests_of_the_holder(void **state)
{
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_grant grant;
    syncguard_lock_info info;

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    calls_since();
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 40000, NULL, NULL, &err));
    assert_int_equal(calls_since(), 1);
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 40000, NULL, NULL, &err));
    assert_int_equal(calls_since(), 1);
    assert_status(SYNCGUARD_OK, syncguard_get_by_id(mine, grant.lock_id, NULL, &info, &err));
    assert_int_equal(calls_since(), 1);
    assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
    assert_int_equal(calls_since(), 1);
    syncguard_close(mine);
}

static void requests_of_another_process(void **state)
{
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_backend *other = standin_open(&server, NULL);
    syncguard_grant grant;
    syncguard_grant second;

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "l", 30000, NULL, &second, &err));
    calls_since();
    assert_status(SYNCGUARD_OK, syncguard_extend(other, grant.lock_id, 40000, NULL, NULL, &err));
    assert_int_equal(calls_since(), 2);
    assert_status(SYNCGUARD_OK, syncguard_release(other, second.lock_id, NULL, &err));
    assert_int_equal(calls_since(), 2);
    /* What the other process changed is no longer what this one remembers. */
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 50000, NULL, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_release(mine, second.lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
    syncguard_close(other);
    syncguard_close(mine);
}

/* I-TEL-07: requests of everything that can fail to find, through a handle or its decorator. */
static size_t requests_of(syncguard_backend *backend)
{
    syncguard_grant grant, other;

    calls_since();
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(backend, "k", 30000, NULL, &other, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(backend, grant.lock_id, 30000, NULL, NULL, &err));
    return calls_since();
}

static void ignore_event(void *context, const syncguard_event *event)
{
    (void)context, (void)event;
}

static void the_reason_costs_no_request(void **state)
{
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    syncguard_backend *bare = standin_open(&server, NULL), *decorated = NULL;
    size_t plain = requests_of(bare);

    (void)state;
    options.on_event = ignore_event;
    assert_status(SYNCGUARD_OK, syncguard_telemetry_wrap(bare, &options, &decorated, &err));
    assert_int_equal(requests_of(decorated), plain);
    syncguard_close(decorated);
}

/* Many renewals are one request; what cannot be renewed is left to be looked at singly. */
static void renewals_share_a_request(void **state)
{
    enum { LOCKS = 270, GONE = 3, FOREIGN = 7 };
    static syncguard_grant grants[LOCKS];
    static syncguard_extend_op items[LOCKS];
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_backend *other = standin_open(&server, NULL);
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
    /* 256 and 14; and one look at what was refused. */
    assert_int_equal(standin_calls(&server, "batchWrite"), 2);
    assert_int_equal(standin_calls(&server, "batchGet"), 1);
    assert_int_equal(calls_since(), 3);
    for (int i = 0; i < LOCKS; i++) {
        if (i == GONE || i == FOREIGN) {
            assert_true(items[i].status < 0);
        } else {
            assert_int_equal(items[i].status, SYNCGUARD_OK);
            assert_true(items[i].expires_at_ms > grants[i].expires_at_ms);
        }
    }
    /* The new updateTime is known, and what failed is looked up. */
    assert_status(SYNCGUARD_OK, syncguard_release(mine, grants[0].lock_id, NULL, &err));
    assert_int_equal(calls_since(), 1);
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(mine, grants[GONE].lock_id, 1000, NULL, NULL, &err));
    assert_status(SYNCGUARD_OK,
                  syncguard_extend(mine, grants[FOREIGN].lock_id, 1000, NULL, NULL, &err));
    syncguard_close(other);
    syncguard_close(mine);
}

/* After a lost reply every guess of the memo is wrong, and every lock well. */
static void lost_reply_to_a_batch(void **state)
{
    enum { LOCKS = 20, GONE = 3, TAKEN = 7 };
    static syncguard_grant grants[LOCKS];
    static syncguard_extend_op items[LOCKS];
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_backend *other = standin_open(&server, NULL);
    syncguard_limits limits = {syncguard_clock_ns() + INT64_C(20000000000), NULL};
    syncguard_grant taken;

    (void)state;
    for (int i = 0; i < LOCKS; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_status(SYNCGUARD_OK, syncguard_acquire(mine, key, 30000, NULL, &grants[i], &err));
        items[i] = (syncguard_extend_op){.lock_id = grants[i].lock_id, .ttl_ms = 60000};
    }
    assert_status(SYNCGUARD_OK, syncguard_release(other, grants[GONE].lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(other, grants[TAKEN].lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(other, "k7", 30000, NULL, &taken, &err));
    calls_since();
    standin_rules(&server, "[{\"on\":\"batchWrite\",\"do\":\"reset_after\"}]");
    /* libcurl may have sent it again by itself. */
    if (mine->ops->extend_many(mine, items, LOCKS, &limits, &err) != SYNCGUARD_OK)
        assert_status(SYNCGUARD_OK, mine->ops->extend_many(mine, items, LOCKS, &limits, &err));
    assert_int_equal(standin_calls(&server, "batchWrite"), 3);
    assert_int_equal(standin_calls(&server, "batchGet"), 1);
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

/* An id that is out of date names the same document as the one that is not. */
static void a_batch_names_a_document_once(void **state)
{
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_backend *other = standin_open(&server, NULL);
    syncguard_limits limits = {syncguard_clock_ns() + INT64_C(20000000000), NULL};
    syncguard_extend_op items[3] = {{.ttl_ms = 60000}, {.ttl_ms = 60000}, {.ttl_ms = 60000}};
    syncguard_grant grants[3];

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grants[0], &err));
    assert_status(SYNCGUARD_OK, syncguard_release(other, grants[0].lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grants[1], &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "x", 30000, NULL, &grants[2], &err));
    for (int i = 0; i < 3; i++)
        items[i].lock_id = grants[i].lock_id;
    assert_status(SYNCGUARD_OK, mine->ops->extend_many(mine, items, 3, &limits, &err));
    assert_true(items[0].status < 0);
    assert_int_equal(items[2].status, SYNCGUARD_OK);
    /* By now the old one is forgotten. */
    assert_status(SYNCGUARD_OK, mine->ops->extend_many(mine, items, 3, &limits, &err));
    assert_int_equal(items[1].status, SYNCGUARD_OK);
    syncguard_close(other);
    syncguard_close(mine);
}

static void count_loss(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)lock;
    (void)reason;
    atomic_fetch_add((atomic_int *)context, 1);
}

/* Holds that many auto-extended locks under these rules, and counts those that are lost. */
static int losses_under(int count, int64_t ttl_ms, int64_t for_ms, const char *rules)
{
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock **locks = calloc((size_t)count, sizeof(syncguard_lock *));
    atomic_int lost = 0;

    assert_non_null(locks);
    options.ttl_ms = ttl_ms;
    options.auto_extend = true;
    options.on_lost = count_loss;
    options.on_lost_context = &lost;
    for (int i = 0; i < count; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_status(SYNCGUARD_OK, syncguard_lock_acquire(mine, key, &options, &locks[i], &err));
    }
    standin_rules(&server, rules);
    pause_ms(for_ms);
    standin_rules(&server, "[]");
    for (int i = 0; i < count; i++)
        syncguard_lock_dispose(locks[i]);
    free(locks);
    syncguard_close(mine);
    return atomic_load(&lost);
}

static void a_lost_reply_loses_no_locks(void **state)
{
    (void)state;
    /* While the first batch is slow all the others come due, and are in the one that is cut off. */
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
    assert_true(standin_calls(&server, "batchWrite") > 0);
    assert_int_equal(standin_calls(&server, "runQuery"), 0);
}

static void one_connection_serves_one_caller(void **state)
{
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_grant grant;
    json_t *log;
    json_int_t first;

    (void)state;
    for (int i = 0; i < 5; i++) {
        assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
    }
    log = standin_control(&server, "GET", "log", NULL);
    assert_int_equal(json_array_size(log), 15);
    first = json_integer_value(json_object_get(json_array_get(log, 0), "connection"));
    for (size_t i = 1; i < json_array_size(log); i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(log, i), "connection")),
                         first);
    json_decref(log);
    syncguard_close(mine);
}

/* What each status means to a read, to a query and to a commit. */
static const struct {
    int http;
    const char *word;
    syncguard_status read;
    syncguard_status commit;
} words[] = {
    {400, "INVALID_ARGUMENT", SYNCGUARD_E_INVALID_ARGUMENT, SYNCGUARD_E_INVALID_ARGUMENT},
    {400, "FAILED_PRECONDITION", SYNCGUARD_E_INVALID_ARGUMENT, SYNCGUARD_E_SERVICE_UNAVAILABLE},
    {400, "OUT_OF_RANGE", SYNCGUARD_E_INVALID_ARGUMENT, SYNCGUARD_E_INVALID_ARGUMENT},
    {401, "UNAUTHENTICATED", SYNCGUARD_E_AUTH_FAILED, SYNCGUARD_E_AUTH_FAILED},
    {403, "PERMISSION_DENIED", SYNCGUARD_E_AUTH_FAILED, SYNCGUARD_E_AUTH_FAILED},
    {404, "NOT_FOUND", SYNCGUARD_E_INVALID_ARGUMENT, SYNCGUARD_E_SERVICE_UNAVAILABLE},
    {409, "ABORTED", SYNCGUARD_E_SERVICE_UNAVAILABLE, SYNCGUARD_E_SERVICE_UNAVAILABLE},
    {409, "ALREADY_EXISTS", SYNCGUARD_E_INTERNAL, SYNCGUARD_E_SERVICE_UNAVAILABLE},
    {429, "RESOURCE_EXHAUSTED", SYNCGUARD_E_RATE_LIMITED, SYNCGUARD_E_RATE_LIMITED},
    {499, "CANCELLED", SYNCGUARD_E_SERVICE_UNAVAILABLE, SYNCGUARD_E_SERVICE_UNAVAILABLE},
    {500, "DATA_LOSS", SYNCGUARD_E_INTERNAL, SYNCGUARD_E_INTERNAL},
    {500, "UNKNOWN", SYNCGUARD_E_INTERNAL, SYNCGUARD_E_INTERNAL},
    {500, "INTERNAL", SYNCGUARD_E_SERVICE_UNAVAILABLE, SYNCGUARD_E_SERVICE_UNAVAILABLE},
    {501, "UNIMPLEMENTED", SYNCGUARD_E_INTERNAL, SYNCGUARD_E_INTERNAL},
    {503, "UNAVAILABLE", SYNCGUARD_E_SERVICE_UNAVAILABLE, SYNCGUARD_E_SERVICE_UNAVAILABLE},
    {504, "DEADLINE_EXCEEDED", SYNCGUARD_E_NETWORK_TIMEOUT, SYNCGUARD_E_NETWORK_TIMEOUT},
    {418, "NO_SUCH_STATUS", SYNCGUARD_E_INTERNAL, SYNCGUARD_E_INTERNAL},
};

static void rule_for(const char *call, int http, const char *word, int times, const char *more)
{
    char text[256];

    snprintf(text, sizeof text,
             "[{\"on\":\"%s\",\"do\":\"status\",\"http\":%d,\"status\":\"%s\",\"times\":%d%s}]",
             call, http, word, times, more);
    standin_rules(&server, text);
}

static void each_status_of_a_read(void **state)
{
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_lock_info info;
    syncguard_grant grant;
    bool locked;

    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        rule_for("batchGet", words[i].http, words[i].word, -1, "");
        assert_status(words[i].read, syncguard_is_locked(mine, "k", NULL, &locked, &err));
        assert_string_equal(err.native, i < 16 ? words[i].word : "HTTP");
        assert_null(strstr(err.message, "text with"));
        assert_status(words[i].read, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        /* Streamed calls wrap their errors into an array. */
        rule_for("runQuery", words[i].http, words[i].word, -1, ",\"array\":true");
        assert_status(words[i].read,
                      syncguard_get_by_id(mine, "AAAAAAAAAAAAAAAAAAAAAA", NULL, &info, &err));
        assert_status(words[i].read, syncguard_release(mine, "AAAAAAAAAAAAAAAAAAAAAA", NULL, &err));
    }
    syncguard_close(mine);
}

static void each_status_of_a_commit(void **state)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_backend *mine;
    syncguard_grant grant;

    (void)state;
    options.dispose_timeout_ms = 1; /* do not wait for undoing what the stand-in refuses */
    mine = standin_open(&server, &options);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        rule_for("commit", words[i].http, words[i].word, -1, "");
        assert_status(words[i].commit, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    }
    standin_rules(&server, "[]");
    syncguard_close(mine);
}

static void answers_of_others_on_the_way(void **state)
{
    static const struct {
        int http;
        syncguard_status wanted;
    } proxies[] = {
        {407, SYNCGUARD_E_AUTH_FAILED},         {408, SYNCGUARD_E_NETWORK_TIMEOUT},
        {413, SYNCGUARD_E_INVALID_ARGUMENT},    {429, SYNCGUARD_E_RATE_LIMITED},
        {502, SYNCGUARD_E_SERVICE_UNAVAILABLE}, {503, SYNCGUARD_E_SERVICE_UNAVAILABLE},
        {504, SYNCGUARD_E_NETWORK_TIMEOUT},     {302, SYNCGUARD_E_INTERNAL},
    };
    syncguard_backend *mine = standin_open(&server, NULL);
    bool locked;

    (void)state;
    for (size_t i = 0; i < sizeof proxies / sizeof proxies[0]; i++) {
        rule_for("batchGet", proxies[i].http, "", -1, ",\"plain\":true");
        assert_status(proxies[i].wanted, syncguard_is_locked(mine, "k", NULL, &locked, &err));
    }
    syncguard_close(mine);
}

static void conflicts_are_decided_again(void **state)
{
    static const struct {
        int http;
        const char *word;
    } conflicts[] = {{409, "ABORTED"}, {400, "FAILED_PRECONDITION"}, {409, "ALREADY_EXISTS"}};
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_grant grant;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        rule_for("commit", conflicts[i].http, conflicts[i].word, 4, "");
        standin_forget(&server);
        assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        assert_int_equal(standin_calls(&server, "batchGet"), 5);
        assert_int_equal(standin_calls(&server, "commit"), 5);
        rule_for("commit", conflicts[i].http, conflicts[i].word, 2, "");
        assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 9000, NULL, NULL, &err));
        rule_for("commit", conflicts[i].http, conflicts[i].word, 2, "");
        assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
        rule_for("commit", conflicts[i].http, conflicts[i].word, 5, "");
        standin_forget(&server);
        assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                      syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        assert_string_equal(err.native, conflicts[i].word);
        assert_int_equal(standin_calls(&server, "commit"), 5);
    }
    syncguard_close(mine);
}

static void the_counter_moves_only_with_a_grant(void **state)
{
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_grant grant;
    json_t *counter;

    (void)state;
    rule_for("commit", 409, "ABORTED", 3, "");
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    assert_string_equal(grant.fence, "000000000000001");
    counter = standin_document(&server, "fence_counters/fence:k");
    assert_string_equal(standin_field(counter, "fence"), "000000000000001");
    json_decref(counter);
    syncguard_close(mine);
}

/* The reply to the commit is lost: what was applied is found again, not fought. */
static void lost_reply_to_an_acquire(void **state)
{
    static const char *const ways[] = {"reset_after", "truncate"};
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_grant grant;
    char rule[96];

    (void)state;
    for (int i = 0; i < 6; i++) {
        char fence[32];
        snprintf(rule, sizeof rule, "[{\"on\":\"commit\",\"do\":\"%s\"}]", ways[i % 2]);
        standin_rules(&server, rule);
        assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        snprintf(fence, sizeof fence, "%015d", i + 1);
        assert_string_equal(grant.fence, fence);
        standin_forget(&server);
        assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
        assert_int_equal(standin_calls(&server, NULL), 1);
    }
    syncguard_close(mine);
}

static void lost_reply_to_a_release(void **state)
{
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_backend *other = standin_open(&server, NULL);
    syncguard_grant grant;

    (void)state;
    for (int i = 0; i < 4; i++) {
        const char *way = i % 2 ? "[{\"on\":\"commit\",\"do\":\"reset_after\"}]"
                                : "[{\"on\":\"commit\",\"do\":\"truncate\"}]";
        assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        standin_rules(&server, way);
        assert_status(SYNCGUARD_OK,
                      syncguard_release(i < 2 ? mine : other, grant.lock_id, NULL, &err));
        assert_status(SYNCGUARD_ABSENT, syncguard_release(mine, grant.lock_id, NULL, &err));
    }
    syncguard_close(other);
    syncguard_close(mine);
}

static void lost_reply_to_an_extend(void **state)
{
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_grant grant;
    int64_t expires = 0;
    json_t *lock;

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    standin_rules(&server, "[{\"on\":\"commit\",\"do\":\"reset_after\"}]");
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 60000, NULL, &expires, &err));
    lock = standin_document(&server, "locks/k");
    assert_int_equal(strtoll(standin_field(lock, "expiresAtMs"), NULL, 10), expires);
    json_decref(lock);
    syncguard_close(mine);
}

static void broken_reads_are_read_again(void **state)
{
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_grant grant;
    bool locked;

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    standin_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"truncate\",\"times\":2}]");
    assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
    assert_true(locked);
    standin_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"truncate\",\"times\":-1}]");
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_is_locked(mine, "k", NULL, &locked, &err));
    syncguard_close(mine);
}

/* The commit was applied, and the server said something that leaves it open. */
static void unknown_outcomes_are_undone(void **state)
{
    static const char *const rules[] = {
        "[{\"on\":\"commit\",\"do\":\"status_after\",\"http\":503,\"status\":\"UNAVAILABLE\"}]",
        "[{\"on\":\"commit\",\"do\":\"status_after\",\"http\":504,\"status\":\"DEADLINE_EXCEEDED\"}"
        "]",
        "[{\"on\":\"commit\",\"do\":\"hang_after\",\"ms\":3000}]",
    };
    syncguard_backend *mine = standin_open(&server, NULL);
    syncguard_call call = SYNCGUARD_CALL_INIT;
    syncguard_grant grant;

    (void)state;
    call.timeout_ms = 500;
    for (size_t i = 0; i < 3; i++) {
        int64_t until = clock_ms() + 5000;
        bool locked = true;
        standin_rules(&server, rules[i]);
        assert_true(syncguard_acquire(mine, "k", 600000, &call, &grant, &err) < 0);
        while (locked && clock_ms() < until) {
            pause_ms(20);
            assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
        }
        assert_false(locked);
    }
    syncguard_close(mine);
}

static void bad_bodies(void **state)
{
    static const char *const bodies[] = {
        "", "{", "null", "[]", "{}", "[{}]", "[[1]]", "nonsense", "[{\"found\":{\"name\":1}}]"};
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_backend *mine;
    syncguard_grant grant;
    bool locked;

    (void)state;
    options.dispose_timeout_ms = 1;
    mine = standin_open(&server, &options);
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        json_t *rule = json_pack("[{s:s,s:s,s:s,s:i}]", "on", "batchGet", "do", "body", "body",
                                 bodies[i], "times", -1);
        char *text = json_dumps(rule, 0);
        standin_rules(&server, text);
        free(text);
        json_decref(rule);
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_is_locked(mine, "k", NULL, &locked, &err));
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    }
    standin_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"oversize\",\"times\":-1}]");
    assert_status(SYNCGUARD_E_INTERNAL, syncguard_is_locked(mine, "k", NULL, &locked, &err));
    syncguard_close(mine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(requests_per_operation, clean),
        cmocka_unit_test_setup(requests_of_the_holder, clean),
        cmocka_unit_test_setup(requests_of_another_process, clean),
        cmocka_unit_test_setup(the_reason_costs_no_request, clean),
        cmocka_unit_test_setup(renewals_share_a_request, clean),
        cmocka_unit_test_setup(lost_reply_to_a_batch, clean),
        cmocka_unit_test_setup(a_batch_names_a_document_once, clean),
        cmocka_unit_test_setup(a_lost_reply_loses_no_locks, clean),
        cmocka_unit_test_setup(renewals_do_without_batches, clean),
        cmocka_unit_test_setup(one_connection_serves_one_caller, clean),
        cmocka_unit_test_setup(each_status_of_a_read, clean),
        cmocka_unit_test_setup(each_status_of_a_commit, clean),
        cmocka_unit_test_setup(answers_of_others_on_the_way, clean),
        cmocka_unit_test_setup(conflicts_are_decided_again, clean),
        cmocka_unit_test_setup(the_counter_moves_only_with_a_grant, clean),
        cmocka_unit_test_setup(lost_reply_to_an_acquire, clean),
        cmocka_unit_test_setup(lost_reply_to_a_release, clean),
        cmocka_unit_test_setup(lost_reply_to_an_extend, clean),
        cmocka_unit_test_setup(broken_reads_are_read_again, clean),
        cmocka_unit_test_setup(unknown_outcomes_are_undone, clean),
        cmocka_unit_test_setup(bad_bodies, clean),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
