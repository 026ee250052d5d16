/* One socket to one server: connecting, the handshake, bytes in and out. */
#ifndef SYNCGUARD_REDIS_CONNECTION_H
#define SYNCGUARD_REDIS_CONNECTION_H

#include <hiredis/hiredis.h>

#include "options.h"
#include "syncguard/sys/descriptor.h"
#include "text.h"
#include "tls.h"

/* ---- resolve.c: name resolution within limits ---- */

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

/* ---- connection.c ---- */

#if HIREDIS_MAJOR > 0
typedef size_t sg_redis_elements;
#else
typedef int sg_redis_elements;
#endif

/* What is needed to connect. */
typedef struct sg_redis_dialer {
    const sg_redis_config *config;
    sg_redis_tls *tls; /* NULL: plain text */
    sg_redis_resolver *resolver;
} sg_redis_dialer;

typedef struct sg_redis_connection {
    int fd;
    syncguard_fd_identity identity; /* of fd, which the program may close */
    SSL *ssl;
    pthread_mutex_t ssl_mutex;
    redisReader *reader;
    redisReplyObjectFunctions functions; /* of the reader: hiredis' own, with arrays counted */
    void *(*create_array)(const redisReadTask *task, sg_redis_elements elements);
    size_t elements;     /* of the arrays of the unfinished reply */
    size_t unfinished;   /* bytes of that reply so far */
    uint64_t generation; /* of the topology that it was opened under */
    uint64_t serial;     /* among the connections of its link, from 1 */
    char peer[300];      /* "host:port": which server this is */
    int refs;            /* guarded by the mutex of the link that shares it */
    int64_t setup_ns;    /* how long connecting took */
    /* The rest belongs to pipeline.c. */
    bool sending;           /* a thread is sending from `outgoing` */
    bool blocked;           /* the socket took no more */
    sg_redis_text unsent;   /* commands that have not been handed to a sender */
    sg_redis_text outgoing; /* what the sender sends */
    size_t outgoing_done;
    uint64_t tracked; /* the tracker's epoch that this connection reports to; 0: none */
} sg_redis_connection;

typedef enum sg_redis_role {
    SG_REDIS_ROLE_STORE,   /* AUTH, SELECT, CLIENT SETNAME */
    SG_REDIS_ROLE_SENTINEL /* credentials of the sentinels */
} sg_redis_role;

/* Connects to one address and performs the handshake. */
syncguard_status sg_redis_connection_open(const sg_redis_dialer *dialer,
                                          const sg_redis_address *address, sg_redis_role role,
                                          const syncguard_limits *limits, sg_redis_connection **out,
                                          syncguard_error *err);
/* Closes the connection and sends nothing. */
void sg_redis_connection_close(sg_redis_connection *conn);
/* False if the program has closed the descriptor; its number may belong to another one by now. */
bool sg_redis_connection_is_open(const sg_redis_connection *conn);
/* Drops a reference; the last one closes the connection. */
void sg_redis_connection_drop(sg_redis_connection *conn);
/* In a forked child: closes the descriptor, if it still refers to what the parent opened, and
 * leaves the memory, which another thread of the parent may have been changing. */
void sg_redis_connection_forget(const sg_redis_connection *conn);
/* Like send(2) on a non-blocking socket: -1 with errno EAGAIN if nothing can be sent now. */
ssize_t sg_redis_connection_send(sg_redis_connection *conn, const void *data, size_t length);
/* Receives once and feeds the reader. 1: bytes have arrived, 0: nothing yet, -1: broken. */
int sg_redis_connection_fill(sg_redis_connection *conn);
/* The next complete reply or NULL; false if the stream is malformed. */
bool sg_redis_connection_reply(sg_redis_connection *conn, redisReply **reply);
/* Sends one request and receives `count` replies. The caller must be the only user of conn. */
syncguard_status sg_redis_connection_call(sg_redis_connection *conn, const sg_redis_text *request,
                                          redisReply **replies, size_t count,
                                          const syncguard_limits *limits, syncguard_error *err);
/* Gives conn a reader that refuses replies whose arrays announce too many elements. */
bool sg_redis_connection_make_reader(sg_redis_connection *conn);
void sg_redis_replies_free(redisReply **replies, size_t count);

/* Pauses before a request is repeated that the server cannot answer yet. The pause grows with the
 * rounds. */
syncguard_status sg_redis_pause(int round, const syncguard_limits *limits, syncguard_error *err);

#endif
