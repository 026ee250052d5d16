/*
 * Decides from a history whether the store kept its promises.
 *
 *     fault_check [--slack-ms N] [--stepped-ms N] [--crash-ns T]... [--resends] [--quiet] FILE...
 *
 * Per key, two independent judgements:
 *   1. Direct: fences are unique and rise with the order of grants; no two grants
 *      are certainly held at the same time; the resource accepted no write of a
 *      fence below one that it had accepted before.
 *   2. Linearizability (Wing and Gong): there must be an order of all operations,
 *      each at a moment between its call and its return, that a lock of one key
 *      could have gone through. Expiry is not an operation: a lock carries the
 *      earliest and the latest moment of its death, and answers are possible while
 *      those bounds allow them.
 *
 * Unknown outcomes: a failed acquire may have been granted and taken back at any
 * time until its undoing ends, so in that window "locked" needs no holder that we
 * know of. A failed release or extend widens the bounds of its lock.
 *
 * Crashes (--crash-ns): a release just before one may be taken back, because stores
 * need not have it on the disk when they answer; its lock then runs out. Grants and
 * extends must survive.
 *
 * Stepped clocks (--stepped-ms): the clients' clocks were stepped by that much on a store that has
 * none of its own. What changes nothing is then its caller's opinion and not judged, and a holder
 * may find its own lock live for that much longer. Grants, fences and writes are judged as ever.
 *
 * Pruning: states that were seen with the same set of finished operations are not
 * tried again; answers that change nothing are taken at once and never retried
 * elsewhere; fences order the grants.
 *
 * Exit: 0 kept, 1 broken, 2 unreadable.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define MS INT64_C(1000000)
#define TOLERANCE_NS (1000 * MS)
#define FOREVER INT64_MAX
/* How long the library and a store that was stopped may keep a ghost alive after its call. */
#define GHOST_NS (8000 * MS)

static int64_t slack_ns = 3 * MS; /* clocks are read in whole milliseconds by stores */
static bool quiet;
/* Connections broke during this history: a release that had to be sent again and then found
 * nothing answers OK, as the interface says. */
static bool resends;

static int64_t stepped_ns;

/* How long before a crash a release may not have reached the disk. */
#define LAZY_NS (1000 * MS)
#define MAX_CRASHES 256
static int64_t crashes[MAX_CRASHES];
static size_t crash_count;

typedef struct op {
    history_record r;
    int holder; /* index of the grant with this lock id, -1 if it is not known */
    uint64_t mark[2];
    struct op *next; /* in the list of entries not yet linearized */
    struct op *previous;
} op;

/* One event of the time line: an operation begins or ends. */
typedef struct entry {
    int64_t time;
    bool call;
    int op;
    struct entry *next;
    struct entry *previous;
    struct entry *match; /* the other end */
} entry;

typedef struct window {
    int64_t from;
    int64_t to;
} window;

typedef struct history {
    op *ops;
    size_t count;
    size_t capacity;
    window *ghosts;
    size_t ghost_count;
} history;

typedef struct state {
    int holder;       /* index of the grant, -1: free */
    int64_t earliest; /* may be dead from here on */
    int64_t latest;   /* is dead from here on */
    int64_t fence;
} state;

static int broken(uint32_t key, const char *what, const history_record *a, const history_record *b)
{
    printf("BROKEN key %" PRIu32 ": %s\n", key, what);
    const history_record *both[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        const history_record *r = both[i];
        if (r != NULL)
            printf("  kind %u outcome %u status %d thread %u call %" PRId64 " return +%" PRId64
                   " us ttl %" PRId64 " fence %" PRId64 " id %.6s\n",
                   r->kind, r->outcome, r->status, r->thread, r->call_ns / 1000,
                   (r->return_ns - r->call_ns) / 1000, r->ttl_ms, r->fence, r->lock_id);
    }
    return 1;
}

/* ---- direct judgements ------------------------------------------------------------------------
 */

typedef struct grant {
    const history_record *r;
    int64_t held_from;
    int64_t held_until; /* certainly */
} grant;

static int by_fence(const void *a, const void *b)
{
    const grant *x = a, *y = b;
    return (x->r->fence > y->r->fence) - (x->r->fence < y->r->fence);
}

/* The time until which nobody else can have been granted the key. */
static int64_t certain_end(const history *h, const history_record *g)
{
    int64_t end = g->call_ns + g->ttl_ms * MS + TOLERANCE_NS - slack_ns;
    for (size_t i = 0; i < h->count; i++) { /* ops are in order of call */
        const history_record *r = &h->ops[i].r;
        if (r->call_ns < g->call_ns || strcmp(r->lock_id, g->lock_id) != 0 || r == g)
            continue;
        int64_t extended = r->call_ns + r->ttl_ms * MS + TOLERANCE_NS - slack_ns;
        if (r->kind == HISTORY_RELEASE && r->outcome != HISTORY_NO && r->call_ns < end)
            end = r->call_ns;
        else if (r->kind == HISTORY_EXTEND && r->outcome == HISTORY_OK && r->call_ns <= end)
            end = extended;
        else if (r->kind == HISTORY_EXTEND && r->outcome == HISTORY_UNKNOWN && extended < end)
            end = extended;
        if (r->call_ns > g->call_ns + 60000 * MS)
            break;
    }
    return end;
}

static int check_grants(const history *h, uint32_t key)
{
    grant *grants = calloc(h->count + 1, sizeof *grants);
    size_t count = 0;
    int result = 0;
    if (grants == NULL)
        return 2;
    for (size_t i = 0; i < h->count; i++) {
        const history_record *r = &h->ops[i].r;
        if (r->kind == HISTORY_ACQUIRE && r->outcome == HISTORY_OK)
            grants[count++] = (grant){r, r->return_ns, 0};
    }
    qsort(grants, count, sizeof *grants, by_fence);
    for (size_t i = 0; i < count; i++)
        grants[i].held_until = certain_end(h, grants[i].r);
    for (size_t i = 1; i < count && result == 0; i++) {
        const grant *a = &grants[i - 1], *b = &grants[i];
        if (a->r->fence == b->r->fence)
            result = broken(key, "a fence was given twice", a->r, b->r);
        else if (b->r->return_ns < a->r->call_ns)
            result = broken(key, "a later grant has a lower fence", a->r, b->r);
        else if (b->held_from < a->held_until && a->held_from < b->held_until)
            result = broken(key, "two grants were held at the same time", a->r, b->r);
    }
    free(grants);
    return result;
}

static int check_writes(const history *h, uint32_t key)
{
    for (size_t i = 0; i < h->count; i++) {
        const history_record *late = &h->ops[i].r;
        if (late->kind != HISTORY_WRITE || late->outcome != HISTORY_OK)
            continue;
        size_t first = i > 2000 ? i - 2000 : 0;
        for (size_t j = first; j < i; j++) {
            const history_record *early = &h->ops[j].r;
            if (early->kind == HISTORY_WRITE && early->outcome == HISTORY_OK &&
                early->return_ns < late->call_ns && early->fence > late->fence)
                return broken(key, "the resource accepted a stale fence", early, late);
        }
    }
    return 0;
}

/* ---- the lock of one key as a state machine
 * ------------------------------------------------------ */

static bool ghost_about(const history *h, const history_record *r)
{
    for (size_t i = 0; i < h->ghost_count; i++) {
        if (r->return_ns >= h->ghosts[i].from && r->call_ns <= h->ghosts[i].to)
            return true;
    }
    return false;
}

static void renew(state *s, const history_record *r)
{
    s->earliest = r->call_ns + r->ttl_ms * MS + TOLERANCE_NS - slack_ns;
    s->latest = r->return_ns + r->ttl_ms * MS + TOLERANCE_NS + slack_ns;
}

static bool step_acquire(const history *h, int index, state *s)
{
    const history_record *r = &h->ops[index].r;
    if (r->outcome == HISTORY_OK) {
        if (r->fence <= s->fence || (s->holder >= 0 && r->return_ns < s->earliest))
            return false;
        s->holder = index;
        s->fence = r->fence;
        renew(s, r);
        return true;
    }
    return (s->holder >= 0 && r->call_ns <= s->latest) || ghost_about(h, r);
}

static bool step_by_id(const history *h, int index, state *s)
{
    const history_record *r = &h->ops[index].r;
    bool mine = h->ops[index].holder >= 0 && s->holder == h->ops[index].holder;
    if (r->outcome == HISTORY_OK) {
        if (!mine || r->call_ns > s->latest + stepped_ns)
            return resends && r->kind == HISTORY_RELEASE;
        if (r->kind == HISTORY_RELEASE)
            s->holder = -1;
        else
            renew(s, r);
        return true;
    }
    if (r->outcome == HISTORY_NO)
        return !mine || r->return_ns >= s->earliest;
    if (mine && r->kind == HISTORY_RELEASE) {
        if (r->call_ns < s->earliest)
            s->earliest = r->call_ns;
    } else if (mine) {
        int64_t soonest = r->call_ns + r->ttl_ms * MS + TOLERANCE_NS - slack_ns;
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
static bool step(const history *h, int index, state *s)
{
    const history_record *r = &h->ops[index].r;
    bool mine = h->ops[index].holder >= 0 && s->holder == h->ops[index].holder;
    if (stepped_ns > 0 && changes_nothing(r))
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
        if (r->outcome == HISTORY_OK)
            return (mine && r->call_ns <= s->latest) ||
                   (h->ops[index].holder < 0 && ghost_about(h, r));
        return s->holder < 0 || r->return_ns >= s->earliest;
    default:
        return true;
    }
}

/* ---- the search -------------------------------------------------------------------------------
 */

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

/* True if it was not there. Compares 128-bit fingerprints, not the sets themselves. */
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

static uint64_t scramble(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static void fingerprint(const uint64_t set[2], const state *s, uint64_t out[2])
{
    uint64_t parts[4] = {(uint64_t)s->holder, (uint64_t)s->earliest, (uint64_t)s->latest,
                         (uint64_t)s->fence};
    out[0] = set[0];
    out[1] = set[1];
    for (int i = 0; i < 4; i++) {
        out[0] = scramble(out[0] ^ parts[i]);
        out[1] = scramble(out[1] + parts[i]);
    }
}

static int by_time(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return (int)y->call - (int)x->call; /* touching operations count as concurrent */
}

static void lift(entry *call)
{
    call->previous->next = call->next;
    call->next->previous = call->previous;
    entry *end = call->match;
    end->previous->next = end->next;
    if (end->next != NULL)
        end->next->previous = end->previous;
}

static void unlift(entry *call)
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
        if (r->kind == HISTORY_WRITE || r->outcome == HISTORY_FAILED || ghost)
            continue;
        entries[n++] = (entry){.time = r->call_ns, .call = true, .op = (int)i};
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

/* Undoes moves until one is found whose place could be taken by another. */
static entry *back_up(const history *h, move *moves, size_t *depth, state *s, uint64_t set[2])
{
    while (*depth > 0) {
        move *m = &moves[--*depth];
        const op *o = &h->ops[m->call->op];
        *s = m->before;
        set[0] ^= o->mark[0];
        set[1] ^= o->mark[1];
        unlift(m->call);
        if (!changes_nothing(&o->r))
            return m->call->next;
    }
    return NULL;
}

static int check_order(history *h, uint32_t key, uint64_t *steps)
{
    entry head = {0};
    size_t ops = 0;
    entry *entries = make_entries(h, &head, &ops);
    move *moves = calloc(ops + 1, sizeof *moves);
    cache known = {NULL, 0, 0};
    state s = {-1, 0, 0, 0};
    uint64_t set[2] = {1, 2};
    size_t depth = 0, deepest = 0;
    int deepest_op = -1, result = 0;

    if (moves == NULL)
        return 2;
    for (size_t i = 0; i < h->count; i++) {
        h->ops[i].mark[0] = scramble(i * 2 + 1);
        h->ops[i].mark[1] = scramble(i * 2 + 2);
    }
    entry *e = head.next;
    while (head.next != NULL) {
        ++*steps;
        if (e->call) {
            state after = s;
            const op *o = &h->ops[e->op];
            uint64_t next_set[2] = {set[0] ^ o->mark[0], set[1] ^ o->mark[1]}, print[2];
            bool possible = step(h, e->op, &after);
            fingerprint(next_set, &after, print);
            if (possible && cache_add(&known, print)) {
                moves[depth++] = (move){e, s};
                s = after;
                memcpy(set, next_set, sizeof set);
                lift(e);
                e = head.next;
            } else {
                e = e->next;
            }
        } else {
            if (depth >= deepest) {
                deepest = depth;
                deepest_op = e->op;
            }
            e = back_up(h, moves, &depth, &s, set);
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

/* ---- reading ------------------------------------------------------------------------------------
 */

#define MAX_KEYS 4096
static history keys[MAX_KEYS];

static void add(const history_record *r)
{
    history *h = &keys[r->key % MAX_KEYS];
    if (h->count == h->capacity) {
        h->capacity = h->capacity == 0 ? 1024 : h->capacity * 2;
        h->ops = realloc(h->ops, h->capacity * sizeof *h->ops);
        if (h->ops == NULL) {
            fprintf(stderr, "fault_check: out of memory\n");
            exit(2);
        }
    }
    h->ops[h->count++] = (op){.r = *r, .holder = -1};
}

static bool read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    history_record r;
    if (file == NULL) {
        perror(path);
        return false;
    }
    while (fread(&r, sizeof r, 1, file) == 1) {
        if (r.mark == HISTORY_MARK)
            add(&r);
    }
    fclose(file);
    return true;
}

static int by_call(const void *a, const void *b)
{
    const history_record *x = &((const op *)a)->r, *y = &((const op *)b)->r;
    if (x->call_ns != y->call_ns)
        return x->call_ns < y->call_ns ? -1 : 1;
    if (x->thread != y->thread)
        return x->thread < y->thread ? -1 : 1;
    return (x->outcome > y->outcome) - (x->outcome < y->outcome);
}

/* Invocations whose response is there as well go; the others are of unknown outcome. */
static void settle_pending(history *h)
{
    size_t kept = 0;
    qsort(h->ops, h->count, sizeof *h->ops, by_call);
    for (size_t i = 0; i < h->count; i++) {
        history_record *r = &h->ops[i].r;
        const history_record *before = kept > 0 ? &h->ops[kept - 1].r : NULL;
        if (r->outcome == HISTORY_PENDING) {
            if (before != NULL && before->call_ns == r->call_ns && before->thread == r->thread)
                continue;
            r->outcome = HISTORY_UNKNOWN;
            r->return_ns = r->call_ns + GHOST_NS;
        }
        for (size_t c = 0; c < crash_count && r->kind == HISTORY_RELEASE; c++) {
            if (r->outcome == HISTORY_OK && r->return_ns > crashes[c] - LAZY_NS &&
                r->call_ns < crashes[c] + LAZY_NS)
                r->outcome = HISTORY_UNKNOWN;
        }
        h->ops[kept++] = h->ops[i];
    }
    h->count = kept;
}

typedef struct id_index {
    char lock_id[24];
    int op;
} id_index;

static int by_id(const void *a, const void *b)
{
    return strcmp(((const id_index *)a)->lock_id, ((const id_index *)b)->lock_id);
}

/* Finds for each operation by id the grant it speaks of, and the windows of ghosts. */
static bool connect(history *h)
{
    id_index *index = calloc(h->count + 1, sizeof *index);
    size_t count = 0;
    h->ghosts = calloc(h->count + 1, sizeof *h->ghosts);
    if (index == NULL || h->ghosts == NULL)
        return false;
    settle_pending(h);
    for (size_t i = 0; i < h->count; i++) {
        const history_record *r = &h->ops[i].r;
        if (r->kind != HISTORY_ACQUIRE)
            continue;
        if (r->outcome == HISTORY_OK) {
            memcpy(index[count].lock_id, r->lock_id, sizeof r->lock_id);
            index[count++].op = (int)i;
        } else if (r->outcome == HISTORY_UNKNOWN) {
            h->ghosts[h->ghost_count++] =
                (window){r->call_ns, r->call_ns + GHOST_NS + r->ttl_ms * MS};
        }
    }
    qsort(index, count, sizeof *index, by_id);
    for (size_t i = 0; i < h->count; i++) {
        id_index wanted;
        memcpy(wanted.lock_id, h->ops[i].r.lock_id, sizeof wanted.lock_id);
        id_index *found =
            wanted.lock_id[0] == '\0' ? NULL : bsearch(&wanted, index, count, sizeof *index, by_id);
        h->ops[i].holder = found != NULL ? found->op : -1;
    }
    free(index);
    return true;
}

int main(int argc, char **argv)
{
    size_t total = 0, grants = 0, unknown = 0;
    uint64_t steps = 0;
    int result = 0;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--slack-ms") == 0 && i + 1 < argc)
            slack_ns = strtoll(argv[++i], NULL, 10) * MS;
        else if (strcmp(argv[i], "--stepped-ms") == 0 && i + 1 < argc)
            stepped_ns = strtoll(argv[++i], NULL, 10) * MS;
        else if (strcmp(argv[i], "--crash-ns") == 0 && i + 1 < argc && crash_count < MAX_CRASHES)
            crashes[crash_count++] = strtoll(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--resends") == 0)
            resends = true;
        else if (strcmp(argv[i], "--quiet") == 0)
            quiet = true;
        else if (!read_file(argv[i]))
            return 2;
    }
    for (uint32_t key = 0; key < MAX_KEYS; key++) {
        history *h = &keys[key];
        if (h->count == 0)
            continue;
        if (!connect(h))
            return 2;
        total += h->count;
        for (size_t i = 0; i < h->count; i++) {
            grants += h->ops[i].r.kind == HISTORY_ACQUIRE && h->ops[i].r.outcome == HISTORY_OK;
            unknown += h->ops[i].r.outcome == HISTORY_UNKNOWN;
        }
        result |= check_grants(h, key);
        result |= check_writes(h, key);
        result |= check_order(h, key, &steps);
        free(h->ops);
        free(h->ghosts);
    }
    if (!quiet)
        printf("%s: %zu operations, %zu grants, %zu of unknown outcome, %" PRIu64
               " steps of search\n",
               result == 0 ? "kept" : "BROKEN", total, grants, unknown, steps);
    if (total == 0) {
        fprintf(stderr, "fault_check: the history is empty\n");
        return 2;
    }
    return result;
}
