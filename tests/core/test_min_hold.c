/* The minimum hold on a store that fails: a release that goes on in the background respects it. */

#include "fake_backend.h"
#include "syncguard/lock.h"
#include "test_assert.h"

#define RENEWED_TTL_MS 3000

static atomic_int failures_left;
static atomic_llong last_ttl_ms;

static syncguard_status min_hold_answer_extend(fake_backend *p, syncguard_extend_op *op,
                                               syncguard_error *err)
{
    (void)p;
    atomic_store(&last_ttl_ms, (long long)op->ttl_ms);
    if (atomic_fetch_sub(&failures_left, 1) > 0)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "down");
    op->expires_at_ms = 4711;
    return SYNCGUARD_OK;
}

static syncguard_lock *min_hold_take_lock(fake_backend *p, int64_t ttl_ms, int64_t min_hold_ms)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = ttl_ms;
    options.min_hold_ms = min_hold_ms;
    atomic_store(&p->on_extend, min_hold_answer_extend);
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_try(&p->base, "k", &options, &lock, NULL), SYNCGUARD_OK);
    return lock;
}

static void early_release_extends_and_does_not_remove(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    atomic_store(&failures_left, 0);
    syncguard_lock *lock = min_hold_take_lock(p, 30000, 600000);
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_OK);
    syncguard_lock_dispose(lock);
    assert_int_equal(atomic_load(&p->extends), 1);
    assert_int_equal(atomic_load(&p->releases), 0);
    assert_true(atomic_load(&last_ttl_ms) > 300000 && atomic_load(&last_ttl_ms) <= 600000);
    syncguard_close(&p->base);
}

static void failed_release_goes_on_without_removing(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    atomic_store(&failures_left, 3);
    syncguard_lock *lock = min_hold_take_lock(p, 30000, 600000);
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_E_SERVICE_UNAVAILABLE);
    syncguard_lock_dispose(lock);
    assert_true(wait_for_count(&p->extends, 4));
    test_sleep_ms(100);
    assert_int_equal(atomic_load(&p->extends), 4); /* a confirmed extend is not repeated */
    assert_int_equal(atomic_load(&p->releases), 0);
    syncguard_close(&p->base);
}

/* The store is down until the minimum hold is over: then the lock is removed. */
static void release_that_comes_too_late_removes(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    atomic_store(&failures_left, 1000000);
    syncguard_lock *lock = min_hold_take_lock(p, 30000, 300);
    syncguard_status status = syncguard_lock_release(lock, NULL, NULL);
    assert_true(status == SYNCGUARD_E_SERVICE_UNAVAILABLE || status == SYNCGUARD_OK);
    syncguard_lock_dispose(lock);
    assert_true(wait_for_count(&p->releases, 1));
    syncguard_close(&p->base);
}

/*
 * A renewal is in flight when the release, which cannot wait for it, goes to the background. The
 * store applies the renewal after the background has set the lease to the rest of the minimum hold:
 * the background must set it again, or the lock stays for one TTL, whether that is shorter or
 * longer.
 */
static atomic_int renewing;
static atomic_int keeps;

static syncguard_status overtaken_renewal(fake_backend *p, syncguard_extend_op *op,
                                          syncguard_error *err)
{
    (void)p;
    (void)err;
    bool renewal = op->ttl_ms == RENEWED_TTL_MS;
    if (renewal) {
        atomic_fetch_add(&renewing, 1);
        (void)wait_for_count(&keeps, 1);
    }
    atomic_store(&last_ttl_ms, (long long)op->ttl_ms);
    op->expires_at_ms = 4711;
    if (!renewal)
        atomic_fetch_add(&keeps, 1);
    return SYNCGUARD_OK;
}

static void late_renewal_does_not_change_the_minimum(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    atomic_store(&p->on_extend, overtaken_renewal);
    options.ttl_ms = RENEWED_TTL_MS;
    options.min_hold_ms = 600000;
    options.auto_extend = true;
    syncguard_call call = test_call(20);
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_try(&p->base, "k", &options, &lock, NULL), SYNCGUARD_OK);
    assert_true(wait_for_count(&renewing, 1));
    assert_int_equal(syncguard_lock_release(lock, &call, NULL), SYNCGUARD_E_NETWORK_TIMEOUT);
    assert_true(wait_for_count(&keeps, 2));
    assert_int_equal(atomic_load(&renewing), 1);
    assert_true(atomic_load(&last_ttl_ms) > 300000);
    assert_int_equal(atomic_load(&p->releases), 0);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* Neither a lock that is known to be gone nor a failed attempt asks for a minimum hold. */
static void nothing_is_kept_without_a_lock(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    atomic_store(&failures_left, 0);
    syncguard_lock *lock = min_hold_take_lock(p, 30000, 600000);
    sg_lock_lose(lock, SYNCGUARD_LOST_ABSENT);
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_ABSENT);
    syncguard_lock_dispose(lock);
    assert_int_equal(atomic_load(&p->extends), 0);
    assert_int_equal(atomic_load(&p->releases), 0);
    syncguard_close(&p->base);
}

/* ---- waiters of this process ---- */

static atomic_bool held;
static atomic_int tries;

static syncguard_status held_for_a_minute(fake_backend *p, syncguard_acquire_op *op,
                                          syncguard_error *err)
{
    (void)err;
    if (!atomic_load(&held)) {
        op->fence = atomic_fetch_add(&p->fence, 1) + 1;
        return SYNCGUARD_OK;
    }
    atomic_fetch_add(&tries, 1);
    op->remaining_ms = 60000;
    op->armed_ms = op->watch ? SYNCGUARD_ARMED_MS : 0;
    return SYNCGUARD_LOCKED;
}

static void *min_hold_wait_in_vain(void *argument)
{
    fake_backend *p = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(3000);
    syncguard_lock *lock = NULL;
    options.retry_delay_ms = 30000;
    syncguard_status status = syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL);
    return status == SYNCGUARD_E_ACQUISITION_TIMEOUT ? p : NULL;
}

static void waiters_are_not_woken_to_try(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    atomic_store(&failures_left, 0);
    atomic_store(&held, false);
    atomic_store(&tries, 0);
    p->on_acquire = held_for_a_minute;
    syncguard_lock *lock = min_hold_take_lock(p, 60000, 600000);
    atomic_store(&held, true);
    pthread_t thread = test_start_thread(min_hold_wait_in_vain, p);
    assert_true(wait_for_count(&tries, 2)); /* the first attempt, and the one after joining */
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_OK);
    syncguard_lock_dispose(lock);
    void *result = NULL;
    pthread_join(thread, &result);
    assert_ptr_equal(result, p);
    assert_true(atomic_load(&tries) <= 3); /* one may have been in flight and is repeated */
    syncguard_close(&p->base);
}

/* The reply to the release was lost, so its effect is unknown: the lock is gone before its minimum
 * hold is over. */
static syncguard_status lost_reply_then_absent(fake_backend *p, syncguard_extend_op *op,
                                               syncguard_error *err)
{
    (void)p;
    (void)op;
    if (atomic_fetch_sub(&failures_left, 1) > 0)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "the reply is lost");
    atomic_store(&held, false);
    return SYNCGUARD_ABSENT;
}

static void *wait_with_success(void *argument)
{
    fake_backend *p = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(20000);
    syncguard_lock *lock = NULL;
    options.retry_delay_ms = 30000;
    syncguard_status status = syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL);
    syncguard_lock_dispose(lock);
    return status == SYNCGUARD_OK ? p : NULL;
}

static void absent_after_a_lost_reply_wakes(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    atomic_store(&held, false);
    atomic_store(&tries, 0);
    p->on_acquire = held_for_a_minute;
    syncguard_lock *lock = min_hold_take_lock(p, 60000, 600000);
    atomic_store(&failures_left, 1);
    atomic_store(&p->on_extend, lost_reply_then_absent);
    atomic_store(&held, true);
    pthread_t thread = test_start_thread(wait_with_success, p);
    assert_true(wait_for_count(&tries, 2)); /* the first attempt, and the one after joining */
    assert_int_equal(syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_E_SERVICE_UNAVAILABLE);
    syncguard_lock_dispose(lock);
    void *result = NULL;
    pthread_join(thread, &result);
    assert_ptr_equal(result, p);
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(early_release_extends_and_does_not_remove),
        cmocka_unit_test(failed_release_goes_on_without_removing),
        cmocka_unit_test(release_that_comes_too_late_removes),
        cmocka_unit_test(late_renewal_does_not_change_the_minimum),
        cmocka_unit_test(nothing_is_kept_without_a_lock),
        cmocka_unit_test(waiters_are_not_woken_to_try),
        cmocka_unit_test(absent_after_a_lost_reply_wakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
