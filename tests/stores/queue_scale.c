/*
 * What thousands of waiting requests cost: threads, descriptors, memory, processor time, tries per
 * release, and how long a free key takes beside them.
 *
 *     queue_scale URL WAITERS KEYS [SETTLE_SECONDS [IDLE_SECONDS]]
 *
 * Another process holds the keys, so that only the queue counts here. Prints one line per figure,
 * with its limit; exit 1 if one is exceeded.
 */
#include <dirent.h>
#include <malloc.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "test_support.h"

#define PROBES 201
#define RELEASES 200
#define KEY_PREFIX "queue-scale-"

static bool failed;
static atomic_ulong tries;       /* of the keys that are released */
static atomic_ulong other_tries; /* of all others: polls, and waiters that are woken with them */

static void scale_check_limit(const char *what, double found, double limit)
{
    bool over = found > limit;
    printf("%-28s %10.3f  (at most %g)%s\n", what, found, limit, over ? "  FAILED" : "");
    fflush(stdout);
    failed = failed || over;
}

static void scale_die(const char *what)
{
    printf("%s\n", what);
    exit(70);
}

static double cpu_s(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static int scale_count_entries(const char *folder)
{
    int count = 0;
    DIR *open = opendir(folder);
    if (open == NULL)
        scale_die(folder);
    for (const struct dirent *entry = readdir(open); entry != NULL; entry = readdir(open))
        count += entry->d_name[0] != '.';
    closedir(open);
    return count;
}

static void key_name(char key[64], int number)
{
    snprintf(key, 64, KEY_PREFIX "%07d", number);
}

static syncguard_backend *scale_open_store(const char *url)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    if (syncguard_open(url, NULL, &backend, &err) != SYNCGUARD_OK)
        scale_die(err.message);
    return backend;
}

/* ---- the holder: a process of its own ---- */

/* Takes the keys, prints a line, and releases one key for each byte that it reads. */
static void scale_hold_keys(const char *url, int keys, int commands, int answers)
{
    char byte = 0;
    syncguard_backend *backend = scale_open_store(url);
    syncguard_grant *grants = calloc((size_t)keys, sizeof *grants);
    syncguard_error err;
    char key[64];
    for (int i = 0; i < keys && grants != NULL; i++) {
        key_name(key, i);
        if (syncguard_acquire(backend, key, 600000, NULL, &grants[i], &err) != SYNCGUARD_OK)
            scale_die(err.message);
    }
    if (write(answers, &byte, 1) != 1)
        _exit(70);
    for (int next = 0; read(commands, &byte, 1) == 1; next++) {
        if (next < keys &&
            syncguard_release(backend, grants[next].lock_id, NULL, &err) != SYNCGUARD_OK)
            scale_die(err.message);
        if (write(answers, &byte, 1) != 1)
            _exit(70);
    }
    for (int i = 0; i < keys; i++)
        (void)syncguard_release(backend, grants[i].lock_id, NULL, NULL);
    free(grants);
    syncguard_close(backend);
    _exit(0);
}

typedef struct holder {
    int commands;
    int answers;
} holder;

static void wait_for_holder(const holder *other)
{
    char byte;
    if (read(other->answers, &byte, 1) != 1)
        scale_die("the holder is gone");
}

static holder start_holder(const char *url, int keys)
{
    int commands[2];
    int answers[2];
    if (pipe(commands) != 0 || pipe(answers) != 0)
        scale_die("pipe");
    fflush(NULL);
    if (fork() == 0) {
        close(commands[1]);
        close(answers[0]);
        scale_hold_keys(url, keys, commands[0], answers[1]);
    }
    close(commands[0]);
    close(answers[1]);
    holder other = {commands[1], answers[0]};
    wait_for_holder(&other);
    return other;
}

/* ---- the queue ---- */

static syncguard_completion scale_next_completion(syncguard_queue *queue)
{
    syncguard_completion done;
    struct pollfd fd = {syncguard_queue_fd(queue), POLLIN, 0};
    while (!syncguard_queue_next(queue, &done))
        (void)poll(&fd, 1, -1);
    if (done.status != SYNCGUARD_OK)
        scale_die(done.error.message);
    return done;
}

/* Median time of an acquire of a free key, in microseconds. */
static double scale_probe_free_keys(syncguard_queue *queue, int from)
{
    static double took[PROBES];
    char key[64];
    for (int i = 0; i < PROBES; i++) {
        key_name(key, from + i);
        double begun = test_now_s();
        if (syncguard_lock_acquire_async(queue, key, NULL, NULL, NULL, NULL) != SYNCGUARD_OK)
            scale_die("acquire");
        syncguard_completion done = scale_next_completion(queue);
        took[i] = (test_now_s() - begun) * 1e6;
        if (syncguard_lock_release_async(queue, done.lock, NULL, NULL, NULL, NULL) != SYNCGUARD_OK)
            scale_die("release");
        (void)scale_next_completion(queue);
    }
    qsort(took, PROBES, sizeof took[0], test_compare_double);
    return took[PROBES / 2];
}

static void start_waiters(syncguard_queue *queue, int waiters, int keys)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(SYNCGUARD_WAIT_FOREVER);
    char key[64];
    for (int i = 0; i < waiters; i++) {
        key_name(key, i % keys);
        if (syncguard_lock_acquire_async(queue, key, &options, NULL, NULL, NULL) != SYNCGUARD_OK)
            scale_die("acquire");
    }
}

/* The holder releases a key; a waiter gets it and releases it as well. */
static void release_some(syncguard_queue *queue, const holder *other, int waiters, int keys)
{
    unsigned long before = atomic_load(&tries);
    unsigned long others_before = atomic_load(&other_tries);
    int grants = 0;
    int wanted = waiters < RELEASES ? waiters : RELEASES;
    char byte = 0;
    while (grants < wanted) {
        if ((keys > 1 || grants == 0) && write(other->commands, &byte, 1) != 1)
            scale_die("write");
        if (keys > 1 || grants == 0)
            wait_for_holder(other);
        syncguard_completion done = scale_next_completion(queue);
        while (done.kind != SYNCGUARD_COMPLETION_ACQUIRE)
            done = scale_next_completion(queue);
        grants++;
        if (syncguard_lock_release_async(queue, done.lock, NULL, NULL, NULL, NULL) != SYNCGUARD_OK)
            scale_die("release");
    }
    sleep(1);
    printf("%-28s %10.3f\n", "tries of other keys per release",
           (double)(atomic_load(&other_tries) - others_before) / grants);
    scale_check_limit("tries per release", (double)(atomic_load(&tries) - before) / grants, 1.1);
}

static void scale_count_tries(void *context, const syncguard_event *event)
{
    (void)context;
    int number = (int)strtol(event->key + strlen(KEY_PREFIX), NULL, 10);
    if (event->type == SYNCGUARD_EVENT_ACQUIRE)
        atomic_fetch_add(number < RELEASES ? &tries : &other_tries, 1);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        scale_die("usage: queue_scale URL WAITERS KEYS [SETTLE_SECONDS [IDLE_SECONDS]]");
    int waiters = (int)strtol(argv[2], NULL, 10);
    int keys = (int)strtol(argv[3], NULL, 10);
    int settle = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 10;
    int idle = argc > 5 ? (int)strtol(argv[5], NULL, 10) : 0;
    holder other = start_holder(argv[1], keys);
    syncguard_backend *backend = scale_open_store(argv[1]);
    syncguard_backend *counted = backend;
    bool counts = getenv("QUEUE_SCALE_TRIES") != NULL; /* telemetry has a thread of its own */
    syncguard_telemetry_options telemetry = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    telemetry.on_event = scale_count_tries;
    telemetry.include_raw = true;
    if (counts && syncguard_telemetry_wrap(backend, &telemetry, &counted, NULL) != SYNCGUARD_OK)
        scale_die("telemetry");
    syncguard_queue *queue = NULL;
    if (syncguard_queue_open(counted, NULL, &queue, NULL) != SYNCGUARD_OK)
        scale_die("queue");
    (void)scale_probe_free_keys(queue, keys);
    double alone_us = scale_probe_free_keys(queue, keys);
    size_t before = mallinfo2().uordblks;
    start_waiters(queue, waiters, keys);
    sleep((unsigned)settle); /* pauses double up to a minute: after two minutes all waiters rest */
    if (!counts) {
        scale_check_limit("bytes per waiter", (double)(mallinfo2().uordblks - before) / waiters,
                          1024);
        scale_check_limit("threads", scale_count_entries("/proc/self/task"), 8);
        scale_check_limit("descriptors", scale_count_entries("/proc/self/fd"), 32);
        double used = cpu_s();
        sleep((unsigned)idle);
        if (idle > 0)
            scale_check_limit("percent of a core, idle", (cpu_s() - used) * 100 / idle, 1);
        double beside_us = scale_probe_free_keys(queue, keys);
        printf("%-28s %10.1f us alone, %.1f us beside them\n", "a free key", alone_us, beside_us);
        if (waiters <= 1000)
            scale_check_limit("times as long as alone", beside_us / alone_us, 2);
    } else {
        release_some(queue, &other, waiters, keys);
    }
    close(other.commands);
    syncguard_queue_close(queue);
    syncguard_close(counted);
    return failed ? 1 : 0;
}
