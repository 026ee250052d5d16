/*
 * What would break the promises on this server: findings for the doctor.
 */
#include <stdio.h>
#include <string.h>

#include "pg.h"

static const char facts_sql[] = "SELECT pg_catalog.pg_is_in_recovery(), "
                                "pg_catalog.current_setting('synchronous_commit'), "
                                "pg_catalog.current_setting('fsync'), "
                                "pg_catalog.current_setting('full_page_writes'), "
                                "pg_catalog.pg_backend_pid(), "
                                "(SELECT count(*) FROM pg_catalog.pg_stat_replication), "
                                "pg_catalog.current_setting('synchronous_standby_names'), "
                                "pg_catalog.current_setting('server_version'), "
                                "pg_catalog.current_setting('default_transaction_read_only'), "
                                "pg_catalog.getdatabaseencoding()";

enum {
    X_RECOVERY,
    X_SYNC,
    X_FSYNC,
    X_PAGES,
    X_PID,
    X_STANDBYS,
    X_NAMES,
    X_VERSION,
    X_READ,
    X_CODE
};

/*
 * Who keeps old row versions alive, and has for so many transactions that it shows. Of sessions of
 * other roles only a superuser, or a member of pg_read_all_stats, sees anything.
 */
static const char snapshots_sql[] =
    "SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE pid <> "
    "pg_catalog.pg_backend_pid() AND (datname IS NULL OR datname = pg_catalog.current_database()) "
    "AND pg_catalog.age(backend_xmin) > 10000), "
    "(SELECT count(*) FROM pg_catalog.pg_prepared_xacts WHERE database = "
    "pg_catalog.current_database() AND pg_catalog.age(transaction) > 10000), "
    "(SELECT count(*) FROM pg_catalog.pg_replication_slots WHERE pg_catalog.age(xmin) > 10000)";

typedef struct report {
    syncguard_finding_fn fn;
    void *context;
} report;

static void tell(const report *to, bool bad, syncguard_severity severity, const char *topic,
                 const char *bad_text, const char *good_text)
{
    to->fn(to->context, bad ? severity : SYNCGUARD_FINE, topic, bad ? bad_text : good_text);
}

static void tell_durability(const report *to, const PGresult *r)
{
    const char *commit = PQgetvalue(r, 0, X_SYNC);
    bool waits = strcmp(commit, "off") != 0 && strcmp(commit, "local") != 0;

    tell(to, strcmp(commit, "off") == 0, SYNCGUARD_WARN, "durability",
         "synchronous_commit is off: a crash can take back grants, and fences are given twice",
         "grants are on the disk before they are told");
    tell(to, strcmp(PQgetvalue(r, 0, X_FSYNC), "on") != 0, SYNCGUARD_BLOCK, "fsync",
         "fsync is off: a crash can corrupt the tables of locks and fences", "fsync is on");
    tell(to, strcmp(PQgetvalue(r, 0, X_PAGES), "on") != 0, SYNCGUARD_WARN, "full_page_writes",
         "full_page_writes is off: a crash can corrupt the tables", "full_page_writes is on");
    tell(to, *PQgetvalue(r, 0, X_NAMES) ? !waits : strcmp(PQgetvalue(r, 0, X_STANDBYS), "0") != 0,
         SYNCGUARD_WARN, "replication",
         *PQgetvalue(r, 0, X_NAMES)
             ? "synchronous_commit is off or local for this role, so that the standbys named in "
               "synchronous_standby_names are not waited for: a failover can lose grants and fences"
             : "standbys replicate asynchronously: a failover can lose grants and fences",
         "no standby that could lose grants in a failover");
}

static void tell_session(const report *to, const sg_pg *pg, const PGresult *r, PGconn *connection)
{
    int64_t pid = 0;
    bool pooled = sg_pg_int64(r, 0, X_PID, &pid) && pid != PQbackendPID(connection);
    char text[128];

    tell(to, PQgetvalue(r, 0, X_RECOVERY)[0] == 't', SYNCGUARD_BLOCK, "role",
         "the server is a standby and takes no locks", "the server is a primary");
    tell(to, strcmp(PQgetvalue(r, 0, X_READ), "on") == 0, SYNCGUARD_BLOCK, "read_only",
         "transactions are read-only by default for this role", "transactions may write");
    tell(to, pooled && !pg->pooler, SYNCGUARD_WARN, "pooler",
         "a connection pooler is in between and is treated as one in transaction mode: waiters "
         "poll; open with pooler=1",
         pg->pooler ? "opened for a transaction pooler: waiters poll" : "no pooler in between");
    tell(to,
         strcmp(PQgetvalue(r, 0, X_CODE), "UTF8") != 0 &&
             strcmp(PQgetvalue(r, 0, X_CODE), "SQL_ASCII") != 0,
         SYNCGUARD_WARN, "encoding", "the database cannot store every key: it is not in UTF8",
         "the database stores every key");
    snprintf(text, sizeof text, "PostgreSQL %.100s", PQgetvalue(r, 0, X_VERSION));
    tell(to, false, SYNCGUARD_FINE, "version", "", text);
}

/* An old snapshot keeps every version of a busy key's row, and each grant looks at them all. */
static void tell_snapshots(const report *to, const PGresult *r)
{
    const char *sessions = PQgetvalue(r, 0, 0);
    const char *prepared = PQgetvalue(r, 0, 1);
    const char *slots = PQgetvalue(r, 0, 2);
    bool old = strcmp(sessions, "0") != 0 || strcmp(prepared, "0") != 0 || strcmp(slots, "0") != 0;
    char text[200];

    snprintf(text, sizeof text,
             "%.12s sessions, %.12s prepared transactions and %.12s replication slots keep old row "
             "versions: busy keys get slower until they end",
             sessions, prepared, slots);
    tell(to, old, SYNCGUARD_WARN, "snapshots", text, "no old snapshot keeps dead rows");
}

static void tell_records(const report *to, sg_pg *pg, const syncguard_limits *limits)
{
    size_t count = 0;
    char text[160];

    if (sg_pg_count_unreadable(pg, limits, &count, NULL) != SYNCGUARD_OK)
        return;
    snprintf(text, sizeof text,
             "%zu stored records cannot be read: they may block their keys until somebody repairs "
             "or deletes them",
             count);
    tell(to, count > 0, SYNCGUARD_WARN, "records", text, "all stored locks can be read");
}

syncguard_status sg_pg_examine(syncguard_backend *backend, const syncguard_limits *limits,
                               syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    report to = {fn, context};
    sg_pg_connection *connection = NULL;
    PGresult *result = NULL;
    PGresult *snapshots = NULL;
    bool has_owner = false;
    syncguard_error schema;
    syncguard_status checked = SYNCGUARD_OK;
    syncguard_status status = syncguard_gate_enter(&pg->pool->gate, limits, err);

    if (status != SYNCGUARD_OK)
        return status;
    status = sg_pg_lend(pg->pool, limits, &connection, err);
    if (status == SYNCGUARD_OK)
        status = sg_pg_query(connection, facts_sql, 0, NULL, limits, &result, err);
    if (status == SYNCGUARD_OK)
        status = sg_pg_query(connection, snapshots_sql, 0, NULL, limits, &snapshots, err);
    if (status == SYNCGUARD_OK) {
        checked =
            sg_pg_schema_check(connection, &pg->locks, &pg->fences, limits, &has_owner, &schema);
        tell_session(&to, pg, result, connection->pg);
        tell_durability(&to, result);
        tell_snapshots(&to, snapshots);
        tell(&to, checked != SYNCGUARD_OK, SYNCGUARD_BLOCK, "schema",
             checked != SYNCGUARD_OK ? schema.message : "", "the tables have what is needed");
        if (checked == SYNCGUARD_OK)
            tell(&to, !has_owner, SYNCGUARD_WARN, "owner",
                 "the lock table has no owner column: run syncguard setup", "owners are stored");
    }
    PQclear(result);
    PQclear(snapshots);
    /* A session in an unknown state is not worth keeping. */
    if (connection && status == SYNCGUARD_OK &&
        (checked == SYNCGUARD_OK || checked == SYNCGUARD_E_INVALID_ARGUMENT))
        sg_pg_give_back(connection);
    else if (connection)
        sg_pg_abandon(connection, NULL);
    syncguard_gate_leave(&pg->pool->gate);
    if (status == SYNCGUARD_OK && checked == SYNCGUARD_OK)
        tell_records(&to, pg, limits);
    return status;
}
