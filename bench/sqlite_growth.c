/*
 * Does one more acquire and release cost more when many locks are held? Files
 * with 1, 1,000, 100,000 and 1,000,000 live locks take turns; each pair is on a
 * random new key between the others.
 *
 * The locks are put there by SQL, modelled on one that was acquired, because
 * only their number matters.
 *
 *   sqlite_growth [FOLDER]    (default: a new folder below the working directory)
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "measure.h"
#include "syncguard.h"
#include "syncguard/sqlite.h"

#define REPETITIONS 5
#define BLOCKS 10
#define PAIRS 50
#define SAMPLES (BLOCKS * PAIRS)
#define TTL_MS (INT64_C(24) * 3600 * 1000)

static const long HELD[] = {1, 1000, 100000, 1000000};
#define SIZES (sizeof HELD / sizeof HELD[0])

static void die(const char *what, const char *why)
{
    fprintf(stderr, "sqlite_growth: %s: %s\n", what, why);
    exit(1);
}

static syncguard_backend *open_store(const char *path, syncguard_sqlite_durability durability)
{
    syncguard_sqlite_options options = SYNCGUARD_SQLITE_OPTIONS_INIT;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    options.path = path;
    options.durability = durability;
    if (syncguard_sqlite_open(&options, NULL, &backend, &err) != SYNCGUARD_OK)
        die(path, err.message);
    return backend;
}

static void fill(const char *path, long held)
{
    syncguard_grant grant;
    syncguard_error err;
    sqlite3 *db = NULL;
    char sql[1024];
    syncguard_backend *backend = open_store(path, SYNCGUARD_SQLITE_FULL);
    if (syncguard_acquire(backend, "model", TTL_MS, NULL, &grant, &err) != SYNCGUARD_OK)
        die("model", err.message);
    syncguard_close(backend);
    snprintf(sql, sizeof sql,
             "PRAGMA synchronous=OFF; BEGIN;"
             "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %ld)"
             " INSERT INTO syncguard_locks(key, lock_id, expires_at_ms, acquired_at_ms, fence,"
             " owner, boot_id, boot_expires_ms)"
             " SELECT printf('grow-%%07d', i), printf('%%022d', i), expires_at_ms, acquired_at_ms,"
             " fence, owner, boot_id, boot_expires_ms FROM n, syncguard_locks WHERE key = 'model'"
             " AND i < %ld;"
             "INSERT INTO syncguard_fence_counters(fence_key, fence)"
             " SELECT 'fence:' || key, 1 FROM syncguard_locks WHERE key <> 'model';"
             "COMMIT; PRAGMA wal_checkpoint(TRUNCATE)",
             held, held);
    if (sqlite3_open(path, &db) != SQLITE_OK || sqlite3_exec(db, sql, NULL, NULL, NULL) != 0)
        die(path, sqlite3_errmsg(db));
    sqlite3_close(db);
}

static double pair(syncguard_backend *backend, long number)
{
    syncguard_grant grant;
    syncguard_error err;
    char key[32];
    snprintf(key, sizeof key, "grow-%07ld-x", number);
    double start = bench_us();
    if (syncguard_acquire(backend, key, 30000, NULL, &grant, &err) != SYNCGUARD_OK ||
        syncguard_release(backend, grant.lock_id, NULL, &err) != SYNCGUARD_OK)
        die("pair", err.message);
    return bench_us() - start;
}

static double samples[SIZES][SAMPLES];

static void repeat(syncguard_backend **stores, unsigned *seed)
{
    for (int block = 0; block < BLOCKS; block++) {
        for (size_t size = 0; size < SIZES; size++) {
            for (int i = 0; i < PAIRS; i++)
                samples[size][block * PAIRS + i] = pair(stores[size], rand_r(seed) % 1000000);
        }
    }
}

static bool run(const char *folder, syncguard_sqlite_durability durability, const char *word,
                double bar)
{
    char path[4200];
    char name[80];
    unsigned seed = 1;
    syncguard_backend *stores[SIZES];
    double middle[SIZES][REPETITIONS];
    double ratios[REPETITIONS];
    bool holds = true;
    for (size_t size = 0; size < SIZES; size++) {
        snprintf(path, sizeof path, "%s/%ld.db", folder, HELD[size]);
        stores[size] = open_store(path, durability);
    }
    repeat(stores, &seed);
    for (int r = 0; r < REPETITIONS; r++) {
        repeat(stores, &seed);
        for (size_t size = 0; size < SIZES; size++)
            middle[size][r] = bench_quantile(samples[size], SAMPLES, 0.5);
    }
    for (size_t size = 1; size < SIZES; size++) {
        double mine[REPETITIONS];
        double base[REPETITIONS];
        for (int r = 0; r < REPETITIONS; r++) {
            mine[r] = middle[size][r];
            base[r] = middle[0][r];
            ratios[r] = mine[r] / base[r];
        }
        snprintf(name, sizeof name, "sqlite pair, %ld held, %s (p50)", HELD[size], word);
        holds = bench_figure(name, bench_quantile(mine, REPETITIONS, 0.5), "us",
                             bench_quantile(base, REPETITIONS, 0.5), ratios, REPETITIONS, bar) &&
                holds;
    }
    for (size_t size = 0; size < SIZES; size++)
        syncguard_close(stores[size]);
    return holds;
}

int main(int argc, char **argv)
{
    char folder[4096];
    char path[4200];
    snprintf(folder, sizeof folder, "%s/bench-sqlite-XXXXXX", argc > 1 ? argv[1] : ".");
    if (mkdtemp(folder) == NULL)
        die(folder, "cannot be made");
    for (size_t size = 0; size < SIZES; size++) {
        snprintf(path, sizeof path, "%s/%ld.db", folder, HELD[size]);
        fill(path, HELD[size]);
    }
    bool holds = run(folder, SYNCGUARD_SQLITE_FULL, "full", 1.2);
    (void)run(folder, SYNCGUARD_SQLITE_NORMAL, "normal", 0);
    snprintf(path, sizeof path, "rm -rf '%s'", folder);
    if (system(path) != 0)
        fprintf(stderr, "sqlite_growth: %s is left\n", folder);
    return holds ? 0 : 1;
}
