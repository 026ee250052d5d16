/*
 * Locks in a libuv program: one thread, any number of clients that wait.
 *
 *     ./libuv_server [URL] [PORT]
 *
 * A client connects to 127.0.0.1 and sends a key in one line. It waits until the lock is its own,
 * gets "granted FENCE", and has the lock until it disconnects. A client that gives up and
 * disconnects is not waited for. SIGTERM and SIGINT release everything and end the server.
 *
 * epoll_server.c does the same without libuv.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <syncguard.h>
#include <uv.h>

typedef struct server {
    uv_loop_t *loop;
    uv_tcp_t listener;
    uv_signal_t signals[2];
    uv_poll_t completions;
    bool stopping;
    syncguard_queue *queue;
    struct client *clients;
} server;

typedef struct client {
    struct client *next;
    server *server;
    uv_tcp_t socket;
    bool closed; /* libuv no longer uses socket */
    size_t length;
    char line[SYNCGUARD_KEY_SIZE + 1];
    syncguard_request waiting; /* 0: its acquire is not open */
    syncguard_lock *lock;      /* NULL: it has none, or it is being released */
    bool releasing;
} client;

static void libuv_client_send(client *c, const char *format, ...)
{
    char text[320];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    uv_buf_t buffer = uv_buf_init(text, (unsigned)strlen(text));
    if (uv_is_closing((uv_handle_t *)&c->socket) == 0)
        uv_try_write((uv_stream_t *)&c->socket, &buffer, 1); /* never waits */
}

static void libuv_handle_close(void *handle, uv_close_cb then)
{
    if (uv_is_closing(handle) == 0)
        uv_close(handle, then);
}

/* The loop ends when no handle is left: the completions are watched until the last client is gone.
 */
static void libuv_server_end_if_done(server *s)
{
    if (s->stopping && s->clients == NULL)
        libuv_handle_close(&s->completions, NULL);
}

/* A client is freed when it is disconnected and no completion can come for it. */
static void libuv_client_free_if_done(client *c)
{
    server *s = c->server;
    if (!c->closed || c->waiting != 0 || c->lock != NULL || c->releasing)
        return;
    client **link = &s->clients;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    free(c);
    libuv_server_end_if_done(s);
}

static void libuv_client_closed(uv_handle_t *socket)
{
    client *c = socket->data;
    c->closed = true;
    libuv_client_free_if_done(c);
}

static void libuv_client_release(client *c)
{
    syncguard_error err;
    /* With valid arguments this cannot fail; the completion has the result. */
    if (syncguard_lock_release_async(c->server->queue, c->lock, NULL, c, NULL, &err) ==
        SYNCGUARD_OK) {
        c->lock = NULL;
        c->releasing = true;
    }
}

static void libuv_client_disconnect(client *c)
{
    libuv_handle_close(&c->socket, libuv_client_closed);
    if (c->waiting != 0)
        syncguard_queue_cancel(c->server->queue, c->waiting);
    if (c->lock != NULL)
        libuv_client_release(c);
    libuv_client_free_if_done(c);
}

static void libuv_client_request_lock(client *c)
{
    syncguard_error err;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(SYNCGUARD_WAIT_FOREVER);
    options.auto_extend = true;
    options.retry_unavailable = true; /* a store that is down is waited for, too */
    if (syncguard_lock_acquire_async(c->server->queue, c->line, &options, c, &c->waiting, &err) !=
        SYNCGUARD_OK) {
        libuv_client_send(c, "refused %s\n", err.message);
        libuv_client_disconnect(c);
    }
}

static void libuv_client_buffer_give(uv_handle_t *socket, size_t suggested, uv_buf_t *space)
{
    client *c = socket->data;
    (void)suggested;
    *space = uv_buf_init(c->line + c->length, (unsigned)(sizeof c->line - 1 - c->length));
}

static void libuv_client_read(uv_stream_t *socket, ssize_t n, const uv_buf_t *space)
{
    client *c = socket->data;
    (void)space;
    if (n < 0)
        libuv_client_disconnect(c);
    if (n <= 0) /* 0: nothing to read yet */
        return;
    c->length += (size_t)n;
    c->line[c->length] = '\0';
    char *end = strchr(c->line, '\n');
    bool asked = c->waiting != 0 || c->lock != NULL || c->releasing;
    if (asked || (end == NULL && c->length == sizeof c->line - 1)) {
        libuv_client_disconnect(c); /* one line per client */
    } else if (end != NULL) {
        *end = '\0';
        libuv_client_request_lock(c);
    }
}

static void libuv_completion_handle(const syncguard_completion *done)
{
    client *c = done->context;
    switch (done->kind) {
    case SYNCGUARD_COMPLETION_ACQUIRE:
        c->waiting = 0;
        c->lock = done->lock;
        if (done->status == SYNCGUARD_OK)
            libuv_client_send(c, "granted %s\n", syncguard_lock_fence(c->lock));
        else
            libuv_client_send(c, "failed %s\n", done->error.message);
        break;
    case SYNCGUARD_COMPLETION_LOST:
        libuv_client_send(c, "lost %s\n", syncguard_lost_reason_name(done->lost));
        libuv_client_release(c);
        break;
    case SYNCGUARD_COMPLETION_RELEASE:
        c->releasing = false;
        break;
    case SYNCGUARD_COMPLETION_EXTEND: /* not used here */
        break;
    }
    if (c->lock == NULL && !c->releasing)
        libuv_client_disconnect(c);
}

static void libuv_queue_readable(uv_poll_t *completions, int status, int events)
{
    server *s = completions->data;
    syncguard_completion done;
    (void)status;
    (void)events;
    while (syncguard_queue_next(s->queue, &done))
        libuv_completion_handle(&done);
}

/* Releases everything; the loop ends when the last client is gone. */
static void libuv_server_stop(server *s)
{
    s->stopping = true;
    libuv_handle_close(&s->listener, NULL);
    libuv_handle_close(&s->signals[0], NULL);
    libuv_handle_close(&s->signals[1], NULL);
    for (client *c = s->clients, *next = NULL; c != NULL; c = next) {
        next = c->next;
        libuv_client_disconnect(c);
    }
    libuv_server_end_if_done(s);
}

static void libuv_signal_received(uv_signal_t *handle, int number)
{
    (void)number;
    libuv_server_stop(handle->data);
}

static void libuv_client_accept(uv_stream_t *listener, int status)
{
    server *s = listener->data;
    if (status < 0)
        return;
    client *c = calloc(1, sizeof *c);
    if (c == NULL) {
        libuv_server_stop(s); /* libuv goes on only when the connection is accepted */
        return;
    }
    c->server = s;
    c->next = s->clients;
    s->clients = c;
    uv_tcp_init(s->loop, &c->socket);
    c->socket.data = c;
    if (uv_accept(listener, (uv_stream_t *)&c->socket) != 0 ||
        uv_read_start((uv_stream_t *)&c->socket, libuv_client_buffer_give, libuv_client_read) != 0)
        libuv_client_disconnect(c);
}

static int libuv_server_listen(server *s, int port)
{
    struct sockaddr_in address;
    int size = sizeof address;
    int error = uv_ip4_addr("127.0.0.1", port, &address);
    if (error == 0)
        error = uv_tcp_bind(&s->listener, (struct sockaddr *)&address, 0);
    if (error == 0)
        error = uv_listen((uv_stream_t *)&s->listener, 128, libuv_client_accept);
    if (error == 0)
        error = uv_tcp_getsockname(&s->listener, (struct sockaddr *)&address, &size);
    if (error == 0) {
        printf("port %d\n", ntohs(address.sin_port));
        fflush(stdout);
    }
    return error;
}

/* Zero, or an error of libuv. */
static int libuv_server_start(server *s, int port)
{
    static const int ends[] = {SIGTERM, SIGINT};
    int error = uv_poll_init(s->loop, &s->completions, syncguard_queue_fd(s->queue));
    if (error == 0)
        error = uv_poll_start(&s->completions, UV_READABLE, libuv_queue_readable);
    for (int i = 0; i < 2 && error == 0; i++) {
        error = uv_signal_init(s->loop, &s->signals[i]);
        s->signals[i].data = s;
        if (error == 0)
            error = uv_signal_start(&s->signals[i], libuv_signal_received, ends[i]);
    }
    if (error == 0)
        error = uv_tcp_init(s->loop, &s->listener);
    s->completions.data = s->listener.data = s;
    return error == 0 ? libuv_server_listen(s, port) : error;
}

int main(int argc, char **argv)
{
    server s = {.loop = uv_default_loop()};
    signal(SIGPIPE, SIG_IGN); /* a client that is gone is noticed when it is read */
    syncguard_backend *backend = NULL;
    syncguard_error err;
    if (syncguard_open(argc > 1 ? argv[1] : "memory:", NULL, &backend, &err) != SYNCGUARD_OK ||
        syncguard_queue_open(backend, NULL, &s.queue, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "%s: %s\n", syncguard_status_name(err.code), err.message);
        syncguard_close(backend);
        return 1;
    }
    int error = libuv_server_start(&s, argc > 2 ? (int)strtol(argv[2], NULL, 10) : 0);
    if (error != 0)
        fprintf(stderr, "libuv_server: %s\n", uv_strerror(error));
    else
        uv_run(s.loop, UV_RUN_DEFAULT);
    syncguard_queue_close(s.queue);
    syncguard_close(backend);
    return error == 0 && uv_loop_close(s.loop) == 0 ? 0 : 1;
}
