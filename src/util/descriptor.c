/* See sys/descriptor.h. */
#include "syncguard/sys/descriptor.h"

#include <errno.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

syncguard_fd_identity syncguard_fd_identify(int fd)
{
    syncguard_fd_identity identity = {0, 0, false};
    int saved = errno;
    struct stat found;
    if (fd >= 0 && fstat(fd, &found) == 0) {
        identity.device = (uint64_t)found.st_dev;
        identity.inode = (uint64_t)found.st_ino;
        identity.known = true;
    }
    errno = saved;
    return identity;
}

bool syncguard_fd_same(int fd, syncguard_fd_identity identity)
{
    syncguard_fd_identity now = syncguard_fd_identify(fd);
    return now.known && identity.known && now.device == identity.device &&
           now.inode == identity.inode;
}

void syncguard_fd_close_inherited(int fd, syncguard_fd_identity identity)
{
    int saved = errno;
    if (syncguard_fd_same(fd, identity))
        close(fd);
    errno = saved;
}

bool syncguard_fd_ended(int fd)
{
    int saved = errno;
#ifdef POLLRDHUP
    struct pollfd socket = {fd, POLLRDHUP, 0};
#else
    struct pollfd socket = {fd, 0, 0};
#endif
    bool ended = poll(&socket, 1, 0) > 0 && (socket.revents & POLLNVAL) == 0;
    errno = saved;
    return ended;
}
