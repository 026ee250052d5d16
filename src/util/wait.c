/*
 * The one place where the library waits. Every wait is a poll over the caller's descriptors and
 * that of the abort object, for the time that is left.
 *
 * The clock is read again after each poll: a poll may end early, and its timeout does not count the
 * time in suspend.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "syncguard/sys/fail.h"
#include "syncguard/sys/wait.h"
#include "util/thread.h"

#define MAX_FDS 130
/* The longest single poll. Its timer does not count the time in suspend, so a suspend can delay the
 * end of a wait by this much. */
#define SLICE_NS (INT64_C(10000) * SYNCGUARD_NS_PER_MS)

/* How often the flag of an abort object is checked if the program has closed its descriptor. */
#define ABORT_POLL_NS (INT64_C(100) * SYNCGUARD_NS_PER_MS)

static syncguard_status wait_fail_aborted(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_ABORTED, NULL, "the operation was aborted");
}

static syncguard_status wait_fail_timeout(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, NULL,
                          "the operation's deadline passed");
}

syncguard_status syncguard_limits_check(const syncguard_limits *limits, syncguard_error *err)
{
    if (limits == NULL)
        return SYNCGUARD_OK;
    if (syncguard_abort_triggered(limits->abort_object))
        return wait_fail_aborted(err);
    if (syncguard_limits_left_ns(limits) == 0)
        return wait_fail_timeout(err);
    return SYNCGUARD_OK;
}

int64_t syncguard_limits_left_ns(const syncguard_limits *limits)
{
    if (limits == NULL || limits->deadline_ns == SYNCGUARD_NO_DEADLINE)
        return SYNCGUARD_NO_DEADLINE;
    int64_t now = syncguard_clock_ns();
    return limits->deadline_ns > now ? limits->deadline_ns - now : 0;
}

syncguard_limits syncguard_limits_from_now(const syncguard_limits *limits, int64_t span_ns)
{
    syncguard_limits result = *limits;
    int64_t now = syncguard_clock_ns();
    result.deadline_ns =
        span_ns < SYNCGUARD_NO_DEADLINE - now ? now + span_ns : SYNCGUARD_NO_DEADLINE;
    return result;
}

syncguard_limits syncguard_limits_until(const syncguard_limits *limits, int64_t at_ns)
{
    syncguard_limits narrowed = {SYNCGUARD_NO_DEADLINE, NULL};
    if (limits != NULL)
        narrowed = *limits;
    if (at_ns < narrowed.deadline_ns)
        narrowed.deadline_ns = at_ns;
    return narrowed;
}

/* One poll of at most left_ns (rounded up where the system counts milliseconds). */
static int wait_poll_once(struct pollfd *fds, nfds_t count, int64_t left_ns)
{
    if (left_ns > SLICE_NS)
        left_ns = SLICE_NS;
#ifdef __linux__
    struct timespec timeout = {(time_t)(left_ns / 1000000000), (long)(left_ns % 1000000000)};
    return ppoll(fds, count, &timeout, NULL);
#else
    return poll(fds, count, (int)((left_ns + SYNCGUARD_NS_PER_MS - 1) / SYNCGUARD_NS_PER_MS));
#endif
}

/* Adds the descriptor of the abort object after the caller's. */
static syncguard_status wait_add_abort_fd(struct pollfd *set, nfds_t *count,
                                          const syncguard_limits *limits, syncguard_error *err)
{
    if (limits == NULL || limits->abort_object == NULL)
        return SYNCGUARD_OK;
    int fd = syncguard_abort_fd(limits->abort_object);
    if (fd < 0)
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL,
                              "no file descriptor is left for the abort object");
    set[*count].fd = fd;
    set[*count].events = POLLIN;
    set[*count].revents = 0;
    (*count)++;
    return SYNCGUARD_OK;
}

static int64_t wait_abort_poll_ns(const syncguard_limits *limits)
{
    int64_t left = syncguard_limits_left_ns(limits);
    return left < ABORT_POLL_NS ? left : ABORT_POLL_NS;
}

syncguard_status syncguard_wait_fds(struct pollfd *fds, nfds_t count,
                                    const syncguard_limits *limits, syncguard_error *err)
{
    nfds_t all = count;
    if (count > MAX_FDS)
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "too many descriptors to wait for");
    struct pollfd set[MAX_FDS + 1];
    if (count != 0)
        memcpy(set, fds, count * sizeof *fds);
    syncguard_status status = wait_add_abort_fd(set, &all, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    bool abort_fd_closed = false;
    for (;;) {
        status = syncguard_limits_check(limits, err);
        if (status != SYNCGUARD_OK)
            return status;
        int ready = wait_poll_once(set, all,
                                   abort_fd_closed ? wait_abort_poll_ns(limits)
                                                   : syncguard_limits_left_ns(limits));
        if (ready < 0 && errno != EINTR && errno != EAGAIN)
            return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "poll failed: %s",
                                  syncguard_errno_text(errno));
        if (limits != NULL && syncguard_abort_triggered(limits->abort_object))
            return wait_fail_aborted(err);
        if (ready <= 0)
            continue;
        if (all > count && (set[count].revents & POLLNVAL) != 0) {
            all = count; /* poll would report it every time: check the flag from now on */
            abort_fd_closed = true;
        }
        bool any = false;
        for (nfds_t i = 0; i < count; i++) {
            fds[i].revents = set[i].revents;
            any = any || set[i].revents != 0;
        }
        if (any)
            return SYNCGUARD_OK;
    }
}

syncguard_status syncguard_wait_until(int64_t at_ns, const syncguard_limits *limits,
                                      syncguard_error *err)
{
    syncguard_limits until = syncguard_limits_until(limits, at_ns);
    syncguard_status status = syncguard_wait_fds(NULL, 0, &until, err);
    if (status != SYNCGUARD_E_NETWORK_TIMEOUT || until.deadline_ns < at_ns)
        return status;
    syncguard_error_clear(err);
    return SYNCGUARD_OK;
}

int syncguard_thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all;
    sigfillset(&all);
    sigset_t before;
    int failed = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (failed != 0)
        return failed;
    failed = pthread_create(thread, NULL, run, argument);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

syncguard_status sg_thread_start(pthread_t *thread, void *(*run)(void *), void *argument,
                                 const char *purpose, syncguard_error *err)
{
    int failed = syncguard_thread_start(thread, run, argument);
    if (failed == ENOMEM)
        return syncguard_fail_memory(err);
    if (failed != 0)
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "no thread can be started to %s",
                              purpose);
    return SYNCGUARD_OK;
}
