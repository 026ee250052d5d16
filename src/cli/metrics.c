/* See metrics.h. */
#include "metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syncguard.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report.h"
#include "text.h"
#include "times.h"
#include "waiting.h"

/* The names of several keys (run_metrics_label in cmd_run.c), each byte of which may become two. */
#define LABEL_SIZE (2 * CLI_KEY_NAMES_SIZE)
#define FOLDER_LOCK_MS 1000

/* The series from FIRST_KEPT on describe the last run that had the lock and the last success. A run
 * that does not get the lock copies them from the file that it replaces. */
enum {
    ACQUIRED,
    WAIT,
    ATTEMPT_CODE,
    ATTEMPT_TIME,
    HOLD,
    FIRST_KEPT = HOLD,
    LOST,
    CODE,
    COMPLETION,
    SUCCESS,
    SERIES
};

#define TEXT_SIZE (SERIES * (LABEL_SIZE + 512))

/* The help texts must be the same in every file, because the node_exporter merges the files. */
static const struct {
    const char *name;
    const char *help;
} all_series[SERIES] = {
    [ACQUIRED] = {"acquired", "Whether the last attempt got the lock."},
    [WAIT] = {"wait_seconds", "Time that the last attempt waited for the lock."},
    [ATTEMPT_CODE] = {"attempt_exit_code", "Exit code of the last attempt, with or without lock."},
    [ATTEMPT_TIME] = {"attempt_timestamp_seconds", "When the last attempt ended."},
    [HOLD] = {"hold_seconds", "Time that the last run with the lock held it."},
    [LOST] = {"lost", "Whether the last run with the lock lost it before its program ended."},
    [CODE] = {"exit_code",
              "Exit code of the last run with the lock; 128 plus its number for a signal."},
    [COMPLETION] = {"completion_timestamp_seconds", "When the last run with the lock ended."},
    [SUCCESS] = {"success_timestamp_seconds",
                 "When the last run with the lock and exit code 0 ended; 0 if there was none."},
};

/* Escapes a label value for the text format. The key is UTF-8 (the library has checked it). */
static void metrics_escape_label(const char *text, char *out, size_t size)
{
    size_t used = 0;
    for (; *text != '\0' && used + 2 < size; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n')
            out[used++] = '\\';
        out[used++] = (char)(*text == '\n' ? 'n' : *text);
    }
    out[used] = '\0';
}

/* The value of a series in text, in thousandths; -1 if it is missing or not in the form that
 * metrics_format_text writes: at most 15 digits, three of them decimals. */
static int64_t metrics_find_value(const char *text, const char *name, const char *label)
{
    char start[LABEL_SIZE + 128];
    int length = snprintf(start, sizeof start, "\nsyncguard_run_%s{key=\"%s\"} ", name, label);
    const char *found = strstr(text, start);
    if (found == NULL)
        return -1;
    const char *digits = found + length;
    size_t whole = strspn(digits, "0123456789");
    int64_t value = 0;
    if (whole == 0 || whole > 12 || digits[whole] != '.' ||
        strspn(digits + whole + 1, "0123456789") != 3 || digits[whole + 4] != '\n')
        return -1;
    for (size_t i = 0; i < whole + 4; i++)
        value = digits[i] == '.' ? value : value * 10 + (digits[i] - '0');
    return value;
}

/* For a file of an earlier version, which wrote no time of the last success and replaced the
 * figures of a run with those of an attempt without the lock: such figures are not kept. */
static void metrics_complete_values(const char *old, const char *label, int64_t values[SERIES])
{
    bool run = metrics_find_value(old, all_series[ACQUIRED].name, label) == 1000;
    if (values[SUCCESS] >= 0)
        return;
    values[SUCCESS] = 0;
    if (run && values[CODE] == 0 && values[LOST] == 0 && values[COMPLETION] >= 0)
        values[SUCCESS] = values[COMPLETION];
    for (int i = FIRST_KEPT; i < SUCCESS && !run; i++)
        values[i] = -1;
}

/* The values are in thousandths; -1 for a series that is not written. */
static void metrics_collect_values(const char *old, const char *label,
                                   const cli_run_figures *figures, int code, int64_t values[SERIES])
{
    int64_t now = cli_wall_ms();
    values[ACQUIRED] = figures->acquired ? 1000 : 0;
    values[WAIT] = figures->waited_ms;
    values[ATTEMPT_CODE] = (int64_t)code * 1000;
    values[ATTEMPT_TIME] = now;
    for (int i = FIRST_KEPT; i < SERIES; i++)
        values[i] = metrics_find_value(old, all_series[i].name, label);
    metrics_complete_values(old, label, values);
    if (figures->acquired) {
        values[HOLD] = figures->held_ms;
        values[LOST] = figures->lost ? 1000 : 0;
        values[CODE] = values[ATTEMPT_CODE];
        values[COMPLETION] = now;
    }
    if (figures->acquired && code == 0 && !figures->lost)
        values[SUCCESS] = now;
}

/* Returns the length of the text; 0 if it does not fit. */
static size_t metrics_format_text(const char *label, const int64_t values[SERIES], char *out,
                                  size_t size)
{
    size_t used = 0;
    for (int i = 0; i < SERIES; i++) {
        if (values[i] < 0)
            continue;
        const char *name = all_series[i].name;
        int length = snprintf(out + used, size - used,
                              "# HELP syncguard_run_%s %s\n# TYPE syncguard_run_%s gauge\n"
                              "syncguard_run_%s{key=\"%s\"} %lld.%03lld\n",
                              name, all_series[i].help, name, name, label,
                              (long long)(values[i] / 1000), (long long)(values[i] % 1000));
        if (length < 0 || (size_t)length >= size - used)
            return 0;
        used += (size_t)length;
    }
    return used;
}

static bool metrics_write_all(int fd, const char *text, size_t length)
{
    while (length > 0) {
        ssize_t done = write(fd, text, length);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        text += done;
        length -= (size_t)done;
    }
    return true;
}

/* Length of the folder in path, with its slash; 0 if path has none. */
static int metrics_folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? (int)(slash - path) + 1 : 0;
}

/* A new file in the folder of path. The name is hidden and does not end in .prom, so the
 * node_exporter never reads it. If the result is false, errno says why. */
static bool metrics_create_temporary(const char *path, char *name, size_t size, int *fd)
{
    int length =
        snprintf(name, size, "%.*s.syncguard-metrics.XXXXXX", metrics_folder_length(path), path);
    if (length < 0 || (size_t)length >= size) {
        errno = ENAMETOOLONG;
        return false;
    }
    *fd = mkostemp(name, O_CLOEXEC);
    return *fd >= 0;
}

/*
 * Locks the folder of path, so that of two runs that end together the later one reads what the
 * earlier one wrote. Closing the descriptor unlocks it. Every user who may read the folder can lock
 * it, so after a second, or where folders cannot be locked, the run continues without the lock: the
 * result is then -1 or an unlocked descriptor.
 */
static int metrics_lock_folder(const char *path)
{
    char name[PATH_MAX];
    int length = snprintf(name, sizeof name, "%.*s.", metrics_folder_length(path), path);
    if (length < 0 || (size_t)length >= sizeof name)
        return -1;
    int fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int64_t end_ms = cli_now_ms() + FOLDER_LOCK_MS;
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK &&
           cli_now_ms() < end_ms)
        poll(NULL, 0, 10);
    return fd;
}

/* Reads the file and puts a line feed in front of its text, so that every line follows one; "" if
 * it cannot be read or is larger than any file that this command writes. */
static void metrics_read_previous(const char *path, char *out, size_t size)
{
    size_t used = 1;
    ssize_t got = 0;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    out[0] = '\n';
    while (fd >= 0 && used < size && (got = read(fd, out + used, size - used)) > 0)
        used += (size_t)got;
    if (fd >= 0)
        close(fd);
    out[got == 0 && used < size ? used : 0] = '\0';
}

static bool metrics_replace_file(const char *path, const char *text, size_t length)
{
    char name[PATH_MAX];
    int fd = -1;
    if (!metrics_create_temporary(path, name, sizeof name, &fd))
        return false;
    bool written = metrics_write_all(fd, text, length) && fchmod(fd, 0644) == 0;
    int error = written ? 0 : errno;
    if (close(fd) != 0 && error == 0)
        error = errno;
    if (error == 0 && rename(name, path) != 0)
        error = errno;
    if (error != 0)
        unlink(name);
    errno = error;
    return error == 0;
}

/* False: errno says why. */
static bool metrics_update_file(const char *path, const char *key, const cli_run_figures *figures,
                                int code)
{
    char label[LABEL_SIZE], old[TEXT_SIZE];
    int64_t values[SERIES];
    int folder = metrics_lock_folder(path);
    metrics_escape_label(key, label, sizeof label);
    metrics_read_previous(path, old, sizeof old);
    metrics_collect_values(old, label, figures, code, values);
    char text[TEXT_SIZE];
    size_t length = metrics_format_text(label, values, text, sizeof text);
    errno = EOVERFLOW;
    bool done = length > 0 && metrics_replace_file(path, text, length);
    int error = errno;
    if (folder >= 0)
        close(folder);
    errno = error;
    return done;
}

void cli_metrics_write(const char *path, const char *key, const cli_run_figures *figures, int code)
{
    char shown[1024];
    struct stat found;
    cli_escape(path, shown, sizeof shown);
    if (lstat(path, &found) == 0 && !S_ISREG(found.st_mode))
        cli_message("the metrics are not written: '%s' is not a regular file", shown);
    else if (!metrics_update_file(path, key, figures, code))
        cli_message("the metrics cannot be written to '%s': %s", shown, strerror(errno));
}
