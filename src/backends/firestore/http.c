/*
 * One HTTP request through libcurl. The caller takes a handle from the pool and drives the transfer
 * in its own thread. No thread of ours is involved, and curl_multi_poll watches the descriptor of
 * the abort object beside libcurl's own.
 */
#include "http.h"

#include <curl/curl.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Older versions of libcurl write TLS records without MSG_NOSIGNAL, so the thread blocks SIGPIPE
 * meanwhile. Other threads are not affected. */
typedef struct pipe_guard {
    bool active;
    sigset_t before;
} pipe_guard;

static void pipe_guard_enter(pipe_guard *guard, const char *url)
{
    guard->active = false;
    if (strncasecmp(url, "https:", 6) != 0)
        return;
    sigset_t pipe_set;
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    sigset_t pending;
    if (sigpending(&pending) != 0 || sigismember(&pending, SIGPIPE) != 0)
        return;
    guard->active = pthread_sigmask(SIG_BLOCK, &pipe_set, &guard->before) == 0;
}

static void pipe_guard_leave(pipe_guard *guard)
{
    int saved = errno;
    if (!guard->active)
        return;
    sigset_t pipe_set;
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    const struct timespec none = {0, 0};
    while (sigtimedwait(&pipe_set, NULL, &none) < 0 && errno == EINTR)
        continue;
    pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
    errno = saved;
}

static void http_headers_free(struct curl_slist *list)
{
    for (struct curl_slist *item = list; item != NULL; item = item->next)
        explicit_bzero(item->data, strlen(item->data));
    curl_slist_free_all(list);
}

static struct curl_slist *http_headers_create(const sg_firestore_http_request *request)
{
    struct curl_slist *list = NULL;
    for (size_t i = 0; i < 2 && request->headers[i] != NULL; i++) {
        struct curl_slist *longer = curl_slist_append(list, request->headers[i]);
        if (longer == NULL) {
            http_headers_free(list);
            return NULL;
        }
        list = longer;
    }
    return list;
}

static bool http_transfer_prepare(sg_firestore_handle *handle,
                                  const sg_firestore_http_request *request,
                                  struct curl_slist *headers)
{
    CURL *easy = handle->easy;
    bool good = true;
#define SET(option, value) good = good && curl_easy_setopt(easy, option, value) == CURLE_OK
    SET(CURLOPT_URL, request->url);
    SET(CURLOPT_HTTPHEADER, headers);
    SET(CURLOPT_NOPROXY, request->direct ? "*" : NULL);
    if (request->body != NULL) {
        SET(CURLOPT_POST, 1L);
        SET(CURLOPT_POSTFIELDS, request->body);
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_length);
    } else {
        SET(CURLOPT_HTTPGET, 1L);
    }
#undef SET
    return good;
}

/* Runs until the transfer is over: OK (*result is its outcome), Aborted or NetworkTimeout. */
static syncguard_status http_transfer_loop(sg_firestore_handle *handle,
                                           const syncguard_limits *limits, CURLcode *result,
                                           syncguard_error *err)
{
    int abort_fd = syncguard_abort_fd(limits->abort_object);
    *result = CURLE_FAILED_INIT;
    int running = 1;
    for (;;) {
        struct curl_waitfd extra = {abort_fd, CURL_WAIT_POLLIN, 0};
        if (curl_multi_perform(handle->multi, &running) != CURLM_OK)
            return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "libcurl refused to go on");
        if (running == 0)
            break;
        syncguard_status status = syncguard_limits_check(limits, err);
        if (status != SYNCGUARD_OK)
            return status;
        /* An hour at most: libcurl takes an int, and the loop checks again anyway. */
        int64_t rest_ms = syncguard_limits_left_ns(limits) / SYNCGUARD_NS_PER_MS + 1;
        if (rest_ms > 3600000)
            rest_ms = 3600000;
        (void)curl_multi_poll(handle->multi, &extra, abort_fd >= 0 ? 1 : 0, (int)rest_ms, NULL);
    }
    int left = 0;
    CURLMsg *message;
    while ((message = curl_multi_info_read(handle->multi, &left)) != NULL) {
        if (message->msg == CURLMSG_DONE)
            *result = message->data.result;
    }
    return SYNCGUARD_OK;
}

/* Fails with the status by which a proxy refused CONNECT. Nothing of the request has been sent on
 * this connection, but libcurl may have sent it before on another one. */
static syncguard_status http_map_proxy_refusal(const sg_firestore_handle *handle, long http,
                                               sg_firestore_reply *reply, syncguard_error *err)
{
#if LIBCURL_VERSION_NUM >= 0x075000
    reply->sent = handle->started > 0;
#else
    (void)handle;
    (void)reply;
#endif
    char native[32];
    (void)snprintf(native, sizeof native, "HTTP_%ld", http);
    return syncguard_fail(err,
                          http == 407 ? SYNCGUARD_E_AUTH_FAILED : SYNCGUARD_E_SERVICE_UNAVAILABLE,
                          native, "the proxy answered HTTP %ld", http);
}

/* The codes of libcurl for failures that a lack of descriptors may have caused. Nothing has been
 * sent when they occur. */
static bool http_code_may_lack_descriptor(CURLcode code)
{
    return code == CURLE_OUT_OF_MEMORY || code == CURLE_COULDNT_RESOLVE_HOST ||
           code == CURLE_COULDNT_RESOLVE_PROXY || code == CURLE_SSL_CACERT_BADFILE;
}

static bool http_code_is_broken_connection(CURLcode code)
{
    return code == CURLE_SEND_ERROR || code == CURLE_RECV_ERROR || code == CURLE_GOT_NOTHING ||
           code == CURLE_PARTIAL_FILE || code == CURLE_HTTP2 || code == CURLE_HTTP2_STREAM;
}

static syncguard_status http_map_curl_code(const sg_firestore_handle *handle, CURLcode code,
                                           sg_firestore_reply *reply, syncguard_error *err)
{
    if (handle->no_descriptor ||
        (http_code_may_lack_descriptor(code) && sg_firestore_out_of_descriptors()))
        return sg_firestore_fail_descriptors(err);
    if (handle->no_memory || code == CURLE_OUT_OF_MEMORY)
        return syncguard_fail_memory(err);
    if (handle->too_long)
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                              "the server's answer is longer than %u bytes",
                              SG_FIRESTORE_MAX_REPLY_BYTES);
    long connect_code = 0;
    (void)curl_easy_getinfo(handle->easy, CURLINFO_HTTP_CONNECTCODE, &connect_code);
    if (connect_code >= 300)
        return http_map_proxy_refusal(handle, connect_code, reply, err);
    char native[32];
    (void)snprintf(native, sizeof native, "CURLE_%d", (int)code);
    if (code == CURLE_OPERATION_TIMEDOUT)
        return syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, native, "the connection timed out");
    reply->broken = http_code_is_broken_connection(code);
    /* libcurl's texts for codes are fixed; they hold nothing of the request. */
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, native, "no answer: %s",
                          curl_easy_strerror(code));
}

static void http_reply_fill(sg_firestore_handle *handle, sg_firestore_reply *reply)
{
    reply->end_ns = syncguard_clock_ns();
    /* Both are 0 on a reused connection. */
    curl_off_t before_us = 0;
    curl_off_t tls_us = 0;
    (void)curl_easy_getinfo(handle->easy, CURLINFO_CONNECT_TIME_T, &before_us);
    (void)curl_easy_getinfo(handle->easy, CURLINFO_APPCONNECT_TIME_T, &tls_us);
    if (tls_us > before_us)
        before_us = tls_us;
    long request_bytes = 0;
    (void)curl_easy_getinfo(handle->easy, CURLINFO_REQUEST_SIZE, &request_bytes);
    (void)curl_easy_getinfo(handle->easy, CURLINFO_RESPONSE_CODE, &reply->status);
    if (before_us > 0 && reply->start_ns + (int64_t)before_us * 1000 < reply->end_ns)
        reply->start_ns += (int64_t)before_us * 1000;
    reply->sent = request_bytes > 0 || handle->started > 0;
#if LIBCURL_VERSION_NUM >= 0x075000
    reply->resent = handle->started > 1;
#else
    /* A new connection on a handle that had one: the old one may have died with the request. */
    reply->resent = handle->used && handle->opened > 0;
#endif
}

static void http_transfer_begin(sg_firestore_handle *handle, sg_firestore_reply *reply)
{
    handle->reply = reply;
    handle->opened = handle->closed = 0;
    handle->started = 0;
    handle->too_long = handle->no_memory = handle->no_descriptor = handle->cut_off = false;
}

static syncguard_status http_transfer_perform(sg_firestore_handle *handle,
                                              const sg_firestore_http_request *request,
                                              const syncguard_limits *limits,
                                              sg_firestore_reply *reply, bool *resolving,
                                              syncguard_error *err)
{
    struct curl_slist *headers = http_headers_create(request);
    CURLcode result = CURLE_OK;
    http_transfer_begin(handle, reply);
    if ((request->headers[0] != NULL && headers == NULL) ||
        !http_transfer_prepare(handle, request, headers)) {
        http_headers_free(headers);
        return syncguard_fail_memory(err);
    }
    reply->start_ns = syncguard_clock_ns();
    syncguard_status status;
    if (curl_multi_add_handle(handle->multi, handle->easy) != CURLM_OK) {
        status = syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "libcurl refused a request");
        goto done;
    }
    handle->limits = limits;
    status = http_transfer_loop(handle, limits, &result, err);
    handle->limits = NULL;
    http_reply_fill(handle, reply);
    /* No socket was opened, and nothing was sent on an open connection (or that connection is
     * closed now, and libcurl is about to send the request again): libcurl may still be resolving
     * the name. */
    *resolving =
        status != SYNCGUARD_OK && handle->opened == 0 && (!reply->sent || handle->closed > 0);
    if (!*resolving)
        (void)curl_multi_remove_handle(handle->multi, handle->easy);
    handle->used = true;
    if (status == SYNCGUARD_OK && result != CURLE_OK)
        status = handle->cut_off ? syncguard_limits_check(limits, err)
                                 : http_map_curl_code(handle, result, reply, err);
done:
    /* An abandoned transfer is only removed, not driven: its header list is not read again. */
    if (!*resolving) {
        (void)curl_easy_setopt(handle->easy, CURLOPT_HTTPHEADER, NULL);
        (void)curl_easy_setopt(handle->easy, CURLOPT_POSTFIELDS, NULL);
    }
    http_headers_free(headers);
    return status;
}

syncguard_status sg_firestore_transfer(sg_firestore_pool *pool,
                                       const sg_firestore_http_request *request,
                                       const syncguard_limits *limits, sg_firestore_reply *reply,
                                       syncguard_error *err)
{
    syncguard_status status = syncguard_limits_check(limits, err);
    memset(reply, 0, sizeof *reply);
    sg_firestore_handle *handle;
    if (status == SYNCGUARD_OK)
        status = sg_firestore_pool_get(pool, limits, &handle, err);
    if (status != SYNCGUARD_OK)
        return status;
    pipe_guard guard;
    pipe_guard_enter(&guard, request->url);
    bool resolving = false;
    status = http_transfer_perform(handle, request, limits, reply, &resolving, err);
    pipe_guard_leave(&guard);
    if (resolving)
        sg_firestore_pool_abandon(pool, handle);
    else
        sg_firestore_pool_put(pool, handle);
    return status;
}

void sg_firestore_reply_free(sg_firestore_reply *reply)
{
    if (reply->body != NULL) {
        explicit_bzero(reply->body, reply->capacity);
        syncguard_free(reply->body);
    }
    reply->body = NULL;
    reply->length = reply->capacity = 0;
}
