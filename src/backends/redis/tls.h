/* TLS sessions over our own non-blocking sockets. */
#ifndef SYNCGUARD_REDIS_TLS_H
#define SYNCGUARD_REDIS_TLS_H

#include <openssl/ssl.h>

#include "options.h"
#include "syncguard/sys/wait.h"

typedef struct sg_redis_tls sg_redis_tls;
syncguard_status sg_redis_tls_create(const sg_redis_config *config, sg_redis_tls **out,
                                     syncguard_error *err);
void sg_redis_tls_free(sg_redis_tls *tls);
/* Must enclose every call of OpenSSL. False: the process exits, and OpenSSL may be gone. */
bool sg_redis_tls_enter(void);
void sg_redis_tls_leave(void);
/* Must be the last call of a thread of ours that may have used OpenSSL. */
void sg_redis_tls_thread_ends(void);
/* Creates a session over fd, checked against host. */
syncguard_status sg_redis_tls_session(sg_redis_tls *tls, int fd, const char *host, SSL **out,
                                      syncguard_error *err);
syncguard_status sg_redis_tls_handshake(SSL *ssl, int fd, const syncguard_limits *limits,
                                        syncguard_error *err);

#endif
