/*
 * The tables: looking whether they are there and fit, and making what is not.
 *
 * Tables that another library or an older version has made are taken as they
 * are if they have the columns and keys that the statements need; the owner
 * column is the one that may be missing. Set-ups exclude each other with an
 * advisory lock, because CREATE ... IF NOT EXISTS alone fails when two meet.
 */
#include <stdio.h>
#include <string.h>

#include "pg.h"

#define MAX_LINES 8
#define LINE_SIZE 640

/* One row of facts about both tables; to_regclass is NULL for a table that is not there. */
static const char facts_sql[] =
    "SELECT l IS NOT NULL, f IS NOT NULL, l = f, "
    "(SELECT count(*) FROM pg_catalog.pg_attribute WHERE attrelid = l AND attnum > 0 "
    "AND NOT attisdropped AND attname IN "
    "('key', 'lock_id', 'expires_at_ms', 'acquired_at_ms', 'fence', 'user_key')), "
    "(SELECT count(*) FROM pg_catalog.pg_attribute WHERE attrelid = f AND attnum > 0 "
    "AND NOT attisdropped AND attname IN ('fence_key', 'fence', 'key_debug')), "
    "(SELECT count(*) FROM pg_catalog.pg_attribute WHERE attrelid = l AND attnum > 0 "
    "AND NOT attisdropped AND attname = 'owner'), "
    "(SELECT count(DISTINCT a.attname) FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a "
    "ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] WHERE i.indisunique AND "
    "i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts = 1 AND "
    "((i.indrelid = l AND a.attname IN ('key', 'lock_id')) OR "
    "(i.indrelid = f AND a.attname = 'fence_key'))), "
    "(SELECT count(*) FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a "
    "ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
    "WHERE i.indrelid = l AND a.attname = 'expires_at_ms') "
    "FROM (SELECT pg_catalog.to_regclass($1) AS l, pg_catalog.to_regclass($2) AS f) t";

typedef struct facts {
    bool locks_there;
    bool fences_there;
    bool same;
    bool complete; /* columns and keys */
    bool has_owner;
    bool has_index;
} facts;

static syncguard_status read_facts(sg_pg_connection *connection, const sg_pg_table *locks,
                                   const sg_pg_table *fences, const syncguard_limits *limits,
                                   facts *out, syncguard_error *err)
{
    const char *values[] = {locks->quoted, fences->quoted};
    PGresult *result = NULL;
    syncguard_error refusal;
    syncguard_status status;
    int64_t numbers[8] = {0};
    int i;

    memset(out, 0, sizeof *out);
    /* The session is in a hurry about locks, this is not: until the time is up. */
    do {
        status = sg_pg_query(connection, facts_sql, 2, values, limits, &result, &refusal);
    } while (sg_pg_hurries(connection) && status == SYNCGUARD_E_NETWORK_TIMEOUT &&
             strcmp(refusal.native, "55P03") == 0);
    if (status != SYNCGUARD_OK) {
        if (err)
            *err = refusal;
        return status;
    }
    for (i = 3; i < 8; i++)
        (void)sg_pg_int64(result, 0, i, &numbers[i]);
    out->locks_there = PQgetvalue(result, 0, 0)[0] == 't';
    out->fences_there = PQgetvalue(result, 0, 1)[0] == 't';
    out->same = PQgetvalue(result, 0, 2)[0] == 't';
    out->has_owner = numbers[5] == 1;
    out->has_index = numbers[7] > 0;
    out->complete = numbers[3] == 6 && numbers[4] == 3 && numbers[6] == 3;
    /* The counters' debug column is only written, and keys and ids are each one of the three. */
    PQclear(result);
    return SYNCGUARD_OK;
}

static syncguard_status judge(const facts *f, syncguard_error *err)
{
    if (!f->locks_there || !f->fences_there)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, "42P01",
                              "the database has no tables for locks: run syncguard setup");
    if (f->same)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "lock_table and fence_table are the same table");
    if (!f->complete)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the tables lack a column or a unique key: see syncguard setup "
                              "--print for what they need");
    return SYNCGUARD_OK;
}

syncguard_status sg_pg_schema_check(sg_pg_connection *connection, const sg_pg_table *locks,
                                    const sg_pg_table *fences, const syncguard_limits *limits,
                                    bool *has_owner, syncguard_error *err)
{
    facts f;
    syncguard_status status;

    if (PQserverVersion(connection->pg) < 130000)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the server is older than PostgreSQL 13");
    status = read_facts(connection, locks, fences, limits, &f, err);
    if (status == SYNCGUARD_OK)
        status = judge(&f, err);
    *has_owner = f.has_owner;
    return status;
}

syncguard_status sg_pg_verify(sg_pg *pg, sg_pg_connection *connection,
                              const syncguard_limits *limits, syncguard_error *err)
{
    bool has_owner = false;
    int unknown = -1;
    syncguard_status status =
        sg_pg_schema_check(connection, &pg->locks, &pg->fences, limits, &has_owner, err);

    if (status != SYNCGUARD_OK)
        return status;
    if (!pg->pooler && !connection->direct && !atomic_exchange(&pg->unexpected, true))
        syncguard_backend_log(&pg->base, SYNCGUARD_LOG_WARN,
                              "a connection pooler is in between: treated as one in transaction "
                              "mode, as if opened with pooler=1");
    /* The first answer stays: sessions have statements prepared by it. */
    (void)atomic_compare_exchange_strong(&pg->form, &unknown, has_owner);
    return SYNCGUARD_OK;
}

/* The statements of a set-up, in order. Returns their number. */
static int write_lines(const sg_pg_table *locks, const sg_pg_table *fences,
                       char lines[MAX_LINES][LINE_SIZE])
{
    int n = 0;

    snprintf(lines[n++], LINE_SIZE, "BEGIN");
    snprintf(lines[n++], LINE_SIZE, "SELECT pg_advisory_xact_lock(" SG_PG_SETUP_LOCK ")");
    snprintf(lines[n++], LINE_SIZE,
             "CREATE TABLE IF NOT EXISTS %s (key text PRIMARY KEY, lock_id text NOT NULL UNIQUE, "
             "expires_at_ms bigint NOT NULL, acquired_at_ms bigint NOT NULL, "
             "fence text NOT NULL, user_key text NOT NULL, owner text)",
             locks->quoted);
    snprintf(lines[n++], LINE_SIZE, "ALTER TABLE %s ADD COLUMN IF NOT EXISTS owner text",
             locks->quoted);
    snprintf(lines[n++], LINE_SIZE,
             "CREATE INDEX IF NOT EXISTS \"%.40s_expires_at_ms_idx\" ON %s (expires_at_ms)",
             locks->bare, locks->quoted);
    snprintf(lines[n++], LINE_SIZE,
             "CREATE TABLE IF NOT EXISTS %s (fence_key text PRIMARY KEY, "
             "fence bigint NOT NULL DEFAULT 0, key_debug text)",
             fences->quoted);
    snprintf(lines[n++], LINE_SIZE, "COMMIT");
    return n;
}

syncguard_status sg_pg_schema_print(const sg_pg_table *locks, const sg_pg_table *fences,
                                    syncguard_print_fn print, void *context, syncguard_error *err)
{
    char(*lines)[LINE_SIZE] = syncguard_calloc(MAX_LINES, sizeof *lines);
    int count;
    int i;

    if (!lines)
        return syncguard_fail_memory(err);
    count = write_lines(locks, fences, lines);
    for (i = 0; i < count; i++) {
        char line[LINE_SIZE + 1];

        snprintf(line, sizeof line, "%s;", lines[i]);
        print(context, line);
    }
    syncguard_free(lines);
    return SYNCGUARD_OK;
}

/* The session is in a hurry about locks, a set-up is not. */
static const char patient_sql[] = "SELECT pg_catalog.set_config('lock_timeout', "
                                  "pg_catalog.current_setting('statement_timeout'), true)";

static syncguard_status create(sg_pg_connection *connection, const sg_pg_table *locks,
                               const sg_pg_table *fences, const syncguard_limits *limits,
                               bool has_index, syncguard_error *err)
{
    char(*lines)[LINE_SIZE] = syncguard_calloc(MAX_LINES, sizeof *lines);
    syncguard_status status = SYNCGUARD_OK;
    int count;
    int i;

    if (!lines)
        return syncguard_fail_memory(err);
    count = write_lines(locks, fences, lines);
    for (i = 0; i < count && status == SYNCGUARD_OK; i++) {
        /* An index of another name does as well. */
        if (has_index && strncmp(lines[i], "CREATE INDEX", 12) == 0)
            continue;
        status = sg_pg_query(connection, lines[i], 0, NULL, limits, NULL, err);
        if (status == SYNCGUARD_OK && i == 0 && sg_pg_hurries(connection))
            status = sg_pg_query(connection, patient_sql, 0, NULL, limits, NULL, err);
    }
    syncguard_free(lines);
    return status;
}

syncguard_status sg_pg_schema_create(sg_pg_connection *connection, const sg_pg_table *locks,
                                     const sg_pg_table *fences, const syncguard_limits *limits,
                                     syncguard_error *err)
{
    facts f;
    syncguard_status status = read_facts(connection, locks, fences, limits, &f, err);

    if (status != SYNCGUARD_OK)
        return status;
    if (f.locks_there && f.fences_there && f.complete && f.has_owner && f.has_index)
        return judge(&f, err);
    /* Without the right to create it is still useful to hear what is wrong with what is there. */
    status = create(connection, locks, fences, limits, f.has_index, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = read_facts(connection, locks, fences, limits, &f, err);
    return status == SYNCGUARD_OK ? judge(&f, err) : status;
}
