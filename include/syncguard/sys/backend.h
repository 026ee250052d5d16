/*
 * Writing a backend.
 *
 * A backend is a struct whose first member is a syncguard_backend and whose ops point at a constant
 * table. The core checks all input, draws lock ids, sets deadlines, undoes what is unknown, renews,
 * waits and wakes; the table below trusts what it gets. Every slot may be called from many threads
 * at once and blocks only within `limits`.
 *
 * Common to all slots:
 *   - limits must be honoured in every wait, connecting included: Aborted or NetworkTimeout then.
 *   - Failures are mapped by the store's codes, never by its texts, and fill err.
 *   - Decisions about one key are serialised by the store; time is read by the store's authority
 *     after whatever serialises them is held; liveness is syncguard_is_live (or the same rule with
 *     the tolerance as an argument).
 *   - The record found through a lock id must name that id, else it is ABSENT.
 */
#ifndef SYNCGUARD_SYS_BACKEND_H
#define SYNCGUARD_SYS_BACKEND_H

#include "../backend.h"
#include "../telemetry.h"
#include "alloc.h"
#include "backoff.h"
#include "cancel.h"
#include "descriptor.h"
#include "fail.h"
#include "findings.h"
#include "module.h"
#include "names.h"
#include "operations.h"
#include "random.h"
#include "report.h"
#include "wait.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct syncguard_backend_ops { /* the slots of a backend */
    /* InvalidArgument for a key that this store cannot have; no I/O. Called with every key before
     * anything else, abort object and deadline included. May be NULL: it can have them all. */
    syncguard_status (*check_key)(const syncguard_backend *backend, const char *key,
                                  size_t key_length, syncguard_error *err);
    /* OK, LOCKED or a failure. Finding the key held by op->lock_id itself is the grant (its reply
     * was lost and the request sent again). The counter moves only with a grant, in one step with
     * it; syncguard_fence_next decides the limit, and nothing is written beyond it. */
    syncguard_status (*acquire)(syncguard_backend *backend, syncguard_acquire_op *op,
                                syncguard_error *err);
    /* OK or ABSENT. ABSENT to a request that had to be sent again is OK. */
    syncguard_status (*release)(syncguard_backend *backend, syncguard_release_op *op,
                                syncguard_error *err);
    /* OK or ABSENT. */
    syncguard_status (*extend)(syncguard_backend *backend, syncguard_extend_op *op,
                               syncguard_error *err);
    /*
     * Renews at most SYNCGUARD_BATCH_MAX locks in as few round trips as the store allows and sets
     * each item's status. A failure: no item was decided, all are tried again together. Items that
     * fail in an answer that is OK are tried singly: what cannot be locked at once is left so, and
     * a stuck key delays nobody. May be NULL: the core calls extend for each.
     */
    syncguard_status (*extend_many)(syncguard_backend *backend, syncguard_extend_op *items,
                                    size_t count, const syncguard_limits *limits,
                                    syncguard_error *err);
    /* OK. Reads only. */
    syncguard_status (*is_locked)(syncguard_backend *backend, syncguard_is_locked_op *op,
                                  syncguard_error *err);
    /* OK or ABSENT. Reads only. */
    syncguard_status (*lookup)(syncguard_backend *backend, syncguard_lookup_op *op,
                               syncguard_error *err);
    /* Calls fn for live locks until it returns false. OK or a failure. No store lock may be held
     * while fn runs, nor does its time count: the time of limits is that of one page. */
    syncguard_status (*list)(syncguard_backend *backend, const syncguard_limits *limits,
                             syncguard_record_fn fn, void *context, syncguard_error *err);
    /* The same for records that have been expired for more than SYNCGUARD_CLEANUP_GUARD_MS; fn may
     * call cleanup. May be NULL: the store keeps none. */
    syncguard_status (*list_expired)(syncguard_backend *backend, const syncguard_limits *limits,
                                     syncguard_record_fn fn, void *context, syncguard_error *err);
    /* Takes back an acquire whose outcome is unknown. OK: it can never take effect any more.
     * ABSENT: not there now, ask again later. until_ns: when the core stops asking (a tombstone
     * lasts so long). */
    syncguard_status (*undo)(syncguard_backend *backend, const char *key, size_t key_length,
                             const char *lock_id, int64_t until_ns, const syncguard_limits *limits,
                             syncguard_error *err);
    /* As undo, for many, by the rules of extend_many. May be NULL: the core calls undo for each. */
    syncguard_status (*undo_many)(syncguard_backend *backend, syncguard_undo_op *items,
                                  size_t count, const syncguard_limits *limits,
                                  syncguard_error *err);
    /* Removes the lock record (never a counter) if id and expiry are still those given and it is
     * dead for more than the guard, else ABSENT. May be NULL: nothing to clean. */
    syncguard_status (*cleanup)(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                syncguard_error *err);
    /* The last waiter for key is gone; undo what watch armed. Called with the wait queue locked:
     * must not block on the network nor call back. May be NULL. */
    void (*unwatch)(syncguard_backend *backend, const char *key, size_t key_length);
    /* Reports what would break the promises on this store; changes nothing. May be NULL. */
    syncguard_status (*diagnose)(syncguard_backend *backend, const syncguard_limits *limits,
                                 syncguard_finding_fn fn, void *context, syncguard_error *err);
    /* First use in a forked child, before any other slot, single-threaded: drop the parent's
     * connections without talking to them, start with new ones. Failure: the operation fails. */
    syncguard_status (*after_fork)(syncguard_backend *backend, syncguard_error *err);
    /* Frees everything, calls syncguard_backend_fini, frees the struct. No call is running. May be
     * called in a forked child: then nothing is said to the store. */
    void (*destroy)(syncguard_backend *backend);
    /* Does acquires and releases of different locks, at most SYNCGUARD_MANY_MAX, as acquire and
     * release would, but in as few round trips as the store allows, and sets the status and error
     * of each. All waits end with limits. May be NULL: the core does them one by one. */
    void (*do_many)(syncguard_backend *backend, syncguard_many_op *items, size_t count,
                    const syncguard_limits *limits);
} syncguard_backend_ops;

/* First member of every backend. */
struct syncguard_backend {
    const syncguard_backend_ops *ops;
    syncguard_capabilities capabilities;
    struct syncguard_core *core; /* hidden: options, waiters, heartbeat, background work */
};

/*
 * Prepares the base: copies options (already read by syncguard_options_read),
 * prepares waiting and background work; starts no thread. On failure nothing
 * needs undoing. The constructor calls it before anything that can call back.
 */
SYNCGUARD_API syncguard_status syncguard_backend_init(syncguard_backend *backend,
                                                      const syncguard_backend_ops *ops,
                                                      const syncguard_capabilities *capabilities,
                                                      const syncguard_options *options,
                                                      syncguard_error *err);
/* Last step of destroy; also right after a failed constructor. */
SYNCGUARD_API void syncguard_backend_fini(syncguard_backend *backend);

/* The options given at open; strings belong to the backend. */
SYNCGUARD_API const syncguard_options *syncguard_backend_options(const syncguard_backend *backend);

#ifdef __cplusplus
}
#endif

#endif
