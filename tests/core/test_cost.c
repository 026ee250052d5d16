/*
 * Things that must cost nothing: no hash without a listener (I-HSH-04), no memory for counting, no
 * reading of an absurdly long key (I-KEY-04), no random number but the id for a lock that is free.
 * The hash functions and the random numbers are wrapped by the linker.
 */

#include "test_assert.h"

#include <stdatomic.h>
#include <sys/resource.h>

static atomic_int hashes;

bool __real_syncguard_hash(const char *text, char out[SYNCGUARD_HASH_SIZE]);
bool __wrap_syncguard_hash(const char *text, char out[SYNCGUARD_HASH_SIZE]);
bool __real_syncguard_hash_n(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE]);
bool __wrap_syncguard_hash_n(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE]);
void __real_sg_hash_nfc(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE]);
void __wrap_sg_hash_nfc(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE]);

bool __real_sg_hash_text(const char *secret, const char *text, size_t length,
                         char out[SYNCGUARD_HASH_SIZE]);
bool __wrap_sg_hash_text(const char *secret, const char *text, size_t length,
                         char out[SYNCGUARD_HASH_SIZE]);

bool __wrap_sg_hash_text(const char *secret, const char *text, size_t length,
                         char out[SYNCGUARD_HASH_SIZE])
{
    atomic_fetch_add(&hashes, 1);
    return __real_sg_hash_text(secret, text, length, out);
}

bool __wrap_syncguard_hash(const char *text, char out[SYNCGUARD_HASH_SIZE])
{
    atomic_fetch_add(&hashes, 1);
    return __real_syncguard_hash(text, out);
}

bool __wrap_syncguard_hash_n(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE])
{
    atomic_fetch_add(&hashes, 1);
    return __real_syncguard_hash_n(text, length, out);
}

void __wrap_sg_hash_nfc(const char *text, size_t length, char out[SYNCGUARD_HASH_SIZE])
{
    atomic_fetch_add(&hashes, 1);
    __real_sg_hash_nfc(text, length, out);
}

static atomic_int random_numbers;

int64_t __real_syncguard_random_below(int64_t limit);
int64_t __wrap_syncguard_random_below(int64_t limit);

int64_t __wrap_syncguard_random_below(int64_t limit)
{
    atomic_fetch_add(&random_numbers, 1);
    return __real_syncguard_random_below(limit);
}

static void all_operations(syncguard_backend *backend)
{
    syncguard_grant grant;
    assert_int_equal(syncguard_acquire(backend, "k", 30000, NULL, &grant, NULL), SYNCGUARD_OK);
    syncguard_grant other;
    assert_int_equal(syncguard_acquire(backend, "k", 30000, NULL, &other, NULL), SYNCGUARD_LOCKED);
    bool locked = false;
    assert_int_equal(syncguard_is_locked(backend, "k", NULL, &locked, NULL), SYNCGUARD_OK);
    assert_int_equal(syncguard_extend(backend, grant.lock_id, 30000, NULL, NULL, NULL),
                     SYNCGUARD_OK);
    assert_int_equal(syncguard_release(backend, grant.lock_id, NULL, NULL), SYNCGUARD_OK);
    assert_int_equal(syncguard_release(backend, grant.lock_id, NULL, NULL), SYNCGUARD_ABSENT);
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(backend, "k", NULL, &lock, NULL), SYNCGUARD_OK);
    syncguard_lock_dispose(lock);
}

static void nothing_is_hashed_without_a_listener(void **state)
{
    (void)state;
    syncguard_backend *bare = NULL;
    assert_int_equal(syncguard_memory_open(NULL, &bare, NULL), SYNCGUARD_OK);
    atomic_store(&hashes, 0);
    all_operations(bare);
    assert_int_equal(atomic_load(&hashes), 0);
    syncguard_backend *decorated = NULL;
    /* Counters alone need no hash. */
    assert_int_equal(syncguard_telemetry_wrap(bare, NULL, &decorated, NULL), SYNCGUARD_OK);
    all_operations(decorated);
    assert_int_equal(atomic_load(&hashes), 0);
    syncguard_close(decorated);
    assert_int_equal(syncguard_memory_open(NULL, &bare, NULL), SYNCGUARD_OK);
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    options.on_event = test_ignore_event;
    assert_int_equal(syncguard_telemetry_wrap(bare, &options, &decorated, NULL), SYNCGUARD_OK);
    all_operations(decorated);
    syncguard_close(decorated);
    assert_true(atomic_load(&hashes) > 0); /* shows that the test counts */
}

static atomic_int allocations;

static void *cost_count_malloc(size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return malloc(size);
}

static void *cost_count_realloc(void *block, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return realloc(block, size);
}

/* Counting needs no memory, with or without telemetry. */
static void counting_allocates_nothing(void **state)
{
    (void)state;
    syncguard_backend *bare = NULL;
    syncguard_backend *decorated = NULL;
    int counts[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(syncguard_memory_open(NULL, &bare, NULL), SYNCGUARD_OK);
        decorated = bare;
        if (i == 1)
            assert_int_equal(syncguard_telemetry_wrap(bare, NULL, &decorated, NULL), SYNCGUARD_OK);
        atomic_store(&allocations, 0);
        all_operations(decorated);
        counts[i] = atomic_load(&allocations);
        syncguard_close(decorated);
    }
    assert_true(counts[0] > 0); /* shows that the test counts */
    assert_int_equal(counts[1], counts[0]);
}

/* Each random number is a system call. With slots, one is needed to choose the slot. */
static void free_lock_needs_no_random_number(void **state)
{
    (void)state;
    syncguard_backend *backend = NULL;
    assert_int_equal(syncguard_memory_open(NULL, &backend, NULL), SYNCGUARD_OK);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.auto_extend = false;
    atomic_store(&random_numbers, 0);
    syncguard_lock *lock = NULL;
    assert_int_equal(syncguard_lock_acquire(backend, "k", &options, &lock, NULL), SYNCGUARD_OK);
    syncguard_lock_dispose(lock);
    assert_int_equal(atomic_load(&random_numbers), 0);
    options.slots = 2;
    assert_int_equal(syncguard_lock_acquire(backend, "k", &options, &lock, NULL), SYNCGUARD_OK);
    syncguard_lock_dispose(lock);
    assert_int_equal(atomic_load(&random_numbers), 1); /* shows that the test counts */
    syncguard_close(backend);
}

static long peak_kb(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void absurd_keys_are_not_read(void **state)
{
    const size_t size = (size_t)100 << 20;
    char *key = malloc(size + 1);
    (void)state;
    assert_non_null(key);
    memset(key, 'k', size);
    key[size] = '\0';
    syncguard_backend *backend = NULL;
    assert_int_equal(syncguard_memory_open(NULL, &backend, NULL), SYNCGUARD_OK);
    long peak = peak_kb();
    syncguard_grant grant;
    double best_ms = 0;
    for (int i = 0; i < 20; i++) {
        double before = test_now_s();
        assert_int_equal(syncguard_acquire(backend, key, 1000, NULL, &grant, NULL),
                         SYNCGUARD_E_INVALID_ARGUMENT);
        double took = (test_now_s() - before) * 1e3;
        if (i == 0 || took < best_ms)
            best_ms = took; /* the best of many, because the machine may be busy */
    }
    assert_true(best_ms < 1.0);
    assert_true(peak_kb() - peak < 1024);
    syncguard_close(backend);
    free(key);
}

int main(void)
{
    const syncguard_allocator counting = {cost_count_malloc, cost_count_realloc, free};
    syncguard_allocator_set(&counting);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_hashed_without_a_listener),
        cmocka_unit_test(counting_allocates_nothing),
        cmocka_unit_test(free_lock_needs_no_random_number),
        cmocka_unit_test(absurd_keys_are_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
