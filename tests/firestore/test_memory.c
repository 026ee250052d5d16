/*
 * Out of memory against the stand-in: each allocation of the library, and of jansson, fails once.
 * Nothing crashes, nothing but OutOfMemory is reported (jansson does not always tell, then it is
 * Internal), nothing leaks, and the handle goes on.
 */
#include "standin.h"

#define MOST 2000

static standin server;
static syncguard_error err;
static atomic_long live;
static atomic_long countdown;
static bool fail_json;
static bool fail_ours;

static bool fails_now(bool armed)
{
    return armed && atomic_load(&countdown) > 0 && atomic_fetch_sub(&countdown, 1) == 1;
}

static void *our_malloc(size_t size)
{
    void *block = fails_now(fail_ours) ? NULL : malloc(size);

    if (block)
        atomic_fetch_add(&live, 1);
    return block;
}

static void *our_realloc(void *block, size_t size)
{
    void *moved = fails_now(fail_ours) ? NULL : realloc(block, size);

    if (moved && !block)
        atomic_fetch_add(&live, 1);
    return moved;
}

static void our_free(void *block)
{
    if (block)
        atomic_fetch_sub(&live, 1);
    free(block);
}

static void *json_malloc(size_t size)
{
    void *block = fails_now(fail_json) ? NULL : malloc(size);

    if (block)
        atomic_fetch_add(&live, 1);
    return block;
}

static int start(void **state)
{
    static const syncguard_allocator allocator = {our_malloc, our_realloc, our_free};

    (void)state;
    syncguard_allocator_set(&allocator);
    json_set_alloc_funcs(json_malloc, our_free);
    standin_start(&server, NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    standin_stop(&server);
    return 0;
}

typedef syncguard_status (*step)(syncguard_backend *backend);

static char held[SYNCGUARD_LOCK_ID_SIZE];

static syncguard_status do_acquire(syncguard_backend *backend)
{
    syncguard_grant grant;
    syncguard_status status = syncguard_acquire(backend, "memory", 500, NULL, &grant, &err);

    if (status == SYNCGUARD_OK)
        memcpy(held, grant.lock_id, sizeof held);
    return status;
}

static syncguard_status do_extend(syncguard_backend *backend)
{
    return syncguard_extend(backend, held, 600000, NULL, NULL, &err);
}

static syncguard_status do_release(syncguard_backend *backend)
{
    return syncguard_release(backend, held, NULL, &err);
}

static syncguard_status do_lookup(syncguard_backend *backend)
{
    syncguard_lock_info info;

    return syncguard_get_by_id(backend, "AAAAAAAAAAAAAAAAAAAAAA", NULL, &info, &err);
}

static bool go_on(void *context, const syncguard_lock_info *info)
{
    (void)context;
    (void)info;
    return true;
}

static syncguard_status do_list(syncguard_backend *backend)
{
    return syncguard_list(backend, NULL, go_on, NULL, &err);
}

/* Fails the n-th allocation of a step for every n, each on a fresh key. Steps before it succeed. */
static void sweep(step before, step under_test)
{
    for (long n = 1; n < MOST; n++) {
        long before_it = atomic_load(&live);
        syncguard_backend *mine = standin_open(&server, NULL);
        syncguard_status status;

        if (before)
            assert_status(SYNCGUARD_OK, before(mine));
        atomic_store(&countdown, n);
        status = under_test(mine);
        bool met = atomic_load(&countdown) == 0;
        atomic_store(&countdown, 0);
        if (fail_json && status == SYNCGUARD_E_INTERNAL)
            status = SYNCGUARD_E_OUT_OF_MEMORY;
        if (status < 0 && status != SYNCGUARD_E_OUT_OF_MEMORY)
            print_error("allocation %ld: %s %s\n", n, syncguard_status_name(status), err.message);
        assert_true(status >= 0 || status == SYNCGUARD_E_OUT_OF_MEMORY);
        /* The handle goes on. */
        assert_true(do_lookup(mine) == SYNCGUARD_ABSENT);
        syncguard_close(mine);
        if (atomic_load(&live) != before_it)
            print_error("allocation %ld (%s) left blocks\n", n, syncguard_status_name(status));
        assert_int_equal(atomic_load(&live), before_it);
        standin_reset(&server);
        if (!met)
            return;
    }
    fail_msg("no end of allocations");
}

static void sweep_all(void)
{
    standin_reset(&server);
    sweep(NULL, do_acquire);
    sweep(do_acquire, do_extend);
    sweep(do_acquire, do_release);
    sweep(NULL, do_lookup);
    sweep(do_acquire, do_list);
}

static void of_the_library(void **state)
{
    (void)state;
    fail_ours = true;
    fail_json = false;
    sweep_all();
    fail_ours = false;
}

static void of_jansson(void **state)
{
    (void)state;
    fail_json = true;
    sweep_all();
    fail_json = false;
}

static void at_open(void **state)
{
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;

    (void)state;
    own.project = "test";
    own.emulator_host = server.host;
    fail_ours = true;
    for (long n = 1; n < MOST; n++) {
        syncguard_backend *mine = NULL;
        syncguard_status status;
        atomic_store(&countdown, n);
        status = syncguard_firestore_open(&own, NULL, &mine, &err);
        bool met = atomic_load(&countdown) == 0;
        atomic_store(&countdown, 0);
        if (status != (met ? SYNCGUARD_E_OUT_OF_MEMORY : SYNCGUARD_OK))
            print_error("allocation %ld: %s %s\n", n, syncguard_status_name(status), err.message);
        assert_true(status == (met ? SYNCGUARD_E_OUT_OF_MEMORY : SYNCGUARD_OK));
        syncguard_close(mine);
        assert_int_equal(atomic_load(&live), 0);
        if (!met)
            break;
    }
    fail_ours = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_open),
        cmocka_unit_test(of_the_library),
        cmocka_unit_test(of_jansson),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
