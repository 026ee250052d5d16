/*
 * Races at the moment of expiry. Each key has a pair of threads: one uses the old lock id around
 * the moment at which the lock dies, the other tries to take the key over. Many keys, each with its
 * own offset from that moment.
 */
#include "contract.h"

#include <sched.h>

#define DUELS 40
#define TTL 600

typedef struct duel {
    key name;
    syncguard_grant old;
    int64_t dies_at; /* by our own clock, approximately */
    syncguard_status old_answer;
    syncguard_status new_answer;
    syncguard_grant new;
} duel;

typedef struct duels {
    bool extending; /* otherwise releasing */
    duel each[DUELS];
} duels;

static void act_with_old_id(const duels *all, duel *one, int shift)
{
    test_sleep_until_ms(one->dies_at + shift);
    syncguard_error mine;
    if (all->extending)
        one->old_answer = syncguard_extend(store, one->old.lock_id, 30000, NULL, NULL, &mine);
    else
        one->old_answer = syncguard_release(store, one->old.lock_id, NULL, &mine);
}

/* A thread that extends may keep the key for good; after a release the other must get it in the
 * end. */
static void take_it_over(const duels *all, duel *one)
{
    int64_t patience_ms = all->extending ? 60 : 5000;
    test_sleep_until_ms(one->dies_at - 6);
    syncguard_error mine;
    do {
        one->new_answer = syncguard_acquire(store, one->name.text, 30000, NULL, &one->new, &mine);
        if (one->new_answer == SYNCGUARD_LOCKED)
            test_sleep_ms(2);
    } while (one->new_answer == SYNCGUARD_LOCKED && test_now_ms() < one->dies_at + patience_ms);
}

static void duel_run(int index, void *context)
{
    duels *all = context;
    duel *one = &all->each[index / 2];
    if (index % 2 == 0)
        act_with_old_id(all, one, index / 2 % 13 - 6);
    else
        take_it_over(all, one);
}

/* On a busy machine a grant may arrive after the end of its lease, and does not count. */
static void duel_begin(duel *one)
{
    syncguard_status status = SYNCGUARD_E_NETWORK_TIMEOUT;
    for (int i = 0; i < 20 && status == SYNCGUARD_E_NETWORK_TIMEOUT; i++) {
        one->name = fresh_key("duel");
        status = syncguard_acquire(store, one->name.text, TTL, NULL, &one->old, &err);
        one->dies_at = test_now_ms() + TTL + SYNCGUARD_TIME_TOLERANCE_MS;
    }
    assert_status(SYNCGUARD_OK, status);
}

static void run_duels(duels *all, bool extending)
{
    memset(all, 0, sizeof *all);
    all->extending = extending;
    for (int i = 0; i < DUELS; i++)
        duel_begin(&all->each[i]);
    in_threads(2 * DUELS, duel_run, all);
}

static void extend_and_take_over_never_both_succeed(void **state)
{
    static duels all;
    (void)state;
    run_duels(&all, true);
    int extended = 0;
    int taken = 0;
    for (int i = 0; i < DUELS; i++) {
        duel *one = &all.each[i];
        bool kept = one->old_answer == SYNCGUARD_OK;
        bool lost = one->new_answer == SYNCGUARD_OK;
        assert_true(kept || one->old_answer == SYNCGUARD_ABSENT);
        assert_true(lost || one->new_answer == SYNCGUARD_LOCKED);
        assert_false(kept && lost);
        extended += kept;
        taken += lost;
        if (lost)
            assert_string_equal(one->new.fence, "000000000000002");
        assert_status(
            SYNCGUARD_OK,
            syncguard_release(store, lost ? one->new.lock_id : one->old.lock_id, NULL, &err));
    }
    print_message("    %d extended, %d taken over\n", extended, taken);
}

static void release_never_removes_the_next_owner(void **state)
{
    static duels all;
    (void)state;
    run_duels(&all, false);
    for (int i = 0; i < DUELS; i++) {
        duel *one = &all.each[i];
        assert_true(one->old_answer == SYNCGUARD_OK || one->old_answer == SYNCGUARD_ABSENT);
        /* Released or expired: in both cases the key was available. */
        assert_int_equal(one->new_answer, SYNCGUARD_OK);
        assert_string_equal(one->new.fence, "000000000000002");
        bool owned = false;
        assert_status(SYNCGUARD_OK, syncguard_owns(store, one->new.lock_id, NULL, &owned, &err));
        assert_true(owned);
        give_back(&one->new);
    }
}

#define CROWD 16
#define ROUNDS 25

typedef struct section {
    key names[3];
    atomic_int inside[3];
    atomic_int overlaps;
    atomic_int failures;
    atomic_int grants;
} section;

/* Raw acquires and releases of a few keys by many threads: never two holders. */
static void enter_and_leave(int index, void *context)
{
    section *all = context;
    syncguard_error mine;
    syncguard_grant grant;
    for (int i = 0; i < ROUNDS; i++) {
        int which = (index + i) % 3;
        syncguard_status status =
            syncguard_acquire(store, all->names[which].text, 30000, NULL, &grant, &mine);
        if (status == SYNCGUARD_LOCKED)
            continue;
        if (status != SYNCGUARD_OK) {
            atomic_fetch_add(&all->failures, 1);
            continue;
        }
        atomic_fetch_add(&all->grants, 1);
        if (atomic_fetch_add(&all->inside[which], 1) != 0)
            atomic_fetch_add(&all->overlaps, 1);
        sched_yield();
        atomic_fetch_sub(&all->inside[which], 1);
        if (syncguard_release(store, grant.lock_id, NULL, &mine) != SYNCGUARD_OK)
            atomic_fetch_add(&all->failures, 1);
    }
}

static void never_two_holders_of_a_key(void **state)
{
    (void)state;
    section all;
    memset(&all, 0, sizeof all);
    for (int i = 0; i < 3; i++)
        all.names[i] = fresh_key("section");
    in_threads(CROWD, enter_and_leave, &all);
    assert_int_equal(atomic_load(&all.overlaps), 0);
    assert_int_equal(atomic_load(&all.failures), 0);
    assert_true(atomic_load(&all.grants) >= 3);
    for (int i = 0; i < 3; i++)
        check_locked(all.names[i].text, false);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(extend_and_take_over_never_both_succeed),
    cmocka_unit_test(release_never_removes_the_next_owner),
    cmocka_unit_test(never_two_holders_of_a_key),
};
const contract_group races_group = {"races", tests, sizeof tests / sizeof tests[0]};
