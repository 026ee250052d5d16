/*
 * What is checked before anything is sent (I-KEY-06, I-ID-04, I-ACQ-05, I-EXT-05,
 * I-ABT-02), and the warning of a high fence counter (I-FEN-09). The decorator
 * over the fake backend counts what reaches the store.
 */

#include "fake_backend.h"
#include "test_assert.h"

#define GOOD_ID "AAAAAAAAAAAAAAAAAAAAAA"

static syncguard_backend *checks_open_counted(atomic_int *reached)
{
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    fake_backend *p = fake_backend_open(NULL);
    options.on_event = test_count_event;
    options.on_event_context = reached;
    assert_non_null(p);
    syncguard_backend *decorated = NULL;
    assert_int_equal(syncguard_telemetry_wrap(&p->base, &options, &decorated, NULL), SYNCGUARD_OK);
    return decorated;
}

/* Calls every operation with this key, id and ttl: all must give the same answer. */
static void use_everything(syncguard_backend *backend, const char *key, const char *id,
                           int64_t ttl_ms, syncguard_abort *abort_object, syncguard_status expected)
{
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = abort_object;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.abort_object = abort_object;
    options.ttl_ms = ttl_ms;
    syncguard_grant grant;
    assert_int_equal(syncguard_acquire(backend, key, ttl_ms, &call, &grant, NULL), expected);
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(backend, key, &options, &lock, NULL), expected);
    assert_int_equal(syncguard_lock_try(backend, key, &options, &lock, NULL), expected);
    assert_int_equal(syncguard_extend(backend, id, ttl_ms, &call, NULL, NULL), expected);
    if (ttl_ms <= 0)
        return;
    bool flag = false;
    assert_int_equal(syncguard_is_locked(backend, key, &call, &flag, NULL), expected);
    syncguard_lock_info info;
    assert_int_equal(syncguard_get_by_key(backend, key, &call, &info, NULL), expected);
    syncguard_lock_info_raw raw;
    assert_int_equal(syncguard_get_by_key_raw(backend, key, &call, &raw, NULL), expected);
    assert_int_equal(syncguard_release(backend, id, &call, NULL), expected);
    assert_int_equal(syncguard_get_by_id(backend, id, &call, &info, NULL), expected);
    assert_int_equal(syncguard_get_by_id_raw(backend, id, &call, &raw, NULL), expected);
    assert_int_equal(syncguard_owns(backend, id, &call, &flag, NULL), expected);
}

static void bad_input_reaches_no_store(void **state)
{
    atomic_int reached = 0;
    syncguard_backend *backend = checks_open_counted(&reached);
    (void)state;
    char over[514];
    memset(over, 'x', 513);
    over[513] = '\0';
    const syncguard_status bad = SYNCGUARD_E_INVALID_ARGUMENT;
    use_everything(backend, NULL, NULL, 1000, NULL, bad);
    use_everything(backend, "", "", 1000, NULL, bad);
    use_everything(backend, over, "AAAAAAAAAAAAAAAAAAAAA", 1000, NULL, bad);
    use_everything(backend, "\xED\xA0\x80", "AAAAAAAAAAAAAAAAAAAAAAA", 1000, NULL, bad);
    use_everything(backend, "\xC3", "AAAAAAAAAAAAAAAAAAAAA=", 1000, NULL, bad);
    use_everything(backend, "k", GOOD_ID, 0, NULL, bad);
    use_everything(backend, "k", GOOD_ID, -1, NULL, bad);
    use_everything(backend, "k", GOOD_ID, INT64_MIN, NULL, bad);
    syncguard_close(backend); /* delivers the queued events */
    assert_int_equal(atomic_load(&reached), 0);
}

static void triggered_abort_reaches_no_store(void **state)
{
    atomic_int reached = 0;
    syncguard_backend *backend = checks_open_counted(&reached);
    (void)state;
    syncguard_abort *abort_object = NULL;
    assert_int_equal(syncguard_abort_create(&abort_object, NULL), SYNCGUARD_OK);
    syncguard_abort_trigger(abort_object);
    use_everything(backend, "k", GOOD_ID, 1000, abort_object, SYNCGUARD_E_ABORTED);
    /* Both at once: the argument is checked first. */
    use_everything(backend, "", "x", 1000, abort_object, SYNCGUARD_E_INVALID_ARGUMENT);
    syncguard_close(backend);
    syncguard_abort_free(abort_object);
    assert_int_equal(atomic_load(&reached), 0);
}

typedef struct warnings {
    int count;
    char last[512];
} warnings;

static void note_warning(void *context, syncguard_log_level level, const char *message)
{
    warnings *all = context;
    if (level < SYNCGUARD_LOG_WARN)
        return;
    all->count++;
    snprintf(all->last, sizeof all->last, "%s", message);
}

static atomic_llong later_ns; /* the clock is ahead by this */
int64_t __real_syncguard_clock_ns(void);
int64_t __wrap_syncguard_clock_ns(void);
int64_t __wrap_syncguard_clock_ns(void)
{
    return __real_syncguard_clock_ns() + atomic_load(&later_ns);
}

static fake_backend *open_noting(warnings *seen)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.log = note_warning;
    options.log_context = seen;
    return fake_backend_open(&options);
}

static void high_counters_are_warned_of_once(void **state)
{
    warnings seen = {0};
    fake_backend *p = open_noting(&seen);
    (void)state;
    atomic_store(&p->fence, SYNCGUARD_FENCE_WARN - 1);
    syncguard_grant grant;
    assert_int_equal(syncguard_acquire(&p->base, "s3cret", 1000, NULL, &grant, NULL), SYNCGUARD_OK);
    assert_string_equal(grant.fence, "090000000000000");
    assert_int_equal(seen.count, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(syncguard_acquire(&p->base, "s3cret", 1000, NULL, &grant, NULL),
                         SYNCGUARD_OK);
    assert_int_equal(seen.count, 1); /* per key and minute */
    char hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash("s3cret", hash));
    assert_non_null(strstr(seen.last, hash));
    assert_null(strstr(seen.last, "s3cret"));
    assert_int_equal(syncguard_acquire(&p->base, "another", 1000, NULL, &grant, NULL),
                     SYNCGUARD_OK);
    assert_int_equal(seen.count, 2);
    syncguard_close(&p->base);
}

/* There is no limit on the number of keys: each key is warned of, and again after a minute. */
static void many_high_counters_are_warned_of(void **state)
{
    enum { KEYS = 1024 };
    warnings seen = {0};
    fake_backend *p = open_noting(&seen);
    (void)state;
    atomic_store(&p->fence, SYNCGUARD_FENCE_WARN);
    syncguard_grant grant;
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < KEYS; i++) {
            char key[32];
            snprintf(key, sizeof key, "%d", round < 3 ? i : i + KEYS / 2);
            assert_int_equal(syncguard_acquire(&p->base, key, 1000, NULL, &grant, NULL),
                             SYNCGUARD_OK);
        }
        assert_int_equal(seen.count, round * KEYS);
        atomic_fetch_add(&later_ns, 61000 * SYNCGUARD_NS_PER_MS);
    }
    assert_int_equal(syncguard_acquire(&p->base, "one more", 1000, NULL, &grant, NULL),
                     SYNCGUARD_OK);
    assert_int_equal(seen.count, 3 * KEYS + 1);
    char hash[SYNCGUARD_HASH_SIZE];
    assert_true(syncguard_hash("one more", hash));
    assert_non_null(strstr(seen.last, hash));
    syncguard_close(&p->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_input_reaches_no_store),
        cmocka_unit_test(triggered_abort_reaches_no_store),
        cmocka_unit_test(high_counters_are_warned_of_once),
        cmocka_unit_test(many_high_counters_are_warned_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
