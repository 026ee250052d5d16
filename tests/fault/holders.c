/*
 * What users of the lock helper and of the command rely on, for one key:
 *
 *   - no holder believes that it holds the key when a later grant has been handed out, nor after
 *     its on_lost;
 *   - on_lost is called exactly once for a renewed lock that is lost, and before the lease ends in
 *     the store;
 *   - no child of the command is alive for longer than the grace period after a later grant, nor at
 *     all if its command ended as it should.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* ---- two holders ---- */

/* For each grant, the earliest return of an acquire with a higher fence. */
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

/* How long a holder may believe in its lock after another client was granted it at `next`: the new
 * server has ended the lock early, unless it was renewed there. Commands do not record that. */
static int64_t holders_overlap_ns(const history_record *grant, const history_record *r,
                                  int64_t next)
{
    int64_t renewed = r->kind == HISTORY_HELD ? r->sent_ns - grant->ttl_ms * MS : grant->call_ns;
    bool early = next > set.ahead.from && renewed < set.ahead.to;
    return early ? set.ahead_ns - TOLERANCE_NS + set.slack_ns : 0;
}

static void count_overlap(bool *known, int64_t time)
{
    if (time <= 0)
        return;
    set.overlaps += *known ? 0 : 1;
    *known = true;
    if (time > set.overlap_ns)
        set.overlap_ns = time;
}

static int check_beliefs(const history *h, uint32_t key)
{
    int64_t *later = later_grants(h);
    bool *overlapping = calloc(h->grant_count + 1, sizeof *overlapping);
    int result = 0;
    if (overlapping == NULL)
        exit(2);
    for (size_t i = 0; i < h->count && result == 0; i++) {
        const op *o = &h->ops[i];
        if (o->r.outcome != HISTORY_OK || o->holder < 0 ||
            (o->r.kind != HISTORY_HELD && o->r.kind != HISTORY_CHILD))
            continue;
        const op *grant = &h->ops[o->holder];
        int64_t next = later[grant->rank + 1];
        if (next == INT64_MAX)
            continue;
        int64_t allowed = holders_overlap_ns(&grant->r, &o->r, next);
        if (allowed > 0)
            count_overlap(&overlapping[grant->rank], o->r.call_ns - next);
        next += allowed;
        if (o->r.kind == HISTORY_HELD && next < o->r.call_ns)
            result = broken(key, "a holder believed in its lock after another was granted it",
                            &grant->r, &o->r);
        else if (o->r.kind == HISTORY_CHILD &&
                 next < o->r.call_ns - (grant->ended_ns != 0 ? 0 : set.grace_ns))
            result = broken(key, "a child of the command outlived its lock", &grant->r, &o->r);
    }
    free(later);
    free(overlapping);
    return result;
}

/* ---- losses ---- */

/* What is known of the loss of one grant. */
typedef struct loss {
    const history_record *told; /* on_lost */
    int64_t lease_end;          /* the latest that its holder saw */
    bool lost;                  /* its handle said so */
    bool given_back;            /* its holder lived to the end */
    const history_record *no;   /* its handle said that it does not hold the lock */
    const history_record *released;
} loss;

static int holders_loss_update(const op *o, loss *l, uint32_t key)
{
    const history_record *r = &o->r;
    if (r->kind == HISTORY_LOST) {
        if (l->told != NULL)
            return broken(key, "on_lost was called twice", l->told, r);
        if (l->released != NULL && l->released->return_ns < r->call_ns)
            return broken(key, "on_lost was called after the release", l->released, r);
        l->told = r;
    } else if (r->kind == HISTORY_HELD && r->outcome == HISTORY_OK) {
        if (l->told != NULL && r->call_ns > l->told->return_ns)
            return broken(key, "a holder believed in its lock after on_lost", l->told, r);
        if (l->no != NULL)
            return broken(key, "a holder believed again in a lock that was lost", l->no, r);
        if (r->sent_ns > l->lease_end)
            l->lease_end = r->sent_ns;
    } else if (r->kind == HISTORY_HELD) {
        l->no = r;
        l->lost = true;
    } else if (r->kind == HISTORY_RELEASE && r->outcome != HISTORY_PENDING) {
        l->given_back = l->given_back || !o->unanswered;
        if (r->outcome == HISTORY_OK)
            l->released = r;
    }
    return 0;
}

/* How late on_lost came, without the time in which its process was stopped. */
static int64_t late_ns(const history_record *told, int64_t lease_end)
{
    return running_ns(told->thread, lease_end, told->call_ns);
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
            result = holders_loss_update(o, &losses[h->ops[o->holder].rank], key);
    }
    for (size_t i = 0; i < h->grant_count && result == 0; i++) {
        const history_record *grant = &h->ops[h->grants[i]].r;
        const loss *l = &losses[i];
        if ((grant->flags & HISTORY_RENEWED) == 0)
            continue;
        if (l->lost && l->told == NULL && l->given_back)
            result = broken(key, "a lock was lost and on_lost was not called", grant, NULL);
        else if (l->told != NULL && l->lease_end > 0 &&
                 late_ns(l->told, l->lease_end) > TOLERANCE_NS)
            result =
                broken(key, "on_lost came after the lease had ended in the store", grant, l->told);
    }
    free(losses);
    return result;
}

int check_holders(const history *h, uint32_t key)
{
    return check_beliefs(h, key) | check_losses(h, key);
}
