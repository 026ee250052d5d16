#include "heartbeat.h"

atomic_int losses_told;
atomic_int told_reason;
atomic_bool dispose_when_told;
_Atomic(syncguard_backend *) close_when_told;

void on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)context;
    atomic_store(&told_reason, (int)reason);
    if (dispose_when_told)
        syncguard_lock_dispose(lock);
    if (close_when_told != NULL)
        syncguard_close(close_when_told);
    atomic_fetch_add(&losses_told, 1);
}

syncguard_lock *take_renewed(fake_backend *p, const char *key, int64_t ttl_ms, int64_t max_hold_ms)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = ttl_ms;
    options.auto_extend = true;
    options.max_hold_ms = max_hold_ms;
    options.on_lost = on_lost;
    atomic_store(&losses_told, 0);
    dispose_when_told = false;
    close_when_told = NULL;
    syncguard_lock *lock = NULL;
    syncguard_error err;
    assert_int_equal(syncguard_lock_acquire(&p->base, key, &options, &lock, &err), SYNCGUARD_OK);
    return lock;
}

int64_t ms_since(int64_t begun_ns)
{
    return (syncguard_clock_ns() - begun_ns) / SYNCGUARD_NS_PER_MS;
}

bool was_renewed(const syncguard_lock *lock, int64_t expiry)
{
    for (int i = 0; i < 30000 && syncguard_lock_expires_at_ms(lock) == expiry; i++)
        test_sleep_ms(1);
    return syncguard_lock_expires_at_ms(lock) != expiry;
}

syncguard_status extend_down(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p, (void)op;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "down");
}

syncguard_status extend_hangs(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p;
    return syncguard_wait_until(SYNCGUARD_NO_DEADLINE, &op->limits, err);
}
