/*
 * Watching over the child: signals, stops, and the promise that no second child
 * starts while this one runs.
 *
 * The lease is watched on our own clock. While renewals are confirmed it never
 * comes near its end. If it does, the group gets SIGTERM one grace before the end
 * and SIGKILL at the end; a store that says the lock is gone leaves less. The
 * store keeps a lock for another second past its expiry, which covers the time
 * that a kill takes.
 *
 * One thread does all of this; the library's threads only write to the wake-up
 * pipe.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/timerfd.h>
#endif

#include "cli.h"

enum {
    LEASE_GRACE_MS = 5000,
    ABSENT_GRACE_MS = 500,
    DRAIN_STEP_MS = 20,
    JUMP_MS = 2000, /* woken that late, we were stopped or the machine slept */
    UNTIMED_STEP_MS = 250
};
#define NEVER INT64_MAX

typedef struct watch {
    const cli_options *options;
    syncguard_lock *lock;
    cli_child *child;
    cli_guard guard;
    int timer;
    int64_t lease_grace_ms;
    int64_t absent_grace_ms;
    int64_t started_ms;
    int64_t kill_at_ms;
    bool told;   /* the loss was reported */
    bool ending; /* the group was told to end because of the lock */
    bool killed;
    bool reaped;
    int status;
} watch;

int64_t cli_now_ms(void)
{
    struct timespec now = {0, 0};
#ifdef CLOCK_BOOTTIME
    clock_gettime(CLOCK_BOOTTIME, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A timer on the clock of the lease: poll's own does not count the time of a suspend. */
static int open_timer(void)
{
#ifdef __linux__
    return timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
#else
    return -1;
#endif
}

static void sleep_for(const watch *w, int64_t ms)
{
    struct pollfd fds[2] = {{cli_wake_fd(), POLLIN, 0}, {w->timer, POLLIN, 0}};
    int step = -1;
#ifdef __linux__
    struct itimerspec when;
    memset(&when, 0, sizeof when);
    if (ms != NEVER) { /* all zeros turns it off */
        when.it_value.tv_sec = (time_t)(ms / 1000);
        when.it_value.tv_nsec = (long)(ms % 1000) * 1000000 + 1;
    }
    if (w->timer < 0 || timerfd_settime(w->timer, 0, &when, NULL) != 0)
        step = (int)least(ms, UNTIMED_STEP_MS);
#else
    step = (int)least(ms, UNTIMED_STEP_MS);
#endif
    if (poll(fds, 2, step) > 0)
        cli_wake_drain();
}

/* After we stood still: renew at once, before the child goes on or is judged. */
static void refresh_lease(watch *w)
{
    syncguard_call call = SYNCGUARD_CALL_INIT;
    int64_t left = syncguard_lock_remaining_ms(w->lock);
    int64_t limit = w->options->max_hold_ms;
    if (left <= 0 || (limit > 0 && cli_now_ms() - w->started_ms >= limit))
        return;
    call.timeout_ms = least(left, 1000);
    syncguard_status status = syncguard_lock_extend(w->lock, w->options->ttl_ms, &call, NULL, NULL);
    (void)status; /* absent shows as lost, a failure is tried again in the background */
}

/* We go on after a stop; the child only does if the lock is still ours. */
static void on_continued(watch *w)
{
    refresh_lease(w);
    if (!syncguard_lock_held(w->lock) && !w->options->lost_warns)
        return; /* judge() ends it, stopped as it is */
    if (w->child->wants_tty)
        cli_child_give_terminal(w->child);
    cli_child_signal(w->child, SIGCONT);
}

static void on_stopped(watch *w, int number)
{
    bool wants = number == SIGTTIN || number == SIGTTOU;
    if (wants && cli_child_give_terminal(w->child)) {
        cli_child_signal(w->child, SIGCONT);
        return;
    }
    if (number != SIGTSTP && !wants) {
        if (!w->child->handed_over)
            return; /* somebody's SIGSTOP: not ours to end; the lock is kept */
        number = SIGTSTP;
    }
    /* Nothing renews while we stand still, so nobody of the group may run on. */
    cli_child_signal(w->child, SIGSTOP);
    cli_child_take_terminal(w->child, true);
    if (!cli_signals_stop(number) && wants)
        cli_child_signal(w->child, SIGHUP); /* no shell will ever give it a terminal */
    on_continued(w);
}

static void take_signals(watch *w)
{
    int number = 0;
    while ((number = cli_signals_take()) != 0) {
        if (w->reaped || number == SIGCHLD)
            continue;
        if (number == SIGCONT) {
            on_continued(w);
            continue;
        }
        cli_child_signal(w->child, number);
        if (number == SIGTERM || number == SIGHUP)
            cli_child_signal(w->child, SIGCONT); /* a stopped one could not obey */
    }
}

static void reap(watch *w)
{
    int status = 0;
    while (!w->reaped) {
        pid_t pid = waitpid(w->child->pid, &status, WNOHANG | WUNTRACED);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid == 0)
            return;
        if (pid > 0 && WIFSTOPPED(status)) {
            on_stopped(w, WSTOPSIG(status));
            continue;
        }
        w->reaped = true;
        w->status = pid > 0 ? status : 0;
        /* Those that it left behind have to go soon if the lock is gone. */
        if (w->ending)
            w->kill_at_ms = least(w->kill_at_ms, cli_now_ms() + w->absent_grace_ms);
    }
}

static void tell_lost(watch *w, const char *why)
{
    if (!w->told)
        cli_say("the lock is lost: %s%s", why,
                w->options->lost_warns ? "" : " (the command is ended)");
    w->told = true;
}

static const char *lost_text(syncguard_lost_reason reason)
{
    switch (reason) {
    case SYNCGUARD_LOST_ABSENT:
        return "the store no longer has it";
    case SYNCGUARD_LOST_MAX_HOLD:
        return "it was held for as long as --max-hold allows";
    default:
        return "no renewal was confirmed in time";
    }
}

static void ask_to_end(watch *w)
{
    if (w->ending)
        return;
    w->ending = true;
    cli_child_signal(w->child, SIGTERM);
    cli_child_signal(w->child, SIGCONT);
}

/* The lease runs out: the last moment at which the child may still clean up. */
static void on_running_out(watch *w, int64_t left)
{
    int64_t limit = w->options->max_hold_ms;
    bool over = limit > 0 && cli_now_ms() - w->started_ms >= limit;
    if (!w->ending)
        cli_say("%s, the lease ends in %lld ms (the command is ended)",
                over ? "--max-hold is over" : "renewals are not confirmed", (long long)left);
    w->told = true;
    ask_to_end(w);
}

/* Looks at the lease, does what has to be done now, and tells in how long to look again. */
static int64_t judge(watch *w)
{
    int64_t now = cli_now_ms();
    int64_t left = syncguard_lock_remaining_ms(w->lock);
    syncguard_lost_reason reason = syncguard_lock_lost(w->lock);
    int64_t next = NEVER;

    if (w->options->lost_warns) {
        if (reason != SYNCGUARD_LOST_NO)
            tell_lost(w, lost_text(reason));
        return NEVER; /* the library wakes us when it is lost */
    }
    if (reason == SYNCGUARD_LOST_ABSENT) {
        tell_lost(w, lost_text(reason));
        ask_to_end(w);
        w->kill_at_ms = least(w->kill_at_ms, now + w->absent_grace_ms);
    } else if (reason != SYNCGUARD_LOST_NO || left <= 0) {
        tell_lost(w, lost_text(reason));
        w->kill_at_ms = now;
    } else if (left <= w->lease_grace_ms) {
        on_running_out(w, left);
        next = left;
    } else {
        next = left - w->lease_grace_ms;
    }
    if (w->kill_at_ms <= now && !w->killed) {
        w->ending = w->killed = true;
        cli_child_signal(w->child, SIGKILL);
    }
    if (w->killed)
        return w->reaped ? 0 : NEVER;
    return w->kill_at_ms == NEVER ? next : least(next, w->kill_at_ms - now);
}

/* There is no guard where a lost lock is not to end the child. */
static int64_t keep_guard(watch *w)
{
    if (w->guard.pid > 0 || w->reaped || w->options->lost_warns)
        return NEVER;
    cli_guard_start(&w->guard, w->child->pid, w->lease_grace_ms);
    return w->guard.pid > 0 ? NEVER : 1000;
}

/* Tells the guard how long the lease lasts, three times in its length: it needs no news in between
 * and does not mistake a short pause of ours for standing still. */
static int64_t feed_guard(const watch *w)
{
    int64_t left = syncguard_lock_remaining_ms(w->lock);
    if (w->guard.pid <= 0 || w->reaped)
        return NEVER;
    if (left > 0)
        cli_guard_tell(&w->guard, cli_now_ms() + left);
    return w->options->ttl_ms / 3 + 1;
}

static bool over(const watch *w)
{
    if (!w->reaped)
        return false;
    return !w->ending || w->killed || !cli_child_group_alive(w->child);
}

static int outcome(watch *w, const char *command)
{
    int reason = cli_child_exec_error(w->child);
    if (w->ending)
        return CLI_LOST;
    if (reason != 0) {
        char shown[256];
        cli_plain(command, shown, sizeof shown);
        cli_say("cannot run '%s' (%s)", shown, strerror(reason));
        return reason == ENOENT ? CLI_NOT_FOUND : CLI_CANNOT_RUN;
    }
    if (WIFSIGNALED(w->status))
        return CLI_SIGNAL_BASE + WTERMSIG(w->status);
    return WEXITSTATUS(w->status);
}

static void watch_init(watch *w, const cli_options *options, syncguard_lock *lock, cli_child *child)
{
    memset(w, 0, sizeof *w);
    w->options = options;
    w->lock = lock;
    w->child = child;
    w->guard.pid = w->guard.pipe = -1;
    w->timer = open_timer();
    w->started_ms = cli_now_ms();
    w->kill_at_ms = NEVER;
    w->lease_grace_ms = least(LEASE_GRACE_MS, options->ttl_ms / 3);
    w->absent_grace_ms = ABSENT_GRACE_MS;
    if (options->grace_ms >= 0)
        w->lease_grace_ms = w->absent_grace_ms = options->grace_ms;
}

int cli_supervise(const cli_options *options, syncguard_lock *lock, cli_child *child,
                  const char *command)
{
    watch w;
    int64_t expected = NEVER;

    watch_init(&w, options, lock, child);
    for (;;) {
        if (expected != NEVER && cli_now_ms() > expected + JUMP_MS)
            refresh_lease(&w);
        take_signals(&w);
        reap(&w);
        if (over(&w))
            break;
        int64_t pause = least(judge(&w), keep_guard(&w));
        if (over(&w))
            break;
        pause = least(pause, feed_guard(&w));
        if (w.reaped)
            pause = least(pause, DRAIN_STEP_MS);
        expected = pause == NEVER ? NEVER : cli_now_ms() + pause;
        sleep_for(&w, pause);
    }
    cli_guard_stop(&w.guard);
    child->interrupted =
        child->handed_over && WIFSIGNALED(w.status) && WTERMSIG(w.status) == SIGINT && !w.ending;
    cli_child_take_terminal(child, WIFSIGNALED(w.status));
    if (w.timer >= 0)
        close(w.timer);
    return outcome(&w, command);
}
