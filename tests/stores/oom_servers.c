/*
 * Out of memory and out of descriptors, on the stores that are servers.
 *
 *     oom_NAME memory|descriptors URL
 *
 * One round opens a handle and uses every operation once; in round n the n-th allocation of the
 * library (or the n-th socket, pipe, event or file that it or the libraries below it open) fails,
 * until a round meets no failure. A second series fails only what happens after the handle has been
 * used. After each failure: an error that fits and no other effect, the handle works again, and
 * when it is closed no block of the library and no descriptor is left.
 */

#include "test_alloc.h"
#include "test_assert.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <syncguard/sys/backend.h>

#define MOST_ROUNDS 3000

extern const syncguard_module OOM_MODULE; /* set by the build: one program per store */

/* ---- what fails ---- */

static bool fail_descriptors;

static bool no_descriptor(void)
{
    bool fails = fail_descriptors && test_fails_now();
    if (fails)
        errno = EMFILE;
    return fails;
}

/* The program's own definitions come before those of the C library, for all libraries. */
int socket(int domain, int type, int protocol)
{
    return no_descriptor() ? -1 : (int)syscall(SYS_socket, domain, type, protocol);
}

int socketpair(int domain, int type, int protocol, int fds[2])
{
    return no_descriptor() ? -1 : (int)syscall(SYS_socketpair, domain, type, protocol, fds);
}

int eventfd(unsigned int count, int flags)
{
    return no_descriptor() ? -1 : (int)syscall(SYS_eventfd2, count, flags);
}

int pipe2(int fds[2], int flags)
{
    return no_descriptor() ? -1 : (int)syscall(SYS_pipe2, fds, flags);
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
    va_end(more);
    return no_descriptor() ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* ---- one round ---- */

static const char *url;
static long round_number;

static int oom_servers_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

/* OK, a domain outcome, or the error that fits the failure that was made. */
static bool oom_servers_status_check(syncguard_status status, const char *what)
{
    if (status >= SYNCGUARD_OK)
        return true;
    bool fits = fail_descriptors
                    ? status == SYNCGUARD_E_RATE_LIMITED ||
                          status == SYNCGUARD_E_SERVICE_UNAVAILABLE ||
                          status == SYNCGUARD_E_NETWORK_TIMEOUT ||
                          status == SYNCGUARD_E_OUT_OF_MEMORY /* of the kernel: no event */
                    : status == SYNCGUARD_E_OUT_OF_MEMORY;
    if (!fits || test_failures() == 0)
        fail_msg("round %ld, %s: %s", round_number, what, syncguard_status_name(status));
    return false;
}

/* Every operation once; those after a failed acquire have nothing to work on. */
static void oom_servers_use(syncguard_backend *backend, const char *key)
{
    syncguard_grant grant;
    syncguard_lock_info info;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;
    bool locked = false;
    syncguard_status status = syncguard_acquire(backend, key, 20000, NULL, &grant, NULL);
    if (oom_servers_status_check(status, "acquire")) {
        assert_int_equal(status, SYNCGUARD_OK);
        oom_servers_status_check(syncguard_extend(backend, grant.lock_id, 20000, NULL, NULL, NULL),
                                 "extend");
        oom_servers_status_check(syncguard_get_by_id(backend, grant.lock_id, NULL, &info, NULL),
                                 "get_by_id");
        options.max_retries = 1;
        options.retry_delay_ms = 1;
        status = syncguard_lock_acquire(backend, key, &options, &lock, NULL);
        if (status != SYNCGUARD_E_ACQUISITION_TIMEOUT)
            oom_servers_status_check(status, "waiting");
        assert_null(lock);
        if (oom_servers_status_check(syncguard_release(backend, grant.lock_id, NULL, NULL),
                                     "release") == false)
            oom_servers_status_check(syncguard_release(backend, grant.lock_id, NULL, NULL),
                                     "second release");
    }
    oom_servers_status_check(syncguard_is_locked(backend, key, NULL, &locked, NULL), "is_locked");
    oom_servers_status_check(syncguard_get_by_key(backend, key, NULL, &info, NULL), "get_by_key");
    oom_servers_status_check(syncguard_list(backend, NULL, test_ignore_info, NULL, NULL), "list");
    char other[96];
    snprintf(other, sizeof other, "%s-kept", key);
    options.auto_extend = true;
    status = syncguard_lock_try(backend, other, &options, &lock, NULL);
    oom_servers_status_check(status, "lock_try");
    syncguard_lock_dispose(lock);
}

/* The failure is over: everything works. */
static void use_again(syncguard_backend *backend)
{
    syncguard_grant grant;
    char key[64];
    snprintf(key, sizeof key, "after-%d-%ld-%d", (int)getpid(), round_number, fail_descriptors);
    for (int i = 0;; i++) {
        syncguard_status status = syncguard_acquire(backend, key, 20000, NULL, &grant, NULL);
        if (status == SYNCGUARD_OK)
            break;
        /* A connection may be about to close. */
        if (i == 3)
            fail_msg("round %ld: afterwards %s", round_number, syncguard_status_name(status));
    }
    assert_int_equal(syncguard_release(backend, grant.lock_id, NULL, NULL), SYNCGUARD_OK);
}

static void expect_nothing_left(long blocks, int fds)
{
    for (int i = 0; i < 800; i++) { /* abandoned requests are ended in the background */
        if (atomic_load(&test_live_blocks) <= blocks && oom_servers_descriptors() <= fds)
            return;
        test_sleep_ms(10);
    }
    fail_msg("round %ld: %ld blocks and %d descriptors left", round_number,
             atomic_load(&test_live_blocks) - blocks, oom_servers_descriptors() - fds);
}

/* True if the round met its failure. */
static bool run_round(bool warm)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_backend *backend = NULL;
    long blocks = atomic_load(&test_live_blocks);
    int fds = oom_servers_descriptors();
    char key[64];
    snprintf(key, sizeof key, "oom-%d-%ld-%d", (int)getpid(), round_number, warm);
    options.on_release_error = NULL;
    if (warm) {
        assert_int_equal(syncguard_open(url, &options, &backend, NULL), SYNCGUARD_OK);
        use_again(backend);
        test_fail_arm(round_number, false);
    } else {
        test_fail_arm(round_number, false);
        oom_servers_status_check(syncguard_open(url, &options, &backend, NULL), "open");
    }
    if (backend != NULL)
        oom_servers_use(backend, key);
    test_fail_disarm();
    bool met = test_failures() > 0;
    if (backend != NULL) {
        use_again(backend);
        syncguard_close(backend);
    }
    expect_nothing_left(blocks, fds);
    return met;
}

static void oom_servers_sweep(bool warm)
{
    syncguard_backend *backend = NULL;
    /* Once without failures: memory that libraries keep for good is not a leak. */
    round_number = 0;
    assert_int_equal(syncguard_open(url, NULL, &backend, NULL), SYNCGUARD_OK);
    oom_servers_use(backend, "warm-up");
    syncguard_close(backend);
    round_number = 1;
    while (run_round(warm)) {
        round_number++;
        assert_true(round_number < MOST_ROUNDS);
    }
    print_message("%ld failures\n", round_number - 1);
}

static void from_the_opening_on(void **state)
{
    (void)state;
    oom_servers_sweep(false);
}

static void on_a_handle_in_use(void **state)
{
    (void)state;
    oom_servers_sweep(true);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_the_opening_on),
        cmocka_unit_test(on_a_handle_in_use),
    };
    if (argc != 3)
        return 64;
    fail_descriptors = strcmp(argv[1], "descriptors") == 0;
    atomic_store(&test_alloc_fails, !fail_descriptors);
    url = argv[2];
    setenv("SYNCGUARD_ENV", "production", 1); /* failing releases are expected */
    test_alloc_install();
    if (syncguard_module_register(&OOM_MODULE, NULL) != SYNCGUARD_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
