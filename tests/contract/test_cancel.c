/* pthread_cancel: calls are not cancellation points, so a cancelled thread leaves the handle whole.
 */
#include "contract.h"

#define ROUNDS 1000

typedef struct victim {
    syncguard_backend *backend;
    const char *free_key;
    const char *held_key;
    bool waits;
    atomic_bool started;
    atomic_int unexpected; /* a status that is none of the possible ones */
} victim;

static void victim_note_status(victim *v, syncguard_status status, syncguard_status other)
{
    if (status != SYNCGUARD_OK && status != other)
        atomic_store(&v->unexpected, status);
}

static void victim_wait_in_vain(victim *v)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 20;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    syncguard_lock *lock = NULL;
    victim_note_status(v, syncguard_lock_acquire(v->backend, v->held_key, &options, &lock, NULL),
                       SYNCGUARD_E_ACQUISITION_TIMEOUT);
}

static void take_and_give_back(victim *v)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.auto_extend = true;
    syncguard_lock *lock = NULL;
    victim_note_status(v, syncguard_lock_acquire(v->backend, v->free_key, &options, &lock, NULL),
                       SYNCGUARD_OK);
    bool locked = false;
    victim_note_status(v, syncguard_is_locked(v->backend, v->free_key, NULL, &locked, NULL),
                       SYNCGUARD_OK);
    victim_note_status(v, syncguard_lock_release(lock, NULL, NULL), SYNCGUARD_OK);
    syncguard_lock_dispose(lock);
}

static void *work_until_cancelled(void *argument)
{
    victim *v = argument;
    atomic_store(&v->started, true);
    for (;;) {
        if (v->waits)
            victim_wait_in_vain(v);
        else
            take_and_give_back(v);
        pthread_testcancel();
    }
    return NULL;
}

static void cancel_one(victim *v, int round)
{
    v->waits = round % 4 == 3;
    atomic_store(&v->started, false);
    pthread_t thread = test_start_thread(work_until_cancelled, v);
    while (!atomic_load(&v->started))
        sched_yield();
    test_sleep_us(round % 40 * 50);
    assert_int_equal(pthread_cancel(thread), 0);
    void *ended = NULL;
    assert_int_equal(pthread_join(thread, &ended), 0);
    assert_ptr_equal(ended, PTHREAD_CANCELED);
    if (atomic_load(&v->unexpected) != 0)
        fail_msg("round %d: %s", round, syncguard_status_name(atomic_load(&v->unexpected)));
}

static void cancelled_threads_leave_the_handle_whole(void **state)
{
    key free_key = fresh_key("cancel-free"), held_key = fresh_key("cancel-held");
    victim v = {.backend = open_store(NULL), .free_key = free_key.text, .held_key = held_key.text};
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK,
                  syncguard_acquire(v.backend, held_key.text, 600000, NULL, &grant, &err));
    alarm(150); /* a call that never returns must not hang the suite */
    for (int round = 0; round < ROUNDS; round++)
        cancel_one(&v, round);
    alarm(0);
    bool locked = true;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(v.backend, free_key.text, NULL, &locked, &err));
    assert_false(locked);
    assert_status(SYNCGUARD_OK, syncguard_release(v.backend, grant.lock_id, NULL, &err));
    syncguard_close(v.backend);
}

/* A call restores the caller's cancel state, also inside the work of the callback form. */
static int cancel_state(void)
{
    int now = -1;
    assert_int_equal(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &now), 0);
    assert_int_equal(pthread_setcancelstate(now, NULL), 0);
    return now;
}

static int note_state(void *context, syncguard_lock *lock)
{
    (void)lock;
    *(int *)context = cancel_state();
    return 0;
}

static void the_callers_choice_is_restored(void **state)
{
    key name = fresh_key("cancel-state");
    (void)state;
    const int choices[] = {PTHREAD_CANCEL_DISABLE, PTHREAD_CANCEL_ENABLE};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_setcancelstate(choices[i], NULL), 0);
        syncguard_grant grant = take(name.text, 30000);
        assert_int_equal(cancel_state(), choices[i]);
        assert_status(
            SYNCGUARD_LOCKED, /* and after an early end */
            syncguard_acquire(store, name.text, 30000, NULL, &(syncguard_grant){0}, &err));
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT, syncguard_release(store, "?", NULL, &err));
        assert_int_equal(cancel_state(), choices[i]);
        give_back(&grant);
        int seen = -1;
        assert_status(SYNCGUARD_OK,
                      syncguard_with_lock(store, name.text, NULL, note_state, &seen, NULL, &err));
        assert_int_equal(seen, choices[i]);
        assert_int_equal(cancel_state(), choices[i]);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cancelled_threads_leave_the_handle_whole),
    cmocka_unit_test(the_callers_choice_is_restored),
};
const contract_group cancel_group = {"cancel", tests, sizeof tests / sizeof tests[0]};
