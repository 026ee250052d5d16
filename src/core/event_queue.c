/*
 * Passes events from the threads of operations to the callback.
 *
 * A ring of fixed entries under one mutex, and one thread that takes from it. An
 * entry holds the raw key and lock id. The thread hashes them (which normalizes),
 * so that an operation pays for one copy only.
 *
 * Locking: `mutex` guards the ring and `stopping`; it is held for a copy, never
 * while the callback runs. `dropped` is atomic, so that it can be read at any
 * time. Fork: the child's copy has no thread and a mutex in an unknown state;
 * `pid` shows this, and sg_event_queue_after_fork makes it usable again.
 */
#include "core/telemetry.h"

#include <string.h>
#include <unistd.h>

#include "core/hash.h"
#include "util/thread.h"

#define DEFAULT_QUEUE_LENGTH 1024
#define MAX_QUEUE_LENGTH ((size_t)1 << 20)

typedef struct event_entry {
    syncguard_event_type type;
    bool ok;
    syncguard_event_reason reason;
    syncguard_status error;
    int64_t duration_ns;
    size_t key_length; /* 0: no key */
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    char key[SYNCGUARD_KEY_SIZE];
} event_entry;

struct sg_event_queue {
    pthread_mutex_t mutex;
    pthread_cond_t filled;
    event_entry *entries;
    size_t length;
    size_t head;
    size_t count;
    bool stopping;
    bool abandoned;         /* closed from inside the callback: the thread frees the queue */
    int64_t drain_until_ns; /* with stopping: events that are still queued then are dropped */
    pthread_t thread;
    pid_t pid; /* the process that `thread` belongs to */
    syncguard_event_fn on_event;
    void *on_event_context;
    bool include_raw;
    const char *hash_secret; /* of the decorated backend, or NULL */
    atomic_uint_fast64_t dropped;
};

static void event_queue_free(sg_event_queue *queue)
{
    pthread_cond_destroy(&queue->filled);
    pthread_mutex_destroy(&queue->mutex);
    syncguard_free(queue->entries);
    syncguard_free(queue);
}

static void event_queue_deliver(const sg_event_queue *queue, const event_entry *taken)
{
    syncguard_event event;
    memset(&event, 0, sizeof event);
    event.type = taken->type;
    event.ok = taken->ok;
    event.reason = taken->reason;
    event.error = taken->error;
    event.duration_us = taken->duration_ns / 1000;
    if (taken->key_length > 0) {
        sg_hash_text(queue->hash_secret, taken->key, taken->key_length, event.key_hash);
        if (queue->include_raw)
            memcpy(event.key, taken->key, taken->key_length + 1);
    }
    if (taken->lock_id[0] != '\0') {
        sg_hash_text(queue->hash_secret, taken->lock_id, SYNCGUARD_LOCK_ID_CHARS,
                     event.lock_id_hash);
        if (queue->include_raw)
            memcpy(event.lock_id, taken->lock_id, sizeof event.lock_id);
    }
    queue->on_event(queue->on_event_context, &event);
}

/* Waits for an event and copies it; false when the queue must end. Caller holds the mutex. */
static bool event_queue_take(sg_event_queue *queue, event_entry *taken)
{
    while (queue->count == 0 && !queue->stopping)
        pthread_cond_wait(&queue->filled, &queue->mutex);
    if (queue->count == 0)
        return false;
    if (queue->stopping && (queue->abandoned || syncguard_clock_ns() >= queue->drain_until_ns))
        return false;
    const event_entry *from = &queue->entries[queue->head];
    memcpy(taken, from, offsetof(event_entry, key) + from->key_length + 1);
    queue->head = (queue->head + 1) % queue->length;
    queue->count--;
    return true;
}

static void *event_queue_run(void *argument)
{
    sg_event_queue *queue = argument;
    pthread_mutex_lock(&queue->mutex);
    event_entry taken;
    while (event_queue_take(queue, &taken)) {
        pthread_mutex_unlock(&queue->mutex);
        event_queue_deliver(queue, &taken);
        pthread_mutex_lock(&queue->mutex);
    }
    atomic_fetch_add_explicit(&queue->dropped, queue->count, memory_order_relaxed);
    queue->count = 0;
    bool abandoned = queue->abandoned;
    pthread_mutex_unlock(&queue->mutex);
    if (abandoned)
        event_queue_free(queue);
    return NULL;
}

static syncguard_status event_queue_start_thread(sg_event_queue *queue, syncguard_error *err)
{
    syncguard_status status =
        sg_thread_start(&queue->thread, event_queue_run, queue, "deliver telemetry events", err);
    if (status == SYNCGUARD_OK) /* otherwise the thread still belongs to another process */
        queue->pid = getpid();
    return status;
}

syncguard_status sg_event_queue_open(const syncguard_telemetry_options *options,
                                     const char *hash_secret, sg_event_queue **out,
                                     syncguard_error *err)
{
    size_t length = options->queue_length > 0 ? options->queue_length : DEFAULT_QUEUE_LENGTH;
    if (length > MAX_QUEUE_LENGTH)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "queue_length is more than %zu events", MAX_QUEUE_LENGTH);
    sg_event_queue *queue = syncguard_calloc(1, sizeof *queue);
    if (queue == NULL)
        return syncguard_fail_memory(err);
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->filled, NULL);
    queue->length = length;
    queue->on_event = options->on_event;
    queue->on_event_context = options->on_event_context;
    queue->include_raw = options->include_raw;
    queue->hash_secret = hash_secret;
    queue->entries = syncguard_malloc(length * sizeof *queue->entries);
    syncguard_status status = SYNCGUARD_OK;
    if (queue->entries == NULL) {
        status = syncguard_fail_memory(err);
        goto done;
    }
    status = event_queue_start_thread(queue, err);
    if (status != SYNCGUARD_OK)
        goto done;
    *out = queue;
    queue = NULL;
done:
    if (queue != NULL)
        event_queue_free(queue);
    return status;
}

static void event_entry_fill(event_entry *into, const sg_observation *seen)
{
    into->type = seen->type;
    into->ok = seen->ok;
    into->reason = seen->reason;
    into->error = seen->error;
    into->duration_ns = seen->duration_ns;
    into->key_length = 0;
    if (seen->key != NULL && seen->key_length < sizeof into->key) {
        memcpy(into->key, seen->key, seen->key_length);
        into->key_length = seen->key_length;
    }
    into->key[into->key_length] = '\0';
    into->lock_id[0] = '\0';
    if (seen->lock_id != NULL)
        memcpy(into->lock_id, seen->lock_id, sizeof into->lock_id);
}

void sg_event_queue_push(sg_event_queue *queue, const sg_observation *seen)
{
    pthread_mutex_lock(&queue->mutex);
    bool stored = false;
    if (queue->count < queue->length && !queue->stopping) {
        event_entry_fill(&queue->entries[(queue->head + queue->count) % queue->length], seen);
        queue->count++;
        stored = true;
    }
    pthread_mutex_unlock(&queue->mutex);
    if (stored)
        pthread_cond_signal(&queue->filled);
    else
        atomic_fetch_add_explicit(&queue->dropped, 1, memory_order_relaxed);
}

uint64_t sg_event_queue_dropped(const sg_event_queue *queue)
{
    return atomic_load_explicit(&queue->dropped, memory_order_relaxed);
}

syncguard_status sg_event_queue_after_fork(sg_event_queue *queue, syncguard_error *err)
{
    if (queue->pid == getpid())
        return SYNCGUARD_OK;
    /* The parent delivers its own events. No thread of the child can hold the mutex. */
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->filled, NULL);
    queue->head = 0;
    queue->count = 0;
    queue->stopping = false;
    atomic_store(&queue->dropped, 0);
    return event_queue_start_thread(queue, err);
}

void sg_event_queue_close(sg_event_queue *queue, int64_t drain_ms)
{
    if (queue == NULL)
        return;
    if (queue->pid != getpid()) {
        /* The child never used its copy: there is no thread to wait for, and destroying a
         * condition variable that the parent's thread waits on would block. */
        syncguard_free(queue->entries);
        syncguard_free(queue);
        return;
    }
    bool inside = pthread_equal(pthread_self(), queue->thread) != 0;
    pthread_t thread = queue->thread;
    pthread_mutex_lock(&queue->mutex);
    queue->stopping = true;
    queue->abandoned = inside;
    queue->drain_until_ns = syncguard_clock_after(syncguard_clock_ns(), drain_ms);
    pthread_mutex_unlock(&queue->mutex);
    if (inside) {
        pthread_detach(thread);
        return;
    }
    pthread_cond_signal(&queue->filled);
    pthread_join(thread, NULL);
    event_queue_free(queue);
}
