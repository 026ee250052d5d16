/*
 * How libcurl is set up for one caller at a time: what it may do, what it reports, and which
 * descriptors it holds.
 *
 * Reading a bundle of CA certificates keeps a processor busy for up to a tenth of a second, during
 * which the abort object is not checked. So the pool reads it once, at open, and all connections
 * share it; where libcurl uses another TLS library it reads the bundle itself.
 */
#include "handle.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <openssl/ssl.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "syncguard/sys/environment.h"

/* ---- callbacks of libcurl ---- */

static size_t http_handle_on_body(char *data, size_t size, size_t count, void *context)
{
    sg_firestore_handle *handle = context;
    sg_firestore_reply *reply = handle->reply;
    size_t length = size * count;
    if (length > SG_FIRESTORE_MAX_REPLY_BYTES - reply->length) {
        handle->too_long = true;
        return 0;
    }
    if (reply->length + length >= reply->capacity) {
        size_t capacity = reply->capacity != 0 ? reply->capacity : 2048;
        while (capacity <= reply->length + length)
            capacity *= 2;
        char *body = syncguard_realloc(reply->body, capacity);
        if (body == NULL) {
            handle->no_memory = true;
            return 0;
        }
        reply->body = body;
        reply->capacity = capacity;
    }
    memcpy(reply->body + reply->length, data, length);
    reply->length += length;
    reply->body[reply->length] = '\0';
    return length;
}

static size_t http_handle_on_header(char *data, size_t size, size_t count, void *context)
{
    sg_firestore_handle *handle = context;
    size_t length = size * count;
    char text[64];
    if (length > 6 && length < sizeof text && strncasecmp(data, "date:", 5) == 0) {
        memcpy(text, data + 5, length - 5);
        text[length - 5] = '\0';
        time_t when = curl_getdate(text, NULL);
        handle->reply->date_s = when > 0 ? (int64_t)when : 0;
    }
    return length;
}

/* An entry may be stale: libcurl does not report that it gives up a half-open connection. */
static void http_handle_note_socket(sg_firestore_handle *handle, int fd)
{
    sg_firestore_socket *entry = NULL;
    for (size_t i = 0; i < SG_FIRESTORE_HANDLE_SOCKETS; i++) {
        if (handle->sockets[i].fd == fd || (entry == NULL && handle->sockets[i].fd < 0))
            entry = &handle->sockets[i];
        if (handle->sockets[i].fd == fd)
            break;
    }
    if (entry != NULL) {
        entry->fd = fd;
        entry->identity = syncguard_fd_identify(fd);
    }
}

void sg_firestore_handle_forget_closed(sg_firestore_handle *handle)
{
    for (size_t i = 0; i < SG_FIRESTORE_HANDLE_SOCKETS; i++) {
        if (!syncguard_fd_same(handle->sockets[i].fd, handle->sockets[i].identity))
            handle->sockets[i].fd = -1;
    }
}

static curl_socket_t http_handle_on_open(void *context, curlsocktype purpose,
                                         struct curl_sockaddr *address)
{
    sg_firestore_handle *handle = context;
    (void)purpose;
    handle->opened++;
    int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    if (fd < 0) {
        handle->no_descriptor = errno == EMFILE || errno == ENFILE;
        return CURL_SOCKET_BAD;
    }
    http_handle_note_socket(handle, fd);
    return fd;
}

static int http_handle_on_close(void *context, curl_socket_t fd)
{
    sg_firestore_handle *handle = context;
    handle->closed++;
    for (size_t i = 0; i < SG_FIRESTORE_HANDLE_SOCKETS; i++) {
        if (handle->sockets[i].fd == fd) {
            handle->sockets[i].fd = -1;
            syncguard_fd_close_inherited(fd, handle->sockets[i].identity);
            return 0;
        }
    }
    return close(fd);
}

bool sg_firestore_handle_intact(const sg_firestore_handle *handle)
{
    for (size_t i = 0; i < SG_FIRESTORE_HANDLE_SOCKETS; i++) {
        if (handle->sockets[i].fd >= 0 &&
            !syncguard_fd_same(handle->sockets[i].fd, handle->sockets[i].identity))
            return false;
    }
    return true;
}

#if LIBCURL_VERSION_NUM >= 0x075000
static int http_handle_on_start(void *context, char *server_ip, char *local_ip, int server_port,
                                int local_port)
{
    sg_firestore_handle *handle = context;
    (void)server_ip;
    (void)local_ip;
    (void)server_port;
    (void)local_port;
    handle->started++;
    handle->closed = 0; /* the sockets closed before belonged to idle connections that had died */
    return CURL_PREREQFUNC_OK;
}
#endif

static bool http_socket_is_of_network(const sg_firestore_socket *socket)
{
    struct sockaddr_storage name = {.ss_family = AF_UNSPEC};
    socklen_t length = sizeof name;
    return syncguard_fd_same(socket->fd, socket->identity) &&
           getsockname(socket->fd, (struct sockaddr *)&name, &length) == 0 &&
           name.ss_family != AF_UNIX;
}

/* One call of libcurl continues as long as OpenSSL can read messages without data, such as
 * HelloRequest or KeyUpdate. When the limits are reached, the connection is shut down. */
static void http_handle_on_tls_message(int written, int version, int type, const void *message,
                                       size_t length, SSL *ssl, void *context)
{
    sg_firestore_handle *handle = context;
    (void)version;
    (void)type;
    (void)message;
    (void)length;
    (void)ssl;
    if (written != 0 || handle->limits == NULL || handle->cut_off ||
        syncguard_limits_check(handle->limits, NULL) == SYNCGUARD_OK)
        return;
    handle->cut_off = true;
    for (size_t i = 0; i < SG_FIRESTORE_HANDLE_SOCKETS; i++) {
        if (http_socket_is_of_network(&handle->sockets[i]))
            (void)shutdown(handle->sockets[i].fd, SHUT_RDWR);
    }
}

static CURLcode http_handle_on_tls(CURL *easy, void *tls_context, void *context)
{
    sg_firestore_handle *handle = context;
    (void)easy;
    SSL_CTX_set1_cert_store(tls_context, handle->trust->store);
    SSL_CTX_set_msg_callback(tls_context, http_handle_on_tls_message);
    SSL_CTX_set_msg_callback_arg(tls_context, handle);
    return CURLE_OK;
}

/* ---- making and freeing ---- */

/*
 * libcurl makes a pair of sockets for curl_multi_wakeup. Older versions make it without
 * close-on-exec, so it would stay open in every program that the caller starts. The pair is
 * recognized by the effect of a wake-up: one socket has one more byte to read, the other one more
 * buffer to send.
 */
#define PAIR_SEARCH 64

static bool wakeup_pair_is_candidate(int fd)
{
    struct sockaddr_un name = {.sun_family = AF_UNSPEC};
    socklen_t length = sizeof name;
    int flags = fcntl(fd, F_GETFD);
    return flags >= 0 && (flags & FD_CLOEXEC) == 0 &&
           getsockname(fd, (struct sockaddr *)&name, &length) == 0 && name.sun_family == AF_UNIX;
}

static int wakeup_pair_queued_bytes(int fd, unsigned long which)
{
    int bytes = 0;
    return ioctl(fd, which, &bytes) == 0 ? bytes : -1;
}

static void wakeup_pair_seal(sg_firestore_handle *handle, int lowest)
{
    int found[PAIR_SEARCH];
    int before_in[PAIR_SEARCH];
    int before_out[PAIR_SEARCH];
    size_t count = 0;
    for (int fd = lowest; fd < lowest + PAIR_SEARCH; fd++) {
        if (wakeup_pair_is_candidate(fd)) {
            found[count] = fd;
            before_in[count] = wakeup_pair_queued_bytes(fd, FIONREAD);
            before_out[count++] = wakeup_pair_queued_bytes(fd, SIOCOUTQ);
        }
    }
    if (count == 0 || curl_multi_wakeup(handle->multi) != CURLM_OK)
        return;
    for (size_t i = 0; i < count; i++) {
        if (wakeup_pair_queued_bytes(found[i], FIONREAD) == before_in[i] + 1 ||
            wakeup_pair_queued_bytes(found[i], SIOCOUTQ) > before_out[i]) {
            (void)fcntl(found[i], F_SETFD, FD_CLOEXEC);
            http_handle_note_socket(handle, found[i]);
        }
    }
    (void)curl_multi_poll(handle->multi, NULL, 0, 0, NULL);
}

static void http_handle_create_multi(sg_firestore_handle *handle)
{
    int lowest = eventfd(0, EFD_CLOEXEC);
    if (lowest >= 0)
        (void)close(lowest);
    handle->multi = curl_multi_init();
    if (handle->multi != NULL && lowest >= 0)
        wakeup_pair_seal(handle, lowest);
}

void sg_firestore_handle_free(sg_firestore_handle *handle)
{
    if (handle == NULL)
        return;
    if (handle->easy != NULL)
        curl_easy_cleanup(handle->easy);
    if (handle->multi != NULL)
        curl_multi_cleanup(handle->multi);
    syncguard_free(handle);
}

#define SET(option, value) good = good && curl_easy_setopt(easy, option, value) == CURLE_OK

static bool http_handle_set_callbacks(sg_firestore_handle *handle)
{
    CURL *easy = handle->easy;
    bool good = true;
    SET(CURLOPT_WRITEFUNCTION, http_handle_on_body);
    SET(CURLOPT_WRITEDATA, handle);
    SET(CURLOPT_HEADERFUNCTION, http_handle_on_header);
    SET(CURLOPT_HEADERDATA, handle);
    SET(CURLOPT_OPENSOCKETFUNCTION, http_handle_on_open);
    SET(CURLOPT_OPENSOCKETDATA, handle);
    SET(CURLOPT_CLOSESOCKETFUNCTION, http_handle_on_close);
    SET(CURLOPT_CLOSESOCKETDATA, handle);
#if LIBCURL_VERSION_NUM >= 0x075000
    SET(CURLOPT_PREREQFUNCTION, http_handle_on_start);
    SET(CURLOPT_PREREQDATA, handle);
#endif
    return good;
}

static bool http_handle_configure(sg_firestore_handle *handle)
{
    const sg_firestore_trust *trust = handle->trust;
    CURL *easy = handle->easy;
    bool good = true;
    SET(CURLOPT_NOSIGNAL, 1L);
    /* Requests and answers are short: libcurl's buffers of 16 and 64 KiB would be wasted. */
    SET(CURLOPT_BUFFERSIZE, 8192L);
    SET(CURLOPT_UPLOAD_BUFFERSIZE, 16384L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    if (syncguard_privileged())
        SET(CURLOPT_PROXY, ""); /* not even one of the environment */
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
#if LIBCURL_VERSION_NUM >= 0x075500
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
    SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    if (trust->store != NULL) {
        SET(CURLOPT_CAINFO, NULL);
        SET(CURLOPT_CAPATH, NULL);
        SET(CURLOPT_SSL_CTX_FUNCTION, http_handle_on_tls);
        SET(CURLOPT_SSL_CTX_DATA, handle);
    } else if (trust->ca_file != NULL) {
        SET(CURLOPT_CAINFO, trust->ca_file);
    }
    return good;
}

#undef SET

sg_firestore_handle *sg_firestore_handle_create(const sg_firestore_trust *trust)
{
    sg_firestore_handle *handle = syncguard_calloc(1, sizeof *handle);
    if (handle == NULL)
        return NULL;
    for (size_t i = 0; i < SG_FIRESTORE_HANDLE_SOCKETS; i++)
        handle->sockets[i].fd = -1;
    handle->trust = trust;
    http_handle_create_multi(handle);
    handle->easy = curl_easy_init();
    if (handle->multi == NULL || handle->easy == NULL || !http_handle_set_callbacks(handle) ||
        !http_handle_configure(handle)) {
        sg_firestore_handle_free(handle);
        return NULL;
    }
    return handle;
}
