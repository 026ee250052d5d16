/*
 * Waiters woken by LISTEN: one connection and one thread per handle, started by
 * the first waiter.
 *
 * The connection has one user at a time. A waiter that sleeps reads the
 * notifications itself (listen), and what it then tries goes over the same
 * connection (lend): its server process is awake, and no other thread is in between.
 * The thread has it to arm and to disarm, and to read while there are waiters of which
 * none does. Either asks the other to let go, by unparking it.
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
 * Locking: the mutex guards watches, requests and who uses the connection. Only
 * its user touches the connection. Nothing is called back with the mutex held.
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
/* The connection is lent only if it was alive so shortly ago: it may have been idle for hours. */
#define ALIVE_NS (1000 * SYNCGUARD_NS_PER_MS)
/* Longest that the thread waits for a request that has the connection, perhaps for a key that is
 * stuck: then that may keep it, and there is a new one. */
#define LENT_NS (20 * SYNCGUARD_NS_PER_MS)
/* Notifications that are told in one go. */
#define MAX_NEWS 16

/* A releaser holds the wait lock for an instant only: whoever makes us wait longer is foreign. */
static const char arm_sql[] =
    "SELECT pg_catalog.hashtext($1), "
    "CASE WHEN pg_catalog.set_config('lock_timeout', '1000', true) IS NOT NULL THEN "
    "pg_catalog.pg_advisory_lock_shared(" SG_PG_WAIT_SPACE ", pg_catalog.hashtext($1)) END";
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

typedef enum user { NOBODY, THREAD, WAITER } user;

struct sg_pg_listener {
    sg_pg *pg;
    pthread_mutex_t mutex;
    user user;                  /* of the connection */
    bool thread_reads;          /* nobody else listens, and somebody should */
    bool thread_waits;          /* for the connection */
    syncguard_parker *ear;      /* of the waiter that listens */
    syncguard_parker *next_ear; /* of one that waits for its turn */
    sg_pg_connection *lent;     /* the connection, while a request has it */
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
    sg_pg_connection *connection; /* its user's */
    int64_t alive_ns;             /* when something came over it; its user's */
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

/* ---- the connection and its user --------------------------------------------------------- */

/* Under the mutex. */
static void let_go(sg_pg_listener *listener)
{
    listener->user = NOBODY;
    listener->ear = NULL;
    listener->lent = NULL;
    if (listener->thread_waits)
        syncguard_parker_unpark(&listener->parker);
    if (listener->next_ear)
        syncguard_parker_unpark(listener->next_ear);
}

/* The connection is gone, without its user's doing anything more about it, or never came: nobody
 * is watched for. */
static void forget_connection(sg_pg_listener *listener, bool failed)
{
    int64_t now = syncguard_clock_ns();
    bool had = listener->connection != NULL;
    watch *w;

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

/* Under the mutex: asks the waiter that has the connection for it. One that has had it too long for
 * a request keeps it: true, it is not ours any more. */
static bool press(sg_pg_listener *listener, int64_t since_ns)
{
    if (listener->ear)
        syncguard_parker_unpark(listener->ear);
    if (!listener->lent || syncguard_clock_ns() - since_ns < LENT_NS)
        return false;
    listener->lent = NULL;
    return true;
}

/* For the thread, from a waiter if need be. False: the end has come. */
static bool take_connection(sg_pg_listener *listener)
{
    int64_t since_ns = syncguard_clock_ns();
    bool parked = false;
    bool mine = false;

    while (!mine && !syncguard_abort_triggered(listener->abort_object)) {
        bool given_up = false;

        pthread_mutex_lock(&listener->mutex);
        if (listener->user == WAITER)
            given_up = press(listener, since_ns);
        mine = listener->user != WAITER || given_up;
        listener->thread_waits = !mine;
        if (mine)
            listener->user = THREAD;
        pthread_mutex_unlock(&listener->mutex);
        if (given_up)
            forget_connection(listener, false);
        if (!mine) {
            syncguard_limits limits = {syncguard_clock_ns() + LENT_NS, listener->abort_object};

            parked = true;
            (void)syncguard_parker_park(&listener->parker, &limits, NULL);
        }
    }
    if (parked) /* that may have been meant for another reason to look */
        syncguard_parker_unpark(&listener->parker);
    return mine;
}

static void hang_up(sg_pg_listener *listener, bool failed)
{
    sg_pg_connection *connection = listener->connection;

    forget_connection(listener, failed);
    if (connection)
        sg_pg_discard(connection);
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
        hang_up(listener, true);
        return false;
    }
    pthread_mutex_lock(&listener->mutex);
    listener->pause_ns = 0;
    pthread_mutex_unlock(&listener->mutex);
    return true;
}

/* What is lent must not begin with the parsing of statements. */
static bool prepare(sg_pg_listener *listener)
{
    static const sg_pg_statement wanted[] = {
        SG_PG_BEGIN,  SG_PG_LOCK_KEY_SESSION,     SG_PG_ACQUIRE_LOOK, SG_PG_ACQUIRE,
        SG_PG_COMMIT, SG_PG_LOCK_RELEASE_SESSION, SG_PG_RELEASE,
    };
    syncguard_limits limits = query_limits(listener);

    return sg_pg_prepare(listener->pg, listener->connection, wanted,
                         (int)(sizeof wanted / sizeof wanted[0]), &limits, NULL) == SYNCGUARD_OK;
}

static bool is_prepared(const sg_pg_connection *connection)
{
    return (connection->prepared & UINT32_C(1) << SG_PG_ACQUIRE) != 0;
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
    if (listener->connection->bounded && !is_prepared(listener->connection) && !prepare(listener))
        hang_up(listener, true);
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
        /* Every notification of the database comes here: somebody has to take them. */
        if (!listener->watches)
            listener->thread_reads = true;
        pthread_mutex_unlock(&listener->mutex);
        if (arm) {
            /* Stays in the list: it has a request. */
            if (!take_connection(listener))
                return 0;
            arm_one(listener, arm);
        } else if (drop) {
            if (drop->armed && take_connection(listener))
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

/* False: the connection is lost, and nobody is watched for any more. */
static bool receive(sg_pg_listener *listener)
{
    PGconn *pg = listener->connection->pg;

    if (PQconsumeInput(pg) && PQstatus(pg) != CONNECTION_BAD) {
        listener->alive_ns = syncguard_clock_ns();
        return true;
    }
    hang_up(listener, false);
    return false;
}

/* Has the connection if it should, and only then. */
static bool has_connection(sg_pg_listener *listener)
{
    bool reads;

    pthread_mutex_lock(&listener->mutex);
    reads = listener->thread_reads;
    if (!reads && listener->user == THREAD)
        let_go(listener);
    pthread_mutex_unlock(&listener->mutex);
    return reads && take_connection(listener);
}

/* The server has changed, and nobody would miss the connection: the next one leads to the new. */
static bool is_out_of_date(sg_pg_listener *listener)
{
    bool idle;

    pthread_mutex_lock(&listener->mutex);
    idle = !listener->watches;
    pthread_mutex_unlock(&listener->mutex);
    return idle && listener->connection && !sg_pg_is_trusted(listener->connection);
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
            (void)read_news(listener);
        if (reads && is_out_of_date(listener))
            hang_up(listener, false);
        if (syncguard_abort_triggered(listener->abort_object))
            break;
        if (reads && listener->connection)
            fds[count++].fd = PQsocket(listener->connection->pg);
        if (syncguard_wait_fds(fds, count, &limits, NULL) != SYNCGUARD_OK)
            continue;
        if (fds[0].revents)
            (void)syncguard_parker_park(&listener->parker, &none, NULL);
        if (fds[1].revents && receive(listener))
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

/* ---- for the waiters --------------------------------------------------------------------- */

/* True if the connection is the caller's now. If the thread has it, that is asked to let go and
 * unparks then; if there is none, *none is set. */
static bool begin_listening(sg_pg_listener *listener, syncguard_parker *parker, bool *none)
{
    bool mine;

    pthread_mutex_lock(&listener->mutex);
    mine = listener->user == NOBODY && !listener->thread_waits && listener->connection;
    *none = !listener->started || (listener->user == NOBODY && !listener->connection);
    if (mine) {
        listener->user = WAITER;
        listener->ear = parker;
        listener->next_ear = NULL;
    } else if (!*none) {
        listener->next_ear = parker;
        if (listener->thread_reads)
            syncguard_parker_unpark(&listener->parker);
    }
    if (!*none)
        listener->thread_reads = false;
    pthread_mutex_unlock(&listener->mutex);
    return mine;
}

static void end_listening(sg_pg_listener *listener, const syncguard_parker *parker, bool mine)
{
    pthread_mutex_lock(&listener->mutex);
    if (listener->next_ear == parker)
        listener->next_ear = NULL;
    if (mine)
        let_go(listener);
    pthread_mutex_unlock(&listener->mutex);
}

syncguard_status sg_pg_listener_listen(sg_pg_listener *listener, syncguard_parker *parker,
                                       const syncguard_limits *limits, syncguard_error *err)
{
    struct pollfd fds[2] = {{parker->fds[0], POLLIN, 0}, {-1, POLLIN, 0}};
    syncguard_limits now = {0, NULL};
    syncguard_status status = SYNCGUARD_OK;
    bool none;
    bool mine = begin_listening(listener, parker, &none);

    if (none)
        return SYNCGUARD_ABSENT;
    if (mine)
        fds[1].fd = PQsocket(listener->connection->pg);
    /* What came with the answers of the last request is in libpq's hands already. */
    if (!mine || !read_news(listener))
        status = syncguard_wait_fds(fds, mine ? 2 : 1, limits, err);
    if (status == SYNCGUARD_OK && fds[1].revents && receive(listener))
        (void)read_news(listener);
    if (status == SYNCGUARD_OK && fds[0].revents)
        (void)syncguard_parker_park(parker, &now, NULL);
    end_listening(listener, parker, mine);
    return status;
}

void sg_pg_listener_take_over(sg_pg_listener *listener)
{
    pthread_mutex_lock(&listener->mutex);
    if (!listener->thread_reads)
        syncguard_parker_unpark(&listener->parker);
    listener->thread_reads = true;
    pthread_mutex_unlock(&listener->mutex);
}

bool sg_pg_listener_lend(sg_pg_listener *listener, sg_pg_connection **out)
{
    bool free;

    pthread_mutex_lock(&listener->mutex);
    free = listener->user == NOBODY && !listener->thread_waits && !listener->thread_reads &&
           !listener->next_ear && listener->connection && is_prepared(listener->connection) &&
           sg_pg_is_trusted(listener->connection) &&
           syncguard_clock_ns() - listener->alive_ns < ALIVE_NS;
    if (free) {
        listener->user = WAITER;
        listener->lent = listener->connection;
        listener->lent->listener = listener;
        *out = listener->lent;
    }
    pthread_mutex_unlock(&listener->mutex);
    return free;
}

bool sg_pg_listener_take_back(sg_pg_connection *connection, bool usable)
{
    sg_pg_listener *listener = connection->listener;
    bool ours;

    connection->listener = NULL;
    pthread_mutex_lock(&listener->mutex);
    ours = listener->lent == connection;
    if (ours)
        listener->lent = NULL; /* from here on the thread waits for it */
    pthread_mutex_unlock(&listener->mutex);
    if (!ours)
        return false;
    if (usable) {
        listener->alive_ns = syncguard_clock_ns();
        (void)read_news(listener);
    } else {
        forget_connection(listener, false);
    }
    pthread_mutex_lock(&listener->mutex);
    let_go(listener);
    pthread_mutex_unlock(&listener->mutex);
    return true;
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
    listener->user = NOBODY;
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
