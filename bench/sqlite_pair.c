/*
 * An uncontended acquire and release on SQLite, against two plain transactions
 * that do the same work with SQLite's C interface and nothing around it: same
 * tables, prepared statements, WAL, once with synchronous=FULL against the
 * default and once with NORMAL against ?durability=normal.
 *
 * The four take turns in short blocks, so that all see the same machine. Each
 * repetition gives the ratio of two medians; the median of these counts.
 *
 *   sqlite_pair [FOLDER]    (default: a new folder below the working directory)
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "measure.h"
#include "syncguard.h"
#include "syncguard/sqlite.h"

#define REPETITIONS 7
#define BLOCKS 10
#define PAIRS 100
#define SAMPLES (BLOCKS * PAIRS)

static void die(const char *what, const char *why)
{
    fprintf(stderr, "sqlite_pair: %s: %s\n", what, why);
    exit(1);
}

/* ---- the plain program --------------------------------------------------------------------- */

typedef struct plain {
    sqlite3 *db;
    sqlite3_stmt *begin, *commit, *find, *count, *set, *put, *drop;
    long serial;
} plain;

static sqlite3_stmt *prepare(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL) != SQLITE_OK)
        die(sql, sqlite3_errmsg(db));
    return statement;
}

static void plain_open(plain *self, const char *path, const char *synchronous)
{
    char sql[128];
    if (sqlite3_open_v2(path, &self->db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        die(path, sqlite3_errmsg(self->db));
    snprintf(sql, sizeof sql, "PRAGMA journal_mode=WAL; PRAGMA synchronous=%s", synchronous);
    if (sqlite3_exec(self->db, sql, NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_exec(self->db,
                     "PRAGMA secure_delete=OFF;"
                     "CREATE TABLE locks(key TEXT NOT NULL PRIMARY KEY,"
                     " lock_id TEXT NOT NULL UNIQUE, expires_at_ms INTEGER NOT NULL,"
                     " acquired_at_ms INTEGER NOT NULL, fence TEXT NOT NULL, owner TEXT NOT NULL,"
                     " boot_id TEXT NOT NULL, boot_expires_ms INTEGER NOT NULL) WITHOUT ROWID;"
                     "CREATE TABLE counters(fence_key TEXT NOT NULL PRIMARY KEY,"
                     " fence INTEGER NOT NULL, key_debug TEXT) WITHOUT ROWID",
                     NULL, NULL, NULL) != SQLITE_OK)
        die(path, sqlite3_errmsg(self->db));
    self->begin = prepare(self->db, "BEGIN IMMEDIATE");
    self->commit = prepare(self->db, "COMMIT");
    self->find = prepare(self->db, "SELECT lock_id, boot_id, boot_expires_ms FROM locks"
                                   " WHERE key = ?1");
    self->count = prepare(self->db, "SELECT fence FROM counters WHERE fence_key = ?1");
    self->set = prepare(self->db, "INSERT INTO counters(fence_key, fence) VALUES(?1, ?2)"
                                  " ON CONFLICT(fence_key) DO UPDATE SET fence = excluded.fence");
    self->put = prepare(self->db, "INSERT INTO locks VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
    self->drop = prepare(self->db, "DELETE FROM locks WHERE lock_id = ?1 AND boot_id = ?2"
                                   " AND boot_expires_ms > ?3");
}

static void plain_close(plain *self)
{
    sqlite3_stmt *all[] = {self->begin, self->commit, self->find, self->count,
                           self->set,   self->put,    self->drop};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        sqlite3_finalize(all[i]);
    sqlite3_close(self->db);
}

static void step(plain *self, sqlite3_stmt *statement)
{
    int code = sqlite3_step(statement);
    if (code != SQLITE_DONE && code != SQLITE_ROW)
        die("plain statement", sqlite3_errmsg(self->db));
    sqlite3_reset(statement);
}

static const char BOOT[] = "01234567-89ab-cdef-0123-456789abcdef";

static int64_t now_ms(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static double plain_pair(plain *self)
{
    char id[24];
    char fence[24];
    double start = bench_us();
    snprintf(id, sizeof id, "plainplain%012ld", self->serial++);
    step(self, self->begin);
    sqlite3_bind_text(self->find, 1, "bench", 5, SQLITE_STATIC);
    step(self, self->find);
    sqlite3_bind_text(self->count, 1, "fence:bench", 11, SQLITE_STATIC);
    int64_t next =
        sqlite3_step(self->count) == SQLITE_ROW ? sqlite3_column_int64(self->count, 0) + 1 : 1;
    sqlite3_reset(self->count);
    snprintf(fence, sizeof fence, "%015lld", (long long)next);
    sqlite3_bind_text(self->set, 1, "fence:bench", 11, SQLITE_STATIC);
    sqlite3_bind_int64(self->set, 2, next);
    step(self, self->set);
    int64_t wall = now_ms(CLOCK_REALTIME);
    int64_t boot = now_ms(CLOCK_MONOTONIC);
    sqlite3_bind_text(self->put, 1, "bench", 5, SQLITE_STATIC);
    sqlite3_bind_text(self->put, 2, id, 22, SQLITE_STATIC);
    sqlite3_bind_int64(self->put, 3, wall + 30000);
    sqlite3_bind_int64(self->put, 4, wall);
    sqlite3_bind_text(self->put, 5, fence, 15, SQLITE_STATIC);
    sqlite3_bind_text(self->put, 6, "", 0, SQLITE_STATIC);
    sqlite3_bind_text(self->put, 7, BOOT, 36, SQLITE_STATIC);
    sqlite3_bind_int64(self->put, 8, boot + 30000);
    step(self, self->put);
    step(self, self->commit);

    step(self, self->begin);
    sqlite3_bind_text(self->drop, 1, id, 22, SQLITE_STATIC);
    sqlite3_bind_text(self->drop, 2, BOOT, 36, SQLITE_STATIC);
    sqlite3_bind_int64(self->drop, 3, now_ms(CLOCK_MONOTONIC) - 1000);
    step(self, self->drop);
    step(self, self->commit);
    return bench_us() - start;
}

/* ---- ours ---------------------------------------------------------------------------------- */

static syncguard_backend *ours_open(const char *path, syncguard_sqlite_durability durability)
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

static double ours_pair(syncguard_backend *backend)
{
    syncguard_grant grant;
    syncguard_error err;
    double start = bench_us();
    if (syncguard_acquire(backend, "bench", 30000, NULL, &grant, &err) != SYNCGUARD_OK ||
        syncguard_release(backend, grant.lock_id, NULL, &err) != SYNCGUARD_OK)
        die("pair", err.message);
    return bench_us() - start;
}

/* ---- taking turns -------------------------------------------------------------------------- */

enum { PLAIN_FULL, OURS_FULL, PLAIN_NORMAL, OURS_NORMAL, KINDS };

static double samples[KINDS][SAMPLES];

static void repeat(plain *full, syncguard_backend *ours_full, plain *normal,
                   syncguard_backend *ours_normal)
{
    size_t at = 0;
    for (int block = 0; block < BLOCKS; block++) {
        for (int i = 0; i < PAIRS; i++)
            samples[PLAIN_FULL][at + (size_t)i] = plain_pair(full);
        for (int i = 0; i < PAIRS; i++)
            samples[OURS_FULL][at + (size_t)i] = ours_pair(ours_full);
        for (int i = 0; i < PAIRS; i++)
            samples[PLAIN_NORMAL][at + (size_t)i] = plain_pair(normal);
        for (int i = 0; i < PAIRS; i++)
            samples[OURS_NORMAL][at + (size_t)i] = ours_pair(ours_normal);
        at += PAIRS;
    }
}

int main(int argc, char **argv)
{
    char folder[4096];
    char path[4200];
    plain full = {0};
    plain normal = {0};
    double middle[KINDS][REPETITIONS];
    double ratios[2][REPETITIONS];
    snprintf(folder, sizeof folder, "%s/bench-sqlite-XXXXXX", argc > 1 ? argv[1] : ".");
    if (mkdtemp(folder) == NULL)
        die(folder, "cannot be made");
    snprintf(path, sizeof path, "%s/plain-full.db", folder);
    plain_open(&full, path, "FULL");
    snprintf(path, sizeof path, "%s/plain-normal.db", folder);
    plain_open(&normal, path, "NORMAL");
    snprintf(path, sizeof path, "%s/ours-full.db", folder);
    syncguard_backend *ours_full = ours_open(path, SYNCGUARD_SQLITE_FULL);
    snprintf(path, sizeof path, "%s/ours-normal.db", folder);
    syncguard_backend *ours_normal = ours_open(path, SYNCGUARD_SQLITE_NORMAL);

    repeat(&full, ours_full, &normal, ours_normal); /* warms up */
    for (int r = 0; r < REPETITIONS; r++) {
        repeat(&full, ours_full, &normal, ours_normal);
        for (int kind = 0; kind < KINDS; kind++)
            middle[kind][r] = bench_quantile(samples[kind], SAMPLES, 0.5);
        ratios[0][r] = middle[OURS_FULL][r] / middle[PLAIN_FULL][r];
        ratios[1][r] = middle[OURS_NORMAL][r] / middle[PLAIN_NORMAL][r];
    }
    bool holds = bench_figure(
        "sqlite pair, durability=full (p50)", bench_quantile(middle[OURS_FULL], REPETITIONS, 0.5),
        "us", bench_quantile(middle[PLAIN_FULL], REPETITIONS, 0.5), ratios[0], REPETITIONS, 0.75);
    holds = bench_figure("sqlite pair, durability=normal (p50)",
                         bench_quantile(middle[OURS_NORMAL], REPETITIONS, 0.5), "us",
                         bench_quantile(middle[PLAIN_NORMAL], REPETITIONS, 0.5), ratios[1],
                         REPETITIONS, 1.15) &&
            holds;
    syncguard_close(ours_full);
    syncguard_close(ours_normal);
    plain_close(&full);
    plain_close(&normal);
    snprintf(path, sizeof path, "rm -rf '%s'", folder);
    if (system(path) != 0)
        fprintf(stderr, "sqlite_pair: %s is left\n", folder);
    return holds ? 0 : 1;
}
