/*
 * Locks in an event loop: one thread, epoll, any number of clients that wait.
 *
 *     ./epoll_server [URL] [PORT]
 *
 * A client connects to 127.0.0.1 and sends a key in one line. It waits until the lock is its own,
 * gets "granted FENCE", and has the lock until it disconnects. A client that gives up and
 * disconnects is not waited for. SIGTERM and SIGINT release everything and end the server.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <syncguard.h>

typedef struct client {
    struct client *next;
    int fd; /* -1: disconnected */
    size_t length;
    char line[SYNCGUARD_KEY_SIZE + 1];
    syncguard_request waiting; /* 0: its acquire is not open */
    syncguard_lock *lock;      /* NULL: it has none, or it is being released */
    bool releasing;
} client;

typedef struct server {
    int epoll;
    int listener;
    int signals;
    bool stopping;
    syncguard_queue *queue;
    client *clients;
} server;

static void epoll_fd_watch(const server *s, int fd, void *about)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = about}};
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        perror("epoll_ctl");
}

static void epoll_client_send(const client *c, const char *format, ...)
{
    char text[320];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (c->fd >= 0 && length > 0)
        (void)!send(c->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A client is freed when it is disconnected and no completion can come for it. */
static void epoll_client_free_if_done(server *s, client *c)
{
    if (c->fd >= 0 || c->waiting != 0 || c->lock != NULL || c->releasing)
        return;
    client **link = &s->clients;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    free(c);
}

static void epoll_client_release(server *s, client *c)
{
    syncguard_error err;
    /* With valid arguments this cannot fail; the completion has the result. */
    if (syncguard_lock_release_async(s->queue, c->lock, NULL, c, NULL, &err) == SYNCGUARD_OK) {
        c->lock = NULL;
        c->releasing = true;
    }
}

static void epoll_client_disconnect(server *s, client *c)
{
    if (c->fd >= 0)
        close(c->fd); /* epoll forgets it */
    c->fd = -1;
    if (c->waiting != 0)
        syncguard_queue_cancel(s->queue, c->waiting);
    if (c->lock != NULL)
        epoll_client_release(s, c);
    epoll_client_free_if_done(s, c);
}

static void epoll_client_request_lock(server *s, client *c)
{
    syncguard_error err;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(SYNCGUARD_WAIT_FOREVER);
    options.auto_extend = true;
    options.retry_unavailable = true; /* a store that is down is waited for, too */
    if (syncguard_lock_acquire_async(s->queue, c->line, &options, c, &c->waiting, &err) !=
        SYNCGUARD_OK) {
        epoll_client_send(c, "refused %s\n", err.message);
        epoll_client_disconnect(s, c);
    }
}

static void epoll_client_read(server *s, client *c)
{
    ssize_t n = recv(c->fd, c->line + c->length, sizeof c->line - 1 - c->length, MSG_DONTWAIT);
    if (n <= 0) {
        epoll_client_disconnect(s, c);
        return;
    }
    c->length += (size_t)n;
    c->line[c->length] = '\0';
    char *end = strchr(c->line, '\n');
    bool asked = c->waiting != 0 || c->lock != NULL || c->releasing;
    if (asked || (end == NULL && c->length == sizeof c->line - 1)) {
        epoll_client_disconnect(s, c); /* one line per client */
    } else if (end != NULL) {
        *end = '\0';
        epoll_client_request_lock(s, c);
    }
}

static void epoll_client_accept(server *s)
{
    int fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    client *c = fd >= 0 ? calloc(1, sizeof *c) : NULL;
    if (c == NULL) {
        if (fd >= 0)
            close(fd);
        return;
    }
    c->fd = fd;
    c->next = s->clients;
    s->clients = c;
    epoll_fd_watch(s, fd, c);
}

static void epoll_completion_handle(server *s, const syncguard_completion *done)
{
    client *c = done->context;
    switch (done->kind) {
    case SYNCGUARD_COMPLETION_ACQUIRE:
        c->waiting = 0;
        c->lock = done->lock;
        if (done->status == SYNCGUARD_OK)
            epoll_client_send(c, "granted %s\n", syncguard_lock_fence(c->lock));
        else
            epoll_client_send(c, "failed %s\n", done->error.message);
        break;
    case SYNCGUARD_COMPLETION_LOST:
        epoll_client_send(c, "lost %s\n", syncguard_lost_reason_name(done->lost));
        epoll_client_release(s, c);
        break;
    case SYNCGUARD_COMPLETION_RELEASE:
        c->releasing = false;
        break;
    case SYNCGUARD_COMPLETION_EXTEND: /* not used here */
        break;
    }
    if (c->lock == NULL && !c->releasing)
        epoll_client_disconnect(s, c);
}

/* Releases everything; the loop ends when the last client is gone. */
static void epoll_server_stop(server *s)
{
    s->stopping = true;
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->listener, NULL);
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->signals, NULL);
    for (client *c = s->clients, *next = NULL; c != NULL; c = next) {
        next = c->next;
        epoll_client_disconnect(s, c);
    }
}

static void epoll_server_run(server *s)
{
    epoll_fd_watch(s, s->listener, &s->listener);
    epoll_fd_watch(s, s->signals, &s->signals);
    epoll_fd_watch(s, syncguard_queue_fd(s->queue), s->queue);
    while (!s->stopping || s->clients != NULL) {
        /* One event at a time: handling an event may free the client of the next one. */
        struct epoll_event event;
        syncguard_completion done;
        if (epoll_wait(s->epoll, &event, 1, -1) != 1)
            continue;
        if (event.data.ptr == &s->listener)
            epoll_client_accept(s);
        else if (event.data.ptr == &s->signals)
            epoll_server_stop(s);
        else if (event.data.ptr != s->queue)
            epoll_client_read(s, event.data.ptr);
        else
            while (syncguard_queue_next(s->queue, &done))
                epoll_completion_handle(s, &done);
    }
}

static int epoll_port_listen(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        return -1;
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv)
{
    server s = {.epoll = epoll_create1(EPOLL_CLOEXEC)};
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL); /* before the library starts a thread */
    s.signals = signalfd(-1, &ends, SFD_CLOEXEC);
    s.listener = epoll_port_listen(argc > 2 ? (uint16_t)strtoul(argv[2], NULL, 10) : 0);
    if (s.epoll < 0 || s.signals < 0 || s.listener < 0) {
        perror("epoll_server");
        return 1;
    }
    syncguard_backend *backend = NULL;
    syncguard_error err;
    if (syncguard_open(argc > 1 ? argv[1] : "memory:", NULL, &backend, &err) != SYNCGUARD_OK ||
        syncguard_queue_open(backend, NULL, &s.queue, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "%s: %s\n", syncguard_status_name(err.code), err.message);
        syncguard_close(backend);
        return 1;
    }
    epoll_server_run(&s);
    syncguard_queue_close(s.queue);
    syncguard_close(backend);
    return 0;
}
