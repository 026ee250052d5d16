/* The pool of HTTP handles: at most so many are in use at once, idle ones keep their connections.
 */
#ifndef SG_FIRESTORE_POOL_H
#define SG_FIRESTORE_POOL_H

#include "handle.h"

#define SG_FIRESTORE_MAX_ABANDONED                                                                 \
    64 /* transfers that wait for a resolver without their caller                                  \
        */

typedef struct sg_firestore_pool {
    pthread_mutex_t mutex; /* guards the list and returns */
    syncguard_gate gate;
    int size;
    sg_firestore_handle *handles; /* of this process */
    uint64_t returns;             /* so far */
    sg_firestore_trust trust;
    atomic_int *holders; /* of this very number: the pool, and each abandoned transfer */
} sg_firestore_pool;

/* tls: the server is reached over TLS. */
syncguard_status sg_firestore_pool_init(sg_firestore_pool *pool, int size, const char *ca_file,
                                        bool tls, syncguard_error *err);
void sg_firestore_pool_destroy(sg_firestore_pool *pool);
/* In a forked child: closes the parent's descriptors unused and starts empty. */
syncguard_status sg_firestore_pool_after_fork(sg_firestore_pool *pool, syncguard_error *err);

/* Waits for a free place within limits. The caller ends with put or abandon. */
syncguard_status sg_firestore_pool_get(sg_firestore_pool *pool, const syncguard_limits *limits,
                                       sg_firestore_handle **out, syncguard_error *err);
void sg_firestore_pool_put(sg_firestore_pool *pool, sg_firestore_handle *handle);
/* Instead of put: a transfer that still resolves a name goes to a thread that waits for it. */
void sg_firestore_pool_abandon(sg_firestore_pool *pool, sg_firestore_handle *handle);

/* libcurl and the resolver do not report why they failed: is there a descriptor left? */
bool sg_firestore_out_of_descriptors(void);
syncguard_status sg_firestore_fail_descriptors(syncguard_error *err);

#endif
