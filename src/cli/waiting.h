/* Waiting for a lock, for the commands run and acquire. */
#ifndef SYNCGUARD_CLI_WAITING_H
#define SYNCGUARD_CLI_WAITING_H

#include <sys/types.h>

#include "options.h"

typedef struct cli_waiting {
    const cli_options *options;
    const char *key; /* that the command waits for, as far as it is known: one of options->keys */
    char slot_key[SYNCGUARD_KEY_SIZE]; /* with --slots: that of the acquired slot, else of slot 1 */
    char owner[SYNCGUARD_OWNER_SIZE];
    bool owner_is_ours; /* the default label of this process; in a container others may have it */
    syncguard_backend *backend;
    syncguard_abort *abort_object; /* triggered by the signals that end the command */
    int64_t begun_ms;              /* on the clock of cli_now_ms */
    int64_t next_report_ms;
    bool acquired;
} cli_waiting;

/* Catches signals and opens the store; a server that cannot be reached is tried again as -n and -w
 * allow. The owner label names owner_pid. CLI_OK or an exit code; the caller must close it in both
 * cases. */
int cli_waiting_open(cli_waiting *waiting, const cli_options *options, pid_t owner_pid);
void cli_waiting_close(cli_waiting *waiting);

/* Writes "held by OWNER, expires in TIME"; "" if the store does not answer within a second, or if
 * the key is free. */
void cli_holder(cli_waiting *waiting, char *out, size_t size);

/* Acquires as -n, -w and --ttl say, and changes *how accordingly. If no lock is acquired, the
 * result is the exit code, after a message: conflict, timeout (-E may make these 0), signal or
 * failure. */
int cli_acquire(cli_waiting *waiting, syncguard_lock_options *how, syncguard_lock_set **set);

/* The keys for a message, each in quotes: 'a', or 'a', 'b'; those that do not fit are "...". */
#define CLI_KEY_NAMES_SIZE (4 * SYNCGUARD_KEY_SIZE + 16)
void cli_key_names(const cli_options *options, char out[CLI_KEY_NAMES_SIZE]);

#endif
