/*
 * A store that does what the test says: each slot asks a script what to answer,
 * and counts its calls. For faults that no real store shows on demand.
 */
#ifndef PUPPET_H
#define PUPPET_H

#include <stdatomic.h>

#include "core/core.h"

typedef struct puppet puppet;
typedef syncguard_status (*puppet_extend_fn)(puppet *p, syncguard_extend_op *op,
                                             syncguard_error *err);

struct puppet {
    syncguard_backend base;
    /* What to answer; NULL: OK with a rising fence. */
    syncguard_status (*on_acquire)(puppet *p, syncguard_acquire_op *op, syncguard_error *err);
    syncguard_status (*on_release)(puppet *p, syncguard_release_op *op, syncguard_error *err);
    _Atomic(puppet_extend_fn) on_extend; /* changed while renewals run */
    syncguard_status (*on_undo)(puppet *p, int call);
    atomic_int calls; /* of slots that ask a store, all together */
    atomic_int acquires;
    atomic_int watched; /* acquires with the watch flag */
    atomic_int releases;
    atomic_int extends; /* single ones */
    atomic_int batches;
    atomic_int undos;
    atomic_int undo_batches; /* of a batching puppet */
    atomic_int undo_largest; /* items in one of them */
    atomic_int unwatches;
    atomic_int listens;     /* of a listening puppet: calls of listen */
    atomic_int take_overs;  /* and of take_over */
    atomic_bool deaf;       /* listen is ABSENT */
    syncguard_parker news;  /* unpark it: something happened to "k", for who listens */
    bool batch_answers;     /* extend_many is OK even if it decided nothing: the keys are busy */
    atomic_bool *destroyed; /* set by destroy, outlives the puppet */
    atomic_llong fence;
};

/* options may be NULL. */
puppet *puppet_open(const syncguard_options *options);
/* The same, with undo_many. It holds its first batch until `deaf` is cleared, leaves every tenth
 * item of a batch undecided, and fails as a whole the second time. */
puppet *puppet_open_batching(const syncguard_options *options);
/* As puppet_open, and its waiters can listen. */
puppet *puppet_open_listening(void);

/* Waits up to thirty seconds until *counter reaches target; false if it does not. */
bool puppet_reached(atomic_int *counter, int target);
void puppet_sleep_ms(int ms);

#endif
