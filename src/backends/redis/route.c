/*
 * Where the primary is.
 *
 * A single server is where the configuration says. Behind Sentinel the sentinels
 * are asked at every connect, and the answer is checked with ROLE. In a Cluster
 * all names of a handle share one slot (the prefix has a hash tag), so there is
 * one node to talk to: any node tells which by MOVED. Sentinels and nodes are tried
 * in turn, those of the configuration and those that others have told of.
 *
 * The generation counts changes of mind; a connection of an older generation is
 * not used for new requests.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

uint64_t sg_redis_route_generation(sg_route *route)
{
    pthread_mutex_lock(&route->mutex);
    uint64_t generation = route->generation;
    pthread_mutex_unlock(&route->mutex);
    return generation;
}

void sg_redis_route_forget(sg_route *route, uint64_t seen)
{
    pthread_mutex_lock(&route->mutex);
    if (route->generation == seen) {
        route->generation++;
        route->known = false;
    }
    pthread_mutex_unlock(&route->mutex);
}

void sg_redis_route_moved(sg_route *route, const char *host, int port)
{
    pthread_mutex_lock(&route->mutex);
    if (!route->known || route->port != port || strcmp(route->target, host) != 0) {
        snprintf(route->target, sizeof route->target, "%s", host);
        route->port = port;
        route->known = true;
        route->generation++;
    }
    pthread_mutex_unlock(&route->mutex);
}

bool sg_redis_route_port(const char *text, int *port)
{
    char *end = NULL;
    long number = strtol(text, &end, 10);
    if (end == text || *end != '\0' || number < 1 || number > 65535)
        return false;
    *port = (int)number;
    return true;
}

bool sg_redis_route_parse(const redisReply *reply, const char *peer, char host[256], int *port)
{
    char word[SG_WORD_SIZE];
    sg_redis_reply_word(reply, word);
    if (strcmp(word, "MOVED") != 0 && strcmp(word, "ASK") != 0)
        return false;
    const char *at = strchr(reply->str, ' '); /* the slot */
    at = at != NULL ? strchr(at + 1, ' ') : NULL;
    const char *colon = at != NULL ? strrchr(at, ':') : NULL;
    if (colon == NULL)
        return false;
    size_t length = (size_t)(colon - at - 1);
    if (length >= 256 || !sg_redis_route_port(colon + 1, port))
        return false;
    if (length == 0 || at[1] == '?') { /* the node that answered does not know a name for it */
        const char *last = strrchr(peer, ':');
        length = last != NULL ? (size_t)(last - peer) : 0;
        if (length == 0 || length >= 256)
            return false;
        memcpy(host, peer, length);
    } else {
        memcpy(host, at + 1, length);
    }
    host[length] = '\0';
    return true;
}

/* One of several candidates may only use its share of the time, which is a quarter at least. */
static syncguard_limits share_of(const syncguard_limits *limits, size_t left)
{
    int64_t rest = syncguard_limits_left_ns(limits);
    if (left <= 1 || rest == SYNCGUARD_NO_DEADLINE)
        return *limits;
    if (left > 4)
        left = 4;
    return syncguard_limits_until(limits, syncguard_clock_ns() + rest / (int64_t)left);
}

/* --- candidates: the seeds, and the servers that they have told of --- */

static size_t count_candidates(sg_backend *backend, size_t *first)
{
    pthread_mutex_lock(&backend->route.mutex);
    size_t count = backend->config.seed_count + backend->route.node_count;
    *first = backend->route.first;
    pthread_mutex_unlock(&backend->route.mutex);
    return count;
}

static void get_candidate(sg_backend *backend, size_t number, sg_node *out)
{
    const sg_config *config = &backend->config;
    sg_route *route = &backend->route;
    pthread_mutex_lock(&route->mutex);
    number %= config->seed_count + route->node_count;
    if (number < config->seed_count) {
        snprintf(out->host, sizeof out->host, "%s", config->seeds[number].host);
        out->port = config->seeds[number].port;
        out->id[0] = '\0';
    } else {
        *out = route->nodes[number - config->seed_count];
    }
    pthread_mutex_unlock(&route->mutex);
}

static void begin_with(sg_route *route, size_t number)
{
    pthread_mutex_lock(&route->mutex);
    route->first = number;
    pthread_mutex_unlock(&route->mutex);
}

/* --- Sentinel --- */

/* The address of the primary as one sentinel knows it. */
static syncguard_status ask_sentinel(sg_backend *backend, sg_node *sentinel,
                                     const syncguard_limits *limits, char host[256], int *port,
                                     syncguard_error *err)
{
    sg_conn *conn = NULL;
    redisReply *replies[3] = {NULL, NULL, NULL};
    sg_text text;
    sg_redis_text_init(&text);
    sg_address address = {sentinel->host, sentinel->port};
    syncguard_status status =
        sg_redis_conn_open(backend, &address, SG_ROLE_SENTINEL, limits, &conn, err);
    if (status != SYNCGUARD_OK)
        goto out;
    sg_redis_text_command(&text, 3);
    sg_redis_text_arg_str(&text, "SENTINEL");
    sg_redis_text_arg_str(&text, "GET-MASTER-ADDR-BY-NAME");
    sg_redis_text_arg_str(&text, backend->config.master_name);
    sg_redis_text_command(&text, 3);
    sg_redis_text_arg_str(&text, "SENTINEL");
    sg_redis_text_arg_str(&text, "SENTINELS");
    sg_redis_text_arg_str(&text, backend->config.master_name);
    sg_redis_text_command(&text, 2);
    sg_redis_text_arg_str(&text, "SENTINEL");
    sg_redis_text_arg_str(&text, "MYID");
    status = sg_redis_conn_call(conn, &text, replies, 3, limits, err);
    if (status == SYNCGUARD_OK && sentinel->id[0] != '\0')
        status = sg_redis_topology_check(replies[2], sentinel->id, err);
    if (status != SYNCGUARD_OK)
        goto out;
    sg_redis_topology_read_sentinels(&backend->route, replies[1]);
    const redisReply *reply = replies[0];
    if (reply->type == REDIS_REPLY_ERROR) {
        status = sg_redis_fail_reply(err, reply);
    } else if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
               reply->element[0]->type != REDIS_REPLY_STRING ||
               reply->element[1]->type != REDIS_REPLY_STRING || reply->element[0]->len > 255 ||
               !sg_redis_route_port(reply->element[1]->str, port)) {
        status = syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                                "redis: the sentinel does not know this primary");
    } else {
        snprintf(host, 256, "%s", reply->element[0]->str);
    }
out:
    sg_redis_replies_free(replies, 3);
    sg_redis_text_free(&text);
    sg_redis_conn_close(conn);
    return status;
}

/* A sentinel may still name a server that has been demoted. */
static syncguard_status check_role(sg_conn *conn, const syncguard_limits *limits,
                                   syncguard_error *err)
{
    redisReply *reply = NULL;
    sg_text text;
    sg_redis_text_init(&text);
    sg_redis_text_command(&text, 1);
    sg_redis_text_arg_str(&text, "ROLE");
    syncguard_status status = sg_redis_conn_call(conn, &text, &reply, 1, limits, err);
    /* An ACL may forbid ROLE: then a replica shows itself by READONLY. */
    if (status == SYNCGUARD_OK && reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 &&
        reply->element[0]->type == REDIS_REPLY_STRING &&
        strcmp(reply->element[0]->str, "master") != 0)
        status = syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "READONLY",
                                "redis: the sentinels name a server that is no primary");
    if (reply != NULL)
        freeReplyObject(reply);
    sg_redis_text_free(&text);
    return status;
}

static syncguard_status connect_sentinel(sg_backend *backend, const syncguard_limits *limits,
                                         sg_conn **out, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    size_t first = 0;
    size_t tries = count_candidates(backend, &first);
    for (size_t i = 0; i < tries; i++) {
        syncguard_limits share = share_of(limits, tries - i + 1);
        sg_node node;
        char host[256];
        int port = 0;
        get_candidate(backend, first + i, &node);
        status = ask_sentinel(backend, &node, &share, host, &port, err);
        if (status == SYNCGUARD_E_ABORTED)
            break;
        if (status != SYNCGUARD_OK)
            continue;
        sg_address address = {host, port};
        share = share_of(limits, tries - i);
        sg_conn *conn = NULL;
        status = sg_redis_conn_open(backend, &address, SG_ROLE_STORE, &share, &conn, err);
        if (status == SYNCGUARD_OK)
            status = check_role(conn, &share, err);
        if (status == SYNCGUARD_OK) {
            begin_with(&backend->route, first + i);
            *out = conn;
            break;
        }
        sg_redis_conn_close(conn);
        if (status == SYNCGUARD_E_ABORTED || status == SYNCGUARD_E_AUTH_FAILED)
            break;
    }
    return status;
}

/* --- Cluster --- */

/* A certificate that is not accepted concerns one node, a password all of them. */
static bool is_final(syncguard_status status, const syncguard_error *err)
{
    return status == SYNCGUARD_OK || status == SYNCGUARD_E_ABORTED ||
           (status == SYNCGUARD_E_AUTH_FAILED && (err == NULL || strcmp(err->native, "TLS") != 0));
}

static syncguard_status connect_node(sg_backend *backend, sg_node *node,
                                     const syncguard_limits *limits, sg_conn **out,
                                     syncguard_error *err)
{
    sg_conn *conn = NULL;
    sg_address address = {node->host, node->port};
    syncguard_status status =
        sg_redis_conn_open(backend, &address, SG_ROLE_STORE, limits, &conn, err);
    if (status == SYNCGUARD_OK)
        status = sg_redis_topology_learn(backend, conn, node->id, limits, err);
    if (status == SYNCGUARD_OK)
        *out = conn;
    else
        sg_redis_conn_close(conn);
    return status;
}

static syncguard_status connect_cluster(sg_backend *backend, const syncguard_limits *limits,
                                        sg_conn **out, syncguard_error *err)
{
    sg_route *route = &backend->route;
    sg_node node;
    pthread_mutex_lock(&route->mutex);
    bool known = route->known;
    memcpy(node.host, route->target, sizeof node.host);
    node.port = route->port;
    node.id[0] = '\0';
    for (size_t i = 0; i < route->node_count; i++) {
        if (route->nodes[i].port == node.port && strcmp(route->nodes[i].host, node.host) == 0)
            memcpy(node.id, route->nodes[i].id, sizeof node.id);
    }
    pthread_mutex_unlock(&route->mutex);

    syncguard_status status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    size_t first = 0;
    size_t tries = count_candidates(backend, &first);
    if (known) {
        syncguard_limits share = share_of(limits, tries + 1);
        status = connect_node(backend, &node, &share, out, err);
        if (is_final(status, err))
            return status;
        pthread_mutex_lock(&route->mutex);
        route->known = false; /* ask the others where it is now */
        pthread_mutex_unlock(&route->mutex);
    }
    for (size_t i = 0; i < tries; i++) {
        syncguard_limits share = share_of(limits, tries - i);
        get_candidate(backend, first + i, &node);
        status = connect_node(backend, &node, &share, out, err);
        if (is_final(status, err))
            break;
        begin_with(route, first + i + 1);
    }
    return status;
}

syncguard_status sg_redis_route_connect(sg_backend *backend, const syncguard_limits *limits,
                                        sg_conn **out, syncguard_error *err)
{
    uint64_t generation = sg_redis_route_generation(&backend->route);
    syncguard_status status;
    switch (backend->config.mode) {
    case SYNCGUARD_REDIS_SENTINEL:
        status = connect_sentinel(backend, limits, out, err);
        break;
    case SYNCGUARD_REDIS_CLUSTER:
        status = connect_cluster(backend, limits, out, err);
        break;
    default:
        status =
            sg_redis_conn_open(backend, &backend->config.seeds[0], SG_ROLE_STORE, limits, out, err);
        break;
    }
    if (status == SYNCGUARD_OK)
        (*out)->route = generation;
    return status;
}

syncguard_status sg_redis_route_probe(sg_backend *backend, const syncguard_limits *limits,
                                      bool *moving, syncguard_error *err)
{
    sg_call call;
    sg_redis_call_init(&call, SG_SCRIPTS, 1);
    call.word = "EXISTS";
    call.alone = true;
    sg_redis_call_arg(&call, backend->tombstone, backend->tombstone_length);
    syncguard_status status = sg_redis_call_run(backend, &call, limits, err);
    *moving = call.asked;
    sg_redis_call_free(&call);
    return status;
}
