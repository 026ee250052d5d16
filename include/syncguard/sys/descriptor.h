/*
 * Descriptors of connections, above all across a fork.
 *
 * A child inherits its parent's descriptors, but a daemon may close all of them and open
 * other files, which get the same numbers. So before a child closes (or uses) a descriptor
 * of its parent, it compares device and inode with those that were noted when the descriptor
 * was opened. This distinguishes pipes, sockets and files. Eventfds, epoll and timer
 * descriptors all have the same inode and cannot be distinguished, so a child leaves them
 * open. (syncguard_parker_close and syncguard_abort_free do so themselves.)
 *
 *     sock->fd = socket(...);
 *     sock->identity = syncguard_fd_identify(sock->fd);
 *     ...
 *     syncguard_fd_close_inherited(sock->fd, sock->identity);   in after_fork
 */
#ifndef SYNCGUARD_SYS_DESCRIPTOR_H
#define SYNCGUARD_SYS_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "../types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The file, pipe or socket that a descriptor refers to. */
typedef struct syncguard_fd_identity {
    uint64_t device;
    uint64_t inode;
    bool known; /* false: equal to nothing */
} syncguard_fd_identity;

/* What fd refers to now; not known if it is not open. Keeps errno. */
SYNCGUARD_API syncguard_fd_identity syncguard_fd_identify(int fd);
/* Whether fd still refers to this file. False if either is not known. Keeps errno. */
SYNCGUARD_API bool syncguard_fd_same(int fd, syncguard_fd_identity identity);
/* Closes fd if it still refers to this file, else leaves it alone. Keeps errno. */
SYNCGUARD_API void syncguard_fd_close_inherited(int fd, syncguard_fd_identity identity);
/* Whether the other end of a socket has closed or reset the connection, even if something that it
 * sent before has not been read yet. Never blocks. Keeps errno. */
SYNCGUARD_API bool syncguard_fd_ended(int fd);

#ifdef __cplusplus
}
#endif

#endif
