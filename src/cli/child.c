/*
 * The process group under the lock, and the terminal.
 *
 * The child leads a process group, so that all of it can be killed when the lock is
 * lost. A background group is stopped when it reads from the terminal, so the child
 * is made the foreground group, as a shell does: at once if stdin is the terminal
 * and stdout is not a pipe (in a pipeline other processes may read from the terminal
 * too), otherwise when the child is stopped by SIGTTIN or SIGTTOU.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "child.h"
#include "exitcode.h"
#include "report.h"
#include "signals.h"
#include "times.h"

static bool stdout_is_pipe(void)
{
    struct stat about;
    return fstat(STDOUT_FILENO, &about) == 0 &&
           (S_ISFIFO(about.st_mode) || S_ISSOCK(about.st_mode));
}

/* A background process that changes the foreground group is stopped by SIGTTOU unless blocked. */
static bool terminal_set_foreground(int tty, pid_t group)
{
    sigset_t ttou, before;
    sigemptyset(&ttou);
    sigaddset(&ttou, SIGTTOU);
    pthread_sigmask(SIG_BLOCK, &ttou, &before);
    bool done = tcsetpgrp(tty, group) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return done;
}

static void terminal_set_modes(int tty, const struct termios *modes)
{
    sigset_t ttou, before;
    sigemptyset(&ttou);
    sigaddset(&ttou, SIGTTOU);
    pthread_sigmask(SIG_BLOCK, &ttou, &before);
    tcsetattr(tty, TCSADRAIN, modes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* The data that the child needs before it executes its program. */
typedef struct start_state {
    const cli_watchdog *watchdog; /* NULL: none */
    int64_t lease_end_ms;
    pid_t parent;
    int report; /* takes what cli_child_exec_error returns */
    int tty;    /* -1, or the terminal of which it becomes the foreground */
} start_state;

static int child_exec_exit_code(int reason)
{
    if (reason == CLI_CHILD_TOO_LATE)
        return CLI_LOST;
    return reason == ENOENT ? CLI_NOT_FOUND : CLI_CANNOT_RUN;
}

/*
 * Runs in the child of vfork, which shares the parent's memory until exec: system calls only, no
 * write to memory that the parent reads. (fork would copy the page tables, which takes a third of a
 * millisecond.)
 */
static void child_exec(char **argv, char **variables, const start_state *state)
{
    setpgid(0, 0);
    if (state->tty >= 0)
        tcsetpgrp(state->tty, getpid()); /* all signals are blocked, SIGTTOU too */
    if (state->watchdog != NULL) {
        cli_watchdog_feed(state->watchdog, getpid(), state->lease_end_ms);
#ifdef __linux__
        prctl(PR_SET_PDEATHSIG, SIGTERM);
#endif
        if (getppid() != state->parent)
            _exit(CLI_LOST);
    }
    cli_signals_reset();
    int reason = CLI_CHILD_TOO_LATE;
    if (state->watchdog == NULL || cli_now_ms() < state->lease_end_ms) {
        execvpe(argv[0], argv, variables);
        reason = errno;
    }
    ssize_t ignored = write(state->report, &reason, sizeof reason);
    (void)ignored;
    _exit(child_exec_exit_code(reason));
}

static bool terminal_foreground_is_ours(int tty)
{
    return tty >= 0 && tcgetpgrp(tty) == getpgrp();
}

static void child_find_terminal(cli_child *child)
{
    if (isatty(STDIN_FILENO) == 0)
        return;
    child->tty = STDIN_FILENO;
    child->wants_tty = !stdout_is_pipe();
    child->modes = malloc(sizeof *child->modes);
    if (child->modes != NULL && tcgetattr(child->tty, child->modes) != 0) {
        free(child->modes);
        child->modes = NULL;
    }
}

int cli_child_start(cli_child *child, char **argv, char **variables, const cli_watchdog *watchdog,
                    int64_t lease_end_ms)
{
    int report[2] = {-1, -1};
    if (pipe2(report, O_CLOEXEC | O_NONBLOCK) != 0) {
        cli_message("no file descriptor is left (%s)", strerror(errno));
        return CLI_UNAVAILABLE;
    }
    child_find_terminal(child);
    bool give_tty = child->wants_tty && terminal_foreground_is_ours(child->tty);
    const start_state state = {watchdog, lease_end_ms, getpid(), report[1],
                               give_tty ? child->tty : -1};
    sigset_t before;
    /* Signals are blocked, so that no handler runs in the child and writes to the wake-up pipe. */
    cli_signals_block(&before);
    /* child_exec does only what is allowed after vfork.
     * NOLINTBEGIN(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork) */
    pid_t pid = vfork();
    if (pid == 0)
        child_exec(argv, variables, &state);
    /* NOLINTEND(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork) */
    int reason = errno;
    if (pid > 0)
        setpgid(pid, pid); /* parent and child both do it, because either may run first */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(report[1]);
    if (pid < 0) {
        close(report[0]);
        cli_message("cannot start a process (%s)", strerror(reason));
        return reason == ENOMEM ? CLI_NO_MEMORY : CLI_UNAVAILABLE;
    }
    child->pid = pid;
    child->exec_pipe = report[0];
    if (give_tty)
        child->has_tty = terminal_set_foreground(child->tty, pid);
    return CLI_OK;
}

int cli_child_exec_error(cli_child *child)
{
    int reason = 0;
    if (read(child->exec_pipe, &reason, sizeof reason) != (ssize_t)sizeof reason)
        return 0;
    return reason;
}

void cli_child_signal(const cli_child *child, int number)
{
    kill(-child->pid, number);
}

void cli_child_signal_program(const cli_child *child, int number)
{
    kill(child->pid, number);
}

bool cli_child_group_alive(const cli_child *child)
{
    return kill(-child->pid, 0) == 0 || errno == EPERM;
}

bool cli_child_give_terminal(cli_child *child)
{
    if (child->has_tty && tcgetpgrp(child->tty) == child->pid)
        return true;
    if (child->tty < 0)
        child->tty = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
    child->has_tty =
        terminal_foreground_is_ours(child->tty) && terminal_set_foreground(child->tty, child->pid);
    return child->has_tty;
}

void cli_child_take_terminal(cli_child *child, bool restore_modes)
{
    /* Another process, such as the shell, may have taken it already. */
    if (!child->has_tty || tcgetpgrp(child->tty) != child->pid)
        return;
    terminal_set_foreground(child->tty, getpgrp());
    child->has_tty = false;
    if (restore_modes && child->modes != NULL)
        terminal_set_modes(child->tty, child->modes);
}

void cli_child_free(cli_child *child)
{
    if (child->exec_pipe >= 0)
        close(child->exec_pipe);
    if (child->tty > STDERR_FILENO)
        close(child->tty);
    free(child->modes);
}
