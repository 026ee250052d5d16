/*
 * The file: where and how it is created, which files are refused, and that a refused file is not
 * changed.
 */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Replaces the kernel's answer, so that a network file system can be tested without a network. */
static long pretended_type;

/* The library's calls of statfs end here. */
int statfs(const char *path, struct statfs *about)
{
    long result = syscall(SYS_statfs, path, about);
    if (result == 0 && pretended_type != 0)
        about->f_type = pretended_type;
    return (int)result;
}

static mode_t mode_of(const char *path)
{
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    return about.st_mode & 07777;
}

static bool sqlite_file_exists(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0;
}

static void use_once(const char *path)
{
    syncguard_backend *backend = open_file(path);
    syncguard_grant grant;
    syncguard_error err;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
}

static void made_private_under_any_umask(void **state)
{
    const test_dir *dir = *state;
    static const mode_t masks[] = {0, 022, 077, 0277};
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        char folder[PATH_BYTES];
        char file[PATH_BYTES + 16];
        char name[32];
        snprintf(name, sizeof name, "new%zu", i);
        beside(dir, name, folder);
        mode_t before = umask(masks[i]);
        snprintf(file, sizeof file, "%s/locks.db", folder);
        use_once(file);
        umask(before);
        assert_int_equal(mode_of(folder), 0700);
        assert_int_equal(mode_of(file), 0600);
        static const char *const suffixes[] = {"-wal", "-shm", "-wake"};
        for (size_t s = 0; s < 3; s++) {
            snprintf(file, sizeof file, "%s/locks.db%s", folder, suffixes[s]);
            assert_int_equal(mode_of(file), 0600);
        }
    }
}

/* A group shares the locks: all files have the mode, whichever user creates them. */
static void shared_with_a_group_under_any_umask(void **state)
{
    const test_dir *dir = *state;
    static const mode_t masks[] = {0, 022, 077, 0277};
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        char folder[PATH_BYTES];
        char file[PATH_BYTES + 16];
        char name[32];
        syncguard_sqlite_options options = SYNCGUARD_SQLITE_OPTIONS_INIT;
        snprintf(name, sizeof name, "new%zu", i);
        snprintf(file, sizeof file, "%s/locks.db", beside(dir, name, folder));
        options.path = file;
        options.mode = 0660;
        mode_t before = umask(masks[i]);
        syncguard_backend *backend = NULL;
        syncguard_error err;
        assert_status(SYNCGUARD_OK, syncguard_sqlite_open(&options, NULL, &backend, &err));
        syncguard_grant grant;
        assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
        syncguard_close(backend);
        umask(before);
        assert_int_equal(mode_of(folder), 02770);
        static const char *const suffixes[] = {"", "-wal", "-shm", "-wake"};
        for (size_t s = 0; s < 4; s++) {
            snprintf(file, sizeof file, "%s/locks.db%s", folder, suffixes[s]);
            assert_int_equal(mode_of(file), 0660);
        }
    }
    syncguard_sqlite_options options = SYNCGUARD_SQLITE_OPTIONS_INIT;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    options.path = dir->file;
    options.mode = 0666;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_sqlite_open(&options, NULL, &backend, &err));
    assert_false(sqlite_file_exists(dir->file));
}

static void chmod_all(const char *file, mode_t mode)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-wake"};
    char name[PATH_BYTES + 16];
    for (size_t i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s%s", file, suffixes[i]);
        assert_int_equal(chmod(name, mode), 0);
    }
}

/* Each file is created for its owner only, and then opened to the group. */
static void users_of_a_group_wait_while_another_creates_the_files(void **state)
{
    const test_dir *dir = *state;
    if (geteuid() != 0) {
        print_message("only root can be two users\n");
        skip();
    }
    use_once(dir->file);
    assert_int_equal(chmod(dir->path, 0755), 0);
    char url[PATH_BYTES + 16];
    snprintf(url, sizeof url, "%s?mode=0660", dir->url);
    chmod_all(dir->file, 0600);
    child other = start_worker("as", "65534", "try", url, "k", NULL);
    test_sleep_ms(200);
    chmod_all(dir->file, 0666); /* the worker has no group in common with us */
    char line[400];
    if (fgets(line, sizeof line, other.out) == NULL)
        line[0] = '\0';
    if (end_worker(&other) != 0)
        fail_msg("%s", line);
}

static void only_the_last_folder_is_made(void **state)
{
    const test_dir *dir = *state;
    char path[PATH_BYTES];
    char missing[PATH_BYTES];
    syncguard_error err;
    beside(dir, "a/b/locks.db", path);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE, try_open(path, &err));
    assert_non_null(strstr(err.message, beside(dir, "a", missing)));
    assert_string_equal(err.native, "ENOENT");
    assert_false(sqlite_file_exists(missing));
}

static void relative_and_odd_names_are_plain_files(void **state)
{
    const test_dir *dir = *state;
    char path[PATH_BYTES];
    char before[PATH_BYTES];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(dir->path), 0);
    static const char *const names[] = {":memory:", "file:x?mode=memory", "a b%c.db", "sub/x.db"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        use_once(names[i]);
        assert_true(sqlite_file_exists(beside(dir, names[i], path)));
    }
    assert_int_equal(chdir(before), 0);
}

static void bad_paths_are_refused(void **state)
{
    const test_dir *dir = *state;
    syncguard_error err;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, try_open(NULL, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, try_open("", &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, try_open(dir->path, &err));
    char path[PATH_BYTES];
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, try_open(beside(dir, "x/", path), &err));
    char longest[1000];
    memset(longest, 'x', sizeof longest);
    longest[0] = '/';
    longest[sizeof longest - 1] = '\0';
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, try_open(longest, &err));
    write_file(beside(dir, "plain", path), "x", 1);
    char other[PATH_BYTES];
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, try_open(beside(dir, "plain/x.db", other), &err));
    assert_int_equal(mkfifo(beside(dir, "fifo", path), 0600), 0);
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, try_open(path, &err));
    assert_non_null(strstr(err.message, path));
    assert_int_equal(symlink("nowhere.db", beside(dir, "dangling", path)), 0);
    assert_int_not_equal(try_open(path, &err), SYNCGUARD_OK);
    assert_false(sqlite_file_exists(beside(dir, "nowhere.db", path)));
}

/* The output of a worker that opens the database on a read-only file system. prepare: shell
 * commands, the last of which makes the file system read-only. */
static void open_read_only(const test_dir *dir, const char *prepare, char *line, size_t size)
{
    char command[5 * PATH_BYTES];
    snprintf(command, sizeof command,
             "mount -t tmpfs %s none '%s' 2>/dev/null || exit 77; %s exec '%s' open '%s'",
             prepare == NULL ? "-o ro" : "", dir->path, prepare == NULL ? "" : prepare, worker_path,
             dir->url);
    char whole[6 * PATH_BYTES];
    snprintf(whole, sizeof whole, "unshare -m sh -c \"%s\" 2>/dev/null", command);
    FILE *answer = popen(whole, "re");
    assert_non_null(answer);
    bool said = fgets(line, (int)size, answer) != NULL;
    (void)pclose(answer);
    if (!said) {
        print_message("mounts are not permitted here\n");
        skip();
    }
}

static void read_only_file_systems_are_named(void **state)
{
    const test_dir *dir = *state;
    char line[600] = "", prepare[2 * PATH_BYTES];
    open_read_only(dir, NULL, line, sizeof line);
    /* Nothing was left there by an earlier file. */
    if (strstr(line, "ServiceUnavailable EROFS") == NULL || strstr(line, "earlier") != NULL ||
        strstr(line, "locks.db: the file cannot be created") == NULL)
        fail_msg("%s", line);
    snprintf(prepare, sizeof prepare, "'%s' open '%s' >/dev/null; mount -o remount,ro '%s';",
             worker_path, dir->url, dir->path);
    open_read_only(dir, prepare, line, sizeof line);
    if (strstr(line, "ServiceUnavailable EROFS") == NULL ||
        strstr(line, "locks.db: cannot be written") == NULL)
        fail_msg("with a database: %s", line);
}

static void only_symbolic_links_are_accepted(void **state)
{
    const test_dir *dir = *state;
    char path[PATH_BYTES];
    syncguard_error err;
    syncguard_grant grant;
    syncguard_backend *backend = open_file(dir->file);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));

    /* A symbolic link is the same store, with the same files beside it. */
    assert_int_equal(symlink(dir->file, beside(dir, "link.db", path)), 0);
    syncguard_backend *other = open_file(path);
    assert_status(SYNCGUARD_LOCKED, syncguard_acquire(other, "k", 30000, NULL, &grant, &err));
    assert_false(sqlite_file_exists(beside(dir, "link.db-wal", path)));
    assert_false(sqlite_file_exists(beside(dir, "link.db-wake", path)));
    syncguard_close(other);
    syncguard_close(backend);

    /* The same file under a second name would have other files beside it. */
    assert_int_equal(link(dir->file, beside(dir, "hard.db", path)), 0);
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, try_open(path, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, try_open(dir->file, &err));
    assert_int_equal(unlink(path), 0);
    char key[64];
    sql(dir->file, "SELECT key FROM syncguard_locks", key, sizeof key);
    assert_string_equal(key, "k");
}

static void network_file_systems_are_refused(void **state)
{
    const test_dir *dir = *state;
    static const long types[] = {0x6969, 0xff534d42, 0xfe534d42, 0x01021997, 0x65735546, 0xc36400};
    syncguard_error err;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        pretended_type = types[i];
        syncguard_status status = try_open(dir->file, &err);
        pretended_type = 0;
        assert_status(SYNCGUARD_E_INVALID_ARGUMENT, status);
        assert_non_null(strstr(err.message, dir->path));
        assert_false(sqlite_file_exists(dir->file));
    }
    use_once(dir->file);
    pretended_type = 0x6969;
    syncguard_status status = try_open(dir->file, &err);
    pretended_type = 0;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, status);
}

/* Opening must fail with a message that names the file, and must change neither the file nor its
 * folder. */
static void sqlite_file_expect_refusal(const test_dir *dir, const char *name,
                                       syncguard_status expected)
{
    char path[PATH_BYTES];
    syncguard_error err;
    beside(dir, name, path);
    uint64_t before = file_sum(path);
    assert_status(expected, try_open(path, &err));
    if (strstr(err.message, path) == NULL)
        fail_msg("the message does not name the file: %s", err.message);
    assert_true(before == file_sum(path));
    static const char *const suffixes[] = {"-wal", "-shm", "-wake", "-journal"};
    char beside_it[PATH_BYTES];
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        char other[64];
        snprintf(other, sizeof other, "%s%s", name, suffixes[i]);
        if (expected == SYNCGUARD_E_INVALID_ARGUMENT &&
            sqlite_file_exists(beside(dir, other, beside_it)))
            fail_msg("%s was made", other);
    }
}

static void foreign_files_are_left_untouched(void **state)
{
    const test_dir *dir = *state;
    char path[PATH_BYTES];
    char bytes[5000];
    memset(bytes, 'x', sizeof bytes);
    write_file(beside(dir, "one-byte", path), "x", 1);
    write_file(beside(dir, "text", path), bytes, 90);
    write_file(beside(dir, "long-text", path), bytes, sizeof bytes);
    sqlite_file_expect_refusal(dir, "one-byte", SYNCGUARD_E_INVALID_ARGUMENT);
    sqlite_file_expect_refusal(dir, "text", SYNCGUARD_E_INVALID_ARGUMENT);
    sqlite_file_expect_refusal(dir, "long-text", SYNCGUARD_E_INVALID_ARGUMENT);

    /* The database of another program, in either journal mode. */
    write_file(beside(dir, "other.db", path), "", 0);
    sql(path, "CREATE TABLE t(x)", NULL, 0);
    sqlite_file_expect_refusal(dir, "other.db", SYNCGUARD_E_INVALID_ARGUMENT);
    write_file(beside(dir, "wal.db", path), "", 0);
    sql(path, "CREATE TABLE t(x)", NULL, 0);
    sql(path, "PRAGMA journal_mode=WAL", NULL, 0);
    sql(path, "INSERT INTO t VALUES(1)", NULL, 0);
    uint64_t before = file_sum(path);
    syncguard_error err;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, try_open(path, &err));
    assert_true(before == file_sum(path));
    char rows[16];
    sql(path, "SELECT count(*) FROM t", rows, sizeof rows);
    assert_string_equal(rows, "1");
}

static void a_newer_layout_is_refused(void **state)
{
    const test_dir *dir = *state;
    use_once(dir->file);
    sql(dir->file, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, 0);
    sql(dir->file, "PRAGMA user_version=99", NULL, 0);
    sql(dir->file, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, 0);
    syncguard_error err;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, try_open(dir->file, &err));
    assert_non_null(strstr(err.message, "99"));
}

static void an_empty_file_becomes_a_store(void **state)
{
    const test_dir *dir = *state;
    write_file(dir->file, "", 0);
    use_once(dir->file);
    char mode[16];
    sql(dir->file, "PRAGMA journal_mode", mode, sizeof mode);
    assert_string_equal(mode, "wal");
}

/* One of our files, damaged in several ways. */
static void damaged_files(void **state)
{
    const test_dir *dir = *state;
    use_once(dir->file);
    sql(dir->file, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, 0);
    FILE *file = fopen(dir->file, "rb");
    assert_non_null(file);
    unsigned char bytes[65536];
    size_t length = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_true(length > 4096);
    char path[PATH_BYTES];
    /* Cut off: noticed when it is opened. */
    write_file(beside(dir, "cut.db", path), bytes, 2048);
    sqlite_file_expect_refusal(dir, "cut.db", SYNCGUARD_E_SERVICE_UNAVAILABLE);
    /* The list of tables is garbage. */
    unsigned char copy[65536];
    memcpy(copy, bytes, length);
    memset(copy + 100, 0xa5, 1900);
    write_file(beside(dir, "schema.db", path), copy, length);
    sqlite_file_expect_refusal(dir, "schema.db", SYNCGUARD_E_SERVICE_UNAVAILABLE);
    /* The tables themselves: noticed by the first operation, nothing granted. */
    memcpy(copy, bytes, length);
    memset(copy + 2048, 0xa5, length - 2048);
    write_file(beside(dir, "tables.db", path), copy, length);
    uint64_t before = file_sum(path);
    syncguard_backend *backend = open_file(path);
    syncguard_grant grant;
    syncguard_error err;
    syncguard_status status = syncguard_acquire(backend, "k", 30000, NULL, &grant, &err);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE, status);
    assert_non_null(strstr(err.message, path));
    assert_string_equal(err.native, "SQLITE_CORRUPT");
    syncguard_close(backend);
    assert_true(before == file_sum(path));
}

/* Without rights: as another user when the tests run as root. */
static void missing_permissions_are_named(void **state)
{
    const test_dir *dir = *state;
    char url[PATH_BYTES];
    bool root = geteuid() == 0;
    use_once(dir->file);
    static const char *const others[] = {"locks.db-wal", "locks.db-shm", "locks.db-wake"};
    for (size_t i = 0; i < 3; i++)
        (void)unlink(beside(dir, others[i], url));
    assert_int_equal(chmod(dir->path, 0555), 0);
    snprintf(url, sizeof url, "sqlite:%s/new.db", dir->path);
    char line[400];
    int code = root ? run_worker(line, sizeof line, "as", "65534", "open", url, NULL)
                    : run_worker(line, sizeof line, "open", url, NULL);
    assert_int_equal(code, 2);
    if (strstr(line, "AuthFailed EACCES") == NULL || strstr(line, "new.db") == NULL)
        fail_msg("folder not writable: %s", line);
    assert_int_equal(root ? chown(dir->file, 65534, 65534) : 0, 0);
    code = root ? run_worker(line, sizeof line, "as", "65534", "open", dir->url, NULL)
                : run_worker(line, sizeof line, "open", dir->url, NULL);
    assert_int_equal(code, 2);
    if (strstr(line, "AuthFailed SQLITE_READONLY") == NULL ||
        strstr(line, "its folder is not writable") == NULL)
        fail_msg("no files beside it: %s", line);
    assert_int_equal(root ? chown(dir->file, 0, 0) : 0, 0);
    assert_int_equal(chmod(dir->file, root ? 0600 : 0000), 0);
    code = root ? run_worker(line, sizeof line, "as", "65534", "open", dir->url, NULL)
                : run_worker(line, sizeof line, "open", dir->url, NULL);
    assert_int_equal(code, 2);
    if (strstr(line, "AuthFailed") == NULL || strstr(line, "locks.db") == NULL)
        fail_msg("file not readable: %s", line);
    assert_int_equal(chmod(dir->file, 0444), 0);
    code = root ? run_worker(line, sizeof line, "as", "65534", "open", dir->url, NULL)
                : run_worker(line, sizeof line, "open", dir->url, NULL);
    assert_int_equal(code, 2);
    if (strstr(line, "AuthFailed") == NULL || strstr(line, "locks.db") == NULL)
        fail_msg("file not writable: %s", line);
}

/* After a failure the store must still have its locks, and remain usable. */
static void assert_intact(const test_dir *dir, const char *held_id)
{
    char text[64];
    sql(dir->file, "PRAGMA integrity_check", text, sizeof text);
    assert_string_equal(text, "ok");
    sql(dir->file, "SELECT lock_id FROM syncguard_locks WHERE key='held'", text, sizeof text);
    assert_string_equal(text, held_id);
    use_once(dir->file);
    syncguard_backend *backend = open_file(dir->file);
    syncguard_error err;
    assert_status(SYNCGUARD_OK, syncguard_release(backend, held_id, NULL, &err));
    syncguard_close(backend);
}

static void sqlite_file_hold(const char *file, char id[SYNCGUARD_LOCK_ID_SIZE])
{
    syncguard_grant grant;
    syncguard_error err;
    syncguard_backend *backend = open_file(file);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "held", 600000, NULL, &grant, &err));
    memcpy(id, grant.lock_id, SYNCGUARD_LOCK_ID_SIZE);
    syncguard_close(backend);
}

static void a_limit_on_file_size_loses_nothing(void **state)
{
    const test_dir *dir = *state;
    char id[SYNCGUARD_LOCK_ID_SIZE];
    char line[400];
    sqlite_file_hold(dir->file, id);
    /* The WAL cannot grow beyond its current size. */
    int code = run_worker(line, sizeof line, "limit", "40000", "grants", dir->url, "20", NULL);
    assert_int_equal(code, 0);
    child worker = start_worker("limit", "40000", "grants", dir->url, "20", NULL);
    bool failed = false;
    while (fgets(line, sizeof line, worker.out) != NULL) {
        if (strstr(line, "granted") == NULL) {
            failed = true;
            if (strstr(line, "ServiceUnavailable SQLITE_") == NULL ||
                strstr(line, "locks.db") == NULL)
                fail_msg("%s", line);
        }
    }
    (void)end_worker(&worker);
    assert_true(failed);
    assert_intact(dir, id);
}

static void a_full_disk_loses_nothing(void **state)
{
    const test_dir *dir = *state;
    char folder[PATH_BYTES];
    beside(dir, "small", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    if (mount("tmpfs", folder, "tmpfs", 0, "size=256k") != 0) {
        /* Only root may; the limit on file sizes above takes the same path. */
        print_message("no tmpfs of our own (errno %d): covered by the limit on file size\n", errno);
        return;
    }
    test_dir small = {0};
    snprintf(small.file, sizeof small.file, "%.300s/locks.db", folder);
    char id[SYNCGUARD_LOCK_ID_SIZE];
    sqlite_file_hold(small.file, id);
    char filler[PATH_BYTES];
    snprintf(filler, sizeof filler, "%.300s/filler", folder);
    int fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    char block[4096];
    memset(block, 'f', sizeof block);
    while (write(fd, block, sizeof block) > 0)
        continue;
    close(fd);
    syncguard_backend *backend = open_file(small.file);
    syncguard_status status = SYNCGUARD_OK;
    syncguard_error err;
    syncguard_grant grant;
    /* The WAL is emptied when it finds no room, so only new keys come to an end. */
    for (int i = 0; i < 5000 && status == SYNCGUARD_OK; i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%d", i);
        status = syncguard_acquire(backend, key, 30000, NULL, &grant, &err);
    }
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE, status);
    assert_non_null(strstr(err.message, "locks.db"));
    /* A new store has no room either, and says so. */
    char fresh[PATH_BYTES];
    snprintf(fresh, sizeof fresh, "%.300s/new.db", folder);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE, try_open(fresh, &err));
    assert_int_equal(unlink(filler), 0);
    /* The same handle remains usable. */
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
    use_once(fresh);
    assert_intact(&small, id);
    assert_int_equal(umount(folder), 0);
}

/* The WAL must not fill a file system, however small it is. */
static void a_tiny_file_system_stays_usable(void **state)
{
    const test_dir *dir = *state;
    static const char *const sizes[] = {"size=100k", "size=200k", "size=400k"};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char folder[PATH_BYTES];
        char file[PATH_BYTES + 16];
        beside(dir, sizes[i], folder);
        snprintf(file, sizeof file, "%s/locks.db", folder);
        assert_int_equal(mkdir(folder, 0700), 0);
        if (mount("tmpfs", folder, "tmpfs", 0, sizes[i]) != 0) {
            print_message("no tmpfs of our own (errno %d)\n", errno);
            skip();
        }
        for (int round = 0; round < 20; round++) {
            syncguard_error err;
            syncguard_grant grant;
            syncguard_backend *backend = open_file(file);
            for (int pair = 0; pair < 50; pair++) {
                assert_status(SYNCGUARD_OK,
                              syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
                assert_status(SYNCGUARD_OK,
                              syncguard_extend(backend, grant.lock_id, 30000, NULL, NULL, &err));
                assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
            }
            syncguard_close(backend);
        }
        struct statfs about;
        assert_int_equal(statfs(folder, &about), 0);
        print_message("%s: %llu kB left\n", sizes[i],
                      (unsigned long long)about.f_bavail * (unsigned long long)about.f_bsize /
                          1024);
        assert_int_equal(umount(folder), 0);
    }
}

/* However few descriptors are left: an acquire succeeds or leaves no lock behind. */
static void no_descriptor_left_leaves_no_lock(void **state)
{
    const test_dir *dir = *state;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (rlim_t spare = 0; spare < 6; spare++) {
        struct rlimit less = limit;
        syncguard_backend *backend = open_file(dir->file);
        int lowest = dup(STDERR_FILENO);
        assert_true(lowest > 0);
        close(lowest);
        less.rlim_cur = (rlim_t)lowest + spare;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &less), 0);
        syncguard_grant grant;
        syncguard_error err;
        syncguard_status status = syncguard_acquire(backend, "k", 30000, NULL, &grant, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        if (status == SYNCGUARD_OK)
            status = syncguard_release(backend, grant.lock_id, NULL, &err);
        else
            assert_status(SYNCGUARD_E_RATE_LIMITED, status);
        bool locked = true;
        assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "k", NULL, &locked, &err));
        if (locked)
            fail_msg("%d to spare: a lock was left behind (%s)", (int)spare, err.message);
        syncguard_close(backend);
    }
}

static void url_options(void **state)
{
    const test_dir *dir = *state;
    char url[PATH_BYTES + 32];
    static const char *const bad[] = {
        "?durability=none", "?durability=", "?sync=1",   "?durability=full&durability=full",
        "?timeout_ms=0",    "?mode=0666",   "?mode=660", "?mode="};
    static const char *const good[] = {"?durability=normal", "?durability=full&timeout_ms=100",
                                       "?cleanup=true", "?mode=0600", "?mode=0660"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[400];
        snprintf(url, sizeof url, "%s%s", dir->url, bad[i]);
        assert_int_equal(run_worker(line, sizeof line, "open", url, NULL), 2);
        if (strncmp(line, "InvalidArgument", 15) != 0)
            fail_msg("%s: %s", bad[i], line);
        assert_false(sqlite_file_exists(dir->file));
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char line[400];
        snprintf(url, sizeof url, "%s%s", dir->url, good[i]);
        assert_int_equal(run_worker(line, sizeof line, "open", url, NULL), 0);
    }
    char line[400];
    assert_int_equal(run_worker(line, sizeof line, "open", "sqlite://host/x.db", NULL), 2);
    assert_int_equal(run_worker(line, sizeof line, "open", "sqlite:", NULL), 2);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, create_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(made_private_under_any_umask),
        TEST(shared_with_a_group_under_any_umask),
        TEST(users_of_a_group_wait_while_another_creates_the_files),
        TEST(only_the_last_folder_is_made),
        TEST(relative_and_odd_names_are_plain_files),
        TEST(bad_paths_are_refused),
        TEST(read_only_file_systems_are_named),
        TEST(only_symbolic_links_are_accepted),
        TEST(network_file_systems_are_refused),
        TEST(foreign_files_are_left_untouched),
        TEST(a_newer_layout_is_refused),
        TEST(an_empty_file_becomes_a_store),
        TEST(damaged_files),
        TEST(missing_permissions_are_named),
        TEST(a_limit_on_file_size_loses_nothing),
        TEST(a_full_disk_loses_nothing),
        TEST(a_tiny_file_system_stays_usable),
        TEST(no_descriptor_left_leaves_no_lock),
        TEST(url_options),
    };
    if (argc < 2)
        return 64;
    worker_path = argv[1];
    return cmocka_run_group_tests_name("sqlite file", tests, NULL, NULL);
}
