#include "waiters.h"

static atomic_int waiting;

static void waiters_on_wait(void *context, int attempts, int64_t waited_ms, int64_t remaining_ms)
{
    (void)context;
    (void)waited_ms;
    (void)remaining_ms;
    if (attempts <= 2)
        atomic_fetch_add(&waiting, 1);
}

void *wait_for_lock(void *argument)
{
    waiter *self = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.retry_delay_ms = self->delay_ms > 0 ? self->delay_ms : 1000;
    options.jitter = SYNCGUARD_JITTER_NONE;
    options.timeout_ms = 60000;
    options.on_wait = waiters_on_wait;
    syncguard_lock *lock = NULL;
    syncguard_error error;
    self->status = syncguard_lock_acquire(self->backend, self->key, &options, &lock, &error);
    self->got_ms = test_now_ms();
    if (self->hold_ms > 0)
        test_sleep_ms(self->hold_ms);
    syncguard_lock_dispose(lock);
    return NULL;
}

void start_polling(waiter *self, syncguard_backend *backend, const char *key, int64_t delay_ms)
{
    self->backend = backend;
    self->key = key;
    self->hold_ms = 0;
    self->delay_ms = delay_ms;
    atomic_store(&waiting, 0);
    self->thread = test_start_thread(wait_for_lock, self);
    for (int i = 0; i < 500 && atomic_load(&waiting) == 0; i++)
        test_sleep_ms(2);
    test_sleep_ms(150); /* the first waiter of a handle also starts the reporting */
}

int64_t end_waiter(waiter *self, int64_t since)
{
    pthread_join(self->thread, NULL);
    assert_int_equal(self->status, SYNCGUARD_OK);
    return self->got_ms - since;
}
