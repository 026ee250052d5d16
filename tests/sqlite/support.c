/* See support.h. */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

const char *worker_path;

int create_folder(void **state)
{
    const char *base = getenv("TMPDIR");
    test_dir *dir = calloc(1, sizeof *dir);
    if (dir == NULL)
        return -1;
    snprintf(dir->path, sizeof dir->path, "%.80s/syncguard-sqlite-XXXXXX",
             base == NULL ? "/tmp" : base);
    if (mkdtemp(dir->path) == NULL)
        return -1;
    snprintf(dir->file, sizeof dir->file, "%s/locks.db", dir->path);
    snprintf(dir->url, sizeof dir->url, "sqlite:%s/locks.db", dir->path);
    *state = dir;
    return 0;
}

int remove_folder(void **state)
{
    test_dir *dir = *state;
    char command[PATH_BYTES];
    snprintf(command, sizeof command, "chmod -R u+rwX '%s'; rm -rf '%s'", dir->path, dir->path);
    int result = system(command);
    free(dir);
    return result;
}

const char *beside(const test_dir *dir, const char *name, char out[PATH_BYTES])
{
    snprintf(out, PATH_BYTES, "%s/%s", dir->path, name);
    return out;
}

void write_file(const char *path, const void *bytes, size_t length)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, length), (ssize_t)length);
    close(fd);
}

/* Another process reads the file, because closing a descriptor here would drop SQLite's locks on
 * it. */
uint64_t file_sum(const char *path)
{
    char command[PATH_BYTES + 32];
    unsigned long sum = 0;
    unsigned long length = 0;
    snprintf(command, sizeof command, "cksum <'%s'", path);
    FILE *answer = popen(command, "re");
    assert_non_null(answer);
    assert_int_equal(fscanf(answer, "%lu %lu", &sum, &length), 2);
    assert_int_equal(pclose(answer), 0);
    return (uint64_t)sum << 32 ^ length;
}

syncguard_status try_open(const char *path, syncguard_error *err)
{
    syncguard_sqlite_options options = SYNCGUARD_SQLITE_OPTIONS_INIT;
    syncguard_backend *backend = NULL;
    options.path = path;
    syncguard_status status = syncguard_sqlite_open(&options, NULL, &backend, err);
    syncguard_close(backend);
    return status;
}

syncguard_backend *open_file(const char *path)
{
    syncguard_sqlite_options options = SYNCGUARD_SQLITE_OPTIONS_INIT;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    options.path = path;
    assert_status(SYNCGUARD_OK, syncguard_sqlite_open(&options, NULL, &backend, &err));
    return backend;
}

void sql(const char *path, const char *text, char *out, size_t size)
{
    sqlite3 *db = NULL;
    int code = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL);
    assert_int_equal(code, SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_stmt *statement = NULL;
    code = sqlite3_prepare_v2(db, text, -1, &statement, NULL);
    if (code != SQLITE_OK)
        fail_msg("%s: %s", text, sqlite3_errmsg(db));
    code = sqlite3_step(statement);
    if (code == SQLITE_ROW && out != NULL) {
        const unsigned char *answer = sqlite3_column_text(statement, 0);
        snprintf(out, size, "%s", answer == NULL ? "" : (const char *)answer);
    } else if (code != SQLITE_ROW && code != SQLITE_DONE) {
        fail_msg("%s: %s", text, sqlite3_errmsg(db));
    }
    sqlite3_finalize(statement);
    sqlite3_close(db);
}

static child start_list(const char *first, va_list rest)
{
    char *arguments[16] = {(char *)(uintptr_t)worker_path, (char *)(uintptr_t)first};
    int in[2];
    int out[2];
    int count = 2;
    while (count < 15 && (arguments[count] = va_arg(rest, char *)) != NULL)
        count++;
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    fflush(NULL);
    child self = {-1, -1, NULL};
    self.pid = fork();
    assert_true(self.pid >= 0);
    if (self.pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        execv(worker_path, arguments);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    self.in = in[1];
    self.out = fdopen(out[0], "r");
    assert_non_null(self.out);
    return self;
}

child start_worker(const char *first, ...)
{
    va_list rest;
    va_start(rest, first);
    child self = start_list(first, rest);
    va_end(rest);
    return self;
}

int end_worker(child *self)
{
    char rest[256];
    close(self->in);
    while (fgets(rest, sizeof rest, self->out) != NULL)
        continue;
    fclose(self->out);
    int status = 0;
    assert_int_equal(waitpid(self->pid, &status, 0), self->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run_worker(char *line, size_t size, const char *first, ...)
{
    va_list rest;
    va_start(rest, first);
    child self = start_list(first, rest);
    va_end(rest);
    line[0] = '\0';
    if (fgets(line, (int)size, self.out) == NULL)
        line[0] = '\0';
    return end_worker(&self);
}
