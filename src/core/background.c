/*
 * Background work of one backend: undoing acquires whose outcome is unknown,
 * repeating releases that failed, and cleaning up dead records.
 *
 * One thread, started by the first task. Tasks wait in queues, one per length of
 * pause. A task that is added to a queue is due later than those already in it, so
 * each queue is ordered by due time, and adding takes constant time. Callers only
 * add tasks: the store never blocks them.
 *
 * Acquires are undone in batches if the store supports it. Each step is bounded, so
 * a store that hangs delays the other tasks but never stops them. Undoing an
 * acquire is repeated until the store confirms that it can never take effect, or
 * until it would have expired anyway.
 *
 * Locking: mutex guards the queues and the flags; it is not held while a step
 * runs. A task is owned by a queue or by the thread, never by both.
 */
#include "background.h"

#include <string.h>

#include "core.h"
#include "lock_state.h"
#include "min_hold.h"

#define STEP_NS (1000 * SYNCGUARD_NS_PER_MS)
/* A batch depends on the store, not on one key: it may take as long as other operations. */
#define BATCH_STEP_NS (5000 * SYNCGUARD_NS_PER_MS)
#define FIRST_PAUSE_NS (50 * SYNCGUARD_NS_PER_MS)
#define LONGEST_PAUSE_NS (1000 * SYNCGUARD_NS_PER_MS)
#define CLEANUP_INTERVAL_NS (100 * SYNCGUARD_NS_PER_MS)

typedef enum task_kind { TASK_UNDO, TASK_RELEASE, TASK_CLEANUP } task_kind;

typedef struct sg_task {
    syncguard_link link; /* in its queue */
    task_kind kind;
    int steps; /* failed so far; also the index of its queue */
    int64_t due_ns;
    int64_t until_ns;
    int64_t expires_at_ms; /* cleanup only */
    int64_t keep_until_ns; /* release only: the lock is not removed before */
    bool unsure;           /* an earlier step may have released the key, but its reply was lost */
    bool single;           /* a batch left it unresolved: it goes alone */
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    size_t key_length;
    char key[];
} sg_task;

syncguard_status sg_background_init(sg_background *work, syncguard_backend *backend,
                                    syncguard_error *err)
{
    memset(work, 0, sizeof *work);
    work->backend = backend;
    work->parker = (syncguard_parker)SYNCGUARD_PARKER_INIT;
    work->idle = (syncguard_parker)SYNCGUARD_PARKER_INIT;
    if (pthread_mutex_init(&work->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    return SYNCGUARD_OK;
}

/* ---- queues: callers hold the mutex, except when the backend is destroyed ---- */

static sg_task *task_of(syncguard_link *link)
{
    return SYNCGUARD_LINKED(link, sg_task, link);
}

/* Walks, because a forked child calls it, too. */
static void background_free_tasks(sg_background *work)
{
    for (int i = 0; i < SG_TASK_QUEUES; i++) {
        sg_task *task = task_of(work->queues[i].first);
        work->queues[i] = (syncguard_links){NULL, NULL};
        while (task != NULL) {
            sg_task *next = task_of(task->link.next);
            syncguard_free(task);
            task = next;
        }
    }
}

static void background_push_task(sg_background *work, sg_task *task)
{
    int64_t pause = syncguard_backoff_ns(FIRST_PAUSE_NS, task->steps - 1, LONGEST_PAUSE_NS);
    task->due_ns = syncguard_clock_ns() + (task->steps > 0 ? pause : 0);
    syncguard_links_append(&work->queues[task->steps], &task->link);
}

/* The task that is due first, or NULL. */
static sg_task *background_next_task(const sg_background *work)
{
    sg_task *next = NULL;
    for (int i = 0; i < SG_TASK_QUEUES; i++) {
        sg_task *first = task_of(work->queues[i].first);
        if (first != NULL && (next == NULL || first->due_ns < next->due_ns))
            next = first;
    }
    return next;
}

static void task_drop_expired(sg_background *work, sg_task *task)
{
    if (task->kind == TASK_UNDO)
        sg_counters_undone(work->backend->core->counters, SG_UNDO_EXPIRED);
    syncguard_free(task);
}

/* Puts an unfinished task back, unless its time is over. */
static void background_requeue_task(sg_background *work, sg_task *task)
{
    if (syncguard_clock_ns() >= task->until_ns) {
        task_drop_expired(work, task);
        return;
    }
    if (task->steps < SG_TASK_QUEUES - 1)
        task->steps++;
    background_push_task(work, task);
}

/* The last step of a task falls into the pause after until_ns. A step much later than that, after
 * the store kept the thread busy with other tasks, would only delay the tasks behind it: the lock
 * is dead by then. */
static bool task_is_over(const sg_task *task)
{
    const int64_t grace = LONGEST_PAUSE_NS + STEP_NS;
    return task->kind != TASK_CLEANUP && task->until_ns < SYNCGUARD_NO_DEADLINE - grace &&
           syncguard_clock_ns() > task->until_ns + grace;
}

static bool task_is_batchable(const sg_background *work, const sg_task *task)
{
    return task->kind == TASK_UNDO && !task->single && work->backend->core->undoes_many;
}

/* Removes due tasks from the queues: one task, or as many as fit into one batch. */
static size_t background_take_due_tasks(sg_background *work, sg_task *batch[SYNCGUARD_BATCH_MAX])
{
    int64_t now = syncguard_clock_ns();
    size_t count = 0;
    while (count < SYNCGUARD_BATCH_MAX) {
        sg_task *task = background_next_task(work);
        if (task == NULL || task->due_ns > now || (count > 0 && !task_is_batchable(work, task)))
            break;
        syncguard_links_remove(&work->queues[task->steps], &task->link);
        if (task_is_over(task)) {
            task_drop_expired(work, task);
            continue;
        }
        batch[count++] = task;
        if (!task_is_batchable(work, task))
            break;
    }
    return count;
}

/* ---- steps ---- */

/* True if an earlier attempt, whose reply was lost, may have released the key or shortened its
 * lease: then the store answers ABSENT now. */
static bool task_note_status(sg_task *task, syncguard_status status)
{
    bool freed = status == SYNCGUARD_ABSENT && task->unsure;
    task->unsure = status < SYNCGUARD_OK;
    return freed;
}

/* Wakes waiters if the key may have become free; true if the store confirmed it. */
static bool task_handle_result(sg_background *work, sg_task *task, syncguard_status status)
{
    struct syncguard_core *core = work->backend->core;
    if (task_note_status(task, status) || status == SYNCGUARD_OK)
        sg_wait_queue_released(core->wait_queue, task->key, task->key_length);
    if (status == SYNCGUARD_OK && task->kind == TASK_UNDO)
        sg_counters_undone(core->counters, SG_UNDO_CONFIRMED);
    return status == SYNCGUARD_OK;
}

/* Repeats a failed release; a minimum hold still applies. */
static bool task_run_release_step(sg_background *work, sg_task *task,
                                  const syncguard_limits *limits)
{
    syncguard_backend *backend = work->backend;
    syncguard_release_op release = {.lock_id = task->lock_id, .limits = *limits};
    syncguard_extend_op keep = {.lock_id = task->lock_id, .limits = *limits};
    keep.ttl_ms = task->keep_until_ns > 0 ? sg_min_hold_left_ms(task->keep_until_ns) : 0;
    syncguard_status status;
    if (keep.ttl_ms > 0) {
        status = sg_min_hold_keep(backend, &keep, task->key, task->key_length, NULL);
        if (task_note_status(task, status))
            sg_wait_queue_released(backend->core->wait_queue, task->key, task->key_length);
    } else {
        status = backend->ops->release(backend, &release, NULL);
        (void)task_handle_result(work, task, status);
    }
    return status >= SYNCGUARD_OK;
}

/* One step of a task; true if it is finished. */
static bool task_run_step(sg_background *work, sg_task *task)
{
    syncguard_backend *backend = work->backend;
    syncguard_limits limits = {syncguard_clock_ns() + STEP_NS, work->abort_object};
    syncguard_status status;
    switch (task->kind) {
    case TASK_UNDO:
        status = backend->ops->undo(backend, task->key, task->key_length, task->lock_id,
                                    task->until_ns, &limits, NULL);
        return task_handle_result(work, task, status);
    case TASK_RELEASE:
        return task_run_release_step(work, task, &limits);
    case TASK_CLEANUP:
        break;
    }
    syncguard_cleanup_op op = {task->key, task->key_length, task->lock_id, task->expires_at_ms,
                               limits};
    (void)backend->ops->cleanup(backend, &op, NULL); /* best effort by contract */
    return true;
}

/* One step of many acquires that must be undone. Finished tasks are freed, and their entries in
 * batch set to NULL. */
static void task_run_undo_batch(sg_background *work, sg_task **batch, size_t count)
{
    syncguard_backend *backend = work->backend;
    syncguard_limits limits = {syncguard_clock_ns() + BATCH_STEP_NS, work->abort_object};
    syncguard_undo_op items[SYNCGUARD_BATCH_MAX];
    for (size_t i = 0; i < count; i++)
        items[i] = (syncguard_undo_op){batch[i]->key, batch[i]->key_length, batch[i]->lock_id,
                                       batch[i]->until_ns, SYNCGUARD_E_NETWORK_TIMEOUT};
    bool answered = backend->ops->undo_many(backend, items, count, &limits, NULL) == SYNCGUARD_OK;
    for (size_t i = 0; i < count; i++) {
        syncguard_status status = answered ? items[i].status : SYNCGUARD_E_NETWORK_TIMEOUT;
        batch[i]->single = answered && status < SYNCGUARD_OK;
        if (task_handle_result(work, batch[i], status)) {
            syncguard_free(batch[i]);
            batch[i] = NULL;
        }
    }
}

/* Runs a step of each task. Caller holds the mutex, which is released meanwhile. */
static void background_run_tasks(sg_background *work, sg_task **batch, size_t count)
{
    work->busy = true;
    pthread_mutex_unlock(&work->mutex);
    if (task_is_batchable(work, batch[0])) {
        task_run_undo_batch(work, batch, count);
    } else if (task_run_step(work, batch[0])) {
        syncguard_free(batch[0]);
        batch[0] = NULL;
    }
    pthread_mutex_lock(&work->mutex);
    work->busy = false;
    for (size_t i = 0; i < count; i++) {
        if (batch[i] != NULL)
            background_requeue_task(work, batch[i]);
    }
}

static void *background_run(void *argument)
{
    sg_background *work = argument;
    sg_task *batch[SYNCGUARD_BATCH_MAX];
    pthread_mutex_lock(&work->mutex);
    while (!work->stopping) {
        size_t count = background_take_due_tasks(work, batch);
        if (count > 0) {
            background_run_tasks(work, batch, count);
            continue;
        }
        const sg_task *next = background_next_task(work);
        if (next == NULL && work->draining)
            syncguard_parker_unpark(&work->idle);
        syncguard_limits limits = {next != NULL ? next->due_ns : SYNCGUARD_NO_DEADLINE, NULL};
        pthread_mutex_unlock(&work->mutex);
        (void)syncguard_parker_park(&work->parker, &limits, NULL);
        pthread_mutex_lock(&work->mutex);
    }
    pthread_mutex_unlock(&work->mutex);
    return NULL;
}

/* ---- adding and ending ---- */

/* Caller holds the mutex. */
static bool background_start_thread(sg_background *work)
{
    if (work->started)
        return true;
    if (work->parker.fds[0] < 0 && syncguard_parker_open(&work->parker, NULL) != SYNCGUARD_OK)
        return false;
    if (work->idle.fds[0] < 0 && syncguard_parker_open(&work->idle, NULL) != SYNCGUARD_OK)
        return false;
    if (work->abort_object == NULL &&
        syncguard_abort_create(&work->abort_object, NULL) != SYNCGUARD_OK)
        return false;
    work->started = syncguard_thread_start(&work->thread, background_run, work) == 0;
    return work->started;
}

static sg_task *task_create(task_kind kind, const char *key, size_t length, const char *lock_id,
                            int64_t until_ns)
{
    sg_task *task = syncguard_calloc(1, sizeof *task + length + 1);
    if (task == NULL)
        return NULL;
    task->kind = kind;
    task->until_ns = until_ns;
    task->unsure = kind == TASK_RELEASE; /* because of the release in the foreground */
    memcpy(task->lock_id, lock_id, SYNCGUARD_LOCK_ID_SIZE);
    task->key_length = length;
    memcpy(task->key, key, length);
    return task;
}

/* Takes ownership of task; false if it could not be added or is NULL. */
static bool background_add_task(sg_background *work, sg_task *task)
{
    if (task == NULL)
        return false;
    pthread_mutex_lock(&work->mutex);
    bool added = !work->stopping && background_start_thread(work);
    if (added) {
        background_push_task(work, task);
        syncguard_parker_unpark(&work->parker);
    }
    pthread_mutex_unlock(&work->mutex);
    if (!added)
        syncguard_free(task);
    return added;
}

/* Counted from now: the store may have granted the lock a moment ago, however long ago the request
 * was sent. */
static int64_t background_lease_end_ns(int64_t ttl_ms)
{
    return syncguard_clock_after(syncguard_clock_ns(), ttl_ms + SYNCGUARD_TIME_TOLERANCE_MS);
}

void sg_background_undo(sg_background *work, const syncguard_acquire_op *op)
{
    if (!background_add_task(work, task_create(TASK_UNDO, op->key, op->key_length, op->lock_id,
                                               background_lease_end_ns(op->ttl_ms))))
        syncguard_backend_log(work->backend, SYNCGUARD_LOG_WARN,
                              "an acquire of unknown outcome could not be taken back for lack of "
                              "resources; it ends with its TTL");
}

void sg_background_release(sg_background *work, const syncguard_lock *lock)
{
    /* No extend was sent later than now, so the lock is dead after the longest TTL. */
    int64_t until_ns = background_lease_end_ns(atomic_load(&lock->longest_ttl_ms));
    int64_t keep_until_ns = atomic_load(&lock->keep_until_ns);
    if (keep_until_ns > until_ns)
        until_ns = keep_until_ns;
    sg_task *task = task_create(TASK_RELEASE, lock->key, lock->key_length, lock->lock_id, until_ns);
    if (task != NULL)
        task->keep_until_ns = keep_until_ns;
    (void)background_add_task(work, task);
}

void sg_background_release_again(sg_background *work, const syncguard_lock *lock,
                                 syncguard_status extended)
{
    if (extended != SYNCGUARD_ABSENT && atomic_load(&lock->released) &&
        atomic_load(&lock->keep_until_ns) > 0)
        sg_background_release(work, lock);
}

void sg_background_cleanup(sg_background *work, const syncguard_is_locked_op *seen)
{
    int64_t now = syncguard_clock_ns();
    pthread_mutex_lock(&work->mutex);
    bool due = now >= work->next_cleanup_ns;
    if (due)
        work->next_cleanup_ns = now + CLEANUP_INTERVAL_NS;
    pthread_mutex_unlock(&work->mutex);
    sg_task *task = NULL;
    if (due)
        task = task_create(TASK_CLEANUP, seen->key, seen->key_length, seen->dead_lock_id, now);
    if (task != NULL)
        task->expires_at_ms = seen->dead_expires_at_ms;
    (void)background_add_task(work, task);
}

/* Waits until the queues are empty or drain_ns are over. */
static void background_drain(sg_background *work, int64_t drain_ns)
{
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, NULL};
    int64_t now = syncguard_clock_ns();
    if (drain_ns < SYNCGUARD_NO_DEADLINE - now)
        limits.deadline_ns = now + drain_ns;
    pthread_mutex_lock(&work->mutex);
    work->draining = true;
    bool left = background_next_task(work) != NULL || work->busy;
    pthread_mutex_unlock(&work->mutex);
    if (left)
        (void)syncguard_parker_park(&work->idle, &limits, NULL);
}

void sg_background_stop(sg_background *work, int64_t drain_ns)
{
    if (!work->started)
        return;
    background_drain(work, drain_ns);
    pthread_mutex_lock(&work->mutex);
    work->stopping = true;
    pthread_mutex_unlock(&work->mutex);
    syncguard_abort_trigger(work->abort_object);
    syncguard_parker_unpark(&work->parker);
    pthread_join(work->thread, NULL);
    work->started = false;
}

static void background_free_resources(sg_background *work)
{
    background_free_tasks(work);
    syncguard_parker_close(&work->parker);
    syncguard_parker_close(&work->idle);
    syncguard_abort_free(work->abort_object);
}

void sg_background_destroy(sg_background *work)
{
    sg_background_stop(work, 0);
    background_free_resources(work);
    pthread_mutex_destroy(&work->mutex);
}

void sg_background_forget(sg_background *work)
{
    background_free_resources(work);
    (void)sg_background_init(work, work->backend, NULL);
}
