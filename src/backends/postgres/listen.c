/*
 * Waiters woken by LISTEN: one connection and one thread per handle, started by
 * the first waiter.
 *
 * Watching a key means holding its wait lock, shared, in the listening session:
 * a releaser that cannot get it exclusively knows that somebody waits and sends
 * a notification with the hash of the name. The lock is held before the waiter
 * asks the server, so that a release after the answer cannot go unnoticed.
 *
 * The lock is kept for a moment after the last waiter has gone, because on a
 * busy key the next one comes at once. When the connection is lost everybody
 * tries again and so arms again; between failed attempts to connect there is a
 * pause in which waiters just poll.
 *
 * Locking: the mutex guards watches and requests. The thread alone uses the
 * connection. Nothing is called back with the mutex held.
 */
#include <stdlib.h>
#include <string.h>

#include "pg.h"

#define LINGER_NS (50 * SYNCGUARD_NS_PER_MS)
#define QUERY_MS 5000
#define FIRST_PAUSE_NS (100 * SYNCGUARD_NS_PER_MS)
#define LONGEST_PAUSE_NS (5000 * SYNCGUARD_NS_PER_MS)
/* Arming may take this much of a caller's time, and at most a quarter of it: the rest is for the
 * attempt itself, which polls then. */
#define LONGEST_ARMING_NS (500 * SYNCGUARD_NS_PER_MS)
/* Notifications that are told in one go. */
#define MAX_NEWS 16

/* A releaser holds the wait lock for an instant only: whoever makes us wait longer is foreign. */
static const char listen_sql[] = "SELECT pg_catalog.set_config('lock_timeout', '1000', false)";
static const char arm_sql[] =
    "SELECT pg_catalog.hashtext($1), "
    "pg_catalog.pg_advisory_lock_shared(" SG_PG_WAIT_SPACE ", pg_catalog.hashtext($1))";
static const char disarm_sql[] =
    "SELECT pg_catalog.pg_advisory_unlock_shared(" SG_PG_WAIT_SPACE ", pg_catalog.hashtext($1))";

typedef struct watch {
    struct watch *next;
    bool wanted;
    bool armed;
    int requests; /* callers that wait for it to be armed */
    int64_t leave_ns;
    int64_t hash;
    size_t length;
    char key[];
} watch;

/* A caller that waits for its watch to be armed; on its stack. */
typedef struct request {
    struct request *next;
    watch *about;
    bool done;
    bool armed;
    syncguard_parker parker;
} request;

struct sg_pg_listener {
    sg_pg *pg;
    pthread_mutex_t mutex;
    watch *watches;
    request *requests;
    bool started;
    bool stopping;
    int64_t pause_ns;
    int64_t not_before_ns;
    int64_t looks_ns; /* when the thread looks at the watches at the latest */
    syncguard_parker parker;
    syncguard_abort *abort_object;
    pthread_t thread;
    sg_pg_connection *connection; /* the thread's */
};

static watch *find(sg_pg_listener *listener, const char *key, size_t length)
{
    watch *w = listener->watches;

    while (w && (w->length != length || memcmp(w->key, key, length) != 0))
        w = w->next;
    return w;
}

static syncguard_limits query_limits(const sg_pg_listener *listener)
{
    return (syncguard_limits){syncguard_clock_after(syncguard_clock_ns(), QUERY_MS),
                              listener->abort_object};
}

/* Answers everybody who waits for w (NULL: for anything). Under the mutex. */
static void answer(sg_pg_listener *listener, const watch *w, bool armed)
{
    request **link = &listener->requests;

    while (*link) {
        request *r = *link;

        if (w && r->about != w) {
            link = &r->next;
            continue;
        }
        *link = r->next;
        r->about->requests--;
        r->armed = armed;
        r->done = true;
        syncguard_parker_unpark(&r->parker);
    }
}

/* ---- the thread -------------------------------------------------------------------------- */

/* The connection is gone or never came: nobody is watched for. */
static void hang_up(sg_pg_listener *listener, bool failed)
{
    int64_t now = syncguard_clock_ns();
    bool had = listener->connection != NULL;
    watch *w;

    if (had)
        sg_pg_discard(listener->connection);
    listener->connection = NULL;
    pthread_mutex_lock(&listener->mutex);
    for (w = listener->watches; w; w = w->next)
        w->armed = false;
    answer(listener, NULL, false);
    if (failed) {
        listener->pause_ns = listener->pause_ns ? listener->pause_ns * 2 : FIRST_PAUSE_NS;
        if (listener->pause_ns > LONGEST_PAUSE_NS)
            listener->pause_ns = LONGEST_PAUSE_NS;
        listener->not_before_ns = now + listener->pause_ns;
    }
    pthread_mutex_unlock(&listener->mutex);
    if (had)
        syncguard_backend_stirred_all(&listener->pg->base);
}

static bool connect_up(sg_pg_listener *listener)
{
    syncguard_limits limits = query_limits(listener);
    syncguard_status status;

    status = sg_pg_connect_wait(listener->pg->pool, &limits, &listener->connection, NULL);
    /* What is set in the session of a pooler stays there for others. */
    if (status == SYNCGUARD_OK && !listener->connection->direct)
        status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    if (status == SYNCGUARD_OK)
        status = sg_pg_query(listener->connection, listen_sql, 0, NULL, &limits, NULL, NULL);
    if (status == SYNCGUARD_OK)
        status = sg_pg_query(listener->connection, "LISTEN " SG_PG_CHANNEL, 0, NULL, &limits, NULL,
                             NULL);
    if (status != SYNCGUARD_OK) {
        hang_up(listener, true);
        return false;
    }
    pthread_mutex_lock(&listener->mutex);
    listener->pause_ns = 0;
    pthread_mutex_unlock(&listener->mutex);
    return true;
}

static void arm_one(sg_pg_listener *listener, watch *w)
{
    syncguard_limits limits = query_limits(listener);
    char name[SYNCGUARD_NAME_SIZE];
    const char *values[] = {name};
    PGresult *result = NULL;
    int64_t hash = 0;
    syncguard_status status = sg_pg_name(w->key, name, NULL);

    if (!listener->connection && !connect_up(listener))
        return;
    if (status == SYNCGUARD_OK)
        status = sg_pg_query(listener->connection, arm_sql, 1, values, &limits, &result, NULL);
    if (status == SYNCGUARD_OK && !sg_pg_int64(result, 0, 0, &hash))
        status = SYNCGUARD_E_INTERNAL;
    PQclear(result);
    if (status != SYNCGUARD_OK) {
        /* Whether the lock is held is not known: a new session holds none. */
        hang_up(listener, true);
        return;
    }
    pthread_mutex_lock(&listener->mutex);
    w->hash = hash;
    w->armed = true;
    answer(listener, w, true);
    pthread_mutex_unlock(&listener->mutex);
}

static void disarm_one(sg_pg_listener *listener, const watch *w)
{
    syncguard_limits limits = query_limits(listener);
    char name[SYNCGUARD_NAME_SIZE];
    const char *values[] = {name};

    if (!listener->connection || sg_pg_name(w->key, name, NULL) != SYNCGUARD_OK)
        return;
    if (sg_pg_query(listener->connection, disarm_sql, 1, values, &limits, NULL, NULL) !=
        SYNCGUARD_OK)
        hang_up(listener, true);
}

/* Under the mutex: takes a watch that nobody needs out of the list. */
static watch *take_unneeded(sg_pg_listener *listener, int64_t now, int64_t *next_ns)
{
    watch **link;

    for (link = &listener->watches; *link; link = &(*link)->next) {
        watch *w = *link;

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

static watch *next_unarmed(sg_pg_listener *listener)
{
    watch *w = listener->watches;

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
        watch *arm;
        watch *drop = NULL;

        pthread_mutex_lock(&listener->mutex);
        arm = listener->stopping ? NULL : next_unarmed(listener);
        if (!arm)
            drop = take_unneeded(listener, syncguard_clock_ns(), &next_ns);
        listener->looks_ns = arm || drop ? 0 : next_ns;
        pthread_mutex_unlock(&listener->mutex);
        if (arm) {
            /* Stays in the list: it has a request. */
            arm_one(listener, arm);
        } else if (drop) {
            if (drop->armed)
                disarm_one(listener, drop);
            syncguard_free(drop);
        } else {
            return next_ns;
        }
    }
}

/* Wakes who waits for a name of this hash. */
static void tell(sg_pg_listener *listener, int64_t hash)
{
    struct {
        size_t length;
        char key[SYNCGUARD_KEY_SIZE];
    } news[MAX_NEWS];
    size_t count = 0;
    size_t i;
    watch *w;

    pthread_mutex_lock(&listener->mutex);
    for (w = listener->watches; w && count < MAX_NEWS; w = w->next) {
        if (!w->armed || !w->wanted || w->hash != hash)
            continue;
        news[count].length = w->length;
        memcpy(news[count].key, w->key, w->length + 1);
        count++;
    }
    pthread_mutex_unlock(&listener->mutex);
    for (i = 0; i < count; i++)
        syncguard_backend_stirred(&listener->pg->base, news[i].key, news[i].length);
}

/* True if there was any that concerns others than this handle. */
static bool read_news(sg_pg_listener *listener)
{
    bool told = false;
    PGnotify *news;

    while (listener->connection && (news = PQnotifies(listener->connection->pg)) != NULL) {
        /* The core has already told the waiters of this process about its own releases. */
        if (strcmp(news->relname, SG_PG_CHANNEL) == 0 &&
            !sg_pg_is_own(listener->pg->pool, news->be_pid)) {
            tell(listener, strtoll(news->extra, NULL, 10));
            told = true;
        }
        PQfreemem(news);
    }
    return told;
}

static void *run(void *argument)
{
    sg_pg_listener *listener = argument;
    bool had_news = false;

    for (;;) {
        struct pollfd fds[2] = {{listener->parker.fds[0], POLLIN, 0}, {-1, POLLIN, 0}};
        syncguard_limits limits = {serve(listener, had_news), listener->abort_object};
        syncguard_limits none = {0, NULL};

        had_news = false;
        (void)read_news(listener);
        if (syncguard_abort_triggered(listener->abort_object))
            break;
        if (listener->connection)
            fds[1].fd = PQsocket(listener->connection->pg);
        if (syncguard_wait_fds(fds, listener->connection ? 2 : 1, &limits, NULL) != SYNCGUARD_OK)
            continue;
        if (fds[0].revents)
            (void)syncguard_parker_park(&listener->parker, &none, NULL);
        if (fds[1].revents && (!PQconsumeInput(listener->connection->pg) ||
                               PQstatus(listener->connection->pg) == CONNECTION_BAD)) {
            hang_up(listener, false);
            continue;
        }
        had_news = read_news(listener);
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
static watch *want(sg_pg_listener *listener, const char *key, size_t length)
{
    watch *w = find(listener, key, length);

    if (!w) {
        w = syncguard_calloc(1, sizeof *w + length + 1);
        if (!w)
            return NULL;
        w->length = length;
        memcpy(w->key, key, length);
        w->next = listener->watches;
        listener->watches = w;
    }
    w->wanted = true;
    return w;
}

bool sg_pg_listener_arm(sg_pg_listener *listener, const char *key, size_t length,
                        const syncguard_limits *limits)
{
    int64_t share_ns = syncguard_limits_left_ns(limits) / 4;
    syncguard_limits soon = syncguard_limits_until(
        limits,
        syncguard_clock_ns() + (share_ns < LONGEST_ARMING_NS ? share_ns : LONGEST_ARMING_NS));
    request r = {.parker = SYNCGUARD_PARKER_INIT};
    bool ask = false;
    watch *w;

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
    pthread_mutex_unlock(&listener->mutex);
    if (!ask)
        return r.armed;
    (void)syncguard_parker_park(&r.parker, &soon, NULL);
    pthread_mutex_lock(&listener->mutex);
    if (!r.done) {
        request **link = &listener->requests;

        while (*link != &r)
            link = &(*link)->next;
        *link = r.next;
        w->requests--;
    }
    pthread_mutex_unlock(&listener->mutex);
    syncguard_parker_close(&r.parker);
    return r.armed;
}

void sg_pg_listener_disarm(sg_pg_listener *listener, const char *key, size_t length)
{
    watch *w;

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
        watch *w = listener->watches;

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
