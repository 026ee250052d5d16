/*
 * Many processes race for one key:
 *
 *     race URL PROCESSES ROUNDS
 *
 * In each round all processes try once, at the same moment. At most one may hold the key, and the
 * fences of the winners must rise strictly over all rounds. Prints the result; exit 0 if that
 * holds.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <syncguard.h>

typedef struct arena {
    pthread_barrier_t barrier;
    atomic_int inside;
    atomic_int overlaps;
    atomic_int failures;
    atomic_int out_of_order;
    atomic_int wins;
    atomic_int idle_rounds;
    atomic_int round_wins;
    atomic_llong last_fence;
} arena;

static void firestore_race_try_once(arena *a, syncguard_backend *backend, const char *key)
{
    syncguard_grant grant;
    syncguard_error err;
    syncguard_status status = syncguard_acquire(backend, key, 30000, NULL, &grant, &err);
    if (status == SYNCGUARD_LOCKED)
        return;
    if (status != SYNCGUARD_OK) {
        fprintf(stderr, "acquire: %s %s %s\n", syncguard_status_name(status), err.native,
                err.message);
        atomic_fetch_add(&a->failures, 1);
        return;
    }
    if (atomic_fetch_add(&a->inside, 1) != 0)
        atomic_fetch_add(&a->overlaps, 1);
    long long fence = strtoll(grant.fence, NULL, 10);
    if (atomic_exchange(&a->last_fence, fence) >= fence)
        atomic_fetch_add(&a->out_of_order, 1);
    atomic_fetch_add(&a->round_wins, 1);
    atomic_fetch_sub(&a->inside, 1);
    status = syncguard_release(backend, grant.lock_id, NULL, &err);
    if (status != SYNCGUARD_OK) {
        fprintf(stderr, "release: %s %s %s\n", syncguard_status_name(status), err.native,
                err.message);
        atomic_fetch_add(&a->failures, 1);
    }
}

static int firestore_race_run(arena *a, const char *url, const char *key, int rounds)
{
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.timeout_ms = 60000; /* this is about exclusion, not about speed */
    syncguard_backend *backend = NULL;
    syncguard_error err;
    if (syncguard_open(url, &options, &backend, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "open: %s\n", err.message);
        return 1;
    }
    for (int i = 0; i < rounds; i++) {
        pthread_barrier_wait(&a->barrier);
        firestore_race_try_once(a, backend, key);
        if (pthread_barrier_wait(&a->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
            int wins = atomic_exchange(&a->round_wins, 0);
            atomic_fetch_add(&a->wins, wins);
            if (wins == 0)
                atomic_fetch_add(&a->idle_rounds, 1);
        }
    }
    syncguard_close(backend);
    return 0;
}

int main(int argc, char **argv)
{
    int processes = argc > 3 ? (int)strtol(argv[2], NULL, 10) : 0;
    int rounds = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 0;
    if (processes < 1 || rounds < 1)
        return 64;
    arena *a = mmap(NULL, sizeof *a, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (a == MAP_FAILED)
        return 1;
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&a->barrier, &shared, (unsigned)processes);
    char key[64];
    snprintf(key, sizeof key, "race-%d", (int)getpid());
    for (int i = 0; i < processes; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(firestore_race_run(a, argv[1], key, rounds));
        if (pid < 0)
            return 1;
    }
    int bad = 0;
    for (int i = 0; i < processes; i++) {
        int status = 0;
        (void)wait(&status);
        bad += status != 0;
    }
    printf("race: %d processes, %d rounds, %d grants, %d overlaps, %d fences out of order, "
           "%d failures, %d rounds without a winner\n",
           processes, rounds, atomic_load(&a->wins), atomic_load(&a->overlaps),
           atomic_load(&a->out_of_order), atomic_load(&a->failures), atomic_load(&a->idle_rounds));
    return bad != 0 || atomic_load(&a->overlaps) || atomic_load(&a->out_of_order) ||
                   atomic_load(&a->failures) || atomic_load(&a->idle_rounds)
               ? 1
               : 0;
}
