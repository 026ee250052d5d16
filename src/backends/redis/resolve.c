/*
 * Name resolution that cannot hold the caller.
 *
 * getaddrinfo may hang for half a minute, so it runs in a thread of its own
 * whose result may be abandoned: the lookup is counted by references, and the
 * last one frees it. Numeric addresses are read in place, without a thread.
 *
 * A resolver that hangs must not collect threads without end: at most
 * MAX_LOOKUPS run at a time for one handle.
 */
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define MAX_LOOKUPS 16

struct sg_resolver {
    atomic_int refs; /* the backend and every running lookup */
    atomic_int running;
};

struct sg_lookup {
    atomic_int refs;
    sg_resolver *resolver; /* NULL: answered in place */
    syncguard_parker parker;
    atomic_bool done;
    int error;
    struct addrinfo *list;
    char port[12];
    char host[];
};

syncguard_status sg_redis_resolver_create(sg_resolver **out, syncguard_error *err)
{
    sg_resolver *resolver = syncguard_calloc(1, sizeof *resolver);
    if (resolver == NULL)
        return syncguard_fail_memory(err);
    atomic_init(&resolver->refs, 1);
    atomic_init(&resolver->running, 0);
    *out = resolver;
    return SYNCGUARD_OK;
}

void sg_redis_resolver_free(sg_resolver *resolver)
{
    if (resolver != NULL && atomic_fetch_sub(&resolver->refs, 1) == 1)
        syncguard_free(resolver);
}

void sg_redis_lookup_free(sg_lookup *lookup)
{
    if (lookup == NULL || atomic_fetch_sub(&lookup->refs, 1) != 1)
        return;
    if (lookup->list != NULL)
        freeaddrinfo(lookup->list);
    syncguard_parker_close(&lookup->parker);
    sg_redis_resolver_free(lookup->resolver);
    syncguard_free(lookup);
}

static int ask(sg_lookup *lookup, int flags)
{
    struct addrinfo hints;
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | flags;
    return getaddrinfo(lookup->host, lookup->port, &hints, &lookup->list);
}

static void *run(void *argument)
{
    sg_lookup *lookup = argument;
    lookup->error = ask(lookup, AI_ADDRCONFIG);
    if (lookup->error != 0)
        lookup->error = ask(lookup, 0); /* loopback only: AI_ADDRCONFIG finds nothing */
    atomic_store(&lookup->done, true);
    syncguard_parker_unpark(&lookup->parker);
    atomic_fetch_sub(&lookup->resolver->running, 1);
    sg_redis_lookup_free(lookup);
    return NULL;
}

static syncguard_status ask_in_thread(sg_resolver *resolver, sg_lookup *lookup,
                                      const syncguard_limits *limits, syncguard_error *err)
{
    syncguard_status status = syncguard_parker_open(&lookup->parker, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (atomic_fetch_add(&resolver->running, 1) >= MAX_LOOKUPS) {
        atomic_fetch_sub(&resolver->running, 1);
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                              "redis: name resolution hangs");
    }
    atomic_fetch_add(&resolver->refs, 1);
    lookup->resolver = resolver;
    atomic_fetch_add(&lookup->refs, 1);
    pthread_t thread;
    if (syncguard_thread_start(&thread, run, lookup) != 0) {
        atomic_fetch_sub(&resolver->running, 1);
        atomic_fetch_sub(&lookup->refs, 1);
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL,
                              "redis: no thread to resolve with");
    }
    pthread_detach(thread);
    while (!atomic_load(&lookup->done)) {
        status = syncguard_parker_park(&lookup->parker, limits, err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    if (lookup->error != 0)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                              "redis: the server's name cannot be resolved");
    return SYNCGUARD_OK;
}

syncguard_status sg_redis_resolve(sg_resolver *resolver, const char *host, int port,
                                  const syncguard_limits *limits, sg_lookup **out,
                                  const struct addrinfo **list, syncguard_error *err)
{
    size_t length = strlen(host);
    sg_lookup *lookup = syncguard_calloc(1, sizeof *lookup + length + 1);
    if (lookup == NULL)
        return syncguard_fail_memory(err);
    atomic_init(&lookup->refs, 1);
    atomic_init(&lookup->done, false);
    lookup->parker = (syncguard_parker)SYNCGUARD_PARKER_INIT;
    memcpy(lookup->host, host, length);
    snprintf(lookup->port, sizeof lookup->port, "%d", port);

    syncguard_status status = SYNCGUARD_OK;
    if (ask(lookup, AI_NUMERICHOST) != 0) {
        lookup->list = NULL;
        status = ask_in_thread(resolver, lookup, limits, err);
    }
    if (status == SYNCGUARD_OK) {
        *list = lookup->list;
        *out = lookup;
    } else {
        sg_redis_lookup_free(lookup);
    }
    return status;
}
