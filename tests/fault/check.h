/*
 * Shared by the checks of fault_check: the history of one key.
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

/* A client process was stopped; with the end INT64_MAX it was killed. */
typedef struct stop {
    uint32_t pid;
    window when;
} stop;

/* Settings of the run, from the command line. */
typedef struct settings {
    int64_t slack_ns; /* clocks are read in whole milliseconds by stores */
    /* Connections broke: a release that had to be sent again and then found nothing answers OK, as
     * the interface allows. */
    bool resends;
    window ahead;       /* the server was replaced by one whose clock is ahead; 0: it was not */
    int64_t ahead_ns;   /* by this much */
    size_t overlaps;    /* found: locks that their holders still believed in then */
    int64_t overlap_ns; /* the longest */
    int64_t stepped_ns; /* clients' clocks were stepped by this much, on a store without one */
    int64_t wake_ns;    /* a free key with a waiter is granted within this */
    int64_t grace_ns;   /* a child of the command outlives its lock by no more than this */
    window *faults;     /* the store could not work, in order of time */
    size_t fault_count;
    stop *stops; /* of client processes, in order of time */
    size_t stop_count;
} settings;

extern settings set;

typedef struct op {
    history_record r;
    int holder;         /* index of the grant with this lock id, -1 if it is not known */
    int rank;           /* of a grant: how many grants have lower fences */
    int64_t live_until; /* of a grant: no other client can have been granted the key before */
    int64_t dead_after; /* of a grant: without another extend it is certainly dead from here on */
    uint64_t mark[2];
    int64_t ended_ns; /* of a command's grant: the command ended by itself, with its child's 0 */
    bool unanswered;  /* its client was killed, or its command recorded no answer */
} op;

typedef struct history {
    op *ops; /* in order of call */
    size_t count;
    size_t capacity;
    window *ghosts;
    size_t ghost_count;
    int *unknown; /* the acquires of unknown outcome, of which the first ghosts are: indices */
    size_t unknown_count;
    int *grants; /* indices, in order of their fences */
    size_t grant_count;
} history;

/* Prints the violation; returns 1. */
int broken(uint32_t key, const char *what, const history_record *a, const history_record *b);

bool ghost_between(const history *h, int64_t from, int64_t to);

/*
 * The end of a lock that was confirmed by a request of sent_ns, and that would live until `end`
 * without another server: by that server's clock it ends sooner, but not before the server takes
 * over.
 */
int64_t early_end_ns(int64_t sent_ns, int64_t end);

/* The time by which a request has reached the store if its caller gave up at given_up_ns. */
int64_t arrived_ns(int64_t given_up_ns);

/* The time from `from` to `to` in which the process of `thread` was not stopped. */
int64_t running_ns(uint32_t thread, int64_t from, int64_t to);
/* The same without the time of faults. */
int64_t working_ns(uint32_t thread, int64_t from, int64_t to);
/* Whether a fault, or a stop of its process, may have disturbed a request of that time. */
bool fault_between(uint32_t thread, int64_t from, int64_t to);

/* Fences are unique and rise; no two grants are held at once; no stale write (direct.c). */
int check_direct(const history *h, uint32_t key);
/* There is an order of all operations that a lock can have gone through (order.c). */
int check_order(history *h, uint32_t key, uint64_t *steps);
/* What holders and children believe and learn (holders.c). */
int check_holders(const history *h, uint32_t key);
/* No wake-up is lost; *checked grows by the number of releases that could have lost one
 * (wakeups.c). */
int check_wake_ups(const history *h, uint32_t key, size_t *checked);
/* The time by which a command that ended by itself had certainly released its lock; 0: unknown. */
int64_t command_released_ns(const op *grant);

#endif
