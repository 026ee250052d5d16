/*
 * Slots: processes that share N slots of one name.
 *
 *     semaphore URL SECONDS [MOST_TRIES [PROCESSES [SLOTS]]]     default: 2, 8 processes, 3 slots
 *
 * Each process opens the store for itself and, while it holds a slot, marks that slot and counts
 * itself in shared memory. Shown: never more holders than slots, never two in one slot, fences of
 * each slot rise, all slots are used, every process gets turns.
 *
 * Tries are counted at the operation of the store. A try is one of three kinds: of the first
 * attempt (without watch), the first of a slot with watch in this acquire (arming), and all others
 * (after a release). MOST_TRIES limits the last kind, per waiting process and release: a release
 * may wake one waiter in each process. 0: no limit, for stores that do not wake waiters.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <syncguard/sys/backend.h>

#include "test_support.h"

#define MOST_PROCESSES 64
#define WAIT_MS 60000

typedef struct table {
    atomic_int holders;
    atomic_int most_holders;
    atomic_int in_slot[SYNCGUARD_SLOTS_MAX + 1];
    atomic_llong fences[SYNCGUARD_SLOTS_MAX + 1];
    atomic_int uses[SYNCGUARD_SLOTS_MAX + 1];
    atomic_int turns[MOST_PROCESSES];
    atomic_llong releases;
    atomic_llong seen; /* releases while a process waited, summed up over the processes */
    atomic_llong first_tries;
    atomic_llong arming_tries;
    atomic_llong later_tries;
    atomic_int overlaps;
    atomic_int old_fences;
    atomic_int lost;
    atomic_int failures;
} table;

static table *all;
static int slots = 3;

/* The acquire that this process is making. */
static struct {
    bool armed[SYNCGUARD_SLOTS_MAX + 1];
    int armed_count;
    long long releases; /* when all were armed */
} own;
static const syncguard_backend_ops *store_ops;

static syncguard_status counted_acquire(syncguard_backend *backend, syncguard_acquire_op *op,
                                        syncguard_error *err)
{
    long slot = strtol(strrchr(op->key, ':') + 1, NULL, 10);
    if (!op->watch) {
        atomic_fetch_add(&all->first_tries, 1);
    } else if (own.armed[slot]) {
        atomic_fetch_add(&all->later_tries, 1);
    } else {
        atomic_fetch_add(&all->arming_tries, 1);
        own.armed[slot] = true;
        if (++own.armed_count == slots)
            own.releases = atomic_load(&all->releases);
    }
    return store_ops->acquire(backend, op, err);
}

static syncguard_backend *semaphore_open_counted(const char *url, syncguard_error *err)
{
    static syncguard_backend_ops counted;
    syncguard_backend *backend = NULL;
    if (syncguard_open(url, NULL, &backend, err) != SYNCGUARD_OK)
        return NULL;
    store_ops = backend->ops;
    counted = *store_ops;
    counted.acquire = counted_acquire;
    backend->ops = &counted;
    return backend;
}

static void semaphore_use_slot(const syncguard_lock *lock, unsigned *random)
{
    int pause_ms = rand_r(random) % 4;
    long long fence = strtoll(syncguard_lock_fence(lock), NULL, 10);
    int slot = syncguard_lock_slot(lock);
    int holders = atomic_fetch_add(&all->holders, 1) + 1;
    int most = atomic_load(&all->most_holders);
    while (holders > most && !atomic_compare_exchange_weak(&all->most_holders, &most, holders))
        ;
    if (slot < 1 || slot > slots || atomic_fetch_add(&all->in_slot[slot], 1) != 0)
        atomic_fetch_add(&all->overlaps, 1);
    if (atomic_exchange(&all->fences[slot], fence) >= fence)
        atomic_fetch_add(&all->old_fences, 1);
    atomic_fetch_add(&all->uses[slot], 1);
    test_sleep_ms(pause_ms);
    if (!syncguard_lock_held(lock))
        atomic_fetch_add(&all->lost, 1);
    atomic_fetch_sub(&all->in_slot[slot], 1);
    atomic_fetch_sub(&all->holders, 1);
}

static void semaphore_process_run(const char *url, int index, const char *name, double until)
{
    syncguard_error err;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(WAIT_MS);
    unsigned random = (unsigned)(index * 7919 + getpid());
    syncguard_backend *backend = semaphore_open_counted(url, &err);
    options.auto_extend = true;
    options.slots = slots;
    while (backend != NULL && test_now_s() < until) {
        syncguard_lock *lock = NULL;
        memset(&own, 0, sizeof own);
        if (syncguard_lock_acquire(backend, name, &options, &lock, &err) != SYNCGUARD_OK)
            break;
        if (own.armed_count == slots)
            atomic_fetch_add(&all->seen, atomic_load(&all->releases) - own.releases);
        err.code = SYNCGUARD_OK;
        semaphore_use_slot(lock, &random);
        atomic_fetch_add(&all->turns[index], 1);
        atomic_fetch_add(&all->releases, 1);
        syncguard_lock_dispose(lock);
    }
    if (err.code != SYNCGUARD_OK) {
        fprintf(stderr, "process %d: %s: %s\n", index, syncguard_status_name(err.code),
                err.message);
        atomic_fetch_add(&all->failures, 1);
    }
    syncguard_close(backend);
}

static int least_of(const atomic_int *counts, int from, int to, long long *total)
{
    int least = 1 << 30;
    for (int i = from; i < to; i++) {
        int count = atomic_load(&counts[i]);
        least = count < least ? count : least;
        *total += count;
    }
    return least;
}

static bool print_tries(double most_tries)
{
    double releases = (double)atomic_load(&all->releases);
    double first = (double)atomic_load(&all->first_tries);
    double arming = (double)atomic_load(&all->arming_tries);
    double later = (double)atomic_load(&all->later_tries);
    double seen = (double)atomic_load(&all->seen);
    double each = seen > 0 ? later / seen : 0;
    printf("tries after a release, per waiting process: %.2f (at most %g)\n", each, most_tries);
    printf("tries of all processes per release: %.2f (first attempts %.2f, arming %.2f, after a "
           "release %.2f)\n",
           (first + arming + later) / releases, first / releases, arming / releases,
           later / releases);
    return most_tries <= 0 || each <= most_tries;
}

int main(int argc, char **argv)
{
    int processes = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 8;
    if (argc < 3)
        return 64;
    slots = argc > 5 ? (int)strtol(argv[5], NULL, 10) : slots;
    if (processes < 1 || processes > MOST_PROCESSES || slots < 1 || slots > SYNCGUARD_SLOTS_MAX)
        return 64;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    char name[64];
    snprintf(name, sizeof name, "semaphore/%ld", (long)getpid());
    double until = test_now_s() + strtod(argv[2], NULL);
    for (int i = 0; i < processes; i++) {
        if (fork() == 0) {
            semaphore_process_run(argv[1], i, name, until);
            exit(0);
        }
    }
    int crashed = 0;
    for (int status = 0; wait(&status) > 0;)
        crashed += status != 0;
    long long turns = 0;
    int least_turns = least_of(all->turns, 0, processes, &turns);
    long long uses = 0;
    int least_uses = least_of(all->uses, 1, slots + 1, &uses);
    printf("%lld turns, at least %d per process and %d per slot; most holders at once %d of %d; "
           "%d overlaps, %d old fences, %d lost, %d failures, %d crashed\n",
           turns, least_turns, least_uses, atomic_load(&all->most_holders), slots,
           atomic_load(&all->overlaps), atomic_load(&all->old_fences), atomic_load(&all->lost),
           atomic_load(&all->failures), crashed);
    bool few = print_tries(argc > 3 ? strtod(argv[3], NULL) : 2);
    return few && least_turns > 0 && least_uses > 0 && crashed == 0 &&
                   atomic_load(&all->most_holders) <= slots && atomic_load(&all->overlaps) == 0 &&
                   atomic_load(&all->old_fences) == 0 && atomic_load(&all->failures) == 0
               ? 0
               : 1;
}
