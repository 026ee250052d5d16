/*
 * Races for PostgreSQL, on a server of their own:
 *
 *     postgres_race expiry ROUNDS    extend against acquire at the moment of expiry
 *     postgres_race fresh ROUNDS     16 processes for 100 keys without rows or counters
 *
 * expiry has three parts of ROUNDS each: our extend against a foreign acquire that takes 25 ms for
 * its statements, our acquire against a foreign extend that does so too, and our extend against our
 * acquire, one of them 25 ms late. A foreign client locks what the TypeScript library locks: the
 * advisory lock in its acquire, only the row in its extend. A counter must have advanced once per
 * grant of ours, and not otherwise.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server.h"
#include "syncguard.h"
#include "test_support.h"

#define WORKERS 8
#define DELAY_MS 25
#define NOW "floor(extract(epoch from clock_timestamp()) * 1000)::bigint"

static pg_server *server;

/* ---- extend against acquire ---- */

typedef enum part { FOREIGN_ACQUIRE, FOREIGN_EXTEND, OURS } part;
static const char *const part_names[] = {"our extend, foreign acquire",
                                         "our acquire, foreign extend", "ours against ours"};

typedef struct worker {
    part which;
    int number;
    int rounds;
    syncguard_backend *backend;
    PGconn *plain;   /* prepares the rounds */
    PGconn *foreign; /* races */
    char key[32];
    char lock_id[40];
    pthread_barrier_t start;
    pthread_barrier_t end;
    bool extended, acquired;
    int both, neither, extends, acquires;
} worker;

static bool foreign_acquire(worker *self)
{
    pg_sql(self->foreign, "BEGIN");
    pg_sql(self->foreign, "SELECT pg_advisory_xact_lock(hashtext('%s'))", self->key);
    bool dead =
        pg_number(self->foreign,
                  "SELECT count(*) FROM (SELECT 1 FROM syncguard_locks WHERE key = '%s' AND "
                  "expires_at_ms > " NOW " - 1000 FOR UPDATE) x",
                  self->key) == 0;
    test_sleep_us(DELAY_MS * 1000);
    if (dead)
        pg_sql(self->foreign,
               "INSERT INTO syncguard_locks VALUES ('%s', 'FFFFFFFFFFFFFFFFFFFF%02d', " NOW
               " + 30000, " NOW ", '000000000000009', '%s') ON CONFLICT (key) DO UPDATE SET "
               "lock_id = excluded.lock_id, expires_at_ms = excluded.expires_at_ms",
               self->key, self->number, self->key);
    pg_sql(self->foreign, "COMMIT");
    return dead;
}

static bool foreign_extend(worker *self)
{
    pg_sql(self->foreign, "BEGIN");
    bool live = pg_number(self->foreign,
                          "SELECT count(*) FROM (SELECT expires_at_ms FROM syncguard_locks WHERE "
                          "lock_id = '%s' FOR UPDATE) x WHERE expires_at_ms > " NOW " - 1000",
                          self->lock_id) == 1;
    test_sleep_us(DELAY_MS * 1000);
    if (live)
        pg_sql(self->foreign,
               "UPDATE syncguard_locks SET expires_at_ms = " NOW " + 30000 WHERE lock_id = '%s'",
               self->lock_id);
    pg_sql(self->foreign, "COMMIT");
    return live;
}

static bool our_extend(worker *self)
{
    syncguard_error err;
    int64_t expires;
    return syncguard_extend(self->backend, self->lock_id, 30000, NULL, &expires, &err) ==
           SYNCGUARD_OK;
}

static bool our_acquire(worker *self)
{
    syncguard_error err;
    syncguard_grant grant;
    syncguard_status status =
        syncguard_acquire(self->backend, self->key, 30000, NULL, &grant, &err);
    if (status < 0)
        pg_die("acquire: %s", err.message);
    return status == SYNCGUARD_OK;
}

static void *pg_race_extender_run(void *context)
{
    worker *self = context;
    for (int i = 0; i < self->rounds; i++) {
        pthread_barrier_wait(&self->start);
        /* Late by 0 or 25 ms. In some rounds both sides are late. */
        test_sleep_us(rand() % 8000 + (self->which == OURS && i % 3 != 0 ? DELAY_MS * 1000 : 0));
        self->extended = self->which == FOREIGN_EXTEND ? foreign_extend(self) : our_extend(self);
        pthread_barrier_wait(&self->end);
    }
    return NULL;
}

static void *pg_race_acquirer_run(void *context)
{
    worker *self = context;
    pthread_t other;
    if (pthread_create(&other, NULL, pg_race_extender_run, self) != 0)
        pg_die("no thread");
    for (int i = 0; i < self->rounds; i++) {
        int late = self->which == OURS && i % 3 != 1 ? DELAY_MS : 0;
        snprintf(self->lock_id, sizeof self->lock_id, "AAAAAAAAAAAAA%d%02d%06u", (int)self->which,
                 self->number, (unsigned)i % 1000000);
        /* The lock becomes dead in the middle of both attempts. */
        pg_sql(self->plain,
               "INSERT INTO syncguard_locks VALUES ('%s', '%s', " NOW " - 1000 + %d, " NOW
               ", '000000000000001', '%s') ON CONFLICT (key) DO UPDATE SET lock_id = "
               "excluded.lock_id, expires_at_ms = excluded.expires_at_ms",
               self->key, self->lock_id, self->which == OURS ? rand() % (DELAY_MS + 8) : 5,
               self->key);
        pthread_barrier_wait(&self->start);
        test_sleep_us(rand() % 8000 + late * 1000);
        self->acquired = self->which == FOREIGN_ACQUIRE ? foreign_acquire(self) : our_acquire(self);
        pthread_barrier_wait(&self->end);
        self->both += self->extended && self->acquired;
        self->neither += !self->extended && !self->acquired;
        self->extends += self->extended;
        self->acquires += self->acquired;
    }
    pthread_join(other, NULL);
    return NULL;
}

static int race_part(part which, int rounds)
{
    static worker workers[WORKERS];
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        worker *self = &workers[i];
        *self = (worker){.which = which, .number = i, .rounds = (rounds + WORKERS - 1) / WORKERS};
        snprintf(self->key, sizeof self->key, "race-%d-%d", which, i);
        syncguard_error err;
        if (syncguard_open(pg_url(server, "race", NULL), NULL, &self->backend, &err) !=
            SYNCGUARD_OK)
            pg_die("open: %s", err.message);
        self->plain = pg_plain(server, "race");
        self->foreign = pg_plain(server, "race");
        pthread_barrier_init(&self->start, NULL, 2);
        pthread_barrier_init(&self->end, NULL, 2);
        if (pthread_create(&threads[i], NULL, pg_race_acquirer_run, self) != 0)
            pg_die("no thread");
    }
    int both = 0;
    int neither = 0;
    int extends = 0;
    int acquires = 0;
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(threads[i], NULL);
        both += workers[i].both;
        neither += workers[i].neither;
        extends += workers[i].extends;
        acquires += workers[i].acquires;
        syncguard_close(workers[i].backend);
        PQfinish(workers[i].plain);
        PQfinish(workers[i].foreign);
    }
    PGconn *plain = pg_plain(server, "race");
    long counted =
        (long)pg_number(plain,
                        "SELECT coalesce(sum(fence), 0) FROM syncguard_fence_counters WHERE "
                        "fence_key LIKE 'fence:race-%d-%%'",
                        which);
    PQfinish(plain);
    printf("%s: %d rounds, %d extended, %d acquired, %d neither, %d both, %ld counted\n",
           part_names[which], workers[0].rounds * WORKERS, extends, acquires, neither, both,
           counted);
    if (counted != (which == FOREIGN_ACQUIRE ? 0 : acquires)) {
        printf("the counters do not fit the grants\n");
        return 1;
    }
    if (extends == 0 || acquires == 0) {
        printf("one side always won: the race shows nothing\n");
        return 1;
    }
    return both;
}

/* ---- fresh keys ---- */

#define PROCESSES 16
#define KEYS 100

typedef struct board {
    pthread_barrier_t barrier;
    atomic_int holders[KEYS];
    atomic_uint fences[KEYS];
    atomic_long grants, attempts;
    atomic_int two_holders, repeated_fences, failures;
} board;

static void try_key(board *all, syncguard_backend *backend, const char *key, int k)
{
    syncguard_error err;
    syncguard_grant grant;
    syncguard_status status = syncguard_acquire(backend, key, 60000, NULL, &grant, &err);
    atomic_fetch_add(&all->attempts, 1);
    if (status == SYNCGUARD_LOCKED)
        return;
    if (status != SYNCGUARD_OK) {
        fprintf(stderr, "acquire: %s %s\n", err.native, err.message);
        atomic_fetch_add(&all->failures, 1);
        return;
    }
    unsigned bit = 1U << (unsigned)(strtol(grant.fence, NULL, 10) % 31);
    atomic_fetch_add(&all->grants, 1);
    if (atomic_fetch_add(&all->holders[k], 1) != 0)
        atomic_fetch_add(&all->two_holders, 1);
    if ((atomic_fetch_or(&all->fences[k], bit) & bit) != 0)
        atomic_fetch_add(&all->repeated_fences, 1);
    /* Half of the keys change hands within the round. */
    if ((k % 2) != 0) {
        atomic_fetch_sub(&all->holders[k], 1);
        if (syncguard_release(backend, grant.lock_id, NULL, &err) != SYNCGUARD_OK)
            atomic_fetch_add(&all->failures, 1);
    }
}

static void pg_race_compete(board *all, const char *url, int number, int rounds)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    if (syncguard_open(url, NULL, &backend, &err) != SYNCGUARD_OK)
        pg_die("open: %s", err.message);
    srand((unsigned)number);
    char key[48];
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&all->barrier);
        if (number == 0) {
            memset(all->holders, 0, sizeof all->holders);
            memset(all->fences, 0, sizeof all->fences);
        }
        pthread_barrier_wait(&all->barrier);
        /* All processes take the keys in the same order, so they meet at every key. */
        for (int k = 0; k < KEYS; k++) {
            snprintf(key, sizeof key, "fresh-%d-%d", round, k);
            try_key(all, backend, key, k);
        }
    }
    syncguard_close(backend);
}

static int race_fresh(int rounds)
{
    board *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *url = pg_url(server, "race", "pool_max=1&listen=0");
    if (all == MAP_FAILED)
        pg_die("no memory");
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&all->barrier, &shared, PROCESSES);
    pid_t pids[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            pg_race_compete(all, url, i, rounds);
            _exit(0);
        }
    }
    int status = 0;
    int failed = 0;
    for (int i = 0; i < PROCESSES; i++) {
        if (waitpid(pids[i], &status, 0) != pids[i] || status != 0)
            failed++;
    }
    printf("%d processes, %d keys, %d rounds: %ld attempts, %ld grants, %d times two holders, %d "
           "fences twice, %d failures\n",
           PROCESSES, KEYS, rounds, atomic_load(&all->attempts), atomic_load(&all->grants),
           atomic_load(&all->two_holders), atomic_load(&all->repeated_fences),
           atomic_load(&all->failures) + failed);
    if (atomic_load(&all->grants) < (long)rounds * KEYS)
        failed++;
    return atomic_load(&all->two_holders) + atomic_load(&all->repeated_fences) +
           atomic_load(&all->failures) + failed;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        pg_die("usage: postgres_race expiry|fresh ROUNDS");
    int rounds = (int)strtol(argv[2], NULL, 10);
    server = pg_server_start("fsync=off\nmax_connections=200");
    pg_make_database(server, "race");
    int failed = 0;
    if (strcmp(argv[1], "expiry") == 0) {
        for (int which = FOREIGN_ACQUIRE; which <= OURS; which++)
            failed += race_part((part)which, rounds);
    } else {
        failed = race_fresh(rounds);
    }
    pg_server_end(server);
    return failed != 0 ? 1 : 0;
}
