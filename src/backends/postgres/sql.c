/*
 * The statements, and table names inside them.
 *
 * A mutation is a transaction of separate statements, because each statement of a
 * READ COMMITTED transaction sees what was committed before it began: first the
 * advisory lock that all who decide about a name take, and only then the decision,
 * which thus sees the truth. Who holds that lock is alone with the name's row, but for
 * the other library's extends and releases, which take only the row: where one of them
 * may be waited for long, the row is locked before the decision too, which thus reads
 * the clock after that wait. A release has nothing to decide, and is one statement.
 *
 * The tolerance and the fence limit come as values. @L and @F stand for the
 * tables, @N for the server's time in milliseconds, @A for taking the advisory lock of
 * a row's name, @W for telling who waits for it, @R for an expiry that can be read: of
 * less than 2^53. Times 1024 any other is out of the type's range, so that a decision
 * about such a row fails (22003) and changes nothing.
 */
#include <stdio.h>
#include <string.h>

#include "pg.h"

#define NOW_MS                                                                                     \
    "pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint"

/* Whoever waits for a name holds its wait lock shared: then this one cannot be had. */
#define TELL_WAITERS                                                                               \
    "CASE WHEN $3::bool AND NOT pg_catalog.pg_try_advisory_xact_lock(" SG_PG_WAIT_LOCK(            \
        "key") ") "                                                                                \
               "THEN pg_catalog.pg_notify('" SG_PG_CHANNEL                                         \
               "', pg_catalog.hashtext(key)::text) END"

#define READABLE "l.expires_at_ms BETWEEN -9007199254740991 AND 9007199254740991"

#define LOCK_NAME "pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext(key))"

/*
 * Grants if no live lock is in the way and the counter may go on: then one row,
 * else none. The takeover looks at the expiry once more, in the row as it is when
 * it is written: the other library's extend takes only the row, and may commit
 * after our snapshot. Then all of this must not have been, the counter included:
 * the division fails (SG_PG_OVERTAKEN). A lock's times are from a second look at the
 * clock, which OFFSET keeps from becoming several. @O are the columns and values of
 * the owner label, where the table has one.
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
 * All in one, because nothing is decided before the row is ours: the remains of a dead lock of
 * the caller's may go as well, so that only the answer depends on the clock. That is read for
 * what is returned, after every wait, with the row as it was when it went. The scan takes the
 * advisory lock, and so before the row; a row that changed meanwhile is looked at again, and must
 * still have the id. A release that a crash takes back only makes the lock run out.
 */
static const char release_sql[] =
    "DELETE FROM @L WHERE lock_id = $1 AND @A IS NOT NULL AND expires_at_ms * 1024 IS NOT NULL "
    "RETURNING user_key, "
    "pg_catalog.set_config('synchronous_commit', 'off', true) = 'off' "
    "AND expires_at_ms > @N - $2::bigint, @W";

/*
 * Nothing here waits: a key or row that somebody else is busy with is left out
 * (m) and so stays undecided. The clock is read when all that can be locked is.
 */
static const char extend_many_sql[] =
    "WITH i AS MATERIALIZED (SELECT id, ttl, n FROM "
    "unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS u (id, ttl, n)), "
    "r AS MATERIALIZED (SELECT i.id, i.ttl, i.n, l.key FROM i LEFT JOIN @L l "
    "ON l.lock_id = i.id), "
    "a AS MATERIALIZED (SELECT id, ttl, n FROM r WHERE "
    "pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtext(key))), "
    "m AS MATERIALIZED (SELECT a.n, a.ttl, l.lock_id FROM @L l JOIN a ON l.lock_id = a.id "
    "AND @R "
    "FOR UPDATE OF l SKIP LOCKED), "
    "t AS MATERIALIZED (SELECT @N AS now FROM (SELECT count(*) FROM m) x), "
    "u AS (UPDATE @L l SET expires_at_ms = t.now + m.ttl FROM m, t "
    "WHERE l.lock_id = m.lock_id AND l.expires_at_ms > t.now - $3::bigint "
    "RETURNING m.n, l.expires_at_ms) "
    "SELECT r.n, r.key IS NOT NULL, m.n IS NOT NULL, u.expires_at_ms "
    "FROM r LEFT JOIN m ON m.n = r.n LEFT JOIN u ON u.n = r.n";

#define RECORD "l.user_key, l.lock_id, l.expires_at_ms, l.acquired_at_ms, l.fence, @O4, t.now"

static const char *const texts[SG_PG_STATEMENTS] = {
    [SG_PG_BEGIN] = "BEGIN ISOLATION LEVEL READ COMMITTED",
    /* Naming the level makes it a setting of the transaction, which costs (ADR 0030). */
    [SG_PG_BEGIN_SETTLED] = "BEGIN",
    [SG_PG_COMMIT] = "COMMIT",
    [SG_PG_COMMIT_CHAIN] = "COMMIT AND CHAIN",
    /* One column, because each one more costs something on both sides. */
    [SG_PG_BOUND] = "SELECT pg_catalog.set_config('lock_timeout', $1, true) || "
                    "pg_catalog.set_config('statement_timeout', $2, true) || "
                    "pg_catalog.set_config('client_min_messages', 'warning', true)",
    [SG_PG_LOCK_KEY] = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext($1))",
    /* What is there: why there is no grant, or that an earlier try of ours has had it. */
    [SG_PG_ACQUIRE_LOOK] = "SELECT lock_id = $2, expires_at_ms, fence, @N FROM @L WHERE key = $1",
    /*
     * The same where the decision might wait for the row for longer than a moment: a row past its
     * expiry, dead or within a second of that, is locked here. One further from its end needs no
     * lock, for it makes the answer "locked" in any case.
     */
    [SG_PG_ACQUIRE_WAIT] =
        "SELECT lock_id = $2, expires_at_ms, fence, @N, CASE WHEN expires_at_ms <= @N "
        "THEN (SELECT 1 FROM @L WHERE key = $1 FOR UPDATE) END FROM @L WHERE key = $1",
    [SG_PG_ACQUIRE] = acquire_sql,
    /* Through the row that the id is found by: the name's advisory lock, then the row. If the row
     * has changed hands meanwhile it is looked at again, and no longer fits. */
    [SG_PG_LOCK_ID] = "SELECT @A FROM @L WHERE lock_id = $1 FOR UPDATE",
    [SG_PG_EXTEND] =
        "WITH t AS MATERIALIZED (SELECT @N AS now) UPDATE @L l "
        "SET expires_at_ms = t.now + $3::bigint FROM t "
        "WHERE l.lock_id = $1 AND l.expires_at_ms * 1024 > (t.now - $2::bigint) * 1024 "
        "RETURNING l.expires_at_ms",
    [SG_PG_RELEASE] = release_sql,
    /* One that a failover takes back makes the lock run out, as with a release: no standby is
     * waited for. */
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
};

void sg_pg_statement_name(const char *sql, char out[SG_PG_NAME_SIZE])
{
    uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */

    for (; *sql; sql++)
        hash = (hash ^ (unsigned char)*sql) * UINT64_C(1099511628211);
    snprintf(out, SG_PG_NAME_SIZE, "sg_%016llx", (unsigned long long)hash);
}

/* What a mark stands for; NULL if it is none. *length is that of the mark. */
static const char *meaning(const char *mark, const sg_pg_table *locks, const sg_pg_table *fences,
                           bool has_owner, size_t *length)
{
    *length = 2;
    switch (mark[1]) {
    case 'L':
        return locks->quoted;
    case 'F':
        return fences->quoted;
    case 'N':
        return NOW_MS;
    case 'A':
        return LOCK_NAME;
    case 'R':
        return READABLE;
    case 'W':
        return TELL_WAITERS;
    case 'O':
        *length = 3;
        break;
    default:
        return NULL;
    }
    switch (mark[2]) {
    case '1':
        return has_owner ? ", owner" : "";
    case '2':
        /* Without the column the value must still have a type. */
        return has_owner ? ", $8" : "";
    case '3':
        return has_owner ? ", owner = excluded.owner" : "";
    case '4':
        return has_owner ? "l.owner" : "NULL::text";
    default:
        return NULL;
    }
}

/* Writes the expanded text to out (NULL: only counts). */
static size_t expand(const char *text, char *out, const sg_pg_table *locks,
                     const sg_pg_table *fences, bool has_owner)
{
    size_t total = 0;

    while (*text) {
        size_t taken = 1;
        const char *put = text;
        size_t length = 1;

        if (*text == '@') {
            const char *stands = meaning(text, locks, fences, has_owner, &taken);

            if (stands) {
                put = stands;
                length = strlen(stands);
            } else {
                taken = 1;
            }
        }
        if (out)
            memcpy(out + total, put, length);
        total += length;
        text += taken;
    }
    if (out)
        out[total] = '\0';
    return total;
}

char *sg_pg_sql(sg_pg_statement statement, const sg_pg_table *locks, const sg_pg_table *fences,
                bool has_owner)
{
    size_t length = expand(texts[statement], NULL, locks, fences, has_owner);
    char *out = syncguard_malloc(length + 1);

    if (out)
        expand(texts[statement], out, locks, fences, has_owner);
    return out;
}

/* Longest identifier that PostgreSQL does not cut. */
#define MAX_IDENTIFIER 63

/* Length of the identifier at the start of text, 0 if there is none. */
static size_t identifier(const char *text)
{
    static const char first[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    static const char more[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789$";

    return strspn(text, first) ? strspn(text, more) : 0;
}

syncguard_status sg_pg_table_read(const char *name, const char *option, sg_pg_table *out,
                                  syncguard_error *err)
{
    size_t schema = 0;
    size_t table = identifier(name);
    const char *bare = name;

    if (table && name[table] == '.') {
        schema = table;
        bare = name + table + 1;
        table = identifier(bare);
    }
    if (!table || bare[table] || table > MAX_IDENTIFIER || schema > MAX_IDENTIFIER)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "option %s is no table name: name or schema.name, each of at most "
                              "63 letters, digits, _ and $",
                              option);
    if (schema)
        snprintf(out->quoted, sizeof out->quoted, "\"%.*s\".\"%s\"", (int)schema, name, bare);
    else
        snprintf(out->quoted, sizeof out->quoted, "\"%s\"", bare);
    memcpy(out->bare, bare, table + 1);
    return SYNCGUARD_OK;
}
