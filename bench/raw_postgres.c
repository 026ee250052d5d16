/*
 * The least that a user would write by hand: prepared single statements on the same tables, each
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
    char *renewed; /* their lock ids, as an array */
} plain;

static void raw_pg_check_result(plain *self, PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        bench_die("plain libpq", PQerrorMessage(self->pg));
    PQclear(result);
}

static bool raw_pg_option_is_known(const PQconninfoOption *known, const char *option, size_t length)
{
    for (; known->keyword != NULL; known++) {
        if (strlen(known->keyword) == length && strncmp(known->keyword, option, length) == 0)
            return true;
    }
    return false;
}

/* The URL without the options that are for the library. */
static void raw_pg_bare_url(const char *url, char *out, size_t size)
{
    PQconninfoOption *known = PQconndefaults();
    const char *at = url + strcspn(url, "?");
    char mark = '?';
    size_t used = (size_t)snprintf(out, size, "%.*s", (int)(at - url), url);
    while (*at != '\0' && known != NULL && used < size) {
        at++;
        size_t length = strcspn(at, "&");
        if (raw_pg_option_is_known(known, at, strcspn(at, "=&"))) {
            used += (size_t)snprintf(out + used, size - used, "%c%.*s", mark, (int)length, at);
            mark = '&';
        }
        at += length;
    }
    PQconninfoFree(known);
}

static void raw_pg_ignore_notice(void *context, const char *message)
{
    (void)context;
    (void)message;
}

static plain *raw_pg_connect(const char *url)
{
    static atomic_int opened;
    plain *self = calloc(1, sizeof *self);
    char bare[BENCH_URL_SIZE];
    if (self == NULL)
        bench_die("postgres", "out of memory");
    raw_pg_bare_url(url, bare, sizeof bare);
    self->pg = PQconnectdb(bare);
    self->number = atomic_fetch_add(&opened, 1);
    if (PQstatus(self->pg) != CONNECTION_OK)
        bench_die("plain libpq", PQerrorMessage(self->pg));
    PQsetNoticeProcessor(self->pg, raw_pg_ignore_notice, NULL);
    if (!bench_option(url, "lock_table", self->locks, sizeof self->locks) ||
        !bench_option(url, "fence_table", self->fences, sizeof self->fences))
        bench_die("postgres", "there are no tables of our own");
    return self;
}

/* Inserts the names of our tables. */
static const char *raw_pg_insert_names(const plain *self, const char *text, char out[2048])
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

/* The caller clears the result. */
static PGresult *raw_pg_query(plain *self, const char *text)
{
    char sql[2048];
    return PQexec(self->pg, raw_pg_insert_names(self, text, sql));
}

static void raw_pg_prepare(plain *self, const char *name, const char *text)
{
    char sql[2048];
    raw_pg_check_result(self,
                        PQprepare(self->pg, name, raw_pg_insert_names(self, text, sql), 0, NULL));
}

static void *raw_pg_open(const char *url)
{
    plain *self = raw_pg_connect(url);
    raw_pg_prepare(self, "a", acquire_sql);
    raw_pg_prepare(self, "r", release_sql);
    raw_pg_prepare(self, "x", renew_sql);
    return self;
}

static void raw_pg_close(void *raw)
{
    plain *self = raw;
    PQfinish(self->pg);
    free(self->renewed);
    free(self);
}

static void raw_pg_acquire(plain *self, const char *key, char id[40])
{
    const char *values[] = {key, id};
    snprintf(id, 40, "%08d%014ld", self->number, self->serial++);
    raw_pg_check_result(self, PQexecPrepared(self->pg, "a", 2, values, NULL, NULL, 0));
}

static void raw_pg_pair(void *raw, const char *key)
{
    plain *self = raw;
    char id[40];
    const char *one[] = {id};
    raw_pg_acquire(self, key, id);
    raw_pg_check_result(self, PQexecPrepared(self->pg, "r", 1, one, NULL, NULL, 0));
}

static void raw_pg_renew(void *raw)
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
            raw_pg_acquire(self, key, id);
            memcpy(self->renewed + at, id, 22);
            self->renewed[at + 22] = ',';
        }
        self->renewed[0] = '{';
        self->renewed[at - 1] = '}';
    }
    const char *one[] = {self->renewed};
    raw_pg_check_result(self, PQexecPrepared(self->pg, "x", 1, one, NULL, NULL, 0));
}

/* The process that all of the server's processes are children of. */
static int raw_pg_server_pid(void *raw)
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
        parent = 0; /* the server is on another machine, and this process is not it */
    fclose(file);
    return parent;
}

/* ---- a hand-over by hand ---- */

/* A release that notifies and, like the library's, does not wait for the disk. */
static void raw_pg_give_batons(const char *url, bench_baton *shared, int turns)
{
    plain *self = raw_pg_open(url);
    raw_pg_check_result(self, PQexec(self->pg, "SET synchronous_commit = off"));
    raw_pg_prepare(self, "t",
                   "DELETE FROM $L WHERE lock_id = $1 AND expires_at_ms > " NOW " - 1000 "
                   "RETURNING pg_notify('$L', 'x')");
    for (int i = 0; i < turns; i++) {
        char id[40];
        const char *one[] = {id};
        raw_pg_acquire(self, "bench:plain-baton", id);
        bench_give_baton(shared);
        raw_pg_check_result(self, PQexecPrepared(self->pg, "t", 1, one, NULL, NULL, 0));
        bench_await_baton(shared, BENCH_TAKEN);
    }
    raw_pg_close(self);
}

/* One connection that receives the notification and sends the acquire itself: no client that relies
 * on NOTIFY can be faster. */
static void raw_pg_take_batons(const char *url, bench_baton *shared, double *times, int turns)
{
    plain *self = raw_pg_open(url);
    raw_pg_check_result(self, raw_pg_query(self, "LISTEN $L"));
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
        raw_pg_acquire(self, "bench:plain-baton", id);
        times[i] = bench_us() - atomic_load(&shared->released_us);
        raw_pg_check_result(self, PQexecPrepared(self->pg, "r", 1, one, NULL, NULL, 0));
        bench_set_baton(shared, BENCH_TAKEN);
    }
    raw_pg_close(self);
}

/* ---- our place ---- */

static void raw_pg_name_tables(const char *url, const char *name, char *out, size_t size)
{
    char fences[BENCH_NAME_SIZE + 32], step[BENCH_URL_SIZE];
    snprintf(fences, sizeof fences, "%s_fences", name);
    bench_set_option(url, "lock_table", name, step, sizeof step);
    bench_set_option(step, "fence_table", fences, out, size);
}

/* Our sessions have the name, too. */
static void raw_pg_place_url(const char *url, const char *name, char *out, size_t size)
{
    char step[BENCH_URL_SIZE];
    bench_set_option(url, "application_name", name, step, sizeof step);
    raw_pg_name_tables(step, name, out, size);
}

static int raw_pg_query_number(plain *self, const char *sql)
{
    PGresult *result = raw_pg_query(self, sql);
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        bench_die("plain libpq", PQerrorMessage(self->pg));
    int number = PQntuples(result) == 1 ? (int)strtol(PQgetvalue(result, 0, 0), NULL, 10) : -1;
    PQclear(result);
    return number;
}

/* Must end our sessions before the tables are listed: one of them might create another table. */
static void raw_pg_end_sessions(plain *self)
{
    static const char others[] = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                                 "WHERE application_name = '$L' AND pid <> pg_backend_pid()";
    for (int i = 0; i < 250 && raw_pg_query_number(self, others) > 0; i++)
        bench_pause_us(20000);
}

static void raw_pg_clear(const char *url)
{
    plain *self = raw_pg_connect(url);
    raw_pg_end_sessions(self);
    PGresult *tables =
        raw_pg_query(self, "SELECT quote_ident(nspname) || '.' || quote_ident(relname) "
                           "FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
                           "WHERE relkind = 'r' AND left(relname, length('$L')) = '$L'");
    if (PQresultStatus(tables) != PGRES_TUPLES_OK)
        bench_die("plain libpq", PQerrorMessage(self->pg));
    for (int i = 0; i < PQntuples(tables); i++) {
        char sql[256];
        snprintf(sql, sizeof sql, "DROP TABLE %s", PQgetvalue(tables, i, 0));
        raw_pg_check_result(self, PQexec(self->pg, sql));
    }
    PQclear(tables);
    raw_pg_close(self);
}

static void raw_pg_vacuum(const char *url)
{
    plain *self = raw_pg_connect(url);
    raw_pg_check_result(self, raw_pg_query(self, "VACUUM $L"));
    raw_pg_check_result(self, raw_pg_query(self, "VACUUM $F"));
    raw_pg_close(self);
}

static void raw_pg_grow(const bench_store *store, long locks, char *out, size_t size)
{
    char base[BENCH_NAME_SIZE], name[BENCH_NAME_SIZE + 16];
    if (!bench_option(store->url, "lock_table", base, sizeof base))
        bench_die("postgres", "there are no tables of our own");
    snprintf(name, sizeof name, "%s_g%ld", base, locks);
    raw_pg_name_tables(store->url, name, out, size);
    plain *self = raw_pg_connect(out);
    raw_pg_check_result(self, raw_pg_query(self, "DROP TABLE IF EXISTS $L, $F"));
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
    raw_pg_check_result(self, PQexec(self->pg, sql));
    raw_pg_check_result(
        self, raw_pg_query(self, "INSERT INTO $F (fence_key, fence) SELECT 'fence:' || key, 1 "
                                 "FROM $L"));
    raw_pg_check_result(self, raw_pg_query(self, "VACUUM ANALYZE $L, $F"));
    if (store->own)
        raw_pg_check_result(self, PQexec(self->pg, "CHECKPOINT"));
    raw_pg_close(self);
}

const bench_raw bench_raw_postgres = {
    .name = "postgres",
    .scheme = "postgres",
    .client = "plain durable libpq pair",
    .variants = {{"pair", NULL, 0.95}},
    .open = raw_pg_open,
    .close = raw_pg_close,
    .pair = raw_pg_pair,
    .most_connections = 8, /* pool_max */
    .rate_bar = 0.85,
    .rate_threads = 16,
    .renew = raw_pg_renew,
    .round_trip_name = "plain durable libpq pair",
    .server_pid = raw_pg_server_pid,
    .turns = 240,
    .by_hand = "plain libpq",
    .give = raw_pg_give_batons,
    .take = raw_pg_take_batons,
    .handover_bar = {1.6, 2.2},
    .tidy = raw_pg_vacuum,
    .place = raw_pg_place_url,
    .clear = raw_pg_clear,
    .grow = raw_pg_grow,
    .held = 20000,
    .remembers = 5000,
};
