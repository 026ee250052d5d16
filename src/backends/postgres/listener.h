/*
 * Inside the listener: listen.c arms and disarms, line.c says who uses the connection.
 *
 * Locking: the mutex guards watches, requests and who uses the connection. Only
 * its user touches the connection. Nothing is called back with the mutex held.
 */
#ifndef SG_PG_LISTENER_H
#define SG_PG_LISTENER_H

#include "pg.h"

typedef struct sg_pg_watch {
    struct sg_pg_watch *next;
    bool wanted;
    bool armed;
    int requests;     /* callers that wait for it to be armed */
    int64_t since_ns; /* somebody waits */
    int64_t leave_ns;
    int64_t hash;
    size_t length;
    char key[];
} sg_pg_watch;

/* A caller that waits for its watch to be armed; on its stack. */
typedef struct sg_pg_arming {
    struct sg_pg_arming *next;
    sg_pg_watch *about;
    bool done;
    bool armed;
    syncguard_parker parker;
} sg_pg_arming;

typedef enum sg_pg_user { SG_PG_NOBODY, SG_PG_THREAD, SG_PG_WAITER } sg_pg_user;

struct sg_pg_listener {
    sg_pg *pg;
    pthread_mutex_t mutex;
    sg_pg_user user;            /* of the connection */
    bool thread_reads;          /* nobody else listens, and somebody should */
    bool thread_waits;          /* for the connection */
    syncguard_parker *ear;      /* of the waiter that listens */
    syncguard_parker *next_ear; /* of one that waits for its turn */
    sg_pg_connection *lent;     /* the connection, while a request has it */
    sg_pg_watch *watches;
    sg_pg_arming *requests;
    bool started;
    bool stopping;
    int64_t pause_ns;
    int64_t not_before_ns;
    int64_t looks_ns; /* when the thread looks at the watches at the latest */
    syncguard_parker parker;
    syncguard_abort *abort_object;
    pthread_t thread;
    sg_pg_connection *connection; /* its user's */
    int64_t alive_ns;             /* when something came over it; its user's */
    int64_t prepare_ns;           /* when the thread may prepare statements */
};

/* Answers everybody who waits for w (NULL: for anything) to be armed. Under the mutex. */
void sg_pg_listener_answer(sg_pg_listener *listener, const sg_pg_watch *w, bool armed);

/* For the thread, from a waiter if need be. False: the end has come. */
bool sg_pg_line_take(sg_pg_listener *listener);
/* Under the mutex: by the user, who needs the connection no longer. */
void sg_pg_line_let_go(sg_pg_listener *listener);
/* By the user: ends the connection, if there is one. Nobody is watched for then. failed: not to be
 * tried again at once. */
void sg_pg_line_hang_up(sg_pg_listener *listener, bool failed);
/* By the user: takes what came. False: the connection is lost. */
bool sg_pg_line_receive(sg_pg_listener *listener);
/* By the user: tells the core. True if there was any news that concerns others than this handle. */
bool sg_pg_line_read(sg_pg_listener *listener);
/* Statements are prepared: it can be lent. */
bool sg_pg_line_is_ready(const sg_pg_connection *connection);

#endif
