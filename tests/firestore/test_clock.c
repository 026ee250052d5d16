/*
 * The check of our own clock, against a fake server that tells wrong times; and the parts of the
 * backend that need no server: estimate, cache, times.
 */
#include "support.h"

#include "backends/firestore/backend.h"
#include "backends/firestore/text.h"

#define ID_A "AAAAAAAAAAAAAAAAAAAAAA"

static void the_limit_is_an_option(void **state)
{
    static const struct {
        int64_t limit_ms;
        bool refused;
    } limits[] = {{0, false}, {2000, false}, {900, true}};
    (void)state;
    server_is_ahead_by(-1200);
    syncguard_grant grant;
    for (size_t i = 0; i < 3; i++) {
        syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
        own.project = "test";
        own.emulator_host = server.host;
        own.max_clock_drift_ms = limits[i].limit_ms;
        char key[8];
        snprintf(key, sizeof key, "k%zu", i);
        syncguard_backend *mine = NULL;
        assert_status(SYNCGUARD_OK, syncguard_firestore_open(&own, NULL, &mine, &err));
        assert_status(limits[i].refused ? SYNCGUARD_E_SERVICE_UNAVAILABLE : SYNCGUARD_OK,
                      syncguard_acquire(mine, key, 30000, NULL, &grant, &err));
        syncguard_close(mine);
    }
}

/* A clock that is ahead makes an expiry late, which does no harm: the holder keeps its lock. A
 * release works with any clock. */
static void holders_are_not_refused(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    server_is_ahead_by(-5000);
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 30000, NULL, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 30000, NULL, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    syncguard_close(mine);
}

static int64_t stored_expiry(const char *name)
{
    json_t *document = fake_server_document(&server, name);
    int64_t expires = strtoll(fake_server_field(document, "expiresAtMs"), NULL, 10);
    json_decref(document);
    return expires;
}

static void extend_is_refused(syncguard_backend *mine, const char *lock_id)
{
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_extend(mine, lock_id, 3000, NULL, NULL, &err));
    assert_string_equal(err.native, "CLOCK_DRIFT");
}

/* The machine was suspended for a minute, and its clocks with it: only the answer shows it. */
static void an_expiry_that_has_passed_is_no_success(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 3000, NULL, &grant, &err));
    server_is_ahead_by(60000);
    extend_is_refused(mine, grant.lock_id);
    fake_server_forget(&server);
    extend_is_refused(mine, grant.lock_id);
    assert_int_equal(fake_server_calls(&server, "commit"), 0);
    assert_status(SYNCGUARD_OK, syncguard_release(mine, grant.lock_id, NULL, &err));
    syncguard_close(mine);
}

/* The same between the read and the commit of an acquire: the grant is undone. */
static void stand_still_in_acquire(syncguard_backend *mine, int64_t until)
{
    json_decref(fake_server_control(&server, "PUT", "settings", "{\"standstill_ms\":60000}"));
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(mine, "k", 3000, NULL, &grant, &err));
    assert_string_equal(err.native, "CLOCK_DRIFT");
    while (stored("locks/k") && test_now_ms() < until)
        test_sleep_ms(5);
    assert_false(stored("locks/k"));
}

static void a_grant_that_has_run_out_is_taken_back(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    int64_t until = test_now_ms() + 10000;
    (void)state;
    stand_still_in_acquire(mine, until);
    server_is_ahead_by(0);
    syncguard_grant grant;
    /* The undo may get its answer, and with it the wrong time, later than this. */
    while (syncguard_acquire(mine, "k", 3000, NULL, &grant, &err) != SYNCGUARD_OK)
        assert_true(test_now_ms() < until);
    syncguard_close(mine);
}

/* The answer to the commit is lost: the read that finds the grant brings the time. */
static void so_is_one_that_was_found_again(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    fake_server_rules(&server, "[{\"on\":\"commit\",\"do\":\"reset_after\"}]");
    stand_still_in_acquire(mine, test_now_ms() + 10000);
    syncguard_close(mine);
}

/* A decision is checked by the reading on which it was based, however the clock was set since. */
static void a_reading_is_checked_as_it_was(void **state)
{
    sg_firestore_instant at = sg_firestore_now();
    (void)state;
    sg_firestore_clock clock;
    assert_int_equal(sg_firestore_clock_init(&clock, NULL, 500, &err), SYNCGUARD_OK);
    sg_firestore_clock_sample(&clock, at.wall_ns, 0, at.boot_ns - 1000000, at.boot_ns + 1000000);
    at.wall_ns -= INT64_C(5000000000);
    syncguard_firestore_clock_info info = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;
    assert_true(sg_firestore_clock_read(&clock, &at, &info));
    assert_in_range(-info.offset_us, 4990000, 5010000);
    /* The duration of the reading is part of the error. */
    at.span_ns = INT64_C(4000000000);
    assert_true(sg_firestore_clock_read(&clock, &at, &info));
    assert_in_range(info.error_us, 2000000, 2010000);
    sg_firestore_clock_destroy(&clock);
}

static void deny_once(syncguard_backend *mine)
{
    int64_t now = syncguard_clock_ns();
    sg_firestore_clock_sample(&((sg_firestore_backend *)mine)->clock,
                              (test_wall_ms() + 60000) * 1000000, 0, now - 1000000, now);
}

/* A step of the wall clock shows without an answer; answers agree with it. */
static void step_back(syncguard_backend *mine)
{
    server_is_ahead_by(60000);
    deny_once(mine);
}

static void no_expiry_is_written_after_a_step_back(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    syncguard_limits limits = {syncguard_clock_ns() + INT64_C(20000000000), NULL};
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 3000, NULL, &grant, &err));
    fake_server_forget(&server);
    step_back(mine);
    extend_is_refused(mine, grant.lock_id);
    syncguard_extend_op item = {.ttl_ms = 3000};
    item.lock_id = grant.lock_id;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  mine->ops->extend_many(mine, &item, 1, &limits, &err));
    assert_true(item.status < 0);
    assert_int_equal(fake_server_calls(&server, "commit"), 0);
    assert_int_equal(fake_server_calls(&server, "batchWrite"), 0);
    assert_int_equal(stored_expiry("locks/k"), grant.expires_at_ms);
    syncguard_close(mine);
}

/* No other operation brings a sample, and a kept sample does not show that a clock was slewed
 * right. So a refused extend must send a request, but not at every try. */
static void a_refusal_ends_with_its_cause(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "k", 30000, NULL, &grant, &err));
    server_is_ahead_by(5000);
    extend_is_refused(mine, grant.lock_id);
    fake_server_forget(&server);
    int64_t began = test_now_ms();
    for (int i = 0; i < 50; i++)
        extend_is_refused(mine, grant.lock_id);
    assert_in_range(fake_server_calls(&server, "batchGet"), 1, 1 + (test_now_ms() - began) / 500);
    assert_int_equal(fake_server_calls(&server, "commit"), 0);
    server_is_ahead_by(0);
    test_sleep_ms(600);
    fake_server_forget(&server);
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 30000, NULL, NULL, &err));
    assert_int_equal(fake_server_calls(&server, "batchGet"), 1);
    assert_status(SYNCGUARD_OK, syncguard_extend(mine, grant.lock_id, 30000, NULL, NULL, &err));
    assert_int_equal(fake_server_calls(&server, "batchGet"), 1);
    assert_int_equal(fake_server_calls(&server, "commit"), 2);
    syncguard_close(mine);
}

static void so_it_does_for_many(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    syncguard_limits limits = {syncguard_clock_ns() + INT64_C(20000000000), NULL};
    (void)state;
    syncguard_extend_op items[3];
    memset(items, 0, sizeof items);
    syncguard_grant grants[2];
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "a", 30000, NULL, &grants[0], &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(mine, "b", 30000, NULL, &grants[1], &err));
    items[0].lock_id = ID_A; /* not known here */
    items[1].lock_id = grants[0].lock_id;
    items[2].lock_id = grants[1].lock_id;
    for (size_t i = 0; i < 3; i++)
        items[i].ttl_ms = 30000;
    fake_server_forget(&server);
    deny_once(mine);
    assert_status(SYNCGUARD_OK, mine->ops->extend_many(mine, items, 3, &limits, &err));
    assert_int_equal(items[1].status, SYNCGUARD_OK);
    assert_int_equal(items[2].status, SYNCGUARD_OK);
    assert_int_equal(fake_server_calls(&server, "batchGet"), 1);
    assert_int_equal(fake_server_calls(&server, "batchWrite"), 1);
    assert_int_equal(stored_expiry("locks/b"), items[2].expires_at_ms);
    syncguard_close(mine);
}

static void firestore_clock_on_lost(void *context, syncguard_lock *lock,
                                    syncguard_lost_reason reason)
{
    (void)lock;
    atomic_store((atomic_int *)context, (int)reason);
}

/* The holder does not get OK for ever: its lease ends while the stored lock is still live. */
static void a_step_back_ends_the_lease(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    int64_t until = test_now_ms() + 10000;
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 3000;
    options.auto_extend = true;
    options.on_lost = firestore_clock_on_lost;
    atomic_int reason = SYNCGUARD_LOST_NO;
    options.on_lost_context = &reason;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(mine, "k", &options, &lock, &err));
    step_back(mine);
    while (atomic_load(&reason) == SYNCGUARD_LOST_NO && test_now_ms() < until)
        test_sleep_ms(5);
    assert_int_equal(atomic_load(&reason), SYNCGUARD_LOST_UNCONFIRMED);
    assert_int_equal(fake_server_calls(&server, "batchWrite"), 0);
    syncguard_lock_dispose(lock);
    syncguard_close(mine);
}

/* The lock is dead by a clock that is ten seconds ahead, and live for all other clients. */
static void a_wrong_clock_deletes_nothing(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.cleanup_in_is_locked = true;
    syncguard_backend *mine = fake_server_open(&server, &options);
    server_is_ahead_by(-10000);
    fake_server_plant(&server, "k", "k", ID_A, test_wall_ms() - 3000);
    bool locked = true;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(mine, "k", NULL, &locked, &err));
    assert_false(locked);
    test_sleep_ms(1000);
    assert_int_equal(fake_server_calls(&server, "batchGet"), 2); /* it was read again */
    assert_true(stored("locks/k"));
    /* Nor a second document with the same id. */
    fake_server_plant(&server, "other", "other", ID_A, test_wall_ms() + 60000);
    assert_status(SYNCGUARD_OK, syncguard_release(mine, ID_A, NULL, &err));
    assert_false(stored("locks/other"));
    assert_true(stored("locks/k"));
    syncguard_close(mine);
}

/* Error answers hold no time, but may have a Date. */
static void the_date_header_serves_too(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    json_decref(fake_server_control(&server, "PUT", "settings", "{\"date_ms\":-10000}"));
    fake_server_rules(&server, "[{\"on\":\"batchGet\",\"do\":\"status\",\"http\":503,"
                               "\"status\":\"UNAVAILABLE\"}]");
    bool locked;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_is_locked(mine, "k", NULL, &locked, &err));
    syncguard_firestore_clock_info info = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;
    assert_status(SYNCGUARD_OK, syncguard_firestore_clock(mine, &info, &err));
    assert_in_range(info.offset_us, 9000000, 11000000);
    assert_in_range(info.error_us, 500000, 1000000);
    syncguard_close(mine);
}

static void other_handles_have_no_estimate(void **state)
{
    (void)state;
    syncguard_backend *memory = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open("memory:", NULL, &memory, &err));
    syncguard_firestore_clock_info info = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_firestore_clock(memory, &info, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_firestore_clock(NULL, &info, &err));
    syncguard_close(memory);
}

/* ---- parts ---- */

static bool clock_tells(sg_firestore_clock *clock, syncguard_firestore_clock_info *info)
{
    sg_firestore_instant at = sg_firestore_now();
    return sg_firestore_clock_read(clock, &at, info);
}

static void the_better_sample_stays(void **state)
{
    int64_t now = syncguard_clock_ns();
    int64_t wall = test_wall_ms() * 1000000;
    (void)state;
    sg_firestore_clock clock;
    assert_int_equal(sg_firestore_clock_init(&clock, NULL, 500, &err), SYNCGUARD_OK);
    syncguard_firestore_clock_info info = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;
    assert_false(clock_tells(&clock, &info));
    const int64_t ms = 1000000;
    sg_firestore_clock_sample(&clock, wall - 1000 * ms, 0, now - 2 * ms, now);
    assert_true(clock_tells(&clock, &info));
    assert_in_range(info.offset_us, 995000, 1005000);
    assert_in_range(info.error_us, 1000, 1200);
    /* A worse one that does not contradict it changes nothing. */
    sg_firestore_clock_sample(&clock, wall - 1050 * ms, 0, now - 200 * ms, now);
    assert_true(clock_tells(&clock, &info));
    assert_in_range(info.offset_us, 995000, 1005000);
    /* A sample that contradicts it replaces it. */
    sg_firestore_clock_sample(&clock, wall - 3000 * ms, 0, now - 200 * ms, now);
    assert_true(clock_tells(&clock, &info));
    assert_in_range(info.offset_us, 2800000, 3200000);
    assert_int_equal(info.samples, 3);
    sg_firestore_clock_destroy(&clock);
}

static void certainty_has_a_bound(void **state)
{
    (void)state;
    syncguard_firestore_clock_info info = SYNCGUARD_FIRESTORE_CLOCK_INFO_INIT;
    info.offset_us = -500500;
    info.error_us = 500;
    assert_int_equal(sg_firestore_clock_certain_us(&info), 500000);
    info.offset_us = 300;
    assert_int_equal(sg_firestore_clock_certain_us(&info), 0);
}

static void times_are_read(void **state)
{
    static const char *const bad[] = {"",
                                      "x",
                                      "2024-01-01",
                                      "2024-01-01T00:00:00",
                                      "2024-01-01T00:00:00+01:00",
                                      "2024-13-01T00:00:00Z",
                                      "1066-01-01T00:00:00Z",
                                      "2024-01-01T00:00:00.Zx"};
    (void)state;
    int64_t ns = 0;
    assert_true(sg_firestore_time_parse("2024-01-02T03:04:05.678901Z", &ns));
    assert_int_equal(ns, INT64_C(1704164645678901000));
    assert_true(sg_firestore_time_parse("2024-01-02T03:04:05Z", &ns));
    assert_int_equal(ns, INT64_C(1704164645000000000));
    assert_true(sg_firestore_time_parse("2024-01-02T03:04:05.123456789123Z", &ns));
    assert_int_equal(ns, INT64_C(1704164645123456789));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(sg_firestore_time_parse(bad[i], &ns));
}

static void id_number(int i, char id[SYNCGUARD_LOCK_ID_SIZE])
{
    snprintf(id, SYNCGUARD_LOCK_ID_SIZE, "%07dAAAAAAAAAAAAAAA", i);
}

static void the_cache_drops_expired_locks(void **state)
{
    (void)state;
    sg_firestore_cache cache;
    assert_int_equal(sg_firestore_cache_init(&cache, &err), SYNCGUARD_OK);
    char id[SYNCGUARD_LOCK_ID_SIZE];
    for (int i = 0; i < 5000; i++) {
        id_number(i, id);
        sg_firestore_cache_put(&cache, id, "key", 3, "t", 1000000 + i, 1000000);
    }
    assert_int_equal(cache.count, 5000);
    id_number(77, id);
    sg_firestore_cached known;
    assert_true(sg_firestore_cache_get(&cache, id, &known));
    assert_string_equal(known.key, "key");
    assert_int_equal(known.expires_at_ms, 1000077);
    sg_firestore_cache_put(&cache, id, "key", 3, "later", 2000000, 1000000);
    assert_true(sg_firestore_cache_get(&cache, id, &known));
    assert_string_equal(known.update_time, "later");
    sg_firestore_cache_drop(&cache, id);
    assert_false(sg_firestore_cache_get(&cache, id, &known));
    /* All have expired: they are removed as new ones are added. */
    for (int i = 0; i < 5000; i++) {
        id_number(10000 + i, id);
        sg_firestore_cache_put(&cache, id, "key", 3, "t", 9000000, 3000000);
    }
    assert_int_equal(cache.count, 5000);
    sg_firestore_cache_destroy(&cache);
}

static void loopback_is_told_apart(void **state)
{
    (void)state;
    assert_true(sg_firestore_url_loopback("http://127.0.0.1:80/x"));
    assert_true(sg_firestore_url_loopback("http://localhost"));
    assert_true(sg_firestore_url_loopback("http://[::1]:5/x"));
    assert_false(sg_firestore_url_loopback("http://127.0.0.1.example.com"));
    assert_false(sg_firestore_url_loopback("http://127.0.0.1@example.com"));
    assert_false(sg_firestore_url_loopback("http://localhost.example.com"));
    assert_false(sg_firestore_url_loopback("http://10.0.0.1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_limit_is_an_option, reset_server),
        cmocka_unit_test_setup(holders_are_not_refused, reset_server),
        cmocka_unit_test_setup(an_expiry_that_has_passed_is_no_success, reset_server),
        cmocka_unit_test_setup(a_grant_that_has_run_out_is_taken_back, reset_server),
        cmocka_unit_test_setup(so_is_one_that_was_found_again, reset_server),
        cmocka_unit_test(a_reading_is_checked_as_it_was),
        cmocka_unit_test_setup(no_expiry_is_written_after_a_step_back, reset_server),
        cmocka_unit_test_setup(a_refusal_ends_with_its_cause, reset_server),
        cmocka_unit_test_setup(so_it_does_for_many, reset_server),
        cmocka_unit_test_setup(a_step_back_ends_the_lease, reset_server),
        cmocka_unit_test_setup(a_wrong_clock_deletes_nothing, reset_server),
        cmocka_unit_test_setup(the_date_header_serves_too, reset_server),
        cmocka_unit_test_setup(other_handles_have_no_estimate, reset_server),
        cmocka_unit_test(the_better_sample_stays),
        cmocka_unit_test(certainty_has_a_bound),
        cmocka_unit_test(times_are_read),
        cmocka_unit_test(the_cache_drops_expired_locks),
        cmocka_unit_test(loopback_is_told_apart),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
