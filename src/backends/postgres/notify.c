/*
 * Reports releases, and extends that let a lock end earlier, to waiters: one listening connection
 * and one thread per handle, started by the first waiter.
 *
 * To watch a key, the listening session holds the key's wait lock in shared mode. A releaser that
 * cannot get that lock exclusively knows that there may be a waiter, and sends a notification with
 * the hash of the stored name. An extend that lets the lock end earlier does the same. The wait
 * lock is taken before the waiter's request is sent, so no release after that request goes
 * unnoticed. Many names share one wait lock; the server counts how often the session has taken it.
 *
 * A wait lock is kept for a moment after the last waiter has left, because on a busy key the next
 * waiter comes at once. When the connection is lost, the waiters of every key try again and so arm
 * again. After a failed attempt to connect there is a pause in which waiters poll.
 *
 * Locking: the mutex guards watches and armings. Only the thread uses the connection, and only the
 * thread removes watches. The core is never called with the mutex held.
 */
#include <stdlib.h>
#include <string.h>

#include "names.h"
#include "notify.h"
#include "result.h"
#include "round_trip.h"
#include "sql.h"

/* How long a wait lock is kept after the last waiter has left. */
#define LINGER_NS (50 * SYNCGUARD_NS_PER_MS)
#define QUERY_MS 5000
#define FIRST_PAUSE_NS (100 * SYNCGUARD_NS_PER_MS)
#define LONGEST_PAUSE_NS (5000 * SYNCGUARD_NS_PER_MS)
/* Arming may take this much of a caller's time, and at most a quarter of it. The rest is for the
 * request itself, after which the caller polls. */
#define LONGEST_ARMING_NS (500 * SYNCGUARD_NS_PER_MS)
/* How long a waiter may go without a try. */
#define SHORTEST_ARMED_MS 1000
#define LONGEST_ARMED_MS 5000

/* A releaser holds the wait lock for an instant only, so a longer wait is due to a foreign
 * session. */
static const char arm_sql[] =
    "SELECT pg_catalog.hashtext($1), "
    "CASE WHEN pg_catalog.set_config('lock_timeout', '1000', true) IS NOT NULL THEN "
    "pg_catalog.pg_advisory_lock_shared(" SG_PG_WAIT_LOCK("$1") ") END";
static const char disarm_sql[] =
    "SELECT pg_catalog.pg_advisory_unlock_shared(" SG_PG_WAIT_LOCK("$1") ")";

/* A key whose releases are reported, or should be. */
typedef struct watch {
    struct watch *next;
    bool wanted; /* has waiters */
    bool armed;
    int armings;      /* callers that wait for it to be armed */
    int64_t since_ns; /* when the first of the current waiters came */
    int64_t leave_ns; /* when it may be disarmed, if not wanted */
    int64_t hash;
    size_t length;
    char key[];
} watch;

/* A caller that waits for its watch to be armed; on its stack. */
typedef struct arming {
    struct arming *next;
    watch *about;
    bool done;
    bool armed;
    syncguard_parker parker;
} arming;

struct sg_pg_listener {
    syncguard_backend *backend;
    sg_pg_pool *pool;
    pthread_mutex_t mutex;
    watch *watches;
    arming *armings;
    bool started;
    int failures;          /* to connect, since the last success */
    int64_t not_before_ns; /* when the pause after the last of them is over */
    int64_t next_check_ns; /* when the thread checks the watches at the latest */
    uint64_t generation;   /* of the connection that armed */
    syncguard_parker parker;
    syncguard_abort *stop;
    pthread_t thread;
    sg_pg_connection *connection; /* the thread's */
};

static syncguard_limits pg_listener_query_limits(const sg_pg_listener *listener)
{
    return (syncguard_limits){syncguard_clock_after(syncguard_clock_ns(), QUERY_MS),
                              listener->stop};
}

/* Under the mutex: answers the callers that wait for w (NULL: for any watch). */
static void pg_armings_answer(sg_pg_listener *listener, const watch *w, bool armed)
{
    arming **link = &listener->armings;
    while (*link != NULL) {
        arming *each = *link;
        if (w != NULL && each->about != w) {
            link = &each->next;
            continue;
        }
        *link = each->next;
        each->about->armings--;
        each->armed = armed;
        each->done = true;
        syncguard_parker_unpark(&each->parker);
    }
}

/* ---- the thread: its connection ---- */

/* Closes the connection, if there is one: no key is watched any more. failed: wait before the next
 * attempt to connect. */
static void pg_listener_disconnect(sg_pg_listener *listener, bool failed)
{
    sg_pg_connection *connection = listener->connection;
    listener->connection = NULL;
    pthread_mutex_lock(&listener->mutex);
    for (watch *w = listener->watches; w != NULL; w = w->next)
        w->armed = false;
    pg_armings_answer(listener, NULL, false);
    if (failed) {
        listener->not_before_ns =
            syncguard_clock_ns() +
            syncguard_backoff_ns(FIRST_PAUSE_NS, listener->failures++, LONGEST_PAUSE_NS);
    }
    pthread_mutex_unlock(&listener->mutex);
    if (connection == NULL)
        return;
    syncguard_backend_notifications_lost(listener->backend);
    sg_pg_pool_discard(connection);
}

static bool pg_listener_connect(sg_pg_listener *listener)
{
    syncguard_limits limits = pg_listener_query_limits(listener);
    syncguard_status status =
        sg_pg_connector_wait(listener->pool, &limits, &listener->connection, NULL);

    /* Settings of a session behind a pooler stay there for other clients. */
    if (status == SYNCGUARD_OK && !listener->connection->direct)
        status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    if (status == SYNCGUARD_OK)
        status = sg_pg_query(listener->connection, "LISTEN " SG_PG_CHANNEL, 0, NULL, &limits, NULL,
                             NULL);
    if (status != SYNCGUARD_OK) {
        pg_listener_disconnect(listener, true);
        return false;
    }
    pthread_mutex_lock(&listener->mutex);
    listener->failures = 0;
    listener->generation = listener->connection->generation;
    pthread_mutex_unlock(&listener->mutex);
    if (listener->connection->replaces)
        syncguard_backend_reconnected(listener->backend);
    listener->connection->replaces = false;
    return true;
}

/* The next watch for a name of this hash, after w (NULL: the first). */
static const watch *pg_watch_next_of_hash(sg_pg_listener *listener, const watch *w, int64_t hash)
{
    pthread_mutex_lock(&listener->mutex);
    w = w != NULL ? w->next : listener->watches;
    while (w != NULL && !(w->armed && w->wanted && w->hash == hash))
        w = w->next;
    pthread_mutex_unlock(&listener->mutex);
    return w;
}

/* Reports the notifications that libpq has received. Releases of this handle are left out, because
 * the core has already woken a waiter for them; extends of this handle are reported. After a
 * release with an unknown outcome all waiters try again (sg_pg_release), and notifications of an
 * abandoned session are reported. */
static void pg_notifications_report(sg_pg_listener *listener)
{
    PGnotify *each;
    while (listener->connection != NULL && (each = PQnotifies(listener->connection->pg)) != NULL) {
        int64_t hash = strtoll(each->extra, NULL, 10);
        if (strcmp(each->relname, SG_PG_CHANNEL) == 0 &&
            (strstr(each->extra, SG_PG_EARLIER) != NULL ||
             !sg_pg_pool_is_own(listener->pool, each->be_pid))) {
            const watch *w = NULL;
            while ((w = pg_watch_next_of_hash(listener, w, hash)) != NULL)
                syncguard_backend_key_changed(listener->backend, w->key, w->length);
        }
        PQfreemem(each);
    }
}

/* ---- the thread: watches ---- */

static void pg_watch_arm(sg_pg_listener *listener, watch *w)
{
    syncguard_limits limits = pg_listener_query_limits(listener);
    char name[SYNCGUARD_NAME_SIZE];
    const char *values[] = {name};
    syncguard_status status = sg_pg_name(w->key, name, NULL);
    if (listener->connection != NULL && !sg_pg_pool_is_trusted(listener->connection))
        pg_listener_disconnect(listener, false);
    if (listener->connection == NULL && !pg_listener_connect(listener))
        return;
    PGresult *result = NULL;
    if (status == SYNCGUARD_OK)
        status = sg_pg_query(listener->connection, arm_sql, 1, values, &limits, &result, NULL);
    int64_t hash = 0;
    if (status == SYNCGUARD_OK && !sg_pg_int64(result, 0, 0, &hash))
        status = SYNCGUARD_E_INTERNAL;
    PQclear(result);
    if (status != SYNCGUARD_OK) {
        /* It is unknown whether the session holds the lock: a new session holds none. */
        pg_listener_disconnect(listener, true);
        return;
    }
    pthread_mutex_lock(&listener->mutex);
    w->hash = hash;
    w->armed = true;
    bool late = w->wanted && w->armings == 0;
    pg_armings_answer(listener, w, true);
    pthread_mutex_unlock(&listener->mutex);
    /* The caller has tried without being armed: a release between the try and the arming would go
     * unnoticed. */
    if (late)
        syncguard_backend_key_changed(listener->backend, w->key, w->length);
}

static void pg_watch_disarm(sg_pg_listener *listener, const watch *w)
{
    syncguard_limits limits = pg_listener_query_limits(listener);
    char name[SYNCGUARD_NAME_SIZE];
    const char *values[] = {name};
    if (listener->connection == NULL || sg_pg_name(w->key, name, NULL) != SYNCGUARD_OK)
        return;
    if (sg_pg_query(listener->connection, disarm_sql, 1, values, &limits, NULL, NULL) !=
        SYNCGUARD_OK)
        pg_listener_disconnect(listener, true);
}

/* Under the mutex: removes a watch that is no longer needed from the list and returns it. */
static watch *pg_watch_take_unneeded(sg_pg_listener *listener, int64_t now, int64_t *next_ns)
{
    for (watch **link = &listener->watches; *link != NULL; link = &(*link)->next) {
        watch *w = *link;
        if (w->wanted || w->armings > 0)
            continue;
        if (!w->armed || w->leave_ns <= now) {
            *link = w->next;
            return w;
        }
        if (w->leave_ns < *next_ns)
            *next_ns = w->leave_ns;
    }
    return NULL;
}

static watch *pg_watch_next_unarmed(sg_pg_listener *listener)
{
    watch *w = listener->watches;
    while (w != NULL && (w->armed || w->armings == 0))
        w = w->next;
    return w;
}

/* Arms and disarms watches, each in a round trip, and reports the notifications that arrive in
 * between. Returns when the thread must check the watches again. */
static int64_t pg_watches_update(sg_pg_listener *listener)
{
    while (!syncguard_abort_triggered(listener->stop)) {
        pg_notifications_report(listener);
        pthread_mutex_lock(&listener->mutex);
        watch *unarmed = pg_watch_next_unarmed(listener);
        int64_t next_ns = SYNCGUARD_NO_DEADLINE;
        watch *unneeded = NULL;
        if (unarmed == NULL)
            unneeded = pg_watch_take_unneeded(listener, syncguard_clock_ns(), &next_ns);
        listener->next_check_ns = unarmed != NULL || unneeded != NULL ? 0 : next_ns;
        pthread_mutex_unlock(&listener->mutex);
        if (unarmed == NULL && unneeded == NULL)
            return next_ns;
        if (unarmed != NULL)
            pg_watch_arm(listener, unarmed);
        else if (unneeded->armed)
            pg_watch_disarm(listener, unneeded);
        syncguard_free(unneeded);
    }
    return 0;
}

/* Sleeps until input arrives, a caller wakes the thread, or limits end the wait. */
static void pg_listener_wait_input(sg_pg_listener *listener, const syncguard_limits *limits)
{
    PGconn *pg = listener->connection != NULL ? listener->connection->pg : NULL;
    struct pollfd fds[2] = {{listener->parker.fds[0], POLLIN, 0}, {-1, POLLIN, 0}};
    if (pg != NULL)
        fds[1].fd = PQsocket(pg);
    if (syncguard_wait_fds(fds, pg != NULL ? 2 : 1, limits, NULL) != SYNCGUARD_OK)
        return;
    const syncguard_limits at_once = {0, NULL};
    if (fds[0].revents != 0)
        (void)syncguard_parker_park(&listener->parker, &at_once, NULL);
    if (pg != NULL && fds[1].revents != 0 &&
        (!sg_pg_connection_is_open(listener->connection) || PQconsumeInput(pg) == 0 ||
         PQstatus(pg) == CONNECTION_BAD))
        pg_listener_disconnect(listener, false);
}

static void *pg_listener_run(void *argument)
{
    sg_pg_listener *listener = argument;
    for (;;) {
        syncguard_limits limits = {pg_watches_update(listener), listener->stop};
        if (listener->connection != NULL && !sg_pg_pool_is_trusted(listener->connection))
            pg_listener_disconnect(listener, false);
        if (syncguard_abort_triggered(listener->stop))
            break;
        pg_listener_wait_input(listener, &limits);
    }
    if (listener->connection != NULL)
        sg_pg_pool_discard(listener->connection);
    listener->connection = NULL;
    return NULL;
}

/* ---- for the operations ---- */

static watch *pg_watch_find(sg_pg_listener *listener, const char *key, size_t length)
{
    watch *w = listener->watches;
    while (w != NULL && (w->length != length || memcmp(w->key, key, length) != 0))
        w = w->next;
    return w;
}

/* Under the mutex. */
static bool pg_listener_start(sg_pg_listener *listener)
{
    if (!listener->started)
        listener->started =
            syncguard_thread_start(&listener->thread, pg_listener_run, listener) == 0;
    return listener->started;
}

/* Under the mutex: returns the watch of key, created if necessary. NULL if out of memory. */
static watch *pg_watch_want(sg_pg_listener *listener, const char *key, size_t length)
{
    watch *w = pg_watch_find(listener, key, length);
    if (w == NULL) {
        w = syncguard_calloc(1, sizeof *w + length + 1);
        if (w == NULL)
            return NULL;
        w->length = length;
        memcpy(w->key, key, length);
        w->next = listener->watches;
        listener->watches = w;
    }
    if (!w->wanted)
        w->since_ns = syncguard_clock_ns();
    w->wanted = true;
    return w;
}

/*
 * Releases by the TypeScript library are not reported, so waiters find them by polling: late by a
 * quarter of the time waited so far, but within SHORTEST_ARMED_MS and LONGEST_ARMED_MS.
 */
static int64_t pg_watch_reliable_ms(const watch *w)
{
    int64_t quarter_ms = (syncguard_clock_ns() - w->since_ns) / 4 / SYNCGUARD_NS_PER_MS;
    if (quarter_ms < SHORTEST_ARMED_MS)
        return SHORTEST_ARMED_MS;
    return quarter_ms < LONGEST_ARMED_MS ? quarter_ms : LONGEST_ARMED_MS;
}

/* Waits until the thread has answered or the time for arming is over. */
static void pg_arming_await(sg_pg_listener *listener, arming *own, const syncguard_limits *limits)
{
    int64_t share_ns = syncguard_limits_left_ns(limits) / 4;
    syncguard_limits soon = syncguard_limits_until(
        limits,
        syncguard_clock_ns() + (share_ns < LONGEST_ARMING_NS ? share_ns : LONGEST_ARMING_NS));
    (void)syncguard_parker_park(&own->parker, &soon, NULL);
    pthread_mutex_lock(&listener->mutex);
    if (!own->done) {
        arming **link = &listener->armings;
        while (*link != own)
            link = &(*link)->next;
        *link = own->next;
        own->about->armings--;
    }
    pthread_mutex_unlock(&listener->mutex);
    syncguard_parker_close(&own->parker);
}

int64_t sg_pg_listener_arm(sg_pg_listener *listener, const char *key, size_t length,
                           const syncguard_limits *limits)
{
    pthread_mutex_lock(&listener->mutex);
    watch *w = pg_watch_want(listener, key, length);
    arming own = {.parker = SYNCGUARD_PARKER_INIT};
    bool ask = false;
    /* A watch does not count as armed if its session is no longer trusted: the thread is woken to
     * replace the session. */
    if (w != NULL && w->armed && listener->generation == atomic_load(&listener->pool->generation))
        own.armed = true;
    else if (w != NULL && syncguard_clock_ns() >= listener->not_before_ns &&
             pg_listener_start(listener))
        ask = syncguard_parker_open(&own.parker, NULL) == SYNCGUARD_OK;
    if (ask) {
        own.about = w;
        own.next = listener->armings;
        listener->armings = &own;
        w->armings++;
        syncguard_parker_unpark(&listener->parker);
    }
    int64_t armed_ms = w != NULL ? pg_watch_reliable_ms(w) : 0;
    pthread_mutex_unlock(&listener->mutex);
    if (ask)
        pg_arming_await(listener, &own, limits);
    return own.armed ? armed_ms : 0;
}

void sg_pg_listener_disarm(sg_pg_listener *listener, const char *key, size_t length)
{
    pthread_mutex_lock(&listener->mutex);
    watch *w = pg_watch_find(listener, key, length);
    if (w != NULL) {
        w->wanted = false;
        w->leave_ns = syncguard_clock_ns() + LINGER_NS;
        if (listener->next_check_ns > w->leave_ns)
            syncguard_parker_unpark(&listener->parker);
    }
    pthread_mutex_unlock(&listener->mutex);
}

/* ---- life ---- */

static void pg_watches_free(sg_pg_listener *listener)
{
    while (listener->watches != NULL) {
        watch *w = listener->watches;
        listener->watches = w->next;
        syncguard_free(w);
    }
}

static syncguard_status pg_listener_open_parts(sg_pg_listener *listener, syncguard_error *err)
{
    syncguard_status status = syncguard_parker_open(&listener->parker, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_abort_create(&listener->stop, err);
    if (status == SYNCGUARD_OK && pthread_mutex_init(&listener->mutex, NULL) != 0)
        status = syncguard_fail_memory(err);
    return status;
}

static void pg_listener_close_parts(sg_pg_listener *listener)
{
    pg_watches_free(listener);
    syncguard_parker_close(&listener->parker);
    syncguard_abort_free(listener->stop);
    listener->stop = NULL;
}

syncguard_status sg_pg_listener_create(syncguard_backend *backend, sg_pg_pool *pool,
                                       sg_pg_listener **out, syncguard_error *err)
{
    sg_pg_listener *listener = syncguard_calloc(1, sizeof *listener);
    *out = NULL;
    if (listener == NULL)
        return syncguard_fail_memory(err);
    listener->backend = backend;
    listener->pool = pool;
    listener->parker = (syncguard_parker)SYNCGUARD_PARKER_INIT;
    syncguard_status status = pg_listener_open_parts(listener, err);
    if (status != SYNCGUARD_OK) {
        pg_listener_close_parts(listener);
        syncguard_free(listener);
        return status;
    }
    *out = listener;
    return SYNCGUARD_OK;
}

void sg_pg_listener_destroy(sg_pg_listener *listener)
{
    if (listener == NULL)
        return;
    syncguard_abort_trigger(listener->stop);
    if (listener->started)
        pthread_join(listener->thread, NULL);
    pg_listener_close_parts(listener);
    pthread_mutex_destroy(&listener->mutex);
    syncguard_free(listener);
}

syncguard_status sg_pg_listener_forget(sg_pg_listener *listener, syncguard_error *err)
{
    listener->connection = NULL;
    listener->started = false;
    listener->armings = NULL;
    listener->not_before_ns = 0;
    listener->failures = 0;
    listener->next_check_ns = 0;
    pg_listener_close_parts(listener);
    return pg_listener_open_parts(listener, err);
}
