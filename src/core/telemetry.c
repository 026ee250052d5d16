/*
 * The telemetry decorator: one more backend, with an inner one.
 *
 * Every slot passes its op struct through untouched, so deadlines, reasons and
 * wake-ups are the inner backend's; what comes back is counted and, if somebody
 * listens, queued as an event. The two share one waiting room, since the store's
 * news arrive at the inner backend while the helper waits on the outer.
 *
 * Events: acquire, release, extend (each item of a batch), is_locked and lookup
 * give one each, whoever asked: the caller, the heartbeat or a waiter. Undoing
 * is a release. list, cleanup and examine give none. A lock id takes part in an
 * acquire only when it was granted.
 *
 * No lock here; see metrics.c and event_queue.c.
 */
#include "core/telemetry.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "syncguard/sys/options.h"

/* Without a dispose timeout, closing delivers queued events for this long. */
#define DEFAULT_DRAIN_MS 1000

/* The longest backend name and handle_name, and the words around them. */
#define LABELS_SIZE (SYNCGUARD_MAX_HANDLE_NAME + 96)

/* Numbers the handles of this process that were given no name. */
static atomic_uint unnamed;

typedef struct telemetry {
    syncguard_backend base;
    char labels[LABELS_SIZE]; /* tell the series of this handle from those of others */
    syncguard_backend *inner;
    sg_event_queue *queue; /* NULL: counters only */
    sg_metrics metrics;
} telemetry;

const char *syncguard_event_type_name(syncguard_event_type type)
{
    static const char *const names[SG_EVENT_TYPES] = {"acquire", "release", "extend", "isLocked",
                                                      "lookup"};

    return (unsigned)type < SG_EVENT_TYPES ? names[type] : "unknown";
}

const char *syncguard_event_reason_name(syncguard_event_reason reason)
{
    static const char *const names[SG_EVENT_REASONS] = {"", "locked", "expired", "not-found"};

    return (unsigned)reason < SG_EVENT_REASONS ? names[reason] : "";
}

static syncguard_backend *inner_of(syncguard_backend *backend)
{
    return ((telemetry *)backend)->inner;
}

/* Completes what the caller knows (type, names, reason) with the outcome, and passes it on. */
static void report(syncguard_backend *backend, sg_observation *seen, syncguard_status status,
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

static syncguard_status tele_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                                     syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = inner_of(backend);
    syncguard_status status = inner->ops->acquire(inner, op, err);
    sg_observation seen = {.type = SYNCGUARD_EVENT_ACQUIRE,
                           .ok = status == SYNCGUARD_OK,
                           .reason = SYNCGUARD_REASON_LOCKED,
                           .key = op->key,
                           .key_length = op->key_length,
                           .lock_id = status == SYNCGUARD_OK ? op->lock_id : NULL};

    report(backend, &seen, status, started);
    return status;
}

static syncguard_status tele_release(syncguard_backend *backend, syncguard_release_op *op,
                                     syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = inner_of(backend);
    syncguard_status status = inner->ops->release(inner, op, err);
    sg_observation seen = {.type = SYNCGUARD_EVENT_RELEASE,
                           .ok = status == SYNCGUARD_OK,
                           .reason = op->reason,
                           .lock_id = op->lock_id};

    report(backend, &seen, status, started);
    return status;
}

static void report_extend(syncguard_backend *backend, const syncguard_extend_op *op,
                          syncguard_status status, int64_t started)
{
    sg_observation seen = {.type = SYNCGUARD_EVENT_EXTEND,
                           .ok = status == SYNCGUARD_OK,
                           .reason = op->reason,
                           .lock_id = op->lock_id};

    report(backend, &seen, status, started);
}

static syncguard_status tele_extend(syncguard_backend *backend, syncguard_extend_op *op,
                                    syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = inner_of(backend);
    syncguard_status status = inner->ops->extend(inner, op, err);

    report_extend(backend, op, status, started);
    return status;
}

/* For an inner backend without batches: one by one, as the core would. */
static syncguard_status extend_each(syncguard_backend *backend, syncguard_extend_op *items,
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
    syncguard_backend *inner = inner_of(backend);
    syncguard_status status;

    if (inner->ops->extend_many == NULL)
        return extend_each(backend, items, count, limits, err);
    status = inner->ops->extend_many(inner, items, count, limits, err);
    for (size_t i = 0; i < count; i++)
        report_extend(backend, &items[i], status < 0 ? status : items[i].status, started);
    return status;
}

static syncguard_status tele_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                       syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = inner_of(backend);
    syncguard_status status = inner->ops->is_locked(inner, op, err);
    sg_observation seen = {.type = SYNCGUARD_EVENT_IS_LOCKED,
                           .ok = status == SYNCGUARD_OK && op->locked,
                           .reason = SYNCGUARD_REASON_NONE,
                           .key = op->key,
                           .key_length = op->key_length};

    report(backend, &seen, status, started);
    return status;
}

static syncguard_status tele_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                    syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = inner_of(backend);
    syncguard_status status = inner->ops->lookup(inner, op, err);
    sg_observation seen = {.type = SYNCGUARD_EVENT_LOOKUP,
                           .ok = status == SYNCGUARD_OK,
                           .reason = SYNCGUARD_REASON_NONE,
                           .key = op->key,
                           .key_length = op->key != NULL ? op->key_length : 0,
                           .lock_id = op->lock_id};

    report(backend, &seen, status, started);
    return status;
}

static syncguard_status tele_list(syncguard_backend *backend, const syncguard_limits *limits,
                                  syncguard_record_fn fn, void *context, syncguard_error *err)
{
    syncguard_backend *inner = inner_of(backend);

    return inner->ops->list(inner, limits, fn, context, err);
}

static void report_undo(syncguard_backend *backend, const syncguard_undo_op *op,
                        syncguard_status status, int64_t started)
{
    sg_observation seen = {.type = SYNCGUARD_EVENT_RELEASE,
                           .ok = status == SYNCGUARD_OK,
                           .reason = SYNCGUARD_REASON_NOT_FOUND,
                           .key = op->key,
                           .key_length = op->key_length,
                           .lock_id = op->lock_id};

    report(backend, &seen, status, started);
}

static syncguard_status tele_undo(syncguard_backend *backend, const char *key, size_t key_length,
                                  const char *lock_id, int64_t until_ns,
                                  const syncguard_limits *limits, syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = inner_of(backend);
    syncguard_undo_op op = {key, key_length, lock_id, until_ns, SYNCGUARD_OK};
    syncguard_status status =
        inner->ops->undo(inner, key, key_length, lock_id, until_ns, limits, err);

    report_undo(backend, &op, status, started);
    return status;
}

/* Called only if the inner backend has it: see undoes_many in core.h. */
static syncguard_status tele_undo_many(syncguard_backend *backend, syncguard_undo_op *items,
                                       size_t count, const syncguard_limits *limits,
                                       syncguard_error *err)
{
    int64_t started = syncguard_clock_ns();
    syncguard_backend *inner = inner_of(backend);
    syncguard_status status = inner->ops->undo_many(inner, items, count, limits, err);
    for (size_t i = 0; i < count; i++)
        report_undo(backend, &items[i], status < 0 ? status : items[i].status, started);
    return status;
}

/* What cannot be asked for is no event. */
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
    syncguard_backend *inner = inner_of(backend);

    return inner->ops->cleanup != NULL ? inner->ops->cleanup(inner, op, err) : SYNCGUARD_OK;
}

static void tele_unwatch(syncguard_backend *backend, const char *key, size_t key_length)
{
    syncguard_backend *inner = inner_of(backend);

    if (inner->ops->unwatch != NULL)
        inner->ops->unwatch(inner, key, key_length);
}

static syncguard_status tele_listen(syncguard_backend *backend, syncguard_parker *parker,
                                    const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_backend *inner = inner_of(backend);

    return inner->ops->listen != NULL ? inner->ops->listen(inner, parker, limits, err)
                                      : SYNCGUARD_ABSENT;
}

static void tele_take_over(syncguard_backend *backend)
{
    syncguard_backend *inner = inner_of(backend);

    if (inner->ops->take_over != NULL)
        inner->ops->take_over(inner);
}

static syncguard_status tele_examine(syncguard_backend *backend, const syncguard_limits *limits,
                                     syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    syncguard_backend *inner = inner_of(backend);

    return inner->ops->examine != NULL ? inner->ops->examine(inner, limits, fn, context, err)
                                       : SYNCGUARD_OK;
}

/* The inner handle is made the child's own as a whole: its waiting room is the shared one. The
 * child counts from zero: what its parent did is the parent's to report. */
static syncguard_status tele_after_fork(syncguard_backend *backend, syncguard_error *err)
{
    telemetry *self = (telemetry *)backend;
    syncguard_status status = sg_backend_enter(self->inner, err);

    if (status != SYNCGUARD_OK)
        return status;
    sg_metrics_reset(&self->metrics);
    return self->queue != NULL ? sg_event_queue_after_fork(self->queue, err) : SYNCGUARD_OK;
}

static void tele_observe_wait(syncguard_backend *backend, int64_t waited_ns, int attempts)
{
    telemetry *self = (telemetry *)backend;

    sg_metrics_wait(&self->metrics, waited_ns, attempts);
    if (self->inner->ops->observe_wait != NULL)
        self->inner->ops->observe_wait(self->inner, waited_ns, attempts);
}

static void tele_destroy(syncguard_backend *backend)
{
    telemetry *self = (telemetry *)backend;
    int64_t drain_ms = syncguard_backend_options(backend)->dispose_timeout_ms;
    syncguard_backend *inner = self->inner;

    sg_event_queue_close(self->queue, drain_ms > 0 ? drain_ms : DEFAULT_DRAIN_MS);
    syncguard_backend_fini(backend);
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
    .undo = tele_undo,
    .undo_many = tele_undo_many,
    .cleanup = tele_cleanup,
    .unwatch = tele_unwatch,
    .listen = tele_listen,
    .take_over = tele_take_over,
    .examine = tele_examine,
    .after_fork = tele_after_fork,
    .observe_wait = tele_observe_wait,
    .destroy = tele_destroy,
};

void syncguard_telemetry_options_init(syncguard_telemetry_options *options, size_t size)
{
    static const syncguard_telemetry_options defaults = SYNCGUARD_TELEMETRY_OPTIONS_INIT;

    syncguard_struct_init(options, size, &defaults, sizeof defaults);
}

static syncguard_status make_labels(telemetry *self, const char *name, syncguard_error *err)
{
    const char *backend = self->inner->capabilities.backend;
    size_t length = name != NULL ? strnlen(name, SYNCGUARD_MAX_HANDLE_NAME + 1) : 1;

    if (length == 0 || length > SYNCGUARD_MAX_HANDLE_NAME)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "handle_name must have 1 to 64 bytes");
    for (size_t i = 0; name != NULL && i < length; i++) {
        if (name[i] <= ' ' || name[i] > '~' || name[i] == '"' || name[i] == '\\')
            return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                  "handle_name must be printable ASCII without blanks and quotes");
    }
    if (name != NULL)
        snprintf(self->labels, sizeof self->labels, "backend=\"%.32s\",handle=\"%s\"", backend,
                 name);
    else
        snprintf(self->labels, sizeof self->labels, "backend=\"%.32s\",handle=\"%u\"", backend,
                 atomic_fetch_add(&unnamed, 1) + 1);
    return SYNCGUARD_OK;
}

syncguard_status syncguard_telemetry_wrap(syncguard_backend *inner,
                                          const syncguard_telemetry_options *options,
                                          syncguard_backend **out, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_telemetry_options known = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    syncguard_status status;
    telemetry *self = NULL;

    syncguard_error_clear(err);
    if (out != NULL)
        *out = NULL;
    if (inner == NULL || out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "telemetry needs a backend and a place for the result");
    status = syncguard_struct_read(options, &known, sizeof known,
                                   offsetof(syncguard_telemetry_options, handle_name),
                                   "the telemetry options", err);
    if (status != SYNCGUARD_OK)
        return status;

    self = syncguard_calloc(1, sizeof *self);
    if (self == NULL)
        return syncguard_fail_memory(err);
    self->inner = inner;
    sg_metrics_reset(&self->metrics);
    status = make_labels(self, known.handle_name, err);
    if (status == SYNCGUARD_OK && known.on_event != NULL)
        status = sg_event_queue_open(&known, inner->core->hash_secret, &self->queue, err);
    if (status == SYNCGUARD_OK)
        status = sg_backend_init_over(&self->base, &telemetry_ops, inner, err);
    if (status != SYNCGUARD_OK) {
        sg_event_queue_close(self->queue, 0);
        syncguard_free(self);
        return status;
    }
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
    return sg_metrics_text(&self->metrics, self->labels, syncguard_telemetry_dropped(backend),
                           buffer, size);
}
