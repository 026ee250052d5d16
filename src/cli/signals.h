/* Signals of the command, and the pipe that wakes its main loop. */
#ifndef SYNCGUARD_CLI_SIGNALS_H
#define SYNCGUARD_CLI_SIGNALS_H

#include <signal.h>

#include <syncguard.h>

/* A file that may not grow (ulimit -f) becomes a write error instead of a deadly signal. */
void cli_signals_ignore_size_limit(void);
/* A closed pipe becomes a write error, too. For commands without a child. */
void cli_signals_ignore_pipe(void);
/* Creates the wake-up pipe, catches the signals that end or stop the command, and unblocks those
 * that it cannot do without. False with errno if there is no pipe. */
bool cli_signals_start(void);
/* The object that a signal which ends the command triggers; NULL: none. */
void cli_signals_abort(syncguard_abort *abort_object);
/* The first signal that asked the command to end, or 0. */
int cli_signals_ended(void);
/* The number of a signal that arrived and was not returned yet, or 0. */
int cli_signals_next(void);

/* Before the child starts: SIGUSR1 and SIGUSR2 that arrived while there was none are not for it. It
 * has no handler yet and would die of them. */
void cli_signals_forget_user(void);

/* Readable after a signal or cli_wake. */
int cli_wake_fd(void);
void cli_wake(void);
void cli_wake_drain(void);

/* From now on SIGTSTP is passed to the child. */
void cli_signals_forward_stop(void);
/* Stops this process and its group by the default action of the signal until it is continued.
 * False if it could not be stopped (an orphaned process group). */
bool cli_signals_stop(int number);

/* At its end this command shall die of the signal, so that a shell loop or a script that runs it
 * stops as if it had run the child itself. */
void cli_signals_die_of(int number);
/* Does so, if it shall. */
void cli_signals_die(void);

/* Blocks all signals; for the time around a fork. */
void cli_signals_block(sigset_t *before);
/* In a child before exec, with all signals blocked: restores what cli_signals_start changed. */
void cli_signals_reset(void);

#endif
