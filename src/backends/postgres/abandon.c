/*
 * Abandoned requests, and whether they may still take effect.
 *
 * A caller whose time is up hands its connection to a thread. The thread sends a cancel request
 * (over a second connection, and it blocks) and reads the replies to the end of the request. From
 * then on the server cannot apply any of it. For an acquire this is recorded, because only then is
 * its undo final.
 *
 * Locking: the pool's mutex guards the counts and the table of unresolved requests.
 */
#include <string.h>

#include "pool.h"
#include "round_trip.h"
#include "syncguard/sys/alloc.h"

/* Limit of threads: each may hang in a cancel request if the server hangs. */
#define MAX_DRAINS 32
/* A cancel request hangs forever in a network that drops its packets, and nothing can end it.
 * So only a few run at a time; the time limits on the server end the statements of the other
 * requests. */
#define MAX_CANCELS 2
/* How long the thread waits for the rest of a cancelled request. */
#define DRAIN_MS 5000

/* ---- unresolved requests ---- */

/* Under the mutex: replaces the oldest entry. Returns the index of the new entry. */
static int pg_unresolved_note(sg_pg_pool *pool, const char *lock_id, bool over)
{
    int index = (int)(pool->next_unresolved++ % SG_PG_MAX_UNRESOLVED);
    memcpy(pool->unresolved[index].lock_id, lock_id, SYNCGUARD_LOCK_ID_SIZE);
    pool->unresolved[index].over = over;
    return index;
}

void sg_pg_unresolved_add(sg_pg_pool *pool, const char *lock_id, bool over)
{
    pthread_mutex_lock(&pool->mutex);
    pg_unresolved_note(pool, lock_id, over);
    pthread_mutex_unlock(&pool->mutex);
}

int sg_pg_unresolved_count(sg_pg_pool *pool, const char *lock_id, int *total)
{
    *total = 0;
    pthread_mutex_lock(&pool->mutex);
    int open = 0;
    for (size_t i = 0; i < SG_PG_MAX_UNRESOLVED; i++) {
        if (memcmp(pool->unresolved[i].lock_id, lock_id, SYNCGUARD_LOCK_ID_CHARS) == 0) {
            (*total)++;
            open += !pool->unresolved[i].over;
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    return *total != 0 ? open : -1;
}

/* ---- abandoning ---- */

typedef struct drain {
    sg_pg_connection *connection;
    bool cancels; /* counted in pool->cancels */
    PGcancel *cancel;
    int unresolved; /* index of its entry in the table; -1: not an acquire */
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
} drain;

/* Reads the replies to the end of the request. True if the server has answered it or reported the
 * end of the session. False if the connection just breaks, because the request may still be in
 * flight. */
static bool drain_read_to_end(const sg_pg_connection *connection)
{
    PGconn *pg = connection->pg;
    syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), DRAIN_MS), NULL};
    for (;;) {
        struct pollfd fd = {PQsocket(pg), POLLIN, 0};
        if (PQstatus(pg) == CONNECTION_BAD || PQsocket(pg) < 0)
            return false;
        while (PQisBusy(pg) == 0) {
            PGresult *result = PQgetResult(pg);
            bool none = result == NULL;
            bool expected = none || sg_pg_is_expected(result);
            bool end = result != NULL && (PQresultStatus(result) == PGRES_PIPELINE_SYNC ||
                                          sg_pg_ends_session(connection, result));
            PQclear(result);
            if (end)
                return true;
            if (!expected || PQstatus(pg) == CONNECTION_BAD ||
                syncguard_limits_left_ns(&limits) == 0)
                return false;
            /* No request was in flight, or its end was read before: libpq would return NULL
             * forever. */
            if (none && PQtransactionStatus(pg) != PQTRANS_ACTIVE)
                return true;
        }
        if (PQflush(pg) > 0)
            fd.events |= POLLOUT;
        if (syncguard_wait_fds(&fd, 1, &limits, NULL) != SYNCGUARD_OK || PQconsumeInput(pg) == 0)
            return false;
    }
}

static void *drain_run(void *argument)
{
    drain *d = argument;
    sg_pg_pool *pool = d->connection->pool;
    char text[256];
    if (d->cancel != NULL) {
        PQcancel(d->cancel, text, sizeof text);
        PQfreeCancel(d->cancel);
    }
    pthread_mutex_lock(&pool->mutex);
    pool->cancels -= d->cancels;
    pthread_mutex_unlock(&pool->mutex);
    bool over = drain_read_to_end(d->connection);
    sg_pg_pool_discard(d->connection);
    pthread_mutex_lock(&pool->mutex);
    pool->drains--;
    /* A newer request may have replaced the entry. */
    if (over && d->unresolved >= 0 &&
        memcmp(pool->unresolved[d->unresolved].lock_id, d->lock_id, sizeof d->lock_id) == 0)
        pool->unresolved[d->unresolved].over = true;
    pthread_mutex_unlock(&pool->mutex);
    syncguard_free(d);
    sg_pg_pool_unref(pool);
    return NULL;
}

/* Starts the thread. False if there are too many, or if it cannot be started. */
static bool drain_start(sg_pg_pool *pool, drain *d)
{
    pthread_mutex_lock(&pool->mutex);
    bool room = pool->drains < MAX_DRAINS;
    d->cancels = room && pool->cancels < MAX_CANCELS;
    pool->cancels += d->cancels;
    pool->drains += room;
    pool->references += room;
    pthread_mutex_unlock(&pool->mutex);
    if (!room)
        return false;
    d->cancel = d->cancels ? PQgetCancel(d->connection->pg) : NULL;
    pthread_t thread;
    if (syncguard_thread_start(&thread, drain_run, d) == 0) {
        pthread_detach(thread);
        return true;
    }
    PQfreeCancel(d->cancel);
    pthread_mutex_lock(&pool->mutex);
    pool->cancels -= d->cancels;
    pool->drains--;
    pool->references--;
    pthread_mutex_unlock(&pool->mutex);
    return false;
}

void sg_pg_abandon(sg_pg_connection *connection, const char *lock_id)
{
    sg_pg_pool *pool = connection->pool;
    drain *d = syncguard_calloc(1, sizeof *d);
    sg_pg_pool_count_lost(connection);
    pthread_mutex_lock(&pool->mutex);
    /* The session may still apply a release that the core does not know of: its notification
     * must be reported like that of another process. */
    connection->server_pid = 0;
    int unresolved = -1;
    if (lock_id != NULL)
        unresolved = pg_unresolved_note(pool, lock_id, false);
    pthread_mutex_unlock(&pool->mutex);
    if (d != NULL) {
        d->connection = connection;
        d->unresolved = unresolved;
        if (lock_id != NULL)
            memcpy(d->lock_id, lock_id, sizeof d->lock_id);
        if (drain_start(pool, d))
            return;
    }
    syncguard_free(d);
    sg_pg_pool_discard(connection);
}
