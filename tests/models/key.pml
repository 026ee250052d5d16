/*
 * Shared by the models: time, what callers believe, and the claims.
 *
 * A model is one key and N callers. A caller stands for one acquire with all that follows it (renewal, release or
 * undo), under a lock id of its own; when nothing of it is left anywhere, the caller starts again with a fresh id. So
 * histories have no end and no bound but the number of ids that are in use at the same time.
 *
 * Time has no beginning either: every time is kept as the rest that is left of it, or as its age, in ticks. A tick is
 * one tolerance (SYNCGUARD_TIME_TOLERANCE_MS) unless a model says otherwise; it may come at any moment. Fences are kept
 * as distances from the counter.
 *
 * The claims never use the variables of the store's decisions: given, lease and told_lag are kept for the claims alone.
 */
#ifndef N
#define N 2
#endif
#ifndef TTL
#define TTL 2
#endif
#ifndef TOL
#define TOL 1
#endif
#ifndef MARGIN
#define MARGIN TOL /* a grant counts as live for this long after its expiry */
#endif
#define NOBODY 255
#define LAGS 3     /* larger distances are not distinguished */

byte given[N];     /* the store has granted it: the rest of its life; 0: not granted, or taken back */
byte lease[N];     /* the rest of it as its caller counts it; 0: the caller does not hold the lock */
byte undo[N];      /* the rest of the time in which an undo must take effect */
bit undoing[N];
bit undone[N];     /* the undo has ended */
byte told_lag;     /* grants since the latest that was reported */

byte j; /* of loops inside atomic steps */

#define AGE(x) x = (x > 0 -> x - 1 : 0)
#define GROW(x, limit) x = (x < limit -> x + 1 : limit)

/* Never two live grants; fences rise: this one is `ahead` of the greatest before. */
inline claim_granted(i, ahead)
{
    printf("store grants %d\n", i);
    for (j : 0 .. N - 1) {
        assert(j == i || given[j] == 0);  /* two live grants */
    }
    assert(ahead);                        /* a fence repeats */
    assert(!undone[i] || undo[i] == 0);   /* an undone grant comes back */
    given[i] = TTL + MARGIN;
    GROW(told_lag, LAGS)
}

/* Only a live lock is extended. */
inline claim_extended(i)
{
    printf("store extends %d\n", i);
    assert(given[i] > 0);                 /* an expired lock comes back */
    given[i] = TTL + MARGIN
}

/* Taken back by or for its own caller. */
inline note_ended(i)
{
    printf("store removes %d\n", i);
    given[i] = 0
}

/* At most one caller believes that it holds the lock. */
inline claim_holds(i, left)
{
    printf("caller %d holds for %d\n", i, left);
    for (j : 0 .. N - 1) {
        assert(j == i || lease[j] == 0);  /* two holders */
    }
    lease[i] = left
}

/* Another store takes over, which has the record of `kept` (life left: kept_left, tolerance included) and whose counter
 * is `lag` grants behind. */
inline claim_survived(kept, kept_left, lag)
{
    printf("failover\n");
    for (j : 0 .. N - 1) {
        assert(lease[j] == 0 || (kept == j && kept_left >= lease[j] + TOL)); /* a grant that was reported is lost */
        given[j] = (kept == j -> kept_left : 0)
    }
    assert(lag <= told_lag)               /* fences step back */
}

/* The last step of an undo falls on its end, and the store answers it. */
#define UNDO_DUE(i) (undoing[i] && undo[i] == 0)
#if N == 2
#define MAY_TICK (!UNDO_DUE(0) && !UNDO_DUE(1))
#else
#define MAY_TICK (!UNDO_DUE(0) && !UNDO_DUE(1) && !UNDO_DUE(2))
#endif

inline tick()
{
    printf("tick\n");
    for (j : 0 .. N - 1) {
        AGE(given[j]);
        AGE(lease[j]);
        AGE(undo[j])
    }
}
