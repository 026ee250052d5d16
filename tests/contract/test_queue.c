/* The completion queue on every store: grants, wake-ups, loss, and cancel against grant. */
#include "contract.h"

#include <poll.h>

#define ROUNDS 1000
#define BATCH 25

static syncguard_queue *queue;

static int contract_queue_open(void **state)
{
    (void)state;
    return syncguard_queue_open(store, NULL, &queue, &err) == SYNCGUARD_OK ? 0 : 1;
}

static int contract_queue_close(void **state)
{
    (void)state;
    syncguard_queue_close(queue);
    return 0;
}

static bool contract_queue_next(int timeout_ms, syncguard_completion *done)
{
    struct pollfd fd = {syncguard_queue_fd(queue), POLLIN, 0};
    return poll(&fd, 1, timeout_ms) == 1 && syncguard_queue_next(queue, done);
}

static syncguard_completion contract_queue_next_is(syncguard_completion_kind kind,
                                                   syncguard_status status)
{
    syncguard_completion done;
    assert_true(contract_queue_next(60000, &done));
    if (done.status != status)
        print_message("%s: %s\n", syncguard_status_name(done.status), done.error.message);
    assert_int_equal(done.kind, kind);
    assert_int_equal(done.status, status);
    return done;
}

static syncguard_lock *contract_queue_acquire(const key *name,
                                              const syncguard_lock_options *options)
{
    assert_status(SYNCGUARD_OK,
                  syncguard_lock_acquire_async(queue, name->text, options, NULL, NULL, &err));
    return contract_queue_next_is(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK).lock;
}

static void contract_queue_release(syncguard_lock *lock, syncguard_status status)
{
    assert_status(SYNCGUARD_OK, syncguard_lock_release_async(queue, lock, NULL, NULL, NULL, &err));
    contract_queue_next_is(SYNCGUARD_COMPLETION_RELEASE, status);
}

static void becomes_free(const char *name)
{
    int64_t end = test_now_ms() + 20000;
    bool locked = true;
    while (locked && test_now_ms() < end) {
        assert_status(SYNCGUARD_OK, syncguard_is_locked(store, name, NULL, &locked, &err));
        if (locked)
            test_sleep_ms(5);
    }
    assert_false(locked);
}

static void queued_requests_do_what_the_calls_do(void **state)
{
    (void)state;
    key name = fresh_key("queue");
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    syncguard_lock *lock = contract_queue_acquire(&name, &options);
    check_locked(name.text, true);
    assert_status(SYNCGUARD_OK,
                  syncguard_lock_extend_async(queue, lock, 90000, NULL, NULL, NULL, &err));
    assert_true(contract_queue_next_is(SYNCGUARD_COMPLETION_EXTEND, SYNCGUARD_OK).expires_at_ms ==
                syncguard_lock_expires_at_ms(lock));
    options.timeout_ms = 50;
    assert_status(SYNCGUARD_OK,
                  syncguard_lock_acquire_async(queue, name.text, &options, NULL, NULL, &err));
    contract_queue_next_is(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ACQUISITION_TIMEOUT);
    contract_queue_release(lock, SYNCGUARD_OK);
    check_locked(name.text, false);
}

/* A release by another handle ends the waiting, as in the blocking call. */
static void a_release_elsewhere_completes_a_waiting_request(void **state)
{
    (void)state;
    key name = fresh_key("queue-wake");
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    syncguard_backend *other = store_is_shared() ? open_store(NULL) : store;
    syncguard_grant grant;
    syncguard_completion done;
    assert_status(SYNCGUARD_OK, syncguard_acquire(other, name.text, 60000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK,
                  syncguard_lock_acquire_async(queue, name.text, &options, NULL, NULL, &err));
    assert_false(contract_queue_next(300, &done));
    assert_status(SYNCGUARD_OK, syncguard_release(other, grant.lock_id, NULL, &err));
    contract_queue_release(contract_queue_next_is(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_OK).lock,
                           SYNCGUARD_OK);
    if (other != store)
        syncguard_close(other);
}

static void a_loss_is_one_completion(void **state)
{
    (void)state;
    key name = fresh_key("queue-lost");
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.auto_extend = true;
    options.ttl_ms = 1500;
    syncguard_lock *lock = contract_queue_acquire(&name, &options);
    assert_status(SYNCGUARD_OK, syncguard_release(store, syncguard_lock_id(lock), NULL, &err));
    syncguard_completion done = contract_queue_next_is(SYNCGUARD_COMPLETION_LOST, SYNCGUARD_ABSENT);
    assert_ptr_equal(done.lock, lock);
    assert_int_equal(done.lost, SYNCGUARD_LOST_ABSENT);
    assert_false(syncguard_lock_held(lock));
    contract_queue_release(lock, SYNCGUARD_ABSENT);
    assert_false(contract_queue_next(0, &done));
}

/* Half of the keys are held and released while the requests are cancelled, the others are free: a
 * cancel comes before, during or after the grant of its request. */
static void cancel_batch(int round)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    syncguard_request requests[BATCH];
    syncguard_grant held[BATCH];
    key names[BATCH];
    for (int i = 0; i < BATCH; i++) {
        names[i] = fresh_key("queue-cancel");
        if (i % 2 == 1)
            held[i] = take(names[i].text, 60000);
    }
    for (int i = 0; i < BATCH; i++)
        assert_status(SYNCGUARD_OK, syncguard_lock_acquire_async(queue, names[i].text, &options,
                                                                 NULL, &requests[i], &err));
    for (int i = 0; i < BATCH; i++) {
        if (i % 2 == 1)
            give_back(&held[i]);
        test_sleep_us((round * 7 + i * 13) % 40 * 20);
        assert_true(syncguard_queue_cancel(queue, requests[i]));
    }
    for (int i = 0; i < BATCH; i++)
        assert_null(contract_queue_next_is(SYNCGUARD_COMPLETION_ACQUIRE, SYNCGUARD_E_ABORTED).lock);
    for (int i = 0; i < BATCH; i++)
        becomes_free(names[i].text);
}

static void a_cancel_that_meets_the_grant_gives_the_lock_back(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS / BATCH; round++)
        cancel_batch(round);
}

static void closing_leaves_no_lock_behind(void **state)
{
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    for (int round = 0; round < 8; round++) {
        syncguard_queue *closed = NULL;
        key names[BATCH];
        assert_status(SYNCGUARD_OK, syncguard_queue_open(store, NULL, &closed, &err));
        for (int i = 0; i < BATCH; i++) {
            names[i] = fresh_key("queue-close");
            assert_status(SYNCGUARD_OK, syncguard_lock_acquire_async(closed, names[i].text,
                                                                     &options, NULL, NULL, &err));
        }
        test_sleep_us(round * 700);
        syncguard_queue_close(closed);
        for (int i = 0; i < BATCH; i++)
            becomes_free(names[i].text);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(queued_requests_do_what_the_calls_do, contract_queue_open,
                                    contract_queue_close),
    cmocka_unit_test_setup_teardown(a_release_elsewhere_completes_a_waiting_request,
                                    contract_queue_open, contract_queue_close),
    cmocka_unit_test_setup_teardown(a_loss_is_one_completion, contract_queue_open,
                                    contract_queue_close),
    cmocka_unit_test_setup_teardown(a_cancel_that_meets_the_grant_gives_the_lock_back,
                                    contract_queue_open, contract_queue_close),
    cmocka_unit_test(closing_leaves_no_lock_behind),
};
const contract_group queue_group = {"queue", tests, sizeof tests / sizeof tests[0]};
