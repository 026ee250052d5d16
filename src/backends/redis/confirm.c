/*
 * WAIT follows a script that has written something, in a round trip of its own: a request that
 * changed nothing must not wait for replicas. WAIT covers what its own connection has written, and
 * on a connection that wrote nothing it reports all replicas; hence the serial.
 *
 * While WAIT blocks, the server executes nothing else from its connection. An acquire has the
 * connection to itself. Extends share one, so they wait in slices, between which the server
 * executes the extends of other callers. The slices grow, because servers before 7.2 let each WAIT
 * ask for everything that was written, by any client, until the WAIT before it: with equal slices,
 * a replica that always confirms later than two slices would never confirm in time.
 */
#include "request.h"

#define FIRST_SLICE_MS 100
#define LONGEST_SLICE_MS 800

sg_redis_link *sg_redis_extend_link(const sg_redis_backend *backend)
{
    return &backend->links[backend->link_count - 1];
}

/* Three quarters of the time that is left: the rest is for the reply, and for an undo. */
static int64_t redis_confirm_deadline_ns(const syncguard_limits *limits)
{
    int64_t left = syncguard_limits_left_ns(limits);
    if (left == SYNCGUARD_NO_DEADLINE)
        left = SYNCGUARD_DEFAULT_TIMEOUT_MS * SYNCGUARD_NS_PER_MS;
    return syncguard_clock_ns() + left / 4 * 3;
}

/* Sends one WAIT. *refused: another one is pointless. */
static syncguard_status redis_confirm_wait_once(const sg_redis_backend *backend,
                                                sg_redis_link *link, uint64_t serial,
                                                int64_t wait_ms, const syncguard_limits *limits,
                                                bool *confirmed, bool *refused,
                                                syncguard_error *err)
{
    sg_redis_text text;
    sg_redis_text_init(&text);
    sg_redis_text_command(&text, 3);
    sg_redis_text_arg_str(&text, "WAIT");
    sg_redis_text_arg_int(&text, backend->config.wait_replicas);
    sg_redis_text_arg_int(&text, wait_ms);
    redisReply *reply = NULL;
    sg_redis_round_trip trip = {.text = &text, .replies = &reply, .count = 1, .only = serial};
    syncguard_status status = sg_redis_link_round_trip(link, &trip, limits, err);
    if (status == SYNCGUARD_OK) {
        *refused = reply->type != REDIS_REPLY_INTEGER;
        *confirmed = !*refused && reply->integer >= backend->config.wait_replicas;
    }
    sg_redis_replies_free(&reply, 1);
    sg_redis_text_free(&text);
    return status;
}

syncguard_status sg_redis_confirm(const sg_redis_backend *backend, sg_redis_link *link,
                                  uint64_t serial, const syncguard_limits *limits, bool *confirmed,
                                  syncguard_error *err)
{
    int64_t end = redis_confirm_deadline_ns(limits);
    int64_t slice_ms = link == sg_redis_extend_link(backend) ? FIRST_SLICE_MS : INT64_MAX;
    bool refused = false;
    *confirmed = false;
    for (;;) {
        int64_t wait_ms = (end - syncguard_clock_ns()) / SYNCGUARD_NS_PER_MS;
        if (wait_ms > slice_ms)
            wait_ms = slice_ms;
        syncguard_status status = redis_confirm_wait_once(
            backend, link, serial, wait_ms > 0 ? wait_ms : 1, limits, confirmed, &refused, err);
        if (status != SYNCGUARD_OK || *confirmed || refused || syncguard_clock_ns() >= end)
            return status;
        if (slice_ms < LONGEST_SLICE_MS)
            slice_ms *= 2;
    }
}
