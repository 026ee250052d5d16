/*
 * Wake-up by server-assisted client tracking.
 *
 * A waiter's try is preceded by CLIENT CACHING YES and a read of the lock's name, on a connection
 * that tracks with REDIRECT to the connection of this file (tracker.c). When a client changes that
 * name, the server sends a notification to this connection, and the thread that reads it tells the
 * core.
 *
 * Behind Sentinel and in a Cluster the thread checks from time to time whether the locks are still
 * on the server that it reads from. While their hash slot moves, it checks often, and waiters poll;
 * after the move all waiters try again.
 *
 * The thread starts with the first waiter. Armed waiters rely on notifications for a long time
 * (armed_ms), so none may be lost: all waiters try again when a reporting connection is lost, and
 * again when there is a new one, and so do those whose tries were made before it was ready. If the
 * server or the user may not do this, notifications are turned off for the handle, with one line in
 * the log; waiters then poll.
 *
 * Locking: once the thread runs, the notifier belongs to it; what other threads tell it is in the
 * tracker. No lock is held while the core is called or the network is waited for.
 */
#include "notify.h"

#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include "tls.h"

#define MAX_REFUSALS 3
/* Its own connection, the parker, and the links of a handle: shared ones, for WAIT, for extends. */
#define MOST_WATCHED (2 + 2 * SG_REDIS_MAX_CONNECTIONS + 1)
#define CONNECT_NS (5000 * SYNCGUARD_NS_PER_MS)
#define PROBE_NS (5000 * SYNCGUARD_NS_PER_MS)
#define PROBE_MOVING_NS (100 * SYNCGUARD_NS_PER_MS)

struct sg_redis_notifier {
    sg_redis_backend *backend;
    sg_redis_tracker *tracker;
    syncguard_abort *stop;
    pthread_t thread;
    sg_redis_connection *conn; /* receives the notifications; NULL: not connected */
};

static void *redis_notify_run(void *argument);

syncguard_status sg_redis_notifier_create(sg_redis_backend *backend, sg_redis_notifier **out,
                                          syncguard_error *err)
{
    sg_redis_notifier *notifier = syncguard_calloc(1, sizeof *notifier);
    if (notifier == NULL)
        return syncguard_fail_memory(err);
    notifier->backend = backend;
    notifier->tracker = &backend->tracker;
    *out = notifier;
    return SYNCGUARD_OK;
}

void sg_redis_notifier_free(sg_redis_notifier *notifier, bool forked)
{
    if (notifier == NULL)
        return;
    if (notifier->tracker->started && !forked) {
        syncguard_abort_trigger(notifier->stop);
        pthread_join(notifier->thread, NULL);
    }
    if (forked)
        sg_redis_connection_forget(notifier->conn);
    syncguard_abort_free(notifier->stop);
    syncguard_free(notifier);
}

/* ---- called by operations ---- */

/* The caller holds the mutex of the tracker. */
static bool redis_notify_start(sg_redis_notifier *notifier)
{
    sg_redis_tracker *tracker = notifier->tracker;
    if (tracker->started)
        return true;
    if (notifier->stop == NULL && syncguard_abort_create(&notifier->stop, NULL) != SYNCGUARD_OK)
        return false;
    if (tracker->parker.fds[0] < 0 && syncguard_parker_open(&tracker->parker, NULL) != SYNCGUARD_OK)
        return false;
    tracker->started = syncguard_thread_start(&notifier->thread, redis_notify_run, notifier) == 0;
    return tracker->started;
}

bool sg_redis_notifier_watch(sg_redis_notifier *notifier)
{
    sg_redis_tracker *tracker = notifier->tracker;
    pthread_mutex_lock(&tracker->mutex);
    bool armed = !tracker->off && redis_notify_start(notifier) && tracker->ready;
    pthread_mutex_unlock(&tracker->mutex);
    return armed;
}

/* ---- reading notifications ---- */

static void redis_notify_key_changed(sg_redis_notifier *notifier, const redisReply *name)
{
    sg_redis_backend *backend = notifier->backend;
    char key[SYNCGUARD_KEY_SIZE];
    size_t length = 0;
    if (name->type == REDIS_REPLY_STRING && !backend->config.names_hashed)
        length = sg_redis_name_key(&backend->config, name->str, (size_t)name->len, key);
    if (length > 0)
        syncguard_backend_key_changed(&backend->base, key, length);
    else /* a hashed name does not contain its key */
        syncguard_backend_notifications_lost(&backend->base);
}

/* ["message", "__redis__:invalidate", names or nil]; nil: everything was flushed. */
static void redis_notify_handle_message(sg_redis_notifier *notifier, const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
        reply->element[0]->type != REDIS_REPLY_STRING ||
        strcmp(reply->element[0]->str, "message") != 0)
        return;
    const redisReply *names = reply->element[2];
    if (names->type != REDIS_REPLY_ARRAY) {
        syncguard_backend_notifications_lost(&notifier->backend->base);
        return;
    }
    for (size_t i = 0; i < names->elements; i++)
        redis_notify_key_changed(notifier, names->element[i]);
}

/* False: the connection is broken, or its descriptor's number belongs to another socket by now. */
static bool redis_notify_receive(sg_redis_notifier *notifier)
{
    sg_redis_connection *conn = notifier->conn;
    bool fine = sg_redis_connection_is_open(conn) && sg_redis_connection_fill(conn) >= 0;
    while (fine) {
        redisReply *reply = NULL;
        fine = sg_redis_connection_reply(conn, &reply);
        if (reply == NULL)
            break;
        redis_notify_handle_message(notifier, reply);
        freeReplyObject(reply);
    }
    return fine;
}

/* Whether bytes that have left the socket wait inside OpenSSL, where poll does not see them. */
static bool redis_notify_has_buffered(const sg_redis_connection *conn)
{
    if (conn->ssl == NULL || !sg_redis_tls_enter())
        return false;
    bool more = SSL_pending(conn->ssl) > 0;
    sg_redis_tls_leave();
    return more;
}

/* ---- the thread: connecting ---- */

static syncguard_status redis_notify_open_connection(sg_redis_notifier *notifier,
                                                     const syncguard_limits *limits,
                                                     sg_redis_connection **out,
                                                     syncguard_error *err)
{
    sg_redis_backend *backend = notifier->backend;
    sg_redis_tracker *tracker = notifier->tracker;
    char wanted[300];
    pthread_mutex_lock(&tracker->mutex);
    memcpy(wanted, tracker->wanted, sizeof wanted);
    tracker->wanted[0] = '\0'; /* if it fails, the topology decides next time */
    pthread_mutex_unlock(&tracker->mutex);
    char *colon = strrchr(wanted, ':');
    if (colon == NULL)
        return sg_redis_route_connect(&backend->dialer, &backend->topology, limits, out, err);
    *colon = '\0';
    sg_redis_address address = {wanted, (int)strtol(colon + 1, NULL, 10)};
    uint64_t generation = sg_redis_topology_generation(&backend->topology);
    syncguard_status status =
        sg_redis_connection_open(&backend->dialer, &address, SG_REDIS_ROLE_STORE, limits, out, err);
    if (status == SYNCGUARD_OK)
        (*out)->generation = generation;
    return status;
}

/* Subscribes to the notifications. AuthFailed or Internal: the server does not allow it here. */
static syncguard_status redis_notify_subscribe(sg_redis_connection *conn,
                                               const syncguard_limits *limits, int64_t *client_id,
                                               syncguard_error *err)
{
    sg_redis_text text;
    sg_redis_text_init(&text);
    sg_redis_text_words(&text, "CLIENT", "ID", NULL);
    sg_redis_text_words(&text, "SUBSCRIBE", "__redis__:invalidate", NULL);
    redisReply *replies[2] = {NULL, NULL};
    syncguard_status status = sg_redis_connection_call(conn, &text, replies, 2, limits, err);
    if (status == SYNCGUARD_OK && replies[0]->type != REDIS_REPLY_INTEGER)
        status = sg_redis_fail_reply(err, replies[0]);
    else if (status == SYNCGUARD_OK && replies[1]->type != REDIS_REPLY_ARRAY)
        status = sg_redis_fail_reply(err, replies[1]);
    else if (status == SYNCGUARD_OK)
        *client_id = replies[0]->integer;
    sg_redis_replies_free(replies, 2);
    sg_redis_text_free(&text);
    return status;
}

static syncguard_status redis_notify_connect(sg_redis_notifier *notifier, syncguard_error *err)
{
    sg_redis_tracker *tracker = notifier->tracker;
    sg_redis_connection *conn = NULL;
    int64_t client_id = 0;
    syncguard_limits limits = {syncguard_clock_ns() + CONNECT_NS, notifier->stop};
    syncguard_status status = redis_notify_open_connection(notifier, &limits, &conn, err);
    /* Operations connect in the same way: a failure says nothing about the notifications. */
    if (status == SYNCGUARD_E_INTERNAL || status == SYNCGUARD_E_AUTH_FAILED)
        status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    if (status == SYNCGUARD_OK)
        status = redis_notify_subscribe(conn, &limits, &client_id, err);
    if (status != SYNCGUARD_OK) {
        sg_redis_connection_close(conn);
        return status;
    }
    pthread_mutex_lock(&tracker->mutex);
    tracker->client_id = client_id;
    tracker->epoch++;
    memcpy(tracker->peer, conn->peer, sizeof tracker->peer);
    tracker->ready = !tracker->off;
    tracker->reconnect = false;
    notifier->conn = conn;
    pthread_mutex_unlock(&tracker->mutex);
    return SYNCGUARD_OK;
}

static void redis_notify_disconnect(sg_redis_notifier *notifier)
{
    sg_redis_tracker *tracker = notifier->tracker;
    pthread_mutex_lock(&tracker->mutex);
    tracker->ready = false;
    pthread_mutex_unlock(&tracker->mutex);
    sg_redis_connection_close(notifier->conn);
    notifier->conn = NULL;
}

/* ---- the thread: waiting ---- */

/* What the thread waits for: its own connection, the parker, and the end of others. */
typedef struct watch_set {
    struct pollfd fds[MOST_WATCHED];
    sg_redis_connection *conns[MOST_WATCHED]; /* reporting connections, from index 2 on */
    sg_redis_link *links[MOST_WATCHED];
    nfds_t count;
} watch_set;

/*
 * While waiters sleep, no thread reads the connections that carried their tries. If one of them
 * ends, the server forgets what it tracked for it, so the notification thread watches for its end.
 */
static void redis_watch_set_gather(sg_redis_notifier *notifier, watch_set *set)
{
    sg_redis_backend *backend = notifier->backend;
    set->fds[0] = (struct pollfd){notifier->conn->fd, POLLIN, 0};
    set->fds[1] = (struct pollfd){notifier->tracker->parker.fds[0], POLLIN, 0};
    set->count = 2;
    for (size_t i = 0; i < backend->link_count && set->count < MOST_WATCHED; i++) {
        sg_redis_connection *other = sg_redis_link_tracked(&backend->links[i]);
        if (other == NULL)
            continue;
        set->fds[set->count] = (struct pollfd){other->fd, POLLRDHUP, 0};
        set->conns[set->count] = other;
        set->links[set->count] = &backend->links[i];
        set->count++;
    }
}

static void redis_watch_set_give_back(watch_set *set)
{
    for (nfds_t i = 2; i < set->count; i++)
        sg_redis_link_give_back(set->links[i], set->conns[i], set->fds[i].revents != 0);
}

/* Does what other threads have asked for. False: the connection is of no use any more. */
static bool redis_notify_handle_wake_up(sg_redis_notifier *notifier)
{
    sg_redis_tracker *tracker = notifier->tracker;
    syncguard_limits now = {syncguard_clock_ns(), NULL};
    (void)syncguard_parker_park(&tracker->parker, &now, NULL);
    pthread_mutex_lock(&tracker->mutex);
    bool lost = tracker->report_lost;
    bool leave = tracker->reconnect || tracker->off;
    tracker->report_lost = false;
    pthread_mutex_unlock(&tracker->mutex);
    if (lost)
        syncguard_backend_notifications_lost(&notifier->backend->base);
    return !leave;
}

/* When to check next where the locks are. */
static int64_t redis_notify_next_probe_ns(sg_redis_notifier *notifier)
{
    pthread_mutex_lock(&notifier->tracker->mutex);
    int64_t pause = notifier->tracker->moving ? PROBE_MOVING_NS : PROBE_NS;
    pthread_mutex_unlock(&notifier->tracker->mutex);
    return notifier->backend->config.mode == SYNCGUARD_REDIS_SINGLE ? SYNCGUARD_NO_DEADLINE
                                                                    : syncguard_clock_ns() + pause;
}

/* Whether the locks are on the server that the connection leads to. */
static bool redis_notify_probe(sg_redis_notifier *notifier)
{
    sg_redis_backend *backend = notifier->backend;
    sg_redis_tracker *tracker = notifier->tracker;
    syncguard_limits limits = {syncguard_clock_ns() + CONNECT_NS, notifier->stop};
    bool moving = false;
    syncguard_status status = sg_redis_cluster_probe(backend, &limits, &moving, NULL);
    pthread_mutex_lock(&tracker->mutex);
    bool arrived = tracker->moving && !moving;
    tracker->moving = moving;
    pthread_mutex_unlock(&tracker->mutex);
    if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE || status == SYNCGUARD_E_NETWORK_TIMEOUT ||
        status == SYNCGUARD_E_ABORTED)
        return false;
    if (notifier->conn->generation != sg_redis_topology_generation(&backend->topology))
        return false;
    if (arrived)
        syncguard_backend_notifications_lost(&backend->base);
    return true;
}

/* Reads notifications until the connection is of no use any more. */
static void redis_notify_read_loop(sg_redis_notifier *notifier)
{
    syncguard_limits limits = {redis_notify_next_probe_ns(notifier), notifier->stop};
    bool useful = true;
    while (useful) {
        watch_set set;
        syncguard_status status = SYNCGUARD_OK;
        redis_watch_set_gather(notifier, &set);
        if (redis_notify_has_buffered(notifier->conn))
            set.fds[0].revents = POLLIN;
        else
            status = syncguard_wait_fds(set.fds, set.count, &limits, NULL);
        useful = status == SYNCGUARD_OK || status == SYNCGUARD_E_NETWORK_TIMEOUT;
        if (useful && set.fds[0].revents != 0)
            useful = redis_notify_receive(notifier);
        redis_watch_set_give_back(&set);
        if (useful && set.fds[1].revents != 0)
            useful = redis_notify_handle_wake_up(notifier);
        if (status == SYNCGUARD_E_NETWORK_TIMEOUT)
            useful = redis_notify_probe(notifier);
        if (status == SYNCGUARD_E_NETWORK_TIMEOUT || set.fds[1].revents != 0)
            limits.deadline_ns = redis_notify_next_probe_ns(notifier);
    }
}

/* ---- the thread ---- */

/* Pauses after a failure to connect. If the server has denied it several times in a row,
 * notifications are turned off. */
static void redis_notify_handle_failure(sg_redis_notifier *notifier, int round, int denials,
                                        const syncguard_error *error)
{
    sg_redis_tracker *tracker = notifier->tracker;
    if (denials < MAX_REFUSALS) {
        syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, notifier->stop};
        (void)syncguard_backoff_wait(50 * SYNCGUARD_NS_PER_MS, round, 3200 * SYNCGUARD_NS_PER_MS,
                                     &limits, NULL);
        return;
    }
    pthread_mutex_lock(&tracker->mutex);
    tracker->off = true;
    memcpy(tracker->refusal, error->native, sizeof tracker->refusal);
    pthread_mutex_unlock(&tracker->mutex);
}

static bool redis_notify_is_off(sg_redis_tracker *tracker)
{
    pthread_mutex_lock(&tracker->mutex);
    bool off = tracker->off;
    pthread_mutex_unlock(&tracker->mutex);
    return off;
}

static void *redis_notify_run(void *argument)
{
    sg_redis_notifier *notifier = argument;
    syncguard_backend *base = &notifier->backend->base;
    int failures = 0, denials = 0; /* in a row */
    bool connected_before = false;
    while (!redis_notify_is_off(notifier->tracker) && !syncguard_abort_triggered(notifier->stop)) {
        syncguard_error error;
        syncguard_error_clear(&error);
        syncguard_status status = redis_notify_connect(notifier, &error);
        if (status == SYNCGUARD_OK) {
            failures = denials = 0;
            syncguard_backend_notifications_lost(base);
            if (connected_before)
                syncguard_backend_reconnected(base);
            connected_before = true;
            redis_notify_read_loop(notifier);
            redis_notify_disconnect(notifier);
            /* Armed waiters poll again: their next try is not armed. */
            syncguard_backend_notifications_lost(base);
        } else {
            bool denied = status == SYNCGUARD_E_AUTH_FAILED || status == SYNCGUARD_E_INTERNAL;
            denials = denied ? denials + 1 : 0;
            redis_notify_handle_failure(notifier, failures++, denials, &error);
        }
    }
    if (redis_notify_is_off(notifier->tracker))
        syncguard_backend_log(base, SYNCGUARD_LOG_WARN,
                              "the server refuses client tracking (%s): waiters poll",
                              notifier->tracker->refusal);
    sg_redis_tls_thread_ends();
    return NULL;
}
