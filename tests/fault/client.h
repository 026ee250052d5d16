/*
 * Shared by the two kinds of work of a client process.
 */
#ifndef FAULT_CLIENT_H
#define FAULT_CLIENT_H

#include <pthread.h>

#include "history.h"
#include "syncguard.h"

typedef struct client {
    syncguard_backend *backend;
    const char *prefix;
    int out;
    int resource;
    uint32_t keys;
    uint32_t forget;
    int64_t poll_ms; /* the helper's pause between tries of its own; 0: single operations */
    int64_t end_ns;
    uint64_t seed;
} client;

typedef struct worker {
    pthread_t thread;
    client *c;
    uint32_t number; /* unique among all clients */
    uint64_t random;
    syncguard_queue *queue; /* the helper's, if it uses one */
} worker;

/* The name of a key of this run. */
void client_key(const client *c, uint32_t key, char *name, size_t size);

/*
 * Takes one key with the lock helper, holds it, releases it, and records all of it. Sometimes it is
 * `key` itself, for which the single operations compete; mostly it is one of further keys, which
 * come in groups of c->keys (helper.c).
 */
void helper_take(worker *w, uint32_t key);

#endif
