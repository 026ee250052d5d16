/*
 * Evaluates a history: did the store and the library keep their promises?
 *
 *     fault_check [--slack-ms N] [--stepped-ms N] [--crash-ns FROM TO]... [--fault-ns FROM TO]...
 *                 [--stopped-ns PID FROM TO]... [--ahead-ns FROM TO MS] [--wake-ms N]
 *                 [--grace-ms N] [--resends] [--quiet] FILE...
 *
 * Per key, independent checks: direct.c (fences, overlapping grants, stale writes), order.c
 * (linearizability), holders.c (what the callers of the lock helper believe and learn) and
 * wakeups.c.
 *
 * Unknown outcomes: a failed acquire may have been granted and taken back at any time until its
 * undoing ends, so in that window "locked" needs no known holder. The same is true of the failed
 * attempts of a waiter that goes on: each has an id of its own, and only the id of the last one is
 * reported. A failed release or extend widens the bounds of its lock.
 *
 * Crashes (--crash-ns): a release just before a crash, or during one, may be taken back, because
 * stores need not have it on the disk when they answer; its lock then expires. Grants and extends
 * must survive.
 *
 * Stepped clocks (--stepped-ms): the clients' clocks were stepped by that much on a store that has
 * no clock of its own. Operations that change nothing then only show their caller's view and are
 * not checked, and a holder may find its own lock live for that much longer. Grants, fences and
 * writes are checked as always.
 *
 * Another server (--ahead-ns): it took over between FROM and TO, and its clock is ahead by MS. A
 * request that was sent before TO may have been confirmed by the former server, so the lock ends
 * sooner by that much, but not before FROM; its holder may believe in it for as long as the clocks
 * differ by more than the tolerance. Later requests, and all fences and writes, are checked as
 * always.
 *
 * Faults (--fault-ns): from and to; their time does not count for wake-ups, and with --resends a
 * release during one (or soon after it, RESEND_NS) may be sent again and find nothing: it then
 * answers OK and changes nothing. Stopped clients (--stopped-ns): their reports of losses, and
 * their wake-ups, may be late by that time; they send requests again, because a request that runs
 * out of time also closes its connection.
 *
 * Exit: 0 kept, 1 broken, 2 unreadable.
 */
#include "check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A release may not have reached the disk if a crash follows within this time. */
#define LAZY_NS (1000 * MS)
#define TIMEOUT_NS (1000 * MS) /* of an attempt, see client.c */
#define ATTEMPT_NS (1100 * MS) /* see helper.c */
/* How much later a connection that a fault broke may be found broken: Redis gives up a connection
 * that is silent for 1.5 s when a caller next runs out of time, which takes a second (link.c,
 * client.c). */
#define RESEND_NS (2500 * MS)
/* A request reaches the store within this time after its caller gave up, or after the fault. */
#define IN_FLIGHT_NS (500 * MS)
#define MAX_CRASHES 256
#define MAX_FAULTS 4096
#define MAX_KEYS 4096

static window faults[MAX_FAULTS];
static stop stops[MAX_FAULTS];
settings set = {.slack_ns = 3 * MS,
                .wake_ns = 2000 * MS,
                .grace_ns = 750 * MS, /* 500 ms, and the time that a busy machine takes to kill */
                .faults = faults,
                .stops = stops};
static window crashes[MAX_CRASHES];
static size_t crash_count;
static bool quiet;
static history keys[MAX_KEYS];

int broken(uint32_t key, const char *what, const history_record *a, const history_record *b)
{
    printf("BROKEN key %" PRIu32 ": %s\n", key, what);
    const history_record *both[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        const history_record *r = both[i];
        if (r != NULL)
            printf("  kind %u outcome %u status %d flags %u thread %u call %" PRId64
                   " return +%" PRId64 " us ttl %" PRId64 " fence %" PRId64 " id %.6s\n",
                   r->kind, r->outcome, r->status, r->flags, r->thread, r->call_ns / 1000,
                   (r->return_ns - r->call_ns) / 1000, r->ttl_ms, r->fence, r->lock_id);
    }
    return 1;
}

bool ghost_between(const history *h, int64_t from, int64_t to)
{
    for (size_t i = 0; i < h->ghost_count; i++) {
        if (to >= h->ghosts[i].from && from <= h->ghosts[i].to)
            return true;
    }
    return false;
}

static bool window_touches(const window *w, int64_t from, int64_t to)
{
    return w->to != INT64_MAX && to >= w->from && from <= w->to + RESEND_NS;
}

bool fault_between(uint32_t thread, int64_t from, int64_t to)
{
    for (size_t i = 0; i < set.fault_count; i++) {
        if (window_touches(&faults[i], from, to))
            return true;
    }
    for (size_t i = 0; i < set.stop_count; i++) {
        if (stops[i].pid == thread / 256 && window_touches(&stops[i].when, from, to))
            return true;
    }
    return false;
}

/* The part of a window that lies between *from and to; *from moves to its end. */
static int64_t window_overlap_ns(const window *w, int64_t *from, int64_t to)
{
    int64_t begin = w->from > *from ? w->from : *from;
    int64_t end = w->to < to ? w->to : to;
    if (end <= begin)
        return 0;
    *from = end;
    return end - begin;
}

int64_t running_ns(uint32_t thread, int64_t from, int64_t to)
{
    int64_t time = to > from ? to - from : 0;
    for (size_t i = 0; i < set.stop_count; i++) {
        if (stops[i].pid == thread / 256 && stops[i].when.to != INT64_MAX)
            time -= window_overlap_ns(&stops[i].when, &from, to);
    }
    return time;
}

int64_t working_ns(uint32_t thread, int64_t from, int64_t to)
{
    int64_t time = running_ns(thread, from, to);
    for (size_t i = 0; i < set.fault_count; i++)
        time -= window_overlap_ns(&faults[i], &from, to);
    return time;
}

int64_t arrived_ns(int64_t given_up_ns)
{
    int64_t at = given_up_ns;
    for (size_t i = 0; i < set.fault_count; i++) {
        if (faults[i].from <= at + IN_FLIGHT_NS && faults[i].to > at)
            at = faults[i].to;
    }
    return at + IN_FLIGHT_NS;
}

int64_t early_end_ns(int64_t sent_ns, int64_t end)
{
    if (sent_ns >= set.ahead.to || end <= set.ahead.from)
        return end;
    int64_t early = end - set.ahead_ns;
    return early > set.ahead.from ? early : set.ahead.from;
}

/* The latest time at which a client without an answer can have sent its last request. */
static int64_t last_sent_ns(const history_record *r)
{
    for (size_t i = 0; i < set.stop_count; i++) {
        const stop *s = &stops[i];
        if (s->pid == r->thread / 256 && s->when.to == INT64_MAX && s->when.from > r->call_ns)
            return s->when.from;
    }
    return r->call_ns + GHOST_NS;
}

static void *check_alloc_or_exit(void *memory)
{
    if (memory == NULL) {
        fprintf(stderr, "fault_check: out of memory\n");
        exit(2);
    }
    return memory;
}

/* ---- reading ---- */

static void check_record_add(const history_record *r)
{
    history *h = &keys[r->key % MAX_KEYS];
    if (h->count == h->capacity) {
        h->capacity = h->capacity == 0 ? 1024 : h->capacity * 2;
        h->ops = check_alloc_or_exit(realloc(h->ops, h->capacity * sizeof *h->ops));
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
            check_record_add(&r);
    }
    fclose(file);
    return true;
}

static int check_compare_call(const void *a, const void *b)
{
    const history_record *x = &((const op *)a)->r, *y = &((const op *)b)->r;
    if (x->call_ns != y->call_ns)
        return x->call_ns < y->call_ns ? -1 : 1;
    if (x->thread != y->thread)
        return x->thread < y->thread ? -1 : 1;
    return (x->outcome > y->outcome) - (x->outcome < y->outcome);
}

static void forgive_crashed_release(history_record *r)
{
    for (size_t c = 0; c < crash_count && r->kind == HISTORY_RELEASE; c++) {
        if (r->outcome == HISTORY_OK && r->return_ns > crashes[c].from - LAZY_NS &&
            r->call_ns < crashes[c].to)
            r->outcome = HISTORY_UNKNOWN;
    }
}

/* Removes the invocations whose response is recorded; the others are of unknown outcome. */
static void check_invocations_resolve(history *h)
{
    size_t kept = 0;
    qsort(h->ops, h->count, sizeof *h->ops, check_compare_call);
    for (size_t i = 0; i < h->count; i++) {
        history_record *r = &h->ops[i].r;
        const history_record *before = kept > 0 ? &h->ops[kept - 1].r : NULL;
        bool same = before != NULL && before->call_ns == r->call_ns && before->thread == r->thread;
        if (r->outcome == HISTORY_PENDING) {
            bool ended = same && before->kind == HISTORY_CHILD; /* the command made the attempt */
            const history_record *first = ended && kept > 1 ? &h->ops[kept - 2].r : before;
            if (same && first->kind == r->kind && first->call_ns == r->call_ns &&
                first->thread == r->thread)
                continue;
            h->ops[i].unanswered = true;
            r->outcome = HISTORY_UNKNOWN;
            r->return_ns = ended ? before->return_ns : last_sent_ns(r);
        } else if (same && r->kind == HISTORY_CHILD && r->outcome == HISTORY_NO) {
            h->ops[kept - 1].ended_ns = r->status == 0 ? r->return_ns : 0;
        }
        forgive_crashed_release(r);
        h->ops[kept++] = h->ops[i];
    }
    h->count = kept;
}

/* ---- what belongs to a grant ---- */

typedef struct id_index {
    char lock_id[24];
    int op;
} id_index;

static int check_compare_id(const void *a, const void *b)
{
    return strcmp(((const id_index *)a)->lock_id, ((const id_index *)b)->lock_id);
}

/* Finds the grant of each operation by the lock id. */
static void connect_ids(history *h)
{
    id_index *index = check_alloc_or_exit(calloc(h->grant_count + 1, sizeof *index));
    for (size_t i = 0; i < h->grant_count; i++) {
        index[i].op = h->grants[i];
        memcpy(index[i].lock_id, h->ops[h->grants[i]].r.lock_id, sizeof index[i].lock_id);
    }
    qsort(index, h->grant_count, sizeof *index, check_compare_id);
    for (size_t i = 0; i < h->count; i++) {
        id_index wanted;
        memcpy(wanted.lock_id, h->ops[i].r.lock_id, sizeof wanted.lock_id);
        id_index *found = wanted.lock_id[0] == '\0' ? NULL
                                                    : bsearch(&wanted, index, h->grant_count,
                                                              sizeof *index, check_compare_id);
        h->ops[i].holder = found != NULL ? found->op : -1;
    }
    free(index);
}

static const history *sorting;

static int check_compare_fence(const void *a, const void *b)
{
    const op *x = &sorting->ops[*(const int *)a], *y = &sorting->ops[*(const int *)b];
    return (x->r.fence > y->r.fence) - (x->r.fence < y->r.fence);
}

/* True if nothing was broken on purpose. */
static bool is_quiet(void)
{
    return !set.resends && set.fault_count == 0;
}

/* The time in which an acquire of unknown outcome may have been in force. */
static window ghost_of(const history_record *r)
{
    int64_t from = r->sent_ns > r->call_ns ? r->sent_ns : r->call_ns;
    /* Without faults, only the last attempt of a waiter that gave up can be unknown. */
    if (is_quiet() && r->sent_ns == 0 && r->status < 0 && (r->flags & HISTORY_HELPER) != 0 &&
        r->return_ns - ATTEMPT_NS > from)
        from = r->return_ns - ATTEMPT_NS;
    int64_t asked = (r->flags & HISTORY_HELPER) != 0 ? r->return_ns : r->call_ns;
    return (window){from, asked + GHOST_NS + r->ttl_ms * MS};
}

/* By then the request that was granted had been sent, so every attempt before it was given up. */
static int64_t attempts_ended_ns(const history_record *r)
{
    return r->sent_ns > 0 ? r->sent_ns : r->return_ns;
}

/* An attempt fails because of a fault, or because it took all of its time. */
static bool may_have_failed_before(const history_record *r)
{
    int64_t end = attempts_ended_ns(r);
    return (r->flags & HISTORY_RETRIES) != 0 && !is_quiet() &&
           (end - r->call_ns >= TIMEOUT_NS || fault_between(r->thread, r->call_ns, end));
}

/* The attempts that failed before an acquire was granted. */
static void add_failed_attempts(history *h)
{
    for (size_t i = 0; i < h->grant_count; i++) {
        const history_record *r = &h->ops[h->grants[i]].r;
        if (may_have_failed_before(r))
            h->ghosts[h->ghost_count++] =
                (window){r->call_ns, attempts_ended_ns(r) + GHOST_NS + r->ttl_ms * MS};
    }
}

static void sort_grants(history *h)
{
    h->grants = check_alloc_or_exit(calloc(h->count + 1, sizeof *h->grants));
    h->ghosts = check_alloc_or_exit(calloc(h->count + 1, sizeof *h->ghosts));
    h->unknown = check_alloc_or_exit(calloc(h->count + 1, sizeof *h->unknown));
    for (size_t i = 0; i < h->count; i++) {
        const history_record *r = &h->ops[i].r;
        if (r->kind == HISTORY_ACQUIRE && r->outcome == HISTORY_OK)
            h->grants[h->grant_count++] = (int)i;
        else if (r->kind == HISTORY_ACQUIRE && r->outcome == HISTORY_UNKNOWN) {
            h->unknown[h->unknown_count++] = (int)i;
            h->ghosts[h->ghost_count++] = ghost_of(r);
        }
    }
    add_failed_attempts(h);
    sorting = h;
    qsort(h->grants, h->grant_count, sizeof *h->grants, check_compare_fence);
    for (size_t i = 0; i < h->grant_count; i++)
        h->ops[h->grants[i]].rank = (int)i;
}

/* The time until which a lock is live that is neither renewed nor released. */
static int64_t lease_end_ns(const history_record *r)
{
    int64_t sent = r->sent_ns > 0 ? r->sent_ns : r->call_ns;
    return early_end_ns(sent, sent + r->ttl_ms * MS + TOLERANCE_NS - set.slack_ns);
}

/* The time until which a renewed lock is certainly live while its holder believes in it. */
static int64_t believed_until_ns(const history_record *held, const history_record *grant)
{
    int64_t renewed = held->sent_ns - grant->ttl_ms * MS;
    int64_t early = early_end_ns(renewed, held->sent_ns + TOLERANCE_NS - set.slack_ns);
    return early < held->call_ns ? early : held->call_ns;
}

/* Bounds that follow from the grant alone. */
static void bound_grant(op *grant)
{
    const history_record *r = &grant->r;
    grant->live_until = lease_end_ns(r);
    grant->dead_after = r->return_ns + r->ttl_ms * MS + TOLERANCE_NS + set.slack_ns;
    if ((r->flags & HISTORY_COMMAND) != 0) /* the release by the command is not recorded */
        grant->live_until = r->return_ns;
}

/*
 * The time by which the last renewal of a lock was carried out whose holder made this record last.
 * A holder that was killed renewed for a moment longer. The library does not wait for a renewal
 * beyond the lease, but the store may still carry out one that it has received.
 */
static int64_t last_renewal_ns(const history_record *r)
{
    if (r->kind == HISTORY_RELEASE)
        return r->return_ns;
    if (r->kind == HISTORY_CHILD)
        return r->return_ns + GHOST_NS;
    return arrived_ns(r->kind == HISTORY_LOST ? r->return_ns : r->return_ns + 500 * MS);
}

/* Renewals are not recorded, but the holder's beliefs are, and the end of the renewals. */
static void bound_renewed(history *h)
{
    for (size_t i = 0; i < h->count; i++) {
        const history_record *r = &h->ops[i].r;
        op *grant = h->ops[i].holder >= 0 ? &h->ops[h->ops[i].holder] : NULL;
        if (grant == NULL || grant->r.kind != HISTORY_ACQUIRE ||
            (grant->r.flags & HISTORY_RENEWED) == 0)
            continue;
        bool held = r->kind == HISTORY_HELD && r->outcome == HISTORY_OK;
        if (held && believed_until_ns(r, &grant->r) > grant->live_until)
            grant->live_until = believed_until_ns(r, &grant->r);
        int64_t dead = last_renewal_ns(r) + grant->r.ttl_ms * MS + TOLERANCE_NS + set.slack_ns;
        if (dead > grant->dead_after)
            grant->dead_after = dead;
    }
}

/*
 * The library releases a lock that is lost, so the lock is live only for as long as its holder
 * believes in it. A process that was stopped during its acquire may return from it after the lease.
 */
static void bound_lost(history *h)
{
    for (size_t i = 0; i < h->count; i++) {
        const history_record *r = &h->ops[i].r;
        bool lost =
            r->kind == HISTORY_LOST || (r->kind == HISTORY_HELD && r->outcome == HISTORY_NO);
        if (!lost || h->ops[i].holder < 0)
            continue;
        op *grant = &h->ops[h->ops[i].holder];
        if ((grant->r.flags & HISTORY_RENEWED) == 0)
            continue;
        grant->live_until = lease_end_ns(&grant->r);
        if (grant->r.return_ns < grant->live_until)
            grant->live_until = grant->r.return_ns;
        for (const op *o = grant; o < h->ops + i; o++) {
            if (o->holder == (int)(grant - h->ops) && o->r.kind == HISTORY_HELD &&
                o->r.outcome == HISTORY_OK &&
                believed_until_ns(&o->r, &grant->r) > grant->live_until)
                grant->live_until = believed_until_ns(&o->r, &grant->r);
        }
    }
}

int64_t command_released_ns(const op *grant)
{
    bool certain = grant->ended_ns != 0 && set.stepped_ns == 0 &&
                   !fault_between(grant->r.thread, grant->r.call_ns, grant->ended_ns);
    return certain ? grant->ended_ns : 0;
}

static void bound_command(op *grant)
{
    int64_t released = command_released_ns(grant);
    if (released != 0 && released < grant->dead_after)
        grant->dead_after = released;
}

static void connect_ops(history *h)
{
    check_invocations_resolve(h);
    sort_grants(h);
    connect_ids(h);
    for (size_t i = 0; i < h->grant_count; i++)
        bound_grant(&h->ops[h->grants[i]]);
    bound_renewed(h);
    bound_lost(h);
    for (size_t i = 0; i < h->grant_count; i++)
        bound_command(&h->ops[h->grants[i]]);
}

/* ---- the whole ---- */

static window read_window(char **argv)
{
    return (window){strtoll(argv[0], NULL, 10), strtoll(argv[1], NULL, 10)};
}

static bool read_arguments(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--slack-ms") == 0 && i + 1 < argc)
            set.slack_ns = strtoll(argv[++i], NULL, 10) * MS;
        else if (strcmp(word, "--stepped-ms") == 0 && i + 1 < argc)
            set.stepped_ns = strtoll(argv[++i], NULL, 10) * MS;
        else if (strcmp(word, "--wake-ms") == 0 && i + 1 < argc)
            set.wake_ns = strtoll(argv[++i], NULL, 10) * MS;
        else if (strcmp(word, "--grace-ms") == 0 && i + 1 < argc)
            set.grace_ns = strtoll(argv[++i], NULL, 10) * MS;
        else if (strcmp(word, "--crash-ns") == 0 && i + 2 < argc && crash_count < MAX_CRASHES)
            crashes[crash_count++] = read_window(&argv[++i]), i++;
        else if (strcmp(word, "--fault-ns") == 0 && i + 2 < argc && set.fault_count < MAX_FAULTS)
            faults[set.fault_count++] = read_window(&argv[++i]), i++;
        else if (strcmp(word, "--stopped-ns") == 0 && i + 3 < argc && set.stop_count < MAX_FAULTS) {
            stops[set.stop_count].pid = (uint32_t)strtoul(argv[++i], NULL, 10);
            stops[set.stop_count++].when = read_window(&argv[++i]), i++;
        } else if (strcmp(word, "--ahead-ns") == 0 && i + 3 < argc) {
            set.ahead = read_window(&argv[i + 1]);
            set.ahead_ns = strtoll(argv[i + 3], NULL, 10) * MS;
            i += 3;
        } else if (strcmp(word, "--resends") == 0)
            set.resends = true;
        else if (strcmp(word, "--quiet") == 0)
            quiet = true;
        else if (!read_file(word))
            return false;
    }
    return true;
}

typedef struct counts {
    size_t operations;
    size_t helper; /* of them by the lock helper and the command */
    size_t grants;
    size_t unknown;
} counts;

/* A holder's belief is checked, but is no operation. */
static void check_counts_add(const history *h, counts *n)
{
    n->grants += h->grant_count;
    for (size_t i = 0; i < h->count; i++) {
        const op *o = &h->ops[i];
        if (o->r.kind > HISTORY_WRITE)
            continue;
        const op *grant = o->holder >= 0 ? &h->ops[o->holder] : o;
        n->operations++;
        n->helper += (grant->r.flags & HISTORY_HELPER) != 0;
        n->unknown += o->r.outcome == HISTORY_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    if (!read_arguments(argc, argv))
        return 2;
    counts n = {0};
    uint64_t steps = 0;
    size_t wake_ups = 0;
    int result = 0;
    for (uint32_t key = 0; key < MAX_KEYS; key++) {
        history *h = &keys[key];
        if (h->count == 0)
            continue;
        connect_ops(h);
        check_counts_add(h, &n);
        result |= check_direct(h, key);
        result |= check_order(h, key, &steps);
        result |= check_holders(h, key);
        result |= check_wake_ups(h, key, &wake_ups);
        free(h->ops);
        free(h->ghosts);
        free(h->unknown);
        free(h->grants);
    }
    if (!quiet && set.ahead_ns > 0)
        printf("%zu locks overlapped with the next grant, for %" PRId64 " ms at most\n",
               set.overlaps, set.overlap_ns / MS);
    if (!quiet)
        printf("%s: %zu operations, %zu grants, %zu by the helper, %zu of unknown outcome, "
               "%zu wake-ups checked, %" PRIu64 " steps of search\n",
               result == 0 ? "kept" : "BROKEN", n.operations, n.grants, n.helper, n.unknown,
               wake_ups, steps);
    if (n.operations == 0) {
        fprintf(stderr, "fault_check: the history is empty\n");
        return 2;
    }
    return result;
}
