/* Connections to the primary, wherever it is. */
#ifndef SYNCGUARD_REDIS_ROUTE_H
#define SYNCGUARD_REDIS_ROUTE_H

#include "connection.h"
#include "topology.h"

syncguard_status sg_redis_route_connect(const sg_redis_dialer *dialer, sg_redis_topology *topology,
                                        const syncguard_limits *limits, sg_redis_connection **out,
                                        syncguard_error *err);

#endif
