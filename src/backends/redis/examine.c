/*
 * What would break the promises on this server: asked with INFO and CONFIG GET,
 * both of which may be forbidden. Findings say what was seen and what it means.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Value of "name:..." in the text of INFO; "" if it is not there. */
static void field(const char *info, const char *name, char out[64])
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

typedef struct teller {
    syncguard_finding_fn fn;
    void *context;
} teller;

static void tell(const teller *t, syncguard_severity severity, const char *topic, const char *text)
{
    t->fn(t->context, severity, topic, text);
}

static void examine_version(const teller *t, const char *info)
{
    char version[64], line[160];
    field(info, "redis_version", version);
    long major = strtol(version, NULL, 10);
    const char *dot = strchr(version, '.');
    long minor = dot != NULL ? strtol(dot + 1, NULL, 10) : 0;
    bool old = major < 6 || (major == 6 && minor < 2);
    snprintf(line, sizeof line, old ? "server %s is older than 6.2" : "server %s", version);
    tell(t, old ? SYNCGUARD_BLOCK : SYNCGUARD_FINE, "version", line);
}

static void examine_eviction(const teller *t, const char *info)
{
    char policy[64], limit[64], line[200];
    field(info, "maxmemory_policy", policy);
    field(info, "maxmemory", limit);
    bool unlimited = strcmp(limit, "0") == 0;
    bool keeps = strcmp(policy, "noeviction") == 0;
    if (policy[0] == '\0') {
        tell(t, SYNCGUARD_WARN, "eviction", "the eviction policy could not be read");
    } else if (keeps || unlimited) {
        snprintf(line, sizeof line, "policy %s%s", policy, unlimited ? ", no memory limit" : "");
        tell(t, SYNCGUARD_FINE, "eviction", line);
    } else {
        snprintf(line, sizeof line,
                 "policy %s with a memory limit can drop %s: two holders at once become possible",
                 policy, strncmp(policy, "allkeys", 7) == 0 ? "locks and fence counters" : "locks");
        tell(t, SYNCGUARD_BLOCK, "eviction", line);
    }
}

/* The answer to CONFIG GET of one name, or NULL. */
static const char *setting(const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[1]->type != REDIS_REPLY_STRING)
        return NULL;
    return reply->element[1]->str;
}

static void examine_persistence(const teller *t, const char *info, const char *save,
                                const char *sync)
{
    char aof[64];
    field(info, "aof_enabled", aof);
    if (strcmp(aof, "1") == 0 && sync != NULL && strcmp(sync, "always") == 0)
        tell(t, SYNCGUARD_FINE, "persistence", "append-only file, synced with every write");
    else if (strcmp(aof, "1") == 0)
        tell(t, SYNCGUARD_WARN, "persistence",
             "append-only file, not synced with every write: a crash of the machine can take "
             "back the latest grants and fences");
    else if (save != NULL && save[0] != '\0')
        tell(t, SYNCGUARD_WARN, "persistence",
             "snapshots only: a crash takes back the grants and fences since the last one");
    else if (save != NULL)
        tell(t, SYNCGUARD_WARN, "persistence",
             "none: a restart frees every lock and starts the fences again");
    else
        tell(t, SYNCGUARD_WARN, "persistence",
             "no append-only file; whether there are snapshots could not be read");
}

static void examine_replication(const teller *t, const sg_config *config, const char *info)
{
    char role[64], replicas[64], line[200];
    field(info, "role", role);
    field(info, "connected_slaves", replicas);
    long count = strtol(replicas, NULL, 10);
    if (strcmp(role, "master") != 0) {
        tell(t, SYNCGUARD_BLOCK, "replication", "this server is a replica: it takes no locks");
    } else if (config->wait_replicas > count) {
        snprintf(line, sizeof line, "%ld replicas, but wait_replicas is %d: no lock can be had",
                 count, config->wait_replicas);
        tell(t, SYNCGUARD_BLOCK, "replication", line);
    } else if (count > 0 && config->wait_replicas == 0) {
        snprintf(line, sizeof line,
                 "%ld replicas that are not waited for: a failover can lose the latest grants "
                 "(wait_replicas)",
                 count);
        tell(t, SYNCGUARD_WARN, "replication", line);
    } else {
        snprintf(line, sizeof line, "primary with %ld replicas", count);
        tell(t, SYNCGUARD_FINE, "replication", line);
    }
}

/* Walks over the whole key space, which may be forbidden, or take longer than there is time. */
static void examine_records(sg_backend *backend, const teller *t, const syncguard_limits *limits)
{
    char line[160];
    size_t count = 0;
    bool all = sg_redis_count_unreadable(backend, limits, &count, NULL) == SYNCGUARD_OK;
    if (count > 0) {
        snprintf(line, sizeof line,
                 "%zu stored records cannot be read: they may block their keys until somebody "
                 "repairs or deletes them",
                 count);
        tell(t, SYNCGUARD_WARN, "records", line);
    } else if (all) {
        tell(t, SYNCGUARD_FINE, "records", "all stored locks can be read");
    } else {
        tell(t, SYNCGUARD_WARN, "records", "the stored locks could not all be looked at");
    }
}

syncguard_status sg_redis_examine(syncguard_backend *base, const syncguard_limits *limits,
                                  syncguard_finding_fn fn, void *context, syncguard_error *err)
{
    sg_backend *backend = (sg_backend *)(void *)base;
    const teller t = {fn, context};
    redisReply *replies[3] = {NULL, NULL, NULL};
    sg_text text;
    sg_redis_text_init(&text);
    sg_redis_text_command(&text, 1);
    sg_redis_text_arg_str(&text, "INFO");
    sg_redis_text_command(&text, 3);
    sg_redis_text_arg_str(&text, "CONFIG");
    sg_redis_text_arg_str(&text, "GET");
    sg_redis_text_arg_str(&text, "save");
    sg_redis_text_command(&text, 3);
    sg_redis_text_arg_str(&text, "CONFIG");
    sg_redis_text_arg_str(&text, "GET");
    sg_redis_text_arg_str(&text, "appendfsync");
    syncguard_status status = sg_redis_plain_run(backend, &text, replies, 3, limits, err);
    sg_redis_text_free(&text);
    if (status != SYNCGUARD_OK)
        return status;
    if (replies[0]->type != REDIS_REPLY_STRING) {
        char word[SG_WORD_SIZE];
        sg_redis_reply_word(replies[0], word);
        if (strcmp(word, "NOPERM") == 0)
            tell(&t, SYNCGUARD_WARN, "permissions",
                 "INFO is not permitted: nothing could be examined");
        else
            status = sg_redis_fail_reply(err, replies[0]);
    } else {
        const char *info = replies[0]->str;
        examine_version(&t, info);
        examine_persistence(&t, info, setting(replies[1]), setting(replies[2]));
        examine_eviction(&t, info);
        examine_replication(&t, &backend->config, info);
        examine_records(backend, &t, limits);
    }
    sg_redis_replies_free(replies, 3);
    return status;
}
