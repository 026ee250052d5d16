/*
 * A Cluster of three primaries with a replica each, and the moving of the hash slot of the locks
 * from one primary to the next.
 *
 * The servers in the environment are the primaries 0 to 2 and the replicas 3 to 5, of which
 * replica i + 3 follows primary i at first.
 */
#ifndef TESTS_REDIS_CLUSTER_H
#define TESTS_REDIS_CLUSTER_H

#include "support.h"

enum { PRIMARIES = 3, NODES = 6 };

extern int witness; /* a primary that is up */

int our_hash_slot(void);
/* Which server has the hash slot, and its id. */
int owner_of(int hash_slot, char id[64]);

typedef struct move {
    int hash_slot, from, to;
    char to_id[64];
} move;

void begin_move(move *m);
/* Moves up to `count` names with one command. False: there were none. */
bool move_some(const move *m, int count);
/* Moves names of a lock to the new node. Bits of `mask`: 1 the lock, 2 the index, 4 the counter. */
void spread(const move *m, const char *key, const char *lock_id, int mask);
/* Moves the names that are left, and tells all nodes. */
void end_move(const move *m);
/* Checks that only counters are left in the hash slot. */
void only_counters_are_left(const move *m);

#endif
