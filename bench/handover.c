/*
 * Hand-over between processes: from the moment one calls release until the acquire of another,
 * which was waiting, returns.
 *
 * Copies of this program take turns. Forced: the holder keeps the lock until all others wait for
 * it, as the library tells them, then for a moment more, releases, and stays away until another
 * process has the lock (they share counts of both). A turn whose taker did not wait does not count.
 * With eight processes, some that were woken in vain may still be trying at the next release. In
 * the free race no process stays away: the share of the slowest is reported, fairness is not
 * promised.
 *
 * By default the scheduler often puts a plain client and its server's process on one processor,
 * where a round trip takes a quarter of the time, and the processes of a hand-over on two. So
 * everything is measured twice: with the server on one processor and all clients on another, and
 * left to the scheduler.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#define MOST_PROCESSES 8
#define MOST_TURNS 100000
#define HOLD_US 200 /* after the moment when all others wait */
#define RACE_MS 2000
#define LONGEST_S 30 /* for the other processes to do their part */

typedef struct turn {
    char fence[SYNCGUARD_FENCE_SIZE];
    int pid;
    double waits_us; /* the time since when it has waited; 0: it did not wait */
    double acquired_us;
    double released_us; /* the time when release was called */
} turn;

static turn log_of_all[MOST_TURNS];

/* Shared by the processes: a file beside the log. */
typedef struct meeting {
    bench_condition condition; /* its mutex protects the counts */
    long grants;
    int waiting;
    int gone; /* processes that have taken all their turns */
} meeting;

/* One acquire, for meeting_note_wait. */
typedef struct asking {
    meeting *shared;
    turn *mine;
} asking;

static meeting *meeting_map(const char *log)
{
    char path[4300];
    snprintf(path, sizeof path, "%s.meeting", log);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(meeting)) != 0)
        bench_die(path, "cannot be made");
    meeting *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        bench_die(path, "cannot be mapped");
    close(fd);
    return shared;
}

/* In memory that processes share. */
static void open_condition(bench_condition *condition)
{
    pthread_mutexattr_t mutex;
    pthread_condattr_t changed;
    if (pthread_mutexattr_init(&mutex) != 0 || pthread_condattr_init(&changed) != 0 ||
        pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED) != 0 ||
        pthread_condattr_setpshared(&changed, PTHREAD_PROCESS_SHARED) != 0 ||
        pthread_mutex_init(&condition->mutex, &mutex) != 0 ||
        pthread_cond_init(&condition->changed, &changed) != 0)
        bench_die("hand-over", "processes cannot share a mutex");
    pthread_condattr_destroy(&changed);
    pthread_mutexattr_destroy(&mutex);
}

/* Locks the mutex. Returns the time until which to wait for a change. */
static struct timespec lock_condition(bench_condition *condition)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += LONGEST_S;
    pthread_mutex_lock(&condition->mutex);
    return end;
}

/* Waits, with the mutex locked, until something may have changed. */
static void wait_for_change(bench_condition *condition, const struct timespec *end)
{
    if (pthread_cond_timedwait(&condition->changed, &condition->mutex, end) == 0)
        return;
    pthread_mutex_unlock(&condition->mutex);
    bench_die("hand-over", "the others hang");
}

/* Adds to the counts. Returns the count of grants. */
static long meeting_add_counts(meeting *shared, int grants, int waiting, int gone)
{
    pthread_mutex_lock(&shared->condition.mutex);
    long all = shared->grants += grants;
    shared->waiting += waiting;
    shared->gone += gone;
    pthread_cond_broadcast(&shared->condition.changed);
    pthread_mutex_unlock(&shared->condition.mutex);
    return all;
}

static void stay_away(meeting *shared, long own_grant, int processes)
{
    struct timespec end = lock_condition(&shared->condition);
    while (shared->grants == own_grant && shared->gone < processes - 1)
        wait_for_change(&shared->condition, &end);
    pthread_mutex_unlock(&shared->condition.mutex);
}

static void let_all_wait(meeting *shared, int processes)
{
    struct timespec end = lock_condition(&shared->condition);
    while (shared->waiting + shared->gone < processes - 1)
        wait_for_change(&shared->condition, &end);
    pthread_mutex_unlock(&shared->condition.mutex);
    bench_pause_us(HOLD_US);
}

static void meeting_note_wait(void *context, int attempts, int64_t waited_ms, int64_t remaining_ms)
{
    const asking *self = context;
    (void)attempts;
    (void)waited_ms;
    (void)remaining_ms;
    if (self->mine->waits_us > 0)
        return;
    self->mine->waits_us = bench_us();
    meeting_add_counts(self->shared, 0, 1, 0);
}

/* LOG PROCESSES TURNS RACE_MS (0: so many turns, forced) */
int bench_take_turns(const char *url, char **arguments)
{
    int processes = (int)strtol(arguments[1], NULL, 10);
    long turns = strtol(arguments[2], NULL, 10);
    double race_us = strtod(arguments[3], NULL) * 1000;
    syncguard_backend *backend = bench_open(url, NULL);
    meeting *shared = meeting_map(arguments[0]);
    int fd = open(arguments[0], O_WRONLY | O_APPEND | O_CLOEXEC);
    double begin = bench_us();
    if (fd < 0)
        bench_die(arguments[0], "cannot be opened");
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = 60000;
    options.on_wait = meeting_note_wait;
    syncguard_error err;
    for (long i = 0; race_us > 0 ? bench_us() - begin < race_us : i < turns; i++) {
        turn mine = {.pid = (int)getpid()};
        asking self = {shared, &mine};
        syncguard_lock *lock = NULL;
        options.on_wait_context = &self;
        if (syncguard_lock_acquire(backend, "bench:baton", &options, &lock, &err) != SYNCGUARD_OK)
            bench_die("acquire", err.message);
        mine.acquired_us = bench_us();
        long grant = meeting_add_counts(shared, 1, mine.waits_us > 0 ? -1 : 0, 0);
        memcpy(mine.fence, syncguard_lock_fence(lock), sizeof mine.fence);
        if (race_us == 0)
            let_all_wait(shared, processes);
        mine.released_us = bench_us();
        if (syncguard_lock_release(lock, NULL, &err) != SYNCGUARD_OK)
            bench_die("release", err.message);
        syncguard_lock_dispose(lock);
        if (race_us == 0)
            stay_away(shared, grant, processes);
        if (write(fd, &mine, sizeof mine) != (ssize_t)sizeof mine)
            bench_die(arguments[0], "cannot be written");
    }
    meeting_add_counts(shared, 0, 0, 1);
    syncguard_close(backend);
    return 0;
}

static int turn_compare_fence(const void *a, const void *b)
{
    return strcmp(((const turn *)a)->fence, ((const turn *)b)->fence);
}

/* Lets so many processes take turns; returns how many turns they took, in order. */
static size_t handover_run_processes(const bench_store *store, int processes, long turns,
                                     long race_ms)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/turns", bench_folder());
    char others[24];
    snprintf(others, sizeof others, "%d", processes);
    char count[24];
    snprintf(count, sizeof count, "%ld", turns);
    char race[24];
    snprintf(race, sizeof race, "%ld", race_ms);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        bench_die(path, "cannot be made");
    close(fd);
    meeting *shared = meeting_map(path);
    memset(shared, 0, sizeof *shared);
    open_condition(&shared->condition);
    munmap(shared, sizeof *shared);
    fflush(NULL);
    setenv(BENCH_URL_VARIABLE, store->url, 1);
    pid_t pids[MOST_PROCESSES];
    for (int i = 0; i < processes; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            execl("/proc/self/exe", "syncguard-bench", "--turns", path, others, count, race,
                  (char *)NULL);
            _exit(127);
        }
    }
    int status = 0;
    for (int i = 0; i < processes; i++) {
        if (waitpid(pids[i], &status, 0) < 0 || status != 0)
            bench_die("hand-over", "a process failed");
    }
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        bench_die(path, "cannot be read");
    size_t taken = fread(log_of_all, sizeof log_of_all[0], MOST_TURNS, file);
    fclose(file);
    qsort(log_of_all, taken, sizeof log_of_all[0], turn_compare_fence);
    for (size_t i = 1; i < taken; i++) {
        if (log_of_all[i].acquired_us < log_of_all[i - 1].released_us)
            bench_die("hand-over", "two holders at once");
    }
    return taken;
}

/* The unit of a hand-over, in microseconds. */
static double handover_time_round_trip(const bench_raw *raw, void *plain)
{
    double start = bench_us();
    if (raw->round_trip != NULL)
        raw->round_trip(plain);
    else
        raw->pair(plain, "bench:plain");
    return bench_us() - start;
}

static void handover_measure_forced(const bench_store *store, void *plain, int processes, int which)
{
    static double times[MOST_TURNS];
    const bench_raw *raw = store->raw;
    bool has_bar = bench_has_bars(raw);
    int count = raw->turns >= 100 ? bench_often(store) : store->repetitions;
    bench_tidy(store);
    double p50[BENCH_MAX_REPETITIONS];
    double p99[BENCH_MAX_REPETITIONS];
    double limit[BENCH_MAX_REPETITIONS];
    double again[BENCH_MAX_REPETITIONS];
    for (int r = 0; r < count; r++) {
        double trips[400];
        size_t samples = raw->turns < 200 ? (size_t)raw->turns : 200;
        for (size_t i = 0; i < samples; i++)
            trips[i] = handover_time_round_trip(raw, plain);
        size_t taken = handover_run_processes(store, processes, raw->turns / processes, 0);
        /* And afterwards: the machine may have become slower or faster meanwhile. */
        for (size_t i = samples; i < 2 * samples; i++)
            trips[i] = handover_time_round_trip(raw, plain);
        limit[r] = again[r] = bench_quantile(trips, 2 * samples, 0.5);
        size_t filled = 0;
        for (size_t i = 1; i < taken; i++) {
            if (log_of_all[i].pid != log_of_all[i - 1].pid && log_of_all[i].waits_us > 0 &&
                log_of_all[i].waits_us < log_of_all[i - 1].released_us)
                times[filled++] = log_of_all[i].acquired_us - log_of_all[i - 1].released_us;
        }
        if (filled < (size_t)raw->turns / 4)
            bench_die("hand-over", "the processes hardly met");
        p50[r] = bench_quantile(times, filled, 0.5);
        p99[r] = bench_quantile(times, filled, 0.99);
    }
    char name[64];
    snprintf(name, sizeof name, "hand-over, %d processes, p50", processes);
    if (raw->handover_us > 0)
        bench_report(store, name, "us", p50, limit, raw->round_trip_name, count, BENCH_MOST,
                     raw->handover_us);
    else
        bench_report(store, name, "us", p50, limit, raw->round_trip_name, count,
                     has_bar && raw->handover_bar[which] > 0 ? BENCH_RATIO_MOST : BENCH_INTEREST,
                     raw->handover_bar[which]);
    snprintf(name, sizeof name, "hand-over, %d processes, p99", processes);
    bench_report(store, name, "us", p99, again, raw->round_trip_name, count,
                 has_bar && raw->tail_bar[which] > 0 ? BENCH_RATIO_MOST : BENCH_INTEREST,
                 raw->tail_bar[which]);
}

void bench_set_baton(bench_baton *shared, int state)
{
    pthread_mutex_lock(&shared->condition.mutex);
    shared->state = state;
    pthread_cond_broadcast(&shared->condition.changed);
    pthread_mutex_unlock(&shared->condition.mutex);
}

void bench_await_baton(bench_baton *shared, int state)
{
    struct timespec end = lock_condition(&shared->condition);
    while (shared->state != state)
        wait_for_change(&shared->condition, &end);
    pthread_mutex_unlock(&shared->condition.mutex);
}

void bench_give_baton(bench_baton *shared)
{
    bench_set_baton(shared, BENCH_HELD);
    bench_await_baton(shared, BENCH_WAITED_FOR);
    bench_pause_us(HOLD_US);
    atomic_store(&shared->released_us, bench_us());
}

static void handover_time_plain_turns(const bench_store *store, double *times)
{
    const bench_raw *raw = store->raw;
    bench_baton *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        bench_die("hand-over", "out of memory");
    open_condition(&shared->condition);
    shared->state = BENCH_TAKEN;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        raw->give(store->url, shared, raw->turns);
        _exit(0);
    }
    raw->take(store->url, shared, times, raw->turns);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0)
        bench_die("hand-over", "the plain one failed");
    munmap(shared, sizeof *shared);
}

/* How near a hand-over can come to the limit of one report and one try. */
static void handover_measure_plain(const bench_store *store, void *plain)
{
    static double times[MOST_TURNS];
    const bench_raw *raw = store->raw;
    bench_tidy(store);
    double p50[BENCH_MAX_REPETITIONS];
    double limit[BENCH_MAX_REPETITIONS];
    double lone[BENCH_MAX_REPETITIONS];
    double again[BENCH_MAX_REPETITIONS];
    for (int r = 0; r < store->repetitions; r++) {
        double trips[400];
        for (size_t i = 0; i < 400; i++) {
            if (i >= 200) /* after a pause, as a real release comes */
                bench_pause_us(HOLD_US);
            trips[i] = handover_time_round_trip(raw, plain);
        }
        limit[r] = again[r] = bench_quantile(trips, 200, 0.5);
        lone[r] = bench_quantile(trips + 200, 200, 0.5);
        handover_time_plain_turns(store, times);
        p50[r] = bench_quantile(times, (size_t)raw->turns, 0.5);
    }
    char name[64];
    snprintf(name, sizeof name, "%s after a pause, p50", raw->round_trip_name);
    bench_report(store, name, "us", lone, again, raw->round_trip_name, store->repetitions,
                 BENCH_INTEREST, 0);
    snprintf(name, sizeof name, "hand-over by %s, 2 processes, p50", raw->by_hand);
    bench_report(store, name, "us", p50, limit, raw->round_trip_name, store->repetitions,
                 BENCH_INTEREST, 0);
}

/* The smallest share that a process got of a fair eighth, in percent. */
static void handover_measure_race(const bench_store *store)
{
    double shares[BENCH_MAX_REPETITIONS];
    for (int r = 0; r < store->repetitions; r++) {
        int pids[MOST_PROCESSES] = {0};
        long counts[MOST_PROCESSES] = {0};
        size_t taken = handover_run_processes(store, MOST_PROCESSES, 0, RACE_MS);
        for (size_t i = 0; i < taken; i++) {
            int process = 0;
            while (pids[process] != 0 && pids[process] != log_of_all[i].pid)
                process++;
            pids[process] = log_of_all[i].pid;
            counts[process]++;
        }
        long least = counts[0];
        for (int process = 1; process < MOST_PROCESSES; process++)
            least = counts[process] < least ? counts[process] : least;
        shares[r] = 100.0 * MOST_PROCESSES * (double)least / (double)taken;
    }
    bench_report(store, "free race of 8, smallest share of fair", "%", shares, NULL, NULL,
                 store->repetitions, BENCH_INTEREST, 0);
}

static void handover_measure_all_forced(const bench_store *store, void *plain)
{
    handover_measure_forced(store, plain, 2, 0);
    if (store->raw->turns >= 100)
        handover_measure_forced(store, plain, 8, 1);
    if (store->raw->by_hand != NULL)
        handover_measure_plain(store, plain);
}

void bench_handover(const bench_store *store)
{
    const bench_raw *raw = store->raw;
    if (raw->turns == 0)
        return;
    void *plain = raw->open(store->url);
    if (bench_pin(store, plain)) { /* for the round trips and the processes alike */
        handover_measure_all_forced(store, plain);
        bench_unpin();
    }
    handover_measure_all_forced(store, plain);
    if (raw->turns >= 100)
        handover_measure_race(store);
    raw->close(plain);
}
