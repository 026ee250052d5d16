/*
 * Programs that were compiled against another version of the headers: every options struct is
 * accepted with the size of its first version, whatever lies past it in memory, and with a larger
 * size if the members that the library does not know are zero.
 */
#include "test_assert.h"

#include <unistd.h>

#ifdef HAVE_FIRESTORE
#include <syncguard/firestore.h>
#endif
#ifdef HAVE_POSTGRES
#include <syncguard/postgres.h>
#endif
#ifdef HAVE_REDIS
#include <syncguard/redis.h>
#endif
#ifdef HAVE_SQLITE
#include <syncguard/sqlite.h>
#endif

/* The size of a struct whose last member was this one. */
#define UP_TO(type, member) (offsetof(type, member) + sizeof(((const type *)NULL)->member))

enum { ROOM = 1024, UNKNOWN = 64 };

typedef syncguard_status use_fn(const void *options);

static syncguard_backend *memory;

static syncguard_status use_with_size(use_fn *use, const void *valid, size_t known, size_t size,
                                      int filler)
{
    union {
        max_align_t align;
        unsigned char bytes[ROOM];
    } given;
    assert_true(known <= ROOM && size <= ROOM);
    memset(given.bytes, filler, sizeof given.bytes);
    memcpy(given.bytes, valid, size < known ? size : known);
    memcpy(given.bytes, &size, sizeof size);
    return use(given.bytes);
}

/* first: the size of the first version; known: the present one. */
static void check_sizes(use_fn *use, const void *valid, size_t first, size_t known)
{
    assert_int_equal(use_with_size(use, valid, known, first, 0x55), SYNCGUARD_OK);
    assert_int_equal(use_with_size(use, valid, known, known, 0x55), SYNCGUARD_OK);
    assert_int_equal(use_with_size(use, valid, known, known + UNKNOWN, 0), SYNCGUARD_OK);
    assert_int_equal(use_with_size(use, valid, known, known + UNKNOWN, 0x55),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(use_with_size(use, valid, known, first - 1, 0x55),
                     SYNCGUARD_E_INVALID_ARGUMENT);
    assert_int_equal(use_with_size(use, valid, known, 0, 0x55), SYNCGUARD_E_INVALID_ARGUMENT);
}

/* Closes what an operation opened: it is not needed. By its address, because the order in which
 * arguments are evaluated is unspecified. */
static syncguard_status sizes_close_opened(syncguard_status status,
                                           syncguard_backend *const *backend)
{
    if (status == SYNCGUARD_OK)
        syncguard_close(*backend);
    return status;
}

/* ---- the core ---- */

static syncguard_status use_options(const void *options)
{
    syncguard_backend *backend = NULL;
    return sizes_close_opened(syncguard_open("memory:", options, &backend, NULL), &backend);
}

static void common_options(void **state)
{
    (void)state;
    const syncguard_options valid = SYNCGUARD_OPTIONS_INIT;
    check_sizes(use_options, &valid, UP_TO(syncguard_options, on_release_error_context),
                sizeof valid);
}

static syncguard_status use_call(const void *call)
{
    bool locked = false;
    return syncguard_is_locked(memory, "k", call, &locked, NULL);
}

static void call_options(void **state)
{
    (void)state;
    const syncguard_call valid = SYNCGUARD_CALL_INIT;
    check_sizes(use_call, &valid, UP_TO(syncguard_call, timeout_ms), sizeof valid);
}

static syncguard_status use_lock_options(const void *options)
{
    syncguard_lock *lock = NULL;
    syncguard_status status = syncguard_lock_acquire(memory, "k", options, &lock, NULL);
    syncguard_lock_dispose(lock);
    return status;
}

static syncguard_status use_set_options(const void *options)
{
    static const char *const keys[] = {"a", "b"};
    syncguard_lock_set *set = NULL;
    syncguard_status status = syncguard_lock_acquire_all(memory, keys, 2, options, &set, NULL);
    syncguard_lock_set_dispose(set);
    return status;
}

static void sizes_of_lock_options(void **state)
{
    (void)state;
    const syncguard_lock_options valid = SYNCGUARD_LOCK_OPTIONS_INIT;
    const size_t first = UP_TO(syncguard_lock_options, on_release_error_context);
    const size_t second = UP_TO(syncguard_lock_options, min_hold_ms);
    check_sizes(use_lock_options, &valid, first, sizeof valid);
    check_sizes(use_set_options, &valid, first, sizeof valid);
    assert_int_equal(use_with_size(use_lock_options, &valid, sizeof valid, second, 0x55),
                     SYNCGUARD_OK);
    assert_int_equal(use_with_size(use_set_options, &valid, sizeof valid, second, 0x55),
                     SYNCGUARD_OK);
}

static syncguard_status use_queue_options(const void *options)
{
    syncguard_queue *queue = NULL;
    syncguard_status status = syncguard_queue_open(memory, options, &queue, NULL);
    syncguard_queue_close(queue);
    return status;
}

static void queue_options(void **state)
{
    (void)state;
    const syncguard_queue_options valid = SYNCGUARD_QUEUE_OPTIONS_INIT;
    check_sizes(use_queue_options, &valid, UP_TO(syncguard_queue_options, max_threads),
                sizeof valid);
}

static syncguard_status use_telemetry_options(const void *options)
{
    syncguard_backend *inner = NULL, *outer = NULL;
    assert_int_equal(syncguard_open("memory:", NULL, &inner, NULL), SYNCGUARD_OK);
    syncguard_status status = syncguard_telemetry_wrap(inner, options, &outer, NULL);
    syncguard_close(status == SYNCGUARD_OK ? outer : inner);
    return status;
}

static void telemetry_options(void **state)
{
    (void)state;
    const syncguard_telemetry_options valid = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    check_sizes(use_telemetry_options, &valid, UP_TO(syncguard_telemetry_options, queue_length),
                sizeof valid);
}

/* ---- the stores: opening needs no server ---- */

#ifdef HAVE_SQLITE
static syncguard_status use_sqlite_options(const void *options)
{
    syncguard_backend *backend = NULL;
    return sizes_close_opened(syncguard_sqlite_open(options, NULL, &backend, NULL), &backend);
}

static void sqlite_options(void **state)
{
    (void)state;
    char folder[] = "/tmp/syncguard-sizes-XXXXXX", path[64];
    syncguard_sqlite_options valid = SYNCGUARD_SQLITE_OPTIONS_INIT;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/locks.db", folder);
    valid.path = path;
    check_sizes(use_sqlite_options, &valid, UP_TO(syncguard_sqlite_options, durability),
                sizeof valid);
    char line[128];
    snprintf(line, sizeof line, "rm -r %s", folder);
    assert_int_equal(system(line), 0);
}
#endif

#ifdef HAVE_REDIS
static syncguard_status use_redis_options(const void *options)
{
    syncguard_backend *backend = NULL;
    return sizes_close_opened(syncguard_redis_open(options, NULL, &backend, NULL), &backend);
}

static void redis_options(void **state)
{
    (void)state;
    const syncguard_redis_options valid = SYNCGUARD_REDIS_OPTIONS_INIT;
    check_sizes(use_redis_options, &valid, UP_TO(syncguard_redis_options, no_tracking),
                sizeof valid);
}
#endif

#ifdef HAVE_POSTGRES
static syncguard_status use_postgres_options(const void *options)
{
    syncguard_backend *backend = NULL;
    return sizes_close_opened(syncguard_postgres_open(options, NULL, &backend, NULL), &backend);
}

static void postgres_options(void **state)
{
    (void)state;
    syncguard_postgres_options valid = SYNCGUARD_POSTGRES_OPTIONS_INIT;
    valid.conninfo = "host=127.0.0.1 port=1";
    check_sizes(use_postgres_options, &valid, UP_TO(syncguard_postgres_options, listen),
                sizeof valid);
}
#endif

#ifdef HAVE_FIRESTORE
static syncguard_status use_firestore_options(const void *options)
{
    syncguard_backend *backend = NULL;
    return sizes_close_opened(syncguard_firestore_open(options, NULL, &backend, NULL), &backend);
}

static void firestore_options(void **state)
{
    (void)state;
    syncguard_firestore_options valid = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    valid.project = "p";
    valid.emulator_host = "127.0.0.1:1";
    check_sizes(use_firestore_options, &valid,
                UP_TO(syncguard_firestore_options, max_clock_drift_ms), sizeof valid);
}
#endif

static int sizes_open_memory(void **state)
{
    (void)state;
    return syncguard_open("memory:", NULL, &memory, NULL) == SYNCGUARD_OK ? 0 : -1;
}

static int sizes_close_memory(void **state)
{
    (void)state;
    syncguard_close(memory);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(common_options),        cmocka_unit_test(call_options),
        cmocka_unit_test(sizes_of_lock_options), cmocka_unit_test(queue_options),
        cmocka_unit_test(telemetry_options),
#ifdef HAVE_SQLITE
        cmocka_unit_test(sqlite_options),
#endif
#ifdef HAVE_REDIS
        cmocka_unit_test(redis_options),
#endif
#ifdef HAVE_POSTGRES
        cmocka_unit_test(postgres_options),
#endif
#ifdef HAVE_FIRESTORE
        cmocka_unit_test(firestore_options),
#endif
    };
    return cmocka_run_group_tests(tests, sizes_open_memory, sizes_close_memory);
}
