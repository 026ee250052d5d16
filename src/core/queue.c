/*
 * The completion queue: the public calls. The threads of queue_threads.c perform the requests that
 * these calls start (queue_requests.c).
 *
 * In a forked child a queue is memory that another process was using: the calls read only its
 * process id, and close frees only what no thread of the parent was using.
 */
#include "syncguard/queue.h"

#include <string.h>
#include <unistd.h>

#include "core.h"
#include "lock_state.h"
#include "operations.h"
#include "queue_requests.h"
#include "queue_threads.h"
#include "util/event.h"

#define MAX_THREADS 64

static bool queue_is_forked(const syncguard_queue *queue)
{
    return queue->pid != getpid();
}

static syncguard_status queue_refuse(const char *what, syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "%s", what);
}

static syncguard_status queue_check(const syncguard_queue *queue, syncguard_error *err)
{
    syncguard_error_clear(err);
    if (queue == NULL)
        return queue_refuse("queue is NULL", err);
    return queue_is_forked(queue) ? queue_refuse("the queue belongs to the parent process", err)
                                  : SYNCGUARD_OK;
}

/* ---- opening ---- */

void syncguard_queue_options_init(syncguard_queue_options *options, size_t size)
{
    const syncguard_queue_options defaults = SYNCGUARD_QUEUE_OPTIONS_INIT;
    syncguard_struct_init(options, size, &defaults, sizeof defaults);
}

/* Creates the queue without its thread and without a reference to the backend. */
static syncguard_status queue_create(syncguard_backend *backend, int max_threads,
                                     syncguard_queue **out, syncguard_error *err)
{
    syncguard_queue *queue = syncguard_calloc(1, sizeof *queue);
    if (queue == NULL)
        return syncguard_fail_memory(err);
    queue->backend = backend;
    queue->pid = getpid();
    queue->max_workers = max_threads;
    if (pthread_mutex_init(&queue->mutex, NULL) != 0)
        goto no_mutex;
    if (pthread_cond_init(&queue->changed, NULL) != 0)
        goto no_condition;
    if (!sg_event_open(queue->fds)) {
        syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "no file descriptor is left");
        pthread_cond_destroy(&queue->changed);
        pthread_mutex_destroy(&queue->mutex);
        syncguard_free(queue);
        return SYNCGUARD_E_RATE_LIMITED;
    }
    *out = queue;
    return SYNCGUARD_OK;
no_condition:
    pthread_mutex_destroy(&queue->mutex);
no_mutex:
    syncguard_free(queue);
    return syncguard_fail_memory(err);
}

static void queue_free(syncguard_queue *queue)
{
    syncguard_backend *backend = queue->backend;
    sg_event_close(queue->fds, (int)queue->pid);
    if (!queue_is_forked(queue)) {
        pthread_cond_destroy(&queue->changed);
        pthread_mutex_destroy(&queue->mutex);
    }
    sg_heap_free(&queue->timers);
    syncguard_free(queue);
    sg_backend_unref(backend);
}

syncguard_status syncguard_queue_open(syncguard_backend *backend,
                                      const syncguard_queue_options *options, syncguard_queue **out,
                                      syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (out != NULL)
        *out = NULL;
    if (backend == NULL || out == NULL)
        return queue_refuse("backend or out is NULL", err);
    syncguard_queue_options known = SYNCGUARD_QUEUE_OPTIONS_INIT;
    syncguard_status status = syncguard_struct_read(
        options, &known, sizeof known, SYNCGUARD_SIZE_UP_TO(syncguard_queue_options, max_threads),
        "queue options", err);
    if (status != SYNCGUARD_OK)
        return status;
    if (known.max_threads < 1 || known.max_threads > MAX_THREADS)
        return queue_refuse("max_threads must be 1 to 64", err);
    status = sg_backend_enter(backend, err);
    syncguard_queue *queue = NULL;
    if (status == SYNCGUARD_OK)
        status = queue_create(backend, known.max_threads, &queue, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_backend_ref(backend);
    status = sg_queue_threads_start(queue, err);
    if (status == SYNCGUARD_OK)
        *out = queue;
    else
        queue_free(queue);
    return status;
}

int syncguard_queue_fd(const syncguard_queue *queue)
{
    return queue == NULL || queue_is_forked(queue) ? -1 : queue->fds[0];
}

/* ---- starting ---- */

/* Caller holds the mutex; the request cannot complete yet. */
static void queue_request_identify(sg_request *request, void *context, syncguard_request *id)
{
    request->context = context;
    if (id != NULL)
        *id = request->id;
}

static syncguard_status queue_acquire_prepare(sg_request *request, syncguard_backend *backend,
                                              const char *key, const syncguard_lock_options *given,
                                              syncguard_error *err)
{
    syncguard_lock_options options;
    sg_acquire *c = &request->acquire;
    syncguard_status status = sg_acquire_begin(c, backend, key, given, true, &options, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (options.abort_object != NULL || options.on_lost != NULL || options.on_wait != NULL) {
        sg_acquire_forget(c);
        return queue_refuse(
            "abort_object, on_lost and on_wait must be NULL: a queue has cancel and LOST", err);
    }
    c->waiting.wake = sg_request_wake;
    c->lock->request = request;
    c->lock->on_end = sg_request_lock_ended;
    if (options.auto_extend) {
        c->lock->on_lost = sg_request_lost;
        c->lock->on_lost_context = request;
    }
    request->kind = SYNCGUARD_COMPLETION_ACQUIRE;
    request->must_try = true;
    return SYNCGUARD_OK;
}

syncguard_status syncguard_lock_acquire_async(syncguard_queue *queue, const char *key,
                                              const syncguard_lock_options *options, void *context,
                                              syncguard_request *request, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error own;
    err = err != NULL ? err : &own;
    syncguard_status status = queue_check(queue, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_request *made = syncguard_calloc(1, sizeof *made);
    if (made == NULL)
        return syncguard_fail_memory(err);
    status = queue_acquire_prepare(made, queue->backend, key, options, err);
    if (status != SYNCGUARD_OK) {
        syncguard_free(made);
        return status;
    }
    sg_queue_lock(queue);
    if (!sg_queue_add(queue, made)) {
        sg_queue_unlock(queue);
        sg_acquire_forget(&made->acquire);
        syncguard_free(made);
        return syncguard_fail_memory(err);
    }
    queue_request_identify(made, context, request);
    sg_request_begin_acquire(made, made->acquire.started_ns);
    sg_queue_unlock(queue);
    return SYNCGUARD_OK;
}

/* Checks the arguments of a request on a lock. */
static syncguard_status queue_check_lock(const syncguard_queue *queue, const syncguard_lock *lock,
                                         const syncguard_call *call, syncguard_limits *limits,
                                         syncguard_error *err)
{
    syncguard_status status = queue_check(queue, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (lock == NULL || lock->backend != queue->backend)
        return queue_refuse("lock is NULL, or of another backend", err);
    if (lock->pid != getpid())
        return queue_refuse("the lock belongs to the parent process", err);
    status = sg_limits_read(lock->backend, call, limits, err);
    if (status == SYNCGUARD_OK && limits->abort_object != NULL)
        return queue_refuse("abort_object of the call must be NULL: a queue has cancel", err);
    return status;
}

/* Returns the request that belongs to a lock, and creates it if the lock was acquired by a blocking
 * call. NULL: the lock belongs to another queue, is being released, or there is no memory. */
static sg_request *queue_request_of_lock(syncguard_queue *queue, syncguard_lock *lock,
                                         syncguard_error *err)
{
    pthread_mutex_t *guard = &lock->backend->core->heartbeat.mutex;
    pthread_mutex_lock(guard);
    sg_request *granted = lock->request;
    if (granted == NULL) {
        granted = syncguard_calloc(1, sizeof *granted);
        sg_queue_lock(queue);
        if (granted == NULL || !sg_queue_add(queue, granted)) {
            syncguard_free(granted);
            granted = NULL;
            syncguard_fail_memory(err);
        } else {
            granted->lock = lock;
            granted->taken = granted->held = true;
            lock->request = granted;
            lock->on_end = sg_request_lock_ended;
        }
        sg_queue_unlock(queue);
    } else if (granted->queue != queue || granted->releasing) {
        granted = NULL;
        queue_refuse("the lock is of another queue, or is being released", err);
    }
    pthread_mutex_unlock(guard);
    return granted;
}

syncguard_status syncguard_lock_release_async(syncguard_queue *queue, syncguard_lock *lock,
                                              const syncguard_call *call, void *context,
                                              syncguard_request *request, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error own;
    syncguard_limits limits;
    err = err != NULL ? err : &own;
    syncguard_status status = queue_check_lock(queue, lock, call, &limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_request *granted = queue_request_of_lock(queue, lock, err);
    if (granted == NULL)
        return err->code;
    sg_queue_lock(queue);
    if (granted->listed) /* LOST */
        sg_request_unlist(granted);
    sg_queue_rename(granted);
    granted->kind = SYNCGUARD_COMPLETION_RELEASE;
    granted->taken = granted->held = granted->cancelled = false;
    granted->releasing = true;
    granted->deadline_ns = limits.deadline_ns;
    queue_request_identify(granted, context, request);
    sg_request_set_job(granted, SG_JOB_BEHIND);
    sg_request_set_timer(granted, limits.deadline_ns);
    sg_request_begin_next(granted);
    sg_queue_unlock(queue);
    return SYNCGUARD_OK;
}

static void queue_extend_append(sg_request *granted, sg_request *extend)
{
    sg_request **link = &granted->next_extend;
    while (*link != NULL)
        link = &(*link)->next_extend;
    *link = extend;
    extend->granted_by = granted;
}

syncguard_status syncguard_lock_extend_async(syncguard_queue *queue, syncguard_lock *lock,
                                             int64_t ttl_ms, const syncguard_call *call,
                                             void *context, syncguard_request *request,
                                             syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error own;
    syncguard_limits limits;
    err = err != NULL ? err : &own;
    syncguard_status status = queue_check_lock(queue, lock, call, &limits, err);
    if (status == SYNCGUARD_OK)
        status = sg_ttl_check(ttl_ms, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_request *granted = queue_request_of_lock(queue, lock, err);
    if (granted == NULL)
        return err->code;
    sg_request *made = syncguard_calloc(1, sizeof *made);
    sg_queue_lock(queue);
    if (made == NULL || !sg_queue_add(queue, made)) {
        sg_queue_unlock(queue);
        syncguard_free(made);
        return syncguard_fail_memory(err);
    }
    made->kind = SYNCGUARD_COMPLETION_EXTEND;
    made->lock = lock;
    made->deadline_ns = limits.deadline_ns;
    made->extend.ttl_ms = ttl_ms;
    queue_request_identify(made, context, request);
    queue_extend_append(granted, made);
    sg_request_set_job(made, SG_JOB_BEHIND);
    sg_request_set_timer(made, limits.deadline_ns);
    sg_request_begin_next(granted);
    sg_queue_unlock(queue);
    return SYNCGUARD_OK;
}

bool syncguard_queue_cancel(syncguard_queue *queue, syncguard_request request)
{
    SYNCGUARD_NO_CANCEL;
    if (queue == NULL || queue_is_forked(queue))
        return false;
    sg_queue_lock(queue);
    sg_request *found = sg_queue_find(queue, request);
    bool cancelled = found != NULL && sg_request_cancel(found);
    sg_queue_unlock(queue);
    return cancelled;
}

/* ---- completions ---- */

static void queue_extend_unlink(sg_request *request)
{
    if (request->granted_by == NULL)
        return;
    sg_request **link = &request->granted_by->next_extend;
    while (*link != request)
        link = &(*link)->next_extend;
    *link = request->next_extend;
}

static void completion_fill(syncguard_completion *completion, const sg_request *request)
{
    *completion = (syncguard_completion){.kind = (syncguard_completion_kind)request->kind,
                                         .status = request->status,
                                         .request = request->id,
                                         .context = request->context};
    if (request->kind == SYNCGUARD_COMPLETION_LOST)
        completion->lost = (syncguard_lost_reason)request->lost;
    if (request->kind == SYNCGUARD_COMPLETION_EXTEND && request->status == SYNCGUARD_OK)
        completion->expires_at_ms = request->extend.expires_at_ms;
    if (request->kind != SYNCGUARD_COMPLETION_RELEASE && !request->give_back &&
        (request->granted_by == NULL || !request->granted_by->releasing))
        completion->lock = request->lock;
    if (request->status >= SYNCGUARD_OK)
        return;
    if (request->error != NULL && request->error->code == request->status)
        completion->error = *request->error;
    else
        syncguard_fail(&completion->error, request->status, NULL, "%s",
                       syncguard_status_text(request->status));
}

bool syncguard_queue_next(syncguard_queue *queue, syncguard_completion *completion)
{
    SYNCGUARD_NO_CANCEL;
    if (queue == NULL || completion == NULL || queue_is_forked(queue))
        return false;
    sg_queue_lock(queue);
    sg_request *first = sg_queue_first_done(queue);
    if (first != NULL) {
        sg_request_unlist(first);
        completion_fill(completion, first);
        first->taken = true;
        if (first->kind == SYNCGUARD_COMPLETION_ACQUIRE && completion->lock != NULL)
            first->held = true;
        if (first->kind == SYNCGUARD_COMPLETION_EXTEND)
            queue_extend_unlink(first);
        if (first->held)
            sg_request_tell_loss(first);
        sg_queue_free_if_over(first);
    }
    sg_queue_unlock(queue);
    return first != NULL;
}

/* ---- closing ---- */

/* Returns any request, or NULL. */
static sg_request *queue_request_any(const syncguard_queue *queue, size_t *bucket)
{
    while (*bucket < SG_QUEUE_BUCKETS && queue->by_id[*bucket] == NULL)
        (*bucket)++;
    return *bucket < SG_QUEUE_BUCKETS ? queue->by_id[*bucket] : NULL;
}

/* No new request begins, and those in flight end soon. */
static void queue_cancel_all(syncguard_queue *queue)
{
    queue->closing = true;
    for (size_t i = 0; i < SG_QUEUE_BUCKETS; i++) {
        for (sg_request *request = queue->by_id[i]; request != NULL;
             request = request->next_by_id) {
            if (request->job == SG_JOB_RUNNING)
                (void)sg_request_cancel(request);
            else if (request->job != SG_JOB_NONE)
                sg_request_set_job(request, SG_JOB_CLOSING);
        }
    }
    while (queue->running > 0)
        pthread_cond_wait(&queue->changed, &queue->mutex);
}

/* For a lock that the caller keeps: its loss is not reported any more. */
static void queue_detach_lock(sg_request *request, pthread_mutex_t *guard)
{
    sg_heartbeat *heartbeat = &request->queue->backend->core->heartbeat;
    pthread_mutex_lock(guard);
    sg_queue_lock(request->queue);
    syncguard_lock *lock = request->lock;
    sg_queue_unlock(request->queue);
    if (lock != NULL) {
        lock->request = NULL;
        if (lock->on_lost == sg_request_lost)
            sg_lost_locks_detach(&heartbeat->lost, lock);
    }
    pthread_mutex_unlock(guard);
}

/* No request is RUNNING, and only threads that dispose of its lock still know the request. */
static void queue_request_end(sg_request *request)
{
    syncguard_queue *queue = request->queue;
    syncguard_error err;
    sg_queue_lock(queue);
    bool held = request->held;
    syncguard_lock *lock = request->lock;
    sg_queue_unlock(queue);
    if (request->kind == SYNCGUARD_COMPLETION_EXTEND) {
        queue_extend_unlink(request);
    } else if (request->kind == SYNCGUARD_COMPLETION_ACQUIRE && !request->finished) {
        syncguard_lock *none = NULL;
        request->acquire.status = SYNCGUARD_E_ABORTED;
        (void)sg_acquire_finish(&request->acquire, &none, &err);
    } else if (held) {
        queue_detach_lock(request, &queue->backend->core->heartbeat.mutex);
    } else if (lock != NULL) {
        if (request->kind == SYNCGUARD_COMPLETION_ACQUIRE)
            lock->keep_until_ns = 0; /* the caller never held it */
        sg_lock_give_back(lock);
    }
    sg_queue_lock(queue);
    if (request->kind != SYNCGUARD_COMPLETION_EXTEND)
        sg_request_cut_extends(request);
    if (request->listed)
        sg_request_unlist(request);
    request->held = false;
    request->taken = true;
    sg_request_set_job(request, SG_JOB_NONE);
    sg_queue_free_if_over(request);
    sg_queue_unlock(queue);
}

/* In a forked child: requests that a thread of the parent was running are not touched. */
static void queue_free_child_copies(syncguard_queue *queue)
{
    for (size_t i = 0; i < SG_QUEUE_BUCKETS; i++) {
        while (queue->by_id[i] != NULL) {
            sg_request *request = queue->by_id[i];
            queue->by_id[i] = request->next_by_id;
            if (request->job == SG_JOB_RUNNING)
                continue;
            if (request->kind == SYNCGUARD_COMPLETION_ACQUIRE && !request->finished)
                sg_acquire_forget(&request->acquire);
            else if (request->lock != NULL && !request->held &&
                     request->kind != SYNCGUARD_COMPLETION_EXTEND)
                sg_lock_dispose_from(request->lock, "scope");
            syncguard_free(request->error);
            syncguard_free(request);
        }
    }
    sg_queue_threads_free(queue);
}

void syncguard_queue_close(syncguard_queue *queue)
{
    SYNCGUARD_NO_CANCEL;
    if (queue == NULL)
        return;
    if (queue_is_forked(queue)) {
        queue_free_child_copies(queue);
        queue_free(queue);
        return;
    }
    sg_queue_lock(queue);
    queue_cancel_all(queue);
    sg_queue_unlock(queue);
    size_t bucket = 0;
    /* Before the threads end: a waiter that has left the wait queue is not woken any more. */
    for (;;) {
        sg_queue_lock(queue);
        sg_request *request = queue_request_any(queue, &bucket);
        sg_queue_unlock(queue);
        if (request == NULL)
            break;
        queue_request_end(request);
    }
    sg_queue_threads_stop(queue);
    queue_free(queue);
}
