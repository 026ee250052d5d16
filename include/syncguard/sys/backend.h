/*
 * Writing a backend.
 *
 * A backend is a struct whose first member is a syncguard_backend and whose ops
 * point at a constant table. The core checks all input, draws lock ids, sets
 * deadlines, undoes what is unknown, renews, waits and wakes; the table below
 * trusts what it gets. Every slot may be called from many threads at once and
 * blocks only within `limits`.
 *
 * Common to all slots:
 *   - limits must be honoured in every wait, connecting included: Aborted or
 *     NetworkTimeout then.
 *   - Failures are mapped by the store's codes, never by its texts, and fill err.
 *   - Decisions about one key are serialised by the store; time is read by the
 *     store's authority after whatever serialises them is held; liveness is
 *     syncguard_is_live (or the same rule with the tolerance as an argument).
 *   - The record found through a lock id must name that id, else it is ABSENT.
 */
#ifndef SYNCGUARD_SYS_BACKEND_H
#define SYNCGUARD_SYS_BACKEND_H

#include "../backend.h"
#include "../diagnostics.h"
#include "../telemetry.h"
#include "alloc.h"
#include "cancel.h"
#include "descriptor.h"
#include "fail.h"
#include "names.h"
#include "wait.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with every incompatible change of this header. */
#define SYNCGUARD_ABI 3

/* A lock as stored. Filled by lookup and list; key in NFC. */
typedef struct syncguard_record {
    char key[SYNCGUARD_KEY_SIZE];
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    char owner[SYNCGUARD_OWNER_SIZE];
    char fence[SYNCGUARD_FENCE_SIZE];
    int64_t expires_at_ms;
    int64_t acquired_at_ms;
} syncguard_record;

/* The usual armed_ms of a store that reports every release of anybody. */
#define SYNCGUARD_ARMED_MS 60000

typedef struct syncguard_acquire_op {
    /* in */
    const char *key; /* NFC, NUL-terminated */
    size_t key_length;
    const char *lock_id;
    int64_t ttl_ms;
    const char *owner; /* "" for none */
    /*
     * The caller will wait if the answer is LOCKED: arrange that any later
     * release of the key, by anybody, leads to syncguard_backend_stirred. It
     * must be armed before the decision is made, so that none is missed. May be
     * ignored by stores that cannot (waiters then poll).
     */
    bool watch;
    /* The key was released a moment ago, so a grant is likely: not worth finding out remaining_ms
     * in case it is not. */
    bool released;
    syncguard_limits limits;
    /* out, OK */
    int64_t fence;
    int64_t expires_at_ms;
    /* out, LOCKED: how long the lock that is in the way may still count as live, tolerance
     * included; -1 if unknown */
    int64_t remaining_ms;
    /* out, LOCKED and watch: for how long every release of the key will be reported without another
     * try, unless syncguard_backend_stirred_all says earlier that this has ended. A waiter without
     * a limit of retries then tries only after this time, and when remaining_ms is over. 0: nothing
     * is armed, it polls. (Also for a store that reports less, or nothing, but has to bound what
     * polling costs: its waiters learn of a release that late.) The core presets it to 0. */
    int64_t armed_ms;
    /* out, always: clock just before the first byte of the first send left; the core presets it
     * to the time of the call */
    int64_t first_sent_ns;
    /* out, failure: the request may still be carried out, so the core must undo it */
    bool maybe_granted;
} syncguard_acquire_op;

typedef struct syncguard_release_op {
    /* in */
    const char *lock_id;
    syncguard_limits limits;
    bool contended; /* its owner had to wait for it: others probably do now */
    /* out, OK: the key that is free now if the store told it, else length 0 */
    char key[SYNCGUARD_KEY_SIZE];
    size_t key_length;
    /* out, ABSENT: EXPIRED or NOT_FOUND where that is known without further I/O, else NONE */
    syncguard_event_reason reason;
} syncguard_release_op;

typedef struct syncguard_extend_op {
    /* in */
    const char *lock_id;
    int64_t ttl_ms;
    syncguard_limits limits; /* not used in a batch: see extend_many */
    /* out, OK */
    int64_t expires_at_ms;
    /* out, always: as in acquire; the renewed lease counts from it */
    int64_t first_sent_ns;
    /* out, ABSENT: as in release */
    syncguard_event_reason reason;
    /* out, batch only: this item's OK, ABSENT, or a failure (undecided: the core tries it singly)
     */
    syncguard_status status;
} syncguard_extend_op;

typedef struct syncguard_is_locked_op {
    /* in */
    const char *key;
    size_t key_length;
    syncguard_limits limits;
    /* out, OK */
    bool locked;
    /* out, OK and not locked: the dead record that was seen, if any (lock_id[0] is NUL if none) */
    char dead_lock_id[SYNCGUARD_LOCK_ID_SIZE];
    int64_t dead_expires_at_ms;
    /* out: how long ago that expiry was, on the authority's clock */
    int64_t dead_for_ms;
} syncguard_is_locked_op;

typedef struct syncguard_lookup_op {
    /* in: exactly one of key and lock_id is not NULL */
    const char *key;
    size_t key_length;
    const char *lock_id;
    syncguard_limits limits;
    /* out, OK */
    syncguard_record record;
} syncguard_lookup_op;

/* A dead record that cleanup may remove. */
typedef struct syncguard_cleanup_op {
    const char *key;
    size_t key_length;
    const char *lock_id;
    int64_t expires_at_ms;
    syncguard_limits limits;
} syncguard_cleanup_op;

/* An acquire of unknown outcome, as undo_many takes it back. */
typedef struct syncguard_undo_op {
    /* in */
    const char *key;
    size_t key_length;
    const char *lock_id;
    int64_t until_ns;
    /* out: OK or ABSENT as of undo, or a failure */
    syncguard_status status;
} syncguard_undo_op;

/* Cleanup keeps its hands off a lock until it has been past its expiry for more than this. */
#define SYNCGUARD_CLEANUP_GUARD_MS 2000

typedef bool (*syncguard_record_fn)(void *context, const syncguard_record *record);

typedef struct syncguard_backend_ops {
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
     * Renews many locks in as few round trips as the store allows; each item's
     * status is set. Returns a failure only if no item was decided: all are then
     * tried again together. What cannot be locked at once is left undecided in an
     * answer that is OK, so that a stuck key delays nobody: it is tried singly.
     * May be NULL: the core calls extend for each.
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
     * while fn runs. */
    syncguard_status (*list)(syncguard_backend *backend, const syncguard_limits *limits,
                             syncguard_record_fn fn, void *context, syncguard_error *err);
    /*
     * Takes back an acquire whose outcome is unknown. OK: it can never take
     * effect any more. ABSENT: not there now, ask again later. until_ns: the
     * time after which the core stops asking (a tombstone must last until then).
     */
    syncguard_status (*undo)(syncguard_backend *backend, const char *key, size_t key_length,
                             const char *lock_id, int64_t until_ns, const syncguard_limits *limits,
                             syncguard_error *err);
    /*
     * As undo, for many, in as few round trips as the store allows; each item's status is set.
     * Returns a failure only if no item was decided: all are then tried again together. An item
     * that fails in an answer that is OK is tried singly. May be NULL: the core calls undo for
     * each.
     */
    syncguard_status (*undo_many)(syncguard_backend *backend, syncguard_undo_op *items,
                                  size_t count, const syncguard_limits *limits,
                                  syncguard_error *err);
    /* Removes the lock record (never a counter) if id and expiry are still those given and it is
     * dead for more than the guard. May be NULL: nothing to clean. */
    syncguard_status (*cleanup)(syncguard_backend *backend, const syncguard_cleanup_op *op,
                                syncguard_error *err);
    /* The last waiter for key is gone; undo what watch armed. Called with the waiting room locked:
     * must not block on the network nor call back. May be NULL. */
    void (*unwatch)(syncguard_backend *backend, const char *key, size_t key_length);
    /* True: what watch armed lasts until unwatch, and news of this handle's own releases are
     * filtered out. False: it ends with the first news, or with a grant. */
    bool watch_lasts;
    /*
     * A waiter that has nothing to do reads the store's reports in its own thread, so that its own
     * news need not come by way of another: until something was read (waiters have been stirred),
     * parker is unparked (it has a descriptor), or limits end. One thread at a time; the backend's
     * own leaves the reports alone from here until take_over. ABSENT: there is nothing to read
     * from at present. May be NULL, then take_over is, too.
     */
    syncguard_status (*listen)(syncguard_backend *backend, syncguard_parker *parker,
                               const syncguard_limits *limits, syncguard_error *err);
    /* Waiters sleep and none of them listens: the backend has to. Called as unwatch is. */
    void (*take_over)(syncguard_backend *backend);
    /* Reports what would break the promises on this store. May be NULL. */
    syncguard_status (*examine)(syncguard_backend *backend, const syncguard_limits *limits,
                                syncguard_finding_fn fn, void *context, syncguard_error *err);
    /* First use in a forked child, before any other slot, single-threaded: drop the parent's
     * connections without talking to them, start with new ones. Failure: the operation fails. */
    syncguard_status (*after_fork)(syncguard_backend *backend, syncguard_error *err);
    /* What the helper measured of one waiting acquire. May be NULL (only telemetry has it). */
    void (*observe_wait)(syncguard_backend *backend, int64_t waited_ns, int attempts);
    /* Frees everything, calls syncguard_backend_fini, frees the struct. No call is running. May be
     * called in a forked child: then nothing is said to the store. */
    void (*destroy)(syncguard_backend *backend);
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

/* Calls the log callback if there is one. No keys, lock ids, credentials. */
SYNCGUARD_API void syncguard_backend_log(const syncguard_backend *backend,
                                         syncguard_log_level level, const char *format, ...)
    SYNCGUARD_PRINTF(3, 4);

/*
 * The store reports that something happened to key: a waiter tries again. Call
 * it from any thread, with no lock held that an acquire might need. key in NFC.
 */
SYNCGUARD_API void syncguard_backend_stirred(syncguard_backend *backend, const char *key,
                                             size_t key_length);
/* The store can no longer report (its connection is gone): one waiter per key tries and so arms
 * again. */
SYNCGUARD_API void syncguard_backend_stirred_all(syncguard_backend *backend);

/* For how many different keys acquires of this handle (and of its decorators) wait at present. */
SYNCGUARD_API size_t syncguard_backend_waited_keys(const syncguard_backend *backend);

/*
 * What a module offers. Its shared library libsyncguard-NAME.so exports one
 * constant `syncguard_module_NAME` of this type; static programs pass it to
 * syncguard_module_register (the header of each backend has a function for that).
 */
typedef struct syncguard_module {
    uint32_t abi; /* SYNCGUARD_ABI */
    const char *name;
    const char *const *schemes; /* NULL-terminated */
    /* url is the whole URL; options may be NULL. */
    syncguard_status (*open)(const char *url, const syncguard_options *options,
                             syncguard_backend **out, syncguard_error *err);
    /* See syncguard_setup. May be NULL: nothing to set up. */
    syncguard_status (*setup)(const char *url, const syncguard_options *options,
                              syncguard_print_fn print, void *print_context, syncguard_error *err);
} syncguard_module;

/* Makes the schemes of a linked-in module known to syncguard_open. Idempotent; module must stay
 * valid. InvalidArgument for another ABI. */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_module_register(const syncguard_module *module, syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
