/* A forked child: lock handles stay the parent's, backend handles become the child's own. */
#include "contract.h"

#include <sys/stat.h>
#include <sys/wait.h>
#ifdef __linux__
#include <sys/eventfd.h>
#endif

/* Runs fn in a forked child that does not exec; returns what fn returned. */
static int fork_run_in_child(int (*fn)(void *), void *context)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(20); /* a child that hangs must not hang the suite */
        _exit(fn(context));
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status))
        fail_msg("the child ended by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

static int leave_scope(void *context)
{
    SYNCGUARD_SCOPED syncguard_lock *lock = context;
    return syncguard_lock_held(lock) ? 1 : 0;
}

static int fork_use_inherited_lock(void *context)
{
    syncguard_lock *lock = context;
    if (syncguard_lock_held(lock) || syncguard_lock_remaining_ms(lock) != 0)
        return 1;
    if (syncguard_lock_lost(lock) != SYNCGUARD_LOST_FORKED)
        return 2;
    if (syncguard_lock_release(lock, NULL, NULL) == SYNCGUARD_OK)
        return 3;
    if (syncguard_lock_extend(lock, 90000, NULL, NULL, NULL) == SYNCGUARD_OK)
        return 4;
    syncguard_lock_dispose(lock);
    return 0;
}

static int fork_use_inherited_set(void *context)
{
    syncguard_lock_set *set = context;
    if (syncguard_lock_set_held(set) || syncguard_lock_set_remaining_ms(set) != 0)
        return 1;
    if (syncguard_lock_set_lost(set) != SYNCGUARD_LOST_FORKED)
        return 2;
    if (syncguard_lock_set_release(set, NULL, NULL) == SYNCGUARD_OK)
        return 3;
    if (syncguard_lock_set_extend(set, 90000, NULL, NULL) == SYNCGUARD_OK)
        return 4;
    syncguard_lock_set_dispose(set);
    return 0;
}

static void child_does_not_release_its_parents_set(void **state)
{
    key first = fresh_key("fork-set"), second = fresh_key("fork-set");
    const char *const names[] = {first.text, second.text};
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.auto_extend = true;
    syncguard_lock_set *set = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire_all(store, names, 2, &options, &set, &err));
    assert_int_equal(fork_run_in_child(fork_use_inherited_set, set), 0);
    assert_true(syncguard_lock_set_held(set));
    check_locked(first.text, true);
    check_locked(second.text, true);
    assert_status(SYNCGUARD_OK, syncguard_lock_set_release(set, NULL, &err));
    syncguard_lock_set_dispose(set);
}

static void child_does_not_release_its_parents_lock(void **state)
{
    key name = fresh_key("fork-scope");
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;
    bool owned = false;
    for (int renewed = 0; renewed < 2; renewed++) {
        options.auto_extend = renewed == 1;
        assert_status(SYNCGUARD_OK,
                      syncguard_lock_acquire(store, name.text, &options, &lock, &err));
        int64_t expires = syncguard_lock_expires_at_ms(lock);
        assert_int_equal(fork_run_in_child(leave_scope, lock), 0);
        assert_int_equal(fork_run_in_child(fork_use_inherited_lock, lock), 0);
        assert_true(syncguard_lock_held(lock));
        assert_int_equal(syncguard_lock_lost(lock), SYNCGUARD_LOST_NO);
        assert_true(syncguard_lock_expires_at_ms(lock) == expires);
        assert_status(SYNCGUARD_OK,
                      syncguard_owns(store, syncguard_lock_id(lock), NULL, &owned, &err));
        assert_true(owned);
        assert_status(SYNCGUARD_OK, syncguard_lock_release(lock, NULL, &err));
        syncguard_lock_dispose(lock);
    }
    check_locked(name.text, false);
}

static int close_inherited(void *context)
{
    syncguard_close(context);
    return 0;
}

static void closing_in_a_child_leaves_the_parent_alone(void **state)
{
    key name = fresh_key("fork-close");
    syncguard_backend *backend = open_store(NULL);
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, name.text, 30000, NULL, &grant, &err));
    assert_int_equal(fork_run_in_child(close_inherited, backend), 0);
    assert_status(SYNCGUARD_OK, syncguard_extend(backend, grant.lock_id, 30000, NULL, NULL, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
    syncguard_close(backend);
}

typedef struct family {
    key held; /* by the parent */
    key own;
    int answers[2]; /* a pipe for the ids that the child draws */
} family;

#define CHILD_IDS 20
#define CHILD_REFUSED 77

/* In the child the handle works as a new one does, or is refused (SQLite). */
static int use_backend(void *context)
{
    family *all = context;
    syncguard_grant grant;
    syncguard_error mine;
    syncguard_status status = syncguard_acquire(store, all->held.text, 1000, NULL, &grant, &mine);
    if (status == SYNCGUARD_E_INVALID_ARGUMENT)
        return CHILD_REFUSED;
    /* The memory backend starts empty, every other store knows the parent's lock. */
    if (status != (store_is_shared() ? SYNCGUARD_LOCKED : SYNCGUARD_OK))
        return 1;
    for (int i = 0; i < CHILD_IDS; i++) {
        if (syncguard_acquire(store, all->own.text, 5000, NULL, &grant, &mine) != SYNCGUARD_OK)
            return 2;
        if (write(all->answers[1], grant.lock_id, sizeof grant.lock_id) !=
            (ssize_t)sizeof grant.lock_id)
            return 3;
        if (syncguard_release(store, grant.lock_id, NULL, &mine) != SYNCGUARD_OK)
            return 4;
    }
    syncguard_close(store);
    return 0;
}

static void child_makes_the_handle_its_own(void **state)
{
    family all = {.held = fresh_key("fork-held"), .own = fresh_key("fork-own")};
    syncguard_grant held = take(all.held.text, 30000);
    (void)state;
    assert_int_equal(pipe(all.answers), 0);
    int outcome = fork_run_in_child(use_backend, &all);
    assert_int_equal(outcome, able()->works_in_child ? 0 : CHILD_REFUSED);
    syncguard_grant grant;
    char ids[2 * CHILD_IDS][SYNCGUARD_LOCK_ID_SIZE];
    if (outcome == 0) {
        for (int i = 0; i < CHILD_IDS; i++) {
            assert_int_equal(read(all.answers[0], ids[i], sizeof ids[i]), sizeof ids[i]);
            grant = take(all.own.text, 5000);
            memcpy(ids[CHILD_IDS + i], grant.lock_id, sizeof ids[0]);
            give_back(&grant);
        }
        for (int i = 0; i < 2 * CHILD_IDS; i++) {
            for (int j = 0; j < i; j++)
                assert_string_not_equal(ids[i], ids[j]);
        }
    }
    close(all.answers[0]);
    close(all.answers[1]);
    bool owned = false;
    /* The parent's handle works, whatever the child did. */
    assert_status(SYNCGUARD_OK, syncguard_owns(store, held.lock_id, NULL, &owned, &err));
    assert_true(owned);
    give_back(&held);
}

static int trigger_in_child(void *context)
{
    syncguard_abort_trigger(context);
    return syncguard_abort_triggered(context) ? 0 : 1;
}

static void abort_in_a_child_does_not_reach_the_parent(void **state)
{
    key name = fresh_key("fork-abort");
    (void)state;
    syncguard_abort *abort_object = NULL;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&abort_object, &err));
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = abort_object;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, name.text, 30000, &call, &grant, &err));
    assert_int_equal(fork_run_in_child(trigger_in_child, abort_object), 0);
    assert_false(syncguard_abort_triggered(abort_object));
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, &call, &err));
    syncguard_abort_free(abort_object);
}

typedef struct waiting_parent {
    syncguard_backend *backend;
    key name;
    syncguard_status status;
    syncguard_lock *lock;
} waiting_parent;

static void *wait_in_parent(void *context)
{
    waiting_parent *all = context;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 10000;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    syncguard_error mine;
    all->status = syncguard_lock_acquire(all->backend, all->name.text, &options, &all->lock, &mine);
    return NULL;
}

/* A fork while a thread of the parent waits, and a renewal runs, must harm neither. */
static void fork_in_the_middle_of_waiting(void **state)
{
    waiting_parent all = {.backend = store, .name = fresh_key("fork-wait")};
    family child = {.held = fresh_key("fork-mid"), .own = fresh_key("fork-mid-own")};
    syncguard_grant holder = take(all.name.text, 30000), held = take(child.held.text, 30000);
    pthread_t thread = test_start_thread(wait_in_parent, &all);
    (void)state;
    test_sleep_ms(100);
    assert_int_equal(pipe(child.answers), 0);
    assert_int_equal(fork_run_in_child(use_backend, &child),
                     able()->works_in_child ? 0 : CHILD_REFUSED);
    close(child.answers[0]);
    close(child.answers[1]);
    give_back(&holder);
    pthread_join(thread, NULL);
    assert_int_equal(all.status, SYNCGUARD_OK);
    syncguard_lock_dispose(all.lock);
    give_back(&held);
}

/* Before the child has adopted the handle, and before a handle of the parent answers ABSENT. */
static int refuse_in_child(void *context)
{
    syncguard_call bad = test_call(-1);
    syncguard_error mine;
    if (syncguard_lock_release(context, &bad, &mine) != SYNCGUARD_E_INVALID_ARGUMENT ||
        syncguard_lock_extend(context, 0, NULL, NULL, &mine) != SYNCGUARD_E_INVALID_ARGUMENT)
        return 1;
    syncguard_grant grant;
    if (syncguard_acquire(store, "", 1000, NULL, &grant, &mine) != SYNCGUARD_E_INVALID_ARGUMENT ||
        strstr(mine.message, "key") == NULL)
        return 2;
    if (syncguard_release(store, "x", NULL, &mine) != SYNCGUARD_E_INVALID_ARGUMENT ||
        strstr(mine.message, "lock id") == NULL)
        return 3;
    bool flag = false;
    if (syncguard_is_locked(store, "k", &bad, &flag, &mine) != SYNCGUARD_E_INVALID_ARGUMENT ||
        strstr(mine.message, "timeout_ms") == NULL)
        return 4;
    return 0;
}

static void bad_arguments_are_refused_in_a_child(void **state)
{
    key name = fresh_key("fork-bad");
    (void)state;
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(store, name.text, NULL, &lock, &err));
    assert_int_equal(fork_run_in_child(refuse_in_child, lock), 0);
    syncguard_lock_dispose(lock);
}

/* ---- a daemon: all descriptors closed, others opened ---- */

#define OWN_FILES 12
#define LAST_FD 256

typedef struct own_file {
    int fd;
    struct stat opened;
} own_file;

/* Files, and on Linux every third an event descriptor with a value that only its owner reads. */
static bool open_own(own_file *file, int number)
{
#ifdef __linux__
    if (number % 3 == 2) {
        file->fd = eventfd(7, EFD_NONBLOCK);
        return file->fd >= 0 && fstat(file->fd, &file->opened) == 0;
    }
#endif
    char name[] = "/tmp/contract-fork-XXXXXX";
    (void)number;
    file->fd = mkstemp(name);
    return file->fd >= 0 && unlink(name) == 0 && write(file->fd, "mine", 4) == 4 &&
           fstat(file->fd, &file->opened) == 0;
}

/* Whether nothing but its owner closed, wrote or read it. */
static bool own_file_is_untouched(const own_file *file)
{
    struct stat now;
    if (fstat(file->fd, &now) != 0 || now.st_dev != file->opened.st_dev ||
        now.st_ino != file->opened.st_ino || now.st_mode != file->opened.st_mode)
        return false;
    uint64_t value = 0;
    if (!S_ISREG(now.st_mode))
        return read(file->fd, &value, sizeof value) == sizeof value && value == 7;
    char text[8];
    return now.st_size == 4 && lseek(file->fd, 0, SEEK_CUR) == 4 &&
           pread(file->fd, text, sizeof text, 0) == 4 && memcmp(text, "mine", 4) == 0;
}

typedef struct daemon_state {
    syncguard_backend *backend;
    syncguard_lock *lock;
    syncguard_abort *abort_object;
    key own;
    bool use; /* the handle, before it is closed */
} daemon_state;

static int use_as_daemon(daemon_state *all)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.auto_extend = true;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = all->abort_object;
    syncguard_lock *lock = NULL;
    syncguard_error mine;
    syncguard_status status =
        syncguard_lock_acquire(all->backend, all->own.text, &options, &lock, &mine);
    if (status != SYNCGUARD_OK)
        return status == SYNCGUARD_E_INVALID_ARGUMENT ? 0 : 1; /* the store refuses */
    bool locked = false;
    if (syncguard_is_locked(all->backend, all->own.text, &call, &locked, &mine) != SYNCGUARD_OK ||
        !locked)
        return 2;
    if (syncguard_lock_release(lock, &call, &mine) != SYNCGUARD_OK)
        return 3;
    syncguard_lock_dispose(lock);
    return 0;
}

static int live_as_daemon(void *context)
{
    daemon_state *all = context;
    for (int fd = 3; fd < LAST_FD; fd++)
        close(fd);
    own_file files[OWN_FILES];
    for (int i = 0; i < OWN_FILES; i++) {
        if (!open_own(&files[i], i))
            return 10;
    }
    int outcome = 0;
    if (all->use)
        outcome = use_as_daemon(all);
    syncguard_lock_dispose(all->lock);
    syncguard_abort_free(all->abort_object);
    syncguard_close(all->backend);
    for (int i = 0; i < OWN_FILES && outcome == 0; i++) {
        if (!own_file_is_untouched(&files[i]))
            outcome = 20 + i;
    }
    return outcome;
}

static void a_daemons_own_files_are_left_alone(void **state)
{
    daemon_state all = {.own = fresh_key("daemon-own")};
    waiting_parent waiter = {.name = fresh_key("daemon-wait")};
    key name = fresh_key("daemon");
    (void)state;
    /* Everything that the handle opens while it works: renewals, an abort object, a waiter that
     * watches. */
    all.backend = waiter.backend = open_store(NULL);
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&all.abort_object, &err));
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.auto_extend = true;
    assert_status(SYNCGUARD_OK,
                  syncguard_lock_acquire(all.backend, name.text, &options, &all.lock, &err));
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.abort_object = all.abort_object;
    bool locked = false;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(all.backend, name.text, &call, &locked, &err));
    syncguard_lock *holder = NULL;
    assert_status(SYNCGUARD_OK,
                  syncguard_lock_acquire(all.backend, waiter.name.text, NULL, &holder, &err));
    pthread_t thread = test_start_thread(wait_in_parent, &waiter);
    test_sleep_ms(200);
    for (int use = 0; use < 2; use++) {
        all.use = use == 1;
        assert_int_equal(fork_run_in_child(live_as_daemon, &all), 0);
    }
    assert_status(SYNCGUARD_OK, syncguard_lock_release(holder, NULL, &err));
    syncguard_lock_dispose(holder);
    pthread_join(thread, NULL);
    assert_int_equal(waiter.status, SYNCGUARD_OK);
    syncguard_lock_dispose(waiter.lock);
    assert_true(syncguard_lock_held(all.lock));
    syncguard_lock_dispose(all.lock);
    syncguard_abort_free(all.abort_object);
    syncguard_close(all.backend);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(child_does_not_release_its_parents_lock),
    cmocka_unit_test(child_does_not_release_its_parents_set),
    cmocka_unit_test(closing_in_a_child_leaves_the_parent_alone),
    cmocka_unit_test(child_makes_the_handle_its_own),
    cmocka_unit_test(abort_in_a_child_does_not_reach_the_parent),
    cmocka_unit_test(fork_in_the_middle_of_waiting),
    cmocka_unit_test(bad_arguments_are_refused_in_a_child),
    cmocka_unit_test(a_daemons_own_files_are_left_alone),
};
const contract_group fork_group = {"fork", tests, sizeof tests / sizeof tests[0]};
