/*
 * A lane: one easy handle in one multi handle, so that it keeps its own connections alive. In use
 * it belongs to one caller. For lane.c and http.c only.
 */
#ifndef SG_FIRESTORE_LANE_H
#define SG_FIRESTORE_LANE_H

#include <curl/curl.h>

#include "internal.h"

#define LANE_SOCKETS 8

/* A descriptor, and what it referred to when it was made: the program may have closed it and opened
 * something else under its number. */
typedef struct fs_socket {
    int fd; /* -1: none */
    syncguard_fd_identity identity;
} fs_socket;

struct fs_lane {
    CURLM *multi;
    CURL *easy;
    fs_lane *next_idle;
    fs_lane *next;
    fs_lane *previous;
    fs_socket sockets[LANE_SOCKETS]; /* connections, and libcurl's own pair where it is known */
    bool used;                       /* has carried a request before */
    atomic_int *holders;             /* of a stuck one: the pool's, which it may outlive */
    /* of the running transfer */
    fs_reply *reply;
    int opened;  /* sockets made for it */
    int closed;  /* sockets closed meanwhile; since the last start, if that is told */
    int started; /* times that its request was about to be sent */
    bool too_long;
    bool no_memory;
    bool no_descriptor;
};

/* NULL without memory or descriptors. */
fs_lane *sg_fs_lane_create(const fs_pool *pool);
/* Closes its connections. NULL is ignored. */
void sg_fs_lane_free(fs_lane *lane);
/* After a transfer: forgets descriptors that libcurl has closed without a word. */
void sg_fs_lane_settle(fs_lane *lane);
/* Whether the descriptors of an idle one are still its own. */
bool sg_fs_lane_intact(const fs_lane *lane);

#endif
