/*
 * The statements.
 *
 * A mutation is a transaction of separate statements, because each statement of a READ COMMITTED
 * transaction sees what was committed before it began: the advisory lock of the name comes first,
 * and only then the statement that evaluates the row. Only the holder of the advisory lock changes
 * the row of the name, except for extends and releases by the TypeScript library, which lock only
 * the row. So a row that may be taken over is locked before the evaluation too, which thus reads
 * the clock after that wait. A release has nothing to evaluate, and is one statement.
 *
 * The tolerance and the fence limit are passed as values. @L and @F stand for the tables, @N for
 * the server's time in milliseconds, @A for taking the advisory lock of a row's name, @W for
 * notifying its waiters of a release, @E for notifying them if the expiry is earlier than `was`, @R
 * for an expiry that can be read: less than 2^53. Any other expiry, multiplied by 1024, exceeds the
 * range of its type, so a statement that evaluates such a row fails (22003) and changes nothing.
 */
#include <stdio.h>
#include <string.h>

#include "errors.h"
#include "sql.h"
#include "syncguard/sys/alloc.h"
#include "syncguard/sys/fail.h"

#define NOW_MS                                                                                     \
    "pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint"

/* Waiters for a name hold its wait lock in shared mode, so it cannot be taken exclusively. */
#define NOTIFY_WAITERS_IF(condition, payload)                                                      \
    "CASE WHEN " condition                                                                         \
    "$3::bool AND NOT pg_catalog.pg_try_advisory_xact_lock(" SG_PG_WAIT_LOCK(                      \
        "key") ") "                                                                                \
               "THEN pg_catalog.pg_notify('" SG_PG_CHANNEL "', " payload ") END"
#define NOTIFY_WAITERS NOTIFY_WAITERS_IF("", "pg_catalog.hashtext(key)::text")
#define NOTIFY_WAITERS_IF_EARLIER                                                                  \
    NOTIFY_WAITERS_IF("l.expires_at_ms < was AND ",                                                \
                      "pg_catalog.hashtext(key)::text || '" SG_PG_EARLIER "'")

#define READABLE "l.expires_at_ms BETWEEN -9007199254740991 AND 9007199254740991"

#define LOCK_NAME "pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext(key))"

/*
 * Grants if there is no live lock and the counter is below its limit: returns one row, else none. A
 * takeover checks the expiry once more, in the version of the row that it writes, because the
 * TypeScript library's extend locks only the row, and may commit after our snapshot. In that case
 * nothing may change, not even the counter, so the division fails (SG_PG_OVERTAKEN). The times of a
 * lock come from a second reading of the clock; OFFSET prevents a third. @O stands for the columns
 * and values of the owner label, if the table has that column.
 */
static const char acquire_sql[] =
    "WITH c AS (INSERT INTO @F AS f (fence_key, fence, key_debug) SELECT $6, 1, $5 "
    "WHERE NOT EXISTS (SELECT 1 FROM @L l WHERE l.key = $1 AND l.expires_at_ms * 1024 > (@N - "
    "$4::bigint) * 1024) ON CONFLICT (fence_key) DO UPDATE SET fence = f.fence + 1 "
    "WHERE f.fence >= 0 AND f.fence < $7::bigint RETURNING f.fence) "
    "INSERT INTO @L AS l (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key@O1) "
    "SELECT $1, $2, t.now + $3::bigint, t.now, pg_catalog.lpad(t.fence::text, 15, '0'), $5@O2 "
    "FROM (SELECT c.fence, @N AS now FROM c OFFSET 0) t "
    "ON CONFLICT (key) DO UPDATE SET lock_id = excluded.lock_id, "
    "expires_at_ms = excluded.expires_at_ms, acquired_at_ms = excluded.acquired_at_ms, "
    "fence = excluded.fence, user_key = excluded.user_key@O3 "
    "WHERE 1 / (l.expires_at_ms <= excluded.acquired_at_ms - $4::bigint)::int = 1 "
    "RETURNING l.fence, l.expires_at_ms";

/*
 * One statement, because a dead lock of the caller may be deleted as well. Only the result depends
 * on the clock, which is read in RETURNING: after every wait, and with the last version of the row.
 * The scan takes the advisory lock, and so takes it before the row; a row that has changed in the
 * meantime is checked again, and must still have the id. If a crash undoes a release, the lock
 * expires by itself.
 */
static const char release_sql[] =
    "DELETE FROM @L WHERE lock_id = $1 AND @A IS NOT NULL AND expires_at_ms * 1024 IS NOT NULL "
    "RETURNING user_key, "
    "pg_catalog.set_config('synchronous_commit', 'off', true) = 'off' "
    "AND expires_at_ms > @N - $2::bigint, @W";

/* `was`, the previous expiry, is that of a row which SG_PG_LOCK_ID has locked. */
static const char extend_sql[] =
    "WITH t AS MATERIALIZED (SELECT @N AS now, "
    "(SELECT expires_at_ms FROM @L WHERE lock_id = $1) AS was) UPDATE @L l "
    "SET expires_at_ms = t.now + $4::bigint FROM t "
    "WHERE l.lock_id = $1 AND l.expires_at_ms * 1024 > (t.now - $2::bigint) * 1024 "
    "RETURNING l.expires_at_ms, @E";

/*
 * This statement never waits: a key or row that another session has locked is left out of m and so
 * stays undecided. The clock is read when every row that can be locked is locked.
 */
static const char extend_many_sql[] =
    "WITH i AS MATERIALIZED (SELECT id, ttl, n FROM "
    "unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS u (id, ttl, n)), "
    "r AS MATERIALIZED (SELECT i.id, i.ttl, i.n, l.key FROM i LEFT JOIN @L l "
    "ON l.lock_id = i.id), "
    "a AS MATERIALIZED (SELECT id, ttl, n FROM r WHERE "
    "pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtext(key))), "
    "m AS MATERIALIZED (SELECT a.n, a.ttl, l.lock_id, l.expires_at_ms AS was FROM @L l JOIN a ON "
    "l.lock_id = a.id "
    "AND @R "
    "FOR UPDATE OF l SKIP LOCKED), "
    "t AS MATERIALIZED (SELECT @N AS now FROM (SELECT count(*) FROM m) x), "
    "u AS (UPDATE @L l SET expires_at_ms = t.now + m.ttl FROM m, t "
    "WHERE l.lock_id = m.lock_id AND l.expires_at_ms > t.now - $4::bigint "
    "RETURNING m.n, l.expires_at_ms, @E) "
    "SELECT r.n, r.key IS NOT NULL, m.n IS NOT NULL, u.expires_at_ms "
    "FROM r LEFT JOIN m ON m.n = r.n LEFT JOIN u ON u.n = r.n";

#define RECORD "l.user_key, l.lock_id, l.expires_at_ms, l.acquired_at_ms, l.fence, @O4, t.now"

static const char *const texts[SG_PG_STATEMENTS] = {
    [SG_PG_BEGIN] = "BEGIN ISOLATION LEVEL READ COMMITTED",
    [SG_PG_COMMIT] = "COMMIT",
    [SG_PG_SET_LIMITS] = "SELECT pg_catalog.set_config('lock_timeout', $1, true) || "
                         "pg_catalog.set_config('statement_timeout', $2, true) || "
                         "pg_catalog.set_config('client_min_messages', 'warning', true)",
    [SG_PG_LOCK_KEY] = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext($1))",
    /*
     * Shows why there is no grant, or that there was one when the request was sent earlier. A row
     * past its expiry (dead, or within the tolerance) is locked, so that SG_PG_ACQUIRE does not
     * wait for it. For any other row the result is LOCKED in any case.
     */
    [SG_PG_CURRENT_ROW] =
        "SELECT lock_id = $2, expires_at_ms, fence, @N, CASE WHEN expires_at_ms <= @N "
        "THEN (SELECT 1 FROM @L WHERE key = $1 FOR UPDATE) END FROM @L WHERE key = $1",
    [SG_PG_ACQUIRE] = acquire_sql,
    /* Takes the advisory lock of the row's name, then locks the row. A row that was taken over in
     * the meantime is checked again, and no longer has the id. */
    [SG_PG_LOCK_ID] = "SELECT @A FROM @L WHERE lock_id = $1 FOR UPDATE",
    [SG_PG_EXTEND] = extend_sql,
    [SG_PG_RELEASE] = release_sql,
    /* Like a release, an undo does not wait for a standby: if a failover takes it back, it leaves a
     * lock that expires. */
    [SG_PG_UNDO] = "DELETE FROM @L WHERE key = $1 AND lock_id = $2 RETURNING key, @W, "
                   "pg_catalog.set_config('synchronous_commit', 'local', true)",
    [SG_PG_CLEANUP] = "DELETE FROM @L WHERE key = $1 AND lock_id = $2 AND "
                      "expires_at_ms = $3::bigint AND expires_at_ms < @N - $4::bigint",
    [SG_PG_EXTEND_MANY] = extend_many_sql,
    [SG_PG_COUNTER] = "SELECT fence FROM @F WHERE fence_key = $1",
    [SG_PG_BY_KEY] = "SELECT " RECORD " FROM @L l, (SELECT @N AS now OFFSET 0) t WHERE l.key = $1",
    [SG_PG_BY_ID] =
        "SELECT " RECORD " FROM @L l, (SELECT @N AS now OFFSET 0) t WHERE l.lock_id = $1",
    [SG_PG_LIST] = "SELECT " RECORD ", l.key FROM @L l, (SELECT @N AS now OFFSET 0) t "
                   "WHERE l.key > $1 AND (l.expires_at_ms > t.now - $2::bigint OR NOT @R) "
                   "ORDER BY l.key LIMIT $3::bigint",
    [SG_PG_LIST_EXPIRED] = "SELECT " RECORD ", l.key FROM @L l, (SELECT @N AS now OFFSET 0) t "
                           "WHERE l.key > $1 AND l.expires_at_ms < t.now - $2::bigint AND @R "
                           "ORDER BY l.key LIMIT $3::bigint",
};

/* The text that a mark stands for; NULL if it is not a mark. *length is the length of the mark. */
static const char *sql_mark_value(const char *mark, const sg_pg_statements *statements,
                                  bool has_owner, size_t *length)
{
    *length = mark[1] == 'O' ? 3 : 2;
    switch (mark[1]) {
    case 'L':
        return statements->locks.quoted;
    case 'F':
        return statements->fences.quoted;
    case 'N':
        return NOW_MS;
    case 'A':
        return LOCK_NAME;
    case 'R':
        return READABLE;
    case 'W':
        return NOTIFY_WAITERS;
    case 'E':
        return NOTIFY_WAITERS_IF_EARLIER;
    case 'O':
        break;
    default:
        return NULL;
    }
    switch (mark[2]) {
    case '1':
        return has_owner ? ", owner" : "";
    case '2':
        return has_owner ? ", $8" : "";
    case '3':
        return has_owner ? ", owner = excluded.owner" : "";
    default:
        return has_owner ? "l.owner" : "NULL::text";
    }
}

/* Writes the expanded text to out (NULL: only counts). Returns its length. */
static size_t sql_text_expand(const char *text, char *out, const sg_pg_statements *statements,
                              bool has_owner)
{
    size_t total = 0;
    while (*text != 0) {
        const char *stands = NULL;
        size_t taken = 1;
        if (*text == '@')
            stands = sql_mark_value(text, statements, has_owner, &taken);
        size_t length = stands != NULL ? strlen(stands) : 1;
        if (out != NULL)
            memcpy(out + total, stands != NULL ? stands : text, length);
        total += length;
        text += stands != NULL ? taken : 1;
    }
    if (out != NULL)
        out[total] = '\0';
    return total;
}

syncguard_status sg_pg_statements_write(sg_pg_statements *statements, syncguard_error *err)
{
    for (int i = 0; i < SG_PG_FORMS * SG_PG_STATEMENTS; i++) {
        int form = i / SG_PG_STATEMENTS;
        int which = i % SG_PG_STATEMENTS;
        size_t length = sql_text_expand(texts[which], NULL, statements, form == 1);
        char *sql = syncguard_malloc(length + 1);
        if (sql == NULL)
            return syncguard_fail_memory(err);
        sql_text_expand(texts[which], sql, statements, form == 1);
        statements->sql[form][which] = sql;
        /* The name identifies the text, because a session behind a pooler may also serve other
         * handles and other versions. */
        snprintf(statements->names[form][which], SG_PG_STATEMENT_NAME_SIZE, "sg_%016llx",
                 (unsigned long long)syncguard_fnv1a(sql, length));
    }
    return SYNCGUARD_OK;
}

void sg_pg_statements_free(sg_pg_statements *statements)
{
    for (int i = 0; i < SG_PG_FORMS * SG_PG_STATEMENTS; i++)
        syncguard_free(statements->sql[i / SG_PG_STATEMENTS][i % SG_PG_STATEMENTS]);
}
