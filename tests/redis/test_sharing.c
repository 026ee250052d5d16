/*
 * Many threads on few connections: a thread that gives up breaks nothing for others; unknown
 * outcomes are undone as fast as they arise. Over a slow link: see test_latency.c.
 */
#include "support.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "backends/redis/backend.h"

/* ---- many callers ---- */

static atomic_bool over;
static atomic_int failures;

static void *sharing_hammer(void *argument)
{
    syncguard_backend *backend = argument;
    static atomic_int number;
    char key[32];
    syncguard_error error;
    snprintf(key, sizeof key, "hammer:%d", atomic_fetch_add(&number, 1));
    int64_t last = 0;
    while (!atomic_load(&over)) {
        syncguard_grant grant;
        syncguard_status status = syncguard_acquire(backend, key, 20000, NULL, &grant, &error);
        if (status == SYNCGUARD_OK) {
            int64_t fence = strtoll(grant.fence, NULL, 10);
            if (fence <= last)
                atomic_fetch_add(&failures, 1);
            last = fence;
            status = syncguard_release(backend, grant.lock_id, NULL, &error);
        }
        if (status != SYNCGUARD_OK) {
            if (atomic_fetch_add(&failures, 1) < 10)
                fprintf(stderr, "hammer: %s %s %s\n", syncguard_status_name(status), error.native,
                        error.message);
        }
    }
    return NULL;
}

/* Connections that break under load are replaced, and no caller gets another's reply. */
static void broken_connections_disturb_nobody(void **state)
{
    (void)state;
    server s;
    server_start(&s, 0, without_persistence);
    atomic_store(&over, false);
    atomic_store(&failures, 0);
    syncguard_backend *backend = open_port(s.port, "");
    pthread_t threads[32];
    for (int i = 0; i < 32; i++)
        threads[i] = test_start_thread(sharing_hammer, backend);
    for (int i = 0; i < 20; i++) {
        test_sleep_ms(50);
        freeReplyObject(raw_at(s.port, "CLIENT KILL TYPE normal SKIPME yes"));
        if (i % 5 == 0)
            freeReplyObject(raw_at(s.port, "SCRIPT FLUSH"));
    }
    atomic_store(&over, true);
    for (int i = 0; i < 32; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&failures), 0);
    syncguard_close(backend);
    server_remove(&s);
}

static void *one_acquire(void *argument)
{
    syncguard_backend *backend = argument;
    syncguard_grant grant;
    syncguard_error error;
    syncguard_call brief = test_call(400);
    char key[40];
    snprintf(key, sizeof key, "stall:%lx", (unsigned long)pthread_self());
    if (syncguard_acquire(backend, key, 5000, &brief, &grant, &error) !=
        SYNCGUARD_E_NETWORK_TIMEOUT)
        atomic_fetch_add(&failures, 1);
    return NULL;
}

static void followers_keep_their_own_deadlines(void **state)
{
    (void)state;
    server s;
    syncguard_grant grant;
    server_start(&s, 0, without_persistence);
    atomic_store(&failures, 0);
    syncguard_backend *backend = open_port(s.port, "");
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "warm", 5000, NULL, &grant, &err));
    kill(s.pid, SIGSTOP);
    int64_t start = test_now_ms();
    pthread_t threads[64];
    for (int i = 0; i < 64; i++)
        threads[i] = test_start_thread(one_acquire, backend);
    for (int i = 0; i < 64; i++)
        pthread_join(threads[i], NULL);
    assert_in_range(test_now_ms() - start, 390, 1500);
    assert_int_equal(atomic_load(&failures), 0);
    kill(s.pid, SIGCONT);
    syncguard_close(backend);
    server_remove(&s);
}

#ifndef __SANITIZE_THREAD__ /* which runs handlers later, perhaps under a mutex of ours */
static void hold_the_thread(int signal)
{
    (void)signal;
    test_sleep_ms(2000);
}

static void *sharing_ask_once(void *argument)
{
    bool locked = true;
    if (syncguard_is_locked(argument, "asked", NULL, &locked, NULL) != SYNCGUARD_OK)
        atomic_fetch_add(&failures, 1);
    return NULL;
}

/* A thread that does not collect its reply does not keep others from sending. */
static void stuck_follower_holds_up_nobody(void **state)
{
    (void)state;
    server s;
    struct sigaction hold = {.sa_handler = hold_the_thread}, before;
    assert_int_equal(sigaction(SIGUSR1, &hold, &before), 0);
    server_start(&s, 0, without_persistence);
    atomic_store(&failures, 0);
    syncguard_backend *backend = open_port(s.port, "connections=1&no_tracking=true");
    bool locked = true;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "warm", NULL, &locked, &err));
    kill(s.pid, SIGSTOP);
    pthread_t leader = test_start_thread(sharing_ask_once, backend);
    test_sleep_ms(100);
    pthread_t follower = test_start_thread(sharing_ask_once, backend);
    test_sleep_ms(100);
    pthread_kill(follower, SIGUSR1);
    test_sleep_ms(100);
    int64_t start = test_now_ms();
    kill(s.pid, SIGCONT);
    pthread_join(leader, NULL);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "asked", NULL, &locked, &err));
    int64_t took = test_now_ms() - start;
    pthread_join(follower, NULL);
    assert_in_range(took, 0, PROMPT_MS);
    assert_int_equal(atomic_load(&failures), 0);
    syncguard_close(backend);
    server_remove(&s);
    assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
}
#endif

/* ---- unknown outcomes ---- */

static atomic_long latest_ms;
static atomic_int attempts;

static void *give_up_always(void *argument)
{
    syncguard_backend *backend = argument;
    syncguard_call brief = test_call(15);
    syncguard_grant grant;
    char key[32];
    while (!atomic_load(&over)) {
        snprintf(key, sizeof key, "ghost:%d", atomic_fetch_add(&attempts, 1));
        int64_t start = test_now_ms();
        syncguard_status status = syncguard_acquire(backend, key, 60000, &brief, &grant, NULL);
        long took = (long)(test_now_ms() - start);
        /* The answer was there before a busy machine let this thread look at the clock. */
        if (status == SYNCGUARD_OK &&
            syncguard_release(backend, grant.lock_id, NULL, NULL) != SYNCGUARD_OK)
            atomic_fetch_add(&failures, 1);
        long seen = atomic_load(&latest_ms);
        while (took > seen && !atomic_compare_exchange_weak(&latest_ms, &seen, took))
            ;
    }
    return NULL;
}

/* Many callers whose grants always come too late: the grants are undone as fast as they are made,
 * and no caller waits for that. */
static void undoing_keeps_up(void **state)
{
    (void)state;
    enum { CALLERS = 50 };
    server s;
    proxy p;
    server_start(&s, 0, without_persistence);
    proxy_start(&p, s.port);
    syncguard_backend *backend = open_port(p.port, "");
    bool locked;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "warm", NULL, &locked, &err));
    atomic_store(&p.delay_ms, 10);
    atomic_store(&over, false);
    atomic_store(&failures, 0);
    atomic_store(&attempts, 0);
    atomic_store(&latest_ms, 0);
    pthread_t threads[CALLERS];
    for (int i = 0; i < CALLERS; i++)
        threads[i] = test_start_thread(give_up_always, backend);
    test_sleep_ms(3000);
    atomic_store(&over, true);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    /* Far less than the ttl; how soon depends on the machine. */
    long long ghosts = 1;
    for (int i = 0; i < 200 && ghosts > 0; i++) {
        test_sleep_ms(100);
        redisReply *reply = raw_at(
            s.port, "EVAL %s 0",
            "local n = 0 for _, k in ipairs(redis.call('KEYS', 'syncguard:ghost:*')) do n = n + 1 "
            "end return n");
        ghosts = reply->integer;
        freeReplyObject(reply);
    }
    print_message("%d attempts, latest %ld ms, %lld ghosts left\n", atomic_load(&attempts),
                  atomic_load(&latest_ms), ghosts);
    assert_int_equal(atomic_load(&failures), 0);
    assert_int_equal(ghosts, 0);
    assert_in_range(atomic_load(&latest_ms), 0, 2000);
    syncguard_close(backend);
    proxy_stop(&p);
    server_remove(&s);
}

#ifndef __SANITIZE_THREAD__ /* which takes closing another thread's descriptor for a race */
static void *sharing_waiter_run(void *argument)
{
    syncguard_lock *lock = NULL;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = 60000;
    if (syncguard_lock_acquire(argument, "awaited", &options, &lock, NULL) == SYNCGUARD_OK)
        syncguard_lock_dispose(lock);
    return NULL;
}

static double processor_s(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

/* Threads of every kind sleep on descriptors when all of them are closed. 0: all is well. */
static int close_all_and_go_on(void)
{
    syncguard_backend *backend = NULL;
    syncguard_lock *lock = NULL;
    syncguard_grant grant;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_call brief = test_call(1);
    pthread_t thread;
    options.auto_extend = true;
    if (syncguard_open(redis_url, NULL, &backend, NULL) != SYNCGUARD_OK ||
        syncguard_lock_acquire(backend, "renewed", &options, &lock, NULL) != SYNCGUARD_OK ||
        syncguard_acquire(backend, "awaited", 30000, NULL, &grant, NULL) != SYNCGUARD_OK)
        return 1;
    pthread_create(&thread, NULL, sharing_waiter_run, backend);
    syncguard_grant other;
    for (int i = 0; i < 20; i++) { /* something for the background */
        if (syncguard_acquire(backend, "late", 1000, &brief, &other, NULL) == SYNCGUARD_OK)
            (void)!syncguard_release(backend, other.lock_id, NULL, NULL);
    }
    test_sleep_ms(500);
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    test_sleep_ms(500);
    double before = processor_s();
    test_sleep_ms(2000);
    double used = processor_s() - before;
    fprintf(stderr, "used %.3f s of 2 s\n", used);
    if (used > 0.3)
        return 2;
    if (syncguard_release(backend, grant.lock_id, NULL, &err) < SYNCGUARD_OK) {
        fprintf(stderr, "release: %s\n", err.message);
        return 3;
    }
    pthread_join(thread, NULL);
    return syncguard_lock_lost(lock) == SYNCGUARD_LOST_NO ? 0 : 4;
}

static void closed_descriptors_burn_no_processor(void **state)
{
    (void)state;
    int status = -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(30);
        _exit(close_all_and_go_on());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The number of the connection's socket becomes that of a socket of the program, pair[0]. */
static int sharing_fd_reuse(const syncguard_backend *backend, int pair[2])
{
    const sg_redis_backend *redis = (const sg_redis_backend *)(const void *)backend;
    assert_non_null(redis->links[0].conn);
    int fd = redis->links[0].conn->fd;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(dup2(pair[0], fd), fd);
    test_sleep_ms(200); /* a connection that was used just now is not checked */
    return fd;
}

/* Checks that the descriptor was not written to, closed or shut down, and that its unsent bytes
 * would not be discarded. */
static void check_untouched(int fd, const int pair[2])
{
    struct linger linger = {-1, -1};
    socklen_t size = sizeof linger;
    char byte = 'x';
    assert_int_equal(recv(pair[1], &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &size), 0);
    assert_int_equal(linger.l_onoff, 0);
    assert_int_equal(send(pair[1], &byte, 1, MSG_NOSIGNAL), 1);
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), 1);
}

/* The program closes a socket of ours, and opens one that gets its number. */
static void redis_reused_fd_is_left_alone(void **state)
{
    (void)state;
    bool locked = true;
    for (int use = 0; use < 2; use++) {
        int pair[2];
        syncguard_backend *backend = open_with("connections=1&no_tracking=true");
        assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "a", NULL, &locked, &err));
        int fd = sharing_fd_reuse(backend, pair);
        if (use == 1)
            assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "a", NULL, &locked, &err));
        else
            sg_redis_link_reset(&((sg_redis_backend *)(void *)backend)->links[0]);
        check_untouched(fd, pair);
        syncguard_close(backend);
        check_untouched(fd, pair);
        close(fd);
        close(pair[0]);
        close(pair[1]);
    }
}

/* Which descriptors below 256 are connections to the server. */
static void find_connections(bool found[256])
{
    for (int fd = 0; fd < 256; fd++) {
        struct sockaddr_in peer = {.sin_family = AF_UNSPEC};
        socklen_t size = sizeof peer;
        found[fd] = getpeername(fd, (struct sockaddr *)&peer, &size) == 0 &&
                    peer.sin_family == AF_INET && ntohs(peer.sin_port) == redis_port(0);
    }
}

/* The same for the connection that receives notifications, which belongs to no link. */
static void what_another_socket_gets_is_not_read(void **state)
{
    (void)state;
    bool before[256];
    syncguard_grant grant;
    syncguard_backend *holder = open_with("connections=1&no_tracking=true");
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "awaited", 60000, NULL, &grant, &err));
    find_connections(before);
    syncguard_backend *backend = open_with("connections=1");
    const sg_redis_backend *redis = (const sg_redis_backend *)(const void *)backend;
    pthread_t thread = test_start_thread(sharing_waiter_run, backend);
    test_sleep_ms(1000);
    bool after[256];
    find_connections(after);
    int fd = -1;
    for (int i = 0; i < 256; i++) {
        if (after[i] && !before[i] && i != redis->links[0].conn->fd)
            fd = i;
    }
    assert_true(fd >= 0);
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(dup2(pair[0], fd), fd);
    char byte = 'x';
    assert_int_equal(send(pair[1], &byte, 1, MSG_NOSIGNAL), 1);
    assert_status(SYNCGUARD_OK, syncguard_release(holder, grant.lock_id, NULL, &err));
    pthread_join(thread, NULL);
    syncguard_close(backend);
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), 1);
    close(fd);
    close(pair[0]);
    close(pair[1]);
    syncguard_close(holder);
}
#endif

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_connections_disturb_nobody),
        cmocka_unit_test(followers_keep_their_own_deadlines),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(stuck_follower_holds_up_nobody),
#endif
        cmocka_unit_test(undoing_keeps_up),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(closed_descriptors_burn_no_processor),
        cmocka_unit_test(redis_reused_fd_is_left_alone),
        cmocka_unit_test(what_another_socket_gets_is_not_read),
#endif
    };
    return cmocka_run_group_tests_name("redis sharing", tests, NULL, NULL);
}
