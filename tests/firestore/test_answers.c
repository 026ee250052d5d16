/* Against the fake server: what each status means, conflicts, lost replies, bad bodies. */
#include "support.h"

#include <syncguard/sys/backend.h>

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
    fake_server_rules(&server, text);
}

/* Either libcurl replaces a connection by itself or the request is sent again: both are
 * reconnects. */
static void broken_connections_are_counted(void **state)
{
    (void)state;
    syncguard_backend *counted = NULL;
    assert_status(SYNCGUARD_OK,
                  syncguard_telemetry_wrap(fake_server_open(&server, NULL), NULL, &counted, &err));
    bool locked;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(counted, "k", NULL, &locked, &err));
    assert_int_equal(test_reconnects_total(counted), 0);
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"reset_before\",\"times\":1}]");
    assert_status(SYNCGUARD_OK, syncguard_is_locked(counted, "k", NULL, &locked, &err));
    assert_int_equal(test_reconnects_total(counted), 1);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(counted, "k", NULL, &locked, &err));
    assert_int_equal(test_reconnects_total(counted), 1);
    fake_server_reset(&server);
    syncguard_close(counted);
}

static void each_status_of_a_read(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_lock_info info;
    syncguard_grant grant;
    bool locked;
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
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = 1; /* do not wait for an undo that the fake server refuses */
    syncguard_backend *mine = fake_server_open(&server, &options);
    syncguard_grant grant;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        rule_for("commit", words[i].http, words[i].word, -1, "");
        assert_status(words[i].commit, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    }
    fake_server_rules(&server, "[]");
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
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    bool locked;
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
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    for (size_t i = 0; i < 3; i++) {
        rule_for("commit", conflicts[i].http, conflicts[i].word, 4, "");
        fake_server_forget(&server);
        assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        assert_int_equal(fake_server_calls(&server, "batchGet"), 5);
        assert_int_equal(fake_server_calls(&server, "commit"), 5);
        rule_for("commit", conflicts[i].http, conflicts[i].word, 2, "");
        assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 9000, NULL, NULL, &err));
        rule_for("commit", conflicts[i].http, conflicts[i].word, 2, "");
        assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
        rule_for("commit", conflicts[i].http, conflicts[i].word, 5, "");
        fake_server_forget(&server);
        assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                      syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        assert_string_equal(err.native, conflicts[i].word);
        assert_int_equal(fake_server_calls(&server, "commit"), 5);
    }
    syncguard_close(mine);
}

static void the_counter_moves_only_with_a_grant(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    rule_for("commit", 409, "ABORTED", 3, "");
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    assert_string_equal(grant.fence, "000000000000001");
    json_t *counter = fake_server_document(&server, "fence_counters/fence:k");
    assert_string_equal(fake_server_field(counter, "fence"), "000000000000001");
    json_decref(counter);
    syncguard_close(mine);
}

/* The reply to the commit is lost: the grant that was applied is found again, and not taken for
 * another holder's. */
static void lost_reply_to_an_acquire(void **state)
{
    static const char *const ways[] = {"reset_after", "truncate"};
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    char rule[96];
    for (int i = 0; i < 6; i++) {
        snprintf(rule, sizeof rule, "[{\"on\":\"commit\",\"do\":\"%s\"}]", ways[i % 2]);
        fake_server_rules(&server, rule);
        assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        char fence[32];
        snprintf(fence, sizeof fence, "%015d", i + 1);
        assert_string_equal(grant.fence, fence);
        fake_server_forget(&server);
        assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
        assert_int_equal(fake_server_calls(&server, NULL), 1);
    }
    syncguard_close(mine);
}

static void lost_reply_to_a_release(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    syncguard_backend *other = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    for (int i = 0; i < 4; i++) {
        const char *way = (i % 2) != 0 ? "[{\"on\":\"commit\",\"do\":\"reset_after\"}]"
                                       : "[{\"on\":\"commit\",\"do\":\"truncate\"}]";
        assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
        fake_server_rules(&server, way);
        assert_status(SYNCGUARD_OK,
                      syncguard_release(i < 2 ? mine : other, grant.lock_id, NULL, &err));
        assert_status(SYNCGUARD_ABSENT, syncguard_release(mine, grant.lock_id, NULL, &err));
    }
    syncguard_close(other);
    syncguard_close(mine);
}

static void lost_reply_to_an_extend(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    fake_server_rules(&server, "[{\"on\":\"commit\",\"do\":\"reset_after\"}]");
    int64_t expires = 0;
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 60000, NULL, &expires, &err));
    json_t *lock = fake_server_document(&server, "locks/k");
    assert_int_equal(strtoll(fake_server_field(lock, "expiresAtMs"), NULL, 10), expires);
    json_decref(lock);
    syncguard_close(mine);
}

static void broken_reads_are_read_again(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"truncate\",\"times\":2}]");
    bool locked;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
    assert_true(locked);
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"truncate\",\"times\":-1}]");
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_is_locked(mine, "k", NULL, &locked, &err));
    syncguard_close(mine);
}

/* The commit was applied, but the answer of the server leaves the outcome unknown. */
static void unknown_outcomes_are_undone(void **state)
{
    static const char *const rules[] = {
        "[{\"on\":\"commit\",\"do\":\"status_after\",\"http\":503,\"status\":\"UNAVAILABLE\"}]",
        "[{\"on\":\"commit\",\"do\":\"status_after\",\"http\":504,\"status\":\"DEADLINE_EXCEEDED\"}"
        "]",
        "[{\"on\":\"commit\",\"do\":\"hang_after\",\"ms\":3000}]",
    };
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_call call = test_call(500);
    syncguard_grant grant;
    for (size_t i = 0; i < 3; i++) {
        int64_t until = test_now_ms() + 5000;
        bool locked = true;
        fake_server_rules(&server, rules[i]);
        assert_true(syncguard_acquire(mine, "k", 600000, &call, &grant, &err) < 0);
        while (locked && test_now_ms() < until) {
            test_sleep_ms(20);
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
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = 1;
    syncguard_backend *mine = fake_server_open(&server, &options);
    syncguard_grant grant;
    bool locked;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        json_t *rule = json_pack("[{s:s,s:s,s:s,s:i}]", "on", "batchGet", "do", "body", "body",
                                 bodies[i], "times", -1);
        char *text = json_dumps(rule, 0);
        fake_server_rules(&server, text);
        free(text);
        json_decref(rule);
        assert_status(SYNCGUARD_E_INTERNAL, syncguard_is_locked(mine, "k", NULL, &locked, &err));
        assert_status(SYNCGUARD_E_INTERNAL,
                      syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    }
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"oversize\",\"times\":-1}]");
    assert_status(SYNCGUARD_E_INTERNAL, syncguard_is_locked(mine, "k", NULL, &locked, &err));
    syncguard_close(mine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(broken_connections_are_counted, reset_server),
        cmocka_unit_test_setup(each_status_of_a_read, reset_server),
        cmocka_unit_test_setup(each_status_of_a_commit, reset_server),
        cmocka_unit_test_setup(answers_of_others_on_the_way, reset_server),
        cmocka_unit_test_setup(conflicts_are_decided_again, reset_server),
        cmocka_unit_test_setup(the_counter_moves_only_with_a_grant, reset_server),
        cmocka_unit_test_setup(lost_reply_to_an_acquire, reset_server),
        cmocka_unit_test_setup(lost_reply_to_a_release, reset_server),
        cmocka_unit_test_setup(lost_reply_to_an_extend, reset_server),
        cmocka_unit_test_setup(broken_reads_are_read_again, reset_server),
        cmocka_unit_test_setup(unknown_outcomes_are_undone, reset_server),
        cmocka_unit_test_setup(bad_bodies, reset_server),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
