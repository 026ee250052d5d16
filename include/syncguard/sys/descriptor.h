/*
 * Descriptors across a fork.
 *
 * A child inherits the numbers of its parent's descriptors, not the certainty that
 * they still mean the same: a daemon closes them all and opens others, which get
 * the same numbers. So a child checks before it closes (or uses) anything that its
 * parent opened: device and inode as noted when the descriptor was made. Pipes,
 * sockets and files can be told apart this way; eventfds, epoll and timer descriptors
 * share one inode and cannot: a child leaves those open. (syncguard_parker_close
 * and syncguard_abort_free do so themselves.)
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
    bool known; /* false: nothing is the same as this */
} syncguard_fd_identity;

/* What fd refers to now; not known if it is not open. Keeps errno. */
SYNCGUARD_API syncguard_fd_identity syncguard_fd_identify(int fd);
/* Whether fd still refers to what it did. False if either is not known. Keeps errno. */
SYNCGUARD_API bool syncguard_fd_same(int fd, syncguard_fd_identity identity);
/* Closes fd if it still refers to what it did, else leaves it alone. Keeps errno. */
SYNCGUARD_API void syncguard_fd_close_inherited(int fd, syncguard_fd_identity identity);

#ifdef __cplusplus
}
#endif

#endif
