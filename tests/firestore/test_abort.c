/*
 * An abort at each point of an operation: before the read, after it, before the write. The two
 * functions that every request goes through are wrapped (by the linker), so the points are exact.
 */
#include "standin.h"

#include "backends/firestore/internal.h"

static standin server;
static syncguard_error err;

typedef enum point { BEFORE_READ, AFTER_ANSWER, AFTER_READ, BEFORE_WRITE, POINTS } point;
static const char *const names[] = {"before the read", "after the answer", "after the read",
                                    "before the write"};
static point trigger_at = POINTS;
static syncguard_abort *trigger;

static void reached(point at)
{
    if (at == trigger_at)
        syncguard_abort_trigger(trigger);
}

syncguard_status __real_sg_fs_call(fs_backend *backend, fs_call call, json_t *body,
                                   const syncguard_limits *limits, fs_answer *answer,
                                   syncguard_error *error);
syncguard_status __wrap_sg_fs_call(fs_backend *backend, fs_call call, json_t *body,
                                   const syncguard_limits *limits, fs_answer *answer,
                                   syncguard_error *error);
syncguard_status __wrap_sg_fs_call(fs_backend *backend, fs_call call, json_t *body,
                                   const syncguard_limits *limits, fs_answer *answer,
                                   syncguard_error *error)
{
    syncguard_status status;

    reached(call == FS_COMMIT ? BEFORE_WRITE : BEFORE_READ);
    status = __real_sg_fs_call(backend, call, body, limits, answer, error);
    if (call != FS_COMMIT)
        reached(AFTER_ANSWER);
    return status;
}

syncguard_status __real_sg_fs_read(fs_backend *backend, fs_call call, json_t *body,
                                   const syncguard_limits *limits, fs_answer *answer,
                                   syncguard_error *error);
syncguard_status __wrap_sg_fs_read(fs_backend *backend, fs_call call, json_t *body,
                                   const syncguard_limits *limits, fs_answer *answer,
                                   syncguard_error *error);
syncguard_status __wrap_sg_fs_read(fs_backend *backend, fs_call call, json_t *body,
                                   const syncguard_limits *limits, fs_answer *answer,
                                   syncguard_error *error)
{
    syncguard_status status = __real_sg_fs_read(backend, call, body, limits, answer, error);

    reached(AFTER_READ);
    return status;
}

/* The status of one operation by a process that knows nothing of the lock. */
static syncguard_status operate(syncguard_backend *backend, int number, const char *lock_id,
                                const syncguard_call *call)
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
    syncguard_call call = SYNCGUARD_CALL_INIT;
    syncguard_lock_info before, after;
    syncguard_grant grant;
    syncguard_backend *holder = standin_open(&server, NULL);

    (void)state;
    assert_status(SYNCGUARD_OK, syncguard_acquire(holder, "held", 60000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(holder, "held", NULL, &before, &err));
    for (int i = 0; i < OPERATIONS * POINTS; i++) {
        int number = i / POINTS;
        point at = (point)(i % POINTS);
        syncguard_backend *other;
        syncguard_status status;

        /* A read that is complete may be answered. */
        if (number >= WRITING && at >= AFTER_READ)
            continue;
        other = standin_open(&server, NULL);
        assert_status(SYNCGUARD_OK, syncguard_abort_create(&trigger, &err));
        call.abort_object = trigger;
        standin_forget(&server);
        trigger_at = at;
        status = operate(other, number, grant.lock_id, &call);
        trigger_at = POINTS;
        if (status != SYNCGUARD_E_ABORTED || !syncguard_abort_triggered(trigger))
            fail_msg("operation %d, abort %s: %s", number, names[at],
                     syncguard_status_name(status));
        assert_int_equal(standin_calls(&server, "commit"), 0);
        assert_int_equal(standin_calls(&server, NULL), at == BEFORE_READ ? 0 : 1);
        syncguard_close(other);
        syncguard_abort_free(trigger);
    }
    assert_null(standin_document(&server, PREFIX "locks/new"));
    assert_status(SYNCGUARD_OK, syncguard_get_by_key(holder, "held", NULL, &after, &err));
    assert_true(after.expires_at_ms == before.expires_at_ms);
    syncguard_close(holder);
}

static int start(void **state)
{
    (void)state;
    standin_start(&server, NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    standin_stop(&server);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_written_after_an_abort)};

    return cmocka_run_group_tests(tests, start, stop);
}
