/*
 * What the PostgreSQL benches measure against: a pair of plain prepared single
 * statements on the same tables, each committed to the disk by itself, with
 * blocking libpq. The least that anybody would write by hand.
 */
#ifndef BENCH_POSTGRES_PLAIN_H
#define BENCH_POSTGRES_PLAIN_H

#include <libpq-fe.h>
#include <stdio.h>

#include "measure.h"
#include "postgres/server.h"
#include "syncguard.h"

#define PLAIN_NOW "floor(extract(epoch from clock_timestamp()) * 1000)::bigint"

static const char plain_acquire_sql[] =
    "WITH c AS (INSERT INTO syncguard_fence_counters AS f (fence_key, fence) "
    "VALUES ('fence:' || $1, 1) ON CONFLICT (fence_key) DO UPDATE SET fence = f.fence + 1 "
    "RETURNING fence) INSERT INTO syncguard_locks AS l "
    "(key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key) SELECT $1, $2, " PLAIN_NOW
    " + 30000, " PLAIN_NOW ", lpad(fence::text, 15, '0'), $1 FROM c ON CONFLICT (key) DO UPDATE "
    "SET lock_id = excluded.lock_id, expires_at_ms = excluded.expires_at_ms, "
    "acquired_at_ms = excluded.acquired_at_ms, fence = excluded.fence "
    "WHERE l.expires_at_ms < " PLAIN_NOW " RETURNING fence, expires_at_ms";
static const char plain_release_sql[] =
    "DELETE FROM syncguard_locks WHERE lock_id = $1 AND expires_at_ms > " PLAIN_NOW " - 1000";

typedef struct plain {
    PGconn *pg;
    long serial;
} plain;

static inline void plain_check(plain *self, PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        pg_die("plain: %s", PQerrorMessage(self->pg));
    PQclear(result);
}

static inline void plain_open(plain *self, pg_server *server, const char *database)
{
    self->pg = pg_plain(server, database);
    self->serial = 0;
    plain_check(self, PQprepare(self->pg, "a", plain_acquire_sql, 0, NULL));
    plain_check(self, PQprepare(self->pg, "r", plain_release_sql, 0, NULL));
}

/* Microseconds of one pair. */
static inline double plain_pair(plain *self, const char *key)
{
    char id[40];
    const char *values[] = {key, id};
    const char *one[] = {id};
    double start = bench_us();

    snprintf(id, sizeof id, "%08x%014ld", (unsigned)PQbackendPID(self->pg), self->serial++);
    plain_check(self, PQexecPrepared(self->pg, "a", 2, values, NULL, NULL, 0));
    plain_check(self, PQexecPrepared(self->pg, "r", 1, one, NULL, NULL, 0));
    return bench_us() - start;
}

/* Microseconds of one pair of ours. */
static inline double our_pair(syncguard_backend *backend, const char *key)
{
    syncguard_grant grant;
    syncguard_error err;
    double start = bench_us();

    if (syncguard_acquire(backend, key, 30000, NULL, &grant, &err) != SYNCGUARD_OK)
        pg_die("acquire: %s", err.message);
    if (syncguard_release(backend, grant.lock_id, NULL, &err) != SYNCGUARD_OK)
        pg_die("release: %s", err.message);
    return bench_us() - start;
}

static inline syncguard_backend *our_open(const char *url)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;

    if (syncguard_open(url, NULL, &backend, &err) != SYNCGUARD_OK)
        pg_die("open: %s", err.message);
    return backend;
}

#endif
