/*
 * The round trips of a link's callers, and its connection.
 *
 * A thread of its own makes the connection and ends when it is done. If a caller connected itself,
 * its attempt would end with its deadline: callers with deadlines shorter than the set-up of a
 * connection would never get one, and would keep the callers behind them, whose deadlines may be
 * longer, from getting one. So callers only wait in the link's queue, each with its own limits, and
 * the attempt goes on without them.
 *
 * Locking: everything happens with the mutex of link->callers held; the connecting thread releases
 * it while it connects. There is one such thread per link, and it is joined before another one
 * starts or the link ends.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "errors.h"
#include "pipeline.h"
#include "syncguard/sys/report.h"
#include "tls.h"

/* A connection that was unused for this long is checked before a request is sent on it. */
#define IDLE_NS (100 * SYNCGUARD_NS_PER_MS)
/* When a caller gives up, its connection is given up, too, if it owes a reply and nothing has
 * arrived on it for this long. The time is longer if other callers wait for the connection, because
 * their deadlines may be later. In both cases twice the set-up time of the connection is added,
 * because the network may be slow. */
#define SILENT_NS (1000 * SYNCGUARD_NS_PER_MS)
#define SHARED_SILENT_NS (1500 * SYNCGUARD_NS_PER_MS)
/* An attempt to connect lasts as long as a caller waits for it, but within these limits. An attempt
 * that takes longer is started again, with another address if there is one. */
#define SHORTEST_ATTEMPT_NS (2000 * SYNCGUARD_NS_PER_MS)
#define LONGEST_ATTEMPT_NS (10000 * SYNCGUARD_NS_PER_MS)
/* After this many broken attempts in a row the waiting callers get the error. One is not enough: a
 * server that closes the connections of its clients also closes those that are being set up. */
#define MOST_BROKEN 3

/* ---- connecting ---- */

static int64_t link_attempt_end_ns(const sg_redis_link *link)
{
    int64_t now = syncguard_clock_ns();
    int64_t end = now + SHORTEST_ATTEMPT_NS;
    for (const sg_redis_caller *at = link->queue; at != NULL; at = at->next) {
        if (at->deadline_ns > end)
            end = at->deadline_ns;
    }
    return end - now > LONGEST_ATTEMPT_NS ? now + LONGEST_ATTEMPT_NS : end;
}

static syncguard_status link_attempt_connect(sg_redis_link *link, sg_redis_connection **conn,
                                             syncguard_error *err)
{
    syncguard_limits limits = {link_attempt_end_ns(link), link->stop};
    int64_t begun = syncguard_clock_ns();
    char host[sizeof link->host];
    sg_redis_address fixed = {host, link->port};
    memcpy(host, link->host, sizeof host);
    pthread_mutex_unlock(&link->callers.mutex);
    syncguard_error_clear(err);
    syncguard_status status =
        fixed.port != 0 ? sg_redis_connection_open(link->dialer, &fixed, SG_REDIS_ROLE_STORE,
                                                   &limits, conn, err)
                        : sg_redis_route_connect(link->dialer, link->topology, &limits, conn, err);
    pthread_mutex_lock(&link->callers.mutex);
    if (status == SYNCGUARD_OK)
        (*conn)->setup_ns = syncguard_clock_ns() - begun;
    if (fixed.port != link->port || strcmp(host, link->host) != 0) { /* aimed elsewhere meanwhile */
        sg_redis_connection_close(*conn);
        *conn = NULL;
        return SYNCGUARD_E_NETWORK_TIMEOUT;
    }
    return status;
}

/* Hands the result of the attempt, conn or NULL and a status, to all callers in the queue. */
static void link_finish_connect(sg_redis_link *link, sg_redis_connection *conn,
                                syncguard_status status, syncguard_error *error)
{
    sg_redis_wakes wakes;
    sg_redis_wakes_init(&wakes);
    sg_redis_caller *caller = link->queue;
    link->queue = link->queue_last = NULL;
    link->conn = conn;
    if (conn != NULL) {
        conn->serial = ++link->connections;
        link->used_ns = link->heard_ns = syncguard_clock_ns();
        link->reconnected = link->connected_before;
        link->connected_before = true;
    }
    while (caller != NULL) {
        sg_redis_caller *next = caller->next;
        if (link->conn != NULL)
            sg_redis_pipeline_submit(link, caller);
        else
            sg_redis_pipeline_fail(link, caller,
                                   conn == NULL ? status : syncguard_fail_memory(error), error);
        caller = next;
    }
    if (link->leader == NULL)
        sg_redis_pipeline_promote(link, &wakes);
    sg_redis_wake_all(&link->callers, &wakes);
}

/* Whether a failed attempt is followed by another one. */
static bool link_count_failed_connect(const sg_redis_link *link, syncguard_status status,
                                      const syncguard_error *error, int *broken)
{
    if (link->queue == NULL || syncguard_abort_triggered(link->stop))
        return false;
    return status == SYNCGUARD_E_NETWORK_TIMEOUT ||
           (sg_redis_is_broken(status, error) && ++*broken < MOST_BROKEN);
}

static void *link_connector_run(void *argument)
{
    sg_redis_link *link = argument;
    syncguard_error error;
    syncguard_status status;
    sg_redis_connection *conn = NULL;
    int broken = 0;
    pthread_mutex_lock(&link->callers.mutex);
    do
        status = link_attempt_connect(link, &conn, &error);
    while (link_count_failed_connect(link, status, &error, &broken));
    link->connecting = false;
    link_finish_connect(link, conn, status, &error);
    pthread_mutex_unlock(&link->callers.mutex);
    sg_redis_tls_thread_ends();
    return NULL;
}

/* The thread is about to return or has been stopped, so joining does not block for long. */
static void link_connector_join(sg_redis_link *link)
{
    if (link->joinable)
        pthread_join(link->connector, NULL);
    link->joinable = false;
}

/* Makes a connection in the background, unless one is being made. */
static syncguard_status link_connector_start(sg_redis_link *link, syncguard_error *err)
{
    if (link->connecting)
        return SYNCGUARD_OK;
    link_connector_join(link);
    if (link->stop == NULL) {
        syncguard_status status = syncguard_abort_create(&link->stop, err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    if (syncguard_thread_start(&link->connector, link_connector_run, link) != 0)
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, "EAGAIN", "no thread to connect with");
    link->connecting = link->joinable = true;
    return SYNCGUARD_OK;
}

/* ---- round trips ---- */

/* Whether the server or the program has closed the connection. If the program did, the descriptor's
 * number may belong to another one by now. */
static bool link_connection_is_closed(const sg_redis_connection *conn)
{
    char byte;
    if (!sg_redis_connection_is_open(conn))
        return true;
    ssize_t n = recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* Gives up a connection that was closed while it was idle, or that leads to a former primary. */
static void link_check_connection(sg_redis_link *link, int64_t now)
{
    sg_redis_connection *conn = link->conn;
    if (conn == NULL)
        return;
    if (link->port == 0 && link->dialer->config->mode != SYNCGUARD_REDIS_SINGLE &&
        conn->generation != sg_redis_topology_generation(link->topology)) {
        sg_redis_pipeline_break(link, conn);
        return;
    }
    if (link->flight == NULL && link->leader == NULL && now - link->used_ns > IDLE_NS &&
        link_connection_is_closed(conn))
        sg_redis_pipeline_break(link, conn);
}

/* Whether the connection has been silent for too long when a caller gives up. The caller's own wait
 * may have been short, so the oldest request counts, even if its caller gave up long ago. */
static bool link_is_silent(const sg_redis_link *link)
{
    int64_t since = link->flight->sent_ns;
    int64_t most = SILENT_NS;
    if (link->heard_ns > since)
        since = link->heard_ns;
    for (const sg_redis_caller *at = link->flight; at != NULL; at = at->next) {
        if (at->trip != NULL)
            most = SHARED_SILENT_NS;
    }
    return syncguard_clock_ns() - since > most + 2 * link->conn->setup_ns;
}

/* The thread leaves; what it has sent will still be answered. */
static void link_abandon_caller(sg_redis_link *link, sg_redis_caller *caller)
{
    if (!caller->queued) {
        sg_redis_replies_free(caller->trip->replies, caller->got);
        caller->trip = NULL;
        if (link_is_silent(link)) {
            sg_redis_pipeline_break(link, link->conn);
            if (link->tracker != NULL)
                sg_redis_tracker_distrust(link->tracker);
        }
        return;
    }
    sg_redis_caller **at = &link->queue;
    sg_redis_caller *before = NULL;
    while (*at != caller) {
        before = *at;
        at = &(*at)->next;
    }
    *at = caller->next;
    if (link->queue_last == caller)
        link->queue_last = before;
    sg_redis_caller_give(&link->callers, caller);
}

static syncguard_status link_collect_result(sg_redis_link *link, sg_redis_caller *caller,
                                            syncguard_error *err)
{
    syncguard_status status = caller->status;
    if (caller->uncollected && --link->uncollected == 0 && sg_redis_pipeline_is_due(link))
        sg_redis_pipeline_send(link);
    if (status != SYNCGUARD_OK) {
        if (err != NULL)
            *err = caller->error;
        sg_redis_replies_free(caller->trip->replies, caller->got);
    }
    sg_redis_caller_give(&link->callers, caller);
    return status;
}

/* Waits until the replies have arrived, or until the limits are reached. */
static syncguard_status link_wait_result(sg_redis_link *link, sg_redis_caller *caller,
                                         const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    while (!caller->done && status == SYNCGUARD_OK) {
        if (link->conn == NULL) { /* the caller is in the queue then */
            status = link_connector_start(link, err);
            if (status == SYNCGUARD_OK)
                status = sg_redis_caller_sleep(&link->callers, caller, limits, err);
        } else if (link->leader == NULL || link->leader == caller) {
            link->leader = caller;
            status = sg_redis_pipeline_lead(link, caller, limits, err);
        } else if (sg_redis_pipeline_is_due(link)) {
            sg_redis_pipeline_send(link);
        } else {
            status = sg_redis_caller_sleep(&link->callers, caller, limits, err);
        }
    }
    return status;
}

/* With the mutex held. */
static syncguard_status link_round_trip_locked(sg_redis_link *link, sg_redis_round_trip *trip,
                                               const syncguard_limits *limits,
                                               sg_redis_wakes *wakes, syncguard_error *err)
{
    sg_redis_caller *caller = NULL;
    int64_t now = syncguard_clock_ns();
    link_check_connection(link, now);
    if (trip->only != 0 && (link->conn == NULL || link->conn->serial != trip->only))
        return sg_redis_fail_connection(err);
    syncguard_status status =
        sg_redis_caller_take(&link->callers, limits->abort_object != NULL, &caller, err);
    if (status != SYNCGUARD_OK)
        return status;
    caller->trip = trip;
    caller->deadline_ns = limits->deadline_ns;
    caller->expected = trip->count;
    caller->queued = true;
    if (link->conn != NULL)
        sg_redis_pipeline_submit(link, caller);
    else
        sg_redis_pipeline_append(&link->queue, &link->queue_last, caller);
    status = link_wait_result(link, caller, limits, err);
    if (link->leader == caller)
        link->leader = NULL;
    if (caller->done)
        status = link_collect_result(link, caller, err);
    else
        link_abandon_caller(link, caller);
    if (link->leader == NULL)
        sg_redis_pipeline_promote(link, wakes);
    link->used_ns = now;
    return status;
}

syncguard_status sg_redis_link_round_trip(sg_redis_link *link, sg_redis_round_trip *trip,
                                          const syncguard_limits *limits, syncguard_error *err)
{
    sg_redis_wakes wakes;
    sg_redis_wakes_init(&wakes);
    trip->sent = trip->armed = false;
    memset(trip->replies, 0, trip->count * sizeof *trip->replies);
    if (trip->text->failed)
        return syncguard_fail_memory(err);
    atomic_fetch_add_explicit(&link->load, 1, memory_order_relaxed);
    pthread_mutex_lock(&link->callers.mutex);
    syncguard_status status = link_round_trip_locked(link, trip, limits, &wakes, err);
    bool reconnected = link->reconnected;
    link->reconnected = false;
    pthread_mutex_unlock(&link->callers.mutex);
    sg_redis_wake_all(&link->callers, &wakes);
    atomic_fetch_sub_explicit(&link->load, 1, memory_order_relaxed);
    /* Not reported by the connecting thread, because callers may have to wait for its end. */
    if (reconnected && link->backend != NULL)
        syncguard_backend_reconnected(link->backend);
    return status;
}

bool sg_redis_link_ended(sg_redis_link *link)
{
    pthread_mutex_lock(&link->callers.mutex);
    bool ended = link->conn != NULL && link->flight == NULL && link->leader == NULL &&
                 (!sg_redis_connection_is_open(link->conn) || syncguard_fd_ended(link->conn->fd));
    if (ended)
        sg_redis_pipeline_break(link, link->conn);
    pthread_mutex_unlock(&link->callers.mutex);
    return ended;
}

void sg_redis_link_aim(sg_redis_link *link, const char *host, int port)
{
    pthread_mutex_lock(&link->callers.mutex);
    if (link->port != port || strcmp(link->host, host) != 0) {
        if (link->conn != NULL)
            sg_redis_pipeline_break(link, link->conn);
        /* It is shorter than 256: sg_redis_topology_redirection checks that. */
        memcpy(link->host, host, strlen(host) + 1);
        link->port = port;
        link->connected_before = false;
    }
    pthread_mutex_unlock(&link->callers.mutex);
}

void sg_redis_link_reset(sg_redis_link *link)
{
    pthread_mutex_lock(&link->callers.mutex);
    if (link->conn != NULL)
        sg_redis_pipeline_break(link, link->conn);
    pthread_mutex_unlock(&link->callers.mutex);
}

/* ---- for the tracker ---- */

sg_redis_connection *sg_redis_link_tracked(sg_redis_link *link)
{
    pthread_mutex_lock(&link->callers.mutex);
    sg_redis_connection *conn = link->conn;
    if (conn != NULL && conn->tracked != 0)
        conn->refs++;
    else
        conn = NULL;
    pthread_mutex_unlock(&link->callers.mutex);
    return conn;
}

void sg_redis_link_give_back(sg_redis_link *link, sg_redis_connection *conn, bool broken)
{
    pthread_mutex_lock(&link->callers.mutex);
    if (broken)
        sg_redis_pipeline_break(link, conn);
    sg_redis_connection_drop(conn);
    pthread_mutex_unlock(&link->callers.mutex);
}

/* ---- set-up and end ---- */

syncguard_status sg_redis_link_init(sg_redis_link *link, const sg_redis_dialer *dialer,
                                    sg_redis_topology *topology, sg_redis_tracker *tracker,
                                    syncguard_error *err)
{
    memset(link, 0, sizeof *link);
    if (pthread_mutex_init(&link->callers.mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    link->dialer = dialer;
    link->topology = topology;
    link->tracker = tracker;
    atomic_init(&link->load, 0);
    atomic_init(&link->polling, false);
    return SYNCGUARD_OK;
}

void sg_redis_link_fini(sg_redis_link *link, bool forked)
{
    if (!forked) {
        syncguard_abort_trigger(link->stop);
        link_connector_join(link);
    }
    syncguard_abort_free(link->stop);
    if (forked) {
        sg_redis_connection_forget(link->conn);
        return;
    }
    if (link->flight != NULL && link->conn != NULL)
        sg_redis_pipeline_cut_off(link->conn);
    sg_redis_callers_free(link->flight);
    sg_redis_callers_free(link->queue);
    sg_redis_callers_free(link->callers.spare);
    sg_redis_connection_close(link->conn);
    pthread_mutex_destroy(&link->callers.mutex);
}
