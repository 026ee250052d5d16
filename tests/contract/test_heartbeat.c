/*
 * Auto-extend: renewal, the single report of a loss, max_hold. The locks of all tests are taken at
 * the same time and watched together; the tests check what was seen.
 */
#include "contract.h"

#define TTL 1500
#define MANY 30

/* One auto-extended lock and what on_lost reported of it. */
typedef struct kept {
    key name;
    syncguard_lock *lock;
    atomic_int told;
    atomic_int reason;
    atomic_llong told_at;
    bool dispose_inside;
    bool release_inside;
    atomic_int released_inside; /* the status, plus 100 */
} kept;

static struct watch {
    bool done;
    kept renewed, removed, limited, self_disposed, self_released, disposed, extended;
    kept many[MANY];
    bool renewed_always_locked;
    bool renewed_held;
    int64_t renewed_first, renewed_last;
    char renewed_fence_before[SYNCGUARD_FENCE_SIZE], renewed_fence_after[SYNCGUARD_FENCE_SIZE];
    int64_t renewed_remaining;
    int64_t removed_at;
    syncguard_lost_reason removed_reason;
    bool removed_held;
    syncguard_status removed_extend, removed_release;
    syncguard_lost_reason limited_reason;
    int64_t started;
    bool limited_locked_late;
    bool disposed_locked_at_once, disposed_locked_late;
    syncguard_grant disposed_next;
    int many_held;
    int64_t extended_remaining;
} seen;

static void heartbeat_note_loss(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    kept *one = context;
    atomic_store(&one->reason, reason);
    atomic_store(&one->told_at, test_now_ms());
    atomic_fetch_add(&one->told, 1);
    if (one->release_inside)
        atomic_store(&one->released_inside, 100 + syncguard_lock_release(lock, NULL, NULL));
    if (one->dispose_inside)
        syncguard_lock_dispose(lock);
}

static void heartbeat_keep_lock(kept *one, const char *name, int64_t max_hold_ms)
{
    one->name = fresh_key(name);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = TTL;
    options.auto_extend = true;
    options.max_hold_ms = max_hold_ms;
    options.on_lost = heartbeat_note_loss;
    options.on_lost_context = one;
    assert_status(SYNCGUARD_OK,
                  syncguard_lock_acquire(store, one->name.text, &options, &one->lock, &err));
}

/* As if another process had removed the lock from the store. */
static void remove_behind(kept *one)
{
    char id[SYNCGUARD_LOCK_ID_SIZE];
    memcpy(id, syncguard_lock_id(one->lock), sizeof id);
    assert_status(SYNCGUARD_OK, syncguard_release(store, id, NULL, &err));
}

static void heartbeat_set_up(void)
{
    seen.started = test_now_ms();
    heartbeat_keep_lock(&seen.renewed, "renewed", 0);
    heartbeat_keep_lock(&seen.removed, "removed", 0);
    heartbeat_keep_lock(&seen.limited, "limited", 1000);
    heartbeat_keep_lock(&seen.self_disposed, "self-disposed", 0);
    heartbeat_keep_lock(&seen.self_released, "self-released", 0);
    heartbeat_keep_lock(&seen.disposed, "disposed", 0);
    heartbeat_keep_lock(&seen.extended, "hand-extended", 0);
    for (int i = 0; i < MANY; i++)
        heartbeat_keep_lock(&seen.many[i], "many", 0);
    seen.self_disposed.dispose_inside = true;
    seen.self_released.release_inside = true;
    seen.renewed_first = syncguard_lock_expires_at_ms(seen.renewed.lock);
    memcpy(seen.renewed_fence_before, syncguard_lock_fence(seen.renewed.lock),
           SYNCGUARD_FENCE_SIZE);
    assert_status(SYNCGUARD_OK, syncguard_lock_extend(seen.extended.lock, 20000, NULL, NULL, &err));
    syncguard_lock_dispose(seen.disposed.lock);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(store, seen.disposed.name.text, NULL,
                                                    &seen.disposed_locked_at_once, &err));
    seen.removed_at = test_now_ms();
    remove_behind(&seen.removed);
    remove_behind(&seen.self_disposed);
    remove_behind(&seen.self_released);
}

static void watch_renewed(int64_t until)
{
    seen.renewed_always_locked = true;
    while (test_now_ms() < until) {
        syncguard_grant grant;
        syncguard_status status =
            syncguard_acquire(store, seen.renewed.name.text, 1000, NULL, &grant, &err);
        if (status != SYNCGUARD_LOCKED)
            seen.renewed_always_locked = false;
        test_sleep_ms(100);
    }
}

static void heartbeat_collect_results(void)
{
    syncguard_lock *renewed = seen.renewed.lock;
    syncguard_lock *removed = seen.removed.lock;
    seen.renewed_held = syncguard_lock_held(renewed);
    seen.renewed_last = syncguard_lock_expires_at_ms(renewed);
    seen.renewed_remaining = syncguard_lock_remaining_ms(renewed);
    memcpy(seen.renewed_fence_after, syncguard_lock_fence(renewed), SYNCGUARD_FENCE_SIZE);
    seen.removed_reason = syncguard_lock_lost(removed);
    seen.removed_held = syncguard_lock_held(removed);
    seen.removed_extend = syncguard_lock_extend(removed, 5000, NULL, NULL, &err);
    seen.removed_release = syncguard_lock_release(removed, NULL, &err);
    seen.limited_reason = syncguard_lock_lost(seen.limited.lock);
    assert_status(SYNCGUARD_OK, syncguard_is_locked(store, seen.limited.name.text, NULL,
                                                    &seen.limited_locked_late, &err));
    assert_status(SYNCGUARD_OK, syncguard_is_locked(store, seen.disposed.name.text, NULL,
                                                    &seen.disposed_locked_late, &err));
    for (int i = 0; i < MANY; i++) {
        bool owned = false;
        assert_status(SYNCGUARD_OK, syncguard_owns(store, syncguard_lock_id(seen.many[i].lock),
                                                   NULL, &owned, &err));
        seen.many_held += owned && syncguard_lock_held(seen.many[i].lock);
    }
    seen.extended_remaining = syncguard_lock_remaining_ms(seen.extended.lock);
}

static void heartbeat_tear_down(void)
{
    syncguard_lock_dispose(seen.renewed.lock);
    syncguard_lock_dispose(seen.removed.lock);
    syncguard_lock_dispose(seen.limited.lock);
    syncguard_lock_dispose(seen.self_released.lock);
    syncguard_lock_dispose(seen.extended.lock);
    for (int i = 0; i < MANY; i++)
        syncguard_lock_dispose(seen.many[i].lock);
}

static void need_watch(void)
{
    if (seen.done)
        return;
    heartbeat_set_up();
    /* By then max_hold, the last renewal before it, and the tolerance are over. */
    watch_renewed(seen.started + 1000 + TTL + 1000 + 900);
    heartbeat_collect_results();
    heartbeat_tear_down();
    seen.done = true;
}

static void renewed_lock_stays_held(void **state)
{
    (void)state;
    need_watch();
    assert_true(seen.renewed_always_locked);
    assert_true(seen.renewed_held);
    assert_at_least(seen.renewed_first + TTL, seen.renewed_last);
    assert_between(1, TTL, seen.renewed_remaining);
    assert_string_equal(seen.renewed_fence_before, seen.renewed_fence_after);
    assert_int_equal(atomic_load(&seen.renewed.told), 0);
}

static void removed_lock_is_reported_once(void **state)
{
    (void)state;
    need_watch();
    assert_int_equal(atomic_load(&seen.removed.told), 1);
    assert_int_equal(atomic_load(&seen.removed.reason), SYNCGUARD_LOST_ABSENT);
    assert_at_most(TTL + 1500, atomic_load(&seen.removed.told_at) - seen.removed_at);
    assert_int_equal(seen.removed_reason, SYNCGUARD_LOST_ABSENT);
    assert_false(seen.removed_held);
    assert_int_equal(seen.removed_extend, SYNCGUARD_ABSENT);
    assert_int_equal(seen.removed_release, SYNCGUARD_ABSENT);
}

static void max_hold_ends_the_renewing(void **state)
{
    (void)state;
    need_watch();
    assert_int_equal(seen.limited_reason, SYNCGUARD_LOST_MAX_HOLD);
    assert_int_equal(atomic_load(&seen.limited.told), 1);
    assert_int_equal(atomic_load(&seen.limited.reason), SYNCGUARD_LOST_MAX_HOLD);
    assert_at_least(900, atomic_load(&seen.limited.told_at) - seen.started);
    assert_false(seen.limited_locked_late);
}

static void on_lost_may_release_or_dispose(void **state)
{
    (void)state;
    need_watch();
    assert_int_equal(atomic_load(&seen.self_disposed.told), 1);
    assert_int_equal(atomic_load(&seen.self_released.told), 1);
    assert_int_equal(atomic_load(&seen.self_released.released_inside), 100 + SYNCGUARD_ABSENT);
}

static void dispose_ends_the_renewing(void **state)
{
    (void)state;
    need_watch();
    assert_false(seen.disposed_locked_at_once);
    assert_false(seen.disposed_locked_late);
    assert_int_equal(atomic_load(&seen.disposed.told), 0);
}

static void many_locks_are_renewed(void **state)
{
    (void)state;
    need_watch();
    assert_int_equal(seen.many_held, MANY);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(atomic_load(&seen.many[i].told), 0);
        check_locked(seen.many[i].name.text, false); /* disposed of */
    }
}

static void extend_by_hand_sets_the_length_of_renewals(void **state)
{
    (void)state;
    need_watch();
    assert_at_least(10000, seen.extended_remaining);
    assert_int_equal(atomic_load(&seen.extended.told), 0);
}

static void renewals_are_events(void **state)
{
    (void)state;
    if (!contract.telemetry) {
        not_applicable("without the decorator there are no events");
        return;
    }
    need_watch();
    event_filter filter = {SYNCGUARD_EVENT_EXTEND, NULL, NULL};
    assert_at_least(MANY, (int64_t)await_events(filter, MANY, NULL));
}

static void reasons_have_names(void **state)
{
    (void)state;
    assert_string_equal(syncguard_lost_reason_name(SYNCGUARD_LOST_NO), "no");
    assert_string_equal(syncguard_lost_reason_name(SYNCGUARD_LOST_ABSENT), "absent");
    assert_string_equal(syncguard_lost_reason_name(SYNCGUARD_LOST_UNCONFIRMED), "unconfirmed");
    assert_string_equal(syncguard_lost_reason_name(SYNCGUARD_LOST_MAX_HOLD), "max-hold");
    assert_string_equal(syncguard_lost_reason_name(SYNCGUARD_LOST_FORKED), "forked");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(renewed_lock_stays_held),
    cmocka_unit_test(removed_lock_is_reported_once),
    cmocka_unit_test(max_hold_ends_the_renewing),
    cmocka_unit_test(on_lost_may_release_or_dispose),
    cmocka_unit_test(dispose_ends_the_renewing),
    cmocka_unit_test(many_locks_are_renewed),
    cmocka_unit_test(extend_by_hand_sets_the_length_of_renewals),
    cmocka_unit_test(renewals_are_events),
    cmocka_unit_test(reasons_have_names),
};
const contract_group heartbeat_group = {"heartbeat", tests, sizeof tests / sizeof tests[0]};
