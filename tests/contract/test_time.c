/*
 * Time: one timeline for all operations. Locks of TTL ms are taken, and read a little past their
 * expiry (within the tolerance: everything still works) and long past it (nothing does). The
 * timeline runs once, and the tests check what it recorded. If the machine was too slow to read at
 * the right moment, the whole timeline is repeated, at most three times. If the library was
 * compiled with another tolerance, CONTRACT_TOLERANCE_MS says so.
 */
#include "contract.h"

#define TTL 800
#define INSIDE_MS 750 /* before the tolerance of the last lock is over */
/* Before the tolerance of the first lock is over: a later read shows nothing. */
#define INSIDE_END_MS 100
#define OUTSIDE_MS 500 /* after the tolerance */
#define CLEAN_TTL 600
#define CLEANUP_MS 2400 /* past the expiry */

static int64_t tolerance_ms(void)
{
    const char *other = getenv("CONTRACT_TOLERANCE_MS");
    return other != NULL ? strtoll(other, NULL, 10) : SYNCGUARD_TIME_TOLERANCE_MS;
}

/* Results of the read-only operations for one lock. */
typedef struct observation {
    bool locked;
    bool owned;
    bool listed;
    syncguard_status by_key;
    syncguard_status by_id;
} observation;

static struct timeline {
    bool done;
    int64_t inside_late_ms; /* how late the read within the tolerance ended */
    observation inside;
    observation outside;
    syncguard_status acquire_inside, release_inside, extend_inside;
    int64_t extended_to;
    bool extended_still_held;
    syncguard_status release_outside, extend_outside;
    bool revived;
    syncguard_status take_over;
    syncguard_grant taken_over, new_owner;
    syncguard_status old_release, old_extend;
    bool new_owner_survived;
    bool handle_held, handle_held_late;
    int64_t handle_remaining_late;
    syncguard_lost_reason handle_lost_late;
    syncguard_status handle_acquire;
    atomic_int release_errors;
    syncguard_status clean_status;
    bool clean_locked;
    syncguard_grant clean_next;
    bool clean_listed;
} seen;

typedef struct search {
    const char *hash;
    bool found;
} search;

static bool time_find_hash(void *context, const syncguard_lock_info *info)
{
    search *wanted = context;
    if (strcmp(info->key_hash, wanted->hash) == 0)
        wanted->found = true;
    return !wanted->found;
}

static bool time_key_is_listed(syncguard_backend *backend, const char *name)
{
    char hash[SYNCGUARD_HASH_SIZE];
    search wanted = {hash, false};
    assert_true(syncguard_hash(name, hash));
    assert_status(SYNCGUARD_OK, syncguard_list(backend, NULL, time_find_hash, &wanted, &err));
    return wanted.found;
}

static observation time_observe_key(const char *name, const syncguard_grant *grant)
{
    observation at;
    memset(&at, 0, sizeof at);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(store, name, NULL, &at.locked, &err));
    assert_status(SYNCGUARD_OK, syncguard_owns(store, grant->lock_id, NULL, &at.owned, &err));
    syncguard_lock_info info;
    at.by_key = syncguard_get_by_key(store, name, NULL, &info, &err);
    at.by_id = syncguard_get_by_id(store, grant->lock_id, NULL, &info, &err);
    at.listed = time_key_is_listed(store, name);
    return at;
}

static void count_release_error(void *context, const syncguard_error *error, const char *name,
                                const char *lock_id, const char *source)
{
    (void)context;
    (void)error;
    (void)name;
    (void)lock_id;
    (void)source;
    atomic_fetch_add(&seen.release_errors, 1);
}

enum { OBSERVED, RELEASED_INSIDE, EXTENDED_INSIDE, RELEASED_LATE, EXTENDED_LATE, TAKEN, LOCKS };

static void time_observe_inside(const key *names, const syncguard_grant *grants)
{
    seen.release_inside = syncguard_release(store, grants[RELEASED_INSIDE].lock_id, NULL, &err);
    seen.extend_inside = syncguard_extend(store, grants[EXTENDED_INSIDE].lock_id, 30000, NULL,
                                          &seen.extended_to, &err);
    syncguard_grant refused;
    seen.acquire_inside =
        syncguard_acquire(store, names[OBSERVED].text, 1000, NULL, &refused, &err);
    seen.inside = time_observe_key(names[OBSERVED].text, &grants[OBSERVED]);
}

static void time_observe_outside(const key *names, const syncguard_grant *grants)
{
    const char *old_id = grants[TAKEN].lock_id;
    seen.outside = time_observe_key(names[OBSERVED].text, &grants[OBSERVED]);
    seen.release_outside = syncguard_release(store, grants[RELEASED_LATE].lock_id, NULL, &err);
    seen.extend_outside =
        syncguard_extend(store, grants[EXTENDED_LATE].lock_id, 30000, NULL, NULL, &err);
    assert_status(SYNCGUARD_OK,
                  syncguard_is_locked(store, names[EXTENDED_LATE].text, NULL, &seen.revived, &err));
    assert_status(SYNCGUARD_OK, syncguard_owns(store, grants[EXTENDED_INSIDE].lock_id, NULL,
                                               &seen.extended_still_held, &err));
    seen.taken_over = grants[TAKEN];
    seen.take_over =
        syncguard_acquire(store, names[TAKEN].text, 30000, NULL, &seen.new_owner, &err);
    seen.old_extend = syncguard_extend(store, old_id, 30000, NULL, NULL, &err);
    seen.old_release = syncguard_release(store, old_id, NULL, &err);
    assert_status(SYNCGUARD_OK, syncguard_owns(store, seen.new_owner.lock_id, NULL,
                                               &seen.new_owner_survived, &err));
    syncguard_release(store, seen.new_owner.lock_id, NULL, &err);
    syncguard_release(store, grants[EXTENDED_INSIDE].lock_id, NULL, &err);
}

/* A handle that may clean reads a dead lock: the counter must survive. */
static void time_observe_cleanup(syncguard_backend *cleaner, const char *name)
{
    seen.clean_status = syncguard_is_locked(cleaner, name, NULL, &seen.clean_locked, &err);
    test_sleep_ms(300);
    seen.clean_listed = time_key_is_listed(cleaner, name);
    assert_status(SYNCGUARD_OK,
                  syncguard_acquire(cleaner, name, 1000, NULL, &seen.clean_next, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(cleaner, seen.clean_next.lock_id, NULL, &err));
}

static void run_timeline(void)
{
    key handle_name = fresh_key("time-handle"), clean_name = fresh_key("time-clean");
    int64_t tolerance = tolerance_ms();
    memset(&seen, 0, sizeof seen);
    syncguard_options cleaning = SYNCGUARD_OPTIONS_INIT;
    cleaning.cleanup_in_is_locked = true;
    syncguard_backend *cleaner = open_store(&cleaning);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = TTL;
    options.on_release_error = count_release_error;
    int64_t first = test_now_ms();
    syncguard_grant dead;
    assert_status(SYNCGUARD_OK,
                  syncguard_acquire(cleaner, clean_name.text, CLEAN_TTL, NULL, &dead, &err));
    syncguard_lock *lock = NULL;
    seen.handle_acquire = syncguard_lock_try(store, handle_name.text, &options, &lock, &err);
    assert_status(SYNCGUARD_OK, seen.handle_acquire);
    seen.handle_held = syncguard_lock_held(lock);
    key names[LOCKS];
    syncguard_grant grants[LOCKS];
    for (int i = 0; i < LOCKS; i++) {
        names[i] = fresh_key("time");
        grants[i] = take(names[i].text, TTL);
    }
    int64_t last = test_now_ms();
    test_sleep_until_ms(last + TTL + tolerance - INSIDE_MS);
    time_observe_inside(names, grants);
    seen.inside_late_ms = test_now_ms() - (first + TTL + tolerance - INSIDE_END_MS);
    seen.handle_held_late = syncguard_lock_held(lock);
    seen.handle_remaining_late = syncguard_lock_remaining_ms(lock);
    seen.handle_lost_late = syncguard_lock_lost(lock);
    test_sleep_until_ms(last + TTL + tolerance + OUTSIDE_MS);
    time_observe_outside(names, grants);
    syncguard_lock_dispose(lock);
    test_sleep_until_ms(last + CLEAN_TTL + CLEANUP_MS);
    time_observe_cleanup(cleaner, clean_name.text);
    syncguard_close(cleaner);
}

static void need_timeline(void)
{
    for (int tries = 0; !seen.done && tries < 3; tries++) {
        run_timeline();
        seen.done = seen.inside_late_ms <= 0;
    }
    assert_at_most(0, seen.inside_late_ms);
}

/* Otherwise the timeline of the wrong library would be checked. */
static void the_tolerance_is_the_one_compiled_in(void **state)
{
    (void)state;
    assert_int_equal(syncguard_constants_get()->time_tolerance_ms, tolerance_ms());
}

static void live_within_the_tolerance(void **state)
{
    (void)state;
    need_timeline();
    assert_true(seen.inside.locked);
    assert_true(seen.inside.owned);
    assert_true(seen.inside.listed);
    assert_int_equal(seen.inside.by_key, SYNCGUARD_OK);
    assert_int_equal(seen.inside.by_id, SYNCGUARD_OK);
    assert_int_equal(seen.acquire_inside, SYNCGUARD_LOCKED);
}

static void dead_after_the_tolerance(void **state)
{
    (void)state;
    need_timeline();
    assert_false(seen.outside.locked);
    assert_false(seen.outside.owned);
    assert_false(seen.outside.listed);
    assert_int_equal(seen.outside.by_key, SYNCGUARD_ABSENT);
    assert_int_equal(seen.outside.by_id, SYNCGUARD_ABSENT);
}

static void release_within_the_tolerance_succeeds(void **state)
{
    (void)state;
    need_timeline();
    assert_int_equal(seen.release_inside, SYNCGUARD_OK);
}

static void release_after_the_tolerance_is_absent(void **state)
{
    (void)state;
    need_timeline();
    assert_int_equal(seen.release_outside, SYNCGUARD_ABSENT);
}

static void extend_within_the_tolerance_succeeds(void **state)
{
    (void)state;
    need_timeline();
    assert_int_equal(seen.extend_inside, SYNCGUARD_OK);
    assert_at_least(seen.taken_over.expires_at_ms + 25000, seen.extended_to);
    assert_true(seen.extended_still_held);
}

static void extend_never_revives(void **state)
{
    (void)state;
    need_timeline();
    assert_int_equal(seen.extend_outside, SYNCGUARD_ABSENT);
    assert_false(seen.revived);
}

static void expired_lock_is_taken_over(void **state)
{
    (void)state;
    need_timeline();
    assert_int_equal(seen.take_over, SYNCGUARD_OK);
    assert_string_equal(seen.taken_over.fence, "000000000000001");
    assert_string_equal(seen.new_owner.fence, "000000000000002");
    assert_int_equal(seen.old_extend, SYNCGUARD_ABSENT);
    assert_int_equal(seen.old_release, SYNCGUARD_ABSENT);
    assert_true(seen.new_owner_survived);
}

static void handle_knows_that_its_lease_ended(void **state)
{
    (void)state;
    need_timeline();
    assert_true(seen.handle_held);
    assert_false(seen.handle_held_late);
    assert_between(0, 0, seen.handle_remaining_late);
    assert_int_not_equal(seen.handle_lost_late, SYNCGUARD_LOST_NO);
    assert_int_equal(atomic_load(&seen.release_errors), 0); /* absent at disposal is no error */
}

static void cleanup_keeps_the_answer_and_the_counter(void **state)
{
    (void)state;
    need_timeline();
    assert_int_equal(seen.clean_status, SYNCGUARD_OK);
    assert_false(seen.clean_locked);
    assert_false(seen.clean_listed);
    assert_string_equal(seen.clean_next.fence, "000000000000002");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_tolerance_is_the_one_compiled_in),
    cmocka_unit_test(live_within_the_tolerance),
    cmocka_unit_test(dead_after_the_tolerance),
    cmocka_unit_test(release_within_the_tolerance_succeeds),
    cmocka_unit_test(release_after_the_tolerance_is_absent),
    cmocka_unit_test(extend_within_the_tolerance_succeeds),
    cmocka_unit_test(extend_never_revives),
    cmocka_unit_test(expired_lock_is_taken_over),
    cmocka_unit_test(handle_knows_that_its_lease_ended),
    cmocka_unit_test(cleanup_keeps_the_answer_and_the_counter),
};
const contract_group time_group = {"time", tests, sizeof tests / sizeof tests[0]};
