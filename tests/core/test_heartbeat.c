/* Renewing, losing, and ending both. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <poll.h>

#include "fake_backend.h"

static atomic_int told;
static atomic_int told_reason;
static atomic_bool dispose_when_told;
static _Atomic(syncguard_backend *) close_when_told;

static void on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)context;
    atomic_store(&told_reason, (int)reason);
    if (dispose_when_told)
        syncguard_lock_dispose(lock);
    if (close_when_told != NULL)
        syncguard_close(close_when_told);
    atomic_fetch_add(&told, 1);
}

static syncguard_lock *take(fake_backend *p, const char *key, int64_t ttl_ms, int64_t max_hold_ms)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = ttl_ms;
    options.auto_extend = true;
    options.max_hold_ms = max_hold_ms;
    options.on_lost = on_lost;
    syncguard_lock *lock = NULL;
    syncguard_error err;
    atomic_store(&told, 0);
    dispose_when_told = false;
    close_when_told = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, key, &options, &lock, &err), SYNCGUARD_OK);
    return lock;
}

static void ignore_report(void *context, const syncguard_error *error, const char *key,
                          const char *lock_id, const char *source)
{
    (void)context, (void)error, (void)key, (void)lock_id, (void)source;
}

static int64_t ms_since(int64_t begun_ns)
{
    return (syncguard_clock_ns() - begun_ns) / SYNCGUARD_NS_PER_MS;
}

/* Where a lock must be kept, a renewal has four seconds to be late in: the machine may be busy. */
#define TTL_MS 6000
/* Where it is lost anyway. */
#define SHORT_TTL_MS 2400

/* Waits until a renewal has moved the expiry. */
static bool was_renewed(const syncguard_lock *lock, int64_t expiry)
{
    for (int i = 0; i < 30000 && syncguard_lock_expires_at_ms(lock) == expiry; i++)
        sleep_ms(1);
    return syncguard_lock_expires_at_ms(lock) != expiry;
}

static void renews_in_batches(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock *locks[50];
    int64_t expiries[50];
    char key[16];
    for (int i = 0; i < 50; i++) {
        snprintf(key, sizeof key, "k%d", i);
        locks[i] = take(p, key, TTL_MS, 0);
        expiries[i] = syncguard_lock_expires_at_ms(locks[i]);
    }
    for (int i = 0; i < 50; i++) {
        assert_true(was_renewed(locks[i], expiries[i]));
        assert_true(syncguard_lock_held(locks[i]));
    }
    for (int i = 0; i < 50; i++) {
        syncguard_lock_dispose(locks[i]);
    }
    assert_int_equal(atomic_load(&told), 0);
    assert_int_equal(atomic_load(&p->extends), 0);
    assert_in_range(atomic_load(&p->batches), 1, 200);
    assert_int_equal(atomic_load(&p->releases), 50);
    syncguard_close(&p->base);
}

static syncguard_status gone(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p, (void)op, (void)err;
    return SYNCGUARD_ABSENT;
}

static void absent_is_told_once(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = gone;
    syncguard_lock *lock = take(p, "k", TTL_MS, 0);
    assert_true(wait_for_count(&told, 1));
    assert_int_equal(atomic_load(&told_reason), SYNCGUARD_LOST_ABSENT);
    sleep_ms(200);
    assert_int_equal(atomic_load(&told), 1);
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_ABSENT);
    assert_false(syncguard_lock_held(lock));
    assert_int_equal(syncguard_lock_extend(lock, 1000, NULL, NULL, NULL), SYNCGUARD_ABSENT);
    syncguard_lock_dispose(lock);
    assert_int_equal(atomic_load(&p->releases), 0); /* known to be gone: no I/O */
    syncguard_close(&p->base);
}

/* Whoever finds it out: on_lost is told when an extend by hand meets nothing. */
static void absent_by_hand_is_told_too(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = gone;
    syncguard_lock *lock = take(p, "k", 60000, 0);
    assert_int_equal(syncguard_lock_extend(lock, 60000, NULL, NULL, NULL), SYNCGUARD_ABSENT);
    assert_true(wait_for_count(&told, 1));
    assert_int_equal(atomic_load(&told_reason), SYNCGUARD_LOST_ABSENT);
    assert_int_equal(syncguard_lock_extend(lock, 60000, NULL, NULL, NULL), SYNCGUARD_ABSENT);
    sleep_ms(100);
    assert_int_equal(atomic_load(&told), 1);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static syncguard_status down(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p, (void)op;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "down");
}

static void unconfirmed_is_told_at_the_end_of_the_lease(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = down;
    int64_t begun = syncguard_clock_ns();
    syncguard_lock *lock = take(p, "k", SHORT_TTL_MS, 0);
    assert_true(wait_for_count(&told, 1));
    assert_true(ms_since(begun) >= SHORT_TTL_MS);
    assert_int_equal(atomic_load(&told_reason), SYNCGUARD_LOST_UNCONFIRMED);
    assert_true(atomic_load(&p->batches) > 3); /* tried again and again */
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static void a_failed_renewal_is_tried_again(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = down;
    syncguard_lock *lock = take(p, "k", TTL_MS, 0);
    int64_t expiry = syncguard_lock_expires_at_ms(lock);
    assert_true(wait_for_count(&p->batches, 2));
    p->on_extend = NULL;
    assert_true(was_renewed(lock, expiry));
    assert_true(syncguard_lock_held(lock));
    assert_int_equal(atomic_load(&told), 0);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static syncguard_status hang(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p;
    return syncguard_wait_until(SYNCGUARD_NO_DEADLINE, &op->limits, err);
}

static void a_hanging_store_does_not_delay_the_loss(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = hang;
    int64_t begun = syncguard_clock_ns();
    syncguard_lock *lock = take(p, "k", 400, 0);
    assert_true(wait_for_count(&told, 1)); /* the store never answers: any end is an early one */
    assert_true(ms_since(begun) >= 400);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static syncguard_status hang_at_first(fake_backend *p, syncguard_extend_op *op,
                                      syncguard_error *err)
{
    return atomic_load(&p->batches) == 1 ? hang(p, op, err) : SYNCGUARD_OK;
}

/* A request that hangs, as on a connection that is dead, leaves time for another one. */
static void a_hanging_request_does_not_use_up_the_lease(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = hang_at_first;
    syncguard_lock *lock = take(p, "k", 9000, 0);
    int64_t expiry = syncguard_lock_expires_at_ms(lock);
    assert_true(was_renewed(lock, expiry));
    assert_true(syncguard_lock_held(lock));
    assert_int_equal(atomic_load(&told), 0);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static char stuck_id[SYNCGUARD_LOCK_ID_SIZE];
static syncguard_status one_hangs_others_fail(fake_backend *p, syncguard_extend_op *op,
                                              syncguard_error *err)
{
    return strcmp(op->lock_id, stuck_id) == 0 ? hang(p, op, err) : down(p, op, err);
}

/* The request of one lock is under way for four seconds when the lease of another ends. */
static void a_request_does_not_delay_the_losses_of_others(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = 100;
    options.on_release_error = ignore_report;
    fake_backend *p = fake_backend_open(&options);
    syncguard_lock *slow = take(p, "slow", 12000, 0);
    memcpy(stuck_id, syncguard_lock_id(slow), sizeof stuck_id);
    p->on_extend = one_hangs_others_fail;
    int64_t begun = syncguard_clock_ns();
    syncguard_lock *other = take(p, "other", 5000, 0);
    assert_true(wait_for_count(&told, 1));
    assert_in_range(ms_since(begun), 5000, 7500);
    assert_int_equal(syncguard_lock_lost(other), SYNCGUARD_LOST_UNCONFIRMED);
    assert_true(syncguard_lock_held(slow));
    syncguard_lock_dispose(other);
    syncguard_lock_dispose(slow);
    syncguard_close(&p->base);
}

static syncguard_status one_is_stuck(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p;
    if (strcmp(op->lock_id, stuck_id) != 0)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "row is locked");
}

/* What a batch leaves undecided goes on alone. */
static void a_stuck_key_costs_nobody_else(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->batch_answers = true;
    syncguard_lock *good = take(p, "good", TTL_MS, 0);
    syncguard_lock *stuck = take(p, "stuck", TTL_MS, 0);
    memcpy(stuck_id, syncguard_lock_id(stuck), sizeof stuck_id);
    p->on_extend = one_is_stuck;
    assert_true(wait_for_count(&told, 1));
    assert_true(atomic_load(&p->extends) > 0);
    assert_true(syncguard_lock_held(good));
    assert_false(syncguard_lock_held(stuck));
    syncguard_lock_dispose(good);
    syncguard_lock_dispose(stuck);
    syncguard_close(&p->base);
}

static syncguard_status only_alone(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    if (atomic_load(&p->extends) > 0)
        return SYNCGUARD_OK;
    return one_is_stuck(p, op, err);
}

/* Also when it is the only one: a batch never waits for a key, a single extend does. */
static void a_lone_stuck_key_is_tried_alone(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->batch_answers = true;
    syncguard_lock *lock = take(p, "k", TTL_MS, 0);
    memcpy(stuck_id, syncguard_lock_id(lock), sizeof stuck_id);
    p->on_extend = only_alone;
    assert_true(was_renewed(lock, syncguard_lock_expires_at_ms(lock)));
    assert_true(atomic_load(&p->extends) > 0);
    assert_true(syncguard_lock_held(lock));
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

#define FIRST 256
#define LATER 2048

static atomic_int last_batch;
/* The first request gets no answer, and later ones take their time: much is due by then. */
static syncguard_status slow_after_an_outage(fake_backend *p, syncguard_extend_op *op,
                                             syncguard_error *err)
{
    int batch = atomic_load(&p->batches);
    if (batch == 1)
        return syncguard_wait_until(SYNCGUARD_NO_DEADLINE, &op->limits, err);
    if (atomic_exchange(&last_batch, batch) != batch)
        sleep_ms(300);
    return SYNCGUARD_OK;
}

/* Times in ms, with a TTL of 6000: the first ask at 1800 and give up at 3900, with 2100 left. The
 * others are due by then, and take 2400. */
static void a_failed_batch_does_not_queue_up_behind_the_others(void **state)
{
    (void)state;
    static syncguard_lock *locks[FIRST + LATER];
    fake_backend *p = fake_backend_open(NULL);
    char key[16];
    atomic_store(&last_batch, 0);
    atomic_store(&p->on_extend, slow_after_an_outage);
    for (int i = 0; i < FIRST + LATER; i++) {
        if (i == FIRST)
            sleep_ms(1200);
        snprintf(key, sizeof key, "k%d", i);
        locks[i] = take(p, key, TTL_MS, 0);
    }
    sleep_ms(5500);
    for (int i = 0; i < FIRST + LATER; i++)
        assert_true(syncguard_lock_held(locks[i]));
    atomic_store(&p->on_extend, NULL); /* a release waits for the renewal of its lock */
    for (int i = 0; i < FIRST + LATER; i++)
        syncguard_lock_dispose(locks[i]);
    assert_int_equal(atomic_load(&told), 0);
    syncguard_close(&p->base);
}

static void max_hold_ends_the_renewing(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    int64_t begun = syncguard_clock_ns();
    syncguard_lock *lock = take(p, "k", SHORT_TTL_MS, SHORT_TTL_MS / 2);
    assert_true(wait_for_count(&told, 1));
    assert_int_equal(atomic_load(&told_reason), SYNCGUARD_LOST_MAX_HOLD);
    assert_true(ms_since(begun) >= SHORT_TTL_MS);
    assert_in_range(atomic_load(&p->batches), 0, 1); /* the only one that falls before its end */
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static _Atomic int64_t last_extend_ns;
static syncguard_status down_and_noted(fake_backend *p, syncguard_extend_op *op,
                                       syncguard_error *err)
{
    atomic_store(&last_extend_ns, op->first_sent_ns);
    return down(p, op, err);
}

/* A renewal that is being retried when max_hold is over is not renewed after it either. */
static void max_hold_ends_the_retrying(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = down_and_noted;
    syncguard_lock *lock = take(p, "k", TTL_MS, TTL_MS * 2 / 3);
    int64_t hold_end = lock->hold_end_ns;
    assert_true(wait_for_count(&told, 1));
    assert_int_equal(atomic_load(&told_reason), SYNCGUARD_LOST_MAX_HOLD);
    assert_true(atomic_load(&p->batches) > 0);
    assert_true(atomic_load(&last_extend_ns) < hold_end + 1400 * SYNCGUARD_NS_PER_MS);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* The time in which locks come along must not make a short lease due all the time. */
static void a_tiny_ttl_is_no_busy_loop(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock *lock = take(p, "k", 30, 0);
    sleep_ms(300);
    assert_in_range(atomic_load(&p->batches), 0, 300); /* thirty or so; it was tens of thousands */
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static void on_lost_may_dispose_and_close(void **state)
{
    (void)state;
    atomic_bool destroyed = false;
    fake_backend *p = fake_backend_open(NULL);
    p->destroyed = &destroyed;
    (void)take(p, "k", 2000, 0);
    dispose_when_told = true;
    close_when_told = &p->base;
    p->on_extend = gone;
    assert_true(wait_for_count(&told, 1));
    for (int i = 0; i < 30000 && !atomic_load(&destroyed); i++)
        sleep_ms(1);
    assert_true(atomic_load(&destroyed));
    sleep_ms(50); /* the dispatcher ends by itself */
}

static atomic_int reports;
static syncguard_status report_code;
static void report(void *context, const syncguard_error *error, const char *key,
                   const char *lock_id, const char *source)
{
    (void)context, (void)key, (void)lock_id, (void)source;
    report_code = error->code;
    atomic_fetch_add(&reports, 1);
}

static syncguard_status hang_release(fake_backend *p, syncguard_release_op *op,
                                     syncguard_error *err)
{
    (void)p;
    return syncguard_wait_until(SYNCGUARD_NO_DEADLINE, &op->limits, err);
}

/* I-HND-09, also while a renewal hangs. */
static void dispose_timeout_holds_while_a_renewal_hangs(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = 200;
    options.on_release_error = report;
    fake_backend *p = fake_backend_open(&options);
    p->on_extend = hang;
    p->on_release = hang_release;
    syncguard_lock *lock = take(p, "k", 9000, 0);
    assert_true(wait_for_count(&p->batches, 1)); /* hangs for three seconds */
    atomic_store(&reports, 0);
    int64_t begun = syncguard_clock_ns();
    syncguard_lock_dispose(lock);
    assert_in_range(ms_since(begun), 150, 2500);
    assert_int_equal(atomic_load(&reports), 1);
    assert_int_equal(report_code, SYNCGUARD_E_NETWORK_TIMEOUT);
    syncguard_close(&p->base);
}

static void extend_by_hand_changes_the_rhythm(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock *lock = take(p, "k", 30000, 0);
    int64_t expiry = 0;
    assert_int_equal(syncguard_lock_extend(lock, TTL_MS, NULL, &expiry, NULL), SYNCGUARD_OK);
    assert_int_equal(expiry, syncguard_lock_expires_at_ms(lock));
    assert_true(syncguard_lock_remaining_ms(lock) <= TTL_MS);
    assert_true(was_renewed(lock, expiry));
    assert_true(syncguard_lock_held(lock)); /* at the new length: the old one is not due yet */
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static void detaching_keeps_the_lock_and_ends_the_renewing(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock *lock = take(p, "k", SHORT_TTL_MS, 0);
    syncguard_lock_detach(lock);
    syncguard_lock_detach(NULL);
    int batches = atomic_load(&p->batches);
    sleep_ms(SHORT_TTL_MS / 2);
    assert_int_equal(atomic_load(&p->releases), 0);
    assert_int_equal(atomic_load(&p->batches), batches);
    assert_int_equal(atomic_load(&told), 0);
    syncguard_close(&p->base);
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

/* The loss ends the program's own wait: in another acquire, and in its own poll. */
static void a_loss_triggers_the_abort_object(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;
    syncguard_lock *other = NULL;
    syncguard_abort *lost = NULL;
    assert_int_equal(syncguard_abort_create(&lost, NULL), SYNCGUARD_OK);
    options.abort_on_lost = lost;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    options.auto_extend = true;
    options.ttl_ms = 300;
    atomic_store(&p->on_extend, gone);
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL), SYNCGUARD_OK);
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, lost};
    assert_int_equal(syncguard_wait_until(SYNCGUARD_NO_DEADLINE, &limits, NULL),
                     SYNCGUARD_E_ABORTED);
    struct pollfd fd = {syncguard_abort_fd(lost), POLLIN, 0};
    assert_int_equal(poll(&fd, 1, 0), 1);
    options = (syncguard_lock_options)SYNCGUARD_LOCK_OPTIONS_INIT;
    options.abort_object = lost;
    assert_int_equal(syncguard_lock_acquire(&p->base, "o", &options, &other, NULL),
                     SYNCGUARD_E_ABORTED);
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_ABSENT);
    syncguard_lock_dispose(lock);
    syncguard_abort_free(lost);
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renews_in_batches),
        cmocka_unit_test(absent_is_told_once),
        cmocka_unit_test(absent_by_hand_is_told_too),
        cmocka_unit_test(unconfirmed_is_told_at_the_end_of_the_lease),
        cmocka_unit_test(a_failed_renewal_is_tried_again),
        cmocka_unit_test(a_hanging_store_does_not_delay_the_loss),
        cmocka_unit_test(a_request_does_not_delay_the_losses_of_others),
        cmocka_unit_test(a_hanging_request_does_not_use_up_the_lease),
        cmocka_unit_test(a_stuck_key_costs_nobody_else),
        cmocka_unit_test(a_lone_stuck_key_is_tried_alone),
        cmocka_unit_test(a_failed_batch_does_not_queue_up_behind_the_others),
        cmocka_unit_test(max_hold_ends_the_renewing),
        cmocka_unit_test(max_hold_ends_the_retrying),
        cmocka_unit_test(a_tiny_ttl_is_no_busy_loop),
        cmocka_unit_test(on_lost_may_dispose_and_close),
        cmocka_unit_test(dispose_timeout_holds_while_a_renewal_hangs),
        cmocka_unit_test(extend_by_hand_changes_the_rhythm),
        cmocka_unit_test(detaching_keeps_the_lock_and_ends_the_renewing),
        cmocka_unit_test(on_lost_needs_auto_extend),
        cmocka_unit_test(a_loss_triggers_the_abort_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
