/* See queue_state.h. */
#include "queue_state.h"

#include <string.h>

#include "syncguard/sys/alloc.h"
#include "util/event.h"

#define NO_TIMER UINT32_MAX
#define FIRST_CAPACITY 64

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

static void queue_timer_place(const syncguard_queue *queue, size_t index, sg_request *request)
{
    queue->timers[index] = request;
    request->timer_index = (uint32_t)index;
}

static void queue_timer_sift_up(const syncguard_queue *queue, size_t index, sg_request *request)
{
    while (index > 0 && request->timer_ns < queue->timers[(index - 1) / 2]->timer_ns) {
        queue_timer_place(queue, index, queue->timers[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    queue_timer_place(queue, index, request);
}

static void queue_timer_sift_down(const syncguard_queue *queue, size_t index, sg_request *request)
{
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= queue->timer_count)
            break;
        if (child + 1 < queue->timer_count &&
            queue->timers[child + 1]->timer_ns < queue->timers[child]->timer_ns)
            child++;
        if (request->timer_ns <= queue->timers[child]->timer_ns)
            break;
        queue_timer_place(queue, index, queue->timers[child]);
        index = child;
    }
    queue_timer_place(queue, index, request);
}

static void queue_timer_stop(sg_request *request)
{
    syncguard_queue *queue = request->queue;
    size_t index = request->timer_index;
    if (index == NO_TIMER)
        return;
    request->timer_index = NO_TIMER;
    sg_request *last = queue->timers[--queue->timer_count];
    if (last == request)
        return;
    queue_timer_sift_up(queue, index, last);
    queue_timer_sift_down(queue, last->timer_index, last);
}

void sg_request_set_timer(sg_request *request, int64_t timer_ns)
{
    syncguard_queue *queue = request->queue;
    queue_timer_stop(request);
    if (timer_ns == SYNCGUARD_NO_DEADLINE)
        return;
    request->timer_ns = timer_ns;
    queue_timer_sift_up(queue, queue->timer_count++, request);
    queue_keeper_wake(queue, timer_ns);
}

static bool queue_timer_reserve(syncguard_queue *queue)
{
    size_t capacity = queue->timer_capacity > 0 ? 2 * queue->timer_capacity : FIRST_CAPACITY;
    if (queue->count < queue->timer_capacity)
        return true;
    sg_request **grown = syncguard_malloc(capacity * sizeof(sg_request *));
    sg_request **old = queue->timers;
    if (grown == NULL)
        return false;
    if (queue->timer_count > 0)
        memcpy(grown, old, queue->timer_count * sizeof(sg_request *));
    queue->timers = grown;
    queue->timer_capacity = capacity;
    /* Only now, after its pointer is gone: a child forked at any moment frees the timers that it
     * finds. */
    syncguard_free(old);
    return true;
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
    if (!queue_timer_reserve(queue))
        return false;
    request->queue = queue;
    request->timer_index = NO_TIMER;
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

static void queue_ready_append(sg_request *request)
{
    syncguard_queue *queue = request->queue;
    request->next_ready = NULL;
    request->previous_ready = queue->last_ready;
    if (queue->last_ready != NULL)
        queue->last_ready->next_ready = request;
    else
        queue->first_ready = request;
    queue->last_ready = request;
}

static void queue_ready_remove(const sg_request *request)
{
    syncguard_queue *queue = request->queue;
    if (request->previous_ready != NULL)
        request->previous_ready->next_ready = request->next_ready;
    else
        queue->first_ready = request->next_ready;
    if (request->next_ready != NULL)
        request->next_ready->previous_ready = request->previous_ready;
    else
        queue->last_ready = request->previous_ready;
}

void sg_request_set_job(sg_request *request, sg_job job)
{
    syncguard_queue *queue = request->queue;
    if (request->job == SG_JOB_READY)
        queue_ready_remove(request);
    if (request->job == SG_JOB_RUNNING && --queue->running == 0 && queue->closing)
        pthread_cond_broadcast(&queue->changed);
    if (job == SG_JOB_RUNNING)
        queue->running++;
    if (job == SG_JOB_READY)
        queue_ready_append(request);
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
    request->next_done = NULL;
    request->previous_done = queue->last_done;
    if (queue->last_done != NULL) {
        queue->last_done->next_done = request;
    } else {
        queue->first_done = request;
        sg_event_set(queue->fds);
    }
    queue->last_done = request;
}

void sg_request_unlist(sg_request *request)
{
    syncguard_queue *queue = request->queue;
    request->listed = false;
    if (request->previous_done != NULL)
        request->previous_done->next_done = request->next_done;
    else
        queue->first_done = request->next_done;
    if (request->next_done != NULL)
        request->next_done->previous_done = request->previous_done;
    else
        queue->last_done = request->previous_done;
    if (queue->first_done == NULL)
        sg_event_reset(queue->fds);
}
