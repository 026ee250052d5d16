/* The access token that is obtained with the credentials: shared by all callers, renewed before it
 * expires. */
#ifndef SG_FIRESTORE_TOKEN_H
#define SG_FIRESTORE_TOKEN_H

#include <stdatomic.h>

#include "credentials.h"
#include "http.h"

typedef struct sg_firestore_token {
    atomic_int references;
    int64_t renew_at_ns;
    int64_t expires_at_ns;
    char header[]; /* "Authorization: Bearer ..." */
} sg_firestore_token;

typedef struct sg_firestore_tokens {
    const sg_firestore_credentials *credentials;
    pthread_mutex_t mutex; /* guards what follows, except the gate */
    syncguard_gate gate;   /* one renewal at a time */
    sg_firestore_token *token;
    bool renewing;       /* a caller renews a token that is still valid */
    int64_t retry_at_ns; /* after a failed early renewal */
} sg_firestore_tokens;

/* credentials must outlive tokens. */
syncguard_status sg_firestore_tokens_init(sg_firestore_tokens *tokens,
                                          const sg_firestore_credentials *credentials,
                                          syncguard_error *err);
void sg_firestore_tokens_destroy(sg_firestore_tokens *tokens);
/* In a forked child: keeps the token and initializes the mutex and the gate anew. */
syncguard_status sg_firestore_tokens_after_fork(sg_firestore_tokens *tokens, syncguard_error *err);
/* A token that is valid now. The caller must call sg_firestore_token_drop. */
syncguard_status sg_firestore_tokens_get(sg_firestore_tokens *tokens, sg_firestore_pool *pool,
                                         const syncguard_limits *limits, sg_firestore_token **out,
                                         syncguard_error *err);
/* The server refused this token: it is not given to another caller. */
void sg_firestore_tokens_refused(sg_firestore_tokens *tokens, const sg_firestore_token *token);
void sg_firestore_token_drop(sg_firestore_token *token);

/* The signed assertion with which a service account asks for a token (jwt.c). key_id may be NULL.
 * Valid from now_s for one hour. The caller frees *out with syncguard_free_secret. */
syncguard_status sg_firestore_jwt(const char *client_email, const char *key_id,
                                  const char *private_key, const char *audience, int64_t now_s,
                                  char **out, syncguard_error *err);

#endif
