/*
 * A program of a user: takes a lock, checks that it is held, releases it. With REGISTER it is
 * linked with a backend instead of loading it: the function that registers it, declared in HEADER.
 */
#include <stdio.h>

#include <syncguard.h>
#ifdef REGISTER
#include HEADER
#endif

int main(int argc, char **argv)
{
    const char *url = argc > 1 ? argv[1] : "memory:";
    syncguard_error err;
    syncguard_backend *backend = NULL;
    syncguard_grant grant;
    bool locked = false;
#ifdef REGISTER
    if (REGISTER(&err) != SYNCGUARD_OK || REGISTER(NULL) != SYNCGUARD_OK) /* again: no harm */
        goto failed;
#endif
    if (syncguard_open(url, NULL, &backend, &err) != SYNCGUARD_OK)
        goto failed;
    if (syncguard_acquire(backend, "consumer", 5000, NULL, &grant, &err) != SYNCGUARD_OK)
        goto failed;
    if (syncguard_is_locked(backend, "consumer", NULL, &locked, &err) != SYNCGUARD_OK || !locked)
        goto failed;
    if (syncguard_release(backend, grant.lock_id, NULL, &err) != SYNCGUARD_OK)
        goto failed;
    syncguard_close(backend);
    printf("%s: fence %s\n", url, grant.fence);
    return 0;
failed:
    fprintf(stderr, "%s: %s\n", syncguard_status_name(err.code), err.message);
    syncguard_close(backend);
    return 1;
}
