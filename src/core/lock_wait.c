/*
 * The blocking driver of an acquire: takes the steps of lock_acquire.h in the calling thread, which
 * waits on a parker. It also calls on_wait.
 */
#include "core.h"
#include "lock_acquire.h"

typedef struct blocking_acquire {
    sg_acquire base;
    syncguard_acquire_op op;
    syncguard_wait_fn on_wait;
    void *on_wait_context;
    syncguard_parker parker;
} blocking_acquire;

static void lock_wait_unpark(sg_waiting *waiting)
{
    blocking_acquire *c =
        (blocking_acquire *)(void *)((char *)waiting - offsetof(sg_acquire, waiting));
    syncguard_parker_unpark(&c->parker);
}

static void on_wait_call(blocking_acquire *c)
{
    sg_wait_queue *queue = c->base.backend->core->wait_queue;
    if (c->on_wait == NULL)
        return;
    int64_t waited = (syncguard_clock_ns() - c->base.started_ns) / SYNCGUARD_NS_PER_MS;
    int64_t remaining_ms = c->base.slots > 0 ? sg_wait_queue_remaining_ms(queue, &c->base.waiting)
                                             : c->op.remaining_ms;
    sg_wait_queue_set_away(queue, &c->base.waiting, true);
    c->on_wait(c->on_wait_context, c->base.attempts, waited, remaining_ms);
    sg_wait_queue_set_away(queue, &c->base.waiting, false);
}

/* During a long pause, too, on_wait is called at its usual pace. */
static int64_t on_wait_next_ns(const blocking_acquire *c)
{
    if (c->on_wait == NULL)
        return SYNCGUARD_NO_DEADLINE;
    return syncguard_clock_after(syncguard_clock_ns(), sg_acquire_longest_poll_ms(&c->base));
}

/* Sleeps until it is woken, or until_ns. Aborted or NetworkTimeout if the limits of the whole call
 * end the wait. */
static syncguard_status lock_wait_sleep(blocking_acquire *c, int64_t until_ns, syncguard_error *err)
{
    syncguard_limits step = syncguard_limits_until(&c->base.limits, until_ns);
    syncguard_status status = syncguard_parker_park(&c->parker, &step, err);
    if (status == SYNCGUARD_E_NETWORK_TIMEOUT) /* of the pause, or of the whole call? */
        status = syncguard_limits_check(&c->base.limits, err);
    return status;
}

/* One WAIT; *tell_ns is when on_wait is called next. */
static syncguard_status lock_wait_step(blocking_acquire *c, int64_t until_ns, int64_t *tell_ns,
                                       syncguard_error *err)
{
    syncguard_status status = lock_wait_sleep(c, until_ns < *tell_ns ? until_ns : *tell_ns, err);
    if (status == SYNCGUARD_OK && c->on_wait != NULL && *tell_ns < c->base.pause_end_ns &&
        syncguard_clock_ns() >= *tell_ns) {
        on_wait_call(c);
        *tell_ns = on_wait_next_ns(c);
    }
    return status;
}

/* The first try found the key locked, or failed. */
static void lock_wait_loop(blocking_acquire *c, sg_acquire_step step, syncguard_error *err)
{
    int64_t until_ns = 0;
    int64_t tell_ns = SYNCGUARD_NO_DEADLINE;
    while (step != SG_ACQUIRE_END) {
        syncguard_status status = SYNCGUARD_OK;
        if (step == SG_ACQUIRE_TRY) {
            sg_acquire_try(&c->base, syncguard_clock_ns(), err);
        } else if (step == SG_ACQUIRE_PAUSE) {
            on_wait_call(c);
            sg_acquire_pause(&c->base);
            tell_ns = on_wait_next_ns(c);
        } else {
            status = lock_wait_step(c, until_ns, &tell_ns, err);
        }
        if (status != SYNCGUARD_OK) {
            c->base.status = status;
            return;
        }
        step = sg_acquire_next(&c->base, &until_ns, err);
    }
}

static syncguard_status lock_wait_run(blocking_acquire *c, syncguard_lock **out,
                                      syncguard_error *err)
{
    int64_t until_ns = 0;
    sg_acquire_try(&c->base, syncguard_clock_ns(), err);
    if (c->base.status == SYNCGUARD_OK || !sg_acquire_may_wait(&c->base))
        return sg_acquire_finish(&c->base, out, err);
    syncguard_status opened = syncguard_parker_open_light(&c->parker, &c->base.limits, err);
    if (opened == SYNCGUARD_OK)
        lock_wait_loop(c, sg_acquire_next(&c->base, &until_ns, err), err);
    else
        c->base.status = opened;
    syncguard_status status = sg_acquire_finish(&c->base, out, err);
    if (opened == SYNCGUARD_OK)
        syncguard_parker_close(&c->parker);
    return status;
}

static syncguard_status lock_acquire_blocking(syncguard_backend *backend, const char *key,
                                              const syncguard_lock_options *given, bool waits,
                                              syncguard_lock **out, syncguard_error *err)
{
    syncguard_error own;
    err = err != NULL ? err : &own;
    syncguard_error_clear(err);
    if (out != NULL)
        *out = NULL;
    if (backend == NULL || out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend or out is NULL");
    syncguard_lock_options options;
    blocking_acquire c;
    syncguard_status status = sg_acquire_begin(&c.base, backend, key, given, waits, &options, err);
    if (status != SYNCGUARD_OK)
        return status;
    c.op.remaining_ms = -1; /* the rest is set by each try */
    c.base.op = &c.op;
    c.base.waiting.wake = lock_wait_unpark;
    c.on_wait = options.on_wait;
    c.on_wait_context = options.on_wait_context;
    return lock_wait_run(&c, out, err);
}

syncguard_status syncguard_lock_acquire(syncguard_backend *backend, const char *key,
                                        const syncguard_lock_options *options, syncguard_lock **out,
                                        syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    return lock_acquire_blocking(backend, key, options, true, out, err);
}

syncguard_status syncguard_lock_try(syncguard_backend *backend, const char *key,
                                    const syncguard_lock_options *options, syncguard_lock **out,
                                    syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    return lock_acquire_blocking(backend, key, options, false, out, err);
}
