/* The process group that runs under the lock, and the terminal. */
#ifndef SYNCGUARD_CLI_CHILD_H
#define SYNCGUARD_CLI_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

#include "options.h"
#include "watchdog.h"

struct termios;

typedef struct cli_child {
    pid_t pid; /* also its process group */
    int exec_pipe;
    int tty; /* -1: none */
    bool wants_tty;
    bool has_tty;     /* it is the foreground group */
    int died_of;      /* the signal that killed it, else 0 */
    bool interrupted; /* killed by SIGINT while it had the terminal */
    bool never_ran;   /* its program could not be started */
    struct termios *modes;
} cli_child;

#define CLI_CHILD_INIT                                                                             \
    {                                                                                              \
        -1, -1, -1, false, false, 0, false, false, NULL                                            \
    }

/* Starts argv in a process group of its own. CLI_OK, or an exit code after a message. With a
 * watchdog, the watchdog knows the group before the program runs, the program gets SIGTERM if this
 * process dies, and the program does not start after lease_end_ms. If watchdog is NULL, none of
 * these holds. */
int cli_child_start(cli_child *child, char **argv, char **variables, const cli_watchdog *watchdog,
                    int64_t lease_end_ms);
/* errno of a failed exec, CLI_CHILD_TOO_LATE if the lease was over before the exec, or 0. */
enum { CLI_CHILD_TOO_LATE = -1 };
int cli_child_exec_error(cli_child *child);
void cli_child_signal(const cli_child *child, int number);
/* Signals only the program itself, which must not have been reaped. */
void cli_child_signal_program(const cli_child *child, int number);
/* True while the group has a process. */
bool cli_child_group_alive(const cli_child *child);
/* Gives the terminal to the child if this process is in its foreground. True if it has it. */
bool cli_child_give_terminal(cli_child *child);
/* Takes the terminal back; with restore_modes, also restores the modes that the child changed. */
void cli_child_take_terminal(cli_child *child, bool restore_modes);
void cli_child_free(cli_child *child);

/* supervise.c. Starts argv as the child, and returns its exit code when it has ended. */
int cli_supervise(const cli_options *options, syncguard_lock_set *set, cli_child *child,
                  char **argv, char **variables);

#endif
