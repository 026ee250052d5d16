/*
 * Replies of a Redis server and stored JSON. The backend is complete except for the part that sends
 * and receives (link.c, pipeline.c): here the replies are read from the input. The first byte
 * chooses the operation and the kind of server.
 */
#include "backends/redis/link.h"
#include "backends/redis/record.h"
#include "fuzz.h"

#define LIMIT_NS (4 * SYNCGUARD_NS_PER_MS)

extern const syncguard_module syncguard_module_redis;
static sg_redis_connection input;

/* ---- in place of link.c ---- */

syncguard_status sg_redis_link_init(sg_redis_link *link, const sg_redis_dialer *dialer,
                                    sg_redis_topology *topology, sg_redis_tracker *tracker,
                                    syncguard_error *err)
{
    (void)tracker;
    (void)err;
    memset(link, 0, sizeof *link);
    link->dialer = dialer;
    link->topology = topology;
    return SYNCGUARD_OK;
}

void sg_redis_link_fini(sg_redis_link *link, bool forked)
{
    (void)link;
    (void)forked;
}

void sg_redis_link_aim(sg_redis_link *link, const char *host, int port)
{
    (void)link;
    (void)host;
    (void)port;
}

void sg_redis_link_reset(sg_redis_link *link)
{
    (void)link;
}

bool sg_redis_link_ended(sg_redis_link *link)
{
    (void)link;
    return false;
}

sg_redis_connection *sg_redis_link_tracked(sg_redis_link *link)
{
    (void)link;
    return NULL;
}

void sg_redis_link_give_back(sg_redis_link *link, sg_redis_connection *conn, bool broken)
{
    (void)link;
    (void)conn;
    (void)broken;
}

syncguard_status sg_redis_link_round_trip(sg_redis_link *link, sg_redis_round_trip *trip,
                                          const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_status status = syncguard_limits_check(limits, err);
    (void)link;
    trip->sent = true;
    trip->sent_ns = syncguard_clock_ns();
    memcpy(trip->peer, "127.0.0.1:6379", sizeof "127.0.0.1:6379");
    for (size_t i = 0; i < trip->count; i++)
        trip->replies[i] = NULL;
    for (size_t i = 0; i < trip->count && status == SYNCGUARD_OK; i++) {
        if (!sg_redis_connection_reply(&input, &trip->replies[i]))
            status = syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "malformed");
        else if (trip->replies[i] == NULL)
            status = syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, NULL, "no more input");
    }
    if (status != SYNCGUARD_OK)
        sg_redis_replies_free(trip->replies, trip->count);
    return status;
}

/* ---- operations ---- */

static const char lock_id[] = "AAAAAAAAAAAAAAAAAAAAAA";
static const char key[] = "key";

static bool fuzz_redis_record_check(void *context, const syncguard_record *record)
{
    (void)context;
    FUZZ_CHECK(strlen(record->key) < SYNCGUARD_KEY_SIZE && syncguard_fence_valid(record->fence));
    return true;
}

static void fuzz_redis_finding_ignore(void *context, const syncguard_finding *finding)
{
    (void)context, (void)finding;
}

static void fuzz_redis_mutate(syncguard_backend *b, int which, syncguard_limits limits)
{
    syncguard_error err;
    if (which == 0) {
        syncguard_acquire_op op = {.key = key, .key_length = 3, .lock_id = lock_id};
        op.ttl_ms = 1000;
        op.owner = "";
        op.limits = limits;
        if (b->ops->acquire(b, &op, &err) == SYNCGUARD_LOCKED)
            FUZZ_CHECK(op.remaining_ms >= -1);
    } else if (which == 1) {
        syncguard_release_op op = {.lock_id = lock_id, .limits = limits};
        if (b->ops->release(b, &op, &err) == SYNCGUARD_OK)
            FUZZ_CHECK(op.key_length < SYNCGUARD_KEY_SIZE);
    } else if (which == 2) {
        syncguard_extend_op op = {.lock_id = lock_id, .ttl_ms = 1000, .limits = limits};
        (void)b->ops->extend(b, &op, &err);
    } else {
        syncguard_extend_op ops[3] = {{.lock_id = lock_id, .ttl_ms = 1},
                                      {.lock_id = lock_id, .ttl_ms = 2},
                                      {.lock_id = lock_id, .ttl_ms = 3}};
        (void)b->ops->extend_many(b, ops, 3, &limits, &err);
    }
}

static void fuzz_redis_query(syncguard_backend *b, int which, syncguard_limits limits)
{
    syncguard_error err;
    if (which == 4) {
        syncguard_is_locked_op op = {.key = key, .key_length = 3, .limits = limits};
        (void)b->ops->is_locked(b, &op, &err);
    } else if (which == 5) {
        syncguard_lookup_op op = {.key = key, .key_length = 3, .limits = limits};
        if (b->ops->lookup(b, &op, &err) == SYNCGUARD_OK)
            (void)fuzz_redis_record_check(NULL, &op.record);
    } else if (which == 6) {
        syncguard_lookup_op op = {.lock_id = lock_id, .limits = limits};
        if (b->ops->lookup(b, &op, &err) == SYNCGUARD_OK)
            FUZZ_CHECK(strcmp(op.record.lock_id, lock_id) == 0);
    } else if (which == 7) {
        (void)b->ops->list(b, &limits, fuzz_redis_record_check, NULL, &err);
    } else if (which == 8) {
        (void)b->ops->undo(b, key, 3, lock_id, limits.deadline_ns, &limits, &err);
    } else {
        (void)b->ops->diagnose(b, &limits, fuzz_redis_finding_ignore, NULL, &err);
    }
}

static void read_stored(const uint8_t *data, size_t size)
{
    syncguard_record record;
    sg_redis_text text;
    if (sg_redis_record_read((const char *)data, size, &record) == SG_REDIS_WHOLE)
        (void)fuzz_redis_record_check(NULL, &record);
    sg_redis_text_init(&text);
    sg_redis_record_quote(&text, (const char *)data, size);
    FUZZ_CHECK(text.failed || text.length >= size + 2);
    sg_redis_text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static syncguard_backend *backends[2];
    if (backends[0] == NULL) {
        FUZZ_CHECK(syncguard_module_redis.open("redis://127.0.0.1:1", NULL, &backends[0], NULL) ==
                   SYNCGUARD_OK);
        FUZZ_CHECK(syncguard_module_redis.open("redis+cluster://127.0.0.1:1?prefix={a}", NULL,
                                               &backends[1], NULL) == SYNCGUARD_OK);
    }
    if (size < 1)
        return 0;
    read_stored(data + 1, size - 1);
    memset(&input, 0, sizeof input);
    FUZZ_CHECK(sg_redis_connection_make_reader(&input));
    if (size > 1 && redisReaderFeed(input.reader, (const char *)data + 1, size - 1) == REDIS_OK) {
        syncguard_backend *b = backends[data[0] >> 7];
        syncguard_limits limits = {syncguard_clock_ns() + LIMIT_NS, NULL};
        int which = (data[0] & 127) % 10;
        if (which < 4)
            fuzz_redis_mutate(b, which, limits);
        else
            fuzz_redis_query(b, which, limits);
    }
    redisReaderFree(input.reader);
    return 0;
}
