/*
 * FLUSHALL under many holders: each of them is told, once and in time, and no holder believes in
 * its lock afterwards. (That the counters are gone, too, is the operator's doing.)
 */
#include "support.h"

#define HOLDERS 1000
#define TTL_MS 6000

static atomic_int told[HOLDERS];
static atomic_int wrong_reasons;

static void redis_flush_on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)lock;
    if (reason != SYNCGUARD_LOST_ABSENT)
        atomic_fetch_add(&wrong_reasons, 1);
    atomic_fetch_add((atomic_int *)context, 1);
}

static int count_told(void)
{
    int count = 0;
    for (int i = 0; i < HOLDERS; i++)
        count += atomic_load(&told[i]) > 0;
    return count;
}

static void thousand_holders_learn_of_a_flush(void **state)
{
    (void)state;
    static syncguard_lock *locks[HOLDERS];
    syncguard_backend *backend = test_open(redis_url);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = TTL_MS;
    options.auto_extend = true;
    options.on_lost = redis_flush_on_lost;
    for (int i = 0; i < HOLDERS; i++) {
        char key[32];
        snprintf(key, sizeof key, "flushed-%d", i);
        options.on_lost_context = &told[i];
        assert_status(SYNCGUARD_OK,
                      syncguard_lock_acquire(backend, key, &options, &locks[i], &err));
    }
    test_sleep_ms(TTL_MS); /* the locks live by their renewals */
    assert_int_equal(count_told(), 0);
    raw_do("FLUSHALL");
    int64_t end = test_now_ms() + TTL_MS; /* renewals are due within a third of the TTL */
    while (count_told() < HOLDERS && test_now_ms() < end)
        test_sleep_ms(20);
    assert_int_equal(count_told(), HOLDERS);
    assert_int_equal(atomic_load(&wrong_reasons), 0);
    test_sleep_ms(TTL_MS / 2);
    for (int i = 0; i < HOLDERS; i++) {
        assert_int_equal(atomic_load(&told[i]), 1);
        assert_false(syncguard_lock_held(locks[i]));
        syncguard_lock_dispose(locks[i]);
    }
    syncguard_close(backend);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(thousand_holders_learn_of_a_flush)};
    return cmocka_run_group_tests_name("redis flush", tests, NULL, NULL);
}
