/*
 * Firestore: every change is a commit whose writes carry preconditions on what was read before
 * (src/backends/firestore/). The server has no clock to ask, so every caller uses its own.
 *
 *     decide           firestore_acquire_evaluate and firestore_grant_from_lock in mutate.c; the guard is
 *                      sg_firestore_clock_check in clock.c
 *     apply_acquire    the commit of firestore_grant_commit in mutate.c: lock and counter, each conditional
 *     decide_extend    firestore_change_commit in mutate.c, firestore_renew_add and firestore_renew_send in renew.c
 *     decide_release   firestore_change_by_cache and firestore_change_by_query in mutate.c
 *     undo             sg_firestore_undo in mutate.c (ABSENT is not final: the commit may still come)
 *     Cleanup          sg_firestore_cleanup in mutate.c
 *
 * A tick is half of the tolerance, 500 ms: that is also the limit of clock drift. A caller's clock may be stepped at
 * any moment, so each reading of it is off by as much as the guard permits: -1 or 1, extends -1 or 2 (a clock that is
 * ahead does no harm there); values between these lead to no other decisions. The guard is assumed to know the offset
 * exactly. A read and the decision on it are one step: any change between them fails the precondition. Versions are
 * kept as bits: whether the precondition of a commit in flight still holds.
 *
 * -DCLEANUP has the cleanup, and no extends.
 *
 * The promise counts in the server's time: a lock does not end before its TTL, so MARGIN is 0.
 */
#define TOL 2
#define MARGIN 0
#include "key.pml"

/* The stored expiry, as left = expiry - now + TOL + BASE. Clocks: 2 is right, 0 is two ticks behind. */
#ifdef CLEANUP
#define BASE 4
#else
#define BASE 2
#endif
#if defined(BROKEN_NO_TOLERANCE)
#define LIVE_AT(clock) (left > BASE - 2 + TOL + clock)
#elif defined(BROKEN_LIVENESS_SIGN)
#define LIVE_AT(clock) (left > BASE - 2 + 2 * TOL + clock)
#else
#define LIVE_AT(clock) (left > BASE - 2 + clock)
#endif
#define EXPIRY(clock) (TTL + TOL + BASE - 2 + clock)

#ifdef BROKEN_COUNTER_WITHOUT_PRECONDITION
#define COUNTER_FITS(c) true
#else
#define COUNTER_FITS(c) c.counter_as_read
#endif

mtype { NONE, GRANTED, CONFLICT };

typedef change {
    bit sent;        /* in flight */
    byte left;       /* the expiry that it writes */
    byte ttl;        /* the TTL that is left since the clock was read for it */
    bit absent;      /* precondition: there is no lock; otherwise: the lock is as it was read */
    bit lock_as_read;
    bit counter_as_read
};

byte owner = NOBODY;
byte left;
change acq[N];       /* the latest commit of an acquire */
change old[N];       /* one whose reply was lost */
change ext[N];
change rel[N];
byte age[N];         /* since the first commit that may have been applied was made */
bit counting[N];
mtype reply[N] = NONE;
byte clock = 2;      /* the reading of the current caller; 2 between the steps */

inline read_clock()
{
    if
    :: clock = 1
    :: clock = 3
#ifdef BROKEN_CLOCKS_BEYOND_THE_LIMIT
    :: clock = 0
    :: clock = 4
#endif
    fi
}

/* A commit that can never be applied any more has no content. */
inline void_if_refused(c)
{
    if
    :: c.sent && !(COUNTER_FITS(c) && (c.absent || c.lock_as_read)) ->
        c.left = 0;
        c.ttl = 0;
        c.absent = 0;
        c.lock_as_read = 0;
        c.counter_as_read = 0
    :: else
    fi
}

inline void_if_refused_extend(c)
{
    if
    :: !c.lock_as_read -> c.left = 0; c.ttl = 0
    :: else
    fi
}

/* The lock's document was written: preconditions on an earlier read no longer hold. */
inline lock_written()
{
    for (j : 0 .. N - 1) {
        acq[j].lock_as_read = 0;
        old[j].lock_as_read = 0;
        ext[j].lock_as_read = 0;
        rel[j].lock_as_read = 0;
        void_if_refused(acq[j]);
        void_if_refused(old[j]);
        void_if_refused_extend(ext[j])
    }
}

inline clear(c)
{
    c.sent = 0;
    c.left = 0;
    c.ttl = 0;
    c.absent = 0;
    c.lock_as_read = 0;
    c.counter_as_read = 0
}

inline capture(c)
{
    c.sent = 1;
    c.left = EXPIRY(clock);
    c.ttl = TTL;
    c.absent = owner == NOBODY;
    c.lock_as_read = owner != NOBODY;
    c.counter_as_read = 1
}

/* Grants if the preconditions hold. */
inline apply_acquire(i, c, heard)
{
    if
    :: COUNTER_FITS(c) && (c.absent && owner == NOBODY || c.lock_as_read) ->
        claim_granted(i, c.counter_as_read);
        given[i] = c.ttl;
        owner = i;
        left = c.left;
        clear(c);
        lock_written();
        for (j : 0 .. N - 1) {
            acq[j].counter_as_read = 0;
            old[j].counter_as_read = 0;
            void_if_refused(acq[j]);
            void_if_refused(old[j])
        }
        reply[i] = (heard -> GRANTED : reply[i])
    :: else -> reply[i] = (heard -> CONFLICT : reply[i])
    fi;
    clear(c)
}

inline remove()
{
    owner = NOBODY;
    left = 0;
    lock_written()
}

inline tell(i, until)
{
    if
    :: until == 0 -> begin_undo(i); goto undo_it /* the grant arrived after its lease had expired */
    :: else -> claim_holds(i, until); age[i] = 0; counting[i] = 0; goto holds
    fi
}

inline begin_undo(i)
{
    age[i] = 0;
    counting[i] = 0;
    undoing[i] = 1;
    undo[i] = TTL + TOL
}

inline end_undo(i)
{
    printf("the undo of %d has ended\n", i);
    assert(owner != i);
    undoing[i] = 0;
    undone[i] = 1
}

inline give_away(i)
{
    old[i].sent = 1;
    old[i].left = acq[i].left;
    old[i].ttl = acq[i].ttl;
    old[i].absent = acq[i].absent;
    old[i].lock_as_read = acq[i].lock_as_read;
    old[i].counter_as_read = acq[i].counter_as_read;
    clear(acq[i])
}

proctype Caller(byte i)
{
    byte lost; /* commits whose reply was lost */

start:
    do
    :: atomic { /* batchGet, decision, and the commit is sent */
        !acq[i].sent && reply[i] == NONE ->
        read_clock();
        if
        :: owner == i -> /* one of ours was applied: firestore_grant_from_lock */
            clock = 2;
#ifdef BROKEN_LEASE_FROM_REPLY
            tell(i, TTL)
#else
            tell(i, TTL - age[i])
#endif
        :: owner != i && owner != NOBODY && LIVE_AT(clock) ->
            clock = 2;
            if
            :: lost > 0 -> begin_undo(i); goto undo_it
            :: else -> age[i] = 0; counting[i] = 0; goto over
            fi
        :: else ->
            printf("caller %d commits, its clock off by %d\n", i, clock - 2);
            capture(acq[i]);
            clock = 2;
            if
            :: lost == 0 -> age[i] = 0; counting[i] = 1 /* the lease counts from here */
            :: else
            fi
        fi
       }
    :: atomic {
        reply[i] == GRANTED -> reply[i] = NONE;
#ifdef BROKEN_LEASE_FROM_REPLY
        tell(i, TTL)
#else
        tell(i, TTL - age[i])
#endif
       }
    :: atomic { reply[i] == CONFLICT -> reply[i] = NONE }
    :: atomic { /* the reply is lost: read again */
        (acq[i].sent || reply[i] != NONE) && lost < 1 ->
        printf("caller %d does not hear\n", i);
        lost++;
        reply[i] = NONE;
        if
        :: acq[i].sent -> give_away(i)
        :: else
        fi
       }
    :: atomic { /* deadline, abort */
        counting[i] ->
        printf("caller %d gives up\n", i);
        reply[i] = NONE;
        if
        :: acq[i].sent && !old[i].sent -> give_away(i)
        :: acq[i].sent && old[i].sent -> clear(acq[i]) /* one late commit has the effect of two */
        :: else
        fi;
        begin_undo(i);
        goto undo_it
       }
    od;

holds:
    do
#ifndef CLEANUP
    :: atomic { /* extend: only a clock that is behind is refused */
        !ext[i].sent && lease[i] > 0 ->
        if
        :: clock = 1
        :: clock = 4
#ifdef BROKEN_EXTEND_BY_A_CLOCK_BEHIND
        :: clock = 0
#endif
        fi;
        if
        :: owner == i && LIVE_AT(clock) -> capture(ext[i]); ext[i].counter_as_read = 0
        :: else -> lease[i] = 0 /* absent: lost */
        fi;
        clock = 2
       }
#endif
    :: atomic { /* a release, which is conditional like all other changes */
        printf("caller %d releases\n", i);
        lease[i] = 0;
        if
        :: owner == i -> capture(rel[i]); rel[i].left = 0; rel[i].ttl = 0; rel[i].counter_as_read = 0
        :: else
        fi;
        goto over
       }
    od;

undo_it:
    do
    :: atomic { /* a step; its reply may be lost, but not the last one's */
        true ->
        if
        :: owner == i -> /* deleted: the counter has moved on, so that it cannot be granted again */
            note_ended(i);
            remove();
            if
            :: end_undo(i); break
            :: undo[i] > 0
            fi
        :: else ->
#ifdef BROKEN_UNDO_ENDS_EARLY
            end_undo(i); break
#else
            if
            :: undo[i] == 0 -> end_undo(i); break
            :: else
            fi
#endif
        fi
       }
    od;

over:
    atomic {
        owner != i && !acq[i].sent && !old[i].sent && !ext[i].sent && !rel[i].sent ->
        lost = 0;
        undone[i] = 0;
        undo[i] = 0;
        reply[i] = NONE;
        goto start
    }
}

proctype Commits(byte i)
{
    do
    :: atomic { acq[i].sent -> apply_acquire(i, acq[i], true) }
    :: atomic { old[i].sent -> apply_acquire(i, old[i], false) }
    :: atomic {
        ext[i].sent ->
        if
        :: ext[i].lock_as_read ->
            printf("store extends %d\n", i);
            left = ext[i].left;
            given[i] = (ext[i].ttl > given[i] -> ext[i].ttl : given[i]);
            if
            :: lease[i] > 0 && ext[i].ttl > 0 -> claim_holds(i, ext[i].ttl) /* the reply comes at once, or never */
            :: true
            fi;
            lock_written()
        :: else
        fi;
        clear(ext[i])
       }
    :: atomic {
        rel[i].sent ->
        if
#ifdef BROKEN_RELEASE_WITHOUT_PRECONDITION
        :: owner != NOBODY ->
            if
            :: owner == i -> note_ended(i)
            :: else -> printf("the release of %d removes another's lock\n", i)
            fi;
            remove()
#else
        :: rel[i].lock_as_read -> note_ended(i); remove()
#endif
        :: else -> /* read again */
            if
            :: owner == i -> note_ended(i); remove()
            :: else
            fi
        fi;
        clear(rel[i])
       }
    od
}

inline age_change(c)
{
    AGE(c.left);
    AGE(c.ttl)
}

active proctype Clock()
{
    do
    :: d_step {
        MAY_TICK -> tick();
        AGE(left);
        for (j : 0 .. N - 1) {
            age_change(acq[j]);
            age_change(old[j]);
            age_change(ext[j]);
            if
            :: counting[j] -> GROW(age[j], TTL)
            :: else
            fi
        };
        skip
       }
    od
}

#ifdef CLEANUP
/* Reads a lock that its clock calls dead for more than SYNCGUARD_CLEANUP_GUARD_MS, and deletes it if it is still the same. */
active proctype Cleanup()
{
    do
    :: atomic {
        owner != NOBODY ->
#ifdef BROKEN_CLEANUP_BY_ANY_CLOCK
        clock = BASE + TTL + TOL;
#else
        read_clock();
#endif
        if
        :: left < clock -> printf("cleanup removes %d\n", owner); remove()
        :: else
        fi;
        clock = 2
       }
    od
}

#endif

init
{
    byte k;
    atomic {
        for (k : 0 .. N - 1) {
            run Caller(k);
            run Commits(k)
        }
    }
}
