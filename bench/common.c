/* Clock, medians, pinning, and a pair of ours. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

double bench_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_quantile(double *values, size_t count, double part)
{
    qsort(values, count, sizeof *values, compare);
    size_t index = (size_t)((double)count * part);
    return values[index < count ? index : count - 1];
}

int bench_often(const bench_store *store)
{
    int often = 3 * store->repetitions;
    return often < BENCH_MAX_REPETITIONS ? often : BENCH_MAX_REPETITIONS;
}

void bench_die(const char *what, const char *why)
{
    fflush(stdout);
    fprintf(stderr, "syncguard-bench: %s: %s\n", what, why);
    exit(70); /* 1 is a missed bar */
}

void bench_pause_us(long us)
{
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&time, &time) != 0 && errno == EINTR)
        ;
}

void bench_with_option(const char *url, const char *option, char *out, size_t size)
{
    snprintf(out, size, "%s%s%s", url,
             option == NULL     ? ""
             : strchr(url, '?') ? "&"
                                : "?",
             option == NULL ? "" : option);
}

static atomic_long debug_lines;

static void count_line(void *context, syncguard_log_level level, const char *message)
{
    (void)context;
    (void)message;
    if (level == SYNCGUARD_LOG_DEBUG)
        atomic_fetch_add(&debug_lines, 1);
}

long bench_conflicts(void)
{
    return atomic_load(&debug_lines);
}

syncguard_backend *bench_open(const char *url, const char *option)
{
    char whole[BENCH_URL_SIZE];
    syncguard_options patient = SYNCGUARD_OPTIONS_INIT;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    patient.log = count_line;
    patient.timeout_ms = 60000; /* a slow disk is a figure, not a failure */
    bench_with_option(url, option, whole, sizeof whole);
    if (syncguard_open(whole, &patient, &backend, &err) != SYNCGUARD_OK)
        bench_die("open", err.message);
    return backend;
}

void bench_pair(syncguard_backend *backend, const char *key)
{
    syncguard_grant grant;
    syncguard_error err;
    if (syncguard_acquire(backend, key, 30000, NULL, &grant, &err) != SYNCGUARD_OK)
        bench_die("acquire", err.message);
    if (syncguard_release(backend, grant.lock_id, NULL, &err) != SYNCGUARD_OK)
        bench_die("release", err.message);
}

int bench_server(const bench_store *store, void *plain)
{
    return store->pins && store->raw->server_pid != NULL ? store->raw->server_pid(plain) : 0;
}

static void allow(int pid, long first, long last)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (long i = first; i <= last; i++)
        CPU_SET((size_t)i, &set);
    (void)sched_setaffinity(pid, sizeof set, &set); /* one that is not ours stays where it is */
}

/* The server with its processes; those that it starts later are where it is. */
static void allow_server(int pid, long first, long last)
{
    char path[64];
    int child = 0;
    allow(pid, first, last);
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fscanf(file, "%d", &child) == 1)
        allow(child, first, last);
    if (file != NULL)
        fclose(file);
}

void bench_pin(int server_pid)
{
    long last = sysconf(_SC_NPROCESSORS_ONLN) - 1;
    if (server_pid <= 0)
        return;
    allow_server(server_pid, 0, 0);
    allow(0, last, last);
}

void bench_unpin(int server_pid)
{
    long last = sysconf(_SC_NPROCESSORS_ONLN) - 1;
    if (server_pid <= 0)
        return;
    allow_server(server_pid, 0, last);
    allow(0, 0, last);
}

static char folder[4096];

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *where)
{
    (void)facts;
    (void)kind;
    (void)where;
    return remove(path);
}

static void remove_folder(void)
{
    if (nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0)
        fprintf(stderr, "syncguard-bench: %s is left\n", folder);
}

const char *bench_folder(void)
{
    char here[3900];
    if (folder[0] != '\0')
        return folder;
    if (getcwd(here, sizeof here) == NULL)
        bench_die("working directory", "cannot be used");
    snprintf(folder, sizeof folder, "%s/syncguard-bench-XXXXXX", here);
    if (mkdtemp(folder) == NULL)
        bench_die(here, "cannot make a folder in it");
    atexit(remove_folder);
    return folder;
}

long bench_rss_bytes(void)
{
    char text[128] = "";
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof text - 1) <= 0 || strchr(text, ' ') == NULL)
        bench_die("/proc/self/statm", "cannot be read");
    close(fd);
    return strtol(strchr(text, ' '), NULL, 10) * sysconf(_SC_PAGESIZE); /* the second number */
}
