/*
 * What the files of the core share and nobody else sees: the hidden half of a
 * backend, and the services that hang on it.
 *
 * Lock order, outermost first: heartbeat.mutex, background.mutex, room.mutex.
 * None of them is held while an operation runs or a callback of the user is
 * called (but for unwatch, which runs under room.mutex by contract).
 */
#ifndef SG_CORE_H
#define SG_CORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "syncguard/lock.h"
#include "syncguard/sys/backend.h"
#include "syncguard/sys/options.h"

/* ---- waiting room (waiting_room.c) ------------------------------------------------------ */

typedef struct sg_group sg_group;

/* One waiting thread; lives on its stack. */
typedef struct sg_waiter {
    sg_group *group;
    struct sg_waiter *next;
    struct sg_waiter *previous;
    syncguard_parker parker;
    bool woken;  /* was chosen to try after news */
    bool trying; /* woken, or in the middle of a try */
    bool may_listen;
    bool away; /* in the caller's on_wait: others are woken in its place */
    pthread_t thread;
} sg_waiter;

#define SG_ROOM_BUCKETS 256

/* Who reads the store's reports. */
typedef enum sg_ear {
    SG_EAR_STORE, /* the backend, in a thread of its own, if it has any to read */
    SG_EAR_WAITER,
    SG_EAR_NOBODY /* nobody sleeps here */
} sg_ear;

typedef struct sg_room {
    pthread_mutex_t mutex;
    atomic_size_t group_count; /* readable without the mutex: is anybody waiting at all? */
    atomic_ulong releases;     /* by this handle, of any key */
    size_t waiters;
    bool claimed;            /* there is a waiter that may listen */
    syncguard_parker parker; /* its; opened for the first */
    sg_ear ear;
    sg_group *buckets[SG_ROOM_BUCKETS];
} sg_room;

typedef enum sg_turn {
    SG_TURN_WOKEN,  /* news: try, without counting it */
    SG_TURN_FREED,  /* the same, and the news was a release */
    SG_TURN_EXPIRY, /* the lock in the way should be dead now, or it is unknown whether a release
                       would be reported: try, without counting it */
    SG_TURN_PAUSE   /* the pause is over: a counted retry */
} sg_turn;

syncguard_status sg_room_init(sg_room *room, syncguard_error *err);
void sg_room_destroy(sg_room *room);
/* In a forked child: the waiters were threads of the parent. */
void sg_room_forget(sg_room *room);

/* Joins the waiters of key after a try that left remaining_ms to the lock in the way (-1: unknown).
 * *armed: no try is needed before waiting. It will wait with the abort object of limits, if any. */
syncguard_status sg_room_join(sg_room *room, const syncguard_backend *backend, const char *key,
                              size_t length, int64_t remaining_ms, const syncguard_limits *limits,
                              sg_waiter *waiter, bool *armed, syncguard_error *err);
/* granted_until_ns: when the lock that this waiter got dies by itself; 0 if it got none. */
void sg_room_leave(sg_room *room, syncguard_backend *backend, sg_waiter *waiter,
                   int64_t granted_until_ns);
/* Before a try: returns the count of news so far. */
uint64_t sg_room_try_begin(sg_room *room, sg_waiter *waiter);
/* After a try that was answered LOCKED (op): true if news came meanwhile and it must be repeated.
 */
bool sg_room_try_locked(sg_room *room, sg_waiter *waiter, uint64_t news,
                        const syncguard_acquire_op *op);
/* After a try that failed and that the waiter wants to survive. */
void sg_room_try_failed(sg_room *room, sg_waiter *waiter);
/* True if some waiter of this key has begun a try after since_ns; *locked: the last one that ended
 * was answered, not failed. */
bool sg_room_tried_since(sg_room *room, const sg_waiter *waiter, int64_t since_ns, bool *locked);
/* How long a waiter may rest without a try of its own because releases are reported; 0: it has to
 * poll. From here on the first waiter of the key tries for those that rest. */
int64_t sg_room_rely(sg_room *room, const sg_waiter *waiter);
/* Around a callback of the caller, during which the waiter can neither try nor watch the time. */
void sg_room_away(sg_room *room, sg_waiter *waiter, bool away);
/* Waits for news, expiry, or until_ns. OK fills *turn; else Aborted or NetworkTimeout. */
syncguard_status sg_room_wait(sg_room *room, syncguard_backend *backend, sg_waiter *waiter,
                              int64_t until_ns, const syncguard_limits *limits, sg_turn *turn,
                              syncguard_error *err);
/* This handle has freed key. */
void sg_room_freed(sg_room *room, const char *key, size_t length, bool watch_lasts);

/* ---- background work (background.c) ------------------------------------------------------ */

typedef struct sg_task sg_task;

/* One for new tasks, and one for each pause after a failed step. */
#define SG_TASK_QUEUES 7

/* Undoing, late releases and cleanup: one thread per backend, started by the first task. */
typedef struct sg_background {
    syncguard_backend *backend;
    pthread_mutex_t mutex;
    struct {
        sg_task *first;
        sg_task *last;
    } queues[SG_TASK_QUEUES]; /* each by due time */
    bool busy;                /* tasks are being carried out */
    bool started;
    bool stopping;
    bool draining;
    int64_t next_cleanup_ns;
    pthread_t thread;
    syncguard_parker parker;
    syncguard_parker idle; /* unparked when draining finds nothing left */
    syncguard_abort *abort_object;
} sg_background;

syncguard_status sg_background_init(sg_background *work, syncguard_backend *backend,
                                    syncguard_error *err);
/* Works off what is left for at most drain_ns, then ends the thread for good. */
void sg_background_stop(sg_background *work, int64_t drain_ns);
void sg_background_destroy(sg_background *work);
/* In a forked child: the thread and the tasks are the parent's. */
void sg_background_forget(sg_background *work);
/* Takes back an acquire until until_ns. Best effort when memory is short. */
void sg_background_undo(sg_background *work, const char *key, size_t length, const char *lock_id,
                        int64_t until_ns);
/* Goes on releasing lock_id until until_ns. */
void sg_background_release(sg_background *work, const char *key, size_t length, const char *lock_id,
                           int64_t until_ns);
/* Removes a dead record, unless the last cleanup was a moment ago. */
void sg_background_cleanup(sg_background *work, const syncguard_is_locked_op *seen);

/* ---- heartbeat (heartbeat.c) ------------------------------------------------------------- */

typedef enum sg_lane_name {
    SG_LANE_NONE,
    SG_LANE_BATCH,
    SG_LANE_SINGLE, /* renews one lock per request: for those that a batch could not decide */
    SG_LANE_RETRY   /* those whose request failed: the batch lane's thread takes them first */
} sg_lane_name;

/* A heap of locks by the time of their next renewal, and the thread that serves it. */
typedef struct sg_lane {
    struct sg_heartbeat *heartbeat;
    sg_lane_name name;
    bool started;
    pthread_t thread;
    syncguard_parker parker;
    syncguard_lock **heap;
    size_t count;
    size_t capacity;
    syncguard_abort *abort_object; /* ends the request that is under way */
} sg_lane;

typedef struct sg_heartbeat {
    syncguard_backend *backend;
    pthread_mutex_t mutex; /* guards lanes, the queue of lost locks, next_ns of every lock */
    pthread_cond_t told;   /* a callback has returned, or the queue is not empty any more */
    sg_lane batch;
    sg_lane single;
    sg_lane retry;   /* a heap without a thread */
    size_t expected; /* acquires under way whose locks are to be renewed */
    bool stopping;
    bool dispatcher_started;
    pthread_t dispatcher;
    syncguard_lock *lost_first;
    syncguard_lock *lost_last;
    syncguard_lock *telling; /* whose on_lost is running */
    int64_t watch_ns;        /* when the dispatcher looks for leases that have ended */
    bool close_requested;    /* the last reference went away inside on_lost */
} sg_heartbeat;

/* The heap of a lane (lane.c); the caller holds the mutex. */
bool sg_lane_reserve(sg_lane *lane, size_t count);
/* Cannot fail: room was reserved when the lock was added. */
void sg_lane_push(sg_lane *lane, syncguard_lock *lock);
void sg_lane_remove(sg_lane *lane, syncguard_lock *lock);
/* After the time of the first lock was put off. */
void sg_lane_sink(sg_lane *lane);
/* Sets the time of the next thing to happen to a lock that is in no heap: a renewal, or the end of
 * a lease that is not renewed; or the next attempt of a renewal that failed. */
void sg_lane_schedule(syncguard_lock *lock);
void sg_lane_schedule_retry(syncguard_lock *lock);

syncguard_status sg_heartbeat_init(sg_heartbeat *heartbeat, syncguard_backend *backend,
                                   syncguard_error *err);
/* Ends the threads for good; the dispatcher may call it for itself. */
void sg_heartbeat_stop(sg_heartbeat *heartbeat);
void sg_heartbeat_destroy(sg_heartbeat *heartbeat);
void sg_heartbeat_forget(sg_heartbeat *heartbeat);
/* Before a lock is asked for that is to be renewed: starts and reserves all that this needs, so
 * that nothing can fail after the grant. tells: the lock has an on_lost. Followed by one call of
 * add or expect_no_more. RateLimited for lack of descriptors or threads. */
syncguard_status sg_heartbeat_expect(sg_heartbeat *heartbeat, bool tells, syncguard_error *err);
void sg_heartbeat_expect_no_more(sg_heartbeat *heartbeat);
/* Begins to renew a lock that was expected. */
void sg_heartbeat_add(sg_heartbeat *heartbeat, syncguard_lock *lock);
/* Reschedules a lock after an extend by hand; its caller has claimed it. */
void sg_heartbeat_reschedule(sg_heartbeat *heartbeat, syncguard_lock *lock);
/* Ends the renewing of a claimed lock. */
void sg_heartbeat_remove(sg_heartbeat *heartbeat, syncguard_lock *lock);
/* Ends the renewing of a claimed lock that its owner found lost, and tells on_lost. */
void sg_heartbeat_lost(sg_heartbeat *heartbeat, syncguard_lock *lock);
/* Ends the requests that are under way; their locks are renewed again at once. */
void sg_heartbeat_interrupt(sg_heartbeat *heartbeat);
/* Makes sure that on_lost of a lock neither runs nor will. */
void sg_heartbeat_silence(sg_heartbeat *heartbeat, syncguard_lock *lock);

/* ---- the hidden half of a backend (backend.c) -------------------------------------------- */

typedef struct sg_fence_warning {
    struct sg_fence_warning *next;
    int64_t next_ns;
    char key_hash[SYNCGUARD_HASH_SIZE];
} sg_fence_warning;

struct syncguard_core {
    syncguard_options options; /* strings are ours */
    char *owner;
    char *hash_secret;
    atomic_int references; /* the open handle, and each lock handle */
    _Atomic pid_t pid;     /* whose copy this is; -pid while that child makes it its own */
    sg_room own_room;
    sg_room *room; /* own_room, or that of the decorated backend */
    bool watches;  /* the store can report releases */
    bool watch_lasts;
    bool listens;
    bool undoes_many;
    sg_background background;
    sg_heartbeat heartbeat;
    pthread_mutex_t warnings_mutex;
    sg_fence_warning *warnings;
    size_t warning_count;
};

/* For decorators: options and waiting room are those of inner, which must outlive outer. */
syncguard_status sg_backend_init_over(syncguard_backend *outer, const syncguard_backend_ops *ops,
                                      syncguard_backend *inner, syncguard_error *err);

void sg_backend_ref(syncguard_backend *backend);
/* Closes with the last reference. */
void sg_backend_unref(syncguard_backend *backend);
/* What the last unref does: only for the dispatcher, which must first leave its callback. */
void sg_backend_close_now(syncguard_backend *backend);

/* Before anything else in every call: makes the handle this process's own after a fork. */
syncguard_status sg_backend_enter(syncguard_backend *backend, syncguard_error *err);

/* Checks a key, also by what the store can have, and writes its NFC form. */
syncguard_status sg_key_read(const syncguard_backend *backend, const char *key,
                             char out[SYNCGUARD_KEY_SIZE], size_t *length, syncguard_error *err);
/* Reads call (NULL: defaults) into limits. */
syncguard_status sg_limits_read(const syncguard_backend *backend, const syncguard_call *call,
                                syncguard_limits *limits, syncguard_error *err);
/* Adds the hash of a normalised key to an error that is being returned. */
void sg_error_key(const syncguard_backend *backend, syncguard_error *err, const char *key,
                  size_t length);
syncguard_status sg_ttl_check(int64_t ttl_ms, syncguard_error *err);

/*
 * One attempt: draws the id into lock_id, sends, and undoes what is late or
 * unknown. op's in fields but lock_id and owner are filled in by the caller.
 */
syncguard_status sg_acquire_once(syncguard_backend *backend, syncguard_acquire_op *op,
                                 char lock_id[SYNCGUARD_LOCK_ID_SIZE], syncguard_error *err);
/* Releases by id and wakes the local waiters; key may be NULL if it is not known. op's in fields
 * are filled in by the caller. */
syncguard_status sg_release_once(syncguard_backend *backend, syncguard_release_op *op,
                                 const char *key, size_t key_length, syncguard_error *err);

/* Looks up by key or, if lock_id is not NULL, by id. */
syncguard_status sg_lookup(syncguard_backend *backend, const char *key, const char *lock_id,
                           const syncguard_call *call, syncguard_record *record,
                           syncguard_error *err);
syncguard_status sg_list(syncguard_backend *backend, const syncguard_call *call,
                         syncguard_record_fn fn, void *context, syncguard_error *err);

/* ---- lock handles (lock.c) --------------------------------------------------------------- */

struct syncguard_lock {
    syncguard_backend *backend;
    pid_t pid;
    bool contended;       /* had to be waited for */
    atomic_bool claimed;  /* an operation on this lock is in flight: one at a time */
    atomic_bool released; /* its one release has begun */
    /* The end of the lease on our clock; once lost, and for good, the negative reason. One word, so
     * that a renewal and whoever finds the lease over can never both be believed. */
    _Atomic int64_t lease;
    _Atomic int64_t ttl_ms;
    _Atomic int64_t expires_at_ms;
    int64_t hold_end_ns; /* SYNCGUARD_NO_DEADLINE: no max_hold */
    syncguard_lost_fn on_lost;
    void *on_lost_context;
    syncguard_release_error_fn on_release_error;
    void *on_release_error_context;
    /* heartbeat.mutex guards these */
    int64_t next_ns;
    size_t heap_index;
    sg_lane_name lane;
    bool lost_queued;
    syncguard_lock *lost_next;
    char lock_id[SYNCGUARD_LOCK_ID_SIZE];
    char fence[SYNCGUARD_FENCE_SIZE];
    size_t key_length;
    char key[];
};

bool sg_lock_try_claim(syncguard_lock *lock);
void sg_lock_unclaim(syncguard_lock *lock);
/* End of the lease; 0 once the lock is lost. */
int64_t sg_lock_lease_end(const syncguard_lock *lock);
/* Sets the reason unless one is set already. */
void sg_lock_lose(syncguard_lock *lock, syncguard_lost_reason reason);
/* Why the lock is lost; a lease that is over now is lost from here on. */
syncguard_lost_reason sg_lock_judge(syncguard_lock *lock);
/* Disposes; source is the word for on_release_error. */
void sg_lock_dispose_from(syncguard_lock *lock, const char *source);
/* Notes a confirmed extend; false if the lock was lost meanwhile, which is final. */
bool sg_lock_renewed(syncguard_lock *lock, const syncguard_extend_op *op);
/* Goes on releasing a lock in the background until it must be dead in the store. */
void sg_lock_release_later(syncguard_lock *lock);

/* ---- the default store (default_url.c) --------------------------------------------------- */

/* Makes the folders that the path of the default store lacks, but for the last. */
syncguard_status sg_default_folders(syncguard_error *err);

#endif
