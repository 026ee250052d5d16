/*
 * Hand-over between two processes on one SQLite file: from the moment one calls
 * release until the other, which was waiting, has the lock in its hands (so with
 * the sync of its grant). The limit is one commit with its sync, measured beside
 * it as an uncontended acquire.
 *
 * Two copies of this program take turns: whoever has the lock holds it for a
 * moment, releases, and lets the other go first.
 *
 *   sqlite_handover [FOLDER]    (default: a new folder below the working directory)
 *   sqlite_handover --turns FILE LOG    one of the two
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure.h"
#include "syncguard.h"
#include "syncguard/sqlite.h"

#define REPETITIONS 5
#define TURNS 150
#define HOLD_US 1500
#define AWAY_US 1000

typedef struct turn {
    char fence[SYNCGUARD_FENCE_SIZE];
    int pid;
    double acquired_us;
    double released_us; /* when release was called */
} turn;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "sqlite_handover: %s: %s\n", what, why);
    exit(1);
}

static syncguard_backend *open_store(const char *path)
{
    syncguard_sqlite_options options = SYNCGUARD_SQLITE_OPTIONS_INIT;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    options.path = path;
    if (syncguard_sqlite_open(&options, NULL, &backend, &err) != SYNCGUARD_OK)
        die(path, err.message);
    return backend;
}

static void pause_us(long us)
{
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static int take_turns(const char *path, const char *log)
{
    syncguard_error err;
    syncguard_backend *backend = open_store(path);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    int fd = open(log, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        die(log, "cannot be opened");
    for (int i = 0; i < TURNS; i++) {
        turn mine = {.pid = (int)getpid()};
        syncguard_lock *lock = NULL;
        if (syncguard_lock_acquire(backend, "baton", &options, &lock, &err) != SYNCGUARD_OK)
            die("acquire", err.message);
        mine.acquired_us = bench_us();
        memcpy(mine.fence, syncguard_lock_fence(lock), sizeof mine.fence);
        pause_us(HOLD_US);
        mine.released_us = bench_us();
        if (syncguard_lock_release(lock, NULL, &err) != SYNCGUARD_OK)
            die("release", err.message);
        syncguard_lock_dispose(lock);
        if (write(fd, &mine, sizeof mine) != (ssize_t)sizeof mine)
            die(log, "cannot be written");
        pause_us(AWAY_US);
    }
    syncguard_close(backend);
    return 0;
}

static pid_t start(const char *self, const char *path, const char *log)
{
    pid_t pid = fork();
    if (pid == 0) {
        execl(self, self, "--turns", path, log, (char *)NULL);
        _exit(127);
    }
    return pid;
}

static int by_fence(const void *a, const void *b)
{
    return strcmp(((const turn *)a)->fence, ((const turn *)b)->fence);
}

/* Fills times with the hand-overs from one process to the other. */
static size_t read_log(const char *log, double *times, size_t capacity)
{
    static turn turns[2 * TURNS];
    FILE *file = fopen(log, "rb");
    if (file == NULL)
        die(log, "cannot be read");
    size_t count = fread(turns, sizeof turns[0], 2 * TURNS, file);
    size_t filled = 0;
    fclose(file);
    qsort(turns, count, sizeof turns[0], by_fence);
    for (size_t i = 1; i < count && filled < capacity; i++) {
        if (turns[i].acquired_us < turns[i - 1].released_us)
            die("hand-over", "two holders at once");
        if (turns[i].pid != turns[i - 1].pid)
            times[filled++] = turns[i].acquired_us - turns[i - 1].released_us;
    }
    return filled;
}

/* The median of an acquire that nobody disputes. */
static double raw_limit(const char *path)
{
    double times[200];
    syncguard_grant grant;
    syncguard_error err;
    syncguard_backend *backend = open_store(path);
    for (size_t i = 0; i < 200; i++) {
        double begin = bench_us();
        if (syncguard_acquire(backend, "alone", 30000, NULL, &grant, &err) != SYNCGUARD_OK)
            die("acquire", err.message);
        times[i] = bench_us() - begin;
        if (syncguard_release(backend, grant.lock_id, NULL, &err) != SYNCGUARD_OK)
            die("release", err.message);
    }
    syncguard_close(backend);
    return bench_quantile(times, 200, 0.5);
}

static double one_run(const char *self, const char *folder, int number, size_t *count)
{
    static double times[2 * TURNS];
    char path[4200];
    char log[4200];
    int status = 0;
    snprintf(path, sizeof path, "%s/%d.db", folder, number);
    snprintf(log, sizeof log, "%s/%d.log", folder, number);
    int fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    pid_t pids[2] = {start(self, path, log), start(self, path, log)};
    for (int i = 0; i < 2; i++) {
        if (waitpid(pids[i], &status, 0) < 0 || status != 0)
            die("process", "failed");
    }
    *count = read_log(log, times, 2 * TURNS);
    if (*count < TURNS / 5)
        die("hand-over", "the processes hardly met");
    return bench_quantile(times, *count, 0.5);
}

int main(int argc, char **argv)
{
    char folder[4096];
    char path[4200];
    double middle[REPETITIONS];
    double limits[REPETITIONS];
    double ratios[REPETITIONS];
    double bars[REPETITIONS];
    if (argc == 4 && strcmp(argv[1], "--turns") == 0)
        return take_turns(argv[2], argv[3]);
    snprintf(folder, sizeof folder, "%s/bench-sqlite-XXXXXX", argc > 1 ? argv[1] : ".");
    if (mkdtemp(folder) == NULL)
        die(folder, "cannot be made");
    size_t count = 0;
    for (int r = 0; r < REPETITIONS; r++) {
        middle[r] = one_run("/proc/self/exe", folder, r, &count);
        snprintf(path, sizeof path, "%s/%d.db", folder, r);
        limits[r] = raw_limit(path);
        ratios[r] = middle[r] / limits[r];
        bars[r] = middle[r] / 1000;
    }
    double p50 = bench_quantile(middle, REPETITIONS, 0.5);
    (void)bench_figure("sqlite hand-over against one acquire (p50)", p50, "us",
                       bench_quantile(limits, REPETITIONS, 0.5), ratios, REPETITIONS, 0);
    bool holds = bench_figure("sqlite hand-over between processes (p50)", p50, "us", 1000, bars,
                              REPETITIONS, 1.0);
    snprintf(path, sizeof path, "rm -rf '%s'", folder);
    if (system(path) != 0)
        fprintf(stderr, "sqlite_handover: %s is left\n", folder);
    return holds ? 0 : 1;
}
