/*
 * Many callers on one connection.
 *
 * Every caller adds its commands to `unsent` and itself to the end of `flight`, the list of the
 * callers that wait for replies. One of the waiting threads is the leader: it reads and hands out
 * replies for all, and passes the lead on when its own reply has arrived. A lone caller is its own
 * leader, so no other thread takes part in its round trip. There is no I/O thread.
 *
 * Commands are sent at once. While the leader sleeps in poll, a caller that adds a command sends
 * it; there is one sender at a time, which also sends what others add meanwhile. While the leader
 * is awake, it sends before it sleeps again. While threads that have just been woken have yet to
 * collect their replies, the last of them sends what the others have added, or the leader does if
 * that takes long.
 *
 * A thread that gives up leaves its caller behind without a round trip, so that later replies still
 * match their commands.
 *
 * Locking: the mutex is held neither during a wait nor during send or recv. The connection is
 * reference-counted: sender and leader use it without the mutex. Only the leader reads, so the
 * reader needs no lock.
 */
#include "pipeline.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* A waiter that was just woken, and a release of a lock that its owner had to wait for, poll for
 * the reply this long before they sleep: the reply comes within a round trip, and others wait for
 * the lock. */
#define SPIN_NS 100000
/* Longest time that commands wait for the threads that have yet to collect their replies. */
#define COLLECT_NS (2 * SYNCGUARD_NS_PER_MS)

void sg_redis_pipeline_append(sg_redis_caller **first, sg_redis_caller **last,
                              sg_redis_caller *caller)
{
    caller->next = NULL;
    if (*first == NULL)
        *first = caller;
    else
        (*last)->next = caller;
    *last = caller;
}

/* ---- the end of a connection ---- */

void sg_redis_pipeline_fail(sg_redis_link *link, sg_redis_caller *caller, syncguard_status status,
                            const syncguard_error *error)
{
    sg_redis_wakes wakes;
    sg_redis_wakes_init(&wakes);
    caller->done = true;
    caller->status = status;
    caller->error = *error;
    sg_redis_wake_later(&link->callers, &wakes, caller);
    sg_redis_wake_all(&link->callers, &wakes);
}

void sg_redis_pipeline_cut_off(const sg_redis_connection *conn)
{
    const struct linger at_once = {1, 0};
    if (sg_redis_connection_is_open(conn))
        (void)setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void sg_redis_pipeline_break(sg_redis_link *link, sg_redis_connection *conn)
{
    if (link->conn != conn)
        return;
    syncguard_error error;
    syncguard_status status = sg_redis_fail_connection(&error);
    link->conn = NULL;
    sg_redis_pipeline_cut_off(conn);
    if (sg_redis_connection_is_open(conn)) /* ends the leader's poll; the last user closes it */
        shutdown(conn->fd, SHUT_RD);
    if (conn->tracked != 0)
        sg_redis_tracker_lost(link->tracker);
    for (sg_redis_caller *caller = link->flight, *next; caller != NULL; caller = next) {
        next = caller->next;
        if (caller->trip != NULL)
            sg_redis_pipeline_fail(link, caller, status, &error);
        else
            sg_redis_caller_give(&link->callers, caller);
    }
    link->flight = link->flight_last = NULL;
    sg_redis_connection_drop(conn);
}

/* ---- commands ---- */

/* Makes the connection report to the tracker, if it does not yet. */
static bool pipeline_arm_tracking(sg_redis_link *link)
{
    sg_redis_caller *extra = NULL;
    bool expected = false;
    if (sg_redis_caller_take(&link->callers, false, &extra, NULL) != SYNCGUARD_OK)
        return false;
    bool armed = sg_redis_tracker_prepare(link->tracker, link->conn, &expected);
    if (expected) {
        extra->tracking = true;
        extra->epoch = link->conn->tracked;
        extra->sent_ns = syncguard_clock_ns();
        sg_redis_pipeline_append(&link->flight, &link->flight_last, extra);
    } else {
        sg_redis_caller_give(&link->callers, extra);
    }
    return armed;
}

void sg_redis_pipeline_submit(sg_redis_link *link, sg_redis_caller *caller)
{
    sg_redis_connection *conn = link->conn;
    sg_redis_round_trip *trip = caller->trip;
    if (trip->watch && link->tracker != NULL)
        trip->armed = pipeline_arm_tracking(link);
    caller->queued = false;
    trip->sent = true;
    trip->sent_ns = caller->sent_ns = syncguard_clock_ns();
    trip->generation = conn->generation;
    trip->serial = conn->serial;
    if (link->dialer->config->mode == SYNCGUARD_REDIS_CLUSTER)
        memcpy(trip->peer, conn->peer, sizeof trip->peer);
    sg_redis_text_add(&conn->unsent, trip->text->data, trip->text->length);
    sg_redis_pipeline_append(&link->flight, &link->flight_last, caller);
    if (conn->unsent.failed) /* half a command must not be sent */
        sg_redis_pipeline_break(link, conn);
}

/* The sender's buffer is empty: exchanges it for the one that commands are added to. */
static void pipeline_swap_buffers(sg_redis_connection *conn)
{
    sg_redis_text *unsent = &conn->unsent, *outgoing = &conn->outgoing;
    char *data = outgoing->data;
    size_t size = outgoing->size;
    outgoing->data = unsent->data;
    outgoing->size = unsent->size;
    outgoing->length = unsent->length;
    unsent->data = data;
    unsent->size = size;
    unsent->length = 0;
    conn->outgoing_done = 0;
}

void sg_redis_pipeline_send(sg_redis_link *link)
{
    sg_redis_connection *conn = link->conn;
    if (conn == NULL || conn->sending)
        return;
    conn->sending = true;
    conn->refs++;
    while (link->conn == conn) {
        if (conn->outgoing.length == 0 && conn->unsent.length == 0)
            break;
        if (conn->outgoing.length == 0)
            pipeline_swap_buffers(conn);
        pthread_mutex_unlock(&link->callers.mutex);
        ssize_t n = sg_redis_connection_send(conn, conn->outgoing.data + conn->outgoing_done,
                                             conn->outgoing.length - conn->outgoing_done);
        int error = errno;
        pthread_mutex_lock(&link->callers.mutex);
        conn->blocked = false;
        if (n > 0) {
            conn->outgoing_done += (size_t)n;
            if (conn->outgoing_done == conn->outgoing.length)
                conn->outgoing.length = 0;
        } else if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) {
            conn->blocked = true; /* the leader waits until the socket takes more */
            break;
        } else {
            sg_redis_pipeline_break(link, conn);
        }
    }
    conn->sending = false;
    sg_redis_connection_drop(conn);
}

bool sg_redis_pipeline_is_due(const sg_redis_link *link)
{
    const sg_redis_connection *conn = link->conn;
    return conn != NULL && conn->unsent.length > 0 && link->uncollected == 0 && !conn->sending &&
           !conn->blocked && atomic_load(&link->polling);
}

/* ---- replies ---- */

/* Hands a reply to the first in flight. */
static void pipeline_deliver_reply(sg_redis_link *link, sg_redis_connection *conn,
                                   redisReply *reply, const sg_redis_caller *self,
                                   sg_redis_wakes *wakes)
{
    sg_redis_caller *caller = link->flight;
    if (link->conn != conn || caller == NULL) {
        freeReplyObject(reply);
        sg_redis_pipeline_break(link, conn); /* a reply without a request */
        return;
    }
    caller->got++;
    if (caller->trip != NULL) {
        caller->trip->replies[caller->got - 1] = reply;
    } else {
        if (caller->tracking)
            sg_redis_tracker_answer(link->tracker, caller->epoch, reply);
        freeReplyObject(reply);
    }
    if (caller->got < caller->expected)
        return;
    link->flight = caller->next;
    if (link->flight == NULL)
        link->flight_last = NULL;
    if (caller->trip == NULL) {
        sg_redis_caller_give(&link->callers, caller);
        return;
    }
    caller->done = true;
    if (caller != self) {
        caller->uncollected = true;
        link->uncollected++;
        sg_redis_wake_later(&link->callers, wakes, caller);
    }
}

/* Prefers the last caller in flight: it stays the leader for the longest time. */
void sg_redis_pipeline_promote(sg_redis_link *link, sg_redis_wakes *wakes)
{
    sg_redis_caller *chosen = NULL;
    if (link->flight_last != NULL && link->flight_last->trip != NULL)
        chosen = link->flight_last;
    for (sg_redis_caller *at = link->flight; chosen == NULL && at != NULL; at = at->next) {
        if (at->trip != NULL)
            chosen = at;
    }
    link->leader = chosen;
    if (chosen != NULL)
        sg_redis_wake_later(&link->callers, wakes, chosen);
}

/*
 * Hands out every complete reply that the reader has. If the leader's own was among them, it passes
 * the lead on with the last of them. False: the stream is malformed. Called without the mutex.
 */
static bool pipeline_drain_reader(sg_redis_link *link, sg_redis_connection *conn,
                                  sg_redis_caller *self)
{
    sg_redis_wakes wakes;
    sg_redis_wakes_init(&wakes);
    for (;;) {
        redisReply *replies[SG_REDIS_MAX_DELIVERED];
        size_t count = 0;
        bool fine = true;
        while (count < SG_REDIS_MAX_DELIVERED) {
            fine = sg_redis_connection_reply(conn, &replies[count]);
            if (!fine || replies[count] == NULL)
                break;
            count++;
        }
        if (count == 0)
            return fine;
        bool drained = count < SG_REDIS_MAX_DELIVERED;
        pthread_mutex_lock(&link->callers.mutex);
        for (size_t i = 0; i < count; i++)
            pipeline_deliver_reply(link, conn, replies[i], self, &wakes);
        if (drained && fine && self->done)
            sg_redis_pipeline_promote(link, &wakes);
        pthread_mutex_unlock(&link->callers.mutex);
        sg_redis_wake_all(&link->callers, &wakes);
        if (drained)
            return fine;
    }
}

/* Waits until the connection can be read from, or written to if it was blocked. Checks the limits
 * each time, because a reply may arrive in pieces without end. */
static syncguard_status pipeline_wait_replies(sg_redis_connection *conn, bool blocked,
                                              int64_t spin_ns, const syncguard_limits *limits,
                                              syncguard_error *err, int *filled)
{
    *filled = 0;
    syncguard_status status = syncguard_limits_check(limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (spin_ns > 0) {
        int64_t until = syncguard_clock_ns() + spin_ns;
        do {
            *filled = sg_redis_connection_fill(conn);
            if (*filled != 0)
                return SYNCGUARD_OK;
        } while (syncguard_clock_ns() < until && !syncguard_abort_triggered(limits->abort_object));
    } else if (conn->ssl != NULL) {
        *filled = sg_redis_connection_fill(conn); /* OpenSSL may have read more than it returned */
        if (*filled != 0)
            return SYNCGUARD_OK;
    }
    struct pollfd fds = {conn->fd, blocked ? POLLIN | POLLOUT : POLLIN, 0};
    status = syncguard_wait_fds(&fds, 1, limits, err);
    if (status == SYNCGUARD_OK && (fds.revents & ~POLLOUT) != 0)
        *filled = sg_redis_connection_fill(conn);
    return status;
}

/* *nothing: no bytes have arrived. */
static syncguard_status pipeline_lead_once(sg_redis_link *link, sg_redis_caller *self,
                                           const syncguard_limits *limits, bool *nothing,
                                           syncguard_error *err)
{
    sg_redis_connection *conn = link->conn;
    bool blocked = conn->blocked;
    int64_t spin_ns = link->dialer->config->spin_ns;
    if (self->trip->spin && spin_ns < SPIN_NS)
        spin_ns = SPIN_NS;
    bool others = link->uncollected > 0;
    syncguard_limits until = *limits;
    if (others)
        until = syncguard_limits_until(limits, syncguard_clock_ns() + COLLECT_NS);
    conn->refs++;
    atomic_store(&link->polling, true);
    pthread_mutex_unlock(&link->callers.mutex);
    int filled = 0;
    syncguard_status status = pipeline_wait_replies(conn, blocked, spin_ns, &until, err, &filled);
    atomic_store(&link->polling, false);
    if (others && status == SYNCGUARD_E_NETWORK_TIMEOUT) {
        status = syncguard_limits_check(limits, err);
        if (status == SYNCGUARD_OK)
            syncguard_error_clear(err);
    }
    *nothing = filled == 0;
    bool fine = filled >= 0 && (filled == 0 || pipeline_drain_reader(link, conn, self));
    pthread_mutex_lock(&link->callers.mutex);
    if (filled > 0)
        link->heard_ns = syncguard_clock_ns();
    if (!fine)
        sg_redis_pipeline_break(link, conn);
    sg_redis_connection_drop(conn);
    return status;
}

syncguard_status sg_redis_pipeline_lead(sg_redis_link *link, sg_redis_caller *caller,
                                        const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    bool late = false;
    while (!caller->done && link->conn != NULL && status == SYNCGUARD_OK) {
        if (link->uncollected == 0 || late)
            sg_redis_pipeline_send(link);
        if (!caller->done && link->conn != NULL)
            status = pipeline_lead_once(link, caller, limits, &late, err);
    }
    return status;
}
