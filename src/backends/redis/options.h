/* The configuration of a handle, from the typed options or from a URL. */
#ifndef SYNCGUARD_REDIS_OPTIONS_H
#define SYNCGUARD_REDIS_OPTIONS_H

#include "syncguard/redis.h"
#include "syncguard/sys/url.h"

typedef struct sg_redis_address {
    char *host; /* or the path of a unix socket when port is 0 */
    int port;
} sg_redis_address;

#define SG_REDIS_MAX_SEEDS 32
#define SG_REDIS_MAX_CONNECTIONS 64 /* shared by all threads; and again, for WAIT */

typedef struct sg_redis_config {
    syncguard_redis_mode mode;
    sg_redis_address seeds[SG_REDIS_MAX_SEEDS];
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
    bool index_hashed; /* and those of indexes, too, so they do not contain the lock id */
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
} sg_redis_config;

syncguard_status sg_redis_config_read(const syncguard_redis_options *given, sg_redis_config *config,
                                      syncguard_error *err);
/* Wipes credentials. */
void sg_redis_config_free(sg_redis_config *config);
/* Reads the URL into both; their strings belong to url. */
syncguard_status sg_redis_options_read_url(syncguard_url *url, syncguard_redis_options *out,
                                           syncguard_options *common, syncguard_error *err);

#endif
