/*
 * Finds settings of this server that would break the guarantees, with INFO, CONFIG GET and TIME,
 * each of which may be forbidden. rights.c checks what the user may do.
 */
#include "operations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "request.h"

/* Value of "name:..." in the text of INFO; "" if it is not there. */
static void redis_info_field(const char *info, const char *name, char out[64])
{
    size_t length = strlen(name);
    out[0] = '\0';
    for (const char *at = info; at != NULL && *at != '\0';) {
        if (strncmp(at, name, length) == 0 && at[length] == ':') {
            size_t n = strcspn(at + length + 1, "\r\n");
            if (n > 63)
                n = 63;
            memcpy(out, at + length + 1, n);
            out[n] = '\0';
            return;
        }
        at = strchr(at, '\n');
        if (at != NULL)
            at++;
    }
}

static void redis_diagnose_version(const syncguard_findings *to, const char *info)
{
    char version[64], line[160];
    redis_info_field(info, "redis_version", version);
    long major = strtol(version, NULL, 10);
    const char *dot = strchr(version, '.');
    long minor = dot != NULL ? strtol(dot + 1, NULL, 10) : 0;
    snprintf(line, sizeof line, "server %s", version);
    if (major > 6 || (major == 6 && minor >= 2))
        syncguard_report_fine(to, "version", line);
    else
        syncguard_report(to, SYNCGUARD_BLOCK, "version", line,
                         "the scripts were never tested with servers older than 6.2",
                         "upgrade the server");
}

static void redis_diagnose_eviction(const syncguard_findings *to, const char *info)
{
    char policy[64], limit[64], line[200];
    redis_info_field(info, "maxmemory_policy", policy);
    redis_info_field(info, "maxmemory", limit);
    bool unlimited = strcmp(limit, "0") == 0;
    bool all = strncmp(policy, "allkeys", 7) == 0;
    snprintf(line, sizeof line, "policy %s, %s memory limit", policy, unlimited ? "no" : "with a");
    if (policy[0] == '\0')
        syncguard_report(to, SYNCGUARD_WARN, "eviction", "the policy could not be read",
                         "a server that evicts keys drops locks",
                         "check that maxmemory-policy is noeviction");
    else if (strcmp(policy, "noeviction") == 0 || unlimited)
        syncguard_report_fine(to, "eviction", line);
    else
        syncguard_report(to, SYNCGUARD_BLOCK, "eviction", line,
                         all ? "the server may drop locks and fence counters: two holders at once "
                               "become possible, and a fence can be given twice"
                             : "the server may drop locks: two holders at once become possible",
                         "set maxmemory-policy noeviction, or use a separate server for locks");
}

/* At its memory limit a server that evicts no keys refuses to write new ones. Buffers for replicas
 * and for the append-only file do not count towards the limit. */
static void redis_diagnose_memory(const syncguard_findings *to, const char *info)
{
    char policy[64], text[64];
    redis_info_field(info, "maxmemory_policy", policy);
    redis_info_field(info, "maxmemory", text);
    long long limit = strtoll(text, NULL, 10);
    redis_info_field(info, "used_memory", text);
    long long used = strtoll(text, NULL, 10);
    redis_info_field(info, "mem_not_counted_for_evict", text);
    used -= strtoll(text, NULL, 10);
    if (limit <= 0 || strcmp(policy, "noeviction") != 0)
        return; /* redis_diagnose_eviction has reported it */
    char line[160];
    snprintf(line, sizeof line, "%lld of %lld bytes are used", used, limit);
    if (used > limit)
        syncguard_report(to, SYNCGUARD_BLOCK, "memory", line,
                         "the server refuses to store locks (OOM): nothing can be acquired",
                         "raise maxmemory, or remove other data from the server");
    else if (used > limit - limit / 10)
        syncguard_report(to, SYNCGUARD_WARN, "memory", line,
                         "at the limit the server refuses to store locks (OOM)",
                         "raise maxmemory, or remove other data from the server");
    else
        syncguard_report_fine(to, "memory", line);
}

/* The answer to CONFIG GET of one name, or NULL. */
static const char *redis_diagnose_config_value(const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[1]->type != REDIS_REPLY_STRING)
        return NULL;
    return reply->element[1]->str;
}

static void redis_diagnose_persistence(const syncguard_findings *to, const char *info,
                                       const char *save, const char *sync)
{
    static const char change[] = "set appendonly yes and appendfsync always, or accept it";
    char aof[64];
    redis_info_field(info, "aof_enabled", aof);
    if (strcmp(aof, "1") == 0 && sync != NULL && strcmp(sync, "always") == 0)
        syncguard_report_fine(to, "persistence", "append-only file, synced with every write");
    else if (strcmp(aof, "1") == 0)
        syncguard_report(to, SYNCGUARD_WARN, "persistence",
                         sync != NULL ? "append-only file, not synced with every write"
                                      : "append-only file; whether it is synced could not be read",
                         "a crash of the machine can take back the latest grants and fences",
                         change);
    else if (save != NULL && save[0] != '\0')
        syncguard_report(to, SYNCGUARD_WARN, "persistence", "snapshots only",
                         "a crash takes back the grants and fences since the last snapshot",
                         change);
    else
        syncguard_report(
            to, SYNCGUARD_WARN, "persistence",
            save != NULL ? "none"
                         : "no append-only file; whether there are snapshots could not be read",
            "without it a restart frees every lock and starts the fences again", change);
}

static void redis_diagnose_disk(const syncguard_findings *to, const char *info)
{
    char snapshot[64], aof[64];
    redis_info_field(info, "rdb_last_bgsave_status", snapshot);
    redis_info_field(info, "aof_last_write_status", aof);
    if (strcmp(snapshot, "err") == 0 || strcmp(aof, "err") == 0)
        syncguard_report(to, SYNCGUARD_BLOCK, "disk", "the last write to the disk failed",
                         "the server refuses writes (MISCONF), or loses them at a restart",
                         "see the server's log: its disk is full, or its folder cannot be written");
    else
        syncguard_report_fine(to, "disk", "the last write to the disk succeeded");
}

/* Counts the replicas that can confirm a WAIT; the others are still receiving the data. */
static int redis_info_online_replicas(const char *info)
{
    int count = 0;
    for (const char *at = info; (at = strstr(at, ",state=online")) != NULL; at++)
        count++;
    return count;
}

static void redis_diagnose_replication(const syncguard_findings *to, const sg_redis_config *config,
                                       const char *info)
{
    char role[64], line[120];
    int count = redis_info_online_replicas(info);
    redis_info_field(info, "role", role);
    snprintf(line, sizeof line, "primary with %d connected replicas, wait_replicas is %d", count,
             config->wait_replicas);
    if (strcmp(role, "master") != 0)
        syncguard_report(to, SYNCGUARD_BLOCK, "replication", "this server is a replica",
                         "it takes no locks",
                         "name the primary in the URL, or use redis+sentinel:// to find it");
    else if (config->wait_replicas > count)
        syncguard_report(to, SYNCGUARD_BLOCK, "replication", line,
                         "no lock can be acquired or extended",
                         "start the missing replicas, or lower wait_replicas");
    else if (count > 0 && config->wait_replicas == 0)
        syncguard_report(to, SYNCGUARD_WARN, "replication", line,
                         "replicas are not waited for: a failover can lose the latest grants and "
                         "fences, so that there are two holders",
                         "add wait_replicas=1 to the URL, or accept it");
    else
        syncguard_report_fine(to, "replication", line);
}

/* ---- clocks ---- */

/* Longest time for a replica that does not answer. */
#define REPLICA_NS (2000 * SYNCGUARD_NS_PER_MS)

/* A server's clock minus our monotonic clock. */
typedef struct clock_offset {
    int64_t us;
    int64_t error_us;
} clock_offset;

/* The time in an answer to TIME lies between sending and receiving. */
static bool redis_diagnose_read_time(const redisReply *reply, int64_t sent_ns, clock_offset *out)
{
    int64_t took_us = (syncguard_clock_ns() - sent_ns) / 1000;
    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_STRING)
        return false;
    out->us = strtoll(reply->element[0]->str, NULL, 10) * 1000000 +
              strtoll(reply->element[1]->str, NULL, 10) - sent_ns / 1000 - took_us / 2;
    out->error_us = took_us / 2;
    return true;
}

static bool redis_diagnose_clock(sg_redis_backend *backend, const syncguard_findings *to,
                                 const syncguard_limits *limits, clock_offset *primary)
{
    redisReply *reply = NULL;
    sg_redis_text text;
    sg_redis_text_init(&text);
    sg_redis_text_words(&text, "TIME", NULL);
    int64_t wall_ms = syncguard_wall_ms(), sent_ns = syncguard_clock_ns();
    syncguard_status status = sg_redis_commands_run(backend, NULL, &text, &reply, 1, limits, NULL);
    bool known = status == SYNCGUARD_OK && redis_diagnose_read_time(reply, sent_ns, primary);
    sg_redis_text_free(&text);
    if (known)
        syncguard_report_clock(to, primary->us + sent_ns / 1000 - wall_ms * 1000,
                               primary->error_us + 1000);
    sg_redis_replies_free(&reply, 1);
    return known;
}

/* A user whose server is on this machine does not expect the password on the network. */
static bool redis_replica_exposes_password(const sg_redis_config *config, const char *host)
{
    bool local = syncguard_host_is_local(config->seeds[0].host);
    bool verified = config->tls && config->tls_verify;
    return local && !verified && config->password != NULL && !syncguard_host_is_local(host);
}

static syncguard_status redis_replica_read_clock(const sg_redis_backend *backend,
                                                 const sg_redis_address *address,
                                                 const syncguard_limits *limits, clock_offset *out,
                                                 syncguard_error *err)
{
    sg_redis_connection *conn = NULL;
    sg_redis_text text;
    if (redis_replica_exposes_password(&backend->config, address->host))
        return syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, NULL,
                              "the password is not sent to another machine without verified TLS");
    syncguard_status status = sg_redis_connection_open(&backend->dialer, address,
                                                       SG_REDIS_ROLE_STORE, limits, &conn, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_text_init(&text);
    sg_redis_text_words(&text, "TIME", NULL);
    int64_t sent_ns = syncguard_clock_ns();
    redisReply *reply = NULL;
    status = sg_redis_connection_call(conn, &text, &reply, 1, limits, err);
    if (status == SYNCGUARD_OK && !redis_diagnose_read_time(reply, sent_ns, out))
        status = syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, NULL, "TIME is refused");
    sg_redis_replies_free(&reply, 1);
    sg_redis_text_free(&text);
    sg_redis_connection_close(conn);
    return status;
}

/* "slave0:ip=10.0.0.2,port=6379,state=online,..." */
static bool redis_info_read_replica(const char *line, char host[256], int *port)
{
    static const char before_host[] = ":ip=", before_port[] = ",port=";
    if (strncmp(line, "slave", 5) != 0)
        return false;
    const char *at = line + 5 + strspn(line + 5, "0123456789");
    if (strncmp(at, before_host, sizeof before_host - 1) != 0)
        return false;
    at += sizeof before_host - 1;
    size_t length = strcspn(at, ",\r\n");
    if (length == 0 || length > 255 || *at == '/' || *at == '@' || /* a path is no address */
        strncmp(at + length, before_port, sizeof before_port - 1) != 0)
        return false;
    memcpy(host, at, length);
    host[length] = '\0';
    long number = strtol(at + length + sizeof before_port - 1, NULL, 10);
    *port = number > 0 && number < 65536 ? (int)number : 0;
    return *port != 0;
}

/* Checks the replicas that the primary names, because a failover may promote one of them. Replicas
 * that do not answer must leave time for the other findings. */
static void redis_diagnose_replica_clocks(const sg_redis_backend *backend,
                                          const syncguard_findings *to, const char *info,
                                          const syncguard_limits *limits,
                                          const clock_offset *primary)
{
    int64_t left_ns = syncguard_limits_left_ns(limits);
    syncguard_limits all = syncguard_limits_until(limits, syncguard_clock_ns() + left_ns / 3);
    for (const char *at = info; at != NULL; at = strchr(at, '\n')) {
        char host[256], name[300];
        int port = 0;
        at += *at == '\n' ? 1 : 0;
        if (!redis_info_read_replica(at, host, &port))
            continue;
        sg_redis_address address = {host, port};
        clock_offset offset = {0, 0};
        syncguard_error err = {0};
        syncguard_limits share = syncguard_limits_until(&all, syncguard_clock_ns() + REPLICA_NS);
        snprintf(name, sizeof name, "%s:%d", host, port);
        if (redis_replica_read_clock(backend, &address, &share, &offset, &err) == SYNCGUARD_OK)
            syncguard_report_replica_clock(to, name, offset.us - primary->us,
                                           offset.error_us + primary->error_us);
        else
            syncguard_report_no_replica_clock(to, name, err.message);
    }
}

static void redis_diagnose_tls(const syncguard_findings *to, const sg_redis_config *config)
{
    const char *host = config->seeds[0].host;
    for (size_t i = 0; i < config->seed_count; i++) {
        if (!syncguard_host_is_local(config->seeds[i].host))
            host = config->seeds[i].host;
    }
    syncguard_report_tls(to, host, config->tls, config->tls_verify,
                         config->tls ? "remove tls_insecure from the URL; tls_ca names the CA"
                                     : "give the server a tls-port, and use rediss:// or tls=1");
}

/* Scans the whole key space, which may be forbidden, or take longer than the time that is left. */
static void redis_diagnose_records(sg_redis_backend *backend, const syncguard_findings *to,
                                   const syncguard_limits *limits)
{
    char line[160];
    size_t count = 0;
    bool all = sg_redis_count_unreadable(backend, limits, &count, NULL) == SYNCGUARD_OK;
    snprintf(line, sizeof line, "%zu stored records cannot be read", count);
    if (count > 0)
        syncguard_report(to, SYNCGUARD_WARN, "records", line,
                         "they may block their keys until somebody repairs or deletes them",
                         "look at the values below the prefix that are not JSON objects of a lock");
    else if (all)
        syncguard_report_fine(to, "records", "all stored locks can be read");
    else
        syncguard_report(to, SYNCGUARD_WARN, "records", "not all stored locks could be checked",
                         "a record that cannot be read may block its key",
                         "permit +scan and +getrange, or give more time with timeout_ms");
}

static void redis_diagnose_info(sg_redis_backend *backend, const syncguard_findings *to,
                                redisReply *const replies[3])
{
    const char *info = replies[0]->str;
    redis_diagnose_version(to, info);
    redis_diagnose_persistence(to, info, redis_diagnose_config_value(replies[1]),
                               redis_diagnose_config_value(replies[2]));
    redis_diagnose_disk(to, info);
    redis_diagnose_eviction(to, info);
    redis_diagnose_memory(to, info);
    redis_diagnose_replication(to, &backend->config, info);
}

syncguard_status sg_redis_diagnose(syncguard_backend *base, const syncguard_limits *limits,
                                   syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    sg_redis_backend *backend = (sg_redis_backend *)(void *)base;
    const syncguard_findings to = {fn, context};
    sg_redis_text text;
    sg_redis_text_init(&text);
    sg_redis_text_words(&text, "INFO", NULL);
    sg_redis_text_words(&text, "CONFIG", "GET", "save", NULL);
    sg_redis_text_words(&text, "CONFIG", "GET", "appendfsync", NULL);
    redisReply *replies[3] = {NULL, NULL, NULL};
    syncguard_status status = sg_redis_commands_run(backend, NULL, &text, replies, 3, limits, err);
    sg_redis_text_free(&text);
    bool informed = status == SYNCGUARD_OK && replies[0]->type == REDIS_REPLY_STRING;
    if (informed)
        redis_diagnose_info(backend, &to, replies);
    else if (status == SYNCGUARD_OK && !sg_redis_reply_is(replies[0], "NOPERM"))
        status = sg_redis_fail_reply(err, replies[0]);
    if (status == SYNCGUARD_OK)
        status = sg_redis_diagnose_rights(backend, &to, limits, err);
    clock_offset primary = {0, 0};
    if (status == SYNCGUARD_OK) {
        if (redis_diagnose_clock(backend, &to, limits, &primary) && informed)
            redis_diagnose_replica_clocks(backend, &to, replies[0]->str, limits, &primary);
        redis_diagnose_tls(&to, &backend->config);
        redis_diagnose_records(backend, &to, limits);
    }
    sg_redis_replies_free(replies, 3);
    return status;
}
