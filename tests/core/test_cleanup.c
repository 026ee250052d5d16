/* I-ISL-05: the cleanup after is_locked neither delays nor changes its answer, and fails
 * silently. */

#include "fake_backend.h"
#include "test_assert.h"

static atomic_int cleanups, lines;
static atomic_bool answered, was_answered;

static syncguard_status cleanup_answer_dead(syncguard_backend *backend, syncguard_is_locked_op *op,
                                            syncguard_error *err)
{
    (void)backend, (void)err;
    op->locked = false;
    memset(op->dead_lock_id, 'A', SYNCGUARD_LOCK_ID_CHARS);
    op->dead_lock_id[SYNCGUARD_LOCK_ID_CHARS] = '\0';
    op->dead_expires_at_ms = 1;
    op->dead_for_ms = 60000;
    return SYNCGUARD_OK;
}

/* Fails once is_locked has answered, or after a long time if is_locked waits for the cleanup. */
static syncguard_status fail_late(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                  syncguard_error *err)
{
    (void)backend, (void)op;
    for (int i = 0; i < 5000 && !atomic_load(&answered); i++)
        test_sleep_ms(1);
    atomic_store(&was_answered, atomic_load(&answered));
    atomic_fetch_add(&cleanups, 1);
    return syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, "NOPERM", "it may not delete");
}

static void cleanup_count_line(void *context, syncguard_log_level level, const char *message)
{
    (void)context, (void)level, (void)message;
    atomic_fetch_add(&lines, 1);
}

static void nobody_notices_a_slow_and_failing_cleanup(void **state)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    (void)state;
    options.cleanup_in_is_locked = true;
    options.log = cleanup_count_line;
    fake_backend *p = fake_backend_open(&options);
    assert_non_null(p);
    syncguard_backend_ops ops = *p->base.ops;
    ops.is_locked = cleanup_answer_dead;
    ops.cleanup = fail_late;
    p->base.ops = &ops;
    syncguard_error err;
    bool locked = true;
    assert_int_equal(syncguard_is_locked(&p->base, "k", NULL, &locked, &err), SYNCGUARD_OK);
    atomic_store(&answered, true);
    assert_false(locked);
    assert_string_equal(err.message, "");
    assert_true(wait_for_count(&cleanups, 1));
    assert_true(atomic_load(&was_answered));
    assert_int_equal(syncguard_is_locked(&p->base, "k", NULL, &locked, &err), SYNCGUARD_OK);
    assert_false(locked);
    syncguard_close(&p->base);
    assert_int_equal(atomic_load(&lines), 0);
}

static syncguard_status one_expired(syncguard_backend *backend, const syncguard_limits *limits,
                                    syncguard_record_fn fn, void *context, syncguard_error *err)
{
    syncguard_record record = {.key = "k", .expires_at_ms = 1};
    (void)backend, (void)limits, (void)err;
    (void)fn(context, &record);
    return SYNCGUARD_OK;
}

static void pruning_reports_what_failed(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    assert_non_null(p);
    syncguard_backend_ops ops = *p->base.ops;
    ops.list_expired = one_expired;
    ops.cleanup = fail_late;
    p->base.ops = &ops;
    atomic_store(&answered, true);
    syncguard_error err;
    assert_int_equal(syncguard_prune(&p->base, NULL, false, NULL, NULL, &err),
                     SYNCGUARD_E_AUTH_FAILED);
    assert_int_equal(err.code, SYNCGUARD_E_AUTH_FAILED);
    assert_string_equal(err.native, "NOPERM");
    assert_int_equal(syncguard_prune(&p->base, NULL, false, NULL, NULL, NULL),
                     SYNCGUARD_E_AUTH_FAILED);
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_notices_a_slow_and_failing_cleanup),
        cmocka_unit_test(pruning_reports_what_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
