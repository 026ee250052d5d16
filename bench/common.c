/* Clock, medians, pinning, and an acquire and release through the library. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

double bench_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int doubles_compare_ascending(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_quantile(double *values, size_t count, double part)
{
    qsort(values, count, sizeof *values, doubles_compare_ascending);
    size_t index = (size_t)((double)count * part);
    return values[index < count ? index : count - 1];
}

int bench_often(const bench_store *store)
{
    int often = 3 * store->repetitions;
    return often < BENCH_MAX_REPETITIONS ? often : BENCH_MAX_REPETITIONS;
}

long bench_scaled(const bench_store *store, long locks)
{
    return !store->brief ? locks : locks < 100 ? 1 : locks / 100;
}

void bench_die(const char *what, const char *why)
{
    bench_unpin();
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
             option == NULL             ? ""
             : strchr(url, '?') != NULL ? "&"
                                        : "?",
             option == NULL ? "" : option);
}

static atomic_long debug_lines;

static void bench_count_debug_line(void *context, syncguard_log_level level, const char *message)
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
    patient.log = bench_count_debug_line;
    patient.timeout_ms = 60000; /* a slow disk is a figure, not a failure */
    bench_with_option(url, option, whole, sizeof whole);
    syncguard_backend *backend = NULL;
    syncguard_error err;
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

/* The processes that were moved, and the processors they had before. */
static struct {
    int server; /* 0: none */
    cpu_set_t server_before, own_before;
} pinned;

/* Moves the server with its processes; those that it starts later inherit the affinity. */
static void server_set_affinity(int pid, const cpu_set_t *where)
{
    char path[64];
    if (sched_setaffinity(pid, sizeof *where, where) != 0)
        bench_die("pinning", strerror(errno));
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        bench_die(path, "cannot be read");
    int child = 0;
    while (fscanf(file, "%d", &child) == 1)
        (void)sched_setaffinity(child, sizeof *where, where); /* the process may be gone */
    fclose(file);
}

static cpu_set_t cpu_set_pick_one(const cpu_set_t *allowed, bool last)
{
    cpu_set_t one;
    size_t chosen = CPU_SETSIZE;
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, allowed) != 0 && (last || chosen == CPU_SETSIZE))
            chosen = i;
    }
    CPU_SET(chosen, &one);
    return one;
}

bool bench_pin(const bench_store *store, void *plain)
{
    int server = store->own && store->raw->server_pid != NULL ? store->raw->server_pid(plain) : 0;
    if (server <= 0)
        return false;
    if (sched_getaffinity(0, sizeof pinned.own_before, &pinned.own_before) != 0 ||
        sched_getaffinity(server, sizeof pinned.server_before, &pinned.server_before) != 0)
        bench_die("pinning", strerror(errno));
    if (CPU_COUNT(&pinned.own_before) < 2)
        return false;
    cpu_set_t first = cpu_set_pick_one(&pinned.own_before, false),
              last = cpu_set_pick_one(&pinned.own_before, true);
    server_set_affinity(server, &first);
    pinned.server = server;
    if (sched_setaffinity(0, sizeof last, &last) != 0)
        bench_die("pinning", strerror(errno));
    return true;
}

void bench_unpin(void)
{
    int server = pinned.server;
    if (server == 0)
        return;
    pinned.server = 0;
    (void)sched_setaffinity(0, sizeof pinned.own_before, &pinned.own_before);
    server_set_affinity(server, &pinned.server_before);
}

bool bench_pinned(void)
{
    return pinned.server != 0;
}

bool bench_has_bars(const bench_raw *raw)
{
    return !raw->one_processor || bench_pinned();
}

void bench_tidy(const bench_store *store)
{
    if (store->own && store->raw->tidy != NULL)
        store->raw->tidy(store->url);
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
