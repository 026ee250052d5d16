/*
 * How libcurl is set up for one caller at a time: what it may do, what it tells us, and which
 * descriptors it holds.
 *
 * Reading a bundle of CA certificates keeps a processor busy for up to a tenth of a second, during
 * which nobody looks at the abort object. So the pool reads it once, at open, and lends it to every
 * connection; where libcurl speaks TLS through another library it reads the bundle itself.
 */
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

#include "lane.h"
#include "syncguard/sys/environment.h"

/* --- callbacks of libcurl --- */

static size_t on_body(char *data, size_t size, size_t count, void *context)
{
    fs_lane *lane = context;
    fs_reply *reply = lane->reply;
    size_t length = size * count;

    if (length > FS_MAX_REPLY_BYTES - reply->length) {
        lane->too_long = true;
        return 0;
    }
    if (reply->length + length >= reply->capacity) {
        size_t capacity = reply->capacity ? reply->capacity : 2048;
        while (capacity <= reply->length + length)
            capacity *= 2;
        char *body = syncguard_realloc(reply->body, capacity);
        if (!body) {
            lane->no_memory = true;
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

static size_t on_header(char *data, size_t size, size_t count, void *context)
{
    fs_lane *lane = context;
    size_t length = size * count;
    char text[64];

    if (length > 6 && length < sizeof text && strncasecmp(data, "date:", 5) == 0) {
        memcpy(text, data + 5, length - 5);
        text[length - 5] = '\0';
        time_t when = curl_getdate(text, NULL);
        lane->reply->date_s = when > 0 ? (int64_t)when : 0;
    }
    return length;
}

/* A slot may be out of date: libcurl does not tell when it gives up a connection half made. */
static void note_socket(fs_lane *lane, int fd)
{
    fs_socket *slot = NULL;

    for (size_t i = 0; i < LANE_SOCKETS; i++) {
        if (lane->sockets[i].fd == fd || (!slot && lane->sockets[i].fd < 0))
            slot = &lane->sockets[i];
        if (lane->sockets[i].fd == fd)
            break;
    }
    if (slot) {
        slot->fd = fd;
        slot->identity = syncguard_fd_identify(fd);
    }
}

void sg_fs_lane_settle(fs_lane *lane)
{
    for (size_t i = 0; i < LANE_SOCKETS; i++) {
        if (!syncguard_fd_same(lane->sockets[i].fd, lane->sockets[i].identity))
            lane->sockets[i].fd = -1;
    }
}

static curl_socket_t on_open(void *context, curlsocktype purpose, struct curl_sockaddr *address)
{
    fs_lane *lane = context;
    int fd;

    (void)purpose;
    lane->opened++;
    fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    if (fd < 0) {
        lane->no_descriptor = errno == EMFILE || errno == ENFILE;
        return CURL_SOCKET_BAD;
    }
    note_socket(lane, fd);
    return fd;
}

static int on_close(void *context, curl_socket_t fd)
{
    fs_lane *lane = context;

    lane->closed++;
    for (size_t i = 0; i < LANE_SOCKETS; i++) {
        if (lane->sockets[i].fd == fd) {
            lane->sockets[i].fd = -1;
            syncguard_fd_close_inherited(fd, lane->sockets[i].identity);
            return 0;
        }
    }
    return close(fd);
}

bool sg_fs_lane_intact(const fs_lane *lane)
{
    for (size_t i = 0; i < LANE_SOCKETS; i++) {
        if (lane->sockets[i].fd >= 0 &&
            !syncguard_fd_same(lane->sockets[i].fd, lane->sockets[i].identity))
            return false;
    }
    return true;
}

#if LIBCURL_VERSION_NUM >= 0x075000
static int on_start(void *context, char *server_ip, char *local_ip, int server_port, int local_port)
{
    fs_lane *lane = context;

    (void)server_ip;
    (void)local_ip;
    (void)server_port;
    (void)local_port;
    lane->started++;
    lane->closed = 0; /* until here: idle ones that had died */
    return CURL_PREREQFUNC_OK;
}
#endif

static CURLcode on_tls(CURL *easy, void *tls_context, void *context)
{
    const fs_pool *pool = context;

    (void)easy;
    SSL_CTX_set1_cert_store(tls_context, pool->trusted);
    return CURLE_OK;
}

/* --- making and freeing --- */

/*
 * libcurl makes a pair of sockets for curl_multi_wakeup, in older versions without close-on-exec:
 * they would stay open in every program that the caller starts. They are found by what a wake-up
 * does to them: one byte more to read in one, one buffer more to send in the other.
 */
#define PAIR_SEARCH 64

static bool is_candidate(int fd)
{
    struct sockaddr_un name = {.sun_family = AF_UNSPEC};
    socklen_t length = sizeof name;
    int flags = fcntl(fd, F_GETFD);

    return flags >= 0 && !(flags & FD_CLOEXEC) &&
           getsockname(fd, (struct sockaddr *)&name, &length) == 0 && name.sun_family == AF_UNIX;
}

static int queued(int fd, unsigned long which)
{
    int bytes = 0;

    return ioctl(fd, which, &bytes) == 0 ? bytes : -1;
}

static void seal_pair(fs_lane *lane, int lowest)
{
    int found[PAIR_SEARCH];
    int before_in[PAIR_SEARCH];
    int before_out[PAIR_SEARCH];
    size_t count = 0;

    for (int fd = lowest; fd < lowest + PAIR_SEARCH; fd++) {
        if (is_candidate(fd)) {
            found[count] = fd;
            before_in[count] = queued(fd, FIONREAD);
            before_out[count++] = queued(fd, SIOCOUTQ);
        }
    }
    if (count == 0 || curl_multi_wakeup(lane->multi) != CURLM_OK)
        return;
    for (size_t i = 0; i < count; i++) {
        if (queued(found[i], FIONREAD) == before_in[i] + 1 ||
            queued(found[i], SIOCOUTQ) > before_out[i]) {
            (void)fcntl(found[i], F_SETFD, FD_CLOEXEC);
            note_socket(lane, found[i]);
        }
    }
    (void)curl_multi_poll(lane->multi, NULL, 0, 0, NULL);
}

static void make_multi(fs_lane *lane)
{
    int lowest = eventfd(0, EFD_CLOEXEC);

    if (lowest >= 0)
        (void)close(lowest);
    lane->multi = curl_multi_init();
    if (lane->multi && lowest >= 0)
        seal_pair(lane, lowest);
}

void sg_fs_lane_free(fs_lane *lane)
{
    if (!lane)
        return;
    if (lane->easy)
        curl_easy_cleanup(lane->easy);
    if (lane->multi)
        curl_multi_cleanup(lane->multi);
    syncguard_free(lane);
}

static bool lane_configure(fs_lane *lane, const fs_pool *pool)
{
    CURL *easy = lane->easy;
    bool good = true;

#define SET(option, value) good = good && curl_easy_setopt(easy, option, value) == CURLE_OK
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, lane);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, lane);
    SET(CURLOPT_OPENSOCKETFUNCTION, on_open);
    SET(CURLOPT_OPENSOCKETDATA, lane);
    SET(CURLOPT_CLOSESOCKETFUNCTION, on_close);
    SET(CURLOPT_CLOSESOCKETDATA, lane);
    /* Requests and answers are short: libcurl's buffers of 16 and 64 KiB would be wasted. */
    SET(CURLOPT_BUFFERSIZE, 8192L);
    SET(CURLOPT_UPLOAD_BUFFERSIZE, 16384L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    if (syncguard_privileged())
        SET(CURLOPT_PROXY, ""); /* not even the environment's */
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
#if LIBCURL_VERSION_NUM >= 0x075500
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
    SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
#if LIBCURL_VERSION_NUM >= 0x075000
    SET(CURLOPT_PREREQFUNCTION, on_start);
    SET(CURLOPT_PREREQDATA, lane);
#endif
    if (pool->trusted) {
        SET(CURLOPT_CAINFO, NULL);
        SET(CURLOPT_CAPATH, NULL);
        SET(CURLOPT_SSL_CTX_FUNCTION, on_tls);
        SET(CURLOPT_SSL_CTX_DATA, pool);
    } else if (pool->ca_file) {
        SET(CURLOPT_CAINFO, pool->ca_file);
    }
#undef SET
    return good;
}

fs_lane *sg_fs_lane_create(const fs_pool *pool)
{
    fs_lane *lane = syncguard_calloc(1, sizeof *lane);

    if (!lane)
        return NULL;
    for (size_t i = 0; i < LANE_SOCKETS; i++)
        lane->sockets[i].fd = -1;
    make_multi(lane);
    lane->easy = curl_easy_init();
    if (!lane->multi || !lane->easy || !lane_configure(lane, pool)) {
        sg_fs_lane_free(lane);
        return NULL;
    }
    return lane;
}
