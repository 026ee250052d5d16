/* Locks that are renewed, and the record of their losses: for the tests of the heartbeat. */
#ifndef TESTS_CORE_HEARTBEAT_H
#define TESTS_CORE_HEARTBEAT_H

#include "fake_backend.h"
#include "test_assert.h"

/* Where a test must keep its lock, a renewal has four seconds to be late: the machine may be
 * busy. */
#define TTL_MS 6000
/* Where the test loses its lock anyway. */
#define SHORT_TTL_MS 2400

/* on_lost counts and keeps the last reason. If a lock or a backend is set here, on_lost disposes of
 * the lock and closes the backend before it counts. */
extern atomic_int losses_told;
extern atomic_int told_reason;
extern atomic_bool dispose_when_told;
extern _Atomic(syncguard_backend *) close_when_told;
void on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason);

/* Acquires a lock that is renewed, with on_lost; resets what on_lost has recorded. */
syncguard_lock *take_renewed(fake_backend *p, const char *key, int64_t ttl_ms, int64_t max_hold_ms);
/* Waits until a renewal has moved the expiry. */
bool was_renewed(const syncguard_lock *lock, int64_t expiry);
int64_t ms_since(int64_t begun_ns);

/* Answers to an extend: the store is down; the store does not answer. */
syncguard_status extend_down(fake_backend *p, syncguard_extend_op *op, syncguard_error *err);
syncguard_status extend_hangs(fake_backend *p, syncguard_extend_op *op, syncguard_error *err);

#endif
