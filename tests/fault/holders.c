/*
 * What users of the lock helper and of the command rely on, for one key:
 *
 *   - nobody believes that it holds the key when a later grant has been handed out, nor
 *     after its on_lost;
 *   - on_lost is called exactly once for a renewed lock that is lost, and before the
 *     lease ends in the store;
 *   - no child of the command is alive for longer than the grace period after a later
 *     grant;
 *   - no wake-up is lost: a key that is free does not stay free while somebody waits.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* ---- two holders --------------------------------------------------------------------------------
 */

/* For each grant, the earliest return of those with higher fences. */
static int64_t *later_grants(const history *h)
{
    int64_t *later = calloc(h->grant_count + 1, sizeof *later);
    if (later == NULL)
        exit(2);
    later[h->grant_count] = INT64_MAX;
    for (size_t i = h->grant_count; i-- > 0;) {
        int64_t mine = h->ops[h->grants[i]].r.return_ns;
        later[i] = mine < later[i + 1] ? mine : later[i + 1];
    }
    return later;
}

static int check_beliefs(const history *h, uint32_t key)
{
    int64_t *later = later_grants(h);
    int result = 0;
    for (size_t i = 0; i < h->count && result == 0; i++) {
        const op *o = &h->ops[i];
        if (o->r.outcome != HISTORY_OK || o->holder < 0 ||
            (o->r.kind != HISTORY_HELD && o->r.kind != HISTORY_CHILD))
            continue;
        const op *grant = &h->ops[o->holder];
        int64_t next = later[grant->rank + 1];
        if (o->r.kind == HISTORY_HELD && next < o->r.call_ns)
            result = broken(key, "a holder believed in its lock after another was granted it",
                            &grant->r, &o->r);
        else if (o->r.kind == HISTORY_CHILD && !set.frozen && next < o->r.call_ns - set.grace_ns)
            result = broken(key, "a child of the command outlived its lock", &grant->r, &o->r);
    }
    free(later);
    return result;
}

/* ---- losses -------------------------------------------------------------------------------------
 */

/* What is known of one grant's loss. */
typedef struct loss {
    const history_record *told; /* on_lost */
    int64_t lease_end;          /* the latest that its holder saw */
    bool lost;                  /* its handle said so */
    bool given_back;            /* its holder lived to the end */
} loss;

static int note(const op *o, loss *l, uint32_t key)
{
    const history_record *r = &o->r;
    if (r->kind == HISTORY_LOST) {
        if (l->told != NULL)
            return broken(key, "on_lost was called twice", l->told, r);
        l->told = r;
    } else if (r->kind == HISTORY_HELD && r->outcome == HISTORY_OK) {
        if (l->told != NULL && r->call_ns > l->told->return_ns)
            return broken(key, "a holder believed in its lock after on_lost", l->told, r);
        if (r->sent_ns > l->lease_end)
            l->lease_end = r->sent_ns;
    } else if (r->kind == HISTORY_HELD) {
        l->lost = l->lost || r->status != 0;
    } else if (r->kind == HISTORY_RELEASE && r->outcome != HISTORY_PENDING) {
        l->given_back = l->given_back || r->return_ns != r->call_ns + GHOST_NS;
    }
    return 0;
}

static int check_losses(const history *h, uint32_t key)
{
    loss *losses = calloc(h->grant_count + 1, sizeof *losses);
    int result = 0;
    if (losses == NULL)
        exit(2);
    for (size_t i = 0; i < h->count && result == 0; i++) { /* in order of call */
        const op *o = &h->ops[i];
        if (o->holder >= 0)
            result = note(o, &losses[h->ops[o->holder].rank], key);
    }
    for (size_t i = 0; i < h->grant_count && result == 0; i++) {
        const history_record *grant = &h->ops[h->grants[i]].r;
        const loss *l = &losses[i];
        if (!(grant->flags & HISTORY_RENEWED))
            continue;
        if (l->lost && l->told == NULL && l->given_back)
            result = broken(key, "a lock was lost and on_lost was not called", grant, NULL);
        else if (l->told != NULL && !set.frozen && l->lease_end > 0 &&
                 l->told->call_ns > l->lease_end + TOLERANCE_NS)
            result =
                broken(key, "on_lost came after the lease had ended in the store", grant, l->told);
    }
    free(losses);
    return result;
}

/* ---- wake-ups -----------------------------------------------------------------------------------
 */

/* A waiter that waited all the time from `from` to `to`; a client that was killed is none. */
static const history_record *waiter_during(const history *h, int64_t from, int64_t to)
{
    for (size_t i = 0; i < h->count && h->ops[i].r.call_ns < from; i++) {
        const history_record *r = &h->ops[i].r;
        bool answered = r->outcome == HISTORY_OK || r->status < 0;
        if (r->kind == HISTORY_ACQUIRE && answered && r->flags & HISTORY_HELPER &&
            !(r->flags & HISTORY_COMMAND) && r->return_ns > to)
            return r;
    }
    return NULL;
}

/* The free time begins anew with the end of a fault that falls into its first part. */
static int64_t after_faults(int64_t from)
{
    for (size_t i = 0; i < set.fault_count; i++) {
        const window *f = &set.faults[i];
        if (f->from <= from + set.wake_ns && f->to > from)
            from = f->to;
    }
    return from;
}

static int check_wake_ups(const history *h, uint32_t key)
{
    for (size_t i = 0; i < h->count; i++) {
        const op *o = &h->ops[i];
        if (o->r.kind != HISTORY_RELEASE || o->r.outcome != HISTORY_OK || o->holder < 0)
            continue;
        const op *grant = &h->ops[o->holder];
        const op *next =
            (size_t)grant->rank + 1 < h->grant_count ? &h->ops[h->grants[grant->rank + 1]] : NULL;
        if (next != NULL && next->r.fence != grant->r.fence + 1)
            continue; /* somebody else's grant was between */
        int64_t from = after_faults(o->r.return_ns);
        int64_t to = from + set.wake_ns;
        int64_t asked = next == NULL          ? INT64_MAX
                        : next->r.sent_ns > 0 ? next->r.sent_ns
                                              : next->r.call_ns;
        if (asked <= to || ghost_between(h, o->r.return_ns, to))
            continue;
        const history_record *waiter = waiter_during(h, o->r.call_ns, to);
        if (waiter != NULL)
            return broken(key, "a key stayed free while somebody waited for it", &o->r, waiter);
    }
    return 0;
}

int check_holders(const history *h, uint32_t key)
{
    return check_beliefs(h, key) | check_losses(h, key) | check_wake_ups(h, key);
}
