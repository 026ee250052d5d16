/*
 * Locks for event loops: start a request, go on, and read its completion when the queue's
 * descriptor becomes readable. A waiting acquire costs memory, not a thread, and waiters of one key
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
 * Requests. Starting one never waits for the store. OK means that it completes exactly once, at
 * its deadline at the latest (which counts from the start call); any other status is returned at
 * once and nothing completes. Keys, options and limits are copied. Statuses, deadlines, retries and
 * promises are those of the blocking calls in lock.h; timeout_ms 0 is a single attempt.
 *
 * Ownership. A granted lock belongs to the caller, who ends it with syncguard_lock_release_async
 * on the same queue. The blocking release, dispose and detach may be used instead while no request
 * on this lock is open; they wait for the store. Questions (syncguard_lock_held, _fence, ...)
 * never block. Contexts are only passed through and may be NULL; that of an acquire comes back with
 * LOST, too, so it lives until the RELEASE completion was taken (or the lock was disposed of).
 *
 * Loss. A lock with auto_extend that can no longer be guaranteed gives one LOST completion, also
 * while an EXTEND hangs: after its grant, and after an EXTEND that the store answered with ABSENT.
 * Starting the release withdraws one that was not taken yet.
 *
 * Threads. Every function may be called from any thread; each completion goes to one taker. Of the
 * caller's callbacks only the backend's log and telemetry functions run, never on_release_error.
 * The threads of a queue block all signals.
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
    /* Most worker threads of this queue, which do the requests to the store: 1 to 64, default 4.
     * One more keeps the time. */
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
    /* ACQUIRE with status OK: the caller's from now on. EXTEND, LOST: the lock that they are about;
     * NULL after an EXTEND whose lock is being released. Otherwise NULL. */
    syncguard_lock *lock;
    syncguard_lost_reason lost; /* LOST: why; otherwise SYNCGUARD_LOST_NO */
    int64_t expires_at_ms;      /* EXTEND with status OK: the new expiry, in the store's time */
    syncguard_error error;      /* of a failure; otherwise empty */
} syncguard_completion;

/* Opens a queue and starts its first thread; options may be NULL. A backend may have several, and
 * stays open until the last is closed, as with locks. RateLimited when no descriptor or thread is
 * left. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_queue_open(syncguard_backend *backend, const syncguard_queue_options *options,
                     syncguard_queue **out, syncguard_error *err);

/* Readable while completions are waiting; the same for the queue's whole life, close-on-exec.
 * Belongs to the queue: watch it (not edge-triggered), never read or close it. */
SYNCGUARD_API int syncguard_queue_fd(const syncguard_queue *queue);

/* Takes the next completion and sets every field of it; false if there is none. Never blocks.
 * Those of one lock come in order: ACQUIRE, its EXTENDs and LOST, RELEASE. */
SYNCGUARD_API bool syncguard_queue_next(syncguard_queue *queue, syncguard_completion *completion);

/* Starts an acquire with the options of syncguard_lock_acquire (NULL: the defaults). abort_object,
 * on_lost and on_wait must be NULL: a request is cancelled with syncguard_queue_cancel, and a loss
 * is a completion (with auto_extend only). *request (may be NULL) is set before it can complete. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_acquire_async(
    syncguard_queue *queue, const char *key, const syncguard_lock_options *options, void *context,
    syncguard_request *request, syncguard_error *err);

/*
 * Starts the release of a lock. If this returns OK the handle is the library's: the caller no
 * longer uses it. For a lock of this queue it fails only for bad arguments and in a forked child.
 * A lock from a blocking acquire on the same backend may be given, too (then also OutOfMemory).
 * A release that fails, or that was cancelled, goes on in the background until the lease ends; a
 * cancel and the deadline end its lock's extends, too. In call the abort object must be NULL.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_release_async(
    syncguard_queue *queue, syncguard_lock *lock, const syncguard_call *call, void *context,
    syncguard_request *request, syncguard_error *err);

/* Starts an extend by hand of such a lock. A release that is started later takes effect after it.
 * In call the abort object must be NULL. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_lock_extend_async(
    syncguard_queue *queue, syncguard_lock *lock, int64_t ttl_ms, const syncguard_call *call,
    void *context, syncguard_request *request, syncguard_error *err);

/*
 * Ends a request early, also while a server hangs; it still completes. After this call an acquire
 * never hands out a lock: one that was granted meanwhile is given back in the background, and its
 * status is Aborted. A release or extend that was sent may have taken effect; its status is Aborted
 * or its result. False if the completion has been taken, or the request is not of this queue.
 */
SYNCGUARD_API bool syncguard_queue_cancel(syncguard_queue *queue, syncguard_request request);

/*
 * Cancels what is open and frees the queue without waiting for the store; nothing completes any
 * more. Locks that were granted but not handed out are given back and started releases go on, both
 * in the background, which syncguard_close drains (see dispose_timeout_ms). Locks that were handed
 * out stay the caller's, to be ended with the blocking calls; they are still renewed, but nobody is
 * told of their loss. No other call may be using the queue. NULL is ignored.
 */
SYNCGUARD_API void syncguard_queue_close(syncguard_queue *queue);

#ifdef __cplusplus
}
#endif

#endif
