/*
 * Which other servers there are, so that a handle outlives the ones that it was given: the nodes of
 * a Cluster (CLUSTER SLOTS), or the other sentinels (SENTINEL SENTINELS). They are only candidates
 * for a connection; which node has our slot is told by MOVED, and who the primary is by a sentinel.
 *
 * An address that was learnt may belong to somebody else by the time it is used: a lock that such a
 * server granted would be none. So a node or sentinel must still have its id. An address of the
 * configuration is the user's word.
 *
 * The list is made anew with a new connection, at most once a second, and once a minute
 * in between. A server that does not tell leaves the list as it is.
 */
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define LEARN_NS (1000 * SYNCGUARD_NS_PER_MS)
#define REFRESH_NS (60000 * SYNCGUARD_NS_PER_MS)

/* Adds a node to the list, unless it is known or the list is full. */
static void add_node(sg_node *nodes, size_t *count, const char *host, size_t length, int port,
                     const char *id)
{
    if (length == 0 || length >= sizeof nodes->host || *count == SG_MAX_NODES)
        return;
    for (size_t i = 0; i < *count; i++) {
        if (nodes[i].port == port && strlen(nodes[i].host) == length &&
            memcmp(nodes[i].host, host, length) == 0)
            return;
    }
    memcpy(nodes[*count].host, host, length);
    nodes[*count].host[length] = '\0';
    snprintf(nodes[*count].id, sizeof nodes->id, "%s", id);
    nodes[(*count)++].port = port;
}

static void keep(sg_route *route, const sg_node *nodes, size_t count)
{
    if (count == 0)
        return;
    pthread_mutex_lock(&route->mutex);
    memcpy(route->nodes, nodes, count * sizeof *nodes);
    route->node_count = count;
    pthread_mutex_unlock(&route->mutex);
}

/* [host, port, id, [name, value, ...]]; peer stands in for a host that is not told. */
static void read_node(const redisReply *node, const char *peer, sg_node *nodes, size_t *count)
{
    if (node->type != REDIS_REPLY_ARRAY || node->elements < 3 ||
        node->element[2]->type != REDIS_REPLY_STRING ||
        node->element[1]->type != REDIS_REPLY_INTEGER || node->element[1]->integer < 1 ||
        node->element[1]->integer > 65535)
        return;
    const char *host = peer;
    const char *colon = strrchr(peer, ':');
    size_t length = colon != NULL ? (size_t)(colon - peer) : 0;
    const redisReply *told = node->element[0];
    if (told->type == REDIS_REPLY_STRING && told->len > 0 && told->str[0] != '?') {
        host = told->str;
        length = (size_t)told->len;
    } else if (node->elements > 3 && node->element[3]->type == REDIS_REPLY_ARRAY) {
        const redisReply *more = node->element[3];
        for (size_t i = 0; i + 1 < more->elements; i += 2) {
            if (more->element[i]->type == REDIS_REPLY_STRING &&
                more->element[i + 1]->type == REDIS_REPLY_STRING &&
                strcmp(more->element[i]->str, "ip") == 0) {
                host = more->element[i + 1]->str;
                length = (size_t)more->element[i + 1]->len;
            }
        }
    }
    add_node(nodes, count, host, length, (int)node->element[1]->integer, node->element[2]->str);
}

/* Ranges of slots: [first, last, primary, replica, ...]. */
void sg_redis_topology_read(sg_route *route, const redisReply *slots, const char *peer)
{
    sg_node nodes[SG_MAX_NODES];
    size_t count = 0;
    for (size_t i = 0; slots->type == REDIS_REPLY_ARRAY && i < slots->elements; i++) {
        const redisReply *range = slots->element[i];
        for (size_t k = 2; range->type == REDIS_REPLY_ARRAY && k < range->elements; k++)
            read_node(range->element[k], peer, nodes, &count);
    }
    keep(route, nodes, count);
}

/* Names and values of each other sentinel. */
void sg_redis_topology_read_sentinels(sg_route *route, const redisReply *sentinels)
{
    sg_node nodes[SG_MAX_NODES];
    size_t count = 0;
    for (size_t i = 0; sentinels->type == REDIS_REPLY_ARRAY && i < sentinels->elements; i++) {
        const redisReply *fields = sentinels->element[i];
        const redisReply *host = NULL, *id = NULL;
        int port = 0;
        for (size_t k = 0; fields->type == REDIS_REPLY_ARRAY && k + 1 < fields->elements; k += 2) {
            const redisReply *name = fields->element[k], *value = fields->element[k + 1];
            if (name->type != REDIS_REPLY_STRING || value->type != REDIS_REPLY_STRING)
                continue;
            if (strcmp(name->str, "ip") == 0)
                host = value;
            else if (strcmp(name->str, "runid") == 0)
                id = value;
            else if (strcmp(name->str, "port") == 0 && !sg_redis_route_port(value->str, &port))
                port = 0;
        }
        if (host != NULL && id != NULL && port != 0)
            add_node(nodes, &count, host->str, (size_t)host->len, port, id->str);
    }
    keep(route, nodes, count);
}

/* Whether the list is that old; then it is the caller's to make it anew. */
static bool is_due(sg_route *route, int64_t age_ns)
{
    int64_t now = syncguard_clock_ns();
    int64_t learned = atomic_load_explicit(&route->learned_ns, memory_order_relaxed);
    return (learned == 0 || now - learned > age_ns) &&
           atomic_compare_exchange_strong(&route->learned_ns, &learned, now);
}

syncguard_status sg_redis_topology_check(const redisReply *reply, const char *id,
                                         syncguard_error *err)
{
    if (reply->type == REDIS_REPLY_STRING && strcmp(reply->str, id) == 0)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "MYID",
                          "redis: another server has the address of one that was learnt");
}

static void add_request(sg_text *text, const char *word)
{
    sg_redis_text_command(text, 2);
    sg_redis_text_arg_str(text, "CLUSTER");
    sg_redis_text_arg_str(text, word);
}

syncguard_status sg_redis_topology_learn(sg_backend *backend, sg_conn *conn, const char *id,
                                         const syncguard_limits *limits, syncguard_error *err)
{
    sg_text text;
    redisReply *replies[2] = {NULL, NULL};
    size_t count = 0, slots = 0;
    sg_redis_text_init(&text);
    if (id[0] != '\0') {
        add_request(&text, "MYID");
        slots = count = 1;
    }
    if (is_due(&backend->route, LEARN_NS)) {
        add_request(&text, "SLOTS");
        count++;
    }
    syncguard_status status = SYNCGUARD_OK;
    if (count > 0)
        status = sg_redis_conn_call(conn, &text, replies, count, limits, err);
    if (status == SYNCGUARD_OK && id[0] != '\0')
        status = sg_redis_topology_check(replies[0], id, err);
    if (status == SYNCGUARD_OK && count > slots)
        sg_redis_topology_read(&backend->route, replies[slots], conn->peer);
    sg_redis_replies_free(replies, 2);
    sg_redis_text_free(&text);
    return status;
}

void sg_redis_topology_refresh(sg_backend *backend, const syncguard_limits *limits)
{
    sg_text text;
    redisReply *reply = NULL;
    sg_request request;
    if (backend->config.mode != SYNCGUARD_REDIS_CLUSTER || !is_due(&backend->route, REFRESH_NS))
        return;
    syncguard_limits share = syncguard_limits_until(limits, syncguard_clock_ns() + LEARN_NS);
    sg_redis_text_init(&text);
    add_request(&text, "SLOTS");
    memset(&request, 0, sizeof request);
    request.text = &text;
    request.replies = &reply;
    request.count = 1;
    if (sg_redis_link_exchange(sg_redis_link_choose(backend), &request, &share, NULL) ==
        SYNCGUARD_OK)
        sg_redis_topology_read(&backend->route, reply, request.peer);
    sg_redis_replies_free(&reply, 1);
    sg_redis_text_free(&text);
}
