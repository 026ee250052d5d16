/* Messages on stderr. Each is one line in one write, so lines of several processes do not mix. */
#ifndef SYNCGUARD_CLI_REPORT_H
#define SYNCGUARD_CLI_REPORT_H

#include <syncguard.h>

/* The command that usage errors refer to; NULL before one is known. */
void cli_set_command(const char *name);
void cli_set_verbose(bool on);
/* The server that failures refer to, without secrets; "" if there is none. */
void cli_set_store(const char *shown);
const char *cli_store_name(void);
/* The source of its URL: an option, a variable or a file. */
void cli_set_source(const char *place);
const char *cli_source(void);

void cli_message(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes a line that must not be lost and has no control characters: waits up to 10 seconds for its
 * reader. False if it could not be written. The caller ignores SIGPIPE. */
#define CLI_RECORD_SIZE 8192
bool cli_record(const char *line);
/* Prints the message only with -v. */
void cli_verbose(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints the message with -v or on a terminal: for outcomes that a script sees in the exit code. */
void cli_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool cli_notices(void);
/* Reports an error on the command line; returns CLI_USAGE. */
int cli_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Reports why an operation failed; returns its exit code. */
int cli_failure(const syncguard_error *err);

/* Callbacks for syncguard_options. */
void cli_log(void *context, syncguard_log_level level, const char *message);
void cli_release_error(void *context, const syncguard_error *error, const char *key,
                       const char *lock_id, const char *source);

/* Shows text (NULL: clears it) on a line that the next call or message replaces. */
void cli_status_line(const char *text);
/* True if stderr is a terminal that can replace a line and this process is in its foreground. */
bool cli_has_status_line(void);

/* audit.c: the audit line, a record, for the operators of the store, of what a user did to the lock
 * of another owner. Writes time, operator, action, store, key, owner, fence and result to stderr,
 * and to syslog if asked for. The line contains neither the lock id nor credentials of the URL.
 * False if the line could not be written to stderr. */
bool cli_audit(const char *action, const char *url, const syncguard_lock_info_raw *lock,
               const char *result, bool to_syslog);

#endif
