/* See metrics.h. */
#include "metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syncguard.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report.h"
#include "text.h"
#include "times.h"
#include "waiting.h"

/* The names of several keys (label_of in cmd_run.c), each byte of which may become two. */
#define LABEL_SIZE (2 * CLI_KEY_NAMES_SIZE)
#define SERIES 6

/* As the text format wants the value of a label. The key is UTF-8 (the library has checked it). */
static void escape_label(const char *text, char *out, size_t size)
{
    size_t used = 0;
    for (; *text != '\0' && used + 2 < size; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n')
            out[used++] = '\\';
        out[used++] = (char)(*text == '\n' ? 'n' : *text);
    }
    out[used] = '\0';
}

typedef struct series {
    const char *name;
    const char *help;
    int64_t thousandths;
} series;

/* The text of help is the same in every file: the node_exporter merges them. */
static size_t make_text(const char *key, const cli_run_figures *figures, int code, char *out,
                        size_t size)
{
    const series all[SERIES] = {
        {"acquired", "Whether the last run got the lock.", figures->acquired ? 1000 : 0},
        {"wait_seconds", "Time that the last run waited for the lock.", figures->waited_ms},
        {"hold_seconds", "Time that the last run held the lock.", figures->held_ms},
        {"lost", "Whether the last run lost the lock before its program ended.",
         figures->lost ? 1000 : 0},
        {"exit_code", "Exit code of the last run; 128 plus its number for a signal.",
         (int64_t)code * 1000},
        {"completion_timestamp_seconds", "When the last run ended.", cli_wall_ms()},
    };
    char label[LABEL_SIZE];
    size_t used = 0;
    escape_label(key, label, sizeof label);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int length = snprintf(out + used, size - used,
                              "# HELP syncguard_run_%s %s\n# TYPE syncguard_run_%s gauge\n"
                              "syncguard_run_%s{key=\"%s\"} %lld.%03lld\n",
                              all[i].name, all[i].help, all[i].name, all[i].name, label,
                              (long long)(all[i].thousandths / 1000),
                              (long long)(all[i].thousandths % 1000));
        if (length < 0 || (size_t)length >= size - used)
            return 0;
        used += (size_t)length;
    }
    return used;
}

static bool write_all(int fd, const char *text, size_t length)
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

/* A new file in the folder of path. The name is hidden and does not end in .prom, so the
 * node_exporter never reads it. False: errno says why. */
static bool make_temporary(const char *path, char *name, size_t size, int *fd)
{
    const char *slash = strrchr(path, '/');
    int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
    int length = snprintf(name, size, "%.*s.syncguard-metrics.XXXXXX", folder, path);
    if (length < 0 || (size_t)length >= size) {
        errno = ENAMETOOLONG;
        return false;
    }
    *fd = mkostemp(name, O_CLOEXEC);
    return *fd >= 0;
}

static bool replace(const char *path, const char *text, size_t length)
{
    char name[PATH_MAX];
    int fd = -1;
    if (!make_temporary(path, name, sizeof name, &fd))
        return false;
    bool written = write_all(fd, text, length) && fchmod(fd, 0644) == 0;
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

void cli_metrics_write(const char *path, const char *key, const cli_run_figures *figures, int code)
{
    char text[SERIES * (LABEL_SIZE + 512)], shown[1024];
    struct stat found;
    size_t length = make_text(key, figures, code, text, sizeof text);
    cli_escape(path, shown, sizeof shown);
    if (lstat(path, &found) == 0 && !S_ISREG(found.st_mode))
        cli_message("the metrics are not written: '%s' is not a regular file", shown);
    else if (length == 0 || !replace(path, text, length))
        cli_message("the metrics cannot be written to '%s': %s", shown, strerror(errno));
}
