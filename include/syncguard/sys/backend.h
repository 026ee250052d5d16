/*
 * Writing a backend.
 *
 * A backend is a struct whose first member is a syncguard_backend, with ops pointing at a constant
 * table. The core checks all input, generates lock ids, sets deadlines, undoes acquires with an
 * unknown outcome, renews locks, and makes waiters wait and wakes them; the operations below trust
 * their input. Every operation may be called from many threads at once and blocks only within
 * `limits`.
 *
 * Common to all operations:
 *   - Every wait, including connecting, ends by limits, with Aborted or NetworkTimeout.
 *   - Failures are classified by the store's codes, never by its texts, and fill err.
 *   - The store serializes the changes of one key. The clock (see time_authority) is read inside
 *     the serialized step, after any wait. A lock is live by syncguard_is_live (or by the same rule
 *     with the tolerance as an argument).
 *   - A record found through a lock id must itself contain that id, else the result is ABSENT.
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

typedef struct syncguard_backend_ops { /* the operations of a backend */
    /* InvalidArgument for a key that this store cannot store; no I/O. Called for every key before
     * anything else, even before abort object and deadline are checked. NULL: every key is fine. */
    syncguard_status (*check_key)(const syncguard_backend *backend, const char *key,
                                  size_t key_length, syncguard_error *err);
    /* OK, LOCKED or a failure. If op->lock_id itself already holds the key, this is the grant (the
     * reply was lost and the request sent again). The counter is incremented only by a grant, in
     * the same atomic step; if syncguard_fence_next refuses the next number, nothing is written. */
    syncguard_status (*acquire)(syncguard_backend *backend, syncguard_acquire_op *op,
                                syncguard_error *err);
    /* OK or ABSENT. If the request had to be sent again, ABSENT is reported as OK. */
    syncguard_status (*release)(syncguard_backend *backend, syncguard_release_op *op,
                                syncguard_error *err);
    /* OK or ABSENT. */
    syncguard_status (*extend)(syncguard_backend *backend, syncguard_extend_op *op,
                               syncguard_error *err);
    /*
     * Renews at most SYNCGUARD_BATCH_MAX locks in as few round trips as the store allows and sets
     * the status of each item. If it returns a failure, the core repeats the whole batch. If it
     * returns OK, the core repeats the items with a failed status, alone or in a batch: so set the
     * status to a failure instead of waiting for a key that others have locked. NULL: the core
     * calls extend.
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
    /* Calls fn for each live lock until fn returns false. OK or a failure. While fn runs, nothing
     * in the store may be locked. The deadline of limits is that of one page, without fn's time. */
    syncguard_status (*list)(syncguard_backend *backend, const syncguard_limits *limits,
                             syncguard_record_fn fn, void *context, syncguard_error *err);
    /* The same for records that have been expired for more than SYNCGUARD_CLEANUP_GUARD_MS; fn may
     * call cleanup. NULL: the store keeps no expired records. */
    syncguard_status (*list_expired)(syncguard_backend *backend, const syncguard_limits *limits,
                                     syncguard_record_fn fn, void *context, syncguard_error *err);
    /* Undoes an acquire with an unknown outcome. OK: it can no longer take effect. ABSENT: its lock
     * is not there now, but may still appear: the core calls again until until_ns (a tombstone must
     * last that long). */
    syncguard_status (*undo)(syncguard_backend *backend, const char *key, size_t key_length,
                             const char *lock_id, int64_t until_ns, const syncguard_limits *limits,
                             syncguard_error *err);
    /* Undoes many acquires, by the rules of extend_many. NULL: the core calls undo for each. */
    syncguard_status (*undo_many)(syncguard_backend *backend, syncguard_undo_op *items,
                                  size_t count, const syncguard_limits *limits,
                                  syncguard_error *err);
    /* Removes the lock record (never a counter) if it still has the given id and expiry and has
     * been expired for more than SYNCGUARD_CLEANUP_GUARD_MS, else ABSENT. NULL: none to remove. */
    syncguard_status (*cleanup)(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                syncguard_error *err);
    /* The last waiter for key is gone: end the notifications that watch asked for. Called with the
     * wait queue locked: must neither wait for the network nor call the core. NULL: there is
     * nothing to end. */
    void (*unwatch)(syncguard_backend *backend, const char *key, size_t key_length);
    /* Reports settings of the store that would break a guarantee; changes nothing. May be NULL. */
    syncguard_status (*diagnose)(syncguard_backend *backend, const syncguard_limits *limits,
                                 syncguard_finding_fn fn, void *context, syncguard_error *err);
    /* Called at the first use in a forked child, before any other operation, by one thread: close
     * the parent's connections without sending anything, and prepare for new ones. If this fails,
     * the call that needed the handle fails. */
    syncguard_status (*after_fork)(syncguard_backend *backend, syncguard_error *err);
    /* Frees everything, calls syncguard_backend_fini, frees the struct. No other call is running.
     * May be called in a forked child: then it must not send anything to the store. */
    void (*destroy)(syncguard_backend *backend);
    /* Performs at most SYNCGUARD_MANY_MAX acquires and releases of different locks, with the
     * results of acquire and release, but in as few round trips as the store allows, and sets the
     * status and error of each. All waits end by limits. NULL: the core performs them one by one.
     */
    void (*do_many)(syncguard_backend *backend, syncguard_many_op *items, size_t count,
                    const syncguard_limits *limits);
    /* True if an idle connection has ended since the last call (see syncguard_fd_ended); never
     * blocks and sends nothing. Called once a second while locks are renewed: if it returns true,
     * the core renews them at once, because the server may be another one. NULL: there is nothing
     * to check. */
    bool (*connection_ended)(syncguard_backend *backend);
} syncguard_backend_ops;

/* First member of every backend. */
struct syncguard_backend {
    const syncguard_backend_ops *ops;
    syncguard_capabilities capabilities;
    struct syncguard_core *core; /* hidden: options, waiters, heartbeat, background work */
};

/*
 * Initializes the base: copies options (already read by syncguard_options_read) and
 * prepares waiting and background work; starts no thread. After a failure nothing has
 * to be freed. The constructor calls it before anything that may call the core.
 */
SYNCGUARD_API syncguard_status syncguard_backend_init(syncguard_backend *backend,
                                                      const syncguard_backend_ops *ops,
                                                      const syncguard_capabilities *capabilities,
                                                      const syncguard_options *options,
                                                      syncguard_error *err);
/* The last step of destroy, and of a constructor that fails after syncguard_backend_init. */
SYNCGUARD_API void syncguard_backend_fini(syncguard_backend *backend);

/* The options given at open; strings belong to the backend. */
SYNCGUARD_API const syncguard_options *syncguard_backend_options(const syncguard_backend *backend);

#ifdef __cplusplus
}
#endif

#endif
