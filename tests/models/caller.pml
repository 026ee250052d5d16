/*
 * A caller of a store that is asked with messages (Redis, PostgreSQL).
 *
 * A request that was sent may be carried out at any later moment, even after its caller has given it up: a server that
 * was stopped reads its sockets when it continues. Only the reply to the latest sending is received.
 *
 * The code: sg_acquire_once in src/core/operations.c, task_run_step, background_requeue_task and task_is_over in
 * src/core/background.c, acquire_hand_out in src/core/lock_acquire.c, renewer_apply_result in src/core/heartbeat.c,
 * sg_redis_request_run in src/backends/redis/request.c, sg_pg_request_run in src/backends/postgres/request.c.
 */
#ifndef SENDS
#define SENDS 2
#endif

mtype { NONE, GRANTED, LOCKED, FOUND, CANCELLED };

#define OLDEST (TTL + 2 * TOL + 1)

byte age[N];          /* since the acquire was first sent */
bit sending[N];       /* it is requested, and not given up */
#ifdef BROKEN_UNDO_COUNTED_FROM_THE_SENDING
bit too_late[N];      /* task_is_over: the undo ends without a step */
#endif
bit confirming[N];    /* the request in flight writes a grant again that was found */
bit flight[N];        /* the latest sending is in flight */
byte stale[N];        /* earlier sendings, or one that was given up */
mtype reply[N] = NONE;
bit rel[N];           /* a release has been sent */
byte ext[N];          /* 1: an extend is in flight; 2: its caller no longer waits for it */
byte ext_age[N];      /* since it was first sent */
mtype ext_reply[N] = NONE;

inline caller_tick()
{
    for (j : 0 .. N - 1) {
        if
        :: sending[j] -> GROW(age[j], OLDEST)
        :: else
        fi;
        if
        :: ext[j] == 1 -> GROW(ext_age[j], TTL)
        :: else
        fi
    }
}

inline abandon(i)
{
    stale[i] = stale[i] + flight[i];
    flight[i] = 0;
    confirming[i] = 0;
    reply[i] = NONE;
    stop_hearing(i)
}

/* For as long as an acquire that was carried out before it was given up can live. */
inline begin_undo(i)
{
    sending[i] = 0;
    undoing[i] = 1;
    undo[i] = TTL + TOL;
#ifdef BROKEN_UNDO_COUNTED_FROM_THE_SENDING
    undo[i] = (age[i] < TTL + TOL -> TTL + TOL - age[i] : 0);
    too_late[i] = age[i] == OLDEST;
#endif
    age[i] = 0
}

inline end_undo(i)
{
    printf("the undo of %d has ended\n", i);
    assert(!STORED_LIVE(i)); /* no caller holds it, and every caller waits for it */
    undoing[i] = 0;
    undone[i] = 1
}

proctype Caller(byte i)
{
    byte sends;
    bit final;

start:
    atomic {
        printf("caller %d sends\n", i);
        sending[i] = 1;
        flight[i] = 1;
        sends = 1
    }

    do
    :: atomic { /* the reply has arrived; with replicas to wait for, they have the grant */
        reply[i] == GRANTED && DURABLE(i, sends) ->
        reply[i] = NONE;
        confirming[i] = 0;
#ifdef BROKEN_LEASE_FROM_REPLY
        claim_holds(i, TTL);
        told_lag = 0;
#else
        if
        :: age[i] >= TTL -> begin_undo(i); goto undo_it /* the grant arrived after its lease had expired */
        :: else -> claim_holds(i, TTL - age[i]); told_lag = 0
        fi;
#endif
        age[i] = 0;
        sending[i] = 0;
        break
       }
    :: atomic {
        reply[i] == LOCKED ->
        reply[i] = NONE;
        if
        :: sends > 1 -> begin_undo(i); goto undo_it /* an earlier sending may still be carried out */
        :: stale[i] == 0 -> age[i] = 0; sending[i] = 0; goto over /* or it is known that none can */
        fi
       }
    :: atomic { /* PostgreSQL: our own grant, which is written again before it is reported */
        reply[i] == FOUND -> reply[i] = NONE;
        confirming[i] = 1;
        flight[i] = 1
       }
    :: atomic { reply[i] == CANCELLED -> reply[i] = NONE; confirming[i] = 0; begin_undo(i); goto undo_it }
    :: atomic { /* the connection broke */
        sends < SENDS ->
        printf("caller %d sends again\n", i);
        sends++;
        abandon(i);
        flight[i] = 1
       }
    :: atomic { /* deadline, abort, or broken once too often */
        printf("caller %d gives up\n", i);
        abandon(i);
        begin_undo(i);
        goto undo_it
       }
    od;

    /* The caller holds the lock, or held it: a loss changes nothing but what it believes. */
    do
#ifndef NO_RENEWALS
    :: atomic {
        ext[i] == 0 && lease[i] > 0 ->
        printf("caller %d sends an extend\n", i);
        ext[i] = 1
       }
    :: atomic {
        ext_reply[i] == GRANTED && EXTEND_DURABLE(i) ->
        ext_reply[i] = NONE;
        if
        :: lease[i] > 0 && ext_age[i] < TTL -> claim_holds(i, TTL - ext_age[i])
        :: else /* a loss is final */
        fi;
        ext_age[i] = 0;
        if
        :: ext[i] = 0
        :: ext[i] = 2 /* it was sent twice */
        fi
       }
    :: atomic { ext_reply[i] == LOCKED -> ext_reply[i] = NONE; ext[i] = 0; ext_age[i] = 0; lease[i] = 0 }
    :: atomic { /* a failure, or no confirmation in time: the lease stays as it was */
        ext_reply[i] == CANCELLED || (ext_reply[i] == GRANTED && !EXTEND_DURABLE(i)) ->
        ext_reply[i] = NONE;
        ext[i] = 0;
        ext_age[i] = 0
       }
#endif
    :: atomic {
        printf("caller %d sends a release\n", i);
        lease[i] = 0;
        rel[i] = 1;
        if
        :: ext[i] == 1 -> ext[i] = 2; ext_age[i] = 0; ext_reply[i] = NONE; stop_hearing(i)
        :: else
        fi;
        goto over
       }
    od;

undo_it:
    do
    :: atomic { /* a step; its reply may be lost, but not the last one's */
        STORE_FREE ->
#ifdef BROKEN_UNDO_COUNTED_FROM_THE_SENDING
        if
        :: too_late[i] -> too_late[i] = 0; end_undo(i); break
        :: else
        fi;
#endif
        store_undo(i, final);
        if
        :: final || undo[i] == 0 -> final = 0; end_undo(i); break
        :: undo[i] > 0 -> final = 0
        fi
       }
    od;

over:
    atomic { /* nothing is left of this id: the caller may start again */
        stale[i] == 0 && !rel[i] && ext[i] == 0 && !STORED(i) ->
        sends = 0;
        undone[i] = 0;
        undo[i] = 0;
        forget(i);
        goto start
    }
}

/* The store gets the requests of an id, each at any moment. It may get a release or extend twice. */
proctype Requests(byte i)
{
    do
    :: atomic { STORE_FREE && flight[i] -> flight[i] = 0; store_acquire(i, 1) }
    :: atomic { STORE_FREE && stale[i] > 0 -> stale[i]--; store_acquire(i, 0) }
    :: atomic {
        STORE_FREE && rel[i] -> store_release(i);
        if
        :: stale[i] == 0 && ext[i] == 0 -> rel[i] = 0
        :: stale[i] > 0 || ext[i] > 0
        fi
       }
#ifndef NO_RENEWALS
    :: atomic { STORE_FREE && ext[i] == 1 && ext_reply[i] == NONE -> store_extend(i) }
    :: atomic {
        STORE_FREE && ext[i] == 2 -> store_extend(i);
        if
        :: ext[i] = 0
        :: skip
        fi
       }
#endif
    od
}

inline start_all()
{
    byte k;
    for (k : 0 .. N - 1) {
        run Caller(k);
        run Requests(k)
    }
}
