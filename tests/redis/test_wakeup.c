/*
 * Waiters are woken by the server: by a release of any client, once per release for a whole
 * process, and again after the reporting connection was lost. Where the server does not allow it
 * they poll, and the log says so once. Waiters that rely on this and no longer poll: see
 * test_resting.c.
 */
#include "waiters.h"

#include <sys/wait.h>

#include "backends/redis/backend.h"

/* A waiter that the server wakes has the lock by then, on a busy machine too. */
#define WOKEN_MS 2500

/* Starts a waiter that polls so rarely that a poll cannot be taken for a wake-up. */
static void redis_wakeup_waiter_start(waiter *self, syncguard_backend *backend, const char *key)
{
    start_polling(self, backend, key, 5000);
}

static void release_by_another_handle_wakes(void **state)
{
    (void)state;
    waiter w;
    syncguard_backend *other = test_open(redis_url);
    for (int i = 0; i < 5; i++) {
        syncguard_grant grant = take_lock("wake", 30000);
        redis_wakeup_waiter_start(&w, other, "wake");
        int64_t start = test_now_ms();
        assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
        assert_true(end_waiter(&w, start) < WOKEN_MS);
    }
    syncguard_close(other);
}

static void release_by_another_library_wakes(void **state)
{
    (void)state;
    waiter w;
    (void)take_lock("foreign wake", 30000);
    redis_wakeup_waiter_start(&w, store, "foreign wake");
    int64_t start = test_now_ms();
    raw_do("DEL %s", "syncguard:foreign wake");
    assert_true(end_waiter(&w, start) < WOKEN_MS);
}

static void extend_does_not_end_the_watching(void **state)
{
    (void)state;
    waiter w;
    int64_t expires;
    syncguard_backend *other = test_open(redis_url);
    syncguard_grant grant = take_lock("extended", 30000);
    redis_wakeup_waiter_start(&w, other, "extended");
    for (int i = 0; i < 3; i++) {
        assert_status(SYNCGUARD_OK,
                      syncguard_extend(store, grant.lock_id, 30000, NULL, &expires, &err));
        test_sleep_ms(100);
    }
    int64_t start = test_now_ms();
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    assert_true(end_waiter(&w, start) < WOKEN_MS);
    syncguard_close(other);
}

static void lost_reporting_is_set_up_again(void **state)
{
    (void)state;
    waiter w;
    syncguard_backend *other = test_open(redis_url);
    for (int i = 0; i < 4; i++) {
        syncguard_grant grant = take_lock("lost report", 30000);
        redis_wakeup_waiter_start(&w, other, "lost report");
        if (i % 2 == 0)
            raw_do("CLIENT KILL TYPE pubsub");
        else
            raw_do("CLIENT KILL TYPE normal SKIPME yes");
        test_sleep_ms(400);
        int64_t start = test_now_ms();
        assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
        assert_true(end_waiter(&w, start) < WOKEN_MS);
    }
    syncguard_close(other);
}

static void flushing_the_store_wakes(void **state)
{
    (void)state;
    waiter w;
    (void)take_lock("flushed", 30000);
    redis_wakeup_waiter_start(&w, store, "flushed");
    int64_t start = test_now_ms();
    raw_do("FLUSHALL");
    assert_true(end_waiter(&w, start) < WOKEN_MS);
}

/* context: the number of warnings. */
static void redis_wakeup_warning_count(void *context, syncguard_log_level level,
                                       const char *message)
{
    if (level == SYNCGUARD_LOG_WARN && strstr(message, "tracking") != NULL)
        atomic_fetch_add((atomic_int *)context, 1);
}

/* A handle of that user. */
static syncguard_backend *open_as(const char *user, const char *query, atomic_int *warnings)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = redis_wakeup_warning_count;
    options.log_context = warnings;
    atomic_store(warnings, 0);
    char url[128];
    snprintf(url, sizeof url, "redis://%s:pw-marker-wakeup@127.0.0.1:%d%s", user, redis_port(0),
             query);
    syncguard_backend *opened = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open(url, &options, &opened, &err));
    return opened;
}

/* A user that may not track still gets its lock, by polling. All of them wait at the same time. */
static void forbidden_tracking_falls_back_to_polling(void **state)
{
    (void)state;
    static const char *const rights[] = {"-client|tracking", "-subscribe", "-client|caching",
                                         "-exists"};
    static char names[4][16];
    static waiter waiters[4];
    static atomic_int warnings[4];
    syncguard_grant grants[4];
    syncguard_backend *limited[4];
    for (int i = 0; i < 4; i++) {
        snprintf(names[i], sizeof names[i], "limited-%d", i);
        raw_do("ACL SETUSER %s reset on >pw-marker-wakeup ~* &* +@all %s", names[i], rights[i]);
        limited[i] = open_as(names[i], "", &warnings[i]);
        grants[i] = take_lock(names[i], 30000);
        start_polling(&waiters[i], limited[i], names[i], 1000);
    }
    test_sleep_ms(3300); /* one that relied on reports would try in 3 to 4 s */
    int64_t start = test_now_ms();
    for (int i = 0; i < 4; i++)
        assert_status(SYNCGUARD_OK, syncguard_release(store, grants[i].lock_id, NULL, &err));
    for (int i = 0; i < 4; i++) {
        assert_true(end_waiter(&waiters[i], start) < 2500);
        assert_int_equal(atomic_load(&warnings[i]), 1);
        syncguard_close(limited[i]);
    }
}

/* Many waiters of one handle make one try per release. */
static void many_waiters_try_once_per_release(void **state)
{
    (void)state;
    enum { WAITERS = 200 };
    static waiter waiters[WAITERS];
    syncguard_backend *crowd = test_open(redis_url);
    syncguard_grant grant = take_lock("crowd", 30000);
    for (int i = 0; i < WAITERS; i++) {
        waiters[i].backend = crowd;
        waiters[i].key = "crowd";
        waiters[i].hold_ms = 0;
        waiters[i].thread = test_start_thread(wait_for_lock, &waiters[i]);
    }
    test_sleep_ms(1000);
    raw_do("CONFIG RESETSTAT");
    int64_t start = test_now_ms();
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    for (int i = 0; i < WAITERS; i++)
        (void)end_waiter(&waiters[i], start);
    int64_t took = test_now_ms() - start;
    long calls = raw_calls("evalsha");
    /* One release, then a try and a release each; polls of the time it took come on top. */
    assert_in_range(calls, 2 * WAITERS + 1, 2 * WAITERS + 1 + WAITERS / 10 + took / 50);
    syncguard_close(crowd);
}

static void crashed_holder_is_followed_at_expiry(void **state)
{
    (void)state;
    waiter w;
    syncguard_grant grant;
    int64_t start = test_now_ms();
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, "crashed", 600, NULL, &grant, &err));
    redis_wakeup_waiter_start(&w, store, "crashed");
    assert_in_range(end_waiter(&w, start), 1590, 4000);
}

/* ---- refusals that pass ---- */

static void await_reporting(const char *user)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, "user=%s ", user);
    for (int i = 0; i < 300; i++) {
        if (strstr(raw_text("CLIENT LIST TYPE pubsub"), wanted) != NULL)
            return;
        test_sleep_ms(20);
    }
    fail_msg("no client reads notifications");
}

/* A password that is not accepted for a while, as when it is being changed. */
static void passing_refusals_do_not_end_the_reporting(void **state)
{
    (void)state;
    bool locked;
    atomic_int warnings;
    raw_do("ACL SETUSER changing reset on >pw-marker-wakeup ~* &* +@all");
    syncguard_backend *limited = open_as("changing", "?connections=1", &warnings);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(limited, "a", NULL, &locked, &err));
    syncguard_grant grant = take_lock("changing", 30000);
    raw_do("ACL SETUSER changing resetpass >other");
    waiter w;
    start_polling(&w, limited, "changing", 1000);
    test_sleep_ms(500);
    raw_do("ACL SETUSER changing >pw-marker-wakeup");
    await_reporting("changing");

    /* Several connections are told of one refusal. */
    char text[] = "ERR The client ID you want redirect to does not exist";
    redisReply refused;
    memset(&refused, 0, sizeof refused);
    refused.type = REDIS_REPLY_ERROR;
    refused.str = text;
    refused.len = sizeof text - 1;
    sg_redis_tracker *tracker = &((sg_redis_backend *)(void *)limited)->tracker;
    for (int i = 0; i < 5; i++)
        sg_redis_tracker_answer(tracker, 1, &refused);
    test_sleep_ms(300);
    await_reporting("changing");
    test_sleep_ms(300);
    int64_t start = test_now_ms();
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    assert_true(end_waiter(&w, start) < 900);
    assert_int_equal(atomic_load(&warnings), 0);
    syncguard_close(limited);
}

/* ---- fork ---- */

typedef struct sockets {
    size_t count;
    unsigned long inodes[256];
} sockets;

static void list_sockets(sockets *out)
{
    out->count = 0;
    for (int fd = 0; fd < 1024 && out->count < 256; fd++) {
        char path[32], target[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) > 8 && strncmp(target, "socket:[", 8) == 0)
            out->inodes[out->count++] = strtoul(target + 8, NULL, 10);
    }
}

static size_t count_common(const sockets *a, const sockets *b)
{
    size_t common = 0;
    for (size_t i = 0; i < a->count; i++) {
        for (size_t k = 0; k < b->count; k++)
            common += a->inodes[i] == b->inodes[k] ? 1 : 0;
    }
    return common;
}

/* None of the parent's connections stays open in a child, not even that of the notifications. */
static void child_closes_what_it_inherited(void **state)
{
    (void)state;
    waiter w;
    sockets before;
    (void)raw_int("DBSIZE");
    syncguard_grant grant = take_lock("forked", 30000);
    list_sockets(&before);
    syncguard_backend *other = test_open(redis_url);
    redis_wakeup_waiter_start(&w, other, "forked");
    sockets inherited;
    list_sockets(&inherited);
    assert_true(inherited.count >= before.count + 2);
    fflush(NULL);
    pid_t pid = fork();
    sockets present;
    if (pid == 0) {
        bool locked = false;
        alarm(20);
        if (syncguard_is_locked(other, "forked", NULL, &locked, NULL) != SYNCGUARD_OK || !locked)
            _exit(1);
        list_sockets(&present);
        _exit(count_common(&present, &inherited) == count_common(&before, &inherited) ? 0 : 2);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    int64_t start = test_now_ms();
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    assert_true(end_waiter(&w, start) < WOKEN_MS); /* the parent's reports go on */
    syncguard_close(other);
}

/* The calls of scripts by a waiter that gives up after one retry. */
static long wakeup_count_tries(const char *query, const char *key)
{
    syncguard_backend *holder = test_open(redis_url);
    syncguard_backend *waiting = open_with(query);
    syncguard_lock *held = NULL;
    assert_int_equal(syncguard_lock_acquire(holder, key, NULL, &held, NULL), SYNCGUARD_OK);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = 1;
    options.retry_delay_ms = 200;
    syncguard_lock *lock = NULL;
    /* After the first time the connections are open and the scripts loaded. */
    assert_int_equal(syncguard_lock_acquire(waiting, key, &options, &lock, NULL),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    long before = raw_calls("evalsha");
    assert_int_equal(syncguard_lock_acquire(waiting, key, &options, &lock, NULL),
                     SYNCGUARD_E_ACQUISITION_TIMEOUT);
    long calls = raw_calls("evalsha") - before;
    syncguard_lock_dispose(held);
    syncguard_close(waiting);
    syncguard_close(holder);
    return calls;
}

/* The try after joining finds releases that were reported before; without reports there are none.
 */
static void without_tracking_there_is_no_try_after_joining(void **state)
{
    (void)state;
    assert_int_equal(wakeup_count_tries("connections=1", "tracked"), 3);
    assert_int_equal(wakeup_count_tries("no_tracking=true", "untracked"), 2);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(release_by_another_handle_wakes),
        cmocka_unit_test(release_by_another_library_wakes),
        cmocka_unit_test(extend_does_not_end_the_watching),
        cmocka_unit_test(lost_reporting_is_set_up_again),
        cmocka_unit_test(flushing_the_store_wakes),
        cmocka_unit_test(without_tracking_there_is_no_try_after_joining),
        cmocka_unit_test(forbidden_tracking_falls_back_to_polling),
        cmocka_unit_test(many_waiters_try_once_per_release),
        cmocka_unit_test(crashed_holder_is_followed_at_expiry),
        cmocka_unit_test(passing_refusals_do_not_end_the_reporting),
        cmocka_unit_test(child_closes_what_it_inherited),
    };
    return cmocka_run_group_tests_name("redis wake-up", tests, open_store, close_store);
}
