/*
 * Folders and files by which other users could make us write elsewhere are refused, and their
 * targets stay unchanged, owner included. Runs as root, with the user nobody as the other user.
 */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOBODY 65534

static void need_root(void)
{
    if (geteuid() != 0) {
        print_message("only root can be two users\n");
        skip();
    }
}

static void trust_expect_refusal(const char *path, const char *reason)
{
    syncguard_error err;
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT, try_open(path, &err));
    if (strstr(err.message, reason) == NULL)
        fail_msg("%s: %s", path, err.message);
}

static void trust_store_use(const char *path)
{
    syncguard_error err;
    syncguard_grant grant;
    syncguard_backend *backend = open_file(path);
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "k", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
}

/* A file of root's that another user would like to have overwritten. */
static void make_victim(const char *path)
{
    write_file(path, "precious\n", 9);
}

static void assert_untouched(const char *path, uint64_t sum)
{
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_uid, 0);
    assert_int_equal(about.st_size, 9);
    assert_true(file_sum(path) == sum);
}

static const char *const suffixes[] = {"-wal", "-shm", "-wake", "-journal"};

static void planted_links_are_refused(void **state)
{
    const test_dir *dir = *state;
    char victim[PATH_BYTES];
    char planted[PATH_BYTES + 16];
    need_root();
    make_victim(beside(dir, "victim", victim));
    uint64_t sum = file_sum(victim);
    for (int made = 0; made < 2; made++) {
        if (made != 0)
            trust_store_use(dir->file);
        for (size_t i = 0; i < 4; i++) {
            snprintf(planted, sizeof planted, "%s%s", dir->file, suffixes[i]);
            (void)unlink(planted);
            if (made == 0) /* otherwise the file would be removed as a leftover */
                write_file(dir->file, "", 0);
            assert_int_equal(link(victim, planted), 0);
            trust_expect_refusal(dir->file, planted);
            assert_untouched(victim, sum);
            assert_int_equal(unlink(planted), 0);
            assert_int_equal(symlink(victim, planted), 0);
            trust_expect_refusal(dir->file, planted);
            assert_untouched(victim, sum);
            assert_int_equal(unlink(planted), 0);
        }
        trust_store_use(dir->file);
        (void)unlink(dir->file);
    }
    /* Names without a database are leftovers: they are removed, not written to. */
    for (size_t i = 0; i < 4; i++) {
        snprintf(planted, sizeof planted, "%s%s", dir->file, suffixes[i]);
        (void)unlink(planted);
        assert_int_equal(link(victim, planted), 0);
    }
    trust_store_use(dir->file);
    assert_untouched(victim, sum);
}

static void root_stays_out_of_the_folders_of_others(void **state)
{
    const test_dir *dir = *state;
    char folder[PATH_BYTES];
    char victim[PATH_BYTES];
    need_root();
    make_victim(beside(dir, "victim", victim));
    uint64_t sum = file_sum(victim);
    assert_int_equal(mkdir(beside(dir, "theirs", folder), 0700), 0);
    char file[PATH_BYTES + 32];
    snprintf(file, sizeof file, "%s/locks.db", folder);
    trust_store_use(file);
    assert_int_equal(chown(folder, NOBODY, NOBODY), 0);
    trust_expect_refusal(file, "another user");
    char planted[PATH_BYTES + 48];
    for (size_t i = 0; i < 4; i++) {
        snprintf(planted, sizeof planted, "%s%s", file, suffixes[i]);
        (void)unlink(planted);
        assert_int_equal(link(victim, planted), 0);
    }
    trust_expect_refusal(file, "another user");
    assert_untouched(victim, sum);
    /* A folder below such a folder is refused, too: its owner can put another folder in the place
     * of ours. */
    snprintf(planted, sizeof planted, "%s/below", folder);
    assert_int_equal(mkdir(planted, 0700), 0);
    snprintf(file, sizeof file, "%s/below/locks.db", folder);
    trust_expect_refusal(file, "another user");
}

/* If set, this folder takes the place of the next one that is created. */
static const char *swapped_in;
/* If set, the user nobody creates this folder just before us. */
static const char *preempted;

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
    if (preempted != NULL && strcmp(path, preempted) == 0) {
        preempted = NULL;
        assert_int_equal(__real_mkdir(path, 0755), 0);
        assert_int_equal(chown(path, NOBODY, NOBODY), 0);
    }
    int result = __real_mkdir(path, mode);
    if (swapped_in != NULL) {
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(rename(swapped_in, path), 0);
        swapped_in = NULL;
    }
    return result;
}

/* Its content would become readable for a group. */
static void only_a_folder_of_ours_that_is_new_is_shared(void **state)
{
    const test_dir *dir = *state;
    char diary[PATH_BYTES], folder[PATH_BYTES], file[PATH_BYTES + 16];
    syncguard_sqlite_options options = SYNCGUARD_SQLITE_OPTIONS_INIT;
    assert_int_equal(mkdir(beside(dir, "diary", diary), 0700), 0);
    snprintf(file, sizeof file, "%s/locks.db", beside(dir, "new", folder));
    options.path = file;
    options.mode = 0660;
    swapped_in = diary;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    if (syncguard_sqlite_open(&options, NULL, &backend, &err) == SYNCGUARD_OK)
        syncguard_close(backend);
    assert_null(swapped_in);
    struct stat about;
    assert_int_equal(stat(folder, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0700);
}

static void trust_link_make(const char *target, const char *path, uid_t owner)
{
    (void)unlink(path);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(lchown(path, owner, owner), 0);
}

/* If such a link were changed, there would be two sets of files, and two holders. */
static void links_of_others_are_not_followed(void **state)
{
    const test_dir *dir = *state;
    char own[PATH_BYTES];
    need_root();
    assert_int_equal(chmod(dir->path, 0755), 0);
    assert_int_equal(mkdir(beside(dir, "own", own), 0700), 0);
    char theirs[PATH_BYTES];
    /* A link in a folder of another user, whoever owns the link. */
    assert_int_equal(mkdir(beside(dir, "theirs", theirs), 0755), 0);
    assert_int_equal(chown(theirs, NOBODY, NOBODY), 0);
    char link[PATH_BYTES + 16];
    snprintf(link, sizeof link, "%s/ln", theirs);
    char file[PATH_BYTES + 48];
    snprintf(file, sizeof file, "%s/locks.db", link);
    trust_link_make(own, link, NOBODY);
    trust_expect_refusal(file, "another user");
    trust_link_make(own, link, 0);
    trust_expect_refusal(file, "another user");
    snprintf(file, sizeof file, "%s/missing/locks.db", link);
    trust_expect_refusal(file, "another user");
    snprintf(file, sizeof file, "%s/../own/locks.db", theirs);
    trust_expect_refusal(file, "another user");
    char open[PATH_BYTES];
    /* A link in a folder like /tmp, for root and for all other users. */
    assert_int_equal(mkdir(beside(dir, "open", open), 0700), 0);
    assert_int_equal(chmod(open, 01777), 0);
    snprintf(link, sizeof link, "%s/ln", open);
    snprintf(file, sizeof file, "%s/locks.db", link);
    trust_link_make(own, link, NOBODY);
    trust_expect_refusal(file, "a link of another user");
    trust_link_make(own, link, 0);
    trust_store_use(file);
    assert_int_equal(chown(own, 65533, 65533), 0);
    char url[PATH_BYTES + 64];
    snprintf(url, sizeof url, "sqlite:%s/ln/theirs.db", open);
    char line[600];
    assert_int_equal(run_worker(line, sizeof line, "as", "65533", "try", url, "k", NULL), 0);
    trust_link_make(own, link, NOBODY);
    assert_int_equal(run_worker(line, sizeof line, "as", "65533", "try", url, "k", NULL), 2);
    if (strstr(line, "InvalidArgument") == NULL || strstr(line, "a link of another user") == NULL)
        fail_msg("%s", line);
    /* A link of one's own, relative, to the file itself. */
    trust_link_make("../own/theirs.db", link, 65533);
    snprintf(url, sizeof url, "sqlite:%s/./ln", open);
    assert_int_equal(run_worker(line, sizeof line, "as", "65533", "try", url, "k", NULL), 1);
}

/* If set, a link of the user nobody to relinked_to takes the place of this folder after it was
 * inspected for the first time. */
static const char *relinked;
static char relinked_to[PATH_BYTES];

/* If set, the user nobody creates this file after it was found missing for the first time: a
 * journal that would empty the database. */
static const char *slipped_in;

static void slip_in(const char *path)
{
    static const unsigned char journal[512] = {0xd9, 0xd5, 0x05, 0xf9,     0x20,
                                               0xa1, 0x63, 0xd7, [22] = 2, [26] = 8};
    write_file(path, journal, sizeof journal);
    assert_int_equal(chown(path, NOBODY, NOBODY), 0);
}

int __real_lstat(const char *path, struct stat *about);
int __wrap_lstat(const char *path, struct stat *about);
int __wrap_lstat(const char *path, struct stat *about)
{
    int result = __real_lstat(path, about);
    if (result == 0 && relinked != NULL && strcmp(path, relinked) == 0) {
        relinked = NULL;
        assert_int_equal(rmdir(path), 0);
        trust_link_make(relinked_to, path, NOBODY);
    }
    if (result != 0 && slipped_in != NULL && strcmp(path, slipped_in) == 0) {
        slipped_in = NULL;
        slip_in(path);
        errno = ENOENT;
    }
    return result;
}

/* A link is not followed either if it takes the place of a folder that was inspected or could not
 * be created. In a folder like /tmp, any user can do that with a folder of their own. */
static void folders_that_become_links_are_not_followed(void **state)
{
    const test_dir *dir = *state;
    char own[PATH_BYTES];
    need_root();
    assert_int_equal(chmod(dir->path, 0755), 0);
    assert_int_equal(mkdir(beside(dir, "own", own), 0700), 0);
    char open[PATH_BYTES];
    assert_int_equal(mkdir(beside(dir, "open", open), 0700), 0);
    assert_int_equal(chmod(open, 01777), 0);
    char folder[PATH_BYTES + 16];
    snprintf(folder, sizeof folder, "%s/theirs", open);
    char file[PATH_BYTES + 32];
    snprintf(file, sizeof file, "%s/locks.db", folder);
    snprintf(relinked_to, sizeof relinked_to, "%s", own);
    for (int made = 0; made < 2; made++) {
        (void)unlink(folder);
        if (made != 0) {
            assert_int_equal(mkdir(folder, 0755), 0);
            assert_int_equal(chown(folder, NOBODY, NOBODY), 0);
        } else {
            preempted = folder;
        }
        relinked = folder;
        trust_expect_refusal(file, folder);
        assert_null(relinked);
        assert_int_equal(rmdir(own), 0); /* empty */
        assert_int_equal(mkdir(own, 0700), 0);
    }
}

static void assert_ours(const char *file)
{
    char name[PATH_BYTES + 48];
    struct stat about;
    for (size_t i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s%s", file, suffixes[i]);
        if (stat(name, &about) == 0 && about.st_uid != 0)
            fail_msg("%s: not ours", name);
    }
}

/* In a folder like /tmp, another user can create a file after our check and before SQLite opens
 * it. */
static void files_that_appear_after_the_check_are_not_used(void **state)
{
    const test_dir *dir = *state;
    char open[PATH_BYTES];
    need_root();
    assert_int_equal(chmod(dir->path, 0755), 0);
    assert_int_equal(mkdir(beside(dir, "open", open), 0700), 0);
    assert_int_equal(chmod(open, 01777), 0);
    char file[PATH_BYTES + 16];
    snprintf(file, sizeof file, "%s/locks.db", open);
    trust_store_use(file);
    trust_store_use(file);
    assert_ours(file);
    char name[PATH_BYTES + 32];
    for (size_t i = 0; i < 4; i++) {
        sql(file, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, 0);
        snprintf(name, sizeof name, "%s%s", file, suffixes[i]);
        assert_int_equal(unlink(name), 0);
        slipped_in = name;
        trust_store_use(file);
        slipped_in = NULL;
        assert_ours(file);
    }
    char fences[64];
    sql(file, "SELECT fence FROM syncguard_fence_counters", fences, sizeof fences);
    assert_string_equal(fences, "6");
    /* Files that appear while the database is created are not used either. */
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(unlink(file), 0);
        snprintf(name, sizeof name, "%s%s", file, suffixes[i]);
        slipped_in = name;
        trust_store_use(file);
        slipped_in = NULL;
        trust_store_use(file);
        assert_ours(file);
    }
}

static void root_uses_only_files_of_its_own(void **state)
{
    const test_dir *dir = *state;
    char name[PATH_BYTES + 16];
    need_root();
    trust_store_use(dir->file);
    for (size_t i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s%s", dir->file, i == 3 ? "" : suffixes[i]);
        assert_int_equal(chown(name, NOBODY, (gid_t)-1), 0);
        trust_expect_refusal(dir->file, name);
        struct stat about;
        assert_int_equal(stat(name, &about), 0);
        assert_int_equal(about.st_uid, NOBODY);
        assert_int_equal(chown(name, 0, (gid_t)-1), 0);
    }
    trust_store_use(dir->file);
}

static void folders_that_everybody_may_write_to(void **state)
{
    const test_dir *dir = *state;
    char folder[PATH_BYTES];
    char file[PATH_BYTES + 16];
    char url[PATH_BYTES + 32];
    assert_int_equal(mkdir(beside(dir, "open", folder), 0700), 0);
    snprintf(file, sizeof file, "%s/locks.db", folder);
    snprintf(url, sizeof url, "sqlite:%s", file);
    assert_int_equal(chmod(folder, 0777), 0);
    trust_expect_refusal(file, "everybody may write");
    assert_int_equal(chmod(folder, 01777), 0);
    trust_store_use(file);
    if (geteuid() != 0)
        return;
    /* A file of another user is refused, even where it is writable. */
    assert_int_equal(chmod(dir->path, 0755), 0);
    assert_int_equal(chmod(file, 0666), 0);
    char line[400];
    assert_int_equal(run_worker(line, sizeof line, "as", "65534", "open", url, NULL), 2);
    if (strstr(line, "InvalidArgument") == NULL || strstr(line, "another user") == NULL)
        fail_msg("%s", line);
    snprintf(url, sizeof url, "sqlite:%s/theirs.db", folder);
    assert_int_equal(run_worker(line, sizeof line, "as", "65534", "try", url, "k", NULL), 0);
    snprintf(file, sizeof file, "%s/theirs.db", folder);
    trust_expect_refusal(file, "another user");
    /* A group may share a folder, but not with root. */
    assert_int_equal(chown(folder, 0, NOBODY), 0);
    assert_int_equal(chmod(folder, 0770), 0);
    snprintf(url, sizeof url, "sqlite:%s/theirs.db", folder);
    assert_int_equal(run_worker(line, sizeof line, "as", "65534", "try", url, "other", NULL), 0);
    trust_expect_refusal(file, "others may write");
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, create_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(only_a_folder_of_ours_that_is_new_is_shared),
        TEST(planted_links_are_refused),
        TEST(root_stays_out_of_the_folders_of_others),
        TEST(links_of_others_are_not_followed),
        TEST(folders_that_become_links_are_not_followed),
        TEST(files_that_appear_after_the_check_are_not_used),
        TEST(root_uses_only_files_of_its_own),
        TEST(folders_that_everybody_may_write_to),
    };
    if (argc < 2)
        return 64;
    worker_path = argv[1];
    return cmocka_run_group_tests_name("sqlite trust", tests, NULL, NULL);
}
