/*
 * Time and waiting.
 *
 * Invariant of the whole library: a wait for a store, and every wait that the deadline or the abort
 * object of a caller must be able to end, goes through these functions. Condition variables are
 * only for threads that wait for another thread of the process. Deadlines are nanoseconds of a
 * clock that nobody can set and that continues during suspend.
 */
#ifndef SYNCGUARD_SYS_WAIT_H
#define SYNCGUARD_SYS_WAIT_H

#include <poll.h>
#include <pthread.h>

#include "../abort.h"
#include "list.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Times are in nanoseconds. */
#define SYNCGUARD_NS_PER_MS INT64_C(1000000)
#define SYNCGUARD_NO_DEADLINE INT64_MAX

/* CLOCK_BOOTTIME where it exists, else CLOCK_MONOTONIC. */
SYNCGUARD_API int64_t syncguard_clock_ns(void);
/* The wall clock in milliseconds since 1970; only for times that are stored or shown. */
SYNCGUARD_API int64_t syncguard_wall_ms(void);
/* from_ns + ms, or SYNCGUARD_NO_DEADLINE if the sum overflows; a negative ms counts as 0. */
SYNCGUARD_API int64_t syncguard_clock_after(int64_t from_ns, int64_t ms);

/* The limits of one operation. Passed down by pointer, and not used after the call has returned. */
typedef struct syncguard_limits {
    int64_t deadline_ns; /* SYNCGUARD_NO_DEADLINE: none */
    syncguard_abort *abort_object;
} syncguard_limits;

/* OK, Aborted or NetworkTimeout (Aborted if both apply). Only the clock may need a system call. */
SYNCGUARD_API syncguard_status syncguard_limits_check(const syncguard_limits *limits,
                                                      syncguard_error *err);
/* Nanoseconds until the deadline, 0 if it has passed, SYNCGUARD_NO_DEADLINE if there is none. */
SYNCGUARD_API int64_t syncguard_limits_left_ns(const syncguard_limits *limits);
/* The same limits with a deadline not later than at_ns. */
SYNCGUARD_API syncguard_limits syncguard_limits_until(const syncguard_limits *limits,
                                                      int64_t at_ns);

/* The same abort object, and a deadline span_ns from now (SYNCGUARD_NO_DEADLINE: none). For
 * listings, in which each page has the time of a whole call. */
SYNCGUARD_API syncguard_limits syncguard_limits_from_now(const syncguard_limits *limits,
                                                         int64_t span_ns);

/*
 * poll(2) on fds (at most 130) that also ends by deadline and abort. OK when a
 * descriptor is ready (revents are filled in), else Aborted or NetworkTimeout.
 * Signals do not end it. A descriptor with POLLNVAL (the program has closed it) is also
 * ready: a loop must treat this as the end of its descriptor, or it spins forever.
 */
SYNCGUARD_API syncguard_status syncguard_wait_fds(struct pollfd *fds, nfds_t count,
                                                  const syncguard_limits *limits,
                                                  syncguard_error *err);
/* Sleeps until at_ns: OK when it is reached, else as above. */
SYNCGUARD_API syncguard_status syncguard_wait_until(int64_t at_ns, const syncguard_limits *limits,
                                                    syncguard_error *err);

/*
 * Lets one thread wait for another. An unpark before the park is remembered; several
 * unparks count as one.
 */
typedef struct syncguard_parker {
    int fds[2]; /* eventfd in both, or the two ends of a pipe */
    int word;   /* of a light parker, which has no descriptors */
    int pid;    /* of the process that opened it */
    bool light;
} syncguard_parker;
#define SYNCGUARD_PARKER_INIT                                                                      \
    {                                                                                              \
        {-1, -1}, 0, 0, false                                                                      \
    }
/* RateLimited when no descriptor is left. */
SYNCGUARD_API syncguard_status syncguard_parker_open(syncguard_parker *parker,
                                                     syncguard_error *err);
/* The same for a thread that only parks, and always with the abort object of these limits. If
 * there is none and the system has futexes, it needs no descriptor, and waiting costs half. */
SYNCGUARD_API syncguard_status syncguard_parker_open_light(syncguard_parker *parker,
                                                           const syncguard_limits *limits,
                                                           syncguard_error *err);
/* In a forked child the parent's descriptors stay open: see sys/descriptor.h. */
SYNCGUARD_API void syncguard_parker_close(syncguard_parker *parker);
SYNCGUARD_API void syncguard_parker_unpark(syncguard_parker *parker);
/* OK if unparked, even if the deadline has passed; else Aborted or NetworkTimeout. Internal, after
 * a pause, if the program has closed the descriptor. */
SYNCGUARD_API syncguard_status syncguard_parker_park(syncguard_parker *parker,
                                                     const syncguard_limits *limits,
                                                     syncguard_error *err);

/*
 * A semaphore with deadline and abort: at most `places` threads are inside, and the
 * others wait in order of arrival. Used for connections. If a place is free, entering
 * takes one mutex and no system call.
 */
typedef struct syncguard_gate {
    pthread_mutex_t mutex;
    int places;
    syncguard_links waiters; /* syncguard_gate_waiter */
} syncguard_gate;
typedef struct syncguard_gate_waiter {
    syncguard_parker parker;
    syncguard_link link;
    bool admitted;
} syncguard_gate_waiter;
SYNCGUARD_API syncguard_status syncguard_gate_init(syncguard_gate *gate, int places,
                                                   syncguard_error *err);
SYNCGUARD_API void syncguard_gate_destroy(syncguard_gate *gate);
SYNCGUARD_API syncguard_status syncguard_gate_enter(syncguard_gate *gate,
                                                    const syncguard_limits *limits,
                                                    syncguard_error *err);
SYNCGUARD_API void syncguard_gate_leave(syncguard_gate *gate);
/* pthread_create with all signals blocked in the new thread. Returns 0 or an errno value. */
SYNCGUARD_API int syncguard_thread_start(pthread_t *thread, void *(*run)(void *), void *argument);

#ifdef __cplusplus
}
#endif

#endif
