/*
 * Many renewals in one round trip. The script may run twice without harm, so a batch is sent again
 * as a whole when its connection breaks or the server has forgotten the script.
 */
#include "operations.h"

/* A lock that is lost must be reported soon: replicas may confirm the others of its batch within
 * this time, or these are tried again. */
#define LOST_WAIT_NS (1000 * SYNCGUARD_NS_PER_MS)
/* A batch is not sent forever to a server that breaks every connection. */
#define MAX_BREAKS 12

static sg_redis_backend *redis_renew_backend_of(syncguard_backend *base)
{
    return (sg_redis_backend *)(void *)base;
}

/* The replies of a batch in summary. */
typedef struct outcome {
    bool written; /* at least one lock was extended */
    bool lost;    /* at least one was not there */
} outcome;

static outcome redis_renew_interpret(syncguard_extend_op *items, const sg_redis_commands *batch,
                                     syncguard_error *err)
{
    outcome all = {false, false};
    for (size_t i = 0; i < batch->count; i++) {
        items[i].status = sg_redis_extend_interpret(&items[i], batch->replies[i], err);
        all.written = all.written || items[i].status == SYNCGUARD_OK;
        all.lost = all.lost || items[i].status == SYNCGUARD_ABSENT;
    }
    return all;
}

/* Marks the extends that were applied as failed. */
static void redis_renew_fail_extended(syncguard_extend_op *items, size_t count,
                                      syncguard_status status)
{
    for (size_t i = 0; i < count; i++) {
        if (items[i].status == SYNCGUARD_OK)
            items[i].status = status;
    }
}

/* Waits for replicas if the batch wrote. If the connection breaks meanwhile, the whole batch is
 * sent again, unless a lock is lost. */
static syncguard_status redis_renew_send_batch(sg_redis_backend *backend, sg_redis_commands *batch,
                                               syncguard_extend_op *items,
                                               const syncguard_limits *limits, syncguard_error *err)
{
    for (int round = 0;; round++) {
        syncguard_status status =
            sg_redis_batch_run(backend, SG_REDIS_SCRIPT_EXTEND, batch, limits, err);
        if (status != SYNCGUARD_OK)
            return status;
        outcome all = redis_renew_interpret(items, batch, err);
        if (backend->config.wait_replicas == 0 || !all.written)
            return SYNCGUARD_OK;
        syncguard_limits share = *limits;
        if (all.lost)
            share = syncguard_limits_until(limits, syncguard_clock_ns() + LOST_WAIT_NS);
        bool confirmed = false;
        status = sg_redis_confirm(backend, batch->link, batch->serial, &share, &confirmed, err);
        if (status == SYNCGUARD_OK && !confirmed)
            status = sg_redis_fail_replicas(err);
        else if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE && !all.lost && round < MAX_BREAKS) {
            sg_redis_replies_free(batch->replies, batch->count);
            continue;
        }
        redis_renew_fail_extended(items, batch->count, status);
        return SYNCGUARD_OK;
    }
}

static syncguard_status redis_renew_batch(sg_redis_backend *backend, syncguard_extend_op *items,
                                          size_t count, const syncguard_limits *limits,
                                          sg_redis_tally *t, syncguard_error *err)
{
    redisReply *replies[SYNCGUARD_BATCH_MAX] = {NULL};
    sg_redis_text text;
    sg_redis_commands batch = {.text = &text, .replies = replies, .count = count};
    sg_redis_text_init(&text);
    for (size_t i = 0; i < count; i++) {
        sg_redis_request request;
        sg_redis_extend_request(backend, &items[i], limits, &request);
        sg_redis_request_encode(&request, &text);
        batch.link = request.link;
        sg_redis_request_free(&request);
        items[i].first_sent_ns = syncguard_clock_ns();
    }
    syncguard_status status = redis_renew_send_batch(backend, &batch, items, limits, err);
    for (size_t i = 0; i < count && status == SYNCGUARD_OK; i++)
        sg_redis_tally_add(t, replies[i], items[i].status);
    sg_redis_replies_free(replies, count);
    sg_redis_text_free(&text);
    return status;
}

syncguard_status sg_redis_extend_many(syncguard_backend *base, syncguard_extend_op *items,
                                      size_t count, const syncguard_limits *limits,
                                      syncguard_error *err)
{
    sg_redis_tally t = {0, false, SYNCGUARD_OK};
    syncguard_status status =
        redis_renew_batch(redis_renew_backend_of(base), items, count, limits, &t, err);
    return sg_redis_tally_outcome(&t, status);
}
