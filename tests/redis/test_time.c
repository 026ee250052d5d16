/*
 * I-TIM-05: the time is the server's, seconds times 1000 plus whole milliseconds. TIME is asked
 * before and after each operation: where both say the same millisecond, it is known by which one
 * the operation decided. Runs also under a client's clock that is an hour off.
 */
#include "support.h"

#define ID "AAAAAAAAAAAAAAAAAAAAAA"
#define ROUNDS 4000 /* at most */
#define ENOUGH 15   /* operations whose millisecond is known */

static int64_t server_ms(void)
{
    redisReply *time = raw("TIME");
    int64_t ms = strtoll(time->element[0]->str, NULL, 10) * 1000 +
                 strtoll(time->element[1]->str, NULL, 10) / 1000;
    freeReplyObject(time);
    return ms;
}

/* Acquire and extend write whole milliseconds of the server's clock. */
static void expiries_are_the_servers_milliseconds(void **state)
{
    int acquired = 0, extended = 0;
    (void)state;
    for (int i = 0; i < ROUNDS && (acquired < ENOUGH || extended < ENOUGH); i++) {
        syncguard_grant grant;
        int64_t expires = 0;
        int64_t first = server_ms();
        assert_status(SYNCGUARD_OK, syncguard_acquire(store, "k", 30000, NULL, &grant, &err));
        int64_t second = server_ms();
        assert_status(SYNCGUARD_OK,
                      syncguard_extend(store, grant.lock_id, 40000, NULL, &expires, &err));
        int64_t third = server_ms();
        assert_in_range(grant.expires_at_ms, first + 30000, second + 30000);
        assert_in_range(expires, second + 40000, third + 40000);
        acquired += first == second;
        extended += second == third;
        assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    }
    assert_true(acquired >= ENOUGH && extended >= ENOUGH);
}

/* A lock that dies within the next milliseconds. Redis itself would keep it. */
static int64_t plant_dying(int64_t in_ms)
{
    int64_t expires = server_ms() - SYNCGUARD_TIME_TOLERANCE_MS + in_ms;
    raw_do("SET syncguard:k {\"key\":\"k\",\"lockId\":\"" ID "\",\"expiresAtMs\":%lld,"
           "\"acquiredAtMs\":1,\"fence\":\"000000000000001\"}",
           (long long)expires);
    raw_do("SET syncguard:id:" ID " syncguard:k");
    return expires;
}

/* Each function says whether the lock counted as live. */
static bool by_is_locked(void)
{
    bool locked = false;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(store, "k", NULL, &locked, &err));
    return locked;
}

static bool by_lookup(void)
{
    syncguard_lock_info info;
    return syncguard_get_by_id(store, ID, NULL, &info, &err) == SYNCGUARD_OK;
}

static bool redis_time_info_note(void *context, const syncguard_lock_info *info)
{
    (void)info;
    *(bool *)context = true;
    return true;
}

static bool by_list(void)
{
    bool listed = false;
    assert_status(SYNCGUARD_OK, syncguard_list(store, NULL, redis_time_info_note, &listed, &err));
    return listed;
}

static bool by_release(void)
{
    return syncguard_release(store, ID, NULL, &err) == SYNCGUARD_OK;
}

static bool by_extend(void)
{
    return syncguard_extend(store, ID, 30000, NULL, NULL, &err) == SYNCGUARD_OK;
}

static bool by_acquire(void)
{
    syncguard_grant grant;
    return syncguard_acquire(store, "k", 30000, NULL, &grant, &err) == SYNCGUARD_LOCKED;
}

/* The last millisecond of its life and the first after it: the result changes exactly there. */
static void locks_die_at_the_servers_millisecond(void **state)
{
    bool (*const looks[])(void) = {by_is_locked, by_lookup, by_list,
                                   by_release,   by_extend, by_acquire};
    (void)state;
    for (size_t look = 0; look < sizeof looks / sizeof looks[0]; look++) {
        int last = 0, first = 0;
        for (int i = 0; i < ROUNDS && (last < ENOUGH || first < ENOUGH); i++) {
            raw_do("FLUSHALL");
            int64_t death = plant_dying(i % 3) + SYNCGUARD_TIME_TOLERANCE_MS;
            int64_t before = server_ms();
            bool live = looks[look]();
            int64_t after = server_ms();
            if (after < death)
                assert_true(live);
            if (before >= death)
                assert_false(live);
            last += before == after && after == death - 1;
            first += before == after && before == death;
        }
        assert_true(last >= ENOUGH && first >= ENOUGH);
    }
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    raw_do("FLUSHALL");
    store = test_open(redis_url);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expiries_are_the_servers_milliseconds),
        cmocka_unit_test(locks_die_at_the_servers_millisecond),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    syncguard_close(store);
    return failed;
}
