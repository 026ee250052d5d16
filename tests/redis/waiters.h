/* Threads that wait for a lock, for the tests of how waiters are woken. */
#ifndef TESTS_REDIS_WAITERS_H
#define TESTS_REDIS_WAITERS_H

#include "support.h"

typedef struct waiter {
    syncguard_backend *backend;
    const char *key;
    pthread_t thread;
    syncguard_status status;
    int64_t got_ms;
    int hold_ms;
    int64_t delay_ms; /* between polls; 0: 1000 */
} waiter;

/* The thread of a waiter: acquires its key, holds it for hold_ms and releases it. */
void *wait_for_lock(void *argument);
/* Starts a waiter, and returns when it waits and the reporting of its handle has had time to start.
 */
void start_polling(waiter *self, syncguard_backend *backend, const char *key, int64_t delay_ms);
/* Waits until the waiter has had the lock, and returns how many ms after `since` it got it. */
int64_t end_waiter(waiter *self, int64_t since);

#endif
