/* Renewals that hang or fail, or whose key is busy: they do not cost any other lock its lease, and
 * they leave time for another attempt. */
#include "heartbeat.h"

static syncguard_status hang_at_first(fake_backend *p, syncguard_extend_op *op,
                                      syncguard_error *err)
{
    return atomic_load(&p->batches) == 1 ? extend_hangs(p, op, err) : SYNCGUARD_OK;
}

/* A request that hangs, as on a dead connection, leaves time for another one. */
static void a_hanging_request_does_not_use_up_the_lease(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = hang_at_first;
    syncguard_lock *lock = take_renewed(p, "k", 9000, 0);
    int64_t expiry = syncguard_lock_expires_at_ms(lock);
    assert_true(was_renewed(lock, expiry));
    assert_true(syncguard_lock_held(lock));
    assert_int_equal(atomic_load(&losses_told), 0);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static char stuck_id[SYNCGUARD_LOCK_ID_SIZE];
static syncguard_status one_is_stuck(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p;
    if (strcmp(op->lock_id, stuck_id) != 0)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "row is locked");
}

/* Keys that a batch leaves undecided are renewed singly. */
static void a_stuck_key_costs_nobody_else(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->batch_answers = true;
    syncguard_lock *good = take_renewed(p, "good", TTL_MS, 0);
    syncguard_lock *stuck = take_renewed(p, "stuck", TTL_MS, 0);
    memcpy(stuck_id, syncguard_lock_id(stuck), sizeof stuck_id);
    p->on_extend = one_is_stuck;
    assert_true(wait_for_count(&losses_told, 1));
    assert_true(atomic_load(&p->extends) > 0);
    assert_true(syncguard_lock_held(good));
    assert_false(syncguard_lock_held(stuck));
    syncguard_lock_dispose(good);
    syncguard_lock_dispose(stuck);
    syncguard_close(&p->base);
}

static syncguard_status stuck_extend_unless_alone(fake_backend *p, syncguard_extend_op *op,
                                                  syncguard_error *err)
{
    if (atomic_load(&p->extends) > 0)
        return SYNCGUARD_OK;
    return one_is_stuck(p, op, err);
}

/* Also if it is the only key: a batch never waits for a key, a single extend does. */
static void a_lone_stuck_key_is_tried_alone(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->batch_answers = true;
    syncguard_lock *lock = take_renewed(p, "k", TTL_MS, 0);
    memcpy(stuck_id, syncguard_lock_id(lock), sizeof stuck_id);
    p->on_extend = stuck_extend_unless_alone;
    assert_true(was_renewed(lock, syncguard_lock_expires_at_ms(lock)));
    assert_true(atomic_load(&p->extends) > 0);
    assert_true(syncguard_lock_held(lock));
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

#define FIRST 256
#define LATER 2048

static atomic_int last_batch;
/* The first request gets no answer, and later ones are slow: by then many renewals are due. */
static syncguard_status slow_after_an_outage(fake_backend *p, syncguard_extend_op *op,
                                             syncguard_error *err)
{
    int batch = atomic_load(&p->batches);
    if (batch == 1)
        return syncguard_wait_until(SYNCGUARD_NO_DEADLINE, &op->limits, err);
    if (atomic_exchange(&last_batch, batch) != batch)
        test_sleep_ms(300);
    return SYNCGUARD_OK;
}

/* Times in ms, with a TTL of 6000: the first renewals are sent at 1800 and given up at 3900, with
 * 2100 left. The others are due by then, and take 2400. */
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
            test_sleep_ms(1200);
        snprintf(key, sizeof key, "k%d", i);
        locks[i] = take_renewed(p, key, TTL_MS, 0);
    }
    test_sleep_ms(5500);
    for (int i = 0; i < FIRST + LATER; i++)
        assert_true(syncguard_lock_held(locks[i]));
    atomic_store(&p->on_extend, NULL); /* a release waits for the renewal of its lock */
    for (int i = 0; i < FIRST + LATER; i++)
        syncguard_lock_dispose(locks[i]);
    assert_int_equal(atomic_load(&losses_told), 0);
    syncguard_close(&p->base);
}

static atomic_int reports;
static syncguard_status report_code;
static void stuck_note_report(void *context, const syncguard_error *error, const char *key,
                              const char *lock_id, const char *source)
{
    (void)context, (void)key, (void)lock_id, (void)source;
    report_code = error->code;
    atomic_fetch_add(&reports, 1);
}

/* I-HND-09, also while a renewal hangs. */
static void dispose_timeout_holds_while_a_renewal_hangs(void **state)
{
    (void)state;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.dispose_timeout_ms = 200;
    options.on_release_error = stuck_note_report;
    fake_backend *p = fake_backend_open(&options);
    p->on_extend = extend_hangs;
    p->on_release = fake_release_hangs;
    syncguard_lock *lock = take_renewed(p, "k", 9000, 0);
    assert_true(wait_for_count(&p->batches, 1)); /* hangs for three seconds */
    atomic_store(&reports, 0);
    int64_t begun = syncguard_clock_ns();
    syncguard_lock_dispose(lock);
    assert_in_range(ms_since(begun), 150, 2500);
    assert_int_equal(atomic_load(&reports), 1);
    assert_int_equal(report_code, SYNCGUARD_E_NETWORK_TIMEOUT);
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hanging_request_does_not_use_up_the_lease),
        cmocka_unit_test(a_stuck_key_costs_nobody_else),
        cmocka_unit_test(a_lone_stuck_key_is_tried_alone),
        cmocka_unit_test(a_failed_batch_does_not_queue_up_behind_the_others),
        cmocka_unit_test(dispose_timeout_holds_while_a_renewal_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
