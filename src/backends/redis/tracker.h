/*
 * Client tracking: which connections of a handle report changes of the names that were read over
 * them, and to where. Operations and links use it from below; notify.c reads the reports.
 */
#ifndef SYNCGUARD_REDIS_TRACKER_H
#define SYNCGUARD_REDIS_TRACKER_H

#include "connection.h"
#include "errors.h"

typedef struct sg_redis_tracker {
    syncguard_parker parker; /* of the thread in notify.c: something here has changed */
    pthread_mutex_t mutex;   /* guards the rest */
    bool started;            /* there have been waiters */
    bool off;                /* this server or user cannot */
    bool ready;              /* reports can be redirected to client_id */
    bool report_lost;        /* a reporting connection is gone: everybody has to try again */
    bool reconnect;          /* the connection that reports come by is of no use */
    bool moving;             /* tries were not armed, because the slot moves */
    int refusals;            /* CLIENT TRACKING refused in a row */
    uint64_t epoch;          /* counts the connections that reports went to */
    int64_t client_id;
    char peer[300];   /* server that the connection leads to */
    char wanted[300]; /* server that it should lead to; "": the primary */
    char refusal[SG_REDIS_WORD_SIZE];
} sg_redis_tracker;

syncguard_status sg_redis_tracker_init(sg_redis_tracker *tracker, syncguard_error *err);
void sg_redis_tracker_fini(sg_redis_tracker *tracker, bool forked);
bool sg_redis_tracker_started(sg_redis_tracker *tracker);
/*
 * Before a try that is to be armed leaves on conn: appends what makes conn report, if it does not
 * yet; *expected: a reply to that must be expected. True if reports of what the try reads will
 * come.
 */
bool sg_redis_tracker_prepare(sg_redis_tracker *tracker, sg_redis_connection *conn, bool *expected);
/* The reply to that; epoch: conn->tracked as prepare has set it, 0: the present one. */
void sg_redis_tracker_answer(sg_redis_tracker *tracker, uint64_t epoch, const redisReply *reply);
/* A waiter's try could not be armed, because the slot moves: watch for the end of that. */
void sg_redis_tracker_moving(sg_redis_tracker *tracker);
/* Another connection has fallen silent. What notifications come by may have, too, and nobody waits
 * for a reply there that would show it: it is replaced. */
void sg_redis_tracker_distrust(sg_redis_tracker *tracker);
/* A connection that may have reported is gone. */
void sg_redis_tracker_lost(sg_redis_tracker *tracker);

#endif
