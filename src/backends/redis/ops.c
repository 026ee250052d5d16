/*
 * Operations that change something: acquire, release, extend, undo, cleanup.
 * Each is one script; the scripts decide, this file asks and translates.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Numbers that scripts answer with; the comments of the scripts say which. */
enum {
    NOT_THERE = 0,
    HAD_EXPIRED = 1,
    BAD_VALUE = -2,
    BAD_COUNTER = -3,
    COUNTER_ENDS = -4,
    SPENT = -5,
    ELSEWHERE = SG_ELSEWHERE
};

static sg_backend *of(syncguard_backend *base)
{
    return (sg_backend *)(void *)base;
}

static bool starts_with(const char *text, const char *start, size_t length)
{
    return strncmp(text, start, length) == 0;
}

/* Names that the backend makes itself must not be reachable as locks. */
syncguard_status sg_redis_check_key(const syncguard_backend *base, const char *key,
                                    size_t key_length, syncguard_error *err)
{
    const sg_config *config = &((const sg_backend *)(const void *)base)->config;
    (void)key_length;
    bool index = starts_with(key, "id:", 3) && syncguard_lock_id_valid(key + 3);
    bool counter = starts_with(key, "fence:", 6) &&
                   starts_with(key + 6, config->prefix, config->prefix_length) &&
                   key[6 + config->prefix_length] == ':';
    if (!index && !counter)
        return SYNCGUARD_OK;
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "redis: the key collides with a name that the backend uses itself");
}

syncguard_status sg_redis_name_lock(const sg_backend *backend, const char *key, sg_name *out,
                                    syncguard_error *err)
{
    syncguard_status status = sg_redis_check_key(&backend->base, key, 0, err);
    if (status != SYNCGUARD_OK)
        return status;
    return syncguard_storage_name(backend->config.prefix, key, SYNCGUARD_REDIS_LIMIT_BYTES,
                                  SYNCGUARD_REDIS_RESERVE_BYTES, out->text, &out->length, err);
}

void sg_redis_name_index(const sg_backend *backend, const char *lock_id, sg_name *out)
{
    char text[3 + SYNCGUARD_LOCK_ID_SIZE] = "id:";
    memcpy(text + 3, lock_id, SYNCGUARD_LOCK_ID_CHARS + 1);
    /* A prefix of at most 951 bytes leaves room for the hash. */
    (void)syncguard_storage_name(backend->config.prefix, text, SYNCGUARD_REDIS_LIMIT_BYTES,
                                 SYNCGUARD_REDIS_RESERVE_BYTES, out->text, &out->length, NULL);
}

syncguard_status sg_redis_name_counter(const sg_backend *backend, const sg_name *lock, sg_name *out,
                                       syncguard_error *err)
{
    return syncguard_fence_name(backend->config.prefix, lock->text, SYNCGUARD_REDIS_LIMIT_BYTES,
                                SYNCGUARD_REDIS_RESERVE_BYTES, out->text, &out->length, err);
}

/* The last argument of every script that acts by lock id: the id, where the index hides it. */
static void add_id(const sg_backend *backend, sg_call *call, const char *lock_id)
{
    if (backend->config.index_hashed)
        sg_redis_call_arg(call, lock_id, SYNCGUARD_LOCK_ID_CHARS);
}

syncguard_status sg_redis_fail_mark(int64_t mark, syncguard_error *err)
{
    switch (mark) {
    case BAD_VALUE:
        return sg_redis_fail_value(err);
    case BAD_COUNTER:
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, "COUNTER",
                              "redis: the fence counter is not readable; it was left as it is");
    case COUNTER_ENDS:
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, "COUNTER",
                              "redis: the fence counter has reached its end");
    case SPENT:
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, "SPENT",
                              "redis: this lock id has been taken back");
    case ELSEWHERE:
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, "INDEX",
                              "redis: the index names something that cannot be read");
    default:
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "redis: unexpected answer");
    }
}

/* --- acquire --- */

void sg_redis_add_rest(sg_call *call, const syncguard_acquire_op *op)
{
    sg_text rest;
    sg_redis_text_init(&rest);
    sg_redis_text_add(&rest, "\"key\":", 6);
    sg_redis_value_quote(&rest, op->key, op->key_length);
    if (op->owner[0] != '\0') {
        sg_redis_text_add(&rest, ",\"owner\":", 9);
        sg_redis_value_quote(&rest, op->owner, strlen(op->owner));
    }
    sg_redis_text_add(&rest, "}", 1);
    sg_redis_call_arg(call, rest.data, rest.length);
    if (rest.failed)
        call->args.failed = true;
    sg_redis_text_free(&rest);
}

static syncguard_status judge_acquire(syncguard_acquire_op *op, const redisReply *reply,
                                      syncguard_error *err)
{
    syncguard_record record;
    if (reply->type == REDIS_REPLY_INTEGER && reply->integer > 0) {
        op->remaining_ms = reply->integer;
        return SYNCGUARD_LOCKED;
    }
    if (reply->type != REDIS_REPLY_STRING)
        return sg_redis_fail_mark(reply->integer, err);
    if (sg_redis_value_read(reply->str, (size_t)reply->len, &record) != SG_VALUE_WHOLE ||
        strcmp(record.lock_id, op->lock_id) != 0) {
        op->maybe_granted = true; /* ours, but without a fence to hand out */
        return sg_redis_fail_value(err);
    }
    op->fence = strtoll(record.fence, NULL, 10);
    op->expires_at_ms = record.expires_at_ms;
    if (op->fence == 0) { /* taken while the slot moved, but never granted */
        op->maybe_granted = true;
        return sg_redis_fail_moving(err);
    }
    return SYNCGUARD_OK;
}

/* Takes one of the connections that are kept for WAIT. */
static sg_link *take_wait_link(sg_backend *backend)
{
    int index = 0;
    pthread_mutex_lock(&backend->wait_mutex);
    while ((backend->wait_busy >> index & 1) != 0)
        index++;
    backend->wait_busy |= UINT64_C(1) << index;
    pthread_mutex_unlock(&backend->wait_mutex);
    return &backend->links[backend->config.connections + index];
}

static void give_wait_link(sg_backend *backend, const sg_link *link)
{
    int index = (int)(link - backend->links) - backend->config.connections;
    pthread_mutex_lock(&backend->wait_mutex);
    backend->wait_busy &= ~(UINT64_C(1) << index);
    pthread_mutex_unlock(&backend->wait_mutex);
}

static syncguard_status acquire_call(sg_backend *backend, syncguard_acquire_op *op,
                                     const sg_name *lock, const sg_name *index,
                                     const sg_name *counter, sg_call *call, syncguard_error *err)
{
    bool waits = backend->config.wait_replicas > 0;
    syncguard_status status;
    if (waits) {
        status = syncguard_gate_enter(&backend->wait_gate, &op->limits, err);
        if (status != SYNCGUARD_OK)
            return status;
        call->link = take_wait_link(backend);
        call->confirm = true;
    }
    status = sg_redis_call_run(backend, call, &op->limits, err);
    op->armed_ms = call->armed && !call->moving ? SYNCGUARD_ARMED_MS : 0;
    if (status == SYNCGUARD_OK && call->moving)
        status = sg_redis_moving_acquire(backend, call, lock, index, counter, op, err);
    if (call->first_sent_ns != 0)
        op->first_sent_ns = call->first_sent_ns;
    if (status == SYNCGUARD_OK)
        status = judge_acquire(op, call->reply, err);
    if (waits) {
        if (status == SYNCGUARD_OK && !call->confirmed) {
            status = sg_redis_fail_replicas(err);
            op->maybe_granted = true;
        }
        if (status < SYNCGUARD_OK) /* the next WAIT on it would ask for this write, too */
            sg_redis_link_reset(call->link);
        give_wait_link(backend, call->link);
        syncguard_gate_leave(&backend->wait_gate);
    }
    return status;
}

/* An error inside the script that no command of it has reported: how far it came is unknown. */
static bool stopped_midway(const redisReply *reply)
{
    char word[SG_WORD_SIZE];
    sg_redis_reply_word(reply, word);
    return strcmp(word, "ERR") == 0 && strstr(reply->str, "user_script") != NULL;
}

syncguard_status sg_redis_acquire(syncguard_backend *base, syncguard_acquire_op *op,
                                  syncguard_error *err)
{
    sg_backend *backend = of(base);
    sg_name lock, index, counter;
    syncguard_status status = sg_redis_name_lock(backend, op->key, &lock, err);
    if (status == SYNCGUARD_OK)
        status = sg_redis_name_counter(backend, &lock, &counter, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_name_index(backend, op->lock_id, &index);

    sg_call call;
    sg_redis_call_init(&call, SG_ACQUIRE, 3);
    sg_redis_call_arg(&call, lock.text, lock.length);
    sg_redis_call_arg(&call, index.text, index.length);
    sg_redis_call_arg(&call, counter.text, counter.length);
    sg_redis_call_arg_int(&call, op->ttl_ms);
    sg_redis_call_arg_int(&call, op->ttl_ms + backend->tolerance_ms);
    sg_redis_add_rest(&call, op);
    add_id(backend, &call, op->lock_id);
    if (op->watch && backend->tracker != NULL &&
        sg_redis_tracker_watch(backend->tracker, lock.text, lock.length, op->key, op->key_length)) {
        call.watch_name = lock.text;
        call.watch_length = lock.length;
    }

    status = acquire_call(backend, op, &lock, &index, &counter, &call, err);
    if (call.watch_name != NULL && call.asked) {
        sg_redis_tracker_moving(backend->tracker);
        call.watch_name = NULL; /* nothing is armed */
    }
    if (status < 0 && (call.unanswered || stopped_midway(call.reply)))
        op->maybe_granted = true;
    if (status == SYNCGUARD_LOCKED && call.unanswered) {
        /* A former sending may still reach the script, when the present holder is gone. */
        int64_t until =
            syncguard_clock_ns() +
            (op->ttl_ms < INT64_C(86400000) ? op->ttl_ms : INT64_C(86400000)) * SYNCGUARD_NS_PER_MS;
        syncguard_status undone =
            sg_redis_undo(base, op->key, op->key_length, op->lock_id, until, &op->limits, err);
        if (undone != SYNCGUARD_OK) {
            op->maybe_granted = true;
            status = undone;
        }
    }
    sg_redis_call_free(&call);
    return status;
}

/* --- release --- */

/* The script gives the lock's name, which is prefix and key, or where names are hashed its value.
 */
static void note_key(const sg_backend *backend, syncguard_release_op *op, const redisReply *reply)
{
    const sg_config *config = &backend->config;
    size_t skip = config->prefix_length + 1;
    size_t length = (size_t)reply->len;
    syncguard_record record;
    op->key_length = 0;
    if (config->names_hashed) {
        (void)sg_redis_value_read(reply->str, length, &record);
        op->key_length = strlen(record.key);
        memcpy(op->key, record.key, op->key_length + 1);
    } else if (length > skip && length - skip < sizeof op->key) {
        op->key_length = length - skip;
        memcpy(op->key, reply->str + skip, op->key_length);
        op->key[op->key_length] = '\0';
    }
}

static syncguard_status judge_absent(int64_t mark, syncguard_event_reason *reason,
                                     syncguard_error *err)
{
    if (mark != NOT_THERE && mark != HAD_EXPIRED)
        return sg_redis_fail_mark(mark, err);
    *reason = mark == HAD_EXPIRED ? SYNCGUARD_REASON_EXPIRED : SYNCGUARD_REASON_NOT_FOUND;
    return SYNCGUARD_ABSENT;
}

syncguard_status sg_redis_release(syncguard_backend *base, syncguard_release_op *op,
                                  syncguard_error *err)
{
    sg_backend *backend = of(base);
    sg_name index;
    sg_call call;
    sg_redis_name_index(backend, op->lock_id, &index);
    sg_redis_call_init(&call, SG_RELEASE, 1);
    sg_redis_call_arg(&call, index.text, index.length);
    sg_redis_call_arg_int(&call, backend->tolerance_ms);
    if (backend->config.names_hashed)
        sg_redis_call_arg_int(&call, 1);
    add_id(backend, &call, op->lock_id);
    call.contended = op->contended;
    op->reason = SYNCGUARD_REASON_NOT_FOUND;
    syncguard_status status = sg_redis_call_run(backend, &call, &op->limits, err);
    if (status == SYNCGUARD_OK && call.moving)
        status = sg_redis_moving_release(backend, &call, &index, op->lock_id, &op->limits, err);
    if (status == SYNCGUARD_OK && call.reply->type == REDIS_REPLY_STRING)
        note_key(backend, op, call.reply);
    else if (status == SYNCGUARD_OK)
        status = judge_absent(call.reply->integer, &op->reason, err);
    if (status == SYNCGUARD_ABSENT && call.again)
        status = SYNCGUARD_OK; /* an earlier sending may have released it */
    if (status != SYNCGUARD_ABSENT)
        op->reason = SYNCGUARD_REASON_NONE;
    /* It may still be carried out, and a connection is not told of its own changes: waiters of this
     * handle try again, behind it. */
    if (status < SYNCGUARD_OK && call.unanswered)
        syncguard_backend_stirred_all(base);
    sg_redis_call_free(&call);
    return status;
}

/* --- extend --- */

void sg_redis_extend_args(const sg_backend *backend, const syncguard_extend_op *op, sg_call *call)
{
    sg_name index;
    sg_redis_name_index(backend, op->lock_id, &index);
    sg_redis_call_init(call, SG_EXTEND, 1);
    sg_redis_call_arg(call, index.text, index.length);
    sg_redis_call_arg_int(call, op->ttl_ms);
    sg_redis_call_arg_int(call, op->ttl_ms + backend->tolerance_ms);
    add_id(backend, call, op->lock_id);
}

syncguard_status sg_redis_judge_extend(syncguard_extend_op *op, const redisReply *reply,
                                       syncguard_error *err)
{
    if (reply->type != REDIS_REPLY_INTEGER)
        return sg_redis_fail_reply(err, reply);
    if (reply->integer <= HAD_EXPIRED)
        return judge_absent(reply->integer, &op->reason, err);
    op->expires_at_ms = reply->integer;
    return SYNCGUARD_OK;
}

sg_link *sg_redis_extend_link(const sg_backend *backend)
{
    bool apart = backend->config.wait_replicas > 0 ||
                 (backend->tracker != NULL && sg_redis_tracker_started(backend->tracker));
    return apart ? &backend->links[backend->link_count - 1] : NULL;
}

syncguard_status sg_redis_extend(syncguard_backend *base, syncguard_extend_op *op,
                                 syncguard_error *err)
{
    sg_backend *backend = of(base);
    sg_call call;
    sg_name index;
    sg_redis_extend_args(backend, op, &call);
    call.link = sg_redis_extend_link(backend);
    call.confirm = backend->config.wait_replicas > 0;
    syncguard_status status = sg_redis_call_run(backend, &call, &op->limits, err);
    if (status == SYNCGUARD_OK && call.moving) {
        sg_redis_name_index(backend, op->lock_id, &index);
        status = sg_redis_moving_extend(backend, &call, &index, op, err);
        if (status == SYNCGUARD_ABSENT)
            op->reason = SYNCGUARD_REASON_NOT_FOUND;
    }
    if (call.first_sent_ns != 0)
        op->first_sent_ns = call.first_sent_ns;
    if (status == SYNCGUARD_OK)
        status = sg_redis_judge_extend(op, call.reply, err);
    if (status == SYNCGUARD_OK && call.confirm && !call.confirmed)
        status = sg_redis_fail_replicas(err);
    sg_redis_call_free(&call);
    return status;
}

/* --- undo and cleanup --- */

syncguard_status sg_redis_undo_args(const sg_backend *backend, const syncguard_undo_op *op,
                                    sg_call *call, syncguard_error *err)
{
    sg_name lock, index;
    int64_t life_ms = (op->until_ns - syncguard_clock_ns()) / SYNCGUARD_NS_PER_MS;
    if (life_ms < 0)
        life_ms = 0;
    sg_redis_call_init(call, SG_UNDO, 2);
    syncguard_status status = sg_redis_name_lock(backend, op->key, &lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_name_index(backend, op->lock_id, &index);
    sg_redis_call_arg(call, lock.text, lock.length);
    sg_redis_call_arg(call, index.text, index.length);
    sg_redis_call_arg(call, backend->tombstone, backend->tombstone_length);
    sg_redis_call_arg_int(call, life_ms + backend->tolerance_ms);
    add_id(backend, call, op->lock_id);
    return SYNCGUARD_OK;
}

static syncguard_status moving_undo(sg_backend *backend, sg_call *call, const syncguard_undo_op *op,
                                    const syncguard_limits *limits, syncguard_error *err)
{
    sg_name lock, index;
    int64_t life_ms = (op->until_ns - syncguard_clock_ns()) / SYNCGUARD_NS_PER_MS;
    syncguard_status status = sg_redis_name_lock(backend, op->key, &lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_name_index(backend, op->lock_id, &index);
    return sg_redis_moving_undo(backend, call, &lock, &index, op->lock_id,
                                (life_ms > 0 ? life_ms : 0) + backend->tolerance_ms, limits, err);
}

syncguard_status sg_redis_undo(syncguard_backend *base, const char *key, size_t key_length,
                               const char *lock_id, int64_t until_ns,
                               const syncguard_limits *limits, syncguard_error *err)
{
    sg_backend *backend = of(base);
    const syncguard_undo_op op = {key, key_length, lock_id, until_ns, SYNCGUARD_OK};
    sg_call call;
    syncguard_status status = sg_redis_undo_args(backend, &op, &call, err);
    if (status == SYNCGUARD_OK)
        status = sg_redis_call_run(backend, &call, limits, err);
    if (status == SYNCGUARD_OK && call.moving)
        status = moving_undo(backend, &call, &op, limits, err);
    else if (status == SYNCGUARD_OK && call.reply->integer < 1)
        status = sg_redis_fail_mark(call.reply->integer, err);
    sg_redis_call_free(&call);
    return status;
}

syncguard_status sg_redis_cleanup(syncguard_backend *base, const syncguard_cleanup_op *op,
                                  syncguard_error *err)
{
    sg_backend *backend = of(base);
    sg_name lock, index;
    syncguard_status status = sg_redis_name_lock(backend, op->key, &lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_name_index(backend, op->lock_id, &index);
    sg_call call;
    sg_redis_call_init(&call, SG_CLEANUP, 2);
    sg_redis_call_arg(&call, lock.text, lock.length);
    sg_redis_call_arg(&call, index.text, index.length);
    sg_redis_call_arg_int(&call, op->expires_at_ms);
    sg_redis_call_arg_int(&call, SYNCGUARD_CLEANUP_GUARD_MS);
    add_id(backend, &call, op->lock_id);
    status = sg_redis_call_run(backend, &call, &op->limits, err);
    if (status == SYNCGUARD_OK && call.moving)
        status = sg_redis_fail_moving(err); /* there will be another occasion */
    else if (status == SYNCGUARD_OK && call.reply->integer == NOT_THERE)
        status = SYNCGUARD_ABSENT;
    else if (status == SYNCGUARD_OK && call.reply->integer < NOT_THERE)
        status = sg_redis_fail_mark(call.reply->integer, err);
    sg_redis_call_free(&call);
    return status;
}
