/* Signals of the command, and the pipe that wakes its main loop. */
#ifndef SYNCGUARD_CLI_SIGNALS_H
#define SYNCGUARD_CLI_SIGNALS_H

#include <signal.h>

#include <syncguard.h>

/* A file that may not grow (ulimit -f) becomes a write error instead of a deadly signal. */
void cli_signals_ignore_size_limit(void);
/* A closed pipe also becomes a write error. For commands without a child. */
void cli_signals_ignore_pipe(void);
/* Creates the wake-up pipe, catches the signals that end or stop the command, and unblocks those
 * that it cannot do without. False with errno if there is no pipe. */
bool cli_signals_start(void);
/* Sets the abort object that the signals that end the command trigger; NULL: none. */
void cli_signals_abort(syncguard_abort *abort_object);
/* The first signal that asked the command to end, or 0. */
int cli_signals_ended(void);
/* The number of a signal that has arrived and has not been returned yet, or 0. */
int cli_signals_next(void);

/* Called before the child starts: drops SIGUSR1 and SIGUSR2 that arrived earlier and are not meant
 * for it. The child has no handler yet and would die of them. */
void cli_signals_forget_user(void);

/* A descriptor that is readable after a signal or cli_wake. */
int cli_wake_fd(void);
void cli_wake(void);
void cli_wake_drain(void);

/* From now on SIGTSTP is passed to the child. */
void cli_signals_forward_stop(void);
/* Stops this process and its group by the default action of the signal until it is continued.
 * False if it could not be stopped (an orphaned process group). */
bool cli_signals_stop(int number);

/* Makes this command die of the signal at its end, so that a shell loop or a script that runs it
 * stops as if it had run the child itself. */
void cli_signals_die_of(int number);
/* Ends this process by that signal, if one was set. */
void cli_signals_die(void);

/* Blocks all signals around a fork. */
void cli_signals_block(sigset_t *before);
/* In a child before exec, with all signals blocked: restores what cli_signals_start changed. */
void cli_signals_reset(void);

#endif
