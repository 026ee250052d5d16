/*
 * A slot is one caller's place in the line of a link, and where its thread
 * sleeps. Slots are pooled and live as long as their link, so waking one that
 * has been used again by another caller is harmless: everybody looks twice.
 * All functions are called with the link's mutex held, unless they say otherwise.
 */
#ifndef SYNCGUARD_REDIS_SLOT_H
#define SYNCGUARD_REDIS_SLOT_H

#include "internal.h"

/* Replies handed out under one hold of the mutex. */
#define SG_BATCH 64

struct sg_slot {
    sg_slot *next;
    sg_request *request; /* NULL: nobody waits for it any more */
    size_t expected;
    size_t got;
    int64_t sent_ns;
    int64_t deadline_ns; /* of its caller */
    bool queued;         /* in link->queue: nothing was sent */
    bool tracking;       /* its reply is the tracker's */
    uint64_t epoch;      /* of the tracker, then */
    bool done;
    bool counted; /* in link->unpicked */
    syncguard_status status;
    syncguard_error error;
    uint32_t bit;   /* its share of link->word; 0: sleeps on its own word */
    bool sleeping;  /* its thread sleeps or is about to */
    bool by_parker; /* it sleeps in the parker, not on a futex */
    atomic_int word;
    bool parker_open;
    syncguard_parker parker;
};

/* Whom to wake when the mutex is free again. */
typedef struct sg_wakes {
    uint32_t bits;
    size_t count;
    struct {
        sg_slot *slot;
        bool by_parker;
    } items[SG_BATCH + 1];
} sg_wakes;

/* A free slot. by_parker: its thread has an abort object to watch. */
syncguard_status sg_redis_slot_take(sg_link *link, bool by_parker, sg_slot **out,
                                    syncguard_error *err);
void sg_redis_slot_give(sg_link *link, sg_slot *slot);
/* Frees a list of them; no mutex needed. */
void sg_redis_slots_free(sg_slot *slot);

/* Notes whom to wake; nothing is needed for a thread that is awake: it looks before it sleeps. */
void sg_redis_wake_later(sg_link *link, sg_wakes *wakes, sg_slot *slot);
/* Wakes them; best without the mutex. */
void sg_redis_wake_all(sg_link *link, sg_wakes *wakes);
void sg_redis_wake_now(sg_link *link, sg_slot *slot);

/* --- between a link and its connector (connector.c), with the mutex --- */

/* Makes a connection in the background, unless that is under way. */
syncguard_status sg_redis_connector_start(sg_link *link, syncguard_error *err);
/* Without the mutex: ends an attempt that is under way. */
void sg_redis_connector_end(sg_link *link, bool forked);
/* What became of it: conn, or NULL and why, for all that wait in the queue. */
void sg_redis_link_connected(sg_link *link, sg_conn *conn, syncguard_status status,
                             syncguard_error *error);

/* Lets go of the mutex, waits to be woken, takes it again. */
syncguard_status sg_redis_slot_sleep(sg_link *link, sg_slot *slot, const syncguard_limits *limits,
                                     syncguard_error *err);

#endif
