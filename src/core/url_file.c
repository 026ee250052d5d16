/*
 * Reading a URL from a file or a pipe. It never blocks without a limit: a pipe is opened without
 * waiting for its writer, and each wait ends by deadline and abort object. Reading stops at the
 * end of the line, because a writer may keep its pipe open.
 */
#include "core/default_url.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "operations.h"
#include "syncguard/sys/cancel.h"
#include "syncguard/sys/fail.h"
#include "syncguard/sys/wait.h"

enum { PIPE_TIMEOUT_MS = 30000, CHUNK_BYTES = 512 };

/* The line that is being read, in the caller's buffer. Comments and blank lines leave it empty. */
typedef struct url_line {
    char *text;
    size_t size;
    size_t used;
    bool comment;
    bool refused; /* it is too long, or not text */
} url_line;

/* Adds one character. True at the end of the line with the URL. */
static bool url_line_add(url_line *line, char c)
{
    if (c == '\n' || c == '\r') {
        line->comment = false;
        return line->used > 0;
    }
    if (line->used == 0 && c == '#')
        line->comment = true;
    if (line->comment || (line->used == 0 && (c == ' ' || c == '\t')))
        return false;
    line->refused = c == '\0' || line->used + 1 >= line->size;
    if (!line->refused)
        line->text[line->used++] = c;
    return line->refused;
}

/* Reads the bytes that are available. True at the end of the line or of the file; *error: errno of
 * a failure. */
static bool url_line_read(url_line *line, int fd, int *error)
{
    char chunk[CHUNK_BYTES];
    bool ended = false;
    ssize_t got = read(fd, chunk, sizeof chunk);
    *error = got < 0 && errno != EINTR && errno != EAGAIN ? errno : 0;
    for (ssize_t i = 0; i < got && !ended; i++)
        ended = url_line_add(line, chunk[i]);
    explicit_bzero(chunk, sizeof chunk); /* it may hold a password */
    return ended || got == 0 || *error != 0;
}

/* Returns the descriptor; -1 with errno if it cannot be opened; -2 if it is a kind of file that may
 * not be read. */
static int url_file_open(const char *path, bool pipes)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 ||
        (fstat(fd, &about) == 0 && (S_ISREG(about.st_mode) || (pipes && S_ISFIFO(about.st_mode)))))
        return fd;
    close(fd);
    return -2;
}

static syncguard_status url_file_fill(url_line *line, int fd, const char *path,
                                      const syncguard_limits *limits, syncguard_error *err)
{
    int error = 0;
    do {
        /* Reading a pipe before its writer has opened it would return the end of the file. */
        struct pollfd readable = {fd, POLLIN, 0};
        syncguard_status status = syncguard_limits_check(limits, err);
        if (status == SYNCGUARD_OK)
            status = syncguard_wait_fds(&readable, 1, limits, err);
        if (status == SYNCGUARD_E_NETWORK_TIMEOUT)
            return syncguard_fail(err, status, NULL, "no URL came from the pipe %s in time", path);
        if (status != SYNCGUARD_OK)
            return status;
    } while (!url_line_read(line, fd, &error));
    if (error != 0)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "cannot read the URL from %s: %s", path, syncguard_errno_text(error));
    if (line->refused || line->used == 0)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              line->refused ? "the line in %s is not a URL, or too long"
                                            : "there is no URL in %s",
                              path);
    return SYNCGUARD_OK;
}

syncguard_status sg_url_file_read(const char *path, const syncguard_call *call, bool pipes,
                                  char *buffer, size_t size, syncguard_error *err)
{
    url_line line = {buffer, size, 0, false, false};
    syncguard_limits limits;
    syncguard_status status = sg_call_read(call, PIPE_TIMEOUT_MS, &limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    int fd = url_file_open(path, pipes);
    if (fd == -1 && (errno == ENOENT || errno == ENOTDIR))
        return SYNCGUARD_ABSENT;
    if (fd == -1)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "cannot read the URL from %s: %s", path, syncguard_errno_text(errno));
    if (fd < 0)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "cannot read the URL from %s: it is not a regular file%s", path,
                              pipes ? " or a pipe" : "");
    status = url_file_fill(&line, fd, path, &limits, err);
    close(fd);
    while (line.used > 0 && (buffer[line.used - 1] == ' ' || buffer[line.used - 1] == '\t'))
        line.used--;
    buffer[status == SYNCGUARD_OK ? line.used : 0] = '\0';
    return status;
}

syncguard_status syncguard_url_from_file(const char *path, const syncguard_call *call, char *buffer,
                                         size_t size, syncguard_error *err)
{
    SYNCGUARD_NO_CANCEL;
    syncguard_error_clear(err);
    if (buffer == NULL || size == 0)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "no buffer for the URL");
    buffer[0] = '\0';
    if (path == NULL || *path == '\0')
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the file with the URL has no name");
    return sg_url_file_read(path, call, true, buffer, size, err);
}
