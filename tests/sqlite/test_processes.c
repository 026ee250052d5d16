/*
 * Many processes on one file: exclusion, rising fences, creation at the same
 * time, a busy database, sudden death, wake-up, fork, and clocks that step.
 */
#include "support.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- exclusion ---- */

#define PROCESSES 8
#define INCREMENTS 32000

/* Every line of the log was written under the lock, so the numbers have no gap and the fences
 * rise. */
static void check_log(const char *path, long expected)
{
    long before = 0;
    char last[SYNCGUARD_FENCE_SIZE] = "";
    char line[128];
    FILE *log = fopen(path, "r");
    assert_non_null(log);
    while (fgets(line, sizeof line, log) != NULL) {
        long value = 0;
        char fence[SYNCGUARD_FENCE_SIZE] = "";
        assert_int_equal(sscanf(line, "%ld %15s", &value, fence), 2);
        if (value != before + 1)
            fail_msg("%ld follows %ld", value, before);
        if (strcmp(fence, last) <= 0)
            fail_msg("fence %s follows %s", fence, last);
        before = value;
        memcpy(last, fence, sizeof last);
    }
    fclose(log);
    assert_int_equal(before, expected);
}

static void a_counter_under_one_lock(void **state)
{
    const test_dir *dir = *state;
    char file[PATH_BYTES];
    child workers[PROCESSES];
    write_file(beside(dir, "counter", file), "0\n", 2);
    for (int i = 0; i < PROCESSES; i++)
        workers[i] = start_worker("count", dir->url, "counter", file, "4", "1000", NULL);
    int64_t begin = test_now_us();
    for (int i = 0; i < PROCESSES; i++) {
        char line[400] = "";
        if (fgets(line, sizeof line, workers[i].out) != NULL)
            print_error("%s", line);
        assert_int_equal(end_worker(&workers[i]), 0);
    }
    print_message("32000 increments in %.1f s\n", (double)(test_now_us() - begin) / 1e6);
    char log[PATH_BYTES];
    check_log(beside(dir, "counter.log", log), INCREMENTS);
    char content[32] = "";
    FILE *counter = fopen(file, "r");
    assert_non_null(counter);
    assert_non_null(fgets(content, sizeof content, counter));
    fclose(counter);
    assert_int_equal(strtol(content, NULL, 10), INCREMENTS);
}

/* The first salt of the WAL's header, which changes with each new start. (The number before it is
 * that of the connection which wrote the header.) It is read again while the file is empty. */
static unsigned wal_salt(const char *wal)
{
    unsigned char header[20];
    size_t got = 0;
    for (int tries = 0; got < sizeof header && tries < 1000; tries++) {
        FILE *file = fopen(wal, "rb");
        got = file != NULL ? fread(header, 1, sizeof header, file) : 0;
        if (file != NULL)
            fclose(file);
        if (got < sizeof header)
            test_sleep_ms(10);
    }
    assert_int_equal(got, sizeof header);
    return (unsigned)header[16] << 24 | (unsigned)header[17] << 16 | (unsigned)header[18] << 8 |
           header[19];
}

/* Processes that never pause must not keep the WAL from starting anew. Its length until then
 * depends on the disk and on the load of the machine. */
static void the_wal_starts_anew_under_load(void **state)
{
    const test_dir *dir = *state;
    enum { BUSY = 6, STARTS = 20 };
    child workers[BUSY];
    char wal[PATH_BYTES];
    char url[PATH_BYTES + 32];
    beside(dir, "locks.db-wal", wal);
    snprintf(url, sizeof url, "%s?durability=normal", dir->url);
    for (int i = 0; i < BUSY; i++) {
        char key[16];
        snprintf(key, sizeof key, "key-%d", i);
        workers[i] = start_worker("pairs", url, "10000000", "0", key, NULL);
    }
    unsigned last = wal_salt(wal), starts = 0;
    int64_t end = test_now_us() + 60 * 1000 * 1000;
    while (starts < STARTS && test_now_us() < end) {
        test_sleep_ms(100);
        unsigned now = wal_salt(wal);
        starts += now != last;
        last = now;
    }
    struct stat about = {.st_size = 0};
    (void)stat(wal, &about);
    for (int i = 0; i < BUSY; i++) {
        assert_int_equal(kill(workers[i].pid, SIGKILL), 0);
        assert_int_equal(end_worker(&workers[i]), 128 + SIGKILL);
    }
    print_message("the WAL of %.1f MB started anew %u times\n", (double)about.st_size / 1e6,
                  starts);
    assert_int_equal(starts, STARTS);
}

static void many_create_the_file_at_once(void **state)
{
    const test_dir *dir = *state;
    enum { MANY = 24 };
    child workers[MANY];
    for (int round = 0; round < 5; round++) {
        char url[PATH_BYTES];
        char key[32];
        int granted = 0;
        snprintf(url, sizeof url, "sqlite:%s/new%d/locks.db", dir->path, round);
        for (int i = 0; i < MANY; i++) {
            snprintf(key, sizeof key, "%s", i % 2 == 0 ? "same" : "other");
            workers[i] = start_worker("acquire", url, key, "60000", NULL);
        }
        for (int i = 0; i < MANY; i++) {
            char line[400] = "";
            (void)!fgets(line, sizeof line, workers[i].out);
            int code = end_worker(&workers[i]);
            if (code != 0 && code != 1)
                fail_msg("exit %d: %s", code, line);
            granted += code == 0;
        }
        assert_int_equal(granted, 2);
    }
}

/* ---- sudden death ---- */

static void killed_in_the_middle_no_fence_is_lost(void **state)
{
    const test_dir *dir = *state;
    char last[SYNCGUARD_FENCE_SIZE] = "";
    for (int round = 0; round < 50; round++) {
        char line[64];
        child worker = start_worker("fences", dir->url, "k", NULL);
        assert_non_null(fgets(line, sizeof line, worker.out));
        test_sleep_ms(rand() % 12);
        assert_int_equal(kill(worker.pid, SIGKILL), 0);
        do {
            if (strlen(line) == SYNCGUARD_FENCE_DIGITS + 1) {
                line[SYNCGUARD_FENCE_DIGITS] = '\0';
                if (strcmp(line, last) <= 0)
                    fail_msg("fence %s was granted after %s", line, last);
                memcpy(last, line, sizeof last);
            }
        } while (fgets(line, sizeof line, worker.out) != NULL);
        assert_int_equal(end_worker(&worker), 128 + SIGKILL);
        char counter[32];
        sql(dir->file, "SELECT printf('%015d', fence) FROM syncguard_fence_counters", counter,
            sizeof counter);
        if (strcmp(counter, last) < 0)
            fail_msg("the counter is %s, %s was granted", counter, last);
        /* A lock that the killed process held would block the next round. */
        sql(dir->file, "DELETE FROM syncguard_locks", NULL, 0);
    }
    char text[32];
    sql(dir->file, "PRAGMA integrity_check", text, sizeof text);
    assert_string_equal(text, "ok");
}

/* ---- a busy database ---- */

typedef struct trigger {
    syncguard_abort *abort_object;
    int64_t at_us;
} trigger;

static void *sqlite_processes_trigger_later(void *argument)
{
    trigger *self = argument;
    test_sleep_ms(100);
    self->at_us = test_now_us();
    syncguard_abort_trigger(self->abort_object);
    return NULL;
}

static void busy_honours_deadline_and_abort(void **state)
{
    const test_dir *dir = *state;
    char line[64];
    syncguard_error err;
    syncguard_grant held;
    syncguard_backend *backend = open_file(dir->file);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "held", 30000, NULL, &held, &err));
    child holder = start_worker("hold", dir->file, NULL);
    assert_non_null(fgets(line, sizeof line, holder.out));
    assert_string_equal(line, "held\n");
    syncguard_call call = test_call(200);
    int64_t begin = test_now_us();
    syncguard_grant grant;
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_acquire(backend, "k", 30000, &call, &grant, &err));
    int64_t took = test_now_us() - begin;
    assert_in_range(took, 190000, 300000);
    assert_string_equal(err.native, "SQLITE_BUSY");
    assert_non_null(strstr(err.message, dir->file));
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_release(backend, held.lock_id, &call, &err));
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_extend(backend, held.lock_id, 1000, &call, NULL, &err));

    /* Readers, and acquires that find the key held, need not wait for a writer. */
    begin = test_now_us();
    bool locked = false;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "held", &call, &locked, &err));
    assert_true(locked);
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(backend, "held", 1000, &call, &grant, &err));
    assert_true(test_now_us() - begin < 100000);
    trigger later = {0};
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&later.abort_object, &err));
    call.timeout_ms = 10000;
    call.abort_object = later.abort_object;
    pthread_t thread = test_start_thread(sqlite_processes_trigger_later, &later);
    assert_status(SYNCGUARD_E_ABORTED, syncguard_acquire(backend, "k", 30000, &call, &grant, &err));
    int64_t end = test_now_us();
    pthread_join(thread, NULL);
    assert_true(end - later.at_us < 100000);
    syncguard_abort_free(later.abort_object);
    assert_int_equal(end_worker(&holder), 0);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    assert_string_equal(grant.fence, "000000000000001");
    assert_status(SYNCGUARD_OK, syncguard_release(backend, held.lock_id, NULL, &err));
    syncguard_close(backend);
}

/* A process that is stopped in the middle of a transaction does not delay others that only open the
 * file. */
static void opening_waits_for_nobody(void **state)
{
    const test_dir *dir = *state;
    char line[64];
    syncguard_error err;
    syncguard_backend *backend = NULL;
    syncguard_grant grant;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    syncguard_sqlite_options own = SYNCGUARD_SQLITE_OPTIONS_INIT;
    own.path = dir->file;
    call.timeout_ms = 200;
    for (int made = 0; made < 2; made++) {
        /* First the file is empty, and the tables cannot be made; then they are there. */
        if (made == 0)
            write_file(dir->file, "", 0);
        child holder = start_worker("hold", dir->file, NULL);
        assert_non_null(fgets(line, sizeof line, holder.out));
        assert_int_equal(kill(holder.pid, SIGSTOP), 0);
        int64_t begin = test_now_us();
        assert_status(SYNCGUARD_OK, syncguard_sqlite_open(&own, NULL, &backend, &err));
        assert_true(test_now_us() - begin < 1000000);
        begin = test_now_us();
        assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                      syncguard_acquire(backend, "k", 30000, &call, &grant, &err));
        assert_in_range(test_now_us() - begin, 190000, 1500000);
        assert_non_null(strstr(err.message, dir->file));
        assert_int_equal(kill(holder.pid, SIGCONT), 0);
        assert_int_equal(end_worker(&holder), 0);
        assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
        syncguard_close(backend);
    }
}

/* A lock on the folder does not delay them either: it delays only the creation of the file. */
static void a_locked_folder_is_waited_for(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    syncguard_grant grant;
    syncguard_call call = test_call(200);
    int folder = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(folder, LOCK_EX), 0);
    syncguard_backend *backend = open_file(dir->file);
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT,
                  syncguard_acquire(backend, "k", 30000, &call, &grant, &err));
    close(folder);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    syncguard_close(backend);
}

/* ---- wake-up ---- */

static void a_release_wakes_another_process(void **state)
{
    const test_dir *dir = *state;
    enum { ROUNDS = 15 };
    int64_t times[ROUNDS];
    syncguard_error err;
    syncguard_grant grant;
    syncguard_backend *backend = open_file(dir->file);
    for (int round = 0; round < ROUNDS; round++) {
        char line[64];
        assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 60000, NULL, &grant, &err));
        child waiter = start_worker("wait", dir->url, "k", NULL);
        assert_non_null(fgets(line, sizeof line, waiter.out));
        assert_string_equal(line, "waiting\n");
        test_sleep_ms(20);
        int64_t released = test_now_us();
        assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
        do {
            assert_non_null(fgets(line, sizeof line, waiter.out));
        } while (strcmp(line, "waiting\n") == 0);
        times[round] = strtoll(line, NULL, 10) - released;
        assert_int_equal(end_worker(&waiter), 0);
    }
    qsort(times, ROUNDS, sizeof times[0], test_compare_int64);
    print_message("hand-over: median %lld us, longest %lld us\n", (long long)times[ROUNDS / 2],
                  (long long)times[ROUNDS - 1]);
    /* Its pauses are 5 s: anything below one says that it was woken. */
    assert_true(times[ROUNDS - 1] < 1000000);
    assert_true(times[ROUNDS / 2] < 50000);
    syncguard_close(backend);
}

/* So many keys that several share a cell of the wake file. */
static void waiters_of_many_keys_are_all_woken(void **state)
{
    const test_dir *dir = *state;
    enum { KEYS = 12 };
    syncguard_error err;
    syncguard_grant grants[KEYS];
    child waiters[KEYS];
    char line[64];
    syncguard_backend *backend = open_file(dir->file);
    for (int i = 0; i < KEYS; i++) {
        char key[16];
        snprintf(key, sizeof key, "key-%d", i);
        assert_status(SYNCGUARD_OK, syncguard_acquire(backend, key, 60000, NULL, &grants[i], &err));
        waiters[i] = start_worker("wait", dir->url, key, NULL);
    }
    for (int i = 0; i < KEYS; i++)
        assert_non_null(fgets(line, sizeof line, waiters[i].out));
    test_sleep_ms(20);
    int64_t begin = test_now_us();
    for (int i = 0; i < KEYS; i++)
        assert_status(SYNCGUARD_OK, syncguard_release(backend, grants[i].lock_id, NULL, &err));
    for (int i = 0; i < KEYS; i++)
        assert_int_equal(end_worker(&waiters[i]), 0);
    assert_true(test_now_us() - begin < 3000000);
    syncguard_close(backend);
}

/* Waiters never poll here, so a missed release would stop one of them for a minute. */
static void no_wake_up_is_lost_in_thousands(void **state)
{
    const test_dir *dir = *state;
    enum { MANY = 4 };
    char file[PATH_BYTES];
    child workers[MANY];
    write_file(beside(dir, "counter", file), "0\n", 2);
    int64_t begin = test_now_us();
    for (int i = 0; i < MANY; i++)
        workers[i] = start_worker("relay", dir->url, "counter", file, "2", "1000", NULL);
    for (int i = 0; i < MANY; i++) {
        char line[400] = "";
        if (fgets(line, sizeof line, workers[i].out) != NULL)
            print_error("%s", line);
        assert_int_equal(end_worker(&workers[i]), 0);
    }
    int64_t took = test_now_us() - begin;
    print_message("8000 hand-overs without polling in %.1f s\n", (double)took / 1e6);
    char log[PATH_BYTES];
    check_log(beside(dir, "counter.log", log), 8000);
    assert_true(took < 55000000);
}

/* ---- fork ---- */

/* 0 if every use in the child is refused and does no harm. */
static int sqlite_processes_use_in_child(const test_dir *dir, syncguard_backend *backend)
{
    syncguard_error err;
    syncguard_grant grant;
    syncguard_sqlite_options own = SYNCGUARD_SQLITE_OPTIONS_INIT;
    bool locked = false;
    if (syncguard_acquire(backend, "new", 1000, NULL, &grant, &err) != SYNCGUARD_E_INVALID_ARGUMENT)
        return 1;
    if (syncguard_is_locked(backend, "k", NULL, &locked, &err) != SYNCGUARD_E_INVALID_ARGUMENT)
        return 2;
    own.path = dir->file;
    syncguard_backend *other = NULL;
    if (syncguard_sqlite_open(&own, NULL, &other, &err) != SYNCGUARD_E_INVALID_ARGUMENT)
        return 3;
    char path[PATH_BYTES];
    own.path = beside(dir, "another.db", path);
    if (syncguard_sqlite_open(&own, NULL, &other, &err) != SYNCGUARD_E_INVALID_ARGUMENT)
        return 4;
    syncguard_close(backend);
    return 0;
}

static void a_forked_child_is_refused(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    syncguard_grant grant;
    syncguard_lock *lock = NULL;
    syncguard_backend *backend = open_file(dir->file);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 60000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(backend, "scope", NULL, &lock, &err));
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(20);
        syncguard_lock_dispose(lock); /* as a scope's end would */
        _exit(sqlite_processes_use_in_child(dir, backend));
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    char line[64];
    /* The parent still has its locks, other processes see them, and its handle remains usable. */
    assert_int_equal(run_worker(line, sizeof line, "try", dir->url, "k", NULL), 1);
    assert_int_equal(run_worker(line, sizeof line, "try", dir->url, "scope", NULL), 1);
    assert_true(syncguard_lock_held(lock));
    syncguard_lock_dispose(lock);
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
}

/* ---- clocks ---- */

/* Whether the key is held, for a worker whose wall clock is off by an offset like "+1h". */
static bool held_at(const test_dir *dir, const char *offset)
{
    char command[2 * PATH_BYTES + 128];
    char line[256] = "";
    /* The address sanitizer wants to be loaded first; here faketime is. */
    snprintf(
        command, sizeof command,
        "export ASAN_OPTIONS=verify_asan_link_order=0; exec '%s/skewed.sh' '%s' '%s' try '%s' k",
        SERVERS_FOLDER, offset, worker_path, dir->url);
    FILE *answer = popen(command, "re");
    assert_non_null(answer);
    (void)!fgets(line, sizeof line, answer);
    (void)pclose(answer);
    bool held = strcmp(line, "locked\n") == 0;
    if (!held && strncmp(line, "0000", 4) != 0)
        fail_msg("at %s: %s", offset, line);
    return held;
}

static void steps_of_the_wall_clock_change_nothing(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    syncguard_grant grant;
    char command[PATH_BYTES];
    snprintf(command, sizeof command,
             "test $(( $('%s/skewed.sh' +1h date +%%s) - $(date +%%s) )) -gt 3000", SERVERS_FOLDER);
    if (system(command) != 0)
        fail_msg("faketime does not work here");
    syncguard_backend *backend = open_file(dir->file);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 60000, NULL, &grant, &err));
    assert_true(held_at(dir, "+1h")); /* not freed */
    assert_true(held_at(dir, "-1h"));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 100, NULL, &grant, &err));
    test_sleep_ms(1300);
    assert_false(held_at(dir, "-1h")); /* not prolonged */
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(backend, "k", 100, NULL, &grant, &err));
    syncguard_close(backend);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, create_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(a_counter_under_one_lock),           TEST(the_wal_starts_anew_under_load),
        TEST(many_create_the_file_at_once),       TEST(killed_in_the_middle_no_fence_is_lost),
        TEST(busy_honours_deadline_and_abort),    TEST(opening_waits_for_nobody),
        TEST(a_locked_folder_is_waited_for),      TEST(a_release_wakes_another_process),
        TEST(waiters_of_many_keys_are_all_woken), TEST(no_wake_up_is_lost_in_thousands),
        TEST(a_forked_child_is_refused),          TEST(steps_of_the_wall_clock_change_nothing),
    };
    if (argc < 2)
        return 64;
    worker_path = argv[1];
    return cmocka_run_group_tests_name("sqlite processes", tests, NULL, NULL);
}
