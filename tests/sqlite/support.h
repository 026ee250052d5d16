/*
 * For the SQLite tests: a folder per test, the worker as a process, and short
 * forms of opening. The worker's path is the test program's first argument.
 */
#ifndef SQLITE_SUPPORT_H
#define SQLITE_SUPPORT_H

#include <sys/types.h>

#include "syncguard/sqlite.h"
#include "syncguard/sys/backend.h"
#include "test_assert.h"

#define PATH_BYTES 400

extern const char *worker_path;

/* A folder of the test, removed with its content after the test. */
typedef struct test_dir {
    char path[128];
    char file[PATH_BYTES]; /* path/locks.db */
    char url[PATH_BYTES];
} test_dir;

int create_folder(void **state);
int remove_folder(void **state);

/* The path of name in the folder. */
const char *beside(const test_dir *dir, const char *name, char out[PATH_BYTES]);
void write_file(const char *path, const void *bytes, size_t length);
/* A checksum of the content; fails the test if the file is not there. */
uint64_t file_sum(const char *path);

syncguard_backend *open_file(const char *path);
syncguard_status try_open(const char *path, syncguard_error *err);

/* Runs SQL on a file with a connection of its own, and writes the first result as text to out. */
void sql(const char *path, const char *text, char *out, size_t size);

typedef struct child {
    pid_t pid;
    int in;
    FILE *out;
} child;

/* Starts the worker with arguments up to NULL. */
child start_worker(const char *first, ...);
/* Closes its stdin, waits for its end and returns its exit code. */
int end_worker(child *self);
/* Starts a worker and ends it; line gets the first line of its output. */
int run_worker(char *line, size_t size, const char *first, ...);

#endif
