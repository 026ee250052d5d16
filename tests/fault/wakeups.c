/*
 * No wake-up is lost: a key that is free does not stay free while a client waits for it.
 *
 * A key is free from the return of a release, or from the end of a command that ended by itself,
 * until the next request that is granted is sent. A lock handle that waits in that time is granted
 * the key within set.wake_ns; the time of faults and of stops of its own process does not count.
 *
 * An acquire of unknown outcome excuses a free time only if it can have reached the store within
 * that time: before it, the holder had the key.
 */
#include <stdlib.h>

#include "check.h"

static bool wakeups_op_waits(const op *o)
{
    const history_record *r = &o->r;
    return r->kind == HISTORY_ACQUIRE &&
           (r->flags & (HISTORY_HELPER | HISTORY_COMMAND)) == HISTORY_HELPER && !o->unanswered &&
           (r->outcome == HISTORY_OK || r->status < 0);
}

/* Another client's acquire of unknown outcome may have taken the key. */
static bool taken_between(const history *h, int64_t from, int64_t to, const op *waiter)
{
    for (size_t i = 0; i < h->unknown_count; i++) {
        const op *o = &h->ops[h->unknown[i]];
        if (o != waiter && h->ghosts[i].from <= to && arrived_ns(o->r.return_ns) >= from)
            return true;
    }
    return false;
}

/* The time by which the waiter must have been granted a key that is free from `from` on. */
static int64_t due_ns(const history_record *waiter, int64_t from)
{
    int64_t begin = waiter->call_ns > from ? waiter->call_ns : from;
    int64_t due = begin + set.wake_ns;
    int64_t missing;
    while ((missing = set.wake_ns - working_ns(waiter->thread, begin, due)) > 0)
        due += missing;
    return due;
}

/* The time from which the key is free; 0 if that is not known. */
static int64_t wakeups_released_ns(const op *o)
{
    if (o->r.kind == HISTORY_RELEASE && o->r.outcome == HISTORY_OK && o->holder >= 0)
        return o->r.return_ns;
    if (o->r.kind == HISTORY_ACQUIRE && o->r.outcome == HISTORY_OK)
        return command_released_ns(o);
    return 0;
}

/* The next grant, NULL if there is none. */
static const op *next_grant(const history *h, const op *freed)
{
    const op *grant = freed->r.kind == HISTORY_RELEASE ? &h->ops[freed->holder] : freed;
    return (size_t)grant->rank + 1 < h->grant_count ? &h->ops[h->grants[grant->rank + 1]] : NULL;
}

/* When the next granted request was sent; -1 if an acquire of unknown outcome may have got the
 * key. */
static int64_t next_asked_ns(const history *h, const op *freed)
{
    const op *grant = freed->r.kind == HISTORY_RELEASE ? &h->ops[freed->holder] : freed;
    const op *next = next_grant(h, freed);
    if (next == NULL)
        return INT64_MAX;
    if (next->r.fence != grant->r.fence + 1)
        return -1;
    return next->r.sent_ns > 0 ? next->r.sent_ns : next->r.call_ns;
}

/* The current waiters: an array of indices that is carried from release to release. */
typedef struct queue {
    int *ops;
    size_t count;
} queue;

static void leave_queue(const history *h, queue *q, int64_t now)
{
    size_t kept = 0;
    for (size_t i = 0; i < q->count; i++) {
        if (h->ops[q->ops[i]].r.return_ns > now)
            q->ops[kept++] = q->ops[i];
    }
    q->count = kept;
}

static bool wakeups_op_starves(const history *h, const op *o, int64_t from, int64_t asked)
{
    if (!wakeups_op_waits(o) || o->r.return_ns <= from)
        return false;
    int64_t due = due_ns(&o->r, from);
    return o->r.return_ns > due && asked > due && !taken_between(h, from, due, o);
}

static const op *wakeups_starving_find(const history *h, const queue *q, const op *freed,
                                       int64_t asked)
{
    int64_t from = wakeups_released_ns(freed);
    for (size_t i = 0; i < q->count; i++) {
        if (wakeups_op_starves(h, &h->ops[q->ops[i]], from, asked))
            return &h->ops[q->ops[i]];
    }
    for (const op *o = freed + 1; o < h->ops + h->count && o->r.call_ns < asked; o++) {
        if (wakeups_op_starves(h, o, from, asked))
            return o;
    }
    return NULL;
}

/* Whether a waiter would have been found starving if the release had woken no one. */
static bool wakeups_release_is_checked(const history *h, const queue *q, int64_t from)
{
    int64_t last = h->ops[h->count - 1].r.call_ns;
    for (size_t i = 0; i < q->count; i++) {
        const op *o = &h->ops[q->ops[i]];
        int64_t due = due_ns(&o->r, from);
        if (o->r.return_ns > from && o->r.call_ns + o->r.wait_ms * MS > due && due < last &&
            !taken_between(h, from, due, o))
            return true;
    }
    return false;
}

/*
 * A command that begins after the end of another has no lease to wait for. The time of its request
 * is not recorded, only the time at which its child begins, and a busy machine may be late once:
 * most commands must be quick.
 */
static int check_commands(const history *h, uint32_t key)
{
    size_t slow = 0, all = 0;
    const op *late = NULL;
    for (size_t i = 0; i < h->grant_count; i++) {
        const op *o = &h->ops[h->grants[i]], *next = next_grant(h, o);
        int64_t from = wakeups_released_ns(o);
        if (from == 0 || next == NULL || (next->r.flags & HISTORY_COMMAND) == 0 ||
            next->r.fence != o->r.fence + 1 || next->r.call_ns < from ||
            taken_between(h, from, next->r.return_ns, next))
            continue;
        all++;
        if (next->r.return_ns > due_ns(&next->r, from)) {
            slow++;
            late = o;
        }
    }
    if (slow < 2 || 2 * slow <= all)
        return 0;
    return broken(key, "a command ended and did not release its lock", &late->r,
                  &next_grant(h, late)->r);
}

int check_wake_ups(const history *h, uint32_t key, size_t *checked)
{
    queue q = {calloc(h->count + 1, sizeof *q.ops), 0};
    int result = check_commands(h, key);
    if (q.ops == NULL)
        exit(2);
    for (size_t i = 0; i < h->count && result == 0; i++) { /* in order of call */
        const op *o = &h->ops[i];
        int64_t from = wakeups_released_ns(o);
        int64_t asked = from != 0 ? next_asked_ns(h, o) : -1;
        if (asked >= 0) {
            leave_queue(h, &q, o->r.call_ns);
            const op *waiter = working_ns(0, from, asked) > set.wake_ns
                                   ? wakeups_starving_find(h, &q, o, asked)
                                   : NULL;
            if (waiter != NULL)
                result = broken(key,
                                o->r.kind == HISTORY_RELEASE
                                    ? "a key stayed free while a client waited for it"
                                    : "a command ended and did not release its lock",
                                &o->r, &waiter->r);
            else
                *checked += o->r.kind == HISTORY_RELEASE && wakeups_release_is_checked(h, &q, from);
        }
        if (wakeups_op_waits(o))
            q.ops[q.count++] = (int)i;
    }
    free(q.ops);
    return result;
}
