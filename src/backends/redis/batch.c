/*
 * Many calls of one script in one flush: extend_many and undo_many. Both scripts
 * may be carried out twice without harm, so a chunk is sent again as a whole when
 * its connection breaks or the server has forgotten the script.
 */
#include <string.h>

#include "internal.h"

/* Calls per flush: bounds the buffers on both sides. */
#define CHUNK 256

/* The server has forgotten the script: load it, so that the chunk can be sent again. */
static syncguard_status load(sg_backend *backend, sg_script_id script,
                             const syncguard_limits *limits, syncguard_error *err)
{
    sg_text text;
    redisReply *reply = NULL;
    sg_redis_text_init(&text);
    sg_redis_text_command(&text, 3);
    sg_redis_text_arg_str(&text, "SCRIPT");
    sg_redis_text_arg_str(&text, "LOAD");
    sg_redis_text_arg_str(&text, sg_redis_scripts[script].text);
    syncguard_status status = sg_redis_plain_run(backend, &text, &reply, 1, limits, err);
    if (status == SYNCGUARD_OK && reply->type == REDIS_REPLY_ERROR)
        status = sg_redis_fail_reply(err, reply);
    sg_redis_replies_free(&reply, 1);
    sg_redis_text_free(&text);
    return status;
}

static bool is_forgotten(redisReply *const *replies, size_t count)
{
    char word[SG_WORD_SIZE];
    for (size_t i = 0; i < count; i++) {
        sg_redis_reply_word(replies[i], word);
        if (strcmp(word, "NOSCRIPT") == 0)
            return true;
    }
    return false;
}

/* Sends a chunk of calls of one script. OK: there is a reply to each command. */
static syncguard_status run(sg_backend *backend, sg_link *link, sg_script_id script,
                            const sg_text *text, redisReply **replies, size_t count,
                            const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_status status =
        sg_redis_plain_run_on(backend, link, text, replies, count, limits, err);
    if (status != SYNCGUARD_OK || !is_forgotten(replies, count))
        return status;
    sg_redis_replies_free(replies, count);
    status = load(backend, script, limits, err);
    if (status == SYNCGUARD_OK)
        status = sg_redis_plain_run_on(backend, link, text, replies, count, limits, err);
    return status;
}

/* What a batch has come to. */
typedef struct tally {
    size_t decided;
    bool moving; /* a slot on its way: only a single call follows it */
    syncguard_status first_failure;
} tally;

static void count_item(tally *t, const redisReply *reply, syncguard_status status)
{
    char word[SG_WORD_SIZE];
    sg_redis_reply_word(reply, word);
    if (strcmp(word, "ASK") == 0 || strcmp(word, "TRYAGAIN") == 0 ||
        (reply->type == REDIS_REPLY_INTEGER && reply->integer == SG_ELSEWHERE))
        t->moving = true;
    if (status >= SYNCGUARD_OK)
        t->decided++;
    else if (t->first_failure == SYNCGUARD_OK)
        t->first_failure = status;
}

/* While the slot moves, an answer all the same: the items are then tried singly. */
static syncguard_status outcome(const tally *t, syncguard_status status)
{
    if (t->decided > 0 || t->moving)
        return SYNCGUARD_OK;
    return status != SYNCGUARD_OK ? status : t->first_failure;
}

/* --- extend --- */

static syncguard_status extend_chunk(sg_backend *backend, syncguard_extend_op *items, size_t count,
                                     const syncguard_limits *limits, tally *t, syncguard_error *err)
{
    redisReply *replies[CHUNK + 1] = {NULL};
    sg_link *link = sg_redis_extend_link(backend);
    bool confirm = backend->config.wait_replicas > 0;
    size_t all = confirm ? count + 1 : count;
    sg_text text;
    sg_redis_text_init(&text);
    for (size_t i = 0; i < count; i++) {
        sg_call call;
        sg_redis_extend_args(backend, &items[i], &call);
        sg_redis_call_encode(&call, true, &text);
        sg_redis_call_free(&call);
        items[i].first_sent_ns = syncguard_clock_ns();
    }
    if (confirm)
        sg_redis_text_wait(backend, limits, &text);
    syncguard_status status = run(backend, link, SG_EXTEND, &text, replies, all, limits, err);
    bool confirmed =
        !confirm || (status == SYNCGUARD_OK && sg_redis_replicas_have_it(backend, replies[count]));
    for (size_t i = 0; i < count && status == SYNCGUARD_OK; i++) {
        items[i].status = sg_redis_judge_extend(&items[i], replies[i], err);
        if (items[i].status == SYNCGUARD_OK && !confirmed)
            items[i].status = sg_redis_fail_replicas(err);
        count_item(t, replies[i], items[i].status);
    }
    sg_redis_replies_free(replies, all);
    sg_redis_text_free(&text);
    return status;
}

syncguard_status sg_redis_extend_many(syncguard_backend *base, syncguard_extend_op *items,
                                      size_t count, const syncguard_limits *limits,
                                      syncguard_error *err)
{
    tally t = {0, false, SYNCGUARD_OK};
    syncguard_status status = SYNCGUARD_OK;
    for (size_t i = 0; i < count; i += CHUNK) {
        size_t n = count - i < CHUNK ? count - i : CHUNK;
        if (status == SYNCGUARD_OK)
            status = extend_chunk((sg_backend *)(void *)base, items + i, n, limits, &t, err);
        for (size_t k = i; k < i + n && status != SYNCGUARD_OK; k++)
            items[k].status = status;
    }
    sg_redis_topology_refresh((sg_backend *)(void *)base, limits);
    return outcome(&t, status);
}

/* --- undo --- */

static syncguard_status undo_chunk(sg_backend *backend, syncguard_undo_op *items, size_t count,
                                   const syncguard_limits *limits, tally *t, syncguard_error *err)
{
    redisReply *replies[CHUNK] = {NULL};
    sg_text text;
    syncguard_status status = SYNCGUARD_OK;
    sg_redis_text_init(&text);
    for (size_t i = 0; i < count && status == SYNCGUARD_OK; i++) {
        sg_call call;
        status = sg_redis_undo_args(backend, &items[i], &call, err);
        if (status == SYNCGUARD_OK)
            sg_redis_call_encode(&call, true, &text);
        sg_redis_call_free(&call);
    }
    if (status == SYNCGUARD_OK)
        status = run(backend, NULL, SG_UNDO, &text, replies, count, limits, err);
    for (size_t i = 0; i < count && status == SYNCGUARD_OK; i++) {
        items[i].status = replies[i]->type == REDIS_REPLY_INTEGER && replies[i]->integer > 0
                              ? SYNCGUARD_OK
                              : sg_redis_fail_reply(err, replies[i]);
        count_item(t, replies[i], items[i].status);
    }
    sg_redis_replies_free(replies, count);
    sg_redis_text_free(&text);
    return status;
}

syncguard_status sg_redis_undo_many(syncguard_backend *base, syncguard_undo_op *items, size_t count,
                                    const syncguard_limits *limits, syncguard_error *err)
{
    tally t = {0, false, SYNCGUARD_OK};
    syncguard_status status = SYNCGUARD_OK;
    for (size_t i = 0; i < count; i += CHUNK) {
        size_t n = count - i < CHUNK ? count - i : CHUNK;
        if (status == SYNCGUARD_OK)
            status = undo_chunk((sg_backend *)(void *)base, items + i, n, limits, &t, err);
        for (size_t k = i; k < i + n && status != SYNCGUARD_OK; k++)
            items[k].status = status;
    }
    return outcome(&t, status);
}
