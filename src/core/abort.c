/*
 * Abort objects: a flag, and a descriptor that wakes the threads that poll it.
 *
 * The descriptor belongs to one process. A forked child has a copy of the flag,
 * but its copy of the descriptor is still the parent's, so the child makes its
 * own when it first waits. Each descriptor sits in a channel that never changes and
 * lives as long as the object: readers (a signal handler among them) need no
 * lock, only the pointer to the newest channel is replaced. A child never closes its
 * parent's descriptors (see sys/descriptor.h).
 *
 * No wake-up is lost: trigger sets the flag and then reads the newest channel; a thread
 * that publishes a channel reads the flag afterwards.
 */
#include "abort.h"

#include <stdatomic.h>
#include <unistd.h>

#include "syncguard/sys/alloc.h"
#include "syncguard/sys/cancel.h"
#include "syncguard/sys/fail.h"
#include "syncguard/sys/wait.h"
#include "util/event.h"

typedef struct channel {
    pid_t pid;
    int fds[2];
    struct channel *older;
} channel;

struct syncguard_abort {
    atomic_bool triggered;
    _Atomic(channel *) newest;
};

static syncguard_status channel_create(channel *older, channel **out, syncguard_error *err)
{
    channel *made = syncguard_calloc(1, sizeof *made);
    if (made == NULL)
        return syncguard_fail_memory(err);
    made->pid = getpid();
    if (!sg_event_open(made->fds)) {
        syncguard_free(made);
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "no file descriptor is left");
    }
    made->older = older;
    *out = made;
    return SYNCGUARD_OK;
}

static void channel_free(channel *gone)
{
    sg_event_close(gone->fds, (int)gone->pid);
    syncguard_free(gone);
}

syncguard_status syncguard_abort_create(syncguard_abort **out, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (out == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "out must be given");
    *out = NULL;
    syncguard_abort *made = syncguard_calloc(1, sizeof *made);
    if (made == NULL)
        return syncguard_fail_memory(err);
    channel *first = NULL;
    syncguard_status status = channel_create(NULL, &first, err);
    if (status != SYNCGUARD_OK) {
        syncguard_free(made);
        return status;
    }
    atomic_init(&made->triggered, false);
    atomic_init(&made->newest, first);
    *out = made;
    return SYNCGUARD_OK;
}

void syncguard_abort_trigger(syncguard_abort *abort_object)
{
    SYNCGUARD_NO_CANCEL;
    if (abort_object == NULL)
        return;
    atomic_store(&abort_object->triggered, true);
    channel *newest = atomic_load(&abort_object->newest);
    if (newest->pid == getpid())
        sg_event_set(newest->fds);
}

void sg_abort_reset(syncguard_abort *abort_object)
{
    const channel *newest = atomic_load(&abort_object->newest);
    if (!atomic_load(&abort_object->triggered))
        return;
    if (newest->pid == getpid())
        sg_event_reset(newest->fds);
    atomic_store(&abort_object->triggered, false);
}

bool syncguard_abort_triggered(const syncguard_abort *abort_object)
{
    return abort_object != NULL &&
           atomic_load_explicit(&abort_object->triggered, memory_order_acquire);
}

int syncguard_abort_fd(syncguard_abort *abort_object)
{
    if (abort_object == NULL)
        return -1;
    channel *newest = atomic_load(&abort_object->newest);
    if (newest->pid == getpid())
        return newest->fds[0];
    channel *made = NULL;
    (void)channel_create(newest, &made, NULL);
    if (made == NULL)
        return -1;
    /* If several threads of the child get here, one wins and the others use its channel. The
     * parent's copies stay open until the object is freed: another thread may still read them. */
    if (!atomic_compare_exchange_strong(&abort_object->newest, &newest, made)) {
        channel_free(made);
        return newest->fds[0];
    }
    if (atomic_load(&abort_object->triggered))
        sg_event_set(made->fds);
    return made->fds[0];
}

void syncguard_abort_free(syncguard_abort *abort_object)
{
    SYNCGUARD_NO_CANCEL;
    if (abort_object == NULL)
        return;
    channel *older;
    for (channel *at = atomic_load(&abort_object->newest); at != NULL; at = older) {
        older = at->older;
        channel_free(at);
    }
    syncguard_free(abort_object);
}
