/*
 * Messages on stderr. They name the key, the owner of a lock and the host of the store,
 * never a lock id or a credential.
 *
 * The status line has no newline; the next message or call replaces it. Log
 * messages may come from any thread, so its state is atomic.
 *
 * A message never waits long for its reader: a pipe that no process reads must stop neither the
 * supervision of a child nor the renewals. A message that does not fit into the pipe is lost; a
 * record is written completely or reported as failed.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "exitcode.h"
#include "report.h"
#include "text.h"
#include "times.h"

enum { UNREAD_MS = 100, RECORD_MS = 10000, RETRY_MS = 10 };
#define CLEAR "\r\033[K"

static const char *command;
static char store[512];
static char url_source[1024];
static atomic_bool verbose;
static atomic_bool line_shown;
static atomic_bool unread; /* the last message found stderr full */

void cli_set_command(const char *name)
{
    command = name;
}

void cli_set_verbose(bool on)
{
    atomic_store(&verbose, on);
}

void cli_set_store(const char *shown)
{
    snprintf(store, sizeof store, "%s", shown);
}

const char *cli_store_name(void)
{
    return store;
}

void cli_set_source(const char *place)
{
    snprintf(url_source, sizeof url_source, "%s", place);
}

const char *cli_source(void)
{
    return url_source;
}

static bool stderr_is_terminal(void)
{
    if (isatty(STDERR_FILENO) == 0)
        return false;
    const char *kind = getenv("TERM");
    return kind != NULL && *kind != '\0' && strcmp(kind, "dumb") != 0;
}

/* Waits for room in the pipe. If the last wait was in vain, it only checks whether the reader has
 * read since. */
static bool stderr_wait_for_room(void)
{
    struct pollfd stream = {STDERR_FILENO, POLLOUT, 0};
    int64_t end = cli_now_ms() + (atomic_load(&unread) ? 0 : UNREAD_MS);
    int ready = 0;
    do {
        int64_t left = end - cli_now_ms();
        ready = poll(&stream, 1, left > 0 ? (int)left : 0);
    } while (ready < 0 && errno == EINTR);
    atomic_store(&unread, ready == 0);
    return ready != 0; /* if poll fails, the write reports the error */
}

/* A pipe with room takes PIPE_BUF bytes without blocking. */
static void stderr_write(const char *text, size_t length)
{
    while (length > 0 && stderr_wait_for_room()) {
        ssize_t done = write(STDERR_FILENO, text, length < PIPE_BUF ? length : PIPE_BUF);
        if (done <= 0)
            return; /* stderr is closed or full: nothing to be done */
        text += done;
        length -= (size_t)done;
    }
}

/* A message may contain texts of servers and file names, so all of it is escaped. */
static void stderr_print_message(const char *format, va_list arguments)
{
    char message[4096], line[4096];
    size_t used = 0;
    if (atomic_exchange(&line_shown, false)) {
        memcpy(line, CLEAR, sizeof CLEAR - 1);
        used = sizeof CLEAR - 1;
    }
    used += (size_t)snprintf(line + used, sizeof line - used, "syncguard: ");
    vsnprintf(message, sizeof message, format, arguments);
    cli_escape_controls(message, line + used, sizeof line - used - 1);
    used += strlen(line + used);
    line[used++] = '\n';
    stderr_write(line, used);
}

void cli_message(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    stderr_print_message(format, arguments);
    va_end(arguments);
}

/* If a writable descriptor still refuses the data (EAGAIN), the write is repeated after a pause. */
static bool stderr_write_record(const char *text, size_t length)
{
    int64_t end = cli_now_ms() + RECORD_MS;
    while (length > 0) {
        struct pollfd stream = {STDERR_FILENO, POLLOUT, 0};
        int64_t left = end - cli_now_ms();
        if (left <= 0)
            return false;
        if (poll(&stream, 1, (int)left) <= 0)
            continue; /* a signal, or the time is over */
        ssize_t done = write(STDERR_FILENO, text, length < PIPE_BUF ? length : PIPE_BUF);
        if (done < 0 && errno == EAGAIN)
            poll(NULL, 0, RETRY_MS);
        else if (done < 0 && errno != EINTR)
            return false;
        text += done > 0 ? done : 0;
        length -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

bool cli_record(const char *line)
{
    char text[CLI_RECORD_SIZE + 16];
    int length = snprintf(text, sizeof text, "syncguard: %s\n", line);
    return length > 0 && (size_t)length < sizeof text && stderr_write_record(text, (size_t)length);
}

void cli_verbose(const char *format, ...)
{
    va_list arguments;
    if (!atomic_load(&verbose))
        return;
    va_start(arguments, format);
    stderr_print_message(format, arguments);
    va_end(arguments);
}

bool cli_notices(void)
{
    return atomic_load(&verbose) || stderr_is_terminal();
}

void cli_notice(const char *format, ...)
{
    va_list arguments;
    if (!cli_notices())
        return;
    va_start(arguments, format);
    stderr_print_message(format, arguments);
    va_end(arguments);
}

int cli_usage_error(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cli_message("%s (see 'syncguard%s%s --help')", text, command != NULL ? " " : "",
                command != NULL ? command : "");
    return CLI_USAGE;
}

/* A Redis server without TLS waits in silence for the end of a line; one with TLS hangs up. */
static const char *report_tls_hint(const syncguard_error *err)
{
    if (strncmp(store, "rediss://", 9) == 0 && err->code == SYNCGUARD_E_NETWORK_TIMEOUT)
        return "the store did not answer in time; if its port speaks no TLS, use redis://";
    if (strncmp(store, "redis://", 8) == 0 && strcmp(err->native, "EOF") == 0)
        return "is the store running? if its port speaks TLS, use rediss://";
    if (strncmp(store, "rediss://", 9) == 0 && strcmp(err->native, "EOF") == 0)
        return "is the store running? if it wants a client certificate, use tls_cert and tls_key";
    return NULL;
}

/* Whether libpq could not use the client's own certificate or its key. */
static bool own_certificate_failed(const char *what)
{
    return strstr(what, "private key file") != NULL ||
           (strstr(what, "certificate file") != NULL &&
            strstr(what, "root certificate file") == NULL);
}

/* No password helps against a certificate that is not accepted. */
static const char *certificate_hint(const syncguard_error *err)
{
    bool postgres = strncmp(store, "postgres", 8) == 0;
    if (postgres && own_certificate_failed(err->message))
        return "check sslcert and sslkey";
    if (strstr(err->message, "certificate") == NULL)
        return NULL;
    if (strncmp(store, "redis", 5) == 0)
        return "check the server's certificate, tls_ca and tls_server_name";
    if (postgres)
        return "check the server's certificate, sslrootcert and the name of the host";
    return "check the server's certificate and ca_file";
}

/* For a store that is a file: its name is not set here, and there is no server to check. */
static const char *file_hint(const syncguard_error *err)
{
    if (*store != '\0')
        return NULL;
    if (err->code == SYNCGUARD_E_SERVICE_UNAVAILABLE)
        return "check the file, its folder and the disk";
    if (err->code == SYNCGUARD_E_AUTH_FAILED)
        return "check the owner and the mode of the file and of its folder";
    return NULL;
}

static bool command_is(const char *name)
{
    return command != NULL && strcmp(command, name) == 0;
}

/* The server has accepted user and password. Doctor does not help if it was itself refused, nor in
 * setup, which lacks the permission to create tables: without tables, doctor can only refer to
 * setup. */
static const char *permission_hint(const syncguard_error *err)
{
    static const char *const codes[] = {"NOPERM", "42501", "PERMISSION_DENIED"};
    bool missing = false;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        missing = missing || strcmp(err->native, codes[i]) == 0;
    if (!missing || command_is("doctor"))
        return NULL;
    return command_is("setup")
               ? "an administrator can execute what 'syncguard setup --print' prints"
               : "'syncguard doctor' shows which permissions are missing";
}

static const char *report_error_hint(const syncguard_error *err)
{
    if (report_tls_hint(err) != NULL)
        return report_tls_hint(err);
    if (certificate_hint(err) != NULL)
        return certificate_hint(err);
    if (file_hint(err) != NULL)
        return file_hint(err);
    if (permission_hint(err) != NULL)
        return permission_hint(err);
    switch (err->code) {
    case SYNCGUARD_E_SERVICE_UNAVAILABLE:
        return "is the store running, and is the URL correct?";
    case SYNCGUARD_E_NETWORK_TIMEOUT:
        return "the store did not answer in time; ?timeout_ms=N in the URL raises the limit";
    case SYNCGUARD_E_RATE_LIMITED:
        return "a limit of the store or of this process is reached; try again later";
    case SYNCGUARD_E_AUTH_FAILED:
        return "check user, password and permissions on the store";
    case SYNCGUARD_E_OUT_OF_MEMORY:
        return "free some memory and try again";
    default:
        return "'syncguard doctor' may find the cause";
    }
}

int cli_failure(const syncguard_error *err)
{
    const char *what = err->message[0] != '\0' ? err->message : syncguard_status_text(err->code);
    if (err->code == SYNCGUARD_E_ABORTED)
        return cli_exit_code(err->code);
    /* A failure that has a code of the store, or whose text begins with a path, is not an error on
     * the command line. */
    bool coded = err->native[0] != '\0';
    if (err->code == SYNCGUARD_E_INVALID_ARGUMENT && (coded || what[0] == '/')) {
        cli_message("%s%s%s (%s%s%s; the URL comes from %s)", store, *store != '\0' ? ": " : "",
                    what, syncguard_status_name(err->code), coded ? " " : "", err->native,
                    url_source);
        return CLI_USAGE;
    }
    if (err->code == SYNCGUARD_E_INVALID_ARGUMENT)
        return cli_usage_error("%s", what);
    /* The message names a server as its URL does; for a file it says where the URL comes from. */
    bool file = file_hint(err) != NULL && what[0] == '/';
    cli_message("%s%s%s (%s%s%s: %s%s%s)", store, *store != '\0' ? ": " : "", what,
                syncguard_status_name(err->code), coded ? " " : "", err->native,
                report_error_hint(err), file ? "; the URL comes from " : "",
                file ? url_source : "");
    return cli_exit_code(err->code);
}

void cli_log(void *context, syncguard_log_level level, const char *message)
{
    (void)context;
    if (level == SYNCGUARD_LOG_WARN)
        cli_message("%s", message);
    else if (level >= SYNCGUARD_LOG_INFO) /* also a loss, which the command reports with the key */
        cli_verbose("%s", message);
}

void cli_release_error(void *context, const syncguard_error *error, const char *key,
                       const char *lock_id, const char *source)
{
    (void)context;
    (void)lock_id;
    (void)source;
    char shown[4 * SYNCGUARD_KEY_SIZE];
    cli_escape(key, shown, sizeof shown);
    cli_message("%s%sthe lock '%s' could not be released: %s (%s: it expires with its lease)",
                store, *store != '\0' ? ": " : "", shown, error->message,
                syncguard_status_name(error->code));
}

/* The length at which text is cut to fit on one line of the terminal. Bytes are counted, so that
 * the line never wraps, and there is room for the ^C that the terminal shows. */
static size_t status_line_fitting_length(const char *text)
{
    struct winsize window;
    size_t length = strlen(text), width = 80;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
        width = window.ws_col;
    width = width > 3 ? width - 2 : 1;
    if (length < width)
        return length;
    length = width - 1;
    while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80)
        length--;
    return length;
}

/* While this process is in the background, the shell writes to the terminal. */
bool cli_has_status_line(void)
{
    return stderr_is_terminal() && tcgetpgrp(STDERR_FILENO) == getpgrp();
}

void cli_status_line(const char *text)
{
    char line[1024], escaped[1024];
    size_t length = 0;
    bool shown = text != NULL && *text != '\0';
    if (!atomic_exchange(&line_shown, shown) && !shown)
        return;
    memcpy(line, CLEAR, sizeof CLEAR - 1);
    if (shown) {
        cli_escape_controls(text, escaped, sizeof escaped);
        length = status_line_fitting_length(escaped);
        if (length > sizeof line - sizeof CLEAR)
            length = sizeof line - sizeof CLEAR;
        memcpy(line + sizeof CLEAR - 1, escaped, length);
    }
    stderr_write(line, sizeof CLEAR - 1 + length);
}
