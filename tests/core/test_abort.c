/* Abort objects: threads, signal handlers, forked children. */
#include "test_assert.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "syncguard/sys/wait.h"

static bool abort_fd_is_readable(syncguard_abort *abort_object)
{
    struct pollfd fd = {syncguard_abort_fd(abort_object), POLLIN, 0};
    return poll(&fd, 1, 0) == 1;
}

static void test_basics(void **state)
{
    (void)state;
    syncguard_abort *a = NULL;
    syncguard_error err;
    assert_int_equal(syncguard_abort_create(&a, &err), SYNCGUARD_OK);
    assert_false(syncguard_abort_triggered(a));
    assert_false(abort_fd_is_readable(a));
    errno = ENOENT;
    syncguard_abort_trigger(a);
    assert_int_equal(errno, ENOENT);
    syncguard_abort_trigger(a);
    assert_true(syncguard_abort_triggered(a));
    assert_true(abort_fd_is_readable(a));
    assert_true(abort_fd_is_readable(a));
    syncguard_abort_free(a);
    syncguard_abort_trigger(NULL);
    assert_false(syncguard_abort_triggered(NULL));
    assert_int_equal(syncguard_abort_fd(NULL), -1);
    syncguard_abort_free(NULL);
    assert_int_equal(syncguard_abort_create(NULL, &err), SYNCGUARD_E_INVALID_ARGUMENT);
}

static syncguard_abort *in_handler;

static void abort_trigger_in_handler(int number)
{
    (void)number;
    syncguard_abort_trigger(in_handler);
}

static void *abort_signal_thread(void *argument)
{
    pthread_t target = *(pthread_t *)argument;
    test_sleep_ms(2);
    pthread_kill(target, SIGUSR1);
    return NULL;
}

/* A wait ends within milliseconds of a trigger from a signal handler. */
static void test_signal(void **state)
{
    enum { ROUNDS = 21 };
    (void)state;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = abort_trigger_in_handler;
    assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
    int64_t took[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t self = pthread_self();
        assert_int_equal(syncguard_abort_create(&in_handler, NULL), SYNCGUARD_OK);
        syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, NULL};
        limits.abort_object = in_handler;
        int64_t start = syncguard_clock_ns();
        pthread_t other = test_start_thread(abort_signal_thread, &self);
        assert_int_equal(syncguard_wait_until(start + 30000 * SYNCGUARD_NS_PER_MS, &limits, NULL),
                         SYNCGUARD_E_ABORTED);
        took[i] = syncguard_clock_ns() - start;
        pthread_join(other, NULL);
        syncguard_abort_free(in_handler);
        in_handler = NULL;
    }
    qsort(took, ROUNDS, sizeof *took, test_compare_int64);
    /* This includes the pause before the signal. */
    assert_true(took[ROUNDS / 2] < 60 * SYNCGUARD_NS_PER_MS);
}

static int abort_run_in_child(int (*work)(syncguard_abort *), syncguard_abort *a)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(work(a));
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static int child_triggers(syncguard_abort *a)
{
    syncguard_abort_trigger(a);
    if (!syncguard_abort_triggered(a))
        return 1;
    if (!abort_fd_is_readable(a))
        return 2;
    syncguard_abort_free(a);
    return 0;
}

static int child_triggers_after_use(syncguard_abort *a)
{
    syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), 5000), a};
    if (abort_fd_is_readable(a))
        return 1;
    syncguard_abort_trigger(a);
    return syncguard_wait_fds(NULL, 0, &limits, NULL) == SYNCGUARD_E_ABORTED ? 0 : 2;
}

static int child_sees_old_trigger(syncguard_abort *a)
{
    return syncguard_abort_triggered(a) && abort_fd_is_readable(a) ? 0 : 1;
}

static int abort_fork_grandchild(syncguard_abort *a)
{
    int first = child_triggers_after_use(a);
    return first != 0 ? first : abort_run_in_child(child_sees_old_trigger, a);
}

/* A child's object is a copy: a trigger in one process does not reach the other. */
static void test_abort_fork(void **state)
{
    (void)state;
    syncguard_abort *a = NULL;
    assert_int_equal(syncguard_abort_create(&a, NULL), SYNCGUARD_OK);
    assert_int_equal(abort_run_in_child(child_triggers, a), 0);
    assert_int_equal(abort_run_in_child(child_triggers_after_use, a), 0);
    assert_int_equal(abort_run_in_child(abort_fork_grandchild, a), 0);
    assert_false(syncguard_abort_triggered(a));
    assert_false(abort_fd_is_readable(a));
    syncguard_abort_trigger(a);
    assert_int_equal(abort_run_in_child(child_sees_old_trigger, a), 0);
    syncguard_abort_free(a);
}

static int parent_triggers(syncguard_abort *a)
{
    struct pollfd fd = {syncguard_abort_fd(a), POLLIN, 0};
    kill(getppid(), SIGUSR2);
    /* The child's object stays untriggered whatever the parent does. */
    return poll(&fd, 1, 300) == 0 && !syncguard_abort_triggered(a) ? 0 : 1;
}

static void test_fork_parent(void **state)
{
    (void)state;
    assert_int_equal(syncguard_abort_create(&in_handler, NULL), SYNCGUARD_OK);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = abort_trigger_in_handler;
    action.sa_flags = SA_RESTART;
    assert_int_equal(sigaction(SIGUSR2, &action, NULL), 0);
    assert_int_equal(abort_run_in_child(parent_triggers, in_handler), 0);
    assert_true(syncguard_abort_triggered(in_handler));
    syncguard_abort_free(in_handler);
    in_handler = NULL;
}

static int abort_without_descriptors(syncguard_abort *a)
{
    struct rlimit few;
    syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), 5000), a};
    if (getrlimit(RLIMIT_NOFILE, &few) != 0)
        return 1;
    few.rlim_cur = 32;
    if (setrlimit(RLIMIT_NOFILE, &few) != 0)
        return 1;
    while (dup(0) >= 0)
        ;
    syncguard_abort *more = NULL;
    if (syncguard_abort_create(&more, NULL) != SYNCGUARD_E_RATE_LIMITED || more != NULL)
        return 2;
    /* The child cannot create its own descriptor: the wait must fail, because it could not be
     * aborted. */
    return syncguard_wait_fds(NULL, 0, &limits, NULL) == SYNCGUARD_E_RATE_LIMITED ? 0 : 3;
}

static void test_no_descriptor(void **state)
{
    (void)state;
    syncguard_abort *a = NULL;
    assert_int_equal(syncguard_abort_create(&a, NULL), SYNCGUARD_OK);
    assert_int_equal(abort_run_in_child(abort_without_descriptors, a), 0);
    syncguard_abort_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_basics),        cmocka_unit_test(test_signal),
        cmocka_unit_test(test_abort_fork),    cmocka_unit_test(test_fork_parent),
        cmocka_unit_test(test_no_descriptor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
