/*
 * Operations while the hash slot moves from one node of a Cluster to another.
 *
 * A script needs all names of a lock on one node. While the hash slot moves they may be on both,
 * and the new node answers for a name that has not arrived as if it did not exist. So every name is
 * handled by a request of its own: the old node has the name or replies with ASK, and since it
 * creates no names any more, the reply of the new node after ASK is correct. The order of the
 * requests makes the whole operation as safe as the script:
 *
 *   find      The lock that an index names never changes.
 *   release   The lock is deleted first, if it is ours; an index without a lock has no meaning.
 *   extend    The index is extended first: if the rest fails, it only lives too long.
 *   undo      The tombstone is written first, so that a late acquire cannot be granted.
 *   acquire   The lock is taken for a short time with fence 0, which is no grant. While it is ours,
 *             the index is created and the counter incremented. Only if it is still ours after
 *             that, the fence is written into it: so grants and fences are in the same order. What
 *             a failure leaves behind is undone like any unknown outcome, or expires.
 */
#include "cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record.h"

#define NO_FENCE "000000000000000"
/* The shortest time for which a lock is taken before it is granted. */
#define TAKE_MS 1000

static void cluster_add_arg(sg_redis_request *request, const char *word)
{
    sg_redis_request_arg(request, word, strlen(word));
}

/* The status of a write that the replicas may have to confirm. */
static syncguard_status cluster_check_confirmed(const sg_redis_request *request,
                                                syncguard_error *err)
{
    return request->confirm && !request->confirmed ? sg_redis_fail_replicas(err) : SYNCGUARD_OK;
}

/* Without a deadline: the default timeout. */
static int64_t cluster_limits_left_ms(const syncguard_limits *limits)
{
    int64_t left = syncguard_limits_left_ns(limits);
    return left == SYNCGUARD_NO_DEADLINE ? SYNCGUARD_DEFAULT_TIMEOUT_MS
                                         : left / SYNCGUARD_NS_PER_MS;
}

/* The lifetime of an index. Its lock, which is written later in the operation, must not outlive it,
 * or a live lock would count as absent. */
static int64_t cluster_index_life_ms(const sg_redis_request *request, int64_t ttl_ms)
{
    return ttl_ms + request->backend->tolerance_ms + cluster_limits_left_ms(request->limits);
}

/* Reads which lock an index names. ABSENT: there is no index. */
static syncguard_status cluster_index_read(sg_redis_request *request, sg_redis_name *lock,
                                           syncguard_error *err)
{
    const sg_redis_config *config = &request->backend->config;
    lock->length = 0;
    lock->text[0] = '\0';
    sg_redis_request_use_command(request, "GET", &request->names.index);
    syncguard_status status = sg_redis_request_run(request, err);
    if (status != SYNCGUARD_OK)
        return status;
    const redisReply *reply = request->reply;
    if (reply->type != REDIS_REPLY_STRING)
        return SYNCGUARD_ABSENT;
    /* A name with our prefix is in our hash slot; any other name must not lead to another node. */
    if ((size_t)reply->len >= sizeof lock->text || (size_t)reply->len <= config->prefix_length ||
        memcmp(reply->str, config->prefix, config->prefix_length) != 0 ||
        reply->str[config->prefix_length] != ':')
        return sg_redis_fail_answer(SG_REDIS_ELSEWHERE, err);
    lock->length = (size_t)reply->len;
    memcpy(lock->text, reply->str, lock->length + 1);
    return SYNCGUARD_OK;
}

syncguard_status sg_redis_cluster_find(sg_redis_request *request, void *op, syncguard_error *err)
{
    (void)op;
    sg_redis_name lock;
    syncguard_status status = cluster_index_read(request, &lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_request_use_script(request, SG_REDIS_SCRIPT_READ, &lock);
    return sg_redis_request_run(request, err);
}

/* Releases by the lock's name. */
static syncguard_status cluster_lock_release(sg_redis_request *request, const sg_redis_name *lock,
                                             const char *lock_id, syncguard_error *err)
{
    const sg_redis_backend *backend = request->backend;
    sg_redis_request_use_script(request, SG_REDIS_SCRIPT_RELEASE, lock);
    sg_redis_request_arg_int(request, backend->tolerance_ms);
    /* Like the script that this replaces: the reply is the name, unless the name does not contain
     * the key. */
    sg_redis_request_arg(request, "1", backend->config.names_hashed ? 1 : 0);
    sg_redis_request_arg(request, lock_id, SYNCGUARD_LOCK_ID_CHARS);
    sg_redis_request_arg_int(request, 1);
    return sg_redis_request_run(request, err);
}

syncguard_status sg_redis_cluster_release(sg_redis_request *request, void *op, syncguard_error *err)
{
    const syncguard_release_op *release = op;
    sg_redis_name lock;
    syncguard_status status = cluster_index_read(request, &lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = cluster_lock_release(request, &lock, release->lock_id, err);
    if (status == SYNCGUARD_OK && request->reply->type == REDIS_REPLY_STRING) {
        sg_redis_request last; /* the lock is released even if this fails */
        sg_redis_request_init(&last, request->backend, request->limits, SG_REDIS_SCRIPTS);
        sg_redis_request_use_command(&last, "DEL", &request->names.index);
        (void)sg_redis_request_run(&last, NULL);
        sg_redis_request_free(&last);
    }
    return status;
}

/* Sets the lifetime of the index. ABSENT: there is no index. */
static syncguard_status cluster_index_extend(sg_redis_request *request, int64_t life_ms,
                                             syncguard_error *err)
{
    sg_redis_request_use_command(request, "PEXPIRE", &request->names.index);
    sg_redis_request_arg_int(request, life_ms);
    syncguard_status status = sg_redis_request_run(request, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (request->reply->type != REDIS_REPLY_INTEGER || request->reply->integer != 1)
        return SYNCGUARD_ABSENT;
    return cluster_check_confirmed(request, err);
}

syncguard_status sg_redis_cluster_extend(sg_redis_request *request, void *op, syncguard_error *err)
{
    const syncguard_extend_op *extend = op;
    sg_redis_name lock;
    syncguard_status status = cluster_index_read(request, &lock, err);
    if (status == SYNCGUARD_OK)
        status = cluster_index_extend(request, cluster_index_life_ms(request, extend->ttl_ms), err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_request_use_script(request, SG_REDIS_SCRIPT_EXTEND, &lock);
    sg_redis_request_arg_int(request, extend->ttl_ms);
    sg_redis_request_arg_int(request, extend->ttl_ms + request->backend->tolerance_ms);
    sg_redis_request_arg(request, extend->lock_id, SYNCGUARD_LOCK_ID_CHARS);
    sg_redis_request_arg_int(request, 1);
    return sg_redis_request_run(request, err);
}

syncguard_status sg_redis_cluster_undo(sg_redis_request *request, void *op, syncguard_error *err)
{
    const syncguard_undo_op *undo = op;
    const sg_redis_backend *backend = request->backend;
    sg_redis_request_use_command(request, "SET", &request->names.index);
    sg_redis_request_arg_name(request, &backend->tombstone);
    cluster_add_arg(request, "PX");
    sg_redis_request_arg_int(request,
                             sg_redis_tombstone_life_ms(undo->until_ns, backend->tolerance_ms));
    syncguard_status marked = sg_redis_request_run(request, err);
    /* The lock must be deleted even if there is no room for the tombstone. */
    syncguard_status status = cluster_lock_release(request, &request->names.lock, undo->lock_id,
                                                   marked == SYNCGUARD_OK ? err : NULL);
    sg_redis_replies_free(&request->reply, 1); /* it does not matter whether the lock was there */
    return marked != SYNCGUARD_OK ? marked : status;
}

syncguard_status sg_redis_cluster_probe(sg_redis_backend *backend, const syncguard_limits *limits,
                                        bool *moving, syncguard_error *err)
{
    sg_redis_request request;
    sg_redis_request_init(&request, backend, limits, SG_REDIS_SCRIPTS);
    sg_redis_request_use_command(&request, "EXISTS", &backend->tombstone);
    syncguard_status status = sg_redis_request_run(&request, err);
    *moving = status == SYNCGUARD_OK && request.hash_slot == SG_REDIS_HASH_SLOT_IMPORTING;
    sg_redis_request_free(&request);
    return status;
}

/* ---- acquire ---- */

/* Takes the lock's name (NO_FENCE), or grants a lock whose name was taken at taken_ms. */
static syncguard_status cluster_lock_hold(sg_redis_request *request, const sg_redis_name *lock,
                                          const syncguard_acquire_op *op, int64_t ttl_ms,
                                          const char *fence, int64_t taken_ms, syncguard_error *err)
{
    sg_redis_request_use_script(request, SG_REDIS_SCRIPT_HOLD, lock);
    sg_redis_request_arg_int(request, ttl_ms);
    sg_redis_request_arg_int(request, ttl_ms + request->backend->tolerance_ms);
    sg_redis_request_arg(request, op->lock_id, SYNCGUARD_LOCK_ID_CHARS);
    cluster_add_arg(request, fence);
    sg_redis_record_add_rest(&request->args, op);
    request->arg_count++;
    sg_redis_request_arg_int(request, taken_ms);
    return sg_redis_request_run(request, err);
}

static bool cluster_lock_is_taken(const redisReply *reply, int64_t *taken_ms)
{
    syncguard_record record;
    if (reply->type != REDIS_REPLY_STRING ||
        sg_redis_record_read(reply->str, (size_t)reply->len, &record) != SG_REDIS_WHOLE ||
        strcmp(record.fence, NO_FENCE) != 0)
        return false;
    *taken_ms = record.acquired_at_ms;
    return true;
}

/* Creates the index of a lock that is ours. Internal (SPENT): the id has been taken back. */
static syncguard_status cluster_index_create(sg_redis_request *request,
                                             const syncguard_acquire_op *op, syncguard_error *err)
{
    const sg_redis_lock_names *names = &request->names;
    int64_t life_ms = cluster_index_life_ms(request, op->ttl_ms);
    sg_redis_request_use_command(request, "SET", &names->index);
    sg_redis_request_arg_name(request, &names->lock);
    cluster_add_arg(request, "PX");
    sg_redis_request_arg_int(request, life_ms);
    cluster_add_arg(request, "NX");
    syncguard_status status = sg_redis_request_run(request, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (request->reply->type == REDIS_REPLY_STATUS)
        return cluster_check_confirmed(request, err);
    sg_redis_request_use_command(request, "GET", &names->index);
    status = sg_redis_request_run(request, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (request->reply->type != REDIS_REPLY_STRING ||
        (size_t)request->reply->len != names->lock.length ||
        memcmp(request->reply->str, names->lock.text, names->lock.length) != 0)
        return sg_redis_fail_answer(SG_REDIS_ID_SPENT, err);
    status = cluster_index_extend(request, life_ms, err);
    return status == SYNCGUARD_ABSENT ? sg_redis_fail_moving(err) : status;
}

/* The next fence, as 15 digits. */
static syncguard_status cluster_fence_next(sg_redis_request *request, const sg_redis_name *counter,
                                           char fence[SYNCGUARD_FENCE_SIZE], syncguard_error *err)
{
    sg_redis_request_use_command(request, "GET", counter);
    syncguard_status status = sg_redis_request_run(request, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (request->reply->type == REDIS_REPLY_STRING) {
        const char *text = request->reply->str;
        size_t digits = strspn(text, "0123456789");
        if (digits == 0 || digits != (size_t)request->reply->len || (text[0] == '0' && digits > 1))
            return sg_redis_fail_answer(SG_REDIS_BAD_COUNTER, err);
        if (digits > 15 || strtoll(text, NULL, 10) >= SYNCGUARD_FENCE_MAX)
            return sg_redis_fail_answer(SG_REDIS_COUNTER_ENDS, err);
    }
    sg_redis_request_use_command(request, "INCR", counter);
    status = sg_redis_request_run(request, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (request->reply->type != REDIS_REPLY_INTEGER || request->reply->integer < 1)
        return sg_redis_fail_answer(SG_REDIS_BAD_COUNTER, err);
    if (request->reply->integer > SYNCGUARD_FENCE_MAX)
        return sg_redis_fail_answer(SG_REDIS_COUNTER_ENDS, err);
    snprintf(fence, SYNCGUARD_FENCE_SIZE, "%015lld", request->reply->integer);
    return cluster_check_confirmed(request, err);
}

/* For how long the name is taken: the time that this attempt has left, but not longer than the
 * requested TTL. */
static int64_t cluster_take_ms(const syncguard_acquire_op *op)
{
    int64_t ms = cluster_limits_left_ms(&op->limits);
    if (ms < TAKE_MS)
        ms = TAKE_MS;
    return ms < op->ttl_ms ? ms : op->ttl_ms;
}

syncguard_status sg_redis_cluster_acquire(sg_redis_request *request, void *acquire_op,
                                          syncguard_error *err)
{
    syncguard_acquire_op *op = acquire_op;
    const sg_redis_name *lock = &request->names.lock;
    int64_t taken_ms = 0;
    syncguard_status status =
        cluster_lock_hold(request, lock, op, cluster_take_ms(op), NO_FENCE, 0, err);
    if (status != SYNCGUARD_OK || !cluster_lock_is_taken(request->reply, &taken_ms))
        return status; /* held by another, or by us since an earlier sending */
    request->watch = NULL;
    status = cluster_index_create(request, op, err);
    char fence[SYNCGUARD_FENCE_SIZE];
    if (status == SYNCGUARD_OK)
        status = cluster_fence_next(request, &request->names.counter, fence, err);
    if (status == SYNCGUARD_OK)
        status = cluster_lock_hold(request, lock, op, op->ttl_ms, fence, taken_ms, err);
    if (status == SYNCGUARD_OK && request->reply->type == REDIS_REPLY_INTEGER &&
        request->reply->integer == 0)
        status = sg_redis_fail_moving(err); /* it took too long */
    if (status == SYNCGUARD_E_INTERNAL)     /* refused for good */
        (void)cluster_lock_release(request, lock, op->lock_id, NULL);
    if (status != SYNCGUARD_OK)
        op->may_have_been_granted = true; /* the name was taken, so it must be undone */
    return status;
}
