/*
 * Requests whose caller has left, and what is known about their end.
 *
 * A caller whose time is up leaves its connection to a thread, which asks the server to cancel (a
 * request over a second connection, and it blocks), reads the answers to their end and so learns
 * when nothing of the request can be carried out any more. For an acquire that is noted: only then
 * is its undo final.
 *
 * Locking: the pool's mutex guards the counts and the table of unresolved requests.
 */
#include <string.h>

#include "abandon.h"
#include "round_trip.h"
#include "syncguard/sys/alloc.h"

/* Threads that may hang in cancelling when a server hangs. */
#define MAX_DRAINS 32
/* A cancel request hangs for ever where a network drops its packets, and nothing can end it. So
 * few are under way at a time; the time limits on the server end the statements of the others. */
#define MAX_CANCELS 2
/* How long the rest of a cancelled request is waited for. */
#define DRAIN_MS 5000

/* ---- unresolved requests ---- */

/* Under the mutex; the oldest one makes room. Returns the slot. */
static int pg_unresolved_note(sg_pg_pool *pool, const char *lock_id, bool over)
{
    int slot = (int)(pool->next_unresolved++ % SG_PG_MAX_UNRESOLVED);
    memcpy(pool->unresolved[slot].lock_id, lock_id, SYNCGUARD_LOCK_ID_SIZE);
    pool->unresolved[slot].over = over;
    return slot;
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
    bool cancels; /* counts among the cancel requests */
    PGcancel *cancel;
    int slot; /* of the unresolved acquire; -1: none */
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
} drain;

/* Reads to the end of the request: true if the server has answered it or said that it ended the
 * session. A connection that just breaks says nothing: the request may still be under way. */
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
            /* Nothing was under way, or its end had been read before: libpq would go on saying so
             * for ever. */
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
    /* Its slot may have made room for another. */
    if (over && d->slot >= 0 &&
        memcmp(pool->unresolved[d->slot].lock_id, d->lock_id, sizeof d->lock_id) == 0)
        pool->unresolved[d->slot].over = true;
    pthread_mutex_unlock(&pool->mutex);
    syncguard_free(d);
    sg_pg_pool_unref(pool);
    return NULL;
}

/* Starts the thread. False: there are too many, or none can be had. */
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
    /* The core does not know of a release that this session still carries out: its notification
     * has to be passed on like that of another process. */
    connection->server_pid = 0;
    int slot = -1;
    if (lock_id != NULL)
        slot = pg_unresolved_note(pool, lock_id, false);
    pthread_mutex_unlock(&pool->mutex);
    if (d != NULL) {
        d->connection = connection;
        d->slot = slot;
        if (lock_id != NULL)
            memcpy(d->lock_id, lock_id, sizeof d->lock_id);
        if (drain_start(pool, d))
            return;
    }
    syncguard_free(d);
    sg_pg_pool_discard(connection);
}
