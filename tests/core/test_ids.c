/*
 * Lock ids. This program defines getrandom, which the library linked into it calls instead of the
 * system's: the test can make it fail.
 */
#include "test_assert.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "syncguard/sys/names.h"

static int failing; /* errno to fail with */
static int short_read;
static int interrupted; /* number of EINTR answers that come first */
static int calls;

ssize_t getrandom(void *buffer, size_t length, unsigned int flags)
{
    calls++;
    if (interrupted > 0) {
        interrupted--;
        errno = EINTR;
        return -1;
    }
    if (failing != 0) {
        errno = failing;
        return -1;
    }
    if (short_read != 0)
        return short_read;
    return syscall(SYS_getrandom, buffer, length, flags);
}

static int lock_id_compare(const void *a, const void *b)
{
    return memcmp(a, b, SYNCGUARD_LOCK_ID_SIZE);
}

/* I-ID-01: well formed, no duplicate, one call each */
static void test_unique(void **state)
{
    enum { COUNT = 10000 };
    char(*ids)[SYNCGUARD_LOCK_ID_SIZE] = calloc(COUNT, sizeof *ids);
    (void)state;
    assert_non_null(ids);
    calls = 0;
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(syncguard_lock_id_draw(ids[i], NULL), SYNCGUARD_OK);
        assert_true(syncguard_lock_id_valid(ids[i]));
    }
    assert_int_equal(calls, COUNT);
    qsort(ids, COUNT, sizeof *ids, lock_id_compare);
    for (int i = 1; i < COUNT; i++)
        assert_string_not_equal(ids[i - 1], ids[i]);
    free(ids);
}

/* I-ID-02: no substitute for randomness */
static void test_no_randomness(void **state)
{
    (void)state;
    failing = ENOSYS;
    char id[SYNCGUARD_LOCK_ID_SIZE] = "x";
    syncguard_error err;
    assert_int_equal(syncguard_lock_id_draw(id, &err), SYNCGUARD_E_INTERNAL);
    assert_int_equal(err.code, SYNCGUARD_E_INTERNAL);
    assert_string_equal(id, "");
    failing = EAGAIN;
    assert_int_equal(syncguard_lock_id_draw(id, NULL), SYNCGUARD_E_INTERNAL);
    failing = 0;
    short_read = 7;
    assert_int_equal(syncguard_lock_id_draw(id, NULL), SYNCGUARD_E_INTERNAL);
    short_read = 0;
    interrupted = 3;
    assert_int_equal(syncguard_lock_id_draw(id, NULL), SYNCGUARD_OK);
}

/* I-ID-02: an acquire without randomness fails and stores nothing */
static void test_acquire_without(void **state)
{
    (void)state;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    assert_int_equal(syncguard_open("memory:", NULL, &backend, &err), SYNCGUARD_OK);
    failing = ENOSYS;
    syncguard_grant grant;
    assert_int_equal(syncguard_acquire(backend, "k", 1000, NULL, &grant, &err),
                     SYNCGUARD_E_INTERNAL);
    failing = 0;
    bool locked = true;
    assert_int_equal(syncguard_is_locked(backend, "k", NULL, &locked, &err), SYNCGUARD_OK);
    assert_false(locked);
    assert_int_equal(syncguard_acquire(backend, "k", 1000, NULL, &grant, &err), SYNCGUARD_OK);
    assert_string_equal(grant.fence, "000000000000001");
    syncguard_close(backend);
}

/* I-ID-03: both sides of a fork draw different ids */
static void test_ids_fork(void **state)
{
    enum { COUNT = 1000 };
    static char ids[2 * COUNT][SYNCGUARD_LOCK_ID_SIZE];
    (void)state;
    char warm[SYNCGUARD_LOCK_ID_SIZE];
    assert_int_equal(syncguard_lock_id_draw(warm, NULL), SYNCGUARD_OK);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    for (int i = 0; i < COUNT; i++) {
        if (syncguard_lock_id_draw(ids[i], NULL) != SYNCGUARD_OK)
            _exit(1);
    }
    if (child == 0)
        _exit(write(ends[1], ids, sizeof ids / 2) == (ssize_t)(sizeof ids / 2) ? 0 : 1);
    close(ends[1]);
    size_t got = 0;
    while (got < sizeof ids / 2) {
        ssize_t n = read(ends[0], (char *)ids[COUNT] + got, sizeof ids / 2 - got);
        assert_true(n > 0);
        got += (size_t)n;
    }
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    qsort(ids, 2 * COUNT, sizeof *ids, lock_id_compare);
    for (int i = 1; i < 2 * COUNT; i++)
        assert_string_not_equal(ids[i - 1], ids[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unique),
        cmocka_unit_test(test_no_randomness),
        cmocka_unit_test(test_acquire_without),
        cmocka_unit_test(test_ids_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
