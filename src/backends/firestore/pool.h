/* The pool of HTTP handles: it limits how many are in use at once; idle ones keep their
 * connections. */
#ifndef SG_FIRESTORE_POOL_H
#define SG_FIRESTORE_POOL_H

#include "handle.h"

/* Transfers that wait for a resolver without their caller. */
#define SG_FIRESTORE_MAX_ABANDONED 64

typedef struct sg_firestore_pool {
    pthread_mutex_t mutex; /* guards the list and returns */
    syncguard_gate gate;
    int size;
    syncguard_links handles; /* sg_firestore_handle, of this process */
    uint64_t returns;        /* so far */
    sg_firestore_trust trust;
    atomic_int *holders; /* owners of this count: the pool, and each abandoned transfer */
} sg_firestore_pool;

/* tls: the server is reached over TLS. */
syncguard_status sg_firestore_pool_init(sg_firestore_pool *pool, int size, const char *ca_file,
                                        bool tls, syncguard_error *err);
void sg_firestore_pool_destroy(sg_firestore_pool *pool);
/* In a forked child: closes the parent's descriptors without using them, and starts empty. */
syncguard_status sg_firestore_pool_after_fork(sg_firestore_pool *pool, syncguard_error *err);

/* Waits, within limits, until a handle may be used. The caller must call put or abandon. */
syncguard_status sg_firestore_pool_get(sg_firestore_pool *pool, const syncguard_limits *limits,
                                       sg_firestore_handle **out, syncguard_error *err);
void sg_firestore_pool_put(sg_firestore_pool *pool, sg_firestore_handle *handle);
/* Instead of put: hands a transfer that still resolves a name to a thread that waits for it. */
void sg_firestore_pool_abandon(sg_firestore_pool *pool, sg_firestore_handle *handle);

/* Whether no descriptor is left: libcurl and the resolver do not report why they failed. */
bool sg_firestore_out_of_descriptors(void);
syncguard_status sg_firestore_fail_descriptors(syncguard_error *err);

#endif
