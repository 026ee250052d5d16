/*
 * The guard: a process that ends the child's group should this command be killed
 * outright. Renewals end with us, so the child must not outlive its lease; the
 * kernel tells a dead parent to its direct children only (and not everywhere).
 *
 * It holds the reading end of a pipe whose only writing end is ours: end of file
 * means that we are gone. The end of the lease is written there now and then: if
 * it passes without news we stand still (stopped, or starved), renew nothing and
 * end nobody, so the guard kills the group before the store gives the lock away.
 *
 * It is started right after the child. It does not stand in our group, holds no other
 * descriptor, and uses async-signal-safe calls only.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "cli.h"

enum {
    LATE_MS = 500, /* after the lease, when we should have acted; the store keeps a lock for 1000 */
    LONGEST_MS = 3600000
};
#define NEVER INT64_MAX

static void close_all_but(int kept)
{
    long most = sysconf(_SC_OPEN_MAX);
#if defined(__linux__) && defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 34)
    if ((kept == 0 || close_range(0, (unsigned)kept - 1, 0) == 0) &&
        close_range((unsigned)kept + 1, ~0U, 0) == 0)
        return;
#endif
    for (int fd = 0; fd < (most > 0 && most < 65536 ? (int)most : 65536); fd++) {
        if (fd != kept)
            close(fd);
    }
}

/* Follows the lease until we are gone. */
static void follow(int pipe_end, pid_t group)
{
    int64_t kill_at_ms = NEVER;
    for (;;) {
        struct pollfd fds = {pipe_end, POLLIN, 0};
        int64_t lease_end_ms = 0;
        int64_t left = kill_at_ms == NEVER ? LONGEST_MS : kill_at_ms - cli_now_ms();
        if (left <= 0) {
            kill(-group, SIGKILL);
            kill_at_ms = NEVER;
            continue;
        }
        int ready = poll(&fds, 1, left > LONGEST_MS ? LONGEST_MS : (int)left);
        if (ready == 0 || (ready < 0 && errno == EINTR))
            continue;
        ssize_t got = ready < 0 ? -1 : read(pipe_end, &lease_end_ms, sizeof lease_end_ms);
        if (got == (ssize_t)sizeof lease_end_ms)
            kill_at_ms = lease_end_ms + LATE_MS;
        else if (got >= 0 || errno != EINTR)
            return;
    }
}

static void watch(int pipe_end, pid_t group, int64_t grace_ms)
{
    struct timespec pause = {(time_t)(grace_ms / 1000), (long)(grace_ms % 1000) * 1000000};

    setsid();
    close_all_but(pipe_end);
#ifdef __linux__
    prctl(PR_SET_NAME, "syncguard-guard");
#endif
    follow(pipe_end, group);
    kill(-group, SIGTERM);
    kill(-group, SIGCONT);
    nanosleep(&pause, NULL);
    kill(-group, SIGKILL);
    _exit(0);
}

void cli_guard_start(cli_guard *guard, pid_t group, int64_t grace_ms)
{
    int ends[2];
    sigset_t before;
    /* Without descriptors or processes left we go on unguarded: the child runs already. */
    if (pipe2(ends, O_CLOEXEC) != 0)
        return;
    cli_signals_block(&before);
    pid_t pid = fork();
    if (pid == 0)
        watch(ends[0], group, grace_ms); /* all signals stay blocked */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return;
    }
    fcntl(ends[1], F_SETFL, O_NONBLOCK); /* a guard that somebody stopped must not stop us */
    guard->pid = pid;
    guard->pipe = ends[1];
}

void cli_guard_tell(const cli_guard *guard, int64_t lease_end_ms)
{
    if (guard->pid > 0) {
        ssize_t ignored = write(guard->pipe, &lease_end_ms, sizeof lease_end_ms);
        (void)ignored; /* full: it has enough to read */
    }
}

void cli_guard_stop(cli_guard *guard)
{
    if (guard->pid <= 0)
        return;
    kill(guard->pid, SIGKILL); /* first, then the pipe: it must not see us go */
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    close(guard->pipe);
    guard->pid = -1;
}
