/*
 * Another server may have taken over: a connection was replaced or has ended, or the time in a
 * reply has jumped. Then all locks are renewed at once, instead of after a third of the TTL, which
 * is 100 s here.
 */
#include "heartbeat.h"

#include <sys/wait.h>
#include <unistd.h>

#include "core/server_clock.h"
#include "syncguard/telemetry.h"

#define LONG_TTL_MS 300000
#define LOCKS 5

/* How far the store's clock is ahead. */
static _Atomic int64_t ahead_ms;
static atomic_bool stuck;

static syncguard_status acquire_ahead(fake_backend *p, syncguard_acquire_op *op,
                                      syncguard_error *err)
{
    (void)p, (void)err;
    op->expires_at_ms += atomic_load(&ahead_ms);
    return SYNCGUARD_OK;
}

static syncguard_status extend_ahead(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p, (void)err;
    op->expires_at_ms += atomic_load(&ahead_ms);
    return SYNCGUARD_OK;
}

/* A store on another machine. */
static fake_backend *open_server(void)
{
    fake_backend *p = fake_backend_open_connected(NULL);
    atomic_store(&ahead_ms, 0);
    atomic_store(&stuck, false);
    p->base.capabilities.is_shared = true;
    p->on_acquire = acquire_ahead;
    p->on_extend = extend_ahead;
    return p;
}

static void take_locks(fake_backend *p, syncguard_lock **locks, int64_t *expiries)
{
    char key[16];
    for (int i = 0; i < LOCKS; i++) {
        snprintf(key, sizeof key, "k%d", i);
        locks[i] = take_renewed(p, key, LONG_TTL_MS, 0);
        expiries[i] = syncguard_lock_expires_at_ms(locks[i]);
    }
    test_sleep_ms(2); /* the new expiries differ */
}

static void all_are_renewed(syncguard_lock **locks, const int64_t *expiries)
{
    for (int i = 0; i < LOCKS; i++) {
        assert_true(was_renewed(locks[i], expiries[i]));
        assert_true(syncguard_lock_held(locks[i]));
    }
}

static void heartbeat_dispose_locks(syncguard_lock **locks)
{
    for (int i = 0; i < LOCKS; i++)
        syncguard_lock_dispose(locks[i]);
}

/* When all locks were last renewed together. */
static int64_t all_begun_ns(fake_backend *p)
{
    sg_heartbeat *heartbeat = &p->base.core->heartbeat;
    pthread_mutex_lock(&heartbeat->mutex);
    int64_t begun = heartbeat->all_begun_ns;
    pthread_mutex_unlock(&heartbeat->mutex);
    return begun;
}

static void wait_for_all(fake_backend *p, int64_t after_ns)
{
    for (int i = 0; i < 30000 && all_begun_ns(p) <= after_ns; i++)
        test_sleep_ms(1);
    assert_true(all_begun_ns(p) > after_ns);
}

/* ---- a connection was replaced ---- */

static void a_reconnect_renews_all(void **state)
{
    (void)state;
    fake_backend *p = open_server();
    syncguard_lock *locks[LOCKS];
    int64_t expiries[LOCKS];
    take_locks(p, locks, expiries);
    assert_int_equal(atomic_load(&p->batches), 0);
    syncguard_backend_reconnected(&p->base);
    all_are_renewed(locks, expiries);
    assert_int_equal(atomic_load(&losses_told), 0);
    heartbeat_dispose_locks(locks);
    syncguard_close(&p->base);
}

/* The lock belongs to a decorator; the store reports to the inner handle, the only one it knows. */
static bool renews_under_telemetry(fake_backend *p, syncguard_backend *outer)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;
    options.ttl_ms = LONG_TTL_MS;
    options.auto_extend = true;
    if (syncguard_lock_acquire(outer, "k", &options, &lock, NULL) != SYNCGUARD_OK)
        return false;
    int64_t expiry = syncguard_lock_expires_at_ms(lock);
    test_sleep_ms(2);
    syncguard_backend_reconnected(&p->base);
    bool renewed = was_renewed(lock, expiry);
    expiry = syncguard_lock_expires_at_ms(lock);
    test_sleep_ms(2);
    atomic_store(&p->ended, true);
    renewed = renewed && was_renewed(lock, expiry);
    syncguard_lock_dispose(lock);
    return renewed;
}

static void also_under_telemetry_and_in_a_child(void **state)
{
    (void)state;
    fake_backend *p = open_server();
    syncguard_backend *middle = NULL, *outer = NULL;
    assert_int_equal(syncguard_telemetry_wrap(&p->base, NULL, &middle, NULL), SYNCGUARD_OK);
    assert_int_equal(syncguard_telemetry_wrap(middle, NULL, &outer, NULL), SYNCGUARD_OK);
    assert_true(renews_under_telemetry(p, outer));
/* The thread sanitizer does not follow a fork of a program with threads. */
#ifndef __SANITIZE_THREAD__
    int status = -1;
    pid_t child = fork();
    if (child == 0)
        _exit(renews_under_telemetry(p, outer) ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
#endif
    assert_true(renews_under_telemetry(p, outer));
    syncguard_close(outer);
}

/* A server that breaks every connection is not asked continuously. */
static void at_most_once_a_second(void **state)
{
    (void)state;
    fake_backend *p = open_server();
    syncguard_lock *lock = take_renewed(p, "k", LONG_TTL_MS, 0);
    int64_t begun = syncguard_clock_ns();
    while (ms_since(begun) < 2500) {
        syncguard_backend_reconnected(&p->base);
        test_sleep_ms(10);
    }
    assert_true(wait_for_count(&p->batches, 3)); /* one at once, and one after each second */
    assert_true(atomic_load(&p->batches) <= ms_since(begun) / 1000 + 1);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* If the clocks of the clients count, no other server can have taken over. */
static void not_with_clocks_of_clients(void **state)
{
    (void)state;
    fake_backend *p = open_server();
    p->base.capabilities.time_authority = SYNCGUARD_TIME_CLIENT;
    syncguard_lock *lock = take_renewed(p, "k", LONG_TTL_MS, 0);
    syncguard_backend_reconnected(&p->base);
    test_sleep_ms(500);
    assert_int_equal(atomic_load(&p->batches), 0);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* Many locks are renewed less often: about a thousand per second, so 3000 at most once in 4 s. */
static void many_locks_less_often(void **state)
{
    (void)state;
    static syncguard_lock *locks[3000];
    const int count = (int)(sizeof locks / sizeof *locks);
    fake_backend *p = open_server();
    char key[16];
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "k%d", i);
        locks[i] = take_renewed(p, key, LONG_TTL_MS, 0);
    }
    int64_t begun = syncguard_clock_ns();
    int64_t last = 0;
    int times = 0;
    while (times < 2 && ms_since(begun) < 60000) {
        syncguard_backend_reconnected(&p->base);
        test_sleep_ms(10);
        times += all_begun_ns(p) != last;
        last = all_begun_ns(p);
    }
    assert_int_equal(times, 2);
    assert_true(ms_since(begun) >= 3000); /* some may be in a request while the rest is counted */
    for (int i = 0; i < count; i++) {
        assert_true(syncguard_lock_held(locks[i]));
        syncguard_lock_dispose(locks[i]);
    }
    syncguard_close(&p->base);
}

/* ---- those with little time left come first ---- */

#define MANY (12 * SYNCGUARD_BATCH_MAX)
#define BRIEF 5

static syncguard_lock *many[MANY];
static atomic_int pause_ms;    /* once in a batch or so */
static atomic_int others;      /* renewals of locks with LONG_TTL_MS */
static atomic_int briefs;      /* renewals of locks with a short TTL */
static atomic_int others_then; /* the value of `others` at the last of them */

static syncguard_status note_order(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p, (void)err;
    if (op->ttl_ms == LONG_TTL_MS) {
        if (atomic_fetch_add(&others, 1) % SYNCGUARD_BATCH_MAX == 0)
            test_sleep_ms(atomic_load(&pause_ms));
        return SYNCGUARD_OK;
    }
    atomic_store(&others_then, atomic_load(&others));
    atomic_fetch_add(&briefs, 1);
    return SYNCGUARD_OK;
}

/* The same pauses for locks with any TTL. */
static syncguard_status take_time(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p, (void)op, (void)err;
    if (atomic_fetch_add(&others, 1) % SYNCGUARD_BATCH_MAX == 0)
        test_sleep_ms(atomic_load(&pause_ms));
    return SYNCGUARD_OK;
}

static fake_backend *open_with_many(int64_t ttl_ms, int ms)
{
    fake_backend *p = open_server();
    atomic_store(&pause_ms, ms);
    atomic_store(&others, 0);
    atomic_store(&briefs, 0);
    char key[16];
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "k%d", i);
        many[i] = take_renewed(p, key, ttl_ms, 0);
    }
    p->on_extend = note_order;
    return p;
}

static void close_with_many(fake_backend *p)
{
    for (int i = 0; i < MANY; i++)
        syncguard_lock_dispose(many[i]);
    assert_int_equal(atomic_load(&losses_told), 0);
    syncguard_close(&p->base);
}

static void those_due_soon_come_first(void **state)
{
    (void)state;
    fake_backend *p = open_with_many(LONG_TTL_MS, 0);
    syncguard_lock *brief[BRIEF];
    char key[16];
    for (int i = 0; i < BRIEF; i++) {
        snprintf(key, sizeof key, "b%d", i);
        brief[i] = take_renewed(p, key, LONG_TTL_MS / 2, 0);
    }
    syncguard_backend_reconnected(&p->base);
    assert_true(wait_for_count(&others, MANY));
    assert_int_equal(atomic_load(&briefs), BRIEF);
    assert_true(atomic_load(&others_then) < SYNCGUARD_BATCH_MAX);
    for (int i = 0; i < BRIEF; i++)
        syncguard_lock_dispose(brief[i]);
    close_with_many(p);
}

/* Renewing all of them takes 4.8 s or more; the lock with the short TTL is due again within 2 s. */
static void those_that_become_due_are_not_kept_waiting(void **state)
{
    (void)state;
    fake_backend *p = open_with_many(LONG_TTL_MS, 400);
    syncguard_lock *brief = take_renewed(p, "brief", TTL_MS, 0);
    syncguard_backend_reconnected(&p->base);
    assert_true(wait_for_count(&briefs, 2));
    assert_true(atomic_load(&others_then) < MANY);
    syncguard_lock_dispose(brief);
    close_with_many(p);
}

/* Renewing all of them takes 3.6 s or more, but the first ones are due again after 2 s. */
static void those_due_again_do_not_keep_the_rest_waiting(void **state)
{
    (void)state;
    fake_backend *p = open_with_many(TTL_MS, 300);
    p->on_extend = take_time;
    syncguard_backend_reconnected(&p->base);
    test_sleep_ms(TTL_MS + 1000);
    close_with_many(p);
}

static void a_lock_that_is_gone_is_lost_at_once(void **state)
{
    (void)state;
    fake_backend *p = open_server();
    syncguard_lock *lock = take_renewed(p, "k", LONG_TTL_MS, 0);
    p->on_extend = fake_extend_absent;
    syncguard_backend_reconnected(&p->base);
    assert_true(wait_for_count(&losses_told, 1));
    assert_int_equal(atomic_load(&told_reason), SYNCGUARD_LOST_ABSENT);
    assert_false(syncguard_lock_held(lock));
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* The lease ends with the maximum hold, so it cannot become longer; but the server may end it
 * sooner. */
static void so_is_a_lock_whose_lease_is_the_longest(void **state)
{
    (void)state;
    fake_backend *p = open_server();
    syncguard_lock *lock = take_renewed(p, "k", LONG_TTL_MS, LONG_TTL_MS);
    int64_t lease_end = sg_lock_lease_end(lock);
    syncguard_backend_reconnected(&p->base);
    assert_true(wait_for_count(&p->batches, 1));
    assert_true(syncguard_lock_held(lock));
    assert_true(sg_lock_lease_end(lock) <= lease_end);
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* ---- requests that are under way meanwhile ---- */

/* A batch leaves the key undecided; its single extend takes long. */
static syncguard_status extend_stuck(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)op;
    if (atomic_load(&p->extends) == 0)
        return syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, NULL, "busy");
    while (atomic_load(&stuck))
        test_sleep_ms(1);
    return SYNCGUARD_OK;
}

/* It is not known which server answered. */
static void a_renewal_under_way_is_repeated(void **state)
{
    (void)state;
    fake_backend *p = open_server();
    p->batch_answers = true;
    p->on_extend = extend_stuck;
    atomic_store(&stuck, true);
    syncguard_lock *lock = take_renewed(p, "k", LONG_TTL_MS, 0);
    syncguard_backend_reconnected(&p->base);
    assert_true(wait_for_count(&p->extends, 1));
    int64_t first = all_begun_ns(p);
    syncguard_backend_reconnected(&p->base);
    wait_for_all(p, first);
    int batches = atomic_load(&p->batches);
    atomic_store(&stuck, false);
    assert_true(wait_for_count(&p->batches, batches + 1));
    assert_true(syncguard_lock_held(lock));
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

static syncguard_status acquire_meanwhile(fake_backend *p, syncguard_acquire_op *op,
                                          syncguard_error *err)
{
    (void)op, (void)err;
    int64_t before = all_begun_ns(p);
    syncguard_backend_reconnected(&p->base);
    wait_for_all(p, before);
    return SYNCGUARD_OK;
}

static void a_grant_under_way_is_renewed(void **state)
{
    (void)state;
    fake_backend *p = open_server();
    p->on_acquire = acquire_meanwhile;
    syncguard_lock *lock = take_renewed(p, "k", LONG_TTL_MS, 0);
    assert_true(wait_for_count(&p->batches, 1));
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* ---- idle connections ---- */

static void an_idle_connection_that_ends_renews_all(void **state)
{
    (void)state;
    fake_backend *p = open_server();
    syncguard_lock *locks[LOCKS];
    int64_t expiries[LOCKS];
    take_locks(p, locks, expiries);
    int64_t begun = syncguard_clock_ns();
    assert_true(wait_for_count(&p->checks, 3));
    assert_true(atomic_load(&p->checks) <= ms_since(begun) / 1000 + 2);
    assert_int_equal(atomic_load(&p->batches), 0);
    atomic_store(&p->ended, true);
    all_are_renewed(locks, expiries);
    heartbeat_dispose_locks(locks);
    int checks = atomic_load(&p->checks) + 1; /* one may be under way */
    test_sleep_ms(1500);
    assert_true(atomic_load(&p->checks) <= checks); /* nothing was renewed */
    syncguard_close(&p->base);
}

/* ---- the clock of the server ---- */

static void a_clock_that_jumps_renews_all(void **state)
{
    (void)state;
    fake_backend *p = open_server();
    syncguard_lock *locks[LOCKS];
    int64_t expiries[LOCKS];
    syncguard_grant grant;
    take_locks(p, locks, expiries);
    atomic_store(&ahead_ms, 400); /* less than a lock tolerates */
    assert_int_equal(syncguard_acquire(&p->base, "a", 1000, NULL, &grant, NULL), SYNCGUARD_OK);
    test_sleep_ms(300);
    assert_int_equal(atomic_load(&p->batches), 0);
    atomic_store(&ahead_ms, 5000); /* a grant shows the jump */
    assert_int_equal(syncguard_acquire(&p->base, "b", 1000, NULL, &grant, NULL), SYNCGUARD_OK);
    all_are_renewed(locks, expiries);
    for (int i = 0; i < LOCKS; i++)
        expiries[i] = syncguard_lock_expires_at_ms(locks[i]);
    atomic_store(&ahead_ms, -5000); /* an extend shows it */
    assert_int_equal(syncguard_extend(&p->base, grant.lock_id, 1000, NULL, NULL, NULL),
                     SYNCGUARD_OK);
    all_are_renewed(locks, expiries);
    for (int i = 0; i < LOCKS; i++)
        expiries[i] = syncguard_lock_expires_at_ms(locks[i]);
    atomic_store(&ahead_ms, 5000); /* an extend of a lock handle shows it */
    assert_int_equal(syncguard_lock_extend(locks[0], LONG_TTL_MS, NULL, NULL, NULL), SYNCGUARD_OK);
    all_are_renewed(locks, expiries);
    heartbeat_dispose_locks(locks);
    syncguard_close(&p->base);
}

/* So does the renewal of one lock. */
static void a_renewal_shows_the_jump(void **state)
{
    (void)state;
    fake_backend *p = open_server();
    syncguard_lock *locks[LOCKS];
    int64_t expiries[LOCKS];
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    take_locks(p, locks, expiries);
    options.ttl_ms = TTL_MS;
    options.auto_extend = true;
    syncguard_lock *brief = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "brief", &options, &brief, NULL),
                     SYNCGUARD_OK);
    atomic_store(&ahead_ms, 5000);
    all_are_renewed(locks, expiries);
    syncguard_lock_dispose(brief);
    heartbeat_dispose_locks(locks);
    syncguard_close(&p->base);
}

#define MS SYNCGUARD_NS_PER_MS

static void what_counts_as_a_jump(void **state)
{
    (void)state;
    sg_server_clock clock = {false, 0, 0};
    /* The server's clock is ahead by 1,000,000. */
    assert_false(sg_server_clock_jumped(&clock, 1000 * MS, 1010 * MS, 1001005));
    /* A reply that took three seconds says little, but does not hide a later jump. */
    assert_false(sg_server_clock_jumped(&clock, 2000 * MS, 5000 * MS, 1004000));
    assert_true(sg_server_clock_jumped(&clock, 6000 * MS, 6001 * MS, 1007000));
    assert_false(sg_server_clock_jumped(&clock, 7000 * MS, 7001 * MS, 1008000));
    /* A slow reply shows a jump that is larger than its own delay, in either direction. */
    assert_true(sg_server_clock_jumped(&clock, 8000 * MS, 11000 * MS, 1016900));
    assert_true(sg_server_clock_jumped(&clock, 12000 * MS, 15000 * MS, 1010000));
    /* A clock that drifts does not jump. */
    for (int i = 0; i < 100; i++)
        assert_false(sg_server_clock_jumped(&clock, (16000 + 100 * i) * MS, (16001 + 100 * i) * MS,
                                            1014000 + 110 * i));
    /* A value that cannot be a time is ignored. */
    assert_false(sg_server_clock_jumped(&clock, 30000 * MS, 30001 * MS, INT64_MAX));
    assert_false(sg_server_clock_jumped(&clock, 30000 * MS, 30001 * MS, -1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reconnect_renews_all),
        cmocka_unit_test(also_under_telemetry_and_in_a_child),
        cmocka_unit_test(at_most_once_a_second),
        cmocka_unit_test(many_locks_less_often),
        cmocka_unit_test(not_with_clocks_of_clients),
        cmocka_unit_test(those_due_soon_come_first),
        cmocka_unit_test(those_that_become_due_are_not_kept_waiting),
        cmocka_unit_test(those_due_again_do_not_keep_the_rest_waiting),
        cmocka_unit_test(a_lock_that_is_gone_is_lost_at_once),
        cmocka_unit_test(so_is_a_lock_whose_lease_is_the_longest),
        cmocka_unit_test(a_renewal_under_way_is_repeated),
        cmocka_unit_test(a_grant_under_way_is_renewed),
        cmocka_unit_test(an_idle_connection_that_ends_renews_all),
        cmocka_unit_test(a_clock_that_jumps_renews_all),
        cmocka_unit_test(a_renewal_shows_the_jump),
        cmocka_unit_test(what_counts_as_a_jump),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
