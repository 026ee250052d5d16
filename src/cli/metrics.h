/* What one `syncguard run` did, as a file for the textfile collector of the node_exporter. */
#ifndef SYNCGUARD_CLI_METRICS_H
#define SYNCGUARD_CLI_METRICS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cli_run_figures {
    int64_t waited_ms;
    int64_t held_ms;
    bool acquired;
    bool lost;
} cli_run_figures;

/*
 * A run that did not get the lock keeps what the file says of the last run of this key that had it,
 * and of the last success. Replaces path by a new file of mode 0644, at once: a reader sees the old
 * or the new one. A path that is a link or anything but a regular file is left alone. A failure is
 * a message, nothing more: the exit code stays that of the program.
 */
void cli_metrics_write(const char *path, const char *key, const cli_run_figures *figures, int code);

#endif
