/*
 * The Redis backend: Redis 6.2 or later, or Valkey; a single server, servers with Sentinel, or a
 * Cluster. One round trip per operation; all threads share a few connections.
 *
 * Opening does not connect: the first operation does.
 */
#ifndef SYNCGUARD_REDIS_H
#define SYNCGUARD_REDIS_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the hosts are. */
typedef enum syncguard_redis_mode {
    SYNCGUARD_REDIS_SINGLE = 0,
    SYNCGUARD_REDIS_SENTINEL = 1,
    SYNCGUARD_REDIS_CLUSTER = 2
} syncguard_redis_mode;

/* NULL and 0 mean the default for every option. */
typedef struct syncguard_redis_options {
    size_t size;
    syncguard_redis_mode mode;
    /* "host", "host:port" or "[v6]:port"; for Sentinel and Cluster several, separated by commas.
     * Default 127.0.0.1. The default port is 6379, for sentinels 26379. */
    const char *hosts;
    /* Path of a unix socket, instead of hosts; only for a single server. */
    const char *unix_path;
    const char *master_name; /* required for Sentinel, and only there */
    const char *user;        /* ACL user; a password alone is the default user's */
    const char *password;
    const char *sentinel_user; /* for the sentinels themselves */
    const char *sentinel_password;
    int database;            /* 0 to 1023; a Cluster has only 0 */
    const char *prefix;      /* default "syncguard", on a Cluster "{syncguard}" */
    const char *client_name; /* CLIENT SETNAME; default "syncguard" */
    bool tls;                /* also to sentinels */
    const char *tls_ca;      /* file of authorities; default: those of the system */
    const char *tls_cert;    /* client certificate and its key, PEM files */
    const char *tls_key;
    const char *tls_server_name; /* expected name; default: the host */
    bool tls_insecure;           /* do not verify the certificate */
    int connections;             /* shared by all threads; default 2, at most 64 */
    /* Poll for the reply this long before sleeping: halves the latency of a nearby server at the
     * cost of processor time. Default 0, at most 1000. */
    int spin_us;
    /* An acquire or extend succeeds only when this many replicas have confirmed it. Default 0. */
    int wait_replicas;
    int wait_connections; /* such acquires at a time; default 4, at most 64 */
    bool no_tracking;     /* do not ask for notifications: waiters poll */
} syncguard_redis_options;

#define SYNCGUARD_REDIS_OPTIONS_INIT                                                               \
    {                                                                                              \
        sizeof(syncguard_redis_options), SYNCGUARD_REDIS_SINGLE, NULL, NULL, NULL, NULL, NULL,     \
            NULL, NULL, 0, NULL, NULL, false, NULL, NULL, NULL, NULL, false, 0, 0, 0, 0, false     \
    }

/* Function twin of SYNCGUARD_REDIS_OPTIONS_INIT. */
SYNCGUARD_API void syncguard_redis_options_init(syncguard_redis_options *options, size_t size);

/*
 * Same as opening
 *   redis://[[user]:password@]host[:port][/database]     rediss:// with TLS
 *   redis+unix:///path/to/socket
 *   redis+sentinel://[[user]:password@]h1,h2,h3/master-name[/database]
 *   redis+cluster://[[user]:password@]h1,h2,h3
 * with the other options in the query, under the names above. Options that are invalid or
 * contradict each other are InvalidArgument. Both option structs may be NULL. The caller owns *out.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status
syncguard_redis_open(const syncguard_redis_options *redis_options, const syncguard_options *options,
                     syncguard_backend **out, syncguard_error *err);

/*
 * For programs that link the static library of this backend (SyncGuard::redis_static, or pkg-config
 * --static syncguard-redis): makes redis:, rediss:, redis+unix:, redis+sentinel: and redis+cluster:
 * URLs known to syncguard_open, which then loads no module. Call it before the first open; it may
 * be called again, and by several threads at once. Programs that link the shared libraries do not
 * need it. InvalidArgument if the static library belongs to another version of the library.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_redis_register(syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
