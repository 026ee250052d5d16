/*
 * The listening connection and who uses it, one at a time.
 *
 * A waiter that sleeps reads the notifications itself (listen), and what it then
 * tries goes over the same connection (lend): its server process is awake, and no
 * other thread is in between. The thread has it to arm and to disarm, and to read
 * while there are waiters of which none does. Either asks the other to let go, by
 * unparking it; only a request on its way to the server cannot be asked, and keeps
 * the connection for good if that takes long.
 *
 * Locking: see listener.h.
 */
#include <stdlib.h>
#include <string.h>

#include "listener.h"

/* The connection is lent only if it was alive so shortly ago: it may have been idle for hours. */
#define ALIVE_NS (1000 * SYNCGUARD_NS_PER_MS)
/* Longest that the thread waits for a request that has the connection, perhaps for a key that is
 * stuck: then that may keep it, and there is a new one. */
#define LENT_NS (20 * SYNCGUARD_NS_PER_MS)
/* Notifications that are told in one go. */
#define MAX_NEWS 16
#define FIRST_PAUSE_NS (100 * SYNCGUARD_NS_PER_MS)
#define LONGEST_PAUSE_NS (5000 * SYNCGUARD_NS_PER_MS)

/* Answers everybody who waits for w (NULL: for anything). Under the mutex. */
void sg_pg_listener_answer(sg_pg_listener *listener, const sg_pg_watch *w, bool armed)
{
    sg_pg_arming **link = &listener->requests;

    while (*link) {
        sg_pg_arming *r = *link;

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
void sg_pg_line_let_go(sg_pg_listener *listener)
{
    listener->user = SG_PG_NOBODY;
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
    sg_pg_watch *w;

    listener->connection = NULL;
    pthread_mutex_lock(&listener->mutex);
    for (w = listener->watches; w; w = w->next)
        w->armed = false;
    sg_pg_listener_answer(listener, NULL, false);
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
bool sg_pg_line_take(sg_pg_listener *listener)
{
    int64_t since_ns = syncguard_clock_ns();
    bool parked = false;
    bool mine = false;

    while (!mine && !syncguard_abort_triggered(listener->abort_object)) {
        bool given_up = false;

        pthread_mutex_lock(&listener->mutex);
        if (listener->user == SG_PG_WAITER)
            given_up = press(listener, since_ns);
        mine = listener->user != SG_PG_WAITER || given_up;
        listener->thread_waits = !mine;
        if (mine)
            listener->user = SG_PG_THREAD;
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

void sg_pg_line_hang_up(sg_pg_listener *listener, bool failed)
{
    sg_pg_connection *connection = listener->connection;

    forget_connection(listener, failed);
    if (connection)
        sg_pg_discard(connection);
}

bool sg_pg_line_is_ready(const sg_pg_connection *connection)
{
    return (connection->prepared & UINT32_C(1) << SG_PG_ACQUIRE) != 0;
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
    sg_pg_watch *w;

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
bool sg_pg_line_read(sg_pg_listener *listener)
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
bool sg_pg_line_receive(sg_pg_listener *listener)
{
    PGconn *pg = listener->connection->pg;

    if (PQconsumeInput(pg) && PQstatus(pg) != CONNECTION_BAD) {
        listener->alive_ns = syncguard_clock_ns();
        return true;
    }
    sg_pg_line_hang_up(listener, false);
    return false;
}

/* ---- for the waiters --------------------------------------------------------------------- */

/* True if the connection is the caller's now. If the thread has it, that is asked to let go and
 * unparks then; if there is none, *none is set. */
static bool begin_listening(sg_pg_listener *listener, syncguard_parker *parker, bool *none)
{
    bool mine;

    pthread_mutex_lock(&listener->mutex);
    mine = listener->user == SG_PG_NOBODY && !listener->thread_waits && listener->connection;
    /* What is lent may be gone for long: the thread is better at insisting. */
    *none = !listener->started || listener->lent ||
            (listener->user == SG_PG_NOBODY && !listener->connection);
    if (mine) {
        listener->user = SG_PG_WAITER;
        listener->ear = parker;
        listener->next_ear = NULL;
    } else if (!*none) {
        listener->next_ear = parker;
        if (listener->user == SG_PG_THREAD)
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
        sg_pg_line_let_go(listener);
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
    if (mine && !sg_pg_is_trusted(listener->connection)) {
        /* The server has changed: everybody tries, and arms where the new one is. */
        sg_pg_line_hang_up(listener, false);
        end_listening(listener, parker, mine);
        return SYNCGUARD_OK;
    }
    if (mine)
        fds[1].fd = PQsocket(listener->connection->pg);
    /* What came with the answers of the last request is in libpq's hands already. */
    if (!mine || !sg_pg_line_read(listener))
        status = syncguard_wait_fds(fds, mine ? 2 : 1, limits, err);
    if (status == SYNCGUARD_OK && fds[1].revents && sg_pg_line_receive(listener))
        (void)sg_pg_line_read(listener);
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
    bool idle;

    pthread_mutex_lock(&listener->mutex);
    idle = listener->user == SG_PG_NOBODY && !listener->thread_waits && !listener->thread_reads &&
           !listener->next_ear && listener->connection && !listener->connection->ended &&
           sg_pg_line_is_ready(listener->connection) && sg_pg_is_trusted(listener->connection) &&
           syncguard_clock_ns() - listener->alive_ns < ALIVE_NS;
    if (idle) {
        listener->user = SG_PG_WAITER;
        listener->lent = listener->connection;
        listener->lent->listener = listener;
        *out = listener->lent;
    }
    pthread_mutex_unlock(&listener->mutex);
    return idle;
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
        (void)sg_pg_line_read(listener);
    } else {
        forget_connection(listener, false);
    }
    pthread_mutex_lock(&listener->mutex);
    sg_pg_line_let_go(listener);
    pthread_mutex_unlock(&listener->mutex);
    return true;
}
