/* Locks that an answered batch leaves undecided are renewed in time, whether many or few. */
#include "heartbeat.h"

#define GIVEN_UP 100

static atomic_int last_batch;
static atomic_int extends_seen;
static _Atomic int64_t busy_until_ns;

/* The first batch is slow, so that the second one has all other locks. The second is given up, but
 * its locks stay busy in the store for a while. A request for one lock is slow. */
static syncguard_status busy_after_it_was_given_up(fake_backend *p, syncguard_extend_op *op,
                                                   syncguard_error *err)
{
    int batch = atomic_load(&p->batches);
    if (atomic_exchange(&last_batch, batch) != batch && batch == 1)
        test_sleep_ms(400);
    if (batch == 2 && atomic_load(&p->extends) == 0) {
        syncguard_status status = syncguard_wait_until(SYNCGUARD_NO_DEADLINE, &op->limits, err);
        atomic_store(&busy_until_ns, syncguard_clock_after(syncguard_clock_ns(), 500));
        return status;
    }
    p->batch_answers = batch > 2;
    int extends = atomic_load(&p->extends);
    if (atomic_exchange(&extends_seen, extends) != extends)
        test_sleep_ms(50);
    if (syncguard_clock_ns() < atomic_load(&busy_until_ns))
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "row is locked");
    return SYNCGUARD_OK;
}

/* Times in ms, with a TTL of 6000: the second batch is sent at 2400 and given up at 4200, with 1800
 * left. One after the other, its locks would take 5000. */
static void a_batch_that_was_given_up_is_not_repeated_one_by_one(void **state)
{
    (void)state;
    static syncguard_lock *locks[GIVEN_UP];
    fake_backend *p = fake_backend_open(NULL);
    atomic_store(&last_batch, 0);
    atomic_store(&extends_seen, 0);
    atomic_store(&busy_until_ns, 0);
    atomic_store(&p->on_extend, busy_after_it_was_given_up);
    char key[16];
    for (int i = 0; i < GIVEN_UP; i++) {
        snprintf(key, sizeof key, "k%d", i);
        locks[i] = take_renewed(p, key, TTL_MS, 0);
    }
    test_sleep_ms(6500);
    for (int i = 0; i < GIVEN_UP; i++)
        assert_true(syncguard_lock_held(locks[i]));
    assert_true(atomic_load(&busy_until_ns) > 0);
    atomic_store(&p->on_extend, NULL); /* a release waits for the renewal of its lock */
    for (int i = 0; i < GIVEN_UP; i++)
        syncguard_lock_dispose(locks[i]);
    assert_int_equal(atomic_load(&losses_told), 0);
    syncguard_close(&p->base);
}

#define MANY 10
#define FEW 2

/* The rows are busy at first. Later every request takes longer than a second. */
static syncguard_status slow_after_it_was_busy(fake_backend *p, syncguard_extend_op *op,
                                               syncguard_error *err)
{
    static _Thread_local int64_t request_ns;
    static _Thread_local syncguard_status answer;
    if (syncguard_clock_ns() < atomic_load(&busy_until_ns))
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "row is locked");
    if (request_ns != op->limits.deadline_ns) { /* not another item of the same batch */
        request_ns = op->limits.deadline_ns;
        answer = syncguard_wait_until(syncguard_clock_after(syncguard_clock_ns(), 1300),
                                      &op->limits, err);
    }
    (void)p;
    return answer;
}

static fake_backend *open_slow_store(syncguard_lock **locks, int count)
{
    fake_backend *p = fake_backend_open(NULL);
    char key[16];
    p->batch_answers = true;
    atomic_store(&p->on_extend, slow_after_it_was_busy);
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "k%d", i);
        locks[i] = take_renewed(p, key, 2 * TTL_MS, 0);
    }
    return p;
}

/* Times in ms, with a TTL of 12000: all locks are undecided from 3600 to 4500. They are left to
 * requests for one lock or, if there are many, to batches of the locks that are due. */
static void undecided_locks_survive_a_slow_store(void **state)
{
    (void)state;
    syncguard_lock *locks[MANY + FEW];
    atomic_store(&busy_until_ns, syncguard_clock_after(syncguard_clock_ns(), 4500));
    fake_backend *many = open_slow_store(locks, MANY);
    fake_backend *few = open_slow_store(locks + MANY, FEW);
    test_sleep_ms(2 * TTL_MS + 300);
    assert_true(atomic_load(&few->extends) > 0);
    for (int i = 0; i < MANY + FEW; i++)
        assert_true(syncguard_lock_held(locks[i]));
    atomic_store(&many->on_extend, NULL);
    atomic_store(&few->on_extend, NULL);
    for (int i = 0; i < MANY + FEW; i++)
        syncguard_lock_dispose(locks[i]);
    assert_int_equal(atomic_load(&losses_told), 0);
    syncguard_close(&many->base);
    syncguard_close(&few->base);
}

static atomic_int singles;
/* Answers only for a lock that is alone in its request, as Firestore does for locks whose documents
 * it cannot name. */
static syncguard_status undecided_extend_unless_alone(fake_backend *p, syncguard_extend_op *op,
                                                      syncguard_error *err)
{
    (void)op;
    int extends = atomic_load(&p->extends);
    if (atomic_exchange(&singles, extends) != extends)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "not in a batch");
}

/* So many locks must not be tried only together. */
static void many_that_are_decided_alone_survive(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    atomic_store(&singles, 0);
    p->batch_answers = true;
    atomic_store(&p->on_extend, undecided_extend_unless_alone);
    syncguard_lock *locks[10 * MANY];
    char key[16];
    for (int i = 0; i < 10 * MANY; i++) {
        snprintf(key, sizeof key, "k%d", i);
        locks[i] = take_renewed(p, key, TTL_MS, 0);
    }
    test_sleep_ms(TTL_MS + 300);
    for (int i = 0; i < 10 * MANY; i++)
        assert_true(syncguard_lock_held(locks[i]));
    atomic_store(&p->on_extend, NULL);
    for (int i = 0; i < 10 * MANY; i++)
        syncguard_lock_dispose(locks[i]);
    assert_int_equal(atomic_load(&losses_told), 0);
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_that_was_given_up_is_not_repeated_one_by_one),
        cmocka_unit_test(undecided_locks_survive_a_slow_store),
        cmocka_unit_test(many_that_are_decided_alone_survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
