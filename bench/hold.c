/*
 * Holding many locks: renewals per second as the heartbeat sends them, memory per lock, and a
 * long run in which none may be lost.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "syncguard/sys/backend.h"

#define ROUND_US 300000
#define TAKERS 16
#define HELD_TTL_MS 30000

/* ---- renewals ---- */

static double our_renewals(syncguard_backend *backend, syncguard_extend_op *items)
{
    double start = bench_us();
    long done = 0;
    while (bench_us() - start < ROUND_US) {
        syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), 5000), NULL};
        if (backend->ops->extend_many(backend, items, BENCH_BATCH, &limits, NULL) != SYNCGUARD_OK)
            bench_die("renewal", "failed");
        for (int i = 0; i < BENCH_BATCH; i++)
            done += items[i].status == SYNCGUARD_OK;
    }
    return (double)done / (bench_us() - start) * 1e6;
}

static double plain_renewals(const bench_raw *raw, void *plain)
{
    double start = bench_us();
    long done = 0;
    for (; bench_us() - start < ROUND_US; done += BENCH_BATCH)
        raw->renew(plain);
    return (double)done / (bench_us() - start) * 1e6;
}

void bench_renewals(const bench_store *store)
{
    static syncguard_extend_op items[BENCH_BATCH];
    static syncguard_grant grants[BENCH_BATCH];
    const bench_raw *raw = store->raw;
    syncguard_error err;
    if (raw->renew == NULL)
        return;
    syncguard_backend *backend = bench_open(store->url, NULL);
    void *plain = raw->open(store->url);
    raw->renew(plain);
    for (int i = 0; i < BENCH_BATCH; i++) {
        char key[32];
        snprintf(key, sizeof key, "bench:renew:%d", i);
        if (syncguard_acquire(backend, key, 30000, NULL, &grants[i], &err) != SYNCGUARD_OK)
            bench_die("acquire", err.message);
        items[i] = (syncguard_extend_op){.lock_id = grants[i].lock_id, .ttl_ms = 30000};
    }
    double ours[BENCH_MAX_REPETITIONS];
    double limit[BENCH_MAX_REPETITIONS];
    for (int r = 0; r < store->repetitions; r++) {
        limit[r] = plain_renewals(raw, plain);
        ours[r] = our_renewals(backend, items);
    }
    for (int i = 0; i < BENCH_BATCH; i++)
        (void)syncguard_release(backend, grants[i].lock_id, NULL, NULL);
    bench_report(store, "renewals/s, batches of 256", "/s", ours, limit,
                 "plain client, same batches", store->repetitions, BENCH_INTEREST, 0);
    syncguard_close(backend);
    raw->close(plain);
}

/* ---- holding ---- */

typedef struct taker {
    syncguard_backend *backend;
    syncguard_lock **locks;
    int from, to;
    int64_t ttl_ms;
    syncguard_lost_fn on_lost;
    pthread_t thread;
} taker;

static void *taker_acquire_locks(void *argument)
{
    taker *self = argument;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.auto_extend = true;
    options.ttl_ms = self->ttl_ms;
    options.on_lost = self->on_lost;
    syncguard_error err;
    for (int i = self->from; i < self->to; i++) {
        char key[32];
        snprintf(key, sizeof key, "bench:hold:%d", i);
        if (syncguard_lock_acquire(self->backend, key, &options, &self->locks[i], &err) !=
            SYNCGUARD_OK)
            bench_die("hold", err.message);
    }
    return NULL;
}

static void *taker_dispose_locks(void *argument)
{
    taker *self = argument;
    for (int i = self->from; i < self->to; i++)
        syncguard_lock_dispose(self->locks[i]);
    return NULL;
}

/* Runs all takers at once. */
static void takers_run(taker *takers, void *(*work)(void *))
{
    for (int i = 0; i < TAKERS; i++) {
        if (pthread_create(&takers[i].thread, NULL, work, &takers[i]) != 0)
            bench_die("hold", "no thread");
    }
    for (int i = 0; i < TAKERS; i++)
        pthread_join(takers[i].thread, NULL);
}

static void takers_divide_locks(taker *takers, syncguard_backend *backend, syncguard_lock **locks,
                                int count, int64_t ttl_ms, syncguard_lost_fn on_lost)
{
    for (int i = 0; i < TAKERS; i++)
        takers[i] = (taker){.backend = backend,
                            .locks = locks,
                            .from = (int)((long)count * i / TAKERS),
                            .to = (int)((long)count * (i + 1) / TAKERS),
                            .ttl_ms = ttl_ms,
                            .on_lost = on_lost};
}

static syncguard_lock **locks_allocate(int count)
{
    syncguard_lock **locks = malloc((size_t)count * sizeof(syncguard_lock *));
    if (locks == NULL)
        bench_die("hold", "out of memory");
    /* The pages are touched now, so that they do not count as the library's. */
    memset(locks, 1, (size_t)count * sizeof(syncguard_lock *));
    return locks;
}

/* Resident bytes per lock in a fresh process, so that no freed memory is reused. */
static double bytes_per_lock(const bench_store *store)
{
    int pipes[2];
    char count[24];
    fflush(NULL);
    if (pipe(pipes) != 0)
        bench_die("memory", "no pipe");
    snprintf(count, sizeof count, "%ld", bench_scaled(store, store->raw->remembers));
    setenv(BENCH_URL_VARIABLE, store->url, 1);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipes[1], STDOUT_FILENO);
        execl("/proc/self/exe", "syncguard-bench", "--remember", count, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    FILE *in = fdopen(pipes[0], "r");
    int status = 0;
    char line[64];
    if (in == NULL || fgets(line, sizeof line, in) == NULL || waitpid(pid, &status, 0) < 0 ||
        status != 0)
        bench_die("memory", "the process that measures failed");
    double bytes = strtod(line, NULL);
    fclose(in);
    return bytes;
}

int bench_remember(const char *url, const char *text)
{
    int count = (int)strtol(text, NULL, 10);
    syncguard_lock **locks = locks_allocate(count);
    syncguard_backend *backend = bench_open(url, NULL);
    taker takers[TAKERS];
    /* What the handle and the threads need anyway: a run long enough for all threads to work at
     * once, so that every connection and every arena of malloc exists. */
    takers_divide_locks(takers, backend, locks, count < 20 * TAKERS ? count : 20 * TAKERS, 600000,
                        NULL);
    takers_run(takers, taker_acquire_locks);
    takers_run(takers, taker_dispose_locks);
    takers_divide_locks(takers, backend, locks, count, 600000, NULL);
    long before = bench_rss_bytes();
    takers_run(takers, taker_acquire_locks);
    printf("%.1f\n", (double)(bench_rss_bytes() - before) / count);
    fflush(stdout);
    takers_run(takers, taker_dispose_locks);
    syncguard_close(backend);
    return 0;
}

void bench_memory(const bench_store *store)
{
    double bytes[BENCH_MAX_REPETITIONS];
    if (strcmp(store->raw->name, "memory") == 0)
        return; /* the store itself is in this process too */
    for (int r = 0; r < store->repetitions; r++)
        bytes[r] = bytes_per_lock(store);
    bench_report(store, "memory per held lock", "bytes", bytes, NULL, NULL, store->repetitions,
                 store->raw->held > 0 ? BENCH_MOST : BENCH_INTEREST, 512);
}

static atomic_long lost;

static void count_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)context;
    (void)lock;
    (void)reason;
    atomic_fetch_add(&lost, 1);
}

static double cpu_us(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e6 +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

/* Runs for BENCH_HELD_SECONDS, by default 3 minutes. */
void bench_held(const bench_store *store)
{
    const char *seconds = getenv("BENCH_HELD_SECONDS");
    double length_us = (seconds == NULL ? 180 : strtod(seconds, NULL)) * 1e6;
    int count = (int)bench_scaled(store, store->raw->held);
    taker takers[TAKERS];
    if (store->raw->held == 0)
        return;
    syncguard_lock **locks = locks_allocate(count);
    syncguard_backend *backend = bench_open(store->url, NULL);
    takers_divide_locks(takers, backend, locks, TAKERS, HELD_TTL_MS, NULL);
    takers_run(takers, taker_acquire_locks);
    takers_run(takers, taker_dispose_locks);
    takers_divide_locks(takers, backend, locks, count, HELD_TTL_MS, count_lost);
    long before = bench_rss_bytes();
    takers_run(takers, taker_acquire_locks);
    double start = bench_us(), cpu_start = cpu_us();
    while (bench_us() - start < length_us)
        bench_pause_us(100000);
    double cpu[1];
    cpu[0] = (cpu_us() - cpu_start) / (bench_us() - start) * 100;
    double bytes[1];
    bytes[0] = (double)(bench_rss_bytes() - before) / count;
    double gone[1] = {0};
    for (int i = 0; i < count; i++)
        gone[0] += !syncguard_lock_held(locks[i]);
    if ((double)atomic_load(&lost) > gone[0])
        gone[0] = (double)atomic_load(&lost);
    char name[64];
    snprintf(name, sizeof name, "%d locks held for %.0f s, lost", count, length_us / 1e6);
    bench_report(store, name, "", gone, NULL, NULL, 1, BENCH_MOST, 0);
    snprintf(name, sizeof name, "%d locks held, memory per lock", count);
    bench_report(store, name, "bytes", bytes, NULL, NULL, 1, BENCH_MOST, 512);
    snprintf(name, sizeof name, "%d locks held, share of one core", count);
    bench_report(store, name, "%", cpu, NULL, NULL, 1, BENCH_MOST, 25);
    takers_run(takers, taker_dispose_locks);
    syncguard_close(backend);
    free(locks);
}
