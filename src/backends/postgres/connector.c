/*
 * Connection attempts. libpq resolves names and reads files while it connects, which may take any
 * amount of time. So each attempt runs in a thread of its own, and its caller waits for it within
 * its own limits. An attempt whose caller has given up is finished all the same, and its connection
 * goes to the pool or to the next caller: otherwise callers with short deadlines would never get
 * one.
 *
 * Locking: the pool's mutex guards an attempt. The thread frees it if no caller waits for it when
 * it has finished, else its owner does.
 */
#include "pool.h"
#include "syncguard/sys/alloc.h"

/* The least time for an attempt, even if the deadline of its caller is earlier. */
#define MIN_ATTEMPT_MS 2000
/* An attempt that is older than this is not worth waiting for: a new one may be faster. */
#define FRESH_ATTEMPT_NS (500 * SYNCGUARD_NS_PER_MS)

typedef struct sg_pg_attempt {
    sg_pg_pool *pool;
    sg_pg_connection *connection;
    syncguard_parker done;
    bool owned; /* a caller waits on done */
    bool finished;
    int64_t started_ns;
    int64_t deadline_ns;
    syncguard_status status;
    syncguard_error error;
    struct sg_pg_attempt *next;
} attempt;

static void pg_attempt_free(attempt *a)
{
    syncguard_parker_close(&a->done);
    syncguard_free(a);
}

static void pg_attempt_unlink_orphan(attempt *a)
{
    attempt **link = &a->pool->orphans;
    while (*link != NULL && *link != a)
        link = &(*link)->next;
    if (*link != NULL)
        *link = a->next;
}

static void *pg_attempt_run(void *argument)
{
    attempt *a = argument;
    sg_pg_pool *pool = a->pool;
    sg_pg_connection *connection = a->connection;
    pthread_mutex_lock(&pool->mutex);
    int host = pool->first_host;
    pthread_mutex_unlock(&pool->mutex);
    a->status = sg_pg_connection_open(connection, pool->target, &host, a->deadline_ns, &a->error);
    bool connected = a->status == SYNCGUARD_OK;
    pthread_mutex_lock(&pool->mutex);
    if (connected) {
        pool->first_host = host;
        connection->server_pid = PQbackendPID(connection->pg);
        connection->replaces = pool->lost > 0;
        pool->lost -= connection->replaces ? 1 : 0;
    }
    pool->attempts--;
    a->finished = true;
    bool orphan = !a->owned;
    if (orphan)
        pg_attempt_unlink_orphan(a);
    else /* the owner may free it as soon as the mutex is unlocked */
        syncguard_parker_unpark(&a->done);
    pthread_mutex_unlock(&pool->mutex);
    if (orphan) {
        if (connected)
            sg_pg_pool_give_back(connection);
        else
            sg_pg_pool_discard(connection);
        pg_attempt_free(a);
    }
    sg_pg_pool_unref(pool);
    return NULL;
}

/* Counts the attempt and starts its thread. The caller must not hold the mutex. */
static syncguard_status pg_attempt_start_thread(attempt *a, syncguard_error *err)
{
    sg_pg_pool *pool = a->pool;
    pthread_mutex_lock(&pool->mutex);
    pool->references++;
    pool->attempts++;
    pthread_mutex_unlock(&pool->mutex);
    pthread_t thread;
    if (syncguard_thread_start(&thread, pg_attempt_run, a) == 0) {
        pthread_detach(thread);
        return SYNCGUARD_OK;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->references--;
    pool->attempts--;
    pthread_mutex_unlock(&pool->mutex);
    return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "no thread left");
}

static syncguard_status pg_attempt_start(sg_pg_pool *pool, const syncguard_limits *limits,
                                         attempt **out, syncguard_error *err)
{
    attempt *a = syncguard_calloc(1, sizeof *a);
    int64_t left_ns = syncguard_limits_left_ns(limits);
    if (a == NULL)
        return syncguard_fail_memory(err);
    a->pool = pool;
    a->owned = true;
    a->started_ns = syncguard_clock_ns();
    a->done = (syncguard_parker)SYNCGUARD_PARKER_INIT;
    if (left_ns == SYNCGUARD_NO_DEADLINE)
        left_ns = pool->timeout_ms * SYNCGUARD_NS_PER_MS;
    if (left_ns < MIN_ATTEMPT_MS * SYNCGUARD_NS_PER_MS)
        left_ns = MIN_ATTEMPT_MS * SYNCGUARD_NS_PER_MS;
    a->deadline_ns = a->started_ns + left_ns;
    a->connection = sg_pg_pool_add(pool);
    syncguard_status status = SYNCGUARD_OK;
    if (a->connection == NULL)
        status = syncguard_fail_memory(err);
    if (status == SYNCGUARD_OK)
        status = syncguard_parker_open(&a->done, err);
    if (status == SYNCGUARD_OK)
        status = pg_attempt_start_thread(a, err);
    if (status != SYNCGUARD_OK) {
        if (a->connection != NULL)
            sg_pg_pool_discard(a->connection);
        pg_attempt_free(a);
        return status;
    }
    *out = a;
    return SYNCGUARD_OK;
}

/* Adopts an attempt whose caller has given up, if it is recent or there are too many already. */
static attempt *pg_attempt_adopt(sg_pg_pool *pool)
{
    int64_t now = syncguard_clock_ns();
    pthread_mutex_lock(&pool->mutex);
    attempt *a = pool->orphans;
    if (a != NULL && (now - a->started_ns < FRESH_ATTEMPT_NS || pool->attempts >= 2 * pool->max)) {
        pool->orphans = a->next;
        a->next = NULL;
        a->owned = true;
    } else {
        a = NULL;
    }
    pthread_mutex_unlock(&pool->mutex);
    return a;
}

syncguard_status sg_pg_connector_wait(sg_pg_pool *pool, const syncguard_limits *limits,
                                      sg_pg_connection **out, syncguard_error *err)
{
    attempt *a = pg_attempt_adopt(pool);
    syncguard_status status = a != NULL ? SYNCGUARD_OK : pg_attempt_start(pool, limits, &a, err);
    *out = NULL;
    if (status != SYNCGUARD_OK)
        return status;
    status = syncguard_parker_park(&a->done, limits, err);
    pthread_mutex_lock(&pool->mutex);
    bool finished = a->finished;
    if (!finished) {
        a->owned = false;
        a->next = pool->orphans;
        pool->orphans = a;
    }
    pthread_mutex_unlock(&pool->mutex);
    if (!finished)
        return status;
    status = a->status;
    if (status == SYNCGUARD_OK) {
        *out = a->connection;
    } else {
        if (err != NULL)
            *err = a->error;
        sg_pg_pool_discard(a->connection);
    }
    pg_attempt_free(a);
    return status;
}

syncguard_status sg_pg_check_out(sg_pg_pool *pool, const syncguard_limits *limits,
                                 sg_pg_connection **out, syncguard_error *err)
{
    *out = sg_pg_pool_take_idle(pool);
    return *out != NULL ? SYNCGUARD_OK : sg_pg_connector_wait(pool, limits, out, err);
}
