/*
 * The least that anybody would write by hand: prepared single statements on the same tables, each
 * committed to the disk by itself, with blocking libpq.
 */
#include <libpq-fe.h>
#include <poll.h>

#include "bench.h"

#define NOW "floor(extract(epoch from clock_timestamp()) * 1000)::bigint"

static const char acquire_sql[] =
    "WITH c AS (INSERT INTO syncguard_fence_counters AS f (fence_key, fence) "
    "VALUES ('fence:' || $1, 1) ON CONFLICT (fence_key) DO UPDATE SET fence = f.fence + 1 "
    "RETURNING fence) INSERT INTO syncguard_locks AS l "
    "(key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key) SELECT $1, $2, " NOW
    " + 30000, " NOW ", lpad(fence::text, 15, '0'), $1 FROM c ON CONFLICT (key) DO UPDATE "
    "SET lock_id = excluded.lock_id, expires_at_ms = excluded.expires_at_ms, "
    "acquired_at_ms = excluded.acquired_at_ms, fence = excluded.fence "
    "WHERE l.expires_at_ms < " NOW " RETURNING fence, expires_at_ms";
static const char release_sql[] =
    "DELETE FROM syncguard_locks WHERE lock_id = $1 AND expires_at_ms > " NOW " - 1000";
static const char renew_sql[] =
    "UPDATE syncguard_locks SET expires_at_ms = " NOW " + 30000 "
    "WHERE lock_id = ANY($1::text[]) AND expires_at_ms > " NOW " - 1000 RETURNING expires_at_ms";

typedef struct plain {
    PGconn *pg;
    int number;
    long serial;
    char *renewed; /* their ids, as an array */
} plain;

static void check(plain *self, PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        bench_die("plain libpq", PQerrorMessage(self->pg));
    PQclear(result);
}

static void *open_raw(const char *url)
{
    static atomic_int opened;
    plain *self = calloc(1, sizeof *self);
    char bare[BENCH_URL_SIZE];
    if (self == NULL)
        bench_die("postgres", "out of memory");
    snprintf(bare, sizeof bare, "%.*s", (int)strcspn(url, "?"), url);
    self->pg = PQconnectdb(bare);
    self->number = atomic_fetch_add(&opened, 1);
    if (PQstatus(self->pg) != CONNECTION_OK)
        bench_die("plain libpq", PQerrorMessage(self->pg));
    check(self, PQexec(self->pg, "SET client_min_messages = warning"));
    check(self, PQprepare(self->pg, "a", acquire_sql, 0, NULL));
    check(self, PQprepare(self->pg, "r", release_sql, 0, NULL));
    check(self, PQprepare(self->pg, "x", renew_sql, 0, NULL));
    return self;
}

static void close_raw(void *raw)
{
    plain *self = raw;
    PQfinish(self->pg);
    free(self->renewed);
    free(self);
}

static void acquire(plain *self, const char *key, char id[40])
{
    const char *values[] = {key, id};
    snprintf(id, 40, "%08d%014ld", self->number, self->serial++);
    check(self, PQexecPrepared(self->pg, "a", 2, values, NULL, NULL, 0));
}

static void pair(void *raw, const char *key)
{
    plain *self = raw;
    char id[40];
    const char *one[] = {id};
    acquire(self, key, id);
    check(self, PQexecPrepared(self->pg, "r", 1, one, NULL, NULL, 0));
}

static void renew(void *raw)
{
    plain *self = raw;
    if (self->renewed == NULL) {
        size_t at = 1;
        self->renewed = calloc(BENCH_BATCH, 24);
        if (self->renewed == NULL)
            bench_die("postgres", "out of memory");
        for (int i = 0; i < BENCH_BATCH; i++, at += 23) {
            char key[32], id[40];
            snprintf(key, sizeof key, "plain-renew-%d", i);
            acquire(self, key, id);
            memcpy(self->renewed + at, id, 22);
            self->renewed[at + 22] = ',';
        }
        self->renewed[0] = '{';
        self->renewed[at - 1] = '}';
    }
    const char *one[] = {self->renewed};
    check(self, PQexecPrepared(self->pg, "x", 1, one, NULL, NULL, 0));
}

/* The one that all of the server's processes are children of. */
static int server_pid(void *raw)
{
    const plain *self = raw;
    char path[64];
    char name[32] = "";
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", PQbackendPID(self->pg));
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%*d (%31[^)]) %*c %d", name, &parent) != 2 || strcmp(name, "postgres") != 0)
        parent = 0; /* the server is on another machine, and this a stranger */
    fclose(file);
    return parent;
}

/* ---- a hand-over by hand --------------------------------------------------------------------- */

/* A release that tells, and that does not wait for the disk, as ours. */
static void give_batons(const char *url, bench_baton *shared, int turns)
{
    plain *self = open_raw(url);
    check(self, PQexec(self->pg, "SET synchronous_commit = off"));
    check(self, PQprepare(self->pg, "t",
                          "DELETE FROM syncguard_locks WHERE lock_id = $1 AND "
                          "expires_at_ms > " NOW " - 1000 "
                          "RETURNING pg_notify('bench_baton', 'x')",
                          0, NULL));
    for (int i = 0; i < turns; i++) {
        char id[40];
        const char *one[] = {id};
        acquire(self, "bench:plain-baton", id);
        bench_give_baton(shared);
        check(self, PQexecPrepared(self->pg, "t", 1, one, NULL, NULL, 0));
        bench_await_baton(shared, BENCH_TAKEN);
    }
    close_raw(self);
}

/* One connection that hears of the release and sends the acquire itself: nothing can be faster
 * that is told by NOTIFY. */
static void take_batons(const char *url, bench_baton *shared, double *times, int turns)
{
    plain *self = open_raw(url);
    check(self, PQexec(self->pg, "LISTEN bench_baton"));
    for (int i = 0; i < turns; i++) {
        struct pollfd told = {PQsocket(self->pg), POLLIN, 0};
        PGnotify *news = NULL;
        char id[40];
        const char *one[] = {id};
        bench_await_baton(shared, BENCH_HELD);
        bench_set_baton(shared, BENCH_WAITED_FOR);
        while ((news = PQnotifies(self->pg)) == NULL) {
            if (poll(&told, 1, 10000) <= 0 || !PQconsumeInput(self->pg))
                bench_die("postgres", "no notification came");
        }
        PQfreemem(news);
        acquire(self, "bench:plain-baton", id);
        times[i] = bench_us() - atomic_load(&shared->released_us);
        check(self, PQexecPrepared(self->pg, "r", 1, one, NULL, NULL, 0));
        bench_set_baton(shared, BENCH_TAKEN);
    }
    close_raw(self);
}

static void tidy(const char *url)
{
    plain *self = open_raw(url);
    check(self, PQexec(self->pg, "VACUUM syncguard_locks"));
    check(self, PQexec(self->pg, "VACUUM syncguard_fence_counters"));
    close_raw(self);
}

static void grow(const char *url, long locks, char *out, size_t size)
{
    plain *self = open_raw(url);
    char sql[1024], option[96];
    syncguard_error err;
    snprintf(option, sizeof option, "lock_table=grow_%ld&fence_table=grow_%ld_fences", locks,
             locks);
    bench_with_option(url, option, out, size);
    snprintf(sql, sizeof sql, "DROP TABLE IF EXISTS grow_%ld, grow_%ld_fences", locks, locks);
    check(self, PQexec(self->pg, sql));
    if (syncguard_setup(out, NULL, NULL, NULL, &err) != SYNCGUARD_OK)
        bench_die("setup", err.message);
    snprintf(sql, sizeof sql,
             "INSERT INTO grow_%ld (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key) "
             "SELECT 'grow-' || lpad(i::text, 7, '0'), lpad(i::text, 22, '0'), " NOW
             " + 86400000, " NOW ", '000000000000001', 'grow-' || lpad(i::text, 7, '0') "
             "FROM generate_series(1, %ld) i",
             locks, locks);
    check(self, PQexec(self->pg, sql));
    snprintf(sql, sizeof sql,
             "INSERT INTO grow_%ld_fences (fence_key, fence) SELECT 'fence:' || key, 1 "
             "FROM grow_%ld",
             locks, locks);
    check(self, PQexec(self->pg, sql));
    snprintf(sql, sizeof sql, "VACUUM ANALYZE grow_%ld, grow_%ld_fences", locks, locks);
    check(self, PQexec(self->pg, sql));
    check(self, PQexec(self->pg, "CHECKPOINT"));
    close_raw(self);
}

const bench_raw bench_raw_postgres = {
    .name = "postgres",
    .scheme = "postgres",
    .client = "plain durable libpq pair",
    .variants = {{"pair", NULL, 0.85}},
    .open = open_raw,
    .close = close_raw,
    .pair = pair,
    .most_connections = 8, /* pool_max */
    .rate_bar = 1.0,
    .rate_threads = 16,
    .renew = renew,
    .round_trip_name = "plain durable libpq pair",
    .server_pid = server_pid,
    .turns = 240,
    .by_hand = "plain libpq",
    .give = give_batons,
    .take = take_batons,
    .handover_bar = {1.25, 2.0},
    .tidy = tidy,
    .grow = grow,
    .held = 20000,
    .remembers = 5000,
};
