/*
 * Background work of one backend: taking back acquires whose outcome is unknown,
 * releases that failed, and cleanup of dead records.
 *
 * One thread, started by the first task, works off a list ordered by due time.
 * Each step is bounded (STEP_NS), so a store that hangs delays the other tasks
 * but never stops them. Undoing an acquire is repeated until the store says that
 * it can never take effect, or until it would have expired anyway.
 *
 * Locking: mutex guards the list and the flags; it is not held while a step
 * runs. A task is owned by the list or by the thread, never by both.
 */
#include <string.h>

#include "core.h"

#define STEP_NS (1000 * SYNCGUARD_NS_PER_MS)
#define FIRST_PAUSE_NS (50 * SYNCGUARD_NS_PER_MS)
#define LONGEST_PAUSE_NS (1000 * SYNCGUARD_NS_PER_MS)
#define CLEANUP_INTERVAL_NS (100 * SYNCGUARD_NS_PER_MS)

typedef enum task_kind { TASK_UNDO, TASK_RELEASE, TASK_CLEANUP } task_kind;

struct sg_task {
    sg_task *next;
    task_kind kind;
    int64_t due_ns;
    int64_t until_ns;
    int64_t pause_ns;
    int64_t expires_at_ms; /* cleanup only */
    bool unsure;           /* an earlier step may have freed the key unheard */
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    size_t key_length;
    char key[];
};

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

static void free_tasks(sg_background *work)
{
    while (work->first != NULL) {
        sg_task *task = work->first;
        work->first = task->next;
        syncguard_free(task);
    }
}

/* Caller holds the mutex. */
static void insert(sg_background *work, sg_task *task)
{
    sg_task **link = &work->first;
    while (*link != NULL && (*link)->due_ns <= task->due_ns)
        link = &(*link)->next;
    task->next = *link;
    *link = task;
}

/* After an attempt whose reply was lost, absent may mean that it freed the key. */
static bool freed_unheard(sg_task *task, syncguard_status status)
{
    bool freed = status == SYNCGUARD_ABSENT && task->unsure;
    task->unsure = status < SYNCGUARD_OK;
    return freed;
}

/* One step of a task; true if it is finished. */
static bool carry_out(sg_background *work, sg_task *task)
{
    syncguard_backend *backend = work->backend;
    syncguard_limits limits = {syncguard_clock_ns() + STEP_NS, work->abort_object};
    syncguard_release_op release = {.lock_id = task->lock_id, .limits = limits};
    syncguard_status status;
    bool freed;

    switch (task->kind) {
    case TASK_UNDO:
        status = backend->ops->undo(backend, task->key, task->key_length, task->lock_id,
                                    task->until_ns, &limits, NULL);
        freed = freed_unheard(task, status) || status == SYNCGUARD_OK;
        if (freed)
            sg_room_freed(backend->core->room, task->key, task->key_length,
                          backend->core->watch_lasts);
        return status == SYNCGUARD_OK;
    case TASK_RELEASE: /* tells the waiters itself when it is OK */
        status = sg_release_once(backend, &release, task->key, task->key_length, NULL);
        if (freed_unheard(task, status))
            sg_room_freed(backend->core->room, task->key, task->key_length,
                          backend->core->watch_lasts);
        return status >= SYNCGUARD_OK;
    case TASK_CLEANUP:
        break;
    }
    syncguard_cleanup_op op = {task->key, task->key_length, task->lock_id, task->expires_at_ms,
                               limits};
    (void)backend->ops->cleanup(backend, &op, NULL); /* best effort by contract */
    return true;
}

/* Puts an unfinished task back, unless its time is over. Caller holds the mutex. */
static void put_back(sg_background *work, sg_task *task)
{
    int64_t now = syncguard_clock_ns();
    if (now >= task->until_ns) {
        syncguard_free(task);
        return;
    }
    task->due_ns = now + task->pause_ns;
    if (task->due_ns > task->until_ns)
        task->due_ns = task->until_ns;
    task->pause_ns = task->pause_ns * 2 > LONGEST_PAUSE_NS ? LONGEST_PAUSE_NS : task->pause_ns * 2;
    insert(work, task);
}

/* The last step falls on until_ns. One that comes much later, because the store kept the thread
 * waiting for others, would only hold up those behind it: what it is about is dead. */
static bool is_over(const sg_task *task)
{
    return task->kind != TASK_CLEANUP && task->until_ns < SYNCGUARD_NO_DEADLINE - STEP_NS &&
           syncguard_clock_ns() > task->until_ns + STEP_NS;
}

static void *work_loop(void *argument)
{
    sg_background *work = argument;
    pthread_mutex_lock(&work->mutex);
    while (!work->stopping) {
        sg_task *task = work->first;
        if (task == NULL && work->draining)
            syncguard_parker_unpark(&work->idle);
        int64_t due = task == NULL ? SYNCGUARD_NO_DEADLINE : task->due_ns;
        if (task == NULL || syncguard_clock_ns() < due) {
            syncguard_limits limits = {due, NULL};
            pthread_mutex_unlock(&work->mutex);
            (void)syncguard_parker_park(&work->parker, &limits, NULL);
            pthread_mutex_lock(&work->mutex);
            continue;
        }
        work->first = task->next;
        if (is_over(task)) {
            syncguard_free(task);
            continue;
        }
        work->busy = true;
        pthread_mutex_unlock(&work->mutex);
        bool finished = carry_out(work, task);
        pthread_mutex_lock(&work->mutex);
        work->busy = false;
        if (finished)
            syncguard_free(task);
        else
            put_back(work, task);
    }
    pthread_mutex_unlock(&work->mutex);
    return NULL;
}

/* Caller holds the mutex. */
static bool start(sg_background *work)
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
    work->started = syncguard_thread_start(&work->thread, work_loop, work) == 0;
    return work->started;
}

static bool add(sg_background *work, task_kind kind, const char *key, size_t length,
                const char *lock_id, int64_t expires_at_ms, int64_t until_ns)
{
    sg_task *task = syncguard_calloc(1, sizeof *task + length + 1);
    if (task == NULL)
        return false;
    task->kind = kind;
    task->due_ns = syncguard_clock_ns();
    task->until_ns = until_ns;
    task->pause_ns = FIRST_PAUSE_NS;
    task->expires_at_ms = expires_at_ms;
    task->unsure = kind == TASK_RELEASE; /* the release in the foreground */
    memcpy(task->lock_id, lock_id, SYNCGUARD_LOCK_ID_SIZE);
    task->key_length = length;
    memcpy(task->key, key, length);

    pthread_mutex_lock(&work->mutex);
    bool added = !work->stopping && start(work);
    if (added) {
        insert(work, task);
        syncguard_parker_unpark(&work->parker);
    }
    pthread_mutex_unlock(&work->mutex);
    if (!added)
        syncguard_free(task);
    return added;
}

void sg_background_undo(sg_background *work, const char *key, size_t length, const char *lock_id,
                        int64_t until_ns)
{
    if (!add(work, TASK_UNDO, key, length, lock_id, 0, until_ns))
        syncguard_backend_log(work->backend, SYNCGUARD_LOG_WARN,
                              "an acquire of unknown outcome could not be taken back for lack of "
                              "resources; it ends with its TTL");
}

void sg_background_release(sg_background *work, const char *key, size_t length, const char *lock_id,
                           int64_t until_ns)
{
    (void)add(work, TASK_RELEASE, key, length, lock_id, 0, until_ns);
}

void sg_background_cleanup(sg_background *work, const syncguard_is_locked_op *seen)
{
    int64_t now = syncguard_clock_ns();
    pthread_mutex_lock(&work->mutex);
    bool due = now >= work->next_cleanup_ns;
    if (due)
        work->next_cleanup_ns = now + CLEANUP_INTERVAL_NS;
    pthread_mutex_unlock(&work->mutex);
    if (due)
        (void)add(work, TASK_CLEANUP, seen->key, seen->key_length, seen->dead_lock_id,
                  seen->dead_expires_at_ms, now);
}

/* Waits until the list is empty or drain_ns are over. */
static void drain(sg_background *work, int64_t drain_ns)
{
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, NULL};
    int64_t now = syncguard_clock_ns();
    if (drain_ns < SYNCGUARD_NO_DEADLINE - now)
        limits.deadline_ns = now + drain_ns;
    pthread_mutex_lock(&work->mutex);
    work->draining = true;
    bool left = work->first != NULL || work->busy;
    pthread_mutex_unlock(&work->mutex);
    if (left)
        (void)syncguard_parker_park(&work->idle, &limits, NULL);
}

void sg_background_stop(sg_background *work, int64_t drain_ns)
{
    if (!work->started)
        return;
    drain(work, drain_ns);
    pthread_mutex_lock(&work->mutex);
    work->stopping = true;
    pthread_mutex_unlock(&work->mutex);
    syncguard_abort_trigger(work->abort_object);
    syncguard_parker_unpark(&work->parker);
    pthread_join(work->thread, NULL);
    work->started = false;
}

static void free_all(sg_background *work)
{
    free_tasks(work);
    syncguard_parker_close(&work->parker);
    syncguard_parker_close(&work->idle);
    syncguard_abort_free(work->abort_object);
}

void sg_background_destroy(sg_background *work)
{
    sg_background_stop(work, 0);
    free_all(work);
    pthread_mutex_destroy(&work->mutex);
}

void sg_background_forget(sg_background *work)
{
    free_all(work);
    (void)sg_background_init(work, work->backend, NULL);
}
