/* Name resolution within limits. */
#ifndef SYNCGUARD_REDIS_RESOLVE_H
#define SYNCGUARD_REDIS_RESOLVE_H

#include "syncguard/sys/wait.h"

struct addrinfo;
typedef struct sg_redis_resolver sg_redis_resolver;
typedef struct sg_redis_resolution sg_redis_resolution;

syncguard_status sg_redis_resolver_create(sg_redis_resolver **out, syncguard_error *err);
void sg_redis_resolver_free(sg_redis_resolver *resolver);
/* Addresses of host; *out keeps them until sg_redis_resolution_free. */
syncguard_status sg_redis_resolve(sg_redis_resolver *resolver, const char *host, int port,
                                  const syncguard_limits *limits, sg_redis_resolution **out,
                                  const struct addrinfo **list, syncguard_error *err);
void sg_redis_resolution_free(sg_redis_resolution *resolution);

#endif
