/*
 * Files that are removed or replaced while they are open: the handle notices it, waiters continue
 * with the new files, and a holder learns that its lock is lost.
 */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Long enough for the second after which a lost file is opened again, on a slow machine. */
#define SOON_US 20000000

static void replaced_shell_run(const test_dir *dir, const char *commands)
{
    char line[2 * PATH_BYTES];
    snprintf(line, sizeof line, "cd '%s' && %s", dir->path, commands);
    assert_int_equal(system(line), 0);
}

static syncguard_grant replaced_acquire(syncguard_backend *backend, const char *key)
{
    syncguard_grant grant;
    syncguard_error err;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, key, 60000, NULL, &grant, &err));
    return grant;
}

static child replaced_waiter_start(const test_dir *dir)
{
    char line[64];
    child waiter = start_worker("wait", dir->url, "k", NULL);
    assert_non_null(fgets(line, sizeof line, waiter.out));
    assert_string_equal(line, "waiting\n");
    test_sleep_ms(100);
    return waiter;
}

static void replaced_waiter_end(child *waiter)
{
    char line[400] = "";
    int64_t begin = test_now_us();
    do {
        assert_non_null(fgets(line, sizeof line, waiter->out));
    } while (strcmp(line, "waiting\n") == 0);
    if (strtoll(line, NULL, 10) == 0)
        fail_msg("%s", line);
    assert_true(test_now_us() - begin < SOON_US);
    assert_int_equal(end_worker(waiter), 0);
}

/* Opening the file that has taken the place of the old one counts as a reconnect. */
static void a_new_file_is_a_reconnect(void **state)
{
    const test_dir *dir = *state;
    syncguard_backend *counted = NULL;
    syncguard_error err;
    assert_status(SYNCGUARD_OK,
                  syncguard_telemetry_wrap(open_file(dir->file), NULL, &counted, &err));
    (void)replaced_acquire(counted, "k");
    assert_int_equal(test_reconnects_total(counted), 0);
    replaced_shell_run(dir, "rm locks.db*");
    for (int i = 0; i < 2000 && test_reconnects_total(counted) == 0;
         i++) { /* it checks now and then */
        bool locked = false;
        assert_status(SYNCGUARD_OK, syncguard_is_locked(counted, "k", NULL, &locked, &err));
        test_sleep_ms(10);
    }
    assert_int_equal(test_reconnects_total(counted), 1);
    (void)replaced_acquire(counted, "k");
    syncguard_close(counted);
}

/* A log callback that returns only after another thread has used the handle. */
typedef struct log_user {
    syncguard_backend *backend;
    int lines;
    int failed; /* calls of the other threads */
} log_user;

static void *replaced_handle_use(void *context)
{
    log_user *user = context;
    bool locked = false;
    if (syncguard_is_locked(user->backend, "k", NULL, &locked, NULL) != SYNCGUARD_OK)
        user->failed++;
    return NULL;
}

static void use_elsewhere(void *context, syncguard_log_level level, const char *message)
{
    log_user *user = context;
    (void)level;
    (void)message;
    user->lines++;
    pthread_t thread = test_start_thread(replaced_handle_use, user);
    pthread_join(thread, NULL);
}

static void the_log_callback_holds_up_nobody(void **state)
{
    const test_dir *dir = *state;
    log_user user = {NULL, 0, 0};
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    syncguard_sqlite_options own = SYNCGUARD_SQLITE_OPTIONS_INIT;
    own.path = dir->file;
    options.log = use_elsewhere;
    options.log_context = &user;
    syncguard_error err;
    assert_status(SYNCGUARD_OK, syncguard_sqlite_open(&own, &options, &user.backend, &err));
    (void)replaced_acquire(user.backend, "k");
    replaced_shell_run(dir, "rm locks.db*");
    for (int i = 0; i < 2000 && user.lines < 2; i++) { /* it checks now and then */
        bool locked = false;
        assert_status(SYNCGUARD_OK, syncguard_is_locked(user.backend, "k", NULL, &locked, &err));
        test_sleep_ms(10);
    }
    assert_int_equal(user.lines, 2); /* replaced, and reconnected */
    assert_int_equal(user.failed, 0);
    syncguard_close(user.backend);
}

/* Every command that replaces or removes the file at the path. */
static void a_waiter_goes_on_with_the_new_file(void **state)
{
    const test_dir *dir = *state;
    static const char *const ways[] = {
        "rm locks.db",
        "rm locks.db*",
        "rm locks.db-wal locks.db-shm locks.db-wake && mv new.db locks.db",
        "mv locks.db away.db",
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char line[400];
        char url[PATH_BYTES];
        syncguard_backend *backend = open_file(dir->file);
        syncguard_grant held = replaced_acquire(backend, "k");
        snprintf(url, sizeof url, "sqlite:%s/new.db", dir->path);
        assert_int_equal(run_worker(line, sizeof line, "open", url, NULL), 0);
        child waiter = replaced_waiter_start(dir);
        replaced_shell_run(dir, ways[i]);
        print_message("%s\n", ways[i]);
        replaced_waiter_end(&waiter);
        syncguard_error err;
        /* The holder learns of it. */
        assert_status(SYNCGUARD_ABSENT,
                      syncguard_extend(backend, held.lock_id, 30000, NULL, NULL, &err));
        assert_status(SYNCGUARD_ABSENT, syncguard_release(backend, held.lock_id, NULL, &err));
        (void)replaced_acquire(backend, "k");
        assert_int_equal(run_worker(line, sizeof line, "try", dir->url, "k", NULL), 1);
        syncguard_close(backend);
        replaced_shell_run(dir, "rm -f *.db*");
    }
}

static void replaced_on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)lock;
    (void)reason;
    atomic_store((atomic_bool *)context, true);
}

static void a_holder_learns_of_the_loss(void **state)
{
    const test_dir *dir = *state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_backend *backend = open_file(dir->file);
    options.ttl_ms = 3000;
    options.auto_extend = true;
    options.on_lost = replaced_on_lost;
    atomic_bool lost = false;
    options.on_lost_context = &lost;
    syncguard_error err;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(backend, "k", &options, &lock, &err));
    replaced_shell_run(dir, "rm locks.db*");
    for (int i = 0; i < 200 && !atomic_load(&lost); i++)
        test_sleep_ms(50);
    assert_true(atomic_load(&lost));
    assert_false(syncguard_lock_held(lock));
    syncguard_lock_dispose(lock);
    syncguard_close(backend);
}

/* Without its -wal and -shm files a database is a different one for the next process that opens
 * it. */
static void files_beside_the_database_are_noticed(void **state)
{
    const test_dir *dir = *state;
    char line[400];
    syncguard_backend *backend = open_file(dir->file);
    syncguard_grant held = replaced_acquire(backend, "before");
    sql(dir->file, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, 0);
    replaced_shell_run(dir, "rm locks.db-wal locks.db-shm");
    assert_int_equal(run_worker(line, sizeof line, "acquire", dir->url, "k", "60000", NULL), 0);
    test_sleep_ms(20);
    syncguard_error err;
    syncguard_grant grant;
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(backend, "k", 1000, NULL, &grant, &err));
    /* All processes see the locks that had reached the database. */
    assert_int_equal(run_worker(line, sizeof line, "try", dir->url, "before", NULL), 1);
    assert_status(SYNCGUARD_OK, syncguard_release(backend, held.lock_id, NULL, &err));
    syncguard_close(backend);
}

static void a_replaced_wake_file_loses_no_release(void **state)
{
    const test_dir *dir = *state;
    char line[400];
    syncguard_error err;
    for (int i = 0; i < 3; i++) {
        syncguard_backend *backend = open_file(dir->file);
        syncguard_grant held = replaced_acquire(backend, "k");
        child waiter = replaced_waiter_start(dir);
        replaced_shell_run(dir, i == 0   ? "rm locks.db-wake"
                                : i == 1 ? "mv locks.db-wake away"
                                         : "cp locks.db-wake other && mv other locks.db-wake");
        /* A process that opens the store now has another file. */
        assert_int_equal(run_worker(line, sizeof line, "open", dir->url, NULL), 0);
        test_sleep_ms(200);
        syncguard_backend *other = open_file(dir->file);
        assert_status(SYNCGUARD_OK, syncguard_release(other, held.lock_id, NULL, &err));
        int64_t begin = test_now_us();
        replaced_waiter_end(&waiter);
        assert_true(test_now_us() - begin < 2000000); /* its pauses are 5 s */
        syncguard_close(other);
        syncguard_close(backend);
    }
}

/* The new database would be read with the old one's -wal: it is left alone. */
static void a_database_replaced_without_its_wal_is_refused(void **state)
{
    const test_dir *dir = *state;
    char line[400];
    char url[PATH_BYTES];
    syncguard_backend *backend = open_file(dir->file);
    (void)replaced_acquire(backend, "k");
    snprintf(url, sizeof url, "sqlite:%s/new.db", dir->path);
    assert_int_equal(run_worker(line, sizeof line, "open", url, NULL), 0);
    replaced_shell_run(dir, "mv new.db locks.db");
    test_sleep_ms(20);
    syncguard_error err;
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(backend, "k", 1000, NULL, &grant, &err));
    assert_non_null(strstr(err.message, "-wal"));
    assert_non_null(strstr(err.message, dir->file));
    replaced_shell_run(dir, "rm locks.db-*");
    (void)replaced_acquire(backend, "k");
    syncguard_close(backend);
}

/* At whatever step opening the new files fails, the next attempt does not take them for the old
 * ones. */
static void a_failed_reopening_is_repeated(void **state)
{
    const test_dir *dir = *state;
    struct rlimit before;
    int lowest = dup(0);
    close(lowest);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    syncguard_backend *backend = open_file(dir->file);
    (void)replaced_acquire(backend, "k");
    char url[PATH_BYTES];
    snprintf(url, sizeof url, "sqlite:%s/new.db", dir->path);
    char line[400];
    assert_int_equal(run_worker(line, sizeof line, "open", url, NULL), 0);
    replaced_shell_run(dir, "mv new.db locks.db");
    test_sleep_ms(20);
    syncguard_error err;
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(backend, "k", 1000, NULL, &grant, &err));
    replaced_shell_run(dir, "rm locks.db-*");
    for (int more = 1; more < 9; more++) {
        struct rlimit few = {(rlim_t)(lowest + more), before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        syncguard_status status = syncguard_acquire(backend, "x", 1000, NULL, &grant, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        if (status != SYNCGUARD_OK)
            assert_null(strstr(err.message, "-wal and -shm"));
    }
    (void)replaced_acquire(backend, "k");
    syncguard_close(backend);
}

/* File systems give the numbers of removed files to new ones. */
static void reused_inode_numbers_do_not_matter(void **state)
{
    const test_dir *dir = *state;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    syncguard_backend *backend = open_file(dir->file);
    call.timeout_ms = 100;
    for (int i = 0; i < 6; i++) {
        (void)replaced_acquire(backend, "k");
        replaced_shell_run(dir, "rm locks.db");
        test_sleep_ms(20);
        syncguard_grant grant;
        syncguard_error err;
        /* The handle notices the removal and closes its files; another process creates new ones. */
        assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                      syncguard_acquire(backend, "k", 1000, &call, &grant, &err));
        char line[400];
        assert_int_equal(run_worker(line, sizeof line, "open", dir->url, NULL), 0);
    }
    syncguard_close(backend);
}

/* SQLite would truncate a mapping that the other one uses. */
static void two_handles_of_a_process_reopen_together(void **state)
{
    const test_dir *dir = *state;
    syncguard_call call = test_call(3000);
    syncguard_backend *one = open_file(dir->file);
    syncguard_backend *two = open_file(dir->file);
    (void)replaced_acquire(one, "k");
    replaced_shell_run(dir, "rm locks.db");
    test_sleep_ms(20);
    syncguard_error err;
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE,
                  syncguard_acquire(one, "k", 60000, &call, &grant, &err));
    assert_non_null(strstr(err.message, "another handle"));
    bool locked = true;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(two, "k", &call, &locked, &err));
    assert_false(locked);
    (void)replaced_acquire(one, "k");
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(two, "k", 1000, &call, &grant, &err));
    syncguard_close(one);
    syncguard_close(two);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, create_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(a_new_file_is_a_reconnect),
        TEST(the_log_callback_holds_up_nobody),
        TEST(a_waiter_goes_on_with_the_new_file),
        TEST(a_holder_learns_of_the_loss),
        TEST(files_beside_the_database_are_noticed),
        TEST(a_replaced_wake_file_loses_no_release),
        TEST(a_database_replaced_without_its_wal_is_refused),
        TEST(a_failed_reopening_is_repeated),
        TEST(reused_inode_numbers_do_not_matter),
        TEST(two_handles_of_a_process_reopen_together),
    };
    if (argc < 2)
        return 64;
    worker_path = argv[1];
    return cmocka_run_group_tests_name("sqlite replaced", tests, NULL, NULL);
}
