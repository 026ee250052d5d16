/*
 * Connections: lending them, ending them, and leaving them in the middle.
 *
 * At most `max` callers are past the gate, each with one connection, on which one
 * more from the line may ride along; renewals can have two more. A broken one is found by using it;
 * then its whole generation is distrusted, because a restart or a failover breaks all at once.
 *
 * A caller whose time is up leaves its connection to a thread, which asks the
 * server to cancel (a request over a second connection, and it blocks), reads
 * the answers to their end and so learns when nothing can happen any more.
 *
 * Locking: the mutex guards everything but `all` and `generation`. `all` is a
 * list that is consistent at every instant, because a forked child walks it
 * without a lock.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pg.h"

/* Threads that may hang in cancelling when a server hangs. */
#define MAX_DRAINS 32
/* A cancel request hangs for ever where a network swallows it, and nothing can end it. So few are
 * under way at a time; the bounds on the server end the statements of the others. */
#define MAX_CANCELS 2
/* How long the rest of a cancelled request is waited for. */
#define DRAIN_MS 5000

syncguard_status sg_pg_pool_create(sg_pg_target *target, int max, int64_t timeout_ms,
                                   sg_pg_pool **out, syncguard_error *err)
{
    sg_pg_pool *pool = syncguard_calloc(1, sizeof *pool);
    syncguard_status status = SYNCGUARD_OK;

    *out = NULL;
    if (!pool) {
        sg_pg_target_free(target);
        return syncguard_fail_memory(err);
    }
    pool->target = target;
    pool->max = max;
    pool->timeout_ms = timeout_ms;
    pool->references = 1;
    atomic_init(&pool->generation, 1);
    atomic_init(&pool->all, NULL);
    if (pthread_mutex_init(&pool->mutex, NULL) != 0)
        status = syncguard_fail_memory(err);
    else
        status = syncguard_gate_init(&pool->gate, max, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_gate_init(&pool->aside, 1, err);
    if (status != SYNCGUARD_OK) {
        sg_pg_target_free(target);
        syncguard_free(pool);
        return status;
    }
    *out = pool;
    return SYNCGUARD_OK;
}

void sg_pg_pool_unref(sg_pg_pool *pool)
{
    bool last;

    pthread_mutex_lock(&pool->mutex);
    last = --pool->references == 0;
    pthread_mutex_unlock(&pool->mutex);
    if (!last)
        return;
    syncguard_gate_destroy(&pool->gate);
    syncguard_gate_destroy(&pool->aside);
    pthread_mutex_destroy(&pool->mutex);
    sg_pg_target_free(pool->target);
    syncguard_free(pool);
}

sg_pg_connection *sg_pg_connection_create(sg_pg_pool *pool)
{
    sg_pg_connection *connection = syncguard_calloc(1, sizeof *connection);

    if (!connection)
        return NULL;
    connection->pool = pool;
    connection->busy = true;
    pthread_mutex_lock(&pool->mutex);
    atomic_init(&connection->next, atomic_load(&pool->all));
    atomic_store(&pool->all, connection);
    pthread_mutex_unlock(&pool->mutex);
    return connection;
}

static void unlink_connection(sg_pg_connection *connection)
{
    sg_pg_pool *pool = connection->pool;
    sg_pg_connection *each;

    pthread_mutex_lock(&pool->mutex);
    each = atomic_load(&pool->all);
    if (each == connection) {
        atomic_store(&pool->all, atomic_load(&connection->next));
    } else {
        while (each && atomic_load(&each->next) != connection)
            each = atomic_load(&each->next);
        if (each)
            atomic_store(&each->next, atomic_load(&connection->next));
    }
    pthread_mutex_unlock(&pool->mutex);
}

void sg_pg_discard(sg_pg_connection *connection)
{
    if (connection->listener)
        (void)sg_pg_listener_take_back(connection, false);
    unlink_connection(connection);
    if (connection->pg)
        PQfinish(connection->pg);
    syncguard_free(connection);
}

void sg_pg_distrust(sg_pg_pool *pool)
{
    atomic_fetch_add(&pool->generation, 1);
}

bool sg_pg_is_trusted(const sg_pg_connection *connection)
{
    return connection->generation == atomic_load(&connection->pool->generation);
}

void sg_pg_give_back(sg_pg_connection *connection)
{
    sg_pg_pool *pool = connection->pool;
    bool keep;

    if (connection->listener) {
        if (!sg_pg_listener_take_back(connection, true))
            sg_pg_discard(connection);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    keep = !pool->closed && sg_pg_is_trusted(connection);
    if (keep) {
        connection->busy = false;
        connection->next_idle = pool->idle;
        pool->idle = connection;
    }
    pthread_mutex_unlock(&pool->mutex);
    if (!keep)
        sg_pg_discard(connection);
}

static sg_pg_connection *take_idle(sg_pg_pool *pool)
{
    sg_pg_connection *connection;

    pthread_mutex_lock(&pool->mutex);
    connection = pool->idle;
    if (connection) {
        pool->idle = connection->next_idle;
        connection->next_idle = NULL;
        connection->busy = true;
    }
    pthread_mutex_unlock(&pool->mutex);
    return connection;
}

syncguard_status sg_pg_lend(sg_pg_pool *pool, const syncguard_limits *limits,
                            sg_pg_connection **out, syncguard_error *err)
{
    sg_pg_connection *connection;

    while ((connection = take_idle(pool)) != NULL) {
        if (sg_pg_is_trusted(connection)) {
            *out = connection;
            return SYNCGUARD_OK;
        }
        sg_pg_discard(connection);
    }
    return sg_pg_connect_wait(pool, limits, out, err);
}

void sg_pg_pool_close(sg_pg_pool *pool)
{
    sg_pg_connection *connection;

    pthread_mutex_lock(&pool->mutex);
    pool->closed = true;
    pthread_mutex_unlock(&pool->mutex);
    while ((connection = take_idle(pool)) != NULL)
        sg_pg_discard(connection);
    sg_pg_pool_unref(pool);
}

bool sg_pg_is_own(sg_pg_pool *pool, int pid)
{
    sg_pg_connection *each;
    bool own = false;

    pthread_mutex_lock(&pool->mutex);
    for (each = atomic_load(&pool->all); each && !own; each = atomic_load(&each->next))
        own = each->server_pid == pid;
    pthread_mutex_unlock(&pool->mutex);
    return own;
}

/* ---- doubts ------------------------------------------------------------------------------ */

int sg_pg_doubt_put(sg_pg_pool *pool, const char *lock_id, bool final)
{
    int slot = (int)(pool->next_doubt++ % SG_PG_DOUBTS);

    memcpy(pool->doubts[slot].lock_id, lock_id, SYNCGUARD_LOCK_ID_SIZE);
    pool->doubts[slot].final = final;
    return slot;
}

void sg_pg_doubt_add(sg_pg_pool *pool, const char *lock_id, bool final)
{
    pthread_mutex_lock(&pool->mutex);
    sg_pg_doubt_put(pool, lock_id, final);
    pthread_mutex_unlock(&pool->mutex);
}

void sg_pg_doubt_settle(sg_pg_pool *pool, int doubt, const char *lock_id)
{
    if (memcmp(pool->doubts[doubt].lock_id, lock_id, SYNCGUARD_LOCK_ID_SIZE) == 0)
        pool->doubts[doubt].final = true;
}

int sg_pg_doubts_open(sg_pg_pool *pool, const char *lock_id, int *total)
{
    int open = 0;
    size_t i;

    *total = 0;
    pthread_mutex_lock(&pool->mutex);
    for (i = 0; i < SG_PG_DOUBTS; i++) {
        if (memcmp(pool->doubts[i].lock_id, lock_id, SYNCGUARD_LOCK_ID_CHARS) == 0) {
            (*total)++;
            open += !pool->doubts[i].final;
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    return *total ? open : -1;
}

/* ---- abandoning -------------------------------------------------------------------------- */

typedef struct drain {
    sg_pg_connection *connection;
    PGcancel *cancel;
    bool asks; /* counts among the cancel requests */
    int doubt; /* -1: none */
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
} drain;

/* Reads to the end of the request: true if the server has answered it or said that it ended the
 * session. A connection that just breaks says nothing: the request may still be under way. */
static bool read_to_end(const sg_pg_connection *connection)
{
    PGconn *pg = connection->pg;
    syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), DRAIN_MS), NULL};

    for (;;) {
        struct pollfd fd = {PQsocket(pg), POLLIN, 0};

        if (PQstatus(pg) == CONNECTION_BAD || PQsocket(pg) < 0)
            return false;
        while (!PQisBusy(pg)) {
            PGresult *result = PQgetResult(pg);
            bool none = !result;
            bool end = result && (PQresultStatus(result) == PGRES_PIPELINE_SYNC ||
                                  sg_pg_says_end(connection, result));

            PQclear(result);
            if (end)
                return true;
            if (PQstatus(pg) == CONNECTION_BAD)
                return false;
            /* Nothing was under way, or its end had been read before: libpq would go on saying so
             * for ever. */
            if (none && PQtransactionStatus(pg) != PQTRANS_ACTIVE)
                return true;
        }
        if (PQflush(pg) > 0)
            fd.events |= POLLOUT;
        if (syncguard_wait_fds(&fd, 1, &limits, NULL) != SYNCGUARD_OK)
            return false;
        if (!PQconsumeInput(pg))
            return false;
    }
}

static void *run_drain(void *argument)
{
    drain *left = argument;
    sg_pg_connection *connection = left->connection;
    sg_pg_pool *pool = connection->pool;
    char words[256];
    bool final;

    if (left->cancel) {
        PQcancel(left->cancel, words, sizeof words);
        PQfreeCancel(left->cancel);
    }
    if (left->asks) {
        pthread_mutex_lock(&pool->mutex);
        pool->cancels--;
        pthread_mutex_unlock(&pool->mutex);
    }
    final = read_to_end(connection);
    sg_pg_discard(connection);
    pthread_mutex_lock(&pool->mutex);
    pool->drains--;
    if (left->doubt >= 0 && final)
        sg_pg_doubt_settle(pool, left->doubt, left->lock_id);
    pthread_mutex_unlock(&pool->mutex);
    syncguard_free(left);
    sg_pg_pool_unref(pool);
    return NULL;
}

void sg_pg_abandon(sg_pg_connection *connection, const char *lock_id)
{
    sg_pg_pool *pool = connection->pool;
    drain *left = syncguard_calloc(1, sizeof *left);
    bool room;
    pthread_t thread;

    if (connection->listener)
        (void)sg_pg_listener_take_back(connection, false);
    pthread_mutex_lock(&pool->mutex);
    room = left && pool->drains < MAX_DRAINS;
    if (room) {
        left->asks = pool->cancels < MAX_CANCELS;
        pool->cancels += left->asks;
        pool->drains++;
        pool->references++;
    }
    if (lock_id) {
        int slot = sg_pg_doubt_put(pool, lock_id, false);

        if (left) {
            left->doubt = slot;
            memcpy(left->lock_id, lock_id, sizeof left->lock_id);
        }
    } else if (left) {
        left->doubt = -1;
    }
    pthread_mutex_unlock(&pool->mutex);
    if (room) {
        left->connection = connection;
        left->cancel = left->asks ? PQgetCancel(connection->pg) : NULL;
        if (syncguard_thread_start(&thread, run_drain, left) == 0) {
            pthread_detach(thread);
            return;
        }
        PQfreeCancel(left->cancel);
        pthread_mutex_lock(&pool->mutex);
        pool->cancels -= left->asks;
        pool->drains--;
        pool->references--;
        pthread_mutex_unlock(&pool->mutex);
    }
    syncguard_free(left);
    sg_pg_discard(connection);
}

/* ---- fork -------------------------------------------------------------------------------- */

/*
 * Puts something else under the descriptor, so that libpq's farewell does not reach the server.
 * False: libpq must not be told to end it, because the descriptor is another's by now (the child
 * has closed the parent's and opened its own), or there is none to spare.
 */
static bool cut_off(const sg_pg_connection *connection)
{
    int fd = PQsocket(connection->pg);
    int pair[2];

    if (!syncguard_fd_same(fd, connection->socket))
        return false;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        close(fd);
        return false;
    }
    dup3(pair[0], fd, O_CLOEXEC);
    close(pair[0]);
    close(pair[1]);
    return true;
}

void sg_pg_pool_forget(sg_pg_pool *pool)
{
    sg_pg_connection *each = atomic_load(&pool->all);

    while (each) {
        sg_pg_connection *next = atomic_load(&each->next);

        /* One that a thread of the parent was using may be half changed: its memory is left. */
        if (each->pg && cut_off(each) && !each->busy)
            PQfinish(each->pg);
        if (!each->busy)
            syncguard_free(each);
        each = next;
    }
    atomic_store(&pool->all, NULL);
    pool->idle = NULL;
    pool->orphans = NULL;
    pool->jobs = 0;
    pool->drains = 0;
    pool->cancels = 0;
    pool->references = 1;
    memset(pool->doubts, 0, sizeof pool->doubts);
    pthread_mutex_init(&pool->mutex, NULL);
    (void)syncguard_gate_init(&pool->gate, pool->max, NULL);
    (void)syncguard_gate_init(&pool->aside, 1, NULL);
}
