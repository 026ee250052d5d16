/*
 * While the hash slot of the locks moves in a Cluster: operations, renewals and waiters follow it.
 */
#include "cluster.h"

#include <poll.h>

#include "syncguard/queue.h"

static atomic_bool over;
static atomic_int failures, rounds;

static void cluster_move_failure_note(syncguard_status status, const char *what,
                                      const syncguard_error *error)
{
    if (status != SYNCGUARD_OK && atomic_fetch_add(&failures, 1) < 10)
        print_error("%s: %s %s %s\n", what, syncguard_status_name(status),
                    status < 0 ? error->native : "", status < 0 ? error->message : "");
}

/* Goes on working on a key of its own while the hash slot moves. */
static void *cluster_move_worker_run(void *argument)
{
    char key[32];
    int64_t last = 0;
    (void)argument;
    static atomic_int number;
    snprintf(key, sizeof key, "worked:%d", atomic_fetch_add(&number, 1));
    while (!atomic_load(&over)) {
        syncguard_grant grant;
        syncguard_error error;
        int64_t expires;
        syncguard_status status = syncguard_acquire(store, key, 30000, NULL, &grant, &error);
        cluster_move_failure_note(status, "acquire", &error);
        if (status == SYNCGUARD_OK) {
            int64_t fence = strtoll(grant.fence, NULL, 10);
            if (fence <= last)
                cluster_move_failure_note(SYNCGUARD_E_INTERNAL, "fence", &error);
            last = fence;
            cluster_move_failure_note(
                syncguard_extend(store, grant.lock_id, 30000, NULL, &expires, &error), "extend",
                &error);
            cluster_move_failure_note(syncguard_release(store, grant.lock_id, NULL, &error),
                                      "release", &error);
        }
        atomic_fetch_add(&rounds, 1);
    }
    return NULL;
}

/* Handles a completion of a queue; *last is the fence of its key. False: the queue has no open
 * request any more. */
static bool cluster_move_completion_handle(syncguard_queue *queue, const char *key,
                                           const syncguard_completion *done, int64_t *last)
{
    syncguard_error error;
    cluster_move_failure_note(done->status, key, &done->error);
    if (done->kind == SYNCGUARD_COMPLETION_ACQUIRE && done->status == SYNCGUARD_OK) {
        int64_t fence = strtoll(syncguard_lock_fence(done->lock), NULL, 10);
        if (fence <= *last)
            cluster_move_failure_note(SYNCGUARD_E_INTERNAL, "fence in a queue", &done->error);
        *last = fence;
        return syncguard_lock_release_async(queue, done->lock, NULL, done->context, NULL, &error) ==
               SYNCGUARD_OK;
    }
    atomic_fetch_add(&rounds, 1);
    return !atomic_load(&over) && syncguard_lock_acquire_async(queue, key, NULL, done->context,
                                                               NULL, &error) == SYNCGUARD_OK;
}

/* The same with many requests, which share round trips. */
static void *work_together(void *argument)
{
    enum { WIDTH = 16 };
    char keys[WIDTH][32];
    int64_t fences[WIDTH] = {0};
    int open = 0;
    syncguard_queue *queue = NULL;
    syncguard_error error;
    (void)argument;
    cluster_move_failure_note(syncguard_queue_open(store, NULL, &queue, &error), "queue", &error);
    for (; open < WIDTH; open++) {
        snprintf(keys[open], sizeof keys[open], "queued:%d", open);
        cluster_move_failure_note(
            syncguard_lock_acquire_async(queue, keys[open], NULL, &fences[open], NULL, &error),
            "start", &error);
    }
    syncguard_completion done;
    while (open > 0) {
        struct pollfd fd = {syncguard_queue_fd(queue), POLLIN, 0};
        poll(&fd, 1, 1000);
        while (syncguard_queue_next(queue, &done)) {
            int64_t *last = done.context;
            open -= cluster_move_completion_handle(queue, keys[last - fences], &done, last) ? 0 : 1;
        }
    }
    syncguard_queue_close(queue);
    return NULL;
}

enum { HELD = 300 };
static syncguard_grant held[HELD];

/* Checks locks that are held all the time. */
static void *cluster_move_keeper_run(void *argument)
{
    (void)argument;
    for (int i = 0; !atomic_load(&over); i = (i + 7) % HELD) {
        syncguard_error error;
        int64_t expires;
        bool owns = false;
        cluster_move_failure_note(
            syncguard_extend(store, held[i].lock_id, 60000, NULL, &expires, &error), "keep",
            &error);
        syncguard_status status = syncguard_owns(store, held[i].lock_id, NULL, &owns, &error);
        cluster_move_failure_note(status == SYNCGUARD_OK && !owns ? SYNCGUARD_ABSENT : status,
                                  "owns", &error);
        test_sleep_ms(1);
    }
    return NULL;
}

static void hash_slot_moves_under_load(void **state)
{
    (void)state;
    enum { WORKERS = 2, KEEPERS = 2, THREADS = WORKERS + KEEPERS + 1 };
    pthread_t threads[THREADS];
    char key[32];
    for (int i = 0; i < HELD; i++) {
        snprintf(key, sizeof key, "held:%d", i);
        assert_status(SYNCGUARD_OK, syncguard_acquire(store, key, 60000, NULL, &held[i], &err));
    }
    for (int i = 0; i < WORKERS + KEEPERS; i++)
        threads[i] = test_start_thread(
            i < WORKERS ? cluster_move_worker_run : cluster_move_keeper_run, NULL);
    threads[THREADS - 1] = test_start_thread(work_together, NULL);
    move m;
    for (int moves = 0; moves < 3; moves++) {
        test_sleep_ms(200);
        begin_move(&m);
        int before = atomic_load(&rounds);
        while (move_some(&m, 10))
            test_sleep_ms(10);
        if (atomic_load(&rounds) - before < 10)
            cluster_move_failure_note(SYNCGUARD_E_INTERNAL, "no work while the hash slot moved",
                                      &err);
        end_move(&m);
    }
    test_sleep_ms(300);
    atomic_store(&over, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    print_message("%d rounds\n", atomic_load(&rounds));
    assert_int_equal(atomic_load(&failures), 0);
    syncguard_grant grant;
    for (int i = 0; i < HELD; i++) {
        snprintf(key, sizeof key, "held:%d", i);
        assert_status(SYNCGUARD_LOCKED, syncguard_acquire(store, key, 60000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(store, held[i].lock_id, NULL, &err));
    }
    only_counters_are_left(&m);
}

/* Locks whose hash slot stays half moved for longer than their lease are renewed over there. */
static void heartbeat_follows_a_moving_hash_slot(void **state)
{
    (void)state;
    enum { LOCKS = 8 };
    syncguard_lock *locks[LOCKS] = {NULL};
    char key[32];
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 6000; /* a sanitizer on a busy machine renews late */
    options.auto_extend = true;
    for (int i = 0; i < LOCKS; i++) {
        snprintf(key, sizeof key, "renewed:%d", i);
        assert_status(SYNCGUARD_OK, syncguard_lock_acquire(store, key, &options, &locks[i], &err));
    }
    move m;
    begin_move(&m);
    for (int i = 0; i < LOCKS; i++) {
        snprintf(key, sizeof key, "renewed:%d", i);
        spread(&m, key, syncguard_lock_id(locks[i]), i);
    }
    test_sleep_ms(8000);
    for (int i = 0; i < LOCKS; i++)
        assert_int_equal(syncguard_lock_lost(locks[i]), SYNCGUARD_LOST_NO);
    end_move(&m);
    test_sleep_ms(1500);
    for (int i = 0; i < LOCKS; i++) {
        assert_int_equal(syncguard_lock_lost(locks[i]), SYNCGUARD_LOST_NO);
        syncguard_lock_dispose(locks[i]);
    }
}

/* ---- waiters ---- */

enum { WAITERS = 12 };

typedef struct waiter {
    pthread_t thread;
    char key[32];
    syncguard_backend *backend;
    syncguard_grant grant; /* of the current lock */
    syncguard_status status;
    atomic_llong got_ms;
} waiter;

static void *cluster_move_waiter_run(void *argument)
{
    waiter *self = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.retry_delay_ms = 20000; /* polling would be noticed */
    options.jitter = SYNCGUARD_JITTER_NONE;
    options.timeout_ms = 60000;
    syncguard_lock *lock = NULL;
    syncguard_error error;
    self->status = syncguard_lock_acquire(self->backend, self->key, &options, &lock, &error);
    atomic_store(&self->got_ms, test_now_ms());
    syncguard_lock_dispose(lock);
    return NULL;
}

static void waiters_follow_the_hash_slot(void **state)
{
    (void)state;
    static waiter waiters[WAITERS];
    syncguard_backend *other = test_open(redis_url);
    move m;
    int late = 0;
    for (int i = 0; i < WAITERS; i++) {
        waiter *w = &waiters[i];
        snprintf(w->key, sizeof w->key, "awaited:%d", i);
        w->backend = other;
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(store, w->key, 120000, NULL, &w->grant, &err));
        w->thread = test_start_thread(cluster_move_waiter_run, w);
    }
    test_sleep_ms(1000);
    for (int moves = 0; moves < 2; moves++) {
        begin_move(&m);
        while (move_some(&m, 3))
            test_sleep_ms(20);
        end_move(&m);
        test_sleep_ms(2000);
        for (int i = moves; i < WAITERS; i += 2) {
            waiter *w = &waiters[i];
            int64_t start = test_now_ms();
            assert_status(SYNCGUARD_OK, syncguard_release(store, w->grant.lock_id, NULL, &err));
            pthread_join(w->thread, NULL);
            assert_int_equal(w->status, SYNCGUARD_OK);
            late += atomic_load(&w->got_ms) - start > 2000;
        }
    }
    assert_int_equal(late, 0);
    syncguard_close(other);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hash_slot_moves_under_load),
        cmocka_unit_test(heartbeat_follows_a_moving_hash_slot),
        cmocka_unit_test(waiters_follow_the_hash_slot),
    };
    return cmocka_run_group_tests_name("redis cluster move", tests, open_store, close_store);
}
