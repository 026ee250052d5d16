/*
 * An HTTP handle: one easy handle of libcurl in one multi handle, so that it keeps its own
 * connections alive. While it is in use, it belongs to one caller.
 */
#ifndef SG_FIRESTORE_HANDLE_H
#define SG_FIRESTORE_HANDLE_H

#include <stdatomic.h>

#include "syncguard/sys/backend.h"

#define SG_FIRESTORE_MAX_REPLY_BYTES (8u << 20)
#define SG_FIRESTORE_HANDLE_SOCKETS 8

/* The result of a request. Also valid after a failure, except for status and body. */
typedef struct sg_firestore_reply {
    long status;
    char *body;
    size_t length;
    size_t capacity;
    int64_t start_ns; /* clock when the request could be sent: the connection was set up */
    int64_t end_ns;
    int64_t date_s; /* of the Date header; 0 if there is none */
    bool sent;      /* a part of it may have reached the server */
    bool resent;    /* it may have reached the server more than once */
    bool broken;    /* failure: the connection broke before the answer was complete */
} sg_firestore_reply;

/* The CA certificates to trust. Both NULL: libcurl's own. */
typedef struct sg_firestore_trust {
    char *ca_file;
    struct x509_store_st *store; /* NULL: libcurl reads ca_file itself */
} sg_firestore_trust;

/* A descriptor, and the file to which it referred when it was opened: the program may have closed
 * it and opened another file under its number. */
typedef struct sg_firestore_socket {
    int fd; /* -1: none */
    syncguard_fd_identity identity;
} sg_firestore_socket;

typedef struct sg_firestore_handle {
    void *multi;         /* CURLM */
    void *easy;          /* CURL */
    syncguard_link link; /* in the pool */
    bool in_use;
    uint64_t returned; /* number of its last return to the pool */
    /* connections, and libcurl's own socket pair where it is known */
    sg_firestore_socket sockets[SG_FIRESTORE_HANDLE_SOCKETS];
    bool used;           /* has carried a request before */
    atomic_int *holders; /* of an abandoned handle, which may outlive the pool: the pool's count */
    const sg_firestore_trust *trust;
    /* of the running transfer */
    const syncguard_limits *limits;
    sg_firestore_reply *reply;
    int opened;  /* sockets made for it */
    int closed;  /* sockets closed meanwhile; since the last start, if that is known */
    int started; /* how often its request was about to be sent */
    bool too_long;
    bool no_memory;
    bool no_descriptor;
    bool cut_off; /* shut down because its limits were reached */
} sg_firestore_handle;

/* NULL without memory or descriptors. trust must outlive the handle's use. */
sg_firestore_handle *sg_firestore_handle_create(const sg_firestore_trust *trust);
/* Closes its connections. NULL is ignored. */
void sg_firestore_handle_free(sg_firestore_handle *handle);
/* After a transfer: forgets the descriptors that libcurl has closed without reporting it. */
void sg_firestore_handle_forget_closed(sg_firestore_handle *handle);
/* Whether the descriptors of an idle handle are still its own. */
bool sg_firestore_handle_intact(const sg_firestore_handle *handle);

#endif
