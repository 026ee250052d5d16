/*
 * Sends the commands of a link's callers over its connection, and hands each reply to its caller.
 * All functions are called with the mutex of link->callers held.
 */
#ifndef SYNCGUARD_REDIS_PIPELINE_H
#define SYNCGUARD_REDIS_PIPELINE_H

#include "link.h"

void sg_redis_pipeline_append(sg_redis_caller **first, sg_redis_caller **last,
                              sg_redis_caller *caller);
/* Adds the caller's commands to those of the connection. The link must be connected. */
void sg_redis_pipeline_submit(sg_redis_link *link, sg_redis_caller *caller);
/* Sends the commands, unless another thread is sending. Releases the mutex meanwhile. */
void sg_redis_pipeline_send(sg_redis_link *link);
/* Whether there are commands that no thread is going to send. */
bool sg_redis_pipeline_is_due(const sg_redis_link *link);
/* Reads for all callers until this caller's replies have arrived. Releases the mutex meanwhile. */
syncguard_status sg_redis_pipeline_lead(sg_redis_link *link, sg_redis_caller *caller,
                                        const syncguard_limits *limits, syncguard_error *err);
/* Chooses the next leader. */
void sg_redis_pipeline_promote(sg_redis_link *link, sg_redis_wakes *wakes);
/* Ends a round trip without replies. */
void sg_redis_pipeline_fail(sg_redis_link *link, sg_redis_caller *caller, syncguard_status status,
                            const syncguard_error *error);
/* Gives the connection up: everything in flight has an unknown outcome from now on. Does nothing if
 * conn is not the link's. */
void sg_redis_pipeline_break(sg_redis_link *link, sg_redis_connection *conn);
/* Makes the kernel discard unsent bytes when the connection is closed: they must not arrive after
 * the same request was sent again elsewhere. */
void sg_redis_pipeline_cut_off(const sg_redis_connection *conn);

#endif
