/*
 * Inside the Redis backend.
 *
 *   ops.c, reads.c, examine.c   operations: build a request, judge its reply
 *   batch.c                     many calls of one script in one flush
 *   call.c                      one script call: sending again, redirections, NOSCRIPT
 *   moving.c                    operations name by name, while a slot moves
 *   link.c, slot.c              a connection shared by many callers (leader and followers)
 *   connector.c                 makes that connection, in the background
 *   conn.c, tls.c, resolve.c    one socket: connecting, handshake, bytes
 *   route.c, topology.c         where the primary is: address, Sentinel, Cluster; other servers
 *   watch.c, keymap.c           wake-up by client tracking
 *   wire.c, value.c             RESP requests and error words; the stored JSON
 *   options.c, backend.c        configuration, construction, the module
 *
 * Order of locks: link->mutex before tracker->mutex or route->mutex; none of them
 * is held during a wait or a call into the core, except that the core's waiting
 * room is locked when it calls unwatch or take_over, and that tracker->read_mutex is held while
 * reports are passed on.
 */
#ifndef SYNCGUARD_REDIS_INTERNAL_H
#define SYNCGUARD_REDIS_INTERNAL_H

#include <hiredis/hiredis.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "syncguard/redis.h"
#include "syncguard/sys/backend.h"
#include "syncguard/sys/descriptor.h"
#include "syncguard/sys/url.h"

/* --- configuration (options.c) --- */

typedef struct sg_address {
    char *host; /* or the path of a unix socket when port is 0 */
    int port;
} sg_address;

#define SG_MAX_SEEDS 32

typedef struct sg_config {
    syncguard_redis_mode mode;
    sg_address seeds[SG_MAX_SEEDS];
    size_t seed_count;
    char *master_name;
    char *user;
    char *password;
    char *sentinel_user;
    char *sentinel_password;
    int database;
    char *prefix;
    size_t prefix_length;
    bool names_hashed; /* the prefix is so long that some names are hashed */
    bool index_hashed; /* and so long that those of indexes are: lock ids cannot be seen in them */
    char *client_name;
    bool tls;
    char *tls_ca;
    char *tls_cert;
    char *tls_key;
    char *tls_server_name;
    bool tls_verify;
    int connections;
    int64_t spin_ns;
    int wait_replicas;
    int wait_connections;
    bool tracking;
} sg_config;

syncguard_status sg_redis_config_read(const syncguard_redis_options *given, sg_config *config,
                                      syncguard_error *err);
/* Wipes credentials. */
void sg_redis_config_free(sg_config *config);
syncguard_status sg_redis_open_url(const char *text, const syncguard_options *options,
                                   syncguard_backend **out, syncguard_error *err);

/* --- requests and error words (wire.c) --- */

/* Commands in the server's protocol. Errors of memory are remembered in `failed`. */
typedef struct sg_text {
    char *data;
    size_t length;
    size_t size;
    bool failed;
    char local[1536];
} sg_text;

void sg_redis_text_init(sg_text *text);
/* Starts on the heap, so that two texts can be swapped by their pointers. */
bool sg_redis_text_reserve(sg_text *text, size_t size);
void sg_redis_text_free(sg_text *text);
void sg_redis_text_add(sg_text *text, const void *data, size_t length);
/* Begins a command of `count` arguments. */
void sg_redis_text_command(sg_text *text, size_t count);
void sg_redis_text_arg(sg_text *text, const void *data, size_t length);
void sg_redis_text_arg_str(sg_text *text, const char *string);
void sg_redis_text_arg_int(sg_text *text, int64_t value);

/* The code word that an error reply starts with ("NOAUTH"), or "" for other replies. */
#define SG_WORD_SIZE 32
void sg_redis_reply_word(const redisReply *reply, char out[SG_WORD_SIZE]);
/* Fills err for an error reply or an unexpected one, by its code word only. */
syncguard_status sg_redis_fail_reply(syncguard_error *err, const redisReply *reply);

/* --- stored values (value.c) --- */

/* What can be read of a stored lock. */
typedef enum sg_value {
    SG_VALUE_UNREADABLE, /* not even the expiry: nobody can tell whether it is live */
    SG_VALUE_DAMAGED,    /* the expiry, but not all of lock id, key and fence: those are "" then */
    SG_VALUE_WHOLE
} sg_value;
sg_value sg_redis_value_read(const char *text, size_t length, syncguard_record *record);
syncguard_status sg_redis_fail_value(syncguard_error *err);
/* Appends a JSON string with its quotes. */
void sg_redis_value_quote(sg_text *out, const char *text, size_t length);

/* --- sockets (tls.c, resolve.c, conn.c) --- */

typedef struct sg_tls sg_tls;
syncguard_status sg_redis_tls_create(const sg_config *config, sg_tls **out, syncguard_error *err);
void sg_redis_tls_free(sg_tls *tls);
/* Around every call of OpenSSL. False: the process exits, and OpenSSL may be gone. */
bool sg_redis_tls_enter(void);
void sg_redis_tls_leave(void);
/* A session over fd, checked against host. */
syncguard_status sg_redis_tls_session(sg_tls *tls, int fd, const char *host, SSL **out,
                                      syncguard_error *err);
syncguard_status sg_redis_tls_handshake(SSL *ssl, int fd, const syncguard_limits *limits,
                                        syncguard_error *err);

struct addrinfo;
typedef struct sg_resolver sg_resolver;
syncguard_status sg_redis_resolver_create(sg_resolver **out, syncguard_error *err);
void sg_redis_resolver_free(sg_resolver *resolver);
typedef struct sg_lookup sg_lookup;
/* Addresses of host; *out keeps them until sg_lookup_free. */
syncguard_status sg_redis_resolve(sg_resolver *resolver, const char *host, int port,
                                  const syncguard_limits *limits, sg_lookup **out,
                                  const struct addrinfo **list, syncguard_error *err);
void sg_redis_lookup_free(sg_lookup *lookup);

typedef struct sg_backend sg_backend;

#if HIREDIS_MAJOR > 0
typedef size_t sg_elements;
#else
typedef int sg_elements;
#endif

/* One connection. The fields below the line belong to link.c. */
typedef struct sg_conn {
    int fd;
    syncguard_fd_identity identity; /* of fd, for a forked child */
    SSL *ssl;
    pthread_mutex_t ssl_mutex;
    redisReader *reader;
    redisReplyObjectFunctions functions; /* of the reader: hiredis' own, with arrays counted */
    void *(*create_array)(const redisReadTask *task, sg_elements elements);
    size_t elements; /* of the arrays of the unfinished reply */
    uint64_t route;  /* route generation it was opened under */
    char peer[300];  /* "host:port": which server this is */
    /* --- */
    int refs;
    int64_t setup_ns; /* how long it took to make */
    bool writer;      /* somebody is sending from wbuf */
    bool blocked;     /* the socket took no more */
    sg_text out;      /* commands that have not been handed to a writer */
    sg_text wbuf;     /* what the writer sends */
    size_t wbuf_done;
    uint64_t tracked; /* the tracker's epoch that this connection reports to; 0: none */
} sg_conn;

typedef enum sg_role {
    SG_ROLE_STORE,   /* AUTH, SELECT, CLIENT SETNAME */
    SG_ROLE_SENTINEL /* credentials of the sentinels */
} sg_role;

/* Connects to one address and shakes hands. */
syncguard_status sg_redis_conn_open(sg_backend *backend, const sg_address *address, sg_role role,
                                    const syncguard_limits *limits, sg_conn **out,
                                    syncguard_error *err);
/* Closes without a word. */
void sg_redis_conn_close(sg_conn *conn);
/* In a forked child: closes the descriptor, if it is still the parent's, and leaves the memory,
 * which another thread of the parent may have been changing. */
void sg_redis_conn_forget(const sg_conn *conn);
/* As send(2) and recv(2) on a non-blocking socket: -1 with errno EAGAIN when nothing moves. */
ssize_t sg_redis_conn_send(sg_conn *conn, const void *data, size_t length);
ssize_t sg_redis_conn_recv(sg_conn *conn, void *data, size_t size);
/* Largest unfinished reply that is accepted. */
#define SG_MAX_REPLY (8u << 20)
/* Gives conn a reader whose replies cannot claim more memory than was sent for. */
bool sg_redis_conn_make_reader(sg_conn *conn);
/* Receives once and feeds the reader. 1: bytes came, 0: nothing yet, -1: broken. */
int sg_redis_conn_fill(sg_conn *conn);
/* Next complete reply or NULL; false if the stream makes no sense. */
bool sg_redis_conn_reply(sg_conn *conn, redisReply **reply);
/* One request and `count` replies, by the only user of conn. */
syncguard_status sg_redis_conn_call(sg_conn *conn, const sg_text *request, redisReply **replies,
                                    size_t count, const syncguard_limits *limits,
                                    syncguard_error *err);
/* Waits for bytes and feeds them: OK, or why not. */
syncguard_status sg_redis_conn_wait(sg_conn *conn, const syncguard_limits *limits,
                                    syncguard_error *err);
void sg_redis_replies_free(redisReply **replies, size_t count);

/* --- where the primary is (route.c) --- */

/* Other servers that are remembered, beside the seeds. */
#define SG_MAX_NODES 64

typedef struct sg_node {
    char host[256];
    int port;
    char id[48]; /* its own, which does not change; "": any */
} sg_node;

typedef struct sg_route {
    pthread_mutex_t mutex;
    uint64_t generation;
    bool known;       /* Cluster: target was told by a redirection */
    char target[256]; /* host */
    int port;
    size_t first;                /* of the seeds and nodes, the one to be tried first */
    sg_node nodes[SG_MAX_NODES]; /* other nodes of the Cluster, or other sentinels */
    size_t node_count;
    atomic_llong learned_ns; /* Cluster: when the nodes were asked for; 0: never */
} sg_route;

/* Connects to the primary. */
syncguard_status sg_redis_route_connect(sg_backend *backend, const syncguard_limits *limits,
                                        sg_conn **out, syncguard_error *err);
uint64_t sg_redis_route_generation(sg_route *route);
/* The primary is elsewhere: forces new connections, unless that has happened since `seen`. */
void sg_redis_route_forget(sg_route *route, uint64_t seen);
/* Reads a port as another server tells it. */
bool sg_redis_route_port(const char *text, int *port);
/* Reads "MOVED slot host:port" or "ASK ..."; peer stands in for an empty host. */
bool sg_redis_route_parse(const redisReply *reply, const char *peer, char host[256], int *port);
void sg_redis_route_moved(sg_route *route, const char *host, int port);
/* Asks for a name that never exists, and so learns where the slot is, and whether it moves: then
 * backend->ask leads to its new node. */
syncguard_status sg_redis_route_probe(sg_backend *backend, const syncguard_limits *limits,
                                      bool *moving, syncguard_error *err);

/* --- other servers (topology.c) --- */

/*
 * Over a new connection: learns the nodes, but not every time, and makes sure that the server is
 * the node of that id, if it is not "". Failure: the connection must not be used.
 */
syncguard_status sg_redis_topology_learn(sg_backend *backend, sg_conn *conn, const char *id,
                                         const syncguard_limits *limits, syncguard_error *err);
/* Whether the answer to MYID is that id. */
syncguard_status sg_redis_topology_check(const redisReply *reply, const char *id,
                                         syncguard_error *err);
/* Learns them over a shared connection, once in a while. */
void sg_redis_topology_refresh(sg_backend *backend, const syncguard_limits *limits);
/* Reads the answer to CLUSTER SLOTS of peer. */
void sg_redis_topology_read(sg_route *route, const redisReply *slots, const char *peer);
/* Reads the answer to SENTINEL SENTINELS. */
void sg_redis_topology_read_sentinels(sg_route *route, const redisReply *sentinels);

/* --- many callers on one connection (link.c) --- */

typedef struct sg_link sg_link;
typedef struct sg_slot sg_slot;

struct sg_link {
    sg_backend *backend;
    pthread_mutex_t mutex;
    sg_conn *conn;   /* NULL: not connected */
    bool connecting; /* the thread of connector.c is at it */
    bool joinable;   /* and has to be joined */
    pthread_t connector;
    syncguard_abort *stop; /* ends it */
    sg_slot *leader;       /* whose thread reads, for all */
    sg_slot *queue;        /* not sent yet: waiting for a connection */
    sg_slot *queue_last;
    sg_slot *flight; /* sent: waiting for replies, in order */
    sg_slot *flight_last;
    sg_slot *spare;
    uint32_t slot_count;
    uint32_t unpicked; /* callers woken with a reply that have not come for it yet */
    atomic_int word;   /* futex of the first 32 slots */
    int64_t used_ns;
    int64_t heard_ns;
    atomic_bool polling; /* the leader sleeps: whoever adds a command sends it */
    atomic_int pending;
    /* Where to connect; port 0: to the primary. */
    char host[256];
    int port;
};

/* What one caller sends. The bytes must stay until sg_link_exchange returns. */
typedef struct sg_request {
    const sg_text *text;
    redisReply **replies;
    size_t count;
    bool watch; /* needs a connection that reports to the tracker */
    bool hurry; /* others wait for what comes of it */
    /* out */
    bool armed;      /* watch: what it read is going to be reported */
    bool sent;       /* the server may have got it */
    int64_t sent_ns; /* just before the first byte left */
    uint64_t route;  /* route generation of the connection */
    char peer[300];  /* Cluster only */
} sg_request;

syncguard_status sg_redis_link_init(sg_link *link, sg_backend *backend, syncguard_error *err);
/* forked: the connection is the parent's, and the memory may be in any state: descriptors are
 * closed, the rest is left. */
void sg_redis_link_fini(sg_link *link, bool forked);
/*
 * Sends the request and waits for its replies. ServiceUnavailable with
 * request->sent says that the connection broke: the request may have been
 * carried out.
 */
syncguard_status sg_redis_link_exchange(sg_link *link, sg_request *request,
                                        const syncguard_limits *limits, syncguard_error *err);

/* Where the link is to lead from now on, instead of to the primary. */
void sg_redis_link_aim(sg_link *link, const char *host, int port);
/* Gives the connection up; the next exchange makes a new one. */
void sg_redis_link_reset(sg_link *link);

/* The connection if it reports to the tracker, else NULL; until it is given back. */
sg_conn *sg_redis_link_tracked(sg_link *link);
void sg_redis_link_give_back(sg_link *link, sg_conn *conn, bool broken);

/* --- keys behind hashed names (keymap.c) --- */

#define SG_KEYMAP_BUCKETS 256
typedef struct sg_keymap_entry sg_keymap_entry;
typedef struct sg_keymap {
    sg_keymap_entry *buckets[SG_KEYMAP_BUCKETS];
} sg_keymap;

/* False without memory. */
bool sg_redis_keymap_put(sg_keymap *map, const char *name, size_t name_length, const char *key,
                         size_t key_length);
/* The key's length; 0: unknown. */
size_t sg_redis_keymap_get(sg_keymap *map, const char *name, size_t length,
                           char key[SYNCGUARD_KEY_SIZE]);
void sg_redis_keymap_remove(sg_keymap *map, const char *name, size_t length);
void sg_redis_keymap_free(sg_keymap *map);

/* --- wake-up (watch.c) --- */

typedef struct sg_tracker sg_tracker;
syncguard_status sg_redis_tracker_create(sg_backend *backend, sg_tracker **out,
                                         syncguard_error *err);
void sg_redis_tracker_free(sg_tracker *tracker, bool forked);
/* A waiter is about to try `name`. True if the try should be armed. */
bool sg_redis_tracker_watch(sg_tracker *tracker, const char *name, size_t name_length,
                            const char *key, size_t key_length);
void sg_redis_tracker_unwatch(sg_tracker *tracker, const char *name, size_t name_length);
/*
 * Before a try that is to be armed leaves on conn: appends what makes conn report, if it does not
 * yet; *expected: a reply to that must be expected. True if reports of what the try reads will
 * come. Called with the link's mutex held.
 */
bool sg_redis_tracker_prepare(sg_tracker *tracker, sg_conn *conn, bool *expected);
/* Whether there have been waiters. */
bool sg_redis_tracker_started(sg_tracker *tracker);
/* The reply to that; epoch: conn->tracked as prepare has set it, 0: the present one. */
void sg_redis_tracker_answer(sg_tracker *tracker, uint64_t epoch, const redisReply *reply);
/* See syncguard_backend_ops. */
syncguard_status sg_redis_tracker_listen(sg_tracker *tracker, syncguard_parker *parker,
                                         const syncguard_limits *limits, syncguard_error *err);
void sg_redis_tracker_take_over(sg_tracker *tracker);
/* A waiter's try could not be armed, because the slot moves: watch for the end of that. */
void sg_redis_tracker_moving(sg_tracker *tracker);
/* A connection that may have reported is gone. */
void sg_redis_tracker_lost(sg_tracker *tracker);

/* --- calling scripts (call.c) --- */

typedef struct sg_script {
    const char *text;
    const char *sha;
} sg_script;
typedef enum sg_script_id {
    SG_ACQUIRE,
    SG_RELEASE,
    SG_EXTEND,
    SG_UNDO,
    SG_CLEANUP,
    SG_READ,
    SG_FIND,
    SG_HOLD,
    SG_SCRIPTS
} sg_script_id;
extern const sg_script sg_redis_scripts[SG_SCRIPTS];

/* One call of a script. Arguments are added in order: keys, then values. */
typedef struct sg_call {
    sg_script_id script;
    const char *word; /* a command with one key instead of a script, or NULL */
    int keys;
    /* Uses no other name than its key. Only such a call may be sent to the new node of a slot that
     * moves, which answers for names that are still on the old one as if they did not exist. */
    bool alone;
    sg_text args; /* keys and values in the protocol's form */
    size_t arg_count;
    const char *watch_name; /* acquire of a waiter: arm this name first */
    size_t watch_length;
    bool contended; /* release of a lock that others probably wait for */
    bool confirm;   /* what it writes counts only when wait_replicas replicas have it */
    sg_link *link;  /* NULL: any of the shared ones */
    /* out */
    redisReply *reply;
    bool moving;     /* not carried out: the slot moves, and its names may be on two nodes */
    bool asked;      /* the answer is that of the new node of a slot that moves */
    bool confirmed;  /* enough replicas have what the connection that answered wrote */
    bool armed;      /* changes of watch_name are going to be reported */
    bool again;      /* was sent more than once */
    bool unanswered; /* some sending of it has no reply: it may still be carried out */
    int64_t first_sent_ns;
} sg_call;

void sg_redis_call_init(sg_call *call, sg_script_id script, int keys);
/* Another script or command for the same purpose; what is known of earlier sendings stays. */
void sg_redis_call_change(sg_call *call, sg_script_id script);
void sg_redis_call_free(sg_call *call);
void sg_redis_call_arg(sg_call *call, const void *data, size_t length);
void sg_redis_call_arg_int(sg_call *call, int64_t value);
/* OK: call->reply is a number or a text; of the reading scripts an array that begins with the
 * server's time; of a plain command anything but an error. Or call->moving. */
syncguard_status sg_redis_call_run(sg_backend *backend, sg_call *call,
                                   const syncguard_limits *limits, syncguard_error *err);
/* Appends EVALSHA (or EVAL) of the call's script. */
void sg_redis_call_encode(const sg_call *call, bool by_sha, sg_text *out);
/* Plain commands through a shared link, sent again if the connection breaks. */
syncguard_status sg_redis_plain_run(sg_backend *backend, const sg_text *text, redisReply **replies,
                                    size_t count, const syncguard_limits *limits,
                                    syncguard_error *err);
/* The same on one link. */
syncguard_status sg_redis_plain_run_on(sg_backend *backend, sg_link *link, const sg_text *text,
                                       redisReply **replies, size_t count,
                                       const syncguard_limits *limits, syncguard_error *err);
sg_link *sg_redis_link_choose(sg_backend *backend);
/* Appends WAIT for wait_replicas replicas, which covers what the same connection wrote before. */
void sg_redis_text_wait(const sg_backend *backend, const syncguard_limits *limits, sg_text *out);
/* Whether that was answered with enough of them. */
bool sg_redis_replicas_have_it(const sg_backend *backend, const redisReply *reply);
syncguard_status sg_redis_fail_replicas(syncguard_error *err);
/* Pause before asking again what the server cannot answer yet. */
syncguard_status sg_redis_pause(int round, const syncguard_limits *limits, syncguard_error *err);

/* --- while a slot moves (moving.c) --- */

typedef struct sg_name {
    char text[SYNCGUARD_NAME_SIZE];
    size_t length;
} sg_name;

/*
 * Each takes a call that came back with `moving`, and leaves the answer in call->reply in the form
 * that the script gives. ABSENT: the lock id is unknown.
 */
syncguard_status sg_redis_moving_acquire(sg_backend *backend, sg_call *call, const sg_name *lock,
                                         const sg_name *index, const sg_name *counter,
                                         syncguard_acquire_op *op, syncguard_error *err);
syncguard_status sg_redis_moving_release(sg_backend *backend, sg_call *call, const sg_name *index,
                                         const char *lock_id, const syncguard_limits *limits,
                                         syncguard_error *err);
syncguard_status sg_redis_moving_extend(sg_backend *backend, sg_call *call, const sg_name *index,
                                        const syncguard_extend_op *op, syncguard_error *err);
syncguard_status sg_redis_moving_undo(sg_backend *backend, sg_call *call, const sg_name *lock,
                                      const sg_name *index, const char *lock_id, int64_t life_ms,
                                      const syncguard_limits *limits, syncguard_error *err);
syncguard_status sg_redis_moving_find(sg_backend *backend, sg_call *call, const sg_name *index,
                                      const syncguard_limits *limits, syncguard_error *err);
syncguard_status sg_redis_fail_moving(syncguard_error *err);

/* --- the backend (backend.c, ops.c, reads.c, examine.c) --- */

struct sg_backend {
    syncguard_backend base;
    sg_config config;
    sg_tls *tls;
    sg_resolver *resolver;
    sg_route route;
    sg_link *links; /* config.connections; if wait_replicas, config.wait_connections; one for
                       extends */
    size_t link_count;
    sg_link ask; /* Cluster: to the node that our slot moves to */
    syncguard_gate wait_gate;
    pthread_mutex_t wait_mutex;
    uint64_t wait_busy; /* one bit per connection of its own */
    sg_tracker *tracker;
    char tombstone[SYNCGUARD_NAME_SIZE];
    size_t tombstone_length;
    int64_t tolerance_ms;
};

syncguard_status sg_redis_name_lock(const sg_backend *backend, const char *key, sg_name *out,
                                    syncguard_error *err);
/* What follows the fence in the stored value: it does not depend on time. */
void sg_redis_add_rest(sg_call *call, const syncguard_acquire_op *op);
void sg_redis_name_index(const sg_backend *backend, const char *lock_id, sg_name *out);
syncguard_status sg_redis_name_counter(const sg_backend *backend, const sg_name *lock, sg_name *out,
                                       syncguard_error *err);

/* What a script answers that meets only half of a lock's names: the slot moves. */
#define SG_ELSEWHERE (-6)

/* The calls that are made singly and in batches. */
void sg_redis_extend_args(const sg_backend *backend, const syncguard_extend_op *op, sg_call *call);
syncguard_status sg_redis_judge_extend(syncguard_extend_op *op, const redisReply *reply,
                                       syncguard_error *err);
/*
 * A connection of their own for extends, or NULL if they may use any. With wait_replicas, because
 * they wait for the replicas as acquires do: after a failover, a lease that the new primary does
 * not know of would be another client's to take. With waiters, because the server does not report
 * a change to the connection that made it, but forgets that it was to report further ones.
 */
sg_link *sg_redis_extend_link(const sg_backend *backend);
/* Free the call in any case. */
syncguard_status sg_redis_undo_args(const sg_backend *backend, const syncguard_undo_op *op,
                                    sg_call *call, syncguard_error *err);

/* The failure that a negative answer of a script stands for. */
syncguard_status sg_redis_fail_mark(int64_t mark, syncguard_error *err);

extern const syncguard_backend_ops sg_redis_ops;

syncguard_status sg_redis_check_key(const syncguard_backend *base, const char *key,
                                    size_t key_length, syncguard_error *err);
syncguard_status sg_redis_acquire(syncguard_backend *base, syncguard_acquire_op *op,
                                  syncguard_error *err);
syncguard_status sg_redis_release(syncguard_backend *base, syncguard_release_op *op,
                                  syncguard_error *err);
syncguard_status sg_redis_extend(syncguard_backend *base, syncguard_extend_op *op,
                                 syncguard_error *err);
syncguard_status sg_redis_extend_many(syncguard_backend *base, syncguard_extend_op *items,
                                      size_t count, const syncguard_limits *limits,
                                      syncguard_error *err);
syncguard_status sg_redis_undo(syncguard_backend *base, const char *key, size_t key_length,
                               const char *lock_id, int64_t until_ns,
                               const syncguard_limits *limits, syncguard_error *err);
syncguard_status sg_redis_undo_many(syncguard_backend *base, syncguard_undo_op *items, size_t count,
                                    const syncguard_limits *limits, syncguard_error *err);
syncguard_status sg_redis_cleanup(syncguard_backend *base, const syncguard_cleanup_op *op,
                                  syncguard_error *err);
syncguard_status sg_redis_is_locked(syncguard_backend *base, syncguard_is_locked_op *op,
                                    syncguard_error *err);
syncguard_status sg_redis_lookup_lock(syncguard_backend *base, syncguard_lookup_op *op,
                                      syncguard_error *err);
syncguard_status sg_redis_list(syncguard_backend *base, const syncguard_limits *limits,
                               syncguard_record_fn fn, void *context, syncguard_error *err);
/* Locks that list has to leave out, because they cannot be read. */
syncguard_status sg_redis_count_unreadable(sg_backend *backend, const syncguard_limits *limits,
                                           size_t *count, syncguard_error *err);
syncguard_status sg_redis_examine(syncguard_backend *base, const syncguard_limits *limits,
                                  syncguard_finding_fn fn, void *context, syncguard_error *err);

#endif
