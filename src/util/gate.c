/*
 * Gates, see sys/wait.h.
 *
 * Invariant: while places > 0, no thread waits. A thread that leaves passes its place directly to
 * the first waiter, so no thread overtakes another. The mutex is held for a few instructions only.
 *
 * A waiter's parker lives on the waiter's stack, so the waiter must not return before the thread
 * that admitted it has finished the unpark. A light parker is unparked after the mutex is unlocked,
 * because the waiter would otherwise wake up only to wait for the mutex; the word of the parker
 * shows that the unpark is finished. Other parkers are unparked under the mutex: a waiter that has
 * locked it knows that the unpark is finished.
 */
#include "syncguard/sys/fail.h"
#include "syncguard/sys/wait.h"

syncguard_status syncguard_gate_init(syncguard_gate *gate, int places, syncguard_error *err)
{
    if (pthread_mutex_init(&gate->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    gate->places = places;
    gate->waiters = (syncguard_links){NULL, NULL};
    return SYNCGUARD_OK;
}

void syncguard_gate_destroy(syncguard_gate *gate)
{
    pthread_mutex_destroy(&gate->mutex);
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
    syncguard_gate_waiter *waiter =
        SYNCGUARD_LINKED(syncguard_links_pop(&gate->waiters), syncguard_gate_waiter, link);
    bool light = waiter != NULL && waiter->parker.light;
    if (waiter != NULL) {
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

/* The waiter is in the queue; only the thread that admits it unparks it. */
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
        syncguard_links_remove(&gate->waiters, &waiter->link);
    pthread_mutex_unlock(&gate->mutex);
    if (admitted && status != SYNCGUARD_OK) {
        /* The place came too late: it goes to the next waiter. */
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
    bool in = gate_try_enter(gate); /* a place may have become free while the parker was opened */
    if (!in)
        syncguard_links_append(&gate->waiters, &waiter.link);
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
