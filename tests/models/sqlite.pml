/*
 * SQLite: a transaction reads, reads the boot clock, and writes; SQLite lets the write through only if nothing was
 * committed since the read (src/backends/sqlite/). There are no messages: a process either commits or does not.
 *
 *     begin acquire    sqlite_acquire_attempt in mutate.c: sg_sqlite_record_find, then the clock
 *     commit           sqlite_lock_grant and sqlite_grant_commit in mutate.c
 *     sync             sg_sqlite_wal_sync in wal.c: a grant is reported when the WAL is on the disk
 *     extend           sg_sqlite_extend_row in mutate.c
 *     release, undo    sqlite_release_attempt in mutate.c
 *     Cleanup          sqlite_cleanup_attempt in mutate.c
 *     LIVE             sqlite_record_read_remaining in record.c, sg_sqlite_boot_read in boot.c
 *
 * Processes may know the kernel's boot id or not (a container runtime that mounts another file over it). Two known ids
 * that differ are two boots. If either is unknown, the clock decides; a row of an earlier boot may then count too long,
 * whatever its expiry says on the new clock. The boot clock is that of the kernel, without the shift of a time namespace.
 *
 * Reboot is a crash of the machine: all processes are gone, and every commit that was not synced may be.
 */
#include "key.pml"

/* left is expiry + tolerance + guard of cleanup - now. */
#define GUARD 2
#if defined(BROKEN_NO_TOLERANCE)
#define AHEAD(i) TOL
#elif defined(BROKEN_LIVENESS_SIGN)
#define AHEAD(i) (2 * TOL)
#elif defined(BROKEN_SHIFTED_CLOCK)
#define AHEAD(i) (2 * knows[i]) /* processes that know the id are in a time namespace whose clock is ahead */
#else
#define AHEAD(i) 0
#endif
#define FULL (TTL + TOL + GUARD - 1)
#define LIFE(x) (x > GUARD - 1 -> x - (GUARD - 1) : 0) /* tolerance included */
#ifdef BROKEN_FOREIGN_ID_IS_ANOTHER_BOOT
#define OTHER_BOOT(i) (of_earlier_boot || row_knows != knows[i])
#else
#define OTHER_BOOT(i) (of_earlier_boot && row_knows && knows[i])
#endif
#define LIVE(i) (owner != NOBODY && !OTHER_BOOT(i) && LIFE(left) > AHEAD(i))

byte owner = NOBODY;
byte left;
bit row_knows;        /* the row names the kernel's boot id */
bit of_earlier_boot;
byte unsynced;        /* grants since the last sync */
bit knows[N];         /* this process knows the kernel's boot id */
bit killed[N];        /* together with the machine */
byte open[N];         /* a transaction that has read; 1: acquire, 2: extend */
bit as_read[N];       /* nothing was committed since */
byte rest[N];         /* the TTL that is left, from the clock that it read */
byte row_left[N];     /* the expiry that it will write */
byte seen_owner = NOBODY;

inline committed()
{
    for (j : 0 .. N - 1) {
        as_read[j] = 0
    }
}

inline begin(i, what)
{
    open[i] = what;
    as_read[i] = 1;
    rest[i] = TTL;
    row_left[i] = FULL
}

inline finish(i)
{
    open[i] = 0;
    as_read[i] = 0;
    rest[i] = 0;
    row_left[i] = 0
}

inline write_row(i)
{
    owner = i;
    left = row_left[i];
    row_knows = knows[i];
    of_earlier_boot = 0;
    committed()
}

inline remove()
{
    owner = NOBODY;
    left = 0;
    row_knows = 0;
    of_earlier_boot = 0;
    committed()
}

proctype Caller(byte i)
{
start:
    atomic {
        owner != i && seen_owner != i && !killed[i] ->
        if
        :: knows[i] = 0
        :: knows[i] = 1
        fi
    }
    do
    :: atomic { killed[i] -> goto gone }
    :: atomic {
        !killed[i] && open[i] == 0 ->
        if
        :: LIVE(i) -> goto over /* locked */
        :: else -> begin(i, 1)
        fi
       }
    :: atomic { !killed[i] && open[i] == 1 && !as_read[i] -> finish(i) } /* busy: read again */
    :: atomic {
        !killed[i] && open[i] == 1 && as_read[i] ->
        claim_granted(i, true);
        given[i] = LIFE(row_left[i]);
        write_row(i);
        GROW(unsynced, LAGS);
        break
       }
    od;

    do
    :: atomic { killed[i] -> goto gone }
    :: atomic {
        !killed[i] ->
#ifndef BROKEN_TOLD_BEFORE_SYNC
        unsynced = 0;
#endif
#ifdef BROKEN_LEASE_FROM_REPLY
        rest[i] = TTL;
#endif
        if
        :: rest[i] > 0 -> claim_holds(i, rest[i]); told_lag = 0; finish(i); break
        :: else -> goto take_back
        fi
       }
    :: atomic { !killed[i] -> printf("the sync of %d fails\n", i); goto take_back }
    od;

    do
    :: atomic { killed[i] -> goto gone }
    :: atomic {
        !killed[i] && open[i] == 0 ->
        if
#ifdef BROKEN_EXTEND_REVIVES
        :: owner == i -> assert(given[i] > 0); begin(i, 2)
#else
        :: owner == i && LIVE(i) -> assert(given[i] > 0); begin(i, 2)
#endif
        :: else -> lease[i] = 0 /* absent: lost */
        fi
       }
    :: atomic { !killed[i] && open[i] == 2 && !as_read[i] -> finish(i) }
    :: atomic {
        !killed[i] && open[i] == 2 && as_read[i] ->
        printf("store extends %d\n", i);
        given[i] = LIFE(row_left[i]);
        write_row(i);
        if
        :: lease[i] > 0 && rest[i] > 0 -> claim_holds(i, rest[i])
        :: else
        fi;
        finish(i)
       }
    :: atomic { /* release, also of a lock that was lost */
        !killed[i] && open[i] == 0 ->
        printf("caller %d releases\n", i);
        lease[i] = 0;
        if
#ifdef BROKEN_RELEASE_WITHOUT_OWNER
        :: owner != NOBODY ->
            if
            :: owner == i -> note_ended(i)
            :: else -> printf("the release of %d removes another's lock\n", i)
            fi;
            remove()
#else
        :: owner == i && LIVE(i) -> note_ended(i); remove()
#endif
        :: else
        fi;
        goto over
       }
    od;

take_back:
    do
    :: atomic { killed[i] -> goto gone }
    :: atomic {
        !killed[i] ->
        finish(i);
        if
        :: owner == i -> note_ended(i); remove()
        :: else
        fi;
        goto over
       }
    od;

gone:
    atomic { killed[i] = 0; finish(i) }

over:
    atomic { /* the process may end without a release; its row then stays */
        owner != i && seen_owner != i -> finish(i); knows[i] = 0; killed[i] = 0;
        goto start
    }
}

active proctype Clock()
{
    do
    :: d_step {
        true -> tick();
        AGE(left);
        for (j : 0 .. N - 1) {
            AGE(rest[j]);
            AGE(row_left[j])
        };
        skip
       }
    od
}

active proctype Reboot()
{
    do
    :: atomic {
        printf("the machine crashes, %d grants are not on the disk\n", unsynced);
        assert(unsynced <= told_lag); /* fences step back */
        unsynced = 0;
        told_lag = 0;
        for (j : 0 .. N - 1) {
            killed[j] = 1;
            lease[j] = 0;
            given[j] = 0;
            as_read[j] = 0
        };
        seen_owner = NOBODY;
        if
        :: remove() /* the grant was not on the disk */
        :: owner != NOBODY -> of_earlier_boot = 1; left = 0
        :: owner != NOBODY -> of_earlier_boot = 1; left = FULL /* on the new clock the same time passes */
        fi
       }
    od
}

/* A reader saw a dead row and has it removed later, unless it has changed. */
active proctype Cleanup()
{
    do
    :: d_step { seen_owner == NOBODY && owner != NOBODY && (of_earlier_boot || LIFE(left) == 0) -> seen_owner = owner }
    :: d_step {
        seen_owner != NOBODY ->
        if
#ifdef BROKEN_CLEANUP_BY_KEY
        :: owner != NOBODY -> printf("cleanup removes %d\n", owner); remove()
#else
        :: owner == seen_owner && (left == 0 || of_earlier_boot) -> remove()
#endif
        :: else
        fi;
        seen_owner = NOBODY
       }
    od
}

init
{
    byte k;
    atomic {
        for (k : 0 .. N - 1) {
            run Caller(k)
        }
    }
}
