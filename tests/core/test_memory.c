/*
 * The memory backend, through its op table where the public interface hides something. This program
 * defines clock_gettime, so that hours can pass at once and the wall clock can step.
 */
#include "test_assert.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "syncguard/sys/backend.h"

static _Atomic int64_t boot_shift_ms;
static _Atomic int64_t wall_shift_ms;

int clock_gettime(clockid_t id, struct timespec *out)
{
    int64_t shift = id == CLOCK_REALTIME ? wall_shift_ms : boot_shift_ms;
    if (syscall(SYS_clock_gettime, id, out) != 0)
        return -1;
    int64_t ns = out->tv_nsec + shift % 1000 * 1000000;
    out->tv_sec += shift / 1000 + (ns >= 1000000000) - (ns < 0);
    out->tv_nsec = (long)((ns + 1000000000) % 1000000000);
    return 0;
}

static syncguard_backend *memory_open_store(void)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    assert_int_equal(syncguard_open("memory:", NULL, &backend, &err), SYNCGUARD_OK);
    return backend;
}

static void memory_advance_clock(int64_t ms)
{
    boot_shift_ms += ms;
}

static const char id_a[] = "AAAAAAAAAAAAAAAAAAAAAA";
static const char id_b[] = "BBBBBBBBBBBBBBBBBBBBBB";

static syncguard_status memory_op_acquire(syncguard_backend *b, const char *key, const char *id,
                                          int64_t ttl_ms, syncguard_acquire_op *op)
{
    memset(op, 0, sizeof *op);
    op->key = key;
    op->key_length = strlen(key);
    op->lock_id = id;
    op->ttl_ms = ttl_ms;
    op->owner = "";
    op->limits.deadline_ns = SYNCGUARD_NO_DEADLINE;
    op->remaining_ms = -1;
    return b->ops->acquire(b, op, NULL);
}

static syncguard_status memory_op_release(syncguard_backend *b, const char *id,
                                          syncguard_release_op *op)
{
    memset(op, 0, sizeof *op);
    op->lock_id = id;
    op->limits.deadline_ns = SYNCGUARD_NO_DEADLINE;
    return b->ops->release(b, op, NULL);
}

/* I-TIM-01, I-TIM-02: live during the tolerance, dead from then on, by the boot clock, which cannot
 * be set */
static void test_memory_expiry(void **state)
{
    syncguard_backend *b = memory_open_store();
    syncguard_extend_op extend = {.lock_id = id_a, .ttl_ms = 1000};
    syncguard_lookup_op lookup = {.lock_id = id_a};
    (void)state;
    syncguard_acquire_op op;
    assert_int_equal(memory_op_acquire(b, "k", id_a, 1000, &op), SYNCGUARD_OK);
    assert_int_equal(op.fence, 1);
    assert_int_equal(memory_op_acquire(b, "k", id_b, 1000, &op), SYNCGUARD_LOCKED);
    assert_in_range(op.remaining_ms, 1500, 2000);
    memory_advance_clock(1500);
    assert_int_equal(memory_op_acquire(b, "k", id_b, 1000, &op), SYNCGUARD_LOCKED);
    assert_in_range(op.remaining_ms, 1, 500);
    /* I-EXT-04: within the tolerance an extend still counts. */
    assert_int_equal(b->ops->extend(b, &extend, NULL), SYNCGUARD_OK);
    memory_advance_clock(2001);
    assert_int_equal(b->ops->lookup(b, &lookup, NULL), SYNCGUARD_ABSENT);
    assert_int_equal(b->ops->extend(b, &extend, NULL), SYNCGUARD_ABSENT);
    assert_int_equal(extend.reason, SYNCGUARD_REASON_EXPIRED);
    syncguard_release_op gone;
    assert_int_equal(memory_op_release(b, id_a, &gone), SYNCGUARD_ABSENT);
    assert_int_equal(gone.reason, SYNCGUARD_REASON_EXPIRED);
    assert_int_equal(memory_op_release(b, id_b, &gone), SYNCGUARD_ABSENT);
    assert_int_equal(gone.reason, SYNCGUARD_REASON_NOT_FOUND);
    /* I-ACQ-06: another owner acquires the key; the old id is gone. */
    assert_int_equal(memory_op_acquire(b, "k", id_b, 1000, &op), SYNCGUARD_OK);
    assert_int_equal(op.fence, 2);
    assert_int_equal(memory_op_release(b, id_a, &gone), SYNCGUARD_ABSENT);
    assert_int_equal(gone.reason, SYNCGUARD_REASON_NOT_FOUND);
    assert_int_equal(memory_op_release(b, id_b, &gone), SYNCGUARD_OK);
    assert_int_equal(gone.key_length, 1);
    assert_string_equal(gone.key, "k");
    syncguard_close(b);
}

/* A step of the wall clock neither ends a lock nor prolongs it. */
static void test_wall_step(void **state)
{
    syncguard_backend *b = memory_open_store();
    (void)state;
    syncguard_acquire_op op;
    assert_int_equal(memory_op_acquire(b, "k", id_a, 5000, &op), SYNCGUARD_OK);
    wall_shift_ms = INT64_C(3600000);
    assert_int_equal(memory_op_acquire(b, "k", id_b, 5000, &op), SYNCGUARD_LOCKED);
    wall_shift_ms = INT64_C(-3600000);
    memory_advance_clock(6001);
    assert_int_equal(memory_op_acquire(b, "k", id_b, 5000, &op), SYNCGUARD_OK);
    wall_shift_ms = 0;
    syncguard_close(b);
}

/* I-ACQ-10: the same request sent again finds its own grant */
static void test_same_id(void **state)
{
    syncguard_backend *b = memory_open_store();
    (void)state;
    syncguard_acquire_op first;
    assert_int_equal(memory_op_acquire(b, "k", id_a, 5000, &first), SYNCGUARD_OK);
    memory_advance_clock(10);
    syncguard_acquire_op again;
    assert_int_equal(memory_op_acquire(b, "k", id_a, 5000, &again), SYNCGUARD_OK);
    assert_int_equal(again.fence, first.fence);
    assert_int_equal(again.expires_at_ms, first.expires_at_ms);
    syncguard_close(b);
}

/* I-EXT-01, I-EXT-06, I-TIM-08 */
static void test_extend(void **state)
{
    syncguard_backend *b = memory_open_store();
    syncguard_lookup_op before = {.lock_id = id_a};
    syncguard_extend_op items[2] = {{.lock_id = id_a, .ttl_ms = 5000},
                                    {.lock_id = id_b, .ttl_ms = 5000}};
    (void)state;
    syncguard_acquire_op op;
    assert_int_equal(memory_op_acquire(b, "k", id_a, 60000, &op), SYNCGUARD_OK);
    assert_int_equal(b->ops->lookup(b, &before, NULL), SYNCGUARD_OK);
    assert_int_equal(before.record.expires_at_ms - before.record.acquired_at_ms, 60000);
    assert_int_equal(before.record.expires_at_ms, op.expires_at_ms);
    assert_int_equal(b->ops->extend(b, &items[0], NULL), SYNCGUARD_OK);
    assert_int_equal(b->ops->extend(b, &items[1], NULL), SYNCGUARD_ABSENT);
    assert_int_equal(items[1].reason, SYNCGUARD_REASON_NOT_FOUND);
    assert_true(items[0].first_sent_ns > 0);
    syncguard_lookup_op after = {.key = "k", .key_length = 1};
    assert_int_equal(b->ops->lookup(b, &after, NULL), SYNCGUARD_OK);
    assert_string_equal(after.record.fence, before.record.fence);
    assert_string_equal(after.record.lock_id, id_a);
    assert_int_equal(after.record.acquired_at_ms, before.record.acquired_at_ms);
    assert_int_equal(after.record.expires_at_ms, items[0].expires_at_ms);
    assert_true(after.record.expires_at_ms < before.record.expires_at_ms - 50000);
    syncguard_close(b);
}

/* I-ISL-04, I-ISL-06: cleanup removes only the record that was seen, only past the guard, and never
 * a counter */
static void test_cleanup(void **state)
{
    syncguard_backend *b = memory_open_store();
    syncguard_cleanup_op clean = {.key = "k", .key_length = 1, .lock_id = id_a};
    (void)state;
    syncguard_acquire_op op;
    assert_int_equal(memory_op_acquire(b, "k", id_a, 1000, &op), SYNCGUARD_OK);
    syncguard_is_locked_op seen = {.key = "k", .key_length = 1};
    assert_int_equal(b->ops->is_locked(b, &seen, NULL), SYNCGUARD_OK);
    assert_true(seen.locked);
    memory_advance_clock(2900);
    assert_int_equal(b->ops->is_locked(b, &seen, NULL), SYNCGUARD_OK);
    assert_false(seen.locked);
    assert_string_equal(seen.dead_lock_id, id_a);
    assert_int_equal(seen.dead_expires_at_ms, op.expires_at_ms);
    assert_in_range(seen.dead_for_ms, 1900, 1999);
    clean.expires_at_ms = seen.dead_expires_at_ms;
    assert_int_equal(b->ops->cleanup(b, &clean, NULL), SYNCGUARD_OK);
    assert_int_equal(b->ops->is_locked(b, &seen, NULL), SYNCGUARD_OK);
    assert_string_equal(seen.dead_lock_id, id_a);
    memory_advance_clock(300);
    clean.expires_at_ms++;
    assert_int_equal(b->ops->cleanup(b, &clean, NULL), SYNCGUARD_OK);
    assert_int_equal(b->ops->is_locked(b, &seen, NULL), SYNCGUARD_OK);
    assert_string_equal(seen.dead_lock_id, id_a);
    clean.expires_at_ms--;
    assert_int_equal(b->ops->cleanup(b, &clean, NULL), SYNCGUARD_OK);
    assert_int_equal(b->ops->is_locked(b, &seen, NULL), SYNCGUARD_OK);
    assert_string_equal(seen.dead_lock_id, "");
    assert_int_equal(memory_op_acquire(b, "k", id_b, 1000, &op), SYNCGUARD_OK);
    assert_int_equal(op.fence, 2);
    syncguard_close(b);
}

static void test_undo(void **state)
{
    syncguard_backend *b = memory_open_store();
    (void)state;
    syncguard_acquire_op op;
    assert_int_equal(memory_op_acquire(b, "k", id_a, 60000, &op), SYNCGUARD_OK);
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, NULL};
    assert_int_equal(b->ops->undo(b, "k", 1, id_a, 0, &limits, NULL), SYNCGUARD_OK);
    assert_int_equal(b->ops->undo(b, "k", 1, id_a, 0, &limits, NULL), SYNCGUARD_OK);
    assert_int_equal(memory_op_acquire(b, "k", id_b, 60000, &op), SYNCGUARD_OK);
    assert_int_equal(op.fence, 2);
    syncguard_close(b);
}

typedef struct seen {
    int count;
    int stop_after;
    char owner[SYNCGUARD_OWNER_SIZE];
} seen;

static bool memory_note_record(void *context, const syncguard_record *record)
{
    seen *s = context;
    s->count++;
    memcpy(s->owner, record->owner, sizeof s->owner);
    return s->count != s->stop_after;
}

/* I-LST-04: only live locks; many locks; an early stop; one label per lock */
static void test_list(void **state)
{
    syncguard_backend *b = memory_open_store();
    (void)state;
    syncguard_acquire_op op;
    char key[32];
    char id[SYNCGUARD_LOCK_ID_SIZE];
    for (int i = 0; i < 10000; i++) {
        snprintf(key, sizeof key, "key-%d", i);
        snprintf(id, sizeof id, "%022d", i);
        assert_int_equal(memory_op_acquire(b, key, id, (i % 10) != 0 ? 1000 : 60000, &op),
                         SYNCGUARD_OK);
    }
    syncguard_limits limits = {SYNCGUARD_NO_DEADLINE, NULL};
    seen s = {0, 0, ""};
    assert_int_equal(b->ops->list(b, &limits, memory_note_record, &s, NULL), SYNCGUARD_OK);
    assert_int_equal(s.count, 10000);
    memory_advance_clock(3000);
    s.count = 0;
    assert_int_equal(b->ops->list(b, &limits, memory_note_record, &s, NULL), SYNCGUARD_OK);
    assert_int_equal(s.count, 1000);
    s = (seen){0, 3, ""};
    assert_int_equal(b->ops->list(b, &limits, memory_note_record, &s, NULL), SYNCGUARD_OK);
    assert_int_equal(s.count, 3);
    memset(&op, 0, sizeof op);
    op = (syncguard_acquire_op){
        .key = "labelled", .key_length = 8, .lock_id = id_a, .ttl_ms = 1000, .owner = "me@here"};
    assert_int_equal(b->ops->acquire(b, &op, NULL), SYNCGUARD_OK);
    s = (seen){0, 1, ""};
    assert_int_equal(b->ops->list(b, &limits, memory_note_record, &s, NULL), SYNCGUARD_OK);
    assert_string_equal(s.owner, "me@here");
    memory_advance_clock(3000);
    op.lock_id = id_b;
    op.owner = "";
    assert_int_equal(b->ops->acquire(b, &op, NULL), SYNCGUARD_OK);
    s = (seen){0, 1, ""};
    assert_int_equal(b->ops->list(b, &limits, memory_note_record, &s, NULL), SYNCGUARD_OK);
    assert_string_equal(s.owner, "");
    limits.deadline_ns = 1;
    s = (seen){0, 0, ""};
    assert_int_equal(b->ops->list(b, &limits, memory_note_record, &s, NULL),
                     SYNCGUARD_E_NETWORK_TIMEOUT);
    syncguard_close(b);
}

/* Two handles share no locks; a child starts empty and does not affect its parent. */
static void test_separate(void **state)
{
    syncguard_backend *b = memory_open_store();
    syncguard_backend *other = memory_open_store();
    (void)state;
    syncguard_grant grant;
    assert_int_equal(syncguard_acquire(b, "k", 60000, NULL, &grant, NULL), SYNCGUARD_OK);
    syncguard_grant second;
    assert_int_equal(syncguard_acquire(other, "k", 60000, NULL, &second, NULL), SYNCGUARD_OK);
    syncguard_close(other);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool empty = syncguard_release(b, grant.lock_id, NULL, NULL) == SYNCGUARD_ABSENT &&
                     syncguard_acquire(b, "k", 60000, NULL, &second, NULL) == SYNCGUARD_OK &&
                     strcmp(second.fence, "000000000000001") == 0;
        syncguard_close(b);
        _exit(empty ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(syncguard_release(b, grant.lock_id, NULL, NULL), SYNCGUARD_OK);
    syncguard_close(b);
}

static atomic_int holders;
static atomic_int overlaps;
static atomic_int grants;

static void *memory_contend_for_keys(void *argument)
{
    syncguard_backend *b = argument;
    syncguard_grant grant;
    for (int i = 0; i < 3000; i++) {
        char key[2] = {(char)('a' + i % 3), '\0'};
        if (syncguard_acquire(b, key, 60000, NULL, &grant, NULL) != SYNCGUARD_OK)
            continue;
        if (i % 3 == 0 && atomic_fetch_add(&holders, 1) != 0)
            atomic_fetch_add(&overlaps, 1);
        atomic_fetch_add(&grants, 1);
        if (i % 3 == 0)
            atomic_fetch_sub(&holders, 1);
        if (syncguard_release(b, grant.lock_id, NULL, NULL) != SYNCGUARD_OK)
            atomic_fetch_add(&overlaps, 1);
    }
    return NULL;
}

/* I-ACQ-04, I-FEN-03, I-FEN-10: the sum of the counters is the number of grants */
static void test_threads(void **state)
{
    syncguard_backend *b = memory_open_store();
    (void)state;
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        threads[i] = test_start_thread(memory_contend_for_keys, b);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(overlaps, 0);
    int64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        char key[2] = {(char)('a' + i), '\0'};
        syncguard_grant grant;
        assert_int_equal(syncguard_acquire(b, key, 60000, NULL, &grant, NULL), SYNCGUARD_OK);
        sum += strtoll(grant.fence, NULL, 10) - 1;
    }
    assert_int_equal(sum, grants);
    syncguard_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_expiry), cmocka_unit_test(test_wall_step),
        cmocka_unit_test(test_same_id),       cmocka_unit_test(test_extend),
        cmocka_unit_test(test_cleanup),       cmocka_unit_test(test_undo),
        cmocka_unit_test(test_list),          cmocka_unit_test(test_separate),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
