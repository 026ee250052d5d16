/* A process that kills the child's group if this command is killed or stops running. */
#ifndef SYNCGUARD_CLI_WATCHDOG_H
#define SYNCGUARD_CLI_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct cli_watchdog {
    pid_t pid; /* -1: not running */
    int pipe;
} cli_watchdog;

#define CLI_WATCHDOG_INIT                                                                          \
    {                                                                                              \
        -1, -1                                                                                     \
    }

/* Remembers where the arguments are, because the watchdog overwrites them with its title in ps. */
void cli_watchdog_note_arguments(int argc, char **argv);
/* Leaves pid at -1 if no process or descriptor is left. The watchdog kills nothing before it is
 * fed. */
void cli_watchdog_start(cli_watchdog *watchdog, int64_t grace_ms);
/* False if it is not running; one that has died can be started again. */
bool cli_watchdog_alive(cli_watchdog *watchdog);
/* Tells it which process group to kill, and when the lease ends, on the clock of cli_now_ms. May be
 * called after vfork. */
void cli_watchdog_feed(const cli_watchdog *watchdog, pid_t group, int64_t lease_end_ms);
void cli_watchdog_stop(cli_watchdog *watchdog);

#endif
