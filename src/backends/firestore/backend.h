/*
 * The handle of the Firestore backend.
 *
 * Locking: the mutexes of pool, tokens, clock and cache are leaves. None is held while another is
 * taken, while something is sent, or while a callback runs.
 */
#ifndef SG_FIRESTORE_BACKEND_H
#define SG_FIRESTORE_BACKEND_H

#include <sys/types.h>

#include "cache.h"
#include "clock.h"
#include "names.h"
#include "token.h"

typedef struct sg_firestore_backend {
    syncguard_backend base;
    sg_firestore_names names;
    sg_firestore_credentials credentials;
    sg_firestore_tokens tokens;
    sg_firestore_pool pool;
    sg_firestore_clock clock;
    sg_firestore_cache cache;
    atomic_bool unreachable; /* the last request got no answer */
    pid_t pid;               /* of the process that owns the connections */
} sg_firestore_backend;

/* One operation: its limits, and where a failure is reported. */
typedef struct sg_firestore_context {
    sg_firestore_backend *backend;
    const syncguard_limits *limits;
    syncguard_error *err; /* may be NULL */
} sg_firestore_context;

#endif
