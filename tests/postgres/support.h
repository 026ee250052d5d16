/* What the tests of the PostgreSQL backend share: cmocka, a server per program, a handle. */
#ifndef TEST_POSTGRES_SUPPORT_H
#define TEST_POSTGRES_SUPPORT_H

#include <stdatomic.h>
#include <unistd.h>

#include "server.h"
#include "syncguard/postgres.h"
#include "test_assert.h"

static syncguard_error err;

/* A handle that is connected. */
static inline syncguard_backend *open_used(const char *url)
{
    syncguard_backend *backend = test_open(url);
    bool locked = false;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(backend, "first", NULL, &locked, &err));
    return backend;
}

static inline void acquire_and_release(syncguard_backend *backend, const char *key)
{
    syncguard_grant grant;
    assert_status(SYNCGUARD_OK, syncguard_acquire(backend, key, 30000, NULL, &grant, &err));
    assert_status(SYNCGUARD_OK, syncguard_release(backend, grant.lock_id, NULL, &err));
}

/* The status of the first operation: opening needs no server. */
static inline syncguard_status first_use(const char *url)
{
    syncguard_backend *backend = test_open(url);
    bool locked = false;
    syncguard_status status = syncguard_is_locked(backend, "first", NULL, &locked, &err);
    syncguard_close(backend);
    return status;
}

static inline long lock_rows(PGconn *pg, const char *key)
{
    return pg_number(pg, "SELECT count(*) FROM syncguard_locks WHERE key = '%s'", key);
}

/* Waits until the lock is gone: an undo in the background takes a moment. */
static inline void expect_gone(PGconn *pg, const char *key)
{
    int64_t end = test_now_ms() + 10000;
    while (lock_rows(pg, key) != 0) {
        assert_true(test_now_ms() < end);
        test_sleep_ms(20);
    }
}

#endif
