/*
 * Linearizability of one key (Wing and Gong): there must be an order of all operations, each
 * at a moment between its call and its return, that a lock could have gone through.
 *
 * Expiry is not an operation: a lock carries the earliest and the latest moment of its death,
 * and answers are possible while those bounds allow them.
 *
 * Pruning: states that were seen with the same set of finished operations are not tried again;
 * answers that change nothing are taken at once and never retried elsewhere; fences order the
 * grants.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* One event of the time line: an operation begins or ends. */
typedef struct entry {
    int64_t time;
    bool call;
    int op;
    struct entry *next;
    struct entry *previous;
    struct entry *match; /* the other end */
} entry;

typedef struct state {
    int holder;       /* index of the grant, -1: free */
    int granted;      /* number of grants so far */
    int64_t earliest; /* may be dead from here on */
    int64_t latest;   /* is dead from here on */
} state;

/* ---- the lock of one key as a state machine ---- */

static bool ghost_about(const history *h, const history_record *r)
{
    return ghost_between(h, r->call_ns, r->return_ns);
}

static void order_lease_renew(state *s, const history_record *r)
{
    s->earliest =
        early_end_ns(r->call_ns, r->call_ns + r->ttl_ms * MS + TOLERANCE_NS - set.slack_ns);
    s->latest = r->return_ns + r->ttl_ms * MS + TOLERANCE_NS + set.slack_ns;
}

static bool step_acquire(const history *h, int index, state *s)
{
    const history_record *r = &h->ops[index].r;
    if (r->outcome == HISTORY_OK) {
        const op *grant = &h->ops[index];
        /* Fences rise: no grant comes before one with a lower fence. */
        if (grant->rank != s->granted || (s->holder >= 0 && r->return_ns < s->earliest))
            return false;
        s->holder = index;
        s->granted++;
        s->earliest = grant->live_until;
        s->latest = grant->dead_after;
        return true;
    }
    return (s->holder >= 0 && r->call_ns <= s->latest) || ghost_about(h, r);
}

static bool step_by_id(const history *h, int index, state *s)
{
    const history_record *r = &h->ops[index].r;
    bool mine = h->ops[index].holder >= 0 && s->holder == h->ops[index].holder;
    if (r->outcome == HISTORY_OK) {
        if (!mine || r->call_ns > s->latest + set.stepped_ns)
            return set.resends && r->kind == HISTORY_RELEASE &&
                   fault_between(r->thread, r->call_ns, r->return_ns);
        if (r->kind == HISTORY_RELEASE)
            s->holder = -1;
        else
            order_lease_renew(s, r);
        return true;
    }
    if (r->outcome == HISTORY_NO)
        return !mine || r->return_ns >= s->earliest;
    if (mine && r->kind == HISTORY_RELEASE) {
        if (r->call_ns < s->earliest)
            s->earliest = r->call_ns;
    } else if (mine) {
        int64_t soonest =
            early_end_ns(r->call_ns, r->call_ns + r->ttl_ms * MS + TOLERANCE_NS - set.slack_ns);
        int64_t last = r->call_ns + GHOST_NS + r->ttl_ms * MS + TOLERANCE_NS;
        if (soonest < s->earliest)
            s->earliest = soonest;
        if (last > s->latest)
            s->latest = last;
    }
    return true;
}

static bool changes_nothing(const history_record *r)
{
    if (r->kind == HISTORY_ACQUIRE || r->kind == HISTORY_RELEASE || r->kind == HISTORY_EXTEND)
        return r->outcome == HISTORY_NO;
    return true;
}

/* True if the operation is possible in *s, which becomes the state after it. */
static bool order_step(const history *h, int index, state *s)
{
    const history_record *r = &h->ops[index].r;
    bool mine = h->ops[index].holder >= 0 && s->holder == h->ops[index].holder;
    if (set.stepped_ns > 0 && changes_nothing(r))
        return true;
    switch (r->kind) {
    case HISTORY_ACQUIRE:
        return step_acquire(h, index, s);
    case HISTORY_RELEASE:
    case HISTORY_EXTEND:
        return step_by_id(h, index, s);
    case HISTORY_IS_LOCKED:
        if (r->outcome == HISTORY_OK)
            return (s->holder >= 0 && r->call_ns <= s->latest) || ghost_about(h, r);
        return s->holder < 0 || r->return_ns >= s->earliest;
    case HISTORY_LOOKUP:
        if (r->outcome == HISTORY_OK && mine)
            return r->call_ns <= s->latest;
        if (r->outcome == HISTORY_OK && (h->ops[index].holder >= 0 || !ghost_about(h, r)))
            return false;
        return s->holder < 0 || r->return_ns >= s->earliest;
    default:
        return true;
    }
}

/* ---- the search ---- */

typedef struct seen {
    uint64_t hash[2];
} seen;

typedef struct cache {
    seen *slots;
    size_t capacity;
    size_t count;
} cache;

static bool cache_add_raw(cache *c, const uint64_t hash[2])
{
    size_t i = hash[0] & (c->capacity - 1);
    while (c->slots[i].hash[0] != 0 || c->slots[i].hash[1] != 0) {
        if (c->slots[i].hash[0] == hash[0] && c->slots[i].hash[1] == hash[1])
            return false;
        i = (i + 1) & (c->capacity - 1);
    }
    memcpy(c->slots[i].hash, hash, sizeof c->slots[i].hash);
    c->count++;
    return true;
}

/* True if the state was not in the cache. Compares 128-bit fingerprints, not the sets
 * themselves. */
static bool cache_add(cache *c, const uint64_t hash[2])
{
    if (c->count * 2 >= c->capacity) {
        cache bigger = {NULL, c->capacity == 0 ? 4096 : c->capacity * 2, 0};
        bigger.slots = calloc(bigger.capacity, sizeof *bigger.slots);
        if (bigger.slots == NULL) {
            fprintf(stderr, "fault_check: out of memory\n");
            exit(2);
        }
        for (size_t i = 0; i < c->capacity; i++) {
            if (c->slots[i].hash[0] != 0 || c->slots[i].hash[1] != 0)
                (void)cache_add_raw(&bigger, c->slots[i].hash);
        }
        free(c->slots);
        *c = bigger;
    }
    return cache_add_raw(c, hash);
}

static uint64_t order_hash_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static void order_state_fingerprint(const uint64_t done[2], const state *s, uint64_t out[2])
{
    uint64_t parts[4] = {(uint64_t)s->holder, (uint64_t)s->earliest, (uint64_t)s->latest,
                         (uint64_t)s->granted};
    out[0] = done[0];
    out[1] = done[1];
    for (int i = 0; i < 4; i++) {
        out[0] = order_hash_mix(out[0] ^ parts[i]);
        out[1] = order_hash_mix(out[1] + parts[i]);
    }
}

static int by_time(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return (int)y->call - (int)x->call; /* touching operations count as concurrent */
}

static void order_call_lift(entry *call)
{
    call->previous->next = call->next;
    call->next->previous = call->previous;
    entry *end = call->match;
    end->previous->next = end->next;
    if (end->next != NULL)
        end->next->previous = end->previous;
}

static void order_call_unlift(entry *call)
{
    entry *end = call->match;
    end->previous->next = end;
    if (end->next != NULL)
        end->next->previous = end;
    call->previous->next = call;
    call->next->previous = call;
}

typedef struct move {
    entry *call;
    state before;
} move;

/* The earliest time at which the operation can have happened. For a lock that is renewed, the lease
 * may already be that of the first renewal. */
static int64_t asked_ns(const history_record *r)
{
    return r->sent_ns > 0 && (r->flags & HISTORY_RENEWED) == 0 ? r->sent_ns : r->call_ns;
}

/* Entries of the operations that take part, linked in order of time behind *head. */
static entry *make_entries(const history *h, entry *head, size_t *ops)
{
    entry *entries = calloc(2 * h->count + 1, sizeof *entries);
    entry **calls = calloc(h->count + 1, sizeof(entry *));
    size_t n = 0;
    if (entries == NULL || calls == NULL) {
        fprintf(stderr, "fault_check: out of memory\n");
        exit(2);
    }
    for (size_t i = 0; i < h->count; i++) {
        const history_record *r = &h->ops[i].r;
        bool ghost = r->kind == HISTORY_ACQUIRE && r->outcome == HISTORY_UNKNOWN;
        if (r->kind >= HISTORY_WRITE || r->outcome == HISTORY_FAILED || ghost)
            continue;
        entries[n++] = (entry){.time = asked_ns(r), .call = true, .op = (int)i};
        entries[n++] = (entry){.time = r->return_ns, .call = false, .op = (int)i};
    }
    qsort(entries, n, sizeof *entries, by_time);
    entry *last = head;
    for (size_t i = 0; i < n; i++) {
        entry *e = &entries[i];
        last->next = e;
        e->previous = last;
        last = e;
        if (e->call) {
            calls[e->op] = e;
        } else {
            e->match = calls[e->op];
            calls[e->op]->match = e;
        }
    }
    free(calls);
    *ops = n / 2;
    return entries;
}

/* Undoes moves until another operation can be tried in the place of one of them. */
static entry *back_up(const history *h, move *moves, size_t *depth, state *s, uint64_t done[2])
{
    while (*depth > 0) {
        move *m = &moves[--*depth];
        const op *o = &h->ops[m->call->op];
        *s = m->before;
        done[0] ^= o->mark[0];
        done[1] ^= o->mark[1];
        order_call_unlift(m->call);
        if (!changes_nothing(&o->r))
            return m->call->next;
    }
    return NULL;
}

int check_order(history *h, uint32_t key, uint64_t *steps)
{
    entry head = {0};
    size_t ops = 0;
    entry *entries = make_entries(h, &head, &ops);
    move *moves = calloc(ops + 1, sizeof *moves);
    if (moves == NULL)
        return 2;
    for (size_t i = 0; i < h->count; i++) {
        h->ops[i].mark[0] = order_hash_mix(i * 2 + 1);
        h->ops[i].mark[1] = order_hash_mix(i * 2 + 2);
    }
    entry *e = head.next;
    cache known = {NULL, 0, 0};
    state s = {-1, 0, 0, 0};
    uint64_t done[2] = {1, 2};
    size_t depth = 0;
    size_t deepest = 0;
    int deepest_op = -1;
    int result = 0;
    while (head.next != NULL) {
        ++*steps;
        if (e->call) {
            state after = s;
            const op *o = &h->ops[e->op];
            uint64_t next_set[2] = {done[0] ^ o->mark[0], done[1] ^ o->mark[1]}, print[2];
            bool possible = order_step(h, e->op, &after);
            order_state_fingerprint(next_set, &after, print);
            if (possible && cache_add(&known, print)) {
                moves[depth++] = (move){e, s};
                s = after;
                memcpy(done, next_set, sizeof done);
                order_call_lift(e);
                e = head.next;
            } else {
                e = e->next;
            }
        } else {
            if (depth >= deepest) {
                deepest = depth;
                deepest_op = e->op;
            }
            e = back_up(h, moves, &depth, &s, done);
            if (e == NULL) {
                result = broken(key, "no order of the operations explains this answer",
                                deepest_op >= 0 ? &h->ops[deepest_op].r : NULL, NULL);
                break;
            }
        }
    }
    free(entries);
    free(moves);
    free(known.slots);
    return result;
}
