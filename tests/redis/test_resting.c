/*
 * Armed waiters: they rely on the server's notifications and hardly poll, so they try again after
 * every event in which a connection may have missed a change.
 */
#include "waiters.h"

/* A waiter that relies on notifications: its pauses have grown, the next try is 4 s away. */
static void start_resting(waiter *w, syncguard_backend *backend, const char *key)
{
    start_polling(w, backend, key, 1000);
    test_sleep_ms(3300);
}

/* NOLOOP hides what a connection changes itself, and yet the server forgets the name. */
static void own_extend_does_not_end_the_watching(void **state)
{
    (void)state;
    waiter w;
    int64_t expires;
    syncguard_backend *alone = open_with("connections=1");
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(alone, "own", 30000, NULL, &grant, &err));
    start_resting(&w, alone, "own");
    assert_status(SYNCGUARD_OK,
                  syncguard_extend(alone, grant.lock_id, 30000, NULL, &expires, &err));
    test_sleep_ms(200);
    int64_t start = test_now_ms();
    raw_do("DEL syncguard:own");
    assert_true(end_waiter(&w, start) < 1000);
    syncguard_close(alone);
}

/* All waiters try if the lock is released in the moment in which a connection is lost that would
 * have reported the release, or over which the report would have come. */
static void release_with_a_lost_connection_wakes(void **state)
{
    (void)state;
    static const char *const kinds[] = {"pubsub", "normal"};
    waiter w;
    for (int i = 0; i < 2; i++) {
        syncguard_backend *other = test_open(redis_url);
        (void)take_lock("rested", 30000);
        start_resting(&w, other, "rested");
        int64_t start = test_now_ms();
        raw_do("MULTI");
        raw_do("CLIENT KILL TYPE %s SKIPME yes", kinds[i]);
        raw_do("DEL syncguard:rested");
        raw_do("EXEC");
        assert_true(end_waiter(&w, start) < 1500);
        syncguard_close(other);
    }
}

/* Two commands that no other client gets between. */
static void raw_twice(const char *first, const char *second)
{
    redisContext *context = redisConnect("127.0.0.1", redis_port(0));
    void *reply = NULL;
    assert_int_equal(redisAppendCommand(context, first), REDIS_OK);
    assert_int_equal(redisAppendCommand(context, second), REDIS_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(redisGetReply(context, &reply), REDIS_OK);
        freeReplyObject(reply);
    }
    redisFree(context);
}

/* A server that may not remember so many names reports them as changed. */
static void forgotten_names_are_watched_again(void **state)
{
    (void)state;
    enum { WAITERS = 8 };
    static waiter waiters[WAITERS];
    static char keys[WAITERS][16];
    syncguard_backend *other = test_open(redis_url);
    for (int i = 0; i < WAITERS; i++) {
        snprintf(keys[i], sizeof keys[i], "evicted:%d", i);
        (void)take_lock(keys[i], 30000);
        start_polling(&waiters[i], other, keys[i], 1000);
    }
    test_sleep_ms(3300);
    raw_twice("CONFIG SET tracking-table-max-keys 2", "CONFIG SET tracking-table-max-keys 1000000");
    test_sleep_ms(300);
    int64_t start = test_now_ms();
    for (int i = 0; i < WAITERS; i++)
        raw_do("DEL syncguard:%s", keys[i]);
    for (int i = 0; i < WAITERS; i++)
        assert_true(end_waiter(&waiters[i], start) < 1500);
    syncguard_close(other);
}

/* Nothing changes, so the waiters send nothing. */
static void resting_waiters_do_not_poll(void **state)
{
    (void)state;
    enum { WAITERS = 20 };
    static waiter waiters[WAITERS];
    static char keys[WAITERS][16];
    syncguard_backend *other = test_open(redis_url);
    for (int i = 0; i < WAITERS; i++) {
        snprintf(keys[i], sizeof keys[i], "idle:%d", i);
        (void)take_lock(keys[i], 30000);
        waiters[i] = (waiter){.backend = other, .key = keys[i]};
        waiters[i].thread = test_start_thread(wait_for_lock, &waiters[i]);
    }
    test_sleep_ms(8000); /* after 1, 3 and 7 s */
    raw_do("CONFIG RESETSTAT");
    test_sleep_ms(4000);
    assert_in_range(raw_calls("evalsha"), 0, WAITERS / 2); /* polling: 80 */
    int64_t start = test_now_ms();
    for (int i = 0; i < WAITERS; i++)
        raw_do("DEL syncguard:%s", keys[i]);
    for (int i = 0; i < WAITERS; i++)
        assert_true(end_waiter(&waiters[i], start) < 1000);
    syncguard_close(other);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_extend_does_not_end_the_watching),
        cmocka_unit_test(release_with_a_lost_connection_wakes),
        cmocka_unit_test(forgotten_names_are_watched_again),
        cmocka_unit_test(resting_waiters_do_not_poll),
    };
    return cmocka_run_group_tests_name("redis resting waiters", tests, open_store, close_store);
}
