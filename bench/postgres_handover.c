/*
 * Hand-over between processes: from the moment one calls release until another,
 * which was waiting, has the lock in its hands (so with the sync of its grant).
 * The limit is the plain durable pair, measured in between.
 *
 * Copies of this program take turns: whoever has the lock holds it until all
 * others wait, releases, and stays away for a moment, so that it goes to another.
 *
 *   postgres_handover
 *   postgres_handover --turns URL LOG TURNS HOLD_US    one of the processes
 */
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "postgres_plain.h"

#define REPETITIONS 5
#define TURNS 240 /* of all together */
#define MAX_PROCESSES 8

typedef struct turn {
    char fence[SYNCGUARD_FENCE_SIZE];
    int pid;
    double acquired_us;
    double released_us; /* when release was called */
} turn;

static void pause_us(long us)
{
    struct timespec time = {us / 1000000, us % 1000000 * 1000};

    nanosleep(&time, NULL);
}

static int take_turns(const char *url, const char *log, int turns, long hold_us)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_backend *backend = our_open(url);
    syncguard_error err;
    int fd = open(log, O_WRONLY | O_APPEND | O_CLOEXEC);

    if (fd < 0)
        pg_die("%s cannot be opened", log);
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = 20000;
    for (int i = 0; i < turns; i++) {
        turn mine = {.pid = (int)getpid()};
        syncguard_lock *lock = NULL;

        if (syncguard_lock_acquire(backend, "baton", &options, &lock, &err) != SYNCGUARD_OK)
            pg_die("acquire: %s", err.message);
        mine.acquired_us = bench_us();
        memcpy(mine.fence, syncguard_lock_fence(lock), sizeof mine.fence);
        pause_us(hold_us);
        mine.released_us = bench_us();
        if (syncguard_lock_release(lock, NULL, &err) != SYNCGUARD_OK)
            pg_die("release: %s", err.message);
        syncguard_lock_dispose(lock);
        if (write(fd, &mine, sizeof mine) != (ssize_t)sizeof mine)
            pg_die("%s cannot be written", log);
        pause_us(hold_us / 2);
    }
    syncguard_close(backend);
    return 0;
}

static int by_fence(const void *a, const void *b)
{
    return strcmp(((const turn *)a)->fence, ((const turn *)b)->fence);
}

/* Fills times with the hand-overs from one process to another. */
static size_t read_log(const char *log, double *times)
{
    static turn turns[TURNS + MAX_PROCESSES];
    FILE *file = fopen(log, "rb");
    size_t filled = 0;
    size_t count;

    if (!file)
        pg_die("%s cannot be read", log);
    count = fread(turns, sizeof turns[0], sizeof turns / sizeof turns[0], file);
    fclose(file);
    qsort(turns, count, sizeof turns[0], by_fence);
    for (size_t i = 1; i < count; i++) {
        if (turns[i].acquired_us < turns[i - 1].released_us)
            pg_die("two holders at once");
        if (turns[i].pid != turns[i - 1].pid)
            times[filled++] = turns[i].acquired_us - turns[i - 1].released_us;
    }
    return filled;
}

static double one_run(pg_server *server, int processes, double *p95)
{
    static double times[TURNS + MAX_PROCESSES];
    pid_t pids[MAX_PROCESSES];
    char log[128], turns[16], hold[16];
    size_t count;
    int status = 0;
    int fd;

    snprintf(log, sizeof log, "%s/turns", server->folder);
    snprintf(turns, sizeof turns, "%d", TURNS / processes);
    snprintf(hold, sizeof hold, "%d", 4000);
    fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    close(fd);
    for (int i = 0; i < processes; i++) {
        const char *url = pg_url(server, "bench", NULL);

        pids[i] = fork();
        if (pids[i] == 0) {
            execl("/proc/self/exe", "postgres_handover", "--turns", url, log, turns, hold,
                  (char *)NULL);
            _exit(127);
        }
    }
    for (int i = 0; i < processes; i++) {
        if (waitpid(pids[i], &status, 0) < 0 || status != 0)
            pg_die("a process failed");
    }
    count = read_log(log, times);
    if (count < TURNS / 2)
        pg_die("the processes hardly met: %zu", count);
    *p95 = bench_quantile(times, count, 0.95);
    return bench_quantile(times, count, 0.5);
}

static bool figure(pg_server *server, plain *raw, int processes, double bar)
{
    double middle[REPETITIONS], limits[REPETITIONS], ratios[REPETITIONS], p95[REPETITIONS];
    char name[64];

    for (int r = 0; r < REPETITIONS; r++) {
        double pairs[200];

        for (int i = 0; i < 200; i++)
            pairs[i] = plain_pair(raw, "plain");
        limits[r] = bench_quantile(pairs, 200, 0.5);
        middle[r] = one_run(server, processes, &p95[r]);
        ratios[r] = middle[r] / limits[r];
    }
    snprintf(name, sizeof name, "postgres hand-over, %d processes (p50, p95 %.0f)", processes,
             bench_quantile(p95, REPETITIONS, 0.5));
    return bench_figure(name, bench_quantile(middle, REPETITIONS, 0.5), "us",
                        bench_quantile(limits, REPETITIONS, 0.5), ratios, REPETITIONS, bar);
}

int main(int argc, char **argv)
{
    pg_server *server;
    plain raw;
    bool holds;

    if (argc == 6 && strcmp(argv[1], "--turns") == 0)
        return take_turns(argv[2], argv[3], (int)strtol(argv[4], NULL, 10),
                          strtol(argv[5], NULL, 10));
    server = pg_server_start(NULL);
    pg_make_database(server, "bench");
    plain_open(&raw, server, "bench");
    for (int i = 0; i < 200; i++)
        (void)plain_pair(&raw, "plain");
    holds = figure(server, &raw, 2, 1.25);
    holds = figure(server, &raw, 8, 2.0) && holds;
    PQfinish(raw.pg);
    pg_server_end(server);
    return holds ? 0 : 1;
}
