/* Background work of one backend: undo, late releases and cleanup, in one thread. */
#ifndef SG_BACKGROUND_H
#define SG_BACKGROUND_H

#include <pthread.h>

#include "syncguard/lock.h"
#include "syncguard/sys/backend.h"
#include "syncguard/sys/list.h"

/* One for new tasks, and one for each pause after a failed step. */
#define SG_TASK_QUEUES 7

typedef struct sg_background {
    syncguard_backend *backend;
    pthread_mutex_t mutex;
    syncguard_links queues[SG_TASK_QUEUES]; /* each by due time */
    bool busy;                              /* a step is running */
    bool started;                           /* by the first task */
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
/* Runs the remaining tasks for at most drain_ns, then ends the thread for good. */
void sg_background_stop(sg_background *work, int64_t drain_ns);
void sg_background_destroy(sg_background *work);
/* In a forked child: the thread and the tasks belong to the parent. */
void sg_background_forget(sg_background *work);

/* Undoes an acquire, repeatedly until it can no longer take effect. Best effort when memory is
 * short. */
void sg_background_undo(sg_background *work, const syncguard_acquire_op *op);
/* Repeats the release of a lock until it must be dead in the store. A minimum hold applies. */
void sg_background_release(sg_background *work, const syncguard_lock *lock);
/* After an extend of a lock whose release may have begun meanwhile: a release that only set the
 * lease to the minimum hold is repeated, because the store may have applied the extend after it. */
void sg_background_release_again(sg_background *work, const syncguard_lock *lock,
                                 syncguard_status extended);
/* Removes a dead record, unless the last cleanup was a moment ago. */
void sg_background_cleanup(sg_background *work, const syncguard_is_locked_op *seen);

#endif
