/*
 * Locks for event loops: start a request, continue, and read its completion when the queue's
 * descriptor becomes readable. A waiting acquire needs memory, but no thread; waiters for one key
 * share their tries.
 *
 *     syncguard_queue_open(backend, NULL, &queue, &err);
 *     watch syncguard_queue_fd(queue) for input (poll, epoll, libuv, ...)
 *     syncguard_lock_acquire_async(queue, "billing", &options, job, &job->request, &err);
 *
 *     when it is readable:
 *         syncguard_completion done;
 *         while (syncguard_queue_next(queue, &done))
 *             ACQUIRE: if done.status is OK, work under done.lock, later release it
 *             LOST:    stop the work, and release done.lock
 *             RELEASE: nothing refers to done.context any more
 *     to shut down: cancel what waits, release what is held, take completions until no request
 *     is open, close the queue, close the backend.
 *
 * Requests. Starting one never waits for the store. OK means that it completes exactly once, no
 * later than its deadline (which counts from the start call); after any other status nothing
 * completes. Keys, options and limits are copied. Statuses, deadlines, retries and guarantees are
 * those of the blocking calls in lock.h; timeout_ms 0 is a single attempt.
 *
 * Ownership. A granted lock belongs to the caller, who ends it with syncguard_lock_release_async on
 * the same queue. The blocking release, dispose and detach may be used instead while no request on
 * this lock is open; they wait for the store. syncguard_lock_held, _fence, ... never block.
 * Contexts may be NULL; that of an acquire comes back with LOST too, so it must live until the
 * RELEASE completion is taken or the lock is disposed of.
 *
 * Loss. When a lock with auto_extend can no longer be guaranteed, one LOST completion follows, even
 * while an EXTEND hangs. It comes after the ACQUIRE, and after an EXTEND that found the lock
 * ABSENT. Starting the release withdraws a LOST completion that was not taken yet.
 *
 * Threads. Every function may be called on any thread; each completion is returned only once. Of
 * the caller's callbacks only the backend's log and telemetry functions run, never
 * on_release_error. All signals are blocked in the threads of a queue.
 *
 * Fork. In a forked child the queue is empty: starting a request is InvalidArgument, next is
 * false, the descriptor is -1, and close frees memory only.
 */
#ifndef SYNCGUARD_QUEUE_H
#define SYNCGUARD_QUEUE_H

#include "lock.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct syncguard_queue syncguard_queue; /* requests, and their completions */

/* Names a request of one queue: never 0, never used again. */
typedef uint64_t syncguard_request;

typedef struct syncguard_queue_options { /* options of a queue */
    size_t size;
    /* Maximum number of threads that send requests to the store: 1 to 64, default 4. One more
     * thread watches the deadlines. */
    int max_threads;
} syncguard_queue_options;

#define SYNCGUARD_QUEUE_OPTIONS_INIT                                                               \
    {                                                                                              \
        sizeof(syncguard_queue_options), 4                                                         \
    }

/* Function twin of SYNCGUARD_QUEUE_OPTIONS_INIT. */
SYNCGUARD_API void syncguard_queue_options_init(syncguard_queue_options *options, size_t size);

/* The result of a request, or a lost lock; and the statuses that each kind can have. */
typedef enum syncguard_completion_kind {
    SYNCGUARD_COMPLETION_ACQUIRE = 1, /* OK, or a failure */
    SYNCGUARD_COMPLETION_RELEASE = 2, /* OK, ABSENT, or a failure */
    SYNCGUARD_COMPLETION_EXTEND = 3,  /* OK, ABSENT, or a failure */
    SYNCGUARD_COMPLETION_LOST = 4     /* ABSENT */
} syncguard_completion_kind;
typedef struct syncguard_completion {
    syncguard_completion_kind kind;
    syncguard_status status;   /* as of the blocking call; Aborted after a cancel */
    syncguard_request request; /* LOST: the acquire's */
    void *context;             /* as given with the request; LOST: the acquire's */
    /* ACQUIRE with status OK: the new lock, which the caller now owns. EXTEND, LOST: the lock
     * concerned; NULL after an EXTEND whose lock is being released. Otherwise NULL. */
    syncguard_lock *lock;
    syncguard_lost_reason lost; /* LOST: why; otherwise SYNCGUARD_LOST_NO */
    int64_t expires_at_ms;      /* EXTEND with status OK: the new expiry, in the store's time */
    syncguard_error error;      /* of a failure; otherwise empty */
} syncguard_completion;

/* Opens a queue and starts its first thread; options may be NULL. A backend may have several
 * queues, and stays open until the last is closed, as with locks. RateLimited if no descriptor or
 * thread is left. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_queue_open(syncguard_backend *backend, const syncguard_queue_options *options,
                     syncguard_queue **out, syncguard_error *err);

/* Readable while there are completions; the same for the queue's whole life, close-on-exec. It
 * belongs to the queue: watch it (not edge-triggered), never read from it or close it. */
SYNCGUARD_API int syncguard_queue_fd(const syncguard_queue *queue);

/* Takes the next completion and sets all its fields; false if there is none. Never blocks. The
 * completions of one lock come in order: ACQUIRE, its EXTENDs and LOST, RELEASE. */
SYNCGUARD_API bool syncguard_queue_next(syncguard_queue *queue, syncguard_completion *completion);

/* Starts an acquire with the options of syncguard_lock_acquire (NULL: the defaults). abort_object,
 * on_lost and on_wait must be NULL: a request is cancelled with syncguard_queue_cancel, and a loss
 * is a completion (with auto_extend only). *request (may be NULL) is set before it can complete. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_acquire_async(
    syncguard_queue *queue, const char *key, const syncguard_lock_options *options, void *context,
    syncguard_request *request, syncguard_error *err);

/* Starts the release of a lock. If this returns OK, the handle belongs to the library: the caller
 * must no longer use it. For a lock of this queue it fails only for bad arguments and in a forked
 * child. A lock of a blocking acquire on the same backend is accepted too (then also OutOfMemory);
 * if it has on_lost, its context must stay valid until the backend is closed. A release that fails
 * or is cancelled continues in the background until the lease ends; a cancel and the deadline also
 * end the lock's extends. The abort object in call must be NULL. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_release_async(
    syncguard_queue *queue, syncguard_lock *lock, const syncguard_call *call, void *context,
    syncguard_request *request, syncguard_error *err);

/* Starts an extend of such a lock. A release that is started later takes effect after it. The abort
 * object in call must be NULL. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_extend_async(
    syncguard_queue *queue, syncguard_lock *lock, int64_t ttl_ms, const syncguard_call *call,
    void *context, syncguard_request *request, syncguard_error *err);

/*
 * Ends a request early, even while a server hangs; it still completes. After this call an acquire
 * never hands out a lock: one that was granted in the meantime is released in the background; the
 * status is Aborted, also if the acquire had failed already. A release or extend that was sent may
 * have taken effect; its status is Aborted or its result. False if the completion has been taken,
 * or if the request is not of this queue.
 */
SYNCGUARD_API bool syncguard_queue_cancel(syncguard_queue *queue, syncguard_request request);

/*
 * Cancels open requests and frees the queue without waiting for the store; nothing completes any
 * more. In the background, granted locks that were not handed out are released, and started
 * releases continue; syncguard_close waits for both (see dispose_timeout_ms). Locks that were
 * handed out still belong to the caller (use the blocking calls); they are renewed, but their loss
 * is not reported. No other call may be using the queue. NULL is ignored.
 */
SYNCGUARD_API void syncguard_queue_close(syncguard_queue *queue);

#ifdef __cplusplus
}
#endif

#endif
