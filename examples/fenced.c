/*
 * Why a fence: a holder that sleeps through its lease must not overwrite what
 * its successor wrote. The resource remembers the highest fence it has seen and
 * refuses anything lower; fences are compared as text.
 *
 *     ./fenced [URL]
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <syncguard.h>

/* Stands for your database row, file or service. */
typedef struct resource {
    char highest_fence[SYNCGUARD_FENCE_SIZE];
    char value[64];
} resource;

static bool resource_write(resource *r, const char *fence, const char *value)
{
    if (strcmp(fence, r->highest_fence) < 0)
        return false;
    snprintf(r->highest_fence, sizeof r->highest_fence, "%s", fence);
    snprintf(r->value, sizeof r->value, "%s", value);
    return true;
}

static syncguard_status fencing_demonstrate(syncguard_backend *backend, syncguard_error *err)
{
    syncguard_grant slow;
    syncguard_status status = syncguard_acquire(backend, "row-17", 500, NULL, &slow, err);
    if (status != SYNCGUARD_OK)
        return status;

    /* The first holder is stopped for longer than its lease and the tolerance of one second. */
    struct timespec nap = {1, 700 * 1000 * 1000};
    nanosleep(&nap, NULL);
    syncguard_grant quick;
    status = syncguard_acquire(backend, "row-17", 5000, NULL, &quick, err);
    if (status != SYNCGUARD_OK)
        return status;
    resource row = {"", ""};
    printf("second holder, fence %s: %s\n", quick.fence,
           resource_write(&row, quick.fence, "new") ? "written" : "refused");
    printf("first holder,  fence %s: %s\n", slow.fence,
           resource_write(&row, slow.fence, "stale") ? "written" : "refused");
    printf("the row says \"%s\"\n", row.value);
    return syncguard_release(backend, quick.lock_id, NULL, err);
}

int main(int argc, char **argv)
{
    syncguard_error err;
    syncguard_backend *backend = NULL;
    if (syncguard_open(argc > 1 ? argv[1] : "memory:", NULL, &backend, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "%s: %s\n", syncguard_status_name(err.code), err.message);
        return 1;
    }
    syncguard_status status = fencing_demonstrate(backend, &err);
    if (status != SYNCGUARD_OK)
        fprintf(stderr, "%s: %s\n", syncguard_status_name(status), err.message);
    syncguard_close(backend);
    return status == SYNCGUARD_OK ? 0 : 1;
}
