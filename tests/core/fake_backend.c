#include "fake_backend.h"

#include <stdlib.h>
#include <string.h>

#include "test_support.h"

static syncguard_status fake_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                                     syncguard_error *err)
{
    fake_backend *p = (fake_backend *)backend;
    atomic_fetch_add(&p->calls, 1);
    atomic_fetch_add(&p->acquires, 1);
    if (op->watch)
        atomic_fetch_add(&p->watched, 1);
    op->fence = atomic_fetch_add(&p->fence, 1) + 1;
    op->expires_at_ms = syncguard_wall_ms() + op->ttl_ms;
    return p->on_acquire != NULL ? p->on_acquire(p, op, err) : SYNCGUARD_OK;
}

static syncguard_status fake_release(syncguard_backend *backend, syncguard_release_op *op,
                                     syncguard_error *err)
{
    fake_backend *p = (fake_backend *)backend;
    atomic_fetch_add(&p->calls, 1);
    atomic_fetch_add(&p->releases, 1);
    return p->on_release != NULL ? p->on_release(p, op, err) : SYNCGUARD_OK;
}

static syncguard_status fake_extend_one(fake_backend *p, syncguard_extend_op *op,
                                        syncguard_error *err)
{
    op->expires_at_ms = syncguard_wall_ms() + op->ttl_ms;
    fake_extend_fn on_extend = atomic_load(&p->on_extend);
    return on_extend != NULL ? on_extend(p, op, err) : SYNCGUARD_OK;
}

static syncguard_status fake_extend(syncguard_backend *backend, syncguard_extend_op *op,
                                    syncguard_error *err)
{
    fake_backend *p = (fake_backend *)backend;
    atomic_fetch_add(&p->calls, 1);
    atomic_fetch_add(&p->extends, 1);
    return fake_extend_one(p, op, err);
}

static syncguard_status fake_extend_many(syncguard_backend *backend, syncguard_extend_op *items,
                                         size_t count, const syncguard_limits *limits,
                                         syncguard_error *err)
{
    fake_backend *p = (fake_backend *)backend;
    syncguard_status result = SYNCGUARD_E_NETWORK_TIMEOUT;
    atomic_fetch_add(&p->calls, 1);
    atomic_fetch_add(&p->batches, 1);
    for (size_t i = 0; i < count; i++) {
        items[i].limits = *limits;
        items[i].status = fake_extend_one(p, &items[i], err);
        if (items[i].status >= SYNCGUARD_OK || p->batch_answers)
            result = SYNCGUARD_OK;
    }
    return result;
}

static syncguard_status fake_is_locked(syncguard_backend *backend, syncguard_is_locked_op *op,
                                       syncguard_error *err)
{
    (void)err;
    atomic_fetch_add(&((fake_backend *)backend)->calls, 1);
    op->locked = true;
    return SYNCGUARD_OK;
}

static syncguard_status fake_lookup(syncguard_backend *backend, syncguard_lookup_op *op,
                                    syncguard_error *err)
{
    (void)op, (void)err;
    atomic_fetch_add(&((fake_backend *)backend)->calls, 1);
    return SYNCGUARD_ABSENT;
}

static syncguard_status fake_list(syncguard_backend *backend, const syncguard_limits *limits,
                                  syncguard_record_fn fn, void *context, syncguard_error *err)
{
    (void)limits, (void)fn, (void)context, (void)err;
    atomic_fetch_add(&((fake_backend *)backend)->calls, 1);
    return SYNCGUARD_OK;
}

static syncguard_status fake_undo(syncguard_backend *backend, const char *key, size_t key_length,
                                  const char *lock_id, int64_t until_ns,
                                  const syncguard_limits *limits, syncguard_error *err)
{
    (void)key, (void)key_length, (void)lock_id, (void)until_ns, (void)limits, (void)err;
    fake_backend *p = (fake_backend *)backend;
    int call = atomic_fetch_add(&p->undos, 1) + 1;
    atomic_fetch_add(&p->calls, 1);
    return p->on_undo != NULL ? p->on_undo(p, call) : SYNCGUARD_OK;
}

static syncguard_status fake_undo_many(syncguard_backend *backend, syncguard_undo_op *items,
                                       size_t count, const syncguard_limits *limits,
                                       syncguard_error *err)
{
    fake_backend *p = (fake_backend *)backend;
    (void)limits;
    int call = atomic_fetch_add(&p->undo_batches, 1) + 1;
    atomic_fetch_add(&p->calls, 1);
    while (atomic_load(&p->stuck))
        test_sleep_ms(5);
    if ((int)count > atomic_load(&p->undo_largest))
        atomic_store(&p->undo_largest, (int)count);
    if (call == 2)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "the connection broke");
    for (size_t i = 0; i < count; i++) {
        items[i].status = i % 10 == 9 ? SYNCGUARD_E_SERVICE_UNAVAILABLE : SYNCGUARD_OK;
        if (items[i].status == SYNCGUARD_OK)
            atomic_fetch_add(&p->undos, 1);
    }
    return SYNCGUARD_OK;
}

static void fake_do_many(syncguard_backend *backend, syncguard_many_op *items, size_t count,
                         const syncguard_limits *limits)
{
    fake_backend *p = (fake_backend *)backend;
    atomic_fetch_add(&p->many_batches, 1);
    if ((int)count > atomic_load(&p->many_largest))
        atomic_store(&p->many_largest, (int)count);
    for (size_t i = 0; i < count; i++) {
        if (items[i].acquire != NULL) {
            items[i].acquire->limits = *limits;
            items[i].status = fake_acquire(backend, items[i].acquire, &items[i].error);
        } else {
            items[i].release->limits = *limits;
            items[i].status = fake_release(backend, items[i].release, &items[i].error);
        }
    }
}

static void fake_unwatch(syncguard_backend *backend, const char *key, size_t key_length)
{
    (void)key, (void)key_length;
    atomic_fetch_add(&((fake_backend *)backend)->unwatches, 1);
}

static bool fake_connection_ended(syncguard_backend *backend)
{
    fake_backend *p = (fake_backend *)backend;
    atomic_fetch_add(&p->checks, 1);
    return atomic_exchange(&p->ended, false);
}

static void fake_destroy(syncguard_backend *backend)
{
    fake_backend *p = (fake_backend *)backend;
    if (p->destroyed != NULL)
        atomic_store(p->destroyed, true);
    syncguard_backend_fini(backend);
    free(p);
}

static fake_backend *fake_open_as(const syncguard_backend_ops *ops, bool reports_releases,
                                  const syncguard_options *options)
{
    const syncguard_capabilities capabilities = {.backend = "fake",
                                                 .supports_fencing = true,
                                                 .time_authority = SYNCGUARD_TIME_SERVER,
                                                 .wakes_waiters = reports_releases,
                                                 .is_shared = reports_releases};
    const syncguard_options defaults = SYNCGUARD_OPTIONS_INIT;
    fake_backend *p = calloc(1, sizeof *p);
    if (p == NULL)
        return NULL;
    if (syncguard_backend_init(&p->base, ops, &capabilities, options != NULL ? options : &defaults,
                               NULL) != 0) {
        free(p);
        p = NULL;
    }
    return p;
}

static fake_backend *fake_open_with(const syncguard_backend_ops *ops,
                                    const syncguard_options *options)
{
    return fake_open_as(ops, ops->unwatch != NULL, options);
}

#define FAKE_BACKEND_OPS                                                                           \
    .acquire = fake_acquire, .release = fake_release, .extend = fake_extend,                       \
    .extend_many = fake_extend_many, .is_locked = fake_is_locked, .lookup = fake_lookup,           \
    .list = fake_list, .undo = fake_undo, .destroy = fake_destroy

fake_backend *fake_backend_open(const syncguard_options *options)
{
    static const syncguard_backend_ops ops = {FAKE_BACKEND_OPS, .unwatch = fake_unwatch};
    return fake_open_with(&ops, options);
}

fake_backend *fake_backend_open_batching(const syncguard_options *options)
{
    static const syncguard_backend_ops ops = {FAKE_BACKEND_OPS, .unwatch = fake_unwatch,
                                              .undo_many = fake_undo_many};
    return fake_open_with(&ops, options);
}

fake_backend *fake_backend_open_silent(const syncguard_options *options)
{
    static const syncguard_backend_ops ops = {FAKE_BACKEND_OPS};
    return fake_open_with(&ops, options);
}

fake_backend *fake_backend_open_polled(const syncguard_options *options)
{
    static const syncguard_backend_ops ops = {FAKE_BACKEND_OPS, .unwatch = fake_unwatch};
    return fake_open_as(&ops, false, options);
}

fake_backend *fake_backend_open_many(const syncguard_options *options)
{
    static const syncguard_backend_ops ops = {FAKE_BACKEND_OPS, .do_many = fake_do_many};
    return fake_open_with(&ops, options);
}

fake_backend *fake_backend_open_connected(const syncguard_options *options)
{
    static const syncguard_backend_ops ops = {FAKE_BACKEND_OPS,
                                              .connection_ended = fake_connection_ended};
    return fake_open_with(&ops, options);
}

/* ---- scripted answers ---- */

syncguard_status fake_acquire_locked(fake_backend *p, syncguard_acquire_op *op,
                                     syncguard_error *err)
{
    (void)p, (void)op, (void)err;
    return SYNCGUARD_LOCKED;
}

syncguard_status fake_acquire_unknown(fake_backend *p, syncguard_acquire_op *op,
                                      syncguard_error *err)
{
    (void)p;
    op->may_have_been_granted = true;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "gone");
}

syncguard_status fake_acquire_hangs(fake_backend *p, syncguard_acquire_op *op, syncguard_error *err)
{
    (void)p;
    return syncguard_wait_until(SYNCGUARD_NO_DEADLINE, &op->limits, err);
}

syncguard_status fake_release_hangs(fake_backend *p, syncguard_release_op *op, syncguard_error *err)
{
    (void)p;
    return syncguard_wait_until(SYNCGUARD_NO_DEADLINE, &op->limits, err);
}

syncguard_status fake_extend_absent(fake_backend *p, syncguard_extend_op *op, syncguard_error *err)
{
    (void)p, (void)op, (void)err;
    return SYNCGUARD_ABSENT;
}

syncguard_status fake_undo_late(fake_backend *p, int call)
{
    (void)p;
    return call < 3 ? SYNCGUARD_ABSENT : SYNCGUARD_OK;
}

bool wait_for_count(atomic_int *counter, int target)
{
    for (int i = 0; i < 30000 && atomic_load(counter) < target; i++)
        test_sleep_ms(1);
    return atomic_load(counter) >= target;
}
