/* A forked child: lock handles stay the parent's, backend handles become the child's own. */
#include "contract.h"

#include <sys/wait.h>

/* Runs fn in a forked child that does not exec; what it returned. */
static int in_child(int (*fn)(void *), void *context)
{
    int status = 0;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(20); /* a child that hangs must not hang the suite */
        _exit(fn(context));
    }
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

static int use_inherited(void *context)
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

static void child_does_not_release_its_parents_lock(void **state)
{
    key name = fresh_key("fork-scope");
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;
    bool owned = false;

    (void)state;
    for (int renewed = 0; renewed < 2; renewed++) {
        int64_t expires;

        options.auto_extend = renewed == 1;
        assert_status(SYNCGUARD_OK,
                      syncguard_lock_acquire(store, name.text, &options, &lock, &err));
        expires = syncguard_lock_expires_at_ms(lock);
        assert_int_equal(in_child(leave_scope, lock), 0);
        assert_int_equal(in_child(use_inherited, lock), 0);
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
    syncguard_grant grant;

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, name.text, 30000, NULL, &grant, &err));
    assert_int_equal(in_child(close_inherited, backend), 0);
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

/* In the child the handle is as good as new, or refused (SQLite). */
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
    syncguard_grant held = take(all.held.text, 30000), grant;
    char ids[2 * CHILD_IDS][SYNCGUARD_LOCK_ID_SIZE];
    int outcome;
    bool owned = false;

    (void)state;
    assert_int_equal(pipe(all.answers), 0);
    outcome = in_child(use_backend, &all);
    assert_int_equal(outcome, store_is("sqlite") ? CHILD_REFUSED : 0);
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
    /* Whatever the child did, the parent's handle works on. */
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
    syncguard_abort *abort_object = NULL;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    syncguard_grant grant;

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&abort_object, &err));
    call.abort_object = abort_object;
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, name.text, 30000, &call, &grant, &err));
    assert_int_equal(in_child(trigger_in_child, abort_object), 0);
    assert_false(syncguard_abort_triggered(abort_object));
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, &call, &err));
    syncguard_abort_free(abort_object);
}

typedef struct waiting_parent {
    key name;
    syncguard_status status;
    syncguard_lock *lock;
} waiting_parent;

static void *wait_in_parent(void *context)
{
    waiting_parent *all = context;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_error mine;

    options.timeout_ms = 10000;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    all->status = syncguard_lock_acquire(store, all->name.text, &options, &all->lock, &mine);
    return NULL;
}

/* A fork while a thread of the parent waits, and a renewal runs, must harm neither. */
static void fork_in_the_middle_of_waiting(void **state)
{
    waiting_parent all = {.name = fresh_key("fork-wait")};
    family child = {.held = fresh_key("fork-mid"), .own = fresh_key("fork-mid-own")};
    syncguard_grant holder = take(all.name.text, 30000), held = take(child.held.text, 30000);
    pthread_t thread = start_thread(wait_in_parent, &all);

    (void)state;
    sleep_ms(100);
    assert_int_equal(pipe(child.answers), 0);
    assert_int_equal(in_child(use_backend, &child), store_is("sqlite") ? CHILD_REFUSED : 0);
    close(child.answers[0]);
    close(child.answers[1]);
    give_back(&holder);
    pthread_join(thread, NULL);
    assert_int_equal(all.status, SYNCGUARD_OK);
    syncguard_lock_dispose(all.lock);
    give_back(&held);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(child_does_not_release_its_parents_lock),
    cmocka_unit_test(closing_in_a_child_leaves_the_parent_alone),
    cmocka_unit_test(child_makes_the_handle_its_own),
    cmocka_unit_test(abort_in_a_child_does_not_reach_the_parent),
    cmocka_unit_test(fork_in_the_middle_of_waiting),
};
const contract_group fork_group = {"fork", tests, sizeof tests / sizeof tests[0]};
