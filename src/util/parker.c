/* A place for one thread to wait for another, see sys/wait.h. */
#include "syncguard/sys/fail.h"
#include "syncguard/sys/wait.h"
#include "util/event.h"

syncguard_status syncguard_parker_open(syncguard_parker *parker, syncguard_error *err)
{
    if (!sg_event_open(parker->fds))
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "no file descriptor is left");
    return SYNCGUARD_OK;
}

void syncguard_parker_close(syncguard_parker *parker)
{
    sg_event_close(parker->fds);
}

void syncguard_parker_unpark(syncguard_parker *parker)
{
    sg_event_set(parker->fds);
}

syncguard_status syncguard_parker_park(syncguard_parker *parker, const syncguard_limits *limits,
                                       syncguard_error *err)
{
    struct pollfd fd = {parker->fds[0], POLLIN, 0};
    syncguard_status status = syncguard_wait_fds(&fd, 1, limits, err);

    /* An unpark that came before counts even if the deadline has passed: who parks with no time
     * at all only wants to take it. */
    if (status == SYNCGUARD_E_NETWORK_TIMEOUT && poll(&fd, 1, 0) > 0) {
        syncguard_error_clear(err);
        status = SYNCGUARD_OK;
    }
    if (status == SYNCGUARD_OK)
        sg_event_reset(parker->fds);
    return status;
}
