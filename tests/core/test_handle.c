/* What a holder may rely on: the lease it counts is never longer than the store's, and a loss is
 * final. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_backend.h"
#include "test_assert.h"

static syncguard_lock *handle_take_lock(fake_backend *p, int64_t ttl_ms, bool auto_extend)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = ttl_ms;
    options.auto_extend = auto_extend;
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(&p->base, "k", &options, &lock, NULL), SYNCGUARD_OK);
    return lock;
}

static syncguard_status handle_lose_reply(fake_backend *p, syncguard_extend_op *op,
                                          syncguard_error *err)
{
    (void)p, (void)op;
    return syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, NULL, "the reply was lost");
}

static void extend_unanswered(syncguard_lock *lock, int64_t ttl_ms)
{
    assert_int_equal(syncguard_lock_extend(lock, ttl_ms, NULL, NULL, NULL),
                     SYNCGUARD_E_NETWORK_TIMEOUT);
}

static void handle_close_store(fake_backend *p, syncguard_lock *lock)
{
    syncguard_lock_dispose(lock);
    syncguard_close(&p->base);
}

/* The store may have shortened the lock: the lease that is counted here must not be longer. */
static void an_unanswered_shorter_extend_shortens_the_lease(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = handle_lose_reply;
    syncguard_lock *lock = handle_take_lock(p, 60000, false);
    extend_unanswered(lock, 5000);
    assert_in_range(syncguard_lock_remaining_ms(lock), 0, 5000);
    assert_true(syncguard_lock_held(lock));
    handle_close_store(p, lock);
}

static void an_unanswered_longer_extend_changes_nothing(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = handle_lose_reply;
    syncguard_lock *lock = handle_take_lock(p, 30000, false);
    extend_unanswered(lock, 90000);
    assert_in_range(syncguard_lock_remaining_ms(lock), 10000, 30000);
    handle_close_store(p, lock);
}

static _Atomic int64_t renewed_ttl_ms;
static syncguard_status note_ttl(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p, (void)err;
    atomic_store(&renewed_ttl_ms, op->ttl_ms);
    return SYNCGUARD_OK;
}

/* A renewal must not count a longer lease either: the late extend may still arrive after it. */
static void renewals_follow_an_unanswered_shorter_extend(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = handle_lose_reply;
    syncguard_lock *lock = handle_take_lock(p, 60000, true);
    extend_unanswered(lock, 3000);
    p->on_extend = note_ttl;
    assert_true(wait_for_count(&p->batches, 1)); /* within a second, not within twenty */
    test_sleep_ms(50);
    assert_int_equal(atomic_load(&renewed_ttl_ms), 60000);
    assert_in_range(syncguard_lock_remaining_ms(lock), 0, 3000);
    handle_close_store(p, lock);
}

/* Nor may an explicit longer extend count in full. */
static void a_longer_extend_follows_an_unanswered_shorter_one(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = handle_lose_reply;
    syncguard_lock *lock = handle_take_lock(p, 60000, false);
    extend_unanswered(lock, 5000);
    extend_unanswered(lock, 9000);
    p->on_extend = NULL;
    assert_int_equal(syncguard_lock_extend(lock, 60000, NULL, NULL, NULL), SYNCGUARD_OK);
    assert_in_range(syncguard_lock_remaining_ms(lock), 0, 5000);
    assert_true(syncguard_lock_held(lock));
    assert_int_equal(syncguard_lock_extend(lock, 3000, NULL, NULL, NULL), SYNCGUARD_OK);
    assert_in_range(syncguard_lock_remaining_ms(lock), 0, 3000);
    handle_close_store(p, lock);
}

/* The store may still apply the unanswered renewal, and would then count its TTL. */
static void a_longer_extend_follows_an_unanswered_renewal(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = handle_lose_reply;
    syncguard_lock *lock = handle_take_lock(p, 6000, true);
    assert_true(wait_for_count(&p->batches, 1));
    p->on_extend = note_ttl;
    assert_int_equal(syncguard_lock_extend(lock, 60000, NULL, NULL, NULL), SYNCGUARD_OK);
    assert_in_range(syncguard_lock_remaining_ms(lock), 0, 6000);
    int batches = atomic_load(&p->batches);
    assert_true(wait_for_count(&p->batches, batches + 1)); /* within 2 s, not within 20 */
    assert_int_equal(syncguard_lock_extend(lock, 6000, NULL, NULL, NULL), SYNCGUARD_OK);
    assert_in_range(syncguard_lock_remaining_ms(lock), 3000, 6000);
    handle_close_store(p, lock);
}

/* As if the failure were older by ms. */
static void age_unanswered(syncguard_lock *lock, int64_t ms)
{
    while (!sg_lock_try_claim(lock))
        test_sleep_ms(1);
    for (int i = 0; i < SG_UNRESOLVED_EXTENDS; i++) {
        if (lock->unresolved[i].until_s > ms / 1000)
            lock->unresolved[i].until_s -= (uint32_t)(ms / 1000);
    }
    sg_lock_unclaim(lock);
}

/* Once the late extend can no longer arrive, renewals have the TTL of before again. */
static void renewals_outlive_an_unanswered_shorter_extend(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = handle_lose_reply;
    syncguard_lock *lock = handle_take_lock(p, 60000, true);
    int64_t past = syncguard_clock_ns() + 4000 * SYNCGUARD_NS_PER_MS; /* or a later one */
    extend_unanswered(lock, 3000);
    age_unanswered(lock, SG_LATE_EXTEND_MS - 4000);
    int64_t give_up = past + 26000 * SYNCGUARD_NS_PER_MS;
    p->on_extend = note_ttl;
    while (syncguard_lock_remaining_ms(lock) <= 3000 && syncguard_clock_ns() < give_up)
        test_sleep_ms(10);
    assert_true(syncguard_clock_ns() >= past);
    assert_int_equal(atomic_load(&renewed_ttl_ms), 60000);
    assert_in_range(syncguard_lock_remaining_ms(lock), 30000, 60000);
    handle_close_store(p, lock);
}

/* A request that the network holds up may arrive long after its own TTL. */
static void a_shorter_extend_may_arrive_after_its_ttl(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = handle_lose_reply;
    syncguard_lock *lock = handle_take_lock(p, 60000, false);
    extend_unanswered(lock, 5000);
    age_unanswered(lock, 100000);
    p->on_extend = NULL;
    assert_int_equal(syncguard_lock_extend(lock, 60000, NULL, NULL, NULL), SYNCGUARD_OK);
    assert_in_range(syncguard_lock_remaining_ms(lock), 0, 5000);
    handle_close_store(p, lock);
}

/* Renewals that fail meanwhile do not keep the short TTL in force: their TTL is longer. */
static void a_failed_renewal_counts_with_its_own_ttl(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = handle_lose_reply;
    syncguard_lock *lock = handle_take_lock(p, 60000, false);
    extend_unanswered(lock, 5000);
    age_unanswered(lock, SG_LATE_EXTEND_MS / 2);
    extend_unanswered(lock, 60000);
    p->on_extend = NULL;
    assert_int_equal(syncguard_lock_extend(lock, 90000, NULL, NULL, NULL), SYNCGUARD_OK);
    assert_in_range(syncguard_lock_remaining_ms(lock), 0, 5000);
    age_unanswered(lock, SG_LATE_EXTEND_MS / 2 + 1000);
    assert_int_equal(syncguard_lock_extend(lock, 90000, NULL, NULL, NULL), SYNCGUARD_OK);
    assert_in_range(syncguard_lock_remaining_ms(lock), 30000, 60000);
    age_unanswered(lock, SG_LATE_EXTEND_MS / 2);
    assert_int_equal(syncguard_lock_extend(lock, 90000, NULL, NULL, NULL), SYNCGUARD_OK);
    assert_in_range(syncguard_lock_remaining_ms(lock), 60001, 90000);
    handle_close_store(p, lock);
}

static syncguard_status answer_slowly(fake_backend *p, syncguard_extend_op *op,
                                      syncguard_error *err)
{
    (void)p, (void)op, (void)err;
    test_sleep_ms(1500);
    return SYNCGUARD_OK;
}

/* The same for explicit extends. An extend that was sent before that time and confirmed after it
 * does not count in full: the late one may have arrived between the two. */
static void extends_outlive_an_unanswered_shorter_one(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = handle_lose_reply;
    syncguard_lock *lock = handle_take_lock(p, 60000, false);
    int64_t past = syncguard_clock_ns() + 6000 * SYNCGUARD_NS_PER_MS; /* or a later one */
    extend_unanswered(lock, 5000);
    age_unanswered(lock, SG_LATE_EXTEND_MS - 6000);
    int64_t certain = syncguard_clock_ns() + 7000 * SYNCGUARD_NS_PER_MS;
    p->on_extend = NULL;
    while (syncguard_clock_ns() < past - 1000 * SYNCGUARD_NS_PER_MS) {
        assert_int_equal(syncguard_lock_extend(lock, 60000, NULL, NULL, NULL), SYNCGUARD_OK);
        assert_in_range(syncguard_lock_remaining_ms(lock), 0, 5000);
        test_sleep_ms(100);
    }
    p->on_extend = answer_slowly;
    bool early = syncguard_clock_ns() < past - 100 * SYNCGUARD_NS_PER_MS;
    assert_int_equal(syncguard_lock_extend(lock, 60000, NULL, NULL, NULL), SYNCGUARD_OK);
    assert_true(syncguard_clock_ns() > past);
    if (early)
        assert_in_range(syncguard_lock_remaining_ms(lock), 0, 5000);
    p->on_extend = NULL;
    while (syncguard_clock_ns() < certain)
        test_sleep_ms(10);
    assert_int_equal(syncguard_lock_extend(lock, 60000, NULL, NULL, NULL), SYNCGUARD_OK);
    assert_in_range(syncguard_lock_remaining_ms(lock), 30000, 60000);
    handle_close_store(p, lock);
}

static syncguard_status answer_at_the_end(fake_backend *p, syncguard_extend_op *op,
                                          syncguard_error *err)
{
    (void)p, (void)op, (void)err;
    test_sleep_ms(2);
    return SYNCGUARD_OK;
}

static atomic_bool asking;
static atomic_int heard;
static void *handle_poll_lost(void *argument)
{
    const syncguard_lock *lock = argument;
    while (atomic_load(&asking)) {
        syncguard_lost_reason reason = syncguard_lock_lost(lock);
        if (reason != SYNCGUARD_LOST_NO)
            atomic_store(&heard, (int)reason);
    }
    return NULL;
}

/* An extend that is confirmed just as the lease ends: either it counts or the loss does. */
static void an_extend_and_a_loss_are_never_both_believed(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = answer_at_the_end;
    for (int round = 0; round < 200; round++) {
        syncguard_lock *lock = handle_take_lock(p, 1000, false);
        atomic_store(&lock->lease, syncguard_clock_ns() + 2 * SYNCGUARD_NS_PER_MS);
        atomic_store(&heard, SYNCGUARD_LOST_NO);
        atomic_store(&asking, true);
        pthread_t thread = test_start_thread(handle_poll_lost, lock);
        syncguard_status status = syncguard_lock_extend(lock, 60000, NULL, NULL, NULL);
        atomic_store(&asking, false);
        pthread_join(thread, NULL);
        if (status == SYNCGUARD_OK)
            assert_int_equal(atomic_load(&heard), SYNCGUARD_LOST_NO);
        assert_int_equal(syncguard_lock_held(lock), status == SYNCGUARD_OK);
        syncguard_lock_dispose(lock);
    }
    syncguard_close(&p->base);
}

/* A reported loss is final: an extend that succeeds later is released. */
static void a_late_extend_is_released(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    p->on_extend = answer_at_the_end;
    syncguard_lock *lock = handle_take_lock(p, 60000, false);
    atomic_store(&lock->lease, syncguard_clock_ns() + SYNCGUARD_NS_PER_MS / 2);
    assert_int_equal(syncguard_lock_extend(lock, 60000, NULL, NULL, NULL), SYNCGUARD_ABSENT);
    assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_UNCONFIRMED);
    assert_true(wait_for_count(&p->releases, 1));
    handle_close_store(p, lock);
}

/* Runs work in a child and returns its exit status; a child that hangs is ended. */
static int in_a_child(int (*work)(fake_backend *p), fake_backend *p)
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20);
        _exit(work(p));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static int handle_enter_backend(fake_backend *p)
{
    return sg_backend_enter(&p->base, NULL) == SYNCGUARD_OK ? 0 : 1;
}

/* A fork interrupts the adoption of the handle by another thread; the grandchild adopts it anew. */
static void adopting_that_a_fork_interrupted_is_begun_again(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    atomic_store(&p->base.core->pid, -getpid());
    assert_int_equal(in_a_child(handle_enter_backend, p), 0);
    atomic_store(&p->base.core->pid, getpid());
    syncguard_close(&p->base);
}

static syncguard_lock *inherited;
static int handle_use_inherited(fake_backend *p)
{
    if (syncguard_lock_lost(inherited) != SYNCGUARD_LOST_FORKED || syncguard_lock_held(inherited))
        return 1;
    if (syncguard_lock_extend(inherited, 1000, NULL, NULL, NULL) != SYNCGUARD_ABSENT)
        return 2;
    if (syncguard_lock_release(inherited, NULL, NULL) != SYNCGUARD_ABSENT)
        return 3;
    int releases = atomic_load(&p->releases);
    syncguard_close(&p->base);
    syncguard_lock_dispose(inherited); /* the last reference */
    return releases;
}

/* In every order: child and parent close and dispose, with a heartbeat running. */
static void a_child_frees_its_copy_and_says_nothing(void **state)
{
    (void)state;
    fake_backend *p = fake_backend_open(NULL);
    inherited = handle_take_lock(p, 60000, true);
    assert_int_equal(in_a_child(handle_use_inherited, p), 0);
    assert_true(syncguard_lock_held(inherited));
    syncguard_lock_dispose(inherited);
    assert_int_equal(atomic_load(&p->releases), 1);
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unanswered_shorter_extend_shortens_the_lease),
        cmocka_unit_test(an_unanswered_longer_extend_changes_nothing),
        cmocka_unit_test(renewals_follow_an_unanswered_shorter_extend),
        cmocka_unit_test(a_longer_extend_follows_an_unanswered_shorter_one),
        cmocka_unit_test(a_longer_extend_follows_an_unanswered_renewal),
        cmocka_unit_test(renewals_outlive_an_unanswered_shorter_extend),
        cmocka_unit_test(a_shorter_extend_may_arrive_after_its_ttl),
        cmocka_unit_test(a_failed_renewal_counts_with_its_own_ttl),
        cmocka_unit_test(extends_outlive_an_unanswered_shorter_one),
        cmocka_unit_test(an_extend_and_a_loss_are_never_both_believed),
        cmocka_unit_test(a_late_extend_is_released),
        cmocka_unit_test(adopting_that_a_fork_interrupted_is_begun_again),
        cmocka_unit_test(a_child_frees_its_copy_and_says_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
