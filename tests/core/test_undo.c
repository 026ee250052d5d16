/* Unknown outcomes: what the core does after an operation that failed, came late or got no
 * answer. */

#include "fake_backend.h"
#include "test_assert.h"

static syncguard_status undo_lose_reply(fake_backend *p, syncguard_acquire_op *op,
                                        syncguard_error *err)
{
    (void)p;
    op->may_have_been_granted = true;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "the connection broke");
}

static syncguard_status undo_refuse_acquire(fake_backend *p, syncguard_acquire_op *op,
                                            syncguard_error *err)
{
    (void)p, (void)op;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "nothing was sent");
}

static syncguard_status answer_late(fake_backend *p, syncguard_acquire_op *op, syncguard_error *err)
{
    (void)p, (void)err;
    test_sleep_ms((int)op->ttl_ms + 30);
    return SYNCGUARD_OK;
}

/* I-ACQ-09 */
static void unknown_acquire_outcome_is_undone(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = undo_lose_reply;
    syncguard_grant grant;
    syncguard_error err;
    assert_int_equal(syncguard_acquire(&p->base, "k", 5000, NULL, &grant, &err),
                     SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_int_equal(strlen(err.key_hash), SYNCGUARD_HASH_CHARS);
    assert_string_equal(grant.lock_id, "");
    assert_true(wait_for_count(&p->undos, 1));
    test_sleep_ms(120);
    assert_int_equal(atomic_load(&p->undos), 1);
    syncguard_close(&p->base);
}

static void undo_is_repeated_until_final(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = undo_lose_reply;
    p->on_undo = fake_undo_late;
    syncguard_grant grant;
    (void)!syncguard_acquire(&p->base, "k", 5000, NULL, &grant, NULL);
    assert_true(wait_for_count(&p->undos, 3));
    test_sleep_ms(300);
    assert_int_equal(atomic_load(&p->undos), 3);
    syncguard_close(&p->base);
}

/* Undos that have accumulated while the store was busy are sent in batches of at most 256. Items
 * that a batch leaves undecided are undone singly, a batch that fails is repeated, and each item is
 * undone once. */
static void undos_go_in_batches(void **state)
{
    (void)state;
    enum { LOST = 1000 };
    fake_backend *p = fake_backend_open_batching(NULL);
    p->on_acquire = undo_lose_reply;
    atomic_store(&p->stuck, true);
    char key[16];
    syncguard_grant grant;
    int64_t begun = syncguard_clock_ns();
    for (int i = 0; i < LOST; i++) {
        snprintf(key, sizeof key, "k%d", i);
        (void)!syncguard_acquire(&p->base, key, 60000, NULL, &grant, NULL);
    }
    int64_t took_ms = (syncguard_clock_ns() - begun) / SYNCGUARD_NS_PER_MS;
    atomic_store(&p->stuck, false);
    assert_true(wait_for_count(&p->undos, LOST));
    test_sleep_ms(300);
    assert_int_equal(atomic_load(&p->undos), LOST);
    assert_in_range(atomic_load(&p->undo_batches), 4, 40);
    assert_int_equal(atomic_load(&p->undo_largest), 256);
    assert_in_range(took_ms, 0, 2000); /* no caller waited for the store */
    syncguard_close(&p->base);
}

/* A deadline longer than the ttl: the store may have granted the lock just before it passed. */
static syncguard_status give_up_late(fake_backend *p, syncguard_acquire_op *op,
                                     syncguard_error *err)
{
    op->first_sent_ns -= (op->ttl_ms + 10000) * SYNCGUARD_NS_PER_MS;
    return undo_lose_reply(p, op, err);
}

static void an_acquire_that_was_given_up_late_is_undone(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = give_up_late;
    syncguard_grant grant;
    (void)!syncguard_acquire(&p->base, "k", 100, NULL, &grant, NULL);
    assert_true(wait_for_count(&p->undos, 1));
    syncguard_close(&p->base);
}

static void known_failure_is_not_undone(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = undo_refuse_acquire;
    syncguard_grant grant;
    (void)!syncguard_acquire(&p->base, "k", 5000, NULL, &grant, NULL);
    test_sleep_ms(50);
    assert_int_equal(atomic_load(&p->undos), 0);
    syncguard_close(&p->base);
}

/* I-TIM-12 */
static void late_grant_is_undone(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = answer_late;
    syncguard_grant grant;
    syncguard_error err;
    assert_int_equal(syncguard_acquire(&p->base, "k", 50, NULL, &grant, &err),
                     SYNCGUARD_E_NETWORK_TIMEOUT);
    assert_true(wait_for_count(&p->undos, 1));
    syncguard_close(&p->base);
}

static atomic_int undo_calls;
static syncguard_status count_and_finish_at_third(fake_backend *p, int call)
{
    atomic_fetch_add(&undo_calls, 1);
    return fake_undo_late(p, call);
}

static syncguard_status never_final(fake_backend *p, int call)
{
    (void)p, (void)call;
    return SYNCGUARD_ABSENT;
}

static void close_drains_for_the_dispose_timeout(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = 200;
    fake_backend *p = fake_backend_open(&options);
    p->on_acquire = undo_lose_reply;
    p->on_undo = never_final;
    syncguard_grant grant;
    (void)!syncguard_acquire(&p->base, "k", 60000, NULL, &grant, NULL);
    int64_t begun = syncguard_clock_ns();
    syncguard_close(&p->base);
    int64_t took_ms = (syncguard_clock_ns() - begun) / SYNCGUARD_NS_PER_MS;
    assert_in_range(took_ms, 150, 2000);
}

static syncguard_status fail_first_release(fake_backend *p, syncguard_release_op *op,
                                           syncguard_error *err)
{
    (void)op;
    if (atomic_load(&p->releases) > 1)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "gone");
}

static int reported;
static char reported_source[16];
static void count_report(void *context, const syncguard_error *error, const char *key,
                         const char *lock_id, const char *source)
{
    (void)context;
    assert_int_equal(error->code, SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_string_equal(key, "k");
    assert_int_equal(strlen(lock_id), SYNCGUARD_LOCK_ID_CHARS);
    snprintf(reported_source, sizeof reported_source, "%s", source);
    reported++;
}

/* I-HND-04: the caller gets the error, a second call does nothing, the background goes on. */
static void failed_release_is_repeated_in_the_background(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_release = fail_first_release;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.on_release_error = count_report;
    syncguard_lock *lock = NULL;
    reported = 0;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL), SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_ABSENT);
    assert_true(wait_for_count(&p->releases, 2));
    syncguard_lock_dispose(lock);
    test_sleep_ms(100);
    assert_int_equal(atomic_load(&p->releases), 2);
    assert_int_equal(reported, 0);
    syncguard_close(&p->base);
}

static atomic_bool down;
static atomic_int removed;
static syncguard_status release_unless_down(fake_backend *p, syncguard_release_op *op,
                                            syncguard_error *err)
{
    (void)p, (void)op;
    if (atomic_load(&down))
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "gone");
    atomic_fetch_add(&removed, 1);
    return SYNCGUARD_OK;
}

static syncguard_status lose_extend(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p, (void)op;
    return syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, NULL, "no reply");
}

/* The store may have applied the longer TTL of an extend that got no answer: the release is
 * repeated for that long, not only for the TTL that the holder counts with. */
static void release_is_repeated_for_the_longest_ttl(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_release = release_unless_down;
    atomic_store(&p->on_extend, lose_extend);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 1000;
    syncguard_lock *lock = NULL;
    atomic_store(&down, true);
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL), SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_extend(lock, 120000, NULL, NULL, NULL),
                     SYNCGUARD_E_NETWORK_TIMEOUT);
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_E_SERVICE_UNAVAILABLE);
    test_sleep_ms(9000); /* past the TTL that the lock began with, and the last step after it */
    atomic_store(&down, false);
    assert_true(wait_for_count(&removed, 1));
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* I-HND-06, I-HND-07, I-LCK-09 */
static int undo_work_while_held(void *context, syncguard_lock *lock)
{
    (void)context;
    assert_true(syncguard_lock_held(lock));
    return 42;
}

static void failing_disposal_is_reported_and_keeps_the_result(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.on_release_error = count_report;
    fake_backend *p = fake_backend_open(&options);
    p->on_release = fail_first_release;
    int result = 0;
    reported = 0;
    assert_int_equal(
        syncguard_with_lock(&p->base, "k", NULL, undo_work_while_held, NULL, &result, NULL),
        SYNCGUARD_OK);
    assert_int_equal(result, 42);
    assert_int_equal(reported, 1);
    assert_string_equal(reported_source, "helper");
    syncguard_close(&p->base);
}

static void handle_outlives_close(void **state)
{
    (void)state;
    atomic_bool destroyed = false;
    fake_backend *p = fake_backend_open(NULL);
    p->destroyed = &destroyed;
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", NULL, &lock, NULL), SYNCGUARD_OK);
    syncguard_close(&p->base);
    assert_false(atomic_load(&destroyed));
    assert_true(syncguard_lock_held(lock));
    syncguard_lock_dispose(lock);
    assert_true(atomic_load(&destroyed));
}

static int64_t fence_given;
static syncguard_status give_fence(fake_backend *p, syncguard_acquire_op *op, syncguard_error *err)
{
    (void)p, (void)err;
    op->fence = fence_given;
    return SYNCGUARD_OK;
}

/* I-ERR-08: a store that grants with an impossible fence cannot be trusted; the grant is undone. */
static void a_fence_out_of_range_is_internal_and_undone(void **state)
{
    (void)state;
    const int64_t bad[] = {0, -1, SYNCGUARD_FENCE_MAX + 1, INT64_MAX, INT64_MIN};
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = give_fence;
    syncguard_grant grant;
    syncguard_lock *lock = NULL;
    syncguard_error err;
    int undone = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fence_given = bad[i];
        assert_int_equal(syncguard_acquire(&p->base, "k", 5000, NULL, &grant, &err),
                         SYNCGUARD_E_INTERNAL);
        assert_string_equal(grant.lock_id, "");
        assert_string_equal(grant.fence, "");
        assert_int_equal(strlen(err.key_hash), SYNCGUARD_HASH_CHARS);
        assert_true(wait_for_count(&p->undos, ++undone));
        assert_int_equal(syncguard_lock_acquire(&p->base, "k", NULL, &lock, &err),
                         SYNCGUARD_E_INTERNAL);
        assert_null(lock);
        assert_true(wait_for_count(&p->undos, ++undone));
    }
    fence_given = SYNCGUARD_FENCE_MAX;
    assert_int_equal(syncguard_acquire(&p->base, "k", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    assert_string_equal(grant.fence, "900000000000000");
    syncguard_close(&p->base);
}

/* The largest timeout means no limit, not a deadline that has passed. */
static void close_drains_with_a_boundless_dispose_timeout(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = SYNCGUARD_MAX_TIME_MS;
    fake_backend *p = fake_backend_open(&options);
    p->on_acquire = undo_lose_reply;
    p->on_undo = count_and_finish_at_third;
    atomic_store(&undo_calls, 0);
    syncguard_grant grant;
    (void)!syncguard_acquire(&p->base, "k", 30000, NULL, &grant, NULL);
    syncguard_close(&p->base);
    assert_int_equal(atomic_load(&undo_calls), 3);
}

static syncguard_status undo_leave_error_behind(fake_backend *p, syncguard_release_op *op,
                                                syncguard_error *err)
{
    (void)p, (void)op;
    (void)syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "X", "reconnecting");
    return SYNCGUARD_OK;
}

/* syncguard.h: on success the error is empty, whatever failed on the way. */
static void an_answer_leaves_no_error_behind(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_release = undo_leave_error_behind;
    syncguard_grant grant;
    syncguard_error err;
    assert_int_equal(syncguard_acquire(&p->base, "k", 5000, NULL, &grant, &err), SYNCGUARD_OK);
    assert_int_equal(syncguard_release(&p->base, grant.lock_id, NULL, &err), SYNCGUARD_OK);
    assert_int_equal(err.code, SYNCGUARD_OK);
    assert_string_equal(err.native, "");
    assert_string_equal(err.message, "");
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_acquire_outcome_is_undone),
        cmocka_unit_test(undo_is_repeated_until_final),
        cmocka_unit_test(undos_go_in_batches),
        cmocka_unit_test(an_acquire_that_was_given_up_late_is_undone),
        cmocka_unit_test(known_failure_is_not_undone),
        cmocka_unit_test(late_grant_is_undone),
        cmocka_unit_test(close_drains_for_the_dispose_timeout),
        cmocka_unit_test(close_drains_with_a_boundless_dispose_timeout),
        cmocka_unit_test(a_fence_out_of_range_is_internal_and_undone),
        cmocka_unit_test(an_answer_leaves_no_error_behind),
        cmocka_unit_test(failed_release_is_repeated_in_the_background),
        cmocka_unit_test(release_is_repeated_for_the_longest_ttl),
        cmocka_unit_test(failing_disposal_is_reported_and_keeps_the_result),
        cmocka_unit_test(handle_outlives_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
