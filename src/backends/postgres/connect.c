/*
 * Connecting. libpq resolves names and reads files while it connects, which can
 * take as long as it likes; so each attempt is made by a thread of its own, and
 * its caller waits for it like for anything else. An attempt that was left is
 * finished all the same and its connection goes to the pool, or to the next
 * caller: without that a short deadline would never get anywhere.
 *
 * Locking: a job is guarded by its pool's mutex. Who finds it both finished and
 * not owned frees it: the thread if nobody waits any more, else the owner.
 */
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "pg.h"

/* An attempt gets at least this long, however short the deadline of who wanted it. */
#define MIN_ATTEMPT_MS 2000
/* One that is older than this is not worth waiting for: a new one may be faster. */
#define FRESH_ATTEMPT_NS (500 * SYNCGUARD_NS_PER_MS)
/* Given parameters, host, hostaddr, port, end. */
#define MAX_PARAMETERS 96

/*
 * Without a receiver libpq prints notices to stderr. Two kinds matter: a COMMIT whose wait for a
 * synchronous standby is cancelled succeeds with a warning, whose code is the general one, so every
 * warning counts; and the server's last word to an idle session, which comes as a notice too.
 */
static void receive_notice(void *context, const PGresult *notice)
{
    sg_pg_connection *connection = context;
    const char *severity = PQresultErrorField(notice, PG_DIAG_SEVERITY_NONLOCALIZED);

    if (severity && strcmp(severity, "WARNING") == 0)
        connection->warned = true;
    if (severity && strcmp(severity, "FATAL") == 0)
        connection->ended = true;
}

static PGconn *begin(sg_pg_connection *connection, int host)
{
    const sg_pg_target *target = connection->pool->target;
    const char *keywords[MAX_PARAMETERS];
    const char *values[MAX_PARAMETERS];
    size_t count = 0;
    PGconn *pg;

    for (; target->keywords[count] && count < MAX_PARAMETERS - 4; count++) {
        keywords[count] = target->keywords[count];
        values[count] = target->values[count];
    }
    keywords[count] = "host";
    values[count++] = target->hosts[host];
    keywords[count] = "hostaddr";
    values[count++] = target->hostaddrs[host];
    keywords[count] = "port";
    values[count++] = target->ports[host];
    keywords[count] = NULL;
    values[count] = NULL;
    pg = PQconnectStartParams(keywords, values, 0);
    if (!pg)
        return NULL;
    PQsetNoticeReceiver(pg, receive_notice, connection);
    PQsetErrorVerbosity(pg, PQERRORS_SQLSTATE);
    return pg;
}

/* How many further addresses a host may have. Asked only when the first one does not answer. */
static int other_addresses(const char *host)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    const struct addrinfo *each;
    int count = 0;

    if (!host || host[0] == '/' || host[0] == '@' || getaddrinfo(host, NULL, &hints, &all) != 0)
        return 0;
    for (each = all; each; each = each->ai_next)
        count++;
    freeaddrinfo(all);
    return count - 1;
}

/*
 * Waits for the attempt's socket. libpq goes on to the next address of a name
 * only when one refuses; one that swallows everything must not take all of the
 * time, so after half of what is left its socket is shut, which counts as refused.
 */
static syncguard_status wait_for(PGconn *pg, short events, const char *host, int *others,
                                 const syncguard_limits *limits, syncguard_error *err)
{
    struct pollfd fd = {PQsocket(pg), events, 0};
    syncguard_limits half =
        syncguard_limits_until(limits, syncguard_clock_ns() + syncguard_limits_left_ns(limits) / 2);
    syncguard_status status;

    if (*others == 0 || PQstatus(pg) != CONNECTION_STARTED)
        return syncguard_wait_fds(&fd, 1, limits, err);
    status = syncguard_wait_fds(&fd, 1, &half, err);
    if (status == SYNCGUARD_OK)
        return status;
    if (*others < 0)
        *others = other_addresses(host);
    if (*others == 0)
        return syncguard_wait_fds(&fd, 1, limits, err);
    (*others)--;
    shutdown(fd.fd, SHUT_RDWR);
    return SYNCGUARD_OK;
}

/* Drives one attempt to its end. host: what is tried, NULL if it has but one address. */
static syncguard_status finish(PGconn *pg, const char *host, bool service,
                               const syncguard_limits *limits, syncguard_error *err)
{
    int others = host ? -1 : 0; /* -1: not counted yet */
    PostgresPollingStatusType next = PGRES_POLLING_WRITING;
    syncguard_status status;

    if (PQstatus(pg) == CONNECTION_BAD)
        return sg_pg_fail_connect(err, pg, service);
    while (next != PGRES_POLLING_OK) {
        status = wait_for(pg, next == PGRES_POLLING_READING ? POLLIN : POLLOUT, host, &others,
                          limits, err);
        if (status != SYNCGUARD_OK)
            return syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, NULL,
                                  "connecting to the server took too long");
        next = PQconnectPoll(pg);
        if (next == PGRES_POLLING_FAILED)
            return sg_pg_fail_connect(err, pg, service);
    }
    if (PQsetnonblocking(pg, 1) != 0 || !PQenterPipelineMode(pg))
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "libpq refuses pipeline mode");
    return SYNCGUARD_OK;
}

/*
 * What the session is, as it says itself. A pooler answers with the number of one
 * of its sessions, while libpq has one that the pooler made up; and it may drop
 * the settings that we start with: time limits and isolation. One that is ours alone is told to
 * wait for locks briefly, because requests may share it.
 */
static syncguard_status identify(sg_pg_connection *connection, const syncguard_limits *limits,
                                 syncguard_error *err)
{
    static const char sql[] =
        "SELECT pg_catalog.pg_backend_pid(), s.ours, CASE WHEN s.ours AND "
        "pg_catalog.pg_backend_pid() = $2::int THEN "
        "pg_catalog.set_config('lock_timeout', $3, false) END "
        "FROM (SELECT pg_catalog.current_setting('lock_timeout')::interval = $1::interval "
        "AND pg_catalog.current_setting('statement_timeout')::interval = $1::interval "
        "AND pg_catalog.current_setting('default_transaction_isolation') = 'read committed' "
        "AND pg_catalog.current_setting('client_min_messages') = 'warning' "
        "AS ours OFFSET 0) s";
    int64_t session_ms = connection->pool->target->session_ms;
    /* What sg_pg_hurries says of it afterwards. */
    bool hurries = session_ms > 0 && connection->pool->timeout_ms >= SG_PG_SHARING_MS;
    char wanted[32];
    char own[24];
    char brief[24];
    const char *values[] = {wanted, own, brief};
    PGresult *result = NULL;
    int64_t pid = 0;
    syncguard_status status;

    snprintf(wanted, sizeof wanted, "%lld ms", (long long)session_ms);
    snprintf(own, sizeof own, "%d", hurries ? PQbackendPID(connection->pg) : 0);
    snprintf(brief, sizeof brief, "%d", SG_PG_BRIEF_MS);
    status = sg_pg_query(connection, sql, 3, values, limits, &result, err);
    if (status != SYNCGUARD_OK)
        return status;
    connection->direct = sg_pg_int64(result, 0, 0, &pid) && pid == PQbackendPID(connection->pg);
    connection->settled =
        connection->direct && session_ms > 0 && PQgetvalue(result, 0, 1)[0] == 't';
    PQclear(result);
    return SYNCGUARD_OK;
}

/* When the attempt at a host must be over, if left hosts still have to be tried after it. */
static int64_t host_deadline(const sg_pg_target *target, int left, int64_t deadline_ns)
{
    int64_t now = syncguard_clock_ns();
    int64_t share = (deadline_ns - now) / (left + 1);

    if (target->connect_timeout_ms > 0)
        share = target->connect_timeout_ms * SYNCGUARD_NS_PER_MS;
    return now + share < deadline_ns ? now + share : deadline_ns;
}

syncguard_status sg_pg_connect(sg_pg_connection *connection, int64_t deadline_ns,
                               syncguard_error *err)
{
    sg_pg_pool *pool = connection->pool;
    const sg_pg_target *target = pool->target;
    syncguard_status status = SYNCGUARD_OK;
    int first;
    int i;

    pthread_mutex_lock(&pool->mutex);
    first = pool->first_host;
    pthread_mutex_unlock(&pool->mutex);
    connection->generation = atomic_load(&pool->generation);
    for (i = 0; i < target->host_count; i++) {
        int host = (first + i) % target->host_count;
        syncguard_limits limits = {host_deadline(target, target->host_count - 1 - i, deadline_ns),
                                   NULL};

        connection->pg = begin(connection, host);
        if (!connection->pg)
            return syncguard_fail_memory(err);
        status = finish(connection->pg, target->hostaddrs[host] ? NULL : target->hosts[host],
                        target->service, &limits, err);
        if (status == SYNCGUARD_OK)
            status = identify(connection, &limits, err);
        if (status == SYNCGUARD_OK) {
            pthread_mutex_lock(&pool->mutex);
            pool->first_host = host;
            connection->server_pid = PQbackendPID(connection->pg);
            connection->socket = syncguard_fd_identify(PQsocket(connection->pg));
            pthread_mutex_unlock(&pool->mutex);
            return status;
        }
        PQfinish(connection->pg);
        connection->pg = NULL;
    }
    return status;
}

static void free_job(sg_pg_job *job)
{
    syncguard_parker_close(&job->done);
    syncguard_free(job);
}

static void unlink_orphan(sg_pg_job *job)
{
    sg_pg_job **link = &job->pool->orphans;

    while (*link && *link != job)
        link = &(*link)->next;
    if (*link)
        *link = job->next;
}

static void *run(void *argument)
{
    sg_pg_job *job = argument;
    sg_pg_pool *pool = job->pool;
    sg_pg_connection *left = NULL;
    bool orphan;
    bool ok;

    job->status = sg_pg_connect(job->connection, job->deadline_ns, &job->error);
    pthread_mutex_lock(&pool->mutex);
    pool->jobs--;
    job->finished = true;
    orphan = !job->owned;
    ok = job->status == SYNCGUARD_OK;
    if (orphan) {
        unlink_orphan(job);
        left = job->connection;
    } else {
        /* The owner can free the job as soon as the mutex is free. */
        syncguard_parker_unpark(&job->done);
    }
    pthread_mutex_unlock(&pool->mutex);
    if (orphan) {
        if (ok)
            sg_pg_give_back(left);
        else
            sg_pg_discard(left);
        free_job(job);
    }
    sg_pg_pool_unref(pool);
    return NULL;
}

static syncguard_status start(sg_pg_pool *pool, const syncguard_limits *limits, sg_pg_job **out,
                              syncguard_error *err)
{
    sg_pg_job *job = syncguard_calloc(1, sizeof *job);
    int64_t left_ns = syncguard_limits_left_ns(limits);
    int64_t now = syncguard_clock_ns();
    syncguard_status status = SYNCGUARD_OK;
    pthread_t thread;

    if (!job)
        return syncguard_fail_memory(err);
    job->pool = pool;
    job->owned = true;
    job->started_ns = now;
    job->done = (syncguard_parker)SYNCGUARD_PARKER_INIT;
    if (left_ns == SYNCGUARD_NO_DEADLINE)
        left_ns = pool->timeout_ms * SYNCGUARD_NS_PER_MS;
    if (left_ns < MIN_ATTEMPT_MS * SYNCGUARD_NS_PER_MS)
        left_ns = MIN_ATTEMPT_MS * SYNCGUARD_NS_PER_MS;
    job->deadline_ns = now + left_ns;
    job->connection = sg_pg_connection_create(pool);
    if (!job->connection)
        status = syncguard_fail_memory(err);
    if (status == SYNCGUARD_OK)
        status = syncguard_parker_open(&job->done, err);
    if (status == SYNCGUARD_OK) {
        pthread_mutex_lock(&pool->mutex);
        pool->references++;
        pool->jobs++;
        pthread_mutex_unlock(&pool->mutex);
        if (syncguard_thread_start(&thread, run, job) != 0) {
            status = syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "no thread left");
            pthread_mutex_lock(&pool->mutex);
            pool->references--;
            pool->jobs--;
            pthread_mutex_unlock(&pool->mutex);
        } else {
            pthread_detach(thread);
        }
    }
    if (status != SYNCGUARD_OK) {
        if (job->connection)
            sg_pg_discard(job->connection);
        free_job(job);
        return status;
    }
    *out = job;
    return SYNCGUARD_OK;
}

/* Takes over an attempt that somebody left, if it is fresh or there are too many already. */
static sg_pg_job *adopt(sg_pg_pool *pool)
{
    int64_t now = syncguard_clock_ns();
    sg_pg_job *job;

    pthread_mutex_lock(&pool->mutex);
    job = pool->orphans;
    if (job && (now - job->started_ns < FRESH_ATTEMPT_NS || pool->jobs >= 2 * pool->max)) {
        pool->orphans = job->next;
        job->next = NULL;
        job->owned = true;
    } else {
        job = NULL;
    }
    pthread_mutex_unlock(&pool->mutex);
    return job;
}

syncguard_status sg_pg_connect_wait(sg_pg_pool *pool, const syncguard_limits *limits,
                                    sg_pg_connection **out, syncguard_error *err)
{
    sg_pg_job *job = adopt(pool);
    syncguard_status status = SYNCGUARD_OK;
    bool finished;

    *out = NULL;
    if (!job)
        status = start(pool, limits, &job, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = syncguard_parker_park(&job->done, limits, err);
    pthread_mutex_lock(&pool->mutex);
    finished = job->finished;
    if (!finished) {
        job->owned = false;
        job->next = pool->orphans;
        pool->orphans = job;
    }
    pthread_mutex_unlock(&pool->mutex);
    if (!finished)
        return status;
    status = job->status;
    if (status == SYNCGUARD_OK) {
        *out = job->connection;
    } else {
        if (err)
            *err = job->error;
        sg_pg_discard(job->connection);
    }
    free_job(job);
    return status;
}
