/*
 * A holder that the stale-holder test stops past its lease.
 *
 *     fault_holder URL KEY TTL_MS RESOURCE
 *
 * Takes the lock with a handle that renews itself, writes its fence to the resource and prints
 * "held FENCE". Then at each line on stdin it tries to write again and prints "accepted" or
 * "refused", and "lost" or "held" for the state of its handle.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "syncguard.h"

/* The resource keeps the highest fence that it has seen and refuses lower ones. */
static bool holder_resource_write(int fd, int64_t fence)
{
    int64_t highest = 0;
    if (flock(fd, LOCK_EX) != 0)
        return false;
    if (pread(fd, &highest, sizeof highest, 0) != (ssize_t)sizeof highest)
        highest = 0;
    bool accepted =
        fence >= highest && pwrite(fd, &fence, sizeof fence, 0) == (ssize_t)sizeof fence;
    (void)flock(fd, LOCK_UN);
    return accepted;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 64;
    int fd = open(argv[4], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = strtoll(argv[3], NULL, 10);
    options.auto_extend = true;
    options.timeout_ms = 30000;
    options.max_retries = 100000;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    if (fd < 0 || syncguard_open(argv[1], NULL, &backend, &err) != SYNCGUARD_OK)
        return 2;
    syncguard_lock *lock = NULL;
    if (syncguard_lock_acquire(backend, argv[2], &options, &lock, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "fault_holder: %s: %s\n", syncguard_status_name(err.code), err.message);
        return 3;
    }
    int64_t fence = strtoll(syncguard_lock_fence(lock), NULL, 10);
    printf("held %lld %s\n", (long long)fence,
           holder_resource_write(fd, fence) ? "accepted" : "refused");
    fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin) != NULL) {
        printf("%s %s\n", holder_resource_write(fd, fence) ? "accepted" : "refused",
               syncguard_lock_lost(lock) != 0 ? "lost" : "held");
        fflush(stdout);
    }
    syncguard_lock_dispose(lock);
    syncguard_close(backend);
    close(fd);
    return 0;
}
