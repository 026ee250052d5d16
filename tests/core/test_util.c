/* Clocks, limits, waiting, pauses, randomness, parkers, gates, threads. */
#include "test_assert.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "syncguard/sys/backoff.h"
#include "syncguard/sys/random.h"
#include "syncguard/sys/wait.h"

#define MS SYNCGUARD_NS_PER_MS

static syncguard_limits limits_in(int64_t ms, syncguard_abort *a)
{
    syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), ms), a};
    return limits;
}

static void test_clock(void **state)
{
    int64_t a = syncguard_clock_ns();
    int64_t b = syncguard_clock_ns();
    (void)state;
    assert_true(a > 0 && b >= a);
    assert_true(syncguard_wall_ms() > INT64_C(1600000000000));
    assert_int_equal(syncguard_clock_after(5, 2), 5 + 2 * MS);
    assert_int_equal(syncguard_clock_after(5, -2), 5);
    assert_true(syncguard_clock_after(a, SYNCGUARD_MAX_TIME_MS) == SYNCGUARD_NO_DEADLINE);
    assert_true(syncguard_clock_after(a, INT64_MAX) == SYNCGUARD_NO_DEADLINE);
}

static void test_limits(void **state)
{
    (void)state;
    syncguard_limits none = {SYNCGUARD_NO_DEADLINE, NULL};
    syncguard_error err;
    assert_int_equal(syncguard_limits_check(&none, &err), SYNCGUARD_OK);
    assert_true(syncguard_limits_left_ns(&none) == SYNCGUARD_NO_DEADLINE);
    syncguard_limits past = {1, NULL};
    assert_int_equal(syncguard_limits_check(&past, &err), SYNCGUARD_E_NETWORK_TIMEOUT);
    assert_int_equal(err.code, SYNCGUARD_E_NETWORK_TIMEOUT);
    assert_int_equal(syncguard_limits_left_ns(&past), 0);
    assert_int_equal(syncguard_limits_until(&none, 77).deadline_ns, 77);
    assert_int_equal(syncguard_limits_until(&past, 77).deadline_ns, 1);
    /* The abort wins over the deadline. */
    syncguard_limits both = past;
    assert_int_equal(syncguard_abort_create(&both.abort_object, NULL), SYNCGUARD_OK);
    syncguard_abort_trigger(both.abort_object);
    assert_int_equal(syncguard_limits_check(&both, &err), SYNCGUARD_E_ABORTED);
    syncguard_abort_free(both.abort_object);
}

static void test_wait_fds(void **state)
{
    syncguard_limits limits = limits_in(30, NULL);
    int64_t start = syncguard_clock_ns();
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    struct pollfd fds[131];
    for (int i = 0; i < 131; i++)
        fds[i] = (struct pollfd){ends[0], POLLIN, 0};
    assert_int_equal(syncguard_wait_fds(fds, 1, &limits, NULL), SYNCGUARD_E_NETWORK_TIMEOUT);
    assert_true(syncguard_clock_ns() - start >= 30 * MS);
    assert_int_equal(write(ends[1], "x", 1), 1);
    limits = limits_in(5000, NULL);
    assert_int_equal(syncguard_wait_fds(fds, 130, &limits, NULL), SYNCGUARD_OK);
    assert_int_equal(fds[129].revents, POLLIN);
    assert_int_equal(syncguard_wait_fds(fds, 131, &limits, NULL), SYNCGUARD_E_INTERNAL);
    /* A passed deadline ends the wait even if a descriptor is ready: a store that drips bytes does
     * not hold the caller. */
    limits.deadline_ns = 1;
    assert_int_equal(syncguard_wait_fds(fds, 1, &limits, NULL), SYNCGUARD_E_NETWORK_TIMEOUT);
    assert_int_equal(syncguard_abort_create(&limits.abort_object, NULL), SYNCGUARD_OK);
    limits.deadline_ns = SYNCGUARD_NO_DEADLINE;
    assert_int_equal(syncguard_wait_fds(fds, 130, &limits, NULL), SYNCGUARD_OK);
    syncguard_abort_trigger(limits.abort_object);
    assert_int_equal(syncguard_wait_fds(fds, 1, &limits, NULL), SYNCGUARD_E_ABORTED);
    syncguard_abort_free(limits.abort_object);
    close(ends[0]);
    close(ends[1]);
}

static void test_wait_until(void **state)
{
    int64_t start = syncguard_clock_ns();
    syncguard_limits limits = limits_in(5000, NULL);
    (void)state;
    syncguard_error err;
    assert_int_equal(syncguard_wait_until(start + 20 * MS, &limits, &err), SYNCGUARD_OK);
    assert_int_equal(err.code, SYNCGUARD_OK);
    assert_true(syncguard_clock_ns() >= start + 20 * MS);
    assert_int_equal(syncguard_wait_until(0, &limits, &err), SYNCGUARD_OK);
    limits = limits_in(10, NULL);
    assert_int_equal(syncguard_wait_until(start + 60000 * MS, &limits, &err),
                     SYNCGUARD_E_NETWORK_TIMEOUT);
}

static volatile sig_atomic_t alarms;

static void util_count_alarm(int number)
{
    (void)number;
    alarms++;
}

/* Interrupted waits are resumed. */
static void test_interrupted(void **state)
{
    int64_t start = syncguard_clock_ns();
    (void)state;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = util_count_alarm;
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    struct itimerval often = {{0, 3000}, {0, 3000}};
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    assert_int_equal(syncguard_wait_until(start + 50 * MS, NULL, NULL), SYNCGUARD_OK);
    struct itimerval never = {{0, 0}, {0, 0}};
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_true(syncguard_clock_ns() >= start + 50 * MS);
    assert_true(alarms > 0);
}

static void use_parker(syncguard_parker *parker)
{
    syncguard_limits limits = limits_in(5000, NULL);
    syncguard_parker_unpark(parker);
    syncguard_parker_unpark(parker);
    assert_int_equal(syncguard_parker_park(parker, &limits, NULL), SYNCGUARD_OK);
    limits = limits_in(5, NULL);
    assert_int_equal(syncguard_parker_park(parker, &limits, NULL), SYNCGUARD_E_NETWORK_TIMEOUT);
    /* With no time at all: takes what is available. */
    limits.deadline_ns = 0;
    syncguard_parker_unpark(parker);
    assert_int_equal(syncguard_parker_park(parker, &limits, NULL), SYNCGUARD_OK);
    assert_int_equal(syncguard_parker_park(parker, &limits, NULL), SYNCGUARD_E_NETWORK_TIMEOUT);
    syncguard_parker_close(parker);
    assert_int_equal(parker->fds[0], -1);
    syncguard_parker_close(parker);
}

static void test_parker(void **state)
{
    syncguard_limits limits = limits_in(5000, NULL);
    (void)state;
    syncguard_parker parker = SYNCGUARD_PARKER_INIT;
    assert_int_equal(syncguard_parker_open(&parker, NULL), SYNCGUARD_OK);
    assert_true(fcntl(parker.fds[0], F_GETFD) & FD_CLOEXEC);
    use_parker(&parker);
    assert_int_equal(syncguard_parker_open_light(&parker, &limits, NULL), SYNCGUARD_OK);
    use_parker(&parker);
    assert_int_equal(syncguard_parker_open_light(&parker, NULL, NULL), SYNCGUARD_OK);
    use_parker(&parker);
}

static void test_parker_with_abort(void **state)
{
    (void)state;
    syncguard_abort *stop = NULL;
    assert_int_equal(syncguard_abort_create(&stop, NULL), SYNCGUARD_OK);
    syncguard_limits limits = limits_in(5000, stop);
    syncguard_parker parker = SYNCGUARD_PARKER_INIT;
    assert_int_equal(syncguard_parker_open_light(&parker, &limits, NULL), SYNCGUARD_OK);
    syncguard_abort_trigger(stop);
    assert_int_equal(syncguard_parker_park(&parker, &limits, NULL), SYNCGUARD_E_ABORTED);
    use_parker(&parker);
    syncguard_abort_free(stop);
}

typedef struct rally {
    syncguard_parker parkers[2];
    int64_t balls[2];
} rally;

#define RALLY 20000

/* Only the unpark orders the writes of the two threads. */
static void *return_balls(void *argument)
{
    rally *r = argument;
    syncguard_limits limits = limits_in(60000, NULL);
    for (int64_t i = 0; i < RALLY; i++) {
        if (syncguard_parker_park(&r->parkers[1], &limits, NULL) != SYNCGUARD_OK ||
            r->balls[0] != i)
            return argument;
        r->balls[1] = i;
        syncguard_parker_unpark(&r->parkers[0]);
    }
    return NULL;
}

static void test_parkers_of_two(void **state)
{
    syncguard_limits limits = limits_in(60000, NULL);
    (void)state;
    rally r;
    for (int i = 0; i < 2; i++)
        assert_int_equal(syncguard_parker_open_light(&r.parkers[i], &limits, NULL), SYNCGUARD_OK);
    pthread_t other = test_start_thread(return_balls, &r);
    for (int64_t i = 0; i < RALLY; i++) {
        r.balls[0] = i;
        syncguard_parker_unpark(&r.parkers[1]);
        assert_int_equal(syncguard_parker_park(&r.parkers[0], &limits, NULL), SYNCGUARD_OK);
        assert_int_equal(r.balls[1], i);
    }
    void *failed = NULL;
    pthread_join(other, &failed);
    assert_null(failed);
}

static void *report_mask(void *argument)
{
    sigset_t *mask = argument;
    pthread_sigmask(SIG_SETMASK, NULL, mask);
    return NULL;
}

static void test_thread(void **state)
{
    (void)state;
    sigset_t mask;
    sigemptyset(&mask);
    pthread_t thread;
    assert_int_equal(syncguard_thread_start(&thread, report_mask, &mask), 0);
    pthread_join(thread, NULL);
    assert_true(sigismember(&mask, SIGTERM));
    assert_true(sigismember(&mask, SIGUSR1));
    sigset_t own;
    pthread_sigmask(SIG_SETMASK, NULL, &own);
    assert_false(sigismember(&own, SIGTERM));
}

typedef struct crowd {
    syncguard_gate gate;
    atomic_int inside;
    atomic_int most;
    atomic_int entered;
    atomic_int refused;
    int64_t patience_us;
    syncguard_abort *abort_object;
} crowd;

static void *gate_crowd_enter(void *argument)
{
    crowd *c = argument;
    for (int i = 0; i < 200; i++) {
        syncguard_limits limits = limits_in(0, c->abort_object);
        limits.deadline_ns = syncguard_clock_ns() + c->patience_us * 1000;
        if (syncguard_gate_enter(&c->gate, &limits, NULL) != SYNCGUARD_OK) {
            atomic_fetch_add(&c->refused, 1);
            continue;
        }
        int now = atomic_fetch_add(&c->inside, 1) + 1;
        for (int most = c->most; now > most && !atomic_compare_exchange_weak(&c->most, &most, now);)
            ;
        atomic_fetch_add(&c->entered, 1);
        if (i % 16 == 0)
            sched_yield();
        atomic_fetch_sub(&c->inside, 1);
        syncguard_gate_leave(&c->gate);
    }
    return NULL;
}

static void run_crowd(crowd *c, int places, int64_t patience_us, syncguard_abort *abort_object)
{
    memset(c, 0, sizeof *c);
    c->patience_us = patience_us;
    c->abort_object = abort_object;
    assert_int_equal(syncguard_gate_init(&c->gate, places, NULL), SYNCGUARD_OK);
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        threads[i] = test_start_thread(gate_crowd_enter, c);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    /* Nothing is lost: all places are free again. */
    assert_int_equal(c->gate.places, places);
    assert_null(c->gate.waiters.first);
    assert_true(c->most <= places);
    assert_int_equal(c->entered + c->refused, 1600);
    syncguard_gate_destroy(&c->gate);
}

static void test_gate(void **state)
{
    (void)state;
    syncguard_abort *idle = NULL;
    assert_int_equal(syncguard_abort_create(&idle, NULL), SYNCGUARD_OK);
    crowd c;
    /* Light parkers, then parkers with descriptors. */
    for (int i = 0; i < 2; i++) {
        syncguard_abort *abort_object = i == 0 ? NULL : idle;
        run_crowd(&c, 2, 30000000, abort_object);
        assert_int_equal(c.refused, 0);
        /* Impatient threads: one is admitted just as it gives up. */
        run_crowd(&c, 1, 0, abort_object);
        for (int64_t patience_us = 5; patience_us < 100; patience_us += 10)
            run_crowd(&c, 1, patience_us, abort_object);
    }
    syncguard_abort_free(idle);
}

typedef struct line {
    syncguard_gate gate;
    pthread_mutex_t mutex;
    int order[3];
    int count;
} line;

typedef struct visitor {
    line *line;
    int number;
} visitor;

static void *gate_visitor_enter(void *argument)
{
    visitor *v = argument;
    syncguard_limits limits = limits_in(30000, NULL);
    assert_int_equal(syncguard_gate_enter(&v->line->gate, &limits, NULL), SYNCGUARD_OK);
    pthread_mutex_lock(&v->line->mutex);
    v->line->order[v->line->count++] = v->number;
    pthread_mutex_unlock(&v->line->mutex);
    syncguard_gate_leave(&v->line->gate);
    return NULL;
}

static int gate_count_waiting(syncguard_gate *gate)
{
    pthread_mutex_lock(&gate->mutex);
    int count = 0;
    if (gate->waiters.first != NULL)
        count = gate->waiters.first == gate->waiters.last ? 1 : 2;
    pthread_mutex_unlock(&gate->mutex);
    return count;
}

/* In the order of arrival; a thread that gives up does not block the others. */
static void test_gate_order(void **state)
{
    line l = {.count = 0};
    visitor visitors[2] = {{&l, 1}, {&l, 2}};
    syncguard_limits limits = limits_in(20, NULL);
    (void)state;
    pthread_mutex_init(&l.mutex, NULL);
    assert_int_equal(syncguard_gate_init(&l.gate, 1, NULL), SYNCGUARD_OK);
    assert_int_equal(syncguard_gate_enter(&l.gate, NULL, NULL), SYNCGUARD_OK);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        threads[i] = test_start_thread(gate_visitor_enter, &visitors[i]);
        while (gate_count_waiting(&l.gate) < i + 1)
            sched_yield();
    }
    assert_int_equal(syncguard_gate_enter(&l.gate, &limits, NULL), SYNCGUARD_E_NETWORK_TIMEOUT);
    syncguard_gate_leave(&l.gate);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(l.order[0], 1);
    assert_int_equal(l.order[1], 2);
    assert_int_equal(l.gate.places, 1);
    syncguard_gate_destroy(&l.gate);
    pthread_mutex_destroy(&l.mutex);
}

static int64_t cpu_ms(void)
{
    struct timespec used;
    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used), 0);
    return (int64_t)used.tv_sec * 1000 + used.tv_nsec / 1000000;
}

/* If a program closes all descriptors while the library works, no busy loop follows. */
static void test_closed_behind_our_back(void **state)
{
    int64_t start = syncguard_clock_ns();
    int64_t used = cpu_ms();
    (void)state;
    syncguard_abort *abort_object = NULL;
    assert_int_equal(syncguard_abort_create(&abort_object, NULL), SYNCGUARD_OK);
    syncguard_limits limits = {start + 1000 * MS, abort_object};
    syncguard_parker parker = SYNCGUARD_PARKER_INIT;
    assert_int_equal(syncguard_parker_open(&parker, NULL), SYNCGUARD_OK);
    close(syncguard_abort_fd(abort_object));
    close(parker.fds[0]);
    assert_int_equal(syncguard_wait_until(start + 500 * MS, &limits, NULL), SYNCGUARD_OK);
    int parks = 0;
    while (syncguard_clock_ns() < limits.deadline_ns) {
        syncguard_status status = syncguard_parker_park(&parker, &limits, NULL);
        assert_true(status == SYNCGUARD_E_INTERNAL || status == SYNCGUARD_E_NETWORK_TIMEOUT);
        parks++;
    }
    assert_in_range(parks, 1, 10);
    assert_true(cpu_ms() - used < 250);
    /* The abort is still seen. */
    limits.deadline_ns = SYNCGUARD_NO_DEADLINE;
    pthread_t thread = test_trigger_soon(abort_object);
    assert_int_equal(syncguard_wait_fds(NULL, 0, &limits, NULL), SYNCGUARD_E_ABORTED);
    pthread_join(thread, NULL);
    syncguard_abort_free(abort_object); /* closes once more, without effect */
}

static void test_backoff(void **state)
{
    syncguard_limits limits = limits_in(20, NULL);
    (void)state;
    assert_int_equal(syncguard_backoff_ns(5, -1, 100), 5);
    assert_int_equal(syncguard_backoff_ns(5, 0, 100), 5);
    assert_int_equal(syncguard_backoff_ns(5, 3, 100), 40);
    assert_int_equal(syncguard_backoff_ns(5, 1000000000, 100), 100);
    assert_int_equal(syncguard_backoff_ns(500, 0, 100), 100);
    assert_int_equal(syncguard_backoff_ns(0, 9, 100), 0);
    assert_true(syncguard_backoff_ns(5, 200, INT64_MAX) == INT64_MAX);
    int64_t begun = syncguard_clock_ns();
    assert_int_equal(syncguard_backoff_wait(MS, 4, 8 * MS, NULL, NULL), SYNCGUARD_OK);
    assert_true(syncguard_clock_ns() - begun >= 4 * MS);
    assert_int_equal(syncguard_backoff_wait(3600000 * MS, 0, INT64_MAX, &limits, NULL),
                     SYNCGUARD_E_NETWORK_TIMEOUT);
}

static void test_random(void **state)
{
    (void)state;
    assert_int_equal(syncguard_random_below(0), 0);
    assert_int_equal(syncguard_random_below(-5), 0);
    assert_int_equal(syncguard_random_below(1), 0);
    bool seen[4] = {false};
    for (int i = 0; i < 1000; i++) {
        int64_t drawn = syncguard_random_below(4);
        assert_in_range(drawn, 0, 3);
        seen[drawn] = true;
    }
    assert_true(seen[0] && seen[1] && seen[2] && seen[3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_backoff),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_wait_fds),
        cmocka_unit_test(test_wait_until),
        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_parker),
        cmocka_unit_test(test_parker_with_abort),
        cmocka_unit_test(test_parkers_of_two),
        cmocka_unit_test(test_closed_behind_our_back),
        cmocka_unit_test(test_thread),
        cmocka_unit_test(test_gate),
        cmocka_unit_test(test_gate_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
