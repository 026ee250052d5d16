/* Waiters that listen: one of them does, and nobody sleeps while nobody listens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "puppet.h"

/* Two keys, "k" and "j", that are held or not. */
static atomic_bool held[2];
static atomic_bool trying_takes_long;
static atomic_int long_tries;

static syncguard_status two_locks(puppet *p, syncguard_acquire_op *op, syncguard_error *err)
{
    (void)p, (void)err;
    if (op->key[0] == 'k' && atomic_load(&trying_takes_long)) {
        atomic_fetch_add(&long_tries, 1);
        while (atomic_load(&trying_takes_long))
            puppet_sleep_ms(1);
    }
    return atomic_exchange(&held[op->key[0] == 'k'], true) ? SYNCGUARD_LOCKED : SYNCGUARD_OK;
}

static puppet *open_with_both_held(void)
{
    puppet *p = puppet_open_listening();
    assert_non_null(p);
    p->on_acquire = two_locks;
    atomic_store(&held[0], true);
    atomic_store(&held[1], true);
    atomic_store(&trying_takes_long, false);
    atomic_store(&long_tries, 0);
    return p;
}

typedef struct worker {
    pthread_t thread;
    puppet *p;
    const char *key;
    int64_t timeout_ms;
    syncguard_abort *abort_object;
    syncguard_status status;
} worker;

static void *take(void *argument)
{
    worker *w = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.retry_delay_ms = 20000; /* nothing but a wake-up can help in time */
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = w->timeout_ms;
    options.abort_object = w->abort_object;
    syncguard_lock *lock = NULL;
    w->status = syncguard_lock_acquire(&w->p->base, w->key, &options, &lock, NULL);
    syncguard_lock_dispose(lock);
    return NULL;
}

static void start(worker *w, puppet *p, const char *key)
{
    w->p = p;
    w->key = key;
    if (w->timeout_ms == 0)
        w->timeout_ms = 60000;
    assert_int_equal(pthread_create(&w->thread, NULL, take, w), 0);
}

static void finish(worker *w, syncguard_status expected)
{
    pthread_join(w->thread, NULL);
    assert_int_equal(w->status, expected);
}

static void lone_waiter_hears_its_news_itself(void **state)
{
    (void)state;
    puppet *p = open_with_both_held();
    for (int i = 0; i < 50; i++) {
        worker one = {0};
        int before = atomic_load(&p->listens);
        start(&one, p, "k");
        assert_true(puppet_reached(&p->listens, before + 1));
        atomic_store(&held[1], false);
        syncguard_parker_unpark(&p->news);
        finish(&one, SYNCGUARD_OK);
        atomic_store(&held[1], true);
    }
    assert_int_equal(atomic_load(&p->take_overs), 0);
    syncguard_close(&p->base);
}

/* The one that listened has its lock and goes: the other still sleeps. */
static void others_are_left_to_the_store(void **state)
{
    (void)state;
    puppet *p = open_with_both_held();
    worker one = {0}, other = {0};
    start(&one, p, "k");
    assert_true(puppet_reached(&p->listens, 1));
    start(&other, p, "j");
    assert_true(puppet_reached(&p->watched, 2));
    puppet_sleep_ms(50);
    assert_int_equal(atomic_load(&p->take_overs), 0);
    assert_int_equal(atomic_load(&p->listens), 1);
    atomic_store(&held[1], false);
    syncguard_parker_unpark(&p->news);
    finish(&one, SYNCGUARD_OK);
    assert_int_equal(atomic_load(&p->take_overs), 1);
    atomic_store(&held[0], false);
    syncguard_backend_stirred(&p->base, "j", 1);
    finish(&other, SYNCGUARD_OK);
    syncguard_close(&p->base);
}

/* Nobody listens while the only waiter tries: who comes then does not sleep on that. */
static void who_sleeps_sees_that_somebody_listens(void **state)
{
    (void)state;
    puppet *p = open_with_both_held();
    worker one = {0}, other = {0};
    start(&one, p, "k");
    assert_true(puppet_reached(&p->listens, 1));
    atomic_store(&trying_takes_long, true);
    syncguard_parker_unpark(&p->news);
    assert_true(puppet_reached(&long_tries, 1));
    assert_int_equal(atomic_load(&p->take_overs), 0);
    start(&other, p, "j");
    assert_true(puppet_reached(&p->take_overs, 1));
    /* It was beaten, and listens again. */
    int before = atomic_load(&p->listens);
    atomic_store(&trying_takes_long, false);
    assert_true(puppet_reached(&p->listens, before + 1));
    atomic_store(&held[0], false);
    syncguard_backend_stirred(&p->base, "j", 1);
    finish(&other, SYNCGUARD_OK);
    atomic_store(&held[1], false);
    syncguard_parker_unpark(&p->news);
    finish(&one, SYNCGUARD_OK);
    syncguard_close(&p->base);
}

static void with_nothing_to_listen_to_the_store_does(void **state)
{
    (void)state;
    puppet *p = open_with_both_held();
    worker one = {0};
    atomic_store(&p->deaf, true);
    start(&one, p, "k");
    assert_true(puppet_reached(&p->take_overs, 1));
    puppet_sleep_ms(50);
    atomic_store(&held[1], false);
    syncguard_backend_stirred(&p->base, "k", 1);
    finish(&one, SYNCGUARD_OK);
    assert_int_equal(atomic_load(&p->listens), 0);
    syncguard_close(&p->base);
}

static void a_release_of_this_handle_wakes_who_listens(void **state)
{
    (void)state;
    puppet *p = open_with_both_held();
    worker one = {0};
    char key[] = "k";
    start(&one, p, key);
    assert_true(puppet_reached(&p->listens, 1));
    puppet_sleep_ms(50);
    atomic_store(&held[1], false);
    sg_room_freed(p->base.core->room, key, 1, false);
    finish(&one, SYNCGUARD_OK);
    syncguard_close(&p->base);
}

static void listening_ends_in_time(void **state)
{
    (void)state;
    puppet *p = open_with_both_held();
    worker late = {.timeout_ms = 100}, aborted = {0};
    start(&late, p, "k");
    finish(&late, SYNCGUARD_E_ACQUISITION_TIMEOUT);

    assert_int_equal(syncguard_abort_create(&aborted.abort_object, NULL), SYNCGUARD_OK);
    int before = atomic_load(&p->listens);
    start(&aborted, p, "k");
    assert_true(puppet_reached(&p->listens, before + 1));
    syncguard_abort_trigger(aborted.abort_object);
    finish(&aborted, SYNCGUARD_E_ABORTED);
    syncguard_abort_free(aborted.abort_object);

    /* The place is free again. */
    worker next = {0};
    before = atomic_load(&p->listens);
    start(&next, p, "k");
    assert_true(puppet_reached(&p->listens, before + 1));
    atomic_store(&held[1], false);
    syncguard_parker_unpark(&p->news);
    finish(&next, SYNCGUARD_OK);
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lone_waiter_hears_its_news_itself),
        cmocka_unit_test(others_are_left_to_the_store),
        cmocka_unit_test(who_sleeps_sees_that_somebody_listens),
        cmocka_unit_test(with_nothing_to_listen_to_the_store_does),
        cmocka_unit_test(a_release_of_this_handle_wakes_who_listens),
        cmocka_unit_test(listening_ends_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
