/*
 * The least that anybody would write by hand: prepared single statements on the same tables, each
 * committed to the disk by itself, with blocking libpq.
 */
#include <libpq-fe.h>
#include <poll.h>

#include "bench.h"

#define NOW "floor(extract(epoch from clock_timestamp()) * 1000)::bigint"

/* $L: the table of the locks, $F: that of the counters. */
static const char acquire_sql[] =
    "WITH c AS (INSERT INTO $F AS f (fence_key, fence) "
    "VALUES ('fence:' || $1, 1) ON CONFLICT (fence_key) DO UPDATE SET fence = f.fence + 1 "
    "RETURNING fence) INSERT INTO $L AS l "
    "(key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key) SELECT $1, $2, " NOW
    " + 30000, " NOW ", lpad(fence::text, 15, '0'), $1 FROM c ON CONFLICT (key) DO UPDATE "
    "SET lock_id = excluded.lock_id, expires_at_ms = excluded.expires_at_ms, "
    "acquired_at_ms = excluded.acquired_at_ms, fence = excluded.fence "
    "WHERE l.expires_at_ms < " NOW " RETURNING fence, expires_at_ms";
static const char release_sql[] =
    "DELETE FROM $L WHERE lock_id = $1 AND expires_at_ms > " NOW " - 1000";
static const char renew_sql[] =
    "UPDATE $L SET expires_at_ms = " NOW " + 30000 "
    "WHERE lock_id = ANY($1::text[]) AND expires_at_ms > " NOW " - 1000 RETURNING expires_at_ms";

typedef struct plain {
    PGconn *pg;
    char locks[BENCH_NAME_SIZE + 32], fences[BENCH_NAME_SIZE + 32]; /* tables */
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

static bool libpq_knows(const PQconninfoOption *known, const char *option, size_t length)
{
    for (; known->keyword != NULL; known++) {
        if (strlen(known->keyword) == length && strncmp(known->keyword, option, length) == 0)
            return true;
    }
    return false;
}

/* The URL without the options that are for the library. */
static void bare_url(const char *url, char *out, size_t size)
{
    PQconninfoOption *known = PQconndefaults();
    const char *at = url + strcspn(url, "?");
    char mark = '?';
    size_t used = (size_t)snprintf(out, size, "%.*s", (int)(at - url), url);
    while (*at != '\0' && known != NULL && used < size) {
        at++;
        size_t length = strcspn(at, "&");
        if (libpq_knows(known, at, strcspn(at, "=&"))) {
            used += (size_t)snprintf(out + used, size - used, "%c%.*s", mark, (int)length, at);
            mark = '&';
        }
        at += length;
    }
    PQconninfoFree(known);
}

static void ignore_notice(void *context, const char *message)
{
    (void)context;
    (void)message;
}

static plain *connect_to(const char *url)
{
    static atomic_int opened;
    plain *self = calloc(1, sizeof *self);
    char bare[BENCH_URL_SIZE];
    if (self == NULL)
        bench_die("postgres", "out of memory");
    bare_url(url, bare, sizeof bare);
    self->pg = PQconnectdb(bare);
    self->number = atomic_fetch_add(&opened, 1);
    if (PQstatus(self->pg) != CONNECTION_OK)
        bench_die("plain libpq", PQerrorMessage(self->pg));
    PQsetNoticeProcessor(self->pg, ignore_notice, NULL);
    if (!bench_option(url, "lock_table", self->locks, sizeof self->locks) ||
        !bench_option(url, "fence_table", self->fences, sizeof self->fences))
        bench_die("postgres", "there are no tables of our own");
    return self;
}

/* Puts the names of our tables in. */
static const char *with_names(const plain *self, const char *text, char out[2048])
{
    size_t used = 0;
    for (; *text != '\0' && used < 1900; text++) {
        bool locks = strncmp(text, "$L", 2) == 0;
        if (!locks && strncmp(text, "$F", 2) != 0) {
            out[used++] = *text;
            continue;
        }
        used += (size_t)snprintf(out + used, 2048 - used, "%s", locks ? self->locks : self->fences);
        text++;
    }
    out[used] = '\0';
    return out;
}

/* The result is to be cleared. */
static PGresult *run(plain *self, const char *text)
{
    char sql[2048];
    return PQexec(self->pg, with_names(self, text, sql));
}

static void prepare(plain *self, const char *name, const char *text)
{
    char sql[2048];
    check(self, PQprepare(self->pg, name, with_names(self, text, sql), 0, NULL));
}

static void *open_raw(const char *url)
{
    plain *self = connect_to(url);
    prepare(self, "a", acquire_sql);
    prepare(self, "r", release_sql);
    prepare(self, "x", renew_sql);
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

/* ---- a hand-over by hand ---- */

/* A release that tells, and that does not wait for the disk, as ours. */
static void give_batons(const char *url, bench_baton *shared, int turns)
{
    plain *self = open_raw(url);
    check(self, PQexec(self->pg, "SET synchronous_commit = off"));
    prepare(self, "t",
            "DELETE FROM $L WHERE lock_id = $1 AND expires_at_ms > " NOW " - 1000 "
            "RETURNING pg_notify('$L', 'x')");
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
    check(self, run(self, "LISTEN $L"));
    for (int i = 0; i < turns; i++) {
        struct pollfd told = {PQsocket(self->pg), POLLIN, 0};
        PGnotify *notification = NULL;
        char id[40];
        const char *one[] = {id};
        bench_await_baton(shared, BENCH_HELD);
        bench_set_baton(shared, BENCH_WAITED_FOR);
        while ((notification = PQnotifies(self->pg)) == NULL) {
            if (poll(&told, 1, 10000) <= 0 || PQconsumeInput(self->pg) == 0)
                bench_die("postgres", "no notification came");
        }
        PQfreemem(notification);
        acquire(self, "bench:plain-baton", id);
        times[i] = bench_us() - atomic_load(&shared->released_us);
        check(self, PQexecPrepared(self->pg, "r", 1, one, NULL, NULL, 0));
        bench_set_baton(shared, BENCH_TAKEN);
    }
    close_raw(self);
}

/* ---- our place ---- */

static void name_tables(const char *url, const char *name, char *out, size_t size)
{
    char fences[BENCH_NAME_SIZE + 32], step[BENCH_URL_SIZE];
    snprintf(fences, sizeof fences, "%s_fences", name);
    bench_set_option(url, "lock_table", name, step, sizeof step);
    bench_set_option(step, "fence_table", fences, out, size);
}

/* Our sessions bear the name, too. */
static void place(const char *url, const char *name, char *out, size_t size)
{
    char step[BENCH_URL_SIZE];
    bench_set_option(url, "application_name", name, step, sizeof step);
    name_tables(step, name, out, size);
}

static int number_of(plain *self, const char *sql)
{
    PGresult *result = run(self, sql);
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        bench_die("plain libpq", PQerrorMessage(self->pg));
    int number = PQntuples(result) == 1 ? (int)strtol(PQgetvalue(result, 0, 0), NULL, 10) : -1;
    PQclear(result);
    return number;
}

/* What sessions of ours still do is ended first: a table might be made after we have looked. */
static void end_sessions(plain *self)
{
    static const char others[] = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                                 "WHERE application_name = '$L' AND pid <> pg_backend_pid()";
    for (int i = 0; i < 250 && number_of(self, others) > 0; i++)
        bench_pause_us(20000);
}

static void clear(const char *url)
{
    plain *self = connect_to(url);
    end_sessions(self);
    PGresult *tables = run(self, "SELECT quote_ident(nspname) || '.' || quote_ident(relname) "
                                 "FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
                                 "WHERE relkind = 'r' AND left(relname, length('$L')) = '$L'");
    if (PQresultStatus(tables) != PGRES_TUPLES_OK)
        bench_die("plain libpq", PQerrorMessage(self->pg));
    for (int i = 0; i < PQntuples(tables); i++) {
        char sql[256];
        snprintf(sql, sizeof sql, "DROP TABLE %s", PQgetvalue(tables, i, 0));
        check(self, PQexec(self->pg, sql));
    }
    PQclear(tables);
    close_raw(self);
}

static void tidy(const char *url)
{
    plain *self = connect_to(url);
    check(self, run(self, "VACUUM $L"));
    check(self, run(self, "VACUUM $F"));
    close_raw(self);
}

static void grow(const bench_store *store, long locks, char *out, size_t size)
{
    char base[BENCH_NAME_SIZE], name[BENCH_NAME_SIZE + 16];
    if (!bench_option(store->url, "lock_table", base, sizeof base))
        bench_die("postgres", "there are no tables of our own");
    snprintf(name, sizeof name, "%s_g%ld", base, locks);
    name_tables(store->url, name, out, size);
    plain *self = connect_to(out);
    check(self, run(self, "DROP TABLE IF EXISTS $L, $F"));
    syncguard_error err;
    if (syncguard_setup(out, NULL, NULL, NULL, &err) != SYNCGUARD_OK)
        bench_die("setup", err.message);
    char sql[1024];
    snprintf(sql, sizeof sql,
             "INSERT INTO %s (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key) "
             "SELECT 'grow-' || lpad(i::text, 7, '0'), lpad(i::text, 22, '0'), " NOW
             " + 86400000, " NOW ", '000000000000001', 'grow-' || lpad(i::text, 7, '0') "
             "FROM generate_series(1, %ld) i",
             self->locks, locks);
    check(self, PQexec(self->pg, sql));
    check(self, run(self, "INSERT INTO $F (fence_key, fence) SELECT 'fence:' || key, 1 "
                          "FROM $L"));
    check(self, run(self, "VACUUM ANALYZE $L, $F"));
    if (store->own)
        check(self, PQexec(self->pg, "CHECKPOINT"));
    close_raw(self);
}

const bench_raw bench_raw_postgres = {
    .name = "postgres",
    .scheme = "postgres",
    .client = "plain durable libpq pair",
    .variants = {{"pair", NULL, 0.95}},
    .open = open_raw,
    .close = close_raw,
    .pair = pair,
    .most_connections = 8, /* pool_max */
    .rate_bar = 0.85,
    .rate_threads = 16,
    .renew = renew,
    .round_trip_name = "plain durable libpq pair",
    .server_pid = server_pid,
    .turns = 240,
    .by_hand = "plain libpq",
    .give = give_batons,
    .take = take_batons,
    .handover_bar = {1.6, 2.2},
    .tidy = tidy,
    .place = place,
    .clear = clear,
    .grow = grow,
    .held = 20000,
    .remembers = 5000,
};
