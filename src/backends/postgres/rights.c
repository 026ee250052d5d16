/*
 * Whether the role has the privileges that the statements of sql.c and notify.c need. The server is
 * asked for each privilege; the statements are not run.
 */
#include "operations.h"

#include <stdio.h>
#include <string.h>

#include "result.h"
#include "round_trip.h"

/* Schemas that have one of our tables and that the role may not use. A name without a schema may be
 * in any of them. */
static const char hidden_sql[] =
    "SELECT pg_catalog.string_agg(DISTINCT pg_catalog.quote_ident(n.nspname), ', ') "
    "FROM (VALUES ($1::text, $2::text), ($3, $4)) AS v (bare, quoted) "
    "JOIN pg_catalog.pg_class c ON c.relname = v.bare "
    "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relkind IN ('r', 'p') AND NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE') "
    "AND CASE WHEN v.quoted = '\"' || v.bare || '\"' "
    "THEN pg_catalog.to_regclass(v.quoted) IS NULL "
    "ELSE v.quoted = '\"' || n.nspname || '\".\"' || v.bare || '\"' END";

/*
 * One row: for each table the privileges that are missing, as in GRANT, or NULL; whether row
 * security applies; whether the table is unlogged. Privileges may have been granted for columns.
 */
#define MISSING(table, columns, privilege)                                                         \
    "CASE WHEN NOT (SELECT pg_catalog.bool_and(pg_catalog.has_column_privilege(" table             \
    ", a.attnum, '" privilege "')) FROM pg_catalog.pg_attribute a WHERE a.attrelid = " table       \
    " AND a.attname IN (" columns ")) THEN '" privilege "' END"
#define TABLE_FACTS(table)                                                                         \
    "pg_catalog.row_security_active(" table "), "                                                  \
    "(SELECT relpersistence <> 'p' FROM pg_catalog.pg_class WHERE oid = " table ")"
#define WRITTEN "'lock_id', 'expires_at_ms', 'acquired_at_ms', 'fence', 'user_key', 'owner'"

#define SELECT_LOCKS MISSING("l", "'key', " WRITTEN, "SELECT")
#define INSERT_LOCKS MISSING("l", "'key', " WRITTEN, "INSERT")
#define UPDATE_LOCKS MISSING("l", WRITTEN, "UPDATE")
#define DELETE_LOCKS "CASE WHEN NOT pg_catalog.has_table_privilege(l, 'DELETE') THEN 'DELETE' END"
#define SELECT_FENCES MISSING("f", "'fence_key', 'fence'", "SELECT")
#define INSERT_FENCES MISSING("f", "'fence_key', 'fence', 'key_debug'", "INSERT")
#define UPDATE_FENCES MISSING("f", "'fence'", "UPDATE")
#define FACTS_OF_LOCKS TABLE_FACTS("l")
#define FACTS_OF_FENCES TABLE_FACTS("f")

static const char tables_sql[] =
    "SELECT pg_catalog.concat_ws(', ', " SELECT_LOCKS ", " INSERT_LOCKS ", " UPDATE_LOCKS
    ", " DELETE_LOCKS "), " FACTS_OF_LOCKS ", "
    "pg_catalog.concat_ws(', ', " SELECT_FENCES ", " INSERT_FENCES ", " UPDATE_FENCES
    "), " FACTS_OF_FENCES " FROM "
    "(SELECT pg_catalog.to_regclass($1) AS l, pg_catalog.to_regclass($2) AS f) t";

enum {
    LOCKS_MISSING,
    LOCKS_HIDDEN,
    LOCKS_UNLOGGED,
    FENCES_MISSING,
    FENCES_HIDDEN,
    FENCES_UNLOGGED
};

/* Every role may call these functions unless the privilege was revoked. The second list is for
 * waiters only. */
static const char functions_sql[] =
    "SELECT pg_catalog.string_agg(f, ', ') FILTER (WHERE always), "
    "pg_catalog.string_agg(f, ', ') FILTER (WHERE NOT always) FROM (VALUES "
    "('hashtext(text)', true), ('pg_advisory_xact_lock(bigint)', true), "
    "('pg_try_advisory_xact_lock(bigint)', true), "
    "('pg_try_advisory_xact_lock(integer,integer)', true), ('pg_notify(text,text)', true), "
    "('set_config(text,text,boolean)', true), ('clock_timestamp()', true), "
    "('date_part(text,timestamp with time zone)', true), ('floor(double precision)', true), "
    "('lpad(text,integer,text)', true), ('unnest(anyarray)', true), "
    "('pg_advisory_lock_shared(integer,integer)', false), "
    "('pg_advisory_unlock_shared(integer,integer)', false)) AS v (f, always) "
    "WHERE NOT pg_catalog.has_function_privilege('pg_catalog.' || f, 'EXECUTE')";

static void pg_rights_report_missing(const syncguard_findings *to, syncguard_severity severity,
                                     const char *rights, const char *object, const char *why)
{
    char text[600];
    snprintf(text, sizeof text, "the role lacks %.200s on %.300s", rights, object);
    char change[600];
    snprintf(change, sizeof change, "GRANT %.200s ON %.300s TO name_of_the_role", rights, object);
    syncguard_report(to, severity, "permissions", text, why, change);
}

syncguard_status sg_pg_diagnose_schema_rights(const syncguard_findings *to, const sg_pg *pg,
                                              sg_pg_connection *connection,
                                              const syncguard_limits *limits, bool *visible,
                                              syncguard_error *err)
{
    const sg_pg_table *locks = &pg->statements.locks;
    const sg_pg_table *fences = &pg->statements.fences;
    const char *values[] = {locks->bare, locks->quoted, fences->bare, fences->quoted};
    PGresult *result = NULL;
    syncguard_status status = sg_pg_query(connection, hidden_sql, 4, values, limits, &result, err);
    if (status != SYNCGUARD_OK)
        return status;
    *visible = PQgetisnull(result, 0, 0);
    char object[220];
    snprintf(object, sizeof object, "SCHEMA %.200s", sg_pg_value(result, 0, 0));
    if (!*visible)
        pg_rights_report_missing(to, SYNCGUARD_BLOCK, "USAGE", object,
                                 "the tables of locks are there, and every operation fails");
    PQclear(result);
    return SYNCGUARD_OK;
}

static void pg_rights_report_table(const syncguard_findings *to, const PGresult *r, int first,
                                   const char *table)
{
    if (*sg_pg_value(r, 0, first) != 0)
        pg_rights_report_missing(to, SYNCGUARD_BLOCK, sg_pg_value(r, 0, first), table,
                                 "operations that use it fail with AuthFailed");
    char text[200];
    if (sg_pg_bool(r, 0, first + 1)) {
        snprintf(text, sizeof text, "row security applies to %.150s", table);
        syncguard_report(to, SYNCGUARD_BLOCK, "row_security", text,
                         "rows that a policy hides are locks that do not exclude: two holders "
                         "become possible",
                         "ALTER TABLE ... DISABLE ROW LEVEL SECURITY");
    }
    if (sg_pg_bool(r, 0, first + 2)) {
        snprintf(text, sizeof text, "%.150s is an unlogged or temporary table", table);
        syncguard_report(to, SYNCGUARD_BLOCK, "unlogged", text,
                         "a crash empties it: locks are free, and fences start again",
                         "ALTER TABLE ... SET LOGGED");
    }
}

static syncguard_status pg_rights_report_functions(const syncguard_findings *to,
                                                   sg_pg_connection *connection,
                                                   const syncguard_limits *limits, bool *all,
                                                   syncguard_error *err)
{
    PGresult *result = NULL;
    syncguard_status status = sg_pg_query(connection, functions_sql, 0, NULL, limits, &result, err);
    if (status != SYNCGUARD_OK)
        return status;
    *all = PQgetisnull(result, 0, 0) != 0 && PQgetisnull(result, 0, 1) != 0;
    char object[300];
    for (int i = 0; i < 2; i++) {
        snprintf(object, sizeof object, "FUNCTION %.280s", sg_pg_value(result, 0, i));
        if (PQgetisnull(result, 0, i) == 0)
            pg_rights_report_missing(to, i == 0 ? SYNCGUARD_BLOCK : SYNCGUARD_WARN, "EXECUTE",
                                     object,
                                     i == 0 ? "acquire, release or extend fail with AuthFailed"
                                            : "waiters are not told of a release: they poll");
    }
    PQclear(result);
    return SYNCGUARD_OK;
}

syncguard_status sg_pg_diagnose_rights(const syncguard_findings *to, const sg_pg *pg,
                                       sg_pg_connection *connection, const syncguard_limits *limits,
                                       bool *readable, syncguard_error *err)
{
    const char *locks = pg->statements.locks.quoted;
    const char *fences = pg->statements.fences.quoted;
    const char *values[] = {locks, fences};
    PGresult *result = NULL;
    bool all = false;
    syncguard_status status = sg_pg_query(connection, tables_sql, 2, values, limits, &result, err);
    if (status == SYNCGUARD_OK)
        status = pg_rights_report_functions(to, connection, limits, &all, err);
    if (status == SYNCGUARD_OK) {
        pg_rights_report_table(to, result, LOCKS_MISSING, locks);
        pg_rights_report_table(to, result, FENCES_MISSING, fences);
        *readable = strncmp(sg_pg_value(result, 0, LOCKS_MISSING), "SELECT", 6) != 0;
        if (all && *sg_pg_value(result, 0, LOCKS_MISSING) == 0 &&
            *sg_pg_value(result, 0, FENCES_MISSING) == 0)
            syncguard_report_fine(to, "permissions", "the role may do what the operations need");
    }
    PQclear(result);
    return status;
}
