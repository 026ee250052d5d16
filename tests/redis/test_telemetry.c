/* The telemetry decorator over Redis: reasons, and that they cost nothing. */
#include "support.h"

static syncguard_event last[SYNCGUARD_EVENT_LOOKUP + 1];

static void redis_telemetry_event_keep(void *context, const syncguard_event *event)
{
    (void)context;
    last[event->type] = *event;
}

static syncguard_backend *redis_telemetry_decorate(void)
{
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    options.on_event = redis_telemetry_event_keep;
    syncguard_backend *decorated = NULL;
    assert_status(SYNCGUARD_OK,
                  syncguard_telemetry_wrap(test_open(redis_url), &options, &decorated, &err));
    return decorated;
}

#define OLD_ID "BBBBBBBBBBBBBBBBBBBBBB"

/* I-TEL-03: a record that has no expiry of its own is still there when it is dead. */
static void dead_records_have_their_reason(void **state)
{
    syncguard_backend *watched = redis_telemetry_decorate();
    (void)state;
    raw_do("SET syncguard:old %s",
           "{\"lockId\":\"" OLD_ID "\",\"expiresAtMs\":9,\"acquiredAtMs\":1,"
           "\"fence\":\"000000000000001\",\"key\":\"old\"}");
    raw_do("SET syncguard:id:" OLD_ID " syncguard:old");
    assert_status(SYNCGUARD_ABSENT, syncguard_extend(watched, OLD_ID, 1000, NULL, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_release(watched, OLD_ID, NULL, &err));
    syncguard_close(watched); /* delivers what is queued */
    assert_int_equal(last[SYNCGUARD_EVENT_EXTEND].reason, SYNCGUARD_REASON_EXPIRED);
    assert_int_equal(last[SYNCGUARD_EVENT_RELEASE].reason, SYNCGUARD_REASON_EXPIRED);
}

/* Counts the commands of the server for one round of all operations. */
static long commands_of(syncguard_backend *backend)
{
    static const char name[] = "total_commands_processed:";
    raw_do("CONFIG RESETSTAT");
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 5000, NULL, &grant, &err));
    syncguard_grant other;
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(backend, "k", 5000, NULL, &other, &err));
    assert_status(SYNCGUARD_OK, syncguard_extend(backend, grant.lock_id, 5000, NULL, NULL, &err));
    bool flag;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "k", NULL, &flag, &err));
    syncguard_lock_info info;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(backend, "k", NULL, &info, &err));
    assert_status(SYNCGUARD_OK, syncguard_get_by_id(backend, grant.lock_id, NULL, &info, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_status(SYNCGUARD_ABSENT, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_status(SYNCGUARD_ABSENT,
                  syncguard_extend(backend, grant.lock_id, 5000, NULL, NULL, &err));
    const char *at = strstr(raw_text("INFO stats"), name);
    assert_non_null(at);
    return strtol(at + strlen(name), NULL, 10);
}

/* I-TEL-07 */
static void the_reason_costs_no_command(void **state)
{
    syncguard_backend *bare = test_open(redis_url), *watched = redis_telemetry_decorate();
    (void)state;
    (void)commands_of(bare); /* connects */
    (void)commands_of(watched);
    long plain = commands_of(bare);
    long decorated = commands_of(watched);
    print_message("    %ld commands bare, %ld decorated\n", plain, decorated);
    assert_int_equal(plain, decorated);
    syncguard_close(watched);
    syncguard_close(bare);
}

static atomic_int replaced_lines, renewal_lines;

static void redis_telemetry_line_count(void *context, syncguard_log_level level,
                                       const char *message)
{
    (void)context, (void)level;
    if (strstr(message, "had to be replaced") != NULL)
        atomic_fetch_add(&replaced_lines, 1);
    if (strncmp(message, "renewing 1 ", 11) == 0)
        atomic_fetch_add(&renewal_lines, 1);
    if (strstr(message, "s3cret") != NULL)
        abort();
}

static syncguard_backend *redis_telemetry_open(int port)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = redis_telemetry_line_count;
    atomic_store(&replaced_lines, 0);
    atomic_store(&renewal_lines, 0);
    char url[64];
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0?connections=1", port);
    syncguard_backend *bare = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open(url, &options, &bare, &err));
    syncguard_backend *decorated = NULL;
    assert_status(SYNCGUARD_OK, syncguard_telemetry_wrap(bare, NULL, &decorated, &err));
    return decorated;
}

/* Connections that the server has closed are replaced, counted and logged; first ones are not. */
static void redis_reconnects_are_counted(void **state)
{
    (void)state;
    server s;
    server_start(&s, 0, without_persistence);
    syncguard_backend *watched = redis_telemetry_open(s.port);
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(watched, "s3cret", 5000, NULL, &grant, &err));
    assert_int_equal(test_reconnects_total(watched), 0);
    for (int i = 1; i <= 2; i++) {
        freeReplyObject(raw_at(s.port, "CLIENT KILL TYPE normal SKIPME yes"));
        assert_status(SYNCGUARD_LOCKED,
                      syncguard_acquire(watched, "s3cret", 5000, NULL, &grant, &err));
        assert_int_equal(test_reconnects_total(watched), i);
        assert_int_equal(atomic_load(&replaced_lines), i);
    }
    syncguard_close(watched);
    server_remove(&s);
}

/* A server that hangs for a while is logged, even if the lock survives. */
static void a_hang_is_logged(void **state)
{
    (void)state;
    server s;
    server_start(&s, 0, without_persistence);
    syncguard_backend *watched = redis_telemetry_open(s.port);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 6000;
    options.auto_extend = true;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(watched, "s3cret", &options, &lock, &err));
    kill(s.pid, SIGSTOP);
    for (int i = 0; i < 3000 && atomic_load(&renewal_lines) == 0; i++)
        test_sleep_ms(10);
    kill(s.pid, SIGCONT);
    assert_true(atomic_load(&renewal_lines) > 0);
    syncguard_lock_dispose(lock);
    syncguard_close(watched);
    server_remove(&s);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dead_records_have_their_reason),
        cmocka_unit_test(the_reason_costs_no_command),
        cmocka_unit_test(redis_reconnects_are_counted),
        cmocka_unit_test(a_hang_is_logged),
    };
    return cmocka_run_group_tests_name("redis telemetry", tests, NULL, NULL);
}
