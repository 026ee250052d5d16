/*
 * See queue_requests.h.
 *
 * Interleavings that matter here:
 *   - wake while a thread is between sg_acquire_next and WAITING: sets `woken`, and the thread goes
 *     on.
 *   - cancel while a try is in flight: triggers the worker's abort object; a grant is given back
 *     nevertheless.
 *   - cancel of one request of a batch in flight: it completes at once, and its result is undone.
 *   - cancel between the outcome and the taking of the completion: giving the lock back becomes a
 *     job.
 *   - the deadline of a request for which no worker was free: the timekeeper completes it.
 *   - loss before the grant was handed out, or during an extend: kept in `lost` until it can be
 *     reported.
 *   - a lock that the blocking call disposes of: sg_request_lock_ended clears every pointer to it.
 */
#include "queue_requests.h"

#include "core.h"
#include "lock_state.h"
#include "operations.h"

/* ---- completing: callers hold the mutex ---- */

static syncguard_error *queue_error_copy(syncguard_status status, const syncguard_error *err)
{
    syncguard_error *kept = status < SYNCGUARD_OK ? syncguard_calloc(1, sizeof *kept) : NULL;
    if (kept != NULL)
        *kept = *err;
    return kept;
}

/* The job is over. If the queue is being closed, the rest is left to the closing thread. */
static void queue_request_complete(sg_request *request, syncguard_status status)
{
    if (!request->told)
        request->status = status;
    if (request->queue->closing) {
        sg_request_set_job(request, SG_JOB_CLOSING);
        return;
    }
    sg_request_set_job(request, SG_JOB_NONE);
    if (request->told)
        sg_queue_free_if_over(request);
    else
        sg_request_list(request);
}

static bool queue_extend_is_running(const sg_request *granted)
{
    const sg_request *extend = granted->next_extend;
    while (extend != NULL && extend->job != SG_JOB_RUNNING)
        extend = extend->next_extend;
    return extend != NULL;
}

void sg_request_tell_loss(sg_request *granted)
{
    if (granted->lost == SYNCGUARD_LOST_NO || granted->lost_told || !granted->held ||
        granted->queue->closing)
        return;
    /* The clock shows other losses, perhaps because this extend hangs. */
    if (granted->lost == SYNCGUARD_LOST_ABSENT && queue_extend_is_running(granted))
        return;
    granted->lost_told = true;
    granted->kind = SYNCGUARD_COMPLETION_LOST;
    granted->status = SYNCGUARD_ABSENT;
    sg_request_list(granted);
}

void sg_request_begin_next(sg_request *granted)
{
    sg_request *next = granted->next_extend;
    while (next != NULL && next->job == SG_JOB_NONE)
        next = next->next_extend;
    if (next == NULL)
        next = granted;
    if (next->job != SG_JOB_BEHIND)
        return;
    if (next->give_back) /* an abandoned release */
        sg_request_list(next);
    sg_request_make_ready(next, next->give_back ? SYNCGUARD_NO_DEADLINE : next->deadline_ns);
}

static void queue_extend_complete(sg_request *request, syncguard_status status)
{
    sg_request *granted = request->granted_by;
    queue_request_complete(request, status);
    if (granted != NULL) {
        sg_request_tell_loss(granted);
        sg_request_begin_next(granted);
    }
}

/* ---- acquire ---- */

void sg_request_begin_acquire(sg_request *request, int64_t since_ns)
{
    int64_t end =
        syncguard_clock_after(since_ns, request->queue->backend->core->options.timeout_ms);
    int64_t deadline_ns = request->acquire.limits.deadline_ns;
    request->since_ns = since_ns;
    sg_request_make_ready(request, end < deadline_ns ? end : deadline_ns);
}

static void queue_acquire_make_ready(sg_request *request)
{
    sg_request_begin_acquire(request, syncguard_clock_ns());
}

void sg_request_wake(sg_waiting *waiting)
{
    char *acquire = (char *)waiting - offsetof(sg_acquire, waiting);
    sg_request *request = (sg_request *)(void *)(acquire - offsetof(sg_request, acquire));
    syncguard_queue *queue = request->queue;
    sg_queue_lock(queue);
    request->woken = true;
    if (request->job == SG_JOB_WAITING)
        queue_acquire_make_ready(request);
    sg_queue_unlock(queue);
}

/* Caller does not hold the mutex, but does afterwards; the request is RUNNING. */
static void queue_acquire_finish(sg_request *request, syncguard_error *err)
{
    syncguard_queue *queue = request->queue;
    syncguard_lock *lock = NULL;
    syncguard_status status = sg_acquire_finish(&request->acquire, &lock, err);
    syncguard_error *error = queue_error_copy(status, err);
    sg_queue_lock(queue);
    request->finished = true;
    request->error = error;
    if (request->cancelled && lock != NULL) {
        sg_queue_unlock(queue);
        lock->keep_until_ns = 0; /* the caller never held it */
        sg_lock_give_back(lock);
        sg_queue_lock(queue);
        lock = NULL;
    }
    request->lock = lock;
    queue_request_complete(request, request->cancelled ? SYNCGUARD_E_ABORTED : status);
}

static void queue_acquire_set_aborted(sg_request *request, syncguard_error *err)
{
    request->acquire.status =
        syncguard_fail(err, SYNCGUARD_E_ABORTED, NULL, "the request was cancelled");
}

/* Pauses that are longer than this end together at a full second: thousands of resting waiters then
 * cause one wake-up of the threads per second, not one each. */
#define LONG_PAUSE_NS (10000 * SYNCGUARD_NS_PER_MS)
#define FULL_NS (1000 * SYNCGUARD_NS_PER_MS)

static int64_t queue_acquire_timer_ns(const sg_acquire *c, int64_t until_ns)
{
    if (until_ns == c->pause_end_ns && until_ns - c->pause_begun_ns > LONG_PAUSE_NS &&
        until_ns < SYNCGUARD_NO_DEADLINE - FULL_NS)
        until_ns += FULL_NS - until_ns % FULL_NS;
    return until_ns < c->limits.deadline_ns ? until_ns : c->limits.deadline_ns;
}

/* After a step that must wait, or that needs a worker while this thread is none. True if the
 * request no longer belongs to this thread; then the mutex is held, otherwise not. */
static bool queue_acquire_defer(sg_request *request, sg_acquire_step *step, int64_t *until_ns,
                                syncguard_error *err)
{
    sg_acquire *c = &request->acquire;
    syncguard_queue *queue = request->queue;
    sg_queue_lock(queue);
    if (request->cancelled) {
        sg_queue_unlock(queue);
        queue_acquire_set_aborted(request, err);
        *step = SG_ACQUIRE_END;
        return false;
    }
    if (*step == SG_ACQUIRE_WAIT && request->woken) {
        request->woken = false;
        sg_queue_unlock(queue);
        *step = sg_acquire_next(c, until_ns, err);
        return false;
    }
    c->limits.abort_object = NULL;
    if (*step == SG_ACQUIRE_WAIT) {
        sg_request_set_job(request, SG_JOB_WAITING);
        sg_request_set_timer(request, queue_acquire_timer_ns(c, *until_ns));
    } else {
        request->must_try = true;
        queue_acquire_make_ready(request);
    }
    return true;
}

/* Takes the next steps of an acquire, as far as this thread can: if worker is NULL it does no I/O.
 * The request is RUNNING. Caller does not hold the mutex, but does afterwards. */
static void queue_acquire_take_steps(sg_request *request, const sg_worker *worker,
                                     sg_acquire_step step, int64_t since_ns, int64_t until_ns,
                                     syncguard_error *err)
{
    sg_acquire *c = &request->acquire;
    while (step != SG_ACQUIRE_END) {
        if (step == SG_ACQUIRE_TRY && worker != NULL) {
            sg_acquire_try(c, since_ns, err);
            since_ns = syncguard_clock_ns();
            step = sg_acquire_next(c, &until_ns, err);
        } else if (step == SG_ACQUIRE_PAUSE) {
            sg_acquire_pause(c);
            step = sg_acquire_next(c, &until_ns, err);
        } else if (queue_acquire_defer(request, &step, &until_ns, err)) {
            return;
        }
    }
    queue_acquire_finish(request, err);
}

/* Caller holds the mutex, which is released meanwhile; the request is RUNNING. */
static void queue_acquire_run(sg_request *request, const sg_worker *worker)
{
    sg_acquire *c = &request->acquire;
    bool must_try = request->must_try;
    bool missed = request->missed;
    int64_t since_ns = request->since_ns;
    request->must_try = request->missed = request->woken = false;
    sg_queue_unlock(request->queue);
    syncguard_error err;
    syncguard_error_clear(&err);
    syncguard_acquire_op op = {.remaining_ms = -1};
    c->op = &op;
    c->limits.abort_object = worker != NULL ? worker->abort_object : NULL;
    int64_t until_ns = 0;
    sg_acquire_step step = SG_ACQUIRE_TRY;
    if (!must_try)
        step = sg_acquire_next(c, &until_ns, &err);
    if (missed && step == SG_ACQUIRE_TRY) {
        sg_acquire_try_missed(c, &err);
        step = sg_acquire_next(c, &until_ns, &err);
    }
    queue_acquire_take_steps(request, worker, step, since_ns, until_ns, &err);
}

void sg_request_tried(sg_request *request, syncguard_error *err)
{
    int64_t until_ns = 0;
    sg_acquire_step step = sg_acquire_next(&request->acquire, &until_ns, err);
    queue_acquire_take_steps(request, NULL, step, 0, until_ns, err);
}

/* The deadline of the acquire passed, or the request was cancelled, while it was waiting. */
static void queue_acquire_end_wait(sg_request *request, bool cancelled)
{
    syncguard_error err;
    sg_request_set_job(request, SG_JOB_RUNNING);
    sg_queue_unlock(request->queue);
    syncguard_error_clear(&err);
    if (cancelled)
        queue_acquire_set_aborted(request, &err);
    else
        request->acquire.status = syncguard_limits_check(&request->acquire.limits, &err);
    queue_acquire_finish(request, &err);
}

/* ---- extend and release ---- */

static void queue_extend_run(const sg_worker *worker, sg_request *request)
{
    syncguard_queue *queue = request->queue;
    syncguard_lock *lock = request->lock;
    syncguard_limits limits = {request->deadline_ns, worker->abort_object};
    syncguard_status status = SYNCGUARD_ABSENT;
    syncguard_error err;
    int64_t expires_at_ms = 0;
    if (lock != NULL) {
        sg_queue_unlock(queue);
        syncguard_error_clear(&err);
        status = sg_lock_extend(lock, request->extend.ttl_ms, &limits, &expires_at_ms, &err);
        sg_queue_lock(queue);
    }
    request->error = queue_error_copy(status, &err);
    request->extend.expires_at_ms = expires_at_ms;
    queue_extend_complete(request, status);
}

void sg_request_released(sg_request *request, syncguard_status status, const syncguard_error *err)
{
    sg_lock_give_back(request->lock);
    sg_queue_lock(request->queue);
    request->lock = NULL;
    request->error = queue_error_copy(status, err);
    queue_request_complete(request, status);
}

/* Releases the lock and frees the handle. */
static void queue_release_run(const sg_worker *worker, sg_request *request)
{
    syncguard_queue *queue = request->queue;
    syncguard_lock *lock = request->lock;
    syncguard_limits limits = {request->deadline_ns, worker->abort_object};
    syncguard_error err;
    sg_queue_unlock(queue);
    syncguard_error_clear(&err);
    syncguard_status status = sg_lock_release(lock, &limits, &err);
    sg_request_released(request, status, &err);
}

/* The request has completed already. */
static void queue_give_back_lock(sg_request *request)
{
    syncguard_queue *queue = request->queue;
    syncguard_lock *lock = request->lock;
    sg_queue_unlock(queue);
    sg_lock_give_back(lock);
    sg_queue_lock(queue);
    request->lock = NULL;
    sg_request_set_job(request, queue->closing ? SG_JOB_CLOSING : SG_JOB_NONE);
    if (!queue->closing)
        sg_queue_free_if_over(request);
}

/* The extends of a lock complete before its release: there is nothing left to extend. */
static void queue_extends_end(const sg_request *granted)
{
    for (sg_request *extend = granted->next_extend; extend != NULL; extend = extend->next_extend) {
        if (extend->job == SG_JOB_RUNNING && extend->worker != NULL)
            syncguard_abort_trigger(extend->worker->abort_object);
        else if (extend->job != SG_JOB_NONE && extend->job != SG_JOB_RUNNING)
            queue_request_complete(extend, SYNCGUARD_ABSENT);
    }
}

/* Completes a release that has not begun, after the extends that it ends: the background thread
 * performs it. A worker frees the handle, because that may have to wait for a renewal. */
static void queue_release_abandon(sg_request *request, syncguard_status status)
{
    syncguard_queue *queue = request->queue;
    sg_request_set_job(request, SG_JOB_RUNNING);
    sg_queue_unlock(queue);
    sg_lock_abandon(request->lock);
    sg_queue_lock(queue);
    request->give_back = true;
    request->status = status;
    sg_request_set_job(request, queue->closing ? SG_JOB_CLOSING : SG_JOB_BEHIND);
    if (queue->closing)
        return;
    queue_extends_end(request);
    sg_request_begin_next(request);
}

/* ---- run, expire, cancel ---- */

void sg_request_run(sg_worker *worker, sg_request *request)
{
    sg_request_set_job(request, SG_JOB_RUNNING);
    request->worker = worker;
    if (request->give_back)
        queue_give_back_lock(request);
    else if (request->kind == SYNCGUARD_COMPLETION_ACQUIRE)
        queue_acquire_run(request, worker);
    else if (request->kind == SYNCGUARD_COMPLETION_EXTEND)
        queue_extend_run(worker, request);
    else
        queue_release_run(worker, request);
}

void sg_request_expire(sg_request *request)
{
    bool waiting = request->job == SG_JOB_WAITING;
    if (request->kind == SYNCGUARD_COMPLETION_EXTEND) {
        queue_extend_complete(request, SYNCGUARD_E_NETWORK_TIMEOUT);
    } else if (request->kind == SYNCGUARD_COMPLETION_RELEASE) {
        queue_release_abandon(request, SYNCGUARD_E_NETWORK_TIMEOUT);
    } else if (waiting && syncguard_clock_ns() >= request->acquire.limits.deadline_ns) {
        queue_acquire_end_wait(request, false);
    } else {
        request->missed = !waiting;
        sg_request_set_job(request, SG_JOB_RUNNING);
        queue_acquire_run(request, NULL);
    }
}

/* For an outcome that was not taken: a grant is given back, and a failure is not reported. */
static void queue_acquire_take_back(sg_request *request)
{
    request->status = SYNCGUARD_E_ABORTED;
    if (request->lock == NULL)
        return;
    request->give_back = true;
    request->lock->keep_until_ns = 0;
    sg_request_make_ready(request, SYNCGUARD_NO_DEADLINE);
}

/* The batch of the request goes on, because it has other requests. */
static void queue_request_tell_cancelled(sg_request *request)
{
    request->told = true;
    request->status = SYNCGUARD_E_ABORTED;
    sg_request_list(request);
}

bool sg_request_cancel(sg_request *request)
{
    bool acquires = request->kind == SYNCGUARD_COMPLETION_ACQUIRE;
    bool closing = request->queue->closing;
    if (closing && request->job == SG_JOB_RUNNING && request->worker != NULL)
        syncguard_abort_trigger(request->worker->abort_object);
    if (request->taken)
        return false;
    if (request->listed) {
        if (acquires && !request->give_back)
            queue_acquire_take_back(request);
        return true;
    }
    request->cancelled = true;
    if (request->job == SG_JOB_RUNNING && request->shared && !closing) {
        queue_request_tell_cancelled(request);
    } else if (request->job == SG_JOB_RUNNING) {
        if (request->worker != NULL)
            syncguard_abort_trigger(request->worker->abort_object);
    } else if (acquires) {
        queue_acquire_end_wait(request, true);
    } else if (request->kind == SYNCGUARD_COMPLETION_EXTEND) {
        queue_extend_complete(request, SYNCGUARD_E_ABORTED);
    } else if (!request->give_back) {
        queue_release_abandon(request, SYNCGUARD_E_ABORTED);
    }
    return true;
}

/* ---- locks ---- */

void sg_request_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    sg_request *granted = context;
    syncguard_queue *queue = granted->queue;
    (void)lock;
    sg_queue_lock(queue);
    granted->lost = (uint8_t)reason;
    sg_request_tell_loss(granted);
    sg_queue_unlock(queue);
}

void sg_request_cut_extends(sg_request *granted)
{
    while (granted->next_extend != NULL) {
        sg_request *extend = granted->next_extend;
        granted->next_extend = extend->next_extend;
        extend->next_extend = extend->granted_by = NULL;
        extend->lock = NULL;
    }
}

void sg_request_lock_ended(syncguard_lock *lock)
{
    pthread_mutex_t *guard = &lock->backend->core->heartbeat.mutex;
    pthread_mutex_lock(guard);
    sg_request *granted = lock->request;
    lock->request = NULL;
    if (granted != NULL) {
        syncguard_queue *queue = granted->queue;
        sg_queue_lock(queue);
        sg_request_cut_extends(granted);
        if (granted->listed && granted->kind == SYNCGUARD_COMPLETION_LOST)
            sg_request_unlist(granted);
        granted->lock = NULL;
        granted->held = false;
        if (!queue->closing)
            sg_queue_free_if_over(granted);
        sg_queue_unlock(queue);
    }
    pthread_mutex_unlock(guard);
}
