/*
 * What the files of the PostgreSQL backend share.
 *
 *   module.c    options, URL, open, close, the op table
 *   target.c    where to connect: connection string, hosts, TLS default
 *   parameters.c  checks of libpq's parameters and of the URL
 *   connect.c   one connection attempt, in a thread that its caller may leave
 *   pool.c      connections: lending, dropping, abandoning, fork
 *   exchange.c  one round trip: several statements in, their results out
 *   flush.c     a request: which connection it goes to, and when again
 *   ride.c      a request that goes along in another's round trip
 *   sql.c       the statements
 *   code.c      SQLSTATE to status
 *   mutate.c    acquire, release, extend, undo, cleanup
 *   batch.c     extend_many
 *   read.c      is_locked, lookup, list
 *   schema.c    check and setup
 *   examine.c   findings for the doctor
 *   listen.c    waiters woken by LISTEN
 *   line.c      the connection for that, and who uses it
 *
 * Lock order: none of the mutexes below is held while another is taken, nor
 * over a system call that can block.
 */
#ifndef SG_PG_H
#define SG_PG_H

#include <libpq-fe.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "syncguard/postgres.h"
#include "syncguard/sys/backend.h"
#include "syncguard/sys/url.h"

/* ---- sql.c ------------------------------------------------------------------------------- */

typedef enum sg_pg_statement {
    SG_PG_BEGIN,
    SG_PG_BEGIN_SETTLED, /* in place of it, in such a session */
    SG_PG_COMMIT,
    SG_PG_COMMIT_CHAIN, /* and begins again */
    SG_PG_BOUND,        /* for a lock, for all */
    SG_PG_LOCK_KEY,     /* name */
    SG_PG_ACQUIRE_LOOK, /* name, id */
    SG_PG_ACQUIRE_WAIT, /* in place of it, where a wait may be long */
    SG_PG_ACQUIRE,      /* name, id, ttl, tolerance, key, counter's name, limit, owner */
    SG_PG_LOCK_ID,      /* id */
    SG_PG_EXTEND,       /* id, tolerance, ttl */
    SG_PG_RELEASE,      /* id, tolerance, whether waiters are told */
    SG_PG_UNDO,         /* name, id, whether waiters are told */
    SG_PG_CLEANUP,      /* name, id, expiry, guard */
    SG_PG_EXTEND_MANY,  /* ids, ttls, tolerance */
    SG_PG_COUNTER,      /* counter's name */
    SG_PG_BY_KEY,       /* name */
    SG_PG_BY_ID,        /* id */
    SG_PG_LIST,         /* after, tolerance, limit */
    SG_PG_STATEMENTS
} sg_pg_statement;

/* SQLSTATE of an acquire that found the lock extended at the last moment: nothing was changed. */
#define SG_PG_OVERTAKEN "22012"
/* SQLSTATE of a COMMIT that has no room for its notification. */
#define SG_PG_QUEUE_FULL "54000"
/* The advisory lock that waiters for a name hold, of 64 for all names: the table that the server
 * keeps locks in is shared and finite. */
#define SG_PG_WAIT_LOCK(name) "1398358599, (pg_catalog.hashtext(" name ") & 63) + 1"
/* The one advisory lock that set-ups exclude each other with. */
#define SG_PG_SETUP_LOCK "1398358599, 0"
#define SG_PG_CHANNEL "syncguard"

/* A table's name in its forms: quoted for SQL, and its last part bare for derived names. */
typedef struct sg_pg_table {
    char quoted[140];
    char bare[64];
} sg_pg_table;

syncguard_status sg_pg_table_read(const char *name, const char *option, sg_pg_table *out,
                                  syncguard_error *err);
/* The text of a statement with the tables filled in; NULL without memory. The caller frees it. */
char *sg_pg_sql(sg_pg_statement statement, const sg_pg_table *locks, const sg_pg_table *fences,
                bool has_owner);
#define SG_PG_NAME_SIZE 24
/* The name under which a text is prepared: it says which text that is, because sessions behind a
 * pooler may also be those of other handles and other versions. */
void sg_pg_statement_name(const char *sql, char out[SG_PG_NAME_SIZE]);

/* ---- target.c ---------------------------------------------------------------------------- */

#define SG_PG_MAX_HOSTS 16

/* Where to connect. Immutable once read. */
typedef struct sg_pg_target {
    char **keywords; /* NULL-terminated; without host, hostaddr and port */
    char **values;
    int host_count;
    char *hosts[SG_PG_MAX_HOSTS]; /* any may be NULL: libpq's default */
    char *hostaddrs[SG_PG_MAX_HOSTS];
    char *ports[SG_PG_MAX_HOSTS];
    bool service;               /* one is asked for */
    int64_t connect_timeout_ms; /* per host; 0: not given */
    bool passfile_refused;      /* libpq would not read the password file */
    int64_t session_ms;         /* the time limits that sessions are started with; 0: none */
} sg_pg_target;

/* conninfo may be NULL. session_ms: what the server may wait unless told otherwise; 0: no settings
 * of ours may be sent at start-up. */
syncguard_status sg_pg_target_read(const char *conninfo, int64_t session_ms, sg_pg_target **out,
                                   syncguard_error *err);
/* Wipes and frees. */
void sg_pg_target_free(sg_pg_target *target);
/* True if name is a connection parameter of the linked libpq. */
bool sg_pg_is_parameter(const char *name);

/* ---- parameters.c ------------------------------------------------------------------------ */

/* InvalidArgument for values that libpq would refuse, also from the environment. */
syncguard_status sg_pg_parameters_check(const PQconninfoOption *all, syncguard_error *err);
/* port may be NULL. */
syncguard_status sg_pg_port_check(const char *port, syncguard_error *err);
/* InvalidArgument for options that contradict the rest of the URL, or each other. */
syncguard_status sg_pg_url_check(const syncguard_url *url, syncguard_error *err);
/* libpq would not read the password file because others may, or it is no file, and would print a
 * warning. */
bool sg_pg_passfile_refused(const PQconninfoOption *all);

/* ---- code.c ------------------------------------------------------------------------------ */

/* Fails with the status and the words for a SQLSTATE ("" if there is none). */
syncguard_status sg_pg_fail(syncguard_error *err, const char *sqlstate);
/* Why a connection attempt failed. service: one was asked for. */
syncguard_status sg_pg_fail_connect(syncguard_error *err, PGconn *pg, bool service);

/* ---- pool.c, connect.c ------------------------------------------------------------------- */

typedef struct sg_pg_pool sg_pg_pool;
typedef struct sg_pg_listener sg_pg_listener;

typedef struct sg_pg_connection {
    PGconn *pg;                   /* NULL while nothing was begun */
    syncguard_fd_identity socket; /* of pg, once connected */
    int server_pid;               /* 0 until connected; guarded by the pool's mutex, unlike pg */
    sg_pg_pool *pool;
    uint64_t generation;
    uint32_t prepared;        /* bit per sg_pg_statement */
    bool direct;              /* no pooler in between: the session is ours alone */
    bool settled;             /* direct, with the target's time limits and READ COMMITTED */
    bool ended;               /* the server has said so */
    bool warned;              /* by the server, during the statement that is answered next */
    bool busy;                /* not in the idle list: in a fork the parent goes on using it */
    sg_pg_listener *listener; /* that lent it, for one request; NULL: the pool did */
    struct sg_pg_connection *next_idle;
    _Atomic(struct sg_pg_connection *) next; /* of all; readable at any instant (fork) */
} sg_pg_connection;

/* An attempt to connect, made by a thread of its own. Guarded by pool->mutex. */
typedef struct sg_pg_job {
    sg_pg_pool *pool;
    sg_pg_connection *connection;
    syncguard_parker done;
    bool owned; /* somebody waits on done */
    bool finished;
    int64_t started_ns;
    int64_t deadline_ns;
    syncguard_status status;
    syncguard_error error;
    struct sg_pg_job *next;
} sg_pg_job;

#define SG_PG_DOUBTS 64

/* An acquire that was left in the middle: final once the server can no longer carry it out. */
typedef struct sg_pg_doubt {
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    bool final;
} sg_pg_doubt;

/* Outlives the handle while threads still have to end connections. */
struct sg_pg_pool {
    pthread_mutex_t mutex;
    int references;
    bool closed;
    sg_pg_target *target;
    int max;
    atomic_uint_fast64_t generation; /* connections of an older one are not lent again */
    int first_host;                  /* the one that worked last */
    int64_t timeout_ms;
    sg_pg_connection *idle;
    int drains;  /* threads that end abandoned connections */
    int cancels; /* of those, in a cancel request */
    sg_pg_job *orphans;
    int jobs;
    sg_pg_doubt doubts[SG_PG_DOUBTS];
    unsigned next_doubt;
    _Atomic(sg_pg_connection *) all;
    syncguard_gate gate;
    syncguard_gate aside; /* one place more, for who must not wait behind the stuck */
};

/* Takes over target, also on failure. */
syncguard_status sg_pg_pool_create(sg_pg_target *target, int max, int64_t timeout_ms,
                                   sg_pg_pool **out, syncguard_error *err);
/* Ends what is idle and lets the rest end itself. */
void sg_pg_pool_close(sg_pg_pool *pool);
void sg_pg_pool_unref(sg_pg_pool *pool);
/* In a forked child: drops the parent's connections without talking to them. */
void sg_pg_pool_forget(sg_pg_pool *pool);

/* Lends a connection; the caller has passed the gate. */
syncguard_status sg_pg_lend(sg_pg_pool *pool, const syncguard_limits *limits,
                            sg_pg_connection **out, syncguard_error *err);
/* Takes a healthy one back. */
void sg_pg_give_back(sg_pg_connection *connection);
/* Ends one that is of no more use. */
void sg_pg_discard(sg_pg_connection *connection);
bool sg_pg_is_trusted(const sg_pg_connection *connection);
/* The server or its role has changed: what is connected now is not lent again. */
void sg_pg_distrust(sg_pg_pool *pool);
/* Leaves one in the middle of a request, which is cancelled in the background. lock_id: of the
 * acquire that it was, or NULL. */
void sg_pg_abandon(sg_pg_connection *connection, const char *lock_id);
/* How many requests for lock_id may still be carried out, and how many there were; -1: nothing is
 * known of any. */
int sg_pg_doubts_open(sg_pg_pool *pool, const char *lock_id, int *total);
void sg_pg_doubt_add(sg_pg_pool *pool, const char *lock_id, bool final);
/* The same under the mutex; returns what to settle it by. */
int sg_pg_doubt_put(sg_pg_pool *pool, const char *lock_id, bool final);
/* Under the mutex: the request can no longer be carried out. Does nothing if the doubt has made
 * room for another. */
void sg_pg_doubt_settle(sg_pg_pool *pool, int doubt, const char *lock_id);
/* True if pid serves a connection of this pool. */
bool sg_pg_is_own(sg_pg_pool *pool, int pid);

/* A connection that is not lent yet; NULL without memory. */
sg_pg_connection *sg_pg_connection_create(sg_pg_pool *pool);
/* Connects, trying the hosts in turn. Blocks, in name resolution beyond the deadline too. */
syncguard_status sg_pg_connect(sg_pg_connection *connection, int64_t deadline_ns,
                               syncguard_error *err);
/* Connects in a thread; returns when it is done or limits end the waiting. */
syncguard_status sg_pg_connect_wait(sg_pg_pool *pool, const syncguard_limits *limits,
                                    sg_pg_connection **out, syncguard_error *err);

/* ---- the handle -------------------------------------------------------------------------- */

typedef struct sg_pg {
    syncguard_backend base;
    sg_pg_pool *pool;
    sg_pg_listener *listener; /* NULL: listening is turned off */
    sg_pg_table locks;
    sg_pg_table fences;
    pid_t pid; /* whose connections the pool has */
    atomic_bool prepared;
    bool pooler; /* given */
    int spin_us;
    /* What the first operation finds out (schema.c). */
    atomic_int form; /* of the statements: 1 if the lock table has an owner column; -1: open */
    atomic_bool queue_full; /* the server's of notifications, seen once */
    atomic_bool unexpected; /* a pooler was not given, but found: treated as if it were */
    char *sql[2][SG_PG_STATEMENTS];
    char names[2][SG_PG_STATEMENTS][SG_PG_NAME_SIZE];
    char tolerance[24];
    char fence_max[24];
} sg_pg;

/* How long the session of a pool waits for a lock, unless a request says otherwise. */
#define SG_PG_BRIEF_MS 100
/* What shares a round trip has time for several such waits, and for a round trip of its own. */
#define SG_PG_SHARING_MS (8 * SG_PG_BRIEF_MS)

/* The session waits for locks for SG_PG_BRIEF_MS only (connect.c has told it so): it may be shared.
 * One whose usual time is too short for that waits all of it. */
static inline bool sg_pg_hurries(const sg_pg_connection *connection)
{
    return connection->settled && connection->pool->timeout_ms >= SG_PG_SHARING_MS;
}

static inline sg_pg *sg_pg_of(syncguard_backend *backend)
{
    return (sg_pg *)(void *)backend;
}

/* ---- flush.c ----------------------------------------------------------------------------- */

/* Answers to a request: at most five statements, and the one that tells its time limits. */
#define SG_PG_MAX_CALLS 6
#define SG_PG_MAX_VALUES 8

typedef struct sg_pg_call {
    sg_pg_statement statement;
    int count;
    const char *values[SG_PG_MAX_VALUES];
} sg_pg_call;

/* Statements that go to the server together, and what it answered. */
typedef struct sg_pg_flush {
    /* in */
    int count;
    sg_pg_call calls[SG_PG_MAX_CALLS];
    const char *lock_id; /* of an acquire, which must be taken back if its outcome is unknown */
    bool apart;          /* does not wait in line for a connection: takes one more if need be */
    bool contended;      /* others wait for the key: may go over the listening connection */
    bool hopes;          /* for a grant: does without the look, unless it is sent again */
    bool pressing;       /* waits in line for a part of its time only, then aside */
    bool shares;         /* may share a round trip with another that may */
    const char **tells;  /* the value that says whether waiters are told; NULL: nobody is */
    /* out */
    PGresult *results[SG_PG_MAX_CALLS];
    int64_t first_sent_ns;
    char lock_ms[24];  /* what the server may wait for one lock */
    char all_ms[24];   /* and for everything in a statement: the former is to be told apart */
    bool session;      /* no need to say so: the session's own limits do */
    bool shared;       /* shares a round trip */
    bool waits;        /* was refused because it had to wait, and says for how long it can */
    bool sent;         /* something may have left */
    bool perhaps_done; /* an earlier try may have been carried out */
    bool unknown;      /* a request that failed may have been carried out */
    bool pending;      /* or may still be */
} sg_pg_flush;

void sg_pg_flush_init(sg_pg_flush *flush);
/* Adds a statement with its values, NULL-terminated unless one of them is NULL by itself. */
void sg_pg_flush_add(sg_pg_flush *flush, sg_pg_statement statement, int count,
                     const char *const *values);
/* Sends it on a connection of the pool and waits for all answers, again on another connection
 * where that is safe. OK: every statement succeeded. */
syncguard_status sg_pg_flush_run(sg_pg *pg, sg_pg_flush *flush, const syncguard_limits *limits,
                                 syncguard_error *err);
void sg_pg_flush_clear(sg_pg_flush *flush);

/* Reads a number; false if it is NULL or no number. */
bool sg_pg_int64(const PGresult *result, int row, int column, int64_t *out);
/* Reads an expiry; false if it cannot be read. */
bool sg_pg_expiry(const PGresult *result, int row, int column, int64_t *out);
/* Copies a text; false if it is NULL or does not fit. */
bool sg_pg_text(const PGresult *result, int row, int column, char *out, size_t size);
/* What the server is told when left_ms are left: so much less that its answer still comes. */
int64_t sg_pg_server_ms(int64_t left_ms);

/* ---- exchange.c -------------------------------------------------------------------------- */

/* Runs one text outside the pool's statements; *result is the caller's. For setup and checks. */
syncguard_status sg_pg_query(sg_pg_connection *connection, const char *sql, int count,
                             const char *const *values, const syncguard_limits *limits,
                             PGresult **result, syncguard_error *err);
/* Prepares statements ahead of their first use; at most 12. */
syncguard_status sg_pg_prepare(const sg_pg *pg, sg_pg_connection *connection,
                               const sg_pg_statement *statements, int count,
                               const syncguard_limits *limits, syncguard_error *err);

/* True if result says that the server has ended the session: nothing more of it is carried out. A
 * pooler may say so too, of a session that goes on. */
bool sg_pg_says_end(const sg_pg_connection *connection, const PGresult *result);

/* ---- operations -------------------------------------------------------------------------- */

syncguard_status sg_pg_acquire(syncguard_backend *, syncguard_acquire_op *, syncguard_error *);
syncguard_status sg_pg_release(syncguard_backend *, syncguard_release_op *, syncguard_error *);
syncguard_status sg_pg_extend(syncguard_backend *, syncguard_extend_op *, syncguard_error *);
syncguard_status sg_pg_undo(syncguard_backend *, const char *, size_t, const char *, int64_t,
                            const syncguard_limits *, syncguard_error *);
syncguard_status sg_pg_cleanup(syncguard_backend *, const syncguard_cleanup_op *,
                               syncguard_error *);
syncguard_status sg_pg_extend_many(syncguard_backend *, syncguard_extend_op *, size_t,
                                   const syncguard_limits *, syncguard_error *);
syncguard_status sg_pg_is_locked(syncguard_backend *, syncguard_is_locked_op *, syncguard_error *);
syncguard_status sg_pg_lookup(syncguard_backend *, syncguard_lookup_op *, syncguard_error *);
syncguard_status sg_pg_list(syncguard_backend *, const syncguard_limits *, syncguard_record_fn,
                            void *, syncguard_error *);
/* How many records list leaves out because they cannot be read. */
syncguard_status sg_pg_count_unreadable(sg_pg *pg, const syncguard_limits *limits, size_t *count,
                                        syncguard_error *err);
syncguard_status sg_pg_examine(syncguard_backend *, const syncguard_limits *, syncguard_finding_fn,
                               void *, syncguard_error *);

/* The stored name of a key. out has SYNCGUARD_NAME_SIZE bytes. */
syncguard_status sg_pg_name(const char *key, char *out, syncguard_error *err);

/* ---- schema.c ---------------------------------------------------------------------------- */

/* Looks at the tables: InvalidArgument if they are missing or unusable. */
syncguard_status sg_pg_schema_check(sg_pg_connection *connection, const sg_pg_table *locks,
                                    const sg_pg_table *fences, const syncguard_limits *limits,
                                    bool *has_owner, syncguard_error *err);
/* Before the first operation of a handle, on its connection: checks the tables and the session, and
 * notes in pg what they are like. A failure is not kept: the next operation looks again. */
syncguard_status sg_pg_verify(sg_pg *pg, sg_pg_connection *connection,
                              const syncguard_limits *limits, syncguard_error *err);
/* Creates what is missing. */
syncguard_status sg_pg_schema_create(sg_pg_connection *connection, const sg_pg_table *locks,
                                     const sg_pg_table *fences, const syncguard_limits *limits,
                                     syncguard_error *err);
syncguard_status sg_pg_schema_print(const sg_pg_table *locks, const sg_pg_table *fences,
                                    syncguard_print_fn print, void *context, syncguard_error *err);

/* ---- listen.c ---------------------------------------------------------------------------- */

syncguard_status sg_pg_listener_create(sg_pg *pg, sg_pg_listener **out, syncguard_error *err);
void sg_pg_listener_destroy(sg_pg_listener *listener);
/* In a forked child: the thread was the parent's. */
syncguard_status sg_pg_listener_forget(sg_pg_listener *listener, syncguard_error *err);
/* Makes sure that releases of key are reported from now on, and says for how long that may be
 * relied on without another try; 0: they are not, so poll. Blocks within limits only. */
int64_t sg_pg_listener_arm(sg_pg_listener *listener, const char *key, size_t length,
                           const syncguard_limits *limits);
void sg_pg_listener_disarm(sg_pg_listener *listener, const char *key, size_t length);
/* See syncguard_backend_ops. */
syncguard_status sg_pg_listener_listen(sg_pg_listener *listener, syncguard_parker *parker,
                                       const syncguard_limits *limits, syncguard_error *err);
void sg_pg_listener_take_over(sg_pg_listener *listener);
/* Lends the listening connection for one request, if nobody needs it now; it goes back as any other
 * does. */
bool sg_pg_listener_lend(sg_pg_listener *listener, sg_pg_connection **out);
/* For the pool. usable: false if it is ended or left. False: the listener has another one by now,
 * and this one should end. */
bool sg_pg_listener_take_back(sg_pg_connection *connection, bool usable);

#endif
