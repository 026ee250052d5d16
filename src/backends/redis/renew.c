/*
 * Many renewals in one round trip. The script may be carried out twice without harm, so a batch is
 * sent again as a whole when its connection breaks or the server has forgotten the script.
 */
#include "renew.h"

#include "mutate.h"

static sg_redis_backend *of(syncguard_backend *base)
{
    return (sg_redis_backend *)(void *)base;
}

static syncguard_status extend_batch(sg_redis_backend *backend, syncguard_extend_op *items,
                                     size_t count, const syncguard_limits *limits,
                                     sg_redis_tally *t, syncguard_error *err)
{
    redisReply *replies[SYNCGUARD_BATCH_MAX + 1] = {NULL};
    sg_redis_link *link = NULL;
    bool confirm = backend->config.wait_replicas > 0;
    size_t all = confirm ? count + 1 : count;
    sg_redis_text text;
    sg_redis_text_init(&text);
    for (size_t i = 0; i < count; i++) {
        sg_redis_request request;
        sg_redis_extend_request(backend, &items[i], limits, &request);
        sg_redis_request_encode(&request, &text);
        link = request.link;
        sg_redis_request_free(&request);
        items[i].first_sent_ns = syncguard_clock_ns();
    }
    if (confirm)
        sg_redis_text_wait(backend, limits, &text);
    syncguard_status status =
        sg_redis_batch_run(backend, link, SG_REDIS_SCRIPT_EXTEND, &text, replies, all, limits, err);
    bool confirmed =
        !confirm || (status == SYNCGUARD_OK && sg_redis_is_confirmed(backend, replies[count]));
    for (size_t i = 0; i < count && status == SYNCGUARD_OK; i++) {
        items[i].status = sg_redis_extend_interpret(&items[i], replies[i], err);
        if (items[i].status == SYNCGUARD_OK && !confirmed)
            items[i].status = sg_redis_fail_replicas(err);
        sg_redis_tally_add(t, replies[i], items[i].status);
    }
    sg_redis_replies_free(replies, all);
    sg_redis_text_free(&text);
    return status;
}

syncguard_status sg_redis_extend_many(syncguard_backend *base, syncguard_extend_op *items,
                                      size_t count, const syncguard_limits *limits,
                                      syncguard_error *err)
{
    sg_redis_tally t = {0, false, SYNCGUARD_OK};
    syncguard_status status = extend_batch(of(base), items, count, limits, &t, err);
    return sg_redis_tally_outcome(&t, status);
}
