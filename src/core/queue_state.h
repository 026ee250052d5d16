/*
 * The parts of a completion queue: requests, the ready list, timers, and completions.
 *
 * A request has a job (work to do) and a completion (a result to report). Both may be open at once:
 * a release whose deadline passed has completed, but its lock must still be freed. A request is
 * freed when neither is open.
 *
 * The request that granted a lock stays with it (lock->request): it reports the loss, and later
 * becomes the request of the release, so that starting a release needs no memory.
 *
 * Locking: queue->mutex guards everything here and is the innermost mutex of the core: no wait
 * queue, no backend and no other service is called with it held. A thread that has set a request to
 * RUNNING owns its acquire state until it sets another job. heartbeat.mutex guards lock->request.
 */
#ifndef SG_QUEUE_STATE_H
#define SG_QUEUE_STATE_H

#include <pthread.h>

#include "lock_acquire.h"
#include "syncguard/queue.h"
#include "syncguard/sys/list.h"
#include "util/heap.h"

typedef struct sg_request sg_request;

typedef enum sg_job {
    SG_JOB_NONE,
    SG_JOB_READY,   /* in the ready list */
    SG_JOB_WAITING, /* an acquire in the wait queue, with a timer */
    SG_JOB_BEHIND,  /* behind an earlier request on its lock */
    SG_JOB_RUNNING, /* a thread runs it */
    SG_JOB_CLOSING  /* left to the thread that closes the queue */
} sg_job;

/* A thread of a queue: a worker, or the timekeeper. */
typedef struct sg_worker {
    syncguard_queue *queue;
    struct sg_worker *next; /* of all workers */
    struct sg_worker *next_idle;
    struct sg_worker *next_woken;
    bool idle;
    pthread_t thread;
    syncguard_parker parker;
    syncguard_abort *abort_object; /* ends its request; triggered with the mutex held */
} sg_worker;

struct sg_request {
    syncguard_queue *queue;
    syncguard_request id;
    sg_request *next_by_id;
    syncguard_link ready;    /* READY */
    syncguard_link done;     /* listed */
    sg_request *next_extend; /* of the same lock; in the lock's request: the first */
    sg_request *granted_by;  /* extend: the lock's request; NULL once the lock is gone */
    void *context;
    sg_worker *worker; /* RUNNING: the worker whose abort object ends it; or NULL */
    sg_heap_entry timer;
    int64_t since_ns;    /* acquire: the time of the next try counts from here */
    int64_t deadline_ns; /* release and extend */
    syncguard_lock *lock;
    syncguard_error *error; /* NULL: none was kept */
    syncguard_status status;
    uint8_t kind; /* syncguard_completion_kind */
    uint8_t job;
    uint8_t lost; /* syncguard_lost_reason */
    bool listed;  /* its completion is waiting */
    bool taken;   /* its completion was handed out */
    bool cancelled;
    bool finished; /* acquire: there is an outcome */
    bool must_try; /* acquire: the next step is known to be a try */
    bool missed;   /* acquire: that try could not begin in time */
    bool woken;    /* acquire: by the wait queue, while RUNNING */
    bool held;     /* its lock belongs to the caller */
    bool lost_told;
    bool releasing; /* the release of its lock was started */
    bool give_back; /* the job is to give the lock back */
    bool shared;    /* RUNNING: with others in a batch, which its cancel does not end */
    bool told;      /* its completion was listed while it was RUNNING */
    union {
        sg_acquire acquire;
        struct {
            int64_t ttl_ms;
            int64_t expires_at_ms;
        } extend;
    };
};

#define SG_QUEUE_BUCKETS 1024

struct syncguard_queue {
    syncguard_backend *backend;
    pid_t pid;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* no request is RUNNING any more */
    int fds[2];
    bool closing, stopping;
    syncguard_request last_id;
    sg_request *by_id[SG_QUEUE_BUCKETS];
    size_t count; /* of requests */
    size_t running;
    syncguard_links ready, done; /* sg_request */
    sg_heap timers;              /* with room for all requests */
    sg_worker keeper;            /* the timekeeper */
    int64_t keeper_until_ns;     /* when it wakes up by itself */
    sg_worker *workers;
    int worker_count, max_workers;
    sg_worker *idle;
    sg_worker *woken; /* to be unparked by unlock */
    /* Starts a worker if the limit allows it; the caller holds the mutex. */
    void (*start_worker)(syncguard_queue *queue);
};

void sg_queue_lock(syncguard_queue *queue);
/* Also wakes the threads for which there is work. */
void sg_queue_unlock(syncguard_queue *queue);

/* Callers of everything below hold the mutex. */

/* Adds a request under a new id; false: out of memory. */
bool sg_queue_add(syncguard_queue *queue, sg_request *request);
/* Gives the request a new id. */
void sg_queue_rename(sg_request *request);
/* The first READY request, and the first whose completion is listed; NULL: there is none. */
static inline sg_request *sg_queue_first_ready(const syncguard_queue *queue)
{
    return SYNCGUARD_LINKED(queue->ready.first, sg_request, ready);
}

static inline sg_request *sg_queue_first_done(const syncguard_queue *queue)
{
    return SYNCGUARD_LINKED(queue->done.first, sg_request, done);
}

sg_request *sg_queue_find(const syncguard_queue *queue, syncguard_request id);
/* Frees a request if neither its job nor its completion is open. */
void sg_queue_free_if_over(sg_request *request);

/* Changes the job: stops the timer, and removes a request that was READY from the list. */
void sg_request_set_job(sg_request *request, sg_job job);
/* Sets the job READY, to begin before timer_ns (SYNCGUARD_NO_DEADLINE: at any time). */
void sg_request_make_ready(sg_request *request, int64_t timer_ns);
void sg_request_set_timer(sg_request *request, int64_t timer_ns);

/* Lists the completion: it can be taken from now on. */
void sg_request_list(sg_request *request);
void sg_request_unlist(sg_request *request);

#endif
