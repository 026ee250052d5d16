/* See lock_state.h. Everything here is atomic: queries about a lock need no mutex and no I/O. */
#include "lock_state.h"

#include "core.h"

bool sg_lock_tells(const syncguard_lock *lock)
{
    return lock->on_lost != NULL || lock->abort_on_lost != NULL;
}

bool sg_lock_try_claim(syncguard_lock *lock)
{
    return !atomic_exchange(&lock->claimed, true);
}

void sg_lock_unclaim(syncguard_lock *lock)
{
    atomic_store(&lock->claimed, false);
}

int64_t sg_lock_lease_end(const syncguard_lock *lock)
{
    int64_t lease = atomic_load(&lock->lease);
    return lease > 0 ? lease : 0;
}

void sg_lock_begin_hold(syncguard_lock *lock, int64_t granted_ns)
{
    lock->granted_ns = granted_ns;
    atomic_store(&lock->counted, sg_counters_hold_begin(lock->backend->core->counters));
}

void sg_lock_end_hold(syncguard_lock *lock)
{
    if (atomic_load(&lock->counted) && atomic_exchange(&lock->counted, false))
        sg_counters_hold_end(lock->backend->core->counters,
                             syncguard_clock_ns() - lock->granted_ns);
}

/* Called once per lock, by the thread that has set the reason. It may hold mutexes. */
static void lock_note_loss(syncguard_lock *lock, syncguard_lost_reason reason)
{
    sg_lock_end_hold(lock);
    sg_incidents_lost(lock->backend, lock->key, lock->key_length, reason);
}

void sg_lock_lose(syncguard_lock *lock, syncguard_lost_reason reason)
{
    int64_t lease = atomic_load(&lock->lease);
    while (lease >= 0) {
        if (atomic_compare_exchange_weak(&lock->lease, &lease, -(int64_t)(int)reason)) {
            lock_note_loss(lock, reason);
            return;
        }
    }
}

/* An answer must stay true: a lease that is over is lost from here on, even if a renewal that is in
 * flight still succeeds. This applies only to the lease that was compared with the clock: if a
 * renewal has replaced it meanwhile, the new one is checked. */
syncguard_lost_reason sg_lock_check_lease(syncguard_lock *lock)
{
    int64_t lease = atomic_load(&lock->lease);
    while (lease >= 0 && !atomic_load(&lock->released) && syncguard_clock_ns() >= lease) {
        int64_t lost = lease >= atomic_load(&lock->hold_end_ns) ? -SYNCGUARD_LOST_MAX_HOLD
                                                                : -SYNCGUARD_LOST_UNCONFIRMED;
        if (atomic_compare_exchange_weak(&lock->lease, &lease, lost)) {
            lease = lost;
            lock_note_loss(lock, (syncguard_lost_reason)-lost);
        }
    }
    return lease < 0 ? (syncguard_lost_reason)-lease : SYNCGUARD_LOST_NO;
}

#define NS_PER_S (1000 * SYNCGUARD_NS_PER_MS)

static bool unresolved_extend_shortens(const sg_unresolved_extend *late, int64_t ttl_ms,
                                       int64_t now_ns)
{
    return now_ns < late->until_s * NS_PER_S && late->ttl_ms < ttl_ms;
}

/* The TTL that counts for an extend that was sent at sent_ns with ttl_ms and confirmed: the store
 * may still apply an earlier extend of unknown outcome after it, with a shorter TTL. */
static int64_t lock_counted_ttl_ms(const syncguard_lock *lock, int64_t ttl_ms, int64_t sent_ns)
{
    for (int i = 0; i < SG_UNRESOLVED_EXTENDS; i++) {
        if (unresolved_extend_shortens(&lock->unresolved[i], ttl_ms, sent_ns))
            ttl_ms = lock->unresolved[i].ttl_ms;
    }
    return ttl_ms;
}

/* The newest extend is the last that may be applied, so it replaces those that are not shorter. If
 * there is no entry left, the two newest ones count as one. */
static void unresolved_extend_add(sg_unresolved_extend late[SG_UNRESOLVED_EXTENDS], int64_t ttl_ms,
                                  int64_t now_ns)
{
    int64_t until_ns = syncguard_clock_after(now_ns, SG_LATE_EXTEND_MS);
    int count = 0;
    for (int i = 0; i < SG_UNRESOLVED_EXTENDS; i++) {
        if (unresolved_extend_shortens(&late[i], ttl_ms, now_ns))
            late[count++] = late[i];
    }
    if (count == SG_UNRESOLVED_EXTENDS)
        ttl_ms = late[--count].ttl_ms;
    late[count].ttl_ms = ttl_ms < UINT32_MAX ? (uint32_t)ttl_ms : UINT32_MAX;
    late[count].until_s = (uint32_t)(until_ns / NS_PER_S) + 1;
    for (int i = count + 1; i < SG_UNRESOLVED_EXTENDS; i++)
        late[i] = (sg_unresolved_extend){0, 0};
}

int64_t sg_lock_ttl_within_hold(const syncguard_lock *lock, int64_t ttl_ms)
{
    int64_t left_ns = atomic_load(&lock->hold_end_ns) - syncguard_clock_ns();
    int64_t left_ms = left_ns > 0 ? (left_ns - 1) / SYNCGUARD_NS_PER_MS + 1 : 1;
    return left_ms < ttl_ms ? left_ms : ttl_ms;
}

int64_t sg_lock_renewal_ttl_ms(const syncguard_lock *lock)
{
    return sg_lock_ttl_within_hold(lock, lock->wanted_ttl_ms);
}

bool sg_lock_renewed(syncguard_lock *lock, const syncguard_extend_op *op)
{
    int64_t ttl_ms = lock_counted_ttl_ms(lock, op->ttl_ms, op->first_sent_ns);
    int64_t end = syncguard_clock_after(op->first_sent_ns, ttl_ms);
    int64_t lease = atomic_load(&lock->lease);
    int64_t hold_end = atomic_load(&lock->hold_end_ns);
    if (end > hold_end)
        end = hold_end;
    do {
        if (lease < 0)
            return false;
    } while (!atomic_compare_exchange_weak(&lock->lease, &lease, end));
    atomic_store(&lock->ttl_ms, ttl_ms);
    atomic_store(&lock->expires_at_ms, op->expires_at_ms);
    lock->confirmed_ns = op->first_sent_ns;
    return true;
}

bool sg_lock_note_unresolved(syncguard_lock *lock, const syncguard_extend_op *op)
{
    int64_t end = syncguard_clock_after(op->first_sent_ns, op->ttl_ms);
    int64_t lease = atomic_load(&lock->lease);
    unresolved_extend_add(lock->unresolved, op->ttl_ms, syncguard_clock_ns());
    if (op->ttl_ms >= atomic_load(&lock->ttl_ms))
        return false;
    while (lease > end && !atomic_compare_exchange_weak(&lock->lease, &lease, end)) {
    }
    atomic_store(&lock->ttl_ms, op->ttl_ms);
    return true;
}
