/*
 * Hold a lock for as long as a scope lasts, renewed in the background.
 *
 *     ./scoped [URL] [KEY]
 */
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include <syncguard.h>

static atomic_bool must_stop;

static void scoped_on_lost(void *context, syncguard_lock *lock, syncguard_lost_reason reason)
{
    (void)context;
    (void)lock;
    fprintf(stderr, "the lock is lost (%s): stopping\n", syncguard_lost_reason_name(reason));
    atomic_store(&must_stop, true);
}

static int run_job(syncguard_backend *backend, const char *key, syncguard_error *err)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000); /* up to a minute */
    options.ttl_ms = 3000;
    options.auto_extend = true;
    options.on_lost = scoped_on_lost;
    SYNCGUARD_SCOPED syncguard_lock *lock = NULL;
    syncguard_status status = syncguard_lock_acquire(backend, key, &options, &lock, err);
    if (status != SYNCGUARD_OK) {
        fprintf(stderr, "%s: %s\n", syncguard_status_name(status), err->message);
        return 1;
    }
    printf("holding with fence %s\n", syncguard_lock_fence(lock));
    for (int step = 0; step < 5 && !atomic_load(&must_stop); step++) {
        struct timespec second = {1, 0};
        nanosleep(&second, NULL); /* the work: longer than the TTL */
        printf("step %d, %lld ms of the lease left\n", step + 1,
               (long long)syncguard_lock_remaining_ms(lock));
    }
    return atomic_load(&must_stop) ? 1 : 0;
}

int main(int argc, char **argv)
{
    const char *url = argc > 1 ? argv[1] : "memory:";
    const char *key = argc > 2 ? argv[2] : "example";
    syncguard_error err;
    syncguard_backend *backend = NULL;
    if (syncguard_open(url, NULL, &backend, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "%s: %s\n", syncguard_status_name(err.code), err.message);
        return 1;
    }
    int failed = run_job(backend, key, &err);
    syncguard_close(backend);
    return failed;
}
