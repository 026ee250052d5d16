/*
 * The private part of a backend: options, references, and its services.
 *
 * Lock order, outermost first: heartbeat.mutex (that of a decorated handle before that of its
 * decorator), background.mutex, wait_queue.mutex, incidents.mutex, the mutex of a completion queue
 * (queue_state.h). None of them is held while an operation runs or a callback of the user is called
 * (except for unwatch, which runs under wait_queue.mutex by contract).
 */
#ifndef SG_CORE_H
#define SG_CORE_H

#include <stdatomic.h>
#include <sys/types.h>

#include "background.h"
#include "counters.h"
#include "fence_warnings.h"
#include "heartbeat.h"
#include "incidents.h"
#include "syncguard/sys/options.h"
#include "wait_queue.h"

struct syncguard_core {
    syncguard_options options; /* strings are copies: owner, hash_secret */
    char *owner;
    char *hash_secret;
    atomic_int references; /* the open handle, and each lock handle */
    _Atomic pid_t pid;     /* process that this copy belongs to; -pid while that child resets it */
    sg_wait_queue own_queue;
    sg_wait_queue *wait_queue; /* own_queue, or that of the decorated backend */
    bool undoes_many;
    bool does_many;
    bool checks_connections;
    sg_counters own_counters;
    sg_counters *counters; /* own_counters, or those of the decorated backend */
    sg_incidents incidents;
    sg_background background;
    sg_heartbeat heartbeat;
    sg_fence_warnings fence_warnings;
};

/* For decorators: outer uses the options and the wait queue of inner, which must outlive it. */
syncguard_status sg_backend_init_over(syncguard_backend *outer, const syncguard_backend_ops *ops,
                                      syncguard_backend *inner, syncguard_error *err);

void sg_backend_ref(syncguard_backend *backend);
/* Closes the backend if this was the last reference. */
void sg_backend_unref(syncguard_backend *backend);

/* Must come before anything else in every call: after a fork it resets the handle for the child. */
syncguard_status sg_backend_enter(syncguard_backend *backend, syncguard_error *err);

#endif
