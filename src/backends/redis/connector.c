/*
 * Connecting for a link, in a thread of its own that ends when it is done.
 *
 * A caller that connected itself would take its attempt along when its time is
 * over: callers with deadlines shorter than the set-up of a connection would never
 * get one, and would keep those with longer deadlines, who wait behind them, from
 * getting one. So callers only wait in the link's queue, each with its own limits,
 * and the attempt goes on without them.
 *
 * Locking: everything is called, and link->attempt changed, with link->mutex held;
 * the thread lets go of it while it connects. There is one thread per link, and it
 * is joined before another one starts or the link ends.
 */
#include <string.h>

#include "slot.h"

/* For how long an attempt goes on: as long as somebody waits for it, but within these. What takes
 * longer is begun anew, at another address if there is one. */
#define SHORTEST_ATTEMPT_NS (2000 * SYNCGUARD_NS_PER_MS)
#define LONGEST_ATTEMPT_NS (10000 * SYNCGUARD_NS_PER_MS)

static int64_t attempt_end(const sg_link *link)
{
    int64_t now = syncguard_clock_ns();
    int64_t end = now + SHORTEST_ATTEMPT_NS;
    for (const sg_slot *slot = link->queue; slot != NULL; slot = slot->next) {
        if (slot->deadline_ns > end)
            end = slot->deadline_ns;
    }
    return end - now > LONGEST_ATTEMPT_NS ? now + LONGEST_ATTEMPT_NS : end;
}

static syncguard_status attempt(sg_link *link, sg_conn **conn, syncguard_error *err)
{
    syncguard_limits limits = {attempt_end(link), link->stop};
    int64_t begun = syncguard_clock_ns();
    char host[sizeof link->host];
    sg_address fixed = {host, link->port};
    memcpy(host, link->host, sizeof host);
    pthread_mutex_unlock(&link->mutex);
    syncguard_error_clear(err);
    syncguard_status status =
        fixed.port != 0
            ? sg_redis_conn_open(link->backend, &fixed, SG_ROLE_STORE, &limits, conn, err)
            : sg_redis_route_connect(link->backend, &limits, conn, err);
    pthread_mutex_lock(&link->mutex);
    if (status == SYNCGUARD_OK)
        (*conn)->setup_ns = syncguard_clock_ns() - begun;
    if (fixed.port != link->port || strcmp(host, link->host) != 0) { /* aimed elsewhere meanwhile */
        sg_redis_conn_close(*conn);
        *conn = NULL;
        return SYNCGUARD_E_NETWORK_TIMEOUT;
    }
    return status;
}

static void *run(void *argument)
{
    sg_link *link = argument;
    syncguard_error error;
    syncguard_status status;
    sg_conn *conn = NULL;
    pthread_mutex_lock(&link->mutex);
    do
        status = attempt(link, &conn, &error);
    while (status == SYNCGUARD_E_NETWORK_TIMEOUT && link->queue != NULL &&
           !syncguard_abort_triggered(link->stop));
    link->connecting = false;
    sg_redis_link_connected(link, conn, status, &error);
    pthread_mutex_unlock(&link->mutex);
    return NULL;
}

/* The thread has nothing left to do but to return. */
static void join(sg_link *link)
{
    if (link->joinable)
        pthread_join(link->connector, NULL);
    link->joinable = false;
}

syncguard_status sg_redis_connector_start(sg_link *link, syncguard_error *err)
{
    if (link->connecting)
        return SYNCGUARD_OK;
    join(link);
    if (link->stop == NULL) {
        syncguard_status status = syncguard_abort_create(&link->stop, err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    if (syncguard_thread_start(&link->connector, run, link) != 0)
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, "EAGAIN",
                              "redis: no thread to connect with");
    link->connecting = link->joinable = true;
    return SYNCGUARD_OK;
}

void sg_redis_connector_end(sg_link *link, bool forked)
{
    if (!forked) {
        syncguard_abort_trigger(link->stop);
        join(link);
    }
    syncguard_abort_free(link->stop);
    link->stop = NULL;
}
