/*
 * What the judgements of fault_check share: the history of one key.
 */
#ifndef FAULT_CHECK_H
#define FAULT_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "history.h"

#define MS INT64_C(1000000)
#define TOLERANCE_NS (1000 * MS)
/* How long the library and a store that was stopped may keep a ghost alive after its call. */
#define GHOST_NS (8000 * MS)

typedef struct window {
    int64_t from;
    int64_t to;
} window;

/* What the run says about itself. */
typedef struct settings {
    int64_t slack_ns; /* clocks are read in whole milliseconds by stores */
    /* Connections broke: a release that had to be sent again and then found nothing answers OK, as
     * the interface says. */
    bool resends;
    int64_t stepped_ns; /* clients' clocks were stepped by this much, on a store without one */
    bool frozen;        /* clients were stopped: what they notice, they may notice late */
    int64_t wake_ns;    /* a free key with a waiter is granted within this */
    int64_t grace_ns;   /* a child of the command outlives its lock by no more than this */
    window *faults;     /* the store or a client could not work, in order of time */
    size_t fault_count;
} settings;

extern settings set;

typedef struct op {
    history_record r;
    int holder;         /* index of the grant with this lock id, -1 if it is not known */
    int rank;           /* of a grant: how many grants have lower fences */
    int64_t live_until; /* of a grant: nobody else can have been granted the key before */
    int64_t dead_after; /* of a grant: without another extend it is certainly dead from here on */
    uint64_t mark[2];
} op;

typedef struct history {
    op *ops; /* in order of call */
    size_t count;
    size_t capacity;
    window *ghosts;
    size_t ghost_count;
    int *grants; /* indices, in order of their fences */
    size_t grant_count;
} history;

/* Says what is wrong; 1. */
int broken(uint32_t key, const char *what, const history_record *a, const history_record *b);

bool ghost_between(const history *h, int64_t from, int64_t to);

/* Fences are unique and rise; no two grants are held at once; no stale write (direct.c). */
int check_direct(const history *h, uint32_t key);
/* There is an order of all operations that a lock could have gone through (order.c). */
int check_order(history *h, uint32_t key, uint64_t *steps);
/* What holders, waiters and children believe and learn (holders.c). */
int check_holders(const history *h, uint32_t key);

#endif
