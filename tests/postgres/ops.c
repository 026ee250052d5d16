/*
 * Runs each operation once, after a first round that connects and prepares, with a line on stderr
 * before each: one_trip.sh counts the system calls in between.
 *
 *     postgres_ops URL
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "syncguard.h"

static syncguard_error err;

static void pg_ops_mark(bool loud, const char *text)
{
    if (loud && write(STDERR_FILENO, text, strlen(text)) < 0)
        exit(2);
}

static void pg_ops_want(syncguard_status got, syncguard_status wanted)
{
    if (got == wanted)
        return;
    fprintf(stderr, "%s: %s\n", syncguard_status_name(got), err.message);
    exit(1);
}

static void pg_ops_run(syncguard_backend *backend, bool loud)
{
    pg_ops_mark(loud, "MARK acquire\n");
    syncguard_grant grant;
    pg_ops_want(syncguard_acquire(backend, "k", 30000, NULL, &grant, &err), SYNCGUARD_OK);
    pg_ops_mark(loud, "MARK contended\n");
    syncguard_grant other;
    pg_ops_want(syncguard_acquire(backend, "k", 30000, NULL, &other, &err), SYNCGUARD_LOCKED);
    pg_ops_mark(loud, "MARK extend\n");
    int64_t expires;
    pg_ops_want(syncguard_extend(backend, grant.lock_id, 30000, NULL, &expires, &err),
                SYNCGUARD_OK);
    pg_ops_mark(loud, "MARK is_locked\n");
    bool locked;
    pg_ops_want(syncguard_is_locked(backend, "k", NULL, &locked, &err), SYNCGUARD_OK);
    pg_ops_mark(loud, "MARK by_key\n");
    syncguard_lock_info info;
    pg_ops_want(syncguard_get_by_key(backend, "k", NULL, &info, &err), SYNCGUARD_OK);
    pg_ops_mark(loud, "MARK by_id\n");
    pg_ops_want(syncguard_get_by_id(backend, grant.lock_id, NULL, &info, &err), SYNCGUARD_OK);
    pg_ops_mark(loud, "MARK release\n");
    pg_ops_want(syncguard_release(backend, grant.lock_id, NULL, &err), SYNCGUARD_OK);
    pg_ops_mark(loud, "MARK absent\n");
    pg_ops_want(syncguard_release(backend, grant.lock_id, NULL, &err), SYNCGUARD_ABSENT);
    pg_ops_mark(loud, "MARK end\n");
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    syncguard_backend *backend = NULL;
    pg_ops_want(syncguard_open(argv[1], NULL, &backend, &err), SYNCGUARD_OK);
    pg_ops_run(backend, false);
    pg_ops_run(backend, true);
    syncguard_backend *decorated = NULL;
    /* The decorator adds no round trip: the same operations through it. */
    pg_ops_want(syncguard_telemetry_wrap(backend, NULL, &decorated, &err), SYNCGUARD_OK);
    pg_ops_run(decorated, true);
    syncguard_close(decorated);
    return 0;
}
