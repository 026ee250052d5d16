/*
 * Gates, see sys/wait.h.
 *
 * Invariant: places > 0 implies that nobody waits. A place that is left goes
 * straight to the first waiter, so nobody overtakes. The mutex is held for a few
 * instructions only.
 *
 * A waiter's parker lives on its stack, so it may not return before the one that admitted
 * it has unparked it. A light parker is unparked when the mutex is free again, or
 * the waiter would wake up only to wait for the mutex; its own word then tells that
 * the unpark is over. The others are unparked under the mutex, which tells it.
 */
#include "syncguard/sys/fail.h"
#include "syncguard/sys/wait.h"

syncguard_status syncguard_gate_init(syncguard_gate *gate, int places, syncguard_error *err)
{
    if (pthread_mutex_init(&gate->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    gate->places = places;
    gate->first = NULL;
    gate->last = NULL;
    return SYNCGUARD_OK;
}

void syncguard_gate_destroy(syncguard_gate *gate)
{
    pthread_mutex_destroy(&gate->mutex);
}

static void gate_append_waiter(syncguard_gate *gate, struct syncguard_gate_waiter *waiter)
{
    waiter->next = NULL;
    waiter->previous = gate->last;
    if (gate->last != NULL)
        gate->last->next = waiter;
    else
        gate->first = waiter;
    gate->last = waiter;
}

static void gate_remove_waiter(syncguard_gate *gate, struct syncguard_gate_waiter *waiter)
{
    if (waiter->previous != NULL)
        waiter->previous->next = waiter->next;
    else
        gate->first = waiter->next;
    if (waiter->next != NULL)
        waiter->next->previous = waiter->previous;
    else
        gate->last = waiter->previous;
}

/* With the mutex held: takes a free place. */
static bool gate_try_enter(syncguard_gate *gate)
{
    if (gate->places <= 0)
        return false;
    gate->places--;
    return true;
}

void syncguard_gate_leave(syncguard_gate *gate)
{
    pthread_mutex_lock(&gate->mutex);
    struct syncguard_gate_waiter *waiter = gate->first;
    bool light = waiter != NULL && waiter->parker.light;
    if (waiter != NULL) {
        gate_remove_waiter(gate, waiter);
        waiter->admitted = true;
        if (!light)
            syncguard_parker_unpark(&waiter->parker);
    } else {
        gate->places++;
    }
    pthread_mutex_unlock(&gate->mutex);
    if (light)
        syncguard_parker_unpark(&waiter->parker);
}

/* In the queue; only the thread that admits it unparks it. */
static syncguard_status gate_wait_in_queue(syncguard_gate *gate,
                                           struct syncguard_gate_waiter *waiter,
                                           const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_status status = syncguard_parker_park(&waiter->parker, limits, err);
    if (status == SYNCGUARD_OK && waiter->parker.light)
        return status;
    pthread_mutex_lock(&gate->mutex);
    bool admitted = waiter->admitted;
    if (!admitted)
        gate_remove_waiter(gate, waiter);
    pthread_mutex_unlock(&gate->mutex);
    if (admitted && status != SYNCGUARD_OK) {
        /* Too late. */
        if (waiter->parker.light)
            (void)syncguard_parker_park(&waiter->parker, NULL, NULL);
        syncguard_gate_leave(gate);
    }
    return status;
}

static syncguard_status gate_wait_to_enter(syncguard_gate *gate, const syncguard_limits *limits,
                                           syncguard_error *err)
{
    syncguard_gate_waiter waiter = {.admitted = false};
    syncguard_status status = syncguard_parker_open_light(&waiter.parker, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    pthread_mutex_lock(&gate->mutex);
    bool in = gate_try_enter(gate); /* one may have been left while the parker was opened */
    if (!in)
        gate_append_waiter(gate, &waiter);
    pthread_mutex_unlock(&gate->mutex);
    if (!in)
        status = gate_wait_in_queue(gate, &waiter, limits, err);
    syncguard_parker_close(&waiter.parker);
    return status;
}

syncguard_status syncguard_gate_enter(syncguard_gate *gate, const syncguard_limits *limits,
                                      syncguard_error *err)
{
    pthread_mutex_lock(&gate->mutex);
    bool in = gate_try_enter(gate);
    pthread_mutex_unlock(&gate->mutex);
    return in ? SYNCGUARD_OK : gate_wait_to_enter(gate, limits, err);
}
