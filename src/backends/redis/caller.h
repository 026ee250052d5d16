/*
 * A caller represents one thread that uses a link. Its round trip waits for a connection, is in
 * flight, or is done, and the thread sleeps in its caller. Callers are pooled and live as long as
 * their link. Waking a caller that another thread has taken since is harmless, because every thread
 * checks before it acts. All functions are called with the pool's mutex held, unless they say
 * otherwise.
 */
#ifndef SYNCGUARD_REDIS_CALLER_H
#define SYNCGUARD_REDIS_CALLER_H

#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdatomic.h>

#include "syncguard/sys/wait.h"
#include "text.h"

/* What one thread sends and receives. The text must stay valid until the round trip is over. */
typedef struct sg_redis_round_trip {
    const sg_redis_text *text;
    redisReply **replies;
    size_t count;
    bool watch;    /* needs a connection that reports to the tracker */
    bool spin;     /* others wait for its result: poll for the reply before sleeping */
    uint64_t only; /* fails unless the link still has the connection of this serial; 0: any */
    /* out */
    bool armed;          /* watch: changes of what it read will be reported */
    bool sent;           /* the server may have received it */
    int64_t sent_ns;     /* just before the first byte left */
    uint64_t generation; /* of the topology, of the connection */
    uint64_t serial;     /* of the connection */
    char peer[300];      /* Cluster only */
} sg_redis_round_trip;

typedef struct sg_redis_caller {
    struct sg_redis_caller *next;
    sg_redis_round_trip *trip; /* NULL: nobody waits for it any more */
    size_t expected;
    size_t got;
    int64_t sent_ns;
    int64_t deadline_ns;
    bool queued;      /* nothing was sent */
    bool tracking;    /* its reply belongs to the tracker */
    uint64_t epoch;   /* with tracking: the epoch of the tracker */
    bool done;        /* status and error are set */
    bool uncollected; /* the thread was woken, but has not collected its result yet */
    syncguard_status status;
    syncguard_error error;
    /* Sleeping. */
    uint32_t bit;   /* its futex bit on the pool's word; 0: sleeps on a word of its own */
    bool sleeping;  /* the thread sleeps or is about to */
    bool by_parker; /* it sleeps in the parker, not on a futex */
    atomic_int word;
    bool parker_open;
    syncguard_parker parker;
} sg_redis_caller;

typedef struct sg_redis_callers {
    pthread_mutex_t mutex; /* guards the link, too */
    sg_redis_caller *spare;
    uint32_t count;
    atomic_int word; /* futex of the first 32 callers */
} sg_redis_callers;

/* Replies handed out under one hold of the mutex. */
#define SG_REDIS_MAX_DELIVERED 64

/* The threads to wake when the mutex is free again. */
typedef struct sg_redis_wakes {
    uint32_t bits;
    size_t count;
    struct {
        sg_redis_caller *caller;
        bool by_parker;
    } items[SG_REDIS_MAX_DELIVERED + 1];
} sg_redis_wakes;

void sg_redis_wakes_init(sg_redis_wakes *wakes);

/* Takes an unused caller. by_parker: its thread has an abort object to watch. */
syncguard_status sg_redis_caller_take(sg_redis_callers *pool, bool by_parker, sg_redis_caller **out,
                                      syncguard_error *err);
void sg_redis_caller_give(sg_redis_callers *pool, sg_redis_caller *caller);
/* Frees a list of callers; needs no mutex. */
void sg_redis_callers_free(sg_redis_caller *caller);

/* Releases the mutex, waits to be woken, and takes the mutex again. */
syncguard_status sg_redis_caller_sleep(sg_redis_callers *pool, sg_redis_caller *caller,
                                       const syncguard_limits *limits, syncguard_error *err);
/* Notes that the caller's thread must be woken. A thread that is awake is left alone: it checks
 * before it sleeps. */
void sg_redis_wake_later(sg_redis_callers *pool, sg_redis_wakes *wakes, sg_redis_caller *caller);
/* Wakes the noted threads; best called without the mutex. */
void sg_redis_wake_all(sg_redis_callers *pool, sg_redis_wakes *wakes);

#endif
