/*
 * The callback form: acquire, work, release.
 *
 * The work may end in other ways than by returning: by a C++ exception, by the
 * cancellation of its thread, by pthread_exit. All of these unwind the stack, and this
 * file is compiled with -fexceptions so that unwinding releases the lock. longjmp does
 * not unwind, so it does not release the lock.
 */
#include "lock_state.h"

static void with_lock_dispose(syncguard_lock **lock)
{
    SYNCGUARD_NO_CANCEL;
    sg_lock_dispose_from(*lock, "helper");
}

syncguard_status syncguard_with_lock(syncguard_backend *backend, const char *key,
                                     const syncguard_lock_options *options, syncguard_work_fn work,
                                     void *context, int *result, syncguard_error *err)
{
    syncguard_error_clear(err);
    if (work == NULL)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "work is NULL");
    syncguard_lock *lock = NULL;
    syncguard_status status = syncguard_lock_acquire(backend, key, options, &lock, err);
    if (status != SYNCGUARD_OK)
        return status;
    __attribute__((cleanup(with_lock_dispose))) syncguard_lock *held = lock;
    int returned = work(context, held);
    if (result != NULL)
        *result = returned;
    return SYNCGUARD_OK;
}
