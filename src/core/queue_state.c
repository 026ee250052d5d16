/* See queue_state.h. */
#include "queue_state.h"

#include <string.h>

#include "syncguard/sys/alloc.h"
#include "util/check.h"
#include "util/event.h"

/* ---- mutex and threads ---- */

void sg_queue_lock(syncguard_queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
}

void sg_queue_unlock(syncguard_queue *queue)
{
    sg_worker *woken = queue->woken;
    queue->woken = NULL;
    pthread_mutex_unlock(&queue->mutex);
    while (woken != NULL) { /* it lives until the queue is closed; next_woken stays until unpark */
        sg_worker *next = woken->next_woken;
        syncguard_parker_unpark(&woken->parker);
        woken = next;
    }
}

static void queue_keeper_wake(syncguard_queue *queue, int64_t until_ns)
{
    if (until_ns < queue->keeper_until_ns) {
        queue->keeper_until_ns = until_ns;
        syncguard_parker_unpark(&queue->keeper.parker);
    }
}

static void queue_worker_wake(syncguard_queue *queue)
{
    sg_worker *worker = queue->idle;
    if (worker == NULL) {
        queue->start_worker(queue);
        if (queue->worker_count == 0)
            queue_keeper_wake(queue, 0);
        return;
    }
    queue->idle = worker->next_idle;
    worker->idle = false;
    worker->next_woken = queue->woken;
    queue->woken = worker;
}

/* ---- timers ---- */

static void queue_timer_stop(sg_request *request)
{
    if (request->timer.index != SG_HEAP_OUTSIDE)
        sg_heap_remove(&request->queue->timers, &request->timer);
}

void sg_request_set_timer(sg_request *request, int64_t timer_ns)
{
    syncguard_queue *queue = request->queue;
    queue_timer_stop(request);
    if (timer_ns == SYNCGUARD_NO_DEADLINE)
        return;
    request->timer.due_ns = timer_ns;
    sg_heap_push(&queue->timers, &request->timer);
    queue_keeper_wake(queue, timer_ns);
}

/* ---- requests ---- */

static void queue_id_insert(sg_request *request)
{
    syncguard_queue *queue = request->queue;
    request->id = ++queue->last_id;
    sg_request **bucket = &queue->by_id[request->id % SG_QUEUE_BUCKETS];
    request->next_by_id = *bucket;
    *bucket = request;
}

static void queue_id_remove(const sg_request *request)
{
    sg_request **link = &request->queue->by_id[request->id % SG_QUEUE_BUCKETS];
    while (*link != request)
        link = &(*link)->next_by_id;
    *link = request->next_by_id;
}

bool sg_queue_add(syncguard_queue *queue, sg_request *request)
{
    if (!sg_heap_reserve(&queue->timers, queue->count + 1))
        return false;
    request->queue = queue;
    request->timer.index = SG_HEAP_OUTSIDE;
    queue->count++;
    queue_id_insert(request);
    return true;
}

void sg_queue_rename(sg_request *request)
{
    queue_id_remove(request);
    queue_id_insert(request);
}

sg_request *sg_queue_find(const syncguard_queue *queue, syncguard_request id)
{
    sg_request *request = queue->by_id[id % SG_QUEUE_BUCKETS];
    while (request != NULL && request->id != id)
        request = request->next_by_id;
    return request;
}

void sg_queue_free_if_over(sg_request *request)
{
    if (request->job != SG_JOB_NONE || request->listed || !request->taken || request->held)
        return;
    queue_id_remove(request);
    request->queue->count--;
    syncguard_free(request->error);
    syncguard_free(request);
}

void sg_request_set_job(sg_request *request, sg_job job)
{
    syncguard_queue *queue = request->queue;
    if (request->job == SG_JOB_READY)
        syncguard_links_remove(&queue->ready, &request->ready);
    if (request->job == SG_JOB_RUNNING && --queue->running == 0 && queue->closing)
        pthread_cond_broadcast(&queue->changed);
    if (job == SG_JOB_RUNNING)
        queue->running++;
    if (job == SG_JOB_READY)
        syncguard_links_append(&queue->ready, &request->ready);
    request->worker = NULL;
    request->shared = false;
    request->job = (uint8_t)job;
    queue_timer_stop(request);
}

void sg_request_make_ready(sg_request *request, int64_t timer_ns)
{
    sg_request_set_job(request, SG_JOB_READY);
    sg_request_set_timer(request, timer_ns);
    queue_worker_wake(request->queue);
}

/* ---- completions ---- */

void sg_request_list(sg_request *request)
{
    syncguard_queue *queue = request->queue;
    request->listed = true;
    if (queue->done.first == NULL)
        sg_event_set(queue->fds);
    syncguard_links_append(&queue->done, &request->done);
}

void sg_request_unlist(sg_request *request)
{
    syncguard_queue *queue = request->queue;
    request->listed = false;
    SG_CHECK(syncguard_links_check(&queue->done));
    syncguard_links_remove(&queue->done, &request->done);
    if (queue->done.first == NULL)
        sg_event_reset(queue->fds);
}
