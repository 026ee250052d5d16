/*
 * Containers of one kernel: processes that see another boot id or another boot
 * clock exclude each other, and one whose clock is unknown is refused. So is a file
 * that a container sees without the files beside it.
 */
#include "support.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BOOT_ID "/proc/sys/kernel/random/boot_id"
#define NOT_PERMITTED 77

static void skip_unless_permitted(int code)
{
    if (code == NOT_PERMITTED) {
        print_message("namespaces are not permitted here\n");
        skip();
    }
}

/* A process with its own view of the machine: the prefix of the worker's arguments. */
typedef struct view {
    const char *name;
    const char *words[3];
} view;

enum { PLAIN, OWN_ID, OTHER_ID, NEW_ID_EACH_TIME, AHEAD, BEHIND, VIEWS };

static char own_id[PATH_BYTES];
static char other_id[PATH_BYTES];
static const view views[VIEWS] = {
    {"the host", {NULL}},
    {"a container with its own boot id", {"over", own_id, BOOT_ID}},
    {"a container with another boot id", {"over", other_id, BOOT_ID}},
    {"a container with a new boot id at each read",
     {"over", "/proc/sys/kernel/random/uuid", BOOT_ID}},
    {"a time namespace that is ahead", {"shift", "100000", NULL}},
    {"a time namespace that is behind", {"shift", "-20", NULL}},
};

static int run_in(const view *from, char *line, size_t size, const char *command, const char *url,
                  const char *ttl)
{
    int code = 0;
    if (from->words[0] == NULL)
        code = run_worker(line, size, command, url, "k", ttl, NULL);
    else if (from->words[2] == NULL)
        code = run_worker(line, size, from->words[0], from->words[1], command, url, "k", ttl, NULL);
    else
        code = run_worker(line, size, from->words[0], from->words[1], from->words[2], command, url,
                          "k", ttl, NULL);
    skip_unless_permitted(code);
    return code;
}

static void make_ids(const test_dir *dir)
{
    write_file(beside(dir, "own", own_id), "11111111-1111-4111-8111-111111111111\n", 37);
    write_file(beside(dir, "other", other_id), "22222222-2222-4222-8222-222222222222\n", 37);
}

/* The holder's process has ended, so only the row is left of it. */
static void every_view_excludes_every_other(void **state)
{
    const test_dir *dir = *state;
    char line[400];
    make_ids(dir);
    for (int holder = 0; holder < VIEWS; holder++) {
        if (run_in(&views[holder], line, sizeof line, "acquire", dir->url, "60000") != 0)
            fail_msg("%s: %s", views[holder].name, line);
        for (int other = 0; other < VIEWS; other++) {
            int code = run_in(&views[other], line, sizeof line, "try", dir->url, "30000");
            if (code != 1)
                fail_msg("%s has it, and so has %s: %s", views[holder].name, views[other].name,
                         line);
        }
        sql(dir->file, "DELETE FROM syncguard_locks", NULL, 0);
    }
}

/* No view sees the lock expire later than the others. */
static void every_view_sees_it_expire(void **state)
{
    const test_dir *dir = *state;
    char line[400];
    make_ids(dir);
    for (int holder = 0; holder < VIEWS; holder++) {
        if (run_in(&views[holder], line, sizeof line, "acquire", dir->url, "1000") != 0)
            fail_msg("%s: %s", views[holder].name, line);
        test_sleep_ms(2100);
        int other = (holder + 1) % VIEWS;
        int code = run_in(&views[other], line, sizeof line, "try", dir->url, "30000");
        if (code != 0)
            fail_msg("expired for %s, not for %s: %s", views[holder].name, views[other].name, line);
        sql(dir->file, "DELETE FROM syncguard_locks", NULL, 0);
    }
}

static bool namespaces_key_is_locked(syncguard_backend *backend)
{
    bool locked = false;
    syncguard_error err;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "k", NULL, &locked, &err));
    return locked;
}

/* A row of a container with its own boot id, after a reboot: the boot clock has begun anew. */
static void the_clock_decides_about_rows_without_a_boot_id(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    syncguard_grant grant;
    syncguard_backend *backend = open_file(dir->file);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 60000, NULL, &grant, &err));
    sql(dir->file, "UPDATE syncguard_locks SET boot_id = ''", NULL, 0);
    assert_true(namespaces_key_is_locked(backend));
    sql(dir->file, "UPDATE syncguard_locks SET boot_set_ms = boot_set_ms + 5000", NULL, 0);
    assert_false(namespaces_key_is_locked(backend));
    sql(dir->file, "UPDATE syncguard_locks SET boot_set_ms = 0", NULL, 0);
    assert_true(namespaces_key_is_locked(backend));
    sql(dir->file, "UPDATE syncguard_locks SET boot_expires_ms = 1", NULL, 0);
    assert_false(namespaces_key_is_locked(backend));
    sql(dir->file, "UPDATE syncguard_locks SET boot_set_ms = 'then'", NULL, 0);
    bool locked = false;
    assert_status(SYNCGUARD_E_INTERNAL, syncguard_is_locked(backend, "k", NULL, &locked, &err));
    syncguard_close(backend);
}

static void a_handle_follows_its_process_into_another_namespace(void **state)
{
    const test_dir *dir = *state;
    static const char *const shifts[] = {"100000", "-20"};
    for (size_t i = 0; i < 2; i++) {
        char line[400];
        child worker = start_worker("enter", shifts[i], dir->url, "k", NULL);
        assert_non_null(fgets(line, sizeof line, worker.out));
        if (fgets(line, sizeof line, worker.out) == NULL)
            line[0] = '\0';
        int code = end_worker(&worker);
        skip_unless_permitted(code);
        if (code != 1)
            fail_msg("by %s s: exit %d, %s", shifts[i], code, line);
        sql(dir->file, "DELETE FROM syncguard_locks", NULL, 0);
    }
}

static void an_unknown_clock_is_refused(void **state)
{
    const test_dir *dir = *state;
    char line[400];
    int code = run_worker(line, sizeof line, "unentered", dir->url, NULL);
    skip_unless_permitted(code);
    assert_int_equal(code, 2);
    if (strncmp(line, "ServiceUnavailable", 18) != 0 || strstr(line, "time namespace") == NULL)
        fail_msg("%s", line);
    /* Neither boot id nor namespaces can be read, and a leak detector cannot work. */
    assert_int_equal(setenv("ASAN_OPTIONS", "detect_leaks=0", 1), 0);
    char empty[PATH_BYTES];
    beside(dir, "empty", empty);
    char command[PATH_BYTES + 16];
    snprintf(command, sizeof command, "mkdir '%s'", empty);
    assert_int_equal(system(command), 0);
    code = run_worker(line, sizeof line, "over", empty, "/proc", "open", dir->url, NULL);
    assert_int_equal(code, 2);
    if (strncmp(line, "ServiceUnavailable", 18) != 0 || strstr(line, "/proc") == NULL)
        fail_msg("%s", line);
}

static void a_clock_that_becomes_unknown_is_refused_for_good(void **state)
{
    const test_dir *dir = *state;
    char line[400] = "";
    child worker = start_worker("stray", "100000", dir->url, "k", NULL);
    while (fgets(line, sizeof line, worker.out) != NULL)
        ;
    int code = end_worker(&worker);
    skip_unless_permitted(code);
    if (code != 3 || strstr(line, "ServiceUnavailable") == NULL)
        fail_msg("exit %d, %s", code, line);
}

/* SQLite looks for the -wal and -shm files beside the path that it was given. */
static void a_file_that_is_mounted_alone_is_refused(void **state)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-wake"};
    const test_dir *dir = *state;
    char line[600], folder[PATH_BYTES];
    char url[PATH_BYTES + 32];
    assert_int_equal(run_worker(line, sizeof line, "acquire", dir->url, "k", "60000", NULL), 0);
    assert_int_equal(mkdir(beside(dir, "app", folder), 0700), 0);
    snprintf(url, sizeof url, "sqlite:%s/locks.db", folder);
    char source[PATH_BYTES + 16];
    char target[PATH_BYTES + 32];
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        snprintf(source, sizeof source, "%s%s", dir->file, suffixes[i]);
        snprintf(target, sizeof target, "%s/locks.db%s", folder, suffixes[i]);
        write_file(target, "", 0);
        int code = run_worker(line, sizeof line, "over", source, target, "try", url, "k", NULL);
        skip_unless_permitted(code);
        if (code != 2 || strncmp(line, "InvalidArgument", 15) != 0 ||
            strstr(line, "mount the folder") == NULL)
            fail_msg("%s: exit %d, %s", target, code, line);
    }
    /* A mount of the folder has all of the files. */
    int code = run_worker(line, sizeof line, "over", dir->path, folder, "try", url, "k", NULL);
    if (code != 1)
        fail_msg("exit %d, %s", code, line);
}

/* Tries k of locks.db in this working folder. */
static void try_in_folder(const char *folder, char *line, size_t size, int *code)
{
    const char *given = worker_path;
    char *program = realpath(given, NULL);
    int before = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_non_null(program);
    assert_int_equal(chdir(folder), 0);
    worker_path = program;
    *code = run_worker(line, size, "try", "sqlite:locks.db", "k", NULL);
    worker_path = given;
    free(program);
    assert_int_equal(fchdir(before), 0);
    close(before);
}

/* The link /proc/PID/root reads as "/", where another file has the same path. */
static void the_root_of_another_process_is_refused(void **state)
{
    const test_dir *dir = *state;
    char line[600], hidden[PATH_BYTES], url[PATH_BYTES + 64];
    assert_int_equal(mkdir(beside(dir, "hidden", hidden), 0700), 0);
    child worker = start_worker("over", "/proc", hidden, "hold", "/dev/null", NULL);
    if (fgets(line, sizeof line, worker.out) == NULL) /* else it says that it runs */
        skip_unless_permitted(end_worker(&worker));
    snprintf(url, sizeof url, "sqlite:/proc/%d/root%s/locks.db", (int)worker.pid, hidden);
    int code = run_worker(line, sizeof line, "try", url, "k", NULL);
    if (code != 2 || strstr(line, "root of another process") == NULL)
        fail_msg("exit %d, %s", code, line);
    /* It is not accepted as the working folder either: getcwd returns a path that is another folder
     * here. */
    snprintf(url, sizeof url, "/proc/%d/root%s", (int)worker.pid, hidden);
    try_in_folder(url, line, sizeof line, &code);
    assert_int_equal(end_worker(&worker), 0);
    if (code != 2 || strstr(line, "root of another process") == NULL)
        fail_msg("exit %d, %s", code, line);
}

/* The working folder is the same one there and here, but the file in it is not. */
static void files_mounted_by_another_process_are_refused(void **state)
{
    const test_dir *dir = *state;
    char line[600], folder[PATH_BYTES], file[PATH_BYTES + 16];
    assert_int_equal(run_worker(line, sizeof line, "acquire", dir->url, "k", "60000", NULL), 0);
    assert_int_equal(mkdir(beside(dir, "app", folder), 0700), 0);
    snprintf(file, sizeof file, "%s/locks.db", folder);
    write_file(file, "", 0);
    child worker = start_worker("over", dir->file, file, "hold", "/dev/null", NULL);
    if (fgets(line, sizeof line, worker.out) == NULL) /* else it says that it runs */
        skip_unless_permitted(end_worker(&worker));
    char url[PATH_BYTES + 64];
    snprintf(url, sizeof url, "/proc/%d/root%s", (int)worker.pid, folder);
    int code = 0;
    try_in_folder(url, line, sizeof line, &code);
    assert_int_equal(end_worker(&worker), 0);
    if (code != 2 || strstr(line, "root of another process") == NULL)
        fail_msg("exit %d, %s", code, line);
}

static void files_of_the_first_layout_are_upgraded(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    syncguard_grant grant;
    syncguard_backend *backend = open_file(dir->file);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 60000, NULL, &grant, &err));
    syncguard_close(backend);
    sql(dir->file, "ALTER TABLE syncguard_locks DROP COLUMN boot_set_ms", NULL, 0);
    sql(dir->file, "PRAGMA user_version=1", NULL, 0);
    sql(dir->file, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, 0);
    backend = open_file(dir->file);
    assert_true(namespaces_key_is_locked(backend));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 60000, NULL, &grant, &err));
    assert_string_equal(grant.fence, "000000000000002");
    syncguard_close(backend);
    char text[64];
    sql(dir->file, "PRAGMA user_version", text, sizeof text);
    assert_string_equal(text, "2");
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, create_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(every_view_excludes_every_other),
        TEST(every_view_sees_it_expire),
        TEST(the_clock_decides_about_rows_without_a_boot_id),
        TEST(a_handle_follows_its_process_into_another_namespace),
        TEST(an_unknown_clock_is_refused),
        TEST(a_clock_that_becomes_unknown_is_refused_for_good),
        TEST(a_file_that_is_mounted_alone_is_refused),
        TEST(the_root_of_another_process_is_refused),
        TEST(files_mounted_by_another_process_are_refused),
        TEST(files_of_the_first_layout_are_upgraded),
    };
    if (argc < 2)
        return 64;
    worker_path = argv[1];
    return cmocka_run_group_tests_name("sqlite namespaces", tests, NULL, NULL);
}
