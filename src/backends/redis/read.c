/*
 * Operations that only read: is_locked, lookup, list. The server returns time and value in one
 * step; liveness is decided here, by the rule that all backends share.
 */
#include "operations.h"

#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "record.h"

#define SCAN_COUNT 1000
/* No lock of ours is longer; a longer value is not fetched completely. */
#define LONGEST_VALUE 8192
#define LIST_CHUNK 128

static sg_redis_backend *redis_read_backend_of(syncguard_backend *base)
{
    return (sg_redis_backend *)(void *)base;
}

/* Reads {now, value} into record: OK if its expiry can be read. ABSENT: no value. */
static syncguard_status redis_read_interpret(const redisReply *reply, int64_t *now,
                                             syncguard_record *record, bool *whole,
                                             syncguard_error *err)
{
    *now = reply->element[0]->integer;
    if (reply->elements < 2)
        return SYNCGUARD_ABSENT;
    const redisReply *value = reply->element[1];
    sg_redis_legibility found = SG_REDIS_UNREADABLE;
    if (value->type == REDIS_REPLY_STRING)
        found = sg_redis_record_read(value->str, (size_t)value->len, record);
    record->now_ms = *now;
    *whole = found == SG_REDIS_WHOLE;
    return found != SG_REDIS_UNREADABLE ? SYNCGUARD_OK : sg_redis_fail_record(err);
}

/* By lock id, or by key if lock_id is NULL. */
static syncguard_status redis_read_record(sg_redis_backend *backend, const char *key,
                                          const char *lock_id, const syncguard_limits *limits,
                                          int64_t *now, syncguard_record *record, bool *whole,
                                          syncguard_error *err)
{
    sg_redis_request request;
    sg_redis_name *name = lock_id != NULL ? &request.names.index : &request.names.lock;
    sg_redis_request_init(&request, backend, limits,
                          lock_id != NULL ? SG_REDIS_SCRIPT_FIND : SG_REDIS_SCRIPT_READ);
    syncguard_status status = SYNCGUARD_OK;
    if (lock_id != NULL)
        sg_redis_name_index(&backend->config, lock_id, name);
    else
        status = sg_redis_name_lock(&backend->config, key, name, err);
    if (status == SYNCGUARD_OK) {
        sg_redis_request_arg_name(&request, name);
        status = sg_redis_dispatch(&request, sg_redis_cluster_find, NULL, err);
    }
    if (status == SYNCGUARD_OK)
        status = redis_read_interpret(request.reply, now, record, whole, err);
    sg_redis_request_free(&request);
    return status;
}

syncguard_status sg_redis_is_locked(syncguard_backend *base, syncguard_is_locked_op *op,
                                    syncguard_error *err)
{
    sg_redis_backend *backend = redis_read_backend_of(base);
    op->locked = false;
    op->dead_lock_id[0] = '\0';
    syncguard_record record = {.expires_at_ms = 0};
    int64_t now = 0;
    bool whole = false;
    syncguard_status status =
        redis_read_record(backend, op->key, NULL, &op->limits, &now, &record, &whole, err);
    if (status == SYNCGUARD_ABSENT)
        return SYNCGUARD_OK;
    if (status != SYNCGUARD_OK)
        return status;
    op->locked = syncguard_is_live(record.expires_at_ms, now);
    if (!op->locked && record.lock_id[0] != '\0') {
        memcpy(op->dead_lock_id, record.lock_id, sizeof op->dead_lock_id);
        op->dead_expires_at_ms = record.expires_at_ms;
        op->dead_for_ms = now - record.expires_at_ms;
    }
    return SYNCGUARD_OK;
}

syncguard_status sg_redis_lookup(syncguard_backend *base, syncguard_lookup_op *op,
                                 syncguard_error *err)
{
    sg_redis_backend *backend = redis_read_backend_of(base);
    int64_t now = 0;
    bool whole = false;
    syncguard_status status = redis_read_record(backend, op->key, op->lock_id, &op->limits, &now,
                                                &op->record, &whole, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (!syncguard_is_live(op->record.expires_at_ms, now) ||
        (op->lock_id != NULL && strcmp(op->record.lock_id, op->lock_id) != 0))
        return SYNCGUARD_ABSENT;
    return whole ? SYNCGUARD_OK : sg_redis_fail_record(err);
}

/* ---- list ---- */

/* A walk over all locks. */
typedef struct walk {
    syncguard_record_fn fn;
    void *context;
    bool stop;         /* fn wants no more records */
    size_t unreadable; /* values that look like a lock but had to be left out */
    int64_t span_ns;   /* the time of each request */
} walk;

/* Names already shown, as 64-bit hashes: SCAN may return a name more than once. */
typedef struct seen_set {
    uint64_t *entries;
    size_t size; /* a power of two */
    size_t used;
} seen_set;

static bool redis_seen_entries_insert(uint64_t *entries, size_t size, uint64_t hash)
{
    size_t at = hash & (size - 1);
    while (entries[at] != 0 && entries[at] != hash)
        at = (at + 1) & (size - 1);
    bool fresh = entries[at] == 0;
    entries[at] = hash;
    return fresh;
}

/* 1: new, 0: known, -1: no memory. */
static int redis_seen_set_add(seen_set *set, const char *name, size_t length)
{
    if (set->used * 2 >= set->size) {
        size_t size = set->size > 0 ? set->size * 2 : 1024;
        uint64_t *entries = syncguard_calloc(size, sizeof *entries);
        if (entries == NULL)
            return -1;
        for (size_t i = 0; i < set->size; i++) {
            if (set->entries[i] != 0)
                (void)redis_seen_entries_insert(entries, size, set->entries[i]);
        }
        syncguard_free(set->entries);
        set->entries = entries;
        set->size = size;
    }
    uint64_t hash = syncguard_fnv1a(name, length);
    bool fresh = redis_seen_entries_insert(set->entries, set->size, hash != 0 ? hash : 1);
    set->used += fresh ? 1 : 0;
    return fresh;
}

/* "prefix:*" with the wildcards in the prefix escaped. */
static void redis_list_add_pattern(const sg_redis_backend *backend, sg_redis_text *out)
{
    sg_redis_text pattern;
    sg_redis_text_init(&pattern);
    for (const char *at = backend->config.prefix; *at != '\0'; at++) {
        if (strchr("*?[]\\^", *at) != NULL)
            sg_redis_text_add(&pattern, "\\", 1);
        sg_redis_text_add(&pattern, at, 1);
    }
    sg_redis_text_add(&pattern, ":*", 2);
    sg_redis_text_arg(out, pattern.data, pattern.length);
    if (pattern.failed)
        out->failed = true;
    sg_redis_text_free(&pattern);
}

/* A value under our prefix is a lock of this prefix only if its name is the one that we would give
 * its key. */
static bool redis_list_name_matches(const sg_redis_backend *backend, const redisReply *name,
                                    const char *key)
{
    sg_redis_name expected;
    return sg_redis_name_lock(&backend->config, key, &expected, NULL) == SYNCGUARD_OK &&
           expected.length == (size_t)name->len &&
           memcmp(expected.text, name->str, expected.length) == 0;
}

static void redis_list_show_record(const sg_redis_backend *backend, const redisReply *name,
                                   const redisReply *value, int64_t now, walk *w)
{
    syncguard_record record;
    if (value->type != REDIS_REPLY_STRING || value->len == 0 || value->str[0] != '{')
        return;
    sg_redis_legibility found = sg_redis_record_read(value->str, (size_t)value->len, &record);
    if (found != SG_REDIS_UNREADABLE && !syncguard_is_live(record.expires_at_ms, now))
        return;
    if (record.key[0] != '\0' && !redis_list_name_matches(backend, name, record.key))
        return;
    record.now_ms = now;
    if (found == SG_REDIS_WHOLE)
        w->stop = !w->fn(w->context, &record);
    else
        w->unreadable++;
}

/* Fetches and shows one lock, from the node that has it. */
static syncguard_status redis_list_show_moving(sg_redis_backend *backend, const redisReply *name,
                                               const syncguard_limits *limits, walk *w,
                                               syncguard_error *err)
{
    sg_redis_request request;
    sg_redis_request_init(&request, backend, limits, SG_REDIS_SCRIPT_READ);
    sg_redis_request_arg(&request, name->str, (size_t)name->len);
    syncguard_status status = sg_redis_request_run(&request, err);
    if (sg_redis_reply_is(request.reply, "WRONGTYPE"))
        status = SYNCGUARD_OK;
    else if (status == SYNCGUARD_OK && request.reply->elements > 1)
        redis_list_show_record(backend, name, request.reply->element[1],
                               request.reply->element[0]->integer, w);
    sg_redis_request_free(&request);
    return status;
}

/* Fetches the values of some names and shows the locks. */
static syncguard_status redis_list_show_chunk(sg_redis_backend *backend, redisReply *const *names,
                                              size_t count, const syncguard_limits *limits, walk *w,
                                              syncguard_error *err)
{
    sg_redis_text text;
    sg_redis_text_init(&text);
    sg_redis_text_words(&text, "TIME", NULL);
    for (size_t i = 0; i < count; i++) {
        sg_redis_text_command(&text, 4);
        sg_redis_text_arg_str(&text, "GETRANGE");
        sg_redis_text_arg(&text, names[i]->str, (size_t)names[i]->len);
        sg_redis_text_arg_int(&text, 0);
        sg_redis_text_arg_int(&text, LONGEST_VALUE - 1);
    }
    syncguard_limits own = syncguard_limits_from_now(limits, w->span_ns);
    redisReply *replies[LIST_CHUNK + 1];
    syncguard_status status =
        sg_redis_commands_run(backend, NULL, &text, replies, count + 1, &own, err);
    sg_redis_text_free(&text);
    if (status != SYNCGUARD_OK)
        return status;
    int64_t now = -1;
    if (replies[0]->type == REDIS_REPLY_ARRAY && replies[0]->elements == 2 &&
        replies[0]->element[0]->type == REDIS_REPLY_STRING &&
        replies[0]->element[1]->type == REDIS_REPLY_STRING)
        now = strtoll(replies[0]->element[0]->str, NULL, 10) * 1000 +
              strtoll(replies[0]->element[1]->str, NULL, 10) / 1000;
    else
        status = sg_redis_fail_reply(err, replies[0]);
    for (size_t i = 0; i < count && status == SYNCGUARD_OK && !w->stop; i++) {
        const redisReply *value = replies[i + 1];
        if (sg_redis_reply_is(value, "ASK"))
            status = redis_list_show_moving(backend, names[i], limits, w, err);
        else if (value->type == REDIS_REPLY_ERROR && !sg_redis_reply_is(value, "WRONGTYPE"))
            status = sg_redis_fail_reply(err, value);
        else
            redis_list_show_record(backend, names[i], value, now, w);
    }
    sg_redis_replies_free(replies, count + 1);
    return status;
}

static syncguard_status redis_list_show_page(sg_redis_backend *backend, const redisReply *names,
                                             seen_set *seen, const syncguard_limits *limits,
                                             walk *w, syncguard_error *err)
{
    redisReply *chunk[LIST_CHUNK];
    size_t count = 0;
    syncguard_status status = SYNCGUARD_OK;
    for (size_t i = 0; i < names->elements && status == SYNCGUARD_OK && !w->stop; i++) {
        redisReply *name = names->element[i];
        if (name->type == REDIS_REPLY_STRING &&
            sg_redis_name_may_be_lock(&backend->config, name->str, (size_t)name->len)) {
            int fresh = redis_seen_set_add(seen, name->str, (size_t)name->len);
            if (fresh < 0)
                return syncguard_fail_memory(err);
            if (fresh > 0)
                chunk[count++] = name;
        }
        if (count == LIST_CHUNK) {
            status = redis_list_show_chunk(backend, chunk, count, limits, w, err);
            count = 0;
        }
    }
    if (count > 0 && status == SYNCGUARD_OK && !w->stop)
        status = redis_list_show_chunk(backend, chunk, count, limits, w, err);
    return status;
}

/* Scans the names of the node that link leads to; NULL: the primary. */
static syncguard_status redis_list_scan_node(sg_redis_backend *backend, sg_redis_link *link,
                                             seen_set *seen, const syncguard_limits *limits,
                                             walk *w, syncguard_error *err)
{
    char cursor[24] = "0";
    syncguard_status status;
    do {
        syncguard_limits page = syncguard_limits_from_now(limits, w->span_ns);
        sg_redis_text text;
        sg_redis_text_init(&text);
        sg_redis_text_command(&text, 6);
        sg_redis_text_arg_str(&text, "SCAN");
        sg_redis_text_arg_str(&text, cursor);
        sg_redis_text_arg_str(&text, "MATCH");
        redis_list_add_pattern(backend, &text);
        sg_redis_text_arg_str(&text, "COUNT");
        sg_redis_text_arg_int(&text, SCAN_COUNT);
        redisReply *reply = NULL;
        status = sg_redis_commands_run(backend, link, &text, &reply, 1, &page, err);
        sg_redis_text_free(&text);
        if (status != SYNCGUARD_OK)
            break;
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
            reply->element[0]->type != REDIS_REPLY_STRING ||
            reply->element[0]->len >= (int)sizeof cursor ||
            reply->element[1]->type != REDIS_REPLY_ARRAY) {
            status = sg_redis_fail_reply(err, reply);
        } else {
            memcpy(cursor, reply->element[0]->str, (size_t)reply->element[0]->len + 1);
            status = redis_list_show_page(backend, reply->element[1], seen, limits, w, err);
        }
        sg_redis_replies_free(&reply, 1);
    } while (status == SYNCGUARD_OK && !w->stop && strcmp(cursor, "0") != 0);
    return status;
}

/*
 * In a Cluster, SCAN has no key that would make a node say where our hash slot is. While the hash
 * slot moves, its names are on two nodes. The old node is scanned first, so a name that leaves it
 * meanwhile has arrived on the new node before that is scanned. If a move began or ended meanwhile,
 * names may have been missed: all is scanned once more, but locks that were shown are not shown
 * again.
 */
static syncguard_status redis_list_walk_cluster(sg_redis_backend *backend, seen_set *seen,
                                                const syncguard_limits *limits, walk *w,
                                                syncguard_error *err)
{
    bool moves = false, moved = false;
    uint64_t generation;
    syncguard_limits own = syncguard_limits_from_now(limits, w->span_ns);
    syncguard_status status = sg_redis_cluster_probe(backend, &own, &moves, err);
    do {
        moved = moves;
        generation = sg_redis_topology_generation(&backend->topology);
        if (status == SYNCGUARD_OK)
            status = redis_list_scan_node(backend, NULL, seen, limits, w, err);
        if (status == SYNCGUARD_OK && moves && !w->stop)
            status = redis_list_scan_node(backend, &backend->ask, seen, limits, w, err);
        own = syncguard_limits_from_now(limits, w->span_ns);
        if (status == SYNCGUARD_OK && !w->stop)
            status = sg_redis_cluster_probe(backend, &own, &moves, err);
    } while (status == SYNCGUARD_OK && !w->stop &&
             (moves != moved || generation != sg_redis_topology_generation(&backend->topology)));
    return status;
}

static syncguard_status redis_list_walk_locks(sg_redis_backend *backend,
                                              const syncguard_limits *limits, walk *w,
                                              syncguard_error *err)
{
    seen_set seen = {NULL, 0, 0};
    syncguard_status status = backend->config.mode == SYNCGUARD_REDIS_CLUSTER
                                  ? redis_list_walk_cluster(backend, &seen, limits, w, err)
                                  : redis_list_scan_node(backend, NULL, &seen, limits, w, err);
    syncguard_free(seen.entries);
    return status;
}

syncguard_status sg_redis_list(syncguard_backend *base, const syncguard_limits *limits,
                               syncguard_record_fn fn, void *context, syncguard_error *err)
{
    walk w = {fn, context, false, 0, syncguard_limits_left_ns(limits)};
    syncguard_status status = redis_list_walk_locks(redis_read_backend_of(base), limits, &w, err);
    if (w.unreadable > 0)
        syncguard_backend_log(base, SYNCGUARD_LOG_WARN,
                              "%zu stored records cannot be read and are not listed", w.unreadable);
    return status;
}

static bool redis_list_skip_record(void *context, const syncguard_record *record)
{
    (void)context;
    (void)record;
    return true;
}

syncguard_status sg_redis_count_unreadable(sg_redis_backend *backend,
                                           const syncguard_limits *limits, size_t *count,
                                           syncguard_error *err)
{
    walk w = {redis_list_skip_record, NULL, false, 0, syncguard_limits_left_ns(limits)};
    syncguard_status status = redis_list_walk_locks(backend, limits, &w, err);
    *count = w.unreadable;
    return status;
}
