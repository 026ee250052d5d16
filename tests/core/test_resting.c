/* Armed waiters: the store reports the release, so they hardly try, and miss nothing. */

#include "fake_backend.h"
#include "syncguard/memory.h"
#include "test_assert.h"

#define LONG_MS 60000
/* A pause of this length is long from the first one on, and ends long after every test. */
#define REST_MS 40000
/* A waiter that gets the lock within this time did not get it by its pause. */
#define SOON_MS 10000

static atomic_bool held;
static atomic_llong answered_armed_ms;
static atomic_llong remaining_ms;
static atomic_int break_tries; /* number of tries that fail */

static syncguard_status resting_answer_acquire(fake_backend *p, syncguard_acquire_op *op,
                                               syncguard_error *err)
{
    (void)p;
    if (op->watch && atomic_load(&break_tries) > 0 && atomic_fetch_sub(&break_tries, 1) > 0)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "down");
    if (!atomic_exchange(&held, true))
        return SYNCGUARD_OK;
    op->remaining_ms = atomic_load(&remaining_ms);
    op->armed_ms = atomic_load(&answered_armed_ms);
    return SYNCGUARD_LOCKED;
}

static fake_backend *open_held(void)
{
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = resting_answer_acquire;
    atomic_store(&held, true);
    atomic_store(&answered_armed_ms, LONG_MS);
    atomic_store(&remaining_ms, 600000);
    atomic_store(&break_tries, 0);
    return p;
}

typedef struct worker {
    pthread_t thread;
    fake_backend *p;
    syncguard_wait_fn on_wait;
    void *on_wait_context;
    int64_t timeout_ms;
    syncguard_backoff backoff;
    syncguard_status status;
    syncguard_lock *lock;
    int64_t done_ns;
} worker;

static void *resting_worker_acquire(void *argument)
{
    worker *w = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = REST_MS;
    options.backoff = w->backoff;
    options.jitter = SYNCGUARD_JITTER_NONE;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = w->timeout_ms;
    options.retry_unavailable = true;
    options.on_wait = w->on_wait;
    options.on_wait_context = w->on_wait_context;
    w->status = syncguard_lock_acquire(&w->p->base, "k", &options, &w->lock, NULL);
    w->done_ns = syncguard_clock_ns();
    return NULL;
}

/* Returns when the worker has been seen waiting. */
static void resting_start_worker(worker *w, fake_backend *p)
{
    int before = atomic_load(&p->acquires);
    w->p = p;
    w->timeout_ms = w->timeout_ms == 0 ? 100000 : w->timeout_ms;
    w->thread = test_start_thread(resting_worker_acquire, w);
    assert_true(wait_for_count(&p->acquires, before + 1));
    test_sleep_ms(100);
}

static void granted_soon(worker *w, int64_t since_ns)
{
    pthread_join(w->thread, NULL);
    assert_int_equal(w->status, SYNCGUARD_OK);
    assert_true(w->done_ns - since_ns < SOON_MS * SYNCGUARD_NS_PER_MS);
}

static void resting_detach_lock(worker *w)
{
    syncguard_lock_detach(w->lock);
    w->lock = NULL;
}

/* ---- how often ---- */

static atomic_int tries[3];
/* "a" is armed and expires at a known time, "c" too; the expiry of "u" is not known. */
static syncguard_status resting_count_tries(fake_backend *p, syncguard_acquire_op *op,
                                            syncguard_error *err)
{
    (void)p, (void)err;
    atomic_fetch_add(&tries[op->key[0] == 'a' ? 0 : op->key[0] == 'c' ? 1 : 2], 1);
    op->remaining_ms = op->key[0] == 'u' ? -1 : 600000;
    op->armed_ms = LONG_MS;
    return SYNCGUARD_LOCKED;
}

typedef struct poller {
    pthread_t thread;
    fake_backend *p;
    const char *key;
    int max_retries;
    atomic_int told;
} poller;

static void *poll_for_a_while(void *argument)
{
    poller *w = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 125; /* 125, 250, 500, 1000; and then 2000, 4000 or 1000, 1000 */
    options.jitter = SYNCGUARD_JITTER_NONE;
    options.max_retries = w->max_retries;
    options.timeout_ms = 9500;
    options.on_wait = test_count_wait;
    options.on_wait_context = &w->told;
    syncguard_lock *lock = NULL;
    if (syncguard_lock_acquire(&w->p->base, w->key, &options, &lock, NULL) == SYNCGUARD_OK)
        syncguard_lock_dispose(lock);
    return NULL;
}

/* After 7.9 s: 8 tries of a resting waiter (two, and at 125, 375, 875, 1875, 3875, 7875 ms), 14 of
 * a polling one. */
static void resting_requires_reliable_reports(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_acquire = resting_count_tries;
    poller pollers[3] = {{.p = p, .key = "a", .max_retries = SYNCGUARD_RETRY_FOREVER},
                         {.p = p, .key = "c", .max_retries = 1000},
                         {.p = p, .key = "u", .max_retries = SYNCGUARD_RETRY_FOREVER}};
    for (int i = 0; i < 3; i++)
        pollers[i].thread = test_start_thread(poll_for_a_while, &pollers[i]);
    for (int i = 0; i < 3; i++)
        pthread_join(pollers[i].thread, NULL);
    assert_in_range(atomic_load(&tries[0]), 3, 9);
    assert_in_range(atomic_load(&tries[1]), 11, 15);
    assert_in_range(atomic_load(&tries[2]), 11, 15);
    assert_true(atomic_load(&pollers[0].told) >= atomic_load(&tries[0])); /* every second */
    syncguard_close(&p->base);
}

static void arming_that_runs_out_is_renewed(void **state)
{
    (void)state;
    fake_backend *p = open_held();
    worker one = {.timeout_ms = 4000};
    atomic_store(&answered_armed_ms, 500);
    resting_start_worker(&one, p);
    pthread_join(one.thread, NULL);
    assert_int_equal(one.status, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    assert_in_range(atomic_load(&p->acquires), 5, 10);
    syncguard_close(&p->base);
}

/* ---- nothing is missed ---- */

static void the_first_polls_after_a_failed_try(void **state)
{
    (void)state;
    fake_backend *p = open_held();
    worker one = {0}, other = {0};
    resting_start_worker(&one, p);
    resting_start_worker(&other, p);
    int before = atomic_load(&p->acquires);
    atomic_store(&break_tries, 1);
    syncguard_backend_notifications_lost(&p->base);
    assert_true(wait_for_count(&p->acquires, before + 1));
    atomic_store(&held, false); /* no notification is sent */
    int64_t begun = syncguard_clock_ns();
    assert_true(wait_for_count(&p->acquires, before + 2));
    test_sleep_ms(100);
    atomic_store(&held, false);
    granted_soon(&one, begun);
    granted_soon(&other, begun);
    resting_detach_lock(&one);
    resting_detach_lock(&other);
    syncguard_close(&p->base);
}

/* The waiter polls at its own pace, and the store could not promise to report. */
static void a_slow_poller_is_not_left_alone(void **state)
{
    (void)state;
    fake_backend *p = open_held();
    worker one = {.backoff = SYNCGUARD_BACKOFF_FIXED};
    atomic_store(&answered_armed_ms, 0);
    resting_start_worker(&one, p);
    atomic_store(&held, false); /* no notification is sent */
    granted_soon(&one, syncguard_clock_ns());
    resting_detach_lock(&one);
    syncguard_close(&p->base);
}

/* Its try disarmed the key, and then it gave up. */
static void the_others_poll_when_the_one_that_knew_leaves(void **state)
{
    (void)state;
    fake_backend *p = open_held();
    worker one = {0}, leaving = {.timeout_ms = 1500};
    resting_start_worker(&leaving, p);
    resting_start_worker(&one, p);
    atomic_store(&answered_armed_ms, 0);
    int before = atomic_load(&p->acquires);
    syncguard_backend_key_changed(&p->base, "k", 1);
    assert_true(wait_for_count(&p->acquires, before + 1));
    pthread_join(leaving.thread, NULL);
    atomic_store(&held, false);
    granted_soon(&one, syncguard_clock_ns());
    resting_detach_lock(&one);
    syncguard_close(&p->base);
}

/* The lock is released with another handle, while the key is not armed. */
static void first_waiter_polls_after_a_grant(void **state)
{
    (void)state;
    fake_backend *p = open_held();
    worker one = {0}, other = {0};
    resting_start_worker(&one, p);
    resting_start_worker(&other, p);
    atomic_store(&held, false);
    int64_t begun = syncguard_clock_ns();
    syncguard_backend_key_changed(&p->base, "k", 1);
    granted_soon(&one, begun);
    atomic_store(&held, false);
    granted_soon(&other, syncguard_clock_ns());
    resting_detach_lock(&one);
    resting_detach_lock(&other);
    syncguard_close(&p->base);
}

static void block_here(void *context, int attempts, int64_t waited_ms, int64_t remaining)
{
    (void)attempts, (void)waited_ms, (void)remaining;
    pthread_mutex_lock(context);
    pthread_mutex_unlock(context);
}

static void a_callback_that_blocks_keeps_nobody_waiting(void **state)
{
    (void)state;
    fake_backend *p = open_held();
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    worker blocked = {.on_wait = block_here, .on_wait_context = &gate}, one = {0};
    pthread_mutex_lock(&gate);
    resting_start_worker(&blocked, p);
    resting_start_worker(&one, p);
    atomic_store(&held, false);
    int64_t begun = syncguard_clock_ns();
    syncguard_backend_key_changed(&p->base, "k", 1);
    granted_soon(&one, begun);
    resting_detach_lock(&one);

    /* It also goes on watching the time. */
    atomic_store(&remaining_ms, 500);
    worker other = {0};
    resting_start_worker(&other, p);
    atomic_store(&held, false);
    granted_soon(&other, syncguard_clock_ns());
    resting_detach_lock(&other);

    /* An event that arrives while all waiters are in callbacks is not lost. */
    atomic_store(&remaining_ms, 600000);
    atomic_store(&held, false);
    syncguard_backend_notifications_lost(&p->base);
    test_sleep_ms(50);
    begun = syncguard_clock_ns();
    pthread_mutex_unlock(&gate);
    granted_soon(&blocked, begun);
    resting_detach_lock(&blocked);
    syncguard_close(&p->base);
}

/* ---- many at once ---- */

#define CROWD 12
#define ROUNDS 400
typedef struct member {
    pthread_t thread;
    syncguard_backend *backend;
    unsigned seed;
    int granted;
    int64_t longest_ns;
} member;

static void *come_and_go(void *argument)
{
    member *m = argument;
    const char *keys[] = {"a", "b", "c"};
    for (int i = 0; i < ROUNDS; i++) {
        syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
        bool impatient = rand_r(&m->seed) % 3 == 0;
        options.ttl_ms = 300000;
        options.retry_delay_ms = REST_MS;
        options.max_retries = SYNCGUARD_RETRY_FOREVER;
        options.timeout_ms = impatient ? 1 + rand_r(&m->seed) % 2 : LONG_MS;
        int64_t begun = syncguard_clock_ns();
        syncguard_lock *lock = NULL;
        if (syncguard_lock_acquire(m->backend, keys[rand_r(&m->seed) % 3], &options, &lock, NULL) ==
            SYNCGUARD_OK)
            m->granted++;
        int64_t took = syncguard_clock_ns() - begun;
        m->longest_ns = took > m->longest_ns ? took : m->longest_ns;
        if (rand_r(&m->seed) % 4 == 0)
            test_sleep_ms(1);
        syncguard_lock_dispose(lock);
    }
    return NULL;
}

/* If a wake-up went to a waiter that gives up and were lost, the others would wait for the whole
 * pause. */
static void no_wake_up_is_lost_in_a_crowd(void **state)
{
    (void)state;
    syncguard_backend *backend = NULL;
    member crowd[CROWD];
    assert_int_equal(syncguard_open("memory:", NULL, &backend, NULL), SYNCGUARD_OK);
    for (unsigned i = 0; i < CROWD; i++) {
        crowd[i] = (member){.backend = backend, .seed = i + 1};
        crowd[i].thread = test_start_thread(come_and_go, &crowd[i]);
    }
    for (int i = 0; i < CROWD; i++) {
        pthread_join(crowd[i].thread, NULL);
        assert_true(crowd[i].granted > 0);
        assert_true(crowd[i].longest_ns < SOON_MS * SYNCGUARD_NS_PER_MS);
    }
    syncguard_close(backend);
}

static void wake_nobody(sg_waiting *waiting)
{
    (void)waiting;
}

/* The rest that the last of `count` waiters reports; the first of its key tries after first_ms at
 * most. */
static int64_t rest_among(int count, int keys, int64_t armed_ms, int64_t first_ms)
{
    fake_backend *p = fake_backend_open(NULL);
    sg_wait_queue *queue = p->base.core->wait_queue;
    sg_waiting *all = calloc((size_t)count, sizeof *all);
    syncguard_acquire_op op = {.remaining_ms = 600000, .armed_ms = armed_ms};
    assert_non_null(all);
    for (int i = 0; i < count; i++) {
        char key[16];
        int length = snprintf(key, sizeof key, "k%d", i % keys);
        all[i].wake = wake_nobody;
        all[i].waiters = &all[i].only;
        assert_int_equal(
            sg_wait_queue_join(queue, &all[i], key, (size_t)length, 600000, false, NULL),
            SYNCGUARD_OK);
    }
    uint64_t events = sg_wait_queue_try_begin(queue, &all[count - 1], 0);
    sg_wait_queue_try_locked(queue, &all[count - 1], 0, events, &op);
    int64_t rest_ms = sg_wait_queue_rest_ms(queue, &all[count - 1]);
    int64_t until_ns = SYNCGUARD_NO_DEADLINE;
    sg_wake_reason reason;
    size_t index = 0;
    assert_false(sg_wait_queue_chosen(queue, &all[count - 1], &index));
    assert_false(sg_wait_queue_poll(queue, &all[keys - 1], &until_ns, &reason, &index));
    assert_true(until_ns <= syncguard_clock_after(syncguard_clock_ns(), first_ms));
    for (int i = 0; i < count; i++)
        sg_wait_queue_leave(queue, &p->base, &all[i], 0, 0);
    free(all);
    syncguard_close(&p->base);
    return rest_ms;
}

/* The more keys there are, the longer the pause of each, so that all together make 50 tries per
 * second; but a waiter that must poll does not rest. Of many waiters for one key only the first
 * tries. */
static void many_keys_share_a_rate(void **state)
{
    (void)state;
    assert_int_equal(rest_among(1, 1, 5000, 5000), 5000);
    assert_int_equal(rest_among(100, 100, 5000, 5000), 5000);
    assert_int_equal(rest_among(2000, 2000, 5000, 54000), 54000);
    assert_int_equal(rest_among(2000, 2000, 60000, 60000), 60000);
    assert_int_equal(rest_among(20000, 20000, 60000, 300000), 300000);
    assert_int_equal(rest_among(2000, 1, 5000, 5000), 54000);
    assert_int_equal(rest_among(2000, 2000, 0, 1000), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resting_requires_reliable_reports),
        cmocka_unit_test(arming_that_runs_out_is_renewed),
        cmocka_unit_test(the_first_polls_after_a_failed_try),
        cmocka_unit_test(a_slow_poller_is_not_left_alone),
        cmocka_unit_test(the_others_poll_when_the_one_that_knew_leaves),
        cmocka_unit_test(first_waiter_polls_after_a_grant),
        cmocka_unit_test(a_callback_that_blocks_keeps_nobody_waiting),
        cmocka_unit_test(no_wake_up_is_lost_in_a_crowd),
        cmocka_unit_test(many_keys_share_a_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
