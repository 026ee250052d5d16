/*
 * A connection that any number of callers share.
 *
 * Every caller puts its commands into the connection's out buffer and a slot
 * into the line of those that wait for replies. One of the waiting threads is
 * the leader: it reads and hands out replies for all, and passes the lead on when
 * its own reply has come. A lone caller is its own leader, so its path has no
 * hand-over. There is no I/O thread, but for one that makes a new connection and
 * ends (connector.c).
 *
 * Commands leave at once: while the leader sleeps in poll, whoever adds a command
 * sends it (one sender at a time; it takes along what others add meanwhile);
 * while the leader is awake, it sends before it sleeps again; and while callers
 * that have just been woken are on their way to pick up their replies, the last
 * of them sends what the others have added (or the leader, if that takes long).
 *
 * A caller that gives up leaves its slot behind without a request, so that later
 * replies still meet their commands.
 *
 * Locking: link->mutex guards everything here and is never held in a wait nor in
 * send or recv. The connection is counted by references: sender and leader use
 * it without the mutex. Only the leader reads, so the reader needs no lock.
 * Slots are pooled and live as long as the link, so waking a slot that has been
 * used again by another caller is harmless: everybody looks twice.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "slot.h"

/* A connection unused for this long is checked before it is trusted with a request. */
#define IDLE_NS (100 * SYNCGUARD_NS_PER_MS)
/* Who was woken for a lock that has just been released, or releases one that it had to wait for,
 * looks for the answer this long before it sleeps: it comes within a round trip, and others wait
 * for the lock, perhaps for this very processor to be awake. */
#define HURRY_SPIN_NS 100000
/* Longest time that commands wait for those who were woken to come for their replies. */
#define PICK_NS (2 * SYNCGUARD_NS_PER_MS)
/* A connection that has owed a reply in silence for this long when a caller gives up is given up,
 * too: soon if nobody else waits for it, late if others do, who may have more patience. In both
 * cases it gets twice the time that its set-up took on top: the way may just be long. */
#define DEAF_NS (1000 * SYNCGUARD_NS_PER_MS)
#define SHARED_DEAF_NS (1500 * SYNCGUARD_NS_PER_MS)

static void append(sg_slot **first, sg_slot **last, sg_slot *slot)
{
    slot->next = NULL;
    if (*first == NULL)
        *first = slot;
    else
        (*last)->next = slot;
    *last = slot;
}

/* --- the connection. Callers hold the mutex. --- */

static void drop_conn(sg_conn *conn)
{
    if (--conn->refs == 0)
        sg_redis_conn_close(conn);
}

static void fail_slot(sg_link *link, sg_slot *slot, syncguard_status status,
                      const syncguard_error *error)
{
    slot->done = true;
    slot->status = status;
    slot->error = *error;
    sg_redis_wake_now(link, slot);
}

/* What the kernel has not sent yet must not arrive after the same was sent again elsewhere: closing
 * is to throw it away. */
static void cut_off(const sg_conn *conn)
{
    const struct linger at_once = {1, 0};
    (void)setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

/* Everything in flight is undecided from now on. */
static void break_conn(sg_link *link, sg_conn *conn)
{
    if (link->conn != conn)
        return;
    syncguard_error error;
    (void)syncguard_fail(&error, SYNCGUARD_E_SERVICE_UNAVAILABLE, "EOF",
                         "redis: the connection broke");
    link->conn = NULL;
    cut_off(conn);
    shutdown(conn->fd, SHUT_RD); /* ends the leader's poll; the rest is the last user's to close */
    if (conn->tracked != 0)
        sg_redis_tracker_lost(link->backend->tracker);
    for (sg_slot *slot = link->flight, *next; slot != NULL; slot = next) {
        next = slot->next;
        if (slot->request != NULL)
            fail_slot(link, slot, SYNCGUARD_E_SERVICE_UNAVAILABLE, &error);
        else
            sg_redis_slot_give(link, slot);
    }
    link->flight = link->flight_last = NULL;
    drop_conn(conn);
}

/* Puts a slot's commands into the out buffer. */
static void submit(sg_link *link, sg_slot *slot)
{
    sg_conn *conn = link->conn;
    sg_request *request = slot->request;
    if (request->watch && link->backend->tracker != NULL) {
        sg_slot *extra = NULL;
        bool expected = false;
        (void)sg_redis_slot_take(link, false, &extra, NULL);
        if (extra != NULL)
            request->armed = sg_redis_tracker_prepare(link->backend->tracker, conn, &expected);
        if (expected) {
            extra->tracking = true;
            extra->epoch = conn->tracked;
            extra->sent_ns = syncguard_clock_ns();
            append(&link->flight, &link->flight_last, extra);
        } else if (extra != NULL) {
            sg_redis_slot_give(link, extra);
        }
    }
    slot->queued = false;
    request->sent = true;
    request->sent_ns = slot->sent_ns = syncguard_clock_ns();
    request->route = conn->route;
    if (link->backend->config.mode == SYNCGUARD_REDIS_CLUSTER)
        memcpy(request->peer, conn->peer, sizeof request->peer);
    sg_redis_text_add(&conn->out, request->text->data, request->text->length);
    append(&link->flight, &link->flight_last, slot);
    if (conn->out.failed) /* half a command must not leave */
        break_conn(link, conn);
}

/* Sends what the out buffer holds, unless somebody does. Lets go of the mutex meanwhile. */
static void flush(sg_link *link)
{
    sg_conn *conn = link->conn;
    if (conn == NULL || conn->writer || (conn->out.length == 0 && conn->wbuf.length == 0))
        return;
    conn->writer = true;
    conn->refs++;
    while (link->conn == conn) {
        if (conn->wbuf.length == 0) {
            if (conn->out.length == 0)
                break;
            sg_text *out = &conn->out, *wbuf = &conn->wbuf;
            char *data = wbuf->data;
            size_t size = wbuf->size;
            wbuf->data = out->data;
            wbuf->size = out->size;
            wbuf->length = out->length;
            out->data = data;
            out->size = size;
            out->length = 0;
            conn->wbuf_done = 0;
        }
        pthread_mutex_unlock(&link->mutex);
        ssize_t n = sg_redis_conn_send(conn, conn->wbuf.data + conn->wbuf_done,
                                       conn->wbuf.length - conn->wbuf_done);
        int error = errno;
        pthread_mutex_lock(&link->mutex);
        conn->blocked = false;
        if (n > 0) {
            conn->wbuf_done += (size_t)n;
            if (conn->wbuf_done == conn->wbuf.length)
                conn->wbuf.length = 0;
        } else if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) {
            conn->blocked = true; /* the leader waits until the socket takes more */
            break;
        } else {
            break_conn(link, conn);
        }
    }
    conn->writer = false;
    drop_conn(conn);
}

/*
 * Whether commands wait that nobody is going to send: not while the leader is
 * awake, and not while threads that have been woken have yet to come for their
 * replies: they are about to add commands, and the last of them sends for all.
 */
static bool due(const sg_link *link)
{
    const sg_conn *conn = link->conn;
    return conn != NULL && conn->out.length > 0 && link->unpicked == 0 && !conn->writer &&
           !conn->blocked && atomic_load(&link->polling);
}

/* A connection that was idle, or that leads to a former primary, may not be used as it is. */
static void check_conn(sg_link *link, int64_t now)
{
    sg_conn *conn = link->conn;
    if (conn == NULL)
        return;
    if (link->port == 0 && link->backend->config.mode != SYNCGUARD_REDIS_SINGLE &&
        conn->route != sg_redis_route_generation(&link->backend->route)) {
        break_conn(link, conn);
        return;
    }
    if (link->flight == NULL && link->leader == NULL && now - link->used_ns > IDLE_NS) {
        char byte;
        ssize_t n = recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            break_conn(link, conn);
    }
}

/* --- the leader. Mutex held on entry and return. --- */

/* Hands a reply to the first in line. */
static void deliver(sg_link *link, sg_conn *conn, redisReply *reply, sg_slot *self, sg_wakes *wakes)
{
    sg_slot *slot = link->flight;
    if (link->conn != conn || slot == NULL) {
        freeReplyObject(reply);
        break_conn(link, conn); /* a reply that nobody asked for */
        return;
    }
    slot->got++;
    if (slot->request != NULL) {
        slot->request->replies[slot->got - 1] = reply;
    } else {
        if (slot->tracking)
            sg_redis_tracker_answer(link->backend->tracker, slot->epoch, reply);
        freeReplyObject(reply);
    }
    if (slot->got < slot->expected)
        return;
    link->flight = slot->next;
    if (link->flight == NULL)
        link->flight_last = NULL;
    if (slot->request == NULL) {
        sg_redis_slot_give(link, slot);
        return;
    }
    slot->done = true;
    if (slot != self) {
        slot->counted = true;
        link->unpicked++;
        sg_redis_wake_later(link, wakes, slot);
    }
}

/* Chooses the next leader: the last in line leads longest. */
static void promote(sg_link *link, sg_wakes *wakes)
{
    sg_slot *chosen = NULL;
    if (link->flight_last != NULL && link->flight_last->request != NULL)
        chosen = link->flight_last;
    for (sg_slot *slot = link->flight; chosen == NULL && slot != NULL; slot = slot->next) {
        if (slot->request != NULL)
            chosen = slot;
    }
    link->leader = chosen;
    if (chosen != NULL)
        sg_redis_wake_later(link, wakes, chosen);
}

/*
 * Hands out every complete reply that the reader has, and the lead with the last
 * of them if the leader's own was among them. False: the stream makes no sense.
 */
static bool hand_out(sg_link *link, sg_conn *conn, sg_slot *self)
{
    sg_wakes wakes;
    wakes.bits = 0;
    wakes.count = 0;
    for (;;) {
        redisReply *batch[SG_BATCH];
        size_t count = 0;
        bool fine = true;
        while (count < SG_BATCH) {
            fine = sg_redis_conn_reply(conn, &batch[count]);
            if (!fine || batch[count] == NULL)
                break;
            count++;
        }
        if (count == 0)
            return fine;
        bool drained = count < SG_BATCH;
        pthread_mutex_lock(&link->mutex);
        for (size_t i = 0; i < count; i++)
            deliver(link, conn, batch[i], self, &wakes);
        if (drained && fine && self->done)
            promote(link, &wakes);
        pthread_mutex_unlock(&link->mutex);
        sg_redis_wake_all(link, &wakes);
        if (drained)
            return fine;
    }
}

/* Waits until the connection has something to read (or takes more, if it did not). */
static syncguard_status await(sg_conn *conn, bool blocked, int64_t spin,
                              const syncguard_limits *limits, syncguard_error *err, int *filled)
{
    *filled = 0;
    if (spin > 0) {
        int64_t until = syncguard_clock_ns() + spin;
        do {
            *filled = sg_redis_conn_fill(conn);
            if (*filled != 0)
                return SYNCGUARD_OK;
        } while (syncguard_clock_ns() < until && !syncguard_abort_triggered(limits->abort_object));
    } else if (conn->ssl != NULL) {
        *filled = sg_redis_conn_fill(conn); /* OpenSSL may have read more than it gave */
        if (*filled != 0)
            return SYNCGUARD_OK;
    }
    struct pollfd fds = {conn->fd, blocked ? POLLIN | POLLOUT : POLLIN, 0};
    syncguard_status status = syncguard_wait_fds(&fds, 1, limits, err);
    if (status == SYNCGUARD_OK && (fds.revents & ~POLLOUT) != 0)
        *filled = sg_redis_conn_fill(conn);
    return status;
}

/* *nothing: no bytes came. */
static syncguard_status lead_read(sg_link *link, sg_slot *self, const syncguard_limits *limits,
                                  bool *nothing, syncguard_error *err)
{
    sg_conn *conn = link->conn;
    bool blocked = conn->blocked;
    int64_t spin = link->backend->config.spin_ns;
    int filled = 0;
    if (self->request->hurry && spin < HURRY_SPIN_NS)
        spin = HURRY_SPIN_NS;
    bool others = link->unpicked > 0;
    syncguard_limits brief = *limits;
    if (others)
        brief = syncguard_limits_until(limits, syncguard_clock_ns() + PICK_NS);
    conn->refs++;
    atomic_store(&link->polling, true);
    pthread_mutex_unlock(&link->mutex);

    syncguard_status status = await(conn, blocked, spin, &brief, err, &filled);
    atomic_store(&link->polling, false);
    if (others && status == SYNCGUARD_E_NETWORK_TIMEOUT) {
        status = syncguard_limits_check(limits, err);
        if (status == SYNCGUARD_OK)
            syncguard_error_clear(err);
    }
    *nothing = filled == 0;
    bool fine = filled >= 0 && (filled == 0 || hand_out(link, conn, self));

    pthread_mutex_lock(&link->mutex);
    if (filled > 0)
        link->heard_ns = syncguard_clock_ns();
    if (!fine)
        break_conn(link, conn);
    drop_conn(conn);
    return status;
}

static syncguard_status lead(sg_link *link, sg_slot *slot, const syncguard_limits *limits,
                             syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    bool late = false;
    while (!slot->done && link->conn != NULL && status == SYNCGUARD_OK) {
        if (link->unpicked == 0 || late)
            flush(link);
        if (!slot->done && link->conn != NULL)
            status = lead_read(link, slot, limits, &late, err);
    }
    return status;
}

/* --- a new connection. Mutex held. --- */

void sg_redis_link_connected(sg_link *link, sg_conn *conn, syncguard_status status,
                             syncguard_error *error)
{
    sg_wakes wakes;
    wakes.bits = 0;
    wakes.count = 0;
    sg_slot *slot = link->queue;
    link->queue = link->queue_last = NULL;
    link->conn = conn;
    if (conn != NULL)
        link->used_ns = link->heard_ns = syncguard_clock_ns();
    while (slot != NULL) {
        sg_slot *next = slot->next;
        if (link->conn != NULL)
            submit(link, slot);
        else
            fail_slot(link, slot, conn == NULL ? status : syncguard_fail_memory(error), error);
        slot = next;
    }
    if (link->leader == NULL)
        promote(link, &wakes);
    sg_redis_wake_all(link, &wakes);
}

/* --- the caller --- */

/* Whether the connection has been silent for too long, for one who has just lost patience. Its own
 * wait may have been short: what counts is the oldest request, whoever gave that up. */
static bool is_deaf(const sg_link *link)
{
    int64_t since = link->flight->sent_ns;
    int64_t most = DEAF_NS;
    if (link->heard_ns > since)
        since = link->heard_ns;
    for (const sg_slot *slot = link->flight; slot != NULL; slot = slot->next) {
        if (slot->request != NULL)
            most = SHARED_DEAF_NS;
    }
    return syncguard_clock_ns() - since > most + 2 * link->conn->setup_ns;
}

/* Its thread goes; what was sent will still be answered. */
static void abandon(sg_link *link, sg_slot *slot)
{
    if (link->leader == slot)
        link->leader = NULL;
    if (!slot->queued) {
        for (size_t i = 0; i < slot->got; i++) {
            freeReplyObject(slot->request->replies[i]);
            slot->request->replies[i] = NULL;
        }
        slot->request = NULL;
        if (is_deaf(link))
            break_conn(link, link->conn);
        return;
    }
    sg_slot **at = &link->queue;
    sg_slot *before = NULL;
    while (*at != slot) {
        before = *at;
        at = &(*at)->next;
    }
    *at = slot->next;
    if (link->queue_last == slot)
        link->queue_last = before;
    sg_redis_slot_give(link, slot);
}

static syncguard_status take_result(sg_link *link, sg_slot *slot, sg_request *request,
                                    syncguard_error *err)
{
    syncguard_status status = slot->status;
    if (slot->counted && --link->unpicked == 0 && due(link))
        flush(link);
    if (status != SYNCGUARD_OK) {
        if (err != NULL)
            *err = slot->error;
        sg_redis_replies_free(request->replies, slot->got);
    }
    sg_redis_slot_give(link, slot);
    return status;
}

syncguard_status sg_redis_link_exchange(sg_link *link, sg_request *request,
                                        const syncguard_limits *limits, syncguard_error *err)
{
    request->sent = request->armed = false;
    memset(request->replies, 0, request->count * sizeof *request->replies);
    if (request->text->failed)
        return syncguard_fail_memory(err);
    syncguard_status status = SYNCGUARD_OK;
    int64_t now = syncguard_clock_ns();
    atomic_fetch_add_explicit(&link->pending, 1, memory_order_relaxed);
    pthread_mutex_lock(&link->mutex);
    check_conn(link, now);
    sg_slot *slot = NULL;
    status = sg_redis_slot_take(link, limits->abort_object != NULL, &slot, err);
    if (status != SYNCGUARD_OK)
        goto out;
    slot->request = request;
    slot->deadline_ns = limits->deadline_ns;
    slot->expected = request->count;
    slot->queued = true;
    if (link->conn != NULL)
        submit(link, slot);
    else
        append(&link->queue, &link->queue_last, slot);

    while (!slot->done && status == SYNCGUARD_OK) {
        if (link->conn == NULL) { /* then it is in the queue */
            status = sg_redis_connector_start(link, err);
            if (status == SYNCGUARD_OK)
                status = sg_redis_slot_sleep(link, slot, limits, err);
        } else if (link->leader == NULL || link->leader == slot) {
            link->leader = slot;
            status = lead(link, slot, limits, err);
        } else if (due(link)) {
            flush(link);
        } else {
            status = sg_redis_slot_sleep(link, slot, limits, err);
        }
    }
    bool led = link->leader == slot;
    if (slot->done)
        status = take_result(link, slot, request, err);
    else
        abandon(link, slot);
    if (led)
        link->leader = NULL;
    sg_wakes wakes;
    wakes.bits = 0;
    wakes.count = 0;
    if (link->leader == NULL)
        promote(link, &wakes);
    link->used_ns = now;
    pthread_mutex_unlock(&link->mutex);
    sg_redis_wake_all(link, &wakes);
    atomic_fetch_sub_explicit(&link->pending, 1, memory_order_relaxed);
    return status;
out:
    pthread_mutex_unlock(&link->mutex);
    atomic_fetch_sub_explicit(&link->pending, 1, memory_order_relaxed);
    return status;
}

void sg_redis_link_aim(sg_link *link, const char *host, int port)
{
    pthread_mutex_lock(&link->mutex);
    if (link->port != port || strcmp(link->host, host) != 0) {
        if (link->conn != NULL)
            break_conn(link, link->conn);
        memcpy(link->host, host, strlen(host) + 1); /* at most 255 bytes: see route_parse */
        link->port = port;
    }
    pthread_mutex_unlock(&link->mutex);
}

void sg_redis_link_reset(sg_link *link)
{
    pthread_mutex_lock(&link->mutex);
    if (link->conn != NULL)
        break_conn(link, link->conn);
    pthread_mutex_unlock(&link->mutex);
}

/* --- for the tracker --- */

sg_conn *sg_redis_link_tracked(sg_link *link)
{
    pthread_mutex_lock(&link->mutex);
    sg_conn *conn = link->conn;
    if (conn != NULL && conn->tracked != 0)
        conn->refs++;
    else
        conn = NULL;
    pthread_mutex_unlock(&link->mutex);
    return conn;
}

void sg_redis_link_give_back(sg_link *link, sg_conn *conn, bool broken)
{
    pthread_mutex_lock(&link->mutex);
    if (broken)
        break_conn(link, conn);
    drop_conn(conn);
    pthread_mutex_unlock(&link->mutex);
}

/* --- life --- */

syncguard_status sg_redis_link_init(sg_link *link, sg_backend *backend, syncguard_error *err)
{
    memset(link, 0, sizeof *link);
    link->backend = backend;
    atomic_init(&link->pending, 0);
    atomic_init(&link->polling, false);
    if (pthread_mutex_init(&link->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    return SYNCGUARD_OK;
}

void sg_redis_link_fini(sg_link *link, bool forked)
{
    sg_redis_connector_end(link, forked);
    if (forked) {
        sg_redis_conn_forget(link->conn);
        return;
    }
    if (link->flight != NULL && link->conn != NULL)
        cut_off(link->conn);
    sg_redis_slots_free(link->flight);
    sg_redis_slots_free(link->queue);
    sg_redis_slots_free(link->spare);
    link->flight = link->queue = link->spare = NULL;
    sg_redis_conn_close(link->conn);
    link->conn = NULL;
    pthread_mutex_destroy(&link->mutex);
}
