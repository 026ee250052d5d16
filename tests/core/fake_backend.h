/*
 * A store that does what the test says: each operation asks a script for its answer and counts its
 * calls. For faults that no real store shows on demand.
 */
#ifndef FAKE_BACKEND_H
#define FAKE_BACKEND_H

#include <stdatomic.h>

#include "core/core.h"
#include "core/lock_state.h"
#include "core/operations.h"

typedef struct fake_backend fake_backend;
typedef syncguard_status (*fake_extend_fn)(fake_backend *p, syncguard_extend_op *op,
                                           syncguard_error *err);

struct fake_backend {
    syncguard_backend base;
    /* The scripted answers; NULL: OK with a rising fence. */
    syncguard_status (*on_acquire)(fake_backend *p, syncguard_acquire_op *op, syncguard_error *err);
    syncguard_status (*on_release)(fake_backend *p, syncguard_release_op *op, syncguard_error *err);
    _Atomic(fake_extend_fn) on_extend; /* changed while renewals run */
    syncguard_status (*on_undo)(fake_backend *p, int call);
    atomic_int calls; /* of the operations that ask a store, all together */
    atomic_int acquires;
    atomic_int watched; /* acquires with the watch flag */
    atomic_int releases;
    atomic_int extends; /* single ones */
    atomic_int batches;
    atomic_int undos;
    atomic_int undo_batches; /* of a batching fake backend */
    atomic_int undo_largest; /* items in one of them */
    atomic_int many_batches; /* of a fake backend with do_many */
    atomic_int many_largest;
    atomic_int unwatches;
    atomic_int checks;      /* of a connected fake backend */
    atomic_bool ended;      /* what the next check finds */
    atomic_bool stuck;      /* undo_many does not return */
    bool batch_answers;     /* extend_many is OK even if it evaluated nothing: the keys are busy */
    atomic_bool *destroyed; /* set by destroy, outlives the backend */
    atomic_llong fence;
};

/* options may be NULL. */
fake_backend *fake_backend_open(const syncguard_options *options);
/* As fake_backend_open, with undo_many. It holds its first batch until `stuck` is cleared, leaves
 * every tenth item of a batch undecided, and fails as a whole the second time. */
fake_backend *fake_backend_open_batching(const syncguard_options *options);
/* As fake_backend_open, for a store that does not report releases. */
fake_backend *fake_backend_open_silent(const syncguard_options *options);
/* As fake_backend_open, but reporting is turned off, as no_tracking and listen=0 do. */
fake_backend *fake_backend_open_polled(const syncguard_options *options);

/* As fake_backend_open, with do_many: it calls the single operations, within the limits of the
 * batch. */
fake_backend *fake_backend_open_many(const syncguard_options *options);
/* As fake_backend_open, with connections that can end. */
fake_backend *fake_backend_open_connected(const syncguard_options *options);

/* Scripted answers. The outcome of the acquire is unknown; the store does not answer; the first two
 * undos find nothing. */
syncguard_status fake_acquire_locked(fake_backend *p, syncguard_acquire_op *op,
                                     syncguard_error *err);
syncguard_status fake_acquire_unknown(fake_backend *p, syncguard_acquire_op *op,
                                      syncguard_error *err);
syncguard_status fake_acquire_hangs(fake_backend *p, syncguard_acquire_op *op,
                                    syncguard_error *err);
syncguard_status fake_release_hangs(fake_backend *p, syncguard_release_op *op,
                                    syncguard_error *err);
syncguard_status fake_extend_absent(fake_backend *p, syncguard_extend_op *op, syncguard_error *err);
syncguard_status fake_undo_late(fake_backend *p, int call);

/* Waits up to thirty seconds until *counter reaches target; false if it does not. */
bool wait_for_count(atomic_int *counter, int target);

#endif
