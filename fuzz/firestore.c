/*
 * Replies of Firestore. The backend is complete except for the transfer itself (http.c and below):
 * here the replies are parts of the input, separated by NUL bytes. The first byte chooses the
 * operations, the second the HTTP status of the first reply.
 */
#include "backends/firestore/backend.h"
#include "fuzz.h"

#define LIMIT_NS (4 * SYNCGUARD_NS_PER_MS)

static const uint8_t *input;
static size_t left;
static long first_status;

/* ---- in place of http.c and pool.c ---- */

syncguard_status sg_firestore_pool_init(sg_firestore_pool *pool, int size, const char *ca_file,
                                        bool tls, syncguard_error *err)
{
    (void)pool;
    (void)size;
    (void)ca_file;
    (void)tls;
    (void)err;
    return SYNCGUARD_OK;
}

void sg_firestore_pool_destroy(sg_firestore_pool *pool)
{
    (void)pool;
}

syncguard_status sg_firestore_pool_after_fork(sg_firestore_pool *pool, syncguard_error *err)
{
    (void)pool;
    (void)err;
    return SYNCGUARD_OK;
}

syncguard_status sg_firestore_transfer(sg_firestore_pool *pool,
                                       const sg_firestore_http_request *request,
                                       const syncguard_limits *limits, sg_firestore_reply *reply,
                                       syncguard_error *err)
{
    syncguard_status status = syncguard_limits_check(limits, err);
    (void)pool;
    memset(reply, 0, sizeof *reply);
    FUZZ_CHECK(request->url != NULL);
    if (status != SYNCGUARD_OK)
        return status;
    reply->sent = true;
    if (left == 0) {
        reply->broken = true;
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "no more input");
    }
    const uint8_t *end = memchr(input, 0, left);
    reply->length = end != NULL ? (size_t)(end - input) : left;
    reply->body = fuzz_text(input, reply->length);
    input += reply->length + (end != NULL);
    left -= reply->length + (end != NULL);
    reply->status = first_status;
    first_status = 200;
    reply->start_ns = syncguard_clock_ns();
    reply->end_ns = reply->start_ns + 1000;
    return SYNCGUARD_OK;
}

void sg_firestore_reply_free(sg_firestore_reply *reply)
{
    free(reply->body);
    reply->body = NULL;
}

/* ---- operations ---- */

static const char lock_id[] = "AAAAAAAAAAAAAAAAAAAAAA";
static const char key[] = "key";

static bool fuzz_firestore_record_check(void *context, const syncguard_record *record)
{
    (void)context;
    FUZZ_CHECK(strlen(record->key) < SYNCGUARD_KEY_SIZE && syncguard_fence_valid(record->fence));
    return true;
}

static void fuzz_firestore_finding_ignore(void *context, const syncguard_finding *finding)
{
    (void)context, (void)finding;
}

static void fuzz_firestore_mutate(syncguard_backend *b, int which, syncguard_limits limits)
{
    syncguard_error err;
    if (which == 0) {
        syncguard_acquire_op op = {.key = key, .key_length = 3, .lock_id = lock_id};
        op.ttl_ms = 1000;
        op.owner = "";
        op.limits = limits;
        if (b->ops->acquire(b, &op, &err) == SYNCGUARD_OK)
            FUZZ_CHECK(op.fence >= 0);
    } else if (which == 1) {
        syncguard_release_op op = {.lock_id = lock_id, .limits = limits};
        if (b->ops->release(b, &op, &err) == SYNCGUARD_OK)
            FUZZ_CHECK(op.key_length < SYNCGUARD_KEY_SIZE);
    } else if (which == 2) {
        syncguard_extend_op op = {.lock_id = lock_id, .ttl_ms = 1000, .limits = limits};
        (void)b->ops->extend(b, &op, &err);
    } else {
        syncguard_extend_op ops[2] = {{.lock_id = lock_id, .ttl_ms = 1},
                                      {.lock_id = lock_id, .ttl_ms = 2}};
        (void)b->ops->extend_many(b, ops, 2, &limits, &err);
    }
}

static void fuzz_firestore_query(syncguard_backend *b, int which, syncguard_limits limits)
{
    syncguard_error err;
    if (which == 4) {
        syncguard_is_locked_op op = {.key = key, .key_length = 3, .limits = limits};
        (void)b->ops->is_locked(b, &op, &err);
    } else if (which == 5 || which == 6) {
        syncguard_lookup_op op = {.limits = limits};
        op.key = which == 5 ? key : NULL;
        op.key_length = which == 5 ? 3 : 0;
        op.lock_id = which == 6 ? lock_id : NULL;
        if (b->ops->lookup(b, &op, &err) == SYNCGUARD_OK)
            (void)fuzz_firestore_record_check(NULL, &op.record);
    } else if (which == 7) {
        (void)b->ops->list(b, &limits, fuzz_firestore_record_check, NULL, &err);
    } else if (which == 8) {
        (void)b->ops->undo(b, key, 3, lock_id, limits.deadline_ns, &limits, &err);
    } else if (which == 9) {
        syncguard_cleanup_op op = {key, 3, lock_id, 1, limits};
        (void)b->ops->cleanup(b, &op, &err);
    } else {
        (void)b->ops->diagnose(b, &limits, fuzz_firestore_finding_ignore, NULL, &err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const long statuses[] = {200, 200, 200, 400, 401, 403, 404, 409, 429, 500, 503, 504};
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    if (size < 2)
        return 0;
    own.project = "project";
    own.emulator_host = "127.0.0.1:1";
    own.max_clock_drift_ms = data[1] & 64 ? 500 : 0;
    syncguard_backend *b = NULL;
    if (syncguard_firestore_open(&own, NULL, &b, NULL) != SYNCGUARD_OK)
        abort();
    input = data + 2;
    left = size - 2;
    first_status = statuses[data[1] % (sizeof statuses / sizeof *statuses)];
    /* Two operations, so that the second finds what the first left behind. */
    for (int round = 0; round < 2; round++) {
        syncguard_limits limits = {syncguard_clock_ns() + LIMIT_NS, NULL};
        int which = (round == 0 ? data[0] & 15 : data[0] >> 4) % 11;
        if (which < 4)
            fuzz_firestore_mutate(b, which, limits);
        else
            fuzz_firestore_query(b, which, limits);
    }
    syncguard_close(b);
    return 0;
}
