/*
 * The life cycle of a backend: creating, sharing, closing, forking. Dropping the last reference
 * closes a handle; each lock handle holds one.
 */
#include <sched.h>
#include <unistd.h>

#include "core.h"

#define DEFAULT_DRAIN_NS (1000 * SYNCGUARD_NS_PER_MS)

/* ---- creating, sharing and closing ---- */

static void backend_close_now(syncguard_backend *backend);

static void core_free(struct syncguard_core *core)
{
    syncguard_free_secret(core->hash_secret);
    syncguard_free(core->owner);
    syncguard_free(core);
}

/* Strings are copied. */
static struct syncguard_core *core_alloc(const syncguard_options *options)
{
    struct syncguard_core *core = syncguard_calloc(1, sizeof *core);
    if (core == NULL)
        return NULL;
    core->options = *options;
    core->options.owner = core->owner = syncguard_strdup(options->owner);
    core->options.hash_secret = core->hash_secret = syncguard_strdup(options->hash_secret);
    if ((options->owner != NULL && core->owner == NULL) ||
        (options->hash_secret != NULL && core->hash_secret == NULL)) {
        core_free(core);
        return NULL;
    }
    return core;
}

/* The common part of syncguard_backend_init and sg_backend_init_over. queue is NULL for a backend
 * with a wait queue of its own; store is the op table that shows what the store supports. */
static syncguard_status core_create(syncguard_backend *backend, const syncguard_options *options,
                                    sg_wait_queue *queue, const syncguard_backend_ops *store,
                                    syncguard_error *err)
{
    struct syncguard_core *core = core_alloc(options);
    if (core == NULL)
        return syncguard_fail_memory(err);
    core->wait_queue = queue != NULL ? queue : &core->own_queue;
    core->counters = &core->own_counters;
    core->undoes_many = store->undo_many != NULL;
    core->does_many = store->do_many != NULL;
    core->checks_connections = store->connection_ended != NULL;
    atomic_init(&core->references, 1);
    atomic_init(&core->pid, getpid());
    if (sg_fence_warnings_init(&core->fence_warnings, err) != SYNCGUARD_OK)
        goto no_warnings;
    if (sg_incidents_init(&core->incidents, err) != SYNCGUARD_OK)
        goto no_incidents;
    bool notified = backend->capabilities.wakes_waiters && backend->capabilities.is_shared;
    if (sg_wait_queue_init(&core->own_queue, notified, err) != SYNCGUARD_OK)
        goto no_queue;
    if (sg_background_init(&core->background, backend, err) != SYNCGUARD_OK)
        goto no_background;
    if (sg_heartbeat_init(&core->heartbeat, backend, backend_close_now, err) != SYNCGUARD_OK)
        goto no_heartbeat;
    backend->core = core;
    return SYNCGUARD_OK;
no_heartbeat:
    sg_background_destroy(&core->background);
no_background:
    sg_wait_queue_destroy(&core->own_queue);
no_queue:
    sg_incidents_destroy(&core->incidents);
no_incidents:
    sg_fence_warnings_destroy(&core->fence_warnings);
no_warnings:
    core_free(core);
    return syncguard_fail_memory(err);
}

syncguard_status syncguard_backend_init(syncguard_backend *backend,
                                        const syncguard_backend_ops *ops,
                                        const syncguard_capabilities *capabilities,
                                        const syncguard_options *options, syncguard_error *err)
{
    backend->ops = ops;
    backend->capabilities = *capabilities;
    return core_create(backend, options, NULL, ops, err);
}

syncguard_status sg_backend_init_over(syncguard_backend *outer, const syncguard_backend_ops *ops,
                                      syncguard_backend *inner, syncguard_error *err)
{
    outer->ops = ops;
    outer->capabilities = inner->capabilities;
    syncguard_status status =
        core_create(outer, &inner->core->options, inner->core->wait_queue, inner->ops, err);
    if (status == SYNCGUARD_OK) { /* inner may be a decorator itself */
        outer->core->undoes_many = inner->core->undoes_many;
        outer->core->does_many = inner->core->does_many;
        outer->core->checks_connections = inner->core->checks_connections;
        outer->core->counters = inner->core->counters;
        sg_heartbeat_attach(&outer->core->heartbeat, &inner->core->heartbeat);
    }
    return status;
}

void syncguard_backend_fini(syncguard_backend *backend)
{
    struct syncguard_core *core = backend->core;
    if (core == NULL)
        return;
    sg_heartbeat_destroy(&core->heartbeat);
    sg_background_destroy(&core->background);
    sg_wait_queue_destroy(&core->own_queue);
    sg_incidents_destroy(&core->incidents);
    sg_fence_warnings_destroy(&core->fence_warnings);
    core_free(core);
    backend->core = NULL;
}

void sg_backend_ref(syncguard_backend *backend)
{
    atomic_fetch_add(&backend->core->references, 1);
}

/* Ends background work while the store can still be reached, then closes the store. */
static void backend_close_now(syncguard_backend *backend)
{
    struct syncguard_core *core = backend->core;
    if (sg_backend_enter(backend, NULL) == SYNCGUARD_OK) {
        int64_t drain_ms = core->options.dispose_timeout_ms;
        int64_t drain_ns = drain_ms > 0 ? syncguard_clock_after(0, drain_ms) : DEFAULT_DRAIN_NS;
        sg_heartbeat_stop(&core->heartbeat);
        sg_background_stop(&core->background, drain_ns);
    }
    backend->ops->destroy(backend);
}

void sg_backend_unref(syncguard_backend *backend)
{
    if (atomic_fetch_sub(&backend->core->references, 1) != 1)
        return;
    (void)sg_backend_enter(backend, NULL); /* the mutex may be a forked copy */
    if (!sg_lost_locks_close_later(&backend->core->heartbeat.lost))
        backend_close_now(backend);
}

void syncguard_close(syncguard_backend *backend)
{
    SYNCGUARD_NO_CANCEL;
    if (backend != NULL)
        sg_backend_unref(backend);
}

void syncguard_backend_reconnected(syncguard_backend *backend)
{
    sg_incidents_reconnected(backend);
    if (backend->capabilities.time_authority == SYNCGUARD_TIME_SERVER)
        sg_heartbeat_renew_all(&backend->core->heartbeat);
}

/* ---- fork ---- */

/* The parent's threads do not exist in the child, and its queues do not belong to the child. */
static syncguard_status backend_reset_after_fork(syncguard_backend *backend, syncguard_error *err)
{
    struct syncguard_core *core = backend->core;
    sg_heartbeat_forget(&core->heartbeat);
    sg_background_forget(&core->background);
    sg_wait_queue_forget(&core->own_queue);
    sg_fence_warnings_forget(&core->fence_warnings);
    sg_incidents_forget(&core->incidents);
    sg_counters_reset(&core->own_counters); /* the parent reports what it did itself */
    if (backend->ops->after_fork == NULL)
        return SYNCGUARD_OK;
    return backend->ops->after_fork(backend, err);
}

syncguard_status sg_backend_enter(syncguard_backend *backend, syncguard_error *err)
{
    struct syncguard_core *core = backend->core;
    pid_t me = getpid();
    pid_t owner = atomic_load(&core->pid);
    if (owner == me)
        return SYNCGUARD_OK;

    /* One thread of the child does the work, the others wait for it. If the parent was in the
     * middle of this work when it forked, the child begins it again. */
    while (owner == -me || !atomic_compare_exchange_weak(&core->pid, &owner, -me)) {
        sched_yield();
        owner = atomic_load(&core->pid);
        if (owner == me)
            return SYNCGUARD_OK;
    }
    syncguard_status status = backend_reset_after_fork(backend, err);
    /* On failure the handle still belongs to the other process, and the next call tries again. */
    atomic_store(&core->pid, status == SYNCGUARD_OK ? me : owner);
    return status;
}
