/*
 * What the Redis benches share: a plain hiredis client that calls the library's
 * own scripts with nothing around them, and pinning. The servers are those of
 * tests/redis/with-redis, whose environment says where they are.
 */
#ifndef BENCH_REDIS_COMMON_H
#define BENCH_REDIS_COMMON_H

#include <hiredis/hiredis.h>
#include <sched.h>
#include <unistd.h>

#include "backends/redis/internal.h"
#include "measure.h"
#include "syncguard.h"

static inline void bench_die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static inline int bench_env(const char *name)
{
    const char *text = getenv(name);
    if (text == NULL)
        bench_die("run me through tests/redis/with-redis");
    return (int)strtol(text, NULL, 10);
}

/* Server on the first processor of the machine, this program on the last. */
static inline void bench_pin(void)
{
    cpu_set_t set;
    long last = sysconf(_SC_NPROCESSORS_ONLN) - 1;
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    sched_setaffinity(bench_env("REDIS_TEST_PIDS"), sizeof set, &set);
    CPU_ZERO(&set);
    CPU_SET(last, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static inline void bench_unpin(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (long i = 0; i < sysconf(_SC_NPROCESSORS_ONLN); i++)
        CPU_SET(i, &set);
    sched_setaffinity(bench_env("REDIS_TEST_PIDS"), sizeof set, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static inline syncguard_backend *bench_open(int spin_us, bool no_tracking)
{
    syncguard_redis_options redis = SYNCGUARD_REDIS_OPTIONS_INIT;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    char hosts[32];
    snprintf(hosts, sizeof hosts, "127.0.0.1:%d", bench_env("REDIS_TEST_PORT"));
    redis.hosts = hosts;
    redis.spin_us = spin_us;
    redis.no_tracking = no_tracking;
    if (syncguard_redis_open(&redis, NULL, &backend, &err) != SYNCGUARD_OK)
        bench_die(err.message);
    return backend;
}

static inline redisContext *bench_connect(void)
{
    redisContext *context = redisConnect("127.0.0.1", bench_env("REDIS_TEST_PORT"));
    if (context == NULL || context->err)
        bench_die("cannot connect");
    for (int i = 0; i < SG_SCRIPTS; i++) {
        redisReply *reply = redisCommand(context, "SCRIPT LOAD %s", sg_redis_scripts[i].text);
        if (reply == NULL || reply->type != REDIS_REPLY_STRING ||
            strcmp(reply->str, sg_redis_scripts[i].sha) != 0)
            bench_die("SCRIPT LOAD gives another SHA-1");
        freeReplyObject(reply);
    }
    return context;
}

/* The arguments that the library would send. */
typedef struct plain_lock {
    char name[96], index[96], counter[128], id[23], rest[96];
} plain_lock;

static inline void plain_make(plain_lock *lock, const char *key, long serial)
{
    snprintf(lock->name, sizeof lock->name, "syncguard:%s", key);
    snprintf(lock->id, sizeof lock->id, "%022lx", serial);
    snprintf(lock->index, sizeof lock->index, "syncguard:id:%s", lock->id);
    snprintf(lock->counter, sizeof lock->counter, "syncguard:fence:syncguard:%s", key);
    snprintf(lock->rest, sizeof lock->rest, "\"key\":\"%s\"}", key);
}

static inline void plain_acquire(redisContext *context, const plain_lock *lock)
{
    const char *argv[] = {"EVALSHA",
                          sg_redis_scripts[SG_ACQUIRE].sha,
                          "3",
                          lock->name,
                          lock->index,
                          lock->counter,
                          lock->id,
                          "30000",
                          "1000",
                          "31000",
                          "900000000000000",
                          lock->rest};
    redisAppendCommandArgv(context, 12, argv, NULL);
}

static inline void plain_release(redisContext *context, const plain_lock *lock)
{
    const char *argv[] = {"EVALSHA", sg_redis_scripts[SG_RELEASE].sha, "1", lock->index, lock->id,
                          "1000"};
    redisAppendCommandArgv(context, 6, argv, NULL);
}

static inline void plain_reply(redisContext *context)
{
    redisReply *reply = NULL;
    if (redisGetReply(context, (void **)&reply) != REDIS_OK || reply->type != REDIS_REPLY_ARRAY ||
        reply->element[0]->integer != 1)
        bench_die("the plain client got another answer");
    freeReplyObject(reply);
}

static inline void bench_pair(syncguard_backend *backend, const char *key)
{
    syncguard_grant grant;
    syncguard_error err;
    if (syncguard_acquire(backend, key, 30000, NULL, &grant, &err) != SYNCGUARD_OK ||
        syncguard_release(backend, grant.lock_id, NULL, &err) != SYNCGUARD_OK)
        bench_die(err.message);
}

#endif
