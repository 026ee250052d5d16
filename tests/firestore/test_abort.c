/*
 * An abort at each point of an operation: before the read, after it, before the write. The
 * functions that every request goes through are wrapped (by the linker), so the points are exact.
 */
#include "support.h"

#include "backends/firestore/request.h"

typedef enum point { BEFORE_READ, AFTER_ANSWER, AFTER_READ, BEFORE_WRITE, POINTS } point;
static const char *const names[] = {"before the read", "after the answer", "after the read",
                                    "before the write"};
static point trigger_at = POINTS;
static syncguard_abort *trigger;

static void abort_point_reached(point at)
{
    if (at == trigger_at)
        syncguard_abort_trigger(trigger);
}

/* The linker's names of the original functions and of their replacements. */
/* clang-format off */
#define WRAP(name, ...)                                                                            \
    syncguard_status __real_##name(__VA_ARGS__);                                                   \
    syncguard_status __wrap_##name(__VA_ARGS__);                                                   \
    syncguard_status __wrap_##name(__VA_ARGS__)
/* clang-format on */

WRAP(sg_firestore_call, const sg_firestore_context *ctx, sg_firestore_method method, json_t *body,
     sg_firestore_answer *answer)
{
    syncguard_status status;
    abort_point_reached(BEFORE_READ);
    status = __real_sg_firestore_call(ctx, method, body, answer);
    abort_point_reached(AFTER_ANSWER);
    return status;
}

WRAP(sg_firestore_commit, const sg_firestore_context *ctx, json_t *writes,
     sg_firestore_answer *answer)
{
    abort_point_reached(BEFORE_WRITE);
    return __real_sg_firestore_commit(ctx, writes, answer);
}

WRAP(sg_firestore_read, const sg_firestore_context *ctx, sg_firestore_method method, json_t *body,
     sg_firestore_answer *answer)
{
    syncguard_status status = __real_sg_firestore_read(ctx, method, body, answer);
    abort_point_reached(AFTER_READ);
    return status;
}

/* The status of one operation of a handle that has not cached the lock. */
static syncguard_status abort_operation_run(syncguard_backend *backend, int number,
                                            const char *lock_id, const syncguard_call *call)
{
    syncguard_lock_info info;
    syncguard_grant grant;
    bool locked;
    switch (number) {
    case 0:
        return syncguard_acquire(backend, "new", 30000, call, &grant, &err);
    case 1:
        return syncguard_extend(backend, lock_id, 90000, call, NULL, &err);
    case 2:
        return syncguard_release(backend, lock_id, call, &err);
    case 3:
        return syncguard_is_locked(backend, "held", call, &locked, &err);
    case 4:
        return syncguard_get_by_key(backend, "held", call, &info, &err);
    default:
        return syncguard_get_by_id(backend, lock_id, call, &info, &err);
    }
}

enum { WRITING = 3, OPERATIONS = 6 };

/* I-ABT-04 */
static void nothing_is_written_after_an_abort(void **state)
{
    syncguard_backend *holder = fake_server_open(&server, NULL);
    (void)state;
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "held", 60000, NULL, &grant, &err));
    syncguard_lock_info before;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(holder, "held", NULL, &before, &err));
    syncguard_call call = SYNCGUARD_CALL_INIT;
    for (int i = 0; i < OPERATIONS * POINTS; i++) {
        int number = i / POINTS;
        point at = (point)(i % POINTS);

        /* A read that is complete may be answered. */
        if (number >= WRITING && at >= AFTER_READ)
            continue;
        syncguard_backend *other = fake_server_open(&server, NULL);
        assert_status(SYNCGUARD_OK, syncguard_abort_create(&trigger, &err));
        call.abort_object = trigger;
        fake_server_forget(&server);
        trigger_at = at;
        syncguard_status status = abort_operation_run(other, number, grant.lock_id, &call);
        trigger_at = POINTS;
        if (status != SYNCGUARD_E_ABORTED || !syncguard_abort_triggered(trigger))
            fail_msg("operation %d, abort %s: %s", number, names[at],
                     syncguard_status_name(status));
        assert_int_equal(fake_server_calls(&server, "commit"), 0);
        assert_int_equal(fake_server_calls(&server, NULL), at == BEFORE_READ ? 0 : 1);
        syncguard_close(other);
        syncguard_abort_free(trigger);
    }
    assert_null(fake_server_document(&server, PREFIX "locks/new"));
    syncguard_lock_info after;
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(holder, "held", NULL, &after, &err));
    assert_true(after.expires_at_ms == before.expires_at_ms);
    syncguard_close(holder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_written_after_an_abort)};
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
