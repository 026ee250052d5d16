/*
 * Client tracking: which connections of a handle report changes of the names that were read over
 * them, and to which connection. Links and operations use it; notify.c reads the reports.
 */
#ifndef SYNCGUARD_REDIS_TRACKER_H
#define SYNCGUARD_REDIS_TRACKER_H

#include "connection.h"
#include "errors.h"

typedef struct sg_redis_tracker {
    syncguard_parker parker; /* of the thread in notify.c: something here has changed */
    pthread_mutex_t mutex;   /* guards the rest */
    bool started;            /* the thread runs: there have been waiters */
    bool off;                /* the server or the user does not permit it */
    bool ready;              /* reports can be redirected to client_id */
    bool report_lost;        /* a reporting connection is gone: all waiters must try again */
    bool reconnect;          /* the connection that receives the reports is of no use */
    bool moving;             /* tries were not armed, because the hash slot moves */
    int refusals;            /* CLIENT TRACKING refused in a row */
    uint64_t epoch;          /* counts the connections that received reports */
    int64_t client_id;
    char peer[300];   /* server that the connection leads to */
    char wanted[300]; /* server that it should lead to; "": the primary */
    char refusal[SG_REDIS_WORD_SIZE];
} sg_redis_tracker;

syncguard_status sg_redis_tracker_init(sg_redis_tracker *tracker, syncguard_error *err);
void sg_redis_tracker_fini(sg_redis_tracker *tracker, bool forked);
bool sg_redis_tracker_started(sg_redis_tracker *tracker);
/*
 * Called before a try that is to be armed is sent on conn: appends the command that makes conn
 * report, if it does not report yet. *expected: that command will have a reply. True if changes of
 * what the try reads will be reported.
 */
bool sg_redis_tracker_prepare(sg_redis_tracker *tracker, sg_redis_connection *conn, bool *expected);
/* Handles the reply to that command. epoch: conn->tracked as prepare has set it, 0: the current
 * one. */
void sg_redis_tracker_answer(sg_redis_tracker *tracker, uint64_t epoch, const redisReply *reply);
/* A waiter's try could not be armed, because the hash slot moves: the thread must watch for the end
 * of the move. */
void sg_redis_tracker_moving(sg_redis_tracker *tracker);
/* Another connection has fallen silent. The connection that receives notifications may have, too,
 * and no reply is expected there that would show it. So it is replaced. */
void sg_redis_tracker_distrust(sg_redis_tracker *tracker);
/* A connection that may have reported is gone. */
void sg_redis_tracker_lost(sg_redis_tracker *tracker);

#endif
