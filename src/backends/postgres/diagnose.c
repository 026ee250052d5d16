/*
 * Findings for `doctor`: what would break the guarantees on this server. rights.c reports missing
 * privileges of the role.
 */
#include <stdio.h>
#include <string.h>

#include "operations.h"
#include "round_trip.h"
#include "schema.h"

static const char facts_sql[] = "SELECT pg_catalog.pg_is_in_recovery(), "
                                "pg_catalog.current_setting('synchronous_commit'), "
                                "pg_catalog.current_setting('fsync'), "
                                "pg_catalog.current_setting('full_page_writes'), "
                                "pg_catalog.pg_backend_pid(), "
                                "pg_catalog.current_setting('server_version'), "
                                "pg_catalog.current_setting('default_transaction_read_only'), "
                                "pg_catalog.getdatabaseencoding()";

enum { X_RECOVERY, X_SYNC, X_FSYNC, X_PAGES, X_PID, X_VERSION, X_READ, X_CODE };

/*
 * Standbys: how many must confirm a commit (0: none is named), how many are connected, how many are
 * seen to confirm, and whether the state of one is hidden, as it is from a role that is not in
 * pg_read_all_stats.
 */
static const char standbys_sql[] =
    "SELECT CASE WHEN s.names = '' THEN 0 ELSE coalesce((pg_catalog.regexp_match(s.names, "
    "'^\\s*(?:any|first)?\\s*(\\d+)\\s*\\(', 'i'))[1]::int, 1) END, count(r.pid), "
    "count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum')), "
    "count(*) FILTER (WHERE r.pid IS NOT NULL AND r.sync_state IS NULL) > 0 "
    "FROM (SELECT pg_catalog.current_setting('synchronous_standby_names') AS names) s "
    "LEFT JOIN pg_catalog.pg_stat_replication r ON true GROUP BY s.names";

/* Sessions, prepared transactions and replication slots that have kept old row versions for so many
 * transactions that it is noticeable. Every role can see those of all roles. */
static const char snapshots_sql[] =
    "SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE pid <> "
    "pg_catalog.pg_backend_pid() AND (datname IS NULL OR datname = pg_catalog.current_database()) "
    "AND pg_catalog.age(backend_xmin) > 10000), "
    "(SELECT count(*) FROM pg_catalog.pg_prepared_xacts WHERE database = "
    "pg_catalog.current_database() AND pg_catalog.age(transaction) > 10000), "
    "(SELECT count(*) FROM pg_catalog.pg_replication_slots WHERE pg_catalog.age(xmin) > 10000)";

static void pg_diagnose_durability(const syncguard_findings *to, const PGresult *r)
{
    if (strcmp(sg_pg_value(r, 0, X_SYNC), "off") == 0)
        syncguard_report(to, SYNCGUARD_WARN, "durability", "synchronous_commit is off",
                         "a crash can take back grants, and a fence can be given twice",
                         "ALTER ROLE ... SET synchronous_commit = on");
    else
        syncguard_report_fine(to, "durability", "grants are on the disk before they are reported");
    if (strcmp(sg_pg_value(r, 0, X_FSYNC), "on") != 0)
        syncguard_report(to, SYNCGUARD_BLOCK, "fsync", "fsync is off",
                         "a crash can corrupt the tables of locks and fences", "set fsync = on");
    else
        syncguard_report_fine(to, "fsync", "fsync is on");
    if (strcmp(sg_pg_value(r, 0, X_PAGES), "on") != 0)
        syncguard_report(to, SYNCGUARD_WARN, "full_page_writes", "full_page_writes is off",
                         "a crash can corrupt the tables of locks and fences",
                         "set full_page_writes = on");
    else
        syncguard_report_fine(to, "full_page_writes", "full_page_writes is on");
}

static void pg_diagnose_standbys(const syncguard_findings *to, const PGresult *r,
                                 const char *commit)
{
    int64_t needed = 0;
    bool waits = strcmp(commit, "off") != 0 && strcmp(commit, "local") != 0;
    (void)sg_pg_int64(r, 0, 0, &needed);
    int64_t connected = 0;
    (void)sg_pg_int64(r, 0, 1, &connected);
    int64_t confirming = 0;
    (void)sg_pg_int64(r, 0, 2, &confirming);
    if (sg_pg_bool(r, 0, 3))
        confirming = connected; /* the confirming ones cannot be told apart */
    char text[160];
    snprintf(text, sizeof text,
             "%lld standbys are connected, %lld must confirm a commit, synchronous_commit is %.20s",
             (long long)connected, (long long)needed, commit);
    if (needed == 0 && connected > 0)
        syncguard_report(to, SYNCGUARD_WARN, "replication", text,
                         "standbys replicate asynchronously: a failover can lose grants and "
                         "fences, so that there are two holders",
                         "name the standbys in synchronous_standby_names, or accept it");
    else if (needed > 0 && !waits)
        syncguard_report(to, SYNCGUARD_WARN, "replication", text,
                         "the standbys in synchronous_standby_names are not waited for: a "
                         "failover can lose grants and fences, so that there are two holders",
                         "set synchronous_commit to on for this role");
    else if (confirming < needed)
        syncguard_report(to, SYNCGUARD_BLOCK, "replication", text,
                         "no lock can be acquired or extended until enough standbys confirm",
                         "start the missing standbys, or change synchronous_standby_names");
    else
        syncguard_report_fine(to, "replication", text);
}

static void pg_diagnose_pooler(const syncguard_findings *to, const sg_pg *pg, bool pooled)
{
    if (pooled && !pg->pooler)
        syncguard_report(to, SYNCGUARD_WARN, "pooler", "a connection pooler is in between",
                         "it is treated as one in transaction mode: waiters poll",
                         "open with pooler=1, or connect to the server itself");
    else
        syncguard_report_fine(to, "pooler",
                              pg->pooler ? "opened for a transaction pooler: waiters poll"
                                         : "no pooler in between");
}

static void pg_diagnose_session(const syncguard_findings *to, const sg_pg *pg, const PGresult *r,
                                PGconn *connection)
{
    const char *code = sg_pg_value(r, 0, X_CODE);
    char text[128];
    snprintf(text, sizeof text, "PostgreSQL %.100s", sg_pg_value(r, 0, X_VERSION));
    syncguard_report_fine(to, "version", text);
    if (sg_pg_value(r, 0, X_RECOVERY)[0] == 't')
        syncguard_report(to, SYNCGUARD_BLOCK, "role", "the server is a standby",
                         "it takes no locks",
                         "name the primary in the URL, or all servers and "
                         "target_session_attrs=read-write");
    else
        syncguard_report_fine(to, "role", "the server is a primary");
    if (strcmp(sg_pg_value(r, 0, X_READ), "on") == 0)
        syncguard_report(to, SYNCGUARD_BLOCK, "read_only",
                         "transactions are read-only by default for this role",
                         "no lock can be acquired or released",
                         "ALTER ROLE ... RESET default_transaction_read_only, or that of the "
                         "database");
    else
        syncguard_report_fine(to, "read_only", "transactions may write");
    int64_t pid = 0;
    pg_diagnose_pooler(to, pg, sg_pg_int64(r, 0, X_PID, &pid) && pid != PQbackendPID(connection));
    if (strcmp(code, "UTF8") != 0 && strcmp(code, "SQL_ASCII") != 0)
        syncguard_report(to, SYNCGUARD_WARN, "encoding", "the database is not in UTF8",
                         "keys with characters that its encoding lacks are refused",
                         "create the database with ENCODING 'UTF8'");
    else
        syncguard_report_fine(to, "encoding", "the database stores every key");
}

/* Reads the sslmode that libpq uses after adding its defaults. */
static bool pg_tls_is_verified(PGconn *connection)
{
    PQconninfoOption *options = PQconninfo(connection);
    bool full = false;
    for (const PQconninfoOption *o = options; o != NULL && o->keyword != NULL; o++) {
        if (strcmp(o->keyword, "sslmode") == 0)
            full = o->val != NULL && strcmp(o->val, "verify-full") == 0;
    }
    PQconninfoFree(options);
    return full;
}

static void pg_diagnose_tls(const syncguard_findings *to, PGconn *connection)
{
    const char *address = PQhostaddr(connection);
    syncguard_report_tls(to, address != NULL && *address != 0 ? address : PQhost(connection),
                         PQsslInUse(connection) != 0, pg_tls_is_verified(connection),
                         "add sslmode=verify-full to the URL; sslrootcert names the CA");
}

/* ---- clocks ---- */

/* How long a server that does not answer may delay the findings. */
#define STANDBY_NS (2000 * SYNCGUARD_NS_PER_MS)

/* The server's clock minus our monotonic clock. */
typedef struct clock_offset {
    int64_t us;
    int64_t error_us;
    int64_t sent_ns;
    bool standby;
} clock_offset;

/* The server reads its clock at some time between sending and receiving. */
static syncguard_status pg_clock_read(sg_pg_connection *connection, const syncguard_limits *limits,
                                      clock_offset *out, syncguard_error *err)
{
    PGresult *result = NULL;
    int64_t server_us = 0;
    out->sent_ns = syncguard_clock_ns();
    syncguard_status status =
        sg_pg_query(connection,
                    "SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) "
                    "* 1000000)::bigint, pg_catalog.pg_is_in_recovery()",
                    0, NULL, limits, &result, err);
    int64_t took_us = (syncguard_clock_ns() - out->sent_ns) / 1000;
    if (status == SYNCGUARD_OK && !sg_pg_int64(result, 0, 0, &server_us))
        status = syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "the time is not a number");
    out->us = server_us - out->sent_ns / 1000 - took_us / 2;
    out->error_us = took_us / 2;
    out->standby = status == SYNCGUARD_OK && sg_pg_bool(result, 0, 1);
    PQclear(result);
    return status;
}

static syncguard_status pg_diagnose_clock(const syncguard_findings *to,
                                          sg_pg_connection *connection,
                                          const syncguard_limits *limits, clock_offset *out,
                                          syncguard_error *err)
{
    int64_t wall_ms = syncguard_wall_ms(), wall_ns = syncguard_clock_ns();
    syncguard_status status = pg_clock_read(connection, limits, out, err);
    if (status == SYNCGUARD_OK)
        syncguard_report_clock(to, out->us + wall_ns / 1000 - wall_ms * 1000, out->error_us + 1000);
    return status;
}

/* Uses a pool of its own, so that a name that cannot be resolved does not delay the caller. */
static syncguard_status pg_clock_read_host(const sg_pg *pg, int host,
                                           const syncguard_limits *limits, clock_offset *out,
                                           syncguard_error *err)
{
    sg_pg_target *target = NULL;
    sg_pg_pool *pool = NULL;
    sg_pg_connection *connection = NULL;
    syncguard_status status = sg_pg_target_of_host(pg->pool->target, host, &target, err);
    if (status == SYNCGUARD_OK)
        status = sg_pg_pool_create(target, 1, pg->pool->timeout_ms, &pool, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = sg_pg_check_out(pool, limits, &connection, err);
    if (status == SYNCGUARD_OK)
        status = pg_clock_read(connection, limits, out, err);
    if (connection != NULL && status == SYNCGUARD_OK)
        sg_pg_pool_discard(connection);
    else if (connection != NULL)
        sg_pg_abandon(connection, NULL);
    sg_pg_pool_close(pool);
    return status;
}

/* Compares the clocks of the standbys that the URL names. The primary does not know where other
 * standbys listen. Standbys that do not answer must leave time for the other findings. */
static void pg_diagnose_standby_clocks(const syncguard_findings *to, const sg_pg *pg,
                                       const clock_offset *primary, const char *connected,
                                       const syncguard_limits *limits)
{
    const sg_pg_target *target = pg->pool->target;
    int64_t left_ns = syncguard_limits_left_ns(limits);
    syncguard_limits all = syncguard_limits_until(limits, syncguard_clock_ns() + left_ns / 3);
    char name[300];
    if (target->host_count < 2 && strcmp(connected, "0") != 0) {
        snprintf(name, sizeof name,
                 "%.12s standbys: their clocks are not compared, the URL names one server only",
                 connected);
        syncguard_report_fine(to, "replica_clock", name);
    }
    for (int i = 0; target->host_count > 1 && i < target->host_count; i++) {
        const char *host = target->hosts[i] != NULL ? target->hosts[i] : target->hostaddrs[i];
        const char *port = target->ports[i] != NULL ? target->ports[i] : "5432";
        clock_offset offset = {0};
        syncguard_error err = {0};
        syncguard_limits share = syncguard_limits_until(&all, syncguard_clock_ns() + STANDBY_NS);
        snprintf(name, sizeof name, "%.255s:%.10s", host != NULL ? host : "", port);
        if (pg_clock_read_host(pg, i, &share, &offset, &err) != SYNCGUARD_OK)
            syncguard_report_no_replica_clock(to, name, err.message);
        else if (offset.standby)
            syncguard_report_replica_clock(to, name, offset.us - primary->us,
                                           offset.error_us + primary->error_us);
    }
}

/* An old snapshot keeps every version of a busy key's row, and each grant reads them all. */
static void pg_diagnose_snapshots(const syncguard_findings *to, const PGresult *r)
{
    const char *sessions = sg_pg_value(r, 0, 0);
    const char *prepared = sg_pg_value(r, 0, 1);
    const char *replication_slots = sg_pg_value(r, 0, 2);
    bool old = strcmp(sessions, "0") != 0 || strcmp(prepared, "0") != 0 ||
               strcmp(replication_slots, "0") != 0;
    char text[200];
    snprintf(text, sizeof text,
             "%.12s sessions, %.12s prepared transactions and %.12s replication slots keep old row "
             "versions",
             sessions, prepared, replication_slots);
    if (old)
        syncguard_report(to, SYNCGUARD_WARN, "snapshots", text,
                         "busy keys get slower until they end",
                         "end them; set idle_in_transaction_session_timeout");
    else
        syncguard_report_fine(to, "snapshots", "no old snapshot keeps dead rows");
}

static void pg_diagnose_records(const syncguard_findings *to, sg_pg *pg,
                                const syncguard_limits *limits)
{
    size_t count = 0;
    if (sg_pg_count_unreadable(pg, limits, &count, NULL) != SYNCGUARD_OK)
        return;
    char text[160];
    snprintf(text, sizeof text, "%zu stored records cannot be read", count);
    if (count > 0)
        syncguard_report(to, SYNCGUARD_WARN, "records", text,
                         "they may block their keys until somebody repairs or deletes them",
                         "look for ids that have not 22 characters, fences that have not 15 "
                         "digits, and expiries beyond 2^53");
    else
        syncguard_report_fine(to, "records", "all stored locks can be read");
}

static void pg_diagnose_schema(const syncguard_findings *to, syncguard_status checked,
                               const syncguard_error *schema, bool has_owner, bool has_index)
{
    if (checked != SYNCGUARD_OK) {
        syncguard_report(to, SYNCGUARD_BLOCK, "schema", schema->message, "no lock can be acquired",
                         "run syncguard setup");
        return;
    }
    syncguard_report_fine(to, "schema", "the tables have what is needed");
    if (has_owner)
        syncguard_report_fine(to, "owner", "owners are stored");
    else
        syncguard_report(to, SYNCGUARD_WARN, "owner", "the lock table has no owner column",
                         "list and messages cannot name who holds a lock", "run syncguard setup");
    if (has_index)
        syncguard_report_fine(to, "index", "the lock table has an index on expires_at_ms");
    else
        syncguard_report(
            to, SYNCGUARD_WARN, "index", "the lock table has no index on expires_at_ms",
            "other programs that remove expired locks read the whole table", "run syncguard setup");
}

/* Reports on the server and the session. */
static syncguard_status pg_diagnose_server(const syncguard_findings *to, const sg_pg *pg,
                                           sg_pg_connection *connection,
                                           const syncguard_limits *limits, syncguard_error *err)
{
    PGresult *facts = NULL;
    PGresult *standbys = NULL;
    syncguard_status status = sg_pg_query(connection, facts_sql, 0, NULL, limits, &facts, err);
    if (status == SYNCGUARD_OK)
        status = sg_pg_query(connection, standbys_sql, 0, NULL, limits, &standbys, err);
    PGresult *snapshots = NULL;
    if (status == SYNCGUARD_OK)
        status = sg_pg_query(connection, snapshots_sql, 0, NULL, limits, &snapshots, err);
    clock_offset primary = {0};
    if (status == SYNCGUARD_OK) {
        pg_diagnose_session(to, pg, facts, connection->pg);
        pg_diagnose_tls(to, connection->pg);
        pg_diagnose_durability(to, facts);
        pg_diagnose_standbys(to, standbys, sg_pg_value(facts, 0, X_SYNC));
        pg_diagnose_snapshots(to, snapshots);
        status = pg_diagnose_clock(to, connection, limits, &primary, err);
    }
    if (status == SYNCGUARD_OK && !primary.standby)
        pg_diagnose_standby_clocks(to, pg, &primary, sg_pg_value(standbys, 0, 1), limits);
    PQclear(facts);
    PQclear(standbys);
    PQclear(snapshots);
    return status;
}

/* Reports on the tables. *usable: locks can be read. */
static syncguard_status pg_diagnose_tables(const syncguard_findings *to, const sg_pg *pg,
                                           sg_pg_connection *connection,
                                           const syncguard_limits *limits, bool *usable,
                                           syncguard_error *err)
{
    bool visible = false;
    syncguard_status status =
        sg_pg_diagnose_schema_rights(to, pg, connection, limits, &visible, err);
    *usable = false;
    if (status != SYNCGUARD_OK || !visible)
        return status;
    bool has_owner = false;
    bool has_index = false;
    syncguard_error schema;
    syncguard_status checked =
        sg_pg_schema_check(connection, &pg->statements.locks, &pg->statements.fences, limits,
                           &has_owner, &has_index, &schema);
    if (checked != SYNCGUARD_OK && checked != SYNCGUARD_E_INVALID_ARGUMENT) {
        if (err != NULL)
            *err = schema;
        return checked;
    }
    pg_diagnose_schema(to, checked, &schema, has_owner, has_index);
    if (checked == SYNCGUARD_OK)
        status = sg_pg_diagnose_rights(to, pg, connection, limits, usable, err);
    return status;
}

syncguard_status sg_pg_diagnose(syncguard_backend *backend, const syncguard_limits *limits,
                                syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    sg_pg *pg = sg_pg_of(backend);
    const syncguard_findings to = {fn, context};
    syncguard_status status = syncguard_gate_enter(&pg->pool->gate, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_pg_connection *connection = NULL;
    status = sg_pg_check_out(pg->pool, limits, &connection, err);
    if (status == SYNCGUARD_OK)
        status = pg_diagnose_server(&to, pg, connection, limits, err);
    bool usable = false;
    if (status == SYNCGUARD_OK)
        status = pg_diagnose_tables(&to, pg, connection, limits, &usable, err);
    /* A session in an unknown state is not worth keeping. */
    if (connection != NULL && status == SYNCGUARD_OK)
        sg_pg_pool_give_back(connection);
    else if (connection != NULL)
        sg_pg_abandon(connection, NULL);
    syncguard_gate_leave(&pg->pool->gate);
    if (status == SYNCGUARD_OK && usable)
        pg_diagnose_records(&to, pg, limits);
    return status;
}
