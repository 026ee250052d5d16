/*
 * Redis: each operation is one script, which runs alone and reads the server's clock (src/backends/redis/scripts/).
 *
 *     store_acquire   acquire.lua, asked by sg_redis_acquire in src/backends/redis/mutate.c
 *     store_release   release.lua, sg_redis_release
 *     store_extend    extend.lua, sg_redis_extend and sg_redis_extend_many
 *     store_undo      undo.lua, sg_redis_undo (a tombstone under the index name of the id)
 *     DURABLE         confirm.c: WAIT follows an acquire or extend that has written, on the same connection
 *
 * The server drops a lock's key when TTL + tolerance have passed since it was last written. Persistence is at every write
 * (guarantees, note 1), so a restart changes nothing and is left out; and so is cleanup.lua, for which nothing remains.
 *
 * -DREPLICA  wait_replicas=1 with one replica, which is promoted at some moment. The replica has a prefix of what the
 *            primary wrote; since confirmations may be seen late, copying all of it at any moment is the same. The claim
 *            is about grants and extends: both are waited for.
 * -DASYNC    with REPLICA: wait_replicas=0. Nothing is promised then.
 */
#include "key.pml"

/* left is expiry + tolerance - now. */
#if defined(BROKEN_NO_TOLERANCE)
#define LIVE (left > TOL)
#elif defined(BROKEN_LIVENESS_SIGN)
#define LIVE (left > 2 * TOL)
#else
#define LIVE (left > 0)
#endif
#define STORE_FREE true
#ifdef REPLICA
#define STORED(i) (owner == i || tombstone[i] > 0 || replica_owner == i)
#else
#define STORED(i) (owner == i || tombstone[i] > 0)
#endif
#define STORED_LIVE(i) (owner == i && LIVE)

byte owner = NOBODY; /* the owner of the lock's key */
byte left;
byte tombstone[N];   /* the rest of its TTL */
#ifdef REPLICA
byte replica_owner = NOBODY;
byte replica_left;
byte replica_lag;    /* grants that the replica has not received */
bit promoted;
bit covered[N];      /* the replica has the last write of this id's connection */
#endif

#if defined(REPLICA) && !defined(ASYNC)
#ifdef BROKEN_WAIT_SKIPPED_ON_RESEND
#define DURABLE(i, sends) (covered[i] || sends > 1)
#else
#define DURABLE(i, sends) covered[i]
#endif
#ifdef BROKEN_EXTEND_WITHOUT_WAIT
#define EXTEND_DURABLE(i) true
#else
#define EXTEND_DURABLE(i) covered[i]
#endif
#else
#define DURABLE(i, sends) true
#define EXTEND_DURABLE(i) true
#endif

inline wrote(i)
{
#ifdef REPLICA
    covered[i] = promoted
#else
    skip
#endif
}

#ifdef BROKEN_COUNTER_APART
bit outdated[N]; /* the counter was read in a step of its own, and has moved since */
#define AHEAD(i) !outdated[i]
#else
#define AHEAD(i) true /* INCR in the same script */
#endif

inline store_acquire(i, heard)
{
    if
    :: owner != NOBODY && LIVE && owner != i -> reply[i] = (heard -> LOCKED : reply[i])
    :: owner == i && LIVE -> /* sent again */
#ifndef BROKEN_RESEND_WITHOUT_WRITE
        wrote(i);
#elif defined(REPLICA)
        covered[i] = 1; /* a connection that wrote nothing gets "all" at once */
#endif
        reply[i] = (heard -> GRANTED : reply[i])
    :: !(owner != NOBODY && LIVE) && tombstone[i] > 0 -> skip /* SPENT: a caller that undoes no longer acquires */
    :: else ->
        claim_granted(i, AHEAD(i));
#ifdef BROKEN_COUNTER_APART
        for (j : 0 .. N - 1) {
            outdated[j] = flight[j] || stale[j] > 0
        }
#endif
#ifdef REPLICA
        if
        :: !promoted -> GROW(replica_lag, LAGS)
        :: else
        fi;
#endif
        owner = i;
        left = TTL + TOL;
        wrote(i);
        reply[i] = (heard -> GRANTED : reply[i])
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
    :: owner == i && LIVE -> note_ended(i); remove()
#endif
    :: else
    fi
}

inline store_extend(i)
{
    if
    :: owner == i && LIVE ->
        claim_extended(i);
        left = TTL + TOL;
        wrote(i);
        ext_reply[i] = (ext[i] == 1 -> GRANTED : NONE)
    :: else ->
        ext_reply[i] = (ext[i] == 1 -> LOCKED : NONE) /* absent: the lock is lost */
    fi
}

/* The tombstone makes it final. */
inline store_undo(i, is_final)
{
    if
    :: owner == i -> note_ended(i); remove()
    :: else
    fi;
#ifndef BROKEN_UNDO_WITHOUT_TOMBSTONE
    tombstone[i] = undo[i] + TOL;
#endif
    is_final = 1
}

inline stop_hearing(i)
{
    skip
}

inline forget(i)
{
#ifdef REPLICA
    covered[i] = 0;
#endif
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
        for (j : 0 .. N - 1) {
            AGE(tombstone[j])
        }
        if
        :: left == 0 -> owner = NOBODY
        :: else
        fi;
#ifdef REPLICA
        AGE(replica_left);
        if
        :: replica_left == 0 -> replica_owner = NOBODY
        :: else
        fi
#endif
       }
    od
}

#ifdef REPLICA
active proctype Replication()
{
    do
    :: d_step {
        !promoted ->
        printf("the replica has all\n");
        replica_owner = owner;
        replica_left = left;
        replica_lag = 0;
        for (j : 0 .. N - 1) {
            covered[j] = 1
        };
        skip
       }
    :: d_step { /* the requests in flight to the old primary are gone */
        !promoted -> promoted = 1;
        claim_survived(replica_owner, replica_left, replica_lag);
        owner = replica_owner;
        left = replica_left;
        replica_owner = NOBODY;
        replica_left = 0;
        replica_lag = 0;
        for (j : 0 .. N - 1) {
            flight[j] = 0;
            stale[j] = 0;
            rel[j] = 0;
            tombstone[j] = 0
        };
        skip
       }
    od
}
#endif

init
{
    atomic { start_all() }
}
