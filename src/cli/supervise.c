/*
 * Supervision of the child: signals, job control, and the guarantee that no second
 * child starts while this one runs.
 *
 * The end of the lease is computed on the local clock. While renewals are confirmed
 * it never comes near. If it does, the group gets SIGTERM one grace period before
 * the end and SIGKILL at the end; if the store reports that the lock is gone, it
 * gets SIGTERM at once and SIGKILL after a shorter grace period. The store keeps a
 * lock for another second past its expiry, which covers the time that a kill takes.
 *
 * One thread does all of this; the library's threads only write to the wake-up
 * pipe.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/timerfd.h>
#endif

#include "child.h"
#include "exitcode.h"
#include "report.h"
#include "signals.h"
#include "text.h"
#include "times.h"
#include "waiting.h"
#include "watchdog.h"

enum {
    LONGEST_ACQUIRE_MS = 1000, /* assumed duration of the request that acquired the lock */
    LEASE_GRACE_MS = 5000,
    ABSENT_GRACE_MS = 500,
    DRAIN_STEP_MS = 20,
    WATCHDOG_STEP_MS = 1000, /* between two starts of a watchdog */
    JUMP_MS = 2000,          /* a wake-up this late follows a stop, or a suspend of the machine */
    UNTIMED_STEP_MS = 250
};
#define NEVER INT64_MAX

typedef struct supervisor {
    const cli_options *options;
    syncguard_lock_set *set;
    char keys[CLI_KEY_NAMES_SIZE];
    cli_child *child;
    cli_watchdog watchdog;
    int64_t watchdog_due_ms; /* earliest time of its next start */
    int timer;
    int64_t lease_grace_ms;
    int64_t absent_grace_ms;
    int64_t started_ms;
    int64_t kill_at_ms;
    bool reported; /* the loss of the lock */
    bool ending;   /* SIGTERM or SIGKILL was sent because of the lock */
    bool killed;
    bool reaped;
    int status;
    unsigned passed; /* signals that only the program received, as bits */
} supervisor;

static int64_t ms_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t ms_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* A timer on the clock of the lease: the timeout of poll does not count suspended time. */
static int supervisor_open_timer(void)
{
#ifdef __linux__
    return timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
#else
    return -1;
#endif
}

static void supervisor_sleep(const supervisor *s, int64_t ms)
{
    struct pollfd fds[2] = {{cli_wake_fd(), POLLIN, 0}, {s->timer, POLLIN, 0}};
    int step = -1;
#ifdef __linux__
    struct itimerspec when;
    memset(&when, 0, sizeof when);
    if (ms != NEVER) { /* zero disarms it */
        when.it_value.tv_sec = (time_t)(ms / 1000);
        when.it_value.tv_nsec = (long)(ms % 1000) * 1000000 + 1;
    }
    if (s->timer < 0 || timerfd_settime(s->timer, 0, &when, NULL) != 0)
        step = (int)ms_min(ms, UNTIMED_STEP_MS);
#else
    step = (int)ms_min(ms, UNTIMED_STEP_MS);
#endif
    if (poll(fds, 2, step) > 0)
        cli_wake_drain();
}

/* After a stop or suspend: renews at once, before the child continues or the lease is checked. */
static void supervisor_renew_lease(supervisor *s)
{
    syncguard_call call = SYNCGUARD_CALL_INIT;
    int64_t left = syncguard_lock_set_remaining_ms(s->set);
    int64_t limit = s->options->max_hold_ms;
    if (left <= 0 || (limit > 0 && cli_now_ms() - s->started_ms >= limit))
        return;
    call.timeout_ms = ms_min(left, 1000);
    syncguard_status status = syncguard_lock_set_extend(s->set, s->options->ttl_ms, &call, NULL);
    (void)status; /* an absent lock is lost; a failure is retried in the background */
}

/* After SIGCONT: the child continues only if the lock is still held. */
static void supervisor_on_continued(supervisor *s)
{
    supervisor_renew_lease(s);
    if (!syncguard_lock_set_held(s->set) && !s->options->warn_if_lost)
        return; /* supervisor_check_lease kills it while it is stopped */
    if (s->child->wants_tty)
        cli_child_give_terminal(s->child);
    cli_child_signal(s->child, SIGCONT);
}

static void supervisor_on_stopped(supervisor *s, int number)
{
    bool wants = number == SIGTTIN || number == SIGTTOU;
    if (wants && cli_child_give_terminal(s->child)) {
        cli_child_signal(s->child, SIGCONT);
        return;
    }
    if (number != SIGTSTP && !wants) {
        if (!s->child->has_tty)
            return; /* SIGSTOP from elsewhere: the lock is kept */
        number = SIGTSTP;
    }
    /* Nothing renews the lock while this process is stopped, so the whole group is stopped. */
    cli_child_signal(s->child, SIGSTOP);
    cli_child_take_terminal(s->child, true);
    if (!cli_signals_stop(number) && wants)
        cli_child_signal(s->child, SIGHUP); /* an orphaned group never gets the terminal */
    supervisor_on_continued(s);
}

/* Signals that ask a daemon to reload or to report; its workers may have no handler for them. */
static bool signal_is_for_program_only(int number)
{
    return number == SIGHUP || number == SIGUSR1 || number == SIGUSR2;
}

static void supervisor_forward_signal(supervisor *s, int number)
{
    if (signal_is_for_program_only(number)) {
        s->passed |= 1U << (unsigned)number;
        cli_child_signal_program(s->child, number);
    } else {
        cli_child_signal(s->child, number);
    }
    /* A stopped child could not act on it. */
    if (number == SIGTERM)
        cli_child_signal(s->child, SIGCONT);
    if (number == SIGHUP)
        cli_child_signal_program(s->child, SIGCONT);
}

/* If the program died of a signal that only it received, its group is ended as well, before the
 * release. */
static void supervisor_end_group(const supervisor *s)
{
    int number = WIFSIGNALED(s->status) ? WTERMSIG(s->status) : 0;
    if (!signal_is_for_program_only(number) || (s->passed & (1U << (unsigned)number)) == 0)
        return;
    cli_child_signal(s->child, number);
    cli_child_signal(s->child, SIGCONT);
}

static void supervisor_handle_signals(supervisor *s)
{
    int number = 0;
    while ((number = cli_signals_next()) != 0) {
        if (s->reaped || number == SIGCHLD)
            continue;
        if (number == SIGCONT) {
            supervisor_on_continued(s);
            continue;
        }
        supervisor_forward_signal(s, number);
    }
}

static void supervisor_reap_child(supervisor *s)
{
    int status = 0;
    while (!s->reaped) {
        pid_t pid = waitpid(s->child->pid, &status, WNOHANG | WUNTRACED);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid == 0)
            return;
        if (pid > 0 && WIFSTOPPED(status)) {
            supervisor_on_stopped(s, WSTOPSIG(status));
            continue;
        }
        s->reaped = true;
        s->status = pid > 0 ? status : 0;
        supervisor_end_group(s);
        /* If the lock is gone, the rest of its group gets the shorter grace period. */
        if (s->ending)
            s->kill_at_ms = ms_min(s->kill_at_ms, cli_now_ms() + s->absent_grace_ms);
    }
}

static void supervisor_report_loss(supervisor *s, const char *why)
{
    if (!s->reported)
        cli_message("the lock %s is lost: %s%s", s->keys, why,
                    s->options->warn_if_lost ? "" : " (ending the command)");
    s->reported = true;
}

static const char *lost_reason_text(syncguard_lost_reason reason)
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

static void supervisor_terminate_child(supervisor *s)
{
    if (s->ending)
        return;
    s->ending = true;
    cli_child_signal(s->child, SIGTERM);
    cli_child_signal(s->child, SIGCONT);
}

/* Whether a lease of which this much is left ends because of --max-hold. The hold begins when the
 * acquire is sent, which was a little before started_ms. A lease that ends much earlier was not
 * renewed. */
static bool lease_ends_with_max_hold(const supervisor *s, int64_t left)
{
    int64_t limit = s->options->max_hold_ms;
    int64_t before_ms = ms_min(LONGEST_ACQUIRE_MS, s->options->ttl_ms / 3);
    return limit > 0 && cli_now_ms() + left + before_ms >= s->started_ms + limit;
}

/* Called one grace period before the end of the lease, after SIGTERM was sent to the child. */
static void supervisor_report_lease_end(supervisor *s, int64_t left)
{
    bool over = lease_ends_with_max_hold(s, left);
    const char *store = over ? "" : cli_store_name();
    char span[24];
    cli_format_duration(left, span, sizeof span);
    if (!s->reported)
        cli_message("%s%s%s, the lease of %s ends in %s (ending the command)", store,
                    *store != '\0' ? ": " : "",
                    over ? "--max-hold is nearly over" : "renewals are not confirmed", s->keys,
                    span);
    s->reported = true;
}

/* Ends the child if the lease requires it; returns when the lease has to be checked again. */
static int64_t supervisor_enforce_lease(supervisor *s, int64_t now, syncguard_lost_reason reason,
                                        int64_t left)
{
    int64_t next_ms = NEVER;
    if (reason == SYNCGUARD_LOST_ABSENT) {
        supervisor_terminate_child(s);
        s->kill_at_ms = ms_min(s->kill_at_ms, now + s->absent_grace_ms);
    } else if (reason != SYNCGUARD_LOST_NO || left <= 0) {
        s->kill_at_ms = now;
    } else if (left <= s->lease_grace_ms) {
        supervisor_terminate_child(s);
        next_ms = now + left;
    } else {
        next_ms = now + left - s->lease_grace_ms;
    }
    if (s->kill_at_ms <= now && !s->killed) {
        s->ending = s->killed = true;
        cli_child_signal(s->child, SIGKILL);
    }
    if (s->killed)
        return s->reaped ? now : NEVER;
    return ms_min(next_ms, s->kill_at_ms);
}

/* Does what the lease requires now, and only then reports it; returns the time until it has to be
 * checked again. With --on-lost=warn the library wakes this thread when the lock is lost. */
static int64_t supervisor_check_lease(supervisor *s)
{
    bool warn = s->options->warn_if_lost;
    int64_t now = cli_now_ms();
    int64_t left = syncguard_lock_set_remaining_ms(s->set);
    syncguard_lost_reason reason = syncguard_lock_set_lost(s->set);
    int64_t next_ms = warn ? NEVER : supervisor_enforce_lease(s, now, reason, left);
    if (reason == SYNCGUARD_LOST_NO && left <= 0 && !warn && lease_ends_with_max_hold(s, left))
        reason = SYNCGUARD_LOST_MAX_HOLD; /* in less than a millisecond */
    if (reason != SYNCGUARD_LOST_NO || (left <= 0 && !warn))
        supervisor_report_loss(s, lost_reason_text(reason));
    else if (left <= s->lease_grace_ms && !warn)
        supervisor_report_lease_end(s, left);
    return next_ms == NEVER ? NEVER : ms_max(next_ms - cli_now_ms(), 0);
}

/* Starts the watchdog, again if it was killed (its SIGCHLD wakes this thread). If there is no
 * process or descriptor for it, the child runs without one, and the start is repeated later. With
 * --on-lost=warn there is no watchdog, because nothing is killed. */
static int64_t supervisor_keep_watchdog(supervisor *s)
{
    int64_t now = cli_now_ms();
    if (s->reaped || s->options->warn_if_lost || cli_watchdog_alive(&s->watchdog))
        return NEVER;
    if (now < s->watchdog_due_ms)
        return s->watchdog_due_ms - now;
    s->watchdog_due_ms = now + WATCHDOG_STEP_MS;
    cli_watchdog_start(&s->watchdog, s->lease_grace_ms);
    return s->watchdog.pid > 0 ? NEVER : WATCHDOG_STEP_MS;
}

/* The end of the lease on the clock of cli_now_ms. The clock is read first, so that a pause before
 * the second call makes the result too early, never too late. */
static int64_t supervisor_lease_end_ms(const supervisor *s)
{
    int64_t now = cli_now_ms();
    return now + syncguard_lock_set_remaining_ms(s->set);
}

/* This process was paused past its lease, so another owner may have the lock. */
static int supervisor_report_early_loss(supervisor *s)
{
    if (!s->reported)
        cli_message("the lock %s was lost before the command could start", s->keys);
    s->reported = true;
    s->child->never_ran = true;
    return CLI_LOST;
}

static int supervisor_start_child(supervisor *s, char **argv, char **variables)
{
    (void)supervisor_keep_watchdog(s);
    int64_t end_ms = supervisor_lease_end_ms(s);
    if (!syncguard_lock_set_held(s->set))
        return supervisor_report_early_loss(s);
    cli_signals_forget_user();
    int code = cli_child_start(s->child, argv, variables,
                               s->options->warn_if_lost ? NULL : &s->watchdog, end_ms);
    s->child->never_ran = code != CLI_OK;
    return code;
}

/* Feeds the watchdog three times per lease, so that a short pause of this process does not trigger
 * it. */
static int64_t supervisor_feed_watchdog(const supervisor *s)
{
    int64_t end_ms = supervisor_lease_end_ms(s);
    if (s->watchdog.pid <= 0 || s->reaped)
        return NEVER;
    if (end_ms > cli_now_ms())
        cli_watchdog_feed(&s->watchdog, s->child->pid, end_ms);
    return s->options->ttl_ms / 3 + 1;
}

static bool supervisor_is_finished(const supervisor *s)
{
    if (!s->reaped)
        return false;
    return !s->ending || s->killed || !cli_child_group_alive(s->child);
}

static int supervisor_exit_code(supervisor *s, const char *command)
{
    int reason = cli_child_exec_error(s->child);
    if (reason == CLI_CHILD_TOO_LATE)
        return supervisor_report_early_loss(s);
    if (s->ending)
        return CLI_LOST;
    if (reason != 0) {
        char shown[256];
        cli_escape(command, shown, sizeof shown);
        cli_message("cannot run '%s' (%s)", shown, strerror(reason));
        s->child->never_ran = true;
        return reason == ENOENT ? CLI_NOT_FOUND : CLI_CANNOT_RUN;
    }
    if (WIFSIGNALED(s->status))
        return CLI_SIGNAL_BASE + WTERMSIG(s->status);
    return WEXITSTATUS(s->status);
}

static void supervisor_init(supervisor *s, const cli_options *options, syncguard_lock_set *set,
                            cli_child *child)
{
    memset(s, 0, sizeof *s);
    s->options = options;
    s->set = set;
    cli_key_names(options, s->keys);
    s->child = child;
    s->watchdog = (cli_watchdog)CLI_WATCHDOG_INIT;
    s->timer = supervisor_open_timer();
    s->started_ms = cli_now_ms();
    s->kill_at_ms = NEVER;
    int64_t lease_ms = options->ttl_ms;
    if (options->max_hold_ms > 0)
        lease_ms = ms_min(lease_ms, options->max_hold_ms);
    s->lease_grace_ms = ms_min(LEASE_GRACE_MS, lease_ms / 3);
    s->absent_grace_ms = ABSENT_GRACE_MS;
    if (options->grace_ms >= 0) {
        s->lease_grace_ms = ms_min(options->grace_ms, lease_ms / 3);
        s->absent_grace_ms = options->grace_ms;
    }
}

/* Runs until the child and, if the lock was lost, its group have ended. */
static void supervisor_run(supervisor *s)
{
    int64_t expected = NEVER;
    for (;;) {
        if (expected != NEVER && cli_now_ms() > expected + JUMP_MS)
            supervisor_renew_lease(s);
        supervisor_handle_signals(s);
        supervisor_reap_child(s);
        if (supervisor_is_finished(s))
            return;
        int64_t pause = ms_min(supervisor_check_lease(s), supervisor_keep_watchdog(s));
        if (supervisor_is_finished(s))
            return;
        pause = ms_min(pause, supervisor_feed_watchdog(s));
        if (s->reaped)
            pause = ms_min(pause, DRAIN_STEP_MS);
        expected = pause == NEVER ? NEVER : cli_now_ms() + pause;
        supervisor_sleep(s, pause);
    }
}

int cli_supervise(const cli_options *options, syncguard_lock_set *set, cli_child *child,
                  char **argv, char **variables)
{
    supervisor s;
    supervisor_init(&s, options, set, child);
    int code = supervisor_start_child(&s, argv, variables);
    if (code == CLI_OK)
        supervisor_run(&s);
    cli_watchdog_stop(&s.watchdog);
    if (s.timer >= 0)
        close(s.timer);
    if (code != CLI_OK)
        return code;
    child->died_of = WIFSIGNALED(s.status) && !s.ending ? WTERMSIG(s.status) : 0;
    child->interrupted = child->has_tty && child->died_of == SIGINT;
    cli_child_take_terminal(child, WIFSIGNALED(s.status));
    return supervisor_exit_code(&s, argv[0]);
}
