/*
 * What goes over the connection of a link: commands out, replies in, each to its caller. All
 * functions are called with the mutex of link->callers held.
 */
#ifndef SYNCGUARD_REDIS_PIPELINE_H
#define SYNCGUARD_REDIS_PIPELINE_H

#include "link.h"

void sg_redis_pipeline_append(sg_redis_caller **first, sg_redis_caller **last,
                              sg_redis_caller *caller);
/* Adds the caller's commands to those of the connection, which must be there. */
void sg_redis_pipeline_submit(sg_redis_link *link, sg_redis_caller *caller);
/* Sends, unless somebody does. Lets go of the mutex meanwhile. */
void sg_redis_pipeline_send(sg_redis_link *link);
/* Whether commands wait that nobody is going to send. */
bool sg_redis_pipeline_is_due(const sg_redis_link *link);
/* Reads for all until the caller's replies have come. Lets go of the mutex meanwhile. */
syncguard_status sg_redis_pipeline_lead(sg_redis_link *link, sg_redis_caller *caller,
                                        const syncguard_limits *limits, syncguard_error *err);
/* Chooses the next leader. */
void sg_redis_pipeline_promote(sg_redis_link *link, sg_redis_wakes *wakes);
/* Ends a round trip without replies. */
void sg_redis_pipeline_fail(sg_redis_link *link, sg_redis_caller *caller, syncguard_status status,
                            const syncguard_error *error);
/* Everything in flight has an unknown outcome from now on. Nothing if conn is not the link's. */
void sg_redis_pipeline_break(sg_redis_link *link, sg_redis_connection *conn);
/* What the kernel has not sent yet is thrown away when the connection is closed: it must not arrive
 * after the same was sent again elsewhere. */
void sg_redis_pipeline_cut_off(const sg_redis_connection *conn);

#endif
