/*
 * Philosophers: processes that lock random pairs of a few keys, all or none.
 *
 *     philosophers URL SECONDS [PROCESSES [KEYS]]       default: 8 processes, 5 keys
 *
 * Each process opens the store for itself, names its pair in random order and, while it holds the
 * pair, marks both keys in shared memory. Shown: no two processes hold a key at once (the marks,
 * and the fences of each key, which rise), no process waits for ever (every acquire ends within its
 * time), and every process gets turns.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test_support.h"

#define MOST_KEYS 64
#define MOST_PROCESSES 64
#define WAIT_MS 60000

typedef struct table {
    atomic_int holders[MOST_KEYS];
    atomic_llong fences[MOST_KEYS];
    atomic_int turns[MOST_PROCESSES];
    atomic_int overlaps;
    atomic_int old_fences;
    atomic_int lost;
    atomic_int failures;
} table;

static table *all;
static int keys = 5;

static void philosopher_mark_key(const syncguard_lock_set *set, const char *name, int key)
{
    long long fence = strtoll(syncguard_lock_fence(syncguard_lock_set_find(set, name)), NULL, 10);
    if (atomic_fetch_add(&all->holders[key], 1) != 0)
        atomic_fetch_add(&all->overlaps, 1);
    if (atomic_exchange(&all->fences[key], fence) >= fence)
        atomic_fetch_add(&all->old_fences, 1);
}

static void philosopher_dine(const syncguard_lock_set *set, char names[2][80], const int pair[2],
                             unsigned *random)
{
    int meal_ms = rand_r(random) % 3;
    for (int i = 0; i < 2; i++)
        philosopher_mark_key(set, names[i], pair[i]);
    test_sleep_ms(meal_ms);
    if (!syncguard_lock_set_held(set))
        atomic_fetch_add(&all->lost, 1);
    for (int i = 0; i < 2; i++)
        atomic_fetch_sub(&all->holders[pair[i]], 1);
}

static void philosopher_run(const char *url, int index, pid_t run, double until)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(WAIT_MS);
    unsigned random = (unsigned)(index * 7919 + run);
    options.auto_extend = true;
    if (syncguard_open(url, NULL, &backend, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "process %d: %s\n", index, err.message);
        atomic_fetch_add(&all->failures, 1);
        return;
    }
    while (test_now_s() < until) {
        int pair[2] = {(int)(rand_r(&random) % (unsigned)keys), 0};
        char names[2][80];
        syncguard_lock_set *set = NULL;
        pair[1] = (pair[0] + 1 + (int)(rand_r(&random) % (unsigned)(keys - 1))) % keys;
        for (int i = 0; i < 2; i++)
            snprintf(names[i], sizeof names[i], "fork/%ld/%d", (long)run, pair[i]);
        const char *const both[] = {names[0], names[1]};
        if (syncguard_lock_acquire_all(backend, both, 2, &options, &set, &err) != SYNCGUARD_OK) {
            fprintf(stderr, "process %d: %s: %s\n", index, syncguard_status_name(err.code),
                    err.message);
            atomic_fetch_add(&all->failures, 1);
            break;
        }
        philosopher_dine(set, names, pair, &random);
        atomic_fetch_add(&all->turns[index], 1);
        syncguard_lock_set_dispose(set);
    }
    syncguard_close(backend);
}

int main(int argc, char **argv)
{
    int processes = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 8;
    if (argc < 3)
        return 64;
    keys = argc > 4 ? (int)strtol(argv[4], NULL, 10) : keys;
    if (processes < 1 || processes > MOST_PROCESSES || keys < 2 || keys > MOST_KEYS)
        return 64;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    double until = test_now_s() + strtod(argv[2], NULL);
    pid_t run = getpid();
    for (int i = 0; i < processes; i++) {
        if (fork() == 0) {
            philosopher_run(argv[1], i, run, until);
            exit(0);
        }
    }
    int crashed = 0;
    for (int status = 0; wait(&status) > 0;)
        crashed += status != 0;
    int least = 1 << 30;
    int total = 0;
    for (int i = 0; i < processes; i++) {
        int turns = atomic_load(&all->turns[i]);
        least = turns < least ? turns : least;
        total += turns;
    }
    printf("%d turns, at least %d per process; %d overlaps, %d old fences, %d lost, %d failures, "
           "%d crashed\n",
           total, least, atomic_load(&all->overlaps), atomic_load(&all->old_fences),
           atomic_load(&all->lost), atomic_load(&all->failures), crashed);
    return least > 0 && crashed == 0 && atomic_load(&all->overlaps) == 0 &&
                   atomic_load(&all->old_fences) == 0 && atomic_load(&all->failures) == 0
               ? 0
               : 1;
}
