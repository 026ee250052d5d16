/* Renewals: when they are sent, that they are retried, and what ends them. Requests that hang: see
 * test_heartbeat_stuck.c. Losses: see test_heartbeat_loss.c. */
#include "heartbeat.h"

static void renews_in_batches(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock *locks[50];
    int64_t expiries[50];
    char key[16];
    for (int i = 0; i < 50; i++) {
        snprintf(key, sizeof key, "k%d", i);
        locks[i] = take_renewed(p, key, TTL_MS, 0);
        expiries[i] = syncguard_lock_expires_at_ms(locks[i]);
    }
    for (int i = 0; i < 50; i++) {
        assert_true(was_renewed(locks[i], expiries[i]));
        assert_true(syncguard_lock_held(locks[i]));
    }
    for (int i = 0; i < 50; i++) {
        syncguard_lock_dispose(locks[i]);
    }
    assert_int_equal(atomic_load(&losses_told), 0);
    assert_int_equal(atomic_load(&p->extends), 0);
    assert_in_range(atomic_load(&p->batches), 1, 200);
    assert_int_equal(atomic_load(&p->releases), 50);
    syncguard_close(&p->base);
}

static void a_failed_renewal_is_tried_again(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = extend_down;
    syncguard_lock *lock = take_renewed(p, "k", TTL_MS, 0);
    int64_t expiry = syncguard_lock_expires_at_ms(lock);
    assert_true(wait_for_count(&p->batches, 2));
    p->on_extend = NULL;
    assert_true(was_renewed(lock, expiry));
    assert_true(syncguard_lock_held(lock));
    assert_int_equal(atomic_load(&losses_told), 0);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* The pause begins when the request is sent: after a slow request there is none. */
static void a_slow_failure_is_tried_again_at_once(void **state)
{
    (void)state;
    int64_t now = syncguard_clock_ns();
    syncguard_lock lock = {.ttl_ms = TTL_MS,
                           .lease = now + 60000 * SYNCGUARD_NS_PER_MS,
                           .hold_end_ns = SYNCGUARD_NO_DEADLINE};
    sg_renewal_schedule_retry(&lock, now);
    assert_int_equal(lock.renewal.due_ns, now + TTL_MS / 20 * SYNCGUARD_NS_PER_MS);
    sg_renewal_schedule_retry(&lock, now - 1000 * SYNCGUARD_NS_PER_MS);
    assert_true(lock.renewal.due_ns >= now);
    assert_true(lock.renewal.due_ns <= syncguard_clock_ns());
}

static void max_hold_ends_the_lock(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    int64_t begun = syncguard_clock_ns();
    syncguard_lock *lock = take_renewed(p, "k", SHORT_TTL_MS, SHORT_TTL_MS / 3);
    assert_in_range(syncguard_lock_remaining_ms(lock), 0, SHORT_TTL_MS / 3);
    assert_true(wait_for_count(&losses_told, 1));
    assert_int_equal(atomic_load(&told_reason), SYNCGUARD_LOST_MAX_HOLD);
    assert_true(ms_since(begun) >= SHORT_TTL_MS / 3);
    assert_int_equal(atomic_load(&p->batches), 0); /* the loss is noticed in time */
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static _Atomic int64_t limit_ms;
static syncguard_status note_limit(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p, (void)err;
    atomic_store(&limit_ms, -ms_since(op->limits.deadline_ns));
    return SYNCGUARD_OK;
}

/* Locks that have reached their maximum hold do not delay the other locks of the same request. */
static void max_hold_end_affects_no_other_lock(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = note_limit;
    syncguard_lock *lock = take_renewed(p, "k", 10 * TTL_MS, 0);
    syncguard_lock *limited = take_renewed(p, "limited", TTL_MS, TTL_MS);
    syncguard_backend_reconnected(&p->base); /* all are renewed now */
    assert_true(wait_for_count(&p->batches, 1));
    assert_in_range(atomic_load(&limit_ms), 4000, 5000); /* half of the TTL would be 3000 */
    syncguard_lock_dispose(limited);
    syncguard_lock_dispose(lock);
    int64_t now = syncguard_clock_ns();
    int64_t end = now + TTL_MS / 4 * SYNCGUARD_NS_PER_MS;
    syncguard_lock late = {
        .ttl_ms = TTL_MS, .wanted_ttl_ms = TTL_MS, .lease = end, .hold_end_ns = end};
    sg_renewal_schedule_retry(&late, now);
    assert_int_equal(late.renewal.due_ns, end); /* nor are they retried when little time is left */
    syncguard_close(&p->base);
}

/* The first lease already ends with the maximum hold. It is renewed all the same, because the lock
 * may be gone. */
static void a_loss_before_the_end_of_max_hold_is_noticed(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock *lock = take_renewed(p, "k", TTL_MS, TTL_MS);
    int64_t hold_end = atomic_load(&lock->hold_end_ns);
    assert_true(wait_for_count(&p->batches, 1));
    assert_true(syncguard_lock_held(lock));
    assert_true(sg_lock_lease_end(lock) <= hold_end);
    p->on_extend = fake_extend_absent;
    assert_true(wait_for_count(&losses_told, 1));
    assert_int_equal(atomic_load(&told_reason), SYNCGUARD_LOST_ABSENT);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static _Atomic int64_t latest_end_ns; /* of the leases that were asked for */
static syncguard_status note_end(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    int64_t end = op->first_sent_ns + op->ttl_ms * SYNCGUARD_NS_PER_MS;
    (void)p, (void)err;
    if (end > atomic_load(&latest_end_ns))
        atomic_store(&latest_end_ns, end);
    return SYNCGUARD_OK;
}

/* Neither a renewal nor an explicit extend gives a lease that ends later than the maximum hold. */
static void every_lease_ends_with_max_hold(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = note_end;
    atomic_store(&latest_end_ns, 0);
    syncguard_lock *lock = take_renewed(p, "k", TTL_MS, TTL_MS * 4 / 3);
    int64_t hold_end = atomic_load(&lock->hold_end_ns);
    assert_true(wait_for_count(&losses_told, 1));
    assert_int_equal(atomic_load(&told_reason), SYNCGUARD_LOST_MAX_HOLD);
    assert_true(syncguard_clock_ns() >= hold_end);
    assert_true(atomic_load(&p->batches) > 0);
    assert_true(atomic_load(&latest_end_ns) >= hold_end);
    assert_true(atomic_load(&latest_end_ns) < hold_end + 1000 * SYNCGUARD_NS_PER_MS);
    syncguard_lock_dispose(lock);
    lock = take_renewed(p, "k", TTL_MS, 10 * TTL_MS);
    assert_int_equal(syncguard_lock_extend(lock, 100 * TTL_MS, NULL, NULL, NULL), SYNCGUARD_OK);
    assert_in_range(syncguard_lock_remaining_ms(lock), 2 * TTL_MS, 10 * TTL_MS);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* The margin for sharing a request must not make a short lease due all the time. */
static void a_tiny_ttl_is_no_busy_loop(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock *lock = take_renewed(p, "k", 30, 0);
    test_sleep_ms(300);
    assert_in_range(atomic_load(&p->batches), 0, 300); /* thirty or so; it was tens of thousands */
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static void extend_by_hand_changes_the_rhythm(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock *lock = take_renewed(p, "k", 30000, 0);
    int64_t expiry = 0;
    assert_int_equal(syncguard_lock_extend(lock, TTL_MS, NULL, &expiry, NULL), SYNCGUARD_OK);
    assert_int_equal(expiry, syncguard_lock_expires_at_ms(lock));
    assert_true(syncguard_lock_remaining_ms(lock) <= TTL_MS);
    assert_true(was_renewed(lock, expiry));
    assert_true(syncguard_lock_held(lock)); /* with the new TTL: the old one is not due yet */
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static void detaching_keeps_the_lock_and_ends_the_renewing(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock *lock = take_renewed(p, "k", SHORT_TTL_MS, 0);
    syncguard_lock_detach(lock);
    syncguard_lock_detach(NULL);
    int batches = atomic_load(&p->batches);
    test_sleep_ms(SHORT_TTL_MS / 2);
    assert_int_equal(atomic_load(&p->releases), 0);
    assert_int_equal(atomic_load(&p->batches), batches);
    assert_int_equal(atomic_load(&losses_told), 0);
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renews_in_batches),
        cmocka_unit_test(a_failed_renewal_is_tried_again),
        cmocka_unit_test(a_slow_failure_is_tried_again_at_once),
        cmocka_unit_test(max_hold_ends_the_lock),
        cmocka_unit_test(max_hold_end_affects_no_other_lock),
        cmocka_unit_test(a_loss_before_the_end_of_max_hold_is_noticed),
        cmocka_unit_test(every_lease_ends_with_max_hold),
        cmocka_unit_test(a_tiny_ttl_is_no_busy_loop),
        cmocka_unit_test(extend_by_hand_changes_the_rhythm),
        cmocka_unit_test(detaching_keeps_the_lock_and_ends_the_renewing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
