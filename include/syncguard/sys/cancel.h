/*
 * No call of this library is a cancellation point: if pthread_cancel ended a thread in the
 * middle of a call, mutexes would stay locked and connections in use, and the handle would
 * be unusable for all other threads.
 */
#ifndef SYNCGUARD_SYS_CANCEL_H
#define SYNCGUARD_SYS_CANCEL_H

#include <pthread.h>

/* Returns the state to restore. Async-signal-safe. */
static inline int syncguard_cancel_disable(void)
{
    int before = PTHREAD_CANCEL_ENABLE;
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void syncguard_cancel_restore(const int *before)
{
    (void)pthread_setcancelstate(*before, NULL);
}

/* The first line of every public function that can block, lock, allocate or open something. When
 * the function returns, the caller's state is restored. */
#define SYNCGUARD_NO_CANCEL                                                                        \
    __attribute__((cleanup(syncguard_cancel_restore))) int cancel_state_before =                   \
        syncguard_cancel_disable()

#endif
