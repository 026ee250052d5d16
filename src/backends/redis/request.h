/* One request, a script or a command, from encoding to its reply. */
#ifndef SYNCGUARD_REDIS_REQUEST_H
#define SYNCGUARD_REDIS_REQUEST_H

#include "backend.h"
#include "scripts.h"

/* Where the hash slot of a Cluster was when a request was answered. */
typedef enum sg_redis_hash_slot {
    SG_REDIS_HASH_SLOT_STABLE,
    SG_REDIS_HASH_SLOT_IMPORTING, /* the node that the hash slot moves to has answered */
    SG_REDIS_HASH_SLOT_SPLIT      /* not run: the hash slot moves, its names may be on two nodes */
} sg_redis_hash_slot;

typedef struct sg_redis_request {
    sg_redis_backend *backend;
    const syncguard_limits *limits;
    sg_redis_script_id script;
    const char *command; /* with one key, instead of a script; or NULL */
    /* Uses no name other than its key. Only such a request may be sent to the new node of a hash
     * slot that moves, which answers for names that are still on the old node as if they did not
     * exist. */
    bool one_name;
    sg_redis_text args; /* keys and values in the protocol's form */
    size_t arg_count;
    const sg_redis_name *watch; /* acquire of a waiter: arm this name first; or NULL */
    bool spin;                  /* others wait for its result */
    bool confirm;               /* a write counts only when wait_replicas replicas have it */
    sg_redis_link *link;        /* NULL: any of the shared ones */
    /* out */
    redisReply *reply;
    sg_redis_hash_slot hash_slot;
    bool confirmed;  /* enough replicas have what it wrote */
    bool armed;      /* changes of `watch` will be reported */
    bool sent_again; /* an earlier sending may have been applied */
    /* At least one sending has no reply, so it may still be applied; or it was applied, and waiting
     * for the replicas failed. */
    bool unanswered;
    int64_t first_sent_ns;
    sg_redis_lock_names names; /* in, set by the operation: the keys of its script */
} sg_redis_request;

/* Arguments are added in order: keys, then values. */
void sg_redis_request_init(sg_redis_request *request, sg_redis_backend *backend,
                           const syncguard_limits *limits, sg_redis_script_id script);
/* Replaces the script by another script, or a command, on one name for the same operation. What is
 * known of earlier sendings is kept. */
void sg_redis_request_use_script(sg_redis_request *request, sg_redis_script_id script,
                                 const sg_redis_name *name);
void sg_redis_request_use_command(sg_redis_request *request, const char *command,
                                  const sg_redis_name *name);
void sg_redis_request_free(sg_redis_request *request);
void sg_redis_request_arg(sg_redis_request *request, const void *data, size_t length);
void sg_redis_request_arg_name(sg_redis_request *request, const sg_redis_name *name);
void sg_redis_request_arg_int(sg_redis_request *request, int64_t value);
/* OK: the reply is a number or a text; of a reading script an array that begins with the server's
 * time; of a command anything but an error. OK also if the hash slot is split, which dispatch.c
 * checks first. */
syncguard_status sg_redis_request_run(sg_redis_request *request, syncguard_error *err);

/* Appends the request to a batch, its script by its SHA-1. */
void sg_redis_request_encode(const sg_redis_request *request, sg_redis_text *out);

/* Several commands in one round trip. */
typedef struct sg_redis_commands {
    sg_redis_link *link; /* NULL: any shared one */
    const sg_redis_text *text;
    redisReply **replies;
    size_t count;
    /* out */
    uint64_t serial; /* of the connection that they were answered on */
    /* A sending before the last may have been applied, or the last was not answered. */
    bool sent_before;
} sg_redis_commands;

/* Sends the commands, and sends them again as a whole if the connection breaks. */
syncguard_status sg_redis_commands_run(sg_redis_backend *backend, sg_redis_link *link,
                                       const sg_redis_text *text, redisReply **replies,
                                       size_t count, const syncguard_limits *limits,
                                       syncguard_error *err);
syncguard_status sg_redis_commands_send(sg_redis_backend *backend, sg_redis_commands *commands,
                                        const syncguard_limits *limits, syncguard_error *err);
/* The same for requests of one script, which is loaded if the server has forgotten it. */
syncguard_status sg_redis_batch_run(sg_redis_backend *backend, sg_redis_script_id script,
                                    sg_redis_commands *batch, const syncguard_limits *limits,
                                    syncguard_error *err);

/* The results of a batch. */
typedef struct sg_redis_tally {
    size_t decided;
    bool moving; /* the hash slot moves: only a single request follows it */
    syncguard_status first_failure;
} sg_redis_tally;

void sg_redis_tally_add(sg_redis_tally *t, const redisReply *reply, syncguard_status status);
/* OK even if the hash slot moves: the items are then tried one by one. */
syncguard_status sg_redis_tally_outcome(const sg_redis_tally *t, syncguard_status status);

/* ---- confirm.c: replicas confirm what a connection has written (wait_replicas) ---- */

/* The link that all extends share, with wait_replicas or with waiters. */
sg_redis_link *sg_redis_extend_link(const sg_redis_backend *backend);
/*
 * Waits until wait_replicas replicas have what was written by the link's connection `serial`; OK
 * also if they do not have it in time. ServiceUnavailable: the connection broke, so it remains
 * unknown whether they have it.
 */
syncguard_status sg_redis_confirm(const sg_redis_backend *backend, sg_redis_link *link,
                                  uint64_t serial, const syncguard_limits *limits, bool *confirmed,
                                  syncguard_error *err);

#endif
