/*
 * Connecting to the primary.
 *
 * A single server is where the configuration says. Behind Sentinel the sentinels are asked at every
 * connect, and the answer is checked with ROLE. In a Cluster all names of a handle share one hash
 * slot (the prefix has a hash tag), so there is one node to talk to: any node tells which by MOVED.
 * Sentinels and nodes are tried in turn, those of the configuration and those that others have
 * named.
 *
 * An address that another server has named may belong to a foreign server by the time it is used: a
 * lock that such a server granted would be worthless. So a node or sentinel must still have the id
 * that was named. An address of the configuration is trusted.
 */
#include "route.h"

#include <stdio.h>
#include <string.h>

#include "errors.h"

/* A new connection asks for the nodes of a Cluster at most this often. */
#define LEARN_NS (1000 * SYNCGUARD_NS_PER_MS)

/* One of several candidates may only use its share of the time, which is a quarter at least. */
static syncguard_limits route_limits_share(const syncguard_limits *limits, size_t left)
{
    int64_t rest = syncguard_limits_left_ns(limits);
    if (left <= 1 || rest == SYNCGUARD_NO_DEADLINE)
        return *limits;
    if (left > 4)
        left = 4;
    return syncguard_limits_until(limits, syncguard_clock_ns() + rest / (int64_t)left);
}

static syncguard_status route_open_node(const sg_redis_dialer *dialer, sg_redis_node *node,
                                        sg_redis_role role, const syncguard_limits *limits,
                                        sg_redis_connection **out, syncguard_error *err)
{
    sg_redis_address address = {node->host, node->port};
    return sg_redis_connection_open(dialer, &address, role, limits, out, err);
}

/* Whether the answer to MYID is the id that was named. */
static syncguard_status route_check_id(const redisReply *reply, const char *id,
                                       syncguard_error *err)
{
    if (id[0] == '\0' || (reply->type == REDIS_REPLY_STRING && strcmp(reply->str, id) == 0))
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "MYID",
                          "another server has the address of one that was learnt");
}

/* ---- Sentinel ---- */

static syncguard_status route_read_primary(const redisReply *reply, sg_redis_node *primary,
                                           syncguard_error *err)
{
    if (reply->type == REDIS_REPLY_ERROR)
        return sg_redis_fail_reply(err, reply);
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_STRING || reply->element[0]->len > 255 ||
        !sg_redis_topology_port(reply->element[1]->str, &primary->port))
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                              "the sentinel does not know this primary");
    snprintf(primary->host, sizeof primary->host, "%s", reply->element[0]->str);
    return SYNCGUARD_OK;
}

/* The address of the primary as one sentinel knows it. */
static syncguard_status route_ask_sentinel(const sg_redis_dialer *dialer,
                                           sg_redis_topology *topology, sg_redis_node *sentinel,
                                           const syncguard_limits *limits, sg_redis_node *primary,
                                           syncguard_error *err)
{
    sg_redis_connection *conn = NULL;
    const char *name = dialer->config->master_name;
    sg_redis_text text;
    syncguard_status status =
        route_open_node(dialer, sentinel, SG_REDIS_ROLE_SENTINEL, limits, &conn, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_text_init(&text);
    sg_redis_text_words(&text, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name, NULL);
    sg_redis_text_words(&text, "SENTINEL", "SENTINELS", name, NULL);
    sg_redis_text_words(&text, "SENTINEL", "MYID", NULL);
    redisReply *replies[3] = {NULL, NULL, NULL};
    status = sg_redis_connection_call(conn, &text, replies, 3, limits, err);
    if (status == SYNCGUARD_OK)
        status = route_check_id(replies[2], sentinel->id, err);
    if (status == SYNCGUARD_OK) {
        sg_redis_topology_read_sentinels(topology, replies[1]);
        status = route_read_primary(replies[0], primary, err);
    }
    sg_redis_replies_free(replies, 3);
    sg_redis_text_free(&text);
    sg_redis_connection_close(conn);
    return status;
}

/* A sentinel may still name a server that has been demoted. */
static syncguard_status route_check_role(sg_redis_connection *conn, const syncguard_limits *limits,
                                         syncguard_error *err)
{
    redisReply *reply = NULL;
    sg_redis_text text;
    sg_redis_text_init(&text);
    sg_redis_text_words(&text, "ROLE", NULL);
    syncguard_status status = sg_redis_connection_call(conn, &text, &reply, 1, limits, err);
    /* An ACL may forbid ROLE: then a replica is recognized by READONLY. */
    if (status == SYNCGUARD_OK && reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 &&
        reply->element[0]->type == REDIS_REPLY_STRING &&
        strcmp(reply->element[0]->str, "master") != 0)
        status = syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "READONLY",
                                "the sentinels name a server that is no primary");
    sg_redis_replies_free(&reply, 1);
    sg_redis_text_free(&text);
    return status;
}

static syncguard_status route_connect_sentinel(const sg_redis_dialer *dialer,
                                               sg_redis_topology *topology,
                                               const syncguard_limits *limits,
                                               sg_redis_connection **out, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    size_t first = 0;
    size_t tries = sg_redis_topology_candidates(topology, dialer->config, &first);
    for (size_t i = 0; i < tries; i++) {
        syncguard_limits share = route_limits_share(limits, tries - i + 1);
        sg_redis_node sentinel, primary;
        sg_redis_topology_candidate(topology, dialer->config, first + i, &sentinel);
        status = route_ask_sentinel(dialer, topology, &sentinel, &share, &primary, err);
        if (status == SYNCGUARD_E_ABORTED)
            break;
        if (status != SYNCGUARD_OK)
            continue;
        share = route_limits_share(limits, tries - i);
        sg_redis_connection *conn = NULL;
        status = route_open_node(dialer, &primary, SG_REDIS_ROLE_STORE, &share, &conn, err);
        if (status == SYNCGUARD_OK)
            status = route_check_role(conn, &share, err);
        if (status == SYNCGUARD_OK) {
            sg_redis_topology_begin_with(topology, first + i);
            *out = conn;
            break;
        }
        sg_redis_connection_close(conn);
        if (status == SYNCGUARD_E_ABORTED || status == SYNCGUARD_E_AUTH_FAILED)
            break;
    }
    return status;
}

/* ---- Cluster ---- */

/* A certificate that is not accepted concerns one node, a password all of them. */
static bool route_status_is_final(syncguard_status status, const syncguard_error *err)
{
    return status == SYNCGUARD_OK || status == SYNCGUARD_E_ABORTED ||
           (status == SYNCGUARD_E_AUTH_FAILED && (err == NULL || strcmp(err->native, "TLS") != 0));
}

/* Over a new connection: learns the nodes, but not every time, and checks the id. */
static syncguard_status route_learn_nodes(sg_redis_topology *topology, sg_redis_connection *conn,
                                          const char *id, const syncguard_limits *limits,
                                          syncguard_error *err)
{
    sg_redis_text text;
    size_t count = 0, nodes_index = id[0] != '\0' ? 1 : 0;
    sg_redis_text_init(&text);
    if (nodes_index == 1) {
        sg_redis_text_words(&text, "CLUSTER", "MYID", NULL);
        count++;
    }
    if (sg_redis_topology_due(topology, LEARN_NS)) {
        sg_redis_text_words(&text, "CLUSTER", "SLOTS", NULL);
        count++;
    }
    syncguard_status status = SYNCGUARD_OK;
    redisReply *replies[2] = {NULL, NULL};
    if (count > 0)
        status = sg_redis_connection_call(conn, &text, replies, count, limits, err);
    if (status == SYNCGUARD_OK && nodes_index == 1)
        status = route_check_id(replies[0], id, err);
    if (status == SYNCGUARD_OK && count > nodes_index)
        sg_redis_topology_read_hash_slots(topology, replies[nodes_index], conn->peer);
    sg_redis_replies_free(replies, 2);
    sg_redis_text_free(&text);
    return status;
}

static syncguard_status route_connect_node(const sg_redis_dialer *dialer,
                                           sg_redis_topology *topology, sg_redis_node *node,
                                           const syncguard_limits *limits,
                                           sg_redis_connection **out, syncguard_error *err)
{
    sg_redis_connection *conn = NULL;
    syncguard_status status =
        route_open_node(dialer, node, SG_REDIS_ROLE_STORE, limits, &conn, err);
    if (status == SYNCGUARD_OK)
        status = route_learn_nodes(topology, conn, node->id, limits, err);
    if (status == SYNCGUARD_OK)
        *out = conn;
    else
        sg_redis_connection_close(conn);
    return status;
}

static syncguard_status route_connect_cluster(const sg_redis_dialer *dialer,
                                              sg_redis_topology *topology,
                                              const syncguard_limits *limits,
                                              sg_redis_connection **out, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_E_SERVICE_UNAVAILABLE;
    sg_redis_node node;
    size_t first = 0;
    size_t tries = sg_redis_topology_candidates(topology, dialer->config, &first);
    if (sg_redis_topology_target(topology, &node)) {
        syncguard_limits share = route_limits_share(limits, tries + 1);
        status = route_connect_node(dialer, topology, &node, &share, out, err);
        if (route_status_is_final(status, err))
            return status;
        sg_redis_topology_lose_target(topology);
    }
    for (size_t i = 0; i < tries; i++) {
        syncguard_limits share = route_limits_share(limits, tries - i);
        sg_redis_topology_candidate(topology, dialer->config, first + i, &node);
        status = route_connect_node(dialer, topology, &node, &share, out, err);
        if (route_status_is_final(status, err))
            break;
        sg_redis_topology_begin_with(topology, first + i + 1);
    }
    return status;
}

syncguard_status sg_redis_route_connect(const sg_redis_dialer *dialer, sg_redis_topology *topology,
                                        const syncguard_limits *limits, sg_redis_connection **out,
                                        syncguard_error *err)
{
    uint64_t generation = sg_redis_topology_generation(topology);
    syncguard_status status;
    if (dialer->config->mode == SYNCGUARD_REDIS_SENTINEL)
        status = route_connect_sentinel(dialer, topology, limits, out, err);
    else if (dialer->config->mode == SYNCGUARD_REDIS_CLUSTER)
        status = route_connect_cluster(dialer, topology, limits, out, err);
    else
        status = sg_redis_connection_open(dialer, &dialer->config->seeds[0], SG_REDIS_ROLE_STORE,
                                          limits, out, err);
    if (status == SYNCGUARD_OK)
        (*out)->generation = generation;
    return status;
}
