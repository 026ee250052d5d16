/*
 * See queue_batch.h.
 *
 * First tries of acquires, and releases, need only one operation each. If the store can do many of
 * them in one round trip, a worker takes all that are READY, so that a few workers can keep all
 * requests in flight. A request that needs more (a try that arms, the tries of several slots, an
 * extend, a release that must wait for a renewal) runs singly.
 *
 * One deadline ends the batch, so the requests of a batch have nearly the same deadline. A request
 * that is cancelled meanwhile completes at once; its batch goes on, and a grant is given back.
 */
#include "queue_batch.h"

#include "abort.h"
#include "core.h"
#include "lock_state.h"
#include "queue_requests.h"

/* How much later than its own deadline a request of a batch may end. */
#define SPREAD_NS (20 * SYNCGUARD_NS_PER_MS)
/* How many entries of the ready list are searched for requests. */
#define LOOK_AT 64

typedef struct entry {
    sg_request *request;
    union {
        syncguard_acquire_op acquire;
        syncguard_release_op release;
    };
} entry;

typedef struct batch {
    sg_worker *worker;
    syncguard_limits limits;
    size_t taken;
    size_t begun;
    size_t alone;
    sg_request *requests[SYNCGUARD_MANY_MAX]; /* those taken; later: those to run singly */
    entry entries[SYNCGUARD_MANY_MAX];        /* of the requests that were begun */
    syncguard_many_op items[SYNCGUARD_MANY_MAX];
} batch;

/* ---- collecting: callers hold the mutex ---- */

static bool batch_request_is_acquire(const sg_request *request)
{
    return request->kind == SYNCGUARD_COMPLETION_ACQUIRE;
}

static bool batch_accepts(const sg_request *request)
{
    if (request->give_back)
        return false;
    if (batch_request_is_acquire(request))
        return request->must_try && !request->missed && !request->acquire.joined &&
               request->acquire.slots == 0;
    return request->kind == SYNCGUARD_COMPLETION_RELEASE &&
           atomic_load(&request->lock->keep_until_ns) == 0;
}

static int64_t batch_request_deadline(const sg_request *request)
{
    if (!batch_request_is_acquire(request))
        return request->deadline_ns;
    int64_t end =
        syncguard_clock_after(request->since_ns, request->queue->backend->core->options.timeout_ms);
    int64_t deadline_ns = request->acquire.limits.deadline_ns;
    return end < deadline_ns ? end : deadline_ns;
}

/* Begins with the first READY request, so that no request is overtaken for ever. */
static void batch_collect(batch *b)
{
    sg_request *request = sg_queue_first_ready(b->worker->queue);
    int64_t first_ns = batch_request_deadline(request);
    if (!batch_accepts(request))
        return;
    b->limits.deadline_ns = first_ns;
    for (int i = 0; i < LOOK_AT && request != NULL && b->taken < SYNCGUARD_MANY_MAX; i++) {
        int64_t deadline_ns = batch_request_deadline(request);
        if (batch_accepts(request) && deadline_ns >= first_ns - SPREAD_NS / 2 &&
            deadline_ns - SPREAD_NS / 2 <= first_ns) {
            b->requests[b->taken++] = request;
            if (deadline_ns > b->limits.deadline_ns)
                b->limits.deadline_ns = deadline_ns;
        }
        request = SYNCGUARD_LINKED(request->ready.next, sg_request, ready);
    }
}

static void batch_take(batch *b)
{
    for (size_t i = 0; i < b->taken; i++) {
        sg_request *request = b->requests[i];
        sg_request_set_job(request, SG_JOB_RUNNING);
        request->worker = b->worker;
        request->shared = true;
        request->must_try = request->woken = false;
    }
}

/* ---- running: callers do not hold the mutex; the requests are RUNNING ---- */

static bool batch_begin_acquire(const batch *b, entry *e, syncguard_error *err)
{
    sg_acquire *c = &e->request->acquire;
    e->acquire = (syncguard_acquire_op){.remaining_ms = -1};
    c->op = &e->acquire;
    c->limits.abort_object = b->limits.abort_object;
    if (sg_acquire_try_begin(c, e->request->since_ns, err))
        return true;
    sg_request_tried(e->request, err);
    sg_queue_unlock(b->worker->queue);
    return false;
}

static bool batch_begin_release(batch *b, entry *e)
{
    syncguard_limits limits = {e->request->deadline_ns, b->limits.abort_object};
    if (sg_lock_release_begin(e->request->lock, &limits, &e->release))
        return true;
    b->requests[b->alone++] = e->request;
    return false;
}

/* After this a request that did not begin may belong to another thread, or may be freed. */
static void batch_begin(batch *b)
{
    for (size_t i = 0; i < b->taken; i++) {
        entry *e = &b->entries[b->begun];
        syncguard_many_op *item = &b->items[b->begun];
        bool acquires = batch_request_is_acquire(b->requests[i]);
        e->request = b->requests[i];
        item->acquire = acquires ? &e->acquire : NULL;
        item->release = acquires ? NULL : &e->release;
        syncguard_error_clear(&item->error);
        if (acquires ? batch_begin_acquire(b, e, &item->error) : batch_begin_release(b, e))
            b->begun++;
    }
}

static void batch_end(batch *b)
{
    for (size_t i = 0; i < b->begun; i++) {
        sg_request *request = b->entries[i].request;
        syncguard_many_op *item = &b->items[i];
        if (item->acquire != NULL) {
            sg_acquire_try_end(&request->acquire, item->status, &item->error);
            sg_request_tried(request, &item->error);
        } else {
            item->status =
                sg_lock_release_end(request->lock, item->release, item->status, &item->error);
            sg_request_released(request, item->status, &item->error);
        }
        sg_queue_unlock(b->worker->queue);
    }
}

/* Caller holds the mutex, which is released meanwhile. Closing the queue ends all requests, a
 * cancel only one. */
static void batch_run_singly(const batch *b)
{
    for (size_t i = 0; i < b->alone; i++) {
        if (!b->worker->queue->closing)
            sg_abort_reset(b->worker->abort_object);
        sg_request_run(b->worker, b->requests[i]);
    }
}

bool sg_batch_run(sg_worker *worker)
{
    syncguard_backend *backend = worker->queue->backend;
    batch b;
    if (!backend->core->does_many)
        return false;
    b.worker = worker;
    b.limits.abort_object = worker->abort_object;
    b.taken = b.begun = b.alone = 0;
    batch_collect(&b);
    if (b.taken < 2)
        return false;
    batch_take(&b);
    sg_queue_unlock(worker->queue);
    batch_begin(&b);
    if (b.begun > 0)
        backend->ops->do_many(backend, b.items, b.begun, &b.limits);
    batch_end(&b);
    sg_queue_lock(worker->queue);
    batch_run_singly(&b);
    return true;
}
