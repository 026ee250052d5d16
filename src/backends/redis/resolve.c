/*
 * Name resolution that cannot block the caller beyond its limits.
 *
 * getaddrinfo may hang for half a minute, so it runs in a thread of its own whose result may be
 * abandoned: the resolution is reference-counted, and the last owner frees it. Numeric addresses
 * are parsed by the caller, without a thread.
 *
 * A resolver that hangs must not accumulate threads: at most MAX_RUNNING run at a time for one
 * handle.
 */
#include "connection.h"

#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "syncguard/sys/alloc.h"
#include "syncguard/sys/fail.h"

#define MAX_RUNNING 16

struct sg_redis_resolver {
    atomic_int refs; /* the backend and every running resolution */
    atomic_int running;
};

struct sg_redis_resolution {
    atomic_int refs;
    sg_redis_resolver *resolver; /* NULL: resolved without a thread */
    syncguard_parker parker;
    atomic_bool done;
    int error;
    struct addrinfo *list;
    char port[12];
    char host[];
};

syncguard_status sg_redis_resolver_create(sg_redis_resolver **out, syncguard_error *err)
{
    sg_redis_resolver *resolver = syncguard_calloc(1, sizeof *resolver);
    if (resolver == NULL)
        return syncguard_fail_memory(err);
    atomic_init(&resolver->refs, 1);
    atomic_init(&resolver->running, 0);
    *out = resolver;
    return SYNCGUARD_OK;
}

void sg_redis_resolver_free(sg_redis_resolver *resolver)
{
    if (resolver != NULL && atomic_fetch_sub(&resolver->refs, 1) == 1)
        syncguard_free(resolver);
}

void sg_redis_resolution_free(sg_redis_resolution *resolution)
{
    if (resolution == NULL || atomic_fetch_sub(&resolution->refs, 1) != 1)
        return;
    if (resolution->list != NULL)
        freeaddrinfo(resolution->list);
    syncguard_parker_close(&resolution->parker);
    sg_redis_resolver_free(resolution->resolver);
    syncguard_free(resolution);
}

static int resolution_query(sg_redis_resolution *resolution, int flags)
{
    struct addrinfo hints;
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | flags;
    return getaddrinfo(resolution->host, resolution->port, &hints, &resolution->list);
}

static void *resolution_thread_run(void *argument)
{
    sg_redis_resolution *resolution = argument;
    resolution->error = resolution_query(resolution, AI_ADDRCONFIG);
    if (resolution->error != 0) /* with only loopback, AI_ADDRCONFIG finds nothing */
        resolution->error = resolution_query(resolution, 0);
    atomic_store(&resolution->done, true);
    syncguard_parker_unpark(&resolution->parker);
    atomic_fetch_sub(&resolution->resolver->running, 1);
    sg_redis_resolution_free(resolution);
    return NULL;
}

static syncguard_status resolution_query_in_thread(sg_redis_resolver *resolver,
                                                   sg_redis_resolution *resolution,
                                                   const syncguard_limits *limits,
                                                   syncguard_error *err)
{
    syncguard_status status = syncguard_parker_open(&resolution->parker, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (atomic_fetch_add(&resolver->running, 1) >= MAX_RUNNING) {
        atomic_fetch_sub(&resolver->running, 1);
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "name resolution hangs");
    }
    atomic_fetch_add(&resolver->refs, 1);
    resolution->resolver = resolver;
    atomic_fetch_add(&resolution->refs, 1);
    pthread_t thread;
    if (syncguard_thread_start(&thread, resolution_thread_run, resolution) != 0) {
        atomic_fetch_sub(&resolver->running, 1);
        atomic_fetch_sub(&resolution->refs, 1);
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, NULL, "no thread to resolve with");
    }
    pthread_detach(thread);
    while (!atomic_load(&resolution->done)) {
        status = syncguard_parker_park(&resolution->parker, limits, err);
        if (status != SYNCGUARD_OK)
            return status;
    }
    if (resolution->error != 0)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL,
                              "the server's name cannot be resolved");
    return SYNCGUARD_OK;
}

syncguard_status sg_redis_resolve(sg_redis_resolver *resolver, const char *host, int port,
                                  const syncguard_limits *limits, sg_redis_resolution **out,
                                  const struct addrinfo **list, syncguard_error *err)
{
    size_t length = strlen(host);
    sg_redis_resolution *resolution = syncguard_calloc(1, sizeof *resolution + length + 1);
    if (resolution == NULL)
        return syncguard_fail_memory(err);
    atomic_init(&resolution->refs, 1);
    atomic_init(&resolution->done, false);
    resolution->parker = (syncguard_parker)SYNCGUARD_PARKER_INIT;
    memcpy(resolution->host, host, length);
    snprintf(resolution->port, sizeof resolution->port, "%d", port);
    syncguard_status status = SYNCGUARD_OK;
    if (resolution_query(resolution, AI_NUMERICHOST) != 0) {
        resolution->list = NULL;
        status = resolution_query_in_thread(resolver, resolution, limits, err);
    }
    if (status == SYNCGUARD_OK) {
        *list = resolution->list;
        *out = resolution;
    } else {
        sg_redis_resolution_free(resolution);
    }
    return status;
}
