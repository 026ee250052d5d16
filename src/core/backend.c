/*
 * The front of every backend: checks, deadlines, and what the core adds around
 * one operation of the store. The ops table below trusts its input.
 *
 * Order in every public call: arguments, then fork, then abort, then the store.
 * A handle is closed by its last reference; lock handles hold one each.
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "hash.h"

#define DEFAULT_DRAIN_NS (1000 * SYNCGUARD_NS_PER_MS)
#define FENCE_WARNING_PAUSE_NS (60 * 1000 * SYNCGUARD_NS_PER_MS)
#define FENCE_WARNING_KEYS 1024

/* ---- making, sharing and closing ---------------------------------------------------------- */

static void forget_secret(struct syncguard_core *core)
{
    if (core->hash_secret != NULL)
        explicit_bzero(core->hash_secret, strlen(core->hash_secret));
    syncguard_free(core->hash_secret);
}

/* What init and init_over share. room is NULL for a backend with a waiting room of its own; store
 * is the op table that watching ends up in. */
static syncguard_status make_core(syncguard_backend *backend, const syncguard_options *options,
                                  sg_room *room, const syncguard_backend_ops *store,
                                  syncguard_error *err)
{
    struct syncguard_core *core = syncguard_calloc(1, sizeof *core);
    if (core == NULL)
        return syncguard_fail_memory(err);
    core->options = *options;
    core->room = room != NULL ? room : &core->own_room;
    core->watches = store->unwatch != NULL;
    core->watch_lasts = store->watch_lasts;
    core->listens = store->listen != NULL;
    core->undoes_many = store->undo_many != NULL;
    atomic_init(&core->references, 1);
    atomic_init(&core->pid, getpid());
    if (options->owner != NULL) {
        core->owner = syncguard_strdup(options->owner);
        core->options.owner = core->owner;
        if (core->owner == NULL)
            goto no_memory;
    }
    if (options->hash_secret != NULL) {
        core->hash_secret = syncguard_strdup(options->hash_secret);
        core->options.hash_secret = core->hash_secret;
        if (core->hash_secret == NULL)
            goto no_memory;
    }
    if (pthread_mutex_init(&core->warnings_mutex, NULL) != 0)
        goto no_memory;
    if (sg_room_init(&core->own_room, err) != SYNCGUARD_OK)
        goto no_room;
    if (sg_background_init(&core->background, backend, err) != SYNCGUARD_OK)
        goto no_background;
    if (sg_heartbeat_init(&core->heartbeat, backend, err) != SYNCGUARD_OK)
        goto no_heartbeat;
    backend->core = core;
    return SYNCGUARD_OK;

no_heartbeat:
    sg_background_destroy(&core->background);
no_background:
    sg_room_destroy(&core->own_room);
no_room:
    pthread_mutex_destroy(&core->warnings_mutex);
no_memory:
    forget_secret(core);
    syncguard_free(core->owner);
    syncguard_free(core);
    return syncguard_fail_memory(err);
}

syncguard_status syncguard_backend_init(syncguard_backend *backend,
                                        const syncguard_backend_ops *ops,
                                        const syncguard_capabilities *capabilities,
                                        const syncguard_options *options, syncguard_error *err)
{
    backend->ops = ops;
    backend->capabilities = *capabilities;
    return make_core(backend, options, NULL, ops, err);
}

syncguard_status sg_backend_init_over(syncguard_backend *outer, const syncguard_backend_ops *ops,
                                      syncguard_backend *inner, syncguard_error *err)
{
    outer->ops = ops;
    outer->capabilities = inner->capabilities;
    syncguard_status status =
        make_core(outer, &inner->core->options, inner->core->room, inner->ops, err);
    if (status == SYNCGUARD_OK) { /* inner may be a decorator itself */
        outer->core->watches = inner->core->watches;
        outer->core->watch_lasts = inner->core->watch_lasts;
        outer->core->listens = inner->core->listens;
        outer->core->undoes_many = inner->core->undoes_many;
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
    sg_room_destroy(&core->own_room);
    while (core->warnings != NULL) {
        sg_fence_warning *warning = core->warnings;
        core->warnings = warning->next;
        syncguard_free(warning);
    }
    pthread_mutex_destroy(&core->warnings_mutex);
    forget_secret(core);
    syncguard_free(core->owner);
    syncguard_free(core);
    backend->core = NULL;
}

void sg_backend_ref(syncguard_backend *backend)
{
    atomic_fetch_add(&backend->core->references, 1);
}

/* Ends background work while the store can still be reached, then the store. */
void sg_backend_close_now(syncguard_backend *backend)
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
    sg_heartbeat *heartbeat = &backend->core->heartbeat;
    pthread_mutex_lock(&heartbeat->mutex);
    bool inside_on_lost =
        heartbeat->dispatcher_started && pthread_equal(heartbeat->dispatcher, pthread_self());
    heartbeat->close_requested = inside_on_lost;
    pthread_mutex_unlock(&heartbeat->mutex);
    if (!inside_on_lost) /* else the dispatcher closes when the callback has returned */
        sg_backend_close_now(backend);
}

void syncguard_close(syncguard_backend *backend)
{
    SYNCGUARD_NO_CANCEL;
    if (backend != NULL)
        sg_backend_unref(backend);
}

/* ---- fork ---------------------------------------------------------------------------------- */

/* Threads of the parent do not exist here, its queues are not ours. */
static syncguard_status adopt(syncguard_backend *backend, syncguard_error *err)
{
    struct syncguard_core *core = backend->core;
    sg_heartbeat_forget(&core->heartbeat);
    sg_background_forget(&core->background);
    sg_room_forget(&core->own_room);
    (void)pthread_mutex_init(&core->warnings_mutex, NULL);
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

    /* One thread of the child does the work, the others wait for it. What another process was in
     * the middle of when it forked this one is begun again. */
    while (owner == -me || !atomic_compare_exchange_weak(&core->pid, &owner, -me)) {
        sched_yield();
        owner = atomic_load(&core->pid);
        if (owner == me)
            return SYNCGUARD_OK;
    }
    syncguard_status status = adopt(backend, err);
    /* On failure the handle stays a stranger's, so that the next call tries again. */
    atomic_store(&core->pid, status == SYNCGUARD_OK ? me : owner);
    return status;
}

/* ---- options, limits, log -------------------------------------------------------------------- */

const syncguard_options *syncguard_backend_options(const syncguard_backend *backend)
{
    return &backend->core->options;
}

const syncguard_capabilities *syncguard_capabilities_get(const syncguard_backend *backend)
{
    return &backend->capabilities;
}

void syncguard_backend_log(const syncguard_backend *backend, syncguard_log_level level,
                           const char *format, ...)
{
    const syncguard_options *options = &backend->core->options;
    if (options->log == NULL)
        return;
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    options->log(options->log_context, level, line);
}

syncguard_status sg_key_read(const syncguard_backend *backend, const char *key,
                             char out[SYNCGUARD_KEY_SIZE], size_t *length, syncguard_error *err)
{
    syncguard_status status = syncguard_key_normalise(key, out, length, err);
    if (status == SYNCGUARD_OK && backend->ops->check_key != NULL)
        status = backend->ops->check_key(backend, out, *length, err);
    return status;
}

syncguard_status sg_limits_read(const syncguard_backend *backend, const syncguard_call *call,
                                syncguard_limits *limits, syncguard_error *err)
{
    syncguard_call known = SYNCGUARD_CALL_INIT;
    if (call != NULL) {
        syncguard_status status =
            syncguard_struct_read(call, &known, sizeof known, sizeof known, "call", err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    if (known.timeout_ms < 0)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "timeout_ms of the call is negative");
    int64_t timeout_ms =
        known.timeout_ms > 0 ? known.timeout_ms : backend->core->options.timeout_ms;
    limits->deadline_ns = syncguard_clock_after(syncguard_clock_ns(), timeout_ms);
    limits->abort_object = known.abort_object;
    return SYNCGUARD_OK;
}

syncguard_status sg_ttl_check(int64_t ttl_ms, syncguard_error *err)
{
    int64_t expiry;
    return syncguard_expiry(syncguard_wall_ms(), ttl_ms, &expiry, err);
}

/* The last step before the store. */
static syncguard_status begin(syncguard_backend *backend, const syncguard_limits *limits,
                              syncguard_error *err)
{
    syncguard_status status = sg_backend_enter(backend, err);
    return status == SYNCGUARD_OK ? syncguard_limits_check(limits, err) : status;
}

/* After the store: an attempt that failed before the one that was answered leaves no trace. */
static syncguard_status settled(syncguard_status status, syncguard_error *err)
{
    if (status >= 0)
        syncguard_error_clear(err);
    return status;
}

static syncguard_status check_id(const char *lock_id, syncguard_error *err)
{
    if (syncguard_lock_id_valid(lock_id))
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "a lock id is 22 base64url characters");
}

void sg_error_key(const syncguard_backend *backend, syncguard_error *err, const char *key,
                  size_t length)
{
    if (backend->core->hash_secret == NULL)
        syncguard_error_key(err, key, length);
    else if (err != NULL)
        (void)sg_hash_text(backend->core->hash_secret, key, length, err->key_hash);
}

/* ---- acquire -----------------------------------------------------------------------------------
 */

/* At most one warning per key and minute; a full table warns of no further keys. */
static void warn_of_fence(syncguard_backend *backend, const char *key, size_t length)
{
    struct syncguard_core *core = backend->core;
    char hash[SYNCGUARD_HASH_SIZE];
    int64_t now = syncguard_clock_ns();
    bool warn = false;

    if (core->options.log == NULL || !sg_hash_text(core->hash_secret, key, length, hash))
        return;
    pthread_mutex_lock(&core->warnings_mutex);
    sg_fence_warning *warning = core->warnings;
    while (warning != NULL && strcmp(warning->key_hash, hash) != 0)
        warning = warning->next;
    if (warning == NULL && core->warning_count < FENCE_WARNING_KEYS) {
        warning = syncguard_calloc(1, sizeof *warning);
        if (warning != NULL) {
            memcpy(warning->key_hash, hash, sizeof hash);
            warning->next = core->warnings;
            core->warnings = warning;
            core->warning_count++;
        }
    }
    if (warning != NULL && now >= warning->next_ns) {
        warning->next_ns = now + FENCE_WARNING_PAUSE_NS;
        warn = true;
    }
    pthread_mutex_unlock(&core->warnings_mutex);
    if (warn)
        syncguard_backend_log(backend, SYNCGUARD_LOG_WARN,
                              "the fence counter of key %s has passed %lld; it ends at %lld", hash,
                              (long long)SYNCGUARD_FENCE_WARN, (long long)SYNCGUARD_FENCE_MAX);
}

/* Counted from now: the store may have granted it a moment ago, however long ago it was sent. */
static void undo(syncguard_backend *backend, const syncguard_acquire_op *op)
{
    int64_t until_ns =
        syncguard_clock_after(syncguard_clock_ns(), op->ttl_ms + SYNCGUARD_TIME_TOLERANCE_MS);
    sg_background_undo(&backend->core->background, op->key, op->key_length, op->lock_id, until_ns);
}

syncguard_status sg_acquire_once(syncguard_backend *backend, syncguard_acquire_op *op,
                                 char lock_id[SYNCGUARD_LOCK_ID_SIZE], syncguard_error *err)
{
    syncguard_status status = begin(backend, &op->limits, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_lock_id_draw(lock_id, err);
    if (status != SYNCGUARD_OK)
        return status;

    op->lock_id = lock_id;
    op->owner = backend->core->owner != NULL ? backend->core->owner : "";
    op->remaining_ms = -1;
    op->armed_ms = 0;
    op->maybe_granted = false;
    op->first_sent_ns = syncguard_clock_ns();
    status = settled(backend->ops->acquire(backend, op, err), err);

    if (status == SYNCGUARD_OK && (op->fence < 1 || op->fence > SYNCGUARD_FENCE_MAX)) {
        undo(backend, op);
        status = syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                                "the store granted the lock with a fence out of range");
    } else if (status == SYNCGUARD_OK &&
               syncguard_clock_ns() >= syncguard_clock_after(op->first_sent_ns, op->ttl_ms)) {
        undo(backend, op);
        status = syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, NULL,
                                "the grant arrived after its lease had run out");
    } else if (status == SYNCGUARD_OK) {
        if (op->fence > SYNCGUARD_FENCE_WARN)
            warn_of_fence(backend, op->key, op->key_length);
    } else if (status < 0 && op->maybe_granted) {
        undo(backend, op);
    }
    if (status < 0)
        sg_error_key(backend, err, op->key, op->key_length);
    return status;
}

syncguard_status syncguard_acquire(syncguard_backend *backend, const char *key, int64_t ttl_ms,
                                   const syncguard_call *call, syncguard_grant *grant,
                                   syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    char normal[SYNCGUARD_KEY_SIZE];
    syncguard_acquire_op op = {.key = normal, .ttl_ms = ttl_ms};

    syncguard_error_clear(err);
    if (backend == NULL || grant == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend or grant is NULL");
    memset(grant, 0, sizeof *grant);
    syncguard_status status = sg_key_read(backend, key, normal, &op.key_length, err);
    if (status == SYNCGUARD_OK)
        status = sg_ttl_check(ttl_ms, err);
    if (status == SYNCGUARD_OK)
        status = sg_limits_read(backend, call, &op.limits, err);
    if (status == SYNCGUARD_OK)
        status = sg_acquire_once(backend, &op, grant->lock_id, err);
    if (status == SYNCGUARD_OK) {
        grant->expires_at_ms = op.expires_at_ms;
        (void)syncguard_fence_format(op.fence, grant->fence, NULL); /* was found to fit */
    } else {
        memset(grant, 0, sizeof *grant);
    }
    return status;
}

/* ---- release, extend, is_locked ----------------------------------------------------------------
 */

syncguard_status sg_release_once(syncguard_backend *backend, syncguard_release_op *op,
                                 const char *key, size_t key_length, syncguard_error *err)
{
    syncguard_status status = begin(backend, &op->limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = settled(backend->ops->release(backend, op, err), err);
    if (status == SYNCGUARD_OK) {
        if (key == NULL) {
            key = op->key;
            key_length = op->key_length;
        }
        if (key_length > 0)
            sg_room_freed(backend->core->room, key, key_length, backend->core->watch_lasts);
    }
    return status;
}

syncguard_status syncguard_release(syncguard_backend *backend, const char *lock_id,
                                   const syncguard_call *call, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_release_op op = {.lock_id = lock_id};

    syncguard_error_clear(err);
    if (backend == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend is NULL");
    syncguard_status status = check_id(lock_id, err);
    if (status == SYNCGUARD_OK)
        status = sg_limits_read(backend, call, &op.limits, err);
    if (status == SYNCGUARD_OK)
        status = sg_release_once(backend, &op, NULL, 0, err);
    return status;
}

syncguard_status syncguard_extend(syncguard_backend *backend, const char *lock_id, int64_t ttl_ms,
                                  const syncguard_call *call, int64_t *expires_at_ms,
                                  syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_extend_op op = {.lock_id = lock_id, .ttl_ms = ttl_ms};

    syncguard_error_clear(err);
    if (expires_at_ms != NULL)
        *expires_at_ms = 0;
    if (backend == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend is NULL");
    syncguard_status status = check_id(lock_id, err);
    if (status == SYNCGUARD_OK)
        status = sg_ttl_check(ttl_ms, err);
    if (status == SYNCGUARD_OK)
        status = sg_limits_read(backend, call, &op.limits, err);
    if (status == SYNCGUARD_OK)
        status = begin(backend, &op.limits, err);
    if (status == SYNCGUARD_OK) {
        op.first_sent_ns = syncguard_clock_ns();
        status = settled(backend->ops->extend(backend, &op, err), err);
    }
    if (status == SYNCGUARD_OK && expires_at_ms != NULL)
        *expires_at_ms = op.expires_at_ms;
    return status;
}

syncguard_status syncguard_is_locked(syncguard_backend *backend, const char *key,
                                     const syncguard_call *call, bool *locked, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    char normal[SYNCGUARD_KEY_SIZE];
    syncguard_is_locked_op op = {.key = normal};

    syncguard_error_clear(err);
    if (backend == NULL || locked == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend or locked is NULL");
    *locked = false;
    syncguard_status status = sg_key_read(backend, key, normal, &op.key_length, err);
    if (status == SYNCGUARD_OK)
        status = sg_limits_read(backend, call, &op.limits, err);
    if (status == SYNCGUARD_OK)
        status = begin(backend, &op.limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = settled(backend->ops->is_locked(backend, &op, err), err);
    if (status != SYNCGUARD_OK) {
        sg_error_key(backend, err, normal, op.key_length);
        return status;
    }
    *locked = op.locked;
    if (backend->core->options.cleanup_in_is_locked && !op.locked && op.dead_lock_id[0] != '\0' &&
        op.dead_for_ms > SYNCGUARD_CLEANUP_GUARD_MS && backend->ops->cleanup != NULL)
        sg_background_cleanup(&backend->core->background, &op);
    return SYNCGUARD_OK;
}

/* ---- for diagnostics.c ------------------------------------------------------------------------
 */

syncguard_status sg_lookup(syncguard_backend *backend, const char *key, const char *lock_id,
                           const syncguard_call *call, syncguard_record *record,
                           syncguard_error *err)
{
    char normal[SYNCGUARD_KEY_SIZE];
    syncguard_lookup_op op = {.lock_id = lock_id};
    syncguard_status status;

    if (backend == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend is NULL");
    if (lock_id != NULL) {
        status = check_id(lock_id, err);
    } else {
        status = sg_key_read(backend, key, normal, &op.key_length, err);
        op.key = normal;
    }
    if (status == SYNCGUARD_OK)
        status = sg_limits_read(backend, call, &op.limits, err);
    if (status == SYNCGUARD_OK)
        status = begin(backend, &op.limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = settled(backend->ops->lookup(backend, &op, err), err);
    if (status == SYNCGUARD_OK)
        *record = op.record;
    else if (status < SYNCGUARD_OK && op.key != NULL)
        sg_error_key(backend, err, op.key, op.key_length);
    return status;
}

syncguard_status sg_list(syncguard_backend *backend, const syncguard_call *call,
                         syncguard_record_fn fn, void *context, syncguard_error *err)
{
    syncguard_limits limits;
    syncguard_status status = sg_limits_read(backend, call, &limits, err);
    if (status == SYNCGUARD_OK)
        status = begin(backend, &limits, err);
    if (status == SYNCGUARD_OK)
        status = settled(backend->ops->list(backend, &limits, fn, context, err), err);
    return status;
}

syncguard_status syncguard_examine(syncguard_backend *backend, const syncguard_call *call,
                                   syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_limits limits;

    syncguard_error_clear(err);
    if (backend == NULL || fn == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "backend or fn is NULL");
    syncguard_status status = sg_limits_read(backend, call, &limits, err);
    if (status == SYNCGUARD_OK)
        status = begin(backend, &limits, err);
    if (status == SYNCGUARD_OK && backend->ops->examine != NULL)
        status = settled(backend->ops->examine(backend, &limits, fn, context, err), err);
    return status;
}
