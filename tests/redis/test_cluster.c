/*
 * A Cluster of three primaries with a replica each: locks stay what they are while their slot
 * moves, in every distribution of their names over the two nodes; waiters follow the slot; the
 * death of a seed, and of the node of the slot, is survived.
 *
 * The servers in the environment are the primaries 0 to 2 and the replicas 3 to 5, of which
 * replica i + 3 follows primary i at first.
 */
#include "support.h"

#include <poll.h>

#include "backends/redis/mutate.h"
#include "syncguard/queue.h"

enum { PRIMARIES = 3, NODES = 6 };

/* --- moving a slot --- */

static int witness; /* a primary that is up */

static int our_slot(void)
{
    redisReply *reply = raw_at(test_port(witness), "CLUSTER KEYSLOT {syncguard}");
    int slot = (int)reply->integer;
    freeReplyObject(reply);
    return slot;
}

/* Which server has the slot, and its id. */
static int owner_of(int slot, char id[64])
{
    redisReply *reply = raw_at(test_port(witness), "CLUSTER SLOTS");
    int owner = -1;
    for (size_t i = 0; i < reply->elements; i++) {
        redisReply *range = reply->element[i];
        if (range->element[0]->integer <= slot && slot <= range->element[1]->integer) {
            for (int n = 0; n < NODES; n++) {
                if (test_port(n) == range->element[2]->element[1]->integer)
                    owner = n;
            }
            snprintf(id, 64, "%s", range->element[2]->element[2]->str);
        }
    }
    freeReplyObject(reply);
    return owner;
}

static void node_do(int node, const char *format, int slot, const char *id)
{
    redisReply *reply = raw_at(test_port(node), format, slot, id);
    if (reply->type == REDIS_REPLY_ERROR)
        fail_msg("%s: %s", format, reply->str);
    freeReplyObject(reply);
}

static void node_id(int node, char id[64])
{
    redisReply *reply = raw_at(test_port(node), "CLUSTER MYID");
    snprintf(id, 64, "%s", reply->str);
    freeReplyObject(reply);
}

typedef struct move {
    int slot, from, to;
    char to_id[64];
} move;

static void begin_move(move *m)
{
    char from_id[64];
    m->slot = our_slot();
    m->from = owner_of(m->slot, from_id);
    m->to = (m->from + 1) % PRIMARIES;
    node_id(m->to, m->to_id);
    node_do(m->to, "CLUSTER SETSLOT %d IMPORTING %s", m->slot, from_id);
    node_do(m->from, "CLUSTER SETSLOT %d MIGRATING %s", m->slot, m->to_id);
}

/* Moves up to `count` keys with one command. False: there were none. */
static bool move_some(const move *m, int count)
{
    redisReply *keys = raw_at(test_port(m->from), "CLUSTER GETKEYSINSLOT %d %d", m->slot, count);
    bool any = keys->elements > 0;
    if (any) {
        const char *argv[1024];
        size_t sizes[1024];
        char port[16];
        int argc = 0;
        snprintf(port, sizeof port, "%d", test_port(m->to));
        const char *words[] = {"MIGRATE", "127.0.0.1", port, "", "0", "5000", "KEYS"};
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
            argv[argc] = words[i];
            sizes[argc++] = strlen(words[i]);
        }
        for (size_t i = 0; i < keys->elements && argc < 1024; i++) {
            argv[argc] = keys->element[i]->str;
            sizes[argc++] = (size_t)keys->element[i]->len;
        }
        raw_argv_at(test_port(m->from), argc, argv, sizes); /* NOKEY: released meanwhile */
    }
    freeReplyObject(keys);
    return any;
}

static void move_name(const move *m, const char *name)
{
    redisReply *reply =
        raw_at(test_port(m->from), "MIGRATE 127.0.0.1 %d %s 0 5000", test_port(m->to), name);
    assert_int_equal(reply->type, REDIS_REPLY_STATUS);
    assert_string_equal(reply->str, "OK");
    freeReplyObject(reply);
}

/* What is left goes over, and everybody is told. */
static void end_move(const move *m)
{
    while (move_some(m, 100))
        ;
    node_do(m->to, "CLUSTER SETSLOT %d NODE %s", m->slot, m->to_id);
    node_do(m->from, "CLUSTER SETSLOT %d NODE %s", m->slot, m->to_id);
    for (int n = 0; n < PRIMARIES; n++)
        node_do(n, "CLUSTER SETSLOT %d NODE %s", m->slot, m->to_id);
}

/* --- every distribution of a lock's names over the two nodes --- */

static const syncguard_call *briefly(void)
{
    static syncguard_call call = SYNCGUARD_CALL_INIT;
    call.timeout_ms = 2000;
    return &call;
}

/* Bits of `mask`: lock, index and counter are on the new node already. */
static void spread(const move *m, const char *key, const char *lock_id, int mask)
{
    char name[128];
    if (mask & 1) {
        snprintf(name, sizeof name, "{syncguard}:%s", key);
        move_name(m, name);
    }
    if (mask & 2) {
        snprintf(name, sizeof name, "{syncguard}:id:%s", lock_id);
        move_name(m, name);
    }
    if (mask & 4) {
        snprintf(name, sizeof name, "{syncguard}:fence:{syncguard}:%s", key);
        move_name(m, name);
    }
}

static void held_lock_stays_held(const char *key, const char *lock_id)
{
    syncguard_lock_info info;
    syncguard_grant grant;
    int64_t expires = 0;
    bool flag = false;
    assert_status(syncguard_extend(store, lock_id, 60000, briefly(), &expires, &err), SYNCGUARD_OK);
    assert_status(syncguard_get_by_id(store, lock_id, briefly(), &info, &err), SYNCGUARD_OK);
    assert_status(syncguard_get_by_key(store, key, briefly(), &info, &err), SYNCGUARD_OK);
    assert_status(syncguard_owns(store, lock_id, briefly(), &flag, &err), SYNCGUARD_OK);
    assert_true(flag);
    assert_status(syncguard_is_locked(store, key, briefly(), &flag, &err), SYNCGUARD_OK);
    assert_true(flag);
    assert_status(syncguard_acquire(store, key, 60000, briefly(), &grant, &err), SYNCGUARD_LOCKED);
}

static void released_lock_is_gone(const char *key, const char *lock_id)
{
    int64_t expires = 0;
    bool flag = true;
    assert_status(syncguard_release(store, lock_id, briefly(), &err), SYNCGUARD_OK);
    assert_status(syncguard_release(store, lock_id, briefly(), &err), SYNCGUARD_ABSENT);
    assert_status(syncguard_extend(store, lock_id, 60000, briefly(), &expires, &err),
                  SYNCGUARD_ABSENT);
    assert_status(syncguard_owns(store, lock_id, briefly(), &flag, &err), SYNCGUARD_OK);
    assert_false(flag);
    assert_status(syncguard_is_locked(store, key, briefly(), &flag, &err), SYNCGUARD_OK);
    assert_false(flag);
}

/* Nothing of the slot but counters is left, on no node. */
static void only_counters_are_left(const move *m)
{
    redisReply *keys = raw_at(test_port(m->to), "CLUSTER GETKEYSINSLOT %d 10000", m->slot);
    for (size_t i = 0; i < keys->elements; i++) {
        if (strncmp(keys->element[i]->str, "{syncguard}:fence:", 18) != 0)
            fail_msg("left behind: %s", keys->element[i]->str);
    }
    freeReplyObject(keys);
}

static void half_moved_locks_are_what_they_are(void **state)
{
    (void)state;
    enum { STATES = 8 };
    syncguard_grant grants[STATES], grant;
    char key[32];
    move m;
    for (int mask = 0; mask < STATES; mask++) {
        snprintf(key, sizeof key, "half:%d", mask);
        assert_status(syncguard_acquire(store, key, 60000, NULL, &grants[mask], &err),
                      SYNCGUARD_OK);
    }
    begin_move(&m);
    for (int mask = 0; mask < STATES; mask++) {
        snprintf(key, sizeof key, "half:%d", mask);
        spread(&m, key, grants[mask].lock_id, mask);
        held_lock_stays_held(key, grants[mask].lock_id);
        released_lock_is_gone(key, grants[mask].lock_id);
        /* The counter is where it was, the rest nowhere: the next grant counts on. */
        for (int turn = 2; turn <= 3; turn++) {
            assert_status(syncguard_acquire(store, key, 60000, briefly(), &grant, &err),
                          SYNCGUARD_OK);
            assert_int_equal(strtoll(grant.fence, NULL, 10), turn);
            held_lock_stays_held(key, grant.lock_id);
            released_lock_is_gone(key, grant.lock_id);
        }
    }
    assert_status(syncguard_acquire(store, "half:new", 60000, briefly(), &grant, &err),
                  SYNCGUARD_OK);
    assert_string_equal(grant.fence, "000000000000001");
    released_lock_is_gone("half:new", grant.lock_id);
    end_move(&m);
    only_counters_are_left(&m);
    assert_status(syncguard_acquire(store, "half:5", 60000, briefly(), &grant, &err), SYNCGUARD_OK);
    assert_string_equal(grant.fence, "000000000000004");
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
}

/* Whatever is where, an undone acquire is undone, and its id cannot be granted any more. */
static void half_moved_grants_are_undone(void **state)
{
    (void)state;
    syncguard_grant grants[8];
    char key[32];
    move m;
    for (int mask = 0; mask < 8; mask++) {
        snprintf(key, sizeof key, "undone:%d", mask);
        assert_status(syncguard_acquire(store, key, 60000, NULL, &grants[mask], &err),
                      SYNCGUARD_OK);
    }
    begin_move(&m);
    for (int mask = 0; mask < 8; mask++) {
        syncguard_limits limits = {syncguard_clock_ns() + 2000 * SYNCGUARD_NS_PER_MS, NULL};
        syncguard_acquire_op op;
        bool locked = true;
        snprintf(key, sizeof key, "undone:%d", mask);
        spread(&m, key, grants[mask].lock_id, mask);
        assert_status(sg_redis_undo(store, key, strlen(key), grants[mask].lock_id,
                                    syncguard_clock_ns() + 60000 * SYNCGUARD_NS_PER_MS, &limits,
                                    &err),
                      SYNCGUARD_OK);
        assert_status(syncguard_is_locked(store, key, briefly(), &locked, &err), SYNCGUARD_OK);
        assert_false(locked);
        memset(&op, 0, sizeof op);
        op.key = key;
        op.key_length = strlen(key);
        op.lock_id = grants[mask].lock_id;
        op.owner = "";
        op.ttl_ms = 60000;
        op.limits = limits;
        assert_int_equal(sg_redis_acquire(store, &op, &err), SYNCGUARD_E_INTERNAL);
        assert_string_equal(err.native, "SPENT");
        assert_status(syncguard_is_locked(store, key, briefly(), &locked, &err), SYNCGUARD_OK);
        assert_false(locked);
    }
    end_move(&m);
}

/* A dead lock is taken over, wherever its names are. */
static void half_moved_dead_locks_are_taken_over(void **state)
{
    (void)state;
    syncguard_grant grants[8], grant;
    char key[32];
    move m;
    for (int mask = 0; mask < 8; mask++) {
        snprintf(key, sizeof key, "dead:%d", mask);
        assert_status(syncguard_acquire(store, key, 100, NULL, &grants[mask], &err), SYNCGUARD_OK);
        char id[64];
        int owner = owner_of(our_slot(), id);
        freeReplyObject(raw_at(test_port(owner), "PERSIST {syncguard}:%s", key));
        freeReplyObject(
            raw_at(test_port(owner), "PERSIST {syncguard}:id:%s", grants[mask].lock_id));
    }
    pause_ms(1300);
    begin_move(&m);
    for (int mask = 0; mask < 8; mask++) {
        snprintf(key, sizeof key, "dead:%d", mask);
        spread(&m, key, grants[mask].lock_id, mask);
        int64_t expires = 0;
        assert_status(
            syncguard_extend(store, grants[mask].lock_id, 60000, briefly(), &expires, &err),
            SYNCGUARD_ABSENT);
        assert_status(syncguard_acquire(store, key, 60000, briefly(), &grant, &err), SYNCGUARD_OK);
        assert_string_equal(grant.fence, "000000000000002");
        held_lock_stays_held(key, grant.lock_id);
        released_lock_is_gone(key, grant.lock_id);
    }
    end_move(&m);
    for (int mask = 0; mask < 8; mask++) /* their index would have expired */
        freeReplyObject(raw_at(test_port(m.to), "DEL {syncguard}:id:%s", grants[mask].lock_id));
}

static int64_t life_ms(const move *m, const char *format, const char *text)
{
    redisReply *reply = raw_at(test_port(m->to), format, text);
    int64_t life = reply->integer;
    freeReplyObject(reply);
    assert_true(life > 0);
    return life;
}

/* A live lock whose index has expired would count as absent. The lock is written after it. */
static void index_outlives_its_lock(void **state)
{
    (void)state;
    syncguard_grant grants[2];
    int64_t expires = 0;
    move m;
    assert_status(syncguard_acquire(store, "outlived:0", 30000, NULL, &grants[0], &err),
                  SYNCGUARD_OK);
    begin_move(&m);
    spread(&m, "outlived:0", grants[0].lock_id, 1);
    assert_status(syncguard_extend(store, grants[0].lock_id, 60000, NULL, &expires, &err),
                  SYNCGUARD_OK);
    assert_status(syncguard_acquire(store, "outlived:1", 60000, NULL, &grants[1], &err),
                  SYNCGUARD_OK);
    end_move(&m);
    for (int i = 0; i < 2; i++) {
        int64_t lock = life_ms(&m, "PTTL {syncguard}:outlived:%s", i == 0 ? "0" : "1");
        assert_true(life_ms(&m, "PTTL {syncguard}:id:%s", grants[i].lock_id) > lock);
        assert_status(syncguard_release(store, grants[i].lock_id, NULL, &err), SYNCGUARD_OK);
    }
    only_counters_are_left(&m);
}

/* --- a move under load --- */

static atomic_bool over;
static atomic_int failures, rounds;

static void note(syncguard_status status, const char *what, const syncguard_error *error)
{
    if (status != SYNCGUARD_OK && atomic_fetch_add(&failures, 1) < 10)
        print_error("%s: %s %s %s\n", what, syncguard_status_name(status),
                    status < 0 ? error->native : "", status < 0 ? error->message : "");
}

/* Goes on working on a key of its own while the slot moves. */
static void *work(void *argument)
{
    char key[32];
    int64_t last = 0;
    (void)argument;
    static atomic_int number;
    snprintf(key, sizeof key, "worked:%d", atomic_fetch_add(&number, 1));
    while (!atomic_load(&over)) {
        syncguard_grant grant;
        syncguard_error error;
        int64_t expires;
        syncguard_status status = syncguard_acquire(store, key, 30000, NULL, &grant, &error);
        note(status, "acquire", &error);
        if (status == SYNCGUARD_OK) {
            int64_t fence = strtoll(grant.fence, NULL, 10);
            if (fence <= last)
                note(SYNCGUARD_E_INTERNAL, "fence", &error);
            last = fence;
            note(syncguard_extend(store, grant.lock_id, 30000, NULL, &expires, &error), "extend",
                 &error);
            note(syncguard_release(store, grant.lock_id, NULL, &error), "release", &error);
        }
        atomic_fetch_add(&rounds, 1);
    }
    return NULL;
}

/* A completion of a queue and what follows from it; *last is the fence of its key. False: it has no
 * open request any more. */
static bool follow(syncguard_queue *queue, const char *key, const syncguard_completion *done,
                   int64_t *last)
{
    syncguard_error error;
    note(done->status, key, &done->error);
    if (done->kind == SYNCGUARD_COMPLETION_ACQUIRE && done->status == SYNCGUARD_OK) {
        int64_t fence = strtoll(syncguard_lock_fence(done->lock), NULL, 10);
        if (fence <= *last)
            note(SYNCGUARD_E_INTERNAL, "fence in a queue", &done->error);
        *last = fence;
        return syncguard_lock_release_async(queue, done->lock, NULL, done->context, NULL, &error) ==
               SYNCGUARD_OK;
    }
    atomic_fetch_add(&rounds, 1);
    return !atomic_load(&over) && syncguard_lock_acquire_async(queue, key, NULL, done->context,
                                                               NULL, &error) == SYNCGUARD_OK;
}

/* The same with many requests, which share round trips. */
static void *work_together(void *argument)
{
    enum { WIDTH = 16 };
    char keys[WIDTH][32];
    int64_t fences[WIDTH] = {0};
    int open = 0;
    syncguard_queue *queue = NULL;
    syncguard_completion done;
    syncguard_error error;
    (void)argument;
    note(syncguard_queue_open(store, NULL, &queue, &error), "queue", &error);
    for (; open < WIDTH; open++) {
        snprintf(keys[open], sizeof keys[open], "queued:%d", open);
        note(syncguard_lock_acquire_async(queue, keys[open], NULL, &fences[open], NULL, &error),
             "start", &error);
    }
    while (open > 0) {
        struct pollfd fd = {syncguard_queue_fd(queue), POLLIN, 0};
        poll(&fd, 1, 1000);
        while (syncguard_queue_next(queue, &done)) {
            int64_t *last = done.context;
            open -= follow(queue, keys[last - fences], &done, last) ? 0 : 1;
        }
    }
    syncguard_queue_close(queue);
    return NULL;
}

enum { HELD = 300 };
static syncguard_grant held[HELD];

/* Checks locks that are held all the time. */
static void *keep(void *argument)
{
    (void)argument;
    for (int i = 0; !atomic_load(&over); i = (i + 7) % HELD) {
        syncguard_error error;
        int64_t expires;
        bool owns = false;
        note(syncguard_extend(store, held[i].lock_id, 60000, NULL, &expires, &error), "keep",
             &error);
        syncguard_status status = syncguard_owns(store, held[i].lock_id, NULL, &owns, &error);
        note(status == SYNCGUARD_OK && !owns ? SYNCGUARD_ABSENT : status, "owns", &error);
        pause_ms(1);
    }
    return NULL;
}

static void slot_moves_under_load(void **state)
{
    (void)state;
    enum { WORKERS = 2, KEEPERS = 2, THREADS = WORKERS + KEEPERS + 1 };
    pthread_t threads[THREADS];
    char key[32];
    move m;
    syncguard_grant grant;
    for (int i = 0; i < HELD; i++) {
        snprintf(key, sizeof key, "held:%d", i);
        assert_status(syncguard_acquire(store, key, 60000, NULL, &held[i], &err), SYNCGUARD_OK);
    }
    for (int i = 0; i < WORKERS + KEEPERS; i++)
        pthread_create(&threads[i], NULL, i < WORKERS ? work : keep, NULL);
    pthread_create(&threads[THREADS - 1], NULL, work_together, NULL);
    for (int moves = 0; moves < 3; moves++) {
        pause_ms(200);
        begin_move(&m);
        int before = atomic_load(&rounds);
        while (move_some(&m, 10))
            pause_ms(10);
        if (atomic_load(&rounds) - before < 10)
            note(SYNCGUARD_E_INTERNAL, "no work while the slot moved", &err);
        end_move(&m);
    }
    pause_ms(300);
    atomic_store(&over, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    print_message("%d rounds\n", atomic_load(&rounds));
    assert_int_equal(atomic_load(&failures), 0);
    for (int i = 0; i < HELD; i++) {
        snprintf(key, sizeof key, "held:%d", i);
        assert_status(syncguard_acquire(store, key, 60000, NULL, &grant, &err), SYNCGUARD_LOCKED);
        assert_status(syncguard_release(store, held[i].lock_id, NULL, &err), SYNCGUARD_OK);
    }
    only_counters_are_left(&m);
}

/* Locks whose slot stays half moved for longer than their lease are renewed over there. */
static void heartbeat_follows_a_moving_slot(void **state)
{
    (void)state;
    enum { LOCKS = 8 };
    syncguard_lock *locks[LOCKS] = {NULL};
    char key[32];
    move m;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 6000; /* a sanitizer on a busy machine renews late */
    options.auto_extend = true;
    for (int i = 0; i < LOCKS; i++) {
        snprintf(key, sizeof key, "renewed:%d", i);
        assert_status(syncguard_lock_acquire(store, key, &options, &locks[i], &err), SYNCGUARD_OK);
    }
    begin_move(&m);
    for (int i = 0; i < LOCKS; i++) {
        snprintf(key, sizeof key, "renewed:%d", i);
        spread(&m, key, syncguard_lock_id(locks[i]), i);
    }
    pause_ms(8000);
    for (int i = 0; i < LOCKS; i++)
        assert_int_equal(syncguard_lock_lost(locks[i]), SYNCGUARD_LOST_NO);
    end_move(&m);
    pause_ms(1500);
    for (int i = 0; i < LOCKS; i++) {
        assert_int_equal(syncguard_lock_lost(locks[i]), SYNCGUARD_LOST_NO);
        syncguard_lock_dispose(locks[i]);
    }
}

static bool count_locks(void *context, const syncguard_lock_info *info)
{
    (void)info;
    ++*(int *)context;
    return true;
}

/* Whatever seed it starts from, a handle finds the node of its slot, also to list. */
static void any_seed_will_do(void **state)
{
    (void)state;
    syncguard_grant grant;
    assert_status(syncguard_acquire(store, "seeded", 60000, NULL, &grant, &err), SYNCGUARD_OK);
    for (int i = 0; i < 3; i++) {
        char url[128];
        int count = 0;
        snprintf(url, sizeof url, "redis+cluster://127.0.0.1:1,127.0.0.1:%d", test_port(i));
        syncguard_backend *other = open_url(url);
        assert_status(syncguard_list(other, NULL, count_locks, &count, &err), SYNCGUARD_OK);
        assert_int_equal(count, 1);
        syncguard_grant refused;
        assert_status(syncguard_acquire(other, "seeded", 5000, NULL, &refused, &err),
                      SYNCGUARD_LOCKED);
        syncguard_close(other);
    }
    assert_status(syncguard_release(store, grant.lock_id, NULL, &err), SYNCGUARD_OK);
}

/* No lock is left out of a list, whichever node has it. */
static void list_sees_both_nodes(void **state)
{
    (void)state;
    syncguard_grant grants[20];
    char key[32];
    move m;
    int count = 0;
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "listed:%d", i);
        assert_status(syncguard_acquire(store, key, 60000, NULL, &grants[i], &err), SYNCGUARD_OK);
    }
    begin_move(&m);
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "listed:%d", i);
        spread(&m, key, grants[i].lock_id, i % 8);
    }
    assert_status(syncguard_list(store, NULL, count_locks, &count, &err), SYNCGUARD_OK);
    assert_int_equal(count, 20);
    end_move(&m);
    for (int i = 0; i < 20; i++)
        assert_status(syncguard_release(store, grants[i].lock_id, NULL, &err), SYNCGUARD_OK);
}

/* --- waiters --- */

enum { WAITERS = 12 };

typedef struct waiter {
    pthread_t thread;
    char key[32];
    syncguard_backend *backend;
    syncguard_grant grant; /* of the lock in the way */
    syncguard_status status;
    atomic_llong got_ms;
} waiter;

static void *wait_patiently(void *argument)
{
    waiter *self = argument;
    syncguard_lock *lock = NULL;
    syncguard_error error;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.retry_delay_ms = 20000; /* polling would be seen */
    options.jitter = SYNCGUARD_JITTER_NONE;
    options.timeout_ms = 60000;
    self->status = syncguard_lock_acquire(self->backend, self->key, &options, &lock, &error);
    atomic_store(&self->got_ms, now_ms());
    syncguard_lock_dispose(lock);
    return NULL;
}

static void waiters_follow_the_slot(void **state)
{
    (void)state;
    static waiter waiters[WAITERS];
    syncguard_backend *other = open_url(test_url);
    move m;
    int late = 0;
    for (int i = 0; i < WAITERS; i++) {
        waiter *w = &waiters[i];
        snprintf(w->key, sizeof w->key, "awaited:%d", i);
        w->backend = other;
        assert_status(syncguard_acquire(store, w->key, 120000, NULL, &w->grant, &err),
                      SYNCGUARD_OK);
        pthread_create(&w->thread, NULL, wait_patiently, w);
    }
    pause_ms(1000);
    for (int moves = 0; moves < 2; moves++) {
        begin_move(&m);
        while (move_some(&m, 3))
            pause_ms(20);
        end_move(&m);
        pause_ms(2000);
        for (int i = moves; i < WAITERS; i += 2) {
            waiter *w = &waiters[i];
            int64_t start = now_ms();
            assert_status(syncguard_release(store, w->grant.lock_id, NULL, &err), SYNCGUARD_OK);
            pthread_join(w->thread, NULL);
            assert_int_equal(w->status, SYNCGUARD_OK);
            late += atomic_load(&w->got_ms) - start > 2000;
        }
    }
    assert_int_equal(late, 0);
    syncguard_close(other);
}

/* --- the death of nodes --- */

/* The other nodes hear of a new owner from each other, after the client may have found it. */
static int owner_in_the_end(int slot, int expected)
{
    char id[64];
    int owner = owner_of(slot, id);
    for (int i = 0; i < 200 && owner != expected; i++) {
        pause_ms(100);
        owner = owner_of(slot, id);
    }
    return owner;
}

/* A cluster answers again once all its nodes have agreed. */
static syncguard_status acquire_in_the_end(syncguard_backend *other, const char *key,
                                           syncguard_grant *grant)
{
    syncguard_status status = syncguard_acquire(other, key, 60000, NULL, grant, &err);
    for (int i = 0; i < 200 && status == SYNCGUARD_E_SERVICE_UNAVAILABLE; i++) {
        pause_ms(100);
        status = syncguard_acquire(other, key, 60000, NULL, grant, &err);
    }
    return status;
}

/* The only server that the handle was given is the one that dies. */
static void cluster_outlives_its_seed(void **state)
{
    (void)state;
    char url[128], id[64];
    syncguard_grant grant;
    int64_t expires;
    int slot = our_slot();
    int owner = owner_of(slot, id);
    snprintf(url, sizeof url, "redis+cluster://127.0.0.1:%d", test_port(owner));
    syncguard_backend *other = open_url(url);
    assert_status(syncguard_acquire(other, "outlives", 120000, NULL, &grant, &err), SYNCGUARD_OK);
    pause_ms(500); /* replication */
    witness = (owner + 1) % PRIMARIES;
    kill(test_pid(owner), SIGKILL);
    int64_t start = now_ms();
    syncguard_status status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    while (status != SYNCGUARD_OK && now_ms() - start < 40000) {
        pause_ms(100);
        status = syncguard_extend(other, grant.lock_id, 120000, NULL, &expires, &err);
        if (status != SYNCGUARD_OK && status != SYNCGUARD_E_SERVICE_UNAVAILABLE &&
            status != SYNCGUARD_E_NETWORK_TIMEOUT)
            fail_msg("%s %s %s", syncguard_status_name(status), err.native, err.message);
    }
    assert_status(status, SYNCGUARD_OK);
    print_message("followed after %d ms\n", (int)(now_ms() - start));
    assert_int_equal(owner_in_the_end(slot, owner + PRIMARIES), owner + PRIMARIES);
    assert_status(syncguard_release(other, grant.lock_id, NULL, &err), SYNCGUARD_OK);
    syncguard_close(other);
}

/* A server that has the address of a node that was, and would grant anything. */
static void stranger_is_not_taken_for_a_node(void **state)
{
    (void)state;
    char url[128], id[64];
    syncguard_grant grant;
    server stranger;
    int slot = our_slot();
    int owner = owner_of(slot, id);
    if (owner == witness)
        witness = (owner + 1) % PRIMARIES;
    snprintf(url, sizeof url, "redis+cluster://127.0.0.1:%d", test_port(witness));
    syncguard_backend *other = open_url(url);
    assert_status(acquire_in_the_end(other, "strange", &grant), SYNCGUARD_OK);
    server_start(&stranger, 0, NULL);
    server_kill(&stranger);
    kill(test_pid(owner), SIGKILL);
    pause_ms(300);
    server_start(&stranger, test_port(owner), NULL);
    for (int i = 0; i < 3; i++) {
        syncguard_grant wrong;
        syncguard_status status =
            syncguard_acquire(other, "strange", 60000, briefly(), &wrong, &err);
        assert_true(status < 0 || status == SYNCGUARD_LOCKED);
    }
    redisReply *reply = raw_at(stranger.port, "DBSIZE");
    assert_int_equal(reply->integer, 0);
    freeReplyObject(reply);
    syncguard_close(other);
    server_kill(&stranger);
    server_remove(&stranger);
}

int main(int argc, char **argv)
{
    test_begin(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_seed_will_do),
        cmocka_unit_test(half_moved_locks_are_what_they_are),
        cmocka_unit_test(half_moved_dead_locks_are_taken_over),
        cmocka_unit_test(index_outlives_its_lock),
        cmocka_unit_test(slot_moves_under_load),
        cmocka_unit_test(heartbeat_follows_a_moving_slot),
        cmocka_unit_test(list_sees_both_nodes),
        cmocka_unit_test(waiters_follow_the_slot),
        cmocka_unit_test(half_moved_grants_are_undone),
        cmocka_unit_test(cluster_outlives_its_seed), /* the last: servers are missing then */
        cmocka_unit_test(stranger_is_not_taken_for_a_node),
    };
    return cmocka_run_group_tests_name("redis cluster", tests, open_store, close_store);
}
