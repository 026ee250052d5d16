/*
 * Operations while the slot moves from one node of a Cluster to another.
 *
 * A script needs all names of a lock on one node. While the slot moves they may be on both, and
 * the new node answers for a name that has not arrived as if it did not exist. So every name is
 * handled by a request of its own: the old node has it, or says so with ASK, and since it creates
 * no names any more, what the new node says after that is true. Here is why the order of
 * the requests makes the whole as good as the script:
 *
 *   find      Which lock an index names never changes.
 *   release   The lock goes first, if it is ours; an index without a lock means nothing.
 *   extend    The index goes first: if the rest fails it lives too long, which means nothing.
 *   undo      The tombstone goes first: a late acquire cannot make its grant behind our back.
 *   acquire   The lock is taken for a short time with fence 0, which is no grant. While it is ours
 *             the index is made and the counter is moved, and only if it is still ours then the
 *             fence is written into it: so grants and fences are in the same order. What is left of
 *             a failure is undone like any unknown outcome, or expires.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define NO_FENCE "000000000000000"
/* The least time that a lock is taken for before it is granted. */
#define TAKE_MS 1000

/* Makes call a plain command on one name. */
static void use_command(sg_call *call, const char *word, const sg_name *name)
{
    sg_redis_call_change(call, SG_SCRIPTS);
    call->word = word;
    sg_redis_call_arg(call, name->text, name->length);
}

static void add_word(sg_call *call, const char *word)
{
    sg_redis_call_arg(call, word, strlen(word));
}

static bool holds(const redisReply *reply, const char *text, size_t length)
{
    return reply->type == REDIS_REPLY_STRING && (size_t)reply->len == length &&
           memcmp(reply->str, text, length) == 0;
}

/* The lock that an index names. */
static syncguard_status read_index(sg_backend *backend, sg_call *call, const sg_name *index,
                                   const syncguard_limits *limits, sg_name *lock,
                                   syncguard_error *err)
{
    const sg_config *config = &backend->config;
    bool confirm = call->confirm;
    lock->length = 0;
    lock->text[0] = '\0';
    use_command(call, "GET", index);
    call->confirm = false;
    syncguard_status status = sg_redis_call_run(backend, call, limits, err);
    call->confirm = confirm;
    if (status != SYNCGUARD_OK)
        return status;
    const redisReply *reply = call->reply;
    if (reply->type != REDIS_REPLY_STRING)
        return SYNCGUARD_ABSENT;
    /* A name with our prefix is in our slot; another must not lead us to another node. */
    if ((size_t)reply->len >= sizeof lock->text || (size_t)reply->len <= config->prefix_length ||
        memcmp(reply->str, config->prefix, config->prefix_length) != 0 ||
        reply->str[config->prefix_length] != ':')
        return sg_redis_fail_mark(-6, err);
    lock->length = (size_t)reply->len;
    memcpy(lock->text, reply->str, lock->length + 1);
    return SYNCGUARD_OK;
}

syncguard_status sg_redis_moving_find(sg_backend *backend, sg_call *call, const sg_name *index,
                                      const syncguard_limits *limits, syncguard_error *err)
{
    sg_name lock;
    syncguard_status status = read_index(backend, call, index, limits, &lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_call_change(call, SG_READ);
    sg_redis_call_arg(call, lock.text, lock.length);
    return sg_redis_call_run(backend, call, limits, err);
}

/* Releases by the lock's name. */
static syncguard_status release_name(sg_backend *backend, sg_call *call, const sg_name *lock,
                                     const char *lock_id, const syncguard_limits *limits,
                                     syncguard_error *err)
{
    sg_redis_call_change(call, SG_RELEASE);
    sg_redis_call_arg(call, lock->text, lock->length);
    sg_redis_call_arg_int(call, backend->tolerance_ms);
    /* As the script that it stands for: the name, unless that does not show the key. */
    sg_redis_call_arg(call, "1", backend->config.names_hashed ? 1 : 0);
    sg_redis_call_arg(call, lock_id, SYNCGUARD_LOCK_ID_CHARS);
    sg_redis_call_arg_int(call, 1);
    return sg_redis_call_run(backend, call, limits, err);
}

syncguard_status sg_redis_moving_release(sg_backend *backend, sg_call *call, const sg_name *index,
                                         const char *lock_id, const syncguard_limits *limits,
                                         syncguard_error *err)
{
    sg_name lock;
    syncguard_status status = read_index(backend, call, index, limits, &lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    status = release_name(backend, call, &lock, lock_id, limits, err);
    if (status == SYNCGUARD_OK && call->reply->type == REDIS_REPLY_STRING) {
        sg_call last; /* the lock is released whatever becomes of this */
        sg_redis_call_init(&last, SG_SCRIPTS, 1);
        use_command(&last, "DEL", index);
        (void)sg_redis_call_run(backend, &last, limits, NULL);
        sg_redis_call_free(&last);
    }
    return status;
}

/* Gives the index another life. ABSENT: it is not there. */
static syncguard_status prolong_index(sg_backend *backend, sg_call *call, const sg_name *index,
                                      int64_t life_ms, const syncguard_limits *limits,
                                      syncguard_error *err)
{
    use_command(call, "PEXPIRE", index);
    sg_redis_call_arg_int(call, life_ms);
    syncguard_status status = sg_redis_call_run(backend, call, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (call->reply->type != REDIS_REPLY_INTEGER || call->reply->integer != 1)
        return SYNCGUARD_ABSENT;
    return call->confirm && !call->confirmed ? sg_redis_fail_replicas(err) : SYNCGUARD_OK;
}

syncguard_status sg_redis_moving_extend(sg_backend *backend, sg_call *call, const sg_name *index,
                                        const syncguard_extend_op *op, syncguard_error *err)
{
    sg_name lock;
    int64_t life_ms = op->ttl_ms + backend->tolerance_ms;
    syncguard_status status = read_index(backend, call, index, &op->limits, &lock, err);
    if (status == SYNCGUARD_OK)
        status = prolong_index(backend, call, index, life_ms, &op->limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    sg_redis_call_change(call, SG_EXTEND);
    sg_redis_call_arg(call, lock.text, lock.length);
    sg_redis_call_arg_int(call, op->ttl_ms);
    sg_redis_call_arg_int(call, life_ms);
    sg_redis_call_arg(call, op->lock_id, SYNCGUARD_LOCK_ID_CHARS);
    sg_redis_call_arg_int(call, 1);
    return sg_redis_call_run(backend, call, &op->limits, err);
}

syncguard_status sg_redis_moving_undo(sg_backend *backend, sg_call *call, const sg_name *lock,
                                      const sg_name *index, const char *lock_id, int64_t life_ms,
                                      const syncguard_limits *limits, syncguard_error *err)
{
    use_command(call, "SET", index);
    sg_redis_call_arg(call, backend->tombstone, backend->tombstone_length);
    add_word(call, "PX");
    sg_redis_call_arg_int(call, life_ms);
    syncguard_status buried = sg_redis_call_run(backend, call, limits, err);
    /* The lock must go even if there is no room for the tombstone. */
    syncguard_status status =
        release_name(backend, call, lock, lock_id, limits, buried == SYNCGUARD_OK ? err : NULL);
    return buried != SYNCGUARD_OK ? buried : status;
}

/* --- acquire --- */

/* Takes the lock's name (NO_FENCE) or makes the grant of one that was taken at taken_ms. */
static syncguard_status hold(sg_backend *backend, sg_call *call, const sg_name *lock,
                             const syncguard_acquire_op *op, int64_t ttl_ms, const char *fence,
                             int64_t taken_ms, syncguard_error *err)
{
    sg_redis_call_change(call, SG_HOLD);
    sg_redis_call_arg(call, lock->text, lock->length);
    sg_redis_call_arg_int(call, ttl_ms);
    sg_redis_call_arg_int(call, ttl_ms + backend->tolerance_ms);
    sg_redis_call_arg(call, op->lock_id, SYNCGUARD_LOCK_ID_CHARS);
    add_word(call, fence);
    sg_redis_add_rest(call, op);
    sg_redis_call_arg_int(call, taken_ms);
    return sg_redis_call_run(backend, call, &op->limits, err);
}

static bool is_taken(const redisReply *reply, int64_t *taken_ms)
{
    syncguard_record record;
    if (reply->type != REDIS_REPLY_STRING ||
        sg_redis_value_read(reply->str, (size_t)reply->len, &record) != SG_VALUE_WHOLE ||
        strcmp(record.fence, NO_FENCE) != 0)
        return false;
    *taken_ms = record.acquired_at_ms;
    return true;
}

/* The index of a lock that is ours. Internal (SPENT): the id has been taken back. */
static syncguard_status make_index(sg_backend *backend, sg_call *call, const sg_name *lock,
                                   const sg_name *index, const syncguard_acquire_op *op,
                                   syncguard_error *err)
{
    int64_t life_ms = op->ttl_ms + backend->tolerance_ms;
    use_command(call, "SET", index);
    sg_redis_call_arg(call, lock->text, lock->length);
    add_word(call, "PX");
    sg_redis_call_arg_int(call, life_ms);
    add_word(call, "NX");
    syncguard_status status = sg_redis_call_run(backend, call, &op->limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (call->reply->type == REDIS_REPLY_STATUS)
        return call->confirm && !call->confirmed ? sg_redis_fail_replicas(err) : SYNCGUARD_OK;
    use_command(call, "GET", index);
    status = sg_redis_call_run(backend, call, &op->limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (!holds(call->reply, lock->text, lock->length))
        return sg_redis_fail_mark(-5, err);
    status = prolong_index(backend, call, index, life_ms, &op->limits, err);
    return status == SYNCGUARD_ABSENT ? sg_redis_fail_moving(err) : status;
}

/* The next fence, as 15 digits. */
static syncguard_status count(sg_backend *backend, sg_call *call, const sg_name *counter,
                              const syncguard_limits *limits, char fence[SYNCGUARD_FENCE_SIZE],
                              syncguard_error *err)
{
    use_command(call, "GET", counter);
    syncguard_status status = sg_redis_call_run(backend, call, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (call->reply->type == REDIS_REPLY_STRING) {
        const char *text = call->reply->str;
        size_t digits = strspn(text, "0123456789");
        if (digits == 0 || digits > 15 || digits != (size_t)call->reply->len ||
            (text[0] == '0' && digits > 1))
            return sg_redis_fail_mark(digits > 15 ? -4 : -3, err);
        if (strtoll(text, NULL, 10) >= SYNCGUARD_FENCE_MAX)
            return sg_redis_fail_mark(-4, err);
    }
    use_command(call, "INCR", counter);
    status = sg_redis_call_run(backend, call, limits, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (call->reply->type != REDIS_REPLY_INTEGER || call->reply->integer < 1)
        return sg_redis_fail_mark(-3, err);
    if (call->reply->integer > SYNCGUARD_FENCE_MAX)
        return sg_redis_fail_mark(-4, err);
    snprintf(fence, SYNCGUARD_FENCE_SIZE, "%015lld", call->reply->integer);
    return call->confirm && !call->confirmed ? sg_redis_fail_replicas(err) : SYNCGUARD_OK;
}

/* For how long the name is taken: the time that this attempt has, but not longer than asked for. */
static int64_t take_ms(const syncguard_acquire_op *op)
{
    int64_t left = syncguard_limits_left_ns(&op->limits);
    int64_t ms =
        left == SYNCGUARD_NO_DEADLINE ? SYNCGUARD_DEFAULT_TIMEOUT_MS : left / SYNCGUARD_NS_PER_MS;
    if (ms < TAKE_MS)
        ms = TAKE_MS;
    return ms < op->ttl_ms ? ms : op->ttl_ms;
}

syncguard_status sg_redis_moving_acquire(sg_backend *backend, sg_call *call, const sg_name *lock,
                                         const sg_name *index, const sg_name *counter,
                                         syncguard_acquire_op *op, syncguard_error *err)
{
    char fence[SYNCGUARD_FENCE_SIZE];
    int64_t taken_ms = 0;
    syncguard_status status = hold(backend, call, lock, op, take_ms(op), NO_FENCE, 0, err);
    if (status != SYNCGUARD_OK || !is_taken(call->reply, &taken_ms))
        return status; /* held by another, or by ourselves since an earlier sending */
    call->watch_name = NULL;
    status = make_index(backend, call, lock, index, op, err);
    if (status == SYNCGUARD_OK)
        status = count(backend, call, counter, &op->limits, fence, err);
    if (status == SYNCGUARD_OK)
        status = hold(backend, call, lock, op, op->ttl_ms, fence, taken_ms, err);
    if (status == SYNCGUARD_OK && call->reply->type == REDIS_REPLY_INTEGER &&
        call->reply->integer == 0)
        status = sg_redis_fail_moving(err); /* it took too long */
    if (status == SYNCGUARD_E_INTERNAL)     /* refused for good */
        (void)release_name(backend, call, lock, op->lock_id, &op->limits, NULL);
    if (status != SYNCGUARD_OK)
        op->maybe_granted = true; /* the name was taken, so it must be undone */
    return status;
}
