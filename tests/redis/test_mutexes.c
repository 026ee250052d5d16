/*
 * Opening a handle when a mutex cannot be initialized: the open fails, and every mutex that was
 * initialized is destroyed once, and no other. No server is needed, because opening connects to
 * none.
 */
#include "support.h"

#include <dlfcn.h>
#include <errno.h>

enum { MOST_MUTEXES = 256 };

static const pthread_mutex_t *live[MOST_MUTEXES];
static size_t live_count;
static int countdown; /* until an initialization fails; 0: none */
static bool failed;
static bool destroyed_unknown;
static bool armed; /* only mutexes of the library count */

/* The library calls these two. */
__attribute__((visibility("default"))) int pthread_mutex_init(pthread_mutex_t *mutex,
                                                              const pthread_mutexattr_t *mutexattr)
{
    typedef int initializer(pthread_mutex_t *, const pthread_mutexattr_t *);
    if (armed && countdown > 0 && --countdown == 0) {
        failed = true;
        return ENOMEM;
    }
    if (armed && live_count < MOST_MUTEXES)
        live[live_count++] = mutex;
    initializer *real;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_mutex_init");
    return real(mutex, mutexattr);
}

__attribute__((visibility("default"))) int pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    typedef int destroyer(pthread_mutex_t *);
    size_t at = 0;
    while (at < live_count && live[at] != mutex)
        at++;
    if (at < live_count)
        live[at] = live[--live_count];
    else if (armed)
        destroyed_unknown = true;
    destroyer *real;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_mutex_destroy");
    return real(mutex);
}

/* Opens and closes a handle. False: no initialization failed. */
static bool mutexes_open_with_failure(const char *url, int number)
{
    syncguard_backend *backend = NULL;
    failed = destroyed_unknown = false;
    countdown = number;
    armed = true;
    syncguard_status status = syncguard_open(url, NULL, &backend, &err);
    bool met = failed;
    syncguard_close(backend);
    armed = false;
    assert_int_equal(status, met ? SYNCGUARD_E_OUT_OF_MEMORY : SYNCGUARD_OK);
    assert_int_equal(live_count, 0);
    assert_false(destroyed_unknown);
    return met;
}

static void every_mutex_is_destroyed_once(void **state)
{
    (void)state;
    static const char *const urls[] = {
        "redis://127.0.0.1:1",
        "redis+cluster://127.0.0.1:1?wait_replicas=1&wait_connections=2",
    };
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        int number = 1;
        while (mutexes_open_with_failure(urls[i], number))
            number++;
        assert_true(number > 5);
    }
}

int main(void)
{
    assert_status(SYNCGUARD_OK, syncguard_redis_register(&err));
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_mutex_is_destroyed_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
