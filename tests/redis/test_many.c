/*
 * Acquires and releases that share a round trip: each has the outcome that it would have had alone,
 * whatever happens to the connection and the server.
 */
#include "support.h"

#include <poll.h>

#include "syncguard/queue.h"

/* An acquire and what it needs. */
typedef struct attempt {
    syncguard_acquire_op op;
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
} attempt;

static syncguard_many_op acquire_of(attempt *a, const char *key)
{
    assert_status(SYNCGUARD_OK, syncguard_lock_id_draw(a->lock_id, &err));
    a->op = (syncguard_acquire_op){.key = key,
                                   .key_length = strlen(key),
                                   .lock_id = a->lock_id,
                                   .ttl_ms = 30000,
                                   .owner = "",
                                   .remaining_ms = -1};
    a->op.limits = (syncguard_limits){syncguard_clock_after(syncguard_clock_ns(), 5000), NULL};
    return (syncguard_many_op){.acquire = &a->op};
}

static syncguard_many_op release_of(syncguard_release_op *op, const char *lock_id)
{
    *op = (syncguard_release_op){.lock_id = lock_id};
    op->limits = (syncguard_limits){syncguard_clock_after(syncguard_clock_ns(), 5000), NULL};
    return (syncguard_many_op){.release = op};
}

static void redis_many_do(syncguard_backend *backend, syncguard_many_op *items, size_t count,
                          int64_t timeout_ms)
{
    syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), timeout_ms), NULL};
    backend->ops->do_many(backend, items, count, &limits);
}

/* A free key, a held one, a lock of ours and one that nobody has. */
static void check_all(syncguard_backend *backend, const char *suffix, void (*disturb)(void *),
                      void *context)
{
    char keys[3][40];
    attempt own, held;
    for (int i = 0; i < 3; i++)
        snprintf(keys[i], sizeof keys[i], "many:%d:%s", i, suffix);
    syncguard_many_op before[] = {acquire_of(&own, keys[0]), acquire_of(&held, keys[1])};
    redis_many_do(backend, before, 2, 5000);
    assert_int_equal(before[0].status, SYNCGUARD_OK);
    assert_int_equal(before[1].status, SYNCGUARD_OK);
    disturb(context);
    attempt attempts[2];
    syncguard_release_op releases[2];
    syncguard_many_op items[] = {acquire_of(&attempts[0], keys[2]),
                                 release_of(&releases[0], own.lock_id),
                                 acquire_of(&attempts[1], keys[1])};
    redis_many_do(backend, items, 3, 5000);
    assert_int_equal(items[0].status, SYNCGUARD_OK);
    assert_int_equal(attempts[0].op.fence, 1);
    assert_int_equal(items[1].status, SYNCGUARD_OK);
    assert_int_equal(items[2].status, SYNCGUARD_LOCKED);
    assert_true(attempts[1].op.remaining_ms > 0);
    syncguard_many_op after[] = {release_of(&releases[0], own.lock_id),
                                 release_of(&releases[1], attempts[0].lock_id)};
    redis_many_do(backend, after, 2, 5000);
    assert_int_equal(after[0].status, SYNCGUARD_ABSENT);
    assert_int_equal(after[1].status, SYNCGUARD_OK);
}

static void redis_many_do_nothing(void *context)
{
    (void)context;
}

static void forget_scripts(void *context)
{
    const server *s = context;
    freeReplyObject(raw_at(s->port, "SCRIPT FLUSH"));
}

static void redis_many_reply_lose(void *context)
{
    proxy *p = context;
    atomic_store(&p->lose, 1);
}

static void redis_each_has_its_own_outcome(void **state)
{
    (void)state;
    server s;
    proxy p;
    server_start(&s, 0, without_persistence);
    proxy_start(&p, s.port);
    syncguard_backend *backend = open_port(p.port, "connections=1");
    check_all(backend, "plain", redis_many_do_nothing, NULL);
    check_all(backend, "scripts", forget_scripts, &s);
    check_all(backend, "reply", redis_many_reply_lose, &p);
    assert_int_equal(atomic_load(&p.lose), 0);
    syncguard_close(backend);
    proxy_stop(&p);
    server_remove(&s);
}

/* Forgets the scripts between a grant whose reply is lost and the next sending. */
static void *forget_after_loss(void *argument)
{
    proxy *p = argument;
    while (atomic_load(&p->lose) > 0)
        test_sleep_ms(1);
    freeReplyObject(raw_at(p->target, "SCRIPT FLUSH"));
    return NULL;
}

/* The store's lease began with the sending that was applied, not with the one that was answered. */
static void a_lease_counts_from_the_first_sending(void **state)
{
    (void)state;
    server s;
    proxy p;
    attempt first[2];
    server_start(&s, 0, without_persistence);
    proxy_start(&p, s.port);
    syncguard_backend *backend = open_port(p.port, "connections=1");
    syncguard_many_op warm[] = {acquire_of(&first[0], "warm:0"), acquire_of(&first[1], "warm:1")};
    redis_many_do(backend, warm, 2, 5000);
    assert_int_equal(warm[0].status, SYNCGUARD_OK);
    atomic_store(&p.delay_ms, 100);
    atomic_store(&p.lose, 1);
    pthread_t thread = test_start_thread(forget_after_loss, &p);
    attempt again[2];
    syncguard_many_op items[] = {acquire_of(&again[0], "lease:0"),
                                 acquire_of(&again[1], "lease:1")};
    int64_t before_ns = syncguard_clock_ns();
    again[0].op.first_sent_ns = again[1].op.first_sent_ns = before_ns; /* as the core does */
    redis_many_do(backend, items, 2, 5000);
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(items[i].status, SYNCGUARD_OK);
        assert_int_equal(again[i].op.fence, 1);
        assert_true(again[i].op.first_sent_ns <= before_ns + 100 * SYNCGUARD_NS_PER_MS);
    }
    syncguard_close(backend);
    proxy_stop(&p);
    server_remove(&s);
}

static void a_server_that_hangs_ends_all_in_time(void **state)
{
    (void)state;
    server s;
    server_start(&s, 0, without_persistence);
    syncguard_backend *backend = open_port(s.port, "connections=1");
    check_all(backend, "before", redis_many_do_nothing, NULL);
    kill(s.pid, SIGSTOP);
    attempt attempts[2];
    syncguard_release_op op;
    syncguard_many_op items[] = {acquire_of(&attempts[0], "a"), release_of(&op, OTHER_ID),
                                 acquire_of(&attempts[1], "b")};
    int64_t start = test_now_ms();
    redis_many_do(backend, items, 3, 300);
    assert_in_range(test_now_ms() - start, 290, 290 + PROMPT_MS);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(items[i].status, SYNCGUARD_E_NETWORK_TIMEOUT);
        assert_int_equal(items[i].error.code, SYNCGUARD_E_NETWORK_TIMEOUT);
    }
    assert_true(attempts[0].op.may_have_been_granted && attempts[1].op.may_have_been_granted);
    kill(s.pid, SIGCONT);
    syncguard_close(backend);
    server_remove(&s);
}

/* ---- through a queue ---- */

#define WIDTH 64

typedef struct hammered {
    char key[32];
    int64_t fence;
} hammered;

static syncguard_completion redis_many_completion_next(syncguard_queue *queue)
{
    syncguard_completion done;
    struct pollfd fd = {syncguard_queue_fd(queue), POLLIN, 0};
    while (!syncguard_queue_next(queue, &done))
        assert_int_equal(poll(&fd, 1, 30000), 1);
    if (done.status != SYNCGUARD_OK)
        print_error("%s %s\n", done.error.native, done.error.message);
    assert_int_equal(done.status, SYNCGUARD_OK);
    return done;
}

static void redis_many_request_start(syncguard_queue *queue, hammered *h)
{
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire_async(queue, h->key, NULL, h, NULL, &err));
}

/* Handles one completion; false: one open request less. */
static bool redis_many_completion_handle(syncguard_queue *queue, bool again)
{
    syncguard_completion done = redis_many_completion_next(queue);
    hammered *h = done.context;
    if (done.kind == SYNCGUARD_COMPLETION_ACQUIRE) {
        int64_t fence = strtoll(syncguard_lock_fence(done.lock), NULL, 10);
        assert_true(fence > h->fence);
        h->fence = fence;
        assert_status(SYNCGUARD_OK,
                      syncguard_lock_release_async(queue, done.lock, NULL, h, NULL, &err));
    } else if (again) {
        redis_many_request_start(queue, h);
    } else {
        return false;
    }
    return true;
}

static void broken_connections_disturb_no_queue(void **state)
{
    (void)state;
    static hammered all[WIDTH];
    server s;
    syncguard_queue *queue = NULL;
    server_start(&s, 0, without_persistence);
    syncguard_backend *backend = open_port(s.port, "");
    assert_status(SYNCGUARD_OK, syncguard_queue_open(backend, NULL, &queue, &err));
    for (int i = 0; i < WIDTH; i++) {
        snprintf(all[i].key, sizeof all[i].key, "hammer:%d", i);
        redis_many_request_start(queue, &all[i]);
    }
    for (int i = 0; i < 20; i++) {
        for (int64_t end = test_now_ms() + 50; test_now_ms() < end;)
            (void)redis_many_completion_handle(queue, true);
        freeReplyObject(raw_at(s.port, "CLIENT KILL TYPE normal SKIPME yes"));
        if (i % 5 == 0)
            freeReplyObject(raw_at(s.port, "SCRIPT FLUSH"));
    }
    for (int open = WIDTH; open > 0;)
        open -= redis_many_completion_handle(queue, false) ? 0 : 1;
    syncguard_queue_close(queue);
    syncguard_close(backend);
    server_remove(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(redis_each_has_its_own_outcome),
        cmocka_unit_test(a_lease_counts_from_the_first_sending),
        cmocka_unit_test(a_server_that_hangs_ends_all_in_time),
        cmocka_unit_test(broken_connections_disturb_no_queue),
    };
    redis_begin(argc, argv);
    return cmocka_run_group_tests_name("redis many", tests, NULL, NULL);
}
