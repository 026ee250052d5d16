/*
 * Cleanup after is_locked, on stores that keep expired records: off by default, late enough, a few
 * records at a time, only records that were seen. Only the store's own operations show whether a
 * dead record is still there. All records reach their age together.
 */
#include "contract.h"

#include <syncguard/sys/backend.h>

#define TTL 50
#define BURST 20
#define RACE 60
#define GUARD_MS 2000 /* past the expiry: nothing is removed before */
#define YOUNG_MS 1800 /* dead, but not old enough */
#define OLD_MS 2300
#define PAUSE_MS 100 /* between two cleanups of a handle */

static struct {
    syncguard_backend *cleaner;
    key left; /* for the group's handle, which does not clean */
    key old, wrong, burst[BURST], race[RACE];
    int64_t old_at;
} records;

static bool nothing_is_kept(void)
{
    if (able()->keeps_expired)
        return false;
    not_applicable("this store removes expired records itself");
    return true;
}

/* The dead record of a key; its lock id is empty if there is none. */
static syncguard_is_locked_op cleanup_read_dead_record(syncguard_backend *backend, const key *name)
{
    syncguard_is_locked_op op = {.key = name->text, .key_length = strlen(name->text)};
    op.limits.deadline_ns = SYNCGUARD_NO_DEADLINE;
    assert_status(SYNCGUARD_OK, backend->ops->is_locked(backend, &op, &err));
    assert_false(op.locked);
    return op;
}

static bool is_kept(const key *name)
{
    return cleanup_read_dead_record(records.cleaner, name).dead_lock_id[0] != '\0';
}

static void cleanup_assert_unlocked(syncguard_backend *backend, const key *name)
{
    bool locked = true;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, name->text, NULL, &locked, &err));
    assert_false(locked);
}

/* By the store's own operation, which must read the record itself. */
static void cleanup_run_operation(const key *name, const char *lock_id, int64_t expires_at_ms)
{
    syncguard_cleanup_op op = {.key = name->text,
                               .key_length = strlen(name->text),
                               .lock_id = lock_id,
                               .expires_at_ms = expires_at_ms,
                               .limits = {SYNCGUARD_NO_DEADLINE, NULL}};
    syncguard_error own;
    (void)records.cleaner->ops->cleanup(records.cleaner, &op, &own);
}

/* The lease is short: on a busy machine a grant may arrive after its end, and does not count. */
static void let_die(syncguard_backend *backend, key *name)
{
    syncguard_grant grant;
    syncguard_status status = SYNCGUARD_E_NETWORK_TIMEOUT;
    for (int i = 0; i < 20 && status == SYNCGUARD_E_NETWORK_TIMEOUT; i++) {
        *name = fresh_key("cleanup");
        status = syncguard_acquire(backend, name->text, TTL, NULL, &grant, &err);
    }
    assert_status(SYNCGUARD_OK, status);
}

static void make_records(void)
{
    if (records.cleaner != NULL)
        return;
    syncguard_options cleaning = SYNCGUARD_OPTIONS_INIT;
    cleaning.cleanup_in_is_locked = true;
    records.cleaner = open_store(&cleaning);
    let_die(store, &records.left);
    let_die(records.cleaner, &records.old);
    let_die(records.cleaner, &records.wrong);
    for (int i = 0; i < BURST; i++)
        let_die(records.cleaner, &records.burst[i]);
    for (int i = 0; i < RACE; i++)
        let_die(records.cleaner, &records.race[i]);
    records.old_at = test_now_ms() + TTL + OLD_MS;
}

static bool need_old_records(void)
{
    if (nothing_is_kept())
        return false;
    make_records();
    test_sleep_until_ms(records.old_at);
    return true;
}

/* Whether the record stayed. False with *too_late: it may have been old enough when it was
 * removed. */
static bool young_one_stays(int64_t young_ms, bool *too_late)
{
    key name;
    let_die(records.cleaner, &name);
    test_sleep_ms(TTL + young_ms);
    int64_t began = test_now_ms();
    syncguard_is_locked_op found = cleanup_read_dead_record(records.cleaner, &name);
    assert_string_not_equal(found.dead_lock_id, "");
    cleanup_assert_unlocked(records.cleaner, &name);
    cleanup_run_operation(&name, found.dead_lock_id, found.dead_expires_at_ms);
    bool kept = is_kept(&name);
    if (kept) {
        test_sleep_ms(150); /* the handle cleans in a thread of its own */
        kept = is_kept(&name);
    }
    *too_late = found.dead_for_ms + (test_now_ms() - began) >= GUARD_MS;
    return kept;
}

/* The slower the machine, the younger the record. */
static void young_records_stay(void **state)
{
    (void)state;
    if (nothing_is_kept())
        return;
    make_records(); /* they become old meanwhile */
    bool stayed = false;
    bool too_late = true;
    for (int i = 0; i < 5 && !stayed && too_late; i++)
        stayed = young_one_stays(YOUNG_MS - 125 * i, &too_late);
    assert_true(stayed);
}

static void old_records_go(void **state)
{
    int64_t until = test_now_ms() + 20000;
    (void)state;
    if (!need_old_records())
        return;
    assert_true(is_kept(&records.old));
    while (is_kept(&records.old) && test_now_ms() < until) {
        cleanup_assert_unlocked(records.cleaner, &records.old);
        test_sleep_ms(20);
    }
    assert_false(is_kept(&records.old));
}

static void without_the_option_all_stay(void **state)
{
    (void)state;
    if (!need_old_records())
        return;
    syncguard_is_locked_op before = cleanup_read_dead_record(store, &records.left);
    assert_string_not_equal(before.dead_lock_id, "");
    for (int i = 0; i < 100; i++)
        cleanup_assert_unlocked(store, &records.left);
    test_sleep_ms(150);
    syncguard_is_locked_op after = cleanup_read_dead_record(store, &records.left);
    assert_string_equal(after.dead_lock_id, before.dead_lock_id);
    assert_int_equal(after.dead_expires_at_ms, before.dead_expires_at_ms);
}

static void another_id_or_expiry_is_another_lock(void **state)
{
    (void)state;
    if (!need_old_records())
        return;
    syncguard_is_locked_op found = cleanup_read_dead_record(records.cleaner, &records.wrong);
    cleanup_run_operation(&records.wrong, FOREIGN_ID, found.dead_expires_at_ms);
    assert_true(is_kept(&records.wrong));
    cleanup_run_operation(&records.wrong, found.dead_lock_id, found.dead_expires_at_ms + 1);
    assert_true(is_kept(&records.wrong));
    cleanup_run_operation(&records.wrong, found.dead_lock_id, found.dead_expires_at_ms - 1);
    assert_true(is_kept(&records.wrong));
    cleanup_run_operation(&records.wrong, found.dead_lock_id, found.dead_expires_at_ms);
    assert_false(is_kept(&records.wrong));
}

static void cleanup_is_limited_in_rate(void **state)
{
    (void)state;
    if (!need_old_records())
        return;
    int64_t began = test_now_ms();
    for (int i = 0; i < BURST; i++)
        cleanup_assert_unlocked(records.cleaner, &records.burst[i]);
    int64_t took = test_now_ms() - began;
    test_sleep_ms(150);
    int gone = 0;
    for (int i = 0; i < BURST; i++)
        gone += !is_kept(&records.burst[i]);
    assert_in_range(gone, 0, 2 + took / PAUSE_MS);
}

typedef struct race {
    syncguard_is_locked_op found[RACE];
    syncguard_grant grants[RACE];
    syncguard_status taken[RACE];
} race;

/* Both at once; the cleanup also after the take-over, as if it had been delayed. */
static void clean_or_take(int index, void *context)
{
    race *r = context;
    syncguard_error own;
    for (int i = 0; i < RACE; i++) {
        const key *name = &records.race[i];
        if (index == 0)
            cleanup_run_operation(name, r->found[i].dead_lock_id, r->found[i].dead_expires_at_ms);
        else
            r->taken[i] =
                syncguard_acquire(records.cleaner, name->text, 60000, NULL, &r->grants[i], &own);
    }
}

static void cleanup_never_removes_the_next_owner(void **state)
{
    static race r;
    (void)state;
    if (!need_old_records())
        return;
    for (int i = 0; i < RACE; i++)
        r.found[i] = cleanup_read_dead_record(records.cleaner, &records.race[i]);
    in_threads(2, clean_or_take, &r);
    clean_or_take(0, &r);
    for (int i = 0; i < RACE; i++) {
        assert_int_equal(r.taken[i], SYNCGUARD_OK);
        assert_string_equal(r.grants[i].fence, "000000000000002");
        assert_status(SYNCGUARD_OK,
                      syncguard_release(records.cleaner, r.grants[i].lock_id, NULL, &err));
    }
    syncguard_close(records.cleaner); /* this is the last test */
    records.cleaner = NULL;
}

typedef struct pruning {
    key dead, live;
    int seen_dead, seen_live;
} pruning;

static bool cleanup_note_pruned(void *context, const syncguard_lock_info_raw *lock)
{
    pruning *p = context;
    p->seen_dead += strcmp(lock->key, p->dead.text) == 0;
    p->seen_live += strcmp(lock->key, p->live.text) == 0;
    return true;
}

static void prune_removes_old_records_only(void **state)
{
    bool kept = able()->keeps_expired;
    (void)state;
    pruning p = {.seen_dead = 0};
    let_die(store, &p.dead);
    p.live = fresh_key("cleanup");
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, p.live.text, 600000, NULL, &grant, &err));
    test_sleep_ms(TTL + OLD_MS);
    assert_status(SYNCGUARD_OK, syncguard_prune(store, NULL, true, cleanup_note_pruned, &p, &err));
    assert_int_equal(p.seen_dead, kept);
    if (kept)
        assert_string_not_equal(cleanup_read_dead_record(store, &p.dead).dead_lock_id, "");
    p.seen_dead = 0;
    assert_status(SYNCGUARD_OK, syncguard_prune(store, NULL, false, cleanup_note_pruned, &p, &err));
    assert_int_equal(p.seen_dead, kept);
    if (kept)
        assert_string_equal(cleanup_read_dead_record(store, &p.dead).dead_lock_id, "");
    assert_status(SYNCGUARD_OK, syncguard_prune(store, NULL, false, cleanup_note_pruned, &p, &err));
    assert_int_equal(p.seen_dead, kept);
    assert_int_equal(p.seen_live, 0);
    assert_status(SYNCGUARD_OK, syncguard_prune(store, NULL, false, NULL, NULL, &err));
    assert_status(SYNCGUARD_E_INVALID_ARGUMENT,
                  syncguard_prune(NULL, NULL, false, NULL, NULL, &err));
    /* The live record stays, and so does the counter. */
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant.lock_id, NULL, &err));
    syncguard_grant next;
    assert_status(SYNCGUARD_OK, syncguard_acquire(store, p.dead.text, 600000, NULL, &next, &err));
    assert_string_equal(next.fence, "000000000000002");
    assert_status(SYNCGUARD_OK, syncguard_release(store, next.lock_id, NULL, &err));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(young_records_stay),
    cmocka_unit_test(old_records_go),
    cmocka_unit_test(without_the_option_all_stay),
    cmocka_unit_test(another_id_or_expiry_is_another_lock),
    cmocka_unit_test(cleanup_is_limited_in_rate),
    cmocka_unit_test(cleanup_never_removes_the_next_owner),
    cmocka_unit_test(prune_removes_old_records_only),
};
const contract_group cleanup_group = {"cleanup", tests, sizeof tests / sizeof tests[0]};
