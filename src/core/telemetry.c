/*
 * The telemetry decorator: one more backend, with an inner one.
 *
 * Every operation passes its op struct through unchanged, so deadlines, reasons and
 * wake-ups are those of the inner backend. The result is counted and, if there is a
 * callback, queued as an event. The two backends share one wait queue, since the
 * store's notifications arrive at the inner backend while the lock helper waits on
 * the outer one. For the same reason they share the counters for everything that is
 * not an operation (counters.h).
 *
 * Events: acquire, release, extend (each item of a batch), is_locked and lookup
 * give one each, whether the caller, the heartbeat or a waiter asked for it. An undo
 * counts as a release. list, cleanup and examine give none. An acquire has a lock id
 * only if it was granted.
 *
 * No mutex here; see metrics.c and event_queue.c.
 */
#include "core/telemetry.h"

#include <stddef.h>

#include "core/core.h"
#include "syncguard/sys/options.h"

/* Without a dispose timeout, closing delivers queued events for this long. */
#define DEFAULT_DRAIN_MS 1000

typedef struct telemetry {
    syncguard_backend base;
    char *labels; /* distinguish the series of this handle from those of others */
    syncguard_backend *inner;
    sg_event_queue *queue; /* NULL: counters only */
    sg_metrics metrics;
} telemetry;

static syncguard_backend *tele_inner(syncguard_backend *backend)
{
    return ((telemetry *)backend)->inner;
}

/* Adds the outcome to the fields that the caller has set (type, names, reason), and passes the
 * observation on. */
static void tele_report(syncguard_backend *backend, sg_observation *seen, syncguard_status status,
                        int64_t started_ns)
{
    telemetry *self = (telemetry *)backend;
    seen->duration_ns = syncguard_clock_ns() - started_ns;
    seen->error = status < 0 ? status : SYNCGUARD_OK;
    if (status < 0)
        seen->ok = false;
    if (seen->ok || status < 0)
        seen->reason = SYNCGUARD_REASON_NONE;
    sg_metrics_count(&self->metrics, seen);
    if (self->queue != NULL)
        sg_event_queue_push(self->queue, seen);
}

static void tele_report_acquire(syncguard_backend *backend, const syncguard_acquire_op *op,
                                syncguard_status status, int64_t started)
{
    sg_observation seen = {.type = SYNCGUARD_EVENT_ACQUIRE,
                           .ok = status == SYNCGUARD_OK,
                           .reason = SYNCGUARD_REASON_LOCKED,
                           .key = op->key,
                           .key_length = op->key_length,
                           .lock_id = status == SYNCGUARD_OK ? op->lock_id : NULL};
    tele_report(backend, &seen, status, started);
}

static syncguard_status tele_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                                     syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = tele_inner(backend);
    syncguard_status status = inner->ops->acquire(inner, op, err);
    tele_report_acquire(backend, op, status, started);
    return status;
}

static void tele_report_release(syncguard_backend *backend, const syncguard_release_op *op,
                                syncguard_status status, int64_t started)
{
    sg_observation seen = {.type = SYNCGUARD_EVENT_RELEASE,
                           .ok = status == SYNCGUARD_OK,
                           .reason = op->reason,
                           .lock_id = op->lock_id};
    tele_report(backend, &seen, status, started);
}

static syncguard_status tele_release(syncguard_backend *backend, syncguard_release_op *op,
                                     syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = tele_inner(backend);
    syncguard_status status = inner->ops->release(inner, op, err);
    tele_report_release(backend, op, status, started);
    return status;
}

/* Called only if the inner backend has it: see does_many in core.h. */
static void tele_do_many(syncguard_backend *backend, syncguard_many_op *items, size_t count,
                         const syncguard_limits *limits)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = tele_inner(backend);
    inner->ops->do_many(inner, items, count, limits);
    for (size_t i = 0; i < count; i++) {
        if (items[i].acquire != NULL)
            tele_report_acquire(backend, items[i].acquire, items[i].status, started);
        else
            tele_report_release(backend, items[i].release, items[i].status, started);
    }
}

static void tele_report_extend(syncguard_backend *backend, const syncguard_extend_op *op,
                               syncguard_status status, int64_t started)
{
    sg_observation seen = {.type = SYNCGUARD_EVENT_EXTEND,
                           .ok = status == SYNCGUARD_OK,
                           .reason = op->reason,
                           .lock_id = op->lock_id};
    tele_report(backend, &seen, status, started);
}

static syncguard_status tele_extend(syncguard_backend *backend, syncguard_extend_op *op,
                                    syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = tele_inner(backend);
    syncguard_status status = inner->ops->extend(inner, op, err);
    tele_report_extend(backend, op, status, started);
    return status;
}

/* For an inner backend without batches: one by one, as the core would. */
static syncguard_status tele_extend_each(syncguard_backend *backend, syncguard_extend_op *items,
                                         size_t count, const syncguard_limits *limits,
                                         syncguard_error *err)
{
    syncguard_status first_failure = SYNCGUARD_OK;
    bool decided = false;
    for (size_t i = 0; i < count; i++) {
        items[i].limits = *limits;
        items[i].status = tele_extend(backend, &items[i], err);
        if (items[i].status >= 0)
            decided = true;
        else if (first_failure == SYNCGUARD_OK)
            first_failure = items[i].status;
    }
    return decided ? SYNCGUARD_OK : first_failure;
}

static syncguard_status tele_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                         size_t count, const syncguard_limits *limits,
                                         syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = tele_inner(backend);
    if (inner->ops->extend_many == NULL)
        return tele_extend_each(backend, items, count, limits, err);
    syncguard_status status = inner->ops->extend_many(inner, items, count, limits, err);
    for (size_t i = 0; i < count; i++)
        tele_report_extend(backend, &items[i], status < 0 ? status : items[i].status, started);
    return status;
}

static syncguard_status tele_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                       syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = tele_inner(backend);
    syncguard_status status = inner->ops->is_locked(inner, op, err);
    sg_observation seen = {.type = SYNCGUARD_EVENT_IS_LOCKED,
                           .ok = status == SYNCGUARD_OK && op->locked,
                           .reason = SYNCGUARD_REASON_NONE,
                           .key = op->key,
                           .key_length = op->key_length};
    tele_report(backend, &seen, status, started);
    return status;
}

static syncguard_status tele_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                    syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = tele_inner(backend);
    syncguard_status status = inner->ops->lookup(inner, op, err);
    sg_observation seen = {.type = SYNCGUARD_EVENT_LOOKUP,
                           .ok = status == SYNCGUARD_OK,
                           .reason = SYNCGUARD_REASON_NONE,
                           .key = op->key,
                           .key_length = op->key != NULL ? op->key_length : 0,
                           .lock_id = op->lock_id};
    tele_report(backend, &seen, status, started);
    return status;
}

static syncguard_status tele_list(syncguard_backend *backend, const syncguard_limits *limits,
                                  syncguard_record_fn fn, void *context, syncguard_error *err)
{
    syncguard_backend *inner = tele_inner(backend);
    return inner->ops->list(inner, limits, fn, context, err);
}

static syncguard_status tele_list_expired(syncguard_backend *backend,
                                          const syncguard_limits *limits, syncguard_record_fn fn,
                                          void *context, syncguard_error *err)
{
    syncguard_backend *inner = tele_inner(backend);
    if (inner->ops->list_expired == NULL)
        return SYNCGUARD_OK;
    return inner->ops->list_expired(inner, limits, fn, context, err);
}

static void tele_report_undo(syncguard_backend *backend, const syncguard_undo_op *op,
                             syncguard_status status, int64_t started)
{
    sg_observation seen = {.type = SYNCGUARD_EVENT_RELEASE,
                           .ok = status == SYNCGUARD_OK,
                           .reason = SYNCGUARD_REASON_NOT_FOUND,
                           .key = op->key,
                           .key_length = op->key_length,
                           .lock_id = op->lock_id};
    tele_report(backend, &seen, status, started);
}

static syncguard_status tele_undo(syncguard_backend *backend, const char *key, size_t key_length,
                                  const char *lock_id, int64_t until_ns,
                                  const syncguard_limits *limits, syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = tele_inner(backend);
    syncguard_undo_op op = {key, key_length, lock_id, until_ns, SYNCGUARD_OK};
    syncguard_status status =
        inner->ops->undo(inner, key, key_length, lock_id, until_ns, limits, err);
    tele_report_undo(backend, &op, status, started);
    return status;
}

/* Called only if the inner backend has it: see undoes_many in core.h. */
static syncguard_status tele_undo_many(syncguard_backend *backend, syncguard_undo_op *items,
                                       size_t count, const syncguard_limits *limits,
                                       syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = tele_inner(backend);
    syncguard_status status = inner->ops->undo_many(inner, items, count, limits, err);
    for (size_t i = 0; i < count; i++)
        tele_report_undo(backend, &items[i], status < 0 ? status : items[i].status, started);
    return status;
}

/* A key that the store refuses gives no event. */
static syncguard_status tele_check_key(const syncguard_backend *backend, const char *key,
                                       size_t key_length, syncguard_error *err)
{
    const syncguard_backend *inner = ((const telemetry *)(const void *)backend)->inner;
    return inner->ops->check_key != NULL ? inner->ops->check_key(inner, key, key_length, err)
                                         : SYNCGUARD_OK;
}

static syncguard_status tele_cleanup(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                     syncguard_error *err)
{
    syncguard_backend *inner = tele_inner(backend);
    return inner->ops->cleanup != NULL ? inner->ops->cleanup(inner, op, err) : SYNCGUARD_OK;
}

static void tele_unwatch(syncguard_backend *backend, const char *key, size_t key_length)
{
    syncguard_backend *inner = tele_inner(backend);
    if (inner->ops->unwatch != NULL)
        inner->ops->unwatch(inner, key, key_length);
}

static syncguard_status tele_diagnose(syncguard_backend *backend, const syncguard_limits *limits,
                                      syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    syncguard_backend *inner = tele_inner(backend);
    return inner->ops->diagnose != NULL ? inner->ops->diagnose(inner, limits, fn, context, err)
                                        : SYNCGUARD_OK;
}

/* Called only if the inner backend has it: see checks_connections in core.h. */
static bool tele_connection_ended(syncguard_backend *backend)
{
    syncguard_backend *inner = tele_inner(backend);
    return inner->ops->connection_ended(inner);
}

/* The inner handle must be reset first, with the wait queue that both share. The child counts from
 * zero: the parent reports what it did itself. */
static syncguard_status tele_after_fork(syncguard_backend *backend, syncguard_error *err)
{
    telemetry *self = (telemetry *)backend;
    syncguard_status status = sg_backend_enter(self->inner, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_heartbeat_attach(&backend->core->heartbeat, &self->inner->core->heartbeat);
    sg_metrics_reset(&self->metrics);
    return self->queue != NULL ? sg_event_queue_after_fork(self->queue, err) : SYNCGUARD_OK;
}

static void tele_destroy(syncguard_backend *backend)
{
    telemetry *self = (telemetry *)backend;
    int64_t drain_ms = syncguard_backend_options(backend)->dispose_timeout_ms;
    syncguard_backend *inner = self->inner;
    sg_event_queue_close(self->queue, drain_ms > 0 ? drain_ms : DEFAULT_DRAIN_MS);
    syncguard_backend_fini(backend);
    syncguard_free(self->labels);
    syncguard_free(self);
    syncguard_close(inner);
}

static const syncguard_backend_ops telemetry_ops = {
    .check_key = tele_check_key,
    .acquire = tele_acquire,
    .release = tele_release,
    .extend = tele_extend,
    .extend_many = tele_extend_many,
    .is_locked = tele_is_locked,
    .lookup = tele_lookup,
    .list = tele_list,
    .list_expired = tele_list_expired,
    .undo = tele_undo,
    .undo_many = tele_undo_many,
    .cleanup = tele_cleanup,
    .unwatch = tele_unwatch,
    .diagnose = tele_diagnose,
    .after_fork = tele_after_fork,
    .destroy = tele_destroy,
    .do_many = tele_do_many,
    .connection_ended = tele_connection_ended,
};

void syncguard_telemetry_options_init(syncguard_telemetry_options *options, size_t size)
{
    static const syncguard_telemetry_options defaults = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    syncguard_struct_init(options, size, &defaults, sizeof defaults);
}

syncguard_status syncguard_telemetry_wrap(syncguard_backend *inner,
                                          const syncguard_telemetry_options *options,
                                          syncguard_backend **out, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (out != NULL)
        *out = NULL;
    if (inner == NULL || out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "telemetry needs a backend and a place for the result");
    syncguard_telemetry_options known = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    syncguard_status status =
        syncguard_struct_read(options, &known, sizeof known,
                              SYNCGUARD_SIZE_UP_TO(syncguard_telemetry_options, queue_length),
                              "the telemetry options", err);
    if (status != SYNCGUARD_OK)
        return status;
    telemetry *self = syncguard_calloc(1, sizeof *self);
    if (self == NULL)
        return syncguard_fail_memory(err);
    self->inner = inner;
    sg_metrics_reset(&self->metrics);
    status = sg_labels_make(inner->capabilities.backend, &known, &self->labels, err);
    if (status == SYNCGUARD_OK && known.on_event != NULL)
        status = sg_event_queue_open(&known, inner->core->hash_secret, &self->queue, err);
    if (status == SYNCGUARD_OK)
        status = sg_backend_init_over(&self->base, &telemetry_ops, inner, err);
    if (status != SYNCGUARD_OK) {
        sg_event_queue_close(self->queue, 0);
        syncguard_free(self->labels);
        syncguard_free(self);
        return status;
    }
    atomic_store(&self->base.core->counters->on, true);
    *out = &self->base;
    return SYNCGUARD_OK;
}

uint64_t syncguard_telemetry_dropped(const syncguard_backend *backend)
{
    const telemetry *self = (const telemetry *)backend;
    if (backend == NULL || backend->ops != &telemetry_ops || self->queue == NULL)
        return 0;
    return sg_event_queue_dropped(self->queue);
}

size_t syncguard_telemetry_prometheus(const syncguard_backend *backend, char *buffer, size_t size)
{
    SYNCGUARD_NO_CANCEL;
    const telemetry *self = (const telemetry *)backend;
    if (buffer != NULL && size > 0)
        buffer[0] = '\0';
    if (backend == NULL || backend->ops != &telemetry_ops)
        return 0;
    sg_metrics_view view = {
        .metrics = &self->metrics,
        .counters = backend->core->counters,
        .waiting = atomic_load(&backend->core->wait_queue->waiters),
        .dropped = syncguard_telemetry_dropped(backend),
        .labels = self->labels,
    };
    return sg_metrics_text(&view, buffer, size);
}
