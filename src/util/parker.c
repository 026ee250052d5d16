/*
 * Lets one thread wait for another, see sys/wait.h.
 *
 * A light parker is one word: EMPTY, UNPARKED, or SLEEPING while its thread is (or is about to be)
 * in the futex. Only the parked thread sets SLEEPING and EMPTY.
 */
#include "syncguard/sys/fail.h"
#include "syncguard/sys/wait.h"
#include "util/event.h"

#include <unistd.h>

/* The pause of park before it reports that the program has closed the descriptor. */
#define PAUSE_NS (INT64_C(100) * SYNCGUARD_NS_PER_MS)

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>

enum { EMPTY, UNPARKED, SLEEPING };

/* The longest sleep on a futex, whose clock stops during suspend, unlike syncguard_clock_ns. */
#define NAP_NS (INT64_C(10000) * SYNCGUARD_NS_PER_MS)

static void parker_futex_wait(int *word, int64_t left_ns)
{
    if (left_ns > NAP_NS)
        left_ns = NAP_NS;
    struct timespec left = {(time_t)(left_ns / 1000000000), (long)(left_ns % 1000000000)};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, SLEEPING, &left, NULL, 0);
}

static syncguard_status parker_park_light(syncguard_parker *parker, const syncguard_limits *limits,
                                          syncguard_error *err)
{
    for (;;) {
        int seen = EMPTY;
        if (!__atomic_compare_exchange_n(&parker->word, &seen, SLEEPING, false, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST) &&
            seen == UNPARKED) {
            __atomic_store_n(&parker->word, EMPTY, __ATOMIC_SEQ_CST);
            return SYNCGUARD_OK;
        }
        syncguard_status status = syncguard_limits_check(limits, NULL);
        if (status == SYNCGUARD_OK) {
            parker_futex_wait(&parker->word, syncguard_limits_left_ns(limits));
            continue;
        }
        /* An earlier unpark counts even if the deadline has passed. */
        if (__atomic_exchange_n(&parker->word, EMPTY, __ATOMIC_SEQ_CST) == UNPARKED)
            return SYNCGUARD_OK;
        return syncguard_limits_check(limits, err);
    }
}

static void parker_unpark_light(syncguard_parker *parker)
{
    if (__atomic_exchange_n(&parker->word, UNPARKED, __ATOMIC_SEQ_CST) == SLEEPING)
        syscall(SYS_futex, &parker->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
#endif

syncguard_status syncguard_parker_open(syncguard_parker *parker, syncguard_error *err)
{
    parker->light = false;
    parker->pid = (int)getpid();
    if (!sg_event_open(parker->fds))
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "no file descriptor is left");
    return SYNCGUARD_OK;
}

syncguard_status syncguard_parker_open_light(syncguard_parker *parker,
                                             const syncguard_limits *limits, syncguard_error *err)
{
#ifdef __linux__
    if (limits == NULL || limits->abort_object == NULL) {
        *parker = (syncguard_parker)SYNCGUARD_PARKER_INIT;
        parker->light = true;
        return SYNCGUARD_OK;
    }
#else
    (void)limits;
#endif
    return syncguard_parker_open(parker, err);
}

void syncguard_parker_close(syncguard_parker *parker)
{
    if (!parker->light)
        sg_event_close(parker->fds, parker->pid);
}

void syncguard_parker_unpark(syncguard_parker *parker)
{
#ifdef __linux__
    if (parker->light) {
        parker_unpark_light(parker);
        return;
    }
#endif
    sg_event_set(parker->fds);
}

/* The program has closed the descriptor, so no thread can wake this one. The pause keeps a caller
 * that parks in a loop from using the processor all the time. */
static syncguard_status parker_park_closed(const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_status status = syncguard_wait_until(syncguard_clock_ns() + PAUSE_NS, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                          "a file descriptor of the library was closed by the program");
}

syncguard_status syncguard_parker_park(syncguard_parker *parker, const syncguard_limits *limits,
                                       syncguard_error *err)
{
#ifdef __linux__
    if (parker->light)
        return parker_park_light(parker, limits, err);
#endif
    struct pollfd fd = {parker->fds[0], POLLIN, 0};
    syncguard_status status = syncguard_wait_fds(&fd, 1, limits, err);

    /* An earlier unpark counts even if the deadline has passed: a caller that parks without any
     * time left only wants to consume the unpark. */
    if (status == SYNCGUARD_E_NETWORK_TIMEOUT && poll(&fd, 1, 0) > 0) {
        syncguard_error_clear(err);
        status = SYNCGUARD_OK;
    }
    if (status == SYNCGUARD_OK && (fd.revents & POLLNVAL) != 0)
        return parker_park_closed(limits, err);
    if (status == SYNCGUARD_OK)
        sg_event_reset(parker->fds);
    return status;
}
