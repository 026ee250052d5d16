/*
 * Connections to HTTP servers through libcurl.
 *
 * A lane is one easy handle in one multi handle, so it keeps its own connections alive. A caller
 * takes a lane from the pool and drives its transfer in its own thread: no thread of ours, no
 * hand-over, and curl_multi_poll watches the abort's descriptor beside libcurl's own. The gate
 * bounds the lanes in use; idle ones form a stack, so that the warmest connection is used first.
 *
 * libcurl's threaded resolver is joined when a transfer is removed. A transfer that is given up
 * while a name is being resolved therefore goes, with its lane, to a thread that waits for it. If
 * there are too many of those, only idle lanes are used: they may have a connection.
 *
 * Locking: pool->mutex guards both lists. A lane in use belongs to its caller.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/x509_vfy.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "lane.h"
#include "syncguard/sys/environment.h"

/* libcurl is initialised once per process; that is the only state of this file. */
static pthread_once_t curl_once = PTHREAD_ONCE_INIT;

static void start_curl(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

static void pool_link(fs_pool *pool, fs_lane *lane)
{
    lane->next = pool->all;
    lane->previous = NULL;
    if (pool->all)
        pool->all->previous = lane;
    pool->all = lane;
}

static void pool_unlink(fs_pool *pool, fs_lane *lane)
{
    if (lane->previous)
        lane->previous->next = lane->next;
    else
        pool->all = lane->next;
    if (lane->next)
        lane->next->previous = lane->previous;
}

static syncguard_status holders_init(fs_pool *pool, syncguard_error *err)
{
    pool->holders = syncguard_malloc(sizeof *pool->holders);
    if (!pool->holders)
        return syncguard_fail_memory(err);
    atomic_init(pool->holders, 1);
    return SYNCGUARD_OK;
}

static void holders_drop(atomic_int *holders)
{
    if (holders && atomic_fetch_sub(holders, 1) == 1)
        syncguard_free(holders);
}

static syncguard_status fail_descriptors(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, "EMFILE",
                          "no file descriptor is left for a connection");
}

/* libcurl and the resolver do not tell why they failed: could they have had a pair? */
static bool no_descriptors(void)
{
    int pair[2];

    if (pipe2(pair, O_CLOEXEC) != 0)
        return errno == EMFILE || errno == ENFILE;
    (void)close(pair[0]);
    (void)close(pair[1]);
    return false;
}

static syncguard_status pool_take(fs_pool *pool, fs_lane **out, syncguard_error *err)
{
    fs_lane *lane;

    pthread_mutex_lock(&pool->mutex);
    /* A lane whose descriptors the program has closed is left as it is: libcurl would close, or
     * write to, what has their numbers now. */
    while ((lane = pool->idle) != NULL) {
        pool->idle = lane->next_idle;
        if (sg_fs_lane_intact(lane))
            break;
        pool_unlink(pool, lane);
    }
    pthread_mutex_unlock(&pool->mutex);
    *out = lane;
    if (lane)
        return SYNCGUARD_OK;
    if (atomic_load(pool->holders) > FS_MAX_STUCK)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "CURLE_6",
                              "the resolver has not answered %d earlier requests", FS_MAX_STUCK);
    /* One at a time: each finds libcurl's pair by what a wake-up does to it. */
    pthread_mutex_lock(&pool->mutex);
    lane = sg_fs_lane_create(pool);
    if (lane)
        pool_link(pool, lane);
    pthread_mutex_unlock(&pool->mutex);
    *out = lane;
    if (!lane)
        return no_descriptors() ? fail_descriptors(err) : syncguard_fail_memory(err);
    return SYNCGUARD_OK;
}

static void pool_give(fs_pool *pool, fs_lane *lane)
{
    pthread_mutex_lock(&pool->mutex);
    lane->next_idle = pool->idle;
    pool->idle = lane;
    pthread_mutex_unlock(&pool->mutex);
}

/* Waits for the resolver in place of the caller. */
static void *bury(void *argument)
{
    fs_lane *lane = argument;
    atomic_int *holders = lane->holders;

    (void)curl_multi_remove_handle(lane->multi, lane->easy);
    sg_fs_lane_free(lane);
    holders_drop(holders);
    return NULL;
}

static void pool_abandon(fs_pool *pool, fs_lane *lane)
{
    pthread_t thread;

    pthread_mutex_lock(&pool->mutex);
    pool_unlink(pool, lane);
    pthread_mutex_unlock(&pool->mutex);
    lane->reply = NULL;
    lane->holders = pool->holders;
    atomic_fetch_add(pool->holders, 1);
    /* Without a thread the lane is lost: better than a caller that waits past its deadline. */
    if (syncguard_thread_start(&thread, bury, lane) == 0)
        pthread_detach(thread);
    else
        holders_drop(pool->holders);
}

/* --- one transfer --- */

/* TLS of older libcurls writes without MSG_NOSIGNAL. Other threads are not affected. */
typedef struct pipe_guard {
    bool active;
    sigset_t before;
} pipe_guard;

static void pipe_guard_enter(pipe_guard *guard, const char *url)
{
    sigset_t pipe_set;
    sigset_t pending;

    guard->active = false;
    if (strncasecmp(url, "https:", 6) != 0)
        return;
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    if (sigpending(&pending) != 0 || sigismember(&pending, SIGPIPE))
        return;
    guard->active = pthread_sigmask(SIG_BLOCK, &pipe_set, &guard->before) == 0;
}

static void pipe_guard_leave(pipe_guard *guard)
{
    const struct timespec none = {0, 0};
    sigset_t pipe_set;
    int saved = errno;

    if (!guard->active)
        return;
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    while (sigtimedwait(&pipe_set, NULL, &none) < 0 && errno == EINTR)
        continue;
    pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
    errno = saved;
}

static void free_headers(struct curl_slist *list)
{
    for (struct curl_slist *item = list; item; item = item->next)
        explicit_bzero(item->data, strlen(item->data));
    curl_slist_free_all(list);
}

static struct curl_slist *make_headers(const fs_request *request)
{
    struct curl_slist *list = NULL;

    for (size_t i = 0; i < 3 && request->headers[i]; i++) {
        struct curl_slist *longer = curl_slist_append(list, request->headers[i]);
        if (!longer) {
            free_headers(list);
            return NULL;
        }
        list = longer;
    }
    return list;
}

static bool prepare(fs_lane *lane, const fs_request *request, struct curl_slist *headers)
{
    CURL *easy = lane->easy;
    bool good = true;

#define SET(option, value) good = good && curl_easy_setopt(easy, option, value) == CURLE_OK
    SET(CURLOPT_URL, request->url);
    SET(CURLOPT_HTTPHEADER, headers);
    SET(CURLOPT_NOPROXY, request->direct ? "*" : NULL);
    if (request->body) {
        SET(CURLOPT_POST, 1L);
        SET(CURLOPT_POSTFIELDS, request->body);
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_length);
    } else {
        SET(CURLOPT_HTTPGET, 1L);
    }
#undef SET
    return good;
}

/* Runs until the transfer is over: OK (*result tells how), Aborted or NetworkTimeout. */
static syncguard_status drive(fs_lane *lane, const syncguard_limits *limits, CURLcode *result,
                              syncguard_error *err)
{
    int abort_fd = syncguard_abort_fd(limits->abort_object);
    syncguard_status status = SYNCGUARD_OK;
    int running = 1;
    int left = 0;
    CURLMsg *message;

    *result = CURLE_FAILED_INIT;
    for (;;) {
        struct curl_waitfd extra = {abort_fd, CURL_WAIT_POLLIN, 0};
        int64_t rest_ms;

        if (curl_multi_perform(lane->multi, &running) != CURLM_OK)
            return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "libcurl refused to go on");
        if (!running)
            break;
        status = syncguard_limits_check(limits, err);
        if (status != SYNCGUARD_OK)
            return status;
        /* An hour at most: libcurl wants an int, and the loop looks again anyway. */
        rest_ms = syncguard_limits_left_ns(limits) / SYNCGUARD_NS_PER_MS + 1;
        if (rest_ms > 3600000)
            rest_ms = 3600000;
        (void)curl_multi_poll(lane->multi, &extra, abort_fd >= 0 ? 1 : 0, (int)rest_ms, NULL);
    }
    while ((message = curl_multi_info_read(lane->multi, &left)) != NULL) {
        if (message->msg == CURLMSG_DONE)
            *result = message->data.result;
    }
    return SYNCGUARD_OK;
}

/* What a proxy answered to CONNECT, if it refused; nothing of the request has left then (before
 * that libcurl may have sent it on another connection). */
static syncguard_status map_refusal(const fs_lane *lane, long http, fs_reply *reply,
                                    syncguard_error *err)
{
    char native[32];

#if LIBCURL_VERSION_NUM >= 0x075000
    reply->sent = lane->started > 0;
#else
    (void)lane;
    (void)reply;
#endif
    (void)snprintf(native, sizeof native, "HTTP_%ld", http);
    return syncguard_fail(err,
                          http == 407 ? SYNCGUARD_E_AUTH_FAILED : SYNCGUARD_E_SERVICE_UNAVAILABLE,
                          native, "the proxy answered HTTP %ld", http);
}

/* What libcurl says where it may have lacked a descriptor. Nothing has been sent then. */
static bool starved(CURLcode code)
{
    return code == CURLE_OUT_OF_MEMORY || code == CURLE_COULDNT_RESOLVE_HOST ||
           code == CURLE_COULDNT_RESOLVE_PROXY || code == CURLE_SSL_CACERT_BADFILE;
}

static syncguard_status map_curl(const fs_lane *lane, CURLcode code, fs_reply *reply,
                                 syncguard_error *err)
{
    char native[32] = "CURLE_";
    size_t at = strlen(native);
    int value = (int)code;
    long connect_code = 0;

    if (lane->no_descriptor || (starved(code) && no_descriptors()))
        return fail_descriptors(err);
    if (lane->no_memory || code == CURLE_OUT_OF_MEMORY)
        return syncguard_fail_memory(err);
    if (lane->too_long)
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                              "the server's answer is longer than %u bytes", FS_MAX_REPLY_BYTES);
    (void)curl_easy_getinfo(lane->easy, CURLINFO_HTTP_CONNECTCODE, &connect_code);
    if (connect_code >= 300)
        return map_refusal(lane, connect_code, reply, err);
    if (value >= 100)
        native[at++] = (char)('0' + value / 100 % 10);
    if (value >= 10)
        native[at++] = (char)('0' + value / 10 % 10);
    native[at++] = (char)('0' + value % 10);
    native[at] = '\0';
    switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
        return syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, native, "the connection timed out");
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
        reply->broken = true;
        break;
    default:
        break;
    }
    /* libcurl's texts for codes are fixed; they hold nothing of the request. */
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, native, "no answer: %s",
                          curl_easy_strerror(code));
}

static void observe(fs_lane *lane, fs_reply *reply)
{
    curl_off_t before_us = 0;
    curl_off_t tls_us = 0;
    long request_bytes = 0;

    reply->end_ns = syncguard_clock_ns();
    /* Both are 0 on a connection that was there already. */
    (void)curl_easy_getinfo(lane->easy, CURLINFO_CONNECT_TIME_T, &before_us);
    (void)curl_easy_getinfo(lane->easy, CURLINFO_APPCONNECT_TIME_T, &tls_us);
    if (tls_us > before_us)
        before_us = tls_us;
    (void)curl_easy_getinfo(lane->easy, CURLINFO_REQUEST_SIZE, &request_bytes);
    (void)curl_easy_getinfo(lane->easy, CURLINFO_RESPONSE_CODE, &reply->status);
    if (before_us > 0 && reply->start_ns + (int64_t)before_us * 1000 < reply->end_ns)
        reply->start_ns += (int64_t)before_us * 1000;
    reply->sent = request_bytes > 0 || lane->started > 0;
#if LIBCURL_VERSION_NUM >= 0x075000
    reply->resent = lane->started > 1;
#else
    /* A new connection on a lane that had one: perhaps the old one died with the request. */
    reply->resent = lane->used && lane->opened > 0;
#endif
}

static syncguard_status transfer_on(fs_lane *lane, const fs_request *request,
                                    const syncguard_limits *limits, fs_reply *reply, bool *stuck,
                                    syncguard_error *err)
{
    struct curl_slist *headers = make_headers(request);
    syncguard_status status;
    CURLcode result = CURLE_OK;

    lane->reply = reply;
    lane->opened = lane->closed = 0;
    lane->started = 0;
    lane->too_long = lane->no_memory = lane->no_descriptor = false;
    if ((request->headers[0] && !headers) || !prepare(lane, request, headers)) {
        free_headers(headers);
        return syncguard_fail_memory(err);
    }
    reply->start_ns = syncguard_clock_ns();
    if (curl_multi_add_handle(lane->multi, lane->easy) != CURLM_OK) {
        status = syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "libcurl refused a request");
        goto out;
    }
    status = drive(lane, limits, &result, err);
    observe(lane, reply);
    /* Nothing opened, and nothing sent on what was open (or that is closed now, and libcurl on its
     * way to send it again): the name may still be resolving. */
    *stuck = status != SYNCGUARD_OK && lane->opened == 0 && (!reply->sent || lane->closed > 0);
    if (!*stuck)
        (void)curl_multi_remove_handle(lane->multi, lane->easy);
    lane->used = true;
    if (status == SYNCGUARD_OK && result != CURLE_OK)
        status = map_curl(lane, result, reply, err);

out:
    /* A stuck transfer is only removed, not driven: its header list is not read again. */
    if (!*stuck) {
        (void)curl_easy_setopt(lane->easy, CURLOPT_HTTPHEADER, NULL);
        (void)curl_easy_setopt(lane->easy, CURLOPT_POSTFIELDS, NULL);
    }
    free_headers(headers);
    return status;
}

syncguard_status sg_fs_transfer(fs_pool *pool, const fs_request *request,
                                const syncguard_limits *limits, fs_reply *reply,
                                syncguard_error *err)
{
    syncguard_status status;
    fs_lane *lane;
    pipe_guard guard;
    bool stuck = false;

    memset(reply, 0, sizeof *reply);
    status = syncguard_limits_check(limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = syncguard_gate_enter(&pool->gate, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = pool_take(pool, &lane, err);
    if (status != SYNCGUARD_OK) {
        syncguard_gate_leave(&pool->gate);
        return status;
    }
    pipe_guard_enter(&guard, request->url);
    status = transfer_on(lane, request, limits, reply, &stuck, err);
    pipe_guard_leave(&guard);
    if (stuck) {
        pool_abandon(pool, lane);
    } else {
        sg_fs_lane_settle(lane);
        pool_give(pool, lane);
    }
    syncguard_gate_leave(&pool->gate);
    return status;
}

void sg_fs_reply_free(fs_reply *reply)
{
    if (reply->body) {
        explicit_bzero(reply->body, reply->capacity);
        syncguard_free(reply->body);
    }
    reply->body = NULL;
    reply->length = reply->capacity = 0;
}

/* --- the pool --- */

/* What libcurl would trust by itself; NULL where it has to do that. */
static X509_STORE *load_trusted(const char *ca_file)
{
    const curl_version_info_data *about = curl_version_info(CURLVERSION_NOW);
    char ours[32];
    X509_STORE *store;
    const char *bundle = ca_file;
    const char *folder = NULL;

    (void)snprintf(ours, sizeof ours, "OpenSSL/%d.", (int)(OPENSSL_VERSION_NUMBER >> 28));
    if (!about->ssl_version || strncmp(about->ssl_version, ours, strlen(ours)) != 0)
        return NULL;
    if (!ca_file) {
        bundle = about->cainfo;
        folder = about->capath;
    }
    store = X509_STORE_new();
    if (store && (bundle || folder) && X509_STORE_load_locations(store, bundle, folder) == 1)
        return store;
    X509_STORE_free(store);
    return NULL;
}

syncguard_status sg_fs_pool_init(fs_pool *pool, int connections, const char *ca_file, bool tls,
                                 syncguard_error *err)
{
    syncguard_status status;

    memset(pool, 0, sizeof *pool);
    /* libcurl would append the keys of its connections to that file. */
    status = syncguard_environment_refuse("SSLKEYLOGFILE", err);
    if (status != SYNCGUARD_OK)
        return status;
    pthread_once(&curl_once, start_curl);
    if (ca_file && access(ca_file, R_OK) != 0)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the file given by option ca_file cannot be read");
    if (ca_file) {
        pool->ca_file = syncguard_strdup(ca_file);
        if (!pool->ca_file)
            return syncguard_fail_memory(err);
    }
    status = holders_init(pool, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_gate_init(&pool->gate, connections, err);
    if (status == SYNCGUARD_OK && pthread_mutex_init(&pool->mutex, NULL) != 0) {
        syncguard_gate_destroy(&pool->gate);
        status = syncguard_fail_memory(err);
    }
    if (status == SYNCGUARD_OK && tls)
        pool->trusted = load_trusted(ca_file);
    if (status != SYNCGUARD_OK) {
        holders_drop(pool->holders);
        syncguard_free(pool->ca_file);
        pool->holders = NULL;
        pool->ca_file = NULL;
    }
    return status;
}

void sg_fs_pool_destroy(fs_pool *pool)
{
    fs_lane *lane = pool->all;

    while (lane) {
        fs_lane *next = lane->next;
        if (sg_fs_lane_intact(lane))
            sg_fs_lane_free(lane);
        lane = next;
    }
    pool->all = pool->idle = NULL;
    pthread_mutex_destroy(&pool->mutex);
    syncguard_gate_destroy(&pool->gate);
    X509_STORE_free(pool->trusted);
    pool->trusted = NULL;
    holders_drop(pool->holders);
    pool->holders = NULL;
    syncguard_free(pool->ca_file);
    pool->ca_file = NULL;
}

syncguard_status sg_fs_pool_forget(fs_pool *pool, int connections, syncguard_error *err)
{
    /* libcurl would say goodbye on connections that the parent uses, and may have been in the
     * middle of anything when the process forked: its handles are left alone for good. */
    for (fs_lane *lane = pool->all; lane; lane = lane->next) {
        for (size_t i = 0; i < LANE_SOCKETS; i++) {
            syncguard_fd_close_inherited(lane->sockets[i].fd, lane->sockets[i].identity);
            lane->sockets[i].fd = -1;
        }
    }
    pool->all = pool->idle = NULL;
    /* The threads that would give back the rest are the parent's. */
    atomic_store(pool->holders, 1);
    if (pthread_mutex_init(&pool->mutex, NULL) != 0)
        return syncguard_fail_memory(err);
    return syncguard_gate_init(&pool->gate, connections, err);
}

bool sg_fs_url_loopback(const char *url)
{
    static const char *const hosts[] = {"localhost", "[::1]", NULL};
    const char *host = strstr(url, "://");
    size_t length;

    host = host ? host + 3 : url;
    length = strcspn(host, "/?#");
    if (memchr(host, '@', length))
        return false;
    if (length >= 4 && strncmp(host, "127.", 4) == 0)
        return strspn(host, "0123456789.:") >= length;
    for (size_t i = 0; hosts[i]; i++) {
        size_t n = strlen(hosts[i]);
        if (length >= n && strncasecmp(host, hosts[i], n) == 0 && (length == n || host[n] == ':'))
            return true;
    }
    return false;
}
