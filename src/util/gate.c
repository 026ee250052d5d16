/*
 * Gates, see sys/wait.h.
 *
 * Invariant: places > 0 implies that nobody waits. A place that is left goes
 * straight to the first waiter, so nobody overtakes. The mutex is held for a few
 * instructions only, but for the unpark: the waiter's parker lives on its stack,
 * and taking the mutex once more tells it that the unpark is over.
 */
#include "syncguard/sys/fail.h"
#include "syncguard/sys/wait.h"

struct syncguard_gate_waiter {
    syncguard_parker parker;
    struct syncguard_gate_waiter *next;
    struct syncguard_gate_waiter *previous;
    bool admitted;
};

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

static void append(syncguard_gate *gate, struct syncguard_gate_waiter *waiter)
{
    waiter->next = NULL;
    waiter->previous = gate->last;
    if (gate->last)
        gate->last->next = waiter;
    else
        gate->first = waiter;
    gate->last = waiter;
}

static void take_out(syncguard_gate *gate, struct syncguard_gate_waiter *waiter)
{
    if (waiter->previous)
        waiter->previous->next = waiter->next;
    else
        gate->first = waiter->next;
    if (waiter->next)
        waiter->next->previous = waiter->previous;
    else
        gate->last = waiter->previous;
}

/* With the mutex held: takes a free place. */
static bool take_place(syncguard_gate *gate)
{
    if (gate->places <= 0)
        return false;
    gate->places--;
    return true;
}

/* With the mutex held: gives a place to the first waiter, or keeps it. */
static void give_place(syncguard_gate *gate)
{
    struct syncguard_gate_waiter *waiter = gate->first;

    if (!waiter) {
        gate->places++;
        return;
    }
    take_out(gate, waiter);
    waiter->admitted = true;
    syncguard_parker_unpark(&waiter->parker);
}

static syncguard_status wait_for_place(syncguard_gate *gate, const syncguard_limits *limits,
                                       syncguard_error *err)
{
    struct syncguard_gate_waiter waiter = {SYNCGUARD_PARKER_INIT, NULL, NULL, false};
    syncguard_status status;

    status = syncguard_parker_open(&waiter.parker, err);
    if (status != SYNCGUARD_OK)
        return status;
    pthread_mutex_lock(&gate->mutex);
    /* A place may have been left while the parker was opened. */
    if (take_place(gate)) {
        pthread_mutex_unlock(&gate->mutex);
        goto out;
    }
    append(gate, &waiter);
    pthread_mutex_unlock(&gate->mutex);

    status = syncguard_parker_park(&waiter.parker, limits, err);

    pthread_mutex_lock(&gate->mutex);
    if (!waiter.admitted)
        take_out(gate, &waiter);
    else if (status != SYNCGUARD_OK)
        give_place(gate); /* admitted too late */
    pthread_mutex_unlock(&gate->mutex);
out:
    syncguard_parker_close(&waiter.parker);
    return status;
}

syncguard_status syncguard_gate_enter(syncguard_gate *gate, const syncguard_limits *limits,
                                      syncguard_error *err)
{
    bool in;

    pthread_mutex_lock(&gate->mutex);
    in = take_place(gate);
    pthread_mutex_unlock(&gate->mutex);
    return in ? SYNCGUARD_OK : wait_for_place(gate, limits, err);
}

void syncguard_gate_leave(syncguard_gate *gate)
{
    pthread_mutex_lock(&gate->mutex);
    give_place(gate);
    pthread_mutex_unlock(&gate->mutex);
}
