#include "support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

const char *redis_url;
syncguard_error err;

extern const syncguard_module syncguard_module_redis;

static long servers_variable_nth(const char *variable, int n)
{
    const char *at = getenv(variable);
    for (; at != NULL && n > 0; n--) {
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    if (at == NULL) {
        fprintf(stderr, "run this test through tests/servers\n");
        exit(2);
    }
    return strtol(at, NULL, 10);
}

int redis_port(int n)
{
    return (int)servers_variable_nth("REDIS_TEST_PORTS", n);
}

pid_t redis_pid(int n)
{
    return (pid_t)servers_variable_nth("REDIS_TEST_PIDS", n);
}

void redis_begin(int argc, char **argv)
{
    redis_url = argv[argc - 1];
    if (syncguard_module_register(&syncguard_module_redis, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(2);
    }
}

/* ---- raw commands ---- */

static redisContext *context_at(int port)
{
    static redisContext *context;
    static int context_port;
    if (context == NULL || context->err != 0 || context_port != port) {
        if (context != NULL)
            redisFree(context);
        context = redisConnect("127.0.0.1", port);
        context_port = port;
        assert_non_null(context);
        assert_int_equal(context->err, 0);
    }
    return context;
}

static redisReply *run_at(int port, const char *format, va_list arguments)
{
    redisReply *reply = redisvCommand(context_at(port), format, arguments);
    assert_non_null(reply);
    return reply;
}

void raw_argv_at(int port, int argc, const char **argv, const size_t *sizes)
{
    redisReply *reply = redisCommandArgv(context_at(port), argc, argv, sizes);
    assert_non_null(reply);
    assert_int_not_equal(reply->type, REDIS_REPLY_ERROR);
    freeReplyObject(reply);
}

redisReply *raw_at(int port, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    redisReply *reply = run_at(port, format, arguments);
    va_end(arguments);
    return reply;
}

#define RUN(reply)                                                                                 \
    va_list arguments;                                                                             \
    va_start(arguments, format);                                                                   \
    redisReply *reply =                                                                            \
        run_at((int)servers_variable_nth("REDIS_TEST_PORT", 0), format, arguments);                \
    va_end(arguments)

redisReply *raw(const char *format, ...)
{
    RUN(reply);
    return reply;
}

void raw_do(const char *format, ...)
{
    RUN(reply);
    if (reply->type == REDIS_REPLY_ERROR)
        print_error("%s: %s\n", format, reply->str);
    assert_int_not_equal(reply->type, REDIS_REPLY_ERROR);
    freeReplyObject(reply);
}

long long raw_int(const char *format, ...)
{
    RUN(reply);
    assert_int_equal(reply->type, REDIS_REPLY_INTEGER);
    long long value = reply->integer;
    freeReplyObject(reply);
    return value;
}

const char *raw_text(const char *format, ...)
{
    static char text[65536];
    RUN(reply);
    text[0] = '\0';
    if (reply->type == REDIS_REPLY_STRING)
        snprintf(text, sizeof text, "%s", reply->str);
    freeReplyObject(reply);
    return text;
}

long raw_calls(const char *command)
{
    char name[64];
    const char *info = raw_text("INFO commandstats");
    snprintf(name, sizeof name, "cmdstat_%s:calls=", command);
    const char *at = strstr(info, name);
    return at != NULL ? strtol(at + strlen(name), NULL, 10) : 0;
}

/* ---- handles ---- */

syncguard_backend *open_with(const char *extra)
{
    char url[2048];
    snprintf(url, sizeof url, "%s%c%s", redis_url, strchr(redis_url, '?') != NULL ? '&' : '?',
             extra);
    return test_open(url);
}

syncguard_backend *open_port(int port, const char *extra)
{
    char url[2048];
    snprintf(url, sizeof url, "redis://127.0.0.1:%d?%s", port, extra);
    return test_open(url);
}

syncguard_backend *store;

int open_store(void **state)
{
    (void)state;
    store = test_open(redis_url);
    return 0;
}

int close_store(void **state)
{
    (void)state;
    syncguard_close(store);
    return 0;
}

int flush_all(void **state)
{
    (void)state;
    raw_do("FLUSHALL");
    return 0;
}

syncguard_grant take_lock(const char *key, int64_t ttl_ms)
{
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, key, ttl_ms, NULL, &grant, &err));
    return grant;
}

/* ---- servers ---- */

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    return ntohs(address.sin_port);
}

const char *const without_persistence[] = {"--save", "", "--appendonly", "no", NULL};

void server_start(server *s, int port, const char *const *options)
{
    char number[16];
    const char *words[32] = {number};
    if (port == 0) {
        servers_ask(&s->process, "redis", options);
    } else {
        snprintf(number, sizeof number, "%d", port);
        int count = 1;
        for (int i = 0; options != NULL && options[i] != NULL && count < 31; i++)
            words[count++] = options[i];
        servers_change(&s->process, "redis_again", words);
    }
    s->pid = s->process.pid;
    s->port = s->process.port;
}

void server_kill(server *s)
{
    servers_change(&s->process, "down", (const char *[]){"9", NULL});
    s->pid = -1;
}

void server_remove(server *s)
{
    servers_change(&s->process, "end", NULL);
    s->pid = -1;
}

/* ---- proxy ---- */

#define MOST_PROXIED 513

static int connect_port(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Bytes on their way through a slow proxy. */
typedef struct parcel {
    struct parcel *next;
    int64_t due_ms;
    nfds_t to; /* index into the descriptors */
    size_t length;
    char data[];
} parcel;

/* Passes bytes from one side to the other; false if the pair must be closed. */
static bool proxy_bytes_pass(proxy *p, int from, int to, nfds_t to_index, bool reply, bool silent,
                             parcel ***last)
{
    char buffer[65536];
    ssize_t n = recv(from, buffer, sizeof buffer, 0);
    if (n < 0 && errno == ECONNRESET && !reply)
        atomic_fetch_add(&p->resets, 1);
    if (n <= 0)
        return false;
    if (silent)
        return true;
    if (reply && atomic_load(&p->lose) > 0) {
        atomic_fetch_sub(&p->lose, 1);
        return false;
    }
    if (reply && atomic_exchange(&p->last, false)) {
        (void)send(to, buffer, (size_t)n, MSG_NOSIGNAL);
        atomic_store(&p->silent, MOST_PROXIED);
        return false;
    }
    if (atomic_load(&p->delay_ms) == 0)
        return send(to, buffer, (size_t)n, MSG_NOSIGNAL) == n;
    parcel *made = malloc(sizeof *made + (size_t)n);
    *made = (parcel){NULL, test_now_ms() + atomic_load(&p->delay_ms), to_index, (size_t)n};
    memcpy(made->data, buffer, (size_t)n);
    **last = made;
    *last = &made->next;
    return true;
}

/* Delivers what is due; returns when more may be due. */
static int deliver_parcels(parcel **first, parcel ***last, const struct pollfd *fds)
{
    while (*first != NULL) {
        parcel *at = *first;
        int64_t left = at->due_ms - test_now_ms();
        if (left > 0)
            return left < 20 ? (int)left : 20;
        if (fds[at->to].fd >= 0)
            (void)send(fds[at->to].fd, at->data, at->length, MSG_NOSIGNAL);
        *first = at->next;
        if (*first == NULL)
            *last = first;
        free(at);
    }
    return 20;
}

static void *proxy_run(void *argument)
{
    proxy *p = argument;
    struct pollfd fds[MOST_PROXIED] = {{p->listener, POLLIN, 0}};
    parcel *first = NULL, **last = &first;
    nfds_t count = 1;
    while (!atomic_load(&p->stop)) {
        if (poll(fds, count, deliver_parcels(&first, &last, fds)) <= 0)
            continue;
        for (nfds_t i = 1; i < count; i++) {
            nfds_t other = (i - 1) % 2 == 0 ? i + 1 : i - 1;
            if (fds[i].revents == 0 || fds[i].fd < 0)
                continue;
            if (!proxy_bytes_pass(p, fds[i].fd, fds[other].fd, other, (i - 1) % 2 == 1,
                                  (int)((i - 1) / 2) < atomic_load(&p->silent), &last)) {
                close(fds[i].fd);
                close(fds[other].fd);
                fds[i].fd = fds[other].fd = -1;
            }
        }
        if (fds[0].revents != 0 && count + 2 <= MOST_PROXIED) {
            atomic_fetch_add(&p->accepted, 1);
            fds[count] = (struct pollfd){accept(p->listener, NULL, NULL), POLLIN, 0};
            fds[count + 1] = (struct pollfd){connect_port(p->target), POLLIN, 0};
            count += 2;
        }
    }
    for (nfds_t i = 0; i < count; i++) {
        if (fds[i].fd >= 0)
            close(fds[i].fd);
    }
    while (first != NULL) {
        parcel *gone = first;
        first = gone->next;
        free(gone);
    }
    return NULL;
}

void proxy_start(proxy *p, int target)
{
    p->port = free_port();
    p->target = target;
    atomic_init(&p->lose, 0);
    atomic_init(&p->silent, 0);
    atomic_init(&p->last, false);
    atomic_init(&p->resets, 0);
    atomic_init(&p->delay_ms, 0);
    atomic_init(&p->accepted, 0);
    atomic_init(&p->stop, false);
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)p->port);
    assert_int_equal(bind(p->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(p->listener, 16), 0);
    p->thread = test_start_thread(proxy_run, p);
}

void proxy_stop(proxy *p)
{
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
}
