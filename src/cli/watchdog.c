/*
 * The watchdog: a process that kills the child's group if this command is killed.
 * Renewals end with the command, so the child must not outlive its lease; the
 * kernel signals the death of a parent only to its direct children, and not on
 * every system.
 *
 * It reads from a pipe whose writing end is the command's: end of file means that
 * the command is gone. The command writes the end of the lease there at each
 * renewal. If that time passes, the command is stopped or starved and can neither
 * renew nor kill, so the watchdog kills the group before the store grants the lock
 * to another owner.
 *
 * It is started before the child, which reports its group to it before it executes its program: no
 * program ever runs that the watchdog would not kill. It leads a session of its own, keeps no other
 * descriptor open, and uses async-signal-safe calls only. In ps it has a title of its own: its copy
 * of the arguments is overwritten.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "signals.h"
#include "times.h"
#include "watchdog.h"

enum {
    LATE_MS = 500, /* after the lease, when the command should have acted; the store waits 1000 */
    MAX_POLL_MS = 3600000
};
#define NEVER INT64_MAX

/* The arguments of this process, as ps reads them: consecutive strings. */
static struct {
    char *text;
    size_t size;
} arguments;

void cli_watchdog_note_arguments(int argc, char **argv)
{
    arguments.text = argc > 0 ? argv[0] : NULL;
    arguments.size = 0;
    for (int i = 0; i < argc && argv[i] == arguments.text + arguments.size; i++)
        arguments.size += strlen(argv[i]) + 1;
}

/* The title is cut to the size of the arguments. ps does not show zeros at the end. */
static void watchdog_set_title(const char *title)
{
    if (arguments.size == 0)
        return;
    memset(arguments.text, 0, arguments.size);
    size_t length = strlen(title);
    memcpy(arguments.text, title, length < arguments.size ? length : arguments.size - 1);
}

static void watchdog_close_descriptors(int kept)
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

/* The message that is written to the pipe. */
typedef struct feed {
    int64_t lease_end_ms;
    int64_t group;
} feed;

/* Returns the group to kill when the command is gone; 0: there was no child. */
static pid_t watchdog_follow_lease(int pipe_end)
{
    feed last = {0, 0};
    int64_t kill_at_ms = NEVER;
    for (;;) {
        struct pollfd fds = {pipe_end, POLLIN, 0};
        int64_t left = kill_at_ms == NEVER ? MAX_POLL_MS : kill_at_ms - cli_now_ms();
        if (left <= 0) {
            kill(-(pid_t)last.group, SIGKILL);
            kill_at_ms = NEVER;
            continue;
        }
        int ready = poll(&fds, 1, left > MAX_POLL_MS ? MAX_POLL_MS : (int)left);
        if (ready == 0 || (ready < 0 && errno == EINTR))
            continue;
        ssize_t got = ready < 0 ? -1 : read(pipe_end, &last, sizeof last);
        if (got == (ssize_t)sizeof last)
            kill_at_ms = last.lease_end_ms + LATE_MS;
        else if (got >= 0 || errno != EINTR)
            return (pid_t)last.group;
    }
}

static void watchdog_main(int pipe_end, const char *title, int64_t grace_ms)
{
    struct timespec pause = {(time_t)(grace_ms / 1000), (long)(grace_ms % 1000) * 1000000};
    setsid();
    watchdog_close_descriptors(pipe_end);
#ifdef __linux__
    prctl(PR_SET_NAME, "syncguard-watch");
#endif
    watchdog_set_title(title);
    pid_t group = watchdog_follow_lease(pipe_end);
    if (group <= 0)
        _exit(0);
    kill(-group, SIGTERM);
    kill(-group, SIGCONT);
    nanosleep(&pause, NULL);
    kill(-group, SIGKILL);
    _exit(0);
}

void cli_watchdog_start(cli_watchdog *watchdog, int64_t grace_ms)
{
    int ends[2];
    char title[48];
    sigset_t before;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return;
    snprintf(title, sizeof title, "syncguard watchdog of %ld", (long)getpid());
    cli_signals_block(&before);
    pid_t pid = fork();
    if (pid == 0)
        watchdog_main(ends[0], title, grace_ms); /* all signals stay blocked */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return;
    }
    fcntl(ends[1], F_SETFL, O_NONBLOCK); /* a stopped watchdog must not block the command */
    watchdog->pid = pid;
    watchdog->pipe = ends[1];
}

bool cli_watchdog_alive(cli_watchdog *watchdog)
{
    if (watchdog->pid > 0 && waitpid(watchdog->pid, NULL, WNOHANG) != 0) {
        close(watchdog->pipe);
        *watchdog = (cli_watchdog)CLI_WATCHDOG_INIT;
    }
    return watchdog->pid > 0;
}

void cli_watchdog_feed(const cli_watchdog *watchdog, pid_t group, int64_t lease_end_ms)
{
    if (watchdog->pid > 0) {
        const feed next = {lease_end_ms, group};
        ssize_t ignored = write(watchdog->pipe, &next, sizeof next);
        (void)ignored; /* a full pipe has values to read; a broken one leads to a new watchdog */
    }
}

void cli_watchdog_stop(cli_watchdog *watchdog)
{
    if (watchdog->pid <= 0)
        return;
    kill(watchdog->pid, SIGKILL); /* before the close, so that it does not see end of file */
    while (waitpid(watchdog->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    close(watchdog->pipe);
    watchdog->pid = -1;
}
