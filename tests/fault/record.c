/*
 * Writing a history: shared by all clients of a fault run.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "history.h"

static int64_t record_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

history_record history_begin(history_kind kind, uint32_t key, uint32_t thread)
{
    history_record r;
    memset(&r, 0, sizeof r);
    r.kind = kind;
    r.key = key;
    r.thread = thread;
    r.call_ns = record_now_ns();
    return r;
}

void history_put(int fd, history_record *r)
{
    r->mark = HISTORY_MARK;
    if (write(fd, r, sizeof *r) != (ssize_t)sizeof *r)
        fprintf(stderr, "the history could not be written\n");
}

void history_finish(int fd, history_record *r, int status, history_outcome outcome)
{
    r->return_ns = record_now_ns();
    r->status = status;
    r->outcome = outcome;
    history_put(fd, r);
}

static bool accept_fence(int resource, uint32_t key, int64_t fence)
{
    int64_t highest = 0;
    off_t offset = (off_t)(key * sizeof highest);
    if (pread(resource, &highest, sizeof highest, offset) != (ssize_t)sizeof highest)
        highest = 0;
    return fence >= highest &&
           pwrite(resource, &fence, sizeof fence, offset) == (ssize_t)sizeof fence;
}

void history_write_resource(int fd, int resource, uint32_t thread, uint32_t key, int64_t fence)
{
    /* Record locks belong to the process, so its threads need a mutex, too. */
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    history_record r = history_begin(HISTORY_WRITE, key, thread);
    struct flock lock = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = (off_t)(key * sizeof fence),
                         .l_len = sizeof fence};
    r.fence = fence;
    pthread_mutex_lock(&turn);
    int locked;
    do
        locked = fcntl(resource, F_SETLKW, &lock);
    while (locked != 0 && errno == EINTR);
    bool accepted = false;
    if (locked == 0) {
        accepted = accept_fence(resource, key, fence);
        lock.l_type = F_UNLCK;
        (void)fcntl(resource, F_SETLK, &lock);
    }
    pthread_mutex_unlock(&turn);
    history_finish(fd, &r, 0, accepted ? HISTORY_OK : HISTORY_NO);
}

uint32_t history_draw(uint64_t *state, uint32_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)((*state >> 16) % below);
}
