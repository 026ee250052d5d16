/*
 * Many threads of one process wait on one handle for one key: how many tries does each release
 * cost? And how late is a waiter when the holder has crashed?
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "bench.h"

#define THREADS 1000
#define TAKEOVER_TTL_MS 1000
#define OTHERS 100000

static atomic_long grants;

static void *wait_and_pass_on(void *argument)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;
    syncguard_error err;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = SYNCGUARD_WAIT_FOREVER;
    if (syncguard_lock_acquire(argument, "bench:crowd", &options, &lock, &err) != SYNCGUARD_OK)
        bench_die("waiter", err.message);
    atomic_fetch_add(&grants, 1);
    syncguard_lock_dispose(lock);
    return NULL;
}

/* Acquires that the handle has sent so far, granted or not. */
static double waiters_count_tries(const syncguard_backend *backend)
{
    char text[65536];
    double sum = 0;
    (void)syncguard_telemetry_prometheus(backend, text, sizeof text);
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        const char *value = strchr(line, '}');
        if (strncmp(line, "syncguard_operations_total{", 27) == 0 && value != NULL &&
            strstr(line, "type=\"acquire\"") != NULL)
            sum += strtod(value + 1, NULL);
    }
    return sum;
}

/* Tries per release while THREADS threads get the lock one after the other. */
static double one_crowd(const bench_store *store)
{
    static pthread_t threads[THREADS];
    syncguard_backend *outside = bench_open(store->url, NULL);
    syncguard_backend *crowd = NULL;
    syncguard_grant grant;
    syncguard_error err;
    if (syncguard_telemetry_wrap(bench_open(store->url, NULL), NULL, &crowd, &err) !=
            SYNCGUARD_OK ||
        syncguard_acquire(outside, "bench:crowd", 120000, NULL, &grant, &err) != SYNCGUARD_OK)
        bench_die("crowd", err.message);
    atomic_store(&grants, 0);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 * 1024);
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], &small, wait_and_pass_on, crowd) != 0)
            bench_die("crowd", "no thread");
    }
    bench_pause_us(1500000); /* time for all to wait */
    double before = waiters_count_tries(crowd);
    if (syncguard_release(outside, grant.lock_id, NULL, &err) != SYNCGUARD_OK)
        bench_die("release", err.message);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    double tries = waiters_count_tries(crowd) - before;
    if (tries < THREADS) /* each thread was granted the lock */
        bench_die("crowd", "tries that were not counted");
    pthread_attr_destroy(&small);
    syncguard_close(crowd);
    syncguard_close(outside);
    /* There were as many releases: the holder's, and all but the last of the threads'. */
    return tries / THREADS;
}

void bench_waiters(const bench_store *store)
{
    double tries[BENCH_MAX_REPETITIONS];
    if (store->raw->turns < 100) /* polls */
        return;
    for (int r = 0; r < store->repetitions; r++)
        tries[r] = one_crowd(store);
    /* The pauses below may add a try now and then. */
    bench_report(store, "1,000 waiters, tries per release", "", tries, NULL, NULL,
                 store->repetitions, BENCH_MOST, 1.1);
}

static double waiters_wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* The holder never returns; when it died does not matter to the store. */
void bench_takeover(const bench_store *store)
{
    double late[BENCH_MAX_REPETITIONS];
    char url[BENCH_URL_SIZE];
    if (store->raw->grow == NULL)
        return;
    store->raw->grow(store, bench_scaled(store, OTHERS), url, sizeof url);
    for (int r = 0; r < store->repetitions; r++) {
        syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
        syncguard_backend *dead = bench_open(url, NULL);
        syncguard_backend *heir = bench_open(url, NULL);
        syncguard_grant grant;
        syncguard_error err;
        if (syncguard_acquire(dead, "bench:crashed", TAKEOVER_TTL_MS, NULL, &grant, &err) !=
            SYNCGUARD_OK)
            bench_die("acquire", err.message);
        options.max_retries = SYNCGUARD_RETRY_FOREVER;
        options.timeout_ms = 30000;
        syncguard_lock *lock = NULL;
        if (syncguard_lock_acquire(heir, "bench:crashed", &options, &lock, &err) != SYNCGUARD_OK)
            bench_die("take-over", err.message);
        late[r] = waiters_wall_ms() - (double)grant.expires_at_ms - SYNCGUARD_TIME_TOLERANCE_MS;
        syncguard_lock_dispose(lock);
        syncguard_close(dead);
        syncguard_close(heir);
    }
    bench_report(store, "take-over after a crash, past TTL + 1 s", "ms", late, NULL, NULL,
                 store->repetitions, BENCH_MOST, 100);
}
