/*
 * Requests that share a round trip: with one connection and a request that is
 * stuck on it, two more wait in line; when it is free the first of them takes the
 * second along. What happens to the two then is known in advance.
 */
#include "support.h"

#include "backends/postgres/pg.h"

#define DATABASE "ride"

static pg_server *server;
static PGconn *plain;
static PGconn *foreign; /* holds what our requests get stuck on */

/* One call in a thread. */
typedef struct caller {
    syncguard_backend *backend;
    const char *key;     /* to acquire; NULL: releases lock_id */
    const char *lock_id; /* of the release or extend */
    bool extends;
    syncguard_call call;
    syncguard_grant grant;
    syncguard_status status;
    syncguard_error error;
    int64_t took_ms;
    pthread_t thread;
} caller;

static void *run_caller(void *context)
{
    caller *self = context;
    int64_t began = now_ms();

    if (self->key)
        self->status = syncguard_acquire(self->backend, self->key, 60000, &self->call, &self->grant,
                                         &self->error);
    else if (self->extends)
        self->status =
            syncguard_extend(self->backend, self->lock_id, 60000, &self->call, NULL, &self->error);
    else
        self->status = syncguard_release(self->backend, self->lock_id, &self->call, &self->error);
    self->took_ms = now_ms() - began;
    return NULL;
}

static caller acquiring(const char *key, int64_t timeout_ms)
{
    return (caller){.key = key, .call = call_of(timeout_ms, NULL)};
}

static caller releasing(const char *lock_id)
{
    return (caller){.lock_id = lock_id, .call = call_of(8000, NULL)};
}

static void start(caller *self, syncguard_backend *backend)
{
    self->backend = backend;
    assert_int_equal(pthread_create(&self->thread, NULL, run_caller, self), 0);
}

static void expect(caller *self, syncguard_status status)
{
    pthread_join(self->thread, NULL);
    err = self->error;
    assert_status(status, self->status);
}

static int in_line(syncguard_backend *backend)
{
    syncguard_gate *gate = &sg_pg_of(backend)->pool->gate;
    int count = 0;

    pthread_mutex_lock(&gate->mutex);
    for (const syncguard_gate_waiter *each = gate->first; each; each = each->next)
        count++;
    pthread_mutex_unlock(&gate->mutex);
    return count;
}

static int free_places(syncguard_backend *backend)
{
    syncguard_gate *gate = &sg_pg_of(backend)->pool->gate;
    int places;

    pthread_mutex_lock(&gate->mutex);
    places = gate->places;
    pthread_mutex_unlock(&gate->mutex);
    return places;
}

static void await_line(syncguard_backend *backend, int count)
{
    int64_t end = now_ms() + 10000;

    while (in_line(backend) != count) {
        assert_true(now_ms() < end);
        sleep_ms(1);
    }
}

static long stuck(void)
{
    return pg_number(plain, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT "
                            "granted");
}

/* Starts both while the last connection is taken, in this order, and frees it. */
static void start_together(syncguard_backend *backend, caller *first, caller *second)
{
    caller blocker = acquiring("blocker", 20000);
    int64_t end = now_ms() + 10000;
    long before = stuck();

    pg_sql(foreign, "SELECT pg_advisory_lock(hashtext('blocker'))");
    start(&blocker, backend);
    while (stuck() < before + 1) {
        assert_true(now_ms() < end);
        sleep_ms(1);
    }
    start(first, backend);
    await_line(backend, 1);
    start(second, backend);
    await_line(backend, 2);
    pg_sql(foreign, "SELECT pg_advisory_unlock(hashtext('blocker'))");
    expect(&blocker, SYNCGUARD_OK);
    pg_sql(plain, "DELETE FROM syncguard_locks WHERE key = 'blocker'");
}

static syncguard_backend *open_one(void)
{
    return open_url(pg_url(server, DATABASE, "pool_max=1&listen=0"));
}

/* True if a connection that the handle has still got was shared: then it knows the statement that
 * only those use who share. */
static bool has_shared(syncguard_backend *backend)
{
    const uint32_t chain = UINT32_C(1) << SG_PG_COMMIT_CHAIN;
    sg_pg_pool *pool = sg_pg_of(backend)->pool;
    const sg_pg_connection *each;
    bool shared = false;

    pthread_mutex_lock(&pool->mutex);
    for (each = atomic_load(&pool->all); each; each = atomic_load(&each->next))
        shared = shared || (each->prepared & chain) != 0;
    pthread_mutex_unlock(&pool->mutex);
    return shared;
}

static long fence(const char *key)
{
    return pg_number(plain,
                     "SELECT COALESCE(max(fence), 0) FROM syncguard_fence_counters WHERE "
                     "fence_key = 'fence:%s'",
                     key);
}

static void let_go(syncguard_backend *backend, const syncguard_grant *grant)
{
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant->lock_id, NULL, &err));
}

/* ---- what goes well ---------------------------------------------------------------------- */

static void each_gets_its_own(void **state)
{
    syncguard_backend *backend = open_one();
    caller a = acquiring("own-a", 8000);
    caller b = acquiring("own-b", 8000);
    caller c = acquiring("own-a", 8000);
    caller d;

    (void)state;
    assert_false(has_shared(backend));
    start_together(backend, &a, &b);
    expect(&a, SYNCGUARD_OK);
    expect(&b, SYNCGUARD_OK);
    assert_true(has_shared(backend));
    assert_int_equal(pg_number(plain,
                               "SELECT count(*) FROM syncguard_locks WHERE (key, lock_id) "
                               "IN (('own-a', '%s'), ('own-b', '%s'))",
                               a.grant.lock_id, b.grant.lock_id),
                     2);
    /* A key is held by one of two that come together, and a release beside it finds its own. */
    d = releasing(b.grant.lock_id);
    start_together(backend, &c, &d);
    expect(&c, SYNCGUARD_LOCKED);
    expect(&d, SYNCGUARD_OK);
    assert_int_equal(lock_rows(plain, "own-b"), 0);
    let_go(backend, &a.grant);
    a = acquiring("own-same", 8000);
    b = acquiring("own-same", 8000);
    start_together(backend, &a, &b);
    expect(&a, SYNCGUARD_OK);
    expect(&b, SYNCGUARD_LOCKED);
    let_go(backend, &a.grant);
    syncguard_close(backend);
}

/* Renewals, and what can be aborted, have the round trip to themselves. */
static void not_everybody_rides(void **state)
{
    syncguard_backend *backend = open_one();
    syncguard_abort *idle = NULL;
    syncguard_grant kept;
    caller a = acquiring("alone-a", 8000);
    caller b = acquiring("alone-b", 8000);
    caller renewal;

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&idle, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "kept", 60000, NULL, &kept, &err));
    renewal = releasing(kept.lock_id);
    renewal.extends = true;
    start_together(backend, &a, &renewal);
    expect(&a, SYNCGUARD_OK);
    expect(&renewal, SYNCGUARD_OK);
    b.call.abort_object = idle;
    renewal = releasing(a.grant.lock_id);
    start_together(backend, &renewal, &b);
    expect(&renewal, SYNCGUARD_OK);
    expect(&b, SYNCGUARD_OK);
    assert_false(has_shared(backend));
    let_go(backend, &b.grant);
    let_go(backend, &kept);
    syncguard_abort_free(idle);
    syncguard_close(backend);
}

/* ---- refusals ---------------------------------------------------------------------------- */

/* A trigger raises the code in the key. */
static void refused_in_front(void **state)
{
    syncguard_backend *backend = open_one();
    caller a = acquiring("code:22003 front", 8000);
    caller b = acquiring("behind", 8000);

    (void)state;
    start_together(backend, &a, &b);
    expect(&a, SYNCGUARD_E_INTERNAL);
    assert_string_equal(a.error.native, "22003");
    expect(&b, SYNCGUARD_OK);
    /* It was carried out once: the server had skipped it. */
    assert_int_equal(fence("behind"), 1);
    let_go(backend, &b.grant);
    syncguard_close(backend);
}

static void refused_behind(void **state)
{
    static const struct {
        const char *code;
        syncguard_status status;
    } cases[] = {
        {"22003", SYNCGUARD_E_INTERNAL},
        {"22012", SYNCGUARD_E_SERVICE_UNAVAILABLE}, /* after some tries */
        {"40001", SYNCGUARD_E_SERVICE_UNAVAILABLE}, /* after some tries */
        {"25006", SYNCGUARD_E_SERVICE_UNAVAILABLE}, /* after another connection */
        {"57014", SYNCGUARD_E_NETWORK_TIMEOUT},
        {"55P03", SYNCGUARD_E_NETWORK_TIMEOUT},
        {"26000", SYNCGUARD_E_SERVICE_UNAVAILABLE}, /* the last: no statement is prepared then */
    };
    syncguard_backend *backend = open_one();

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char front[32], key[32];
        caller a = acquiring(front, 8000);
        caller b = acquiring(key, 8000);

        snprintf(front, sizeof front, "fine-%zu", i);
        snprintf(key, sizeof key, "code:%s", cases[i].code);
        start_together(backend, &a, &b);
        expect(&a, SYNCGUARD_OK);
        expect(&b, cases[i].status);
        assert_string_equal(b.error.native, cases[i].code);
        assert_int_equal(fence(front), 1);
        assert_int_equal(lock_rows(plain, front), 1);
        /* The session was rolled back, or is gone. */
        let_go(backend, &a.grant);
    }
    syncguard_close(backend);
}

/* ---- broken, and out of time ------------------------------------------------------------- */

static void terminate_in_sleep(void)
{
    int64_t end = now_ms() + 10000;

    while (pg_number(plain, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE "
                            "wait_event = 'PgSleep' AND application_name = 'syncguard'") == 0) {
        assert_true(now_ms() < end);
        sleep_ms(5);
    }
}

/* The first is in the middle: neither was carried out, and each sends its own once more. */
static void session_ended_in_the_first(void **state)
{
    syncguard_backend *backend = open_one();
    caller a = acquiring("sleepy 0.3 ended", 8000);
    caller b = acquiring("ended-b", 8000);

    (void)state;
    start_together(backend, &a, &b);
    terminate_in_sleep();
    expect(&a, SYNCGUARD_OK);
    expect(&b, SYNCGUARD_OK);
    assert_int_equal(fence("sleepy 0.3 ended"), 1);
    assert_int_equal(fence("ended-b"), 1);
    let_go(backend, &a.grant);
    let_go(backend, &b.grant);
    syncguard_close(backend);
}

/* The first was answered before the session ended in the second. */
static void session_ended_in_the_second(void **state)
{
    syncguard_backend *backend = open_one();
    syncguard_grant grant;
    caller a;
    caller b = acquiring("sleepy 0.3 second", 8000);

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "first", 60000, NULL, &grant, &err));
    a = releasing(grant.lock_id);
    start_together(backend, &a, &b);
    terminate_in_sleep();
    expect(&a, SYNCGUARD_OK);
    expect(&b, SYNCGUARD_OK);
    assert_int_equal(lock_rows(plain, "first"), 0);
    assert_int_equal(fence("sleepy 0.3 second"), 1);
    let_go(backend, &b.grant);
    syncguard_close(backend);
}

/* What drives gives up: the other may still be carried out where it was, so it is taken back. */
static void driver_out_of_time(void **state)
{
    syncguard_backend *backend = open_one();
    caller a = acquiring("sleepy 3 driver", 900);
    caller b = acquiring("goes-on", 8000);

    (void)state;
    start_together(backend, &a, &b);
    expect(&a, SYNCGUARD_E_NETWORK_TIMEOUT);
    assert_in_range(a.took_ms, 800, 2000);
    expect(&b, SYNCGUARD_E_SERVICE_UNAVAILABLE);
    assert_true(b.took_ms < 3000);
    sleep_ms(300);
    expect_gone(plain, "sleepy 3 driver");
    expect_gone(plain, "goes-on");
    syncguard_close(backend);
}

/* What rides gives up: the other goes on, and what is still carried out is taken back. */
static void rider_out_of_time(void **state)
{
    syncguard_backend *backend = open_one();
    caller a = acquiring("sleepy 2 goes on", 8000);
    caller b = acquiring("leaves", 900);

    (void)state;
    start_together(backend, &a, &b);
    expect(&b, SYNCGUARD_E_NETWORK_TIMEOUT);
    assert_in_range(b.took_ms, 800, 1800);
    expect(&a, SYNCGUARD_OK);
    assert_true(has_shared(backend));
    expect_gone(plain, "leaves");
    /* It was granted in between, for the counter has moved. */
    assert_int_equal(fence("leaves"), 1);
    let_go(backend, &a.grant);
    /* And is over for good: nothing comes back. */
    sleep_ms(300);
    assert_int_equal(lock_rows(plain, "leaves"), 0);
    syncguard_close(backend);
}

/* ---- stuck ------------------------------------------------------------------------------- */

/* Either may meet a lock of a foreign session: it goes on waiting by itself, the other is done. */
static void stuck_one_waits_alone(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        syncguard_backend *backend = open_url(pg_url(server, DATABASE, "pool_max=2&listen=0"));
        caller keep = acquiring("blocker-2", 20000);
        caller a = acquiring(i == 0 ? "stuck" : "free", 1500);
        caller b = acquiring(i == 0 ? "free" : "stuck", 1500);
        caller *stays = i == 0 ? &a : &b;
        caller *passes = i == 0 ? &b : &a;

        pg_sql(foreign, "SELECT pg_advisory_lock(hashtext('stuck')), "
                        "pg_advisory_lock(hashtext('blocker-2'))");
        /* Two connections, one for each when they have to part. */
        start(&keep, backend);
        while (stuck() < 1)
            sleep_ms(1);
        start_together(backend, &a, &b);
        pg_sql(foreign, "SELECT pg_advisory_unlock(hashtext('blocker-2'))");
        expect(&keep, SYNCGUARD_OK);
        expect(passes, SYNCGUARD_OK);
        /* Together they waited as long as that is allowed. */
        assert_in_range(passes->took_ms, SG_PG_BRIEF_MS * 9 / 10, 1200);
        expect(stays, SYNCGUARD_E_NETWORK_TIMEOUT);
        assert_in_range(stays->took_ms, 1300, 2500);
        pg_sql(foreign, "SELECT pg_advisory_unlock_all()");
        let_go(backend, &keep.grant);
        let_go(backend, &passes->grant);
        expect_gone(plain, "stuck");
        syncguard_close(backend);
    }
}

static atomic_bool stop;
static atomic_int pairs;
static atomic_int slowest_ms;

static void *pairs_of_one(void *context)
{
    char key[40];
    syncguard_error own;

    snprintf(key, sizeof key, "busy-%lx", (unsigned long)pthread_self());
    while (!atomic_load(&stop)) {
        syncguard_grant grant;
        int64_t began = now_ms();
        int slowest = atomic_load(&slowest_ms);
        int took;

        assert_int_equal(syncguard_acquire(context, key, 60000, NULL, &grant, &own), SYNCGUARD_OK);
        took = (int)(now_ms() - began);
        assert_int_equal(syncguard_release(context, grant.lock_id, NULL, &own), SYNCGUARD_OK);
        while (took > slowest && !atomic_compare_exchange_weak(&slowest_ms, &slowest, took))
            ;
        atomic_fetch_add(&pairs, 1);
    }
    return NULL;
}

static void *trigger_later(void *context)
{
    sleep_ms(600);
    syncguard_abort_trigger(context);
    return NULL;
}

/* A foreign session holds the row of one key: all others go on, and the one that needs the row is
 * still ended by its deadline and its abort. */
static void others_go_on(void **state)
{
    syncguard_backend *backend = open_url(pg_url(server, DATABASE, "pool_max=4&listen=0"));
    syncguard_abort *abort_object = NULL;
    syncguard_grant grant;
    pthread_t threads[12], trigger;
    caller release;

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_abort_create(&abort_object, &err));
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "row", 60000, NULL, &grant, &err));
    pg_sql(foreign, "BEGIN");
    pg_sql(foreign, "SELECT 1 FROM syncguard_locks WHERE key = 'row' FOR UPDATE");
    atomic_store(&stop, false);
    atomic_store(&pairs, 0);
    atomic_store(&slowest_ms, 0);
    for (int i = 0; i < 12; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, pairs_of_one, backend), 0);
    for (int i = 0; i < 3; i++) {
        release = releasing(grant.lock_id);
        release.call = call_of(900, NULL);
        start(&release, backend);
        expect(&release, SYNCGUARD_E_NETWORK_TIMEOUT);
        assert_in_range(release.took_ms, 800, 2000);
    }
    release.call = call_of(8000, abort_object);
    assert_int_equal(pthread_create(&trigger, NULL, trigger_later, abort_object), 0);
    start(&release, backend);
    expect(&release, SYNCGUARD_E_ABORTED);
    assert_in_range(release.took_ms, 500, 2000);
    pthread_join(trigger, NULL);
    pg_sql(foreign, "COMMIT");
    atomic_store(&stop, true);
    for (int i = 0; i < 12; i++)
        pthread_join(threads[i], NULL);
    print_message("    %d pairs, the slowest acquire took %d ms\n", atomic_load(&pairs),
                  atomic_load(&slowest_ms));
    assert_true(has_shared(backend));
    assert_true(atomic_load(&pairs) > 200);
    assert_true(atomic_load(&slowest_ms) < 2000);
    (void)syncguard_release(backend, grant.lock_id, NULL, &err);
    expect_gone(plain, "row");
    syncguard_abort_free(abort_object);
    syncguard_close(backend);
}

/* ---- all at once ------------------------------------------------------------------------- */

static void *impatient(void *context)
{
    unsigned seed = (unsigned)(uintptr_t)pthread_self();
    char key[40];
    syncguard_error own;

    while (!atomic_load(&stop)) {
        syncguard_call call = call_of(800 + rand_r(&seed) % 40, NULL);
        syncguard_grant grant;
        syncguard_status status;

        /* Some take until about the deadline of those that share with them. */
        if (rand_r(&seed) % 50 == 0)
            snprintf(key, sizeof key, "sleepy 0.81 %u", rand_r(&seed));
        else
            snprintf(key, sizeof key, "crowd-%d", (int)(rand_r(&seed) % 6));
        status = syncguard_acquire(context, key, 2000, &call, &grant, &own);
        if (status == SYNCGUARD_OK) {
            (void)syncguard_release(context, grant.lock_id, &call, &own);
            atomic_fetch_add(&pairs, 1);
        }
    }
    return NULL;
}

/* Sessions end, deadlines pass and refusals come at every moment of a ride; afterwards nothing is
 * missing from the pool, and the handle works. */
static void crowd_in_trouble(void **state)
{
    syncguard_backend *backend = open_url(pg_url(server, DATABASE, "pool_max=3&listen=0"));
    pthread_t threads[12];
    int64_t end = now_ms() + 4000;

    (void)state;
    atomic_store(&stop, false);
    atomic_store(&pairs, 0);
    for (int i = 0; i < 12; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, impatient, backend), 0);
    while (now_ms() < end) {
        pg_sql(foreign, "SELECT pg_advisory_lock(hashtext('crowd-1'))");
        sleep_ms(150);
        pg_sql(foreign, "SELECT pg_advisory_unlock_all()");
        pg_sql(plain, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                      "application_name = 'syncguard' LIMIT 1");
        sleep_ms(50);
        pg_sql(plain, "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE "
                      "application_name = 'syncguard'");
        sleep_ms(50);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 12; i++)
        pthread_join(threads[i], NULL);
    print_message("    %d pairs\n", atomic_load(&pairs));
    assert_true(atomic_load(&pairs) > 20);
    /* What was left in doubt is still being undone, which takes a place now and then. */
    end = now_ms() + 10000;
    while (free_places(backend) != 3) {
        assert_true(now_ms() < end);
        sleep_ms(5);
    }
    assert_int_equal(in_line(backend), 0);
    for (int i = 0; i < 6; i++) {
        char key[16];

        snprintf(key, sizeof key, "crowd-%d", i);
        pg_sql(plain, "DELETE FROM syncguard_locks WHERE key = '%s'", key);
    }
    {
        syncguard_grant grant;

        assert_status(SYNCGUARD_OK, syncguard_acquire(backend, "after", 60000, NULL, &grant, &err));
        let_go(backend, &grant);
    }
    syncguard_close(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_gets_its_own),          cmocka_unit_test(not_everybody_rides),
        cmocka_unit_test(refused_in_front),           cmocka_unit_test(refused_behind),
        cmocka_unit_test(session_ended_in_the_first), cmocka_unit_test(session_ended_in_the_second),
        cmocka_unit_test(driver_out_of_time),         cmocka_unit_test(rider_out_of_time),
        cmocka_unit_test(stuck_one_waits_alone),      cmocka_unit_test(others_go_on),
        cmocka_unit_test(crowd_in_trouble),
    };
    int failed;

    server = pg_server_start("fsync=off");
    pg_make_database(server, DATABASE);
    plain = pg_plain(server, DATABASE);
    foreign = pg_plain(server, DATABASE);
    pg_sql(plain,
           "CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
           "IF new.key LIKE 'code:%%' THEN RAISE EXCEPTION 'no' USING "
           "ERRCODE = substr(new.key, 6, 5); END IF; "
           "IF new.key LIKE 'sleepy %%' THEN PERFORM pg_sleep(split_part(new.key, ' ', 2)::float); "
           "END IF; RETURN new; END $$");
    pg_sql(plain, "CREATE TRIGGER act BEFORE INSERT ON syncguard_locks FOR EACH ROW EXECUTE "
                  "FUNCTION act()");
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    PQfinish(plain);
    PQfinish(foreign);
    pg_server_end(server);
    return failed;
}
