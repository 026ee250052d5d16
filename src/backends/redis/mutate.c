/*
 * Operations that change something: acquire, release, extend, undo, cleanup. Each is one script;
 * the scripts decide, this file sends them and interprets the replies.
 */
#include "operations.h"

#include <string.h>

#include "dispatch.h"
#include "notify.h"
#include "record.h"

/* Longest time for which an acquire that may still arrive is undone. */
#define MAX_UNDO_MS INT64_C(86400000)

static sg_redis_backend *redis_mutate_backend_of(syncguard_backend *base)
{
    return (sg_redis_backend *)(void *)base;
}

/* The last argument of every script that acts by lock id: the id, if the index has a hashed name
 * that does not contain it. */
static void redis_mutate_add_id(sg_redis_request *request, const char *lock_id)
{
    if (request->backend->config.index_hashed)
        sg_redis_request_arg(request, lock_id, SYNCGUARD_LOCK_ID_CHARS);
}

/* ---- acquire ---- */

static syncguard_status redis_acquire_interpret(syncguard_acquire_op *op, const redisReply *reply,
                                                syncguard_error *err)
{
    syncguard_record record;
    if (reply->type == REDIS_REPLY_INTEGER && reply->integer > 0) {
        op->remaining_ms = reply->integer;
        return SYNCGUARD_LOCKED;
    }
    if (reply->type != REDIS_REPLY_STRING)
        return sg_redis_fail_answer(reply->integer, err);
    if (sg_redis_record_read(reply->str, (size_t)reply->len, &record) != SG_REDIS_WHOLE ||
        strcmp(record.lock_id, op->lock_id) != 0) {
        op->may_have_been_granted = true; /* ours, but without a fence to return */
        return sg_redis_fail_record(err);
    }
    (void)syncguard_fence_parse(record.fence, &op->fence); /* a whole value has a valid one */
    op->expires_at_ms = record.expires_at_ms;
    if (op->fence == 0) { /* taken while the hash slot moved, but never granted */
        op->may_have_been_granted = true;
        return sg_redis_fail_moving(err);
    }
    return SYNCGUARD_OK;
}

/* Takes one of the links that are kept for WAIT. The caller has entered the gate, so one is
 * free. */
static sg_redis_link *redis_wait_link_take(sg_redis_backend *backend)
{
    int index = 0;
    pthread_mutex_lock(&backend->wait_mutex);
    while ((backend->wait_busy >> index & 1) != 0)
        index++;
    backend->wait_busy |= UINT64_C(1) << index;
    pthread_mutex_unlock(&backend->wait_mutex);
    return &backend->links[backend->config.connections + index];
}

static void redis_wait_link_give(sg_redis_backend *backend, const sg_redis_link *link)
{
    int index = (int)(link - backend->links) - backend->config.connections;
    pthread_mutex_lock(&backend->wait_mutex);
    backend->wait_busy &= ~(UINT64_C(1) << index);
    pthread_mutex_unlock(&backend->wait_mutex);
    syncguard_gate_leave(&backend->wait_gate);
}

static syncguard_status redis_acquire_run(sg_redis_request *request, syncguard_acquire_op *op,
                                          syncguard_error *err)
{
    syncguard_status status = sg_redis_dispatch(request, sg_redis_cluster_acquire, op, err);
    op->armed_ms = request->armed ? SYNCGUARD_ARMED_MS : 0;
    if (request->first_sent_ns != 0)
        op->first_sent_ns = request->first_sent_ns;
    return status == SYNCGUARD_OK ? redis_acquire_interpret(op, request->reply, err) : status;
}

/* With wait_replicas a grant counts only when enough replicas have it. */
static syncguard_status redis_acquire_run_confirmed(sg_redis_request *request,
                                                    syncguard_acquire_op *op, syncguard_error *err)
{
    sg_redis_backend *backend = request->backend;
    syncguard_status status = syncguard_gate_enter(&backend->wait_gate, &op->limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    request->link = redis_wait_link_take(backend);
    request->confirm = true;
    status = redis_acquire_run(request, op, err);
    if (status == SYNCGUARD_OK && !request->confirmed) {
        status = sg_redis_fail_replicas(err);
        op->may_have_been_granted = true;
    }
    if (status < SYNCGUARD_OK) /* the server may go on waiting, and would delay the next acquire */
        sg_redis_link_reset(request->link);
    redis_wait_link_give(backend, request->link);
    return status;
}

/* Whether an error stopped the script that none of its commands has reported: how far the script
 * came is unknown then. */
static bool redis_script_stopped_midway(const redisReply *reply)
{
    return sg_redis_reply_is(reply, "ERR") && strstr(reply->str, "user_script") != NULL;
}

/* LOCKED, but an earlier sending may still reach the script after the current lock is gone. */
static syncguard_status redis_acquire_undo_resent(syncguard_backend *base, syncguard_acquire_op *op,
                                                  syncguard_error *err)
{
    int64_t ttl_ms = op->ttl_ms < MAX_UNDO_MS ? op->ttl_ms : MAX_UNDO_MS;
    syncguard_status undone =
        sg_redis_undo(base, op->key, op->key_length, op->lock_id,
                      syncguard_clock_after(syncguard_clock_ns(), ttl_ms), &op->limits, err);
    if (undone == SYNCGUARD_OK)
        return SYNCGUARD_LOCKED;
    op->may_have_been_granted = true;
    return undone;
}

/* The caller must free the request, even after a failure. */
static syncguard_status redis_acquire_make_request(sg_redis_backend *backend,
                                                   const syncguard_acquire_op *op,
                                                   sg_redis_request *request, syncguard_error *err)
{
    sg_redis_lock_names *names = &request->names;
    sg_redis_request_init(request, backend, &op->limits, SG_REDIS_SCRIPT_ACQUIRE);
    syncguard_status status = sg_redis_name_lock(&backend->config, op->key, &names->lock, err);
    if (status == SYNCGUARD_OK)
        status = sg_redis_name_counter(&backend->config, &names->lock, &names->counter, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_name_index(&backend->config, op->lock_id, &names->index);
    sg_redis_request_arg_name(request, &names->lock);
    sg_redis_request_arg_name(request, &names->index);
    sg_redis_request_arg_name(request, &names->counter);
    sg_redis_request_arg_int(request, op->ttl_ms);
    sg_redis_request_arg_int(request, op->ttl_ms + backend->tolerance_ms);
    sg_redis_record_add_rest(&request->args, op);
    request->arg_count++;
    redis_mutate_add_id(request, op->lock_id);
    if (op->watch && backend->notifier != NULL && sg_redis_notifier_watch(backend->notifier))
        request->watch = &names->lock;
    return SYNCGUARD_OK;
}

/* sent_before: an earlier sending, in a batch, may have been applied. */
static syncguard_status redis_acquire_single(syncguard_backend *base, syncguard_acquire_op *op,
                                             bool sent_before, syncguard_error *err)
{
    sg_redis_backend *backend = redis_mutate_backend_of(base);
    sg_redis_request request;
    syncguard_status status = redis_acquire_make_request(backend, op, &request, err);
    request.unanswered = sent_before;
    if (sent_before) /* the lease may have begun with that sending */
        request.first_sent_ns = op->first_sent_ns;
    if (status == SYNCGUARD_OK)
        status = backend->config.wait_replicas > 0 ? redis_acquire_run_confirmed(&request, op, err)
                                                   : redis_acquire_run(&request, op, err);
    if (status < 0 && (request.unanswered || redis_script_stopped_midway(request.reply)))
        op->may_have_been_granted = true;
    if (status == SYNCGUARD_LOCKED && request.unanswered)
        status = redis_acquire_undo_resent(base, op, err);
    sg_redis_request_free(&request);
    return status;
}

syncguard_status sg_redis_acquire(syncguard_backend *base, syncguard_acquire_op *op,
                                  syncguard_error *err)
{
    return redis_acquire_single(base, op, false, err);
}

/* ---- release ---- */

/* The script returns the lock's name, or its value if names are hashed. */
static void redis_release_read_key(const sg_redis_config *config, syncguard_release_op *op,
                                   const redisReply *reply)
{
    syncguard_record record;
    if (!config->names_hashed) {
        op->key_length = sg_redis_name_key(config, reply->str, (size_t)reply->len, op->key);
        return;
    }
    (void)sg_redis_record_read(reply->str, (size_t)reply->len, &record);
    op->key_length = strlen(record.key);
    memcpy(op->key, record.key, op->key_length + 1);
}

static syncguard_status
redis_mutate_interpret_absent(int64_t answer, syncguard_event_reason *reason, syncguard_error *err)
{
    if (answer != SG_REDIS_NOT_FOUND && answer != SG_REDIS_EXPIRED)
        return sg_redis_fail_answer(answer, err);
    *reason = answer == SG_REDIS_EXPIRED ? SYNCGUARD_REASON_EXPIRED : SYNCGUARD_REASON_NOT_FOUND;
    return SYNCGUARD_ABSENT;
}

static void redis_release_make_request(sg_redis_backend *backend, syncguard_release_op *op,
                                       sg_redis_request *request)
{
    sg_redis_request_init(request, backend, &op->limits, SG_REDIS_SCRIPT_RELEASE);
    sg_redis_name_index(&backend->config, op->lock_id, &request->names.index);
    sg_redis_request_arg_name(request, &request->names.index);
    sg_redis_request_arg_int(request, backend->tolerance_ms);
    if (backend->config.names_hashed)
        sg_redis_request_arg_int(request, 1);
    redis_mutate_add_id(request, op->lock_id);
    request->spin = op->contended;
    op->key_length = 0;
    op->reason = SYNCGUARD_REASON_NOT_FOUND;
}

static syncguard_status redis_release_interpret(const sg_redis_config *config,
                                                syncguard_release_op *op, const redisReply *reply,
                                                syncguard_error *err)
{
    if (reply->type != REDIS_REPLY_STRING)
        return redis_mutate_interpret_absent(reply->integer, &op->reason, err);
    redis_release_read_key(config, op, reply);
    return SYNCGUARD_OK;
}

/* sent_again: an earlier sending may have released it. */
static syncguard_status redis_release_finish(syncguard_release_op *op, syncguard_status status,
                                             bool sent_again)
{
    if (status == SYNCGUARD_ABSENT && sent_again)
        status = SYNCGUARD_OK;
    if (status != SYNCGUARD_ABSENT)
        op->reason = SYNCGUARD_REASON_NONE;
    return status;
}

static syncguard_status redis_release_single(syncguard_backend *base, syncguard_release_op *op,
                                             bool sent_before, syncguard_error *err)
{
    sg_redis_backend *backend = redis_mutate_backend_of(base);
    sg_redis_request request;
    redis_release_make_request(backend, op, &request);
    request.sent_again = request.unanswered = sent_before;
    syncguard_status status = sg_redis_dispatch(&request, sg_redis_cluster_release, op, err);
    if (status == SYNCGUARD_OK)
        status = redis_release_interpret(&backend->config, op, request.reply, err);
    status = redis_release_finish(op, status, request.sent_again);
    /* The release may still be applied, and the server does not report it to the connection that
     * sent it. So waiters of this handle try again, with requests that come after it. */
    if (status < SYNCGUARD_OK && request.unanswered)
        syncguard_backend_notifications_lost(base);
    sg_redis_request_free(&request);
    return status;
}

syncguard_status sg_redis_release(syncguard_backend *base, syncguard_release_op *op,
                                  syncguard_error *err)
{
    return redis_release_single(base, op, false, err);
}

/* ---- many acquires and releases ---- */

static void redis_many_encode(sg_redis_backend *backend, syncguard_many_op *items, size_t count,
                              sg_redis_text *text)
{
    for (size_t i = 0; i < count; i++) {
        sg_redis_request request;
        if (items[i].acquire != NULL)
            items[i].status =
                redis_acquire_make_request(backend, items[i].acquire, &request, &items[i].error);
        else
            redis_release_make_request(backend, items[i].release, &request);
        if (items[i].status == SYNCGUARD_OK)
            sg_redis_request_encode(&request, text);
        sg_redis_request_free(&request);
    }
}

/* Whether the script has run, and on the node that has all its names. */
static bool redis_script_was_run(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_STRING ||
           (reply->type == REDIS_REPLY_INTEGER && reply->integer != SG_REDIS_ELSEWHERE);
}

/* An item that was not run in the batch, because the server has forgotten the script or the hash
 * slot moves, is run alone, which loads the script or follows the hash slot. */
static void redis_many_interpret_item(syncguard_backend *base, syncguard_many_op *item,
                                      const redisReply *reply, bool sent_before)
{
    const sg_redis_config *config = &redis_mutate_backend_of(base)->config;
    syncguard_acquire_op *op = item->acquire;
    if (!redis_script_was_run(reply)) {
        sent_before = sent_before || redis_script_stopped_midway(reply);
        item->status = op != NULL
                           ? redis_acquire_single(base, op, sent_before, &item->error)
                           : redis_release_single(base, item->release, sent_before, &item->error);
    } else if (op != NULL) {
        item->status = redis_acquire_interpret(op, reply, &item->error);
        if (item->status == SYNCGUARD_LOCKED && sent_before)
            item->status = redis_acquire_undo_resent(base, op, &item->error);
        else if (item->status < 0 && sent_before)
            op->may_have_been_granted = true;
    } else {
        item->status = redis_release_interpret(config, item->release, reply, &item->error);
        item->status = redis_release_finish(item->release, item->status, sent_before);
    }
}

/* No item was answered. */
static void redis_many_fail(syncguard_backend *base, syncguard_many_op *items, size_t count,
                            const syncguard_error *error, bool sent)
{
    for (size_t i = 0; i < count; i++) {
        if (items[i].status != SYNCGUARD_OK)
            continue;
        items[i].status = error->code;
        items[i].error = *error;
        if (items[i].acquire != NULL)
            items[i].acquire->may_have_been_granted = sent;
        else
            items[i].release->reason = SYNCGUARD_REASON_NONE;
    }
    if (sent)
        syncguard_backend_notifications_lost(base); /* as for a single release */
}

void sg_redis_do_many(syncguard_backend *base, syncguard_many_op *items, size_t count,
                      const syncguard_limits *limits)
{
    sg_redis_backend *backend = redis_mutate_backend_of(base);
    sg_redis_text text;
    sg_redis_text_init(&text);
    for (size_t i = 0; i < count; i++)
        items[i].status = SYNCGUARD_OK;
    redis_many_encode(backend, items, count, &text);
    size_t sent = 0;
    for (size_t i = 0; i < count; i++)
        sent += items[i].status == SYNCGUARD_OK;
    syncguard_status status = SYNCGUARD_OK;
    redisReply *replies[SYNCGUARD_MANY_MAX] = {NULL};
    sg_redis_commands commands = {.text = &text, .replies = replies, .count = sent};
    syncguard_error error;
    if (sent > 0)
        status = sg_redis_commands_send(backend, &commands, limits, &error);
    if (status != SYNCGUARD_OK)
        redis_many_fail(base, items, count, &error, commands.sent_before);
    for (size_t i = 0, next = 0; i < count && status == SYNCGUARD_OK; i++) {
        if (items[i].status == SYNCGUARD_OK)
            redis_many_interpret_item(base, &items[i], replies[next++], commands.sent_before);
    }
    sg_redis_replies_free(replies, sent);
    sg_redis_text_free(&text);
}

/* ---- extend ---- */

/*
 * Returns the link that only extends use, or NULL if they may use any link. With wait_replicas they
 * need their own, because they wait for the replicas as acquires do: after a failover, another
 * client could take a lock whose lease the new primary does not know. With waiters they need it,
 * because the server does not report a change to the connection that made it, and yet forgets that
 * it was to report further ones.
 */
static sg_redis_link *redis_extend_choose_link(sg_redis_backend *backend)
{
    bool own = backend->config.wait_replicas > 0 || sg_redis_tracker_started(&backend->tracker);
    return own ? sg_redis_extend_link(backend) : NULL;
}

void sg_redis_extend_request(sg_redis_backend *backend, const syncguard_extend_op *op,
                             const syncguard_limits *limits, sg_redis_request *request)
{
    sg_redis_request_init(request, backend, limits, SG_REDIS_SCRIPT_EXTEND);
    sg_redis_name_index(&backend->config, op->lock_id, &request->names.index);
    sg_redis_request_arg_name(request, &request->names.index);
    sg_redis_request_arg_int(request, op->ttl_ms);
    sg_redis_request_arg_int(request, op->ttl_ms + backend->tolerance_ms);
    redis_mutate_add_id(request, op->lock_id);
    request->link = redis_extend_choose_link(backend);
    request->confirm = backend->config.wait_replicas > 0;
}

syncguard_status sg_redis_extend_interpret(syncguard_extend_op *op, const redisReply *reply,
                                           syncguard_error *err)
{
    if (reply->type != REDIS_REPLY_INTEGER)
        return sg_redis_fail_reply(err, reply);
    if (reply->integer <= SG_REDIS_EXPIRED)
        return redis_mutate_interpret_absent(reply->integer, &op->reason, err);
    op->expires_at_ms = reply->integer;
    return SYNCGUARD_OK;
}

syncguard_status sg_redis_extend(syncguard_backend *base, syncguard_extend_op *op,
                                 syncguard_error *err)
{
    sg_redis_backend *backend = redis_mutate_backend_of(base);
    sg_redis_request request;
    sg_redis_extend_request(backend, op, &op->limits, &request);
    syncguard_status status = sg_redis_dispatch(&request, sg_redis_cluster_extend, op, err);
    if (status == SYNCGUARD_ABSENT)
        op->reason = SYNCGUARD_REASON_NOT_FOUND;
    if (request.first_sent_ns != 0)
        op->first_sent_ns = request.first_sent_ns;
    if (status == SYNCGUARD_OK)
        status = sg_redis_extend_interpret(op, request.reply, err);
    if (status == SYNCGUARD_OK && request.confirm && !request.confirmed)
        status = sg_redis_fail_replicas(err);
    sg_redis_request_free(&request);
    return status;
}

/* ---- undo and cleanup ---- */

/* Adds the lock and index names of an operation that acts on both. */
static syncguard_status redis_mutate_add_names(sg_redis_request *request, const char *key,
                                               const char *lock_id, syncguard_error *err)
{
    const sg_redis_config *config = &request->backend->config;
    sg_redis_lock_names *names = &request->names;
    sg_redis_name_index(config, lock_id, &names->index);
    syncguard_status status = sg_redis_name_lock(config, key, &names->lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_request_arg_name(request, &names->lock);
    sg_redis_request_arg_name(request, &names->index);
    return SYNCGUARD_OK;
}

static syncguard_status redis_undo_make_request(sg_redis_backend *backend,
                                                const syncguard_undo_op *op,
                                                const syncguard_limits *limits,
                                                sg_redis_request *request, syncguard_error *err)
{
    sg_redis_request_init(request, backend, limits, SG_REDIS_SCRIPT_UNDO);
    syncguard_status status = redis_mutate_add_names(request, op->key, op->lock_id, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_request_arg_name(request, &backend->tombstone);
    sg_redis_request_arg_int(request,
                             sg_redis_tombstone_life_ms(op->until_ns, backend->tolerance_ms));
    redis_mutate_add_id(request, op->lock_id);
    return SYNCGUARD_OK;
}

syncguard_status sg_redis_undo(syncguard_backend *base, const char *key, size_t key_length,
                               const char *lock_id, int64_t until_ns,
                               const syncguard_limits *limits, syncguard_error *err)
{
    sg_redis_backend *backend = redis_mutate_backend_of(base);
    syncguard_undo_op op = {key, key_length, lock_id, until_ns, SYNCGUARD_OK};
    sg_redis_request request;
    syncguard_status status = redis_undo_make_request(backend, &op, limits, &request, err);
    if (status == SYNCGUARD_OK)
        status = sg_redis_dispatch(&request, sg_redis_cluster_undo, &op, err);
    if (status == SYNCGUARD_OK && request.reply != NULL && request.reply->integer < 1)
        status = sg_redis_fail_answer(request.reply->integer, err);
    sg_redis_request_free(&request);
    return status;
}

static syncguard_status redis_undo_batch(sg_redis_backend *backend, syncguard_undo_op *items,
                                         size_t count, const syncguard_limits *limits,
                                         sg_redis_tally *t, syncguard_error *err)
{
    redisReply *replies[SYNCGUARD_BATCH_MAX] = {NULL};
    sg_redis_text text;
    sg_redis_commands batch = {.text = &text, .replies = replies, .count = count};
    syncguard_status status = SYNCGUARD_OK;
    sg_redis_text_init(&text);
    for (size_t i = 0; i < count && status == SYNCGUARD_OK; i++) {
        sg_redis_request request;
        status = redis_undo_make_request(backend, &items[i], limits, &request, err);
        if (status == SYNCGUARD_OK)
            sg_redis_request_encode(&request, &text);
        sg_redis_request_free(&request);
    }
    if (status == SYNCGUARD_OK)
        status = sg_redis_batch_run(backend, SG_REDIS_SCRIPT_UNDO, &batch, limits, err);
    for (size_t i = 0; i < count && status == SYNCGUARD_OK; i++) {
        items[i].status = replies[i]->type == REDIS_REPLY_INTEGER && replies[i]->integer > 0
                              ? SYNCGUARD_OK
                              : sg_redis_fail_reply(err, replies[i]);
        sg_redis_tally_add(t, replies[i], items[i].status);
    }
    sg_redis_replies_free(replies, count);
    sg_redis_text_free(&text);
    return status;
}

syncguard_status sg_redis_undo_many(syncguard_backend *base, syncguard_undo_op *items, size_t count,
                                    const syncguard_limits *limits, syncguard_error *err)
{
    sg_redis_tally t = {0, false, SYNCGUARD_OK};
    syncguard_status status =
        redis_undo_batch(redis_mutate_backend_of(base), items, count, limits, &t, err);
    return sg_redis_tally_outcome(&t, status);
}

syncguard_status sg_redis_cleanup(syncguard_backend *base, const syncguard_cleanup_op *op,
                                  syncguard_error *err)
{
    sg_redis_backend *backend = redis_mutate_backend_of(base);
    sg_redis_request request;
    sg_redis_request_init(&request, backend, &op->limits, SG_REDIS_SCRIPT_CLEANUP);
    syncguard_status status = redis_mutate_add_names(&request, op->key, op->lock_id, err);
    sg_redis_request_arg_int(&request, op->expires_at_ms);
    sg_redis_request_arg_int(&request, SYNCGUARD_CLEANUP_GUARD_MS);
    redis_mutate_add_id(&request, op->lock_id);
    if (status == SYNCGUARD_OK) /* no split handler: there will be another occasion */
        status = sg_redis_dispatch(&request, NULL, NULL, err);
    if (status == SYNCGUARD_OK && request.reply->integer == SG_REDIS_NOT_FOUND)
        status = SYNCGUARD_ABSENT;
    else if (status == SYNCGUARD_OK && request.reply->integer < SG_REDIS_NOT_FOUND)
        status = sg_redis_fail_answer(request.reply->integer, err);
    sg_redis_request_free(&request);
    return status;
}
