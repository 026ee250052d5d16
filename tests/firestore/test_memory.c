/*
 * Out of memory against the fake server: each allocation of the library, and of jansson, fails
 * once. Nothing crashes, only OutOfMemory is reported (or Internal, because jansson does not always
 * report it), nothing leaks, and the handle remains usable.
 */
#include "support.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/firestore/token.h"
#include "syncguard/sys/alloc.h"
#include "test_alloc.h"

#define MOST 2000

static bool fail_json;

static void *json_malloc(size_t size)
{
    void *block = fail_json && test_fails_now() ? NULL : malloc(size);
    if (block != NULL)
        atomic_fetch_add(&test_live_blocks, 1);
    return block;
}

static int firestore_oom_setup(void **state)
{
    (void)state;
    test_alloc_install();
    json_set_alloc_funcs(json_malloc, test_alloc_free);
    fake_server_start(&server, NULL);
    return 0;
}

typedef syncguard_status (*step)(syncguard_backend *backend);

static char held[SYNCGUARD_LOCK_ID_SIZE];

static syncguard_status firestore_oom_acquire(syncguard_backend *backend)
{
    syncguard_grant grant;
    syncguard_status status = syncguard_acquire(backend, "memory", 500, NULL, &grant, &err);
    if (status == SYNCGUARD_OK)
        memcpy(held, grant.lock_id, sizeof held);
    return status;
}

static syncguard_status firestore_oom_extend(syncguard_backend *backend)
{
    return syncguard_extend(backend, held, 600000, NULL, NULL, &err);
}

static syncguard_status firestore_oom_release(syncguard_backend *backend)
{
    return syncguard_release(backend, held, NULL, &err);
}

static syncguard_status firestore_oom_lookup(syncguard_backend *backend)
{
    syncguard_lock_info info;
    return syncguard_get_by_id(backend, "AAAAAAAAAAAAAAAAAAAAAA", NULL, &info, &err);
}

static syncguard_status firestore_oom_list(syncguard_backend *backend)
{
    return syncguard_list(backend, NULL, test_ignore_info, NULL, &err);
}

/* Fails the n-th allocation of a step for every n, each on a fresh key. Steps before it succeed. */
static void firestore_oom_sweep(step before, step under_test)
{
    for (long n = 1; n < MOST; n++) {
        long before_it = atomic_load(&test_live_blocks);
        syncguard_backend *mine = fake_server_open(&server, NULL);
        if (before != NULL)
            assert_status(SYNCGUARD_OK, before(mine));
        test_fail_arm(n, false);
        syncguard_status status = under_test(mine);
        bool met = test_failures() > 0;
        test_fail_disarm();
        if (fail_json && status == SYNCGUARD_E_INTERNAL)
            status = SYNCGUARD_E_OUT_OF_MEMORY;
        if (status < 0 && status != SYNCGUARD_E_OUT_OF_MEMORY)
            print_error("allocation %ld: %s %s\n", n, syncguard_status_name(status), err.message);
        assert_true(status >= 0 || status == SYNCGUARD_E_OUT_OF_MEMORY);
        /* The handle remains usable. */
        assert_true(firestore_oom_lookup(mine) == SYNCGUARD_ABSENT);
        syncguard_close(mine);
        if (atomic_load(&test_live_blocks) != before_it)
            print_error("allocation %ld (%s) left blocks\n", n, syncguard_status_name(status));
        assert_int_equal(atomic_load(&test_live_blocks), before_it);
        fake_server_reset(&server);
        if (!met)
            return;
    }
    fail_msg("no end of allocations");
}

static void sweep_all(void)
{
    fake_server_reset(&server);
    firestore_oom_sweep(NULL, firestore_oom_acquire);
    firestore_oom_sweep(firestore_oom_acquire, firestore_oom_extend);
    firestore_oom_sweep(firestore_oom_acquire, firestore_oom_release);
    firestore_oom_sweep(NULL, firestore_oom_lookup);
    firestore_oom_sweep(firestore_oom_acquire, firestore_oom_list);
}

static void of_the_library(void **state)
{
    (void)state;
    atomic_store(&test_alloc_fails, true);
    fail_json = false;
    sweep_all();
    atomic_store(&test_alloc_fails, false);
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
    (void)state;
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    own.project = "test";
    own.emulator_host = server.host;
    atomic_store(&test_alloc_fails, true);
    for (long n = 1; n < MOST; n++) {
        syncguard_backend *mine = NULL;
        test_fail_arm(n, false);
        syncguard_status status = syncguard_firestore_open(&own, NULL, &mine, &err);
        bool met = test_failures() > 0;
        test_fail_disarm();
        if (status != (met ? SYNCGUARD_E_OUT_OF_MEMORY : SYNCGUARD_OK))
            print_error("allocation %ld: %s %s\n", n, syncguard_status_name(status), err.message);
        assert_true(status == (met ? SYNCGUARD_E_OUT_OF_MEMORY : SYNCGUARD_OK));
        syncguard_close(mine);
        assert_int_equal(atomic_load(&test_live_blocks), 0);
        if (!met)
            break;
    }
    atomic_store(&test_alloc_fails, false);
}

static char *make_key(void)
{
    EVP_PKEY_CTX *maker = EVP_PKEY_CTX_new_id(EVP_PKEY_RSA, NULL);
    BIO *bio = BIO_new(BIO_s_mem());
    static char pem[4096];
    assert_int_equal(EVP_PKEY_keygen_init(maker), 1);
    EVP_PKEY *key = NULL;
    assert_int_equal(EVP_PKEY_keygen(maker, &key), 1);
    EVP_PKEY_CTX_free(maker);
    assert_int_equal(PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL), 1);
    int length = BIO_read(bio, pem, sizeof pem - 1);
    assert_true(length > 0);
    pem[length] = '\0';
    BIO_free(bio);
    EVP_PKEY_free(key);
    return pem;
}

/* The error does not say that the credentials are wrong. */
static void of_a_signature(void **state)
{
    const char *pem = make_key();
    (void)state;
    atomic_store(&test_alloc_fails, true);
    bool met = true;
    for (long n = 1; n < MOST && met; n++) {
        long before = atomic_load(&test_live_blocks);
        char *jwt = NULL;
        test_fail_arm(n, false);
        syncguard_status status =
            sg_firestore_jwt("me", "key", pem, "https://example.com", 1700000000, &jwt, &err);
        met = test_failures() > 0;
        test_fail_disarm();
        assert_status(met ? SYNCGUARD_E_OUT_OF_MEMORY : SYNCGUARD_OK, status);
        syncguard_free_secret(jwt);
        assert_int_equal(atomic_load(&test_live_blocks), before);
    }
    assert_false(met);
    atomic_store(&test_alloc_fails, false);
}

/* In the child: 0 if the n-th allocation failed, 1 if there are fewer, 2 for a wrong answer. */
static int firestore_oom_use_in_child(syncguard_backend *inherited, bool closes, long n)
{
    test_fail_arm(n, false);
    syncguard_status status = SYNCGUARD_ABSENT;
    if (closes)
        syncguard_close(inherited);
    else
        status = firestore_oom_lookup(inherited);
    bool met = test_failures() > 0;
    test_fail_disarm();
    if (status != SYNCGUARD_ABSENT && status != SYNCGUARD_E_OUT_OF_MEMORY)
        return 2;
    if (!closes) {
        if (firestore_oom_lookup(inherited) != SYNCGUARD_ABSENT)
            return 2;
        syncguard_close(inherited);
    }
    return met ? 0 : 1;
}

static void in_a_forked_child(void **state)
{
    syncguard_backend *mine = fake_server_open(&server, NULL);
    (void)state;
    atomic_store(&test_alloc_fails, true);
    assert_status(SYNCGUARD_ABSENT, firestore_oom_lookup(mine));
    for (int closes = 0; closes < 2; closes++) {
        int result = 0;
        for (long n = 1; n < MOST && result == 0; n++) {
            int state_of_child = 0;
            pid_t child = fork();
            if (child == 0)
                _exit(firestore_oom_use_in_child(mine, closes, n));
            assert_int_equal(waitpid(child, &state_of_child, 0), child);
            assert_true(WIFEXITED(state_of_child));
            result = WEXITSTATUS(state_of_child);
        }
        assert_int_equal(result, 1);
    }
    atomic_store(&test_alloc_fails, false);
    syncguard_close(mine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_open),           cmocka_unit_test(of_the_library),
        cmocka_unit_test(of_jansson),        cmocka_unit_test(of_a_signature),
        cmocka_unit_test(in_a_forked_child),
    };
    return cmocka_run_group_tests(tests, firestore_oom_setup, stop_server);
}
