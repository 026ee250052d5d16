/*
 * Signals: handlers only mark the signal, write to the wake-up pipe and trigger
 * the abort object of a waiting acquire. Threads of the library block all
 * signals, so handlers run in the main thread.
 *
 * A signal that was ignored at start (nohup, a background job of a shell without
 * job control) stays ignored, for this process and for the child.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "signals.h"

static const int caught[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM, SIGUSR1,
                             SIGUSR2, SIGCHLD, SIGCONT, SIGTSTP};
#define CAUGHT (sizeof caught / sizeof *caught)
static volatile sig_atomic_t pending[CAUGHT];
static volatile sig_atomic_t ended_by;
static syncguard_abort *volatile to_abort;
static int wake_pipe[2] = {-1, -1};
static bool ignored_at_start[CAUGHT];
static struct sigaction pipe_at_start;
static struct sigaction size_at_start;
static sigset_t mask_at_start;
static int die_of;

static bool signal_ends_command(int number)
{
    return number == SIGHUP || number == SIGINT || number == SIGQUIT || number == SIGTERM;
}

static void signal_handle(int number)
{
    int kept = errno;
    for (size_t i = 0; i < CAUGHT; i++) {
        if (caught[i] == number)
            pending[i] = 1;
    }
    if (signal_ends_command(number)) {
        if (ended_by == 0)
            ended_by = number;
        syncguard_abort_trigger(to_abort);
    }
    cli_wake();
    errno = kept;
}

static void signal_set_action(int number, void (*action)(int))
{
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_handler = action;
    act.sa_flags = SA_RESTART;
    sigfillset(&act.sa_mask);
    sigaction(number, &act, NULL);
}

void cli_signals_ignore_size_limit(void)
{
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &act, &size_at_start);
}

void cli_signals_ignore_pipe(void)
{
    signal_set_action(SIGPIPE, SIG_IGN);
}

/*
 * The process that started this command may have blocked these signals: without SIGCHLD the command
 * would not learn that the child has ended, without SIGCONT that it was itself continued. All
 * others stay as they are; a signal that is blocked on purpose ends neither the command nor the
 * child.
 */
static void signals_unblock_needed(void)
{
    sigset_t needed;
    sigemptyset(&needed);
    sigaddset(&needed, SIGCHLD);
    sigaddset(&needed, SIGCONT);
    pthread_sigmask(SIG_UNBLOCK, &needed, NULL);
}

bool cli_signals_start(void)
{
    if (pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        return false;
    pthread_sigmask(SIG_SETMASK, NULL, &mask_at_start);
    sigaction(SIGPIPE, NULL, &pipe_at_start);
    /* A closed stderr must not end the supervision of a child. */
    signal_set_action(SIGPIPE, SIG_IGN);
    struct sigaction before;
    for (size_t i = 0; i < CAUGHT; i++) {
        sigaction(caught[i], NULL, &before);
        ignored_at_start[i] = before.sa_handler == SIG_IGN;
        /* SIGCHLD is always needed; SIGTSTP is caught only once there is a child. */
        if ((!ignored_at_start[i] || caught[i] == SIGCHLD) && caught[i] != SIGTSTP)
            signal_set_action(caught[i], signal_handle);
    }
    signals_unblock_needed();
    return true;
}

void cli_signals_abort(syncguard_abort *abort_object)
{
    to_abort = abort_object;
    if (ended_by != 0)
        syncguard_abort_trigger(abort_object); /* the signal came before the abort object */
}

int cli_signals_ended(void)
{
    return ended_by;
}

int cli_signals_next(void)
{
    for (size_t i = 0; i < CAUGHT; i++) {
        if (pending[i] != 0) {
            pending[i] = 0;
            return caught[i];
        }
    }
    return 0;
}

void cli_signals_forget_user(void)
{
    for (size_t i = 0; i < CAUGHT; i++) {
        if (caught[i] == SIGUSR1 || caught[i] == SIGUSR2)
            pending[i] = 0;
    }
}

int cli_wake_fd(void)
{
    return wake_pipe[0];
}

/* Async-signal-safe; a full pipe already wakes the reader. */
void cli_wake(void)
{
    ssize_t ignored = write(wake_pipe[1], "", 1);
    (void)ignored;
}

void cli_wake_drain(void)
{
    char bytes[64];
    while (read(wake_pipe[0], bytes, sizeof bytes) > 0)
        ;
}

static bool signal_was_ignored(int number)
{
    for (size_t i = 0; i < CAUGHT; i++) {
        if (caught[i] == number)
            return ignored_at_start[i];
    }
    return false;
}

void cli_signals_forward_stop(void)
{
    if (!signal_was_ignored(SIGTSTP))
        signal_set_action(SIGTSTP, signal_handle);
}

bool cli_signals_stop(int number)
{
    if (signal_was_ignored(number))
        return false;
    for (size_t i = 0; i < CAUGHT; i++) {
        if (caught[i] == SIGCONT)
            pending[i] = 0;
    }
    signal_set_action(number, SIG_DFL);
    kill(0, number); /* this process is stopped here until SIGCONT */
    bool continued = false;
    for (size_t i = 0; i < CAUGHT; i++) {
        if (caught[i] == SIGCONT)
            continued = pending[i] != 0;
    }
    if (number == SIGTSTP)
        signal_set_action(SIGTSTP, signal_handle);
    return continued;
}

void cli_signals_block(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

void cli_signals_reset(void)
{
    for (size_t i = 0; i < CAUGHT; i++)
        signal_set_action(caught[i], ignored_at_start[i] ? SIG_IGN : SIG_DFL);
    sigaction(SIGPIPE, &pipe_at_start, NULL);
    sigaction(SIGXFSZ, &size_at_start, NULL);
    pthread_sigmask(SIG_SETMASK, &mask_at_start, NULL);
}

void cli_signals_die_of(int number)
{
    die_of = number;
}

/* Without a core dump, which would be of this process and not of the one that failed. */
void cli_signals_die(void)
{
    const struct rlimit none = {0, 0};
    if (die_of == 0)
        return;
    setrlimit(RLIMIT_CORE, &none);
#ifdef __linux__
    prctl(PR_SET_DUMPABLE, 0);
#endif
    signal_set_action(die_of, SIG_DFL);
    kill(getpid(), die_of);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, die_of);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}
