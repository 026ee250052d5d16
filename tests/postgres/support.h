/* What the tests of the PostgreSQL backend share: cmocka, a server per program, a handle. */
#ifndef TEST_POSTGRES_SUPPORT_H
#define TEST_POSTGRES_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "server.h"
#include "syncguard.h"
#include "syncguard/postgres.h"

static syncguard_error err;

static inline int64_t pg_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline void pg_sleep_ms(int64_t ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static inline void pg_status_check(syncguard_status got, syncguard_status wanted, const char *text,
                                   int line)
{
    if (got != wanted) {
        print_error("line %d: %s: %s instead of %s (%s %s)\n", line, text,
                    syncguard_status_name(got), syncguard_status_name(wanted), err.native,
                    err.message);
        fail();
    }
}
#define assert_status(wanted, call) pg_status_check((call), (wanted), #call, __LINE__)

static inline syncguard_backend *pg_open_or_fail(const char *url)
{
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open(url, NULL, &backend, &err));
    return backend;
}

/* A handle that is connected. */
static inline syncguard_backend *open_used(const char *url)
{
    syncguard_backend *backend = pg_open_or_fail(url);
    bool locked = false;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "first", NULL, &locked, &err));
    return backend;
}

/* The status of the first operation: opening needs no server. */
static inline syncguard_status first_use(const char *url)
{
    syncguard_backend *backend = pg_open_or_fail(url);
    bool locked = false;
    syncguard_status status = syncguard_is_locked(backend, "first", NULL, &locked, &err);
    syncguard_close(backend);
    return status;
}

static inline syncguard_call pg_call_of(int64_t timeout_ms, syncguard_abort *abort_object)
{
    syncguard_call call = SYNCGUARD_CALL_INIT;
    call.timeout_ms = timeout_ms;
    call.abort_object = abort_object;
    return call;
}

static inline long lock_rows(PGconn *pg, const char *key)
{
    return pg_number(pg, "SELECT count(*) FROM syncguard_locks WHERE key = '%s'", key);
}

/* Waits until the lock is gone: an undo in the background takes a moment. */
static inline void expect_gone(PGconn *pg, const char *key)
{
    int64_t end = pg_now_ms() + 10000;
    while (lock_rows(pg, key) != 0) {
        assert_true(pg_now_ms() < end);
        pg_sleep_ms(20);
    }
}

#endif
