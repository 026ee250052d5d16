/* The results of one `syncguard run`, as a file for the textfile collector of the node_exporter. */
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
 * After a run that did not get the lock, the file still describes the last run of this key that had
 * it, and the last success. Replaces path atomically with a new file of mode 0644: a reader sees
 * either the old file or the new one. A path that is a symbolic link, or not a regular file, is
 * left alone. A failure only leads to a message: the exit code stays that of the program.
 */
void cli_metrics_write(const char *path, const char *key, const cli_run_figures *figures, int code);

#endif
