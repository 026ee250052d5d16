/*
 * Out of memory: for every public operation the first, second, third ... allocation fails, until
 * the operation ends without meeting the failure; once with that single failure, once with every
 * later allocation failing too.
 *
 *     oom memory | sqlite | engine
 *
 * "memory" and "sqlite" fail the library's own allocations, "engine" those of SQLite. After each
 * failure: OutOfMemory and no other error, the handle works again, no lock is left behind (single
 * failure), and when everything is closed no block is left.
 */

#include "test_alloc.h"
#include "test_assert.h"

#include <poll.h>
#include <stdatomic.h>
#include <unistd.h>

#include <syncguard/sys/backend.h>
#ifdef OOM_WITH_SQLITE
#include <sqlite3.h>
#endif

#define MOST_FAILURES 5000

/* ---- the failing allocator ---- */

static bool fail_engine; /* SQLite's allocations fail, not the library's */

#ifdef OOM_WITH_SQLITE
static sqlite3_mem_methods engine;
static atomic_long engine_live;

static void *engine_malloc(int size)
{
    void *block = fail_engine && test_fails_now() ? NULL : engine.xMalloc(size);
    if (block != NULL)
        atomic_fetch_add(&engine_live, 1);
    return block;
}

static void *engine_realloc(void *block, int size)
{
    return fail_engine && test_fails_now() ? NULL : engine.xRealloc(block, size);
}

static void engine_free(void *block)
{
    if (block != NULL)
        atomic_fetch_sub(&engine_live, 1);
    engine.xFree(block);
}

static void wrap_engine(void)
{
    sqlite3_mem_methods wrapped;
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_GETMALLOC, &engine), SQLITE_OK);
    wrapped = engine;
    wrapped.xMalloc = engine_malloc;
    wrapped.xRealloc = engine_realloc;
    wrapped.xFree = engine_free;
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_MALLOC, &wrapped), SQLITE_OK);
}
#endif

/* ---- the operations ---- */

static char url[512];

/* What one armed operation works with; made before allocations fail. */
typedef struct scene {
    syncguard_backend *backend;
    char key[128];
    syncguard_grant grant; /* of held_key */
    char held_key[128];
    syncguard_lock *lock; /* of lock_key */
    char lock_key[128];
    syncguard_error err;
} scene;

typedef syncguard_status (*operation)(scene *s);

static syncguard_status op_acquire(scene *s)
{
    syncguard_grant grant;
    syncguard_status status = syncguard_acquire(s->backend, s->key, 30000, NULL, &grant, &s->err);
    if (status == SYNCGUARD_OK) {
        test_fail_disarm();
        assert_int_equal(syncguard_release(s->backend, grant.lock_id, NULL, NULL), SYNCGUARD_OK);
    }
    return status;
}

static syncguard_status op_acquire_locked(scene *s)
{
    syncguard_grant grant;
    syncguard_status status =
        syncguard_acquire(s->backend, s->held_key, 30000, NULL, &grant, &s->err);
    assert_true(status < 0 || status == SYNCGUARD_LOCKED);
    return status < 0 ? status : SYNCGUARD_OK;
}

static syncguard_status op_release(scene *s)
{
    syncguard_status status = syncguard_release(s->backend, s->grant.lock_id, NULL, &s->err);
    if (status == SYNCGUARD_OK) {
        test_fail_disarm();
        assert_int_equal(syncguard_acquire(s->backend, s->held_key, 60000, NULL, &s->grant, NULL),
                         SYNCGUARD_OK);
    }
    return status;
}

static syncguard_status op_release_absent(scene *s)
{
    syncguard_status status =
        syncguard_release(s->backend, "AAAAAAAAAAAAAAAAAAAAAA", NULL, &s->err);
    assert_true(status < 0 || status == SYNCGUARD_ABSENT);
    return status < 0 ? status : SYNCGUARD_OK;
}

static syncguard_status op_extend(scene *s)
{
    int64_t expires;
    return syncguard_extend(s->backend, s->grant.lock_id, 60000, NULL, &expires, &s->err);
}

static syncguard_status op_is_locked(scene *s)
{
    bool locked = false;
    syncguard_status status = syncguard_is_locked(s->backend, s->held_key, NULL, &locked, &s->err);
    assert_true(status < 0 || locked);
    return status;
}

static syncguard_status op_get_by_key(scene *s)
{
    syncguard_lock_info info;
    return syncguard_get_by_key(s->backend, s->held_key, NULL, &info, &s->err);
}

static syncguard_status op_get_by_id(scene *s)
{
    syncguard_lock_info info;
    return syncguard_get_by_id(s->backend, s->grant.lock_id, NULL, &info, &s->err);
}

static syncguard_status op_get_raw(scene *s)
{
    syncguard_lock_info_raw raw;
    syncguard_status status =
        syncguard_get_by_key_raw(s->backend, s->held_key, NULL, &raw, &s->err);
    return status != SYNCGUARD_OK
               ? status
               : syncguard_get_by_id_raw(s->backend, s->grant.lock_id, NULL, &raw, &s->err);
}

static syncguard_status op_owns(scene *s)
{
    bool owned = false;
    syncguard_status status = syncguard_owns(s->backend, s->grant.lock_id, NULL, &owned, &s->err);
    assert_true(status < 0 || owned);
    return status;
}

static syncguard_status op_list(scene *s)
{
    int seen = 0;
    syncguard_status status = syncguard_list(s->backend, NULL, test_count_info, &seen, &s->err);
    assert_true(status < 0 || seen >= 2);
    return status;
}

static syncguard_status op_prune(scene *s)
{
    return syncguard_prune(s->backend, NULL, false, NULL, NULL, &s->err);
}

static syncguard_status op_list_raw(scene *s)
{
    int seen = 0;
    syncguard_status status = syncguard_list_raw(s->backend, NULL, test_count_raw, &seen, &s->err);
    assert_true(status < 0 || seen >= 2);
    return status;
}

static syncguard_status op_examine(scene *s)
{
    return syncguard_examine(s->backend, NULL, test_ignore_finding, NULL, &s->err);
}

static syncguard_status oom_lock_take(scene *s, bool auto_extend)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.auto_extend = auto_extend;
    syncguard_lock *lock = NULL;
    syncguard_status status = syncguard_lock_acquire(s->backend, s->key, &options, &lock, &s->err);
    assert_true((status == SYNCGUARD_OK) == (lock != NULL));
    test_fail_disarm();
    syncguard_lock_dispose(lock);
    return status;
}

static syncguard_status op_lock_acquire(scene *s)
{
    return oom_lock_take(s, false);
}

static syncguard_status op_lock_auto_extend(scene *s)
{
    return oom_lock_take(s, true);
}

static syncguard_status op_lock_set(scene *s)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock_set *set = NULL;
    char other[sizeof s->key + 8];
    snprintf(other, sizeof other, "%s/e\xcc\x81", s->key); /* normalizing allocates */
    const char *const keys[] = {s->key, other, s->key};
    options.auto_extend = true;
    syncguard_status status =
        syncguard_lock_acquire_all(s->backend, keys, 3, &options, &set, &s->err);
    assert_true((status == SYNCGUARD_OK) == (set != NULL));
    test_fail_disarm();
    syncguard_lock_set_dispose(set);
    return status;
}

static syncguard_status op_lock_wait(scene *s)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = 2;
    options.retry_delay_ms = 1;
    syncguard_lock *lock = NULL;
    syncguard_status status =
        syncguard_lock_acquire(s->backend, s->held_key, &options, &lock, &s->err);
    assert_null(lock);
    return status == SYNCGUARD_E_ACQUISITION_TIMEOUT ? SYNCGUARD_OK : status;
}

/* Two callers hold the slots, and a third one waits for both keys. */
static syncguard_status op_slots(scene *s)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.slots = 2;
    options.max_retries = 2;
    options.retry_delay_ms = 1;
    syncguard_lock *locks[3] = {NULL, NULL, NULL};
    syncguard_status status = SYNCGUARD_OK;
    for (int i = 0; i < 3 && status == SYNCGUARD_OK; i++)
        status = syncguard_lock_acquire(s->backend, s->key, &options, &locks[i], &s->err);
    assert_null(locks[2]);
    for (int i = 0; i < 2; i++)
        syncguard_lock_dispose(locks[i]);
    return status == SYNCGUARD_E_ACQUISITION_TIMEOUT ? SYNCGUARD_OK : status;
}

static int oom_locked_work(void *context, syncguard_lock *lock)
{
    (void)context;
    (void)lock;
    return 3;
}

static void oom_release_error_check(void *context, const syncguard_error *error, const char *key,
                                    const char *lock_id, const char *source)
{
    (void)context;
    (void)key;
    (void)lock_id;
    (void)source;
    assert_int_equal(error->code, SYNCGUARD_E_OUT_OF_MEMORY);
}

static syncguard_status op_with_lock(scene *s)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.on_release_error = oom_release_error_check;
    int result = 0;
    syncguard_status status =
        syncguard_with_lock(s->backend, s->key, &options, oom_locked_work, NULL, &result, &s->err);
    assert_true(status < 0 || result == 3);
    return status;
}

static syncguard_status op_lock_extend(scene *s)
{
    return syncguard_lock_extend(s->lock, 60000, NULL, NULL, &s->err);
}

static void take_scene_lock(scene *s)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 60000;
    options.auto_extend = true;
    options.timeout_ms = 10000;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.on_release_error = oom_release_error_check;
    assert_int_equal(syncguard_lock_acquire(s->backend, s->lock_key, &options, &s->lock, NULL),
                     SYNCGUARD_OK);
}

/* A failed release goes on in the background, so that the key is soon free. */
static syncguard_status op_lock_release(scene *s)
{
    syncguard_status status = syncguard_lock_release(s->lock, NULL, &s->err);
    char id[SYNCGUARD_LOCK_ID_SIZE];
    memcpy(id, syncguard_lock_id(s->lock), sizeof id);
    test_fail_disarm();
    syncguard_lock_dispose(s->lock);
    if (status < 0) /* without any memory the release cannot go on in the background */
        (void)syncguard_release(s->backend, id, NULL, NULL);
    take_scene_lock(s);
    return status;
}

static syncguard_status op_lock_dispose(scene *s)
{
    char id[SYNCGUARD_LOCK_ID_SIZE];
    memcpy(id, syncguard_lock_id(s->lock), sizeof id);
    syncguard_lock_dispose(s->lock);
    test_fail_disarm();
    (void)syncguard_release(s->backend, id, NULL, NULL);
    take_scene_lock(s);
    return SYNCGUARD_OK;
}

static syncguard_status op_abort(scene *s)
{
    syncguard_abort *made = NULL;
    syncguard_status status = syncguard_abort_create(&made, &s->err);
    assert_true((status == SYNCGUARD_OK) == (made != NULL));
    syncguard_abort_trigger(made);
    syncguard_abort_free(made);
    return status;
}

static syncguard_status oom_completion_next(scene *s, syncguard_queue *queue, syncguard_lock **lock)
{
    struct pollfd fd = {syncguard_queue_fd(queue), POLLIN, 0};
    assert_int_equal(poll(&fd, 1, 30000), 1);
    syncguard_completion done;
    assert_true(syncguard_queue_next(queue, &done));
    s->err = done.error;
    *lock = done.lock;
    return done.status;
}

/* A release can start without memory, whatever happened before. */
static syncguard_status extend_and_release(scene *s, syncguard_queue *queue, syncguard_lock *lock)
{
    syncguard_lock *none = NULL;
    syncguard_status status =
        syncguard_lock_extend_async(queue, lock, 60000, NULL, NULL, NULL, &s->err);
    if (status == SYNCGUARD_OK)
        status = oom_completion_next(s, queue, &none);
    syncguard_error err = s->err;
    assert_int_equal(syncguard_lock_release_async(queue, lock, NULL, NULL, NULL, &s->err),
                     SYNCGUARD_OK);
    syncguard_status released = oom_completion_next(s, queue, &none);
    assert_null(none);
    if (status != SYNCGUARD_OK)
        s->err = err;
    return status != SYNCGUARD_OK ? status : released;
}

static syncguard_status op_queue(scene *s)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_queue *queue = NULL;
    syncguard_status status = syncguard_queue_open(s->backend, NULL, &queue, &s->err);
    options.max_retries = 2;
    options.retry_delay_ms = 1;
    options.auto_extend = true;
    if (status == SYNCGUARD_OK)
        status = syncguard_lock_acquire_async(queue, s->key, &options, NULL, NULL, &s->err);
    syncguard_lock *lock = NULL;
    if (status == SYNCGUARD_OK)
        status = oom_completion_next(s, queue, &lock);
    if (status == SYNCGUARD_OK)
        status = extend_and_release(s, queue, lock);
    if (status == SYNCGUARD_OK)
        status = syncguard_lock_acquire_async(queue, s->held_key, &options, NULL, NULL, &s->err);
    if (status == SYNCGUARD_OK) {
        status = oom_completion_next(s, queue, &lock);
        assert_null(lock);
        status = status == SYNCGUARD_E_ACQUISITION_TIMEOUT ? SYNCGUARD_OK : status;
    }
    test_fail_disarm();
    syncguard_queue_close(queue);
    return status;
}

static atomic_int events;

static void oom_event_count(void *context, const syncguard_event *event)
{
    (void)context;
    (void)event;
    atomic_fetch_add(&events, 1);
}

static syncguard_status op_telemetry(scene *s)
{
    syncguard_backend *bare = NULL;
    syncguard_status status = syncguard_open(url, NULL, &bare, &s->err);
    if (status != SYNCGUARD_OK)
        return status;
    syncguard_telemetry_options options = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    options.on_event = oom_event_count;
    syncguard_backend *decorated = NULL;
    status = syncguard_telemetry_wrap(bare, &options, &decorated, &s->err);
    if (status != SYNCGUARD_OK) {
        assert_null(decorated);
        syncguard_close(bare);
        return status;
    }
    syncguard_grant grant;
    status = syncguard_acquire(decorated, "caf\xC3\xA9-oom", 1000, NULL, &grant, &s->err);
    if (status == SYNCGUARD_OK) {
        test_fail_disarm();
        assert_int_equal(syncguard_release(decorated, grant.lock_id, NULL, NULL), SYNCGUARD_OK);
    }
    char text[256];
    assert_true(syncguard_telemetry_prometheus(decorated, text, sizeof text) > 100);
    syncguard_close(decorated);
    return status;
}

static syncguard_status op_open(scene *s)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.owner = "somebody@somewhere:1";
    char with_options[600];
    snprintf(with_options, sizeof with_options, "%s%ctimeout_ms=4000&cleanup=1", url,
             strchr(url, '?') != NULL ? '&' : '?');
    syncguard_backend *opened = NULL;
    syncguard_status status = syncguard_open(with_options, &options, &opened, &s->err);
    assert_true((status == SYNCGUARD_OK) == (opened != NULL));
    syncguard_close(opened);
    return status;
}

static syncguard_status op_setup(scene *s)
{
    return syncguard_setup(url, NULL, NULL, NULL, &s->err);
}

static syncguard_status op_hash(scene *s)
{
    char hash[SYNCGUARD_HASH_SIZE];
    if (syncguard_hash("cafe\xCC\x81", hash))
        return SYNCGUARD_OK;
    assert_string_equal(hash, "");
    return s->err.code = SYNCGUARD_E_OUT_OF_MEMORY;
}

static syncguard_status op_default_url(scene *s)
{
    char buffer[4096];
    return syncguard_default_url(buffer, sizeof buffer, &s->err);
}

static const struct {
    const char *name;
    operation run;
} operations[] = {
    {"open", op_open},
    {"setup", op_setup},
    {"default_url", op_default_url},
    {"acquire", op_acquire},
    {"acquire (locked)", op_acquire_locked},
    {"release", op_release},
    {"release (absent)", op_release_absent},
    {"extend", op_extend},
    {"is_locked", op_is_locked},
    {"get_by_key", op_get_by_key},
    {"get_by_id", op_get_by_id},
    {"raw twins", op_get_raw},
    {"owns", op_owns},
    {"list", op_list},
    {"list_raw", op_list_raw},
    {"prune", op_prune},
    {"examine", op_examine},
    {"lock_acquire", op_lock_acquire},
    {"lock_acquire (auto_extend)", op_lock_auto_extend},
    {"lock_set", op_lock_set},
    {"lock_acquire (waiting)", op_lock_wait},
    {"lock_acquire (slots)", op_slots},
    {"with_lock", op_with_lock},
    {"lock_extend", op_lock_extend},
    {"lock_release", op_lock_release},
    {"lock_dispose", op_lock_dispose},
    {"queue", op_queue},
    {"abort_create", op_abort},
    {"telemetry", op_telemetry},
    {"hash", op_hash},
};
#define OPERATIONS (sizeof operations / sizeof operations[0])

/* ---- the sweep ---- */

static void make_scene(scene *s, size_t which)
{
    memset(s, 0, sizeof *s);
    /* With accents, so that normalizing needs memory. */
    snprintf(s->held_key, sizeof s->held_key, "oom-held-e\xCC\x81-%zu", which);
    snprintf(s->lock_key, sizeof s->lock_key, "oom-lock-%zu", which);
    assert_int_equal(syncguard_open(url, NULL, &s->backend, &s->err), SYNCGUARD_OK);
    assert_int_equal(syncguard_acquire(s->backend, s->held_key, 60000, NULL, &s->grant, &s->err),
                     SYNCGUARD_OK);
    take_scene_lock(s);
}

static void end_scene(scene *s)
{
    syncguard_lock_dispose(s->lock);
    assert_int_equal(syncguard_release(s->backend, s->grant.lock_id, NULL, NULL), SYNCGUARD_OK);
    syncguard_close(s->backend);
}

/* The handle works as before, and the key is free (or will be as soon as the background is
 * done). */
static void check_usable(scene *s, const char *name, long at, bool persistent)
{
    syncguard_grant grant;
    syncguard_status status = SYNCGUARD_LOCKED;
    for (int i = 0; i < 200 && status == SYNCGUARD_LOCKED; i++) {
        status = syncguard_acquire(s->backend, s->key, 1000, NULL, &grant, &s->err);
        if (status == SYNCGUARD_LOCKED)
            test_sleep_ms(10);
    }
    if (status == SYNCGUARD_LOCKED && persistent) {
        return; /* the undo could not be queued: the lock ends with its TTL */
    }
    if (status != SYNCGUARD_OK)
        fail_msg("%s, allocation %ld: afterwards acquire gives %s (%s)", name, at,
                 syncguard_status_name(status), s->err.message);
    assert_int_equal(syncguard_release(s->backend, grant.lock_id, NULL, NULL), SYNCGUARD_OK);
    bool owned = false;
    assert_int_equal(syncguard_owns(s->backend, s->grant.lock_id, NULL, &owned, NULL),
                     SYNCGUARD_OK);
    assert_true(owned);
}

/* Returns how many allocations were made to fail. */
static long oom_operation_sweep(size_t which, bool persistent)
{
    const char *name = operations[which].name;
    scene s;
    make_scene(&s, which);
    long at;
    for (at = 1; at < MOST_FAILURES; at++) {

        /* A new key each time, so that record and counter must be created. */
        snprintf(s.key, sizeof s.key, "oom-e\xCC\x81-%zu-%d-%ld", which, persistent, at);
        test_fail_arm(at, persistent);
        syncguard_status status = operations[which].run(&s);
        test_fail_disarm();
        bool met = test_failures() > 0;
        if (status != SYNCGUARD_OK && status != SYNCGUARD_E_OUT_OF_MEMORY)
            fail_msg("%s, allocation %ld: %s (%s %s)", name, at, syncguard_status_name(status),
                     s.err.native, s.err.message);
        if (status != SYNCGUARD_OK && !met)
            fail_msg("%s: %s without a failed allocation", name, s.err.message);
        if (status != SYNCGUARD_OK)
            assert_int_equal(s.err.code, status);
        check_usable(&s, name, at, persistent);
        if (!met)
            break;
    }
    assert_true(at < MOST_FAILURES);
    end_scene(&s);
    return at - 1;
}

static void every_allocation_fails(bool persistent)
{
    long total = 0;
    for (size_t i = 0; i < OPERATIONS; i++) {
        long before = atomic_load(&test_live_blocks);
        long failed = oom_operation_sweep(i, persistent);
        print_message("    %-28s %4ld allocations failed\n", operations[i].name, failed);
        if (atomic_load(&test_live_blocks) != before)
            fail_msg("%s: %ld blocks leaked", operations[i].name,
                     atomic_load(&test_live_blocks) - before);
        total += failed;
    }
    print_message("    %ld in all\n", total);
    assert_true(total > 0);
}

static void each_allocation_fails_once(void **state)
{
    (void)state;
    every_allocation_fails(false);
}

static void all_allocations_fail_from_some_moment_on(void **state)
{
    (void)state;
    every_allocation_fails(true);
}

static void nothing_is_left_in_the_engine(void **state)
{
    (void)state;
#ifdef OOM_WITH_SQLITE
    /* The first open allocated what SQLite keeps for itself, before the sweeps. */
    sqlite3_shutdown();
    assert_int_equal(atomic_load(&engine_live), 0);
#endif
    assert_int_equal(atomic_load(&test_live_blocks), 0);
}

#ifdef OOM_WITH_SQLITE
extern const syncguard_module syncguard_module_sqlite;
#endif

int main(int argc, char **argv)
{
    if (argc != 2)
        return 64;
    test_alloc_install();
    fail_engine = strcmp(argv[1], "engine") == 0;
    atomic_store(&test_alloc_fails, !fail_engine);
    char folder[] = "/tmp/syncguard-oom.XXXXXX";
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(url, sizeof url, "memory:");
#ifdef OOM_WITH_SQLITE
    wrap_engine();
    snprintf(url, sizeof url, "sqlite:%s/locks.db?durability=normal", folder);
    if (syncguard_module_register(&syncguard_module_sqlite, NULL) != SYNCGUARD_OK)
        return 1;
#endif
    setenv("XDG_STATE_HOME", folder, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_fails_once),
        cmocka_unit_test(all_allocations_fail_from_some_moment_on),
        cmocka_unit_test(nothing_is_left_in_the_engine),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) == 0 ? failed : 1;
}
