/*
 * See queue_threads.h.
 *
 * Workers run the requests that need the store, one request or one batch at a time. A worker is
 * started when there is work and no worker is idle, and stays until the queue is closed. Each has
 * an abort object from the start, so that its request can be ended even if the process has no
 * descriptor left. The timekeeper does no I/O: a request completes at its deadline even if a hung
 * store blocks all workers. Only if no worker can be started does it do their work, too.
 */
#include "queue_threads.h"

#include "abort.h"
#include "queue_batch.h"
#include "queue_requests.h"
#include "syncguard/sys/alloc.h"
#include "util/thread.h"

/* Caller holds the mutex. */
static void queue_worker_run_first(sg_worker *worker)
{
    sg_abort_reset(worker->abort_object); /* it may have ended the request before */
    if (!sg_batch_run(worker))
        sg_request_run(worker, sg_queue_first_ready(worker->queue));
}

/* Caller holds the mutex, which is released meanwhile. */
static void queue_worker_sleep(sg_worker *worker, int64_t until_ns)
{
    syncguard_limits limits = {until_ns, NULL};
    sg_queue_unlock(worker->queue);
    (void)syncguard_parker_park(&worker->parker, &limits, NULL);
    sg_queue_lock(worker->queue);
}

static void *queue_worker_run(void *argument)
{
    sg_worker *worker = argument;
    syncguard_queue *queue = worker->queue;
    sg_queue_lock(queue);
    while (!queue->stopping) {
        if (queue->ready.first != NULL) {
            queue_worker_run_first(worker);
            continue;
        }
        if (!worker->idle) {
            worker->idle = true;
            worker->next_idle = queue->idle;
            queue->idle = worker;
        }
        queue_worker_sleep(worker, SYNCGUARD_NO_DEADLINE);
    }
    sg_queue_unlock(queue);
    return NULL;
}

static void *queue_keeper_run(void *argument)
{
    sg_worker *keeper = argument;
    syncguard_queue *queue = keeper->queue;
    sg_queue_lock(queue);
    while (!queue->stopping) {
        sg_heap_entry *first = sg_heap_first(&queue->timers);
        queue->keeper_until_ns = 0; /* awake: it need not be woken */
        if (first != NULL && first->due_ns <= syncguard_clock_ns()) {
            sg_request_expire(SG_HEAP_OWNER(first, sg_request, timer));
        } else if (queue->worker_count == 0 && queue->ready.first != NULL) {
            queue_worker_run_first(keeper);
        } else {
            queue->keeper_until_ns = first != NULL ? first->due_ns : SYNCGUARD_NO_DEADLINE;
            queue_worker_sleep(keeper, queue->keeper_until_ns);
        }
    }
    sg_queue_unlock(queue);
    return NULL;
}

static void queue_thread_free(sg_worker *worker)
{
    syncguard_parker_close(&worker->parker);
    syncguard_abort_free(worker->abort_object);
}

static syncguard_status queue_thread_start(sg_worker *worker, syncguard_queue *queue,
                                           void *(*run)(void *), syncguard_error *err)
{
    worker->queue = queue;
    syncguard_status status = syncguard_parker_open_light(&worker->parker, NULL, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = syncguard_abort_create(&worker->abort_object, err);
    if (status == SYNCGUARD_OK)
        status = sg_thread_start(&worker->thread, run, worker, "serve a queue", err);
    if (status != SYNCGUARD_OK) {
        queue_thread_free(worker);
        worker->abort_object = NULL;
    }
    return status;
}

static void queue_worker_start(syncguard_queue *queue)
{
    if (queue->worker_count >= queue->max_workers)
        return;
    sg_worker *worker = syncguard_calloc(1, sizeof *worker);
    if (worker == NULL)
        return;
    if (queue_thread_start(worker, queue, queue_worker_run, NULL) != SYNCGUARD_OK) {
        syncguard_free(worker);
        return;
    }
    worker->next = queue->workers;
    queue->workers = worker;
    queue->worker_count++;
}

syncguard_status sg_queue_threads_start(syncguard_queue *queue, syncguard_error *err)
{
    queue->start_worker = queue_worker_start;
    return queue_thread_start(&queue->keeper, queue, queue_keeper_run, err);
}

void sg_queue_threads_stop(syncguard_queue *queue)
{
    sg_queue_lock(queue);
    queue->stopping = true;
    sg_queue_unlock(queue);
    syncguard_parker_unpark(&queue->keeper.parker);
    pthread_join(queue->keeper.thread, NULL);
    for (sg_worker *worker = queue->workers; worker != NULL; worker = worker->next) {
        syncguard_parker_unpark(&worker->parker);
        pthread_join(worker->thread, NULL);
    }
    sg_queue_threads_free(queue);
}

void sg_queue_threads_free(syncguard_queue *queue)
{
    queue_thread_free(&queue->keeper);
    while (queue->workers != NULL) {
        sg_worker *worker = queue->workers;
        queue->workers = worker->next;
        queue_thread_free(worker);
        syncguard_free(worker);
    }
}
