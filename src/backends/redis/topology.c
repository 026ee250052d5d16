/*
 * Which other servers there are, so that a handle survives the loss of the servers that it was
 * given: the nodes of a Cluster (CLUSTER SLOTS), or the other sentinels (SENTINEL SENTINELS). They
 * are only candidates for a connection; MOVED says which node has our hash slot, and a sentinel
 * which server is the primary.
 *
 * The generation counts changes of the primary; a connection of an older generation is not used
 * for new requests. A server that names no others leaves the list as it is.
 *
 * Locking: the mutex guards everything but learned_ns, and is held only briefly.
 */
#include "topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "syncguard/sys/wait.h"

uint64_t sg_redis_topology_generation(sg_redis_topology *topology)
{
    pthread_mutex_lock(&topology->mutex);
    uint64_t generation = topology->generation;
    pthread_mutex_unlock(&topology->mutex);
    return generation;
}

void sg_redis_topology_forget(sg_redis_topology *topology, uint64_t seen)
{
    pthread_mutex_lock(&topology->mutex);
    if (topology->generation == seen) {
        topology->generation++;
        topology->known = false;
    }
    pthread_mutex_unlock(&topology->mutex);
}

void sg_redis_topology_moved(sg_redis_topology *topology, const char *host, int port)
{
    pthread_mutex_lock(&topology->mutex);
    if (!topology->known || topology->target.port != port ||
        strcmp(topology->target.host, host) != 0) {
        snprintf(topology->target.host, sizeof topology->target.host, "%s", host);
        topology->target.port = port;
        topology->known = true;
        topology->generation++;
    }
    pthread_mutex_unlock(&topology->mutex);
}

bool sg_redis_topology_target(sg_redis_topology *topology, sg_redis_node *out)
{
    pthread_mutex_lock(&topology->mutex);
    bool known = topology->known;
    *out = topology->target;
    for (size_t i = 0; i < topology->node_count; i++) {
        const sg_redis_node *node = &topology->nodes[i];
        if (node->port == out->port && strcmp(node->host, out->host) == 0)
            memcpy(out->id, node->id, sizeof out->id);
    }
    pthread_mutex_unlock(&topology->mutex);
    return known;
}

void sg_redis_topology_lose_target(sg_redis_topology *topology)
{
    pthread_mutex_lock(&topology->mutex);
    topology->known = false;
    pthread_mutex_unlock(&topology->mutex);
}

/* ---- candidates ---- */

size_t sg_redis_topology_candidates(sg_redis_topology *topology, const sg_redis_config *config,
                                    size_t *first)
{
    pthread_mutex_lock(&topology->mutex);
    size_t count = config->seed_count + topology->node_count;
    *first = topology->first;
    pthread_mutex_unlock(&topology->mutex);
    return count;
}

void sg_redis_topology_candidate(sg_redis_topology *topology, const sg_redis_config *config,
                                 size_t number, sg_redis_node *out)
{
    pthread_mutex_lock(&topology->mutex);
    number %= config->seed_count + topology->node_count;
    if (number < config->seed_count) {
        snprintf(out->host, sizeof out->host, "%s", config->seeds[number].host);
        out->port = config->seeds[number].port;
        out->id[0] = '\0';
    } else {
        *out = topology->nodes[number - config->seed_count];
    }
    pthread_mutex_unlock(&topology->mutex);
}

void sg_redis_topology_begin_with(sg_redis_topology *topology, size_t number)
{
    pthread_mutex_lock(&topology->mutex);
    topology->first = number;
    pthread_mutex_unlock(&topology->mutex);
}

/* ---- replies of servers ---- */

bool sg_redis_topology_port(const char *text, int *port)
{
    char *end = NULL;
    long number = strtol(text, &end, 10);
    if (end == text || *end != '\0' || number < 1 || number > 65535)
        return false;
    *port = (int)number;
    return true;
}

bool sg_redis_topology_redirection(const redisReply *reply, const char *peer, char host[256],
                                   int *port)
{
    char word[SG_REDIS_WORD_SIZE];
    sg_redis_reply_word(reply, word);
    if (strcmp(word, "MOVED") != 0 && strcmp(word, "ASK") != 0)
        return false;
    const char *at = strchr(reply->str, ' '); /* the hash slot */
    at = at != NULL ? strchr(at + 1, ' ') : NULL;
    const char *colon = at != NULL ? strrchr(at, ':') : NULL;
    if (colon == NULL)
        return false;
    size_t length = (size_t)(colon - at - 1);
    if (length >= 256 || !sg_redis_topology_port(colon + 1, port))
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

/* Adds a node to the list, unless it is known or the list is full. */
static void topology_add_node(sg_redis_node *nodes, size_t *count, const char *host, size_t length,
                              int port, const char *id)
{
    if (length == 0 || length >= sizeof nodes->host || *count == SG_REDIS_MAX_NODES)
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

static void topology_store_nodes(sg_redis_topology *topology, const sg_redis_node *nodes,
                                 size_t count)
{
    if (count == 0)
        return;
    pthread_mutex_lock(&topology->mutex);
    memcpy(topology->nodes, nodes, count * sizeof *nodes);
    topology->node_count = count;
    pthread_mutex_unlock(&topology->mutex);
}

/* [host, port, id, [name, value, ...]]; peer is used for a host that is not named. */
static void topology_read_node(const redisReply *node, const char *peer, sg_redis_node *nodes,
                               size_t *count)
{
    if (node->type != REDIS_REPLY_ARRAY || node->elements < 3 ||
        node->element[2]->type != REDIS_REPLY_STRING ||
        node->element[1]->type != REDIS_REPLY_INTEGER || node->element[1]->integer < 1 ||
        node->element[1]->integer > 65535)
        return;
    const char *host = peer;
    const char *colon = strrchr(peer, ':');
    size_t length = colon != NULL ? (size_t)(colon - peer) : 0;
    const redisReply *name = node->element[0];
    if (name->type == REDIS_REPLY_STRING && name->len > 0 && name->str[0] != '?') {
        host = name->str;
        length = (size_t)name->len;
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
    topology_add_node(nodes, count, host, length, (int)node->element[1]->integer,
                      node->element[2]->str);
}

/* Ranges of hash slots: [first, last, primary, replica, ...]. */
void sg_redis_topology_read_hash_slots(sg_redis_topology *topology, const redisReply *ranges,
                                       const char *peer)
{
    sg_redis_node nodes[SG_REDIS_MAX_NODES];
    size_t count = 0;
    for (size_t i = 0; ranges->type == REDIS_REPLY_ARRAY && i < ranges->elements; i++) {
        const redisReply *range = ranges->element[i];
        for (size_t k = 2; range->type == REDIS_REPLY_ARRAY && k < range->elements; k++)
            topology_read_node(range->element[k], peer, nodes, &count);
    }
    topology_store_nodes(topology, nodes, count);
}

/* Names and values of each other sentinel: [[name, value, ...], ...]. */
void sg_redis_topology_read_sentinels(sg_redis_topology *topology, const redisReply *sentinels)
{
    sg_redis_node nodes[SG_REDIS_MAX_NODES];
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
            else if (strcmp(name->str, "port") == 0 && !sg_redis_topology_port(value->str, &port))
                port = 0;
        }
        if (host != NULL && id != NULL && port != 0)
            topology_add_node(nodes, &count, host->str, (size_t)host->len, port, id->str);
    }
    topology_store_nodes(topology, nodes, count);
}

bool sg_redis_topology_due(sg_redis_topology *topology, int64_t age_ns)
{
    int64_t now = syncguard_clock_ns();
    int64_t learned = atomic_load_explicit(&topology->learned_ns, memory_order_relaxed);
    return (learned == 0 || now - learned > age_ns) &&
           atomic_compare_exchange_strong(&topology->learned_ns, &learned, now);
}
