/* The pauses of a waiting acquire: the effect of backoff and jitter, and the end of a pause. */

#include "fake_backend.h"
#include "test_assert.h"

enum { PAUSES = 30, DELAY_MS = 24, JOINING = 1, TRIES = PAUSES + 1 + JOINING };

static int64_t tried_ns[TRIES];
static int tries;

static syncguard_status note_locked(fake_backend *p, syncguard_acquire_op *op, syncguard_error *err)
{
    (void)p, (void)op, (void)err;
    if (tries < TRIES)
        tried_ns[tries] = syncguard_clock_ns();
    tries++;
    return SYNCGUARD_LOCKED;
}

typedef struct range {
    double least, most;
} range;

/* The shortest and the longest of thirty pauses, as parts of the delay. */
static range pauses_of(syncguard_jitter jitter)
{
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = note_locked;
    tries = 0;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.backoff = SYNCGUARD_BACKOFF_FIXED;
    options.jitter = jitter;
    options.retry_delay_ms = DELAY_MS;
    options.max_retries = PAUSES;
    options.timeout_ms = SYNCGUARD_WAIT_FOREVER;
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_int_equal(tries, TRIES);
    range seen = {1e9, 0};
    for (int i = JOINING; i < TRIES - 1; i++) {
        double part = (double)(tried_ns[i + 1] - tried_ns[i]) / 1e6 / DELAY_MS;
        seen.least = part < seen.least ? part : seen.least;
        seen.most = part > seen.most ? part : seen.most;
    }
    print_message("    jitter %d: %.2f to %.2f of the delay\n", (int)jitter, seen.least, seen.most);
    syncguard_close(&p->base);
    return seen;
}

/* I-LCK-04. A busy machine makes pauses longer, never shorter, and it is unlikely to lengthen all
 * thirty. */
static void jitter_spreads_the_pauses(void **state)
{
    (void)state;
    range seen = pauses_of(SYNCGUARD_JITTER_NONE);
    assert_true(seen.least >= 0.99 && seen.least < 1.5);
    seen = pauses_of(SYNCGUARD_JITTER_EQUAL);
    assert_true(seen.least >= 0.49 && seen.least < 0.8);
    assert_true(seen.most > 0.75);
    seen = pauses_of(SYNCGUARD_JITTER_FULL);
    assert_true(seen.least < 0.4);
    assert_true(seen.most > 0.6);
}

/* I-LCK-04: the last pause is cut to the time that is left. The best of several runs shows the
 * library's own delay. */
static void pauses_end_with_the_time(void **state)
{
    static const syncguard_jitter jitters[] = {SYNCGUARD_JITTER_NONE, SYNCGUARD_JITTER_EQUAL,
                                               SYNCGUARD_JITTER_FULL};
    fake_backend *p = fake_backend_open(NULL);
    (void)state;
    p->on_acquire = note_locked;
    for (size_t j = 0; j < 3; j++) {
        int64_t best_ns = INT64_MAX;
        for (int i = 0; i < 10 && best_ns > 10 * SYNCGUARD_NS_PER_MS; i++) {
            syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
            int64_t begun = syncguard_clock_ns();
            options.jitter = jitters[j];
            options.backoff = SYNCGUARD_BACKOFF_FIXED;
            options.retry_delay_ms = 65; /* the second pause would end after the timeout */
            options.timeout_ms = 100;
            options.max_retries = SYNCGUARD_RETRY_FOREVER;
            syncguard_lock *lock = NULL;
            assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL),
                             SYNCGUARD_E_ACQUISITION_TIMEOUT);
            int64_t over_ns = syncguard_clock_ns() - begun - 100 * SYNCGUARD_NS_PER_MS;
            assert_true(over_ns >= 0);
            best_ns = over_ns < best_ns ? over_ns : best_ns;
        }
        assert_true(best_ns <= 10 * SYNCGUARD_NS_PER_MS);
    }
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jitter_spreads_the_pauses),
        cmocka_unit_test(pauses_end_with_the_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
