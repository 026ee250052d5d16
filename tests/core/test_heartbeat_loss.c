/* Losing a lock: on_lost gets the reason, once and in time, and may end the lock. */
#include "heartbeat.h"

#include <poll.h>

static void absent_is_told_once(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = fake_extend_absent;
    syncguard_lock *lock = take_renewed(p, "k", TTL_MS, 0);
    assert_true(wait_for_count(&losses_told, 1));
    assert_int_equal(atomic_load(&told_reason), SYNCGUARD_LOST_ABSENT);
    test_sleep_ms(200);
    assert_int_equal(atomic_load(&losses_told), 1);
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_ABSENT);
    assert_false(syncguard_lock_held(lock));
    assert_int_equal(syncguard_lock_extend(lock, 1000, NULL, NULL, NULL), SYNCGUARD_ABSENT);
    syncguard_lock_dispose(lock);
    assert_int_equal(atomic_load(&p->releases), 0); /* known to be gone: no request is sent */
    syncguard_close(&p->base);
}

/* on_lost is also called if an explicit extend finds the lock gone. */
static void absent_by_hand_is_told_too(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = fake_extend_absent;
    syncguard_lock *lock = take_renewed(p, "k", 60000, 0);
    assert_int_equal(syncguard_lock_extend(lock, 60000, NULL, NULL, NULL), SYNCGUARD_ABSENT);
    assert_true(wait_for_count(&losses_told, 1));
    assert_int_equal(atomic_load(&told_reason), SYNCGUARD_LOST_ABSENT);
    assert_int_equal(syncguard_lock_extend(lock, 60000, NULL, NULL, NULL), SYNCGUARD_ABSENT);
    test_sleep_ms(100);
    assert_int_equal(atomic_load(&losses_told), 1);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static void unconfirmed_is_told_at_the_end_of_the_lease(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = extend_down;
    int64_t begun = syncguard_clock_ns();
    syncguard_lock *lock = take_renewed(p, "k", SHORT_TTL_MS, 0);
    assert_true(wait_for_count(&losses_told, 1));
    assert_true(ms_since(begun) >= SHORT_TTL_MS);
    assert_int_equal(atomic_load(&told_reason), SYNCGUARD_LOST_UNCONFIRMED);
    assert_true(atomic_load(&p->batches) > 3); /* retried again and again */
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static void a_hanging_store_does_not_delay_the_loss(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = extend_hangs;
    int64_t begun = syncguard_clock_ns();
    syncguard_lock *lock = take_renewed(p, "k", 400, 0);
    assert_true(
        wait_for_count(&losses_told, 1)); /* the store never answers, so any end is an early one */
    assert_true(ms_since(begun) >= 400);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static char stuck_id[SYNCGUARD_LOCK_ID_SIZE];
static syncguard_status one_hangs_others_fail(fake_backend *p, syncguard_extend_op *op,
                                              syncguard_error *err)
{
    return strcmp(op->lock_id, stuck_id) == 0 ? extend_hangs(p, op, err) : extend_down(p, op, err);
}

/* The request of one lock is under way for four seconds when the lease of another ends. */
static void a_request_does_not_delay_the_losses_of_others(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = 100;
    options.on_release_error = test_ignore_report;
    fake_backend *p = fake_backend_open(&options);
    syncguard_lock *slow = take_renewed(p, "slow", 12000, 0);
    memcpy(stuck_id, syncguard_lock_id(slow), sizeof stuck_id);
    p->on_extend = one_hangs_others_fail;
    int64_t begun = syncguard_clock_ns();
    syncguard_lock *other = take_renewed(p, "other", 5000, 0);
    assert_true(wait_for_count(&losses_told, 1));
    assert_in_range(ms_since(begun), 5000, 7500);
    assert_int_equal(syncguard_lock_lost(other), SYNCGUARD_LOST_UNCONFIRMED);
    assert_true(syncguard_lock_held(slow));
    syncguard_lock_dispose(other);
    syncguard_lock_dispose(slow);
    syncguard_close(&p->base);
}

static void on_lost_may_dispose_and_close(void **state)
{
    (void)state;
    atomic_bool destroyed = false;
    fake_backend *p = fake_backend_open(NULL);
    p->destroyed = &destroyed;
    (void)take_renewed(p, "k", 2000, 0);
    dispose_when_told = true;
    close_when_told = &p->base;
    p->on_extend = fake_extend_absent;
    assert_true(wait_for_count(&losses_told, 1));
    for (int i = 0; i < 30000 && !atomic_load(&destroyed); i++)
        test_sleep_ms(1);
    assert_true(atomic_load(&destroyed));
    test_sleep_ms(50); /* the dispatcher thread ends by itself */
}

static void on_lost_needs_auto_extend(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.on_lost = on_lost;
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    syncguard_close(&p->base);
}

/* The loss ends the program's own waits: in another acquire, and in its own poll. */
static void a_loss_triggers_the_abort_object(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;
    syncguard_abort *lost = NULL;
    assert_int_equal(syncguard_abort_create(&lost, NULL), SYNCGUARD_OK);
    options.abort_on_lost = lost;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    options.auto_extend = true;
    options.ttl_ms = 300;
    atomic_store(&p->on_extend, fake_extend_absent);
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL), SYNCGUARD_OK);
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, lost};
    assert_int_equal(syncguard_wait_until(SYNCGUARD_NO_DEADLINE, &limits, NULL),
                     SYNCGUARD_E_ABORTED);
    struct pollfd fd = {syncguard_abort_fd(lost), POLLIN, 0};
    assert_int_equal(poll(&fd, 1, 0), 1);
    options = (syncguard_lock_options)SYNCGUARD_LOCK_OPTIONS_INIT;
    options.abort_object = lost;
    syncguard_lock *other = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "o", &options, &other, NULL),
                     SYNCGUARD_E_ABORTED);
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_ABSENT);
    syncguard_lock_dispose(lock);
    syncguard_abort_free(lost);
    syncguard_close(&p->base);
}

static atomic_bool unclaim_slowly;

void __real_sg_lock_unclaim(syncguard_lock *lock);
void __wrap_sg_lock_unclaim(syncguard_lock *lock);

void __wrap_sg_lock_unclaim(syncguard_lock *lock)
{
    __real_sg_lock_unclaim(lock);
    if (atomic_load(&unclaim_slowly))
        test_sleep_ms(200);
}

static void loss_dispose(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)context;
    (void)reason;
    syncguard_lock_dispose(lock);
    atomic_fetch_add(&losses_told, 1);
}

/* The extend that finds the loss is the last user of the handle: it returns without a look at it.
 */
static void on_lost_may_dispose_during_the_extend_that_finds_the_loss(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = fake_extend_absent;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 60000;
    options.auto_extend = true;
    options.on_lost = loss_dispose;
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL), SYNCGUARD_OK);
    atomic_store(&losses_told, 0);
    atomic_store(&unclaim_slowly, true);
    assert_int_equal(syncguard_lock_extend(lock, 60000, NULL, NULL, NULL), SYNCGUARD_ABSENT);
    atomic_store(&unclaim_slowly, false);
    assert_true(wait_for_count(&losses_told, 1));
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_is_told_once),
        cmocka_unit_test(absent_by_hand_is_told_too),
        cmocka_unit_test(unconfirmed_is_told_at_the_end_of_the_lease),
        cmocka_unit_test(a_hanging_store_does_not_delay_the_loss),
        cmocka_unit_test(a_request_does_not_delay_the_losses_of_others),
        cmocka_unit_test(on_lost_may_dispose_and_close),
        cmocka_unit_test(on_lost_may_dispose_during_the_extend_that_finds_the_loss),
        cmocka_unit_test(on_lost_needs_auto_extend),
        cmocka_unit_test(a_loss_triggers_the_abort_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
