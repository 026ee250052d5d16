/*
 * An acquire without a thread: its state, and the steps that its driver takes.
 *
 *     begin                    checks and memory, no I/O
 *     try, then next           until next says END:
 *         TRY                  try again
 *         PAUSE                a pause begins: pause, then next
 *         WAIT                 sleep until waiting.wake is called or until_ns, then next
 *     finish                   the outcome
 *
 * Only try does I/O; the other steps never block. The blocking driver (lock_wait.c) takes them all
 * in the thread of the caller and parks in WAIT; a completion queue takes them in any free thread.
 * One thread at a time owns the state.
 */
#ifndef SG_LOCK_ACQUIRE_H
#define SG_LOCK_ACQUIRE_H

#include "syncguard/lock.h"
#include "wait_queue.h"

typedef enum sg_acquire_step {
    SG_ACQUIRE_TRY,
    SG_ACQUIRE_PAUSE,
    SG_ACQUIRE_WAIT,
    SG_ACQUIRE_END
} sg_acquire_step;

/* The state that must last as long as the waiting, and nothing else: thousands may wait. */
typedef struct sg_acquire {
    syncguard_backend *backend;
    syncguard_lock *lock;     /* being prepared; has the key of the last try */
    syncguard_acquire_op *op; /* of the last try, for next and finish; belongs to the driver */
    syncguard_limits limits;  /* of the whole call */
    int64_t started_ns;
    int64_t pause_begun_ns;
    int64_t pause_end_ns;
    int64_t retry_delay_ms; /* the options from here on */
    int64_t max_hold_ms;
    int64_t min_hold_ms;
    int max_retries;
    bool retry_unavailable;
    bool auto_extend;
    uint8_t backoff;
    uint8_t jitter;
    bool waits;               /* false: LOCKED is an outcome */
    bool single;              /* one attempt */
    bool expected;            /* by the heartbeat */
    bool joined;              /* the wait queue */
    bool pausing;             /* a pause has begun and is not over */
    int attempts;             /* all tries */
    int retries;              /* counted tries after the first */
    syncguard_status status;  /* of the last try, or the reason why the waiting ended */
    syncguard_status answer;  /* of the last try that ran to its end; OK: none did */
    syncguard_error *failure; /* error of that answer, if retry_unavailable may need it */
    uint16_t slots;           /* 0: a plain lock */
    uint16_t slot;            /* of the next or last try, from 0: also the index of its waiter */
    int64_t *remaining_ms;    /* of each slot, as the first attempt found it; or NULL */
    sg_waiting waiting;       /* the driver sets wake */
} sg_acquire;

/* Reads and checks the given options (NULL: the defaults). */
syncguard_status sg_lock_options_read(const syncguard_lock_options *given,
                                      syncguard_lock_options *options, syncguard_error *err);
/* Fills in *c except for op and waiting.wake, and *options with the given ones (NULL: the
 * defaults), which it checks. On failure the caller has nothing to undo. */
syncguard_status sg_acquire_begin(sg_acquire *c, syncguard_backend *backend, const char *key,
                                  const syncguard_lock_options *given, bool waits,
                                  syncguard_lock_options *options, syncguard_error *err);
/* Makes one try, with the limits of one operation from since_ns on. */
void sg_acquire_try(sg_acquire *c, int64_t since_ns, syncguard_error *err);
/* The first try in two halves, for a driver that performs the operation c->op itself. begin: false
 * if it failed; the driver must not call end then. */
bool sg_acquire_try_begin(sg_acquire *c, int64_t since_ns, syncguard_error *err);
void sg_acquire_try_end(sg_acquire *c, syncguard_status status, syncguard_error *err);
/* Counts a try that no worker could begin within the limits of one operation. */
void sg_acquire_try_missed(sg_acquire *c, syncguard_error *err);
/* After the first try: whether next will join the wait queue. */
bool sg_acquire_may_wait(const sg_acquire *c);
sg_acquire_step sg_acquire_next(sg_acquire *c, int64_t *until_ns, syncguard_error *err);
void sg_acquire_pause(sg_acquire *c);
/* Turns c->status into the outcome. OK sets *out; otherwise the lock is freed. */
syncguard_status sg_acquire_finish(sg_acquire *c, syncguard_lock **out, syncguard_error *err);
/* Frees an acquire that was begun but not finished, or that the parent of this process began. */
void sg_acquire_forget(sg_acquire *c);
/* The longest pause of a waiter that has to poll. */
int64_t sg_acquire_longest_poll_ms(const sg_acquire *c);

#endif
