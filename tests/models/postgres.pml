/*
 * PostgreSQL: each operation is one transaction that first takes the key's advisory lock, so that one follows the other,
 * and reads the server's clock (src/backends/postgres/sql.c, mutate.c, renew.c).
 *
 *     store_acquire   SG_PG_CURRENT_ROW and SG_PG_ACQUIRE, sg_pg_acquire and pg_acquire_interpret in mutate.c;
 *                     confirming: pg_grant_confirm there (ADR 0034)
 *     store_release   SG_PG_RELEASE, sg_pg_release: commits with synchronous_commit off, without the standby
 *     store_extend    SG_PG_EXTEND and SG_PG_EXTEND_MANY, sg_pg_extend and sg_pg_extend_many
 *     answer          CANCELLED is SG_PG_UNCONFIRMED in request.c
 *     store_undo      SG_PG_UNDO, sg_pg_undo (ABSENT while a request of the id may still be under way)
 *     Cleanup         SG_PG_CLEANUP, sg_pg_cleanup
 *
 * With a synchronous standby a COMMIT that wrote something waits for it, and keeps its locks meanwhile (busy). The wait is
 * ended by the standby, by pg_cancel_backend (the COMMIT succeeds, with a warning) or by pg_terminate_backend or a restart
 * of the primary (no answer); after either of the last two the transaction is visible although the standby may not have
 * it. The standby has a prefix of the log; copying all of it at any moment is the same, because confirmations may be seen
 * late. At some moment the primary is lost, once, and the standby promoted. (-DSTANDBY; without it, Cleanup is at work.)
 *
 * Left out: that the standby's clock differs from the primary's; the other library's extends, which take only the row.
 */
#include "key.pml"

/* left is expiry + tolerance + guard - now; the guard of cleanup (SYNCGUARD_CLEANUP_GUARD_MS) is two tolerances. */
#ifdef STANDBY
#define GUARD 1
#else
#define GUARD 2
#endif
#if defined(BROKEN_NO_TOLERANCE)
#define LIVE (left > TOL + GUARD - 1)
#define EXTENDABLE LIVE
#elif defined(BROKEN_LIVENESS_SIGN)
#define LIVE (left > 2 * TOL + GUARD - 1)
#define EXTENDABLE LIVE
#else
#define LIVE (left > GUARD - 1)
#ifdef BROKEN_EXTEND_REVIVES
#define EXTENDABLE true
#else
#define EXTENDABLE LIVE
#endif
#endif
#define FULL (TTL + TOL + GUARD - 1)
#define STORE_FREE (busy == NOBODY)
#define STORED(i) (owner == i || seen_owner == i || standby_owner == i || busy == i)
#define STORED_LIVE(i) (owner == i && LIVE)
#define DURABLE(i, sends) true
#define EXTEND_DURABLE(i) true

byte owner = NOBODY; /* the owner of the row, dead or alive */
byte left;
byte busy = NOBODY;  /* the caller whose commit waits for the standby */
bit busy_extends;
bit busy_heard;      /* the caller waits for the reply */
bit confirmed;       /* the standby has it */
#ifdef STANDBY
bit promoted;
#else
bit promoted = 1;
#endif
byte standby_owner = NOBODY;
byte standby_left;
byte standby_lag;    /* grants that the standby has not received */
byte life;
byte seen_owner = NOBODY; /* the dead row that a reader saw, for Cleanup */

inline answer(i, extends, heard, what)
{
    if
    :: heard && extends -> ext_reply[i] = what
    :: heard && !extends -> reply[i] = what
    :: else
    fi
}

/* A commit that wrote something. */
inline commit(i, extends, heard)
{
    if
    :: promoted -> answer(i, extends, heard, GRANTED)
    :: else ->
        busy = i;
        busy_extends = extends;
        busy_heard = heard;
        confirmed = 0
    fi
}

inline end_wait()
{
    busy = NOBODY;
    busy_extends = 0;
    busy_heard = 0;
    confirmed = 0
}

#ifdef BROKEN_COUNTER_APART
bit outdated[N]; /* the counter was read in a transaction of its own, and has moved since */
#define AHEAD(i) !outdated[i]
#else
#define AHEAD(i) true /* in the same statement */
#endif

inline store_acquire(i, heard)
{
    if
    :: owner != NOBODY && LIVE && owner != i -> answer(i, false, heard, (confirming[i] -> CANCELLED : LOCKED))
    :: owner == i && LIVE && heard && confirming[i] ->
        claim_extended(i);
        left = FULL;
        commit(i, false, heard)
    :: owner == i && LIVE && !(heard && confirming[i]) -> /* sent again */
#ifdef BROKEN_RESEND_WITHOUT_WRITE
        answer(i, false, heard, GRANTED)
#else
        answer(i, false, heard, FOUND)
#endif
    :: !(owner != NOBODY && LIVE) && heard && confirming[i] -> answer(i, false, heard, CANCELLED) /* lost meanwhile */
    :: else ->
        claim_granted(i, AHEAD(i));
#ifdef BROKEN_COUNTER_APART
        for (j : 0 .. N - 1) {
            outdated[j] = flight[j] || stale[j] > 0
        }
#endif
        if
        :: !promoted -> GROW(standby_lag, LAGS)
        :: else
        fi;
        owner = i;
        left = FULL;
        commit(i, false, heard)
    fi
}

inline remove()
{
    owner = NOBODY;
    left = 0
}

inline store_release(i)
{
    if
#ifdef BROKEN_RELEASE_WITHOUT_OWNER
    :: owner != NOBODY ->
        if
        :: owner == i -> note_ended(i)
        :: else -> printf("the release of %d removes another's lock\n", i)
        fi;
        remove()
#else
    :: owner == i -> note_ended(i); remove() /* dead or alive */
#endif
    :: else
    fi
}

inline store_extend(i)
{
    if
    :: owner == i && EXTENDABLE ->
        claim_extended(i);
        left = FULL;
        commit(i, true, ext[i] == 1)
    :: else -> answer(i, true, ext[i] == 1, LOCKED)
    fi
}

/* Final if it is known that no request of this id is in flight any more: then none is. */
inline store_undo(i, is_final)
{
    if
    :: owner == i -> note_ended(i); remove()
    :: else
    fi;
#ifdef BROKEN_UNDO_ENDS_EARLY
    is_final = 1
#else
    is_final = stale[i] == 0
#endif
}

inline stop_hearing(i)
{
    if
    :: busy == i -> busy_heard = 0
    :: else
    fi
}

inline forget(i)
{
#ifdef BROKEN_COUNTER_APART
    outdated[i] = 0;
#endif
    skip
}

#include "caller.pml"

active proctype Clock()
{
    do
    :: d_step {
        MAY_TICK -> tick();
        caller_tick();
        AGE(left);
        AGE(standby_left)
       }
    od
}

#ifdef STANDBY
active proctype Standby()
{
    do
    :: d_step {
        !promoted && (standby_owner != owner || standby_left != left || standby_lag > 0 || busy != NOBODY && !confirmed) ->
        printf("the standby has all\n");
        standby_owner = owner;
        standby_left = left;
        standby_lag = 0;
        confirmed = busy != NOBODY
       }
    :: d_step {
        busy != NOBODY && confirmed ->
        answer(busy, busy_extends, busy_heard, GRANTED);
        end_wait()
       }
    :: d_step {
        busy != NOBODY ->
        printf("the wait of %d is ended by terminate\n", busy);
        end_wait()
       }
    :: d_step {
        busy != NOBODY ->
        printf("the wait of %d is ended by cancel\n", busy);
#ifdef BROKEN_CANCELLED_WAIT_COUNTS
        answer(busy, busy_extends, busy_heard, GRANTED);
#elif defined(BROKEN_CANCELLED_EXTEND_COUNTS)
        answer(busy, busy_extends, busy_heard, (busy_extends -> GRANTED : CANCELLED));
#else
        answer(busy, busy_extends, busy_heard, CANCELLED);
#endif
        end_wait()
       }
    :: d_step { /* the requests in flight to the old primary are gone */
        !promoted -> promoted = 1;
        life = (standby_left > GUARD - 1 -> standby_left - (GUARD - 1) : 0);
        claim_survived(standby_owner, life, standby_lag);
        life = 0;
        owner = standby_owner;
        left = standby_left;
        standby_owner = NOBODY;
        standby_left = 0;
        standby_lag = 0;
        end_wait();
        for (j : 0 .. N - 1) {
            flight[j] = 0;
            stale[j] = 0;
            rel[j] = 0
        };
        skip
       }
    od
}

#else

/* A reader saw a dead row and has it removed later, unless it has changed (is_locked, sg_background_cleanup). */
active proctype Cleanup()
{
    do
    :: d_step { seen_owner == NOBODY && owner != NOBODY && !LIVE -> seen_owner = owner }
    :: d_step {
        seen_owner != NOBODY && STORE_FREE ->
        if
#ifdef BROKEN_CLEANUP_BY_KEY
        :: owner != NOBODY ->
            printf("cleanup removes %d\n", owner);
            if
            :: owner == seen_owner -> note_ended(owner)
            :: else
            fi;
            remove()
#else
        :: owner == seen_owner && left == 0 -> note_ended(owner); remove()
#endif
        :: else
        fi;
        seen_owner = NOBODY
       }
    od
}

#endif

init
{
    atomic { start_all() }
}
