/* See event.h. */
#include "util/event.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/eventfd.h>

static bool event_open_fds(int fds[2])
{
    fds[0] = fds[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return fds[0] >= 0;
}
#else
static bool event_open_fds(int fds[2])
{
    if (pipe(fds) != 0) {
        fds[0] = fds[1] = -1;
        return false;
    }
    for (int i = 0; i < 2; i++) {
        (void)fcntl(fds[i], F_SETFD, FD_CLOEXEC);
        (void)fcntl(fds[i], F_SETFL, O_NONBLOCK);
    }
    return true;
}
#endif

bool sg_event_open(int fds[2])
{
    return event_open_fds(fds);
}

void sg_event_close(int fds[2], int pid)
{
    int saved = errno;
    bool ours = (int)getpid() == pid;
    if (ours && fds[0] >= 0)
        close(fds[0]);
    if (ours && fds[1] >= 0 && fds[1] != fds[0])
        close(fds[1]);
    fds[0] = fds[1] = -1;
    errno = saved;
}

void sg_event_set(const int fds[2])
{
    const uint64_t one = 1;
    int saved = errno;
    ssize_t done = 0;

    /* EAGAIN: the counter or the pipe is full, so the event is set already. */
    do {
        done = write(fds[1], &one, sizeof one);
    } while (done < 0 && errno == EINTR);
    errno = saved;
}

void sg_event_reset(const int fds[2])
{
    uint64_t count[8];
    ssize_t got = 0;

    /* An eventfd is empty after one read; a pipe is empty when a read comes back short. */
    do {
        got = read(fds[0], count, sizeof count);
    } while ((got < 0 && errno == EINTR) || got == (ssize_t)sizeof count);
}
