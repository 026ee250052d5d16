/*
 * Plain hiredis that calls the library's own scripts by EVALSHA and does nothing else; and figures
 * that only Redis has: its own time per command.
 */
#include <hiredis/hiredis.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "backends/redis/scripts.h"
#include "bench.h"

#define SERVER_PAIRS 2000

typedef struct plain_lock {
    char name[112], index[112], counter[192], id[23], rest[96];
} plain_lock;

typedef struct plain {
    redisContext *context;
    char prefix[BENCH_NAME_SIZE + 16];
    int number;
    long serial;
    bool renews;
    plain_lock locks[BENCH_BATCH];
} plain;

static redisReply *raw_redis_command(plain *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    redisReply *reply = redisvCommand(self->context, format, arguments);
    va_end(arguments);
    if (reply == NULL || reply->type == REDIS_REPLY_ERROR)
        bench_die("plain hiredis", reply == NULL ? self->context->errstr : reply->str);
    return reply;
}

/* Connects to the database of the URL. */
static plain *raw_redis_connect(const char *url)
{
    static atomic_int opened;
    plain *self = calloc(1, sizeof *self);
    char host[256];
    if (self == NULL)
        bench_die("redis", "out of memory");
    if (strncmp(url, "redis://", 8) != 0 || strcspn(url, "@") < strcspn(url, "?"))
        bench_die("redis", "only redis://HOST:PORT/DATABASE, without a password, can be measured");
    const char *rest = url + 8 + strcspn(url + 8, ":/?");
    snprintf(host, sizeof host, "%.*s", (int)(rest - url - 8), url + 8);
    long port = 6379;
    if (*rest == ':')
        port = strtol(rest + 1, NULL, 10);
    rest += strcspn(rest, "/?");
    long database = 0;
    if (*rest == '/')
        database = strtol(rest + 1, NULL, 10);
    if (!bench_option(url, "prefix", self->prefix, sizeof self->prefix))
        snprintf(self->prefix, sizeof self->prefix, "syncguard"); /* asked for one answer */
    self->number = atomic_fetch_add(&opened, 1);
    self->context = redisConnect(host, (int)port);
    if (self->context == NULL || self->context->err != 0)
        bench_die("redis", "cannot connect");
    if (database != 0)
        freeReplyObject(raw_redis_command(self, "SELECT %ld", database));
    return self;
}

static void *raw_redis_open(const char *url)
{
    plain *self = raw_redis_connect(url);
    for (int i = 0; i < SG_REDIS_SCRIPTS; i++) {
        redisReply *reply = raw_redis_command(self, "SCRIPT LOAD %s", sg_redis_scripts[i].text);
        if (strcmp(reply->str, sg_redis_scripts[i].sha) != 0)
            bench_die("redis", "SCRIPT LOAD gives another SHA-1");
        freeReplyObject(reply);
    }
    return self;
}

static void raw_redis_close(void *raw)
{
    plain *self = raw;
    redisFree(self->context);
    free(self);
}

/* ---- the arguments that the library would send ---- */

static void raw_redis_init_lock(plain *self, plain_lock *lock, const char *key)
{
    snprintf(lock->name, sizeof lock->name, "%s:%s", self->prefix, key);
    snprintf(lock->id, sizeof lock->id, "%06x%016lx", (unsigned)self->number & 0xffffff,
             self->serial++);
    snprintf(lock->index, sizeof lock->index, "%s:id:%s", self->prefix, lock->id);
    snprintf(lock->counter, sizeof lock->counter, "%s:fence:%s:%s", self->prefix, self->prefix,
             key);
    snprintf(lock->rest, sizeof lock->rest, "\"key\":\"%s\"}", key);
}

static void raw_redis_send_acquire(plain *self, const plain_lock *lock)
{
    const char *argv[] = {"EVALSHA",   sg_redis_scripts[SG_REDIS_SCRIPT_ACQUIRE].sha,
                          "3",         lock->name,
                          lock->index, lock->counter,
                          "30000",     "31000",
                          lock->rest};
    redisAppendCommandArgv(self->context, 9, argv, NULL);
}

static void raw_redis_send_release(plain *self, const plain_lock *lock)
{
    const char *argv[] = {"EVALSHA", sg_redis_scripts[SG_REDIS_SCRIPT_RELEASE].sha, "1",
                          lock->index, "1000"};
    redisAppendCommandArgv(self->context, 5, argv, NULL);
}

static void raw_redis_send_extend(plain *self, const plain_lock *lock)
{
    const char *argv[] = {"EVALSHA", sg_redis_scripts[SG_REDIS_SCRIPT_EXTEND].sha,
                          "1",       lock->index,
                          "30000",   "31000"};
    redisAppendCommandArgv(self->context, 6, argv, NULL);
}

/* The stored value or name, and the new expiry of an extend. */
static void raw_redis_take_replies(plain *self, int replies)
{
    for (int i = 0; i < replies; i++) {
        redisReply *reply = NULL;
        if (redisGetReply(self->context, (void **)&reply) != REDIS_OK ||
            (reply->type != REDIS_REPLY_STRING &&
             (reply->type != REDIS_REPLY_INTEGER || reply->integer < 1000000)))
            bench_die("redis", "the plain client got another answer");
        freeReplyObject(reply);
    }
}

static void raw_redis_pair(void *raw, const char *key)
{
    plain *self = raw;
    raw_redis_init_lock(self, &self->locks[0], key);
    raw_redis_send_acquire(self, &self->locks[0]);
    raw_redis_take_replies(self, 1);
    raw_redis_send_release(self, &self->locks[0]);
    raw_redis_take_replies(self, 1);
}

static void raw_redis_pipeline_pairs(void *raw, int width)
{
    plain *self = raw;
    for (int i = 0; i < width; i++) {
        char key[32];
        snprintf(key, sizeof key, "bench:p:%d", i);
        raw_redis_init_lock(self, &self->locks[i], key);
        raw_redis_send_acquire(self, &self->locks[i]);
    }
    raw_redis_take_replies(self, width);
    for (int i = 0; i < width; i++)
        raw_redis_send_release(self, &self->locks[i]);
    raw_redis_take_replies(self, width);
}

static void raw_redis_renew(void *raw)
{
    plain *self = raw;
    for (int i = 0; i < BENCH_BATCH; i++) {
        char key[32];
        if (self->renews) {
            raw_redis_send_extend(self, &self->locks[i]);
            continue;
        }
        snprintf(key, sizeof key, "plain-renew-%d", i);
        raw_redis_init_lock(self, &self->locks[i], key);
        raw_redis_send_acquire(self, &self->locks[i]);
    }
    raw_redis_take_replies(self, BENCH_BATCH);
    self->renews = true;
}

static void raw_redis_ping(void *raw)
{
    freeReplyObject(raw_redis_command(raw, "PING"));
}

/* A number of INFO or its commandstats; "name" is the text before it. */
static double raw_redis_info_number(plain *self, const char *section, const char *name)
{
    redisReply *reply = raw_redis_command(self, "INFO %s", section);
    const char *at = strstr(reply->str, name);
    double value = at == NULL ? 0 : strtod(at + strlen(name), NULL);
    freeReplyObject(reply);
    return value;
}

static int raw_redis_server_pid(void *raw)
{
    return (int)raw_redis_info_number(raw, "server", "process_id:");
}

/* ---- our place ---- */

static void raw_redis_place_url(const char *url, const char *name, char *out, size_t size)
{
    bench_set_option(url, "prefix", name, out, size);
}

/* One pass over the keys of the database; returns how many of our keys it found. */
static long raw_redis_remove_keys(plain *self)
{
    char cursor[32] = "0";
    long removed = 0;
    do {
        redisReply *page =
            raw_redis_command(self, "SCAN %s MATCH %s* COUNT 5000", cursor, self->prefix);
        redisReply *keys = page->element[1];
        snprintf(cursor, sizeof cursor, "%s", page->element[0]->str);
        for (size_t i = 0; i < keys->elements; i++)
            redisAppendCommand(self->context, "DEL %b", keys->element[i]->str,
                               keys->element[i]->len);
        for (size_t i = 0; i < keys->elements; i++) {
            redisReply *reply = NULL;
            if (redisGetReply(self->context, (void **)&reply) != REDIS_OK ||
                reply->type != REDIS_REPLY_INTEGER)
                bench_die("redis", "keys cannot be removed");
            removed += reply->integer;
            freeReplyObject(reply);
        }
        freeReplyObject(page);
    } while (strcmp(cursor, "0") != 0);
    return removed;
}

/* Repeats the pass until it finds none: the server may still execute requests of a client that was
 * stopped. */
static void raw_redis_clear(const char *url)
{
    plain *self = raw_redis_connect(url);
    while (raw_redis_remove_keys(self) > 0)
        bench_pause_us(20000);
    raw_redis_close(self);
}

/* A server that evicts keys to make room for new ones would drop those of other users. */
static bool raw_redis_may_fill(const char *url)
{
    plain *self = raw_redis_connect(url);
    redisReply *info = raw_redis_command(self, "INFO memory");
    const char *limit = strstr(info->str, "maxmemory:");
    bool evicts = limit != NULL && strtod(limit + strlen("maxmemory:"), NULL) > 0 &&
                  strstr(info->str, "maxmemory_policy:noeviction") == NULL;
    if (evicts)
        fputs("syncguard-bench: this Redis server evicts keys; nothing fills it\n", stderr);
    freeReplyObject(info);
    raw_redis_close(self);
    return !evicts;
}

/* On a server of our own each size has its own database. */
static void raw_redis_grow(const bench_store *store, long locks, char *out, size_t size)
{
    static const char fill[] =
        "local t = redis.call('TIME') local now = t[1] * 1000 local p = ARGV[3] "
        "for i = ARGV[1], ARGV[2] do "
        "local key = string.format('grow-%07d', i) local id = string.format('%022d', i) "
        "local name = p .. ':' .. key "
        "redis.call('SET', name, string.format('{\"lockId\":\"%s\",\"expiresAtMs\":%.0f,"
        "\"acquiredAtMs\":%.0f,\"fence\":\"000000000000001\",\"key\":\"%s\"}', id, now + 86400000,"
        " now, key), 'PX', 86401000) "
        "redis.call('SET', p .. ':id:' .. id, name, 'PX', 86401000) "
        "redis.call('SET', p .. ':fence:' .. name, 1) end return 1";
    char base[BENCH_URL_SIZE], prefix[BENCH_NAME_SIZE], grown[BENCH_NAME_SIZE + 16];
    int database = locks == 1 ? 12 : locks <= 1000 ? 13 : locks <= 100000 ? 14 : 15;
    const char *url = store->url;
    if (store->own) {
        snprintf(base, sizeof base, "%.*s/%d%s", (int)(strlen("redis://") + strcspn(url + 8, "/?")),
                 url, database, url + strcspn(url, "?"));
        url = base;
    }
    if (!bench_option(url, "prefix", prefix, sizeof prefix))
        bench_die("redis", "there is no prefix of our own");
    snprintf(grown, sizeof grown, "%s_g%ld", prefix, locks);
    bench_set_option(url, "prefix", grown, out, size);
    plain *self = raw_redis_connect(out);
    for (long from = 1; from <= locks; from += 5000) {
        long to = from + 4999 < locks ? from + 4999 : locks;
        freeReplyObject(raw_redis_command(self, "EVAL %s 0 %ld %ld %s", fill, from, to, grown));
    }
    raw_redis_close(self);
}

/* ---- a hand-over by hand ---- */

static void raw_redis_give_batons(const char *url, bench_baton *shared, int turns)
{
    plain *self = raw_redis_open(url);
    plain_lock *lock = &self->locks[0];
    for (int i = 0; i < turns; i++) {
        raw_redis_init_lock(self, lock, "bench:plain-baton");
        raw_redis_send_acquire(self, lock);
        raw_redis_take_replies(self, 1);
        bench_give_baton(shared);
        raw_redis_send_release(self, lock);
        raw_redis_take_replies(self, 1);
        bench_await_baton(shared, BENCH_TAKEN);
    }
    raw_redis_close(self);
}

/* CLIENT CACHING YES and a read of the lock's name: the next change of it is reported. */
static void raw_redis_send_arming(plain *self, const plain_lock *lock)
{
    redisAppendCommand(self->context, "CLIENT CACHING YES");
    redisAppendCommand(self->context, "EXISTS %s", lock->name);
}

static void raw_redis_drop_replies(plain *self, int count)
{
    for (int i = 0; i < count; i++) {
        redisReply *reply = NULL;
        if (redisGetReply(self->context, (void **)&reply) != REDIS_OK)
            bench_die("redis", "the plain hand-over broke");
        freeReplyObject(reply);
    }
}

/* One thread that reads the report and sends the acquire itself: no client that relies on client
 * tracking can be faster. */
static void raw_redis_take_batons(const char *url, bench_baton *shared, double *times, int turns)
{
    plain *self = raw_redis_open(url);
    plain *reports = raw_redis_open(url);
    plain_lock *lock = &self->locks[0];
    redisReply *id = raw_redis_command(reports, "CLIENT ID");
    freeReplyObject(raw_redis_command(reports, "SUBSCRIBE __redis__:invalidate"));
    freeReplyObject(
        raw_redis_command(self, "CLIENT TRACKING ON REDIRECT %lld OPTIN NOLOOP", id->integer));
    freeReplyObject(id);
    for (int i = 0; i < turns; i++) {
        struct pollfd told = {reports->context->fd, POLLIN, 0};
        bench_await_baton(shared, BENCH_HELD);
        raw_redis_init_lock(self, lock, "bench:plain-baton");
        raw_redis_send_arming(self, lock);
        raw_redis_drop_replies(self, 2);
        bench_set_baton(shared, BENCH_WAITED_FOR);
        if (poll(&told, 1, 10000) <= 0)
            bench_die("redis", "no report came");
        raw_redis_drop_replies(reports, 1);
        raw_redis_send_arming(self, lock);
        raw_redis_send_acquire(self, lock);
        raw_redis_drop_replies(self, 2);
        raw_redis_take_replies(self, 1);
        times[i] = bench_us() - atomic_load(&shared->released_us);
        raw_redis_send_release(self, lock);
        raw_redis_take_replies(self, 1);
        bench_set_baton(shared, BENCH_TAKEN);
    }
    raw_redis_close(reports);
    raw_redis_close(self);
}

/* ---- the server's time ---- */

/* The microseconds that a command has used so far. */
static double raw_redis_command_usec(plain *self, const char *command)
{
    char head[64];
    redisReply *reply = raw_redis_command(self, "INFO commandstats");
    snprintf(head, sizeof head, "cmdstat_%s:", command);
    const char *at = strstr(reply->str, head);
    at = at == NULL ? NULL : strstr(at, "usec=");
    double value = at == NULL ? 0 : strtod(at + 5, NULL);
    freeReplyObject(reply);
    return value;
}

/* The recipe of most simple locks: SET NX PX, and compare-and-delete. */
static double raw_redis_measure_simple_pairs(plain *self, const char *sha)
{
    double before = raw_redis_command_usec(self, "set") + raw_redis_command_usec(self, "evalsha");
    for (int i = 0; i < SERVER_PAIRS; i++) {
        freeReplyObject(
            raw_redis_command(self, "SET %s:simple token%d NX PX 30000", self->prefix, i));
        freeReplyObject(
            raw_redis_command(self, "EVALSHA %s 1 %s:simple token%d", sha, self->prefix, i));
    }
    return (raw_redis_command_usec(self, "set") + raw_redis_command_usec(self, "evalsha") -
            before) /
           SERVER_PAIRS;
}

static double raw_redis_measure_our_pairs(plain *self, syncguard_backend *backend)
{
    double before = raw_redis_command_usec(self, "evalsha");
    for (int i = 0; i < SERVER_PAIRS; i++)
        bench_pair(backend, "bench:ours");
    return (raw_redis_command_usec(self, "evalsha") - before) / SERVER_PAIRS;
}

static void *raw_redis_wait_for_lock(void *argument)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    syncguard_lock *lock = NULL;
    options.max_retries = SYNCGUARD_RETRY_FOREVER;
    options.timeout_ms = SYNCGUARD_WAIT_FOREVER;
    if (syncguard_lock_acquire(argument, "bench:elsewhere", &options, &lock, NULL) != SYNCGUARD_OK)
        bench_die("redis", "the waiter failed");
    syncguard_lock_dispose(lock);
    return NULL;
}

void bench_server_time(const bench_store *store)
{
    if (strcmp(store->raw->name, "redis") != 0)
        return;
    plain *self = raw_redis_open(store->url);
    syncguard_backend *backend = bench_open(store->url, NULL);
    syncguard_backend *other = bench_open(store->url, NULL);
    redisReply *sha = raw_redis_command(self, "SCRIPT LOAD %s",
                                        "if redis.call('GET', KEYS[1]) == ARGV[1] then "
                                        "return redis.call('DEL', KEYS[1]) end return 0");
    bench_pin(store, self);
    (void)raw_redis_measure_our_pairs(self, backend);
    double ours[BENCH_MAX_REPETITIONS];
    double simple[BENCH_MAX_REPETITIONS];
    double crowded[BENCH_MAX_REPETITIONS];
    double alone[BENCH_MAX_REPETITIONS];
    for (int r = 0; r < store->repetitions; r++) {
        syncguard_grant grant;
        pthread_t waiter;
        simple[r] = raw_redis_measure_simple_pairs(self, sha->str);
        ours[r] = alone[r] = raw_redis_measure_our_pairs(self, backend);
        if (syncguard_acquire(backend, "bench:elsewhere", 30000, NULL, &grant, NULL) !=
                SYNCGUARD_OK ||
            pthread_create(&waiter, NULL, raw_redis_wait_for_lock, other) != 0)
            bench_die("redis", "no waiter");
        bench_pause_us(100000);
        crowded[r] = raw_redis_measure_our_pairs(self, backend);
        if (syncguard_release(backend, grant.lock_id, NULL, NULL) != SYNCGUARD_OK)
            bench_die("redis", "release failed");
        pthread_join(waiter, NULL);
    }
    bench_report(store, "server time of a pair", "us", ours, simple,
                 "SET NX and compare-and-delete", store->repetitions, BENCH_RATIO_MOST, 6.5);
    /* The same: within the difference between two runs of the same program. */
    bench_report(store, "server time, waiters elsewhere", "us", crowded, alone, "without them",
                 store->repetitions, BENCH_RATIO_MOST, 1.1);
    bench_unpin();
    freeReplyObject(sha);
    syncguard_close(backend);
    syncguard_close(other);
    raw_redis_close(self);
}

const bench_raw bench_raw_redis = {
    .name = "redis",
    .scheme = "redis:",
    .client = "plain hiredis, same scripts",
    .variants = {{"pair", NULL, 1.05}, {"pair, spin_us=50", "spin_us=50", 0.65}},
    .open = raw_redis_open,
    .close = raw_redis_close,
    .pair = raw_redis_pair,
    .pairs = raw_redis_pipeline_pairs,
    .rate_bar = 1.0,
    .rate_threads = 64,
    .renew = raw_redis_renew,
    .round_trip = raw_redis_ping,
    .round_trip_name = "one PING",
    .turns = 240,
    .by_hand = "plain hiredis",
    .give = raw_redis_give_batons,
    .take = raw_redis_take_batons,
    .handover_bar = {4, 6},
    .tail_bar = {9, 18},
    .server_pid = raw_redis_server_pid,
    .one_processor = true,
    .place = raw_redis_place_url,
    .clear = raw_redis_clear,
    .grow = raw_redis_grow,
    .grows_together = true,
    .may_fill = raw_redis_may_fill,
    .held = 100000,
    .remembers = 20000,
};
