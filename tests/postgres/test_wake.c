/*
 * Waiters woken by LISTEN: notifications are sent only if there are waiters, waiters are woken at
 * once and are no worse off than with polling when the listening session ends, and many locks are
 * renewed at once.
 */
#include "support.h"

#include <signal.h>

#include "syncguard/sys/backend.h"

#define DATABASE "wake"

static pg_server *server;
static PGconn *plain;

typedef struct waiter {
    syncguard_backend *backend;
    const char *key;
    syncguard_lock *lock;
    syncguard_status status;
    int64_t ended;
    atomic_int pauses, tries;
    atomic_bool done;
    pthread_t thread;
} waiter;

static void note_pause(void *context, int attempts, int64_t waited_ms, int64_t remaining_ms)
{
    waiter *self = context;
    (void)waited_ms;
    (void)remaining_ms;
    atomic_store(&self->tries, attempts);
    atomic_fetch_add(&self->pauses, 1);
}

/* Polls so rarely that it is quick only if it is woken. */
static void *pg_wake_waiter_run(void *context)
{
    waiter *self = context;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 60000;
    options.retry_delay_ms = 20000;
    options.on_wait = note_pause;
    options.on_wait_context = self;
    syncguard_error own;
    self->status = syncguard_lock_acquire(self->backend, self->key, &options, &self->lock, &own);
    self->ended = test_now_ms();
    atomic_store(&self->done, true);
    return NULL;
}

static void pg_wake_waiter_start(waiter *self, syncguard_backend *backend, const char *key)
{
    memset(self, 0, sizeof *self);
    self->backend = backend;
    self->key = key;
    self->thread = test_start_thread(pg_wake_waiter_run, self);
    while (atomic_load(&self->pauses) == 0)
        test_sleep_ms(1);
}

static int64_t finish_waiter(waiter *self, int64_t released)
{
    pthread_join(self->thread, NULL);
    assert_int_equal(self->status, SYNCGUARD_OK);
    assert_int_equal(syncguard_lock_release(self->lock, NULL, &err), SYNCGUARD_OK);
    syncguard_lock_dispose(self->lock);
    return self->ended - released;
}

static int count_notifications(PGconn *pg)
{
    pg_sql(pg, "SELECT 1");
    PGnotify *notification;
    int count = 0;
    while ((notification = PQnotifies(pg)) != NULL) {
        PQfreemem(notification);
        count++;
    }
    return count;
}

static void notified_only_where_somebody_waits(void **state)
{
    syncguard_backend *holder = test_open(pg_url(server, DATABASE, NULL));
    syncguard_backend *other = test_open(pg_url(server, DATABASE, NULL));
    (void)state;
    pg_sql(plain, "LISTEN syncguard");
    syncguard_grant grant;
    for (int i = 0; i < 20; i++) {
        assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "alone", 30000, NULL, &grant, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(holder, grant.lock_id, NULL, &err));
    }
    assert_int_equal(count_notifications(plain), 0);
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "wanted", 30000, NULL, &grant, &err));
    waiter one;
    pg_wake_waiter_start(&one, other, "wanted");
    /* A release of another key sends no notification. */
    {
        syncguard_grant grant_alone;
        assert_status(SYNCGUARD_OK,
                      syncguard_acquire(holder, "alone", 30000, NULL, &grant_alone, &err));
        assert_status(SYNCGUARD_OK, syncguard_release(holder, grant_alone.lock_id, NULL, &err));
    }
    assert_int_equal(count_notifications(plain), 0);
    int64_t released = test_now_ms();
    assert_status(SYNCGUARD_OK, syncguard_release(holder, grant.lock_id, NULL, &err));
    assert_true(finish_waiter(&one, released) < 1000);
    assert_true(count_notifications(plain) >= 1);
    /* A while after the last waiter has left, no notifications are sent. */
    test_sleep_ms(300);
    (void)count_notifications(plain);
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "wanted", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(holder, grant.lock_id, NULL, &err));
    assert_int_equal(count_notifications(plain), 0);
    assert_int_equal(pg_number(plain, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"),
                     0);
    pg_sql(plain, "UNLISTEN *");
    syncguard_close(holder);
    syncguard_close(other);
}

static void extend_all(syncguard_backend *backend, const syncguard_grant *grant, int64_t ttl_ms)
{
    syncguard_limits limits = {syncguard_clock_after(syncguard_clock_ns(), 10000), NULL};
    syncguard_extend_op item = {.lock_id = grant->lock_id, .ttl_ms = ttl_ms};
    assert_status(SYNCGUARD_OK, backend->ops->extend_many(backend, &item, 1, &limits, &err));
    assert_int_equal(item.status, SYNCGUARD_OK);
}

/* A renewal sends no notification, even if there are waiters. */
static void only_an_earlier_end_is_notified(void **state)
{
    syncguard_backend *holder = test_open(pg_url(server, DATABASE, NULL));
    syncguard_backend *other = test_open(pg_url(server, DATABASE, NULL));
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "earlier", 30000, NULL, &grant, &err));
    waiter one;
    pg_wake_waiter_start(&one, other, "earlier");
    pg_sql(plain, "LISTEN syncguard");
    assert_status(SYNCGUARD_OK, syncguard_extend(holder, grant.lock_id, 40000, NULL, NULL, &err));
    extend_all(holder, &grant, 50000);
    assert_int_equal(count_notifications(plain), 0);
    extend_all(holder, &grant, 45000);
    assert_int_equal(count_notifications(plain), 1);
    assert_status(SYNCGUARD_OK, syncguard_extend(holder, grant.lock_id, 40000, NULL, NULL, &err));
    assert_int_equal(count_notifications(plain), 1);
    assert_status(SYNCGUARD_OK, syncguard_release(holder, grant.lock_id, NULL, &err));
    assert_true(finish_waiter(&one, test_now_ms()) < 5000);
    /* Without waiters no notification is sent. */
    test_sleep_ms(300);
    (void)count_notifications(plain);
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "earlier", 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_extend(holder, grant.lock_id, 10000, NULL, NULL, &err));
    extend_all(holder, &grant, 5000);
    assert_int_equal(count_notifications(plain), 0);
    assert_status(SYNCGUARD_OK, syncguard_release(holder, grant.lock_id, NULL, &err));
    pg_sql(plain, "UNLISTEN *");
    syncguard_close(holder);
    syncguard_close(other);
}

/* A waiter that was woken but finds a new lock learns the expiry of that lock. */
static void woken_in_vain_finds_the_next_expiry(void **state)
{
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, NULL));
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "vain", 30000, NULL, &grant, &err));
    waiter one;
    pg_wake_waiter_start(&one, backend, "vain");
    int64_t taken = test_now_ms();
    pg_sql(plain,
           "UPDATE syncguard_locks SET lock_id = 'FFFFFFFFFFFFFFFFFFFFFF', expires_at_ms = "
           "floor(extract(epoch from clock_timestamp()) * 1000)::bigint + 500 WHERE key = 'vain'");
    pg_sql(plain, "SELECT pg_notify('syncguard', hashtext('vain')::text)");
    assert_in_range(finish_waiter(&one, taken), 1400, 9000);
    syncguard_close(backend);
}

#define WAITERS 12

/* Several handles and several threads wait: each release leads to a grant, none is missed. */
static void every_release_is_heard(void **state)
{
    (void)state;
    syncguard_backend *backends[4];
    for (int i = 0; i < 4; i++)
        backends[i] = test_open(pg_url(server, DATABASE, NULL));
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backends[0], "queue", 30000, NULL, &grant, &err));
    waiter waiters[WAITERS];
    for (int i = 0; i < WAITERS; i++)
        pg_wake_waiter_start(&waiters[i], backends[i % 4], "queue");
    int64_t released = test_now_ms();
    assert_status(SYNCGUARD_OK, syncguard_release(backends[0], grant.lock_id, NULL, &err));
    /* Each waiter releases the lock when it gets it, in any order. */
    for (int left = WAITERS; left > 0;) {
        for (int i = 0; i < WAITERS; i++) {
            if (waiters[i].backend != NULL && atomic_load(&waiters[i].done)) {
                pthread_join(waiters[i].thread, NULL);
                assert_int_equal(waiters[i].status, SYNCGUARD_OK);
                assert_status(SYNCGUARD_OK, syncguard_lock_release(waiters[i].lock, NULL, &err));
                syncguard_lock_dispose(waiters[i].lock);
                waiters[i].backend = NULL;
                left--;
            }
        }
        test_sleep_ms(1);
        assert_true(test_now_ms() - released < 8000);
    }
    for (int i = 0; i < 4; i++)
        syncguard_close(backends[i]);
}

/* The listening session is ended: waiters try, arm again, and are still woken. */
static void lost_listener_is_replaced(void **state)
{
    syncguard_backend *holder = test_open(pg_url(server, DATABASE, NULL));
    syncguard_backend *other = test_open(pg_url(server, DATABASE, NULL));
    (void)state;
    syncguard_grant grant;
    for (int i = 0; i < 3; i++) {
        assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "lost", 60000, NULL, &grant, &err));
        waiter one;
        pg_wake_waiter_start(&one, other, "lost");
        assert_true(pg_number(plain, "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE "
                                     "locktype = 'advisory' AND mode = 'ShareLock'") > 0);
        /* The listening session is replaced as soon as possible. */
        for (int k = 0;
             k < 5000 && pg_number(plain, "SELECT count(*) FROM pg_locks WHERE locktype = "
                                          "'advisory' AND mode = 'ShareLock'") == 0;
             k++)
            test_sleep_ms(1);
        int64_t released = test_now_ms();
        assert_status(SYNCGUARD_OK, syncguard_release(holder, grant.lock_id, NULL, &err));
        assert_true(finish_waiter(&one, released) < 2000);
    }
    syncguard_close(holder);
    syncguard_close(other);
}

#define LISTENING                                                                                  \
    "(SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock')"

static void *pg_wake_patient_waiter_run(void *context)
{
    waiter *self = context;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 60000;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.on_wait = note_pause;
    options.on_wait_context = self;
    syncguard_error own;
    self->status = syncguard_lock_acquire(self->backend, self->key, &options, &self->lock, &own);
    self->ended = test_now_ms();
    return NULL;
}

/* Starts the waiter, and waits until its session listens. */
static void start_patient(waiter *self)
{
    int64_t end = test_now_ms() + 20000;
    self->thread = test_start_thread(pg_wake_patient_waiter_run, self);
    while (pg_number(plain, "SELECT count(*) FROM " LISTENING " l") == 0) {
        assert_true(test_now_ms() < end);
        test_sleep_ms(1);
    }
}

/* A request finds its connection broken, so the silent listening connection may lead nowhere: the
 * next try of the waiter replaces it. */
static void untrusted_listener_is_replaced(void **state)
{
    syncguard_backend *holder = test_open(pg_url(server, DATABASE, NULL));
    syncguard_backend *other = test_open(pg_url(server, DATABASE, NULL));
    waiter one = {.backend = other, .key = "moved"};
    int64_t end = test_now_ms() + 20000;
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "moved", 60000, NULL, &grant, &err));
    start_patient(&one);
    long pid = pg_number(plain, "SELECT pid FROM " LISTENING " l");
    test_sleep_ms(100);
    assert_true(pg_number(plain,
                          "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                          "WHERE application_name = 'syncguard' AND pid NOT IN " LISTENING) > 0);
    while (pg_number(plain, "SELECT count(*) FROM " LISTENING " l WHERE pid <> %ld", pid) == 0) {
        assert_true(test_now_ms() < end);
        test_sleep_ms(10);
    }
    int64_t released = test_now_ms();
    assert_status(SYNCGUARD_OK, syncguard_release(holder, grant.lock_id, NULL, &err));
    assert_true(finish_waiter(&one, released) < 2000);
    syncguard_close(holder);
    syncguard_close(other);
}

/* The TypeScript library does not notify. An armed waiter still polls, but rarely, and gets the
 * lock long before its expiry. */
static void release_without_a_notification_is_found(void **state)
{
    syncguard_backend *holder = test_open(pg_url(server, DATABASE, NULL));
    syncguard_backend *other = test_open(pg_url(server, DATABASE, NULL));
    waiter one = {.backend = other, .key = "unheard"};
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "unheard", 60000, NULL, &grant, &err));
    int64_t began = test_now_ms();
    start_patient(&one);
    test_sleep_ms(3000);
    assert_true(pg_number(plain, "SELECT count(*) FROM " LISTENING " l") > 0);
    pg_sql(plain, "DELETE FROM syncguard_locks WHERE lock_id = '%s'", grant.lock_id);
    int64_t removed = test_now_ms();
    assert_true(finish_waiter(&one, removed) < 8000);
    /* 5 tries in the first second, then one per second; twice as many at most. */
    int64_t waited_s = (one.ended - began) / 1000 + 1;
    assert_in_range(atomic_load(&one.tries), 2, 10 + 2 * waited_s);
    syncguard_close(holder);
    syncguard_close(other);
}

/* Wakes a waiter, and makes its try wait inside the server. */
static PGconn *block_the_next_try(syncguard_backend *holder, const char *key,
                                  const syncguard_grant *grant)
{
    PGconn *foreign = pg_plain(server, DATABASE);
    int64_t end = test_now_ms() + 10000;
    pg_sql(foreign, "BEGIN");
    pg_sql(foreign, "SELECT 1 FROM syncguard_fence_counters WHERE fence_key LIKE '%%%s' FOR UPDATE",
           key);
    assert_status(SYNCGUARD_OK, syncguard_release(holder, grant->lock_id, NULL, &err));
    while (pg_number(plain, "SELECT count(*) FROM pg_locks WHERE NOT granted") == 0) {
        assert_true(test_now_ms() < end);
        test_sleep_ms(1);
    }
    return foreign;
}

/* Notifications are read even if no waiter is left: a session that does not read them would block
 * those of the whole database. */
static void notifications_are_read_when_nobody_waits(void **state)
{
    syncguard_backend *holder = test_open(pg_url(server, DATABASE, NULL));
    syncguard_backend *other = test_open(pg_url(server, DATABASE, NULL));
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "flood", 60000, NULL, &grant, &err));
    waiter one;
    pg_wake_waiter_start(&one, other, "flood");
    assert_status(SYNCGUARD_OK, syncguard_release(holder, grant.lock_id, NULL, &err));
    while (!atomic_load(&one.done))
        test_sleep_ms(1);
    test_sleep_ms(300);
    pg_sql(plain, "SELECT count(pg_notify('syncguard', repeat('x', 7000) || i)) "
                  "FROM generate_series(1, 4000) i");
    test_sleep_ms(1000);
    assert_int_equal(
        pg_number(plain, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"),
        0);
    (void)finish_waiter(&one, test_now_ms());
    syncguard_close(holder);
    syncguard_close(other);
}

/* A stuck try does not keep other waiters from being woken. */
static void stuck_try_delays_no_other_waiter(void **state)
{
    syncguard_backend *holder = test_open(pg_url(server, DATABASE, NULL));
    syncguard_backend *other = test_open(pg_url(server, DATABASE, "timeout_ms=20000"));
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "stays", 60000, NULL, &grant, &err));
    syncguard_grant more;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "goes", 60000, NULL, &more, &err));
    waiter one;
    pg_wake_waiter_start(&one, other, "stays");
    PGconn *foreign = block_the_next_try(holder, "stays", &grant);
    waiter two;
    pg_wake_waiter_start(&two, other, "goes");
    int64_t released = test_now_ms();
    assert_status(SYNCGUARD_OK, syncguard_release(holder, more.lock_id, NULL, &err));
    assert_true(finish_waiter(&two, released) < 3000);
    assert_false(atomic_load(&one.done));
    PQfinish(foreign);
    (void)finish_waiter(&one, released);
    syncguard_close(holder);
    syncguard_close(other);
}

/* Without a connection to listen on, waiters poll. */
static void without_listening_waiters_poll(void **state)
{
    syncguard_backend *holder = test_open(pg_url(server, DATABASE, NULL));
    (void)state;
    pg_sql(plain, "CREATE ROLE single LOGIN CONNECTION LIMIT 1");
    pg_sql(plain, "GRANT ALL ON ALL TABLES IN SCHEMA public TO single");
    syncguard_backend *other = test_open(pg_url_as(server, "single", DATABASE, "pool_max=1"));
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 60000;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "poll", 500, NULL, &grant, &err));
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_OK, syncguard_lock_acquire(other, "poll", &options, &lock, &err));
    syncguard_lock_dispose(lock);
    syncguard_close(holder);
    syncguard_close(other);
}

/* The listening session hangs: a new waiter polls, and still has time to try. */
static void slow_arming_leaves_time_to_try(void **state)
{
    syncguard_backend *holder = test_open(pg_url(server, DATABASE, NULL));
    syncguard_backend *other = test_open(pg_url(server, DATABASE, "timeout_ms=1500"));
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 20000;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "first", 60000, NULL, &grant, &err));
    syncguard_grant brief;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "slow", 500, NULL, &brief, &err));
    waiter one;
    pg_wake_waiter_start(&one, other, "first");
    pid_t pid =
        (pid_t)pg_number(plain, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode "
                                "= 'ShareLock'");
    assert_true(pid > 1);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    syncguard_lock *lock = NULL;
    syncguard_status status = syncguard_lock_acquire(other, "slow", &options, &lock, &err);
    /* Done first, because a server with a stopped process cannot be shut down. */
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_status(SYNCGUARD_OK, status);
    syncguard_lock_dispose(lock);
    assert_status(SYNCGUARD_OK, syncguard_release(holder, grant.lock_id, NULL, &err));
    (void)finish_waiter(&one, test_now_ms());
    syncguard_close(holder);
    syncguard_close(other);
}

#define HELD 700
#define STUCK 8 /* as many as there are connections */

static atomic_bool stuck_over;

static void *be_stuck(void *context)
{
    syncguard_error own;
    syncguard_grant grant;
    while (!atomic_load(&stuck_over)) {
        if (syncguard_acquire(context, "stuck", 30000, NULL, &grant, &own) == SYNCGUARD_OK)
            (void)syncguard_release(context, grant.lock_id, NULL, &own);
    }
    return NULL;
}

/* Few requests renew many locks. A stuck key delays no other key, and neither do callers that are
 * stuck on every connection. */
static void stuck_key_delays_no_renewal(void **state)
{
    static syncguard_lock *locks[HELD];
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, NULL));
    PGconn *foreign = pg_plain(server, DATABASE);
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 3000;
    options.auto_extend = true;
    char key[32];
    for (int i = 0; i < HELD; i++) {
        snprintf(key, sizeof key, "held-%d", i);
        assert_status(SYNCGUARD_OK, syncguard_lock_try(backend, key, &options, &locks[i], &err));
    }
    pg_sql(foreign, "BEGIN");
    pg_sql(foreign, "SELECT pg_advisory_xact_lock(hashtext('held-7'))");
    pg_sql(foreign, "SELECT 1 FROM syncguard_locks WHERE key = 'held-8' FOR UPDATE");
    pg_sql(foreign, "SELECT pg_advisory_xact_lock(hashtext('stuck'))");
    atomic_store(&stuck_over, false);
    pthread_t threads[STUCK];
    for (int i = 0; i < STUCK; i++)
        threads[i] = test_start_thread(be_stuck, backend);
    test_sleep_ms(5000);
    for (int i = 0; i < HELD; i++)
        assert_int_equal(syncguard_lock_held(locks[i]), i != 7 && i != 8);
    assert_int_equal(syncguard_lock_lost(locks[7]), SYNCGUARD_LOST_UNCONFIRMED);
    pg_sql(foreign, "COMMIT");
    atomic_store(&stuck_over, true);
    for (int i = 0; i < STUCK; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < HELD; i++)
        syncguard_lock_dispose(locks[i]);
    PQfinish(foreign);
    syncguard_close(backend);
}

/* A lock that a batch leaves undecided is renewed alone, in the same queue as the stuck callers. */
static void stuck_callers_hold_up_no_extend(void **state)
{
    syncguard_backend *backend = test_open(pg_url(server, DATABASE, "pool_max=2&timeout_ms=8000"));
    PGconn *foreign = pg_plain(server, DATABASE);
    syncguard_call call = test_call(3000);
    int64_t end = test_now_ms() + 10000;
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "well", 30000, NULL, &grant, &err));
    pg_sql(foreign, "SELECT pg_advisory_lock(hashtext('stuck'))");
    atomic_store(&stuck_over, false);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        threads[i] = test_start_thread(be_stuck, backend);
    while (pg_number(plain, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT "
                            "granted") < 2) {
        assert_true(test_now_ms() < end);
        test_sleep_ms(10);
    }
    int64_t expires;
    syncguard_status status =
        syncguard_extend(backend, grant.lock_id, 30000, &call, &expires, &err);
    pg_sql(foreign, "SELECT pg_advisory_unlock(hashtext('stuck'))");
    atomic_store(&stuck_over, true);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_status(SYNCGUARD_OK, status);
    PQfinish(foreign);
    syncguard_close(backend);
}

#define MANY 1000
/* The lock table of this server has room for fewer. */
#define SMALL                                                                                      \
    "fsync=off\nmax_locks_per_transaction=10\nmax_connections=20\nmax_wal_senders=0\n"             \
    "max_worker_processes=0\nautovacuum_max_workers=1"

static syncguard_grant many[MANY];

/* One lock for each does not fit, even without waiters. */
static void expect_too_many(PGconn *pg)
{
    char sql[128];
    snprintf(sql, sizeof sql,
             "SELECT count(pg_advisory_xact_lock(7, i)) FROM generate_series(1, %d) i", MANY);
    PGresult *result = PQexec(pg, sql);
    assert_int_equal(PQresultStatus(result), PGRES_FATAL_ERROR);
    assert_string_equal(PQresultErrorField(result, PG_DIAG_SQLSTATE), "53200");
    PQclear(result);
}

static void wait_for_many(syncguard_backend *holder, syncguard_backend *other)
{
    char key[16];
    for (int i = 0; i < MANY; i++) {
        syncguard_acquire_op op = {.key = key,
                                   .lock_id = "0123456789012345678901",
                                   .ttl_ms = 600000,
                                   .owner = "",
                                   .watch = true};
        snprintf(key, sizeof key, "many%d", i);
        assert_status(SYNCGUARD_OK, syncguard_acquire(holder, key, 600000, NULL, &many[i], &err));
        op.key_length = strlen(key);
        op.limits.deadline_ns = syncguard_clock_after(syncguard_clock_ns(), 5000);
        assert_status(SYNCGUARD_LOCKED, other->ops->acquire(other, &op, &err));
        if (i > 0) /* the first may take too long to connect */
            assert_true(op.armed_ms > 0);
    }
}

/* Each release is reported, even after other keys with the same wait lock are gone. */
static void release_many(syncguard_backend *holder, syncguard_backend *other)
{
    waiter one;
    char key[16];
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "many%d", i);
        if (i % 100 == 7) {
            pg_wake_waiter_start(&one, other, key);
            int64_t released = test_now_ms();
            assert_status(SYNCGUARD_OK, syncguard_release(holder, many[i].lock_id, NULL, &err));
            assert_true(finish_waiter(&one, released) < 2000);
        } else {
            other->ops->unwatch(other, key, strlen(key));
        }
    }
}

/* The lock table of the server is finite and serves all its users: waiters for more keys than it
 * has room for leave room for others. */
static void many_waited_keys_take_few_locks(void **state)
{
    pg_server *small = pg_server_start(SMALL);
    (void)state;
    pg_make_database(small, DATABASE);
    PGconn *pg = pg_plain(small, DATABASE);
    expect_too_many(pg);
    syncguard_backend *holder = test_open(pg_url(small, DATABASE, NULL));
    syncguard_backend *other = test_open(pg_url(small, DATABASE, NULL));
    wait_for_many(holder, other);
    assert_in_range(pg_number(pg, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND "
                                  "mode = 'ShareLock'"),
                    1, 64);
    pg_sql(pg, "DO $$ BEGIN FOR i IN 1..20 LOOP EXECUTE 'CREATE TABLE unrelated' || i || ' (x "
               "int)'; EXECUTE 'LOCK TABLE unrelated' || i; END LOOP; END $$");
    pg_sql(pg, "SELECT count(pg_advisory_xact_lock(7, i)) FROM generate_series(1, 100) i");
    release_many(holder, other);
    test_sleep_ms(200);
    syncguard_close(holder);
    syncguard_close(other);
    PQfinish(pg);
    pg_server_end(small);
}

/* A session that listens and never reads fills the notification queue; then every transaction
 * with a NOTIFY fails at its COMMIT. Here another function fails in this way at once. The
 * waiter polls. */
static void full_queue_keeps_no_lock(void **state)
{
    syncguard_backend *holder = test_open(pg_url(server, DATABASE, NULL));
    syncguard_backend *other = test_open(pg_url(server, DATABASE, NULL));
    waiter one = {.backend = other, .key = "full"};
    (void)state;
    pg_sql(plain, "CREATE TABLE queue (entry text)");
    pg_sql(plain, "CREATE SEQUENCE refusals"); /* keeps its value after a rollback */
    pg_sql(plain, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                  "PERFORM nextval('public.refusals'); RAISE program_limit_exceeded; END $$");
    pg_sql(plain, "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON queue DEFERRABLE INITIALLY "
                  "DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()");
    pg_sql(plain, "ALTER FUNCTION pg_catalog.pg_notify(text, text) RENAME TO pg_notify_kept");
    pg_sql(plain, "CREATE FUNCTION pg_catalog.pg_notify(text, text) RETURNS void "
                  "LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.queue VALUES ($2); END $$");
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "full", 60000, NULL, &grant, &err));
    start_patient(&one);
    assert_status(SYNCGUARD_OK, syncguard_release(holder, grant.lock_id, NULL, &err));
    assert_int_equal(pg_number(plain, "SELECT count(*) FROM syncguard_locks WHERE lock_id = '%s'",
                               grant.lock_id),
                     0);
    assert_int_equal(pg_number(plain, "SELECT is_called::int FROM refusals"), 1);
    pg_sql(plain, "DROP FUNCTION pg_catalog.pg_notify(text, text)");
    pg_sql(plain, "ALTER FUNCTION pg_catalog.pg_notify_kept(text, text) RENAME TO pg_notify");
    (void)finish_waiter(&one, 0);
    syncguard_close(holder);
    syncguard_close(other);
}

static atomic_bool kill_no_more;

static void *kill_listeners(void *context)
{
    while (!atomic_load(&kill_no_more)) {
        pg_sql(context, "SELECT pg_terminate_backend(pid) FROM " LISTENING " l");
        test_sleep_ms(7);
    }
    return NULL;
}

static void *pg_wake_lock_repeatedly(void *context)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 30000;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    syncguard_error own;
    intptr_t failed = 0;
    for (int i = 0; i < 50; i++) {
        syncguard_lock *lock = NULL;
        syncguard_status status = syncguard_lock_acquire(context, "turns", &options, &lock, &own);
        if (status != SYNCGUARD_OK) {
            print_error("%s: %s %s\n", syncguard_status_name(status), own.native, own.message);
            failed++;
            continue;
        }
        test_sleep_ms(2);
        (void)syncguard_lock_release(lock, NULL, &own);
        syncguard_lock_dispose(lock);
    }
    return (void *)failed;
}

/* The tries of the waiters use other connections. */
static void killed_listener_ends_no_wait(void **state)
{
    PGconn *pg = pg_plain(server, DATABASE);
    (void)state;
    syncguard_backend *backends[4];
    for (int i = 0; i < 4; i++)
        backends[i] = test_open(pg_url(server, DATABASE, NULL));
    atomic_store(&kill_no_more, false);
    pthread_t killer = test_start_thread(kill_listeners, pg);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        threads[i] = test_start_thread(pg_wake_lock_repeatedly, backends[i]);
    }
    intptr_t failed = 0;
    for (int i = 0; i < 4; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        failed += (intptr_t)result;
    }
    atomic_store(&kill_no_more, true);
    pthread_join(killer, NULL);
    PQfinish(pg);
    for (int i = 0; i < 4; i++)
        syncguard_close(backends[i]);
    assert_int_equal(failed, 0);
}

/* The name is locked in the server until the wait is over. */
static void wait_that_ends_in_the_server(void **state)
{
    syncguard_backend *backend = open_used(pg_url(server, DATABASE, NULL));
    (void)state;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.timeout_ms = 1500;
    pg_sql(plain, "BEGIN");
    pg_sql(plain, "SELECT pg_advisory_xact_lock(hashtext('inside'))");
    syncguard_lock *lock = NULL;
    assert_status(SYNCGUARD_E_ACQUISITION_TIMEOUT,
                  syncguard_lock_acquire(backend, "inside", &options, &lock, &err));
    pg_sql(plain, "ROLLBACK");
    syncguard_close(backend);
}

int main(void)
{
    server = pg_server_start("fsync=off");
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(notified_only_where_somebody_waits),
        cmocka_unit_test(only_an_earlier_end_is_notified),
        cmocka_unit_test(woken_in_vain_finds_the_next_expiry),
        cmocka_unit_test(every_release_is_heard),
        cmocka_unit_test(lost_listener_is_replaced),
        cmocka_unit_test(untrusted_listener_is_replaced),
        cmocka_unit_test(release_without_a_notification_is_found),
        cmocka_unit_test(notifications_are_read_when_nobody_waits),
        cmocka_unit_test(stuck_try_delays_no_other_waiter),
        cmocka_unit_test(without_listening_waiters_poll),
        cmocka_unit_test(slow_arming_leaves_time_to_try),
        cmocka_unit_test(stuck_key_delays_no_renewal),
        cmocka_unit_test(stuck_callers_hold_up_no_extend),
        cmocka_unit_test(many_waited_keys_take_few_locks),
        cmocka_unit_test(full_queue_keeps_no_lock),
        cmocka_unit_test(killed_listener_ends_no_wait),
        cmocka_unit_test(wait_that_ends_in_the_server),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    PQfinish(plain);
    pg_server_end(server);
    return failed;
}
