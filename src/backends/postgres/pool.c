/*
 * The connections of a handle.
 *
 * At most `max` callers are past the gate, each with one connection; renewals may use two more. A
 * broken connection is detected when it is used. Its whole generation is then distrusted, because a
 * restart or a failover breaks all connections at once.
 *
 * Locking: the mutex guards everything but `all` and `generation`. `all` is a list that is
 * consistent at every instant, because a forked child walks it without a lock. No mutex of this
 * backend is held while another is taken, or during a system call that can block.
 */
#include <string.h>

#include "pool.h"
#include "syncguard/sys/alloc.h"

syncguard_status sg_pg_pool_create(sg_pg_target *target, int max, int64_t timeout_ms,
                                   sg_pg_pool **out, syncguard_error *err)
{
    sg_pg_pool *pool = syncguard_calloc(1, sizeof *pool);
    syncguard_status status = pool != NULL ? SYNCGUARD_OK : syncguard_fail_memory(err);
    if (pool != NULL && pthread_mutex_init(&pool->mutex, NULL) != 0)
        status = syncguard_fail_memory(err);
    if (status == SYNCGUARD_OK)
        status = syncguard_gate_init(&pool->gate, max, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_gate_init(&pool->fallback, 1, err);
    if (status != SYNCGUARD_OK) {
        sg_pg_target_free(target);
        syncguard_free(pool);
        *out = NULL;
        return status;
    }
    pool->target = target;
    pool->max = max;
    pool->timeout_ms = timeout_ms;
    pool->references = 1;
    atomic_init(&pool->generation, 1);
    atomic_init(&pool->all, NULL);
    *out = pool;
    return SYNCGUARD_OK;
}

void sg_pg_pool_unref(sg_pg_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    bool last = --pool->references == 0;
    pthread_mutex_unlock(&pool->mutex);
    if (!last)
        return;
    syncguard_gate_destroy(&pool->gate);
    syncguard_gate_destroy(&pool->fallback);
    pthread_mutex_destroy(&pool->mutex);
    sg_pg_target_free(pool->target);
    syncguard_free(pool);
}

sg_pg_connection *sg_pg_pool_add(sg_pg_pool *pool)
{
    sg_pg_connection *connection = syncguard_calloc(1, sizeof *connection);
    if (connection == NULL)
        return NULL;
    connection->pool = pool;
    connection->busy = true;
    connection->generation = atomic_load(&pool->generation);
    pthread_mutex_lock(&pool->mutex);
    atomic_init(&connection->next, atomic_load(&pool->all));
    atomic_store(&pool->all, connection);
    pthread_mutex_unlock(&pool->mutex);
    return connection;
}

void sg_pg_pool_count_lost(sg_pg_connection *connection)
{
    sg_pg_pool *pool = connection->pool;
    pthread_mutex_lock(&pool->mutex);
    if (connection->server_pid != 0 && !connection->lost) {
        connection->lost = true;
        pool->lost++;
    }
    pthread_mutex_unlock(&pool->mutex);
}

void sg_pg_pool_discard(sg_pg_connection *connection)
{
    sg_pg_pool *pool = connection->pool;
    _Atomic(sg_pg_connection *) *link = &pool->all;
    sg_pg_pool_count_lost(connection);
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load(link) != NULL && atomic_load(link) != connection)
        link = &atomic_load(link)->next;
    if (atomic_load(link) != NULL)
        atomic_store(link, atomic_load(&connection->next));
    pthread_mutex_unlock(&pool->mutex);
    /* If the program has closed the descriptor, the memory is leaked: PQfinish would close a
     * descriptor of the program. */
    if (connection->pg != NULL && sg_pg_connection_is_open(connection))
        PQfinish(connection->pg);
    syncguard_free(connection);
}

void sg_pg_pool_distrust(sg_pg_pool *pool)
{
    atomic_fetch_add(&pool->generation, 1);
}

bool sg_pg_pool_is_trusted(const sg_pg_connection *connection)
{
    return connection->generation == atomic_load(&connection->pool->generation);
}

void sg_pg_pool_give_back(sg_pg_connection *connection)
{
    sg_pg_pool *pool = connection->pool;
    pthread_mutex_lock(&pool->mutex);
    bool keep = !pool->closed && sg_pg_pool_is_trusted(connection);
    if (keep) {
        connection->busy = false;
        connection->next_idle = pool->idle;
        pool->idle = connection;
    }
    pthread_mutex_unlock(&pool->mutex);
    if (!keep)
        sg_pg_pool_discard(connection);
}

static sg_pg_connection *pg_pool_pop_idle(sg_pg_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    sg_pg_connection *connection = pool->idle;
    if (connection != NULL) {
        pool->idle = connection->next_idle;
        connection->next_idle = NULL;
        connection->busy = true;
    }
    pthread_mutex_unlock(&pool->mutex);
    return connection;
}

sg_pg_connection *sg_pg_pool_take_idle(sg_pg_pool *pool)
{
    sg_pg_connection *connection = pg_pool_pop_idle(pool);
    while (connection != NULL &&
           !(sg_pg_pool_is_trusted(connection) && sg_pg_connection_is_open(connection))) {
        sg_pg_pool_discard(connection);
        connection = pg_pool_pop_idle(pool);
    }
    return connection;
}

bool sg_pg_pool_has_ended(sg_pg_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    bool ended = false;
    for (const sg_pg_connection *each = pool->idle; each != NULL && !ended; each = each->next_idle)
        ended = sg_pg_pool_is_trusted(each) &&
                (!sg_pg_connection_is_open(each) || syncguard_fd_ended(PQsocket(each->pg)));
    pthread_mutex_unlock(&pool->mutex);
    if (ended)
        sg_pg_pool_distrust(pool);
    return ended;
}

void sg_pg_pool_close(sg_pg_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->closed = true;
    pthread_mutex_unlock(&pool->mutex);
    sg_pg_connection *connection;
    while ((connection = pg_pool_pop_idle(pool)) != NULL)
        sg_pg_pool_discard(connection);
    sg_pg_pool_unref(pool);
}

bool sg_pg_pool_is_own(sg_pg_pool *pool, int pid)
{
    pthread_mutex_lock(&pool->mutex);
    bool own = false;
    for (sg_pg_connection *each = atomic_load(&pool->all); each != NULL && !own;
         each = atomic_load(&each->next))
        own = each->server_pid == pid;
    pthread_mutex_unlock(&pool->mutex);
    return own;
}

void sg_pg_pool_forget(sg_pg_pool *pool)
{
    sg_pg_connection *each = atomic_load(&pool->all);
    while (each != NULL) {
        sg_pg_connection *next = atomic_load(&each->next);

        /* A thread of the parent may have been changing a busy one: its memory is not freed. */
        if (each->pg != NULL && sg_pg_connection_cut_off(each) && !each->busy)
            PQfinish(each->pg);
        if (!each->busy)
            syncguard_free(each);
        each = next;
    }
    atomic_store(&pool->all, NULL);
    pool->idle = NULL;
    pool->orphans = NULL;
    pool->attempts = 0;
    pool->drains = 0;
    pool->cancels = 0;
    pool->lost = 0;
    pool->references = 1;
    memset(pool->unresolved, 0, sizeof pool->unresolved);
    pthread_mutex_init(&pool->mutex, NULL);
    (void)syncguard_gate_init(&pool->gate, pool->max, NULL);
    (void)syncguard_gate_init(&pool->fallback, 1, NULL);
}
