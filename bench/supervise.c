/*
 * A process of its own, in a group of its own, does the measuring, so that this process can remove
 * what was written however the measuring ends: done, failed, crashed, or stopped by a signal.
 * Signals are blocked here and waited for, so that none can be missed.
 */
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

static sigset_t watched, before;
static int ended_by; /* the last signal that stopped a process of ours; 0: none */

void bench_supervise_start(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCHLD};
    sigemptyset(&watched);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaddset(&watched, numbers[i]);
    sigprocmask(SIG_BLOCK, &watched, &before);
    /* Orphans of our processes become our children, so that we can wait for their end. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

int bench_ended_by(void)
{
    return ended_by;
}

static pid_t supervise_start(bench_work work, void *context)
{
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) {
        if (pid > 0)
            setpgid(pid, pid); /* both processes do it: one of them is first */
        return pid;
    }
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(70);
    signal(SIGTTOU, SIG_IGN); /* this process may write to a terminal from its background */
    sigprocmask(SIG_SETMASK, &before, NULL);
    int code = work(context);
    if (fflush(stdout) != 0 && code == 0)
        code = 70;
    _exit(code);
}

/* No process of the group is left when it returns. */
static void supervise_end_group(pid_t group)
{
    kill(-group, SIGKILL);
    while (waitpid(-group, NULL, 0) > 0 || errno == EINTR)
        ;
}

/* Returns the signal if it ends the group, otherwise 0. */
static int supervise_pass_signal(pid_t group, int number)
{
    if (number == SIGTSTP) {
        kill(-group, SIGSTOP);
        raise(SIGSTOP);
        kill(-group, SIGCONT);
        return 0;
    }
    kill(-group, SIGKILL);
    return number;
}

int bench_supervise(bench_work work, void *context)
{
    int status = 0, stopped_by = 0;
    pid_t pid = supervise_start(work, context);
    if (pid < 0)
        bench_die("fork", strerror(errno));
    for (;;) {
        pid_t gone = waitpid(pid, &status, WNOHANG);
        if (gone == pid)
            break;
        int number = sigwaitinfo(&watched, NULL);
        if (number > 0 && number != SIGCHLD && stopped_by == 0)
            stopped_by = supervise_pass_signal(pid, number);
    }
    supervise_end_group(pid);
    if (stopped_by != 0) {
        ended_by = stopped_by;
        return 128 + stopped_by;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 70;
}
