/*
 * Two plain transactions that do the same work with SQLite's C interface and nothing else: same
 * tables, prepared statements, WAL, synchronous=FULL (NORMAL for ?durability=normal). Its file lies
 * beside ours, in a folder of our own beside the file of the URL: the same disk.
 */
#include <sqlite3.h>
#include <stdatomic.h>
#include <time.h>

#include "bench.h"

typedef struct plain {
    sqlite3 *db;
    sqlite3_stmt *begin, *commit, *find, *count, *set, *put, *drop, *extend;
    char path[4400];
    char prefix[16];
    long serial;
    bool renews;
} plain;

static sqlite3_stmt *raw_sqlite_prepare(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL) != SQLITE_OK)
        bench_die(sql, sqlite3_errmsg(db));
    return statement;
}

static const char tables_sql[] =
    "PRAGMA secure_delete=OFF;"
    "CREATE TABLE IF NOT EXISTS locks(key TEXT NOT NULL PRIMARY KEY,"
    " lock_id TEXT NOT NULL UNIQUE, expires_at_ms INTEGER NOT NULL,"
    " acquired_at_ms INTEGER NOT NULL, fence TEXT NOT NULL, owner TEXT NOT NULL,"
    " boot_id TEXT NOT NULL, boot_expires_ms INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS counters(fence_key TEXT NOT NULL PRIMARY KEY,"
    " fence INTEGER NOT NULL, key_debug TEXT) WITHOUT ROWID";

static void raw_sqlite_prepare_all(plain *self)
{
    self->begin = raw_sqlite_prepare(self->db, "BEGIN IMMEDIATE");
    self->commit = raw_sqlite_prepare(self->db, "COMMIT");
    self->find = raw_sqlite_prepare(self->db, "SELECT lock_id, boot_id, boot_expires_ms FROM locks"
                                              " WHERE key = ?1");
    self->count = raw_sqlite_prepare(self->db, "SELECT fence FROM counters WHERE fence_key = ?1");
    self->set = raw_sqlite_prepare(self->db,
                                   "INSERT INTO counters(fence_key, fence) VALUES(?1, ?2)"
                                   " ON CONFLICT(fence_key) DO UPDATE SET fence = excluded.fence");
    self->put =
        raw_sqlite_prepare(self->db, "INSERT INTO locks VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
    self->drop =
        raw_sqlite_prepare(self->db, "DELETE FROM locks WHERE lock_id = ?1 AND boot_id = ?2"
                                     " AND boot_expires_ms > ?3");
    self->extend =
        raw_sqlite_prepare(self->db, "UPDATE locks SET expires_at_ms = ?2, boot_expires_ms = ?3"
                                     " WHERE lock_id = ?1 AND boot_expires_ms > ?4");
}

/* The path of a URL, decoded: the part between the scheme and the options. */
static void raw_sqlite_url_path(const char *url, char *out, size_t size)
{
    const char *at = url + strlen("sqlite:");
    size_t used = 0;
    for (; *at != '\0' && *at != '?' && used + 1 < size; at++) {
        unsigned byte = 0;
        if (*at == '%' && sscanf(at + 1, "%2x", &byte) == 1) {
            out[used++] = (char)byte;
            at += 2;
        } else {
            out[used++] = *at;
        }
    }
    out[used] = '\0';
}

/* The library creates the folder. */
static void raw_sqlite_place_url(const char *url, const char *name, char *out, size_t size)
{
    const char *path = url + strlen("sqlite:");
    int length = (int)strcspn(path, "?");
    int head = length; /* up to the last slash */
    while (head > 0 && path[head - 1] != '/')
        head--;
    snprintf(out, size, "sqlite:%.*s%s/locks.db%s", head, path, name, path + length);
}

static void raw_sqlite_clear(const char *url)
{
    char folder[4400];
    raw_sqlite_url_path(url, folder, sizeof folder);
    *strrchr(folder, '/') = '\0';
    bench_remove_tree(folder);
}

static void *raw_sqlite_open(const char *url)
{
    static atomic_int opened;
    plain *self = calloc(1, sizeof *self);
    bool normal = strstr(url, "durability=normal") != NULL;
    if (self == NULL)
        bench_die("sqlite", "out of memory");
    raw_sqlite_url_path(url, self->path, sizeof self->path - 16);
    size_t length = strlen(self->path);
    snprintf(self->path + length, sizeof self->path - length, "%s",
             normal ? ".plain-normal" : ".plain");
    snprintf(self->prefix, sizeof self->prefix, "plain%05d", atomic_fetch_add(&opened, 1));
    if (sqlite3_open_v2(self->path, &self->db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        bench_die(self->path, sqlite3_errmsg(self->db));
    sqlite3_busy_timeout(self->db, 10000);
    char sql[128];
    snprintf(sql, sizeof sql, "PRAGMA journal_mode=WAL; PRAGMA synchronous=%s",
             normal ? "NORMAL" : "FULL");
    if (sqlite3_exec(self->db, sql, NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_exec(self->db, tables_sql, NULL, NULL, NULL) != SQLITE_OK)
        bench_die(self->path, sqlite3_errmsg(self->db));
    raw_sqlite_prepare_all(self);
    return self;
}

static void raw_sqlite_close(void *raw)
{
    plain *self = raw;
    sqlite3_stmt *all[] = {self->begin, self->commit, self->find, self->count,
                           self->set,   self->put,    self->drop, self->extend};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        sqlite3_finalize(all[i]);
    sqlite3_close(self->db);
    free(self);
}

static void raw_sqlite_step(plain *self, sqlite3_stmt *statement)
{
    int code = sqlite3_step(statement);
    if (code != SQLITE_DONE && code != SQLITE_ROW)
        bench_die("plain statement", sqlite3_errmsg(self->db));
    sqlite3_reset(statement);
}

static const char BOOT[] = "01234567-89ab-cdef-0123-456789abcdef";

static int64_t raw_sqlite_now_ms(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Must be called inside a transaction. */
static void raw_sqlite_put_lock(plain *self, const char *key, const char *id)
{
    char counter[64];
    int length = snprintf(counter, sizeof counter, "fence:%s", key);
    sqlite3_bind_text(self->find, 1, key, -1, SQLITE_STATIC);
    raw_sqlite_step(self, self->find);
    sqlite3_bind_text(self->count, 1, counter, length, SQLITE_STATIC);
    int64_t next =
        sqlite3_step(self->count) == SQLITE_ROW ? sqlite3_column_int64(self->count, 0) + 1 : 1;
    sqlite3_reset(self->count);
    char fence[24];
    snprintf(fence, sizeof fence, "%015lld", (long long)next);
    sqlite3_bind_text(self->set, 1, counter, length, SQLITE_STATIC);
    sqlite3_bind_int64(self->set, 2, next);
    raw_sqlite_step(self, self->set);
    int64_t wall = raw_sqlite_now_ms(CLOCK_REALTIME);
    sqlite3_bind_text(self->put, 1, key, -1, SQLITE_STATIC);
    sqlite3_bind_text(self->put, 2, id, 22, SQLITE_STATIC);
    sqlite3_bind_int64(self->put, 3, wall + 30000);
    sqlite3_bind_int64(self->put, 4, wall);
    sqlite3_bind_text(self->put, 5, fence, 15, SQLITE_STATIC);
    sqlite3_bind_text(self->put, 6, "", 0, SQLITE_STATIC);
    sqlite3_bind_text(self->put, 7, BOOT, 36, SQLITE_STATIC);
    sqlite3_bind_int64(self->put, 8, raw_sqlite_now_ms(CLOCK_BOOTTIME) + 30000);
    raw_sqlite_step(self, self->put);
}

static void raw_sqlite_pair(void *raw, const char *key)
{
    plain *self = raw;
    char id[48];
    snprintf(id, sizeof id, "%s%012ld", self->prefix, self->serial++);
    raw_sqlite_step(self, self->begin);
    raw_sqlite_put_lock(self, key, id);
    raw_sqlite_step(self, self->commit);
    raw_sqlite_step(self, self->begin);
    sqlite3_bind_text(self->drop, 1, id, 22, SQLITE_STATIC);
    sqlite3_bind_text(self->drop, 2, BOOT, 36, SQLITE_STATIC);
    sqlite3_bind_int64(self->drop, 3, raw_sqlite_now_ms(CLOCK_BOOTTIME) - 1000);
    raw_sqlite_step(self, self->drop);
    raw_sqlite_step(self, self->commit);
}

static void raw_sqlite_renew(void *raw)
{
    plain *self = raw;
    char id[24];
    raw_sqlite_step(self, self->begin);
    for (int i = 0; i < BENCH_BATCH; i++) {
        snprintf(id, sizeof id, "renew%017d", i);
        if (!self->renews) {
            char key[32];
            snprintf(key, sizeof key, "plain-renew-%d", i);
            raw_sqlite_put_lock(self, key, id);
            continue;
        }
        int64_t boot = raw_sqlite_now_ms(CLOCK_BOOTTIME);
        sqlite3_bind_text(self->extend, 1, id, 22, SQLITE_STATIC);
        sqlite3_bind_int64(self->extend, 2, raw_sqlite_now_ms(CLOCK_REALTIME) + 30000);
        sqlite3_bind_int64(self->extend, 3, boot + 30000);
        sqlite3_bind_int64(self->extend, 4, boot - 1000);
        raw_sqlite_step(self, self->extend);
    }
    raw_sqlite_step(self, self->commit);
    self->renews = true;
}

/* The locks are written by SQL, modelled on one that was acquired. */
static void raw_sqlite_grow(const bench_store *store, long locks, char *out, size_t size)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    const char *file = strstr(store->url, "/locks.db");
    char path[4300];
    snprintf(out, size, "%.*s/grown-%ld.db", (int)(file - store->url), store->url, locks);
    raw_sqlite_url_path(out, path, sizeof path);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        char old[4400];
        snprintf(old, sizeof old, "%s%s", path, ends[i]);
        (void)remove(old);
    }
    syncguard_backend *backend = bench_open(out, NULL);
    syncguard_grant grant;
    syncguard_error err;
    if (syncguard_acquire(backend, "model", 86400000, NULL, &grant, &err) != SYNCGUARD_OK)
        bench_die("model", err.message);
    syncguard_close(backend);
    char sql[1024];
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
             locks, locks);
    sqlite3 *db = NULL;
    if (sqlite3_open(path, &db) != SQLITE_OK ||
        sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        bench_die(path, sqlite3_errmsg(db));
    sqlite3_close(db);
}

const bench_raw bench_raw_sqlite = {
    .name = "sqlite",
    .scheme = "sqlite:",
    .client = "two plain transactions",
    .variants = {{"pair", NULL, 0.75}, {"pair, durability=normal", "durability=normal", 1.15}},
    .open = raw_sqlite_open,
    .close = raw_sqlite_close,
    .pair = raw_sqlite_pair,
    .most_connections = 1, /* writers queue up: more of them are no faster */
    .renew = raw_sqlite_renew,
    .round_trip_name = "two plain transactions",
    .turns = 240,
    .handover_us = 1000,
    .place = raw_sqlite_place_url,
    .clear = raw_sqlite_clear,
    .grow = raw_sqlite_grow,
    .remembers = 5000,
};
