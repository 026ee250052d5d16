/*
 * Wake-up by server-assisted client tracking.
 *
 * A waiter's try is preceded by CLIENT CACHING YES and a read of the lock's
 * name, on a connection that tracks with REDIRECT to the one kept here. When
 * anybody changes that name, the server sends an invalidation to the connection
 * here, and the thread that reads it stirs the core's waiters. OPTIN: only those
 * reads are tracked, so uncontended work pays nothing. NOLOOP: what the same
 * connection changes is no news.
 *
 * A waiter that sleeps reads the reports itself (tracker_listen), and is then one
 * wake-up nearer to its news; the thread reads them only while there are waiters
 * of which none does. Either way it watches over the connections and makes new ones.
 *
 * Behind Sentinel and in a Cluster the thread looks from time to time whether the locks are still
 * where it listens, and often while their slot moves, when waiters poll; then everybody tries
 * again.
 *
 * The thread starts with the first waiter. Waiters are told for how long they may
 * rest on a report (armed_ms), so none may be lost: all of them are stirred when a
 * reporting connection is lost, and again when there is a new one, and so are those
 * whose tries were made before it was ready. NOLOOP would also hide this handle's
 * extends, after which the server no longer watches: they go over a connection that
 * does not report (sg_redis_extend_link). A server or user that may not do this turns
 * it off for the handle, with one line in the log; waiters then poll.
 *
 * Locking: tracker->mutex guards the fields below it; it is never held while
 * the core is called or the network is waited for. read_mutex is held by who
 * takes bytes from the connection, also while it tells the core about them. The
 * connection is closed by the last who uses it, the thread or a listener.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MAX_REFUSALS 3
/* Its own connection, the parker, and as many as a handle can have. */
#define MOST_WATCHED (2 + 64 + 64)
#define CONNECT_NS (5000 * SYNCGUARD_NS_PER_MS)
#define PROBE_NS (5000 * SYNCGUARD_NS_PER_MS)
#define PROBE_MOVING_NS (100 * SYNCGUARD_NS_PER_MS)

struct sg_tracker {
    sg_backend *backend;
    syncguard_abort *stop;
    syncguard_parker parker;
    pthread_mutex_t read_mutex;
    pthread_mutex_t mutex;
    pthread_t thread;
    sg_conn *conn;              /* what reports come by, NULL: nothing at present */
    syncguard_parker *listener; /* of the waiter that reads them */
    bool thread_reads;
    bool started;
    bool off;       /* this server or user cannot */
    bool ready;     /* reports can be redirected to client_id */
    bool unsettled; /* a reporting connection is gone: stir everybody */
    bool reconnect; /* the present connection is of no use */
    bool moving;    /* tries were not armed, because the slot moves */
    int refusals;   /* CLIENT TRACKING refused in a row */
    uint64_t epoch; /* counts the connections that reports went to */
    int64_t client_id;
    char peer[300];   /* server that the connection leads to */
    char wanted[300]; /* server that it should lead to; "": the primary */
    char refusal[SG_WORD_SIZE];
    sg_keymap keys;
};

static void *run(void *argument);

syncguard_status sg_redis_tracker_create(sg_backend *backend, sg_tracker **out,
                                         syncguard_error *err)
{
    sg_tracker *tracker = syncguard_calloc(1, sizeof *tracker);
    if (tracker == NULL)
        return syncguard_fail_memory(err);
    tracker->backend = backend;
    tracker->parker = (syncguard_parker)SYNCGUARD_PARKER_INIT;
    if (pthread_mutex_init(&tracker->mutex, NULL) != 0)
        goto no_memory;
    if (pthread_mutex_init(&tracker->read_mutex, NULL) != 0) {
        pthread_mutex_destroy(&tracker->mutex);
        goto no_memory;
    }
    *out = tracker;
    return SYNCGUARD_OK;
no_memory:
    syncguard_free(tracker);
    return syncguard_fail_memory(err);
}

void sg_redis_tracker_free(sg_tracker *tracker, bool forked)
{
    if (tracker == NULL)
        return;
    if (tracker->started && !forked) {
        syncguard_abort_trigger(tracker->stop);
        pthread_join(tracker->thread, NULL);
    }
    if (forked)
        sg_redis_conn_forget(tracker->conn);
    else
        sg_redis_keymap_free(&tracker->keys);
    syncguard_abort_free(tracker->stop);
    syncguard_parker_close(&tracker->parker);
    if (!forked) {
        pthread_mutex_destroy(&tracker->read_mutex);
        pthread_mutex_destroy(&tracker->mutex);
    }
    syncguard_free(tracker);
}

static bool is_plain(const sg_tracker *tracker, size_t name_length, size_t key_length)
{
    return name_length == tracker->backend->config.prefix_length + 1 + key_length;
}

/* --- called by operations --- */

/* Caller holds the mutex. */
static bool start(sg_tracker *tracker)
{
    if (tracker->started)
        return true;
    if (tracker->stop == NULL && syncguard_abort_create(&tracker->stop, NULL) != SYNCGUARD_OK)
        return false;
    if (tracker->parker.fds[0] < 0 && syncguard_parker_open(&tracker->parker, NULL) != SYNCGUARD_OK)
        return false;
    tracker->started = syncguard_thread_start(&tracker->thread, run, tracker) == 0;
    return tracker->started;
}

bool sg_redis_tracker_watch(sg_tracker *tracker, const char *name, size_t name_length,
                            const char *key, size_t key_length)
{
    pthread_mutex_lock(&tracker->mutex);
    bool armed = !tracker->off && start(tracker);
    if (armed && tracker->backend->config.names_hashed &&
        !is_plain(tracker, name_length, key_length))
        armed = sg_redis_keymap_put(&tracker->keys, name, name_length, key, key_length);
    armed = armed && tracker->ready;
    pthread_mutex_unlock(&tracker->mutex);
    return armed;
}

void sg_redis_tracker_unwatch(sg_tracker *tracker, const char *name, size_t name_length)
{
    pthread_mutex_lock(&tracker->mutex);
    sg_redis_keymap_remove(&tracker->keys, name, name_length);
    pthread_mutex_unlock(&tracker->mutex);
}

bool sg_redis_tracker_prepare(sg_tracker *tracker, sg_conn *conn, bool *expected)
{
    *expected = false;
    pthread_mutex_lock(&tracker->mutex);
    if (tracker->ready && strcmp(tracker->peer, conn->peer) != 0) {
        memcpy(tracker->wanted, conn->peer, sizeof tracker->wanted);
        tracker->reconnect = true;
        tracker->ready = false;
        syncguard_parker_unpark(&tracker->parker);
    } else if (tracker->ready && conn->tracked != tracker->epoch) {
        sg_redis_text_command(&conn->out, 7);
        sg_redis_text_arg_str(&conn->out, "CLIENT");
        sg_redis_text_arg_str(&conn->out, "TRACKING");
        sg_redis_text_arg_str(&conn->out, "ON");
        sg_redis_text_arg_str(&conn->out, "REDIRECT");
        sg_redis_text_arg_int(&conn->out, tracker->client_id);
        sg_redis_text_arg_str(&conn->out, "OPTIN");
        sg_redis_text_arg_str(&conn->out, "NOLOOP");
        conn->tracked = tracker->epoch;
        *expected = true;
        syncguard_parker_unpark(&tracker->parker); /* one more connection to keep an eye on */
    }
    bool armed = tracker->ready && conn->tracked == tracker->epoch;
    pthread_mutex_unlock(&tracker->mutex);
    return armed;
}

void sg_redis_tracker_answer(sg_tracker *tracker, uint64_t epoch, const redisReply *reply)
{
    char word[SG_WORD_SIZE];
    sg_redis_reply_word(reply, word);
    pthread_mutex_lock(&tracker->mutex);
    if (word[0] == '\0') {
        tracker->refusals = 0;
    } else if ((epoch == 0 || epoch == tracker->epoch) && !tracker->reconnect) {
        /* Perhaps only the redirection is out of date, which other connections hear at the same
         * time; but not again and again. */
        memcpy(tracker->refusal, word, sizeof word);
        tracker->refusals++;
        if (strcmp(tracker->refusal, "NOPERM") == 0 || tracker->refusals >= MAX_REFUSALS)
            tracker->off = true;
        tracker->ready = false;
        tracker->reconnect = true;
        syncguard_parker_unpark(&tracker->parker);
    }
    pthread_mutex_unlock(&tracker->mutex);
}

void sg_redis_tracker_moving(sg_tracker *tracker)
{
    pthread_mutex_lock(&tracker->mutex);
    if (!tracker->moving && tracker->started)
        syncguard_parker_unpark(&tracker->parker);
    tracker->moving = true;
    pthread_mutex_unlock(&tracker->mutex);
}

bool sg_redis_tracker_started(sg_tracker *tracker)
{
    pthread_mutex_lock(&tracker->mutex);
    bool started = tracker->started;
    pthread_mutex_unlock(&tracker->mutex);
    return started;
}

void sg_redis_tracker_lost(sg_tracker *tracker)
{
    if (tracker == NULL)
        return;
    pthread_mutex_lock(&tracker->mutex);
    tracker->unsettled = true;
    if (tracker->started)
        syncguard_parker_unpark(&tracker->parker);
    pthread_mutex_unlock(&tracker->mutex);
}

/* --- reading reports --- */

static void stir(sg_tracker *tracker, const redisReply *name)
{
    const sg_config *config = &tracker->backend->config;
    char key[SYNCGUARD_KEY_SIZE];
    size_t length = 0;
    if (name->type != REDIS_REPLY_STRING || (size_t)name->len >= SYNCGUARD_NAME_SIZE)
        return;
    if (config->names_hashed) {
        pthread_mutex_lock(&tracker->mutex);
        length = sg_redis_keymap_get(&tracker->keys, name->str, (size_t)name->len, key);
        pthread_mutex_unlock(&tracker->mutex);
    }
    size_t skip = config->prefix_length + 1;
    if (length == 0 && (size_t)name->len > skip && (size_t)name->len - skip < sizeof key) {
        length = (size_t)name->len - skip;
        memcpy(key, name->str + skip, length);
    }
    if (length > 0)
        syncguard_backend_stirred(&tracker->backend->base, key, length);
}

/* ["message", "__redis__:invalidate", names or nil]; nil: everything was flushed. */
static void handle_message(sg_tracker *tracker, const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
        reply->element[0]->type != REDIS_REPLY_STRING ||
        strcmp(reply->element[0]->str, "message") != 0)
        return;
    const redisReply *names = reply->element[2];
    if (names->type != REDIS_REPLY_ARRAY) {
        syncguard_backend_stirred_all(&tracker->backend->base);
        return;
    }
    for (size_t i = 0; i < names->elements; i++)
        stir(tracker, names->element[i]);
}

/* False: the connection is broken. */
static bool handle_messages(sg_tracker *tracker, sg_conn *conn)
{
    pthread_mutex_lock(&tracker->read_mutex);
    bool fine = sg_redis_conn_fill(conn) >= 0;
    while (fine) {
        redisReply *reply = NULL;
        fine = sg_redis_conn_reply(conn, &reply);
        if (reply == NULL)
            break;
        handle_message(tracker, reply);
        freeReplyObject(reply);
    }
    pthread_mutex_unlock(&tracker->read_mutex);
    return fine;
}

/* Bytes that have left the socket and wait inside OpenSSL, where poll does not see them. */
static bool has_more(sg_tracker *tracker, const sg_conn *conn)
{
    if (conn->ssl == NULL || !sg_redis_tls_enter())
        return false;
    pthread_mutex_lock(&tracker->read_mutex);
    bool more = SSL_pending(conn->ssl) > 0;
    pthread_mutex_unlock(&tracker->read_mutex);
    sg_redis_tls_leave();
    return more;
}

/* Caller holds the mutex. */
static void drop_conn(sg_conn *conn)
{
    if (--conn->refs == 0)
        sg_redis_conn_close(conn);
}

/* --- in the thread of a waiter --- */

static sg_conn *begin_listening(sg_tracker *tracker, syncguard_parker *parker)
{
    pthread_mutex_lock(&tracker->mutex);
    sg_conn *conn = tracker->ready ? tracker->conn : NULL;
    if (conn != NULL) {
        conn->refs++;
        tracker->listener = parker;
        if (tracker->thread_reads)
            syncguard_parker_unpark(&tracker->parker); /* it looks elsewhere from now on */
        tracker->thread_reads = false;
    }
    pthread_mutex_unlock(&tracker->mutex);
    return conn;
}

static void end_listening(sg_tracker *tracker, sg_conn *conn, bool fine)
{
    pthread_mutex_lock(&tracker->mutex);
    tracker->listener = NULL;
    if (!fine && tracker->conn == conn) {
        tracker->reconnect = true;
        tracker->ready = false;
        syncguard_parker_unpark(&tracker->parker);
    }
    drop_conn(conn);
    pthread_mutex_unlock(&tracker->mutex);
}

syncguard_status sg_redis_tracker_listen(sg_tracker *tracker, syncguard_parker *parker,
                                         const syncguard_limits *limits, syncguard_error *err)
{
    sg_conn *conn = begin_listening(tracker, parker);
    if (conn == NULL)
        return SYNCGUARD_ABSENT;
    struct pollfd fds[2] = {{conn->fd, POLLIN, 0}, {parker->fds[0], POLLIN, 0}};
    syncguard_status status = SYNCGUARD_OK;
    bool fine = true;
    if (has_more(tracker, conn))
        fds[0].revents = POLLIN;
    else
        status = syncguard_wait_fds(fds, 2, limits, err);
    if (status == SYNCGUARD_OK && fds[0].revents != 0)
        fine = handle_messages(tracker, conn);
    if (status == SYNCGUARD_OK && fds[1].revents != 0) {
        syncguard_limits now = {0, NULL};
        (void)syncguard_parker_park(parker, &now, NULL);
    }
    end_listening(tracker, conn, fine);
    return status;
}

void sg_redis_tracker_take_over(sg_tracker *tracker)
{
    pthread_mutex_lock(&tracker->mutex);
    if (!tracker->thread_reads && tracker->started)
        syncguard_parker_unpark(&tracker->parker);
    tracker->thread_reads = true;
    pthread_mutex_unlock(&tracker->mutex);
}

/* --- the thread --- */

static syncguard_status open_conn(sg_tracker *tracker, const syncguard_limits *limits,
                                  sg_conn **out, syncguard_error *err)
{
    char wanted[300];
    pthread_mutex_lock(&tracker->mutex);
    memcpy(wanted, tracker->wanted, sizeof wanted);
    tracker->wanted[0] = '\0'; /* if it fails, the route knows better next time */
    pthread_mutex_unlock(&tracker->mutex);
    char *colon = strrchr(wanted, ':');
    if (colon == NULL)
        return sg_redis_route_connect(tracker->backend, limits, out, err);
    *colon = '\0';
    sg_address address = {wanted, (int)strtol(colon + 1, NULL, 10)};
    uint64_t generation = sg_redis_route_generation(&tracker->backend->route);
    syncguard_status status =
        sg_redis_conn_open(tracker->backend, &address, SG_ROLE_STORE, limits, out, err);
    if (status == SYNCGUARD_OK)
        (*out)->route = generation;
    return status;
}

/* Connects and subscribes. AuthFailed or Internal: the server does not allow it here. */
static syncguard_status establish(sg_tracker *tracker, sg_conn **out, syncguard_error *err)
{
    sg_conn *conn = NULL;
    redisReply *replies[2] = {NULL, NULL};
    sg_text text;
    syncguard_limits limits = {syncguard_clock_ns() + CONNECT_NS, tracker->stop};
    sg_redis_text_init(&text);
    syncguard_status status = open_conn(tracker, &limits, &conn, err);
    if (status != SYNCGUARD_OK) {
        /* Operations connect in the same way: this says nothing about the reports. */
        if (status == SYNCGUARD_E_INTERNAL || status == SYNCGUARD_E_AUTH_FAILED)
            status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
        goto out;
    }
    sg_redis_text_command(&text, 2);
    sg_redis_text_arg_str(&text, "CLIENT");
    sg_redis_text_arg_str(&text, "ID");
    sg_redis_text_command(&text, 2);
    sg_redis_text_arg_str(&text, "SUBSCRIBE");
    sg_redis_text_arg_str(&text, "__redis__:invalidate");
    status = sg_redis_conn_call(conn, &text, replies, 2, &limits, err);
    if (status != SYNCGUARD_OK)
        goto out;
    if (replies[0]->type != REDIS_REPLY_INTEGER)
        status = sg_redis_fail_reply(err, replies[0]);
    else if (replies[1]->type != REDIS_REPLY_ARRAY)
        status = sg_redis_fail_reply(err, replies[1]);
    if (status != SYNCGUARD_OK)
        goto out;
    pthread_mutex_lock(&tracker->mutex);
    tracker->client_id = replies[0]->integer;
    tracker->epoch++;
    memcpy(tracker->peer, conn->peer, sizeof tracker->peer);
    tracker->ready = !tracker->off;
    tracker->reconnect = false;
    tracker->conn = conn;
    tracker->thread_reads = true;
    conn->refs = 1;
    pthread_mutex_unlock(&tracker->mutex);
    *out = conn;
    conn = NULL;
out:
    sg_redis_replies_free(replies, 2);
    sg_redis_text_free(&text);
    sg_redis_conn_close(conn);
    return status;
}

/* What the thread waits for: its own connection, the parker, and the end of others. */
typedef struct watch_set {
    struct pollfd fds[MOST_WATCHED];
    sg_conn *conns[MOST_WATCHED]; /* reporting connections, from index 2 on */
    sg_link *links[MOST_WATCHED];
    nfds_t count;
} watch_set;

/*
 * While waiters sleep nobody reads the connections that carried their tries. If
 * one ends, the server forgets what it tracked for it: so its end is watched here.
 */
static void gather(sg_tracker *tracker, const sg_conn *conn, watch_set *set)
{
    sg_backend *backend = tracker->backend;
    pthread_mutex_lock(&tracker->mutex);
    bool reads = tracker->thread_reads;
    pthread_mutex_unlock(&tracker->mutex);
    set->fds[0] = (struct pollfd){conn->fd, reads ? POLLIN : POLLRDHUP, 0};
    set->fds[1] = (struct pollfd){tracker->parker.fds[0], POLLIN, 0};
    set->count = 2;
    for (size_t i = 0; i < backend->link_count && set->count < MOST_WATCHED; i++) {
        sg_conn *other = sg_redis_link_tracked(&backend->links[i]);
        if (other == NULL)
            continue;
        set->fds[set->count] = (struct pollfd){other->fd, POLLRDHUP, 0};
        set->conns[set->count] = other;
        set->links[set->count] = &backend->links[i];
        set->count++;
    }
}

static void let_go(watch_set *set)
{
    for (nfds_t i = 2; i < set->count; i++)
        sg_redis_link_give_back(set->links[i], set->conns[i], set->fds[i].revents != 0);
}

/* What others have asked of the thread. False: the connection is of no use any more. */
static bool attend(sg_tracker *tracker)
{
    syncguard_limits now = {syncguard_clock_ns(), NULL};
    (void)syncguard_parker_park(&tracker->parker, &now, NULL);
    pthread_mutex_lock(&tracker->mutex);
    bool unsettled = tracker->unsettled;
    bool leave = tracker->reconnect || tracker->off;
    tracker->unsettled = false;
    pthread_mutex_unlock(&tracker->mutex);
    if (unsettled)
        syncguard_backend_stirred_all(&tracker->backend->base);
    return !leave;
}

/* When to look where the locks are. */
static int64_t next_probe(sg_tracker *tracker)
{
    pthread_mutex_lock(&tracker->mutex);
    int64_t pause = tracker->moving ? PROBE_MOVING_NS : PROBE_NS;
    pthread_mutex_unlock(&tracker->mutex);
    return tracker->backend->config.mode == SYNCGUARD_REDIS_SINGLE ? SYNCGUARD_NO_DEADLINE
                                                                   : syncguard_clock_ns() + pause;
}

/* Whether the locks are where conn leads. */
static bool probe(sg_tracker *tracker, const sg_conn *conn)
{
    sg_backend *backend = tracker->backend;
    syncguard_limits limits = {syncguard_clock_ns() + CONNECT_NS, tracker->stop};
    bool moving = false;
    syncguard_status status = sg_redis_route_probe(backend, &limits, &moving, NULL);
    pthread_mutex_lock(&tracker->mutex);
    bool arrived = tracker->moving && !moving;
    tracker->moving = status == SYNCGUARD_OK && moving;
    pthread_mutex_unlock(&tracker->mutex);
    if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE || status == SYNCGUARD_E_NETWORK_TIMEOUT ||
        status == SYNCGUARD_E_ABORTED)
        return false;
    if (conn->route != sg_redis_route_generation(&backend->route))
        return false;
    if (arrived)
        syncguard_backend_stirred_all(&backend->base);
    return true;
}

/* Reads reports until the connection is of no use any more. */
static void read_reports(sg_tracker *tracker, sg_conn *conn)
{
    syncguard_limits limits = {next_probe(tracker), tracker->stop};
    bool useful = true;
    while (useful) {
        watch_set set;
        syncguard_status status = SYNCGUARD_OK;
        gather(tracker, conn, &set);
        if ((set.fds[0].events & POLLIN) != 0 && has_more(tracker, conn))
            set.fds[0].revents = POLLIN;
        else
            status = syncguard_wait_fds(set.fds, set.count, &limits, NULL);
        useful = status == SYNCGUARD_OK || status == SYNCGUARD_E_NETWORK_TIMEOUT;
        if (useful && set.fds[0].revents != 0)
            useful = handle_messages(tracker, conn);
        let_go(&set);
        if (useful && set.fds[1].revents != 0)
            useful = attend(tracker);
        if (status == SYNCGUARD_E_NETWORK_TIMEOUT)
            useful = probe(tracker, conn);
        if (status == SYNCGUARD_E_NETWORK_TIMEOUT || set.fds[1].revents != 0)
            limits.deadline_ns = next_probe(tracker);
    }
}

static void *run(void *argument)
{
    sg_tracker *tracker = argument;
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, tracker->stop};
    syncguard_error error;
    bool off = false;
    int denials = 0; /* in a row */
    for (int round = 0; !off && syncguard_limits_check(&limits, NULL) == SYNCGUARD_OK;) {
        sg_conn *conn = NULL;
        syncguard_error_clear(&error);
        syncguard_status status = establish(tracker, &conn, &error);
        if (status == SYNCGUARD_OK) {
            round = denials = 0;
            syncguard_backend_stirred_all(&tracker->backend->base);
            read_reports(tracker, conn);
            pthread_mutex_lock(&tracker->mutex);
            tracker->ready = false;
            tracker->conn = NULL;
            drop_conn(conn);
            if (tracker->listener != NULL)
                syncguard_parker_unpark(tracker->listener); /* it listens in vain */
            pthread_mutex_unlock(&tracker->mutex);
            /* Nobody may rest any longer: they try, find nothing armed, and poll. */
            syncguard_backend_stirred_all(&tracker->backend->base);
        } else {
            bool denied = status == SYNCGUARD_E_AUTH_FAILED || status == SYNCGUARD_E_INTERNAL;
            denials = denied ? denials + 1 : 0;
        }
        if (status != SYNCGUARD_OK && denials < MAX_REFUSALS) {
            int64_t pause_ms = INT64_C(50) << (round < 6 ? round : 6);
            round++;
            (void)syncguard_wait_until(syncguard_clock_ns() + pause_ms * SYNCGUARD_NS_PER_MS,
                                       &limits, NULL);
        }
        pthread_mutex_lock(&tracker->mutex);
        tracker->ready = false;
        if (denials >= MAX_REFUSALS) {
            tracker->off = true;
            memcpy(tracker->refusal, error.native, sizeof tracker->refusal);
        }
        off = tracker->off;
        pthread_mutex_unlock(&tracker->mutex);
    }
    if (off)
        syncguard_backend_log(&tracker->backend->base, SYNCGUARD_LOG_WARN,
                              "redis: the server refuses client tracking (%s): waiters poll",
                              tracker->refusal);
    return NULL;
}
