/*
 * One socket to one server: connecting with limits, the handshake, bytes in and out. Everything is
 * non-blocking; every wait goes through sys/wait.h.
 *
 * A connection may be read by one thread while another sends. OpenSSL does not allow that for one
 * session, so its calls, which never block here, take ssl_mutex.
 */
#include "connection.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "errors.h"
#include "syncguard/sys/alloc.h"
#include "syncguard/sys/backoff.h"

/* Largest number of array elements in one reply; the longest that we ask for is a page of a
 * list. */
#define MAX_ELEMENTS (1u << 16)
/* Largest unfinished reply that is accepted. */
#define MAX_REPLY (8u << 20)

syncguard_status sg_redis_pause(int round, const syncguard_limits *limits, syncguard_error *err)
{
    return syncguard_backoff_wait(SYNCGUARD_NS_PER_MS, round, 64 * SYNCGUARD_NS_PER_MS, limits,
                                  err);
}

void sg_redis_replies_free(redisReply **replies, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (replies[i] != NULL)
            freeReplyObject(replies[i]);
        replies[i] = NULL;
    }
}

/* ---- connecting ---- */

static void redis_socket_set_options(int fd)
{
    const int on = 1, idle = 30, every = 10, count = 3, unheard_ms = 30000;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_KEEPIDLE
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
#endif
#ifdef TCP_USER_TIMEOUT
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unheard_ms, sizeof unheard_ms);
#endif
}

static syncguard_status redis_socket_connect(const struct sockaddr *address, socklen_t length,
                                             int family, const syncguard_limits *limits, int *out,
                                             syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return sg_redis_fail_errno(err, errno, "socket");
    if (family != AF_UNIX)
        redis_socket_set_options(fd);
    for (int round = 0; connect(fd, address, length) != 0; round++) {
        if (errno == EISCONN)
            break;
        if (errno == EAGAIN) { /* unix socket: the queue of the server is full */
            status = sg_redis_pause(round, limits, err);
            if (status != SYNCGUARD_OK)
                goto done;
            continue;
        }
        if (errno != EINPROGRESS && errno != EINTR && errno != EALREADY) {
            status = sg_redis_fail_errno(err, errno, "connect");
            goto done;
        }
        struct pollfd fds = {fd, POLLOUT, 0};
        status = syncguard_wait_fds(&fds, 1, limits, err);
        if (status != SYNCGUARD_OK)
            goto done;
        int error = 0;
        socklen_t size = sizeof error;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
            error = errno;
        if (error != 0)
            status = sg_redis_fail_errno(err, error, "connect");
        goto done;
    }
done:
    if (status == SYNCGUARD_OK)
        *out = fd;
    else
        close(fd);
    return status;
}

static syncguard_status redis_socket_connect_unix(const char *path, const syncguard_limits *limits,
                                                  int *out, syncguard_error *err)
{
    struct sockaddr_un address;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    size_t length = strlen(path); /* its length was checked with the options */
    if (length >= sizeof address.sun_path)
        length = sizeof address.sun_path - 1;
    memcpy(address.sun_path, path, length);
    return redis_socket_connect((const struct sockaddr *)&address, sizeof address, AF_UNIX, limits,
                                out, err);
}

/* Tries each address of the host; an unreachable one may use only its share of the time. */
static syncguard_status redis_socket_connect_host(const sg_redis_dialer *dialer,
                                                  const sg_redis_address *address,
                                                  const syncguard_limits *limits, int *out,
                                                  syncguard_error *err)
{
    sg_redis_resolution *resolution = NULL;
    const struct addrinfo *list = NULL;
    syncguard_status status = sg_redis_resolve(dialer->resolver, address->host, address->port,
                                               limits, &resolution, &list, err);
    if (status != SYNCGUARD_OK)
        return status;
    int left = 0;
    for (const struct addrinfo *at = list; at != NULL; at = at->ai_next)
        left++;
    status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    for (const struct addrinfo *at = list; at != NULL; at = at->ai_next, left--) {
        int64_t rest = syncguard_limits_left_ns(limits);
        syncguard_limits share = *limits;
        if (left > 1 && rest != SYNCGUARD_NO_DEADLINE)
            share = syncguard_limits_until(limits, syncguard_clock_ns() + rest / left);
        status = redis_socket_connect(at->ai_addr, at->ai_addrlen, at->ai_family, &share, out, err);
        if (status == SYNCGUARD_OK || status == SYNCGUARD_E_ABORTED)
            break;
    }
    sg_redis_resolution_free(resolution);
    return status;
}

/* ---- bytes ---- */

/* For a call of OpenSSL that transferred nothing: what recv or send would return, with their
 * errno. */
static ssize_t redis_connection_tls_result(int why)
{
    if (why == SSL_ERROR_ZERO_RETURN)
        return 0;
    errno = why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ ? EAGAIN : EPIPE;
    return -1;
}

/* Sends if data is not NULL, else receives. */
static ssize_t redis_connection_tls_transfer(sg_redis_connection *conn, const void *data,
                                             void *buffer, size_t size)
{
    if (!sg_redis_tls_enter())
        return redis_connection_tls_result(SSL_ERROR_SSL);
    int most = size > (1 << 30) ? 1 << 30 : (int)size;
    pthread_mutex_lock(&conn->ssl_mutex);
    ERR_clear_error();
    int n = data != NULL ? SSL_write(conn->ssl, data, most) : SSL_read(conn->ssl, buffer, most);
    int why = n > 0 ? SSL_ERROR_NONE : SSL_get_error(conn->ssl, n);
    pthread_mutex_unlock(&conn->ssl_mutex);
    sg_redis_tls_leave();
    return n > 0 ? n : redis_connection_tls_result(why);
}

ssize_t sg_redis_connection_send(sg_redis_connection *conn, const void *data, size_t length)
{
    if (conn->ssl == NULL)
        return send(conn->fd, data, length, MSG_NOSIGNAL);
    return redis_connection_tls_transfer(conn, data, NULL, length);
}

int sg_redis_connection_fill(sg_redis_connection *conn)
{
    char buffer[16384];
    ssize_t n = conn->ssl == NULL
                    ? recv(conn->fd, buffer, sizeof buffer, 0)
                    : redis_connection_tls_transfer(conn, NULL, buffer, sizeof buffer);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
    /* Not reader->len: hiredis drops what it has read of an array. */
    if (n == 0 || conn->unfinished > MAX_REPLY)
        return -1;
    conn->unfinished += (size_t)n;
    return redisReaderFeed(conn->reader, buffer, (size_t)n) == REDIS_OK ? 1 : -1;
}

/* hiredis allocates as many elements as the header of an array announces, before any has
 * arrived. */
static void *redis_reader_create_array(const redisReadTask *task, sg_redis_elements elements)
{
    sg_redis_connection *conn = task->privdata;
    conn->elements += (size_t)elements;
    return conn->elements > MAX_ELEMENTS ? NULL : conn->create_array(task, elements);
}

bool sg_redis_connection_make_reader(sg_redis_connection *conn)
{
    conn->reader = redisReaderCreate();
    if (conn->reader == NULL)
        return false;
    conn->functions = *conn->reader->fn;
    conn->create_array = conn->functions.createArray;
    conn->functions.createArray = redis_reader_create_array;
    conn->reader->fn = &conn->functions;
    conn->reader->privdata = conn;
    return true;
}

bool sg_redis_connection_reply(sg_redis_connection *conn, redisReply **reply)
{
    void *object = NULL;
    *reply = NULL;
    if (redisReaderGetReply(conn->reader, &object) != REDIS_OK)
        return false;
    if (object != NULL) {
        conn->elements = 0;
        conn->unfinished = conn->reader->len - conn->reader->pos;
    }
    *reply = object;
    return true;
}

static syncguard_status redis_connection_wait_fill(sg_redis_connection *conn,
                                                   const syncguard_limits *limits,
                                                   syncguard_error *err)
{
    /* Checked first, because bytes may arrive without end. */
    syncguard_status status = syncguard_limits_check(limits, err);
    while (status == SYNCGUARD_OK) {
        int filled = sg_redis_connection_fill(conn);
        if (filled != 0)
            return filled > 0 ? SYNCGUARD_OK : sg_redis_fail_connection(err);
        struct pollfd fds = {conn->fd, POLLIN, 0};
        status = syncguard_wait_fds(&fds, 1, limits, err);
    }
    return status;
}

static syncguard_status redis_connection_send_all(sg_redis_connection *conn,
                                                  const sg_redis_text *request,
                                                  const syncguard_limits *limits,
                                                  syncguard_error *err)
{
    size_t done = 0;
    while (done < request->length) {
        ssize_t n = sg_redis_connection_send(conn, request->data + done, request->length - done);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return sg_redis_fail_connection(err);
        struct pollfd fds = {conn->fd, POLLOUT, 0};
        syncguard_status status = syncguard_wait_fds(&fds, 1, limits, err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    return SYNCGUARD_OK;
}

syncguard_status sg_redis_connection_call(sg_redis_connection *conn, const sg_redis_text *request,
                                          redisReply **replies, size_t count,
                                          const syncguard_limits *limits, syncguard_error *err)
{
    memset(replies, 0, count * sizeof *replies);
    if (request->failed)
        return syncguard_fail_memory(err);
    syncguard_status status = redis_connection_send_all(conn, request, limits, err);
    size_t got = 0;
    /* Even if the server closed the connection while we sent, it may have said why. */
    while (got < count && (status == SYNCGUARD_OK || status == SYNCGUARD_E_SERVICE_UNAVAILABLE)) {
        if (!sg_redis_connection_reply(conn, &replies[got]))
            return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "malformed reply");
        if (replies[got] != NULL) {
            got++;
            continue;
        }
        status = redis_connection_wait_fill(conn, limits, err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    return status;
}

/* ---- the handshake ---- */

static size_t redis_handshake_encode(const sg_redis_config *config, const char *user,
                                     const char *password, sg_redis_role role, sg_redis_text *text)
{
    size_t count = 2;
    if (password != NULL) {
        if (user != NULL)
            sg_redis_text_words(text, "AUTH", user, password, NULL);
        else
            sg_redis_text_words(text, "AUTH", password, NULL);
        count++;
    }
    if (role == SG_REDIS_ROLE_STORE && config->database != 0) {
        sg_redis_text_command(text, 2);
        sg_redis_text_arg_str(text, "SELECT");
        sg_redis_text_arg_int(text, config->database);
        count++;
    }
    sg_redis_text_words(text, "CLIENT", "SETNAME", config->client_name, NULL);
    sg_redis_text_words(text, "PING", NULL);
    return count;
}

/*
 * AUTH and SELECT must succeed; CLIENT SETNAME and PING may be forbidden. A server at its
 * connection limit answers the first command with an error that has no code word of its own, and
 * closes the connection: it is recognized by that, not by its text.
 */
static syncguard_status redis_handshake_check(syncguard_status status, redisReply *const *replies,
                                              size_t count, bool auth, syncguard_error *err)
{
    char word[SG_REDIS_WORD_SIZE];
    sg_redis_reply_word(replies[0], word);
    if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE && word[0] != '\0' && replies[1] == NULL) {
        if (strcmp(word, "ERR") == 0)
            return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, word,
                                  "the server accepts no more connections");
        return sg_redis_fail_reply(err, replies[0]);
    }
    if (status != SYNCGUARD_OK)
        return status;
    for (size_t i = 0; i + 2 < count; i++) {
        if (replies[i]->type != REDIS_REPLY_ERROR)
            continue;
        status = sg_redis_fail_reply(err, replies[i]);
        if (status != SYNCGUARD_E_INTERNAL)
            return status;
        return i == 0 && auth ? syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, "ERR",
                                               "the server did not accept AUTH")
                              : syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, "ERR",
                                               "the server has no such database");
    }
    /* Before authentication, servers refuse long commands with a plain ERR, so a missing password
     * is reported here. */
    if (sg_redis_reply_is(replies[count - 1], "NOAUTH"))
        return sg_redis_fail_reply(err, replies[count - 1]);
    return SYNCGUARD_OK;
}

static syncguard_status redis_handshake_run(const sg_redis_config *config,
                                            sg_redis_connection *conn, sg_redis_role role,
                                            const syncguard_limits *limits, syncguard_error *err)
{
    sg_redis_text text;
    redisReply *replies[4];
    bool store = role == SG_REDIS_ROLE_STORE;
    const char *password = store ? config->password : config->sentinel_password;
    sg_redis_text_init(&text);
    size_t count = redis_handshake_encode(config, store ? config->user : config->sentinel_user,
                                          password, role, &text);
    syncguard_status status = sg_redis_connection_call(conn, &text, replies, count, limits, err);
    status = redis_handshake_check(status, replies, count, password != NULL, err);
    sg_redis_replies_free(replies, count);
    explicit_bzero(text.data, text.length);
    sg_redis_text_free(&text);
    return status;
}

/* ---- set-up and end ---- */

static sg_redis_connection *redis_connection_create(void)
{
    sg_redis_connection *conn = syncguard_calloc(1, sizeof *conn);
    if (conn == NULL)
        return NULL;
    conn->fd = -1;
    conn->refs = 1;
    if (!sg_redis_text_reserve(&conn->unsent, 16384) ||
        !sg_redis_text_reserve(&conn->outgoing, 16384) || !sg_redis_connection_make_reader(conn) ||
        pthread_mutex_init(&conn->ssl_mutex, NULL) != 0) {
        if (conn->reader != NULL)
            redisReaderFree(conn->reader);
        sg_redis_text_free(&conn->unsent);
        sg_redis_text_free(&conn->outgoing);
        syncguard_free(conn);
        return NULL;
    }
    return conn;
}

syncguard_status sg_redis_connection_open(const sg_redis_dialer *dialer,
                                          const sg_redis_address *address, sg_redis_role role,
                                          const syncguard_limits *limits, sg_redis_connection **out,
                                          syncguard_error *err)
{
    sg_redis_connection *conn = redis_connection_create();
    if (conn == NULL)
        return syncguard_fail_memory(err);
    snprintf(conn->peer, sizeof conn->peer, "%s:%d", address->host, address->port);
    syncguard_status status =
        address->port == 0 ? redis_socket_connect_unix(address->host, limits, &conn->fd, err)
                           : redis_socket_connect_host(dialer, address, limits, &conn->fd, err);
    if (status != SYNCGUARD_OK)
        goto done;
    conn->identity = syncguard_fd_identify(conn->fd);
    if (dialer->tls != NULL && address->port != 0) {
        status = sg_redis_tls_session(dialer->tls, conn->fd, address->host, &conn->ssl, err);
        if (status == SYNCGUARD_OK)
            status = sg_redis_tls_handshake(conn->ssl, conn->fd, limits, err);
        if (status != SYNCGUARD_OK)
            goto done;
    }
    status = redis_handshake_run(dialer->config, conn, role, limits, err);
    if (status != SYNCGUARD_OK)
        goto done;
    *out = conn;
    conn = NULL;
done:
    sg_redis_connection_close(conn);
    return status;
}

void sg_redis_connection_drop(sg_redis_connection *conn)
{
    if (--conn->refs == 0)
        sg_redis_connection_close(conn);
}

void sg_redis_connection_forget(const sg_redis_connection *conn)
{
    if (conn != NULL)
        syncguard_fd_close_inherited(conn->fd, conn->identity);
}

bool sg_redis_connection_is_open(const sg_redis_connection *conn)
{
    return conn->fd >= 0 && (!conn->identity.known || syncguard_fd_same(conn->fd, conn->identity));
}

void sg_redis_connection_close(sg_redis_connection *conn)
{
    if (conn == NULL)
        return;
    int saved = errno;
    if (conn->ssl != NULL && sg_redis_tls_enter()) {
        SSL_free(conn->ssl);
        sg_redis_tls_leave();
    }
    if (sg_redis_connection_is_open(conn))
        close(conn->fd);
    redisReaderFree(conn->reader);
    sg_redis_text_free(&conn->unsent);
    sg_redis_text_free(&conn->outgoing);
    pthread_mutex_destroy(&conn->ssl_mutex);
    syncguard_free(conn);
    errno = saved;
}
