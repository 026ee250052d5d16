/*
 * The tables: checks them, and creates what is missing.
 *
 * Tables that the TypeScript library or an older version has created are used if they have the
 * columns and keys that the statements need; only the owner column may be missing. Set-ups exclude
 * each other with an advisory lock, because CREATE ... IF NOT EXISTS alone fails when two run at
 * once.
 */
#include <stdio.h>
#include <string.h>

#include "result.h"
#include "round_trip.h"
#include "schema.h"

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

static syncguard_status pg_schema_read_facts(sg_pg_connection *connection, const sg_pg_table *locks,
                                             const sg_pg_table *fences,
                                             const syncguard_limits *limits, facts *out,
                                             syncguard_error *err)
{
    const char *values[] = {locks->quoted, fences->quoted};
    memset(out, 0, sizeof *out);
    PGresult *result = NULL;
    syncguard_status status = sg_pg_query(connection, facts_sql, 2, values, limits, &result, err);
    if (status != SYNCGUARD_OK)
        return status;
    int64_t numbers[8] = {0};
    for (int i = 3; i < 8; i++)
        (void)sg_pg_int64(result, 0, i, &numbers[i]);
    out->locks_there = sg_pg_bool(result, 0, 0);
    out->fences_there = sg_pg_bool(result, 0, 1);
    out->same = sg_pg_bool(result, 0, 2);
    out->has_owner = numbers[5] == 1;
    out->has_index = numbers[7] > 0;
    /* A unique key on each of key, lock_id and fence_key. The debug column of the counters is
     * needed too, because it is written. */
    out->complete = numbers[3] == 6 && numbers[4] == 3 && numbers[6] == 3;
    PQclear(result);
    return SYNCGUARD_OK;
}

static syncguard_status pg_schema_evaluate(const facts *f, syncguard_error *err)
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
                                    bool *has_owner, bool *has_index, syncguard_error *err)
{
    if (PQserverVersion(connection->pg) < 130000)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the server is older than PostgreSQL 13");
    facts f;
    syncguard_status status = pg_schema_read_facts(connection, locks, fences, limits, &f, err);
    if (status == SYNCGUARD_OK)
        status = pg_schema_evaluate(&f, err);
    *has_owner = f.has_owner;
    *has_index = f.has_index;
    return status;
}

/* Index in the statements below: from this one on, set-ups exclude each other. */
enum { SETUP_LOCK_LINE = 1 };

/* The statements of a set-up, in order. Returns their number. */
static int pg_schema_write_lines(const sg_pg_table *locks, const sg_pg_table *fences,
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

void sg_pg_schema_print(const sg_pg_table *locks, const sg_pg_table *fences,
                        syncguard_print_fn print, void *context)
{
    char lines[MAX_LINES][LINE_SIZE];
    int count = pg_schema_write_lines(locks, fences, lines);
    for (int i = 0; i < count; i++) {
        char line[LINE_SIZE + 1];
        snprintf(line, sizeof line, "%.*s;", LINE_SIZE - 1, lines[i]);
        print(context, line);
    }
}

/* before: the facts at the moment from which other set-ups can no longer change them. */
static syncguard_status pg_schema_run_setup(sg_pg_connection *connection, const sg_pg_table *locks,
                                            const sg_pg_table *fences,
                                            const syncguard_limits *limits, facts *before,
                                            syncguard_error *err)
{
    char lines[MAX_LINES][LINE_SIZE];
    int count = pg_schema_write_lines(locks, fences, lines);
    syncguard_status status = SYNCGUARD_OK;
    for (int i = 0; i < count && status == SYNCGUARD_OK; i++) {
        /* An index with another name serves as well. */
        if (before->has_index && strncmp(lines[i], "CREATE INDEX", 12) == 0)
            continue;
        status = sg_pg_query(connection, lines[i], 0, NULL, limits, NULL, err);
        if (status == SYNCGUARD_OK && i == SETUP_LOCK_LINE)
            status = pg_schema_read_facts(connection, locks, fences, limits, before, err);
    }
    return status;
}

static void pg_schema_log_change(const syncguard_options *options, const char *change,
                                 const char *table)
{
    if (options->log == NULL)
        return;
    char line[256];
    snprintf(line, sizeof line, "%s %s", change, table);
    options->log(options->log_context, SYNCGUARD_LOG_INFO, line);
}

static void pg_schema_log_changes(const syncguard_options *options, const facts *before,
                                  const sg_pg_table *locks, const sg_pg_table *fences)
{
    if (!before->locks_there)
        pg_schema_log_change(options, "created the table", locks->quoted);
    else if (!before->has_owner)
        pg_schema_log_change(options, "added the column owner to the table", locks->quoted);
    if (before->locks_there && !before->has_index)
        pg_schema_log_change(options, "created an index on the expiry of the table", locks->quoted);
    if (!before->fences_there)
        pg_schema_log_change(options, "created the table", fences->quoted);
}

syncguard_status sg_pg_schema_create(sg_pg_connection *connection, const sg_pg_table *locks,
                                     const sg_pg_table *fences, const syncguard_options *options,
                                     const syncguard_limits *limits, syncguard_error *err)
{
    facts before;
    syncguard_status status = pg_schema_read_facts(connection, locks, fences, limits, &before, err);
    if (status != SYNCGUARD_OK)
        return status;
    /* Complete tables are only checked: that needs no privilege to create. */
    if (before.locks_there && before.fences_there && before.complete && before.has_owner &&
        before.has_index)
        return pg_schema_evaluate(&before, err);
    status = pg_schema_run_setup(connection, locks, fences, limits, &before, err);
    if (status != SYNCGUARD_OK)
        return status;
    pg_schema_log_changes(options, &before, locks, fences);
    facts f;
    status = pg_schema_read_facts(connection, locks, fences, limits, &f, err);
    return status == SYNCGUARD_OK ? pg_schema_evaluate(&f, err) : status;
}
