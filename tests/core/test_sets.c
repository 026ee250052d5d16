/*
 * Sets on a store that hangs: the caller's limits apply to all keys together, and the keys that
 * were locked before are released.
 *
 * Interleavings that are made here on purpose:
 *   - the store hangs at the second key: abort, deadline
 *   - the store hangs while the first key is renewed at the end
 */
#include <pthread.h>

#include "test_assert.h"

#include "fake_backend.h"
#include "syncguard/lock_set.h"

#define TIMEOUT_MS 1000
/* Late, but before the release of the first key could have timed out in the foreground. */
#define LATEST_MS 4000

static const char *const keys[] = {"a", "b"};
static atomic_bool hung;
static atomic_int held;
static int64_t b_free_ns; /* b is granted from then on; before, it is held, or hangs if this is 0 */

static syncguard_status sets_hang_operation(const syncguard_limits *limits, syncguard_error *err)
{
    while (atomic_load(&hung)) {
        syncguard_status status = syncguard_limits_check(limits, err);
        if (status != SYNCGUARD_OK)
            return status;
        test_sleep_ms(2);
    }
    return SYNCGUARD_OK;
}

static syncguard_status sets_answer_acquire(fake_backend *p, syncguard_acquire_op *op,
                                            syncguard_error *err)
{
    if (op->key[0] == 'b' && b_free_ns == 0)
        return sets_hang_operation(&op->limits, err);
    if (op->key[0] == 'b' && syncguard_clock_ns() < b_free_ns) {
        op->remaining_ms = 60000;
        return SYNCGUARD_LOCKED;
    }
    atomic_fetch_add(&held, 1);
    op->fence = (uint64_t)atomic_fetch_add(&p->fence, 1) + 1;
    return SYNCGUARD_OK;
}

static syncguard_status sets_hang_extend(fake_backend *p, syncguard_extend_op *op,
                                         syncguard_error *err)
{
    (void)p;
    return sets_hang_operation(&op->limits, err);
}

static syncguard_status sets_answer_release(fake_backend *p, syncguard_release_op *op,
                                            syncguard_error *err)
{
    (void)p;
    syncguard_status status = sets_hang_operation(&op->limits, err);
    if (status == SYNCGUARD_OK)
        atomic_fetch_sub(&held, 1);
    return status;
}

/* Fails to acquire both keys, in time, and leaves nothing locked. */
static void acquire_in_vain(const syncguard_lock_options *given, syncguard_status expected)
{
    syncguard_lock_options options = *given;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = sets_answer_acquire;
    p->on_release = sets_answer_release;
    p->on_extend = sets_hang_extend;
    options.on_release_error = test_ignore_report;
    atomic_store(&hung, true);
    atomic_store(&held, 0);
    int64_t begun = syncguard_clock_ns();
    syncguard_error err;
    syncguard_lock_set *set = NULL;
    assert_int_equal(syncguard_lock_acquire_all(&p->base, keys, 2, &options, &set, &err), expected);
    assert_in_range((syncguard_clock_ns() - begun) / SYNCGUARD_NS_PER_MS, 0, LATEST_MS);
    assert_null(set);
    atomic_store(&hung, false);
    for (int i = 0; i < 3000 && atomic_load(&held) > 0; i++)
        test_sleep_ms(10);
    assert_int_equal(atomic_load(&held), 0);
    syncguard_close(&p->base);
}

static void abort_ends_it_while_the_store_hangs(void **state)
{
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    assert_int_equal(syncguard_abort_create(&options.abort_object, NULL), SYNCGUARD_OK);
    b_free_ns = 0;
    pthread_t thread = test_trigger_soon(options.abort_object);
    acquire_in_vain(&options, SYNCGUARD_E_ABORTED);
    pthread_join(thread, NULL);
    syncguard_abort_free(options.abort_object);
}

static void timeout_ends_it_while_the_store_hangs(void **state)
{
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(TIMEOUT_MS);
    b_free_ns = 0;
    acquire_in_vain(&options, SYNCGUARD_E_ACQUISITION_TIMEOUT);
}

/* The second key is granted shortly before the deadline; by then the first one's lease is too
 * old. */
static void timeout_ends_the_last_extend(void **state)
{
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(TIMEOUT_MS);
    options.ttl_ms = 5000;
    options.retry_delay_ms = 20;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    b_free_ns = syncguard_clock_after(syncguard_clock_ns(), TIMEOUT_MS * 7 / 10);
    acquire_in_vain(&options, SYNCGUARD_E_ACQUISITION_TIMEOUT);
}

/* The maximum hold does not begin while the acquire waits for the second key, however long that
 * takes. */
static void max_hold_begins_when_all_are_locked(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = sets_answer_acquire;
    p->on_release = sets_answer_release;
    p->on_extend = sets_hang_extend;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    options.auto_extend = true;
    options.max_hold_ms = 2000;
    options.retry_delay_ms = 20;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    atomic_store(&hung, false);
    atomic_store(&held, 0);
    b_free_ns = syncguard_clock_after(syncguard_clock_ns(), 3000);
    syncguard_lock_set *set = NULL;
    assert_int_equal(syncguard_lock_acquire_all(&p->base, keys, 2, &options, &set, NULL),
                     SYNCGUARD_OK);
    int64_t locked_ns = syncguard_clock_ns();
    assert_int_equal(atomic_load(&p->releases), 0); /* the first was not lost meanwhile */
    while (syncguard_lock_set_held(set))
        test_sleep_ms(5);
    assert_int_equal(syncguard_lock_set_lost(set), SYNCGUARD_LOST_MAX_HOLD);
    assert_true(syncguard_clock_ns() - locked_ns >= 1900 * SYNCGUARD_NS_PER_MS);
    syncguard_lock_set_dispose(set);
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(abort_ends_it_while_the_store_hangs),
        cmocka_unit_test(timeout_ends_it_while_the_store_hangs),
        cmocka_unit_test(timeout_ends_the_last_extend),
        cmocka_unit_test(max_hold_begins_when_all_are_locked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
