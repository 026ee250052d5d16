/*
 * Waiters woken by LISTEN: one connection and one thread per handle, started by
 * the first waiter.
 *
 * Watching a key means holding its wait lock, shared, in the listening session:
 * a releaser that cannot get it exclusively knows that somebody may wait and sends
 * a notification with the hash of the name. The lock is held before the waiter
 * asks the server, so that a release after the answer cannot go unnoticed. Many
 * names have one wait lock; the server counts how often the session has taken it.
 *
 * The lock is kept for a moment after the last waiter has gone, because on a
 * busy key the next one comes at once. When the connection is lost everybody
 * tries again and so arms again; between failed attempts to connect there is a
 * pause in which waiters just poll.
 *
 * Who uses the connection is line.c's business, locking see listener.h.
 */
#include <string.h>

#include "listener.h"

#define LINGER_NS (50 * SYNCGUARD_NS_PER_MS)
#define QUERY_MS 5000
/* How long nothing is prepared after the server has refused it: others wait to be armed. */
#define PREPARE_PAUSE_NS (1000 * SYNCGUARD_NS_PER_MS)
/* Arming may take this much of a caller's time, and at most a quarter of it: the rest is for the
 * attempt itself, which polls then. */
#define LONGEST_ARMING_NS (500 * SYNCGUARD_NS_PER_MS)
/* How long a waiter may go without a try. */
#define SHORTEST_ARMED_MS 1000
#define LONGEST_ARMED_MS 5000

/* A releaser holds the wait lock for an instant only: whoever makes us wait longer is foreign. */
static const char arm_sql[] =
    "SELECT pg_catalog.hashtext($1), "
    "CASE WHEN pg_catalog.set_config('lock_timeout', '1000', true) IS NOT NULL THEN "
    "pg_catalog.pg_advisory_lock_shared(" SG_PG_WAIT_LOCK("$1") ") END";
static const char disarm_sql[] =
    "SELECT pg_catalog.pg_advisory_unlock_shared(" SG_PG_WAIT_LOCK("$1") ")";

static sg_pg_watch *find(sg_pg_listener *listener, const char *key, size_t length)
{
    sg_pg_watch *w = listener->watches;

    while (w && (w->length != length || memcmp(w->key, key, length) != 0))
        w = w->next;
    return w;
}

static syncguard_limits query_limits(const sg_pg_listener *listener)
{
    return (syncguard_limits){syncguard_clock_after(syncguard_clock_ns(), QUERY_MS),
                              listener->abort_object};
}

/* ---- the thread -------------------------------------------------------------------------- */

static bool connect_up(sg_pg_listener *listener)
{
    syncguard_limits limits = query_limits(listener);
    syncguard_status status;

    status = sg_pg_connect_wait(listener->pg->pool, &limits, &listener->connection, NULL);
    /* What is set in the session of a pooler stays there for others. */
    if (status == SYNCGUARD_OK && !listener->connection->direct)
        status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    if (status == SYNCGUARD_OK)
        status = sg_pg_query(listener->connection, "LISTEN " SG_PG_CHANNEL, 0, NULL, &limits, NULL,
                             NULL);
    if (status != SYNCGUARD_OK) {
        sg_pg_line_hang_up(listener, true);
        return false;
    }
    pthread_mutex_lock(&listener->mutex);
    listener->pause_ns = 0;
    pthread_mutex_unlock(&listener->mutex);
    return true;
}

/* What is lent must not begin with the parsing of statements. If the server refuses, nothing is
 * lent. */
static void prepare(sg_pg_listener *listener)
{
    static const sg_pg_statement wanted[] = {
        SG_PG_BEGIN_SETTLED, SG_PG_LOCK_KEY, SG_PG_ACQUIRE_LOOK, SG_PG_ACQUIRE_WAIT,
        SG_PG_ACQUIRE,       SG_PG_COMMIT,   SG_PG_RELEASE,      SG_PG_BOUND,
    };
    syncguard_limits limits = query_limits(listener);
    syncguard_status status = sg_pg_prepare(listener->pg, listener->connection, wanted,
                                            (int)(sizeof wanted / sizeof wanted[0]), &limits, NULL);
    PGconn *pg = listener->connection->pg;

    if (status == SYNCGUARD_OK)
        return;
    listener->prepare_ns = syncguard_clock_ns() + PREPARE_PAUSE_NS;
    /* Not answered, as opposed to refused. */
    if (PQtransactionStatus(pg) != PQTRANS_IDLE)
        sg_pg_line_hang_up(listener, PQstatus(pg) != CONNECTION_BAD);
}

static void arm_one(sg_pg_listener *listener, sg_pg_watch *w)
{
    syncguard_limits limits = query_limits(listener);
    char name[SYNCGUARD_NAME_SIZE];
    const char *values[] = {name};
    PGresult *result = NULL;
    int64_t hash = 0;
    bool late;
    syncguard_status status = sg_pg_name(w->key, name, NULL);

    if (listener->connection && !sg_pg_is_trusted(listener->connection))
        sg_pg_line_hang_up(listener, false);
    if (!listener->connection && !connect_up(listener))
        return;
    if (status == SYNCGUARD_OK)
        status = sg_pg_query(listener->connection, arm_sql, 1, values, &limits, &result, NULL);
    if (status == SYNCGUARD_OK && !sg_pg_int64(result, 0, 0, &hash))
        status = SYNCGUARD_E_INTERNAL;
    PQclear(result);
    if (status != SYNCGUARD_OK) {
        /* Whether the lock is held is not known: a new session holds none. */
        sg_pg_line_hang_up(listener, true);
        return;
    }
    pthread_mutex_lock(&listener->mutex);
    w->hash = hash;
    w->armed = true;
    late = w->wanted && w->requests == 0;
    sg_pg_listener_answer(listener, w, true);
    pthread_mutex_unlock(&listener->mutex);
    /* Who asked has tried without being armed: a release between the two would go unnoticed. */
    if (late)
        syncguard_backend_stirred(&listener->pg->base, w->key, w->length);
    if (listener->connection->settled && atomic_load(&listener->pg->form) >= 0 &&
        !sg_pg_line_is_ready(listener->connection) && syncguard_clock_ns() >= listener->prepare_ns)
        prepare(listener);
}

static void disarm_one(sg_pg_listener *listener, const sg_pg_watch *w)
{
    syncguard_limits limits = query_limits(listener);
    char name[SYNCGUARD_NAME_SIZE];
    const char *values[] = {name};

    if (!listener->connection || sg_pg_name(w->key, name, NULL) != SYNCGUARD_OK)
        return;
    if (sg_pg_query(listener->connection, disarm_sql, 1, values, &limits, NULL, NULL) !=
        SYNCGUARD_OK)
        sg_pg_line_hang_up(listener, true);
}

/* Under the mutex: takes a watch that nobody needs out of the list. */
static sg_pg_watch *take_unneeded(sg_pg_listener *listener, int64_t now, int64_t *next_ns)
{
    sg_pg_watch **link;

    for (link = &listener->watches; *link; link = &(*link)->next) {
        sg_pg_watch *w = *link;

        if (w->wanted || w->requests > 0)
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

static sg_pg_watch *next_unarmed(sg_pg_listener *listener)
{
    sg_pg_watch *w = listener->watches;

    while (w && (w->armed || w->requests == 0))
        w = w->next;
    return w;
}

/*
 * Does what the watches ask for. Returns when to look again: at the latest a moment after news, for
 * then a waiter is about to leave, and who has just got a lock need not wake us to say so.
 */
static int64_t serve(sg_pg_listener *listener, bool had_news)
{
    for (;;) {
        int64_t next_ns = had_news ? syncguard_clock_ns() + LINGER_NS : SYNCGUARD_NO_DEADLINE;
        sg_pg_watch *arm;
        sg_pg_watch *drop = NULL;

        pthread_mutex_lock(&listener->mutex);
        arm = listener->stopping ? NULL : next_unarmed(listener);
        if (!arm)
            drop = take_unneeded(listener, syncguard_clock_ns(), &next_ns);
        listener->looks_ns = arm || drop ? 0 : next_ns;
        /* Every notification of the database comes here: somebody has to take them. */
        if (!listener->watches)
            listener->thread_reads = true;
        pthread_mutex_unlock(&listener->mutex);
        if (arm) {
            /* Stays in the list: it has a request. */
            if (!sg_pg_line_take(listener))
                return 0;
            arm_one(listener, arm);
        } else if (drop) {
            if (drop->armed && sg_pg_line_take(listener))
                disarm_one(listener, drop);
            syncguard_free(drop);
        } else {
            return next_ns;
        }
    }
}

/* Has the connection if it should, and only then. */
static bool has_connection(sg_pg_listener *listener)
{
    bool reads;

    pthread_mutex_lock(&listener->mutex);
    reads = listener->thread_reads;
    if (!reads && listener->user == SG_PG_THREAD)
        sg_pg_line_let_go(listener);
    pthread_mutex_unlock(&listener->mutex);
    return reads && sg_pg_line_take(listener);
}

static void *run(void *argument)
{
    sg_pg_listener *listener = argument;
    bool had_news = false;

    for (;;) {
        struct pollfd fds[2] = {{listener->parker.fds[0], POLLIN, 0}, {-1, POLLIN, 0}};
        syncguard_limits limits = {serve(listener, had_news), listener->abort_object};
        syncguard_limits none = {0, NULL};
        bool reads = has_connection(listener);
        nfds_t count = 1;

        had_news = false;
        if (reads)
            (void)sg_pg_line_read(listener);
        if (reads && listener->connection && !sg_pg_is_trusted(listener->connection))
            sg_pg_line_hang_up(listener, false);
        if (syncguard_abort_triggered(listener->abort_object))
            break;
        if (reads && listener->connection)
            fds[count++].fd = PQsocket(listener->connection->pg);
        if (syncguard_wait_fds(fds, count, &limits, NULL) != SYNCGUARD_OK)
            continue;
        if (fds[0].revents)
            (void)syncguard_parker_park(&listener->parker, &none, NULL);
        if (fds[1].revents && sg_pg_line_receive(listener))
            had_news = sg_pg_line_read(listener);
    }
    if (listener->connection)
        sg_pg_discard(listener->connection);
    listener->connection = NULL;
    return NULL;
}

/* ---- for the operations ------------------------------------------------------------------ */

/* Under the mutex. */
static bool start(sg_pg_listener *listener)
{
    if (!listener->started)
        listener->started = syncguard_thread_start(&listener->thread, run, listener) == 0;
    return listener->started;
}

/* Under the mutex: the watch of key, made if need be. */
static sg_pg_watch *want(sg_pg_listener *listener, const char *key, size_t length)
{
    sg_pg_watch *w = find(listener, key, length);

    if (!w) {
        w = syncguard_calloc(1, sizeof *w + length + 1);
        if (!w)
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
 * The other library's releases are not reported, and found by polling alone: a quarter of the time
 * waited so far late, but within SHORTEST and LONGEST.
 */
static int64_t reliable_ms(const sg_pg_watch *w)
{
    int64_t quarter_ms = (syncguard_clock_ns() - w->since_ns) / 4 / SYNCGUARD_NS_PER_MS;

    if (quarter_ms < SHORTEST_ARMED_MS)
        return SHORTEST_ARMED_MS;
    return quarter_ms < LONGEST_ARMED_MS ? quarter_ms : LONGEST_ARMED_MS;
}

int64_t sg_pg_listener_arm(sg_pg_listener *listener, const char *key, size_t length,
                           const syncguard_limits *limits)
{
    int64_t share_ns = syncguard_limits_left_ns(limits) / 4;
    syncguard_limits soon = syncguard_limits_until(
        limits,
        syncguard_clock_ns() + (share_ns < LONGEST_ARMING_NS ? share_ns : LONGEST_ARMING_NS));
    sg_pg_arming r = {.parker = SYNCGUARD_PARKER_INIT};
    bool ask = false;
    int64_t armed_ms;
    sg_pg_watch *w;

    pthread_mutex_lock(&listener->mutex);
    w = want(listener, key, length);
    if (w && w->armed)
        r.armed = true;
    else if (w && syncguard_clock_ns() >= listener->not_before_ns && start(listener))
        ask = syncguard_parker_open(&r.parker, NULL) == SYNCGUARD_OK;
    if (ask) {
        r.about = w;
        r.next = listener->requests;
        listener->requests = &r;
        w->requests++;
        syncguard_parker_unpark(&listener->parker);
    }
    armed_ms = w ? reliable_ms(w) : 0;
    pthread_mutex_unlock(&listener->mutex);
    if (!ask)
        return r.armed ? armed_ms : 0;
    (void)syncguard_parker_park(&r.parker, &soon, NULL);
    pthread_mutex_lock(&listener->mutex);
    if (!r.done) {
        sg_pg_arming **link = &listener->requests;

        while (*link != &r)
            link = &(*link)->next;
        *link = r.next;
        w->requests--;
    }
    pthread_mutex_unlock(&listener->mutex);
    syncguard_parker_close(&r.parker);
    return r.armed ? armed_ms : 0;
}

void sg_pg_listener_disarm(sg_pg_listener *listener, const char *key, size_t length)
{
    sg_pg_watch *w;

    pthread_mutex_lock(&listener->mutex);
    w = find(listener, key, length);
    if (w) {
        w->wanted = false;
        w->leave_ns = syncguard_clock_ns() + LINGER_NS;
        if (listener->looks_ns > w->leave_ns)
            syncguard_parker_unpark(&listener->parker);
    }
    pthread_mutex_unlock(&listener->mutex);
}

/* ---- life -------------------------------------------------------------------------------- */

static void free_watches(sg_pg_listener *listener)
{
    while (listener->watches) {
        sg_pg_watch *w = listener->watches;

        listener->watches = w->next;
        syncguard_free(w);
    }
}

syncguard_status sg_pg_listener_create(sg_pg *pg, sg_pg_listener **out, syncguard_error *err)
{
    sg_pg_listener *listener = syncguard_calloc(1, sizeof *listener);
    syncguard_status status;

    *out = NULL;
    if (!listener)
        return syncguard_fail_memory(err);
    listener->pg = pg;
    listener->thread_reads = true;
    listener->parker = (syncguard_parker)SYNCGUARD_PARKER_INIT;
    status = syncguard_parker_open(&listener->parker, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_abort_create(&listener->abort_object, err);
    if (status == SYNCGUARD_OK && pthread_mutex_init(&listener->mutex, NULL) != 0)
        status = syncguard_fail_memory(err);
    if (status != SYNCGUARD_OK) {
        syncguard_parker_close(&listener->parker);
        syncguard_abort_free(listener->abort_object);
        syncguard_free(listener);
        return status;
    }
    *out = listener;
    return SYNCGUARD_OK;
}

void sg_pg_listener_destroy(sg_pg_listener *listener)
{
    if (!listener)
        return;
    pthread_mutex_lock(&listener->mutex);
    listener->stopping = true;
    pthread_mutex_unlock(&listener->mutex);
    syncguard_abort_trigger(listener->abort_object);
    if (listener->started)
        pthread_join(listener->thread, NULL);
    free_watches(listener);
    syncguard_parker_close(&listener->parker);
    syncguard_abort_free(listener->abort_object);
    pthread_mutex_destroy(&listener->mutex);
    syncguard_free(listener);
}

syncguard_status sg_pg_listener_forget(sg_pg_listener *listener, syncguard_error *err)
{
    syncguard_status status;

    /* The pool has cut the connection off. */
    listener->connection = NULL;
    listener->user = SG_PG_NOBODY;
    listener->thread_reads = true;
    listener->thread_waits = false;
    listener->ear = NULL;
    listener->next_ear = NULL;
    listener->lent = NULL;
    listener->started = false;
    listener->requests = NULL;
    listener->not_before_ns = 0;
    listener->pause_ns = 0;
    listener->looks_ns = 0;
    pthread_mutex_init(&listener->mutex, NULL);
    free_watches(listener);
    syncguard_parker_close(&listener->parker);
    syncguard_abort_free(listener->abort_object);
    listener->abort_object = NULL;
    status = syncguard_parker_open(&listener->parker, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_abort_create(&listener->abort_object, err);
    return status;
}
