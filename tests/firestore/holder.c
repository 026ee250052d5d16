/*
 * One side of the race against Google's own client:
 *
 *     holder URL KEY GRANTS FOLDER
 *
 * Acquires and releases KEY until it has held it GRANTS times. While it holds the key, it creates
 * FOLDER/inside, which fails if the other side holds the key too, and prints its fence.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test_support.h"

static int hold_once(syncguard_backend *backend, const char *key, const char *inside)
{
    syncguard_grant grant;
    syncguard_error err;
    syncguard_status status = syncguard_acquire(backend, key, 30000, NULL, &grant, &err);
    if (status == SYNCGUARD_LOCKED)
        return 0;
    if (status == SYNCGUARD_OK) {
        if (mkdir(inside, 0700) != 0) {
            printf("overlap %s\n", strerror(errno));
            return -1;
        }
        printf("fence %s\n", grant.fence);
        fflush(stdout);
        test_sleep_ms(1);
        rmdir(inside);
        status = syncguard_release(backend, grant.lock_id, NULL, &err);
    }
    if (status == SYNCGUARD_OK)
        return 1;
    /* Transactions of the other side hold the server's locks: it is no error to lose to them each
     * time, as long as the store stays correct. */
    if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE && strcmp(err.native, "ABORTED") == 0)
        return 0;
    printf("failed %s %s %s\n", syncguard_status_name(status), err.native, err.message);
    return -1;
}

int main(int argc, char **argv)
{
    long grants = argc > 4 ? strtol(argv[3], NULL, 10) : 0;
    if (grants < 1)
        return 64;
    char inside[512];
    snprintf(inside, sizeof inside, "%s/inside", argv[4]);
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.timeout_ms = 60000; /* this is about exclusion, not about speed */
    syncguard_backend *backend = NULL;
    syncguard_error err;
    if (syncguard_open(argv[1], &options, &backend, &err) != SYNCGUARD_OK) {
        printf("failed %s\n", err.message);
        return 1;
    }
    int got = 1;
    while (grants > 0 && got >= 0) {
        got = hold_once(backend, argv[2], inside);
        grants -= got > 0;
        test_sleep_ms(2);
    }
    syncguard_close(backend);
    return got < 0 ? 1 : 0;
}
