/*
 * Lines on stderr. Each is one write, so that lines of several processes do not
 * mix, and never holds a key that was not given, a lock id or a credential.
 *
 * The status line is the exception: it stays without a newline until the next
 * message or call replaces it. Log lines may come from any thread, so whether it
 * is shown is atomic.
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

#define CLEAR "\r\033[K"

static atomic_bool verbose;
static atomic_bool line_shown;

void cli_set_verbose(bool on)
{
    atomic_store(&verbose, on);
}

bool cli_on_terminal(void)
{
    const char *kind = NULL;
    if (isatty(STDERR_FILENO) == 0)
        return false;
    kind = getenv("TERM");
    return kind != NULL && *kind != '\0' && strcmp(kind, "dumb") != 0;
}

static void put(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t done = write(STDERR_FILENO, text, length);
        if (done <= 0)
            return; /* nobody left to tell */
        text += done;
        length -= (size_t)done;
    }
}

/* Texts of servers and names of files may come in, so the whole message is made harmless. */
static void say(const char *format, va_list arguments)
{
    char message[1024], line[1024];
    size_t used = 0;
    if (atomic_exchange(&line_shown, false)) {
        memcpy(line, CLEAR, sizeof CLEAR - 1);
        used = sizeof CLEAR - 1;
    }
    used += (size_t)snprintf(line + used, sizeof line - used, "syncguard: ");
    vsnprintf(message, sizeof message, format, arguments);
    cli_harmless(message, line + used, sizeof line - used - 1);
    used += strlen(line + used);
    line[used++] = '\n';
    put(line, used);
}

void cli_say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

void cli_tell(const char *format, ...)
{
    va_list arguments;
    if (!atomic_load(&verbose))
        return;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

void cli_note(const char *format, ...)
{
    va_list arguments;
    if (!atomic_load(&verbose) && !cli_on_terminal())
        return;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

int cli_usage_error(const char *command, const char *format, ...)
{
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    cli_say("%s (see 'syncguard%s%s --help')", what, command != NULL ? " " : "",
            command != NULL ? command : "");
    return CLI_USAGE;
}

static const char *hint(syncguard_status status)
{
    switch (status) {
    case SYNCGUARD_E_SERVICE_UNAVAILABLE:
        return "is the store there, and is the URL right?";
    case SYNCGUARD_E_NETWORK_TIMEOUT:
        return "the store did not answer in time; ?timeout_ms=N in the URL allows more";
    case SYNCGUARD_E_RATE_LIMITED:
        return "a limit of the store or of this process is reached; try later";
    case SYNCGUARD_E_AUTH_FAILED:
        return "check user, password and rights on the store";
    case SYNCGUARD_E_OUT_OF_MEMORY:
        return "free some memory and try again";
    default:
        return "'syncguard doctor' looks for causes";
    }
}

int cli_failure(const cli_options *options, const syncguard_error *err)
{
    const char *what = err->message[0] != '\0' ? err->message : syncguard_status_text(err->code);
    if (err->code == SYNCGUARD_E_ABORTED)
        return cli_exit_code(err->code);
    if (err->code == SYNCGUARD_E_INVALID_ARGUMENT)
        return cli_usage_error(options->command->name, "%s", what);
    cli_say("%s (%s%s%s: %s)", what, syncguard_status_name(err->code),
            err->native[0] != '\0' ? " " : "", err->native, hint(err->code));
    return cli_exit_code(err->code);
}

void cli_log(void *context, syncguard_log_level level, const char *message)
{
    (void)context;
    if (level >= SYNCGUARD_LOG_WARN)
        cli_say("%s", message);
    else if (level >= SYNCGUARD_LOG_INFO)
        cli_tell("%s", message);
}

void cli_release_error(void *context, const syncguard_error *error, const char *key,
                       const char *lock_id, const char *source)
{
    (void)context;
    (void)key;
    (void)lock_id;
    (void)source;
    cli_say("the lock could not be released: %s (%s: it ends with its lease)", error->message,
            syncguard_status_name(error->code));
}

/* Cut at the width of the terminal (in bytes: rather too short than wrapped). */
static size_t fitting(const char *text)
{
    struct winsize window;
    size_t length = strlen(text), width = 80;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
        width = window.ws_col;
    if (length < width)
        return length;
    length = width - 1;
    while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80)
        length--;
    return length;
}

/* A job in the background has no line of its own to keep: the shell writes there. */
bool cli_may_show_line(void)
{
    return cli_on_terminal() && tcgetpgrp(STDERR_FILENO) == getpgrp();
}

void cli_status_line(const char *text)
{
    char line[1024], harmless[1024];
    size_t length = 0;
    bool shown = text != NULL && *text != '\0';
    if (!atomic_exchange(&line_shown, shown) && !shown)
        return;
    memcpy(line, CLEAR, sizeof CLEAR - 1);
    if (shown) {
        cli_harmless(text, harmless, sizeof harmless);
        length = fitting(harmless);
        if (length > sizeof line - sizeof CLEAR)
            length = sizeof line - sizeof CLEAR;
        memcpy(line + sizeof CLEAR - 1, harmless, length);
    }
    put(line, sizeof CLEAR - 1 + length);
}
