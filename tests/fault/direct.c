/*
 * Direct checks of one key: fences are unique and rise with the order of grants; no two grants are
 * certainly held at the same time; the resource accepted no write with a fence below one that it
 * had accepted before.
 */
#include <string.h>

#include "check.h"

/* The time until which no other client can have been granted the key. */
static int64_t certain_end(const history *h, const op *grant)
{
    const history_record *g = &grant->r;
    int64_t end = grant->live_until;
    if ((g->flags & HISTORY_COMMAND) != 0)
        return end;
    for (const op *o = grant + 1; o < h->ops + h->count; o++) {
        const history_record *r = &o->r;
        if (r->call_ns > g->call_ns + 60000 * MS)
            break;
        if (strcmp(r->lock_id, g->lock_id) != 0)
            continue;
        int64_t extended =
            early_end_ns(r->call_ns, r->call_ns + r->ttl_ms * MS + TOLERANCE_NS - set.slack_ns);
        if (r->kind == HISTORY_RELEASE && r->outcome != HISTORY_NO && r->call_ns < end)
            end = r->call_ns;
        else if (r->kind == HISTORY_EXTEND && r->outcome == HISTORY_OK && r->call_ns <= end)
            end = extended;
        else if (r->kind == HISTORY_EXTEND && r->outcome == HISTORY_UNKNOWN && extended < end)
            end = extended;
    }
    return end;
}

static int check_grants(const history *h, uint32_t key)
{
    for (size_t i = 1; i < h->grant_count; i++) {
        const op *a = &h->ops[h->grants[i - 1]], *b = &h->ops[h->grants[i]];
        if (a->r.fence == b->r.fence)
            return broken(key, "a fence was given twice", &a->r, &b->r);
        if (b->r.return_ns < a->r.call_ns)
            return broken(key, "a later grant has a lower fence", &a->r, &b->r);
        if (b->r.return_ns < certain_end(h, a) && a->r.return_ns < certain_end(h, b))
            return broken(key, "two grants were held at the same time", &a->r, &b->r);
    }
    return 0;
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

int check_direct(const history *h, uint32_t key)
{
    return check_grants(h, key) | check_writes(h, key);
}
